/*
 * The MLP in double precision, straight from the definition (docs/semantics.md, "MLP"), knowing nothing of plans. It
 * reads inputs as they are stored, and columns from tess_pattern_row.
 */
#ifndef LAB_ORACLE_MLP_H
#define LAB_ORACLE_MLP_H

#include "lab/case/case.h"

/* Inputs. bias, bias_out, cache and base data NULL: there is none. cache: activations [B, 1, F, M] as they are before
 * a run. A cache that is not subtracted is only written. */
struct lab_mlp_of {
    const tess_tensor *x, *w1, *w2;
    const tess_tensor *bias, *bias_out, *cache, *base;
    double beta;
    tess_activation activation;
    const tess_pattern *pattern;
    const int64_t *places; /* [n_places] rows b M + i that are computed; NULL: all */
    int64_t n_places;
};

/* Row x of the answer is query i of batch b, place[x] being b M + i. */
struct lab_mlp_answer {
    int64_t rows, d_v, n_kv;
    int64_t *place; /* [rows] */
    double *o;      /* [rows][d_v] */
    double *size;   /* [rows] R: what rounding of values is measured by */
    double *reach;  /* [rows] sqrt(sum of t^2 w^2): what rounding within sums of h is */
    double *h;      /* [rows][n_kv]; NaN where a column is not listed */
    double *t;      /* [rows][n_kv]: sqrt(sum over k of x^2 W1^2) */
};

/* Answers 0, or -1 without memory; lab_mlp_answer_free whichever it was. */
int lab_mlp_run(struct lab_mlp_answer *out, const struct lab_mlp_of *inputs);
void lab_mlp_answer_free(struct lab_mlp_answer *answer);

#endif
