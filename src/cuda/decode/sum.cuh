/*
 * Sums of decode with mma.sync, sm_80 and later: attention of few rows over lists of a filled image, or of indices.
 * A CTA takes an item, a part of a query tile's keys; its M rows are heads packed together, and queries:
 *
 *   S [M, KEYS] = Q [M, D] K [KEYS, D]^T    softmax: P [M, KEYS]    O [M, DV] += P V [KEYS, DV]
 *
 * Rows of K and V come through a ring of STAGES stages. A part of 128 keys is wholly in flight before its first
 * product. Warps that share rows deal the keys of S among them, hand their scores on through shared memory, and
 * then deal the dims of O. Each weighs all keys, so that no maximum has to be exchanged:
 *
 *   step n       stage n is there | S by keys | scores stand | softmax, O by dims
 *   meanwhile    stage n - 1 is filled again; the keys of step n + STAGES are looked up
 *
 * Rows of 8 bits are copied as they are, and widened to those of Q's type where they stand, by the warp that
 * copied them. Scales of K multiply scores; of V the weights, or O where there is one for all keys.
 * MODIFIED: with score modifiers, K or V of 8 bits, or second views of Q and K (rope), which lie behind the
 * first ones here. Q of f32 is split in rows of 16 bits (config.cuh).
 */
#ifndef TESSERA_CUDA_DECODE_SUM_CUH
#define TESSERA_CUDA_DECODE_SUM_CUH

#include "decode/keys.cuh"
#include "decode/modify.cuh"
#include "device/softmax.cuh"

