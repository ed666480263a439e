/* Command lines through argp, with one line on stderr for each mistake. */
#ifndef TOOLS_ARGUMENTS_H
#define TOOLS_ARGUMENTS_H

#include <argp.h>
#include <stdint.h>

#include "io/report.h"

/* Parses argv for the subcommand `command`, with --help, --usage and --version added. Answers
 * EXIT_DONE, or EXIT_BAD when the line was printed. `input` is the parser's input. */
int arguments_parse(const struct argp *argp, const char *command, int argc, char **argv,
                    void *input);

/* Sets *value, refusing a second time: answers 0, or EINVAL after the line was printed. */
error_t argument_once(const char **value, const char *text, const char *command,
                      const char *option);

/* A whole number from minimum to maximum; answers as above. */
error_t argument_number(int64_t *value, const char *text, int64_t minimum, int64_t maximum,
                        const char *command, const char *option);

/* A finite number, not so small that it would become 0: a scale or cap of 0 means another thing. */
bool argument_real(double *value, const char *text, const char *option, struct reason *reason);

#endif
