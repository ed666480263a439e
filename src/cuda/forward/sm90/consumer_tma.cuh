/* Fused attention on Hopper, the warpgroups that compute, where boxes fetch granules of 64 keys:
 * steps that only the other's rows list are found out on the way, and passed over. */
#ifndef TESSERA_CUDA_SM90_BOXES_CUH
#define TESSERA_CUDA_SM90_BOXES_CUH

#include "forward/sm90/consumer.cuh"

/* ---- the order of products ---- */

/* The warpgroups hand in products by turns, where there is not twice the scores (config.cuh). Only
 * steps without masks take part, since no warpgroup passes over those. */
template <class shape>
static __device__ __forceinline__ bool sm90_alternates(const sm90_place &place) {
    return shape::AHEAD && place.at < place.whole &&
           place.whole < SM90_LONG;
}
template <class shape>
static __device__ __forceinline__ void sm90_alternate_begin(const sm90_place &place) {
    if (sm90_alternates<shape>(place))
        warpgroups_sync(1 + shape::GROUPS + place.group, 256);
}
template <class shape>
static __device__ __forceinline__ void sm90_alternate_end(const sm90_place &place) {
    if (sm90_alternates<shape>(place))
        warpgroups_arrive(2 + shape::GROUPS - place.group, 256);
}

/* ---- products ---- */

/* sm90_scores of a step. */
template <class T, class shape>
static __device__ __forceinline__ void sm90_box_scores(float (&s)[shape::SCORES],
                                                       const sm90_place &place) {
    sm90_scores<T, shape>(s, place, [&] {
        sm90_wait<shape::STAGES>(place.shared + shape::K_FULL, place.step);
    });
}

/* Zeros in the rows of a step's V past the `keys` of its granules: 0 times what they hold may not be
 * 0. Each warp has every fourth piece of 8 columns of this warpgroup's panels. */
template <class shape>
static __device__ __forceinline__ void sm90_clear_dead(const sm90_place &place, uint32_t step,
                                                       uint32_t keys) {
    const uint32_t v = sm90_values_of<shape>(place, step) + (uint32_t)(sm90_thread_here() / 32 * 16);
#pragma unroll
    for (int i = 0; i < shape::KEYS / 32; i++) {
        const int filled = (int)(keys >> i / 2 * 8 & 255);
        if (filled && i % 2 * 32 + warp_lane_here() >= filled)
#pragma unroll
            for (int j = 0; j < 2 * shape::V_PANELS / shape::SHARE; j++)
                shared_store_16(v + (uint32_t)(j / 2 * shape::PANEL + j % 2 * 64 +
                                               (32 * i + warp_lane_here()) * 128),
                                {0, 0, 0, 0});
    }
    proxy_fence();
    warpgroup_sync(1 + place.group);
}

/* sm90_values of a step whose granules have `keys`. */
template <class T, class shape>
static __device__ __forceinline__ void
sm90_box_values(float (&o)[shape::OUTPUTS], uint32_t (&weights)[shape::SCORES / 2],
                const sm90_place &place, uint32_t step, uint32_t keys, int add) {
    sm90_values<T, shape>(o, weights, place, step, add, [&] {
        sm90_wait<shape::STAGES>(place.shared + shape::V_FULL, step);
        if (sm90_some_dead(keys))
            sm90_clear_dead<shape>(place, step, keys);
    });
}

/* ---- steps ---- */

/* The words of the step at `place`, whose K is there, for this warp. */
template <class shape>
static __device__ __forceinline__ uint2 sm90_words_of(const sm90_place &place) {
    const int warp = sm90_group_row<shape>(place.group) / 16 + sm90_thread_here() / 32;
    const uint2 &words = sm90_masks_of<shape>(place.memory, place.step).words[warp];
    return {sm90_read(&words.x), sm90_read(&words.y)};
}

/* Gives K of a step back, each warp for itself: it has read the masks beside it, too. */
template <class shape>
static __device__ __forceinline__ void sm90_release_keys(const sm90_place &place, uint32_t step) {
    if (warp_lane_here() == 0)
        barrier_arrive(place.shared + shape::K_EMPTY + 8 * ring_stage<shape::STAGES>(step));
}

