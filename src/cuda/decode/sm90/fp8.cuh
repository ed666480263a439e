/* Decode on Hopper: rows of 8 bits, by the producer. A warp copies rows behind the first half of their widened
 * place, and widens them there a step later:
 *
 *   panels of 64 columns, 512 dims and 64 of the second view
 *   | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 |
 *                   |     codes     | k_rope |       copied
 *   |       of 16 bits              | k_rope |       widened
 */
#ifndef TESSERA_CUDA_DECODE_SM90_FP8_CUH
#define TESSERA_CUDA_DECODE_SM90_FP8_CUH

#include "decode/sm90/config.cuh"
#include <utility>

/* Copies 16 bytes of each panel of a row: of codes, then of the second view. */
template <class shape, int... S>
DEVICE void decode_sm90_copy_fp8_row(uint32_t to, const char *codes, const char *rest,
                                     int32_t bytes, bool is, std::integer_sequence<int, S...>) {
    constexpr int HALF = shape::V_PANELS / 2; /* panels of codes */
    (cp_async_16_l2_128_at<(HALF + S) * shape::PANEL, S * 128>(to, codes, is), ...);
    cp_async_16_l2_128_at<2 * HALF * shape::PANEL, 0>(to, rest,
                                                      is && 16 * (warp_lane() % 8) < bytes);
}

/* Copies a warp's rows of a step, and their scales. Lane from + i holds place i. */
template <class shape>
DEVICE void decode_sm90_copy_fp8(uint32_t to, uint32_t scales, const struct decode_params &p,
                                 const struct decode_item &item, const struct decode_place &place,
                                 int from) {
    const int piece = warp_lane() % 8, sub = warp_lane() / 8;
    const int begin = (int)threadIdx.x / 32 * shape::ROWS_WARP; /* first of this warp's rows */
    const char *const first = filled_head_rows_here(p.k.rows, item);
    const char *const rest = filled_head_rows_here(p.k.rest, item);
#pragma unroll
    for (int i = 0; i < shape::ROWS_WARP; i += 4) {
        const int32_t row = __shfl_sync(WARP_ALL, place.row, from + i + sub);
        decode_sm90_copy_fp8_row<shape>(
            to + (uint32_t)((begin + i + sub) * 128) + swizzle_piece(i + sub, piece),
            filled_row_at(first, p.k.rows, p.shift, row) + 16 * piece,
            filled_row_at(rest, p.k.rest, p.shift, row) + 16 * piece, p.k.rest.size, row >= 0,
            std::make_integer_sequence<int, shape::V_PANELS / 2>());
    }
    const int key = warp_lane() - from;
    if (key < 0 || key >= shape::ROWS_WARP)
        return;
    const char *const base = filled_head_rows_here(p.k.scale, item);
    const char *const at = filled_row_at(base, p.k.scale, p.shift, place.row);
#pragma unroll 1
    for (int g = 0; g < p.k.scales; g++)
        cp_async_4(scales + (uint32_t)(4 * (g * shape::KEYS + begin + key)), at + 4 * g,
                   place.key >= 0);
}

/* Widens a warp's rows of a step, whose copies are complete. */
template <class shape, __nv_fp8_interpretation_t KIND>
DEVICE void decode_sm90_widen(uint32_t panel) {
    using T = typename shape::T;
    constexpr int HALF = shape::V_PANELS / 2, BATCH = 2; /* panels of codes; read at a time */
    const int piece = warp_lane() % 8;
#pragma unroll
    for (int i = 0; i < shape::ROWS_WARP; i += 4) {
        const int row = i + warp_lane() / 8;
        const uint32_t from = panel + (uint32_t)(row * 128) + swizzle_piece(row, piece);
        const uint32_t to = panel + (uint32_t)(row * 128 + piece / 4 * shape::PANEL) +
                            swizzle_piece(row, 2 * piece % 8);
#pragma unroll
        for (int first = 0; first < HALF; first += BATCH) {
            uint4 x[BATCH];
#pragma unroll
            for (int k = first; k < first + BATCH; k++)
                x[k - first] = shared_load_16(from + (uint32_t)((HALF + k) * shape::PANEL));
            __syncwarp(); /* all lanes have read what is written over */
#pragma unroll
            for (int k = first; k < first + BATCH; k++) {
                const uint32_t at = to + (uint32_t)(2 * k * shape::PANEL);
                const uint4 words = x[k - first];
                shared_store_16(at, decode_widen_eight<T, KIND>(words.x, words.y));
                shared_store_16(at ^ 16, decode_widen_eight<T, KIND>(words.z, words.w));
            }
        }
    }
}

/* Widens the rows, and hands them on. */
template <class shape>
DEVICE void decode_sm90_land(uint32_t shared, const struct decode_params &p, uint32_t step) {
    const uint32_t full = ring_barrier<shape::STAGES>(shared + shape::K_FULL, step);
    const uint32_t panel =
        shared + decode_sm90_rows<shape>(step) + threadIdx.x / 32 * (shape::ROWS_WARP * 128);
    __syncwarp(); /* copies of all its lanes are complete */
    if (p.k.eight_bit == TESS_E5M2)
        decode_sm90_widen<shape, __NV_E5M2>(panel);
    else
        decode_sm90_widen<shape, __NV_E4M3>(panel);
    barrier_arrive(full);
    decode_sm90_arrive(full);
}

#endif
