/* Fused attention on Hopper, consumers of the TMA path: granules of 64 keys. A consumer finds out
 * from the masks beside K which steps its rows do not list, and skips them. */
#ifndef TESSERA_CUDA_SM90_CONSUMER_TMA_CUH
#define TESSERA_CUDA_SM90_CONSUMER_TMA_CUH

#include "forward/sm90/consumer.cuh"

/* ---- ping-pong scheduling ---- */

/* Consumers issue WGMMAs alternately, in items that do not hold two score tiles (config.cuh). Only
 * unmasked steps take part: no consumer skips them. */
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
static __device__ __forceinline__ void sm90_tma_scores(float (&s)[shape::SCORES],
                                                       const sm90_cursor &cursor) {
    sm90_scores<T, shape>(
        s, cursor, [&] { sm90_wait<shape::STAGES>(cursor.shared + shape::K_FULL, cursor.step); });
}

/* Writes zeros to rows of V past the `keys` of its granules: 0 x Inf or 0 x NaN would not be 0.
 * Each warp has every fourth piece of 8 columns of this consumer's panels. */
template <class shape>
static __device__ __forceinline__ void sm90_zero_dead_rows(const sm90_cursor &cursor, uint32_t step,
                                                           uint32_t keys) {
    const uint32_t v =
        sm90_v_address<shape>(cursor, step) + (uint32_t)(sm90_thread_here() / 32 * 16);
#pragma unroll
    for (int i = 0; i < shape::KEYS / 32; i++) {
        const int filled = (int)(keys >> i / 2 * 8 & 255);
        if (filled && i % 2 * 32 + warp_lane_here() >= filled)
#pragma unroll
            for (int j = 0; j < 2 * shape::V_PANELS / shape::DIM_SPLIT; j++)
                shared_store_16(v + (uint32_t)(j / 2 * shape::PANEL + j % 2 * 64 +
                                               (32 * i + warp_lane_here()) * 128),
                                {0, 0, 0, 0});
    }
    proxy_fence();
    warpgroup_sync(1 + cursor.consumer);
}

/* Issues P V of a step whose granules have `keys` keys. */
template <class T, class shape>
static __device__ __forceinline__ void
sm90_tma_pv(float (&o)[shape::OUTPUTS], uint32_t (&probs)[shape::SCORES / 2],
            const sm90_cursor &cursor, uint32_t step, uint32_t keys, int add) {
    sm90_pv<T, shape>(o, probs, cursor, step, add, [&] {
        sm90_wait<shape::STAGES>(cursor.shared + shape::V_FULL, step);
        if (sm90_has_dead_rows(keys))
            sm90_zero_dead_rows<shape>(cursor, step, keys);
    });
}

/* ---- steps ---- */

/* This warp's mask words of the step at `cursor`, whose K is there. */
template <class shape>
static __device__ __forceinline__ uint2 sm90_mask_words_of(const sm90_cursor &cursor) {
    const int warp = sm90_consumer_row<shape>(cursor.consumer) / 16 + sm90_thread_here() / 32;
    const uint2 &words = sm90_masks_of<shape>(cursor.memory, cursor.step).words[warp];
    return {sm90_read(&words.x), sm90_read(&words.y)};
}

/* Releases K of a step. Each warp arrives, since each has read the masks beside K. */
template <class shape>
static __device__ __forceinline__ void sm90_release_k(const sm90_cursor &cursor, uint32_t step) {
    if (warp_lane_here() == 0)
        barrier_arrive(cursor.shared + shape::K_EMPTY + 8 * ring_stage<shape::STAGES>(step));
}

/* Finds, while Q K^T is in flight, which scores count. */
template <class shape>
static __device__ __forceinline__ void sm90_read_mask(struct sm90_fragments<shape, SM90_TMA> &w,
                                                      const sm90_cursor &cursor,
                                                      const struct attention_params &p) {
    w.keys = 0;
    if (cursor.at < cursor.whole)
        return;
    const typename shape::masks &masks = sm90_masks_of<shape>(cursor.memory, cursor.step);
    const uint2 words = sm90_mask_words_of<shape>(cursor);
#pragma unroll
    for (int i = 0; i < shape::GRANULES; i++) {
        const uint32_t word = i ? words.y : words.x;
        w.mask.listed[i] = sm90_listed(word, &masks.bits[i], p, sm90_warp_row<shape>(p, cursor));
        w.keys |= (word & 127) << 8 * i;
    }
}

