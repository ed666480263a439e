/* Decode on Hopper: the warpgroup of scores. S, masks and modifiers, softmax; P, rounded, goes through
 * shared memory to the warpgroups of O. Fragments are those of device/sm90/wgmma.cuh. */
#ifndef TESSERA_CUDA_DECODE_SM90_SCORES_CUH
#define TESSERA_CUDA_DECODE_SM90_SCORES_CUH

#include "decode/sm90/config.cuh"

/* Named barriers. */
enum { DECODE_SM90_SCORES = 1 };

/* Copies the tile's rows of Q, times p.run.q_scale, a power of two: 16 bytes by a thread. */
template <class shape>
DEVICE void decode_sm90_copy_q(uint32_t to, const struct decode_params &p,
                               const struct decode_item &item) {
    using T = typename shape::T;
    const int piece = (int)threadIdx.x % 8;
    const int32_t rows = p.run.tile_rows * p.run.tile_heads;
#pragma unroll 1
    for (int row = (int)threadIdx.x % 128 / 8; row < shape::M; row += 16) {
        const int32_t query = filled_row_query(p, row);
        const char *const from = decode_q_at<T, false>(p, item, row, 8 * piece);
        const char *const rest = decode_q_at<T, true>(p, item, row, p.d_first) +
                                 (8 * piece - p.d_first) * (int32_t)sizeof(T);
        const uint32_t at = to + (uint32_t)(row * 128) + swizzle_piece(row, piece);
        const int32_t dims = row < rows && query < item.rows ? p.run.d_qk - 8 * piece : 0;
        const int32_t first = p.d_first - 8 * piece;
        if (p.run.q_scale == 1)
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
                                                           16, p.run.q_scale)
                                    : uint4{0, 0, 0, 0});
    }
    cp_async_wait_all();
    proxy_fence();
}

/* Begins S [64, 2 N] = Q [64, 64 PANELS] K [2 N, 64 PANELS]^T, from these panels on. */
template <class shape, int PANELS, int N>
DEVICE void decode_sm90_begin_qk(float (&s)[N], uint32_t q, uint32_t k) {
    /* Found anew in each step: else registers would keep the descriptors of all WGMMAs. */
    const uint64_t of_q = wgmma_k_major((uint32_t)sm90_uniform((int)q));
    const uint64_t of_k = wgmma_k_major((uint32_t)sm90_uniform((int)k));
    wgmma_fence_operand(s);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4 * PANELS; i++) {
        const uint64_t on_q = i / 4 * (shape::Q_PANEL / 16) + i % 4 * (32 / 16);
        const uint64_t on_k = i / 4 * (shape::PANEL / 16) + i % 4 * (32 / 16);
        wgmma_ss(s, of_q + on_q, of_k + on_k, i != 0, typename shape::T());
    }
    wgmma_commit();
}

/* Ends all S begun but the last PENDING; this one is then complete. */
template <int PENDING, int N> DEVICE void decode_sm90_end_qk(float (&s)[N]) {
    wgmma_wait<PENDING>();
    wgmma_fence_operand(s);
}

/* Adds sums of a step's keys, times the scales of their dims where there are some. */
template <class shape>
DEVICE void decode_sm90_add_scaled(float *s, const float (&part)[shape::KEYS / 2],
                                   const float *scales) {
#pragma unroll
    for (int j = 0; j < shape::TILES; j++) {
        float2 by = {1, 1};
        if (scales)
            by = *reinterpret_cast<const float2 *>(scales + 8 * j);
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[4 * j + e] = fmaf(part[4 * j + e], e % 2 ? by.y : by.x, s[4 * j + e]);
    }
}

/* Scores of keys with `n` scales each, which multiply sums over DECODE_SCALE_DIMS dims; dims of the second view have
 * none. Of two such sums one is scaled while the tensor cores have the other. */
