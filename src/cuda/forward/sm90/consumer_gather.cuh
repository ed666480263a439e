/*
 * Fused attention on Hopper, consumers of the TMA_GRANULE and CP_ASYNC paths: granules of any size.
 * The plan arranges single-consumer steps, which list keys of one consumer's rows only (order.h):
 *
 *   steps         | both | 0 | 1 | 0 | 1 | 1 | both ...
 *   consumer 0    | full | S |   | S |   |   | full       S: full barrier of its own (single)
 *   consumer 1    | full |   | S |   | S | S | full       blank: skipped, without any wait
 *
 * The producer arrives on the empty barrier in place of the consumer that skips. Masks are in
 * accumulator-fragment layout (fragment_masks.h).
 */
#ifndef TESSERA_CUDA_SM90_CONSUMER_GATHER_CUH
#define TESSERA_CUDA_SM90_CONSUMER_GATHER_CUH

#include "forward/sm90/consumer.cuh"

/* A consumer's place among the steps that it computes. */
struct sm90_gather_cursor : sm90_cursor {
    struct granule_single_steps single_steps; /* of the item */
    bool single, single_before; /* the step is this consumer's only; the step before was */
    uint32_t before;            /* the step that this consumer computed before */
    int32_t nth;                /* number of the step among this consumer's in the item */
    uint32_t phases; /* parity of the next phase of each full barrier: a bit for each, K then V */
};

/* ---- waiting ---- */

/* Waits for K (KEYS), or V, of a step; `single`: on the barrier of single-consumer steps. */
template <class shape, int SOURCE, bool KEYS>
static __device__ __forceinline__ void sm90_wait_tile(sm90_gather_cursor &cursor, uint32_t step,
                                                      bool single) {
    const uint32_t full = KEYS ? shape::K_FULL : shape::V_FULL;
    if (!sm90_has_single_steps<shape, SOURCE>()) {
        sm90_wait<shape::STAGES>(cursor.shared + full, step);
        return;
    }
    const uint32_t stage = ring_stage<shape::STAGES>(step);
    const uint32_t bit = (KEYS ? 0 : 2 * shape::STAGES) + (single ? shape::STAGES : 0) + stage;
    const uint32_t own = (KEYS ? shape::K_FULL_SINGLE : shape::V_FULL_SINGLE) +
                         8 * (uint32_t)(shape::STAGES * cursor.consumer);
    barrier_wait(cursor.shared + (single ? own : full) + 8 * stage, cursor.phases >> bit & 1);
    cursor.phases ^= 1u << bit;
}
template <class shape, int SOURCE>
static __device__ __forceinline__ void sm90_wait_k(sm90_gather_cursor &cursor) {
    sm90_wait_tile<shape, SOURCE, true>(cursor, cursor.step, cursor.single);
}
/* Waits for V of the step before. */
template <class shape, int SOURCE>
static __device__ __forceinline__ void sm90_wait_v(sm90_gather_cursor &cursor) {
    sm90_wait_tile<shape, SOURCE, false>(cursor, cursor.before, cursor.single_before);
}

/* ---- advancing ---- */

/* The first step of an item from `at` on that this consumer computes. */
template <class shape, int SOURCE>
static __device__ __forceinline__ int32_t sm90_own_step(const sm90_gather_cursor &cursor,
                                                        int32_t at) {
    if (!sm90_has_single_steps<shape, SOURCE>())
        return at;
    const struct granule_single_steps &single_steps = cursor.single_steps;
    if (at >= single_steps.begin && at < single_steps.end &&
        (at - single_steps.begin) % 2 != cursor.consumer)
        at++;
    return at >= single_steps.end && at < single_steps.tail_end &&
                   single_steps.tail_consumer != cursor.consumer
               ? single_steps.tail_end
               : at;
}

/* Moves to step `to` of the item. */
static __device__ __forceinline__ void sm90_goto_step(sm90_gather_cursor &cursor, int32_t to) {
    cursor.step += (uint32_t)(to - cursor.at);
    cursor.at = to;
    cursor.single = to >= cursor.single_steps.begin && to < cursor.single_steps.tail_end;
}

