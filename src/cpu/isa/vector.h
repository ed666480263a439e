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

/*
 * Lanes of a vector, and the shapes of the micro-kernels: CPU_STEP_n keys, or CPU_DIMS_n dims of an
 * output, by n vectors of queries, n up to CPU_VECTORS. The accumulators have to fit the registers
 * beside n operands and a broadcast, and be enough to keep the multipliers busy over their latency.
 * Scores have twice as many, since chunks are added up there, and n maxima.
 */
#if defined(__AVX512F__)
#define CPU_LANES 16
#define CPU_VECTORS 4
#define CPU_STEP_1 8
#define CPU_STEP_2 6
#define CPU_STEP_3 4
#define CPU_STEP_4 3
#define CPU_DIMS_1 16 /* sums without a pointer each */
#define CPU_DIMS_2 8
#define CPU_DIMS_3 4
#define CPU_DIMS_4 4
#define V_LANES 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#define CPU_LANE_BITS 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768
#elif defined(__AVX2__)
#define CPU_LANES 8
#define CPU_VECTORS 2
#define CPU_STEP_1 8
#define CPU_STEP_2 6
#define CPU_DIMS_1 8
#define CPU_DIMS_2 6
#define CPU_LANE_BITS 1, 2, 4, 8, 16, 32, 64, 128
#define V_LANES 0, 1, 2, 3, 4, 5, 6, 7
#elif defined(CPU_NEON)
#define CPU_LANES 4
#define CPU_VECTORS 4
#define CPU_STEP_1 8
#define CPU_STEP_2 8
#define CPU_STEP_3 4
#define CPU_STEP_4 4
#define CPU_DIMS_1 8
#define CPU_DIMS_2 8
#define CPU_DIMS_3 4
#define CPU_DIMS_4 4
#define CPU_LANE_BITS 1, 2, 4, 8
#define V_LANES 0, 1, 2, 3
#else
#define CPU_LANES 4
#define CPU_VECTORS 2
#define CPU_STEP_1 4
#define CPU_STEP_2 4
#define CPU_DIMS_1 4
#define CPU_DIMS_2 4
#define CPU_LANE_BITS 1, 2, 4, 8
#define V_LANES 0, 1, 2, 3
#endif
#define CPU_STEP_MAX 8
#define CPU_UNROLL (CPU_LANES == 8 ? 1 : 4) /* dims of scores: with 16 registers more would spill */
#define CPU_DIMS_MAX 16
/* Few queries (tile/micro_dims.h): dims of scores at a time, vectors of outputs, and keys with their own sums. */
#define CPU_FEW_LEG (CPU_LANES == 16 ? 64 : 32)
#define CPU_FEW_WIDE 4
#define CPU_FEW_WAYS_1 (CPU_VECTORS == 4 ? 4 : 2)
#define CPU_FEW_WAYS_2 (CPU_VECTORS == 4 ? 2 : 1)
#define CPU_FEW_WAYS_4 1
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

typedef uint64_t vul __attribute__((vector_size(4 * CPU_LANES), may_alias));

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
#if defined(__FMA__) || defined(CPU_NEON)
#define V_FMA 1 /* rounded once */
#else
#define V_FMA 0
#endif
V_INLINE vf v_fma(vf a, vf b, vf c) {
    return a * b + c;
}

/* A line that is read soon; where that was measured to pay. */
V_INLINE void v_fetch(const float *p) {
#if CPU_LANES >= 8
    __builtin_prefetch(p);
#else
    (void)p;
#endif
}

/* CPU_LANES elements of 16 bits to f32, where the machine has instructions for it. */
#if CPU_LANES == 16
#define V_HALVES 1
V_INLINE vf v_load_f16(const uint16_t *p) {
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
V_INLINE vf v_load_bf16(const uint16_t *p) {
    __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16);
}
#elif CPU_LANES == 8
#define V_HALVES 1
V_INLINE vf v_load_f16(const uint16_t *p) {
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
V_INLINE vf v_load_bf16(const uint16_t *p) {
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16);
}
#else
#define V_HALVES 0
#endif

/* p, computed here and kept: gcc would rather add parts of it to each of many later addresses. */
V_INLINE const float *v_keep(const float *p) {
    __asm__("" : "+r"(p));
    return p;
}

/* a, in a register: gcc would rather load an operand anew for each of its uses. */
V_INLINE vf v_hold(vf a) {
#if CPU_LANES == 16
    __asm__("" : "+v"(a));
#elif CPU_LANES == 8
    __asm__("" : "+x"(a));
#elif defined(CPU_NEON)
    __asm__("" : "+w"(a));
#endif
    return a;
}

