/* Score modifiers of a thread's scores: softcap and ALiBi before softmax, dropout after it, the sink
 * at the end (docs/semantics.md). Scores stand in accumulators, before the scale. Ordinary loads read what a
 * run is given: a kernel before one that starts early may have written it. */
#ifndef TESSERA_CUDA_DEVICE_MODIFY_CUH
#define TESSERA_CUDA_DEVICE_MODIFY_CUH

#include "device/inline.cuh"
#include "host/modify.h"

#include <stdint.h>

/* ---- softcap ---- */

/* Arguments up to which tanh is a polynomial; beyond, it is an exponential. */
#define MODIFY_NEAR 0.6f

/* tanh(t): for |t| <= MODIFY_NEAR a minimax polynomial, to 2^-23. FAR: of any t, by 1 - 2 / (1 +
 * e^2t) beyond. A function of t alone: FAR changes no bit of it. */
template <bool FAR> DEVICE float modify_tanh(float t) {
    const float z = t * t;
    float p = fmaf(0.0156126320f, z, -0.0522118061f);
    p = fmaf(p, z, 0.133131166f);
    p = fmaf(p, z, -0.333325976f);
    const float near = fmaf(t * z, p, t);
    if (!FAR)
        return near;
    float e, inverse; /* -Inf ... Inf: e^2|t| may be Inf, its inverse is 0 then */
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(fabsf(t) * 2.88539008f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1 + e));
    return fabsf(t) > MODIFY_NEAR ? copysignf(fmaf(-2, inverse, 1), t) : near;
}

/* N scores s to tanh(in * s). */
template <int N> DEVICE void modify_cap(float (&s)[N], float in) {
    float most = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        most = fmaxf(most, fabsf(s[i]));
    if (__any_sync(0xffffffffu, most * in > MODIFY_NEAR)) {
#pragma unroll
        for (int i = 0; i < N; i++)
            s[i] = modify_tanh<true>(s[i] * in);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            s[i] = modify_tanh<false>(s[i] * in);
    }
}

/* Exponents that a score counts: `scale` before modify_cap, and after it. */
DEVICE float modify_unit(const struct modify_params &m, float scale) {
    return m.cap != 0 ? m.cap : scale;
}
/* Exponents after ALiBi, in kernels whose scale may be too small to divide slopes by. */
DEVICE float modify_scale(const struct modify_params &m, float scale) {
    return m.alibi ? 1 : modify_unit(m, scale);
}

/* ---- positions ---- */

/* Position of a key, without first_key. Keys that there are not are taken for the first or last. */
DEVICE int32_t modify_place(const struct modify_params &m, int32_t key, int32_t n_kv) {
    key = max(min(key, n_kv - 1), 0);
    return m.key_positions ? m.key_positions[key] : key;
}

/* Distance of a place from query `row`. A whole problem has fewer than 2^31 keys and queries, so that 32
 * bits hold it, whatever its terms. */
DEVICE float modify_distance(const struct modify_params &m, int32_t place, int32_t row) {
    return (float)(int32_t)((uint32_t)place + m.first_key - m.first_position - (uint32_t)row);
}

/* ---- dropout ---- */

#define MODIFY_ROUNDS 7

/* Philox4x32-7 (Salmon, Moraes, Dror, Shaw, 2011), unrolled UNROLLED times. */
template <int UNROLLED>
DEVICE uint4 modify_philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t seed) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll UNROLLED
    for (int round = 0; round < MODIFY_ROUNDS; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        const uint64_t a = (uint64_t)c0 * 0xD2511F53u, b = (uint64_t)c2 * 0xCD9E8D57u;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
    }
    return {c0, c1, c2, c3};
}

/* A query, as dropout counts it. */
struct modify_query {
    uint32_t i, head;
};
DEVICE struct modify_query modify_query_of(const struct modify_params &m, int32_t batch,
                                           int32_t head, int32_t row) {
    return {m.first_query + (uint32_t)row,
            m.first_head + (uint32_t)batch * m.heads + (uint32_t)head};
}

/* The eight words of which query i and key j have one. */
template <int UNROLLED>
DEVICE uint4 modify_words(const struct modify_query &q, uint32_t j, uint64_t seed) {
    return modify_philox<UNROLLED>(j / 16, q.i / 16, q.head, q.i % 8 * 4 + j % 8 / 2, seed);
}

/* Number among the eight. */
DEVICE uint32_t modify_word(const struct modify_query &q, uint32_t j) {
    return q.i / 8 % 2 * 4 + j / 8 % 2 * 2 + j % 2;
}

/* Bit x of eight: word x is not below `dropped`. */
DEVICE uint32_t modify_kept_words(const uint4 &words, uint32_t dropped) {
    const uint32_t pair[4] = {words.x, words.y, words.z, words.w};
    uint32_t kept = 0;
#pragma unroll
    for (int x = 0; x < 4; x++)
        kept |= (uint32_t)((pair[x] & 0xffff) >= dropped) << 2 * x |
                (uint32_t)(pair[x] >> 16 >= dropped) << (2 * x + 1);
    return kept;
}

/* Whether the weights of queries q[0], q[1] and keys j[0], j[1] are kept: bit 2 h + e for q[h] and
 * j[e]. Neighbours in a 16 x 16 tile of draws share a call. Rolled: registers are short. */
DEVICE uint32_t modify_kept(const struct modify_query (&q)[2], const uint32_t (&j)[2],
                            uint32_t dropped, uint64_t seed) {
    uint32_t kept = 0, first = 0; /* first: of the call for q[0] and j[0] */
#pragma unroll 1
    for (int n = 0; n < 4; n++) {
        const struct modify_query one = n / 2 ? q[1] : q[0];
        const uint32_t key = n % 2 ? j[1] : j[0];
        const bool same_query = one.head == q[0].head && (one.i & ~8u) == (q[0].i & ~8u);
        const bool same = n > 0 && same_query && (key & ~9u) == (j[0] & ~9u);
        uint32_t words = first;
        if (!same)
            words = modify_kept_words(modify_words<1>(one, key, seed), dropped);
        first = n == 0 ? words : first;
        kept |= (words >> modify_word(one, key) & 1) << n;
    }
    return kept;
}

/* ---- the sink ---- */

#define MODIFY_UNIT_LOW 1.925963033500e-8f /* log2(e) less the float nearest to it */

/* 2^-top e^x: the weight of a natural logarithm. The exponent is kept to twice f32's digits: a sink may lie 80
 * above the scores. */
DEVICE float modify_weight(const struct modify_params &m, float x, float top) {
    const float high = __fmul_rn(x, m.unit);
    const float low = fmaf(x, m.unit, -high) + x * MODIFY_UNIT_LOW;
    const float sum = __fsub_rn(high, top), back = __fsub_rn(sum, high);
    const float rest = (__fsub_rn(high, __fsub_rn(sum, back)) - __fadd_rn(top, back)) + low;
    return exp2f(sum) * (fabsf(sum) < 200 ? fmaf(rest, 0.693147181f, 1) : 1);
}

/* Denominator of O: the sum l of weights 2^(s - top), and the sink of head h. */
DEVICE float modify_denominator(const struct modify_params &m, int32_t head, float top, float l) {
    return !m.sink || !(l > 0) ? l : l + modify_weight(m, m.sink[head], top);
}

#endif