/* Moves to this consumer's next step in the item, or to the item's end. */
template <class shape, int SOURCE>
static __device__ __forceinline__ void sm90_next_step(sm90_gather_cursor &cursor) {
    cursor.before = cursor.step;
    cursor.single_before = cursor.single;
    cursor.nth++;
    sm90_goto_step(cursor, sm90_own_step<shape, SOURCE>(cursor, cursor.at + 1));
}

/* Moves to the next item; false at the end. */
template <class shape, int SOURCE>
static __device__ __forceinline__ bool sm90_gather_next_item(sm90_gather_cursor &cursor,
                                                             int granule_bits) {
    if (!sm90_next_item<shape>(cursor, granule_bits))
        return false;
    const struct granule_single_steps &single_steps =
        sm90_consumer_info<shape>(cursor.memory, cursor.job).single_steps;
    if (sm90_has_single_steps<shape, SOURCE>())
        cursor.single_steps = {sm90_uniform(single_steps.begin), sm90_uniform(single_steps.end),
                               sm90_uniform(single_steps.tail_end),
                               sm90_uniform(single_steps.tail_consumer)};
    cursor.nth = 0;
    sm90_goto_step(cursor, sm90_own_step<shape, SOURCE>(cursor, 0));
    return true;
}

/* Whether V of the step before must be released before K of this one is waited for. More than one
 * skipped step in between may need that stage of the ring. */
static __device__ __forceinline__ bool sm90_must_release_v(const sm90_gather_cursor &cursor) {
    return cursor.step - cursor.before > 2;
}

/* ---- masks ---- */

/* Loads the mask bits of step `at`, unless it is unmasked or past the end. */
template <class shape, int SOURCE>
static __device__ __forceinline__ void
sm90_prefetch_mask(struct sm90_fragments<shape, SOURCE> &w, const sm90_gather_cursor &cursor,
                   const struct attention_params &p, int32_t at) {
    if (at >= cursor.whole && at < cursor.steps)
        sm90_load_bits<shape::BITS>(w.mask.next, w.mask.place, p, at,
                                    sm90_warp_row<shape>(p, cursor));
}

/* Finds the mask bits of an item, and loads those of the step at `cursor`. */
template <class shape, int SOURCE>
static __device__ __forceinline__ void
sm90_prefetch_first_mask(struct sm90_fragments<shape, SOURCE> &w, const sm90_gather_cursor &cursor,
                         const struct attention_params &p) {
    w.mask.place = sm90_bits_begin(p, sm90_item<shape>(cursor.memory, cursor.job),
                                   sm90_consumer_info<shape>(cursor.memory, cursor.job),
                                   sm90_warp_row<shape>(p, cursor));
    sm90_prefetch_mask(w, cursor, p, cursor.at);
}

/* Takes the mask bits of the step at `cursor`, and loads those of this consumer's next step. FIRST:
 * first step of an item, whose bits have not been loaded. */
template <bool FIRST, class shape, int SOURCE>
static __device__ __forceinline__ void sm90_advance_mask(struct sm90_fragments<shape, SOURCE> &w,
                                                         const sm90_gather_cursor &cursor,
                                                         const struct attention_params &p) {
    if (FIRST)
        sm90_prefetch_first_mask(w, cursor, p);
    const bool all = cursor.at < cursor.whole;
    const int shift = shape::BITS < 7 ? cursor.at % 2 * 16 : 0; /* second step of a chunk */
    const struct sm90_bits &bits = w.mask.next;
    w.mask.now.x[0] = all ? ~0u : bits.x[0] >> shift;
    w.mask.now.x[1] = all ? ~0u : (bits.fine ? bits.x[1] : bits.x[0]) >> shift;
    w.mask.now.any = __reduce_or_sync(WARP_ALL, w.mask.now.x[0] | w.mask.now.x[1]);
    if (!FIRST)
        sm90_prefetch_mask(w, cursor, p, sm90_own_step<shape, SOURCE>(cursor, cursor.at + 1));
}

/* ---- steps ---- */

/* A step that overlaps nothing: Q K^T, softmax. FIRST: first step of its item; else O is
 * rescaled. */
