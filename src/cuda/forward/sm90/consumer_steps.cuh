/* Fused attention on Hopper: the steps of a consumer. config.cuh describes the pipeline. */
#ifndef TESSERA_CUDA_SM90_CONSUMER_STEPS_CUH
#define TESSERA_CUDA_SM90_CONSUMER_STEPS_CUH

#include "forward/sm90/column_sums.cuh"
#include "forward/sm90/modify.cuh"

/* ---- ping-pong scheduling ---- */

/* Consumers issue WGMMAs alternately, in items that do not hold two score tiles (config.cuh). Only
 * unmasked steps take part. */
template <class shape> DEVICE bool sm90_pingpong(const sm90_cursor &cursor) {
    return shape::TURNS && cursor.at < cursor.whole &&
           (!shape::TWO_SCORE_TILES || cursor.whole < SM90_LONG);
}
template <class shape> DEVICE void sm90_pingpong_wait(const sm90_cursor &cursor) {
    if (sm90_pingpong<shape>(cursor))
        named_barrier_sync(SM90_TURN + cursor.consumer, SM90_BOTH);
}
template <class shape> DEVICE void sm90_pingpong_pass(const sm90_cursor &cursor) {
    if (sm90_pingpong<shape>(cursor))
        named_barrier_arrive(SM90_TURN + (cursor.consumer + 1) % shape::CONSUMERS, SM90_BOTH);
}

/* ---- WGMMA ---- */

/* Issues Q K^T of the step at `cursor`. */
template <class T, class shape>
DEVICE void sm90_step_scores(float (&s)[shape::SCORES], const sm90_cursor &cursor) {
    sm90_scores<T, shape>(
        s, cursor, [&] { sm90_wait<shape::STAGES>(cursor.shared + shape::K_FULL, cursor.step); });
}

/* Overwrites rows of V past the keys of a granule with zeros: P is 0 there, and 0 times Inf or NaN
 * is NaN. Rows of absent granules are zeros. Each warp has every fourth piece of 8 columns of this
 * consumer's panels. */
template <class shape>
DEVICE void sm90_zero_dead_rows(const sm90_cursor &cursor, const struct attention_params &p,
                                const struct sm90_records &records) {
    const uint32_t v =
        sm90_v_address<shape>(cursor, cursor.step) + (uint32_t)(sm90_thread_here() / 32 * 16);
    const int64_t mask = sm90_item<shape>(cursor.memory, cursor.job).mask - records.whole;
    sm90_wait<shape::STAGES>(cursor.shared + shape::V_FULL, cursor.step);
#pragma unroll
    for (int i = 0; i < shape::KEYS / 32; i++) {
        const int32_t group = cursor.at * shape::GRANULES + i / 2;
        const uint64_t keys =
            group < records.whole ? ~UINT64_C(0) : __ldg(p.image.group_keys + mask + group);
        if (keys && !(keys >> (i % 2 * 32 + warp_lane_here()) & 1))
#pragma unroll
            for (int j = 0; j < 2 * shape::V_PANELS / shape::DIM_SPLIT; j++)
                shared_store_16(v + (uint32_t)(j / 2 * shape::PANEL + j % 2 * 64 +
                                               (32 * i + warp_lane_here()) * 128),
                                {0, 0, 0, 0});
    }
    proxy_fence();
    warpgroup_sync(SM90_CONSUMER + cursor.consumer);
}

/* sm90_pv of a step. */
template <class T, class shape>
DEVICE void sm90_step_values(float (&o)[shape::OUTPUTS], uint32_t (&probs)[shape::SCORES / 2],
                             const sm90_cursor &cursor, uint32_t step, int add) {
    sm90_pv<T, shape>(o, probs, cursor, step, add,
                      [&] { sm90_wait<shape::STAGES>(cursor.shared + shape::V_FULL, step); });
}

/* ---- steps ---- */

/* Whether masks are loaded ahead. Serial consumers are short of registers; those of filled lists come with
 * the keys. */
