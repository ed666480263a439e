/* The oracle of column sums, in double precision, straight from the definition (docs/semantics.md, "Column
 * sums"). */
#ifndef LAB_COLUMN_SUMS_H
#define LAB_COLUMN_SUMS_H

#include "lab/oracle/scoring.h"

/* Inputs, as lab_oracle_run takes them. */
struct lab_sums_of {
    const tess_tensor *q, *k, *reference;
    const tess_pattern *pattern;
    const struct lab_scoring *scoring;
    int64_t rows; /* queries of a group */
};

/* value, bound: [batch * heads * groups][n_kv]. loose: [batch * heads * groups], groups of which a query lists
 * a score that is NaN or +Inf, or has a term past 2^100: nothing is promised. */
struct lab_column_sums {
    int64_t groups;
    double *value, *bound;
    unsigned char *loose;
};

/* Answers 0, or -1 without memory. lab_column_sums_free releases *out whichever it was. */
int lab_column_sums_run(struct lab_column_sums *out, const struct lab_sums_of *inputs);
void lab_column_sums_free(struct lab_column_sums *sums);

#endif
