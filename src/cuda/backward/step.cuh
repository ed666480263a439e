/* The fused backward: a step of one warp, over what a stage holds. In steps with masks, the warp skips
 * groups of 8 columns that none of its rows lists, and packs the remaining groups together. */
#ifndef TESSERA_CUDA_GRADIENT_STEP_CUH
#define TESSERA_CUDA_GRADIENT_STEP_CUH

#include "backward/modify.cuh"
#include "backward/products.cuh"

#include <stddef.h>

/* Sums of a warp's rows: first is of X0, second of X1. slope: this lane's share of the slope's gradient. */
template <class C> struct gradient_sums {
    struct attention_state<typename C::T, C::SUMS, C::R> first, second;
    double slope;
};

/* Groups of 8 columns that some row of a warp lists. Nibble j of `order` is the j-th, the last repeated. Bit
 * j of `cut`: the group is repeated, or some row lists only a part. */
struct gradient_columns {
    uint32_t order, cut;
    int n;
};

/* masked: row masks stand at `words`, the warp's first row at bit `shift`. */
template <class C>
DEVICE struct gradient_columns gradient_columns_of(uint32_t words, int shift, bool masked) {
    constexpr int ALL = C::STEP / 8, BITS = attention_group_bits<C::STEP>();
    struct gradient_columns columns = {0x76543210u, 0, ALL};
    if (!masked)
        return columns;
    bool whole;
    uint32_t part;
    uint32_t left =
        attention_listed<C::R, C::STEP, 8 * GRADIENT_WORDS, true>(whole, part, words, shift);
    const struct attention_groups listed = attention_groups_next<ALL, BITS>(left);
    columns = {listed.at, 0, listed.n};
#pragma unroll
    for (int j = 0; j < ALL; j++) {
        const bool cut = j >= listed.n || part >> BITS * attention_group<false>(listed, j) & 1;
        columns.cut |= (uint32_t)cut << j;
    }
    return columns;
}

DEVICE struct gradient_known gradient_known_at(uint32_t at) {
    const uint4 x = shared_load_16(at);
    return {__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), 0};
}

/* A score's P. s - base is cut off at 0: a large base is rounded by more than 1. NaN stays. */
DEVICE float gradient_weight(float s, float scale, const struct gradient_known &one) {
    const float x = fmaf(s, scale, -one.base);
    return attention_exp2(x > 0 ? 0.0f : x);
}

/* each(i, j, e, of) for all elements of a fragment; of: what is known of the element's query. known: of
 * the stage's queries, or of this warp's rows. */
template <class C, class work>
DEVICE void gradient_each(uint32_t known, const struct attention_groups &groups, const work &each) {
    constexpr int BYTES = (int)sizeof(struct gradient_known);
    const int g = warp_lane_here() / 4, t = warp_lane_here() % 4;
    if (C::OVER_KEYS) {
#pragma unroll
        for (int j = 0; j < C::GROUPS; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const struct gradient_known one = gradient_known_at(
                    known +
                    (uint32_t)(BYTES * (8 * attention_group<false>(groups, j) + 2 * t + e)));
#pragma unroll
                for (int i = 0; i < C::R / 16; i++)
#pragma unroll
                    for (int r = 0; r < 2; r++)
                        each(i, j, 2 * r + e, one);
            }
    } else {
#pragma unroll
        for (int r = 0; r < C::R / 8; r++) {
            const struct gradient_known one =
                gradient_known_at(known + (uint32_t)(BYTES * (8 * r + g)));
#pragma unroll
            for (int j = 0; j < C::GROUPS; j++)
#pragma unroll
                for (int e = r % 2 * 2; e < r % 2 * 2 + 2; e++)
                    each(r / 2, j, e, one);
        }
    }
}

