/*
 * Stage 1: values = scale * q k^T on the listed tiles, -Inf on masked elements and past the keys.
 *
 * A unit of work is CUDA_CHUNK columns of a strip by some of its rows. Each score depends on its
 * own query and key alone, so keys that no row lists may be read: what they give is not selected.
 *
 *   tile  a block computes M rows; q and k pass through shared memory, PANEL_K dims at a time
 *   row   a warp computes one row; each 8 lanes take a key, 4 dims a lane
 */
#ifndef TESSERA_CUDA_SDDMM_CUH
#define TESSERA_CUDA_SDDMM_CUH

#include "device/grid.cuh"
#include "device/panel.cuh"
#include "strip.cuh"

#define SDDMM_ROW_WARPS 4

/* The unit's strip, first row and first column. */
struct sddmm_unit {
    struct strip strip;
    int64_t row, column;
};

/* Units of one chunk stand together, so that its keys stay in the cache. */
static __device__ __forceinline__ struct sddmm_unit
sddmm_unit_of(const struct cuda_params &p, int64_t number, int64_t row_units, int rows) {
    const int64_t chunk = number / row_units;
    const int64_t item = warp_find(p.image.chunks, p.n_items, chunk);
    return {strip_of(p, item), (number - chunk * row_units) * rows,
            (chunk - p.image.chunks[item]) * CUDA_CHUNK};
}

/* ---- tile ---- */

/* The chunk's columns, see struct column; those past the strip's end have no key. */
struct sddmm_columns {
    int32_t key[CUDA_CHUNK], first[CUDA_CHUNK], last[CUDA_CHUNK];
    int64_t bit[CUDA_CHUNK];
};

template <int M> struct sddmm_shared {
    float q[PANEL_K][M + 4];
    float k[PANEL_K][CUDA_CHUNK + 1];
    struct sddmm_columns columns;
};

static __device__ __forceinline__ void sddmm_columns_load(struct sddmm_columns &to,
                                                          const struct cuda_params &p,
                                                          const struct sddmm_unit &unit) {
    for (int i = (int)threadIdx.x; i < CUDA_CHUNK; i += (int)blockDim.x) {
        struct column c = {-1, 0, -1, -1};
        if (unit.column + i < unit.strip.width)
            c = column_of(p, unit.strip, unit.column + i);
        to.key[i] = c.key;
        to.first[i] = c.first;
        to.last[i] = c.last;
        to.bit[i] = c.bit;
    }
}

static __device__ __forceinline__ bool sddmm_listed(const struct cuda_params &p,
                                                    const struct sddmm_columns &columns, int c,
                                                    int64_t row) {
    return column_lists(p, columns.first[c], columns.last[c], columns.bit[c], row);
}

/* Dims d ... d + PANEL_K - 1 of the unit's queries and keys; 0 where there is none. */
template <class T, int M>
static __device__ __forceinline__ void sddmm_load(struct sddmm_shared<M> &s,
                                                  const struct cuda_params &p,
                                                  const struct sddmm_unit &unit,
                                                  const head_view<T> &q, const head_view<T> &k,
                                                  int32_t d) {
    for (int i = (int)threadIdx.x; i < (M + CUDA_CHUNK) * (PANEL_K / 4); i += (int)blockDim.x) {
        const int row = i / (PANEL_K / 4), at = i % (PANEL_K / 4) * 4;
        float4 x = {0, 0, 0, 0};
        if (row < M) {
            if (unit.row + row < unit.strip.rows)
                x = row_load4(row_of(q, unit.strip.first + unit.row + row), d + at);
            s.q[at][row] = x.x * p.q_scale;
            s.q[at + 1][row] = x.y * p.q_scale;
            s.q[at + 2][row] = x.z * p.q_scale;
            s.q[at + 3][row] = x.w * p.q_scale;
        } else {
            const int32_t key = s.columns.key[row - M];
            if (key >= 0)
                x = row_load4(row_of(k, key), d + at);
            s.k[at][row - M] = x.x;
            s.k[at + 1][row - M] = x.y;
            s.k[at + 2][row - M] = x.z;
            s.k[at + 3][row - M] = x.w;
        }
    }
}

