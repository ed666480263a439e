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

/* Scores to what dV gets, dP to dS. known: of this lane's rows, where they are queries. listed, counted: bit 4 j + e as
 * above. Answers the sum of dS times distance over what is counted (gradient_modify). */
template <class shape>
DEVICE float gradient_modify_step(float (&s)[GRADIENT_SCORES], float (&dp)[GRADIENT_SCORES],
                                  const struct gradient_consumer &at,
                                  const struct gradient_params &p, const struct gradient_lane &lane,
                                  const struct gradient_known (&rows)[2], uint32_t kept,
                                  uint32_t listed, uint32_t counted) {
    const typename shape::known &known = gradient_known_of<shape>(at.memory, at.step);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < GRADIENT_SCORES / 4; j++) {
        const int column = 8 * j + warp_lane_here() % 4 * 2;
        struct gradient_known two[2] = {rows[0], rows[1]};
        struct gradient_block block = {};
        if constexpr (shape::OVER_KEYS)
#pragma unroll
            for (int i = 0; i < 2; i++)
                two[i] = {known.base[column + i], known.delta[column + i], known.left[column + i],
                          0};
        if (p.modify.alibi)
            block = gradient_block_at<shape>(p, lane, j);
        sum += gradient_modify<shape::OVER_KEYS>(
            reinterpret_cast<float(&)[4]>(s[4 * j]), reinterpret_cast<float(&)[4]>(dp[4 * j]), p,
            lane.item, block, two, kept >> 4 * j & 15, listed >> 4 * j & 15, counted >> 4 * j & 15);
    }
    return sum;
}

#endif
