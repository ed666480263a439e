/*
 * Stage 3: o = values v. A key that none of a unit's rows lists is not read, whatever it holds.
 * Every CUDA_CHUNK keys are summed from zero before they are added, which keeps long rows accurate.
 *
 *   tile  a block computes M rows of N dims; weights and v pass through shared memory, PANEL_K keys
 *         at a time
 *   row   a warp computes one row of 128 dims at most, 4 a lane; where there are fewer dims, parts
 *         of the warp take turns at the keys
 */
#ifndef TESSERA_CUDA_SPMM_CUH
#define TESSERA_CUDA_SPMM_CUH

#include "device/grid.cuh"
#include "device/panel.cuh"
#include "strip.cuh"

#define SPMM_ROW_WARPS 4
#define SPMM_ROW_DIMS 128

/* The unit's strip, first row and first dim. Units of one row of tiles stand together. */
struct spmm_unit {
    struct strip strip;
    int64_t row;
    int32_t dim;
};

static __device__ __forceinline__ struct spmm_unit
spmm_unit_of(const struct cuda_params &p, int64_t number, int64_t row_units, int rows,
             int64_t dim_units, int dims) {
    const int64_t of_rows = number / dim_units, item = of_rows / row_units;
    return {strip_of(p, item), (of_rows - item * row_units) * rows,
            (int32_t)(number - of_rows * dim_units) * dims};
}

/* ---- tile ---- */

template <int M, int N> struct spmm_shared {
    float weight[PANEL_K][M + 4];
    float v[PANEL_K][N + 4];
    int32_t key[CUDA_CHUNK]; /* -1: not read */
};

/* The keys of the chunk that begins in column x: those that any of the unit's rows (`rows`, or as
 * many as there are) lists. */
static __device__ __forceinline__ void spmm_keys(int32_t (&to)[CUDA_CHUNK],
                                                 const struct cuda_params &p,
                                                 const struct spmm_unit &unit, int64_t x,
                                                 int64_t rows) {
    rows = min(rows, unit.strip.rows - unit.row);
    for (int i = (int)threadIdx.x; i < CUDA_CHUNK; i += (int)blockDim.x) {
        int32_t key = -1;
        if (x + i < unit.strip.width) {
            const struct column c = column_of(p, unit.strip, x + i);
            if (column_lists_any(p, c, unit.row, rows))
                key = c.key;
        }
        to[i] = key;
    }
}

/* Weights and values of PANEL_K keys, from column x of the strip and number `from` of the chunk. */
template <class T, int M, int N>
static __device__ __forceinline__ void spmm_load(struct spmm_shared<M, N> &s,
                                                 const struct spmm_unit &unit,
                                                 const head_view<T> &v, int64_t x, int from) {
    for (int i = (int)threadIdx.x; i < M * PANEL_K; i += (int)blockDim.x) {
        const int row = i / PANEL_K, k = i % PANEL_K;
        float weight = 0;
        if (s.key[from + k] >= 0 && unit.row + row < unit.strip.rows)
            weight = unit.strip.values[(unit.row + row) * unit.strip.width + x + k];
        s.weight[k][row] = weight;
    }
    for (int i = (int)threadIdx.x; i < PANEL_K * (N / 4); i += (int)blockDim.x) {
        const int k = i / (N / 4), at = i % (N / 4) * 4;
        const int32_t key = s.key[from + k];
        float4 y = {0, 0, 0, 0};
        if (key >= 0)
            y = row_load4(row_of(v, key), unit.dim + at);
        *reinterpret_cast<float4 *>(&s.v[k][at]) = y;
    }
}

template <class T, int M, int N, int COLUMNS>
static __device__ __forceinline__ void spmm_store(const float (&sum)[PANEL_ROWS][COLUMNS],
                                                  const struct spmm_unit &unit,
                                                  const head_view<T> &o) {
    const int64_t row = unit.row + panel_row<M, N>();
#pragma unroll
    for (int i = 0; i < PANEL_ROWS; i++) {
        if (row + i >= unit.strip.rows)
            break;
        T *out = o.data + (unit.strip.first + row + i) * o.stride;
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            const int32_t dim = unit.dim + panel_column<M, N>() + 32 * j;
            if (dim < o.d)
                from_f32(out + dim, sum[i][j]);
        }
    }
}

