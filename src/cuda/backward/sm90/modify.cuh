/* The fused backward on Hopper: score modifiers of a step, block by block of its fragments (backward/modify.cuh). */
#ifndef TESSERA_CUDA_GRADIENT_SM90_MODIFY_CUH
#define TESSERA_CUDA_GRADIENT_SM90_MODIFY_CUH

#include "backward/sm90/consumer.cuh"

/* Place of a lane's fragments in a step: batch and query head, its first row, and the step's first column. */
struct gradient_lane {
    struct granule_item item;
    int32_t row, column;
};
template <class shape>
DEVICE struct gradient_lane gradient_lane_of(const struct gradient_consumer &at,
                                             const struct granule_item &item) {
    const typename shape::known &known = gradient_known_of<shape>(at.memory, at.step);
    struct gradient_lane lane;
    lane.item.batch = item.batch;
    lane.item.head = shape::OVER_KEYS ? known.head : item.head;
    lane.row = item.row + 64 * at.number + 16 * at.warp + warp_lane_here() / 4;
    lane.column = known.first;
    return lane;
}

/* Rows `row` and + 8 of group j of 8 columns. */
template <class shape>
DEVICE struct gradient_block gradient_block_at(const struct gradient_params &p,
                                               const struct gradient_lane &lane, int j) {
    const int32_t column = lane.column + 8 * j + warp_lane_here() % 4 * 2;
    struct gradient_block block;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int32_t row = lane.row + 8 * i;
        block.key[i] = modify_place(p.modify, shape::OVER_KEYS ? row : column + i, p.n_kv);
        block.query[i] = shape::OVER_KEYS ? column + i : row;
    }
    return block;
}

/* Kept weights of a step that fills 16 x 16 tiles of draws: bit 4 j + e for element e of group j. Where rows are
 * queries, a call has all eight of this lane in 16 columns. Where they are keys it has half of them for this lane, and
 * half for that of the neighbouring key, with which calls are exchanged. */
template <class shape>
DEVICE uint32_t gradient_drawn_tiles(const struct modify_params &m,
                                     const struct gradient_lane &lane) {
    const uint64_t seed = __ldg(m.seed);
    const uint32_t odd = (uint32_t)warp_lane_here() / 4 % 2,
                   t2 = (uint32_t)warp_lane_here() % 4 * 2;
    uint32_t kept = 0;
#pragma unroll 1 /* registers are short */
    for (int c = 0; c < GRADIENT_PLACES / 16; c++) {
        const int32_t column = lane.column + 16 * c + (int32_t)t2;
        const struct modify_query q =
            modify_query_of(m, lane.item.batch, lane.item.head,
                            shape::OVER_KEYS ? column + (int32_t)odd : lane.row);
        const uint32_t key = m.first_key + (uint32_t)(shape::OVER_KEYS ? lane.row : column);
        const uint32_t words =
            modify_kept_words(modify_words<MODIFY_ROUNDS>(q, key, seed), m.dropped);
        uint32_t eight;
        if (shape::OVER_KEYS) {
            const uint32_t other = __shfl_xor_sync(WARP_ALL, words, 4);
            const uint32_t first = odd ? other : words, second = odd ? words : other;
            eight = (first >> odd & 0x55) | (second >> odd & 0x55) << 1;
        } else {
            eight = (words & 0xc3) | (words >> 2 & 0x0c) | (words & 0x0c) << 2;
        }
        kept |= eight << 8 * c;
    }
    return kept;
}

/* Kept weights of a step. */
template <class shape>
DEVICE uint32_t gradient_drawn(const struct gradient_params &p, const struct gradient_lane &lane) {
    const struct modify_params &m = p.modify;
    if (!m.seed)
        return ~0u;
    const uint32_t row = (uint32_t)(lane.row - warp_lane_here() / 4);
    const uint32_t key = m.first_key + (shape::OVER_KEYS ? row : (uint32_t)lane.column);
    const uint32_t query = m.first_query + (shape::OVER_KEYS ? (uint32_t)lane.column : row);
    if (!m.key_positions && !((key | query) % 16))
        return gradient_drawn_tiles<shape>(m, lane);
    uint32_t kept = 0;
#pragma unroll 1
    for (int j = 0; j < GRADIENT_PLACES / 8; j++)
        kept |= gradient_kept<shape::OVER_KEYS>(m, lane.item, gradient_block_at<shape>(p, lane, j))
                << 4 * j;
    return kept;
}

/* Facts of the queries of group j: of this lane's rows, or of the step's columns. */
template <class shape>
DEVICE void gradient_known_of_group(struct gradient_known (&two)[2],
                                    const typename shape::known &known,
                                    const struct gradient_known (&rows)[2], int j) {
    const int column = 8 * j + warp_lane_here() % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++)
        if constexpr (shape::OVER_KEYS)
            two[i] = {known.base[column + i], known.delta[column + i], known.left[column + i], 0};
        else
            two[i] = rows[i];
}

/* As below, element by element: slopes beside softcap, whose derivative theirs is taken before, and positions of keys
 * that do not follow one another. */
template <class shape>
DEVICE float gradient_modify_each(float (&s)[GRADIENT_SCORES], float (&dp)[GRADIENT_SCORES],
                                  const typename shape::known &known,
                                  const struct gradient_params &p, const struct gradient_lane &lane,
                                  const struct gradient_known (&rows)[2], uint32_t kept,
                                  uint32_t listed, uint32_t counted) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < GRADIENT_SCORES / 4; j++) {
        struct gradient_known two[2];
        gradient_known_of_group<shape>(two, known, rows, j);
        sum += gradient_modify<shape::OVER_KEYS>(
            reinterpret_cast<float(&)[4]>(s[4 * j]), reinterpret_cast<float(&)[4]>(dp[4 * j]), p,
            lane.item, gradient_block_at<shape>(p, lane, j), two, kept >> 4 * j & 15,
            listed >> 4 * j & 15, counted >> 4 * j & 15);
    }
    return sum;
}

