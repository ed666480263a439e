/* Fused attention on Hopper, the warpgroups that compute (shape.cuh has the picture). */
#ifndef TESSERA_CUDA_SM90_COMPUTE_CUH
#define TESSERA_CUDA_SM90_COMPUTE_CUH

#include "sm90/mask.cuh"
#include "sm90/store.cuh"

/* Where a computing warpgroup stands: at the step whose scores it has begun last. */
struct sm90_place {
    char *memory;
    uint32_t shared;
    int group;     /* 0, 1 ...: rows 64 group ... of the tile */
    bool elected;  /* one thread of the warpgroup */
    uint32_t step; /* counted over all items */
    uint32_t job;  /* counted */
    int32_t at;    /* the step in its item */
    int32_t steps; /* of the item */
    int32_t whole; /* its first steps, whose granules have no mask */
};

/* The index-th phase of a ring whose barriers begin at `full`. */
template <int STAGES, int SOURCE>
static __device__ __forceinline__ void sm90_wait(uint32_t full, uint32_t index) {
    barrier_wait(full + 8 * ring_stage<STAGES>(index), ring_parity<STAGES>(index));
    if (SOURCE == SM90_COPIES)
        proxy_fence(); /* threads copied what tensor cores read */
}
template <int STAGES>
static __device__ __forceinline__ void sm90_release(const sm90_place &place,
                                                    uint32_t empty, uint32_t index) {
    if (place.elected)
        barrier_arrive(empty + 8 * ring_stage<STAGES>(index));
}

/* Turns at handing in products, where there is not twice the scores (shape.cuh). Only steps without
 * masks take part, since no warpgroup passes over those. */
template <class shape, int SOURCE>
static __device__ __forceinline__ bool sm90_takes_turns(const sm90_place &place) {
    return shape::AHEAD && SOURCE == SM90_BOXES && place.at < place.whole &&
           place.whole < SM90_LONG;
}
template <class shape, int SOURCE>
static __device__ __forceinline__ void sm90_turn_take(const sm90_place &place) {
    if (sm90_takes_turns<shape, SOURCE>(place))
        warpgroups_sync(1 + shape::GROUPS + place.group, 256);
}
template <class shape, int SOURCE>
static __device__ __forceinline__ void sm90_turn_give(const sm90_place &place) {
    if (sm90_takes_turns<shape, SOURCE>(place))
        warpgroups_arrive(2 + shape::GROUPS - place.group, 256);
}

/* The first row of a warp, in the tiles of its head's list. */
static __device__ __forceinline__ int sm90_warp_row(const struct attention_params &p,
                                                    const sm90_place &place) {
    return sm90_row_of_head(p, place.group * 64 + sm90_thread_here() / 32 * 16);
}

/* ---- products ---- */

/* s[64][KEYS] = q[64][D_QK] k[KEYS][D_QK]^T of the step at `place`, in the background. */
template <class T, class shape, int SOURCE>
static __device__ __forceinline__ void sm90_scores(float (&s)[shape::SCORES],
                                                   const sm90_place &place) {
    const uint64_t q =
        product_rows(place.shared + shape::Q + place.group * (64 * 128) +
                     ring_stage<shape::SLOTS>(place.job) * shape::Q_TILE);
    const uint64_t k = product_rows(place.shared + shape::K +
                                    ring_stage<shape::STAGES>(place.step) * shape::K_TILE);
    sm90_wait<shape::STAGES, SOURCE>(place.shared + shape::K_FULL, place.step);
    product_pin(s);
    product_fence();
#pragma unroll
    for (int i = 0; i < shape::D_QK / 16; i++) {
        const uint64_t on_q = i / 4 * (shape::Q_PANEL / 16) + i % 4 * (32 / 16);
        const uint64_t on_k = i / 4 * (shape::PANEL / 16) + i % 4 * (32 / 16);
        product_rows_of(s, q + on_q, k + on_k, i != 0, T());
    }
    product_group();
}

