/* OpenBLAS, found when it is first needed. */
#ifndef BENCH_OPENBLAS_H
#define BENCH_OPENBLAS_H

#include "baselines/gemm.h"

/* Types and numbers as CBLAS has them, declared here because the library may be absent where
 * this is built; blasint has 32 bits, as distributions build it. */
enum { BLAS_ROW_MAJOR = 101, BLAS_AS_IT_IS = 111, BLAS_TRANSPOSED = 112 };

struct bench_openblas {
    void (*sgemm)(int order, int a_as, int b_as, int rows, int columns, int depth, float alpha,
                  const float *a, int row_a, const float *b, int row_b, float beta, float *c,
                  int row_c);
    void (*set_threads)(int threads);
};

/* Loads it unless that was done. Answers NULL, or why it cannot be used. */
const char *bench_openblas_load(struct bench_openblas *openblas);

/* Softmax of one row in place, on the calling thread. */
void bench_softmax_row(float *x, int64_t n);

#endif
