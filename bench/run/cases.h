/* The cases to measure: words of the command line and lines of a sweep. */
#ifndef BENCH_CASES_H
#define BENCH_CASES_H

#include "run/options.h"

struct bench_case {
    struct lab_case c;
    struct bench_method method;
};

struct bench_cases {
    struct bench_case *at;
    int64_t count, room;
    int64_t skipped;   /* cases of a sweep that this machine cannot run */
    char why[LAB_WHY]; /* the first of them cannot */
};

/* All cases that the options name, in order. Answers BENCH_DONE, or BENCH_BAD after one line on
 * stderr; bench_cases_free in either case. */
int bench_cases_read(struct bench_cases *cases, const struct bench_options *options);
void bench_cases_free(struct bench_cases *cases);

#endif
