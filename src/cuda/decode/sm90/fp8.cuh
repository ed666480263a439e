/* Decode on Hopper: rows of 8 bits, by the producer. A warp has the codes of its next step in registers while their
 * stage is in use, and widens them there. A lane has 16 codes of each 128 of two rows:
 *
 *   lane 8 r + c     codes 16 c ... 16 c + 15 of rows r and r + 4   ──▶   pieces 2 c, 2 c + 1 of two panels
 */
#ifndef TESSERA_CUDA_DECODE_SM90_FP8_CUH
#define TESSERA_CUDA_DECODE_SM90_FP8_CUH

#include "decode/sm90/config.cuh"

template <class shape> struct decode_sm90_codes {
    static constexpr int ROWS = shape::ROWS_WARP / 4, GROUPS = shape::DV / 128;
    uint4 x[ROWS][GROUPS];
};

/* 16 bytes that are read once; zeros where they are not `wanted`. */
DEVICE uint4 decode_sm90_load_codes_16(const char *from, bool wanted) {
    uint4 x = {0, 0, 0, 0};
    asm volatile("{\n"
                 ".reg .pred wanted;\n"
                 "setp.ne.b32 wanted, %5, 0;\n"
                 "@wanted ld.global.L1::no_allocate.L2::128B.v4.b32 {%0,%1,%2,%3}, [%4];\n"
                 "}"
                 : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
                 : "l"(from), "r"((int)wanted));
    return x;
}

/* Loads the codes of a warp's rows of a step. Lane from + i holds where row i lies, -1: nowhere. */
template <class shape>
DEVICE void decode_sm90_load_codes(struct decode_sm90_codes<shape> &codes,
                                   const struct decode_params &p, const struct decode_item &item,
                                   int32_t places, int from) {
    const int lane = warp_lane_here();
    const char *const first = filled_head_rows_here(p.k.rows, item);
#pragma unroll
    for (int r = 0; r < codes.ROWS; r++) {
        const int32_t row = __shfl_sync(WARP_ALL, places, from + 4 * r + lane / 8);
        const char *const at = filled_row_at(first, p.k.rows, p.shift, row) + 16 * (lane % 8);
#pragma unroll
        for (int g = 0; g < codes.GROUPS; g++)
            codes.x[r][g] = decode_sm90_load_codes_16(at + 128 * g, row >= 0);
    }
}

/* Copies what stands beside a warp's codes of a step: the second view of its rows, and their scales. */
template <class shape>
DEVICE void decode_sm90_copy_beside(uint32_t to, uint32_t scales, const struct decode_params &p,
                                    const struct decode_item &item,
                                    const struct decode_place &place, int from) {
    const int lane = warp_lane_here(), piece = lane % 8, sub = lane / 8;
    const int begin = (int)threadIdx.x / 32 * shape::ROWS_WARP; /* first of this warp's rows */
    const char *const rest = filled_head_rows_here(p.k.rest, item);
#pragma unroll
    for (int i = 0; i < shape::ROWS_WARP; i += 4) {
        const int32_t row = __shfl_sync(WARP_ALL, place.row, from + i + sub);
        cp_async_16_l2_128_at<shape::V_PANELS * shape::PANEL, 0>(
            to + (uint32_t)((begin + i + sub) * 128) + swizzle_piece(i + sub, piece),
            filled_row_at(rest, p.k.rest, p.shift, row) + 16 * piece,
            row >= 0 && 16 * piece < p.k.rest.size);
    }
    const int key = lane - from;
    if (key < 0 || key >= shape::ROWS_WARP)
        return;
    const char *const base = filled_head_rows_here(p.k.scale, item);
    const char *const at = filled_row_at(base, p.k.scale, p.shift, place.row);
#pragma unroll 1
    for (int g = 0; g < p.k.scales; g++)
        cp_async_4(scales + (uint32_t)(4 * (g * shape::KEYS + begin + key)), at + 4 * g,
                   place.key >= 0);
}

/* Widens a warp's rows of a step to where they are read, `panel`: of the first of them. */
template <class shape, __nv_fp8_interpretation_t KIND>
DEVICE void decode_sm90_widen_as(uint32_t panel, const struct decode_sm90_codes<shape> &codes) {
    using T = typename shape::T;
    const int lane = warp_lane_here(), piece = lane % 8;
#pragma unroll
    for (int r = 0; r < codes.ROWS; r++) {
        const int row = 4 * r + lane / 8;
        const uint32_t to = panel + (uint32_t)(row * 128 + piece / 4 * shape::PANEL) +
                            swizzle_piece(row, 2 * piece % 8);
#pragma unroll
        for (int g = 0; g < codes.GROUPS; g++) {
            const uint32_t at = to + (uint32_t)(2 * g * shape::PANEL);
            const uint4 x = codes.x[r][g];
            shared_store_16(at, decode_widen_eight<T, KIND>(x.x, x.y));
            shared_store_16(at ^ 16, decode_widen_eight<T, KIND>(x.z, x.w));
        }
    }
}

template <class shape>
DEVICE void decode_sm90_widen(uint32_t to, const struct decode_params &p,
                              const struct decode_sm90_codes<shape> &codes) {
    const uint32_t panel = to + threadIdx.x / 32 * (shape::ROWS_WARP * 128);
    if (p.k.eight_bit == TESS_E5M2)
        decode_sm90_widen_as<shape, __NV_E5M2>(panel, codes);
    else
        decode_sm90_widen_as<shape, __NV_E4M3>(panel, codes);
}

#endif
