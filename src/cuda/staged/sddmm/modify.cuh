/* Stage 1, after SDDMM: softcap and ALiBi on scores, in place, by a warp for each row. -Inf stands where
 * the pattern cuts; whether a -Inf is such a one is looked up. */
#ifndef TESSERA_CUDA_SDDMM_MODIFY_CUH
#define TESSERA_CUDA_SDDMM_MODIFY_CUH

#include "device/blocks.cuh"
#include "device/modify.cuh"
#include "staged/block_row.cuh"

#define SDDMM_MODIFY_WARPS 8 /* rows of a thread block */

static __global__ void __launch_bounds__(32 * SDDMM_MODIFY_WARPS)
    sddmm_modify(const __grid_constant__ struct staged_params p) {
    const int64_t unit = blocks_unit() * SDDMM_MODIFY_WARPS + threadIdx.x / 32;
    const int64_t item = unit / p.height, r = unit % p.height;
    if (item >= p.n_items)
        return;
    const struct block_row s = block_row_of(p, item);
    if (r >= s.rows)
        return;
    const float slope = p.modify.alibi ? __ldg(p.modify.alibi + s.h) : 0;
    float *row = s.scores + r * s.width;
    for (int64_t x = warp_lane(); x < s.width; x += 32) {
        const struct column c = column_of(p, s, x);
        float score = row[x];
        if (score == -INFINITY && (c.key < 0 || !column_lists(p, c.first, c.last, c.bit, r)))
            continue;
        if (p.modify.cap != 0)
            score = p.modify.cap * modify_tanh<true>(score / p.modify.cap);
        if (p.modify.alibi) {
            const int32_t place = modify_place(p.modify, c.key, (int32_t)p.n_kv);
            const float distance = modify_distance(p.modify, place, (int32_t)(s.first + r));
            score = fmaf(slope, distance, score);
        }
        row[x] = score;
    }
}

static inline cudaError_t sddmm_modify_launch(const struct staged_params *p, cudaStream_t stream) {
    const int64_t rows = p->n_items * p->height;
    if (rows == 0)
        return cudaSuccess;
    return blocks_launch(sddmm_modify, (rows + SDDMM_MODIFY_WARPS - 1) / SDDMM_MODIFY_WARPS,
                         32 * SDDMM_MODIFY_WARPS, p, stream);
}

#endif
