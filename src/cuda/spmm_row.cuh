/*
 * Stage 3 where block rows have one query, whose keys no other row shares: a warp computes one row
 * of 128 dims at most, 4 a lane; where there are fewer dims, parts of the warp take turns at the
 * keys. Every CUDA_CHUNK keys are summed from zero before they are added, which keeps long rows
 * accurate.
 */
#ifndef TESSERA_CUDA_SPMM_ROW_CUH
#define TESSERA_CUDA_SPMM_ROW_CUH

#include "device/grid.cuh"
#include "mma_units.cuh"

#define SPMM_ROW_WARPS 4
#define SPMM_ROW_DIMS 128

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
        bool weighty = false;
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
                weighty |= weight != 0;
                spmm_row_add(chunk, v, key, weight, part, 32 / lanes, dim);
            }
            sum = {sum.x + chunk.x, sum.y + chunk.y, sum.z + chunk.z, sum.w + chunk.w};
        }
        spmm_row_merge(sum, lanes);
        if (!__any_sync(WARP_ALL, weighty))
            sum = {0, 0, 0, 0}; /* an empty row, even where 0 * NaN was added up */
        const head_view<T> o = head_of<T>(p, p.o, s.b, s.h, p.d_v);
        T *out = o.data + (s.first + unit.row) * o.stride;
        const float of_dim[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (part == 0 && dim + i < p.d_v)
                from_f32(out + dim + i, mean_in_range(of_dim[i], T()));
    }
}

template <class T>
static cudaError_t spmm_row_launch(const struct cuda_params *p, cudaStream_t stream) {
    const int64_t dim_units = (p->d_v + SPMM_ROW_DIMS - 1) / SPMM_ROW_DIMS;
    return grid_launch(spmm_row<T>, p->n_items * p->height * dim_units, SPMM_ROW_WARPS,
                       32 * SPMM_ROW_WARPS, p, stream);
}

#endif
