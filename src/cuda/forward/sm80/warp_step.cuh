/* Fused attention with mma.sync: a step of one warp, over the keys of a stage. In steps with masks,
 * the warp skips groups of 8 keys that none of its rows lists, and packs the remaining groups
 * together. */
#ifndef TESSERA_CUDA_ATTENTION_STEP_CUH
#define TESSERA_CUDA_ATTENTION_STEP_CUH

#include "forward/sm80/modify.cuh"
#include "forward/sm80/tile_f32.cuh"

/* Groups of 8 keys that a warp computes at a time in masked steps: few, since few may be listed,
 * and as registers allow. */
template <class T, int D, int R>
static __host__ __device__ __forceinline__ constexpr int attention_masked_groups(void) {
    return R * D > (sizeof(T) == 4 ? 1024 : attention_has_small(T()) ? 2048 : 4096) ? 2 : 4;
}

/* O times a power of two. */
template <class T, int D, int R>
static __device__ __forceinline__ void attention_scale_o(struct attention_state<T, D, R> &state,
                                                         float factor) {
#pragma unroll
    for (int i = 0; i < R / 16; i++)
#pragma unroll
        for (int d = 0; d < D / 8; d++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                state.o[i][d][e] *= factor;
}

/* Adds the P V of elements of P too small for f16, and removes them from `probs`. Small P and O are
 * multiplied by a power of two, which f32 has room for. Rows without small P keep their bits. */
template <class T, int D, int R, int GROUPS, int ROW, bool ALL>
static __device__ __forceinline__ void
attention_pv_small(struct attention_state<T, D, R> &state, uint32_t (&probs)[R / 16][GROUPS][2],
                   const float (&x)[R / 16][GROUPS][4], uint32_t v,
                   const struct attention_groups &groups, const struct attention_lanes &lanes) {
    uint32_t small[R / 16][GROUPS][2];
#pragma unroll
    for (int i = 0; i < R / 16; i++)
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float a = x[i][j][2 * e], b = x[i][j][2 * e + 1];
                const bool a_small = a < ATTENTION_SMALL, b_small = b < ATTENTION_SMALL;
                small[i][j][e] = mma_pack(a_small ? a * ATTENTION_SMALL_RAISE : 0,
                                          b_small ? b * ATTENTION_SMALL_RAISE : 0, T());
                probs[i][j][e] = mma_pack(a_small ? 0 : a, b_small ? 0 : b, T());
            }
    attention_scale_o(state, ATTENTION_SMALL_RAISE);
    attention_pv<T, D, R, GROUPS, ROW, ALL>(state, small, v, groups, lanes);
    attention_scale_o(state, 1 / ATTENTION_SMALL_RAISE);
}

/* Softmax and P V of GROUPS groups of 8 keys, from their scores. drop: what dropout does to P. */
template <int GROUPS, int ROW, bool ALL, class T, int D, int R, class drops>
static __device__ __forceinline__ void
attention_add(struct attention_state<T, D, R> &state, float (&s)[R / 16][GROUPS][4], uint32_t v,
              float scale, const struct attention_groups &groups,
              const struct attention_lanes &lanes, const drops &drop) {
    uint32_t probs[R / 16][GROUPS][2];
    const bool small = attention_softmax<T, D, R, GROUPS, false>(s, state, scale);
    drop();
#pragma unroll
    for (int i = 0; i < R / 16; i++)
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                probs[i][j][e] = mma_pack(s[i][j][2 * e], s[i][j][2 * e + 1], T());
    if (small)
        attention_pv_small<T, D, R, GROUPS, ROW, ALL>(state, probs, s, v, groups, lanes);
    attention_pv<T, D, R, GROUPS, ROW, ALL>(state, probs, v, groups, lanes);
}

/* Takes the next GROUPS groups out of `left`, where a group has BITS bits, of which the first is
 * set. */
template <int GROUPS, int BITS>
static __device__ __forceinline__ struct attention_groups attention_groups_next(uint32_t &left) {
    struct attention_groups groups = {0, 0};
    uint32_t group = 0;
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        if (left) {
            group = (uint32_t)(__ffs((int)left) - 1) / BITS;
            groups.n = j + 1;
        }
        left &= left - 1;
        groups.at |= group << 4 * j;
    }
    return groups;
}

/* Bits of a group of 8 keys in a 32-bit word; the first of them stands for the group. */
template <int KEYS> static __device__ __forceinline__ constexpr int attention_group_bits(void) {
    return KEYS < 32 ? 8 : 256 / KEYS;
}

/* Groups of 8 keys that some row of this warp lists: the first bit of each is set. whole: all rows
 * list all keys. part, with PARTS: the same bits for groups of which not all rows list all keys. */
template <int R, int KEYS, int STRIDE, bool PARTS>
static __device__ __forceinline__ uint32_t attention_listed(bool &whole, uint32_t &part,
                                                            uint32_t masks, int shift) {
    constexpr int EACH = KEYS < 32 ? 1 : KEYS / 32;
    constexpr uint32_t GROUP = EACH == 1 ? 0x01010101u : EACH == 2 ? 0x11111111u : 0x55555555u;
    constexpr uint32_t ROWS = R == 32 ? ~0u : 0xffffu;
    uint32_t any = 0, all = ~0u;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int key = EACH * warp_lane() + i;
        if (key < KEYS) {
            const uint32_t word = shared_load_4(masks + (uint32_t)(key * STRIDE));
            any |= word;
            all &= word;
        }
    }
    whole = __all_sync(WARP_ALL, (all >> shift & ROWS) == ROWS);
    uint32_t lanes = __ballot_sync(WARP_ALL, (any >> shift & ROWS) != 0);
    part = PARTS ? __ballot_sync(WARP_ALL, (all >> shift & ROWS) != ROWS) : 0;
#pragma unroll
    for (int i = 1; i < 8 / EACH; i *= 2) {
        lanes |= lanes >> i;
        part |= part >> i;
    }
    part &= GROUP;
    return lanes & GROUP;
}

/* What a warp's rows list of a step, as attention_listed has it. */
struct attention_rows_list {
    bool whole;
    uint32_t some, part;
};

/* All groups of a step: the first bit of each is set. */
template <int KEYS>
static __device__ __forceinline__ constexpr uint32_t attention_all_groups(void) {
    uint32_t all = 0;
    for (int group = 0; group < KEYS / 8; group++)
        all |= 1u << group * attention_group_bits<KEYS>();
    return all;
}

/* One stage of keys, by one warp. q: its rows; k, v: the stage's panels; masks: the stage's row masks,
 * of a masked step; listed: what the warp's rows list; place: the item and its first granule of the
 * step, for modifiers; copy: issues a part of the copies of another step. MODIFIED: with modifiers;
 * steps without masks are computed as those with masks are. */
template <class T, int D, int R, int WARPS, int KEYS, bool MODIFIED, class copier>
static __device__ __forceinline__ void
attention_step(struct attention_state<T, D, R> &state, uint32_t q, uint32_t k, uint32_t v,
               uint32_t masks, const struct attention_rows_list &listed,
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
