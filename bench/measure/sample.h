/* Whether what is timed is right: sampled rows against the oracle. */
#ifndef BENCH_SAMPLE_H
#define BENCH_SAMPLE_H

#include "lab/oracle/oracle.h"
#include "measure/measure.h"

enum { BENCH_SAMPLE_ROWS = 64 };

/* Rows spread over batches, heads and queries, from the setting's q, k and v; fewer where a row has
 * more work. Answers 0, or -1 without memory; lab_oracle_free in either case. */
int bench_sample_make(struct lab_oracle *oracle, const struct bench_setting *s,
                      const tess_pattern *pattern);

/* The setting's o, and lse where it is wanted, at these rows against the table "Accuracy" of
 * docs/semantics.md. Answers 0, or -1 and why. */
int bench_sample_check(const struct lab_oracle *oracle, const struct bench_setting *s, int lse,
                       char why[LAB_WHY]);

#endif
