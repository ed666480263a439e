/* How the tool says what is wrong: one line on stderr, and exit status 2. */
#ifndef TOOLS_REPORT_H
#define TOOLS_REPORT_H

#include <stdbool.h>

#include "tessera.h"

enum { EXIT_DONE = 0, EXIT_CHECK_FAILED = 1, EXIT_BAD = 2 };

/* Why something was refused: one line, filled by the function that answers false. */
struct reason {
    char text[480];
};

/* Fills *reason and answers false, so that a check reads `return reason_set(reason, "...")`. */
bool reason_set(struct reason *reason, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Fills *reason from an error of the library: its message, with the place of a fault in lists. */
bool reason_set_error(struct reason *reason, const tess_error *error);

/* Fills *reason with how many there are of `what`, where 1, kv or q of them are needed, those of K and of Q;
 * answers false. */
bool reason_set_count(struct reason *reason, const char *what, int64_t n, int64_t kv, int64_t q);

/* Prints "tessera: COMMAND: ..." as one line on stderr, whatever bytes it holds; answers EXIT_BAD.
 */
int report(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