template <class T, int M, int N>
static __global__ void __launch_bounds__(panel_threads(M, N), 2)
    spmm_tile(const __grid_constant__ struct cuda_params p) {
    constexpr int COLUMNS = panel_columns(M, N);
    __shared__ __align__(16) struct spmm_shared<M, N> s;
    const int64_t row_units = (p.height + M - 1) / M, dim_units = (p.d_v + N - 1) / N;
    const int64_t units = p.n_items * row_units * dim_units;
    for (int64_t number = blockIdx.x; number < units; number += gridDim.x) {
        const struct spmm_unit unit = spmm_unit_of(p, number, row_units, M, dim_units, N);
        const struct strip &strip = unit.strip;
        if (unit.row >= strip.rows)
            continue;
        const head_view<T> v = head_of<T>(p, p.v, strip.b, strip.h / p.heads_per_kv, p.d_v);
        float sum[PANEL_ROWS][COLUMNS] = {};
        for (int64_t x = 0; x < strip.width; x += CUDA_CHUNK) {
            float part[PANEL_ROWS][COLUMNS] = {};
            __syncthreads();
            spmm_keys(s.key, p, unit, x, M);
            for (int from = 0; from < CUDA_CHUNK && x + from < strip.width; from += PANEL_K) {
                __syncthreads();
                spmm_load<T, M, N>(s, unit, v, x + from, from);
                __syncthreads();
                panel_multiply<COLUMNS, M + 4, N + 4>(part, &s.weight[0][panel_row<M, N>()],
                                                      &s.v[0][panel_column<M, N>()]);
            }
            panel_add(sum, part);
        }
        spmm_store<T, M, N>(sum, unit, head_of<T>(p, p.o, strip.b, strip.h, p.d_v));
    }
}

/* ---- row ---- */

/* Of 32 keys, one in each lane with its weight, every `parts`-th from number `part`: adds to sum
 * the 4 dims at `at` of what they contribute. */
template <class T>
static __device__ __forceinline__ void spmm_row_add(float4 &sum, const head_view<T> &v,
                                                    int32_t key_held, float weight_held, int part,
                                                    int parts, int32_t at) {
#pragma unroll 8
    for (int i = 0; i < 32; i += parts) {
        const int32_t key = __shfl_sync(WARP_ALL, key_held, i + part);
        const float weight = __shfl_sync(WARP_ALL, weight_held, i + part);
        if (key < 0)
            continue;
        const float4 y = row_load4(row_of(v, key), at);
        sum.x = fmaf(weight, y.x, sum.x);
        sum.y = fmaf(weight, y.y, sum.y);
        sum.z = fmaf(weight, y.z, sum.z);
        sum.w = fmaf(weight, y.w, sum.w);
    }
}

/* The parts of a warp, `lanes` lanes each, added up. */
static __device__ __forceinline__ void spmm_row_merge(float4 &sum, int lanes) {
    for (int step = 16; step >= lanes; step /= 2) {
        sum.x += __shfl_xor_sync(WARP_ALL, sum.x, step);
        sum.y += __shfl_xor_sync(WARP_ALL, sum.y, step);
        sum.z += __shfl_xor_sync(WARP_ALL, sum.z, step);
        sum.w += __shfl_xor_sync(WARP_ALL, sum.w, step);
    }
}

