/* Fused attention on Hopper, what the warpgroups that compute have in common: where they stand,
 * their products and outputs. consumer_steps.cuh is their way through an item's steps;
 * config.cuh has the picture. */
#ifndef TESSERA_CUDA_SM90_COMPUTE_CUH
#define TESSERA_CUDA_SM90_COMPUTE_CUH

#include "forward/sm90/mask.cuh"
#include "forward/sm90/epilogue.cuh"

/* At the step whose scores have been begun last. */
struct sm90_place {
    char *memory;
    uint32_t shared;
    int group;     /* 0, 1 ...: rows 64 group ... of the tile, or a share of the dims */
    bool elected;  /* one thread of the warpgroup */
    uint32_t step; /* counted over all items */
    uint32_t job;  /* counted */
    int32_t at;    /* the step in its item */
    int32_t steps; /* of the item */
    int32_t whole; /* its first steps, whose granules have no mask */
    bool idle;     /* no row of this warp's is one of the tile's */
};

/* The index-th phase of a ring whose barriers begin at `full`. */
template <int STAGES>
static __device__ __forceinline__ void sm90_wait(uint32_t full, uint32_t index) {
    barrier_wait(full + 8 * ring_stage<STAGES>(index), ring_parity<STAGES>(index));
}
template <int STAGES>
static __device__ __forceinline__ void sm90_release(const sm90_place &place, uint32_t empty,
                                                    uint32_t index) {
    if (place.elected)
        barrier_arrive(empty + 8 * ring_stage<STAGES>(index));
}

/* The first row of a warp, in the tiles of its head's list. */
template <class shape>
static __device__ __forceinline__ int sm90_warp_row(const struct attention_params &p,
                                                    const sm90_place &place) {
    return sm90_row_of_head(p, sm90_group_row<shape>(place.group) + sm90_thread_here() / 32 * 16);
}

/* The first dim of O of a warpgroup, among those of its block. */
template <class shape>
static __device__ __forceinline__ int sm90_group_dim(const sm90_place &place) {
    return shape::SHARE == 1 ? 0 : 2 * shape::OUTPUTS * place.group;
}

/* ---- products ---- */

/* s[64][KEYS] = q[64][D_QK] k[KEYS][D_QK]^T of the step at `place`, in the background; `wait` waits
 * for K. Where dims are divided, those of a half of each panel. */
template <class T, class shape, class waits>
static __device__ __forceinline__ void sm90_scores(float (&s)[shape::SCORES],
                                                   const sm90_place &place, const waits &wait) {
    constexpr int EACH = 4 / shape::SHARE; /* products of a panel */
    const uint32_t half = shape::SHARE == 1 ? 0 : place.group * (EACH * 32);
    const uint64_t q =
        product_rows(place.shared + shape::Q + sm90_group_row<shape>(place.group) * 128 +
                     ring_stage<shape::SLOTS>(place.job) * shape::Q_TILE + half);
    const uint64_t k = product_rows(place.shared + shape::K +
                                    ring_stage<shape::STAGES>(place.step) * shape::K_TILE + half);
    wait();
    product_pin(s);
    product_fence();
#pragma unroll
    for (int i = 0; i < shape::D_QK / 16 / shape::SHARE; i++) {
        const uint64_t on_q = i / EACH * (shape::Q_PANEL / 16) + i % EACH * (32 / 16);
        const uint64_t on_k = i / EACH * (shape::PANEL / 16) + i % EACH * (32 / 16);
        product_rows_of(s, q + on_q, k + on_k, i != 0, T());
    }
    product_group();
}

/* Four of a thread's scores into shared memory, from there, and what stands there added to them. */
static __device__ __forceinline__ void sm90_hand_scores(uint32_t to, const float *s) {
    shared_store_16(to, {__float_as_uint(s[0]), __float_as_uint(s[1]), __float_as_uint(s[2]),
                         __float_as_uint(s[3])});
}
static __device__ __forceinline__ void sm90_take_scores(float *s, uint32_t from) {
    const uint4 x = shared_load_16(from);
    s[0] = __uint_as_float(x.x), s[1] = __uint_as_float(x.y);
    s[2] = __uint_as_float(x.z), s[3] = __uint_as_float(x.w);
}
static __device__ __forceinline__ void sm90_add_scores(float *s, uint32_t from) {
    float x[4];
    sm90_take_scores(x, from);
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i] += x[i];
}

/* A half of this block's sums of scores to the other block of the cluster, where it is free. */
template <class shape>
static __device__ __forceinline__ void sm90_send_scores(const float (&s)[shape::SCORES],
                                                        const sm90_place &place) {
    const uint32_t there = cluster_address(place.shared, 1 - sm90_rank<shape>());
    const uint32_t to = there + shape::S + 16 * (uint32_t)sm90_thread_here();
    if (place.elected && place.group == 0)
        barrier_arrive_expect(place.shared + shape::S_FULL, shape::S_TILE);
    barrier_wait(place.shared + shape::S_EMPTY, (place.step & 1) ^ 1);
#pragma unroll
    for (int i = 0; i < shape::SCORES; i += 4)
        if (i / shape::HALF == place.group)
            store_there(to + i * 512, {s[i], s[i + 1], s[i + 2], s[i + 3]}, there + shape::S_FULL);
}

/* What the other has sent added to this block's. */
template <class shape>
static __device__ __forceinline__ void sm90_add_sent(float (&s)[shape::SCORES],
                                                     const sm90_place &place) {
    const uint32_t there = cluster_address(place.shared, 1 - sm90_rank<shape>());
    const uint32_t from = place.shared + shape::S + 16 * (uint32_t)sm90_thread_here();
    barrier_wait_others(place.shared + shape::S_FULL, place.step & 1);
#pragma unroll
    for (int i = 0; i < shape::SCORES; i += 4)
        sm90_add_scores(s + i, from + i * 512);
    product_pin(s); /* so they have been read when that is told */
    __syncwarp();
    if (warp_lane_here() == 0)
        barrier_arrive_there(there + shape::S_EMPTY);
}

