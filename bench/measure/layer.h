/* The layer around the attention: tokens [n, d] projected to Q, K and V by d x d weights. */
#ifndef BENCH_LAYER_H
#define BENCH_LAYER_H

#include "baselines/gemm.h"
#include "measure/measure.h"

/* NULL when a case has a layer: CUDA, f32, one head, as many keys as queries, d_v = d; else why
 * not. */
const char *bench_layer_refuses(const struct lab_case *c);

/* Makes a setting's tokens and weights. Answers 0, or -1 without memory. */
int bench_layer_make(struct bench_setting *s);

/* Work of the stream: Q, K and V of the place from its tokens. */
const char *bench_layer_project(const struct bench_place *p, bench_gemm_function *gemm,
                                tess_stream stream);

/* Whether sampled rows of Q, K and V, fetched into the setting, are the products. Answers 0, or -1
 * and why. */
int bench_layer_check(const struct bench_setting *s, char why[LAB_WHY]);

#endif