template <class T>
static __global__ void __launch_bounds__(32 * SPMM_ROW_WARPS, 6)
    spmm_row(const __grid_constant__ struct cuda_params p) {
    const int lanes = p.d_v > 64 ? 32 : p.d_v > 32 ? 16 : 8; /* that share a key */
    const int part = warp_lane() / lanes;
    const int64_t dim_units = (p.d_v + SPMM_ROW_DIMS - 1) / SPMM_ROW_DIMS;
    const int64_t units = p.n_items * p.height * dim_units;
    const int64_t step = (int64_t)gridDim.x * SPMM_ROW_WARPS;
    for (int64_t number = (int64_t)blockIdx.x * SPMM_ROW_WARPS + threadIdx.x / 32; number < units;
         number += step) {
        const struct spmm_unit unit =
            spmm_unit_of(p, number, p.height, 1, dim_units, SPMM_ROW_DIMS);
        const struct strip &s = unit.strip;
        if (unit.row >= s.rows)
            continue;
        const head_view<T> v = head_of<T>(p, p.v, s.b, s.h / p.heads_per_kv, p.d_v);
        const int32_t dim = unit.dim + warp_lane() % lanes * 4;
        float4 sum = {0, 0, 0, 0};
        for (int64_t x = 0; x < s.width; x += CUDA_CHUNK) {
            float4 chunk = {0, 0, 0, 0};
            for (int64_t from = x; from < x + CUDA_CHUNK && from < s.width; from += 32) {
                const int64_t mine = from + warp_lane();
                int32_t key = -1;
                if (mine < s.width) {
                    const struct column c = column_of(p, s, mine);
                    if (column_lists(p, c.first, c.last, c.bit, unit.row))
                        key = c.key;
                }
                const float weight = key < 0 ? 0.0f : s.values[unit.row * s.width + mine];
                spmm_row_add(chunk, v, key, weight, part, 32 / lanes, dim);
            }
            sum = {sum.x + chunk.x, sum.y + chunk.y, sum.z + chunk.z, sum.w + chunk.w};
        }
        spmm_row_merge(sum, lanes);
        const head_view<T> o = head_of<T>(p, p.o, s.b, s.h, p.d_v);
        T *out = o.data + (s.first + unit.row) * o.stride;
        const float of_dim[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (part == 0 && dim + i < p.d_v)
                from_f32(out + dim + i, of_dim[i]);
    }
}

/* ---- empty rows ---- */

/* A row whose weights are all 0 is empty: 0, even where 0 * NaN was added up. A warp looks at one
 * row's outputs, and only where it finds NaN at its weights. (Within the kernels above this costs
 * registers that they do not have.) */
template <class T>
static __global__ void __launch_bounds__(32 * SPMM_ROW_WARPS)
    spmm_empty(const __grid_constant__ struct cuda_params p) {
    const int64_t units = p.n_items * p.height, step = (int64_t)gridDim.x * SPMM_ROW_WARPS;
    for (int64_t number = (int64_t)blockIdx.x * SPMM_ROW_WARPS + threadIdx.x / 32; number < units;
         number += step) {
        const int64_t item = number / p.height, row = number - item * p.height;
        const struct strip s = strip_of(p, item);
        if (row >= s.rows)
            continue;
        const head_view<T> o = head_of<T>(p, p.o, s.b, s.h, p.d_v);
        T *out = o.data + (s.first + row) * o.stride;
        bool bad = false, weighty = false;
        for (int32_t dim = warp_lane(); dim < o.d; dim += 32)
            bad |= isnan(to_f32(out[dim]));
        if (!__any_sync(WARP_ALL, bad))
            continue;
        for (int64_t x = warp_lane(); x < s.width; x += 32)
            weighty |= s.values[row * s.width + x] != 0;
        if (__any_sync(WARP_ALL, weighty))
            continue;
        for (int32_t dim = warp_lane(); dim < o.d; dim += 32)
            from_f32(out + dim, 0.0f);
    }
}

/* ---- launching ---- */

/* What every mapping is followed by; `launched` is how its own launch went. */
template <class T>
static cudaError_t spmm_empty_launch(cudaError_t launched, const struct cuda_params *p,
                                     cudaStream_t stream) {
    if (launched != cudaSuccess)
        return launched;
    return grid_launch(spmm_empty<T>, p->n_items * p->height, SPMM_ROW_WARPS,
                       32 * SPMM_ROW_WARPS, p, stream);
}

template <class T, int M, int N>
static cudaError_t spmm_tile_launch(const struct cuda_params *p, cudaStream_t stream) {
    const int64_t units = p->n_items * ((p->height + M - 1) / M) * ((p->d_v + N - 1) / N);
    return grid_launch(spmm_tile<T, M, N>, units, 1, panel_threads(M, N), p, stream);
}

template <class T>
static cudaError_t spmm_row_launch(const struct cuda_params *p, cudaStream_t stream) {
    const int64_t dim_units = (p->d_v + SPMM_ROW_DIMS - 1) / SPMM_ROW_DIMS;
    return grid_launch(spmm_row<T>, p->n_items * p->height * dim_units, SPMM_ROW_WARPS,
                       32 * SPMM_ROW_WARPS, p, stream);
}

/* The mappings that every type has for low block rows. */
template <class T>
static cudaError_t spmm_launch_low(const struct cuda_params *p, cudaStream_t stream) {
    if (p->height < 8)
        return spmm_row_launch<T>(p, stream);
    return p->d_v <= 64 ? spmm_tile_launch<T, 8, 64>(p, stream)
                        : spmm_tile_launch<T, 8, 128>(p, stream);
}

template <class T, int N>
static cudaError_t spmm_tiles_launch(const struct cuda_params *p, cudaStream_t stream) {
    if (p->height <= 16)
        return spmm_tile_launch<T, 16, N>(p, stream);
    if (p->height <= 32)
        return spmm_tile_launch<T, 32, N>(p, stream);
    return spmm_tile_launch<T, 64, N>(p, stream);
}

template <class T>
static cudaError_t spmm_launch(const struct cuda_params *p, cudaStream_t stream) {
    if (p->height <= 8)
        return spmm_launch_low<T>(p, stream);
    return p->d_v <= 64 ? spmm_tiles_launch<T, 64>(p, stream)
                        : spmm_tiles_launch<T, 128>(p, stream);
}

#endif
