/*
 * The oracle's gradients: attention's backward in double precision, straight from the definition,
 * knowing nothing of plans. With P_ij the softmax of a row (docs/semantics.md), w_i the share that the
 * row's sink leaves, z_ij what dropout leaves of a weight, and t_ij = tanh(s_ij / softcap):
 *
 *     D_i   = dO_i . o_i
 *     dS'ij = w_i P_ij (z_ij dO_i . v_j - D_i) + P_ij dlse_i       of the score with ALiBi
 *     dS_ij = dS'ij (1 - t_ij^2)                                   of the score without softcap
 *     dQ_i  = scale sum_j dS_ij k_j        dK_j = scale sum_i dS_ij q_i
 *     dV_j  = sum_i w_i P_ij z_ij dO_i
 *     dslope_h = sum_ij dS'ij (j - p_i)    dsink_h = - sum_i (1 - w_i) D_i
 *
 * Sums over i are over all query heads that read a key/value head.
 */
#ifndef LAB_GRADIENTS_H
#define LAB_GRADIENTS_H

#include "lab/oracle.h"

/* Contiguous, as the tensors that they are of: [batch, heads, n, dim]. */
struct lab_gradients {
    double *d_q, *d_k, *d_v;
    double *d_slopes, *d_sinks; /* [heads_q], zeros where there are none */
};

struct lab_gradients_of {
    const tess_tensor *q, *k, *v, *d_o;
    const tess_tensor *d_lse; /* NULL: zeros */
    const tess_pattern *pattern;
    const struct lab_scoring *scoring; /* NULL: plain attention */
};

/* Answers 0, or -1 without memory. lab_gradients_free releases *out whichever it was. */
int lab_gradients_run(struct lab_gradients *out, const struct lab_gradients_of *in);
void lab_gradients_free(struct lab_gradients *gradients);

#endif
