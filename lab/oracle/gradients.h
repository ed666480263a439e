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
 * Sums over i are over all query heads that read a key/value head. With every gradient come the sizes
 * that its bound is made of (docs/semantics.md, "Accuracy").
 */
#ifndef LAB_GRADIENTS_H
#define LAB_GRADIENTS_H

#include "lab/oracle/oracle.h"

/* NaN or Inf of an input may be met; all of the row is NaN, as a score of its query is NaN or +Inf. */
enum { LAB_MAY_BE_NAN = 1, LAB_IS_NAN = 2 };

/* Terms of the bound of one row: norms over the elements of the row. */
struct lab_gradient_size {
    double a;            /* A: of independent roundings of the sum's terms */
    double b;            /* B: of what rounding o does to delta */
    double w;            /* W: of cancellation in dP - delta */
    double x;            /* X: of what rounding partial sums of scores does to weights */
    double least;        /* absolute: of weights too small for f32, and of subnormal products */
    double of_o;         /* most that an error of 1 in all elements of o's rows may add */
    double m;            /* M of the rows that meet here */
    int64_t terms;       /* terms of the sum */
    unsigned char bad;   /* LAB_MAY_BE_NAN, LAB_IS_NAN */
    unsigned char empty; /* dQ: the query lists no key, or all scores are -Inf */
};

/* One gradient: a row of dQ is a query, of dK and dV a key, of slopes and sinks a head. */
struct lab_gradient {
    int64_t rows, dim;
    double *value;                  /* [rows][dim] */
    struct lab_gradient_size *size; /* [rows] */
};

struct lab_gradients {
    /* Rows in the order of [batch, heads, n] of the tensors that they are of. */
    struct lab_gradient q, k, v;
    struct lab_gradient alibi, sink; /* [heads_q], zeros where there are none */
};

struct lab_gradients_of {
    const tess_tensor *q, *k, *v, *d_o;
    const tess_tensor *d_lse; /* NULL: zeros */
    const tess_pattern *pattern;
    const struct lab_scoring *scoring; /* NULL: plain attention */
    tess_type o_type; /* type of the o that runs are given: elements past it are Inf */
};

/* Answers 0, or -1 without memory. lab_gradients_free releases *out whichever it was. */
int lab_gradients_run(struct lab_gradients *out, const struct lab_gradients_of *in);
void lab_gradients_free(struct lab_gradients *gradients);

#endif
