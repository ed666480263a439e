/* Fused attention on Hopper: the steps of a consumer. config.cuh describes the pipeline. */
#ifndef TESSERA_CUDA_SM90_CONSUMER_STEPS_CUH
#define TESSERA_CUDA_SM90_CONSUMER_STEPS_CUH

#include "forward/sm90/consumer.cuh"

/* ---- ping-pong scheduling ---- */

/* Consumers issue WGMMAs alternately, in items that do not hold two score tiles (config.cuh). Only
 * unmasked steps take part. */
template <class shape>
static __device__ __forceinline__ bool sm90_pingpong(const sm90_cursor &cursor) {
    return shape::TWO_SCORE_TILES && cursor.at < cursor.whole && cursor.whole < SM90_LONG;
}
template <class shape>
static __device__ __forceinline__ void sm90_pingpong_wait(const sm90_cursor &cursor) {
    if (sm90_pingpong<shape>(cursor))
        named_barrier_sync(1 + shape::CONSUMERS + cursor.consumer, 256);
}
template <class shape>
static __device__ __forceinline__ void sm90_pingpong_pass(const sm90_cursor &cursor) {
    if (sm90_pingpong<shape>(cursor))
        named_barrier_arrive(2 + shape::CONSUMERS - cursor.consumer, 256);
}

/* ---- WGMMA ---- */

/* Issues Q K^T of the step at `cursor`. */
template <class T, class shape>
static __device__ __forceinline__ void sm90_step_scores(float (&s)[shape::SCORES],
                                                        const sm90_cursor &cursor) {
    sm90_scores<T, shape>(
        s, cursor, [&] { sm90_wait<shape::STAGES>(cursor.shared + shape::K_FULL, cursor.step); });
}

/* Whether V has rows past the keys of a granule. Rows of absent granules are zeros. */
template <class shape>
static __device__ __forceinline__ bool sm90_has_dead_rows(const uint64_t (&keys)[shape::GRANULES]) {
    bool dead = false;
#pragma unroll
    for (int i = 0; i < shape::GRANULES; i++)
        dead |= keys[i] != ~UINT64_C(0);
    return dead;
}

/* Overwrites those rows of a step's V with zeros: P is 0 there, and 0 times Inf or NaN is NaN. Each
 * warp has every fourth piece of 8 columns of this consumer's panels. */
template <class shape>
static __device__ __forceinline__ void
sm90_zero_dead_rows(const sm90_cursor &cursor, uint32_t step,
                    const uint64_t (&keys)[shape::GRANULES]) {
    const uint32_t v =
        sm90_v_address<shape>(cursor, step) + (uint32_t)(sm90_thread_here() / 32 * 16);
#pragma unroll
    for (int i = 0; i < shape::KEYS / 32; i++) {
        const uint64_t of = keys[i / 2];
        if (of && !(of >> (i % 2 * 32 + warp_lane_here()) & 1))
#pragma unroll
            for (int j = 0; j < 2 * shape::V_PANELS / shape::DIM_SPLIT; j++)
                shared_store_16(v + (uint32_t)(j / 2 * shape::PANEL + j % 2 * 64 +
                                               (32 * i + warp_lane_here()) * 128),
                                {0, 0, 0, 0});
    }
    proxy_fence();
    warpgroup_sync(1 + cursor.consumer);
}

/* sm90_pv of a step. `keys`: which rows of V count, of groups with rows past their keys. */
template <class T, class shape, bool MASKED>
static __device__ __forceinline__ void
sm90_step_values(float (&o)[shape::OUTPUTS], uint32_t (&probs)[shape::SCORES / 2],
                 const sm90_cursor &cursor, uint32_t step, const uint64_t (&keys)[shape::GRANULES],
                 int add) {
    sm90_pv<T, shape>(o, probs, cursor, step, add, [&] {
        sm90_wait<shape::STAGES>(cursor.shared + shape::V_FULL, step);
        if (MASKED && shape::SOURCE == SM90_TMA && sm90_has_dead_rows<shape>(keys))
            sm90_zero_dead_rows<shape>(cursor, step, keys);
    });
}

/* ---- steps ---- */

