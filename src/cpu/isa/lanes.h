/* Vectors of CPU_LANES elements whose lanes change places: transposes, copies, sums across lanes. */
#ifndef TESSERA_CPU_LANES_H
#define TESSERA_CPU_LANES_H

#include "isa/vector.h"

/* Row i, lane j of a becomes row j, lane i. */
V_INLINE void v_transpose(vf *a) {
#if CPU_LANES == 16
    __m512 b[16], c[16];
    V_FOR(i, 8) {
        b[2 * i] = _mm512_unpacklo_ps((__m512)a[2 * i], (__m512)a[2 * i + 1]);
        b[2 * i + 1] = _mm512_unpackhi_ps((__m512)a[2 * i], (__m512)a[2 * i + 1]);
    }
    V_FOR(i, 4) { /* c[4 i + k]: lanes k, k + 4, k + 8, k + 12 of rows 4 i ... 4 i + 3 */
        V_FOR(k, 2) {
            __m512d lo = (__m512d)b[4 * i + k], hi = (__m512d)b[4 * i + 2 + k];
            c[4 * i + 2 * k] = (__m512)_mm512_unpacklo_pd(lo, hi);
            c[4 * i + 2 * k + 1] = (__m512)_mm512_unpackhi_pd(lo, hi);
        }
    }
    V_FOR(k, 4) {
        __m512 x = _mm512_shuffle_f32x4(c[k], c[4 + k], 0x88);
        __m512 y = _mm512_shuffle_f32x4(c[8 + k], c[12 + k], 0x88);
        __m512 z = _mm512_shuffle_f32x4(c[k], c[4 + k], 0xdd);
        __m512 w = _mm512_shuffle_f32x4(c[8 + k], c[12 + k], 0xdd);
        a[k] = (vf)_mm512_shuffle_f32x4(x, y, 0x88);
        a[4 + k] = (vf)_mm512_shuffle_f32x4(z, w, 0x88);
        a[8 + k] = (vf)_mm512_shuffle_f32x4(x, y, 0xdd);
        a[12 + k] = (vf)_mm512_shuffle_f32x4(z, w, 0xdd);
    }
#elif CPU_LANES == 8
    __m256 b[8], c[8];
    V_FOR(i, 4) {
        b[2 * i] = _mm256_unpacklo_ps((__m256)a[2 * i], (__m256)a[2 * i + 1]);
        b[2 * i + 1] = _mm256_unpackhi_ps((__m256)a[2 * i], (__m256)a[2 * i + 1]);
    }
    V_FOR(i, 2) { /* c[4 i + k]: lanes k and k + 4 of rows 4 i ... 4 i + 3 */
        V_FOR(k, 2) {
            __m256d lo = (__m256d)b[4 * i + k], hi = (__m256d)b[4 * i + 2 + k];
            c[4 * i + 2 * k] = (__m256)_mm256_unpacklo_pd(lo, hi);
            c[4 * i + 2 * k + 1] = (__m256)_mm256_unpackhi_pd(lo, hi);
        }
    }
    V_FOR(k, 4) {
        a[k] = (vf)_mm256_permute2f128_ps(c[k], c[4 + k], 0x20);
        a[4 + k] = (vf)_mm256_permute2f128_ps(c[k], c[4 + k], 0x31);
    }
#else
    float rows[CPU_LANES][CPU_LANES], columns[CPU_LANES][CPU_LANES];
    V_FOR(i, CPU_LANES) {
        v_store_any(rows[i], a[i]);
    }
    V_FOR(i, CPU_LANES) {
        V_FOR(j, CPU_LANES) {
            columns[i][j] = rows[j][i];
        }
    }
    V_FOR(i, CPU_LANES) {
        a[i] = v_load_any(columns[i]);
    }
#endif
}

/* `copies` times the first CPU_LANES / copies floats: 1 or 2 of 16 or 8, or quarters of 4. */
V_INLINE vf v_load_copies(const float *p, const int copies) {
#if CPU_LANES == 16
    if (copies == 4)
        return (vf)_mm512_broadcast_f32x4(_mm_loadu_ps(p));
    if (copies == 2)
        return (vf)_mm512_broadcast_f32x8(_mm256_loadu_ps(p));
#elif CPU_LANES == 8
    if (copies == 2)
        return (vf)_mm256_broadcast_ps((const __m128 *)(const void *)p);
#endif
    (void)copies;
    return v_load_any(p);
}

