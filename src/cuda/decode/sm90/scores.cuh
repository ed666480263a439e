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

/* S [64, N] (+)= Q [64, 64 PANELS] K [N, 64 PANELS]^T of SPAN steps, from these panels on. */
template <class shape, int PANELS>
DEVICE void decode_sm90_qk(float (&s)[shape::SPAN * shape::KEYS / 2], uint32_t q, uint32_t k) {
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
    wgmma_wait<0>();
    wgmma_fence_operand(s);
}

/* Scores of keys with scales, which multiply sums over DECODE_SCALE_DIMS dims; dims of the second view have none. */
template <class shape>
DEVICE void decode_sm90_qk_scaled(float (&s)[shape::SPAN * shape::KEYS / 2], uint32_t q, uint32_t k,
                                  const float *scales, const struct decode_stored &stored) {
    constexpr int N = shape::SPAN * shape::KEYS / 2, PANELS = DECODE_SCALE_DIMS / 64;
    constexpr int GROUPS = shape::K_PANELS / PANELS;
    scales += warp_lane() % 4 * 2;
    float part[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        s[i] = 0;
#pragma unroll 1
    for (int g = 0; g <= GROUPS; g++, q += PANELS * shape::Q_PANEL, k += PANELS * shape::PANEL) {
        if (g < GROUPS)
            decode_sm90_qk<shape, PANELS>(part, q, k);
        else
            decode_sm90_qk<shape, shape::K_PANELS % PANELS>(part, q, k);
        const float *const at = scales + min(g, stored.scales - 1) * shape::KEYS;
#pragma unroll
        for (int j = 0; j < N / 4; j++) {
            float2 by = {1, 1};
            if (g < stored.scaled) /* 8 keys of a step: [SCALES_KEY][KEYS] */
                by = *reinterpret_cast<const float2 *>(
                    at + 8 * j / shape::KEYS * (shape::SCALES_KEY * shape::KEYS) +
                    8 * j % shape::KEYS);
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[4 * j + e] = fmaf(part[4 * j + e], e % 2 ? by.y : by.x, s[4 * j + e]);
        }
    }
}

/* P of P_KEYS keys, rounded, or in f32. */
template <class shape>
DEVICE void decode_sm90_store_p(char *memory, uint32_t shared,
                                const float (&s)[shape::P_KEYS / 2]) {
    const int lane = warp_lane(), warp = (int)threadIdx.x / 32 % 4;
    if (shape::STORED) {
        const int row = 16 * warp + lane / 4;
#pragma unroll
        for (int i = 0; i < shape::P_KEYS / 2; i += 2)
            *reinterpret_cast<float2 *>(
                memory + decode_sm90_p_at<shape>(row + i / 2 % 2 * 8, i / 4 * 2 + lane % 4 / 2) +
                lane % 2 * 8) = {s[i], s[i + 1]};
        return;
    }
    const int row = 16 * warp + lane % 16;
    uint32_t probs[shape::P_KEYS / 4];
    sm90_round<typename shape::T, shape::P_KEYS / 2>(probs, s);
#pragma unroll
    for (int i = 0; i < shape::P_KEYS / 16; i++)
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

/* S of SPAN steps, whose keys are waited for. */
template <class shape>
DEVICE void decode_sm90_multiply(float (&s)[shape::SPAN * shape::KEYS / 2], const char *memory,
                                 uint32_t shared, const struct decode_params &p, uint32_t step) {
    const uint32_t q = shared + shape::Q, k = shared + decode_sm90_rows<shape>(step);
#pragma unroll
    for (int i = 0; i < shape::SPAN; i++)
        barrier_wait(ring_barrier<shape::STAGES>(shared + shape::K_FULL, step + i),
                     ring_parity<shape::STAGES>(step + i));
    proxy_fence(); /* rows are written by threads */
    if (shape::STORED && p.k.scales)
        decode_sm90_qk_scaled<shape>(
            s, q, k, reinterpret_cast<const float *>(memory + decode_sm90_scales_at<shape>(step)),
            p.k);
    else
        decode_sm90_qk<shape, shape::K_PANELS>(s, q, k);
}

/* From S of a step to P, handed on. */
template <class shape, bool MODIFIED>
DEVICE void decode_sm90_weigh(float (&s)[shape::KEYS / 2], char *memory, uint32_t shared,
                              const struct decode_params &p, struct decode_sm90_scoring &by,
                              uint32_t step, bool last) {
    constexpr int FLOATS = shape::P_KEYS / 2; /* floats of a thread in a slice */
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
#pragma unroll
    for (int i = 0; i < shape::P_SLICES; i++) {
        barrier_wait(shared + shape::P_EMPTY, ((shape::P_SLICES * step + i) & 1) ^ 1);
        decode_sm90_store_p<shape>(memory, shared,
                                   reinterpret_cast<float(&)[FLOATS]>(s[FLOATS * i]));
        if (i == 0)
            decode_sm90_hand_factors<shape>(memory, moved, factor);
        if (last && i + 1 == shape::P_SLICES)
            decode_sm90_hand_sums<shape>(memory, by.state);
        decode_sm90_arrive(shared + shape::P_FULL);
    }
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
        float s[shape::SPAN * N];
        decode_sm90_multiply<shape>(s, memory, shared, p, step);
#pragma unroll
        for (int i = 0; i < shape::SPAN; i++, step++)
            decode_sm90_weigh<shape, MODIFIED>(reinterpret_cast<float(&)[N]>(s[N * i]), memory,
                                               shared, p, by, step, step + 1 == end);
    }
}

#endif
