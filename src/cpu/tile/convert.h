/*
 * f16 and bf16 to f32 and back, e4m3 and e5m2 to f32; rounding to nearest even: overflow becomes Inf, subnormals are
 * kept, NaN stays NaN. Integer arithmetic without branches, so that loops over rows vectorise.
 */
#ifndef TESSERA_CPU_CONVERT_H
#define TESSERA_CPU_CONVERT_H

#include <stdint.h>
#include <string.h>

#include "tessera.h"

static inline uint32_t cpu_f32_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline float cpu_f32_of_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* a or b, never by a branch. */
static inline uint32_t cpu_choose(int condition, uint32_t a, uint32_t b) {
    return b ^ ((a ^ b) & (0 - (uint32_t)condition));
}

static inline float cpu_bf16_to_f32(uint16_t h) {
    return cpu_f32_of_bits((uint32_t)h << 16);
}

static inline float cpu_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, u = h & 0x7fff;
    uint32_t normal = (u << 13) + (112u << 23); /* exponent bias 15 to 127 */
    uint32_t special = normal + (112u << 23);   /* Inf and NaN: exponent 31 to 255 */
    uint32_t subnormal = cpu_f32_bits((float)(int32_t)u * 0x1p-24f);
    uint32_t magnitude = cpu_choose((int32_t)u < 0x0400, subnormal, normal);
    magnitude = cpu_choose((int32_t)u >= 0x7c00, special, magnitude);
    return cpu_f32_of_bits(sign | magnitude);
}

static inline uint16_t cpu_f32_to_bf16(float x) {
    uint32_t u = cpu_f32_bits(x);
    uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    uint32_t nan = (u >> 16) | 0x0040;
    return (uint16_t)cpu_choose((int32_t)(u & 0x7fffffff) > 0x7f800000, nan, rounded);
}

static inline uint16_t cpu_f32_to_f16(float x) {
    uint32_t bits = cpu_f32_bits(x), sign = (bits >> 16) & 0x8000, u = bits & 0x7fffffff;
    uint32_t normal = (u - (112u << 23) + 0x0fff + ((u >> 13) & 1)) >> 13;
    /* An ulp at 0.5 is the smallest f16: the sum rounds to a multiple of it. */
    uint32_t subnormal = cpu_f32_bits(cpu_f32_of_bits(u) + 0.5f) - cpu_f32_bits(0.5f);
    uint32_t h = cpu_choose((int32_t)u < 0x38800000, subnormal, normal); /* 2^-14 */
    h = cpu_choose((int32_t)u >= 0x477ff000, 0x7c00, h);                 /* 65520 and up, Inf */
    h = cpu_choose((int32_t)u > 0x7f800000, 0x7e00, h);
    return (uint16_t)(sign | h);
}

/* A magnitude of 4 bits of exponent and 3 of mantissa; 0x7f is NaN. */
static inline float cpu_e4m3_to_f32(uint8_t e) {
    uint32_t sign = (uint32_t)(e & 0x80) << 24, u = e & 0x7f;
    uint32_t normal = (u << 20) + (120u << 23); /* exponent bias 7 to 127 */
    uint32_t subnormal = cpu_f32_bits((float)(int32_t)u * 0x1p-9f);
    uint32_t magnitude = cpu_choose((int32_t)u < 0x08, subnormal, normal);
    magnitude = cpu_choose((int32_t)u == 0x7f, 0x7fc00000, magnitude);
    return cpu_f32_of_bits(sign | magnitude);
}

/* The upper byte of an f16. */
static inline float cpu_e5m2_to_f32(uint8_t e) {
    return cpu_f16_to_f32((uint16_t)(e << 8));
}

/* n elements of a row of any type to f32. */
static inline void cpu_row_to_f32(float *restrict out, const void *in, tess_type type, int64_t n) {
    const uint16_t *restrict half = in;
    const uint8_t *restrict byte = in;
    if (type == TESS_F32)
        memcpy(out, in, (size_t)n * sizeof *out);
    else if (type == TESS_E4M3)
        for (int64_t i = 0; i < n; i++)
            out[i] = cpu_e4m3_to_f32(byte[i]);
    else if (type == TESS_E5M2)
        for (int64_t i = 0; i < n; i++)
            out[i] = cpu_e5m2_to_f32(byte[i]);
    else if (type == TESS_F16)
        for (int64_t i = 0; i < n; i++)
            out[i] = cpu_f16_to_f32(half[i]);
    else
        for (int64_t i = 0; i < n; i++)
            out[i] = cpu_bf16_to_f32(half[i]);
}

/* And back. */
static inline void cpu_row_from_f32(void *out, const float *restrict in, tess_type type,
                                    int64_t n) {
    uint16_t *restrict half = out;
    if (type == TESS_F32)
        memcpy(out, in, (size_t)n * sizeof *in);
    else if (type == TESS_F16)
        for (int64_t i = 0; i < n; i++)
            half[i] = cpu_f32_to_f16(in[i]);
    else
        for (int64_t i = 0; i < n; i++)
            half[i] = cpu_f32_to_bf16(in[i]);
}

#endif
