/* Fused attention on Hopper, what the warpgroups that compute have in common: where they stand,
 * their products and outputs. boxes.cuh and turns.cuh are their ways through an item's steps;
 * shape.cuh has the picture. */
#ifndef TESSERA_CUDA_SM90_COMPUTE_CUH
#define TESSERA_CUDA_SM90_COMPUTE_CUH

#include "sm90/mask.cuh"
#include "sm90/store.cuh"

/* At the step whose scores have been begun last. */
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
template <int STAGES>
static __device__ __forceinline__ void sm90_wait(uint32_t full, uint32_t index) {
    barrier_wait(full + 8 * ring_stage<STAGES>(index), ring_parity<STAGES>(index));
}
template <int STAGES>
static __device__ __forceinline__ void sm90_release(const sm90_place &place,
                                                    uint32_t empty, uint32_t index) {
    if (place.elected)
        barrier_arrive(empty + 8 * ring_stage<STAGES>(index));
}

/* The first row of a warp, in the tiles of its head's list. */
static __device__ __forceinline__ int sm90_warp_row(const struct attention_params &p,
                                                    const sm90_place &place) {
    return sm90_row_of_head(p, place.group * 64 + sm90_thread_here() / 32 * 16);
}

/* ---- products ---- */

/* s[64][KEYS] = q[64][D_QK] k[KEYS][D_QK]^T of the step at `place`, in the background; `wait` waits
 * for K. */
template <class T, class shape, class waits>
static __device__ __forceinline__ void
sm90_scores(float (&s)[shape::SCORES], const sm90_place &place, const waits &wait) {
    const uint64_t q =
        product_rows(place.shared + shape::Q + place.group * (64 * 128) +
                     ring_stage<shape::SLOTS>(place.job) * shape::Q_TILE);
    const uint64_t k = product_rows(place.shared + shape::K +
                                    ring_stage<shape::STAGES>(place.step) * shape::K_TILE);
    wait();
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

/* o[64][D_V] (+)= weights[64][KEYS] v[KEYS][D_V] of step `step`, in the background; `wait` waits
 * for V. */
template <class T, class shape, class waits>
static __device__ __forceinline__ void
sm90_values(float (&o)[shape::OUTPUTS], uint32_t (&weights)[shape::SCORES / 2],
            const sm90_place &place, uint32_t step, int add, const waits &wait) {
    const uint64_t v = product_columns(
        place.shared + shape::V + ring_stage<shape::STAGES>(step) * shape::V_TILE, shape::PANEL);
    wait();
    product_pin(o);
    product_pin(weights);
    product_fence();
#pragma unroll
    for (int i = 0; i < shape::KEYS / 16; i++)
        product_columns_of(o, weights + 4 * i, v + i * (16 * 128 / 16), i != 0 ? 1 : add, T());
    product_group();
}

/* ---- outputs ---- */

/* The results of the job-th item: its lse and O, to who stores them or to their place. */
template <class T, class shape, int SOURCE>
static __device__ __forceinline__ void sm90_store(const struct attention_params &p,
                                                  const sm90_place &place, uint32_t job,
                                                  float (&o)[shape::OUTPUTS],
                                                  const struct sm90_state &state) {
    const struct granule_item &item = sm90_item<shape>(place.memory, job);
    const int first = sm90_thread_here() / 32 * 16; /* row of the warpgroup */
    const int row = warp_lane_here() / 4, h = warp_lane_here() % 4;
    const struct sm90_queries of =
        sm90_queries_of(p, item.head, item.row, item.rows, 64 * place.group + first);
    const float l[2] = {quad_sum(state.l[0]), quad_sum(state.l[1])};
    /* Four lanes share two rows, of which two have one each. */
    const float2 sums = {(h ? state.m[1] : state.m[0]) - sm90_raise(T()), h ? l[1] : l[0]};
    const bool whole = sm90_uniform(item.parts) == 1;
    if (sm90_hands_o<shape, SOURCE>())
        barrier_wait(place.shared + shape::O_EMPTY + 8 * place.group, (job & 1) ^ 1);
    if (!whole)
        sm90_store_part<T, shape>(p, item.slot + (of.head - item.head) * item.parts, o, state.m, l,
                                  of.row - item.row + row);
    else if (sm90_hands_sums<shape, SOURCE>() && h < 2)
        sm90_sums<shape>(place.memory, 64 * place.group + first + row + 8 * h) = sums;
    else if (h < 2 && row + 8 * h < of.rows)
        attention_store_lse(p, item.batch, of.head, of.row + row + 8 * h, sums.x, sums.y);
    if (whole)
        sm90_store_rows<T, shape, SOURCE>(
            p, place.shared + shape::O + (uint32_t)(place.group * shape::O_PANELS * SM90_O_PANEL),
            item.batch, of, o, l, first);
    if (sm90_hands_o<shape, SOURCE>()) {
        proxy_fence();
        barrier_arrive(place.shared + shape::O_FULL + 8 * place.group);
    }
}

/* ---- items ---- */

/* To the next item; false at the end. */
template <class shape>
static __device__ __forceinline__ bool sm90_take(sm90_place &place, int granule_bits) {
    place.job++;
    sm90_wait<shape::SLOTS>(place.shared + shape::Q_FULL, place.job);
    const struct granule_item &item = sm90_item<shape>(place.memory, place.job);
    const int64_t places = (int64_t)item.count << granule_bits;
    place.at = 0;
    place.steps = sm90_uniform((int)((places + shape::KEYS - 1) >> shape::BITS));
    place.whole = sm90_uniform((int)(((int64_t)item.whole << granule_bits) >> shape::BITS));
    return place.steps > 0;
}

/* What a computing thread holds: scores of a step; weights of the last one, and the keys of its
 * granules, 8 bits each, where boxes of 64 keys fetch; sums of the item, and what it knows of its
 * masks. */
template <class shape, int SOURCE> struct sm90_work {
    float s[shape::SCORES], o[shape::OUTPUTS];
    uint32_t weights[shape::SCORES / 2], keys;
    struct sm90_state state, done; /* of the item, and of the one before while its O is not stored */
    struct sm90_mask<shape, SOURCE> mask;
};

#endif