template <class shape>
static __device__ __forceinline__ void sm90_mask_scores(struct sm90_fragments<shape, SM90_TMA> &w,
                                                        const sm90_cursor &cursor) {
    if (cursor.at < cursor.whole)
        return;
#pragma unroll
    for (int i = 0; i < shape::GRANULES; i++)
        if (__any_sync(WARP_ALL, ~w.mask.listed[i]))
            sm90_mask_granule(w.s + 32 * i, w.mask.listed[i]);
}

/* Whether no row of this consumer lists a key of the step at `cursor`, which may have masks. */
template <class shape>
static __device__ __forceinline__ bool sm90_skips(const sm90_cursor &cursor) {
    sm90_wait<shape::STAGES>(cursor.shared + shape::K_FULL, cursor.step);
    const uint2 words = sm90_mask_words_of<shape>(cursor);
    return !((words.x | (shape::GRANULES > 1 ? words.y : 0)) & SM90_LISTED);
}

/* A step that overlaps nothing: Q K^T, softmax. FIRST: first step of its item; else O is
 * rescaled. */
template <class T, bool FIRST, class shape>
static __device__ __forceinline__ void
sm90_tma_step_serial(struct sm90_fragments<shape, SM90_TMA> &w, const sm90_cursor &cursor,
                     const struct attention_params &p, float scale) {
    float factor[2];
    sm90_pingpong_wait<shape>(cursor);
    sm90_tma_scores<T, shape>(w.s, cursor);
    sm90_pingpong_pass<shape>(cursor);
    sm90_read_mask(w, cursor, p);
    wgmma_wait<0>();
    wgmma_fence_operand(w.s);
    sm90_release_k<shape>(cursor, cursor.step);
    sm90_reduce_scores<shape>(w.s, cursor);
    sm90_mask_scores(w, cursor);
    if (FIRST)
        sm90_clear(w.state);
    const bool moved = sm90_softmax<T, false>(w.s, w.state, factor, scale, {});
    if (!FIRST && moved)
        sm90_rescale(w.o, factor);
    sm90_round<T>(w.probs, w.s);
}

/* P V of the step before, which overlaps nothing. */
template <class T, class shape>
static __device__ __forceinline__ void sm90_tma_pv_serial(struct sm90_fragments<shape, SM90_TMA> &w,
                                                          const sm90_cursor &cursor, bool add) {
    sm90_tma_pv<T, shape>(w.o, w.probs, cursor, cursor.step - 1, w.keys, add);
    wgmma_wait<0>();
    wgmma_fence_operand(w.o);
    wgmma_fence_operand(w.probs);
    sm90_release<shape::STAGES>(cursor, cursor.shared + shape::V_EMPTY, cursor.step - 1);
}

/* Skips the step at `cursor`: releases its K and V. All warps of the consumer have found that no
 * row lists it. */
template <class shape>
static __device__ __forceinline__ void sm90_skip_step(const sm90_cursor &cursor) {
    warpgroup_sync(1 + cursor.consumer);
    sm90_wait<shape::STAGES>(cursor.shared + shape::K_FULL, cursor.step);
    sm90_release_k<shape>(cursor, cursor.step);
    sm90_wait<shape::STAGES>(cursor.shared + shape::V_FULL, cursor.step);
    sm90_release<shape::STAGES>(cursor, cursor.shared + shape::V_EMPTY, cursor.step);
}

/* The step at `cursor`, whose Q K^T has been issued: softmax, with P V of the step before in
 * flight. `add`: that P V is added to O. FIRST: first step of its item, so O and its sums still
 * belong to the item before. MASKED: this step, or the one before, may have masks. */
