/* The rows of the results: JSON objects, written as JSON and as CSV. */
#ifndef BENCH_RESULTS_H
#define BENCH_RESULTS_H

#include <jansson.h>

#include "lab/files/output.h"
#include "measure/measure.h"

struct bench_rows {
    json_t *array;
};

/* Answer 0, or -1 without memory. */
int bench_rows_make(struct bench_rows *rows);
int bench_rows_add(struct bench_rows *rows, const struct bench_result *r);
void bench_rows_free(struct bench_rows *rows);

/* Rows that an earlier run left in a file; no file is no rows. Answers 0, or -1 and why. */
int bench_rows_read(struct bench_rows *rows, const char *path, char why[LAB_WHY]);

/* 0 when all rows are of this commit and of devices of this machine: others are not to stand
 * beside what is measured here. Else -1 and which is not. */
int bench_rows_mix(const struct bench_rows *rows, char why[LAB_WHY]);

/* Whether there is a row for this line of a sweep. */
int bench_rows_hold(const struct bench_rows *rows, const char *asked);

/* A row with the times of this kernel, for the case and timing of r and whatever pattern;
 * NULL when there is none. */
const json_t *bench_rows_like(const struct bench_rows *rows, const struct bench_result *r);

/* The table on the terminal. */
void bench_print_head(FILE *out);
/* A legend below the table. */
void bench_print_legend(FILE *out);
void bench_print(FILE *out, const struct bench_result *result);
void bench_print_limits(FILE *out, const struct bench_limits *limits);

/* One JSON array, or a CSV with a line of names, of all rows in order; what was not measured is
 * null, or empty. Answer 0, or -1 without memory; errors of the file show in ferror. */
int bench_write_json(FILE *out, const struct bench_rows *rows);
int bench_write_csv(FILE *out, const struct bench_rows *rows);

#endif