/* Zeros in the rows of a step's V past the `keys` of its granules: 0 times what they hold may not be
 * 0. Each warp has every fourth piece of 8 columns. */
template <class shape>
static __device__ __forceinline__ void sm90_clear_dead(const sm90_place &place, uint32_t step,
                                                       uint32_t keys) {
    const uint32_t v = place.shared + shape::V + ring_stage<shape::STAGES>(step) * shape::V_TILE +
                       (uint32_t)(sm90_thread_here() / 32 * 16);
#pragma unroll
    for (int i = 0; i < shape::KEYS / 32; i++) {
        const int filled = (int)(keys >> i / 2 * 8 & 255);
        if (filled && i % 2 * 32 + warp_lane_here() >= filled)
#pragma unroll
            for (int j = 0; j < shape::D_V / 32; j++)
                shared_store_16(v + (uint32_t)(j / 2 * shape::PANEL + j % 2 * 64 +
                                               (32 * i + warp_lane_here()) * 128),
                                {0, 0, 0, 0});
    }
    proxy_fence();
    warpgroup_sync(1 + place.group);
}

/* o[64][D_V] (+)= weights[64][KEYS] v[KEYS][D_V] of step `step`, in the background. */
template <class T, class shape, int SOURCE>
static __device__ __forceinline__ void
sm90_values(float (&o)[shape::OUTPUTS], uint32_t (&weights)[shape::SCORES / 2],
            const sm90_place &place, uint32_t step, uint32_t keys, int add) {
    const uint64_t v = product_columns(
        place.shared + shape::V + ring_stage<shape::STAGES>(step) * shape::V_TILE, shape::PANEL);
    sm90_wait<shape::STAGES, SOURCE>(place.shared + shape::V_FULL, step);
    if (SOURCE == SM90_BOXES && sm90_some_dead(keys)) /* copies leave zeros there */
        sm90_clear_dead<shape>(place, step, keys);
    product_pin(o);
    product_pin(weights);
    product_fence();
#pragma unroll
    for (int i = 0; i < shape::KEYS / 16; i++)
        product_columns_of(o, weights + 4 * i, v + i * (16 * 128 / 16), i != 0 ? 1 : add, T());
    product_group();
}

/* ---- outputs ---- */

/* The results of the job-th item: its lse, and O to who stores it, or to its place. */
template <class T, class shape, int SOURCE>
static __device__ __forceinline__ void sm90_store(const struct attention_params &p,
                                                  const sm90_place &place, uint32_t job,
                                                  const float (&o)[shape::OUTPUTS],
                                                  const struct sm90_state &state) {
    const struct granule_item &item = sm90_item<shape>(place.memory, job);
    const int first = sm90_thread_here() / 32 * 16; /* row of the warpgroup */
    const int row = warp_lane_here() / 4, h = warp_lane_here() % 4;
    const struct sm90_queries of =
        sm90_queries_of(p, item.head, item.row, item.rows, 64 * place.group + first);
    const float l[2] = {quad_sum(state.l[0]), quad_sum(state.l[1])};
    const bool whole = sm90_uniform(item.parts) == 1;
    if (sm90_hands_o<shape, SOURCE>())
        barrier_wait(place.shared + shape::O_EMPTY + 8 * place.group, (job & 1) ^ 1);
    if (!whole)
        sm90_store_part<T, shape>(p, item.slot + (of.head - item.head) * item.parts, o, state.m, l,
                                  of.row - item.row + row);
    else if (h < 2 && row + 8 * h < of.rows) /* two lanes of the four that share the rows */
        attention_store_lse(p, item.batch, of.head, of.row + row + 8 * h,
                            (h ? state.m[1] : state.m[0]) - sm90_raise(T()), h ? l[1] : l[0]);
    if (whole)
        sm90_store_rows<T, shape, SOURCE>(
            p, place.shared + shape::O + (uint32_t)(place.group * shape::O_PANELS * SM90_O_PANEL),
            item.batch, of, o, l, first);
    if (sm90_hands_o<shape, SOURCE>()) {
        proxy_fence();
        barrier_arrive(place.shared + shape::O_FULL + 8 * place.group);
    }
}