template <class shape> DEVICE constexpr bool sm90_masks_ahead(void) {
    return !shape::SERIAL && !shape::LONG && !sm90_is_filled(shape::SOURCE);
}

/* Loads the records of step `at` of the item. */
template <class shape> DEVICE void sm90_load_records(struct sm90_fragments<shape> &w, int32_t at) {
#pragma unroll
    for (int i = 0; i < shape::GRANULES; i++)
        w.next[i] = sm90_load_record(w.records, at * shape::GRANULES + i);
}

/* Finds the records of the item at `cursor`, and loads those of its step `at`. */
template <class shape>
DEVICE void sm90_find_records(struct sm90_fragments<shape> &w, const sm90_cursor &cursor,
                              const struct attention_params &p, int32_t at) {
    const bool idle = shape::CONSUMERS == 1 && cursor.idle;
    const int row = idle ? p.tile_rows + GRANULE_SLICE - 1 : sm90_warp_row<shape>(p, cursor);
    w.records =
        sm90_records_of(p, sm90_item<shape>(cursor.memory, cursor.job), row / GRANULE_SLICE);
    sm90_load_records(w, at);
}

/* Loads the masks of step `at`, whose records have been loaded, and the records of the step after. Records
 * exist even past the item's end. */
template <class shape>
DEVICE void sm90_load_masks(struct sm90_fragments<shape> &w, const struct attention_params &p,
                            int32_t at) {
    w.record = 0;
#pragma unroll
    for (int i = 0; i < shape::GRANULES; i++) {
        w.record |= w.next[i];
        w.listed[i] = sm90_load_word(p, w.next[i]);
    }
    sm90_load_records(w, at + 1);
}

/* Whether a step that runs as masked has no mask: the first of an item, or any where WGMMAs overlap
 * nothing. */
template <bool FIRST, class shape> DEVICE bool sm90_unmasked(const sm90_cursor &cursor) {
    return (FIRST || shape::SERIAL) && cursor.at < cursor.whole;
}

/* Prepares the mask of the step at `cursor`, while its Q K^T is in flight. FIRST: of its item. Answers
 * whether V has dead rows (sm90_zero_dead_rows), which the caller overwrites once V can be there. */
template <bool FIRST, class shape>
DEVICE bool sm90_begin_mask(struct sm90_fragments<shape> &w, const sm90_cursor &cursor,
                            const struct attention_params &p) {
    if (sm90_unmasked<FIRST, shape>(cursor))
        return false;
    if constexpr (shape::SOURCE == SM90_FILLED)
        sm90_filled_begin_mask(w, cursor, p);
    if constexpr (shape::SOURCE == SM90_COLUMNS)
        sm90_columns_begin_mask(w, cursor);
    if constexpr (sm90_is_filled(shape::SOURCE))
        return false;
    if (!sm90_masks_ahead<shape>())
        sm90_find_records(w, cursor, p, cursor.at);
    if (FIRST || !sm90_masks_ahead<shape>())
        sm90_load_masks(w, p, cursor.at);
    return shape::SOURCE == SM90_TMA && __any_sync(WARP_ALL, w.record & MASK_SHORT);
}

/* Scores that do not count become -Inf. Answers whether any of this warp counts. */
template <bool FIRST, class shape>
DEVICE bool sm90_mask_scores(struct sm90_fragments<shape> &w, const sm90_cursor &cursor,
                             const struct attention_params &p) {
    if (sm90_unmasked<FIRST, shape>(cursor))
        return shape::CONSUMERS > 1 || !cursor.idle;
    uint32_t any = 0;
#pragma unroll
    for (int i = 0; i < shape::GRANULES; i++)
        any |= w.listed[i];
    const bool some = __any_sync(WARP_ALL, any);
    if (some)
#pragma unroll
        for (int i = 0; i < shape::GRANULES; i++)
            if (__any_sync(WARP_ALL, ~w.listed[i]))
                sm90_mask_group<sm90_is_filled(shape::SOURCE)>(w.s + 32 * i, w.listed[i]);
    if (sm90_masks_ahead<shape>())
        sm90_load_masks(w, p, cursor.at + 1);
    return some;
}

