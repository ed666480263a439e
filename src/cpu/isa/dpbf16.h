/*
 * The unit of bf16_pairs.h by vdpbf16ps, which adds two products to each of 16 sums. Queries stand in the
 * lanes. A pair of a key's dims, or of two keys' values, is read as one scalar, in place. A call takes one
 * group of 1 ... CPU_VECTORS vectors of queries; functions are not inlined, or sums leave the registers.
 */
#ifndef TESSERA_CPU_DPBF16_H
#define TESSERA_CPU_DPBF16_H

#include "tile/bf16_pairs.h"

/* Keys of a step of scores, and dims of one of values, with 1 ... 4 vectors of lanes: sums enough to
 * hide how long one takes. */
enum { DPBF16_KEYS_1 = 8, DPBF16_KEYS_2 = 8, DPBF16_KEYS_3 = 4, DPBF16_KEYS_4 = 4 };
enum { DPBF16_DIMS_1 = 16, DPBF16_DIMS_2 = 8, DPBF16_DIMS_3 = 4, DPBF16_DIMS_4 = 4 };
enum { DPBF16_MOST = 16 };

static inline void unit_begin(void) {
}

static inline void unit_end(void) {
}

/* sum + the products of two pairs, of which `pair` is one scalar for all lanes. */
V_INLINE __m512 dpbf16_add(__m512 sum, __m512i lanes, const uint16_t *pair) {
    int32_t both;
    memcpy(&both, pair, sizeof both);
    return _mm512_dpbf16_ps(sum, (__m512bh)lanes, (__m512bh)_mm512_set1_epi32(both));
}

/* st of `keys` keys. */
V_INLINE void dpbf16_scores_body(const uint32_t *restrict qp, const uint16_t *const *key, int64_t d,
                                 const int vectors, const int keys, float *restrict st) {
    __m512 sum[DPBF16_MOST][CPU_VECTORS];
    V_FOR(j, keys) {
        V_FOR(v, vectors) {
            sum[j][v] = _mm512_setzero_ps();
        }
    }
    for (int64_t i = 0; i < d; i += 2) {
        __m512i q[CPU_VECTORS];
        V_FOR(v, vectors) {
            q[v] = _mm512_load_si512(qp + (i / 2 * vectors + v) * CPU_LANES);
        }
        V_FOR(j, keys) {
            V_FOR(v, vectors) {
                sum[j][v] = dpbf16_add(sum[j][v], q[v], key[j] + i);
            }
        }
    }
    V_FOR(j, keys) {
        V_FOR(v, vectors) {
            _mm512_store_ps(st + (j * vectors + v) * CPU_LANES, sum[j][v]);
        }
    }
}

/* ot of `dims` dims from `dim` on: the products of n keys, in whole steps. */
V_INLINE void dpbf16_values_body(const uint32_t *restrict pt, const uint16_t *const *vt,
                                 int64_t dim, int32_t n, const int vectors, const int dims,
                                 float *restrict ot) {
    __m512 sum[DPBF16_MOST][CPU_VECTORS];
    V_FOR(i, dims) {
        V_FOR(v, vectors) {
            sum[i][v] = _mm512_load_ps(ot + ((dim + i) * vectors + v) * CPU_LANES);
        }
    }
    for (int32_t j = 0; j < n; j += PAIRS_KEYS) {
        const uint16_t *value = vt[j / PAIRS_KEYS] + dim * PAIRS_KEYS;
        for (int32_t k = 0; k < PAIRS_KEYS; k += 2) {
            __m512i p[CPU_VECTORS];
            V_FOR(v, vectors) {
                p[v] = _mm512_load_si512(pt + ((j + k) / 2 * vectors + v) * CPU_LANES);
            }
            V_FOR(i, dims) {
                V_FOR(v, vectors) {
                    sum[i][v] = dpbf16_add(sum[i][v], p[v], value + i * PAIRS_KEYS + k);
                }
            }
        }
    }
    V_FOR(i, dims) {
        V_FOR(v, vectors) {
            _mm512_store_ps(ot + ((dim + i) * vectors + v) * CPU_LANES, sum[i][v]);
        }
    }
}

#define DPBF16_SHAPE(vectors)                                                                      \
    static __attribute__((noinline)) void dpbf16_scores_##vectors(                                 \
        const uint32_t *qp, const uint16_t *const *key, int64_t d, float *st) {                    \
        dpbf16_scores_body(qp, key, d, vectors, DPBF16_KEYS_##vectors, st);                        \
    }                                                                                              \
    static __attribute__((noinline)) void dpbf16_values_##vectors(                                 \
        const uint32_t *pt, const uint16_t *const *vt, int64_t dim, int32_t n, float *ot) {        \
        dpbf16_values_body(pt, vt, dim, n, vectors, DPBF16_DIMS_##vectors, ot);                    \
    }
DPBF16_SHAPE(1)
DPBF16_SHAPE(2)
DPBF16_SHAPE(3)
DPBF16_SHAPE(4)

#define DPBF16_ROW(vectors)                                                                        \
    {                                                                                              \
        DPBF16_KEYS_##vectors, DPBF16_DIMS_##vectors, dpbf16_scores_##vectors,                     \
            dpbf16_values_##vectors                                                                \
    }
/* Shapes of a group of 1, 2, ... vectors. */
static const struct dpbf16_shape {
    int32_t keys, dims;
    void (*scores)(const uint32_t *qp, const uint16_t *const *key, int64_t d, float *st);
    void (*values)(const uint32_t *pt, const uint16_t *const *vt, int64_t dim, int32_t n,
                   float *ot);
} dpbf16_shapes[] = {DPBF16_ROW(1), DPBF16_ROW(2), DPBF16_ROW(3), DPBF16_ROW(4)};

static inline void unit_scores(const uint32_t *xp, uint16_t *copy, int vectors,
                               const struct cpu_head *head, int32_t *key, int32_t j, int32_t n,
                               int64_t d, float *st) {
    const struct dpbf16_shape *shape = &dpbf16_shapes[vectors - 1];
    const uint16_t *row[DPBF16_MOST];
    (void)copy;
    for (int32_t i = n; i < j + PAIRS_KEYS; i++)
        key[i] = key[n - 1];
    for (int32_t i = 0; i < PAIRS_KEYS && j + i < n; i += shape->keys) {
        for (int32_t k = 0; k < shape->keys; k++)
            row[k] = (const uint16_t *)(const void *)cpu_key(head, key[j + i + k]);
        shape->scores(xp, row, d, st + i * vectors * CPU_LANES);
    }
}

static inline void unit_add_values(const uint32_t *pt, const struct pairs_batch *batch, int vectors,
                                   int64_t d, float *ot) {
    const struct dpbf16_shape *shape = &dpbf16_shapes[vectors - 1];
    for (int64_t i = 0; i < d; i += shape->dims)
        shape->values(pt, batch->vt, i, batch->n, ot);
}

#endif