/* Finds out, while the scores of a step are on their way, which of them count. */
template <class shape>
static __device__ __forceinline__ void sm90_ask_mask(struct sm90_work<shape, SM90_BOXES> &w,
                                                     const sm90_place &place,
                                                     const struct attention_params &p) {
    w.keys = 0;
    if (place.at < place.whole)
        return;
    const typename shape::masks &masks = sm90_masks_of<shape>(place.memory, place.step);
    const uint2 words = sm90_words_of<shape>(place);
#pragma unroll
    for (int i = 0; i < shape::GRANULES; i++) {
        const uint32_t word = i ? words.y : words.x;
        w.mask.listed[i] = sm90_listed(word, &masks.bits[i], p,
                                       sm90_warp_row<shape>(p, place));
        w.keys |= (word & 127) << 8 * i;
    }
}

template <class shape>
static __device__ __forceinline__ void sm90_mask_scores(struct sm90_work<shape, SM90_BOXES> &w,
                                                        const sm90_place &place) {
    if (place.at < place.whole)
        return;
#pragma unroll
    for (int i = 0; i < shape::GRANULES; i++)
        if (__any_sync(WARP_ALL, ~w.mask.listed[i]))
            sm90_mask_granule(w.s + 32 * i, w.mask.listed[i]);
}

/* Whether no row of the warpgroup lists a key of the step at `place`, which may have masks. */
template <class shape>
static __device__ __forceinline__ bool sm90_skips(const sm90_place &place) {
    sm90_wait<shape::STAGES>(place.shared + shape::K_FULL, place.step);
    const uint2 words = sm90_words_of<shape>(place);
    return !((words.x | (shape::GRANULES > 1 ? words.y : 0)) & SM90_LISTED);
}

/* A step with nothing to overlap: scores and softmax. FIRST: of its item; else o has sums of it. */
template <class T, bool FIRST, class shape>
static __device__ __forceinline__ void
sm90_step_alone(struct sm90_work<shape, SM90_BOXES> &w, const sm90_place &place,
                const struct attention_params &p, float scale) {
    float factor[2];
    sm90_alternate_begin<shape>(place);
    sm90_box_scores<T, shape>(w.s, place);
    sm90_alternate_end<shape>(place);
    sm90_ask_mask(w, place, p);
    product_wait<0>();
    product_pin(w.s);
    sm90_release_keys<shape>(place, place.step);
    sm90_sum_shares<shape>(w.s, place);
    sm90_mask_scores(w, place);
    if (FIRST)
        sm90_clear(w.state);
    const bool moved = sm90_softmax<T, false>(w.s, w.state, factor, scale, {});
    if (!FIRST && moved)
        sm90_rescale(w.o, factor);
    sm90_round<T>(w.weights, w.s);
}

/* P V of the step before, with nothing to overlap. */
template <class T, class shape>
static __device__ __forceinline__ void sm90_values_alone(struct sm90_work<shape, SM90_BOXES> &w,
                                                         const sm90_place &place, bool add) {
    sm90_box_values<T, shape>(w.o, w.weights, place, place.step - 1, w.keys, add);
    product_wait<0>();
    product_pin(w.o);
    product_pin(w.weights);
    sm90_release<shape::STAGES>(place, place.shared + shape::V_EMPTY, place.step - 1);
}

/* A step that is not this warpgroup's, as all its warps have found: gives back what was fetched for
 * others. */
template <class shape>
static __device__ __forceinline__ void sm90_pass(const sm90_place &place) {
    warpgroup_sync(1 + place.group);
    sm90_wait<shape::STAGES>(place.shared + shape::K_FULL, place.step);
    sm90_release_keys<shape>(place, place.step);
    sm90_wait<shape::STAGES>(place.shared + shape::V_FULL, place.step);
    sm90_release<shape::STAGES>(place, place.shared + shape::V_EMPTY, place.step);
}

/*
 * The step at `place`, whose scores have been begun: softmax, with P V of the step before in the
 * background, which is added to what `o` holds if `add`. FIRST: of its item, so that the item
 * before is done, and its O to be stored before the next P V. MASKED: it may have masks, or the
 * step before.
 */
