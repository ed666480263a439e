/*
 * Fused attention on Hopper, the warpgroups that compute, where granules may be of any size. Steps
 * that only one's rows list, which the plan has put in turns (order.h), have barriers of their own,
 * which that warpgroup alone waits for, and who fetches gives them back for the other: so that the
 * other passes over them without knowing how far they have come. Masks are bits of each thread's
 * scores (fragment_masks.h).
 */
#ifndef TESSERA_CUDA_SM90_TURNS_CUH
#define TESSERA_CUDA_SM90_TURNS_CUH

#include "forward/sm90/consumer.cuh"

/* Where a warpgroup stands among its own steps. */
struct sm90_own_place : sm90_place {
    struct granule_turns turns; /* of the item */
    bool alone, alone_before;   /* the step is this warpgroup's alone; that before was */
    uint32_t before;            /* the step of this warpgroup's before this one */
    int32_t nth;                /* of its steps in the item */
    uint32_t phases; /* parities of what is waited for next: a bit for each barrier of K, then V */
};

/* ---- waiting ---- */

/* Until a tile of K, or V, of a step stands, which is this warpgroup's alone or not. */
template <class shape, int SOURCE, bool KEYS>
static __device__ __forceinline__ void sm90_wait_tile(sm90_own_place &place, uint32_t step,
                                                      bool alone) {
    const uint32_t full = KEYS ? shape::K_FULL : shape::V_FULL;
    if (!sm90_turns<shape, SOURCE>()) {
        sm90_wait<shape::STAGES>(place.shared + full, step);
        return;
    }
    const uint32_t stage = ring_stage<shape::STAGES>(step);
    const uint32_t bit = (KEYS ? 0 : 2 * shape::STAGES) + (alone ? shape::STAGES : 0) + stage;
    const uint32_t own = (KEYS ? shape::K_ALONE : shape::V_ALONE) +
                         8 * (uint32_t)(shape::STAGES * place.group);
    barrier_wait(place.shared + (alone ? own : full) + 8 * stage, place.phases >> bit & 1);
    place.phases ^= 1u << bit;
}
template <class shape, int SOURCE>
static __device__ __forceinline__ void sm90_wait_k(sm90_own_place &place) {
    sm90_wait_tile<shape, SOURCE, true>(place, place.step, place.alone);
}
/* V of the step before. */
template <class shape, int SOURCE>
static __device__ __forceinline__ void sm90_wait_v(sm90_own_place &place) {
    sm90_wait_tile<shape, SOURCE, false>(place, place.before, place.alone_before);
}

/* ---- going on ---- */

/* The first step of an item from `at` on that is not the other's alone. */
template <class shape, int SOURCE>
static __device__ __forceinline__ int32_t sm90_own(const sm90_own_place &place, int32_t at) {
    if (!sm90_turns<shape, SOURCE>())
        return at;
    const struct granule_turns &turns = place.turns;
    if (at >= turns.begin && at < turns.end && (at - turns.begin) % 2 != place.group)
        at++;
    return at >= turns.end && at < turns.alone_end && turns.alone != place.group ? turns.alone_end
                                                                                 : at;
}

/* To the step `to` of the item. */
static __device__ __forceinline__ void sm90_go(sm90_own_place &place, int32_t to) {
    place.step += (uint32_t)(to - place.at);
    place.at = to;
    place.alone = to >= place.turns.begin && to < place.turns.alone_end;
}

/* To the next step of this warpgroup's in the item, or to the item's end. */
template <class shape, int SOURCE>
static __device__ __forceinline__ void sm90_go_on(sm90_own_place &place) {
    place.before = place.step;
    place.alone_before = place.alone;
    place.nth++;
    sm90_go(place, sm90_own<shape, SOURCE>(place, place.at + 1));
}

/* To the next item; false at the end. */
template <class shape, int SOURCE>
static __device__ __forceinline__ bool sm90_take_own(sm90_own_place &place, int granule_bits) {
    if (!sm90_take<shape>(place, granule_bits))
        return false;
    const struct granule_turns &turns = sm90_halves<shape>(place.memory, place.job).turns;
    if (sm90_turns<shape, SOURCE>())
        place.turns = {sm90_uniform(turns.begin), sm90_uniform(turns.end),
                       sm90_uniform(turns.alone_end), sm90_uniform(turns.alone)};
    place.nth = 0;
    sm90_go(place, sm90_own<shape, SOURCE>(place, 0));
    return true;
}

/* Whether so many steps of the other's stand between this one, or an item's end, and the one before
 * that V of that is to be given back first: the other may need its stage to get here. */
static __device__ __forceinline__ bool sm90_far(const sm90_own_place &place) {
    return place.step - place.before > 2;
}

/* ---- masks ---- */

