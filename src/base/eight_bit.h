/*
 * Numbers of 8 bits (OCP 8-bit floating point) as f32: exponent and mantissa are moved to those of an f32,
 * whose exponent a multiplication mends, of subnormal numbers too.
 */
#ifndef TESSERA_EIGHT_BIT_H
#define TESSERA_EIGHT_BIT_H

#include <stdint.h>
#include <string.h>

/* Of e5m2 (1) or e4m3 (0); bits past the lowest eight are ignored. */
static inline float eight_bit_to_f32(uint32_t bits, int e5m2) {
    const uint32_t magnitude = bits & 0x7f, none = e5m2 ? 0x7c : 0x7f; /* from here on no number */
    uint32_t moved = magnitude << (e5m2 ? 21 : 20);
    float x;
    memcpy(&x, &moved, sizeof x);
    x *= e5m2 ? 0x1p112f : 0x1p120f; /* biases 15 and 7, and 127 */
    memcpy(&moved, &x, sizeof x);
    if (magnitude >= none) /* e5m2: Inf, and NaN behind it; e4m3: NaN */
        moved = 0x7f800000u | (magnitude - (e5m2 ? none : 0)) << 20;
    moved |= (bits & 0x80) << 24;
    memcpy(&x, &moved, sizeof x);
    return x;
}

#endif
