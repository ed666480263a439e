/* Decode on Hopper: the two warpgroups of O, half of its dims each. */
#ifndef TESSERA_CUDA_DECODE_SM90_OUTPUTS_CUH
#define TESSERA_CUDA_DECODE_SM90_OUTPUTS_CUH

#include "decode/sm90/config.cuh"

/* A fragments of P [16, KEYS] of this warp's rows, 16 keys each. STORED: times the scales of values, for each half of
 * the warpgroup's dims. */
template <class shape> struct decode_sm90_p { uint32_t a[shape::STORED ? 2 : 1][shape::KEYS / 4]; };

template <class shape>
DEVICE void decode_sm90_load_p(struct decode_sm90_p<shape> &p, uint32_t shared) {
    const int lane = warp_lane(), row = 16 * decode_group<shape>() + lane % 16;
#pragma unroll
    for (int i = 0; i < shape::KEYS / 16; i++)
        ldmatrix(reinterpret_cast<uint32_t(&)[4]>(p.a[0][4 * i]),
                 shared + decode_sm90_p_at<shape>(row, 2 * i + lane / 16));
}

/* Four weights of three words (decode_sm90_store_p). */
DEVICE void decode_sm90_unpack_p(float (&x)[4], uint32_t a, uint32_t b, uint32_t c) {
    x[0] = __uint_as_float(a & ~0xffu);
    x[1] = __uint_as_float(b & ~0xffu);
    x[2] = __uint_as_float(c & ~0xffu);
    x[3] = __uint_as_float(__byte_perm(__byte_perm(a, b, 0x0400), c, 0x4210) & ~0xffu);
}

/* P of 24 bits, times scales of the step's keys: n groups; n = 0: none. */
template <class shape>
DEVICE void decode_sm90_load_weights(struct decode_sm90_p<shape> &p, uint32_t shared,
                                     uint32_t scales, int32_t n) {
    const auto load = [](uint32_t at) { return __uint_as_float(shared_load_4(at)); };
    uint32_t words[3 * shape::TILES];
    scales += 8 * (uint32_t)(warp_lane_here() % 4); /* of keys 2t, 2t + 1 of each eight */
#pragma unroll
    for (int j = 0; j < shape::TILES; j++) {
        float x[4];
        if (j < 3) {
            const uint4 next = shared_load_16(shared + decode_sm90_p_of_lane<shape>(j));
            words[4 * j] = next.x, words[4 * j + 1] = next.y;
            words[4 * j + 2] = next.z, words[4 * j + 3] = next.w;
        }
        decode_sm90_unpack_p(x, words[3 * j], words[3 * j + 1], words[3 * j + 2]);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int group = min(2 * decode_column<shape>() + half, n - 1);
            const uint32_t at = scales + 4 * (uint32_t)(group * shape::KEYS + j * 8);
            const float by[2] = {n ? load(at) : 1, n ? load(at + 4) : 1};
#pragma unroll
            for (int r = 0; r < 2; r++)
                p.a[shape::STORED ? half : 0][2 * j + r] =
                    mma_pack(x[2 * r] * by[0], x[2 * r + 1] * by[1], typename shape::T());
        }
    }
}

/* Adds P V of the keys handed, `first`: of an item. v: the first of these. */
template <class shape>
DEVICE void decode_sm90_pv(float (&o)[shape::DIMS_O / 2], struct decode_sm90_p<shape> &p,
                           uint32_t v, bool first) {
    constexpr int N = shape::DIMS_O / 4; /* floats of a thread, of half the dims */
    const uint64_t of_v = wgmma_mn_major(
        v + (uint32_t)(decode_column<shape>() * (shape::V_PANELS / 2) * shape::PANEL),
        shape::PANEL);
    wgmma_fence_operand(o);
    wgmma_fence_operand(p.a[0]);
    wgmma_fence_operand(p.a[(int)shape::STORED]);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < shape::KEYS / 16; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) /* N = 256: the assembler wants it in fewer threads */
            wgmma_rs(reinterpret_cast<float(&)[N]>(o[half * N]),
                     p.a[shape::STORED ? half : 0] + 4 * j,
                     of_v + j * (16 * 128 / 16) + half * (2 * N / 64 * shape::PANEL / 16),
                     j != 0 || !first, typename shape::T());
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence_operand(o);
}

/* Multiplies O by the factors handed on, where a maximum of this warp's rows has moved. */
template <class shape>
DEVICE void decode_sm90_follow(float (&o)[shape::DIMS_O / 2], uint32_t shared) {
    const int group = decode_group<shape>();
    const uint32_t at = shared + shape::FACTORS + 4 * (16 * group + warp_lane_here() / 4);
    if (!shared_load_4(shared + shape::MOVED + 4 * group))
        return;
    const float factor[2] = {__uint_as_float(shared_load_4(at)),
                             __uint_as_float(shared_load_4(at + 32))};
    sm90_rescale(o, factor);
}

/* O of an item of `steps` steps; `step` counts those of all items. The last P is not given back: sums are
 * to be read. */
template <class shape>
DEVICE void decode_sm90_add(float (&o)[shape::DIMS_O / 2], uint32_t shared,
                            const struct decode_params &p, int32_t steps, uint32_t &step) {
    const uint32_t first = step, end = step + (uint32_t)steps;
#pragma unroll 1
    for (; step != end; step++) {
        const uint32_t v = shared + decode_sm90_rows<shape>(step) + shape::V;
        struct decode_sm90_p<shape> probs;
        barrier_wait(shared + shape::P_FULL, step & 1);
        barrier_wait(ring_barrier<shape::STAGES>(shared + shape::V_FULL, step),
                     ring_parity<shape::STAGES>(step));
        if (shape::STORED)
            decode_sm90_load_weights<shape>(probs, shared,
                                            shared + (uint32_t)decode_sm90_scales_at<shape>(step),
                                            p.v_late ? 0 : p.v.scales);
        else
            decode_sm90_load_p<shape>(probs, shared);
        if (step != first)
            decode_sm90_follow<shape>(o, shared);
        if (step + 1 != end)
            decode_sm90_arrive(shared + shape::P_EMPTY);
        proxy_fence(); /* rows are written by threads */
        decode_sm90_pv<shape>(o, probs, v, step == first);
        decode_sm90_arrive(ring_barrier<shape::STAGES>(shared + shape::V_EMPTY, step));
    }
}

/* An item, from its first P to its end. Its destination is looked up again afterwards: registers are short. */
template <class shape, class looks_up>
DEVICE void decode_sm90_output(const char *memory, uint32_t shared, const struct decode_params &p,
                               const struct work_item &w, const looks_up &again, uint32_t &step) {
    struct attention_state<typename shape::T, shape::DIMS_O, 16> state;
    decode_sm90_add<shape>(reinterpret_cast<float(&)[shape::DIMS_O / 2]>(state.o), shared, p,
                           decode_sm90_steps<shape>(decode_item_of(p, w)), step);
    const int row = 16 * decode_group<shape>() + warp_lane() / 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float2 sums = reinterpret_cast<const float2 *>(memory + shape::SUMS)[row + 8 * r];
        state.m[r] = sums.x, state.l[r] = sums.y;
    }
    decode_sm90_arrive(shared + shape::P_EMPTY);
    const struct decode_item item = decode_item_of(p, again());
    if (shape::STORED && p.v_late)
        attention_scale_o(state, decode_scale_late(p, item));
    if (item.parts > 1)
        decode_store_partial<shape>(p, item, state);
    else
        decode_store<shape>(p, item, state);
}

#endif