/* An item under way: its steps, of KEYS keys each. `lists`: keys of the item's list, by their number (keys.cuh). */
template <class shape, bool MODIFIED, class lists> struct decode_pass {
    using T = typename shape::T;
    using state_type = struct attention_state<T, shape::DIMS_O, 16>;
    static constexpr bool SHORT = MODIFIED && shape::D > 256; /* registers are short */
    static constexpr bool WHOLE = SHORT || shape::KEYS == 8 * DECODE_GROUPS; /* steps are weighed */
    static constexpr int KEYS = shape::KEYS, STAGES = shape::STAGES, RING = STAGES + 1;

    char *memory;
    uint32_t shared;
    const struct decode_params &p;
    struct decode_item item;
    lists list;
    int32_t steps;
    const char *k_rows, *v_rows;

    __device__ __forceinline__ uint32_t stage(int32_t step) const {
        return shared + (uint32_t)(step % STAGES * shape::STAGE);
    }
    __device__ __forceinline__ struct decode_place *places(int32_t step) const {
        return reinterpret_cast<struct decode_place *>(memory + shape::PLACES) + step % RING * KEYS;
    }
    __device__ __forceinline__ float *scores(void) const {
        return reinterpret_cast<float *>(memory + shape::S);
    }
    __device__ __forceinline__ float *lower(void) const {
        return reinterpret_cast<float *>(memory + shape::LOWER);
    }
    __device__ __forceinline__ const float *scales(int32_t step) const {
        return reinterpret_cast<const float *>(memory + decode_scales_at<shape>(step));
    }
    __device__ __forceinline__ uint32_t *kept(void) const {
        return reinterpret_cast<uint32_t *>(memory + shape::KEPT) +
               decode_group<shape>() * (KEYS / 2);
    }
    /* Keys of a step that are weighed: whole groups of 8 DECODE_GROUPS, and none behind the last step. */
    __device__ __forceinline__ int live(int32_t step) const {
        const int32_t left = (int32_t)(item.end - item.begin) - step * KEYS;
        return min(KEYS, (left + 8 * DECODE_GROUPS - 1) / (8 * DECODE_GROUPS) * 8 * DECODE_GROUPS);
    }

    /* Copies rows of K and V to a stage. */
    __device__ __forceinline__ void fill(int32_t step) const {
        const uint32_t to = stage(step);
        const struct decode_place *const from = places(step);
        if (WHOLE ? step < steps : (int)threadIdx.x / 32 * (KEYS / shape::WARPS) < live(step)) {
            const char *const k = SHORT ? filled_head_rows_here(p.k.rows, item) : k_rows;
            const char *const v = SHORT ? filled_head_rows_here(p.v.rows, item) : v_rows;
            decode_copy<KEYS, shape::WARPS, shape::ROW, MODIFIED>(to, k, p.k, p.shift, from);
            if (MODIFIED)
                decode_copy_rest<KEYS, shape::WARPS, shape::ROW>(to, p.k, p.shift, item, from);
            if (!shape::V_IN_K)
                decode_copy<KEYS, shape::WARPS, shape::ROW_V, MODIFIED>(to + shape::PANEL, v, p.v,
                                                                        p.shift, from);
            if (MODIFIED && !shape::V_IN_K)
                decode_copy_rest<KEYS, shape::WARPS, shape::ROW_V>(to + shape::PANEL, p.v, p.shift,
                                                                   item, from);
        }
        if (MODIFIED && p.stored && step < steps)
            decode_copy_scales<shape>(shared + decode_scales_at<shape>(step), p, item, from);
        cp_async_commit();
    }

    /* Waits for a step's rows, which this warp then widens where they have 8 bits, and fills the stage before. */
    __device__ __forceinline__ void arrive(int32_t step) const {
        if (step == 0)
            cp_async_wait<STAGES - 1>();
        else
            cp_async_wait<STAGES - 2>();
        if (MODIFIED && p.stored) {
            __syncwarp(); /* a warp widens what it has copied */
            decode_widen<T, KEYS, shape::WARPS, shape::ROW>(stage(step), p.k);
            if (!shape::V_IN_K)
                decode_widen<T, KEYS, shape::WARPS, shape::ROW_V>(stage(step) + shape::PANEL, p.v);
        }
        __syncthreads();
        if (step > 0)
            fill(step - 1 + STAGES);
    }

    /* S of this warp's keys of a step, handed on. */
    __device__ __forceinline__ void score(int32_t step, const struct decode_q<shape> &q,
                                          const struct decode_lane &lane) const {
        constexpr int KEYS_WARP = 8 * shape::TILES;
        const int row = 16 * decode_group<shape>() + warp_lane() / 4;
        const int key = decode_column<shape>() * KEYS_WARP; /* first of the warp's */
        const struct decode_place *const place = places(step) + key;
        float s[shape::TILES][4];
        if (key >= (WHOLE ? KEYS : live(step)))
            return;
        decode_scores<shape, MODIFIED>(s, q, shared + shape::Q,
                                       stage(step) + (uint32_t)(key * shape::ROW),
                                       scales(step) + key * shape::SCALES_KEY, p.k);
        decode_join<shape>(s, lower());
        if (MODIFIED) {
            decode_modify<shape>(s, p, item, lane, place);
            decode_draw<shape>(kept() + key / 2, p, item, lane, place);
        }
        decode_mask<shape>(s, p, lane, place,
                           [&](int32_t key) { return decode_rows(p, list, key); });
#pragma unroll
        for (int j = 0; j < shape::TILES; j++)
#pragma unroll
            for (int r = 0; r < shape::ROWS_LANE; r++)
                *reinterpret_cast<float2 *>(
                    &scores()[(row + 8 * r) * shape::S_PITCH + key + 8 * j + warp_lane() % 4 * 2]) =
                    {s[j][2 * r], s[j][2 * r + 1]};
    }

    /* Softmax and P V of a step, from all scores of this warp's rows. */
    __device__ __forceinline__ void add(int32_t step, state_type &state) const {
        const int row = 16 * decode_group<shape>() + warp_lane() / 4;
        const int now = WHOLE ? KEYS : live(step);
        const uint32_t panel = stage(step) + (shape::V_IN_K ? 0 : shape::PANEL);
        const float scale =
            MODIFIED ? modify_scale(p.run.modify, p.run.score_scale) : p.run.score_scale;
#pragma unroll 1
        for (int at = 0; at < now; at += 8 * DECODE_GROUPS) {
            float s[1][DECODE_GROUPS][4];
#pragma unroll
            for (int j = 0; j < DECODE_GROUPS; j++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float2 two = {-INFINITY, -INFINITY};
                    if (r < shape::ROWS_LANE)
                        two = *reinterpret_cast<const float2 *>(
                            &scores()[(row + 8 * r) * shape::S_PITCH + at + 8 * j +
                                      warp_lane() % 4 * 2]);
                    s[0][j][2 * r] = two.x, s[0][j][2 * r + 1] = two.y;
                }
            decode_add<shape>(state, s, panel + (uint32_t)(at * shape::ROW_V), scale, [&] {
                if (MODIFIED) {
                    decode_drop(s, p, kept() + at / 2);
                    decode_scale_weights<shape>(
                        s, p, scales(step) + at * shape::SCALES_KEY + shape::SCALES_K);
                }
            });
        }
    }
};

