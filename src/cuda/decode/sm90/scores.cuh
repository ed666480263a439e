/* Decode on Hopper: the warpgroup of scores. S, masks and modifiers, softmax; P, rounded, goes through
 * shared memory to the warpgroups of O. Fragments are those of device/sm90/wgmma.cuh. */
#ifndef TESSERA_CUDA_DECODE_SM90_SCORES_CUH
#define TESSERA_CUDA_DECODE_SM90_SCORES_CUH

#include "decode/sm90/config.cuh"

#define DECODE_SM90_SCORES_BARRIER 1 /* named */

/* Copies the tile's rows of Q, times p.of.q_scale, a power of two: 16 bytes by a thread. */
template <class shape>
static __device__ __forceinline__ void
decode_sm90_copy_q(uint32_t to, const struct decode_params &p, const struct decode_item &item) {
    using T = typename shape::T;
    const int piece = (int)threadIdx.x % 8;
    const int32_t rows = p.of.tile_rows * p.of.tile_heads;
#pragma unroll 1
    for (int row = (int)threadIdx.x % 128 / 8; row < shape::M; row += 16) {
        const int32_t query = decode_row_query(p, row);
        const char *const from = decode_q_at<T, false>(p, item, row, 8 * piece);
        const char *const rest = decode_q_at<T, true>(p, item, row, p.d_first) +
                                 (8 * piece - p.d_first) * (int32_t)sizeof(T);
        const uint32_t at = to + (uint32_t)(row * 128) + swizzle_piece(row, piece);
        const int32_t dims = row < rows && query < item.rows ? p.of.d_qk - 8 * piece : 0;
        const int32_t first = p.d_first - 8 * piece;
        if (p.of.q_scale == 1)
#pragma unroll
            for (int s = 0; s < shape::K_PANELS; s++)
                cp_async_16_l2_128(at + (uint32_t)(s * shape::Q_PANEL),
                                   (64 * s < first ? from : rest) + 128 * s, 64 * s < dims);
        else
#pragma unroll 1
            for (int s = 0; s < shape::K_PANELS; s++)
                shared_store_16(at + (uint32_t)(s * shape::Q_PANEL),
                                64 * s < dims
                                    ? attention_load_16<T>((64 * s < first ? from : rest) + 128 * s,
                                                           16, p.of.q_scale)
                                    : uint4{0, 0, 0, 0});
    }
    cp_async_wait_all();
    proxy_fence();
}

/* Issues S [64, KEYS] = Q [64, D] K [KEYS, D]^T. */
template <class shape>
static __device__ __forceinline__ void decode_sm90_qk(float (&s)[shape::KEYS / 2], uint32_t q,
                                                      uint32_t k) {
    /* Found anew in each step: else registers would keep the descriptors of all WGMMAs. */
    const uint64_t of_q = wgmma_k_major((uint32_t)sm90_uniform((int)q));
    const uint64_t of_k = wgmma_k_major((uint32_t)sm90_uniform((int)k));
    wgmma_fence_operand(s);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < shape::D / 16; i++) {
        const uint64_t on_q = i / 4 * (shape::Q_PANEL / 16) + i % 4 * (32 / 16);
        const uint64_t on_k = i / 4 * (shape::PANEL / 16) + i % 4 * (32 / 16);
        wgmma_ss(s, of_q + on_q, of_k + on_k, i != 0, typename shape::T());
    }
    wgmma_commit();
}

/* Hands P of a step to the warpgroups of O, with factors where maxima moved, and maxima and sums after
 * an item's last step. */
template <class shape>
static __device__ __forceinline__ void
decode_sm90_hand_p(char *memory, uint32_t shared, const float (&s)[shape::KEYS / 2], bool moved,
                   const float (&factor)[2], const struct sm90_state &state, bool last) {
    const int lane = warp_lane(), warp = (int)threadIdx.x / 32 % 4, row = 16 * warp + lane / 4;
    uint32_t probs[shape::KEYS / 4];
    sm90_round<typename shape::T, shape::KEYS / 2>(probs, s);
    const int of = 16 * warp + lane % 16; /* the row whose address this lane gives */
#pragma unroll
    for (int i = 0; i < shape::KEYS / 16; i++)
        stmatrix(shared + shape::P + (uint32_t)(of * 128) + swizzle_piece(of, 2 * i + lane / 16),
                 reinterpret_cast<const uint32_t(&)[4]>(probs[4 * i]));
    if (lane == 0)
        reinterpret_cast<int32_t *>(memory + shape::MOVED)[warp] = moved;
    if (moved && lane % 4 == 0)
#pragma unroll
        for (int r = 0; r < 2; r++)
            reinterpret_cast<float *>(memory + shape::FACTORS)[row + 8 * r] = factor[r];
    if (!last)
        return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float l = quad_sum(state.l[r]);
        if (lane % 4 == 0)
            reinterpret_cast<float2 *>(memory + shape::SUMS)[row + 8 * r] = {state.m[r], l};
    }
}

/* What the scores of an item go by. */
struct decode_sm90_scoring {
    struct decode_item item;
    struct decode_lane lane;
    struct sm90_state state;
    float scale;
};

