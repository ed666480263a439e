/* The dense steps that baselines and projections are made of. Functions on the device give the
 * stream its work; all answer NULL, or why not. */
#ifndef BENCH_GEMM_H
#define BENCH_GEMM_H

#include "tessera.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `count` products C = alpha A B of row-major matrices. Strides are of rows and of products, in
 * elements. */
struct bench_gemm {
    int64_t rows, columns, depth; /* C [rows, columns], A [rows, depth] */
    int b_transposed;             /* B is [columns, depth] instead of [depth, columns] */
    const void *a, *b;
    void *c;
    int64_t row_a, row_b, row_c;
    int64_t count, next_a, next_b, next_c;
    float alpha;
    tess_type type, type_c; /* types of A and B, and of C */
};

typedef const char *bench_gemm_function(const struct bench_gemm *g, tess_stream stream);

/* Softmax of each of `rows` rows of f32 scores, in place; the weights are left as the type at the
 * beginning of their row. `next` is from row to row, in floats. */
struct bench_softmax {
    float *scores;
    int64_t rows, columns, next;
    tess_type type;
};

/* cuBLAS, loaded when first called (cublas.c). f32 is f32: no TF32. */
const char *bench_gemm_cublas(const struct bench_gemm *g, tess_stream stream);

/* Tiled products in f32 (dense.cu): a thread block for each tile of C, a thread for each element,
 * stripes of A and B through shared memory. The first takes several stripes between two
 * synchronisations, as in "Blocked Dynamic Sparse Attention" (Goel and Agrawal). The second has small
 * tiles and takes a stripe at a time, as in "Sparse Attention in CUDA" (Di and Park). */
const char *bench_gemm_tiled(const struct bench_gemm *g, tess_stream stream);
const char *bench_gemm_small_tiles(const struct bench_gemm *g, tess_stream stream);

/* Columns: at most BENCH_SOFTMAX_COLUMNS. One reading and one writing of the scores. */
#define BENCH_SOFTMAX_COLUMNS 32768
const char *bench_softmax_device(const struct bench_softmax *s, tess_stream stream);

/* The CPU's threads, the products by OpenBLAS where it is; f32 (openblas.c). */
const char *bench_gemm_openblas(const struct bench_gemm *g, tess_stream stream);
const char *bench_softmax_host(const struct bench_softmax *s, tess_stream stream);

/* One thread of the CPU, by the book; f32 (naive.c). */
const char *bench_gemm_naive(const struct bench_gemm *g, tess_stream stream);
const char *bench_softmax_naive(const struct bench_softmax *s, tess_stream stream);

#ifdef __cplusplus
}
#endif

#endif
