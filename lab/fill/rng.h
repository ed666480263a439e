/* Random numbers by counter: the i-th number of a stream is a function of (seed, stream, i), so
 * fills are the same in whatever order they are made. */
#ifndef LAB_RNG_H
#define LAB_RNG_H

#include <math.h>
#include <stdint.h>

/* Mixes 64 bits (the finaliser of splitmix64, public domain constants). */
static inline uint64_t lab_mix(uint64_t x) {
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static inline uint64_t lab_random(uint64_t seed, uint64_t stream, uint64_t i) {
    uint64_t key = lab_mix(seed + UINT64_C(0x9e3779b97f4a7c15) * (stream + 1));
    return lab_mix(key + UINT64_C(0x9e3779b97f4a7c15) * i);
}

/* Uniform in (0, 1). */
static inline double lab_uniform(uint64_t seed, uint64_t stream, uint64_t i) {
    return ((double)(lab_random(seed, stream, i) >> 11) + 0.5) * 0x1p-53;
}

/* Standard normal, by Box and Muller. */
static inline double lab_normal(uint64_t seed, uint64_t stream, uint64_t i) {
    double u = lab_uniform(seed, stream, 2 * i), v = lab_uniform(seed, stream, 2 * i + 1);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

/* Uniform among 0 ... n - 1; n is small next to 2^64. */
static inline int64_t lab_below(uint64_t seed, uint64_t stream, uint64_t i, int64_t n) {
    return (int64_t)(lab_random(seed, stream, i) % (uint64_t)n);
}

#endif