template <class shape>
DEVICE void decode_sm90_qk_scaled(float (&s)[shape::KEYS / 2], uint32_t q, uint32_t k,
                                  const float *scales, int n) {
    constexpr int PANELS = DECODE_SCALE_DIMS / 64;
    constexpr uint32_t Q_NEXT = PANELS * shape::Q_PANEL, K_NEXT = PANELS * shape::PANEL;
    float part[2][shape::KEYS / 2];
    scales += warp_lane() % 4 * 2;
#pragma unroll
    for (int i = 0; i < shape::KEYS / 2; i++)
        s[i] = 0;
#pragma unroll 1
    for (int g = 0; g < shape::V_PANELS / PANELS; g += 2, q += 2 * Q_NEXT, k += 2 * K_NEXT) {
        decode_sm90_begin_qk<shape, PANELS>(part[0], q, k);
        decode_sm90_begin_qk<shape, PANELS>(part[1], q + Q_NEXT, k + K_NEXT);
        decode_sm90_end_qk<1>(part[0]);
        decode_sm90_add_scaled<shape>(s, part[0], scales + min(g, n - 1) * shape::KEYS);
        decode_sm90_end_qk<0>(part[1]);
        decode_sm90_add_scaled<shape>(s, part[1], scales + min(g + 1, n - 1) * shape::KEYS);
    }
    decode_sm90_begin_qk<shape, shape::K_PANELS % PANELS>(part[0], q, k);
    decode_sm90_end_qk<0>(part[0]);
    decode_sm90_add_scaled<shape>(s, part[0], NULL);
}

/* P of a step, rounded; or in 24 bits: of four words, the last goes into what the others have no place for. */
template <class shape>
DEVICE void decode_sm90_store_p(uint32_t shared, const float (&s)[shape::KEYS / 2]) {
    if (shape::STORED) {
        uint32_t words[3 * shape::TILES];
#pragma unroll
        for (int j = 0; j < shape::TILES; j++)
#pragma unroll
            for (int i = 0; i < 3; i++)
                words[3 * j + i] = __byte_perm(__float_as_uint(s[4 * j + i]),
                                               __float_as_uint(s[4 * j + 3]), 0x3215 + (uint32_t)i);
#pragma unroll
        for (int i = 0; i < 3; i++)
            shared_store_16(shared + decode_sm90_p_of_lane<shape>(i),
                            {words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]});
        return;
    }
    const int lane = warp_lane(), row = 16 * decode_group<shape>() + lane % 16;
    uint32_t probs[shape::KEYS / 4];
    sm90_round<typename shape::T, shape::KEYS / 2>(probs, s);
#pragma unroll
    for (int i = 0; i < shape::KEYS / 16; i++)
        stmatrix(shared + decode_sm90_p_at<shape>(row, 2 * i + lane / 16),
                 reinterpret_cast<const uint32_t(&)[4]>(probs[4 * i]));
}

/* Hands factors to the warpgroups of O where maxima moved. */
template <class shape>
DEVICE void decode_sm90_hand_factors(char *memory, bool moved, const float (&factor)[2]) {
    const int lane = warp_lane(), warp = (int)threadIdx.x / 32 % 4, row = 16 * warp + lane / 4;
    if (lane == 0)
        reinterpret_cast<int32_t *>(memory + shape::MOVED)[warp] = moved;
    if (moved && lane % 4 == 0)
#pragma unroll
        for (int r = 0; r < 2; r++)
            reinterpret_cast<float *>(memory + shape::FACTORS)[row + 8 * r] = factor[r];
}

/* Hand-over of maxima and sums after an item's last step. */
template <class shape>
DEVICE void decode_sm90_hand_sums(char *memory, const struct sm90_state &state) {
    const int lane = warp_lane(), row = (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float l = quad_sum(state.l[r]);
        if (lane % 4 == 0)
            reinterpret_cast<float2 *>(memory + shape::SUMS)[row + 8 * r] = {state.m[r], l};
    }
}