/* P of a warp none of whose scores count. */
template <class shape> DEVICE void sm90_clear_probs(uint32_t (&probs)[shape::SCORES / 2]) {
#pragma unroll
    for (int i = 0; i < shape::SCORES / 2; i++)
        probs[i] = 0;
}

/* sm90_softmax of the step at `cursor`, with column sums where the shape has them. */
template <class T, bool FIRST, class shape>
DEVICE bool sm90_weights(struct sm90_fragments<shape> &w, float (&factor)[2],
                         const sm90_cursor &cursor, const struct attention_params &p, float scale) {
    if constexpr (shape::SUMMED)
        return sm90_sums_softmax<T, FIRST>(w, factor, cursor, p, scale);
    else
        return sm90_softmax<T>(w.s, w.state, factor, scale);
}

/* A step that overlaps nothing: Q K^T, softmax. FIRST: first step of its item; else O is
 * rescaled. */
template <class T, bool FIRST, class shape>
DEVICE void sm90_step_serial(struct sm90_fragments<shape> &w, const sm90_cursor &cursor,
                             const struct attention_params &p, float scale) {
    float factor[2];
    sm90_pingpong_wait<shape>(cursor);
    sm90_step_scores<T, shape>(w.s, cursor);
    sm90_pingpong_pass<shape>(cursor);
    if (sm90_begin_mask<FIRST>(w, cursor, p))
        sm90_zero_dead_rows<shape>(cursor, p, w.records);
    if (shape::MODIFIED)
        sm90_begin_modify(w, cursor, p);
    wgmma_wait<0>();
    wgmma_fence_operand(w.s);
    sm90_release<shape::STAGES>(cursor, cursor.shared + shape::K_EMPTY, cursor.step);
    if constexpr (shape::SUMMED)
        sm90_sums_wait<shape>(cursor);
    sm90_reduce_scores<shape>(w.s, cursor);
    if (FIRST)
        sm90_clear(w.state);
    if (shape::MODIFIED)
        sm90_modify_scores(w, cursor, p);
    if (!sm90_mask_scores<FIRST>(w, cursor, p)) {
        if constexpr (shape::SUMMED)
            sm90_sums_nothing<shape>(cursor);
        sm90_clear_probs<shape>(w.probs);
        return;
    }
    const bool moved = sm90_weights<T, FIRST>(w, factor, cursor, p, scale);
    if (shape::MODIFIED)
        sm90_drop(w, p);
    if (!FIRST && moved)
        sm90_rescale(w.o, factor);
    sm90_round<T>(w.probs, w.s);
}

/* P V of the step before, which overlaps nothing. */
template <class T, class shape>
DEVICE void sm90_pv_serial(struct sm90_fragments<shape> &w, const sm90_cursor &cursor, bool add) {
    sm90_step_values<T, shape>(w.o, w.probs, cursor, cursor.step - 1, add);
    wgmma_wait<0>();
    wgmma_fence_operand(w.o);
    wgmma_fence_operand(w.probs);
    sm90_release<shape::STAGES>(cursor, cursor.shared + shape::V_EMPTY, cursor.step - 1);
}

/*
 * The step at `cursor`, whose Q K^T has been issued: softmax. P V of the step before is in flight, and adds to `o` if
 * `add`. FIRST: first step of its item; the item before is done, and its O is stored before the next P V. MASKED: the
 * step may have masks.
 */
