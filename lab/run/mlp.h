/*
 * Tensors of an MLP's case beside x, W1, W2 and o, which stand as q, k, v and o.
 *
 *   bias, bias_out   standard normal, of the case's type or f32
 *   cache            of activations: standard normal, NaN where a row's group does not list the column; with
 *                    cache=store NaN throughout
 */
#ifndef LAB_RUN_MLP_H
#define LAB_RUN_MLP_H

#include "lab/memory/mirror.h"
#include "lab/oracle/mlp.h"

/* Tensors that a case does not have have no memory. */
struct lab_mlp {
    struct lab_tensor bias, bias_out;
    struct lab_tensor cache;  /* read and written by runs */
    struct lab_tensor before; /* its contents before each */
};

/* pattern: what is listed, the oracle's. Answers 0, or -1 without memory; lab_mlp_free whichever it was. */
int lab_mlp_make(struct lab_mlp *mlp, const struct lab_case *c, const tess_pattern *pattern);
void lab_mlp_free(struct lab_mlp *mlp);

/* The cache as it was. */
void lab_mlp_reset(const struct lab_mlp *mlp);

#endif