template <class T, bool FIRST, bool MASKED, class shape>
static __device__ __forceinline__ void sm90_step_begun(struct sm90_work<shape, SM90_BOXES> &w, bool add,
                                                       const sm90_place &place,
                                                       const struct attention_params &p,
                                                       float scale) {
    const uint32_t keys = MASKED ? w.keys : 0;
    float factor[2];
    if (MASKED) /* before P V, whose first product waits for all of the scores' */
        sm90_ask_mask(w, place, p);
    sm90_box_values<T, shape>(w.o, w.weights, place, place.step - 1, keys, add);
    sm90_alternate_end<shape>(place);
    product_wait<1>();
    product_pin(w.s);
    sm90_release_keys<shape>(place, place.step);
    if (MASKED)
        sm90_mask_scores(w, place);
    if (FIRST) {
        w.done = w.state;
        sm90_clear(w.state);
    }
    const bool moved = sm90_softmax<T, false>(w.s, w.state, factor, scale, {});
    product_wait<0>();
    product_pin(w.o);
    product_pin(w.weights);
    sm90_release<shape::STAGES>(place, place.shared + shape::V_EMPTY, place.step - 1);
    sm90_round<T>(w.weights, w.s);
    if (!FIRST && moved)
        sm90_rescale(w.o, factor);
}
template <class T, bool FIRST, bool MASKED, class shape>
static __device__ __forceinline__ void sm90_step(struct sm90_work<shape, SM90_BOXES> &w, bool add,
                                                 const sm90_place &place,
                                                 const struct attention_params &p, float scale) {
    product_pin(w.o);
    sm90_alternate_begin<shape>(place);
    sm90_box_scores<T, shape>(w.s, place);
    sm90_step_begun<T, FIRST, MASKED>(w, add, place, p, scale);
}

/* The second step of an item, with the O of the item before on its way out while scores are
 * computed; unless it may have masks: then that O alone. */
template <class T, class shape>
static __device__ __forceinline__ void sm90_step_storing(struct sm90_work<shape, SM90_BOXES> &w,
                                                         sm90_place &place,
                                                         const struct attention_params &p,
                                                         float scale) {
    if (place.at < place.whole) {
        sm90_alternate_begin<shape>(place);
        sm90_box_scores<T, shape>(w.s, place);
        sm90_store<T, shape, SM90_BOXES>(p, place, place.job - 1, w.o, w.done);
        product_pin(w.o);
        sm90_step_begun<T, false, false>(w, false, place, p, scale);
        place.at++, place.step++;
    } else {
        sm90_store<T, shape, SM90_BOXES>(p, place, place.job - 1, w.o, w.done);
    }
}

/* A step without masks whose scores `s` have been begun: P V of the step before, and scores of the
 * one after, to `next`, are computed under its softmax. MORE: there is one after. */
template <class T, bool MORE, class shape>
static __device__ __forceinline__ void
sm90_step_ahead(struct sm90_work<shape, SM90_BOXES> &w, float (&s)[shape::SCORES],
                float (&next)[shape::SCORES], bool add, sm90_place &place, float scale) {
    float factor[2];
    sm90_box_values<T, shape>(w.o, w.weights, place, place.step - 1, 0, add);
    place.at++, place.step++;
    if (MORE)
        sm90_box_scores<T, shape>(next, place);
    product_wait<1 + MORE>();
    product_pin(s);
    sm90_release_keys<shape>(place, place.step - 1);
    const bool moved = sm90_softmax<T, false>(s, w.state, factor, scale, {});
    product_wait<MORE>();
    product_pin(w.o);
    product_pin(w.weights);
    sm90_release<shape::STAGES>(place, place.shared + shape::V_EMPTY, place.step - 2);
    sm90_round<T>(w.weights, s);
    if (moved)
        sm90_rescale(w.o, factor);
}

/* The steps without masks of an item from the one at `place` on, with two tiles of scores. */
template <class T, class shape>
static __device__ __forceinline__ void sm90_steps_ahead(struct sm90_work<shape, SM90_BOXES> &w,
                                                        sm90_place &place, float scale) {
    float t[shape::SCORES];
    if (place.at >= place.whole)
        return;
    product_pin(w.o);
    sm90_box_scores<T, shape>(w.s, place);
#pragma unroll 1
    while (place.at + 2 < place.whole) {
        sm90_step_ahead<T, true>(w, w.s, t, place.at > 1, place, scale);
        sm90_step_ahead<T, true>(w, t, w.s, true, place, scale);
    }
    if (place.at + 1 < place.whole) {
        sm90_step_ahead<T, true>(w, w.s, t, place.at > 1, place, scale);
        sm90_step_ahead<T, false>(w, t, w.s, true, place, scale);
    } else {
        sm90_step_ahead<T, false>(w, w.s, t, place.at > 1, place, scale);
    }
}