template <class T, bool FIRST, bool MASKED, class shape>
DEVICE void sm90_step_begun(struct sm90_fragments<shape> &w, bool add, const sm90_cursor &cursor,
                            const struct attention_params &p, float scale) {
    float factor[2];
    /* before P V, whose first product waits for all of the scores' */
    const bool dead = MASKED && sm90_begin_mask<FIRST>(w, cursor, p);
    if (dead && shape::STAGES > 1)
        sm90_zero_dead_rows<shape>(cursor, p, w.records);
    sm90_step_values<T, shape>(w.o, w.probs, cursor, cursor.step - 1, add);
    sm90_pingpong_pass<shape>(cursor);
    if (MASKED && shape::MODIFIED)
        sm90_begin_modify(w, cursor, p);
    wgmma_wait<1>();
    wgmma_fence_operand(w.s);
    sm90_release<shape::STAGES>(cursor, cursor.shared + shape::K_EMPTY, cursor.step);
    if constexpr (shape::SUMMED)
        sm90_sums_wait<shape>(cursor);
    if (FIRST) {
        w.done = w.state;
        sm90_clear(w.state);
    }
    if (MASKED && shape::MODIFIED)
        sm90_modify_scores(w, cursor, p);
    const bool some =
        MASKED ? sm90_mask_scores<FIRST>(w, cursor, p) : shape::CONSUMERS > 1 || !cursor.idle;
    const bool moved = some && sm90_weights<T, FIRST>(w, factor, cursor, p, scale);
    if constexpr (shape::SUMMED)
        if (!some)
            sm90_sums_nothing<shape>(cursor);
    if (MASKED && shape::MODIFIED && some)
        sm90_drop(w, p);
    wgmma_wait<0>();
    wgmma_fence_operand(w.o);
    wgmma_fence_operand(w.probs);
    sm90_release<shape::STAGES>(cursor, cursor.shared + shape::V_EMPTY, cursor.step - 1);
    /* With one stage V comes once that of the step before is given back. */
    if (dead && shape::STAGES == 1)
        sm90_zero_dead_rows<shape>(cursor, p, w.records);
    if (some)
        sm90_round<T>(w.probs, w.s);
    else if (MASKED)
        sm90_clear_probs<shape>(w.probs);
    if (!FIRST && moved)
        sm90_rescale(w.o, factor);
}
template <class T, bool FIRST, bool MASKED, class shape>
DEVICE void sm90_step(struct sm90_fragments<shape> &w, bool add, const sm90_cursor &cursor,
                      const struct attention_params &p, float scale) {
    wgmma_fence_operand(w.o);
    sm90_pingpong_wait<shape>(cursor);
    sm90_step_scores<T, shape>(w.s, cursor);
    sm90_step_begun<T, FIRST, MASKED>(w, add, cursor, p, scale);
}

/* The second step of an item, with the epilogue of the item before under its Q K^T. Where the step may
 * have masks: that epilogue alone. So too with a base, which is joined where registers hold no scores. */
template <class T, class shape>
DEVICE void sm90_step_storing(struct sm90_fragments<shape> &w, sm90_cursor &cursor,
                              const struct attention_params &p, float scale) {
    if (!shape::LONG && cursor.at < cursor.whole && !p.base.o.data) {
        sm90_pingpong_wait<shape>(cursor);
        sm90_step_scores<T, shape>(w.s, cursor);
        sm90_store<T, shape, shape::SOURCE, false>(p, cursor, cursor.job - 1, w.o, w.done);
        wgmma_fence_operand(w.o);
        sm90_step_begun<T, false, false>(w, false, cursor, p, scale);
        cursor.at++, cursor.step++;
    } else {
        sm90_store<T, shape, shape::SOURCE, true>(p, cursor, cursor.job - 1, w.o, w.done);
    }
}

/* An unmasked step whose Q K^T into `s` has been issued. P V of the step before, and Q K^T of the
 * step after into `next`, run under its softmax. MORE: there is a step after. */