/* Whether masks are loaded a step ahead. Where dims are divided, registers are short. */
template <class shape> static __device__ __forceinline__ constexpr bool sm90_masks_ahead(void) {
    return shape::DIM_SPLIT == 1 && shape::CONSUMERS < 3;
}

/* Lane of w.record that has the first group of masked step `at`. */
template <class shape>
static __device__ __forceinline__ int sm90_record_lane(const sm90_cursor &cursor, int32_t at) {
    return sm90_masks_ahead<shape>() ? (at - cursor.whole) * shape::GRANULES % 32 : 0;
}

/* Loads the records of masked step `at` of the item and of those after it. */
template <class shape>
static __device__ __forceinline__ void
sm90_load_records(struct sm90_fragments<shape> &w, const sm90_cursor &cursor,
                  const struct attention_params &p, int32_t at) {
    w.record = sm90_group_of(p, sm90_item<shape>(cursor.memory, cursor.job),
                             at * shape::GRANULES + warp_lane_here());
}

/* Loads the words of masked step `at`. A tile has no words for rows past its own. */
template <class shape>
static __device__ __forceinline__ void
sm90_load_words(struct sm90_fragments<shape> &w, const sm90_cursor &cursor,
                const struct attention_params &p, int32_t at) {
    const int lane = sm90_record_lane<shape>(cursor, at);
#pragma unroll
    for (int i = 0; i < shape::GRANULES; i++) {
        const int64_t words = __shfl_sync(WARP_ALL, w.record.at, lane + i);
        if (shape::CONSUMERS > 1 || !cursor.idle)
            w.words[i] = sm90_load_word(p, words, sm90_warp_row<shape>(p, cursor));
    }
}

/* Which scores of the step at `cursor` count, while its Q K^T is in flight. */
template <class shape>
static __device__ __forceinline__ void sm90_read_mask(struct sm90_fragments<shape> &w,
                                                      const sm90_cursor &cursor,
                                                      const struct attention_params &p) {
    if (cursor.at < cursor.whole) {
#pragma unroll
        for (int i = 0; i < shape::GRANULES; i++)
            w.keys[i] = ~UINT64_C(0), w.listed[i] = ~0u;
        return;
    }
    if (!sm90_masks_ahead<shape>())
        sm90_load_records(w, cursor, p, cursor.at);
    if (!sm90_masks_ahead<shape>() || cursor.at == cursor.whole)
        sm90_load_words(w, cursor, p, cursor.at);
    const int lane = sm90_record_lane<shape>(cursor, cursor.at);
#pragma unroll
    for (int i = 0; i < shape::GRANULES; i++) {
        const struct granule_group group = {__shfl_sync(WARP_ALL, w.record.keys, lane + i),
                                            __shfl_sync(WARP_ALL, w.record.at, lane + i)};
        w.keys[i] = group.at & GROUP_SHORT ? group.keys : ~UINT64_C(0);
        w.listed[i] = sm90_listed(group, w.words[i], p.tile_rows);
    }
    if (!sm90_masks_ahead<shape>() || cursor.at + 1 >= cursor.steps)
        return;
    if (lane + shape::GRANULES == 32)
        sm90_load_records(w, cursor, p, cursor.at + 1);
    sm90_load_words(w, cursor, p, cursor.at + 1);
}

template <class shape>
static __device__ __forceinline__ void sm90_mask_scores(struct sm90_fragments<shape> &w,
                                                        const sm90_cursor &cursor) {
    if (cursor.at < cursor.whole)
        return;
#pragma unroll
    for (int i = 0; i < shape::GRANULES; i++)
        if (__any_sync(WARP_ALL, ~w.listed[i]))
            sm90_mask_group(w.s + 32 * i, w.listed[i]);
}

/* A step that overlaps nothing: Q K^T, softmax. FIRST: first step of its item; else O is
 * rescaled. */
