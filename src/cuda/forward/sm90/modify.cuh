/* Fused attention on Hopper: score modifiers of a consumer's step, in the accumulator-fragment layout of
 * softmax.cuh. */
#ifndef TESSERA_CUDA_SM90_MODIFY_CUH
#define TESSERA_CUDA_SM90_MODIFY_CUH

#include "device/modify.cuh"
#include "forward/sm90/consumer.cuh"
#include "work/granules.h"

/* Filled lists (filled/mask.cuh), in kernels of SM90_FILLED alone: granule i of a step, and the mask of the step at
 * `cursor`; in those of SM90_COLUMNS the mask (filled/columns/config.cuh). */
template <class shape>
DEVICE struct fill_granule &sm90_filled_granule(char *memory, uint32_t step, int i);
template <class shape>
DEVICE void sm90_filled_begin_mask(struct sm90_fragments<shape> &w, const sm90_cursor &cursor,
                                   const struct attention_params &p);
template <class shape>
DEVICE void sm90_columns_begin_mask(struct sm90_fragments<shape> &w, const sm90_cursor &cursor);

/* Exponents of 2 of one score. */
DEVICE float sm90_scale(const struct attention_params &p) {
    return p.q_scale * p.score_scale;
}

/* This thread's two rows. */
template <class shape>
DEVICE void sm90_queries_of_cursor(struct sm90_queries (&queries)[2],
                                   const struct attention_params &p, const sm90_cursor &cursor) {
    sm90_queries_of_warp<shape>(queries, p, sm90_item<shape>(cursor.memory, cursor.job),
                                sm90_consumer_row<shape>(cursor.consumer) +
                                    sm90_thread_here() / 32 * 16);
#pragma unroll
    for (int h = 0; h < 2; h++)
        queries[h].row += warp_lane_here() / 4;
}

/* Loads the places of columns 64 group + lane and + 32 + lane of the step at `cursor`. Columns past
 * the item's granules have any. */
template <class shape>
DEVICE void sm90_load_places(int32_t (&place)[2], const struct attention_params &p,
                             const sm90_cursor &cursor, int group) {
    const struct granule_item &item = sm90_item<shape>(cursor.memory, cursor.job);
    const int bits = p.granule_bits;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int32_t at = cursor.at * shape::KEYS + 64 * group + 32 * i + warp_lane_here();
        int32_t key;
        if constexpr (shape::SOURCE == SM90_FILLED) {
            const int granule = (64 * group + 32 * i + warp_lane_here()) >> bits;
            key = sm90_filled_granule<shape>(cursor.memory, cursor.step, granule).key +
                  (at & ((1 << bits) - 1));
        } else {
            const int32_t granule = min(at >> bits, item.count - 1);
            key = __ldg(p.image.keys + item.first + granule) + (at & ((1 << bits) - 1));
        }
        place[i] = modify_place(p.modify, key, p.n_kv);
    }
}

/* Kept ones of this thread's 32 weights of 64 places: bit 2 j + e for column 8 j + 2 t + e of row g; row g +
 * 8 is 16 bits further. filled: rows and places of a granule fill 16 x 16 tiles of draws, so a call has all
 * eight weights of 16 places. */
DEVICE uint32_t sm90_drawn(const struct attention_params &p, const struct modify_query (&q)[2],
                           const int32_t (&place)[2], bool filled) {
    const uint64_t seed = *p.modify.seed;
    const int t2 = warp_lane_here() % 4 * 2;
    uint32_t first[4], kept = 0, shifted = 0;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        first[c] = p.modify.first_key + (uint32_t)__shfl_sync(WARP_ALL, place[c / 2], c % 2 * 16);
        shifted |= first[c] % 16;
    }
    if (filled && !shifted) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const uint32_t words = modify_kept_words(
                modify_words<MODIFY_ROUNDS>(q[0], first[c] + (uint32_t)t2, seed), p.modify.dropped);
            kept |= (words & 15) << 4 * c | words >> 4 << (16 + 4 * c);
        }
        return kept;
    }
#pragma unroll 1
    for (int x = 0; x < 8; x++) { /* places 8 x ... */
        uint32_t j[2];
#pragma unroll
        for (int e = 0; e < 2; e++)
            j[e] = p.modify.first_key +
                   (uint32_t)__shfl_sync(WARP_ALL, x < 4 ? place[0] : place[1], x % 4 * 8 + t2 + e);
        const uint32_t words = modify_kept(q, j, p.modify.dropped, seed);
        kept |= (words & 3) << 2 * x | words >> 2 << (16 + 2 * x);
    }
    return kept;
}

