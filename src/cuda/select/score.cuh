/*
 * Scores of pairs of blocks. A CTA takes a tile of 64 x 64 scores of a list, and adds up the query heads that the list
 * stands for. 16 bits: by mma.sync, whose operands come from L1, a warp for 16 rows; tiles are few, and their rows
 * short. Others: by FMA, from shared memory, a thread for 4 x 4 scores.
 */
#ifndef TESSERA_CUDA_SCORE_CUH
#define TESSERA_CUDA_SCORE_CUH

#include "host/pool.h"
#include "device/mma.cuh"
#include "device/warp.cuh"

#include <cuda_runtime.h>

#define SCORE_TILE 64
#define SCORE_DIMS 16     /* dims in shared memory at a time */
#define SCORE_LISTS 65535 /* CTAs of a grid over lists, at most */

/* A tile of a list. */
struct score_tile {
    int64_t b;
    int32_t h, row, column; /* head of scores; the first row and column */
    int32_t length;         /* keys there are today */
    int32_t live;           /* columns that some row of the tile scores, from column 0 on */
};

DEVICE int32_t score_live(const struct score_params &p, int32_t row, int32_t length) {
    return min(p.columns,
               (int32_t)score_columns(row, p.block_q, p.block_kv, p.n_q, length, p.causal));
}

DEVICE struct score_tile score_tile_of(const struct score_params &p, int64_t list) {
    struct score_tile t;
    t.b = list / p.heads, t.h = (int32_t)(list % p.heads);
    const uint32_t columns = (uint32_t)(p.columns + SCORE_TILE - 1) / SCORE_TILE;
    t.row = (int32_t)(blockIdx.x / columns) * SCORE_TILE;
    t.column = (int32_t)(blockIdx.x % columns) * SCORE_TILE;
    t.length = (int32_t)pool_length(p.lengths, t.b, p.n_kv);
    t.live = score_live(p, min(t.row + SCORE_TILE, p.rows) - 1, t.length);
    return t;
}

/* First element of row `row` of a head; nullptr past the last of `rows`. */
template <class T>
DEVICE const T *score_row(const struct rows_view &view, int64_t b, int32_t h, int32_t row,
                          int32_t rows) {
    return row >= rows ? nullptr
                       : static_cast<const T *>(view.data) + b * view.stride[0] +
                             h * view.stride[1] + row * view.stride[2];
}

DEVICE void score_store(const struct score_params &p, const struct score_tile &t, int32_t row,
                        int32_t column, float x) {
    if (row >= p.rows || column >= p.columns)
        return;
    float *const to = static_cast<float *>(p.scores.data) + t.b * p.scores.stride[0] +
                      t.h * p.scores.stride[1] + row * p.scores.stride[2] + column;
    *to = column < score_live(p, row, t.length) ? x * p.scale : -INFINITY;
}

/* ---- 16 bits ---- */

/* Two elements from `dim` on; zeros past a row's end. */
template <class T> DEVICE uint32_t score_pair(const T *row, int32_t dim, int32_t d) {
    return row && dim < d ? __ldg(reinterpret_cast<const uint32_t *>(row + dim)) : 0;
}

