/*
 * The fused backward on Hopper: P and dS, rounded to operands of the sums. bf16 has the exponents of f32. Weights of a
 * row in f16 may all be far below what it holds, or dS past its end: so each row of an operand, and of its sums, is
 * multiplied by a power of two. Factors begin as high as f32 has them, and fall where a row leaves f16's range: to
 * 2^GRADIENT_TOP for the row's largest, which is rare after the first step.
 */
#ifndef TESSERA_CUDA_GRADIENT_SM90_OPERAND_CUH
#define TESSERA_CUDA_GRADIENT_SM90_OPERAND_CUH

#include "backward/sm90/config.cuh"

#define GRADIENT_TOP 8
#define GRADIENT_F16_MOST 65504.0f
#define GRADIENT_FACTOR_MOST 0x1p126f

/* Factors of rows g and g + 8 of this lane's warp, the upper halves of their floats in one word: registers are short. */
template <class T> struct gradient_factors {};
template <> struct gradient_factors<__half> { uint32_t rows; };
DEVICE float gradient_factor_of(const struct gradient_factors<__half> &f, int h) {
    return __uint_as_float(h ? f.rows << 16 : f.rows & 0xffff0000u);
}
DEVICE void gradient_set_factors(struct gradient_factors<__half> &f, float even, float odd) {
    f.rows = __float_as_uint(even) | __float_as_uint(odd) >> 16;
}

/* Begins an item's sums. */
template <class T> DEVICE void gradient_begin_factors(struct gradient_factors<T> &) {
}
DEVICE void gradient_begin_factors(struct gradient_factors<__half> &f) {
    gradient_set_factors(f, GRADIENT_FACTOR_MOST, GRADIENT_FACTOR_MOST);
}

template <class T>
DEVICE void gradient_pack_scores(uint32_t (&to)[GRADIENT_SCORES / 2],
                                 const float (&x)[GRADIENT_SCORES], float even, float odd, T) {
#pragma unroll
    for (int j = 0; j < GRADIENT_SCORES / 2; j++) {
        const float factor = j % 2 ? odd : even;
        to[j] = mma_pack(x[2 * j] * factor, x[2 * j + 1] * factor, T());
    }
}

/* Rounds x to an operand of `sums`. */
template <class T, int N>
DEVICE void gradient_round(uint32_t (&to)[GRADIENT_SCORES / 2], const float (&x)[GRADIENT_SCORES],
                           float (&)[N], struct gradient_factors<T> &) {
    gradient_pack_scores(to, x, 1, 1, T());
}

/* The power of two that takes x to 2^GRADIENT_TOP: exponents alone. */
DEVICE float gradient_factor(float x) {
    const int32_t exponent = (int32_t)(__float_as_uint(x) >> 23 & 255);
    return __uint_as_float((uint32_t)min(254 + GRADIENT_TOP - exponent, 253) << 23);
}

/* b / a, both powers of two: 0 where f32 has none so small. */
DEVICE float gradient_ratio(float b, float a) {
    return __int_as_float(max(0, __float_as_int(b) - __float_as_int(a) + __float_as_int(1.0f)));
}

/* Lowers the factors to what rows whose largest elements are `most` need, and the sums with them. */
template <int N>
DEVICE void gradient_lower(float (&most)[2], float (&sums)[N], struct gradient_factors<__half> &f) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        most[h] = fmaxf(most[h], __shfl_xor_sync(WARP_ALL, most[h], 1));
        most[h] = fmaxf(most[h], __shfl_xor_sync(WARP_ALL, most[h], 2));
        const float old = gradient_factor_of(f, h);
        most[h] = fminf(old, gradient_factor(most[h]));
        const float change = gradient_ratio(most[h], old);
#pragma unroll
        for (int j = 0; j < N / 4; j++)
            sums[4 * j + 2 * h] *= change, sums[4 * j + 2 * h + 1] *= change;
    }
    gradient_set_factors(f, most[0], most[1]);
}

/* The largest is found before rounding: x and its operand do not fit beside the sums. */
template <int N>
DEVICE void gradient_round(uint32_t (&to)[GRADIENT_SCORES / 2], const float (&x)[GRADIENT_SCORES],
                           float (&sums)[N], struct gradient_factors<__half> &f) {
    float most[2] = {};
#pragma unroll
    for (int j = 0; j < GRADIENT_SCORES; j++)
        most[j / 2 % 2] = fmaxf(most[j / 2 % 2], fabsf(x[j]));
    const bool past = most[0] * gradient_factor_of(f, 0) > GRADIENT_F16_MOST ||
                      most[1] * gradient_factor_of(f, 1) > GRADIENT_F16_MOST;
    if (__any_sync(WARP_ALL, past))
        gradient_lower(most, sums, f);
    gradient_pack_scores(to, x, gradient_factor_of(f, 0), gradient_factor_of(f, 1), __half());
}

/* Ends an item's sums. */
template <class T, int N>
DEVICE void gradient_end_factors(float (&)[N], const struct gradient_factors<T> &) {
}
template <int N>
DEVICE void gradient_end_factors(float (&sums)[N], const struct gradient_factors<__half> &f) {
    const float back[2] = {gradient_ratio(1, gradient_factor_of(f, 0)),
                           gradient_ratio(1, gradient_factor_of(f, 1))};
#pragma unroll
    for (int j = 0; j < N; j++)
        sums[j] *= back[j / 2 % 2];
}

/* Begins sums += operand times a step's rows at `y`. add 0: the step is the first of its item. */
template <class shape, int SUMS, int WORDS>
DEVICE void gradient_multiply(float (&sums)[SUMS], uint32_t (&operand)[WORDS], uint32_t y,
                              int add) {
    const uint64_t rows = wgmma_mn_major(y, shape::Y_PANEL);
    wgmma_fence_operand(sums);
    wgmma_fence_operand(operand);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < GRADIENT_PLACES / 16; k++)
        wgmma_rs(sums, operand + 4 * k, rows + k * (16 * 128 / 16), k > 0 ? 1 : add,
                 typename shape::T());
}

#endif
