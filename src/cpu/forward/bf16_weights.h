/* Attention on bf16 in pairs (tile/bf16_pairs.h): its weights and running maxima. x are queries, y keys
 * in scores, and values in outputs. */
#ifndef TESSERA_CPU_BF16_WEIGHTS_H
#define TESSERA_CPU_BF16_WEIGHTS_H

#include "tile/bf16_pairs.h"

/* Limits of queries for the unit: none that is subnormal, nor so large that a subnormal key would
 * matter; and of values: none so small that products with weights may be flushed to zero. */
static const struct pairs_limits pairs_queries = {1 << 7, PAIRS_POWER(60)};
static const struct pairs_limits pairs_of_values = {PAIRS_POWER(-40), 0x7fff};

/* Scratch of a thread for bf16 in pairs. */
struct pairs {
    uint32_t *qp, *pt;
    uint16_t *k;  /* keys that do not lie side by side, or in two views [PAIRS_KEYS][d_qk] */
    uint16_t *vt; /* values of one superblock */
};

/* Factor of scores, without the sign, which the queries take. */
static inline float pairs_factor(const struct problem *p) {
    return (float)fabs(p->scale * LOG2_E);
}

static inline void pairs_take(struct carve *c, const struct problem *p, size_t lanes,
                              struct pairs *a) {
    a->qp = carve_take_panel(c, lanes, (size_t)p->d_qk / 2, sizeof *a->qp);
    a->pt = carve_take(c, PAIRS_BATCH / 2 * CPU_GROUP, sizeof *a->pt);
    a->k = carve_take_panel(c, PAIRS_KEYS, (size_t)p->d_qk, sizeof *a->k);
    a->vt = carve_take_panel(c, CPU_KEYS, (size_t)p->d_v, sizeof *a->vt);
}

/* n keys in two views, and the last again up to a whole step, become rows 0, 1, ... of scratch, which
 * `number` names. */
static inline struct cpu_head pairs_join(const struct pairs *a, const struct cpu_head *k,
                                         const int32_t *key, int32_t n, int64_t d,
                                         int32_t number[PAIRS_KEYS]) {
    const int64_t first = d - k->rope_dims;
    for (int32_t j = 0; j < PAIRS_KEYS; j++) {
        const int32_t place = key[j < n ? j : n - 1];
        uint16_t *row = a->k + j * d;
        memcpy(row, cpu_key(k, place), (size_t)first * sizeof *row);
        memcpy(row + first, cpu_key(k->rope, place), (size_t)k->rope_dims * sizeof *row);
        number[j] = j;
    }
    return (struct cpu_head){.data = (char *)a->k, .stride = 2 * d};
}

/* The maximum that follows m when scores reach up to top: m itself until a weight would pass 2^7,
 * so that outputs are seldom multiplied. bf16 keeps as much of larger weights. */
V_INLINE vf pairs_follow(vf top, vf m) {
    return v_select((vi)(top > m + 7.0f), top, m);
}

/* 2^x as v_exp2_flushed, to 3e-6 of it: bf16 keeps 4e-3. */
V_INLINE vf pairs_exp2(vf x) {
    const vf r = (vf)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vf p = v_fma(v_set(0.0134267099f), r, v_set(0.0522424355f));
    p = v_fma(p, r, v_set(0.241280228f));
    p = v_fma(p, r, v_set(0.693044841f));
    p = v_fma(p, r, v_set(1.0f));
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)x);
}

/* Rounded by itself, as the maximum was: were the base subtracted from the exact product, a row of
 * scores past 2^24 would not have 1 as its largest weight. */
V_INLINE vf pairs_scaled(const float *s, float factor) {
    vf x = v_load(s) * factor;
    __asm__("" : "+v"(x));
    return x;
}

/* pt = 2^(st * factor - base) of n keys for `vectors` vectors of the group's, and the sums. */
V_INLINE void pairs_weigh_body(uint32_t *pt, const float *st, int32_t n, int64_t width,
                               float factor, const vf *base, const int vectors, vf *sum) {
    const __m512i order = pairs_order();
    vf total[CPU_VECTORS]; /* sum may be in pt, for all that compilers know */
    V_FOR(v, vectors) {
        total[v] = (vf){0};
    }
    for (int32_t j = 0; j < n; j += 2)
        V_FOR(v, vectors) {
            const float *s = st + j * width + v * CPU_LANES;
            vf x = pairs_exp2(pairs_scaled(s, factor) - base[v]), y = {0};
            if (j + 1 < n)
                y = pairs_exp2(pairs_scaled(s + width, factor) - base[v]);
            total[v] += x + y;
            pairs_store_both(pt + j / 2 * width + v * CPU_LANES, x, y, order);
        }
    V_FOR(v, vectors) {
        sum[v] = total[v];
    }
}

/* Weights of any number of keys, and 0 from n to the next multiple of 32. */
static inline void pairs_weigh(uint32_t *pt, const float *st, int32_t n, float factor,
                               const vf *base, int vectors, vf *sum) {
    const int64_t width = vectors * CPU_LANES;
    const unsigned before = v_flush_begin();
    if (vectors == CPU_VECTORS)
        pairs_weigh_body(pt, st, n, CPU_GROUP, factor, base, CPU_VECTORS, sum);
    else
        for (int v = 0; v < vectors; v++)
            pairs_weigh_body(pt + v * CPU_LANES, st + v * CPU_LANES, n, width, factor, base + v, 1,
                             sum + v);
    v_flush_end(before);
    pairs_pad(pt, n, width);
}

/* Destination of the weights of the batch's next keys. */
static inline uint32_t *pairs_next(const struct pairs *a, const struct pairs_batch *batch,
                                   int vectors) {
    return a->pt + batch->n / 2 * vectors * CPU_LANES;
}

/* ot *= alpha. */
static inline void pairs_rescale(int vectors, int64_t d, const vf *alpha, float *ot) {
    const int64_t width = vectors * CPU_LANES;
    for (int64_t i = 0; i < d; i++)
        for (int v = 0; v < vectors; v++) {
            float *o = ot + i * width + v * CPU_LANES;
            v_store(o, v_load(o) * alpha[v]);
        }
}

#endif
