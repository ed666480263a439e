/* Gradients of scores, for both passes of the backward: what is done to a superblock's scores
 * between the products, one group of lanes at a time. */
#ifndef TESSERA_CPU_GRADIENT_H
#define TESSERA_CPU_GRADIENT_H

#include "tile/modify.h"

/* Replaces what stands in lanes whose bit is clear by 0, whatever it is; bit `lane` of a mask is
 * the group's first lane. */
static inline void gradient_clear(float *st, int vectors, int32_t n, const uint64_t *mask,
                                  int64_t lane) {
    for (int32_t j = 0; j < n; j++)
        for (int v = 0; v < vectors; v++, st += CPU_LANES)
            v_store(st, v_pick((uint32_t)(mask[j] >> (lane + v * CPU_LANES)), v_load(st), (vf){0}));
}

/* P = 2^(score by - base). It is at most 1, but for what rounding did to a large base. */
V_INLINE vf gradient_weight(vf score, vf by, vf base) {
    return v_exp2(v_min((vf){0}, v_fma(score, by, -base)));
}

/* 1 - tanh(x)^2, the derivative of softcap: 4 e / (1 + e)^2 with e = exp(-2 |x|), since 1 -
 * tanh^2 would lose all digits where tanh is near 1. 0 of a NaN, as it may be of a pair that is
 * not listed; of one that is, P is NaN. */
V_INLINE vf gradient_slope(vf x) {
    const vf e = v_exp2(-v_abs(v_set(2 * (float)LOG2_E) * x)), one = v_set(1.0f);
    return v_select((vi)(x == x), v_set(4.0f) * e / ((one + e) * (one + e)), (vf){0});
}

/* Slopes of n vectors of scores. */
static inline void gradient_slopes(const struct modify *m, const float *st, int64_t n,
                                   float *slope) {
    const vf in = v_set(m->in);
    for (int64_t i = 0; i < n * CPU_LANES; i += CPU_LANES)
        v_store(slope + i, gradient_slope(in * v_load(st + i)));
}

/* to *= slope, of n vectors. */
static inline void gradient_chain(float *to, const float *slope, int64_t n) {
    for (int64_t i = 0; i < n * CPU_LANES; i += CPU_LANES)
        v_store(to + i, v_load(to + i) * v_load(slope + i));
}

/* keep[j] = which of the `keys` keys from first_key on, bit 0 first, query[j] of m's head keeps. */
static inline void draw_queries(const struct modify *m, int64_t first_key, int64_t keys,
                                const int32_t *query, int32_t n, uint64_t *keep) {
    memset(keep, 0, (size_t)n * sizeof *keep);
    for (int64_t c = 0, end; c < keys; c = end) {
        const uint32_t at = draw_position(m, (int32_t)(first_key + c)) / MODIFY_DRAWN;
        uint32_t place[CPU_TILE_ROWS]; /* place of each key in its tile of draws */
        unsigned quads = 0;
        for (end = c; end < keys; end++) {
            const uint32_t position = draw_position(m, (int32_t)(first_key + end));
            if (position / MODIFY_DRAWN != at)
                break;
            place[end] = position % MODIFY_DRAWN;
            quads |= 1u << position % 8 / 2;
        }
        for (int32_t j = 0; j < n;) {
            const uint32_t i = (uint32_t)(query[j] + m->modifiers->first_query) / MODIFY_DRAWN;
            uint16_t drawn[MODIFY_DRAWN];
            draw_tile(m, (uint32_t)m->head, i, at, quads, drawn);
            for (uint32_t q; j < n; j++) {
                q = (uint32_t)(query[j] + m->modifiers->first_query);
                if (q / MODIFY_DRAWN != i)
                    break;
                for (int64_t x = c; x < end; x++)
                    keep[j] |= (uint64_t)(drawn[place[x]] >> q % MODIFY_DRAWN & 1) << x;
            }
        }
    }
}

/* Index of the facts of query i of head (b, h): see struct query_stats. */
static inline int64_t stats_at(const struct problem *p, int64_t b, int64_t h, int64_t i) {
    return (b * p->heads_q + h) * p->n_q + i;
}

/* Factor by which dropout multiplies a weight that it keeps. */
static inline float gradient_kept(const struct problem *p) {
    return (float)(65536.0 / (65536 - p->modifiers.dropped));
}

#endif