/* Where dims are divided: the sum of what the warpgroups have of a step's scores, in all. Each adds up
 * one half and hands it on, all through where O will be staged. A thread writes where it has read
 * last, so nothing has to be given back. */
template <class shape>
static __device__ __forceinline__ void sm90_sum_shares(float (&s)[shape::SCORES],
                                                       const sm90_place &place) {
    if constexpr (shape::SHARE == 1)
        return;
    const uint32_t at = place.shared + shape::O + 16 * (uint32_t)sm90_thread_here();
    const uint32_t mine = at + (uint32_t)(place.group * shape::O_GROUP);
    const uint32_t other = at + (uint32_t)((1 - place.group) * shape::O_GROUP);
#pragma unroll
    for (int i = 0; i < shape::SCORES; i += 4)
        if (i / shape::HALF != place.group)
            sm90_hand_scores(mine + i % shape::HALF * 512, s + i);
    warpgroups_sync(1 + shape::GROUPS, 256);
#pragma unroll
    for (int i = 0; i < shape::SCORES; i += 4)
        if (i / shape::HALF == place.group) {
            sm90_add_scores(s + i, other + i % shape::HALF * 512);
            sm90_hand_scores(other + i % shape::HALF * 512, s + i);
        }
    if constexpr (shape::BLOCKS > 1)
        sm90_send_scores<shape>(s, place);
    warpgroups_sync(1 + shape::GROUPS, 256);
#pragma unroll
    for (int i = 0; i < shape::SCORES; i += 4)
        if (i / shape::HALF != place.group)
            sm90_take_scores(s + i, mine + i % shape::HALF * 512);
    if constexpr (shape::BLOCKS > 1)
        sm90_add_sent<shape>(s, place);
}

/* Where V of a step begins; where dims are divided, this warpgroup's panels of it. */
template <class shape>
static __device__ __forceinline__ uint32_t sm90_values_of(const sm90_place &place, uint32_t step) {
    return place.shared + shape::V + ring_stage<shape::STAGES>(step) * shape::V_TILE +
           (uint32_t)(sm90_group_dim<shape>(place) / 64 * shape::PANEL);
}

/* o[64][D_V] (+)= weights[64][KEYS] v[KEYS][D_V] of step `step`, in the background; `wait` waits
 * for V. Where dims are divided, this warpgroup's. */
template <class T, class shape, class waits>
static __device__ __forceinline__ void
sm90_values(float (&o)[shape::OUTPUTS], uint32_t (&weights)[shape::SCORES / 2],
            const sm90_place &place, uint32_t step, int add, const waits &wait) {
    const uint64_t v = product_columns(sm90_values_of<shape>(place, step), shape::PANEL);
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
static __device__ __forceinline__ void
sm90_store(const struct attention_params &p, const sm90_place &place, uint32_t job,
           float (&o)[shape::OUTPUTS], const struct sm90_state &state) {
    const struct granule_item &item = sm90_item<shape>(place.memory, job);
    const int first = sm90_thread_here() / 32 * 16; /* row of the warpgroup */
    const int row = warp_lane_here() / 4, h = warp_lane_here() % 4;
    struct sm90_queries of[2];
    sm90_queries_of_warp<shape>(of, p, item, sm90_group_row<shape>(place.group) + first);
    const int dim = sm90_rank<shape>() * shape::D_V + sm90_group_dim<shape>(place);
    const float l[2] = {quad_sum(state.l[0]), quad_sum(state.l[1])};
    /* Four lanes share two rows, of which two have one each. */
    const float2 sums = {(h ? state.m[1] : state.m[0]) - sm90_raise(T()), h ? l[1] : l[0]};
    const bool whole = sm90_uniform(item.parts) == 1;
    if (sm90_hands_o<shape, SOURCE>())
        barrier_wait(place.shared + shape::O_EMPTY + 8 * place.group, (job & 1) ^ 1);
    if (!whole)
        sm90_store_part<T, shape>(p, item, of, o, state.m, l, dim);
    else if (sm90_hands_sums<shape, SOURCE>() && h < 2)
        sm90_sums<shape>(place.memory, 64 * place.group + first + row + 8 * h) = sums;
    else if (h < 2 && row < (h ? of[1].rows : of[0].rows) && dim == 0)
        attention_store_lse(p, item.batch, h ? of[1].head : of[0].head,
                            (h ? of[1].row : of[0].row) + row, sums.x, sums.y);
    if (shape::SHARE > 1 && whole) /* all have read their scores there */
        warpgroup_sync(1 + place.group);
    if (whole)
        sm90_store_rows<T, shape, SOURCE>(
            p, place.shared + shape::O + (uint32_t)(place.group * shape::O_GROUP), item.batch, of,
            o, l, first, dim);
    if (shape::SHARE > 1 && whole) /* all have stored theirs */
        warpgroup_sync(1 + place.group);
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

/* What a computing thread holds: scores of a step, and which of them count; weights of the step
 * before, and which of its places hold a key; sums of the item. */
template <class shape> struct sm90_work {
    float s[shape::SCORES], o[shape::OUTPUTS];
    uint32_t weights[shape::SCORES / 2], listed[shape::GRANULES];
    uint64_t keys[shape::GRANULES];
    struct sm90_state state,
        done; /* of the item, and of the one before while its O is not stored */
};

#endif
