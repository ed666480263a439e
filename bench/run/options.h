/* Requests to `tessera bench`: its command line, and the options of a line of a sweep. */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include "measure/method.h"

struct bench_options {
    const char *sweep, *json, *csv, *against;
    double time_limit; /* seconds; 0: none */
    bool resume;
    struct bench_method method;
    char **cases; /* argv's */
    int64_t n_cases;
};

/* Prints "tessera: bench: ..." as one line on stderr; answers BENCH_BAD. */
int bench_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Both answer BENCH_DONE, or BENCH_BAD after one line on stderr. */
int bench_options_parse(struct bench_options *options, int argc, char **argv);

/* The options of a sweep's line, words[0 ... count - 1]; where ("FILE:LINE") begins what is said
 * about them. words[-1] must be writable. */
int bench_method_parse(struct bench_method *method, char **words, int count, char *where);

/* The line that asks for this measurement again: options, then the case in full. */
#define BENCH_ASKED_TEXT (LAB_CASE_TEXT + 200)
void bench_asked(char text[BENCH_ASKED_TEXT], const struct bench_method *method,
                 const struct lab_case *c);

#endif
