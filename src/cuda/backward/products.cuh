/*
 * The fused backward: sums [R, D] += W [R, 8 GROUPS] Y [groups, D]. W is P or dS as a warp holds scores (tile.cuh).
 *
 *   bf16   W is rounded to bf16, whose exponents are those of f32
 *   f16    W is rounded to TF32, which has the digits of f16 and the exponents of f32: weights of a key
 *          may all be far below what f16 holds, and what dS is, nobody knows before. Products of
 *          16 columns are added up apart: tensor cores cut sums off, and a sum of 2^18 terms of one
 *          sign would lose more by that than f16 does
 *   f32    three TF32 products for one
 *
 * Fragments of TF32 are those of device/tile_f32.cuh: columns t and t + 4 of A are columns 2t and 2t + 1 of W,
 * t = lane % 4. A transposed ldmatrix gives these two rows of Y as one word.
 */
#ifndef TESSERA_CUDA_GRADIENT_PRODUCTS_CUH
#define TESSERA_CUDA_GRADIENT_PRODUCTS_CUH

#include "backward/config.cuh"

template <int TALL, int GROUPS>
DEVICE void gradient_pack(uint32_t (&to)[TALL][GROUPS][2], const float (&w)[TALL][GROUPS][4]) {
#pragma unroll
    for (int i = 0; i < TALL; i++)
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                to[i][j][e] = mma_pack(w[i][j][2 * e], w[i][j][2 * e + 1], __nv_bfloat16());
}

template <int GROUPS, int ROW, int D, int R>
DEVICE void gradient_add(struct attention_state<__nv_bfloat16, D, R> &sums,
                         const float (&w)[R / 16][GROUPS][4], uint32_t y,
                         const struct attention_groups &groups) {
    uint32_t pairs[R / 16][GROUPS][2];
    gradient_pack(pairs, w);
    attention_pv<__nv_bfloat16, D, R, GROUPS, ROW, false>(sums, pairs, y, groups);
}

/* Rounded to nearest. */
DEVICE uint32_t gradient_tf32(float x) {
    uint32_t y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

template <int GROUPS, int ROW, int D, int R>
DEVICE void gradient_add(struct attention_state<__half, D, R> &sums,
                         const float (&w)[R / 16][GROUPS][4], uint32_t y,
                         const struct attention_groups &groups) {
    const int lane = warp_lane_here();
    y += (uint32_t)(lane % 8 * ROW) + swizzle_piece(lane, lane / 16);
    static_assert(R == 16, "registers hold the products of 16 rows");
#pragma unroll
    for (int j = 0; j < GROUPS; j += 2) {
        const int first = attention_group<false>(groups, j);
        const int second = attention_group<false>(groups, j + 1);
        const uint32_t from = y + (uint32_t)(8 * ROW * (lane / 8 % 2 ? second : first));
        uint32_t a[2][4];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                a[n][e] = gradient_tf32(w[0][j + n][e % 2 * 2 + e / 2]);
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t b[4];
            if (d % 2 == 0)
                __syncwarp(); /* the compiler would have too many of these parts under way */
            ldmatrix_transposed(b, swizzle_piece_after(from, d));
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float part[4] = {};
#pragma unroll
                for (int n = 0; n < 2; n++) {
                    const float2 two = mma_unpack(b[2 * half + n], __half());
                    fragment_mma_tf32(part, a[n], {__float_as_uint(two.x), __float_as_uint(two.y)});
                }
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sums.o[0][2 * d + half][e] += part[e];
            }
        }
    }
}

template <int GROUPS, int ROW, int D, int R>
DEVICE void gradient_add(struct attention_state<float, D, R> &sums,
                         const float (&w)[R / 16][GROUPS][4], uint32_t y,
                         const struct attention_groups &groups) {
    attention_pv<GROUPS, ROW, false>(sums, w, y, groups);
}

#endif