template <class T, bool FIRST, class shape, int SOURCE>
static __device__ __forceinline__ void
sm90_gather_step_serial(struct sm90_fragments<shape, SOURCE> &w, sm90_gather_cursor &cursor,
                        const struct attention_params &p, float scale) {
    float factor[2];
    sm90_advance_mask<FIRST>(w, cursor, p);
    sm90_scores<T, shape>(w.s, cursor, [&] { sm90_wait_k<shape, SOURCE>(cursor); });
    wgmma_wait<0>();
    wgmma_fence_operand(w.s);
    sm90_release<shape::STAGES>(cursor, cursor.shared + shape::K_EMPTY, cursor.step);
    sm90_reduce_scores<shape>(w.s, cursor);
    if (FIRST)
        sm90_clear(w.state);
    const bool moved = sm90_softmax<T, true>(w.s, w.state, factor, scale, w.mask.now);
    if (!FIRST && moved)
        sm90_rescale(w.o, factor);
    sm90_round<T>(w.probs, w.s, w.mask.now);
}

/* P V of the step before, which overlaps nothing. */
template <class T, class shape, int SOURCE>
static __device__ __forceinline__ void
sm90_gather_pv_serial(struct sm90_fragments<shape, SOURCE> &w, sm90_gather_cursor &cursor,
                      bool add) {
    sm90_pv<T, shape>(w.o, w.probs, cursor, cursor.before, add,
                      [&] { sm90_wait_v<shape, SOURCE>(cursor); });
    wgmma_wait<0>();
    wgmma_fence_operand(w.o);
    wgmma_fence_operand(w.probs);
    sm90_release<shape::STAGES>(cursor, cursor.shared + shape::V_EMPTY, cursor.before);
}

/* The step at `cursor`, whose Q K^T has been issued: softmax, with P V of the step before in
 * flight. `add`: that P V is added to O. FIRST: first step of its item, so O and its sums still
 * belong to the item before. MASKED: the step may have masks. */
template <class T, bool FIRST, bool MASKED, class shape, int SOURCE>
static __device__ __forceinline__ void
sm90_gather_step_begun(struct sm90_fragments<shape, SOURCE> &w, bool add,
                       sm90_gather_cursor &cursor, float scale) {
    float factor[2];
    sm90_pv<T, shape>(w.o, w.probs, cursor, cursor.before, add,
                      [&] { sm90_wait_v<shape, SOURCE>(cursor); });
    wgmma_wait<1>();
    wgmma_fence_operand(w.s);
    sm90_release<shape::STAGES>(cursor, cursor.shared + shape::K_EMPTY, cursor.step);
    if (FIRST) {
        w.done = w.state;
        sm90_clear(w.state);
    }
    const bool moved = sm90_softmax<T, MASKED>(w.s, w.state, factor, scale, w.mask.now);
    wgmma_wait<0>();
    wgmma_fence_operand(w.o);
    wgmma_fence_operand(w.probs);
    sm90_release<shape::STAGES>(cursor, cursor.shared + shape::V_EMPTY, cursor.before);
    if (MASKED)
        sm90_round<T>(w.probs, w.s, w.mask.now);
    else
        sm90_round<T>(w.probs, w.s);
    if (!FIRST && moved)
        sm90_rescale(w.o, factor);
}
template <class T, bool FIRST, bool MASKED, class shape, int SOURCE>
static __device__ __forceinline__ void
sm90_gather_step(struct sm90_fragments<shape, SOURCE> &w, bool add, sm90_gather_cursor &cursor,
                 const struct attention_params &p, float scale) {
    wgmma_fence_operand(w.o);
    if (MASKED)
        sm90_advance_mask<FIRST>(w, cursor, p);
    sm90_scores<T, shape>(w.s, cursor, [&] { sm90_wait_k<shape, SOURCE>(cursor); });
    sm90_gather_step_begun<T, FIRST, MASKED>(w, add, cursor, scale);
}

/* Second step of an item: the O of the item before is stored during Q K^T. Where the step may have
 * masks, only stores. */