template <class T>
static __global__ void __launch_bounds__(128)
    score_mma(const __grid_constant__ struct score_params p) {
    const int g = warp_lane() / 4, t2 = warp_lane() % 4 * 2;
    const int32_t each = p.heads_q / p.heads, group = p.heads_q / p.heads_kv;
#pragma unroll 1
    for (int64_t list = blockIdx.y; list < p.lists; list += gridDim.y) {
        const struct score_tile t = score_tile_of(p, list);
        const int32_t row = t.row + (int32_t)threadIdx.x / 32 * 16 + g;
        float s[SCORE_TILE / 8][4] = {};
#pragma unroll 1
        for (int32_t head = t.h * each; t.column < t.live && head < (t.h + 1) * each; head++) {
            const T *const q[2] = {score_row<T>(p.q, t.b, head, row, p.rows),
                                   score_row<T>(p.q, t.b, head, row + 8, p.rows)};
#pragma unroll 1
            for (int32_t dim = 0; dim < p.d; dim += 16) {
                const uint32_t a[4] = {
                    score_pair(q[0], dim + t2, p.d), score_pair(q[1], dim + t2, p.d),
                    score_pair(q[0], dim + t2 + 8, p.d), score_pair(q[1], dim + t2 + 8, p.d)};
#pragma unroll
                for (int j = 0; j < SCORE_TILE / 8; j++) {
                    const T *const k =
                        score_row<T>(p.k, t.b, head / group, t.column + 8 * j + g, t.live);
                    const uint32_t b[2] = {score_pair(k, dim + t2, p.d),
                                           score_pair(k, dim + t2 + 8, p.d)};
                    mma_sync(s[j], a, b, T());
                }
            }
        }
#pragma unroll
        for (int j = 0; j < SCORE_TILE / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                score_store(p, t, row + e / 2 * 8, t.column + 8 * j + t2 + e % 2, s[j][e]);
    }
}

/* ---- others ---- */

template <class T>
static __global__ void __launch_bounds__(256)
    score_fma(const __grid_constant__ struct score_params p) {
    __shared__ float q[SCORE_DIMS][SCORE_TILE + 1], k[2][SCORE_DIMS][SCORE_TILE + 1];
    const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
    const int32_t each = p.heads_q / p.heads, group = p.heads_q / p.heads_kv;
#pragma unroll 1
    for (int64_t list = blockIdx.y; list < p.lists; list += gridDim.y) {
        const struct score_tile t = score_tile_of(p, list);
        float s[4][4] = {};
        const int32_t heads = t.column < t.live ? each : 0;
#pragma unroll 1
        for (int32_t at = 0; at < heads * ((p.d + SCORE_DIMS - 1) / SCORE_DIMS); at++) {
            const int32_t head = t.h * each + at % heads, first = at / heads * SCORE_DIMS;
            __syncthreads(); /* all have read the dims before */
#pragma unroll 1
            for (int i = (int)threadIdx.x; i < SCORE_DIMS * SCORE_TILE; i += 256) {
                const int dim = i % SCORE_DIMS, row = i / SCORE_DIMS;
                const bool inside = first + dim < p.d;
                const T *const of_q = score_row<T>(p.q, t.b, head, t.row + row, p.rows);
                const T *const of_k = score_row<T>(p.k, t.b, head / group, t.column + row, t.live);
                q[dim][row] = inside && of_q ? to_f32(of_q[first + dim]) : 0;
                k[0][dim][row] = inside && of_k ? to_f32(of_k[first + dim]) : 0;
                if (p.bounds)
                    k[1][dim][row] = inside && of_k ? to_f32(of_k[p.d + first + dim]) : 0;
            }
            __syncthreads();
#pragma unroll 1
            for (int dim = 0; dim < SCORE_DIMS; dim++)
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const float of_q = q[dim][y + 16 * i], least = k[0][dim][x + 16 * j];
                        if (p.bounds) {
                            const float a = of_q * least, b = of_q * k[1][dim][x + 16 * j];
                            s[i][j] += a > b || isnan(a) ? a : b;
                        } else {
                            s[i][j] = fmaf(of_q, least, s[i][j]);
                        }
                    }
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                score_store(p, t, t.row + y + 16 * i, t.column + x + 16 * j, s[i][j]);
    }
}

/* ---- launches ---- */

static cudaError_t score_launch_one(const void *kernel, int threads, const struct score_params *p,
                                    cudaStream_t stream) {
    const unsigned columns = (unsigned)((p->columns + SCORE_TILE - 1) / SCORE_TILE);
    const unsigned rows = (unsigned)((p->rows + SCORE_TILE - 1) / SCORE_TILE);
    const unsigned lists = (unsigned)(p->lists < SCORE_LISTS ? p->lists : SCORE_LISTS);
    void *arguments[] = {(void *)p};
    return cudaLaunchKernel(kernel, dim3(columns * rows, lists), dim3((unsigned)threads), arguments,
                            0, stream);
}

static inline cudaError_t score_launch(const struct score_params *p, tess_type type, bool pairs,
                                       cudaStream_t stream) {
    if (pairs)
        return score_launch_one(type == TESS_F16 ? (const void *)score_mma<__half>
                                                 : (const void *)score_mma<__nv_bfloat16>,
                                128, p, stream);
    return score_launch_one(type == TESS_F32   ? (const void *)score_fma<float>
                            : type == TESS_F16 ? (const void *)score_fma<__half>
                                               : (const void *)score_fma<__nv_bfloat16>,
                            256, p, stream);
}

#endif
