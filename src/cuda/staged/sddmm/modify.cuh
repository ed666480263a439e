/* Stage 1, after SDDMM: softcap and ALiBi on scores, in place, by a warp for each row. -Inf stands where
 * the pattern cuts; whether a -Inf is such a one is looked up. */
#ifndef TESSERA_CUDA_SDDMM_MODIFY_CUH
#define TESSERA_CUDA_SDDMM_MODIFY_CUH

#include "device/modify.cuh"
#include "staged/block_row_warp.cuh"

static __global__ void __launch_bounds__(32 * BLOCK_ROW_WARPS)
    sddmm_modify(const __grid_constant__ struct staged_params p) {
    struct block_row s;
    int64_t r;
    if (!block_row_of_warp(&s, &r, p))
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
    return block_row_warps_launch(sddmm_modify, p, stream);
}

#endif