template <class T, bool FIRST, class shape>
static __device__ __forceinline__ void
sm90_step_serial(struct sm90_fragments<shape> &w, const sm90_cursor &cursor,
                 const struct attention_params &p, float scale) {
    float factor[2];
    sm90_pingpong_wait<shape>(cursor);
    sm90_step_scores<T, shape>(w.s, cursor);
    sm90_pingpong_pass<shape>(cursor);
    sm90_read_mask(w, cursor, p);
    wgmma_wait<0>();
    wgmma_fence_operand(w.s);
    sm90_release<shape::STAGES>(cursor, cursor.shared + shape::K_EMPTY, cursor.step);
    sm90_reduce_scores<shape>(w.s, cursor);
    if (FIRST)
        sm90_clear(w.state);
    if (shape::CONSUMERS == 1 && cursor.idle)
        return;
    sm90_mask_scores(w, cursor);
    const bool moved = sm90_softmax<T>(w.s, w.state, factor, scale);
    if (!FIRST && moved)
        sm90_rescale(w.o, factor);
    sm90_round<T>(w.probs, w.s);
}

/* P V of the step before, which overlaps nothing. */
template <class T, class shape>
static __device__ __forceinline__ void sm90_pv_serial(struct sm90_fragments<shape> &w,
                                                      const sm90_cursor &cursor, bool add) {
    sm90_step_values<T, shape, true>(w.o, w.probs, cursor, cursor.step - 1, w.keys, add);
    wgmma_wait<0>();
    wgmma_fence_operand(w.o);
    wgmma_fence_operand(w.probs);
    sm90_release<shape::STAGES>(cursor, cursor.shared + shape::V_EMPTY, cursor.step - 1);
}

/*
 * The step at `cursor`, whose Q K^T has been issued: softmax, with P V of the step before in flight,
 * which adds to `o` if `add`. FIRST: first step of its item; the item before is done, and its O is
 * stored before the next P V. MASKED: this step or the one before may have masks.
 */
template <class T, bool FIRST, bool MASKED, class shape>
static __device__ __forceinline__ void
sm90_step_begun(struct sm90_fragments<shape> &w, bool add, const sm90_cursor &cursor,
                const struct attention_params &p, float scale) {
    float factor[2];
    uint64_t keys[shape::GRANULES];
#pragma unroll
    for (int i = 0; i < shape::GRANULES; i++)
        keys[i] = MASKED ? w.keys[i] : 0;
    if (MASKED) /* before P V, whose first product waits for all of the scores' */
        sm90_read_mask(w, cursor, p);
    sm90_step_values<T, shape, MASKED>(w.o, w.probs, cursor, cursor.step - 1, keys, add);
    sm90_pingpong_pass<shape>(cursor);
    wgmma_wait<1>();
    wgmma_fence_operand(w.s);
    sm90_release<shape::STAGES>(cursor, cursor.shared + shape::K_EMPTY, cursor.step);
    if (FIRST) {
        w.done = w.state;
        sm90_clear(w.state);
    }
    const bool idle = shape::CONSUMERS == 1 && cursor.idle;
    if (MASKED && !idle)
        sm90_mask_scores(w, cursor);
    const bool moved = !idle && sm90_softmax<T>(w.s, w.state, factor, scale);
    wgmma_wait<0>();
    wgmma_fence_operand(w.o);
    wgmma_fence_operand(w.probs);
    sm90_release<shape::STAGES>(cursor, cursor.shared + shape::V_EMPTY, cursor.step - 1);
    if (!idle)
        sm90_round<T>(w.probs, w.s);
    if (!FIRST && moved)
        sm90_rescale(w.o, factor);
}
template <class T, bool FIRST, bool MASKED, class shape>
static __device__ __forceinline__ void sm90_step(struct sm90_fragments<shape> &w, bool add,
                                                 const sm90_cursor &cursor,
                                                 const struct attention_params &p, float scale) {
    wgmma_fence_operand(w.o);
    sm90_pingpong_wait<shape>(cursor);
    sm90_step_scores<T, shape>(w.s, cursor);
    sm90_step_begun<T, FIRST, MASKED>(w, add, cursor, p, scale);
}

/* The second step of an item, with the epilogue of the item before under its Q K^T. Where the step may
 * have masks: that epilogue alone. */
