/* Fused attention with mma.sync: a step of one warp, over the keys of a stage. */
#ifndef TESSERA_CUDA_ATTENTION_STEP_CUH
#define TESSERA_CUDA_ATTENTION_STEP_CUH

#include "device/tile_f32.cuh"
#include "device/tile_groups.cuh"
#include "forward/sm80/modify.cuh"

/* Groups of 8 keys that a warp computes at a time in masked steps: few, since few may be listed,
 * and as registers allow. */
template <class T, int D, int R>
static __host__ __device__ __forceinline__ constexpr int attention_masked_groups(void) {
    return R * D > (sizeof(T) == 4 ? 1024 : attention_has_small(T()) ? 2048 : 4096) ? 2 : 4;
}

/* One stage of keys, by one warp. q: its rows; k, v: the stage's panels; masks: the stage's row masks, of a
 * masked step. listed: lists of the warp's rows; place: the item and its first granule of the step, for
 * modifiers. copy: issues a part of the copies of another step. MODIFIED: with modifiers; steps without
 * masks are computed as those with masks are. */
template <class T, int D, int R, int WARPS, int KEYS, bool MODIFIED, class copier>
DEVICE void attention_step(struct attention_state<T, D, R> &state, uint32_t q, uint32_t k,
                           uint32_t v, uint32_t masks, const struct attention_rows_list &listed,
                           const struct attention_params &p, const struct attention_place &place,
                           const struct attention_lanes &lanes, const copier &copy) {
    using shape = attention_shape<T, D, R, WARPS, KEYS>;
    constexpr int ROW = shape::ROW, STRIDE = 8 * shape::WORDS;
    const int first = (int)threadIdx.x / 32 * R, shift = first % 32;
    const uint32_t words = masks + (uint32_t)(first / 32 * 4);
    constexpr bool SKIPS =
        !attention_has_small(T()); /* skip masking of whole groups, where registers allow */
    const bool whole = listed.whole, masked = !MODIFIED || !whole;
    uint32_t left = MODIFIED && whole ? attention_all_groups<KEYS>() : listed.some;
    if (!MODIFIED && __builtin_expect(whole, true)) {
        constexpr int GROUPS = shape::GROUPS;
        const struct attention_groups all = {0, GROUPS};
#pragma unroll 1
        for (int i = 0; i < shape::TIMES; i++) {
            const uint32_t at = (uint32_t)(8 * GROUPS * i * ROW);
            float s[R / 16][GROUPS][4];
            attention_scores<D, R, GROUPS, ROW, true>(s, q, k + at, all, T(), lanes);
            if (shape::INTERLEAVED && i < shape::PARTS)
                copy(i);
            attention_add<GROUPS, ROW, true>(state, s, v + at, p.score_scale, all, lanes, [] {});
        }
        return;
    }
    constexpr int GROUPS = attention_masked_groups<T, D, R>(), BITS = attention_group_bits<KEYS>();
    if (shape::INTERLEAVED) {
#pragma unroll
        for (int i = 0; i < shape::PARTS; i++)
            copy(i);
    }
#pragma unroll 1
    while (left) {
        float s[R / 16][GROUPS][4];
        const uint32_t before = left;
        const struct attention_groups groups = attention_groups_next<GROUPS, BITS>(left);
        attention_scores<D, R, GROUPS, ROW, false>(s, q, k, groups, T(), lanes);
        if (MODIFIED)
            attention_modify_scores<R, GROUPS>(s, p, place, first, groups);
        if (masked && (!SKIPS || listed.part & (before ^ left) || groups.n < GROUPS))
            attention_mask_scores<R, GROUPS, STRIDE>(s, words, shift, groups);
        if (MODIFIED && KEYS / 8 % GROUPS != 0 && !masked)
            attention_mask_repeated<R, GROUPS>(s, groups);
        const float scale = MODIFIED ? modify_scale(p.modify, p.score_scale) : p.score_scale;
        attention_add<GROUPS, ROW, false>(state, s, v, scale, groups, lanes, [&] {
            if (MODIFIED)
                attention_drop<R, GROUPS>(s, p, place, first, groups);
        });
    }
}

#endif
