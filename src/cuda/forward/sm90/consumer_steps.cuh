/* Fused attention on Hopper, the warpgroups that compute: the way through an item's steps.
 * config.cuh has the picture. */
#ifndef TESSERA_CUDA_SM90_CONSUMER_CUH
#define TESSERA_CUDA_SM90_CONSUMER_CUH

#include "forward/sm90/consumer.cuh"

/* ---- the order of products ---- */

/* The warpgroups hand in products by turns, where there is not twice the scores (config.cuh). Only
 * steps without masks take part, since no warpgroup passes over those. */
template <class shape>
static __device__ __forceinline__ bool sm90_alternates(const sm90_place &place) {
    return shape::AHEAD && place.at < place.whole && place.whole < SM90_LONG;
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
static __device__ __forceinline__ void sm90_step_scores(float (&s)[shape::SCORES],
                                                        const sm90_place &place) {
    sm90_scores<T, shape>(
        s, place, [&] { sm90_wait<shape::STAGES>(place.shared + shape::K_FULL, place.step); });
}

/* Whether V has rows that no key fills, but for groups that have none. */
template <class shape>
static __device__ __forceinline__ bool sm90_some_dead(const uint64_t (&keys)[shape::GRANULES]) {
    bool dead = false;
#pragma unroll
    for (int i = 0; i < shape::GRANULES; i++)
        dead |= keys[i] + 1 > 1;
    return dead;
}

/* Zeros in those rows of a step's V: 0 times what they hold may not be 0. Each warp has every fourth
 * piece of 8 columns of this warpgroup's panels. */
template <class shape>
static __device__ __forceinline__ void sm90_clear_dead(const sm90_place &place, uint32_t step,
                                                       const uint64_t (&keys)[shape::GRANULES]) {
    const uint32_t v =
        sm90_values_of<shape>(place, step) + (uint32_t)(sm90_thread_here() / 32 * 16);
#pragma unroll
    for (int i = 0; i < shape::KEYS / 32; i++) {
        const uint64_t of = keys[i / 2];
        if (of && !(of >> (i % 2 * 32 + warp_lane_here()) & 1))
#pragma unroll
            for (int j = 0; j < 2 * shape::V_PANELS / shape::SHARE; j++)
                shared_store_16(v + (uint32_t)(j / 2 * shape::PANEL + j % 2 * 64 +
                                               (32 * i + warp_lane_here()) * 128),
                                {0, 0, 0, 0});
    }
    proxy_fence();
    warpgroup_sync(1 + place.group);
}

/* sm90_values of a step whose places `keys` hold one. */
template <class T, class shape, bool MASKED>
static __device__ __forceinline__ void
sm90_step_values(float (&o)[shape::OUTPUTS], uint32_t (&weights)[shape::SCORES / 2],
                 const sm90_place &place, uint32_t step, const uint64_t (&keys)[shape::GRANULES],
                 int add) {
    sm90_values<T, shape>(o, weights, place, step, add, [&] {
        sm90_wait<shape::STAGES>(place.shared + shape::V_FULL, step);
        if (MASKED && sm90_some_dead<shape>(keys))
            sm90_clear_dead<shape>(place, step, keys);
    });
}

/* ---- steps ---- */

/* Gives K of a step back, each warp for itself: it has read the masks beside it, too. */
template <class shape>
static __device__ __forceinline__ void sm90_release_keys(const sm90_place &place, uint32_t step) {
    __syncwarp();
    if (warp_lane_here() == 0)
        barrier_arrive(place.shared + shape::K_EMPTY + 8 * ring_stage<shape::STAGES>(step));
}

/* Finds out, while the scores of a step are on their way, which of them count. */
template <class shape>
static __device__ __forceinline__ void sm90_ask_mask(struct sm90_work<shape> &w,
                                                     const sm90_place &place,
                                                     const struct attention_params &p) {
    const bool whole = place.at < place.whole;
#pragma unroll
    for (int i = 0; i < shape::GRANULES; i++) {
        w.keys[i] = ~UINT64_C(0), w.listed[i] = ~0u;
        if (whole)
            continue;
        const struct granule_group group = sm90_groups<shape>(place.memory, place.step)[i];
        w.keys[i] = group.keys;
        if (shape::GROUPS > 1 || !place.idle) /* the tile has no words for rows past its own */
            w.listed[i] = sm90_listed(group, p, sm90_warp_row<shape>(p, place));
    }
}

template <class shape>
static __device__ __forceinline__ void sm90_mask_scores(struct sm90_work<shape> &w,
                                                        const sm90_place &place) {
    if (place.at < place.whole)
        return;
#pragma unroll
    for (int i = 0; i < shape::GRANULES; i++)
        if (__any_sync(WARP_ALL, ~w.listed[i]))
            sm90_mask_group(w.s + 32 * i, w.listed[i]);
}

/* A step with nothing to overlap: scores and softmax. FIRST: of its item; else o has sums of it. */
template <class T, bool FIRST, class shape>
static __device__ __forceinline__ void
sm90_step_alone(struct sm90_work<shape> &w, const sm90_place &place,
                const struct attention_params &p, float scale) {
    float factor[2];
    sm90_alternate_begin<shape>(place);
    sm90_step_scores<T, shape>(w.s, place);
    sm90_alternate_end<shape>(place);
    sm90_ask_mask(w, place, p);
    product_wait<0>();
    product_pin(w.s);
    sm90_release_keys<shape>(place, place.step);
    sm90_sum_shares<shape>(w.s, place);
    if (FIRST)
        sm90_clear(w.state);
    if (shape::GROUPS == 1 && place.idle)
        return;
    sm90_mask_scores(w, place);
    const bool moved = sm90_softmax<T>(w.s, w.state, factor, scale);
    if (!FIRST && moved)
        sm90_rescale(w.o, factor);
    sm90_round<T>(w.weights, w.s);
}

/* P V of the step before, with nothing to overlap. */
template <class T, class shape>
static __device__ __forceinline__ void sm90_values_alone(struct sm90_work<shape> &w,
                                                         const sm90_place &place, bool add) {
    sm90_step_values<T, shape, true>(w.o, w.weights, place, place.step - 1, w.keys, add);
    product_wait<0>();
    product_pin(w.o);
    product_pin(w.weights);
    sm90_release<shape::STAGES>(place, place.shared + shape::V_EMPTY, place.step - 1);
}

/*
 * The step at `place`, whose scores have been begun: softmax, with P V of the step before in the
 * background, which is added to what `o` holds if `add`. FIRST: of its item, so that the item
 * before is done, and its O to be stored before the next P V. MASKED: it may have masks, or the
 * step before.
 */
template <class T, bool FIRST, bool MASKED, class shape>
static __device__ __forceinline__ void
sm90_step_begun(struct sm90_work<shape> &w, bool add, const sm90_place &place,
                const struct attention_params &p, float scale) {
    float factor[2];
    uint64_t keys[shape::GRANULES];
#pragma unroll
    for (int i = 0; i < shape::GRANULES; i++)
        keys[i] = MASKED ? w.keys[i] : 0;
    if (MASKED) /* before P V, whose first product waits for all of the scores' */
        sm90_ask_mask(w, place, p);
    sm90_step_values<T, shape, MASKED>(w.o, w.weights, place, place.step - 1, keys, add);
    sm90_alternate_end<shape>(place);
    product_wait<1>();
    product_pin(w.s);
    sm90_release_keys<shape>(place, place.step);
    if (FIRST) {
        w.done = w.state;
        sm90_clear(w.state);
    }
    const bool idle = shape::GROUPS == 1 && place.idle;
    if (MASKED && !idle)
        sm90_mask_scores(w, place);
    const bool moved = !idle && sm90_softmax<T>(w.s, w.state, factor, scale);
    product_wait<0>();
    product_pin(w.o);
    product_pin(w.weights);
    sm90_release<shape::STAGES>(place, place.shared + shape::V_EMPTY, place.step - 1);
    if (!idle)
        sm90_round<T>(w.weights, w.s);
    if (!FIRST && moved)
        sm90_rescale(w.o, factor);
}
template <class T, bool FIRST, bool MASKED, class shape>
static __device__ __forceinline__ void sm90_step(struct sm90_work<shape> &w, bool add,
                                                 const sm90_place &place,
                                                 const struct attention_params &p, float scale) {
    product_pin(w.o);
    sm90_alternate_begin<shape>(place);
    sm90_step_scores<T, shape>(w.s, place);
    sm90_step_begun<T, FIRST, MASKED>(w, add, place, p, scale);
}

/* The second step of an item, with the O of the item before on its way out while scores are
 * computed; unless it may have masks: then that O alone. */
template <class T, int SOURCE, class shape>
static __device__ __forceinline__ void
sm90_step_storing(struct sm90_work<shape> &w, sm90_place &place, const struct attention_params &p,
                  float scale) {
    if (place.at < place.whole) {
        sm90_alternate_begin<shape>(place);
        sm90_step_scores<T, shape>(w.s, place);
        sm90_store<T, shape, SOURCE>(p, place, place.job - 1, w.o, w.done);
        product_pin(w.o);
        sm90_step_begun<T, false, false>(w, false, place, p, scale);
        place.at++, place.step++;
    } else {
        sm90_store<T, shape, SOURCE>(p, place, place.job - 1, w.o, w.done);
    }
}

/* A step without masks whose scores `s` have been begun: P V of the step before, and scores of the
 * one after, to `next`, are computed under its softmax. MORE: there is one after. */
template <class T, bool MORE, class shape>
static __device__ __forceinline__ void
sm90_step_ahead(struct sm90_work<shape> &w, float (&s)[shape::SCORES], float (&next)[shape::SCORES],
                bool add, sm90_place &place, float scale) {
    float factor[2];
    sm90_step_values<T, shape, false>(w.o, w.weights, place, place.step - 1, w.keys, add);
    place.at++, place.step++;
    if (MORE)
        sm90_step_scores<T, shape>(next, place);
    product_wait<1 + MORE>();
    product_pin(s);
    sm90_release_keys<shape>(place, place.step - 1);
    const bool moved = sm90_softmax<T>(s, w.state, factor, scale);
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
static __device__ __forceinline__ void sm90_steps_ahead(struct sm90_work<shape> &w,
                                                        sm90_place &place, float scale) {
    float t[shape::SCORES];
    if (place.at >= place.whole)
        return;
    product_pin(w.o);
    sm90_step_scores<T, shape>(w.s, place);
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

/* The steps of an item from the one at `place` on, not its first: those without masks, then the
 * others; where dims are divided, one product after another. P V of the last one is still to be
 * done. */
template <class T, int SOURCE, class shape>
static __device__ __forceinline__ void sm90_steps(struct sm90_work<shape> &w, sm90_place &place,
                                                  const struct attention_params &p, float scale) {
    if constexpr (shape::SHARE > 1) {
#pragma unroll 1
        for (; place.at < place.steps; place.at++, place.step++) {
            sm90_values_alone<T>(w, place, place.at > 1);
            sm90_step_alone<T, false>(w, place, p, scale);
        }
    } else {
        if (shape::AHEAD && SOURCE == SM90_BOXES && place.whole >= SM90_LONG)
            sm90_steps_ahead<T>(w, place, scale);
#pragma unroll 1
        for (; place.at < place.whole; place.at++, place.step++)
            sm90_step<T, false, false>(w, place.at > 1, place, p, scale);
#pragma unroll 1
        for (; place.at < place.steps; place.at++, place.step++)
            sm90_step<T, false, true>(w, place.at > 1, place, p, scale);
    }
}

/* Rows of Q that no query fills are zeros, and weights of warps that have no others. */
template <class shape>
static __device__ __forceinline__ void
sm90_clear_idle(struct sm90_work<shape> &w, sm90_place &place, const struct attention_params &p) {
    const int rows = p.stack * p.tile_rows, thread = sm90_thread_here();
    place.idle = sm90_uniform(thread / 32 * 16) >= rows;
#pragma unroll
    for (int i = 0; i < shape::SCORES / 2; i++)
        w.weights[i] = 0;
    for (int i = rows * 8 + thread; i < shape::ROWS * 8; i += 128)
        for (int panel = 0; panel < shape::SLOTS * shape::QK_PANELS; panel++)
            shared_store_16(place.shared + shape::Q + (uint32_t)(panel * shape::Q_PANEL + i * 16),
                            {0, 0, 0, 0});
    proxy_fence();
    warpgroup_sync(1 + place.group);
}

template <class T, class shape, int SOURCE>
static __device__ __forceinline__ void sm90_consume(char *memory, uint32_t shared, int group,
                                                    const struct attention_params &p, float scale) {
    struct sm90_work<shape> w;
    sm90_place place = {memory, shared, group, sm90_thread_here() == 0, 0, ~0u, 0, 0, 0, false};
    if (shape::GROUPS == 1)
        sm90_clear_idle<shape>(w, place, p);
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
            sm90_step_storing<T, SOURCE>(w, place, p, scale);
        sm90_steps<T, SOURCE>(w, place, p, scale);
        sm90_release<shape::SLOTS>(place, shared + shape::Q_EMPTY, place.job);
        const bool add = place.steps > 1;
        bool more = shape::SLOTS > 1 && sm90_take<shape>(place, p.granule_bits);
        overlapped = more && shape::SHARE == 1;
        if (overlapped) {
            sm90_step<T, true, true>(w, add, place, p, scale);
            continue;
        }
        sm90_values_alone<T>(w, place, add);
        sm90_store<T, shape, SOURCE>(p, place, place.job - (shape::SLOTS > 1), w.o, w.state);
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