template <class T, class shape>
static __device__ __forceinline__ void
sm90_step_storing(struct sm90_fragments<shape> &w, sm90_cursor &cursor,
                  const struct attention_params &p, float scale) {
    if (cursor.at < cursor.whole) {
        sm90_pingpong_wait<shape>(cursor);
        sm90_step_scores<T, shape>(w.s, cursor);
        sm90_store<T, shape, shape::SOURCE>(p, cursor, cursor.job - 1, w.o, w.done);
        wgmma_fence_operand(w.o);
        sm90_step_begun<T, false, false>(w, false, cursor, p, scale);
        cursor.at++, cursor.step++;
    } else {
        sm90_store<T, shape, shape::SOURCE>(p, cursor, cursor.job - 1, w.o, w.done);
    }
}

/* An unmasked step whose Q K^T into `s` has been issued. P V of the step before, and Q K^T of the
 * step after into `next`, run under its softmax. MORE: there is a step after. */
template <class T, bool MORE, class shape>
static __device__ __forceinline__ void
sm90_step_two_tiles(struct sm90_fragments<shape> &w, float (&s)[shape::SCORES],
                    float (&next)[shape::SCORES], bool add, sm90_cursor &cursor, float scale) {
    float factor[2];
    sm90_step_values<T, shape, false>(w.o, w.probs, cursor, cursor.step - 1, w.keys, add);
    cursor.at++, cursor.step++;
    if (MORE)
        sm90_step_scores<T, shape>(next, cursor);
    wgmma_wait<1 + MORE>();
    wgmma_fence_operand(s);
    sm90_release<shape::STAGES>(cursor, cursor.shared + shape::K_EMPTY, cursor.step - 1);
    const bool moved = sm90_softmax<T>(s, w.state, factor, scale);
    wgmma_wait<MORE>();
    wgmma_fence_operand(w.o);
    wgmma_fence_operand(w.probs);
    sm90_release<shape::STAGES>(cursor, cursor.shared + shape::V_EMPTY, cursor.step - 2);
    sm90_round<T>(w.probs, s);
    if (moved)
        sm90_rescale(w.o, factor);
}

/* Unmasked steps of an item from the one at `cursor` on, with two score tiles. */
template <class T, class shape>
static __device__ __forceinline__ void sm90_steps_two_tiles(struct sm90_fragments<shape> &w,
                                                            sm90_cursor &cursor, float scale) {
    float t[shape::SCORES];
    if (cursor.at >= cursor.whole)
        return;
    wgmma_fence_operand(w.o);
    sm90_step_scores<T, shape>(w.s, cursor);
#pragma unroll 1
    while (cursor.at + 2 < cursor.whole) {
        sm90_step_two_tiles<T, true>(w, w.s, t, cursor.at > 1, cursor, scale);
        sm90_step_two_tiles<T, true>(w, t, w.s, true, cursor, scale);
    }
    if (cursor.at + 1 < cursor.whole) {
        sm90_step_two_tiles<T, true>(w, w.s, t, cursor.at > 1, cursor, scale);
        sm90_step_two_tiles<T, false>(w, t, w.s, true, cursor, scale);
    } else {
        sm90_step_two_tiles<T, false>(w, w.s, t, cursor.at > 1, cursor, scale);
    }
}

/* The steps of an item from `cursor` on, but its first: unmasked steps, then masked ones. Where dims
 * are divided, WGMMAs overlap nothing. P V of the last step is left to the caller. */
template <class T, class shape>
static __device__ __forceinline__ void sm90_steps(struct sm90_fragments<shape> &w,
                                                  sm90_cursor &cursor,
                                                  const struct attention_params &p, float scale) {
    if constexpr (shape::DIM_SPLIT > 1) {
#pragma unroll 1
        for (; cursor.at < cursor.steps; cursor.at++, cursor.step++) {
            sm90_pv_serial<T>(w, cursor, cursor.at > 1);
            sm90_step_serial<T, false>(w, cursor, p, scale);
        }
    } else {
        if (shape::TWO_SCORE_TILES && shape::SOURCE == SM90_TMA && cursor.whole >= SM90_LONG)
            sm90_steps_two_tiles<T>(w, cursor, scale);
#pragma unroll 1
        for (; cursor.at < cursor.whole; cursor.at++, cursor.step++)
            sm90_step<T, false, false>(w, cursor.at > 1, cursor, p, scale);
#pragma unroll 1
        for (; cursor.at < cursor.steps; cursor.at++, cursor.step++)
            sm90_step<T, false, true>(w, cursor.at > 1, cursor, p, scale);
    }
}