/* Loads the places of the step at `cursor`, and draws what dropout keeps, while its Q K^T is in
 * flight. */
template <class shape>
DEVICE void sm90_begin_modify(struct sm90_fragments<shape> &w, const sm90_cursor &cursor,
                              const struct attention_params &p) {
    if (!p.modify.alibi && !p.modify.seed)
        return;
#pragma unroll
    for (int group = 0; group < shape::GRANULES; group++)
        sm90_load_places<shape>(w.place[group], p, cursor, group);
    if (!p.modify.seed)
        return;
    struct sm90_queries queries[2];
    sm90_queries_of_cursor<shape>(queries, p, cursor);
    const int32_t batch = sm90_item<shape>(cursor.memory, cursor.job).batch;
    const struct modify_query q[2] = {
        modify_query_of(p.modify, batch, queries[0].head, queries[0].row),
        modify_query_of(p.modify, batch, queries[1].head, queries[1].row)};
    const uint32_t first = q[0].i - (uint32_t)(warp_lane_here() / 4);
    /* Granules that cp.async gathers are smaller, as a rule. */
    const bool filled = shape::SOURCE != SM90_CP_ASYNC && first % 16 == 0 && q[1].i == q[0].i + 8 &&
                        q[1].head == q[0].head && p.granule_bits >= 4 && !p.modify.key_positions;
#pragma unroll
    for (int group = 0; group < shape::GRANULES; group++)
        w.kept[group] = sm90_drawn(p, q, w.place[group], filled);
}

/* Softcap, then ALiBi, on the scores of a step. */
template <class shape>
DEVICE void sm90_modify_scores(struct sm90_fragments<shape> &w, const sm90_cursor &cursor,
                               const struct attention_params &p) {
    if (!p.modify.scores)
        return;
    const float scale = sm90_scale(p);
    if (p.modify.cap != 0)
        modify_cap(w.s, scale / p.modify.cap);
    if (!p.modify.alibi)
        return;
    struct sm90_queries queries[2];
    sm90_queries_of_cursor<shape>(queries, p, cursor);
    const struct granule_item &item = sm90_item<shape>(cursor.memory, cursor.job);
    const int32_t row = item.row;
    /* Query 0 of filled lists stands where today's length has it. */
    const int32_t from = shape::SOURCE == SM90_FILLED
                             ? (int32_t)((uint32_t)row + (uint32_t)item.mask + p.modify.first_key -
                                         p.modify.first_position)
                             : row;
    const int t2 = warp_lane_here() % 4 * 2;
    const bool eights =
        shape::SOURCE != SM90_CP_ASYNC && !p.modify.key_positions; /* consecutive keys */
    float slope[2], back[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        slope[h] = p.modify.alibi[min(queries[h].head, p.heads_q - 1)] *
                   (p.modify.unit / modify_unit(p.modify, scale));
        back[h] = (float)(queries[h].row - row - (eights ? t2 : 0));
    }
#pragma unroll
    for (int group = 0; group < shape::GRANULES; group++) {
        const float distance[2] = {modify_distance(p.modify, w.place[group][0], from),
                                   modify_distance(p.modify, w.place[group][1], from)};
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int lane = j % 4 * 8 + (eights ? 0 : t2);
            float column[2] = {__shfl_sync(WARP_ALL, distance[j / 4], lane), 0};
            column[1] = column[0] + 1;
            if (!eights)
                column[1] = __shfl_sync(WARP_ALL, distance[j / 4], lane + 1);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float &x = w.s[32 * group + 4 * j + i];
                x = fmaf(slope[i / 2], column[i % 2] - back[i / 2], x);
            }
        }
    }
}

/* Dropout, on the weights of a step. */
template <class shape>
DEVICE void sm90_drop(struct sm90_fragments<shape> &w, const struct attention_params &p) {
    if (!p.modify.seed)
        return;
#pragma unroll
    for (int group = 0; group < shape::GRANULES; group++)
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (!(w.kept[group] >> (16 * (i / 2) + 2 * j + i % 2) & 1))
                    w.s[32 * group + 4 * j + i] = 0;
}

#endif
