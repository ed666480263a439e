/* Measurements as a table, as JSON and as CSV. */
#ifndef BENCH_RESULTS_H
#define BENCH_RESULTS_H

#include "lab/output.h"
#include "measure.h"

void bench_print_head(FILE *out);
void bench_print(FILE *out, const struct bench_result *result);

/* One JSON array, or a CSV with a line of names, of all results in order. Answer 0, or -1 without
 * memory; errors of the file show in ferror. */
int bench_write_json(FILE *out, const struct bench_result *results, int64_t count);
int bench_write_csv(FILE *out, const struct bench_result *results, int64_t count);

#endif