template <int M, int COLUMNS>
static __device__ __forceinline__ void sddmm_store(const float (&sum)[PANEL_ROWS][COLUMNS],
                                                   const struct sddmm_shared<M> &s,
                                                   const struct cuda_params &p,
                                                   const struct sddmm_unit &unit) {
    const int64_t row = unit.row + panel_row<M, CUDA_CHUNK>();
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        const int c = panel_column<M, CUDA_CHUNK>() + 32 * j;
        if (unit.column + c >= unit.strip.width)
            break;
#pragma unroll
        for (int i = 0; i < PANEL_ROWS; i++) {
            if (row + i >= unit.strip.rows)
                break;
            unit.strip.values[(row + i) * unit.strip.width + unit.column + c] =
                sddmm_listed(p, s.columns, c, row + i) ? sum[i][j] * p.score_scale : -INFINITY;
        }
    }
}

template <class T, int M>
static __global__ void __launch_bounds__(panel_threads(M, CUDA_CHUNK), 2)
    sddmm_tile(const __grid_constant__ struct cuda_params p) {
    constexpr int COLUMNS = panel_columns(M, CUDA_CHUNK);
    __shared__ __align__(16) struct sddmm_shared<M> s;
    const int64_t row_units = (p.height + M - 1) / M;
    const int64_t units = p.image.chunks[p.n_items] * row_units;
    for (int64_t number = blockIdx.x; number < units; number += gridDim.x) {
        const struct sddmm_unit unit = sddmm_unit_of(p, number, row_units, M);
        if (unit.row >= unit.strip.rows)
            continue;
        const head_view<T> q = head_of<T>(p, p.q, unit.strip.b, unit.strip.h, p.d_qk);
        const head_view<T> k =
            head_of<T>(p, p.k, unit.strip.b, unit.strip.h / p.heads_per_kv, p.d_qk);
        float sum[PANEL_ROWS][COLUMNS] = {};
        sddmm_columns_load(s.columns, p, unit);
        for (int32_t d = 0; d < p.d_qk; d += PANEL_K) {
            __syncthreads();
            sddmm_load<T, M>(s, p, unit, q, k, d);
            __syncthreads();
            float part[PANEL_ROWS][COLUMNS] = {}; /* sums that run far lose accuracy */
            panel_multiply<COLUMNS, M + 4, CUDA_CHUNK + 1>(
                part, &s.q[0][panel_row<M, CUDA_CHUNK>()],
                &s.k[0][panel_column<M, CUDA_CHUNK>()]);
            panel_add(sum, part);
        }
        sddmm_store(sum, s, p, unit);
        __syncthreads(); /* before the next unit's columns */
    }
}

/* ---- row ---- */

