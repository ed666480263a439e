/* Fused attention on Hopper, the warpgroups that compute (shape.cuh has the picture). */
#ifndef TESSERA_CUDA_SM90_COMPUTE_CUH
#define TESSERA_CUDA_SM90_COMPUTE_CUH

#include "sm90/softmax.cuh"
#include "sm90/wgmma.cuh"

/* A thread's part of its warpgroup's 64 rows. */
template <int D> struct sm90_tile {
    float s[64];          /* scores, then weights */
    uint32_t weights[32]; /* rounded, of the step before */
    float o[D / 2];
};

/* Where a computing warpgroup stands. */
struct sm90_place {
    char *memory;
    uint32_t shared;
    int group;      /* 0 or 1: rows 64 group ... of the tile */
    bool elected;   /* one thread of the warpgroup */
    uint32_t step;  /* whose scores come next, counted over all items */
    uint32_t job;   /* items taken */
    int32_t steps;  /* of the item taken last */
    int32_t whole;  /* its first steps, whose granules have no mask */
    uint32_t dead;  /* of the step before (struct sm90_mask) */
    bool some_dead; /* in any thread of the warpgroup */
};

template <int D>
static __device__ __forceinline__ const struct granule_item &sm90_item(const sm90_place &at,
                                                                       uint32_t job) {
    return reinterpret_cast<const struct granule_item *>(at.memory +
                                                         sm90_shape<D>::ITEMS)[job % SM90_JOBS];
}

/* The index-th phase of a ring whose barriers begin at `full`. */
template <int STAGES, int SOURCE>
static __device__ __forceinline__ void sm90_wait(uint32_t full, uint32_t index) {
    barrier_wait(full + 8 * ring_stage<STAGES>(index), ring_parity<STAGES>(index));
    if (SOURCE == SM90_COPIES)
        proxy_fence(); /* threads copied what tensor cores read */
}
template <int STAGES>
static __device__ __forceinline__ void sm90_release(const sm90_place &at, uint32_t empty,
                                                    uint32_t index) {
    if (at.elected)
        barrier_arrive(empty + 8 * ring_stage<STAGES>(index));
}

/* ---- products ---- */

/* s[64][128] = q[64][D] k[128][D]^T, in the background. */
template <class T, int D>
static __device__ __forceinline__ void sm90_scores(float (&s)[64], const sm90_place &at) {
    using shape = sm90_shape<D>;
    const uint64_t q =
        product_rows(at.shared + shape::Q +
                     ring_stage<SM90_SLOTS>(at.job - 1) * shape::TILE + at.group * (64 * 128));
    const uint64_t k =
        product_rows(at.shared + shape::K + ring_stage<shape::STAGES>(at.step) * shape::TILE);
    product_fence();
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        const uint64_t on = i / 4 * (shape::PANEL / 16) + i % 4 * (32 / 16);
        product_rows_128(s, q + on, k + on, i != 0, T());
    }
    product_group();
}

/* o[64][D] (+)= weights[64][128] v[128][D] of the step before, in the background. */
template <class T, int D>
static __device__ __forceinline__ void sm90_values(sm90_tile<D> &tile, const sm90_place &at,
                                                   int add) {
    using shape = sm90_shape<D>;
    const uint64_t v = product_columns(
        at.shared + shape::V + ring_stage<shape::STAGES>(at.step - 1) * shape::TILE, shape::PANEL);
    product_fence();
#pragma unroll
    for (int i = 0; i < SM90_KEYS / 16; i++)
        product_columns_of(tile.o, tile.weights + 4 * i, v + i * (16 * 128 / 16),
                           i != 0 ? 1 : add, T());
    product_group();
}

/* Zeros in the rows of V that no key of a granule fills: 0 times what they hold may not be 0. Each
 * warp has a quarter of the columns. */