/* x times a number in double, whose range is that of f32; rounded once, but for a term of 2^-48. */
V_INLINE vf v_multiply(vf x, double y) {
#if V_FMA
    const float high = (float)y, low = (float)(y - (double)high);
    return v_fma(x, v_set(high), v_hold(x * v_set(low)));
#else
    vf out;
    V_FOR(i, CPU_LANES) {
        out[i] = (float)((double)x[i] * y);
    }
    return out;
#endif
}

V_INLINE vf v_abs(vf a) {
    return (vf)((vi)a & INT32_MAX);
}

/* Whether all lanes of a mask are set. */
V_INLINE int v_all(vi mask) {
    int32_t all = -1;
    V_FOR(i, CPU_LANES) {
        all &= mask[i];
    }
    return all != 0;
}

/* a where the mask is set, else b. */
V_INLINE vf v_select(vi mask, vf a, vf b) {
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}

/* The larger one; b where either is NaN. */
V_INLINE vf v_max(vf a, vf b) {
#if CPU_LANES == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif CPU_LANES == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (vf)_mm_max_ps((__m128)a, (__m128)b);
#else
    return v_select((vi)(a > b), a, b);
#endif
}

/* The smaller one; b where either is NaN. */
V_INLINE vf v_min(vf a, vf b) {
#if CPU_LANES == 16
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif CPU_LANES == 8
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (vf)_mm_min_ps((__m128)a, (__m128)b);
#else
    return v_select((vi)(a < b), a, b);
#endif
}

/* a in the lanes whose bit is set, lane 0 being bit 0, else b. */
V_INLINE vf v_pick(uint32_t bits, vf a, vf b) {
#if CPU_LANES == 16
    return (vf)_mm512_mask_blend_ps((__mmask16)bits, (__m512)b, (__m512)a);
#else
    const vi lane = {CPU_LANE_BITS};
    return v_select((vi)((((int32_t)(bits & 0xffff) - (vi){0}) & lane) == lane), a, b);
#endif
}

/* From here to v_flush_end, which is told the answer, what is smaller than 2^-126 becomes 0: so need
 * v_exp2_flushed's callers. */
V_INLINE unsigned v_flush_begin(void) {
#if CPU_LANES >= 8
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | _MM_FLUSH_ZERO_ON);
    __asm__ volatile("" ::: "memory"); /* loads stay behind it, and with them what they feed */
    return before;
#else
    return 0;
#endif
}
V_INLINE void v_flush_end(unsigned before) {
#if CPU_LANES >= 8
    __asm__ volatile("" ::: "memory");
    _mm_setcsr(before);
#else
    (void)before;
#endif
}

/*
 * 2^x for x <= 0: 0 below -126 (and at -Inf), NaN for NaN, 1 at 0; the polynomials are minimax fits.
 * At most 1.84 ulp off on AVX-512, 1.16 on AVX2, else 1.30, 1.02 with FMA: over every f32 from -1.5 to
 * -2^-11.
 *
 * AVX-512 takes x - floor(32 x) / 32 in one instruction, looks 2^(floor(32 x) mod 32 / 32) up in two
 * registers, by the low bits of x + 1.5 * 2^18 rounded down, and scales by 2^floor(x) in another.
 * Elsewhere adding 1.5 * 2^23 rounds x to an integer in the low bits of the sum, 127 more makes it
 * an exponent field: 2^r on [-1/2, 1/2]. AVX2 rounds to an eighth, 1.5 * 2^20, and looks 2^(i / 8) up
 * by the sum's lowest three bits i, which it then adds to the exponent field with the others: so they
 * have been taken off the table.
 */
