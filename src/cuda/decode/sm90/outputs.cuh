/* Decode on Hopper: the two warpgroups of O, half of its dims each. */
#ifndef TESSERA_CUDA_DECODE_SM90_OUTPUTS_CUH
#define TESSERA_CUDA_DECODE_SM90_OUTPUTS_CUH

#include "decode/sm90/config.cuh"

/* P [16, KEYS] of this warp's rows: A fragments of 16 keys each. */
template <class shape>
static __device__ __forceinline__ void decode_sm90_load_p(uint32_t (&probs)[shape::KEYS / 4],
                                                          uint32_t p) {
    const int lane = warp_lane(), row = 16 * decode_group<shape>() + lane % 16;
#pragma unroll
    for (int i = 0; i < shape::KEYS / 16; i++)
        ldmatrix(reinterpret_cast<uint32_t(&)[4]>(probs[4 * i]),
                 p + (uint32_t)(row * 128) + swizzle_piece(row, 2 * i + lane / 16));
}

/* Adds the P V of a step, `first`: of an item. */
template <class shape>
static __device__ __forceinline__ void decode_sm90_pv(float (&o)[shape::DIMS_O / 2],
                                                      uint32_t (&probs)[shape::KEYS / 4],
                                                      uint32_t v, bool first) {
    constexpr int N = shape::DIMS_O / 4; /* floats of a thread */
    const uint64_t of_v = wgmma_mn_major(
        v + (uint32_t)(decode_column<shape>() * (shape::V_PANELS / 2) * shape::PANEL),
        shape::PANEL);
    wgmma_fence_operand(o);
    wgmma_fence_operand(probs);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < shape::KEYS / 16; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) /* N = 256: the assembler wants it in fewer threads */
            wgmma_rs(reinterpret_cast<float(&)[N]>(o[half * N]), probs + 4 * j,
                     of_v + j * (16 * 128 / 16) + half * (2 * N / 64 * shape::PANEL / 16),
                     j != 0 || !first, typename shape::T());
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence_operand(o);
}

/* O of an item of `steps` steps; `step` counts those of all items. The last P is not given back: sums are
 * to be read. */
template <class shape>
static __device__ __forceinline__ void
decode_sm90_add(float (&o)[shape::DIMS_O / 2], uint32_t shared, int32_t steps, uint32_t &step) {
#pragma unroll 1
    for (int32_t i = 0; i < steps; i++, step++) {
        const int group = decode_group<shape>();
        uint32_t probs[shape::KEYS / 4];
        barrier_wait(shared + shape::P_FULL, step & 1);
        decode_sm90_load_p<shape>(probs, shared + shape::P);
        if (i > 0 && shared_load_4(shared + shape::MOVED + 4 * group)) {
            const uint32_t at = shared + shape::FACTORS + 4 * (16 * group + warp_lane_here() / 4);
            const float factor[2] = {__uint_as_float(shared_load_4(at)),
                                     __uint_as_float(shared_load_4(at + 32))};
            sm90_rescale(o, factor);
        }
        if (i + 1 < steps)
            decode_sm90_arrive(shared + shape::P_EMPTY);
        barrier_wait(decode_sm90_at<shape>(shared + shape::V_FULL, step),
                     decode_sm90_phase<shape>(step));
        proxy_fence(); /* rows are copied by cp.async */
        decode_sm90_pv<shape>(o, probs, shared + step % shape::STAGES * shape::STAGE + shape::V,
                              i == 0);
        decode_sm90_arrive(decode_sm90_at<shape>(shared + shape::V_EMPTY, step));
    }
}

/* An item, from its first P to its end. Where it goes is looked up again afterwards: registers are
 * short. */
template <class shape, class looks_up>
static __device__ __forceinline__ void
decode_sm90_output(const char *memory, uint32_t shared, const struct decode_params &p,
                   const struct work_item &w, const looks_up &again, uint32_t &step) {
    struct attention_state<typename shape::T, shape::DIMS_O, 16> state;
    decode_sm90_add<shape>(reinterpret_cast<float(&)[shape::DIMS_O / 2]>(state.o), shared,
                           decode_sm90_steps<shape>(decode_item_of(p, w)), step);
    const int row = 16 * decode_group<shape>() + warp_lane() / 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float2 sums = reinterpret_cast<const float2 *>(memory + shape::SUMS)[row + 8 * r];
        state.m[r] = sums.x, state.l[r] = sums.y;
    }
    decode_sm90_arrive(shared + shape::P_EMPTY);
    const struct decode_item item = decode_item_of(p, again());
    if (item.parts > 1)
        decode_store_partial<shape>(p, item, state);
    else
        decode_store<shape>(p, item, state);
}

#endif