template <int D> static __device__ __forceinline__ void sm90_clear_dead(const sm90_place &at) {
    using shape = sm90_shape<D>;
    constexpr int BYTES = D / 2; /* of a row, for each warp */
    const int column = sm90_thread_here() / 32 * BYTES;
    const uint32_t v = at.shared + shape::V +
                       ring_stage<shape::STAGES>(at.step - 1) * shape::TILE +
                       (uint32_t)(column / 128 * shape::PANEL + column % 128);
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (at.dead & 1u << i)
#pragma unroll
            for (int piece = 0; piece < BYTES; piece += 16)
                shared_store_16(v + (uint32_t)((i / 2 * 64 + 2 * warp_lane_here() + i % 2) * 128 + piece),
                                {0, 0, 0, 0});
    proxy_fence();
    warpgroup_sync(1 + at.group);
}

/* ---- steps ---- */

/* Takes the next item; false at the end. */
template <int D, int SOURCE>
static __device__ __forceinline__ bool sm90_take(sm90_place &at, int granule_bits) {
    using shape = sm90_shape<D>;
    sm90_wait<SM90_SLOTS, SOURCE>(at.shared + shape::Q_FULL, at.job);
    const struct granule_item &item = sm90_item<D>(at, at.job);
    const int64_t places = (int64_t)item.count << granule_bits;
    at.steps = sm90_uniform((int)((places + SM90_KEYS - 1) >> SM90_BITS));
    at.whole = sm90_uniform((int)(((int64_t)item.whole << granule_bits) >> SM90_BITS));
    at.job++;
    return at.steps > 0;
}

/* Masks the scores of step `step` of the item taken last, where it has masks. */
template <int SOURCE>
static __device__ __forceinline__ void sm90_mask_scores(float (&s)[64], sm90_place &at,
                                                        const struct sm90_mask &mask, bool masked) {
    at.some_dead = false;
    if (!masked)
        return;
    sm90_apply_mask(s, mask);
    if (SOURCE == SM90_BOXES) { /* copies leave zeros there */
        at.dead = mask.dead;
        at.some_dead = __any_sync(WARP_ALL, mask.dead != 0);
    }
}

/* Its first row in the tile, of a warp. */
static __device__ __forceinline__ int sm90_warp_row(const sm90_place &at) {
    return at.group * 64 + sm90_thread_here() / 32 * 16;
}

/* Scores of an item's first step, with nothing to overlap. */
template <class T, int D, int SOURCE>
static __device__ __forceinline__ void sm90_first(sm90_tile<D> &tile, struct sm90_state &state,
                                                  sm90_place &at,
                                                  const struct attention_params &p, float scale) {
    using shape = sm90_shape<D>;
    struct sm90_mask mask;
    float factor[2];
    const bool masked = at.whole == 0;
    sm90_wait<shape::STAGES, SOURCE>(at.shared + shape::K_FULL, at.step);
    product_pin(tile.s);
    sm90_scores<T, D>(tile.s, at);
    if (masked)
        sm90_look_up_mask(mask, p, sm90_item<D>(at, at.job - 1), 0, sm90_warp_row(at));
    product_wait<0>();
    product_pin(tile.s);
    sm90_release<shape::STAGES>(at, at.shared + shape::K_EMPTY, at.step);
    sm90_mask_scores<SOURCE>(tile.s, at, mask, masked);
    sm90_clear(state);
    sm90_softmax<T>(tile.s, state, factor, scale);
    sm90_round<T>(tile.weights, tile.s);
    at.step++;
}

/* Scores and softmax of step `step` of the item taken last, with P V of the step before: the
 * background of both is empty before and after. The weights are not rounded yet; answers as softmax. */
