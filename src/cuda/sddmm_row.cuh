/*
 * Stage 1 where block rows have one query, whose keys no other row shares: a warp computes one row,
 * CUDA_CHUNK columns of it; each 8 lanes take a key, 4 dims a lane.
 */
#ifndef TESSERA_CUDA_SDDMM_ROW_CUH
#define TESSERA_CUDA_SDDMM_ROW_CUH

#include "device/grid.cuh"
#include "mma_units.cuh"

#define SDDMM_ROW_WARPS 4

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
            if (from + 16 < end)
                score = sddmm_row_scores(query, k, key, 16, p.q_scale, score);
            if (x < end)
                s.values[unit.row * s.width + x] =
                    key < 0 ? -INFINITY : score * p.score_scale;
        }
    }
}

template <class T>
static cudaError_t sddmm_row_launch(const struct cuda_params *p, cudaStream_t stream) {
    return grid_launch(sddmm_row<T>, p->height * sddmm_chunks(p), SDDMM_ROW_WARPS,
                       32 * SDDMM_ROW_WARPS, p, stream);
}

#endif
