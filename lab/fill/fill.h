/*
 * Contents of a check's tensors.
 *
 *   normal     standard normal
 *   large      normal, Q and K larger: scores to about 1e4 either way
 *   huge       V to 1e30 (f16: 6e4) either way
 *   subnormal  K subnormal and Q large (f16), or subnormals strewn over Q, K and V (f32, bf16)
 *   extreme    Q and K so large that no score is near another: to 1e8 (f16) or 1e32 either way
 *   sink       up to five keys outweigh the others by e^18, and their V is 0; other V large
 *   nank       normal, with NaN or Inf in some K rows that are listed
 *   nanv       normal, with NaN or Inf in some V rows that are listed
 *   inf        Q positive; some K rows give -Inf scores, few +Inf
 *   tiny       normal times 2^118 (Q) and 2^-118 (K and V); f16: 2^12 (Q), 2^-16 (K)
 *   cancel     the second half of the dims takes from scores what the first gives, which is large
 *   offset     one dim takes all scores to 50 or -50, others are small
 *   top        V the largest number of f16, or 1e30
 *
 * In every fill, K and V rows that no query lists hold NaN; in a backward also queries that list no
 * key.
 */
#ifndef LAB_FILL_H
#define LAB_FILL_H

#include "lab/case/case.h"

/* The values of a fill, without the poison: q, k, v are views of the case's shapes. */
void lab_fill(const struct lab_case *c, const tess_tensor *q, const tess_tensor *k,
              const tess_tensor *v);

/* The gradients that a backward is given: standard normal, d_o smaller where gradients would leave
 * f16. d_lse NULL: none. */
void lab_fill_gradients(const struct lab_case *c, const tess_tensor *d_o, const tess_tensor *d_lse);

/* Puts NaN into every query that lists no key. Answers 0, or -1. */
int lab_fill_poison_queries(const tess_pattern *pattern, const tess_tensor *q);

/* Puts NaN into every K and V row that no query of the heads reading it lists. Answers 0, or -1
 * without memory. */
int lab_fill_poison(const tess_pattern *pattern, int64_t heads_q, const tess_tensor *k,
                    const tess_tensor *v);

#endif