/* Scores to left P, dP to dS. */
template <class C>
DEVICE void gradient_weights(float (&s)[C::R / 16][C::GROUPS][4],
                             float (&dp)[C::R / 16][C::GROUPS][4], uint32_t known, float scale,
                             const struct attention_groups &groups) {
    gradient_each<C>(known, groups, [&](int i, int j, int e, const struct gradient_known &one) {
        const float weight = gradient_weight(s[i][j][e], scale, one);
        dp[i][j][e] = weight * (one.left * dp[i][j][e] - one.delta);
        s[i][j][e] = weight * one.left;
    });
}

/* Elements of pairs that are not listed become 0, whatever they are (attention_mask_scores). */
template <class C, class... fragments>
DEVICE void gradient_mask(uint32_t masks, int shift, const struct attention_groups &groups,
                          fragments &...x) {
    constexpr int STRIDE = 8 * GRADIENT_WORDS;
    const int row = shift + warp_lane_here() / 4, column = warp_lane_here() % 4 * 2;
#pragma unroll
    for (int j = 0; j < C::GROUPS; j++) {
        const uint32_t at =
            masks + (uint32_t)((8 * attention_group<false>(groups, j) + column) * STRIDE);
        uint32_t word[2] = {shared_load_4(at) >> row, shared_load_4(at + STRIDE) >> row};
        if (j >= groups.n) /* a repeated group */
            word[0] = word[1] = 0;
#pragma unroll
        for (int i = 0; i < C::R / 16; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const bool listed = word[e % 2] & 1u << (16 * i + 8 * (e / 2));
                ((x[i][j][e] = listed ? x[i][j][e] : 0.0f), ...);
            }
    }
}

/* Addresses in shared memory: this warp's rows of X0 and X1, the panels of a stage, and gradient_known of
 * the scores' queries. Found anew in each round: registers are for sums. */
struct gradient_places {
    uint32_t x0, x1, y0, y1, known, words;
    int shift; /* bit of the warp's first row in its words */
};

template <class C> DEVICE struct gradient_places gradient_places_of(uint32_t shared, int stage) {
    using lists = typename C::lists;
    asm volatile("" : "+r"(stage));
    const int first = gradient_first_row<C>();
    const uint32_t x0 = shared + (uint32_t)(C::X + first * C::ROW);
    const uint32_t y0 = shared + (uint32_t)(stage * C::PANEL), of_lists = shared + C::LISTS;
    return {
        .x0 = x0,
        .x1 = x0 + gradient_x_bytes<C>(),
        .y0 = y0,
        .y1 = y0 + 2 * C::PANEL,
        .known = of_lists + (uint32_t)offsetof(lists, known) +
                 (uint32_t)((C::OVER_KEYS ? stage * C::STEP : first) *
                            (int)sizeof(struct gradient_known)),
        .words = of_lists + (uint32_t)offsetof(lists, words) +
                 (uint32_t)(stage * C::STEP * GRADIENT_WORDS * 8 + first / 32 * 4),
        .shift = first % 32,
    };
}

/* gradient_weights and gradient_mask with modifiers; cut: some pairs are not listed. Answers the lane's
 * share of the slope's gradient. */