#if CPU_LANES == 16
/* But for the scale, which is floor(x). */
V_INLINE __m512 v_exp2_part(vf x) {
    _Alignas(64) static const float root[32] = {
        1.0f,       1.0218972f, 1.0442737f, 1.0671405f, 1.0905077f, 1.1143868f, 1.1387886f,
        1.1637249f, 1.1892071f, 1.2152474f, 1.2418578f, 1.269051f,  1.2968396f, 1.3252367f,
        1.3542556f, 1.38391f,   1.4142135f, 1.4451808f, 1.4768262f, 1.5091645f, 1.5422108f,
        1.5759809f, 1.6104903f, 1.6457555f, 1.6817929f, 1.7186193f, 1.7562522f, 1.7947091f,
        1.8340081f, 1.8741677f, 1.9152066f, 1.9571441f,
    };
    enum { DOWN = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC };
    const vf r = (vf)_mm512_reduce_ps((__m512)x, 5 << 4 | DOWN);
    const __m512 at = _mm512_add_round_ps((__m512)x, _mm512_set1_ps(0x1.8p18f), DOWN);
    const vf y = (vf)_mm512_permutex2var_ps((__m512)v_load(root), (__m512i)at,
                                            (__m512)v_load(root + CPU_LANES));
    const vf more = r * v_fma(v_set(0.242652759f), r, v_set(0.6931234f));
    return (__m512)v_fma(y, more, y);
}
#elif CPU_LANES == 8
/* For -127 <= x, but what is smaller than 2^-126 is anything smaller yet; 0 at -127. */
V_INLINE vf v_exp2_part(vf x) {
    const vu root = {0x3f800000, 0x3f7b95c2, 0x3f7837f0, 0x3f75fed7,
                     0x3f7504f3, 0x3f75672a, 0x3f7744fd, 0x3f7ac0c7};
    const vf magic = v_set(0x1.8p20f), t = x + magic, r = x - (t - magic);
    const vf y = (vf)((vu)_mm256_permutevar8x32_epi32((__m256i)root, (__m256i)t) + ((vu)t << 20));
    vf p = v_fma(v_set(0.0554962009f), r, v_set(0.240257621f));
    p = v_fma(p, r, v_set(0.693147242f));
    return v_fma(y, p * r, y);
}
#endif
V_INLINE vf v_exp2(vf x) {
#if CPU_LANES == 16
    const __mmask16 keep = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    return (vf)_mm512_maskz_scalef_ps(keep, v_exp2_part(x), (__m512)x);
#elif CPU_LANES == 8
    return (vf)((vi)v_exp2_part(v_max(v_set(-127.0f), x)) & ~(vi)(x < v_set(-126.0f)));
#else
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
#endif
}

/* 2^(x - y) between v_flush_begin and v_flush_end, which spare it a comparison. The difference is a
 * multiply-add: where adders and multipliers have ports of their own, adders have more to do here. */
V_INLINE vf v_exp2_flushed(vf x, vf y) {
#if CPU_LANES == 16
    const __m512 less = _mm512_fmsub_ps((__m512)x, _mm512_set1_ps(1.0f), (__m512)y);
    return (vf)_mm512_scalef_ps(v_exp2_part((vf)less), less);
#elif CPU_LANES == 8
    const __m256 less = _mm256_fmsub_ps((__m256)x, _mm256_set1_ps(1.0f), (__m256)y);
    return v_exp2_part(v_max(v_set(-127.0f), (vf)less));
#else
    return v_exp2(x - y);
#endif
}

/* Bit i: lane i of the mask is set. */
V_INLINE uint32_t v_bits(vi mask) {
#if CPU_LANES == 16
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask);
#elif CPU_LANES == 8
    return (uint32_t)_mm256_movemask_ps((__m256)mask);
#elif defined(__SSE2__)
    return (uint32_t)_mm_movemask_ps((__m128)mask);
#else
    uint32_t bits = 0;
    V_FOR(i, CPU_LANES) {
        bits |= (uint32_t)(mask[i] & 1) << i;
    }
    return bits;
#endif
}

#if defined(__SSE2__)
V_INLINE vul v_multiply_even(vu a, uint32_t b) {
#if CPU_LANES == 16
    return (vul)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(b));
#elif CPU_LANES == 8
    return (vul)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#else
    return (vul)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(b));
#endif
}
#endif

/* a * b in 64 bits: the low and the high half. x86 multiplies even lanes. */
V_INLINE void v_multiply_wide(vu a, uint32_t b, vu *low, vu *high) {
#if defined(__SSE2__)
    const vul lower = (vul){0} + UINT32_MAX;
    const vul even = v_multiply_even(a, b), odd = v_multiply_even((vu)((vul)a >> 32), b);
    *low = (vu)((even & lower) | odd << 32);
    *high = (vu)(even >> 32 | (odd & ~lower));
#else
    vu below = {0}, above = {0};
    V_FOR(i, CPU_LANES) {
        const uint64_t product = (uint64_t)a[i] * b;
        below[i] = (uint32_t)product;
        above[i] = (uint32_t)(product >> 32);
    }
    *low = below;
    *high = above;
#endif
}

#endif