/* Distances of rows `row` and + 8 from the step's columns 0 and on, in which they are consecutive numbers. */
template <class shape>
DEVICE void gradient_distances(float (&distance)[2], const struct gradient_params &p,
                               const struct gradient_lane &lane) {
    const struct gradient_block block = gradient_block_at<shape>(p, lane, 0);
#pragma unroll
    for (int h = 0; h < 2; h++)
        distance[h] = modify_distance(p.modify, block.key[shape::OVER_KEYS ? h : 0],
                                      block.query[shape::OVER_KEYS ? 0 : h]);
}
template <class shape> DEVICE float gradient_distance(const float (&distance)[2], int i) {
    const float column = (float)(8 * (i / 4) + i % 2);
    return distance[i / 2 % 2] + (shape::OVER_KEYS ? -column : column);
}

/* dP less delta, with what dropout and sinks leave of it. */
template <class shape>
DEVICE void gradient_modify_dp(float (&dp)[GRADIENT_SCORES], const typename shape::known &known,
                               const struct modify_params &m,
                               const struct gradient_known (&rows)[2], uint32_t kept) {
#pragma unroll
    for (int j = 0; j < GRADIENT_SCORES / 4; j++) {
        struct gradient_known two[2];
        gradient_known_of_group<shape>(two, known, rows, j);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const struct gradient_known &one = two[shape::OVER_KEYS ? e % 2 : e / 2];
            const float left = kept >> (4 * j + e) & 1 ? one.left * m.kept : 0;
            dp[4 * j + e] = fmaf(left, left != 0 ? dp[4 * j + e] : 0.0f, -one.delta);
        }
    }
}

/* Pairs of a step that are listed and, of those, which the slope's gradient counts: bit 4 j + e as above. */
template <class shape>
DEVICE uint32_t gradient_listed_of(const struct gradient_consumer &at, int is) {
    return is & GRADIENT_CUT ? gradient_listed<shape>(at) : ~0u;
}
DEVICE uint32_t gradient_counted(const struct gradient_params &p,
                                 const struct gradient_known (&rows)[2], uint32_t listed) {
    return p.slopes ? listed & ((rows[0].base != INFINITY ? 0x33333333u : 0) |
                                (rows[1].base != INFINITY ? 0xccccccccu : 0))
                    : 0;
}

/* Scores to what dV gets, dP to dS, of a step whose flags are `is`. rows: facts of this lane's rows, where they are
 * queries: those past the tile are empty as well. kept: as above. Answers the sum of dS times distance over what is
 * counted (gradient_modify). One modifier after the other, so that each is a branch for all elements. */
template <class shape>
DEVICE float gradient_modify_step(float (&s)[GRADIENT_SCORES], float (&dp)[GRADIENT_SCORES],
                                  const struct gradient_consumer &at,
                                  const struct gradient_params &p, const struct granule_item &item,
                                  const struct gradient_known (&rows)[2], uint32_t kept, int is) {
    const typename shape::known &known = gradient_known_of<shape>(at.memory, at.step);
    const struct modify_params &m = p.modify;
    if (!shape::OVER_KEYS && (m.cap != 0 ? p.slopes != NULL : m.key_positions != NULL)) {
        const uint32_t listed = gradient_listed_of<shape>(at, is);
        return gradient_modify_each<shape>(s, dp, known, p, gradient_lane_of<shape>(at, item), rows,
                                           kept, listed, gradient_counted(p, rows, listed));
    }
    float distance[2] = {}, sum = 0;
    gradient_modify_dp<shape>(dp, known, m, rows, kept);
    if (m.cap != 0) {
#pragma unroll
        for (int i = 0; i < GRADIENT_SCORES; i++) {
            float derivative;
            s[i] = gradient_cap(s[i] * p.cap_scale, derivative);
            dp[i] *= derivative;
        }
    }
    if (m.alibi) {
        const struct gradient_lane lane = gradient_lane_of<shape>(at, item);
        const float slope = __ldg(m.alibi + lane.item.head) * m.unit;
        const float unit = modify_unit(m, p.score_scale);
        gradient_distances<shape>(distance, p, lane);
#pragma unroll
        for (int i = 0; i < GRADIENT_SCORES; i++)
            s[i] = fmaf(slope, gradient_distance<shape>(distance, i), s[i] * unit);
    }
    const float after = modify_scale(m, p.score_scale);
#pragma unroll
    for (int j = 0; j < GRADIENT_SCORES / 4; j++) {
        struct gradient_known two[2];
        gradient_known_of_group<shape>(two, known, rows, j);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = 4 * j + e;
            const struct gradient_known &one = two[shape::OVER_KEYS ? e % 2 : e / 2];
            const float weight = gradient_exp2(fmaf(s[i], after, -one.base));
            dp[i] *= weight;
            s[i] = kept >> i & 1 ? weight * (one.left * m.kept) : 0;
        }
    }
    const uint32_t listed = gradient_listed_of<shape>(at, is);
    gradient_select(s, listed);
    gradient_select(dp, listed);
    const uint32_t counted = shape::OVER_KEYS ? 0 : gradient_counted(p, rows, listed);
    if (!shape::OVER_KEYS && p.slopes)
#pragma unroll
        for (int i = 0; i < GRADIENT_SCORES; i++)
            sum += counted >> i & 1 ? dp[i] * gradient_distance<shape>(distance, i) : 0;
    return sum;
}

#endif
