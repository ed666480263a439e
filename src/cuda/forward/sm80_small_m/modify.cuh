/* Fused attention in small tiles: masks and score modifiers of a step. s[n] has keys g, g + 8 of rows 2t, 2t
 * + 1 of group n (kernel.cuh). */
#ifndef TESSERA_CUDA_SMALL_M_MODIFY_CUH
#define TESSERA_CUDA_SMALL_M_MODIFY_CUH

#include "device/modify.cuh"
#include "forward/sm80_small_m/rows.cuh"

/* Scores of rows that do not list the key become -Inf. */
template <int GROUPS>
DEVICE void small_m_mask(float (&s)[GROUPS][1][4], const struct attention_params &p,
                         const struct granule_item &item, const struct small_m_step &step) {
    const int lane = warp_lane_here(), row = lane % 4 * 2;
    if (!small_m_masked(p, item, step.at))
        return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t rows = __shfl_sync(WARP_ALL, step.listed, lane / 4 + 8 * h) >> row;
#pragma unroll
        for (int r = 0; r < 2 * GROUPS; r++)
            if (!(rows & 1u << (r / 2 * SMALL_M_ROWS + r % 2)))
                s[r / 2][0][r % 2 * 2 + h] = -INFINITY;
    }
}

/* Softcap, then ALiBi. Masked scores are masked again. */
template <int GROUPS>
DEVICE void small_m_modify(float (&s)[GROUPS][1][4], const struct attention_params &p,
                           const struct granule_item &item, const struct small_m_step &step) {
    if (!p.modify.scores)
        return;
    if (p.modify.cap != 0)
        modify_cap(reinterpret_cast<float(&)[4 * GROUPS]>(s), p.score_scale / p.modify.cap);
    if (p.modify.alibi) {
        const float unit = modify_unit(p.modify, p.score_scale);
        const float slope = __ldg(p.modify.alibi + item.head) * p.modify.unit;
        const float of_lane =
            modify_distance(p.modify, modify_place(p.modify, step.key, p.n_kv), item.row);
        const float back = (float)(warp_lane_here() % 4 * 2);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float column = __shfl_sync(WARP_ALL, of_lane, warp_lane_here() / 4 + 8 * h);
#pragma unroll
            for (int r = 0; r < 2 * GROUPS; r++) {
                float &x = s[r / 2][0][r % 2 * 2 + h];
                x = fmaf(slope, column - (back + (float)(r / 2 * SMALL_M_ROWS + r % 2)), x * unit);
            }
        }
    }
    small_m_mask<GROUPS>(s, p, item, step);
}

/* Dropout, on P. */
template <int GROUPS>
DEVICE void small_m_drop(float (&s)[GROUPS][1][4], const struct attention_params &p,
                         const struct granule_item &item, const struct small_m_step &step) {
    if (!p.modify.seed)
        return;
    const uint64_t seed = __ldg(p.modify.seed);
    const uint32_t of_lane =
        (uint32_t)modify_place(p.modify, step.key, p.n_kv) + p.modify.first_key;
    const int g = warp_lane_here() / 4, row = item.row + warp_lane_here() % 4 * 2;
    const uint32_t key[2] = {__shfl_sync(WARP_ALL, of_lane, g),
                             __shfl_sync(WARP_ALL, of_lane, g + 8)};
#pragma unroll
    for (int n = 0; n < GROUPS; n++) {
        const struct modify_query q[2] = {
            modify_query_of(p.modify, item.batch, item.head, row + SMALL_M_ROWS * n),
            modify_query_of(p.modify, item.batch, item.head, row + SMALL_M_ROWS * n + 1)};
        const uint32_t kept = modify_kept(q, key, p.modify.dropped, seed);
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (!(kept >> e & 1))
                s[n][0][e] = 0;
    }
}

#endif