template <class T, int D, int SOURCE>
static __device__ __forceinline__ bool
sm90_advance(sm90_tile<D> &tile, struct sm90_state &state, float (&factor)[2], sm90_place &at,
             const struct attention_params &p, int32_t step, int add, float scale) {
    using shape = sm90_shape<D>;
    struct sm90_mask mask;
    const bool masked = step >= at.whole;
    sm90_wait<shape::STAGES, SOURCE>(at.shared + shape::K_FULL, at.step);
    product_pin(tile.s);
    product_pin(tile.o);
    product_pin(tile.weights);
    sm90_scores<T, D>(tile.s, at);
    sm90_wait<shape::STAGES, SOURCE>(at.shared + shape::V_FULL, at.step - 1);
    if (at.some_dead)
        sm90_clear_dead<D>(at);
    sm90_values<T, D>(tile, at, add);
    if (masked)
        sm90_look_up_mask(mask, p, sm90_item<D>(at, at.job - 1), step, sm90_warp_row(at));
    product_wait<1>();
    product_pin(tile.s);
    sm90_release<shape::STAGES>(at, at.shared + shape::K_EMPTY, at.step);
    sm90_mask_scores<SOURCE>(tile.s, at, mask, masked);
    const bool moved = sm90_softmax<T>(tile.s, state, factor, scale);
#ifdef SM90_V1
    if (state.l[0] + state.l[1] < 0)
        asm volatile("trap;");
#endif
    product_wait<0>();
    product_pin(tile.o);
    product_pin(tile.weights);
    sm90_release<shape::STAGES>(at, at.shared + shape::V_EMPTY, at.step - 1);
    at.step++;
    return moved;
}

/* P V of the last step of all, with nothing to overlap. */
template <class T, int D, int SOURCE>
static __device__ __forceinline__ void sm90_drain(sm90_tile<D> &tile, const sm90_place &at,
                                                  int add) {
    using shape = sm90_shape<D>;
    sm90_wait<shape::STAGES, SOURCE>(at.shared + shape::V_FULL, at.step - 1);
    if (at.some_dead)
        sm90_clear_dead<D>(at);
    product_pin(tile.o);
    product_pin(tile.weights);
    sm90_values<T, D>(tile, at, add);
    product_wait<0>();
    product_pin(tile.o);
    product_pin(tile.weights);
    sm90_release<shape::STAGES>(at, at.shared + shape::V_EMPTY, at.step - 1);
}

/* ---- outputs ---- */

/* A partial result: this thread's part of rows `row` and `row` + 8 of a slot, which has room for all
 * rows of a tile, whether or not they are there. */
template <class T, int D>
static __device__ __forceinline__ void
sm90_store_part(const struct attention_params &p, int64_t number, const float (&o)[D / 2],
                const struct sm90_state &state, int row) {
    const struct attention_slot slot = attention_slot_of(p, number);
    const float lower = sm90_exp2(-sm90_raise(T()));
    const int column = warp_lane_here() % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *to = slot.o + (int64_t)(row + 8 * h) * p.slot_dims + 2 * column;
        if (column == 0) {
            slot.m[row + 8 * h] = state.m[h];
            slot.l[row + 8 * h] = state.l[h] * lower;
        }
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            if (8 * j < p.slot_dims)
                *reinterpret_cast<float2 *>(to + 8 * j) = {o[4 * j + 2 * h] * lower,
                                                           o[4 * j + 2 * h + 1] * lower};
    }
}

/* A warp's 16 rows of O / l, through `staged`, its own part of shared memory: panels of 16 rows. */
template <class T, int D>
static __device__ __forceinline__ void
sm90_store_rows(const struct attention_params &p, const struct granule_item &item,
                const float (&o)[D / 2], const struct sm90_state &state, uint32_t staged,
                int first) {
    const int lane = warp_lane_here();
    const bool empty[2] = {state.l[0] == 0, state.l[1] == 0};
    const float factor[2] = {__fdividef(1, state.l[0]), __fdividef(1, state.l[1])};
    const uint32_t row = staged + (uint32_t)(lane % 16 * 128);
#pragma unroll
    for (int j = 0; j < D / 8; j += 2) { /* lanes 16 ... 31 name the rows of columns 8 (j + 1) ... */
        uint32_t x[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float *at = o + 4 * j + 2 * e;
            x[e] = empty[e % 2] ? 0 : mma_pack(at[0] * factor[e % 2], at[1] * factor[e % 2], T());
        }
        matrix_store(row + (uint32_t)(j / 8 * 16 * 128) + panel_piece(lane, j % 8 + lane / 16), x);
    }
    __syncwarp();
    constexpr int PIECES = D / 8;
    char *to = attention_head<T>(p.o, item.batch, item.head);
#pragma unroll
    for (int i = lane; i < 16 * PIECES; i += 32) {
        const int r = i / PIECES, piece = i % PIECES;
        if (first + r < item.rows && 8 * piece < p.d_v)
            *reinterpret_cast<uint4 *>(to + (item.row + first + r) * p.o.stride[2] * 2 +
                                       16 * piece) =
                shared_load_16(staged + (uint32_t)(piece / 8 * 16 * 128 + r * 128) +
                               panel_piece(r, piece % 8));
    }
    __syncwarp();
}