template <class T, bool FIRST, bool MASKED, class shape>
static __device__ __forceinline__ void
sm90_tma_step_begun(struct sm90_fragments<shape, SM90_TMA> &w, bool add, const sm90_cursor &cursor,
                    const struct attention_params &p, float scale) {
    const uint32_t keys = MASKED ? w.keys : 0;
    float factor[2];
    if (MASKED) /* before P V, whose first WGMMA waits for those of Q K^T */
        sm90_read_mask(w, cursor, p);
    sm90_tma_pv<T, shape>(w.o, w.probs, cursor, cursor.step - 1, keys, add);
    sm90_pingpong_pass<shape>(cursor);
    wgmma_wait<1>();
    wgmma_fence_operand(w.s);
    sm90_release_k<shape>(cursor, cursor.step);
    if (MASKED)
        sm90_mask_scores(w, cursor);
    if (FIRST) {
        w.done = w.state;
        sm90_clear(w.state);
    }
    const bool moved = sm90_softmax<T, false>(w.s, w.state, factor, scale, {});
    wgmma_wait<0>();
    wgmma_fence_operand(w.o);
    wgmma_fence_operand(w.probs);
    sm90_release<shape::STAGES>(cursor, cursor.shared + shape::V_EMPTY, cursor.step - 1);
    sm90_round<T>(w.probs, w.s);
    if (!FIRST && moved)
        sm90_rescale(w.o, factor);
}
template <class T, bool FIRST, bool MASKED, class shape>
static __device__ __forceinline__ void
sm90_tma_step(struct sm90_fragments<shape, SM90_TMA> &w, bool add, const sm90_cursor &cursor,
              const struct attention_params &p, float scale) {
    wgmma_fence_operand(w.o);
    sm90_pingpong_wait<shape>(cursor);
    sm90_tma_scores<T, shape>(w.s, cursor);
    sm90_tma_step_begun<T, FIRST, MASKED>(w, add, cursor, p, scale);
}

/* Second step of an item: the O of the item before is stored during Q K^T. Where the step may have
 * masks, only stores. */
template <class T, class shape>
static __device__ __forceinline__ void
sm90_tma_step_storing(struct sm90_fragments<shape, SM90_TMA> &w, sm90_cursor &cursor,
                      const struct attention_params &p, float scale) {
    if (cursor.at < cursor.whole) {
        sm90_pingpong_wait<shape>(cursor);
        sm90_tma_scores<T, shape>(w.s, cursor);
        sm90_store<T, shape, SM90_TMA>(p, cursor, cursor.job - 1, w.o, w.done);
        wgmma_fence_operand(w.o);
        sm90_tma_step_begun<T, false, false>(w, false, cursor, p, scale);
        cursor.at++, cursor.step++;
    } else {
        sm90_store<T, shape, SM90_TMA>(p, cursor, cursor.job - 1, w.o, w.done);
    }
}

/* An unmasked step whose Q K^T into `s` has been issued. P V of the step before, and Q K^T of the
 * step after into `next`, run under its softmax. MORE: there is a step after. */