/* Moves to the next item, and loads its first records of masks; false at the end. */
template <class shape>
static __device__ __forceinline__ bool sm90_begin_item(struct sm90_fragments<shape> &w,
                                                       sm90_cursor &cursor,
                                                       const struct attention_params &p) {
    const bool more = sm90_next_item<shape>(cursor, p.granule_bits);
    if (sm90_masks_ahead<shape>() && more && cursor.whole < cursor.steps)
        sm90_load_records(w, cursor, p, cursor.whole);
    return more;
}

/* Zeros the rows of Q past those of the tile, and P of warps that have no other rows. */
template <class shape>
static __device__ __forceinline__ void sm90_clear_idle(struct sm90_fragments<shape> &w,
                                                       sm90_cursor &cursor,
                                                       const struct attention_params &p) {
    const int rows = p.stack * p.tile_rows, thread = sm90_thread_here();
    cursor.idle = sm90_uniform(thread / 32 * 16) >= rows;
#pragma unroll
    for (int i = 0; i < shape::SCORES / 2; i++)
        w.probs[i] = 0;
    for (int i = rows * 8 + thread; i < shape::ROWS * 8; i += 128)
        for (int panel = 0; panel < shape::Q_STAGES * shape::QK_PANELS; panel++)
            shared_store_16(cursor.shared + shape::Q + (uint32_t)(panel * shape::Q_PANEL + i * 16),
                            {0, 0, 0, 0});
    proxy_fence();
    warpgroup_sync(1 + cursor.consumer);
}

template <class T, class shape>
static __device__ __forceinline__ void sm90_consume(char *memory, uint32_t shared, int consumer,
                                                    const struct attention_params &p, float scale) {
    struct sm90_fragments<shape> w;
    sm90_cursor cursor = {memory, shared, consumer, sm90_thread_here() == 0, 0, ~0u, 0,
                          0,      0,      false};
    if (shape::CONSUMERS == 1)
        sm90_clear_idle<shape>(w, cursor, p);
    if (!sm90_begin_item(w, cursor, p))
        return;
    if (shape::TWO_SCORE_TILES && cursor.consumer == 1)
        named_barrier_arrive(1 + shape::CONSUMERS, 256); /* so that consumer 0 is first */
    for (bool overlapped = false;;) {
        if (!overlapped)
            sm90_step_serial<T, true>(w, cursor, p, scale);
        /* Declared uniform again for each item: ptxas would otherwise keep copies for each lane.
         * The address too, where many WGMMA descriptors follow from it and each would have its own
         * register. */
        cursor.step = (uint32_t)sm90_uniform((int)cursor.step) + 1;
        cursor.job = (uint32_t)sm90_uniform((int)cursor.job);
        if (shape::D_QK > 128 || shape::TWO_SCORE_TILES)
            cursor.shared = (uint32_t)sm90_uniform((int)cursor.shared);
        cursor.at = 1;
        if (overlapped)
            sm90_step_storing<T>(w, cursor, p, scale);
        sm90_steps<T>(w, cursor, p, scale);
        sm90_release<shape::Q_STAGES>(cursor, shared + shape::Q_EMPTY, cursor.job);
        const bool add = cursor.steps > 1;
        bool more = shape::Q_STAGES > 1 && sm90_begin_item(w, cursor, p);
        overlapped = more && shape::DIM_SPLIT == 1;
        if (overlapped) {
            sm90_step<T, true, true>(w, add, cursor, p, scale);
            continue;
        }
        sm90_pv_serial<T>(w, cursor, add);
        sm90_store<T, shape, shape::SOURCE>(p, cursor, cursor.job - (shape::Q_STAGES > 1), w.o,
                                            w.state);
        if (shape::Q_STAGES == 1)
            more = sm90_begin_item(w, cursor, p);
        if (!more) {
            if (shape::TWO_SCORE_TILES && cursor.consumer == 0)
                named_barrier_sync(1 + shape::CONSUMERS, 256); /* the last pass of consumer 1 */
            return;
        }
    }
}

#endif