/* Sums of every four lanes from 4 k on: lane 4 k + i of the answer is the sum of a[i]'s. */
V_INLINE vf v_sum_fours(const vf *a) {
#if CPU_LANES == 16
    __m512 x = _mm512_add_ps(_mm512_unpacklo_ps((__m512)a[0], (__m512)a[1]),
                             _mm512_unpackhi_ps((__m512)a[0], (__m512)a[1]));
    __m512 y = _mm512_add_ps(_mm512_unpacklo_ps((__m512)a[2], (__m512)a[3]),
                             _mm512_unpackhi_ps((__m512)a[2], (__m512)a[3]));
    return (vf)_mm512_add_ps((__m512)_mm512_unpacklo_pd((__m512d)x, (__m512d)y),
                             (__m512)_mm512_unpackhi_pd((__m512d)x, (__m512d)y));
#elif CPU_LANES == 8
    __m256 x = _mm256_add_ps(_mm256_unpacklo_ps((__m256)a[0], (__m256)a[1]),
                             _mm256_unpackhi_ps((__m256)a[0], (__m256)a[1]));
    __m256 y = _mm256_add_ps(_mm256_unpacklo_ps((__m256)a[2], (__m256)a[3]),
                             _mm256_unpackhi_ps((__m256)a[2], (__m256)a[3]));
    return (vf)_mm256_add_ps((__m256)_mm256_unpacklo_pd((__m256d)x, (__m256d)y),
                             (__m256)_mm256_unpackhi_pd((__m256d)x, (__m256d)y));
#else
    vf b[4] = {a[0], a[1], a[2], a[3]};
    v_transpose(b);
    return (b[0] + b[2]) + (b[1] + b[3]);
#endif
}

/* Lane i is lane i ^ `far` of a, far being a power of two. */
V_INLINE vf v_swap(vf a, const int far) {
#if CPU_LANES == 16
    if (far < 4)
        return (vf)(far == 1 ? _mm512_permute_ps((__m512)a, 0xb1)
                             : _mm512_permute_ps((__m512)a, 0x4e));
    return (vf)(far == 4 ? _mm512_shuffle_f32x4((__m512)a, (__m512)a, 0xb1)
                         : _mm512_shuffle_f32x4((__m512)a, (__m512)a, 0x4e));
#else
    vf out;
    V_FOR(i, CPU_LANES) {
        out[i] = a[i ^ far];
    }
    return out;
#endif
}

/* Neighbouring fours of lanes added up: first those of a, then those of b. */
V_INLINE vf v_sum_pairs(vf a, vf b) {
#if CPU_LANES == 16
    return (vf)_mm512_add_ps(_mm512_shuffle_f32x4((__m512)a, (__m512)b, 0x88),
                             _mm512_shuffle_f32x4((__m512)a, (__m512)b, 0xdd));
#elif CPU_LANES == 8
    return (vf)_mm256_add_ps(_mm256_permute2f128_ps((__m256)a, (__m256)b, 0x20),
                             _mm256_permute2f128_ps((__m256)a, (__m256)b, 0x31));
#else
    (void)b; /* one four has no neighbour */
    return a;
#endif
}

/* Writes those of 16 words whose mask has the bit, and more that do not count; answers how many. */
V_INLINE int32_t v_take(const int32_t *words, const uint32_t *mask, uint32_t bit, int32_t *out) {
#if CPU_LANES == 16
    const __mmask16 some =
        _mm512_test_epi32_mask(_mm512_loadu_si512(mask), _mm512_set1_epi32((int32_t)bit));
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(some, _mm512_loadu_si512(words)));
    return __builtin_popcount(some);
#else
    int32_t n = 0;
    for (int i = 0; i < 16; i++) {
        out[n] = words[i];
        n += (mask[i] & bit) != 0;
    }
    return n;
#endif
}

#endif
