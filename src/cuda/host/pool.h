/* Launch parameters of pooled blocks, of their scores, and of columns as bytes, bits and lists. */
#ifndef TESSERA_CUDA_POOL_H
#define TESSERA_CUDA_POOL_H

#include "host/rows.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>

struct pool_params {
    struct rows_view x, pooled;
    const int32_t *lengths, *begins; /* [batch], or NULL */
    int64_t count;                   /* blocks of all heads */
    int32_t heads, n, d, block, blocks;
    tess_pool_mode mode;
    tess_type type; /* type of pooled elements */
    bool vector;    /* rows of x are whole, aligned pieces of 16 bytes */
    int32_t
        columns; /* pieces, or elements, of a row that a CTA has at a time: the launch sets them */
};

struct score_params {
    struct rows_view q, k, scores;
    const int32_t *lengths; /* [batch], or NULL */
    int64_t lists;          /* heads of scores, of all batches */
    int32_t heads_q, heads_kv, heads, rows, columns, d;
    int32_t block_q, block_kv, n_q, n_kv, bounds, causal;
    float scale;
    bool vector; /* rows of q and k are whole, aligned pieces of 16 bytes */
    bool even;   /* rows of scores are whole, aligned pieces of 8 bytes */
};

struct columns_params {
    tess_columns from, to;
    int64_t words;  /* 64-bit words of a row */
    int64_t chunks; /* pieces of a row that are converted apart; 1 where lists are made */
    bool whole;     /* bytes of rows begin at multiples of 16, where there are any */
};
#define COLUMNS_THREADS 256
#define COLUMNS_CHUNK (32 * COLUMNS_THREADS) /* columns that a CTA has at a time */

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t cuda_pool(const struct pool_params *p, tess_type type, cudaStream_t stream);
/* pairs: elements of q and k can be loaded by two. */
cudaError_t cuda_score(const struct score_params *p, tess_type type, bool pairs,
                       cudaStream_t stream);
cudaError_t cuda_columns(const struct columns_params *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

/* The backend's calls. */
tess_status cuda_pool_run(const struct pool_args *args, tess_error *error);
tess_status cuda_score_run(const struct score_args *args, tess_error *error);
tess_status cuda_columns_run(const struct columns_args *args, tess_error *error);

#endif