/* Begins an item: Q, and rows of all stages but one, are on their way. */
template <class shape, bool MODIFIED, class lists>
DEVICE struct decode_pass<shape, MODIFIED, lists>
decode_begin(char *memory, const struct decode_params &p, const struct decode_item &item,
             const lists &list) {
    using pass_type = struct decode_pass<shape, MODIFIED, lists>;
    const uint32_t shared = shared_address(memory);
    pass_type pass = {memory,
                      shared,
                      p,
                      item,
                      list,
                      0,
                      filled_head_rows(p.k.rows, item),
                      filled_head_rows(p.v.rows, item)};
    pass.item.end = decode_look_up<shape::THREADS>(
        pass.places(0), pass_type::RING *shape::KEYS, p, item, list, pass.scores(), [&] {
            if (!shape::SPLIT)
                decode_copy_q<shape, MODIFIED>(shared + shape::Q, p, item);
            cp_async_commit();
        });
    pass.steps = (int32_t)((pass.item.end - item.begin + shape::KEYS - 1) / shape::KEYS);
#pragma unroll 1
    for (int32_t step = 0; step < shape::STAGES - !shape::Q_APART; step++)
        pass.fill(step);
    if (shape::SPLIT) /* while keys are on their way: it waits for what it reads */
        decode_split_q<shape, MODIFIED>(shared + shape::Q, pass.lower(), p, item);
    return pass;
}

/* Sums over an item's keys, of its rows. */
template <class shape, bool MODIFIED, class lists>
DEVICE void decode_sum(struct attention_state<typename shape::T, shape::DIMS_O, 16> &state,
                       char *memory, const struct decode_params &p, const struct decode_item &item,
                       const lists &list) {
    using pass_type = struct decode_pass<shape, MODIFIED, lists>;
    constexpr int KEYS = shape::KEYS, STAGES = shape::STAGES;
    const pass_type pass = decode_begin<shape, MODIFIED>(memory, p, item, list);
    struct decode_q<shape> q;
    const struct decode_lane lane = decode_lane_of<shape>(p);
    attention_clear(state, 0);
    if (shape::Q_HELD) {
        cp_async_wait<STAGES - !shape::Q_APART>();
        __syncthreads();
        /* Warps that have keys do: lists of decode/direct.cuh begin at 0. */
        if (!shape::Q_APART || decode_column<shape>() * 8 * shape::TILES < (int)pass.item.end)
            decode_hold_q(q, pass.shared + shape::Q);
        __syncthreads(); /* all have read Q; and no load moves on, where registers are short */
    }
    if (!shape::Q_APART)
        pass.fill(STAGES - 1);
#pragma unroll 1
    for (int32_t step = 0; step < pass.steps; step++) {
        pass.arrive(step);
        /* Lookup of the step before, whose places all have read. Plain scores do not wait for the lookup. */
        const bool found = step > 0 && (int)threadIdx.x < KEYS;
        struct decode_place *const later = pass.places(step + STAGES) + (int)threadIdx.x;
        struct decode_place next = DECODE_NO_PLACE;
        if (found && step + STAGES < pass.steps)
            next = decode_find(p, pass.item, pass.list,
                               pass.item.begin + (uint32_t)((step + STAGES) * KEYS) + threadIdx.x);
        if (!MODIFIED)
            next.key = next.row; /* modifiers alone need keys, and registers are short */
        if (MODIFIED && found)
            *later = next;
        pass.score(step, q, lane);
        if (!MODIFIED && found)
            *later = next;
        __syncthreads();
        pass.add(step, state);
    }
    cp_async_wait_all(); /* Q, where there is no step */
    if (MODIFIED && p.v_late)
        attention_scale_o(state, decode_scale_late(p, pass.item));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        state.l[r] += __shfl_xor_sync(WARP_ALL, state.l[r], 1);
        state.l[r] += __shfl_xor_sync(WARP_ALL, state.l[r], 2);
    }
}

#endif