/* Loads the bits of a step of the item, if there is one and it may have masks. */
template <class shape, int SOURCE>
static __device__ __forceinline__ void sm90_look(struct sm90_work<shape, SOURCE> &w,
                                                 const sm90_own_place &place,
                                                 const struct attention_params &p, int32_t at) {
    if (at >= place.whole && at < place.steps)
        sm90_load_bits<shape::BITS>(w.mask.next, w.mask.place, p, at, sm90_warp_row<shape>(p, place));
}

/* The same of the first of an item's steps that may have masks. */
template <class shape, int SOURCE>
static __device__ __forceinline__ void sm90_look_first(struct sm90_work<shape, SOURCE> &w,
                                                       const sm90_own_place &place,
                                                       const struct attention_params &p) {
    w.mask.place = sm90_bits_begin(p, sm90_item<shape>(place.memory, place.job),
                                   sm90_halves<shape>(place.memory, place.job),
                                   sm90_warp_row<shape>(p, place));
    sm90_look(w, place, p, place.at);
}

/* Before K of a step is waited for: has its bits, and loads the next step's. The first step of an
 * item loads its own. */
template <bool FIRST, class shape, int SOURCE>
static __device__ __forceinline__ void sm90_look_ahead(struct sm90_work<shape, SOURCE> &w,
                                                       const sm90_own_place &place,
                                                       const struct attention_params &p) {
    if (FIRST)
        sm90_look_first(w, place, p);
    const bool all = place.at < place.whole;
    const int shift = shape::BITS < 7 ? place.at % 2 * 16 : 0; /* the second half of a chunk */
    const struct sm90_bits &bits = w.mask.next;
    w.mask.now.x[0] = all ? ~0u : bits.x[0] >> shift;
    w.mask.now.x[1] = all ? ~0u : (bits.fine ? bits.x[1] : bits.x[0]) >> shift;
    w.mask.now.any = __reduce_or_sync(WARP_ALL, w.mask.now.x[0] | w.mask.now.x[1]);
    if (!FIRST)
        sm90_look(w, place, p, sm90_own<shape, SOURCE>(place, place.at + 1));
}

/* ---- steps ---- */

/* A step with nothing to overlap: scores and softmax. FIRST: of its item; else o has sums of it. */
template <class T, bool FIRST, class shape, int SOURCE>
static __device__ __forceinline__ void
sm90_turn_alone(struct sm90_work<shape, SOURCE> &w, sm90_own_place &place,
                const struct attention_params &p, float scale) {
    float factor[2];
    sm90_look_ahead<FIRST>(w, place, p);
    sm90_scores<T, shape>(w.s, place, [&] { sm90_wait_k<shape, SOURCE>(place); });
    product_wait<0>();
    product_pin(w.s);
    sm90_release<shape::STAGES>(place, place.shared + shape::K_EMPTY, place.step);
    sm90_sum_shares<shape>(w.s, place);
    if (FIRST)
        sm90_clear(w.state);
    const bool moved = sm90_softmax<T, true>(w.s, w.state, factor, scale, w.mask.now);
    if (!FIRST && moved)
        sm90_rescale(w.o, factor);
    sm90_round<T>(w.weights, w.s, w.mask.now);
}

/* P V of the step before, with nothing to overlap. */
template <class T, class shape, int SOURCE>
static __device__ __forceinline__ void sm90_turn_values(struct sm90_work<shape, SOURCE> &w,
                                                        sm90_own_place &place, bool add) {
    sm90_values<T, shape>(w.o, w.weights, place, place.before, add,
                          [&] { sm90_wait_v<shape, SOURCE>(place); });
    product_wait<0>();
    product_pin(w.o);
    product_pin(w.weights);
    sm90_release<shape::STAGES>(place, place.shared + shape::V_EMPTY, place.before);
}

/*
 * The step at `place`, whose scores have been begun: softmax, with P V of the step before in the
 * background, which is added to what `o` holds if `add`. FIRST: of its item, so that the item
 * before is done, and its O to be stored before the next P V. MASKED: it may have masks.
 */
template <class T, bool FIRST, bool MASKED, class shape, int SOURCE>
static __device__ __forceinline__ void sm90_turn_begun(struct sm90_work<shape, SOURCE> &w, bool add,
                                                       sm90_own_place &place, float scale) {
    float factor[2];
    sm90_values<T, shape>(w.o, w.weights, place, place.before, add,
                          [&] { sm90_wait_v<shape, SOURCE>(place); });
    product_wait<1>();
    product_pin(w.s);
    sm90_release<shape::STAGES>(place, place.shared + shape::K_EMPTY, place.step);
    if (FIRST) {
        w.done = w.state;
        sm90_clear(w.state);
    }
    const bool moved = sm90_softmax<T, MASKED>(w.s, w.state, factor, scale, w.mask.now);
    product_wait<0>();
    product_pin(w.o);
    product_pin(w.weights);
    sm90_release<shape::STAGES>(place, place.shared + shape::V_EMPTY, place.before);
    if (MASKED)
        sm90_round<T>(w.weights, w.s, w.mask.now);
    else
        sm90_round<T>(w.weights, w.s);
    if (!FIRST && moved)
        sm90_rescale(w.o, factor);
}
template <class T, bool FIRST, bool MASKED, class shape, int SOURCE>
static __device__ __forceinline__ void sm90_turn(struct sm90_work<shape, SOURCE> &w, bool add,
                                                 sm90_own_place &place,
                                                 const struct attention_params &p, float scale) {
    product_pin(w.o);
    if (MASKED)
        sm90_look_ahead<FIRST>(w, place, p);
    sm90_scores<T, shape>(w.s, place, [&] { sm90_wait_k<shape, SOURCE>(place); });
    sm90_turn_begun<T, FIRST, MASKED>(w, add, place, scale);
}