/* The results of the job-th item. */
template <class T, int D>
static __device__ __forceinline__ void sm90_store(const struct attention_params &p,
                                                  const sm90_place &at, uint32_t job,
                                                  const float (&o)[D / 2],
                                                  struct sm90_state &state) {
    using shape = sm90_shape<D>;
    const struct granule_item &item = sm90_item<D>(at, job);
    const int first = sm90_warp_row(at), row = first + warp_lane_here() / 4;
    state.l[0] = quad_sum(state.l[0]);
    state.l[1] = quad_sum(state.l[1]);
    if (sm90_uniform(item.parts) > 1) {
        sm90_store_part<T, D>(p, item.slot, o, state, row);
        return;
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (warp_lane_here() % 4 == 0 && row + 8 * h < item.rows)
            attention_store_lse(p, item.batch, item.head, item.row + row + 8 * h,
                                state.m[h] - sm90_raise(T()), state.l[h]);
    sm90_store_rows<T, D>(p, item, o, state,
                          at.shared + shape::O + (uint32_t)(first / 16 * (shape::TILE / 8)), first);
}

/* ---- all items ---- */

template <class T, int D, int SOURCE>
static __device__ __forceinline__ void sm90_compute(char *memory, uint32_t shared, int group,
                                                    const struct attention_params &p, float scale) {
    using shape = sm90_shape<D>;
    sm90_tile<D> tile;
    struct sm90_state state;
    sm90_place at = {memory, shared, group, sm90_thread_here() == 0, 0, 0, 0, 0, 0, false};
    float factor[2];
    if (!sm90_take<D, SOURCE>(at, p.granule_bits))
        return;
    sm90_first<T, D, SOURCE>(tile, state, at, p, scale);
    for (;;) {
        /* Said again for each item: else they are taken for different numbers in each lane. */
        at.step = (uint32_t)sm90_uniform((int)at.step);
        at.job = (uint32_t)sm90_uniform((int)at.job);
        const int32_t steps = sm90_uniform(at.steps);
#pragma unroll 1
        for (int32_t step = 1; step < steps; step++) {
            const bool moved = sm90_advance<T, D, SOURCE>(tile, state, factor, at, p, step,
                                                          step > 1, scale);
            sm90_round<T>(tile.weights, tile.s);
            if (moved)
                sm90_rescale(tile.o, factor);
        }
        sm90_release<SM90_SLOTS>(at, shared + shape::Q_EMPTY, at.job - 1);
        if (!sm90_take<D, SOURCE>(at, p.granule_bits)) {
            sm90_drain<T, D, SOURCE>(tile, at, steps > 1);
            sm90_store<T, D>(p, at, at.job - 2, tile.o, state);
            return;
        }
        struct sm90_state next;
        sm90_clear(next);
        sm90_advance<T, D, SOURCE>(tile, next, factor, at, p, 0, steps > 1, scale);
        sm90_round<T>(tile.weights, tile.s);
        sm90_store<T, D>(p, at, at.job - 2, tile.o, state);
        state = next;
    }
}

#endif
