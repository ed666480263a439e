/* Fused attention on tensor cores: a warp's rows of a tile, from global memory and back. */
#ifndef TESSERA_CUDA_ATTENTION_ROWS_CUH
#define TESSERA_CUDA_ATTENTION_ROWS_CUH

#include "attention_tile_f32.cuh"

/* This warp's rows of Q. */
template <class T, int D, int R, int ROW>
static __device__ __forceinline__ void attention_load_q(uint32_t to,
                                                        const struct attention_params &p,
                                                        const struct granule_item &item,
                                                        int first) {
    const char *q = attention_head<T>(p.q, item.batch, item.head);
    const struct attention_manner manner = attention_manner_of<T>(p, p.q, p.d_qk, p.q_scale);
    const int row = first + warp_lane_here();
    __syncwarp(); /* all lanes have read what stood there */
    if (manner.copied)
        attention_copy_run<T, D, R, ROW>(to + attention_lane_to<ROW>(),
                                         q + attention_lane_from(item.row + first, manner.step),
                                         manner, item.rows - first);
    else
        attention_copy_elements<T, R, ROW>(to, q, manner, {row < item.rows ? item.row + row : -1});
}

/* The first `left` of 8 bytes of a row of O. */
static __device__ __forceinline__ void attention_store_some(char *to, uint2 x, int32_t left) {
#pragma unroll 1
    for (int at = 0; at < min(left, 8); at += 2) {
        *reinterpret_cast<uint16_t *>(to + at) = (uint16_t)x.x;
        x = {__funnelshift_r(x.x, x.y, 16), x.y >> 16};
    }
}

/* This warp's rows of O, rounded: four lanes hold 32 bytes of a row in two words, and when
 * neighbours have exchanged one, 8 each. WHOLE: they can be stored 8 at a time. */
template <bool WHOLE, class T, int D, int R>
static __device__ __forceinline__ void
attention_store_o(const struct attention_params &p, const struct granule_item &item, int first,
                  const struct attention_state<T, D, R> &state) {
    const int lane = warp_lane_here(), row = first + lane / 4, rows = item.rows;
    const bool odd = lane % 2;
    const int64_t step = p.o.stride[2] * (int64_t)sizeof(T);
    const int byte = lane % 2 * 16 + lane % 4 / 2 * 8; /* of 32 */
    char *to = attention_head<T>(p.o, item.batch, item.head) + (item.row + row) * step + byte;
#pragma unroll
    for (int r = 0; r < R / 8; r++, to += 8 * step) {
        const float factor = state.l[r] == 0 ? 0.0f : __fdividef(1, state.l[r]);
#pragma unroll
        for (int d = 0; d < D / 8; d += 2) {
            uint32_t word[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float *x = state.o[r / 2][d + i] + r % 2 * 2;
                word[i] = mma_pack(x[0] * factor, x[1] * factor, T());
            }
            const uint32_t other = __shfl_xor_sync(WARP_ALL, odd ? word[0] : word[1], 1);
            const uint2 x = {odd ? other : word[0], odd ? word[1] : other};
            if (WHOLE && row + 8 * r < rows)
                *reinterpret_cast<uint2 *>(to + 16 * d) = x;
            if (!WHOLE && row + 8 * r < rows)
                attention_store_some(to + 16 * d, x, 2 * p.d_v - 16 * d - byte);
        }
    }
}

/* This warp's rows of a partial result. */
template <class T, int D, int R>
static __device__ __forceinline__ void
attention_store_part(const struct attention_params &p, const struct granule_item &item, int first,
                     const struct attention_state<T, D, R> &state, float lower) {
    const struct attention_slot slot = attention_slot_of(p, item.slot);
    const int lane = warp_lane_here();
#pragma unroll
    for (int r = 0; r < R / 8; r++) {
        const int row = first + lane / 4 + 8 * r;
        if (row >= item.rows)
            continue;
        if (lane % 4 == 0) {
            slot.m[row] = state.m[r];
            slot.l[row] = state.l[r] * lower;
        }
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            const int dim = 8 * d + lane % 4 * 2;
            if (dim < p.slot_dims)
                *reinterpret_cast<float2 *>(&slot.o[(int64_t)row * p.slot_dims + dim]) = {
                    state.o[r / 2][d][r % 2 * 2] * lower,
                    state.o[r / 2][d][r % 2 * 2 + 1] * lower};
        }
    }
}

/* This warp's lse: of four lanes that share rows each stores that of one or none. */
template <class T, int D, int R>
static __device__ __forceinline__ void
attention_store_lses(const struct attention_params &p, const struct granule_item &item, int first,
                     const struct attention_state<T, D, R> &state) {
    const int lane = warp_lane_here(), row = first + lane / 4 + lane % 4 * 8;
    float m = state.m[0], l = state.l[0];
#pragma unroll
    for (int r = 1; r < R / 8; r++) {
        m = lane % 4 == r ? state.m[r] : m;
        l = lane % 4 == r ? state.l[r] : l;
    }
    if (lane % 4 < R / 8 && row < item.rows)
        attention_store_lse(p, item.batch, item.head, item.row + row, m, l * attention_lower<T>());
}

/* Rows that list nothing are 0, whatever 0 times the values that others list has left there. */
template <class T, int D, int R>
static __device__ __forceinline__ void attention_empty(struct attention_state<T, D, R> &state) {
    bool some = false;
#pragma unroll
    for (int r = 0; r < R / 8; r++)
        some |= state.l[r] == 0;
    if (!__any_sync(WARP_ALL, some))
        return;
#pragma unroll
    for (int r = 0; r < R / 8; r++)
#pragma unroll
        for (int d = 0; d < D / 8; d++)
#pragma unroll
            for (int e = r % 2 * 2; e < r % 2 * 2 + 2; e++)
                state.o[r / 2][d][e] = state.l[r] == 0 ? 0.0f : state.o[r / 2][d][e];
}

template <class T, int D, int R>
static __device__ __forceinline__ void
attention_finish(const struct attention_params &p, const struct granule_item &item, int first,
                 struct attention_state<T, D, R> &state) {
    attention_total(state);
#pragma unroll
    for (int r = 0; r < R / 8; r++) {
        state.l[r] += __shfl_xor_sync(WARP_ALL, state.l[r], 1);
        state.l[r] += __shfl_xor_sync(WARP_ALL, state.l[r], 2);
    }
    if (item.parts > 1) {
        attention_store_part<T, D, R>(p, item, first, state, attention_lower<T>());
        return;
    }
    attention_store_lses(p, item, first, state);
    attention_empty(state);
    if (p.d_v == D && p.alignment >= 16)
        attention_store_o<true>(p, item, first, state);
    else
        attention_store_o<false>(p, item, first, state);
}

#endif