/* State of an item's scores. */
struct decode_sm90_scoring {
    struct decode_item item;
    struct decode_lane lane;
    struct sm90_state state;
    float scale;
};

/* S of S_STEPS steps, whose keys are waited for. */
template <class shape>
DEVICE void decode_sm90_multiply(float (&s)[shape::S_STEPS * shape::KEYS / 2], const char *memory,
                                 uint32_t shared, const struct decode_params &p, uint32_t step) {
    const uint32_t q = shared + shape::Q, k = shared + decode_sm90_rows<shape>(step);
#pragma unroll
    for (int i = 0; i < shape::S_STEPS; i++)
        barrier_wait(ring_barrier<shape::STAGES>(shared + shape::K_FULL, step + i),
                     ring_parity<shape::STAGES>(step + i));
    proxy_fence(); /* rows are written by threads */
    if (shape::STORED && p.k.scales)
        decode_sm90_qk_scaled<shape>(
            reinterpret_cast<float(&)[shape::KEYS / 2]>(s), q, k,
            reinterpret_cast<const float *>(memory + decode_sm90_scales_at<shape>(step)),
            p.k.scales);
    else {
        decode_sm90_begin_qk<shape, shape::K_PANELS>(s, q, k);
        decode_sm90_end_qk<0>(s);
    }
}

/* From S of a step to P, handed on. */
template <class shape, bool MODIFIED>
DEVICE void decode_sm90_weigh(float (&s)[shape::KEYS / 2], char *memory, uint32_t shared,
                              const struct decode_params &p, struct decode_sm90_scoring &by,
                              uint32_t step, bool last) {
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
        decode_mask<shape>(tiles, p, by.lane, places, [&](int32_t key) {
            return p.words[by.item.T * p.image.tile_words + key];
        });
    if (!shape::V_IN_K)
        decode_sm90_arrive(ring_barrier<shape::STAGES>(shared + shape::K_EMPTY, step));
    const bool moved =
        sm90_softmax<typename shape::T, shape::KEYS / 2>(s, by.state, factor, by.scale);
    if (MODIFIED)
        decode_drop(reinterpret_cast<float(&)[1][DECODE_GROUPS][4]>(tiles), p, kept);
    barrier_wait(shared + shape::P_EMPTY, (step & 1) ^ 1);
    decode_sm90_store_p<shape>(shared, s);
    decode_sm90_hand_factors<shape>(memory, moved, factor);
    if (last)
        decode_sm90_hand_sums<shape>(memory, by.state);
    decode_sm90_arrive(shared + shape::P_FULL);
}

/* The scores of an item; `step` counts steps of all items. */
template <class shape, bool MODIFIED>
DEVICE void decode_sm90_score(char *memory, uint32_t shared, const struct decode_params &p,
                              const struct work_item &w, uint32_t &step) {
    constexpr int N = shape::KEYS / 2; /* scores of a thread, of a step */
    struct decode_sm90_scoring by;
    by.item = decode_item_of(p, w);
    by.lane = decode_lane_of<shape>(p);
    by.scale = MODIFIED ? modify_scale(p.run.modify, p.run.score_scale) : p.run.score_scale;
    sm90_clear(by.state);
    warpgroup_sync(DECODE_SM90_SCORES); /* all have used the Q before */
    decode_sm90_copy_q<shape>(shared + shape::Q, p, by.item);
    warpgroup_sync(DECODE_SM90_SCORES);
    const uint32_t end = step + (uint32_t)decode_sm90_steps<shape>(by.item);
#pragma unroll 1
    while (step != end) {
        float s[shape::S_STEPS * N];
        decode_sm90_multiply<shape>(s, memory, shared, p, step);
#pragma unroll
        for (int i = 0; i < shape::S_STEPS; i++, step++)
            decode_sm90_weigh<shape, MODIFIED>(reinterpret_cast<float(&)[N]>(s[N * i]), memory,
                                               shared, p, by, step, step + 1 == end);
    }
}

#endif
