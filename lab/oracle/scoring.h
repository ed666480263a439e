/* How the oracle makes weights of scores: softcap, ALiBi, sinks and dropout from their definitions
 * (docs/semantics.md). */
#ifndef LAB_SCORING_H
#define LAB_SCORING_H

#include "lab/fill/philox.h"
#include "tessera.h"

#include <math.h>

struct lab_place {
    int64_t b, h, i;
};

/* How a cache holds keys and values: an element is its stored value times its scale. */
struct lab_caching {
    const int32_t *table;                 /* [batch] rows, NULL: not paged */
    int64_t stride, size, pages;          /* entries from row to row; rows of a page */
    const tess_tensor *k_scale, *v_scale; /* NULL: none */
    int64_t group;                        /* dims of a scale where a row has several */
    const tess_tensor *k_rope;            /* the last dims of keys, NULL: with the others */
};

/* A base that rows start from. */
struct lab_basing {
    tess_base how;
    double beta;                /* ADD */
    const tess_tensor *o, *lse; /* lse: MERGE */
};

/* How scores become weights; zeros are today's plain attention, and in `scale` 1/sqrt(d_qk). */
struct lab_scoring {
    double scale, softcap;
    const float *alibi, *sink; /* [heads_q], NULL: none */
    int64_t dropped;           /* weights dropped, of 65536 */
    uint64_t seed;
    /* Place of this problem in a longer one. Added to: a head's number b * heads + h (heads 0: as many as
     * q has); queries; keys; positions i + n_kv - n_q of queries. */
    int64_t first_head, heads, first_query, first_key, position;
    const int32_t *key_positions;    /* [n_kv], NULL: j + first_key */
    const int32_t *lengths;          /* [batches] that stand for n_kv, NULL: n_kv */
    const struct lab_caching *cache; /* NULL: keys and values are the tensors' rows */
    const struct lab_basing *base;   /* NULL: none */
};

/* Sizes of a problem that the definitions need. */
struct lab_sizes {
    int64_t heads_q, n_q, n_kv;
};

static inline int64_t lab_key_position(const struct lab_scoring *s, int64_t key) {
    return s->key_positions ? s->key_positions[key] : key + s->first_key;
}

/* How far a key stands behind a query: j - p_i. */
static inline double lab_distance(const struct lab_scoring *s, const struct lab_sizes *sizes,
                                  const struct lab_place *at, int64_t key) {
    const int64_t n_kv = s->lengths ? s->lengths[at->b] : sizes->n_kv;
    return (double)(lab_key_position(s, key) - at->i - n_kv + sizes->n_q - s->position);
}

/* A scaled score as softcap and ALiBi leave it. */
static inline double lab_score(const struct lab_scoring *s, const struct lab_sizes *sizes,
                               const struct lab_place *at, int64_t key, double score) {
    if (s->softcap > 0)
        score = s->softcap * tanh(score / s->softcap);
    if (s->alibi)
        score += (double)s->alibi[at->h] * lab_distance(s, sizes, at, key);
    return score;
}

/* A dot product in the order of dims. *walk: the root of the sum of its partial sums' squares. */
static inline double lab_dot(const double *x, const double *y, int64_t n, double *walk) {
    double sum = 0, squares = 0;
    for (int64_t d = 0; d < n; d++) {
        sum += x[d] * y[d];
        squares += sum * sum;
    }
    *walk = sqrt(squares);
    return sum;
}

/* The walk of a dot product as its score, `plain` before softcap, has it; in units of M. */
static inline double lab_score_walk(const struct lab_scoring *s, double plain, double walk) {
    const double grown = s->softcap > 0 ? cosh(plain / s->softcap) : 1;
    const double size = 0.5 * fabs(s->scale) * walk / (grown * grown);
    return isfinite(size) ? size : 0;
}

/* The error that partial sums leave in a score beside M = m: independent ones add up as squares. */
static inline double lab_score_error(double walk, double m) {
    return 0x1p-22 * (hypot(walk, m) - m);
}

/* Whether dropout takes a weight, and what the others are multiplied by. */
static inline int lab_drops(const struct lab_scoring *s, const struct lab_sizes *sizes,
                            const struct lab_place *at, int64_t key) {
    const int64_t head = s->first_head + at->b * (s->heads ? s->heads : sizes->heads_q) + at->h;
    return s->dropped && lab_draw(s->seed, (uint32_t)head, (uint32_t)(at->i + s->first_query),
                                  (uint32_t)lab_key_position(s, key)) < (uint32_t)s->dropped;
}
static inline double lab_kept(const struct lab_scoring *s) {
    return 65536.0 / (double)(65536 - s->dropped);
}

#endif