template <class T, bool MORE, class shape>
DEVICE void sm90_step_two_tiles(struct sm90_fragments<shape> &w, float (&s)[shape::SCORES],
                                float (&next)[shape::SCORES], bool add, sm90_cursor &cursor,
                                float scale) {
    float factor[2];
    sm90_step_values<T, shape>(w.o, w.probs, cursor, cursor.step - 1, add);
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
DEVICE void sm90_steps_two_tiles(struct sm90_fragments<shape> &w, sm90_cursor &cursor,
                                 float scale) {
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
DEVICE void sm90_steps(struct sm90_fragments<shape> &w, sm90_cursor &cursor,
                       const struct attention_params &p, float scale) {
    if (sm90_masks_ahead<shape>() && cursor.whole > 0 && cursor.whole < cursor.steps)
        sm90_load_masks(w, p, cursor.whole);
    if constexpr (shape::SERIAL) {
#pragma unroll 1
        for (; cursor.at < cursor.steps; cursor.at++, cursor.step++) {
            sm90_pv_serial<T>(w, cursor, cursor.at > 1);
            sm90_step_serial<T, false>(w, cursor, p, scale);
        }
    } else {
        if (shape::TWO_SCORE_TILES && !sm90_gathers(shape::SOURCE) && cursor.whole >= SM90_LONG)
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
DEVICE bool sm90_begin_item(struct sm90_fragments<shape> &w, sm90_cursor &cursor,
                            const struct attention_params &p) {
    const bool more = sm90_next_item<shape>(cursor, p);
    if (sm90_masks_ahead<shape>() && more && cursor.whole < cursor.steps)
        sm90_find_records(w, cursor, p, cursor.whole);
    return more;
}

/* Zeros the rows of Q past those of the tile, and P of warps that have no other rows. */
template <class shape>
DEVICE void sm90_clear_idle(struct sm90_fragments<shape> &w, sm90_cursor &cursor,
                            const struct attention_params &p) {
    const int rows = p.tile_heads * p.tile_rows, thread = sm90_thread_here();
    cursor.idle = sm90_uniform(thread / 32 * 16) >= rows;
    sm90_clear_probs<shape>(w.probs);
    for (int i = rows * 8 + thread; i < shape::ROWS * 8; i += 128)
        for (int panel = 0; panel < shape::Q_STAGES * shape::QK_PANELS; panel++)
            shared_store_16(cursor.shared + shape::Q + (uint32_t)(panel * shape::Q_PANEL + i * 16),
                            {0, 0, 0, 0});
    proxy_fence();
    warpgroup_sync(SM90_CONSUMER + cursor.consumer);
}

template <class T, class shape>
DEVICE void sm90_consume(char *memory, uint32_t shared, int consumer,
                         const struct attention_params &p, float scale) {
    struct sm90_fragments<shape> w;
    sm90_cursor cursor = {memory, shared, consumer, sm90_thread_here() == 0, 0, ~0u, 0,
                          0,      0,      false};
    if (shape::CONSUMERS == 1)
        sm90_clear_idle<shape>(w, cursor, p);
    /* Kernels before may still use what modifiers read, and where results go. The kernel behind may
     * begin from here on: launched before, many would stand in line. */
    early_wait();
    early_next();
    if (!sm90_begin_item(w, cursor, p))
        return;
    if (shape::TURNS && cursor.consumer == shape::CONSUMERS - 1)
        named_barrier_arrive(SM90_TURN, SM90_BOTH); /* so that consumer 0 is first */
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
        if constexpr (shape::BY_REFERENCES)
            sm90_sums_judge<shape>(w.state, cursor);
        sm90_release<shape::Q_STAGES>(cursor, shared + shape::Q_EMPTY, cursor.job);
        const bool add = cursor.steps > 1;
        bool more = shape::Q_STAGES > 1 && sm90_begin_item(w, cursor, p);
        overlapped = more && !shape::SERIAL && !shape::MODIFIED;
        if (overlapped) {
            sm90_step<T, true, true>(w, add, cursor, p, scale);
            continue;
        }
        sm90_pv_serial<T>(w, cursor, add);
        sm90_store<T, shape, shape::SOURCE, true>(p, cursor, cursor.job - (shape::Q_STAGES > 1),
                                                  w.o, w.state);
        if (shape::Q_STAGES == 1)
            more = sm90_begin_item(w, cursor, p);
        if (!more) {
            if (shape::TURNS && cursor.consumer == 0)
                named_barrier_sync(SM90_TURN, SM90_BOTH); /* the last pass of the last consumer */
            return;
        }
    }
}

#endif