/* The second step of an item, with the O of the item before on its way out while scores are
 * computed; unless it may have masks: then that O alone. */
template <class T, class shape, int SOURCE>
static __device__ __forceinline__ void sm90_turn_storing(struct sm90_work<shape, SOURCE> &w,
                                                         sm90_own_place &place,
                                                         const struct attention_params &p,
                                                         float scale) {
    if (place.at < place.whole) {
        sm90_scores<T, shape>(w.s, place, [&] { sm90_wait_k<shape, SOURCE>(place); });
        sm90_store<T, shape, SOURCE>(p, place, place.job - 1, w.o, w.done);
        product_pin(w.o);
        sm90_turn_begun<T, false, false>(w, false, place, scale);
        sm90_go_on<shape, SOURCE>(place);
    } else {
        sm90_store<T, shape, SOURCE>(p, place, place.job - 1, w.o, w.done);
    }
}

/* The steps of an item from the one at `place` on, not its first: those without masks, then the
 * others; where dims are divided, all as if they had masks, one product after another. P V of the last
 * one is still to be done. */
template <class T, class shape, int SOURCE>
static __device__ __forceinline__ void sm90_turns_of_item(struct sm90_work<shape, SOURCE> &w,
                                                          sm90_own_place &place,
                                                          const struct attention_params &p,
                                                          float scale) {
#pragma unroll 1
    for (; shape::SHARE == 1 && place.at < place.whole;
         sm90_go_on<shape, SOURCE>(place))
        sm90_turn<T, false, false>(w, place.nth > 1, place, p, scale);
    if (place.at < place.steps)
        sm90_look_first(w, place, p);
#pragma unroll 1
    for (; place.at < place.steps; sm90_go_on<shape, SOURCE>(place)) {
        if (shape::SHARE > 1 || sm90_far(place)) {
            sm90_turn_values<T>(w, place, place.nth > 1);
            sm90_turn_alone<T, false>(w, place, p, scale);
        } else {
            sm90_turn<T, false, true>(w, place.nth > 1, place, p, scale);
        }
    }
}

template <class T, class shape, int SOURCE>
static __device__ __forceinline__ void sm90_compute_turns(char *memory, uint32_t shared, int group,
                                                          const struct attention_params &p,
                                                          float scale) {
    struct sm90_work<shape, SOURCE> w;
    sm90_own_place place = {};
    place.memory = memory, place.shared = shared, place.group = group, place.job = ~0u;
    place.elected = sm90_thread_here() == 0;
    if (!sm90_take_own<shape, SOURCE>(place, p.granule_bits))
        return;
    for (bool overlapped = false;;) {
        if (!overlapped)
            sm90_turn_alone<T, true>(w, place, p, scale);
        /* Said again for each item, as in consumer_tma.cuh. */
        place.step = (uint32_t)sm90_uniform((int)place.step);
        place.job = (uint32_t)sm90_uniform((int)place.job);
        if (shape::D_QK > 128)
            place.shared = (uint32_t)sm90_uniform((int)place.shared);
        sm90_go_on<shape, SOURCE>(place);
        if (overlapped)
            sm90_turn_storing<T>(w, place, p, scale);
        sm90_turns_of_item<T>(w, place, p, scale);
        sm90_release<shape::SLOTS>(place, shared + shape::Q_EMPTY, place.job);
        const bool add = place.nth > 1, far = sm90_far(place);
        if (far)
            sm90_turn_values<T>(w, place, add);
        bool more = shape::SLOTS > 1 && sm90_take_own<shape, SOURCE>(place, p.granule_bits);
        overlapped = more && !far && !sm90_far(place);
        if (overlapped) {
            if (place.at < place.whole)
                sm90_turn<T, true, false>(w, add, place, p, scale);
            else
                sm90_turn<T, true, true>(w, add, place, p, scale);
            continue;
        }
        if (!far)
            sm90_turn_values<T>(w, place, add);
        sm90_store<T, shape, SOURCE>(p, place, place.job - (shape::SLOTS > 1), w.o, w.state);
        if (shape::SLOTS == 1)
            more = sm90_take_own<shape, SOURCE>(place, p.granule_bits);
        if (!more)
            return;
    }
}

#endif