template <class C>
DEVICE double
gradient_weights_modified(float (&s)[C::R / 16][C::GROUPS][4], float (&dp)[C::R / 16][C::GROUPS][4],
                          const struct gradient_places &at, const struct gradient_params &p,
                          const struct attention_place &place,
                          const struct attention_groups &groups, bool cut) {
    static_assert(C::R == 16, "blocks are 16 rows high");
    constexpr int STRIDE = 8 * GRADIENT_WORDS, BYTES = (int)sizeof(struct gradient_known);
    const struct granule_item &item = attention_item(place);
    const int g = warp_lane_here() / 4, t2 = warp_lane_here() % 4 * 2;
    const int row = (int)threadIdx.x / 32 * 16 + g;
    const bool placed = p.modify.alibi || p.modify.seed;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < C::GROUPS; j++) {
        const int column = 8 * attention_group<false>(groups, j) + t2;
        struct gradient_known known[2];
        struct gradient_block block = {};
        uint32_t listed = 15, counted = 0;
#pragma unroll
        for (int i = 0; i < 2; i++)
            known[i] = gradient_known_at(
                at.known + (uint32_t)(BYTES * (C::OVER_KEYS ? column + i : g + 8 * i)));
        if (placed)
            block = gradient_block_of<C>(p, place, row, groups, j);
        if (cut) {
            const uint32_t words = at.words + (uint32_t)(column * STRIDE);
            const uint32_t two[2] = {shared_load_4(words) >> (at.shift + g),
                                     shared_load_4(words + STRIDE) >> (at.shift + g)};
            listed =
                (two[0] & 1) | (two[1] & 1) << 1 | (two[0] >> 8 & 1) << 2 | (two[1] >> 8 & 1) << 3;
            listed = j < groups.n ? listed : 0; /* a repeated group */
        }
        if (!C::OVER_KEYS && p.slopes)
            counted = listed & ((row < item.rows && known[0].base != INFINITY ? 3u : 0) |
                                (row + 8 < item.rows && known[1].base != INFINITY ? 12u : 0));
        const uint32_t kept =
            p.modify.seed ? gradient_kept<C::OVER_KEYS>(p.modify, item, block) : 15;
        sum += gradient_modify<C::OVER_KEYS>(s[0][j], dp[0][j], p, item, block, known, kept, listed,
                                             counted);
    }
    return sum;
}

/* One stage, by one warp. masked: some granule of it has a mask, or some query is empty. place: of the
 * step, for modifiers. */
template <class C>
DEVICE void gradient_step(struct gradient_sums<C> &sums, uint32_t shared, int stage, bool masked,
                          const struct gradient_params &p, const struct attention_place &place) {
    using T = typename C::T;
    constexpr bool FIRST = C::WANTED & GRADIENT_FIRST, SECOND = C::WANTED & GRADIENT_SECOND;
    /* Branches where it is known, which still keep addresses of one product out of the others. */
    const bool to_first = FIRST && p.out[0].data, of_second = SECOND && p.out[1].data;
    const bool of_first = to_first || (C::MODIFIED && !C::OVER_KEYS && p.slopes);
    const struct gradient_places first = gradient_places_of<C>(shared, stage);
    struct gradient_columns left = gradient_columns_of<C>(first.words, first.shift, masked);
#pragma unroll 1
    for (; left.n > 0; left.n -= C::GROUPS) {
        float s[C::R / 16][C::GROUPS][4], dp[C::R / 16][C::GROUPS][4] = {};
        const struct gradient_places at = gradient_places_of<C>(shared, stage);
        const struct attention_groups groups = {left.order, left.n};
        const bool cut = left.cut & ((1u << C::GROUPS) - 1);
        left.order >>= 4 * C::GROUPS, left.cut >>= C::GROUPS;
        const uint32_t of_sums = (uint32_t)gradient_first_dim<C>(p) * (uint32_t)sizeof(T);
        attention_scores<C::D, C::R, C::GROUPS, C::ROW, false>(s, at.x0, at.y0, groups, T());
        if (of_first)
            attention_scores<C::D, C::R, C::GROUPS, C::ROW, false>(dp, at.x1, at.y1, groups, T());
        if constexpr (C::MODIFIED) {
            sums.slope += gradient_weights_modified<C>(s, dp, at, p, place, groups, cut);
        } else {
            gradient_weights<C>(s, dp, at.known, p.score_scale, groups);
            if (cut)
                gradient_mask<C>(at.words, at.shift, groups, s, dp);
        }
        if (of_second)
            gradient_add<C::GROUPS, C::ROW>(sums.second, s, at.y1 + of_sums, groups);
        if (to_first)
            gradient_add<C::GROUPS, C::ROW>(sums.first, dp, at.y0 + of_sums, groups);
    }
}

#endif