/* Waits for the keys of a step, and issues its S. */
template <class shape>
static __device__ __forceinline__ void decode_sm90_issue(float (&s)[shape::KEYS / 2],
                                                         uint32_t shared, uint32_t step) {
    barrier_wait(decode_sm90_at<shape>(shared + shape::K_FULL, step),
                 decode_sm90_phase<shape>(step));
    proxy_fence(); /* rows are copied by cp.async */
    decode_sm90_qk<shape>(s, shared + shape::Q, shared + step % shape::STAGES * shape::STAGE);
}

/* From S of a step to P, handed on. */
template <class shape, bool MODIFIED>
static __device__ __forceinline__ void
decode_sm90_weigh(float (&s)[shape::KEYS / 2], char *memory, uint32_t shared,
                  const struct decode_params &p, struct decode_sm90_scoring &by, uint32_t step,
                  bool last) {
    const uint32_t stage = step % shape::STAGES;
    const struct decode_place *const places =
        reinterpret_cast<struct decode_place *>(memory + shape::PLACES) + stage * shape::KEYS;
    const uint4 partial = *reinterpret_cast<const uint4 *>(memory + shape::PARTIAL + 16 * stage);
    uint32_t *const kept = reinterpret_cast<uint32_t *>(memory + shape::KEPT) +
                           decode_group<shape>() * shape::KEPT_WARP;
    float(&tiles)[shape::TILES][4] = reinterpret_cast<float(&)[shape::TILES][4]>(s);
    float factor[2] = {1, 1};
    if (MODIFIED) {
        decode_modify<shape>(tiles, p, by.item, by.lane, places);
        __syncwarp(); /* all have read the draws before */
        decode_draw<shape>(kept, p, by.item, by.lane, places);
        __syncwarp();
    }
    if (partial.x | partial.y | partial.z | partial.w)
        decode_mask<shape>(tiles, by.lane, places);
    if (!shape::V_IN_K)
        decode_sm90_arrive(decode_sm90_at<shape>(shared + shape::K_EMPTY, step));
    const bool moved =
        sm90_softmax<typename shape::T, shape::KEYS / 2>(s, by.state, factor, by.scale);
    if (MODIFIED)
        decode_drop(reinterpret_cast<float(&)[1][DECODE_GROUPS][4]>(tiles), p, kept);
    barrier_wait(shared + shape::P_EMPTY, (step & 1) ^ 1);
    decode_sm90_hand_p<shape>(memory, shared, s, moved, factor, by.state, last);
    decode_sm90_arrive(shared + shape::P_FULL);
}

/* A step whose S is in flight: S of the next one is issued first, and multiplied meanwhile. */
template <class shape>
static __device__ __forceinline__ void
decode_sm90_overlap(float (&s)[shape::KEYS / 2], float (&next)[shape::KEYS / 2], char *memory,
                    uint32_t shared, const struct decode_params &p, struct decode_sm90_scoring &by,
                    uint32_t &step) {
    decode_sm90_issue<shape>(next, shared, step + 1);
    wgmma_wait<1>();
    wgmma_fence_operand(s);
    decode_sm90_weigh<shape, false>(s, memory, shared, p, by, step, false);
    step++;
}

/* A step whose S is in flight, and no other one. */
template <class shape, bool MODIFIED>
static __device__ __forceinline__ void
decode_sm90_alone(float (&s)[shape::KEYS / 2], char *memory, uint32_t shared,
                  const struct decode_params &p, struct decode_sm90_scoring &by, uint32_t &step,
                  bool last) {
    wgmma_wait<0>();
    wgmma_fence_operand(s);
    decode_sm90_weigh<shape, MODIFIED>(s, memory, shared, p, by, step, last);
    step++;
}

/* The scores of an item; `step` counts steps of all items. */
template <class shape, bool MODIFIED>
static __device__ __forceinline__ void
decode_sm90_score(char *memory, uint32_t shared, const struct decode_params &p,
                  const struct work_item &w, uint32_t &step) {
    struct decode_sm90_scoring by;
    by.item = decode_item_of(p, w);
    by.lane = decode_lane_of<shape>(p);
    by.scale = MODIFIED ? modify_scale(p.of.modify, p.of.score_scale) : p.of.score_scale;
    sm90_clear(by.state);
    const int32_t steps = decode_sm90_steps<shape>(by.item);
    warpgroup_sync(DECODE_SM90_SCORES_BARRIER); /* all have used the Q before */
    decode_sm90_copy_q<shape>(shared + shape::Q, p, by.item);
    warpgroup_sync(DECODE_SM90_SCORES_BARRIER);
    float s[shape::KEYS / 2], next[shape::KEYS / 2];
    if (MODIFIED) { /* registers are short */
#pragma unroll 1
        for (int32_t left = steps; left > 0; left--) {
            decode_sm90_issue<shape>(s, shared, step);
            decode_sm90_alone<shape, true>(s, memory, shared, p, by, step, left == 1);
        }
        return;
    }
    int32_t left = steps;
    decode_sm90_issue<shape>(s, shared, step);
#pragma unroll 1
    for (; left > 2; left -= 2) {
        decode_sm90_overlap<shape>(s, next, memory, shared, p, by, step);
        decode_sm90_overlap<shape>(next, s, memory, shared, p, by, step);
    }
    if (left == 1) {
        decode_sm90_alone<shape, false>(s, memory, shared, p, by, step, true);
    } else {
        decode_sm90_overlap<shape>(s, next, memory, shared, p, by, step);
        decode_sm90_alone<shape, false>(next, memory, shared, p, by, step, true);
    }
}

#endif
