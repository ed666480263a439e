/*
 * Scores of pairs of blocks. A CTA takes a tile of scores of a list, and adds up the query heads that the list stands
 * for; tiles behind the causal cut read nothing. 16 bits: 128 x 64 scores by mma.sync. Panels of 64 dims come by
 * cp.async, one ahead of the products; four warps have 64 x 32 scores each:
 *
 *     columns    0 ... 31   32 ... 63
 *     rows 0     warp 0     warp 1
 *     rows 64    warp 2     warp 3
 *
 * Others: 64 x 64 scores by FMA, from shared memory, a thread for 4 x 4.
 */
#ifndef TESSERA_CUDA_SCORE_CUH
#define TESSERA_CUDA_SCORE_CUH

#include "host/pool.h"
#include "device/copy.cuh"
#include "device/mma.cuh"
#include "device/swizzle.cuh"
#include "device/warp.cuh"

#include <cuda_runtime.h>

#define SCORE_TILE 64     /* columns of a tile; rows of the FMA's */
#define SCORE_ROWS 128    /* rows of a tile by mma.sync */
#define SCORE_PANEL 64    /* dims of a panel: rows of 128 bytes */
#define SCORE_DIMS 16     /* dims that FMA has in shared memory at a time */
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

DEVICE struct score_tile score_tile_of(const struct score_params &p, int64_t list, int32_t rows) {
    struct score_tile t;
    t.b = list >> 32 ? list / p.heads : (uint32_t)list / (uint32_t)p.heads; /* faster by 32 bits */
    t.h = (int32_t)(list - t.b * p.heads);
    const uint32_t columns = (uint32_t)(p.columns + SCORE_TILE - 1) / SCORE_TILE;
    t.row = (int32_t)(blockIdx.x / columns) * rows;
    t.column = (int32_t)(blockIdx.x % columns) * SCORE_TILE;
    t.length = (int32_t)pool_length(p.lengths, t.b, p.n_kv);
    t.live = score_live(p, min(t.row + rows, p.rows) - 1, t.length);
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

/* Columns that each row of a tile scores, from column 0 on. Ends with a barrier. */
DEVICE void score_lives(const struct score_params &p, const struct score_tile &t, int32_t *live,
                        int32_t rows) {
    for (int32_t i = (int32_t)threadIdx.x; i < rows; i += (int32_t)blockDim.x)
        live[i] = score_live(p, t.row + i, t.length);
    __syncthreads();
}

/* Row `row` of the scores. */
DEVICE float *score_to(const struct score_params &p, const struct score_tile &t, int32_t row) {
    return static_cast<float *>(p.scores.data) + t.b * p.scores.stride[0] +
           t.h * p.scores.stride[1] + row * p.scores.stride[2];
}

/* ---- 16 bits ---- */

/* Panels of q's and k's rows in shared memory, 16-byte pieces swizzled. */
template <class T> struct score_panels {
    alignas(128) T q[SCORE_ROWS][SCORE_PANEL], k[SCORE_TILE][SCORE_PANEL];
};

/* Copies dims dim ... dim + SCORE_PANEL - 1 of ROWS rows from row `first` on; zeros past the last of `rows` and d. */
template <int ROWS, class T>
DEVICE void score_copy(const struct score_params &p, T (*to)[SCORE_PANEL],
                       const struct rows_view &view, int64_t b, int32_t h, int32_t first,
                       int32_t rows, int32_t dim) {
    const int piece = (int)threadIdx.x % 8, row = (int)threadIdx.x / 8;
    const int32_t left = p.d - dim - piece * 8, live = left > 0 ? rows - first - row : 0;
    const uint32_t at = shared_address(to[row]) + swizzle_piece(row, piece);
    const T *from = static_cast<const T *>(view.data) + b * view.stride[0] + h * view.stride[1] +
                    (first + row) * view.stride[2] + dim + piece * 8;
    if (p.vector)
#pragma unroll
        for (int i = 0; i < ROWS; i += 16, from += 16 * view.stride[2])
            cp_async_16(at + i * SCORE_PANEL * 2, i < live ? from : view.data, i < live);
    else
#pragma unroll 1
        for (int i = 0; i < ROWS; i += 16, from += 16 * view.stride[2])
            for (int e = 0; e < 8; e += 2)
                cp_async_4(at + (i * SCORE_PANEL + e) * 2,
                           i < live && e < left ? from + e : view.data, i < live && e < left);
}

/* Adds the products of a panel to this warp's scores. */
template <class T>
DEVICE void score_multiply(float (&s)[4][4][4], const struct score_panels<T> &panels) {
    const int lane = warp_lane(), warp = (int)threadIdx.x / 32;
    const int of_q = warp / 2 * 64 + lane % 16, of_k = warp % 2 * 32 + lane % 8 + lane / 16 * 8;
#pragma unroll
    for (int dim = 0; dim < SCORE_PANEL / 8; dim += 2) {
        uint32_t a[4][4], b[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            ldmatrix(a[i], shared_address(panels.q[of_q + 16 * i]) +
                               swizzle_piece(of_q, dim + lane / 16));
#pragma unroll
        for (int j = 0; j < 2; j++)
            ldmatrix(b[j], shared_address(panels.k[of_k + 16 * j]) +
                               swizzle_piece(of_k, dim + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                mma_sync(s[i][j], a[i], b[j / 2] + j % 2 * 2, T());
    }
}

/* Writes this warp's scores; live: columns that each row of the tile scores. */
DEVICE void score_write(const struct score_params &p, const struct score_tile &t,
                        const float (&s)[4][4][4], const int32_t *live) {
    const int lane = warp_lane(), warp = (int)threadIdx.x / 32;
    const int32_t first = warp % 2 * 32 + lane % 4 * 2, top = warp / 2 * 64 + lane / 4;
    const bool whole = p.even && t.row + SCORE_ROWS <= p.rows && t.column + SCORE_TILE <= p.columns;
    float *to = score_to(p, t, t.row + top) + t.column + first;
#pragma unroll
    for (int i = 0; i < 8; i++, to += 8 * p.scores.stride[2]) {
        const int32_t end = live[top + 8 * i] - t.column - first;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float2 x = {8 * j < end ? s[i / 2][j][i % 2 * 2] * p.scale : -INFINITY,
                              8 * j + 1 < end ? s[i / 2][j][i % 2 * 2 + 1] * p.scale : -INFINITY};
            if (whole) {
                *reinterpret_cast<float2 *>(to + 8 * j) = x;
                continue;
            }
            const int32_t left = p.columns - t.column - first - 8 * j;
            if (t.row + top + 8 * i < p.rows && left > 0)
                to[8 * j] = x.x;
            if (t.row + top + 8 * i < p.rows && left > 1)
                to[8 * j + 1] = x.y;
        }
    }
}

template <class T>
static __global__ void __launch_bounds__(128, 3)
    score_mma(const __grid_constant__ struct score_params p) {
    __shared__ struct score_panels<T> panels[2];
    const int32_t each = p.heads_q / p.heads, group = p.heads_q / p.heads_kv;
    const int32_t chunks = (p.d + SCORE_PANEL - 1) / SCORE_PANEL;
#pragma unroll 1
    for (int64_t list = blockIdx.y; list < p.lists; list += gridDim.y) {
        const struct score_tile t = score_tile_of(p, list, SCORE_ROWS);
        const int32_t steps = t.column < t.live ? each * chunks : 0;
        float s[4][4][4] = {};
#pragma unroll 1
        for (int32_t step = -1; step < steps; step++) {
            const int32_t next = step + 1, head = t.h * each + next / chunks;
            if (next < steps) {
                struct score_panels<T> &to = panels[next % 2];
                const int32_t dim = next % chunks * SCORE_PANEL;
                score_copy<SCORE_ROWS>(p, to.q, p.q, t.b, head, t.row, p.rows, dim);
                score_copy<SCORE_TILE>(p, to.k, p.k, t.b, head / group, t.column, t.live, dim);
            }
            cp_async_commit();
            if (step < 0)
                continue;
            cp_async_wait<1>();
            __syncthreads();
            score_multiply(s, panels[step % 2]);
            __syncthreads(); /* the panel is free */
        }
        int32_t *const live = reinterpret_cast<int32_t *>(panels);
        score_lives(p, t, live, SCORE_ROWS);
        score_write(p, t, s, live);
        __syncthreads(); /* all have read `live` */
    }
}

/* ---- others ---- */

template <class T>
static __global__ void __launch_bounds__(256)
    score_fma(const __grid_constant__ struct score_params p) {
    __shared__ float q[SCORE_DIMS][SCORE_TILE + 1], k[2][SCORE_DIMS][SCORE_TILE + 1];
    __shared__ int32_t live[SCORE_TILE];
    const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
    const int32_t each = p.heads_q / p.heads, group = p.heads_q / p.heads_kv;
#pragma unroll 1
    for (int64_t list = blockIdx.y; list < p.lists; list += gridDim.y) {
        const struct score_tile t = score_tile_of(p, list, SCORE_TILE);
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
        score_lives(p, t, live, SCORE_TILE);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int32_t row = t.row + y + 16 * i;
            float *const to = score_to(p, t, row);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int32_t column = t.column + x + 16 * j;
                if (row < p.rows && column < p.columns)
                    to[column] = column < live[y + 16 * i] ? s[i][j] * p.scale : -INFINITY;
            }
        }
        __syncthreads(); /* all have read `live` */
    }
}

/* ---- launches ---- */

static cudaError_t score_launch_one(const void *kernel, int threads, int rows_of,
                                    const struct score_params *p, cudaStream_t stream) {
    const unsigned columns = (unsigned)((p->columns + SCORE_TILE - 1) / SCORE_TILE);
    const unsigned rows = (unsigned)((p->rows + rows_of - 1) / rows_of);
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
                                128, SCORE_ROWS, p, stream);
    return score_launch_one(type == TESS_F32   ? (const void *)score_fma<float>
                            : type == TESS_F16 ? (const void *)score_fma<__half>
                                               : (const void *)score_fma<__nv_bfloat16>,
                            256, SCORE_TILE, p, stream);
}

#endif
