/*
 * The vector layer: what the kernels need from a machine, written once over gcc's and clang's
 * vector types. The lanes follow the instruction set that the unit is compiled for, so that a level
 * is one more compile of the same sources. Its names begin with v_.
 */
#ifndef TESSERA_CPU_VECTOR_H
#define TESSERA_CPU_VECTOR_H

#include <math.h>
#include <stdint.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

/* Lanes of a vector, and the shape of the micro-kernels: an accumulator of CPU_STEP rows by
 * CPU_VECTORS vectors has to fit the registers, beside CPU_VECTORS operands and a broadcast. */
#if defined(__AVX512F__)
#define CPU_LANES 16
#define CPU_VECTORS 4
#define CPU_LANE_BITS 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768
#elif defined(__AVX2__)
#define CPU_LANES 8
#define CPU_VECTORS 2
#define CPU_LANE_BITS 1, 2, 4, 8, 16, 32, 64, 128
#else
#define CPU_LANES 4
#define CPU_VECTORS 2
#define CPU_LANE_BITS 1, 2, 4, 8
#endif
#define CPU_STEP 4
#define CPU_GROUP (CPU_VECTORS * CPU_LANES)

/* A short loop with a constant bound that must not remain a loop; the body stands in braces. */
#if defined(__clang__)
#define V_FOR(i, n) _Pragma("clang loop unroll(full)") for (int i = 0; i < (n); i++)
#else
#define V_FOR(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#endif
#define V_INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(4 * CPU_LANES), may_alias));
typedef float vf_any __attribute__((vector_size(4 * CPU_LANES), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * CPU_LANES), may_alias));
typedef uint32_t vu __attribute__((vector_size(4 * CPU_LANES), may_alias));

V_INLINE vf v_load(const float *p) {
    return *(const vf *)p;
}
V_INLINE vf v_load_any(const float *p) {
    return (vf) * (const vf_any *)p;
}
V_INLINE void v_store(float *p, vf a) {
    *(vf *)p = a;
}
V_INLINE void v_store_any(float *p, vf a) {
    *(vf_any *)p = (vf_any)a;
}
V_INLINE vf v_set(float x) {
    return x - (vf){0};
}
V_INLINE vf v_fma(vf a, vf b, vf c) {
    return a * b + c;
}

/* a where the mask is set, else b. */
V_INLINE vf v_select(vi mask, vf a, vf b) {
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}

/* The larger one; b where either is NaN. */
V_INLINE vf v_max(vf a, vf b) {
#if CPU_LANES == 4 && defined(__SSE2__)
    return (vf)_mm_max_ps((__m128)a, (__m128)b);
#else
    return v_select((vi)(a > b), a, b);
#endif
}

/* The lanes whose bit is set, lane 0 being bit 0. */
V_INLINE vi v_mask(uint32_t bits) {
    const vi lane = {CPU_LANE_BITS};
    return (vi)((((int32_t)(bits & 0xffff) - (vi){0}) & lane) == lane);
}

/*
 * 2^x for x <= 0: 0 below -126 (and at -Inf), NaN for NaN. At most 1.30 ulp off, 1.02 with FMA,
 * measured over every f32 from -1.5 to -2^-11. Adding 1.5 * 2^23 rounds x to an integer in the low
 * bits of the sum, 127 more makes it an exponent field; the polynomial is a minimax fit of 2^r on
 * [-1/2, 1/2].
 */
V_INLINE vf v_exp2(vf x) {
    const vf magic = v_set(12582912.0f + 127.0f);
    vf t = x + magic;
    vf r = x - (t - magic);
    vf p = v_fma(v_set(0.000155946778f), r, v_set(0.00134066434f));
    p = v_fma(p, r, v_set(0.00961769279f));
    p = v_fma(p, r, v_set(0.0555031039f));
    p = v_fma(p, r, v_set(0.240226522f));
    p = v_fma(p, r, v_set(0.693147242f));
    p = v_fma(p, r, v_set(1.0f));
    p *= (vf)((vu)t << 23);
    return (vf)((vi)p & ~(vi)(x < v_set(-126.0f)));
}

#endif