template <class T, class shape, int SOURCE>
static __device__ __forceinline__ void
sm90_gather_step_storing(struct sm90_fragments<shape, SOURCE> &w, sm90_gather_cursor &cursor,
                         const struct attention_params &p, float scale) {
    if (cursor.at < cursor.whole) {
        sm90_scores<T, shape>(w.s, cursor, [&] { sm90_wait_k<shape, SOURCE>(cursor); });
        sm90_store<T, shape, SOURCE>(p, cursor, cursor.job - 1, w.o, w.done);
        wgmma_fence_operand(w.o);
        sm90_gather_step_begun<T, false, false>(w, false, cursor, scale);
        sm90_next_step<shape, SOURCE>(cursor);
    } else {
        sm90_store<T, shape, SOURCE>(p, cursor, cursor.job - 1, w.o, w.done);
    }
}

/* Steps of an item from the second on: unmasked steps, then the others. Where dims are divided,
 * every step is treated as masked and overlaps nothing. P V of the last step remains to be done. */
template <class T, class shape, int SOURCE>
static __device__ __forceinline__ void
sm90_gather_steps(struct sm90_fragments<shape, SOURCE> &w, sm90_gather_cursor &cursor,
                  const struct attention_params &p, float scale) {
#pragma unroll 1
    for (; shape::DIM_SPLIT == 1 && cursor.at < cursor.whole; sm90_next_step<shape, SOURCE>(cursor))
        sm90_gather_step<T, false, false>(w, cursor.nth > 1, cursor, p, scale);
    if (cursor.at < cursor.steps)
        sm90_prefetch_first_mask(w, cursor, p);
#pragma unroll 1
    for (; cursor.at < cursor.steps; sm90_next_step<shape, SOURCE>(cursor)) {
        if (shape::DIM_SPLIT > 1 || sm90_must_release_v(cursor)) {
            sm90_gather_pv_serial<T>(w, cursor, cursor.nth > 1);
            sm90_gather_step_serial<T, false>(w, cursor, p, scale);
        } else {
            sm90_gather_step<T, false, true>(w, cursor.nth > 1, cursor, p, scale);
        }
    }
}

template <class T, class shape, int SOURCE>
static __device__ __forceinline__ void
sm90_consume_gather(char *memory, uint32_t shared, int consumer, const struct attention_params &p,
                    float scale) {
    struct sm90_fragments<shape, SOURCE> w;
    sm90_gather_cursor cursor = {};
    cursor.memory = memory, cursor.shared = shared, cursor.consumer = consumer, cursor.job = ~0u;
    cursor.elected = sm90_thread_here() == 0;
    if (!sm90_gather_next_item<shape, SOURCE>(cursor, p.granule_bits))
        return;
    for (bool overlapped = false;;) {
        if (!overlapped)
            sm90_gather_step_serial<T, true>(w, cursor, p, scale);
        /* Declared uniform again for each item, as in consumer_tma.cuh. */
        cursor.step = (uint32_t)sm90_uniform((int)cursor.step);
        cursor.job = (uint32_t)sm90_uniform((int)cursor.job);
        if (shape::D_QK > 128)
            cursor.shared = (uint32_t)sm90_uniform((int)cursor.shared);
        sm90_next_step<shape, SOURCE>(cursor);
        if (overlapped)
            sm90_gather_step_storing<T>(w, cursor, p, scale);
        sm90_gather_steps<T>(w, cursor, p, scale);
        sm90_release<shape::Q_STAGES>(cursor, shared + shape::Q_EMPTY, cursor.job);
        const bool add = cursor.nth > 1, far = sm90_must_release_v(cursor);
        if (far)
            sm90_gather_pv_serial<T>(w, cursor, add);
        bool more =
            shape::Q_STAGES > 1 && sm90_gather_next_item<shape, SOURCE>(cursor, p.granule_bits);
        overlapped = more && !far && !sm90_must_release_v(cursor);
        if (overlapped) {
            if (cursor.at < cursor.whole)
                sm90_gather_step<T, true, false>(w, add, cursor, p, scale);
            else
                sm90_gather_step<T, true, true>(w, add, cursor, p, scale);
            continue;
        }
        if (!far)
            sm90_gather_pv_serial<T>(w, cursor, add);
        sm90_store<T, shape, SOURCE>(p, cursor, cursor.job - (shape::Q_STAGES > 1), w.o, w.state);
        if (shape::Q_STAGES == 1)
            more = sm90_gather_next_item<shape, SOURCE>(cursor, p.granule_bits);
        if (!more)
            return;
    }
}

#endif