/*
 * The steps of an item from the one at `place` on, not its first: those without masks, then the
 * others, of which those that are not this warpgroup's are passed over; where dims are divided, one
 * product after another. Answers whether P V of the last step is still to be done.
 */
template <class T, class shape>
static __device__ __forceinline__ bool sm90_steps(struct sm90_work<shape, SM90_BOXES> &w,
                                                  sm90_place &place,
                                                  const struct attention_params &p, float scale) {
    if constexpr (shape::SHARE > 1) {
#pragma unroll 1
        for (; place.at < place.steps; place.at++, place.step++) {
            sm90_values_alone<T>(w, place, place.at > 1);
            sm90_step_alone<T, false>(w, place, p, scale);
        }
        return true;
    } else {
        bool pending = true;
        if (shape::AHEAD && place.whole >= SM90_LONG)
            sm90_steps_ahead<T>(w, place, scale);
#pragma unroll 1
        for (; place.at < place.whole; place.at++, place.step++)
            sm90_step<T, false, false>(w, place.at > 1, place, p, scale);
#pragma unroll 1
        for (; place.at < place.steps; place.at++, place.step++) {
            if (sm90_skips<shape>(place)) {
                if (pending)
                    sm90_values_alone<T>(w, place, place.at > 1);
                sm90_pass<shape>(place);
                pending = false;
            } else if (pending) {
                sm90_step<T, false, true>(w, place.at > 1, place, p, scale);
            } else {
                sm90_step_alone<T, false>(w, place, p, scale);
                pending = true;
            }
        }
        return pending;
    }
}

template <class T, class shape>
static __device__ __forceinline__ void sm90_compute_boxes(char *memory, uint32_t shared, int group,
                                                          const struct attention_params &p,
                                                          float scale) {
    struct sm90_work<shape, SM90_BOXES> w;
    sm90_place place = {memory, shared, group, sm90_thread_here() == 0, 0, ~0u, 0, 0, 0};
    w.keys = 0;
    if (!sm90_take<shape>(place, p.granule_bits))
        return;
    if (shape::AHEAD && place.group == 1)
        warpgroups_arrive(1 + shape::GROUPS, 256); /* so that the other is first */
    for (bool overlapped = false;;) {
        if (!overlapped)
            sm90_step_alone<T, true>(w, place, p, scale);
        /* Said again for each item: else they are taken for different numbers in each lane; and the
         * address, where many products follow from it, else each has its own register meanwhile. */
        place.step = (uint32_t)sm90_uniform((int)place.step) + 1;
        place.job = (uint32_t)sm90_uniform((int)place.job);
        if (shape::D_QK > 128 || shape::AHEAD)
            place.shared = (uint32_t)sm90_uniform((int)place.shared);
        place.at = 1;
        if (overlapped)
            sm90_step_storing<T>(w, place, p, scale);
        overlapped = sm90_steps<T>(w, place, p, scale);
        sm90_release<shape::SLOTS>(place, shared + shape::Q_EMPTY, place.job);
        const bool add = place.steps > 1;
        bool more = shape::SLOTS > 1 && sm90_take<shape>(place, p.granule_bits);
        if (more && overlapped) {
            sm90_step<T, true, true>(w, add, place, p, scale);
            continue;
        }
        if (overlapped)
            sm90_values_alone<T>(w, place, add);
        overlapped = false;
        sm90_store<T, shape, SM90_BOXES>(p, place, place.job - (shape::SLOTS > 1), w.o, w.state);
        if (shape::SLOTS == 1)
            more = sm90_take<shape>(place, p.granule_bits);
        if (!more) {
            if (shape::AHEAD && place.group == 0)
                warpgroups_sync(1 + shape::GROUPS, 256); /* which the other has given last */
            return;
        }
    }
}

#endif