/* ---- steps ---- */

/* Goes on to the next item; false at the end. */
template <class shape, int SOURCE>
static __device__ __forceinline__ bool sm90_take(sm90_place &place, int granule_bits) {
    place.job++;
    sm90_wait<shape::SLOTS, SOURCE>(place.shared + shape::Q_FULL, place.job);
    const struct granule_item &item = sm90_item<shape>(place.memory, place.job);
    const int64_t places = (int64_t)item.count << granule_bits;
    place.at = 0;
    place.steps = sm90_uniform((int)((places + shape::KEYS - 1) >> shape::BITS));
    place.whole = sm90_uniform((int)(((int64_t)item.whole << granule_bits) >> shape::BITS));
    return place.steps > 0;
}

/* What a computing thread holds: scores of a step; weights of the last one, and the keys of its
 * granules, 8 bits each; sums of the item, and what it knows of its masks. */
template <class shape, int SOURCE> struct sm90_work {
    float s[shape::SCORES], o[shape::OUTPUTS];
    uint32_t weights[shape::SCORES / 2], keys;
    struct sm90_state state, done; /* of the item, and of the one before while its O is not stored */
    struct sm90_mask<shape, SOURCE> mask;
};

/* The words of the step at `place`, whose K is there, for this warp. */
template <class shape>
static __device__ __forceinline__ uint2 sm90_words_of(const sm90_place &place) {
    return sm90_masks_of<shape>(place.memory, place.step)
        .words[4 * place.group + sm90_thread_here() / 32];
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
        w.mask.listed[i] = sm90_listed(word, masks.bits[i], p, sm90_warp_row(p, place));
        w.keys |= (word & 127) << 8 * i;
    }
}
template <class shape>
static __device__ __forceinline__ void sm90_ask_mask(struct sm90_work<shape, SM90_COPIES> &w,
                                                     const sm90_place &place,
                                                     const struct attention_params &p) {
    if (place.at >= place.whole)
        sm90_look_up(w.mask.places, p, sm90_item<shape>(place.memory, place.job), place.at,
                     sm90_warp_row(p, place));
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
template <class shape>
static __device__ __forceinline__ void sm90_mask_scores(struct sm90_work<shape, SM90_COPIES> &w,
                                                        const sm90_place &place) {
    if (place.at >= place.whole)
        sm90_mask_places(w.s, w.mask.places);
}

/* Whether no row of the warpgroup lists a key of the step at `place`, which may have masks. */
template <class shape, int SOURCE>
static __device__ __forceinline__ bool sm90_skips(const sm90_place &place) {
    if (SOURCE == SM90_COPIES)
        return false;
    sm90_wait<shape::STAGES, SOURCE>(place.shared + shape::K_FULL, place.step);
    const uint2 words = sm90_words_of<shape>(place);
    return !__any_sync(WARP_ALL, (words.x | (shape::GRANULES > 1 ? words.y : 0)) & SM90_LISTED);
}

/* A step with nothing to overlap: scores and softmax. FIRST: of its item; else o has sums of it. */
template <class T, bool FIRST, class shape, int SOURCE>
static __device__ __forceinline__ void
sm90_step_alone(struct sm90_work<shape, SOURCE> &w, const sm90_place &place,
                const struct attention_params &p, float scale) {
    float factor[2];
    sm90_turn_take<shape, SOURCE>(place);
    sm90_scores<T, shape, SOURCE>(w.s, place);
    sm90_turn_give<shape, SOURCE>(place);
    sm90_ask_mask(w, place, p);
    product_wait<0>();
    product_pin(w.s);
    sm90_release<shape::STAGES>(place, place.shared + shape::K_EMPTY, place.step);
    sm90_mask_scores(w, place);
    if (FIRST)
        sm90_clear(w.state);
    const bool moved = sm90_softmax<T>(w.s, w.state, factor, scale);
    if (!FIRST && moved)
        sm90_rescale(w.o, factor);
    sm90_round<T>(w.weights, w.s);
}

/* P V of the step before, with nothing to overlap. */
template <class T, class shape, int SOURCE>
static __device__ __forceinline__ void sm90_values_alone(struct sm90_work<shape, SOURCE> &w,
                                                         const sm90_place &place, bool add) {
    sm90_values<T, shape, SOURCE>(w.o, w.weights, place, place.step - 1, w.keys, add);
    product_wait<0>();
    product_pin(w.o);
    product_pin(w.weights);
    sm90_release<shape::STAGES>(place, place.shared + shape::V_EMPTY, place.step - 1);
}

/* A step that is not this warpgroup's, as all its warps have found: gives back what was fetched for
 * others. */
template <class shape, int SOURCE>
static __device__ __forceinline__ void sm90_pass(const sm90_place &place) {
    warpgroup_sync(1 + place.group);
    sm90_wait<shape::STAGES, SOURCE>(place.shared + shape::K_FULL, place.step);
    sm90_release<shape::STAGES>(place, place.shared + shape::K_EMPTY, place.step);
    sm90_wait<shape::STAGES, SOURCE>(place.shared + shape::V_FULL, place.step);
    sm90_release<shape::STAGES>(place, place.shared + shape::V_EMPTY, place.step);
}

/*
 * The step at `place`, whose scores have been begun: softmax, with P V of the step before in the
 * background, which is added to what `o` holds if `add`. FIRST: of its item, so that the item
 * before is done, and its O to be stored before the next P V. MASKED: it may have masks, or the
 * step before.
 */
template <class T, bool FIRST, bool MASKED, class shape, int SOURCE>
static __device__ __forceinline__ void sm90_step_begun(struct sm90_work<shape, SOURCE> &w, bool add,
                                                       const sm90_place &place,
                                                       const struct attention_params &p,
                                                       float scale) {
    const uint32_t keys = MASKED ? w.keys : 0;
    float factor[2];
    if (MASKED) /* before P V, whose first product waits for all of the scores' */
        sm90_ask_mask(w, place, p);
    sm90_values<T, shape, SOURCE>(w.o, w.weights, place, place.step - 1, keys, add);
    sm90_turn_give<shape, SOURCE>(place);
    product_wait<1>();
    product_pin(w.s);
    sm90_release<shape::STAGES>(place, place.shared + shape::K_EMPTY, place.step);
    if (MASKED)
        sm90_mask_scores(w, place);
    if (FIRST) {
        w.done = w.state;
        sm90_clear(w.state);
    }
    const bool moved = sm90_softmax<T>(w.s, w.state, factor, scale);
    product_wait<0>();
    product_pin(w.o);
    product_pin(w.weights);
    sm90_release<shape::STAGES>(place, place.shared + shape::V_EMPTY, place.step - 1);
    sm90_round<T>(w.weights, w.s);
    if (!FIRST && moved)
        sm90_rescale(w.o, factor);
}
template <class T, bool FIRST, bool MASKED, class shape, int SOURCE>
static __device__ __forceinline__ void sm90_step(struct sm90_work<shape, SOURCE> &w, bool add,
                                                 const sm90_place &place,
                                                 const struct attention_params &p, float scale) {
    product_pin(w.o);
    sm90_turn_take<shape, SOURCE>(place);
    sm90_scores<T, shape, SOURCE>(w.s, place);
    sm90_step_begun<T, FIRST, MASKED>(w, add, place, p, scale);
}

/* The second step of an item, with the O of the item before on its way out while scores are
 * computed; unless it may have masks: then that O alone. */
template <class T, class shape, int SOURCE>
static __device__ __forceinline__ void sm90_step_storing(struct sm90_work<shape, SOURCE> &w,
                                                         sm90_place &place,
                                                         const struct attention_params &p,
                                                         float scale) {
    if (place.at < place.whole) {
        sm90_turn_take<shape, SOURCE>(place);
        sm90_scores<T, shape, SOURCE>(w.s, place);
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
template <class T, bool MORE, class shape, int SOURCE>
static __device__ __forceinline__ void
sm90_step_ahead(struct sm90_work<shape, SOURCE> &w, float (&s)[shape::SCORES],
                float (&next)[shape::SCORES], bool add, sm90_place &place, float scale) {
    float factor[2];
    sm90_values<T, shape, SOURCE>(w.o, w.weights, place, place.step - 1, 0, add);
    place.at++, place.step++;
    if (MORE)
        sm90_scores<T, shape, SOURCE>(next, place);
    product_wait<1 + MORE>();
    product_pin(s);
    sm90_release<shape::STAGES>(place, place.shared + shape::K_EMPTY, place.step - 1);
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
template <class T, class shape, int SOURCE>
static __device__ __forceinline__ void sm90_steps_ahead(struct sm90_work<shape, SOURCE> &w,
                                                        sm90_place &place, float scale) {
    float t[shape::SCORES];
    if (place.at >= place.whole)
        return;
    product_pin(w.o);
    sm90_scores<T, shape, SOURCE>(w.s, place);
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
 * others, of which those that are not this warpgroup's are passed over. Answers whether P V of the
 * last step is still to be done.
 */
template <class T, class shape, int SOURCE>
static __device__ __forceinline__ bool sm90_steps(struct sm90_work<shape, SOURCE> &w,
                                                  sm90_place &place,
                                                  const struct attention_params &p, float scale) {
    bool pending = true;
    if (shape::AHEAD && SOURCE == SM90_BOXES && place.whole >= SM90_LONG)
        sm90_steps_ahead<T>(w, place, scale);
#pragma unroll 1
    for (; place.at < place.whole; place.at++, place.step++)
        sm90_step<T, false, false>(w, place.at > 1, place, p, scale);
#pragma unroll 1
    for (; place.at < place.steps; place.at++, place.step++) {
        if (sm90_skips<shape, SOURCE>(place)) {
            if (pending)
                sm90_values_alone<T>(w, place, place.at > 1);
            sm90_pass<shape, SOURCE>(place);
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

template <class T, class shape, int SOURCE>
static __device__ __forceinline__ void sm90_compute(char *memory, uint32_t shared, int group,
                                                    const struct attention_params &p, float scale) {
    struct sm90_work<shape, SOURCE> w;
    sm90_place place = {memory, shared, group, sm90_thread_here() == 0, 0, ~0u, 0, 0, 0};
    w.keys = 0;
    if (!sm90_take<shape, SOURCE>(place, p.granule_bits))
        return;
    if (shape::AHEAD && SOURCE == SM90_BOXES && place.group == 1)
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
        bool more = shape::SLOTS > 1 && sm90_take<shape, SOURCE>(place, p.granule_bits);
        if (more && overlapped) {
            sm90_step<T, true, true>(w, add, place, p, scale);
            continue;
        }
        if (overlapped)
            sm90_values_alone<T>(w, place, add);
        overlapped = false;
        sm90_store<T, shape, SOURCE>(p, place, place.job - (shape::SLOTS > 1), w.o, w.state);
        if (shape::SLOTS == 1)
            more = sm90_take<shape, SOURCE>(place, p.granule_bits);
        if (!more) {
            if (shape::AHEAD && SOURCE == SM90_BOXES && place.group == 0)
                warpgroups_sync(1 + shape::GROUPS, 256); /* which the other has given last */
            return;
        }
    }
}

#endif