/* The scores of 16 keys, of which lane `from + i` holds number i, to the same lanes. */
template <class T>
static __device__ __forceinline__ float sddmm_row_scores(const row_view<T> &q,
                                                         const head_view<T> &k, int32_t key_held,
                                                         int from, float q_scale, float score) {
    const int lane = warp_lane();
    const T *row[4];
    float sum[4] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int32_t key = __shfl_sync(WARP_ALL, key_held, from + 4 * j + lane / 8);
        row[j] = key < 0 ? nullptr : k.data + key * k.stride;
    }
    for (int32_t at = lane % 8 * 4; at < k.d; at += 32) {
        float4 x = row_load4(q, at);
        x = {x.x * q_scale, x.y * q_scale, x.z * q_scale, x.w * q_scale};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (!row[j])
                continue;
            const float4 y = row_load4(row_view<T>{row[j], k.d, k.vector}, at);
            sum[j] = fmaf(x.x, y.x, sum[j]);
            sum[j] = fmaf(x.y, y.y, sum[j]);
            sum[j] = fmaf(x.z, y.z, sum[j]);
            sum[j] = fmaf(x.w, y.w, sum[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        for (int step = 4; step; step /= 2)
            sum[j] += __shfl_xor_sync(WARP_ALL, sum[j], step);
        const float mine = __shfl_sync(WARP_ALL, sum[j], lane % 4 * 8);
        score = lane / 4 == from / 4 + j ? mine : score;
    }
    return score;
}

template <class T>
static __global__ void __launch_bounds__(32 * SDDMM_ROW_WARPS, 6)
    sddmm_row(const __grid_constant__ struct cuda_params p) {
    const int64_t units = p.image.chunks[p.n_items] * p.height;
    const int64_t step = (int64_t)gridDim.x * SDDMM_ROW_WARPS;
    for (int64_t number = (int64_t)blockIdx.x * SDDMM_ROW_WARPS + threadIdx.x / 32;
         number < units; number += step) {
        const struct sddmm_unit unit = sddmm_unit_of(p, number, p.height, 1);
        const struct strip &s = unit.strip;
        if (unit.row >= s.rows)
            continue;
        const head_view<T> q = head_of<T>(p, p.q, s.b, s.h, p.d_qk);
        const head_view<T> k = head_of<T>(p, p.k, s.b, s.h / p.heads_per_kv, p.d_qk);
        const row_view<T> query = row_of(q, s.first + unit.row);
        const int64_t end = min(unit.column + CUDA_CHUNK, s.width);
        for (int64_t from = unit.column; from < end; from += 32) {
            const int64_t x = from + warp_lane();
            int32_t key = -1;
            if (x < end) {
                const struct column c = column_of(p, s, x);
                if (column_lists(p, c.first, c.last, c.bit, unit.row))
                    key = c.key;
            }
            float score = sddmm_row_scores(query, k, key, 0, p.q_scale, 0.0f);
            score = sddmm_row_scores(query, k, key, 16, p.q_scale, score);
            if (x < end)
                s.values[unit.row * s.width + x] =
                    key < 0 ? -INFINITY : score * p.score_scale;
        }
    }
}

/* ---- launching ---- */

/* No fewer chunks than there are: every item may end in one that is not whole. */
static inline int64_t sddmm_chunks(const struct cuda_params *p) {
    return p->n_items + p->columns / CUDA_CHUNK;
}

template <class T, int M>
static cudaError_t sddmm_tile_launch(const struct cuda_params *p, cudaStream_t stream) {
    return grid_launch(sddmm_tile<T, M>, (p->height + M - 1) / M * sddmm_chunks(p), 1,
                       panel_threads(M, CUDA_CHUNK), p, stream);
}

template <class T>
static cudaError_t sddmm_row_launch(const struct cuda_params *p, cudaStream_t stream) {
    return grid_launch(sddmm_row<T>, p->height * sddmm_chunks(p), SDDMM_ROW_WARPS,
                       32 * SDDMM_ROW_WARPS, p, stream);
}

/* The mappings that every type has for low block rows. */
template <class T>
static cudaError_t sddmm_launch_low(const struct cuda_params *p, cudaStream_t stream) {
    return p->height < 8 ? sddmm_row_launch<T>(p, stream) : sddmm_tile_launch<T, 8>(p, stream);
}

template <class T>
static cudaError_t sddmm_launch(const struct cuda_params *p, cudaStream_t stream) {
    if (p->height <= 8)
        return sddmm_launch_low<T>(p, stream);
    if (p->height <= 16)
        return sddmm_tile_launch<T, 16>(p, stream);
    if (p->height <= 32)
        return sddmm_tile_launch<T, 32>(p, stream);
    return sddmm_tile_launch<T, 64>(p, stream);
}

#endif
