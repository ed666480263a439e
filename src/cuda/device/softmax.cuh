/* Online softmax: what its tiles have in common (tile.cuh, sm90/softmax.cuh). */
#ifndef TESSERA_CUDA_ONLINE_SOFTMAX_CUH
#define TESSERA_CUDA_ONLINE_SOFTMAX_CUH

#include "device/inline.cuh"

#include <cuda_fp16.h>
#include <math.h>

/*
 * P is exp2(s - m) times 2^raise; O and l share the factor until they leave the registers. m follows a row's
 * maximum only when the maximum exceeds it by more than a tile's lag (Dao's lazy rescaling): O is seldom rescaled.
 *
 * f16 has little range below 1: numbers below 2^-14 lose bits, below 2^-25 they are 0. P is therefore raised as far
 * as f16's largest number allows.
 */
DEVICE constexpr float attention_raise(__half) {
    return 14.0f;
}
template <class T> DEVICE constexpr float attention_raise(T) {
    return 0.0f;
}

/* Maxima beyond this have their scores scaled, rounded and then subtracted, without FMA: the unrounded product of
 * score and scale differs from the rounded maximum by up to 2^-10 there. */
#define ATTENTION_FAR 0x1p14f

/* Subtrahend of scores: the maximum, or 0 where it is -Inf. */
DEVICE float attention_base(float m) {
    return m == -INFINITY ? 0.0f : m;
}

DEVICE float attention_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