template <class T, bool MORE, class shape>
static __device__ __forceinline__ void
sm90_tma_step_two_tiles(struct sm90_fragments<shape, SM90_TMA> &w, float (&s)[shape::SCORES],
                        float (&next)[shape::SCORES], bool add, sm90_cursor &cursor, float scale) {
    float factor[2];
    sm90_tma_pv<T, shape>(w.o, w.probs, cursor, cursor.step - 1, 0, add);
    cursor.at++, cursor.step++;
    if (MORE)
        sm90_tma_scores<T, shape>(next, cursor);
    wgmma_wait<1 + MORE>();
    wgmma_fence_operand(s);
    sm90_release_k<shape>(cursor, cursor.step - 1);
    const bool moved = sm90_softmax<T, false>(s, w.state, factor, scale, {});
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
static __device__ __forceinline__ void
sm90_tma_steps_two_tiles(struct sm90_fragments<shape, SM90_TMA> &w, sm90_cursor &cursor,
                         float scale) {
    float t[shape::SCORES];
    if (cursor.at >= cursor.whole)
        return;
    wgmma_fence_operand(w.o);
    sm90_tma_scores<T, shape>(w.s, cursor);
#pragma unroll 1
    while (cursor.at + 2 < cursor.whole) {
        sm90_tma_step_two_tiles<T, true>(w, w.s, t, cursor.at > 1, cursor, scale);
        sm90_tma_step_two_tiles<T, true>(w, t, w.s, true, cursor, scale);
    }
    if (cursor.at + 1 < cursor.whole) {
        sm90_tma_step_two_tiles<T, true>(w, w.s, t, cursor.at > 1, cursor, scale);
        sm90_tma_step_two_tiles<T, false>(w, t, w.s, true, cursor, scale);
    } else {
        sm90_tma_step_two_tiles<T, false>(w, w.s, t, cursor.at > 1, cursor, scale);
    }
}

/* Steps of an item from the second on: unmasked steps, then the others, of which some are skipped.
 * Where dims are divided, a step overlaps nothing. Answers whether P V of the last step remains to
 * be done. */
template <class T, class shape>
static __device__ __forceinline__ bool
sm90_tma_steps(struct sm90_fragments<shape, SM90_TMA> &w, sm90_cursor &cursor,
               const struct attention_params &p, float scale) {
    if constexpr (shape::DIM_SPLIT > 1) {
#pragma unroll 1
        for (; cursor.at < cursor.steps; cursor.at++, cursor.step++) {
            sm90_tma_pv_serial<T>(w, cursor, cursor.at > 1);
            sm90_tma_step_serial<T, false>(w, cursor, p, scale);
        }
        return true;
    } else {
        bool pending = true;
        if (shape::TWO_SCORE_TILES && cursor.whole >= SM90_LONG)
            sm90_tma_steps_two_tiles<T>(w, cursor, scale);
#pragma unroll 1
        for (; cursor.at < cursor.whole; cursor.at++, cursor.step++)
            sm90_tma_step<T, false, false>(w, cursor.at > 1, cursor, p, scale);
#pragma unroll 1
        for (; cursor.at < cursor.steps; cursor.at++, cursor.step++) {
            if (sm90_skips<shape>(cursor)) {
                if (pending)
                    sm90_tma_pv_serial<T>(w, cursor, cursor.at > 1);
                sm90_skip_step<shape>(cursor);
                pending = false;
            } else if (pending) {
                sm90_tma_step<T, false, true>(w, cursor.at > 1, cursor, p, scale);
            } else {
                sm90_tma_step_serial<T, false>(w, cursor, p, scale);
                pending = true;
            }
        }
        return pending;
    }
}

template <class T, class shape>
static __device__ __forceinline__ void sm90_consume_tma(char *memory, uint32_t shared, int consumer,
                                                        const struct attention_params &p,
                                                        float scale) {
    struct sm90_fragments<shape, SM90_TMA> w;
    sm90_cursor cursor = {memory, shared, consumer, sm90_thread_here() == 0, 0, ~0u, 0, 0, 0};
    w.keys = 0;
    if (!sm90_next_item<shape>(cursor, p.granule_bits))
        return;
    if (shape::TWO_SCORE_TILES && cursor.consumer == 1)
        named_barrier_arrive(1 + shape::CONSUMERS, 256); /* so that consumer 0 is first */
    for (bool overlapped = false;;) {
        if (!overlapped)
            sm90_tma_step_serial<T, true>(w, cursor, p, scale);
        /* Declared uniform again for each item: ptxas would otherwise keep copies for each lane.
         * The address too, where many WGMMA descriptors follow from it and each would have its own
         * register. */
        cursor.step = (uint32_t)sm90_uniform((int)cursor.step) + 1;
        cursor.job = (uint32_t)sm90_uniform((int)cursor.job);
        if (shape::D_QK > 128 || shape::TWO_SCORE_TILES)
            cursor.shared = (uint32_t)sm90_uniform((int)cursor.shared);
        cursor.at = 1;
        if (overlapped)
            sm90_tma_step_storing<T>(w, cursor, p, scale);
        overlapped = sm90_tma_steps<T>(w, cursor, p, scale);
        sm90_release<shape::Q_STAGES>(cursor, shared + shape::Q_EMPTY, cursor.job);
        const bool add = cursor.steps > 1;
        bool more = shape::Q_STAGES > 1 && sm90_next_item<shape>(cursor, p.granule_bits);
        if (more && overlapped) {
            sm90_tma_step<T, true, true>(w, add, cursor, p, scale);
            continue;
        }
        if (overlapped)
            sm90_tma_pv_serial<T>(w, cursor, add);
        overlapped = false;
        sm90_store<T, shape, SM90_TMA>(p, cursor, cursor.job - (shape::Q_STAGES > 1), w.o, w.state);
        if (shape::Q_STAGES == 1)
            more = sm90_next_item<shape>(cursor, p.granule_bits);
        if (!more) {
            if (shape::TWO_SCORE_TILES && cursor.consumer == 0)
                named_barrier_sync(1 + shape::CONSUMERS, 256); /* the last pass of consumer 1 */
            return;
        }
    }
}

#endif
