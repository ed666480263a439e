/* Whether an answer is accurate: exactly the table "Accuracy" of docs/semantics.md. */
#ifndef LAB_COMPARE_H
#define LAB_COMPARE_H

#include "lab/case/case.h"
#include "lab/oracle/column_sums.h"
#include "lab/oracle/gradients.h"
#include "lab/oracle/oracle.h"

struct lab_report {
    int ok;
    double worst;           /* largest error / bound met */
    struct lab_place place; /* row of the worst; -1 for the whole tensor */
    char message[LAB_WHY];  /* one line; "" when ok */
};

/*
 * o (and lse unless NULL) against the oracle: positions of non-finite values first, then each row,
 * the whole tensor, and the lse. NaN in a listed V row may reach rows less than `reach` away in the
 * same head (the height of a query tile; 256 when it is not known).
 */
void lab_compare(struct lab_report *report, const struct lab_oracle *oracle, const tess_tensor *o,
                 const tess_tensor *lse, int64_t reach);

/* Tells an oracle what a plan's kernel rounds: beside q of f32 CUDA's decode names the type that it
 * multiplies. */
void lab_rounds(struct lab_oracle *oracle, const tess_plan *plan);

/* Facts on which the bound of a gradient depends besides sizes. */
struct lab_gradient_rule {
    tess_type type; /* the problem's */
    tess_type o_type;
    int o_exact;   /* o was f32, or came with o_rest */
    int o_rest;    /* the latter */
    int64_t reach; /* see lab_compare; key tiles' for dK and dV */
};

/* One gradient against the oracle's, "dQ", "dK", "dV", "d_alibi" or "d_sink", in the same way. got:
 * [batch, heads, n, dim], whose rows are the gradient's in this order. */
void lab_compare_gradient(struct lab_report *report, const char *name,
                          const struct lab_gradient *gradient, const tess_tensor *got,
                          const struct lab_gradient_rule *rule);

/* The bound of row x but for what subnormal outputs add. */
double lab_gradient_bound(const struct lab_gradient *gradient, int64_t x,
                          const struct lab_gradient_rule *rule);

/* delta against dO . o - dlse of the tensors as they are, d_lse and o_rest NULL: none; rows in which one is not
 * finite may be anything. */
void lab_compare_delta(struct lab_report *report, const tess_tensor *d_o, const tess_tensor *o,
                       const tess_tensor *o_rest, const tess_tensor *d_lse,
                       const tess_tensor *delta);

/* Column sums against the oracle's: `got` is [batch, heads, groups, n_kv]. */
void lab_compare_sums(struct lab_report *report, const struct lab_column_sums *oracle,
                      const tess_tensor *got);

/* Whether a row less than `reach` away from row x, of the same n rows, may meet NaN or Inf. */
int lab_gradient_near(const struct lab_gradient *gradient, int64_t x, int64_t n, int64_t reach);

#endif
