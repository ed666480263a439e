/*
 * Attention on bf16 as it is stored: a superblock's scores and outputs from sums of products of
 * pairs of elements that lie side by side, by a unit that takes subnormal numbers for zero (amx.h,
 * dpbf16.h):
 *
 *     K            keys x dims, as they lie                  times
 *     qp           [d_qk / 2][width] pairs of dims           gives st
 *     vt           [keys / 32][d_v][32]                      times
 *     pt           [PAIRS_BATCH / 2][width] pairs of weights gives ot, in the panels of micro.h
 *
 * Queries stay as they are stored: the scale is applied to the sums. Weights are rounded to bf16
 * once.
 *
 * vt of a whole tensor is made before all else where tiles would make it for the same keys again
 * and again; what it lacks (keys that do not lie side by side) is made for each superblock.
 *
 * The units:
 *     unit_begin, unit_end      around an item
 *     unit_scores               st = keys j ... j + 31 of n times qp; key has room for CPU_KEYS, and
 *                               keys past n are set to the last
 *     unit_add_values           ot += vt pt, for a batch
 */
#ifndef TESSERA_CPU_PAIRS_H
#define TESSERA_CPU_PAIRS_H

#include "tile/tile.h"

#define PAIRS_KEYS 32        /* of a step */
#define PAIRS_BATCH CPU_NEAR /* keys whose values are multiplied at once, at most */

/* What bf16 in pairs needs of a thread's scratch. */
struct pairs {
    uint32_t *qp, *pt;
    uint16_t *k;  /* keys that do not lie side by side, or in two views [CPU_KEYS][d_qk] */
    uint16_t *vt; /* of one superblock */
};

/* vt of all heads' values, or from one head on; groups 0: of none. */
struct pairs_store {
    uint16_t *vt;   /* [batch * heads_kv][groups][d_v][PAIRS_KEYS] */
    uint8_t *tiny;  /* [batch * heads_kv][groups]: not fit for the unit */
    int64_t groups; /* whole ones of a head's keys */
};

/* Where vt of a superblock's steps stands. */
struct pairs_values {
    const uint16_t *vt[CPU_KEYS / PAIRS_KEYS];
    int packed; /* some in the thread's scratch */
};

/* Keys, in whole steps, whose weights stand in pt and whose values are still to be multiplied: as
 * many at once as may be, since the unit loads and stores all outputs each time. */
struct pairs_batch {
    int32_t n;
    const uint16_t *vt[PAIRS_BATCH / PAIRS_KEYS];
};

/* What scores are multiplied by. Without its sign, which the queries take. */
static inline float pairs_factor(const struct problem *p) {
    return (float)fabs(p->scale * LOG2_E);
}

static inline void pairs_take(struct carve *c, const struct problem *p, size_t lanes,
                              struct pairs *a) {
    a->qp = carve_take_panel(c, lanes, (size_t)p->d_qk / 2, sizeof *a->qp);
    a->pt = carve_take(c, PAIRS_BATCH / 2 * CPU_GROUP, sizeof *a->pt);
    a->k = carve_take_panel(c, CPU_KEYS, (size_t)p->d_qk, sizeof *a->k);
    a->vt = carve_take_panel(c, CPU_KEYS, (size_t)p->d_v, sizeof *a->vt);
}

/* Whether values are worth packing before all else: runs are long, and tiles list a key of V twice
 * and more. Not where lists are filled: values past today's length are not to be read; nor pages. */
static inline int pairs_store_pays(const struct kernel_args *args) {
    const struct problem *p = args->problem;
    const struct lists *lists = args->lists;
    double keys = 0;
    if (lists->filled || caches_paged(&p->caches))
        return 0;
    for (int64_t T = 0; T < lists->n_lists * lists->tiles; T++)
        keys += (double)lists->keys[T];
    return keys >= 64.0 * (double)(lists->n_full + lists->n_masked) &&
           keys * (double)p->heads_q >=
               2.0 * (double)lists->n_lists * (double)(p->heads_kv * p->n_kv);
}

static inline void pairs_store_take(struct carve *c, const struct kernel_args *args,
                                    struct pairs_store *s) {
    const struct problem *p = args->problem;
    const size_t heads = (size_t)(p->batch * p->heads_kv);
    s->groups = pairs_store_pays(args) ? p->n_kv / PAIRS_KEYS : 0;
    s->vt =
        carve_take_panel(c, heads * (size_t)s->groups, (size_t)p->d_v * PAIRS_KEYS, sizeof *s->vt);
    s->tiny = carve_take_panel(c, heads, (size_t)s->groups, sizeof *s->tiny);
}

/* From head h of the values' on. */
static inline struct pairs_store pairs_store_of(const struct pairs_store *s, int64_t head,
                                                int64_t d) {
    const int64_t skip = head * s->groups;
    return (struct pairs_store){s->vt + skip * d * PAIRS_KEYS, s->tiny + skip, s->groups};
}

/* The elements whose magnitude, as bits, is 1 ... limit. */
V_INLINE uint32_t pairs_small(__m512i x, uint16_t limit) {
    __m512i bits = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
    return _mm512_cmplt_epu16_mask(_mm512_sub_epi16(bits, _mm512_set1_epi16(1)),
                                   _mm512_set1_epi16((int16_t)limit));
}

/* Packs the queries of a tile. Answers whether the unit may have them: not where a query is
 * subnormal, nor so large that a subnormal key would matter. row is scratch for CPU_LANES * d
 * floats. */
static inline int pairs_load_queries(const struct pairs *a, const struct cpu_head *q, int64_t first,
                                     int64_t rows, const struct problem *p, float *row) {
    const int64_t d = p->d_qk, lanes = cpu_lanes(rows);
    const __m512i sign = _mm512_set1_epi16(p->scale < 0 ? INT16_MIN : 0);
    const __m512i large = _mm512_set1_epi16((127 + 60) << 7);
    uint32_t bad = 0;
    for (int64_t lane = 0; lane < lanes; lane += CPU_LANES) {
        memset(row, 0, (size_t)(CPU_LANES * d / 2) * sizeof *row);
        for (int64_t r = lane; r < rows && r < lane + CPU_LANES; r++)
            for (int64_t i = 0; i < d; i += 32) {
                const int64_t in_rope = i - (d - q->rope_dims);
                __m512i x =
                    _mm512_loadu_si512(in_rope < 0 ? cpu_row(q, first, r) + 2 * i
                                                   : cpu_row(q->rope, first, r) + 2 * in_rope);
                bad |= pairs_small(x, 0x7f);
                bad |=
                    _mm512_cmpgt_epi16_mask(_mm512_and_si512(x, _mm512_set1_epi16(0x7fff)), large);
                _mm512_storeu_si512(row + (r - lane) * d / 2 + i / 2, _mm512_xor_si512(x, sign));
            }
        int64_t width;
        float *column = cpu_column((float *)(void *)a->qp, lanes, lane, d / 2, &width);
        cpu_to_column(column, width, row, d / 2, d / 2);
    }
    return !bad;
}

/* 32 elements of a row, or 16 and zeros. */
V_INLINE __m512i pairs_row(const char *row, int64_t i, const int dims) {
    const void *at = row + 2 * i;
    return dims == 32 ? _mm512_loadu_si512(at) : _mm512_zextsi256_si512(_mm256_loadu_si256(at));
}

/* vt of 32 keys and `dims` dims: of each 8 dims the first (half 0) or last 4. Answers the least
 * magnitude, as bits, less 1: of no interest where it is 0. */
V_INLINE __m512i pairs_turn(uint16_t *vt, const char *const *row, int64_t i, const int dims,
                            const int half, __m512i least) {
    const __m512i magnitude = _mm512_set1_epi16(0x7fff), one = _mm512_set1_epi16(1);
    vf pair[16];
    V_FOR(k, 16) {
        __m512i x = pairs_row(row[2 * k], i, dims), y = pairs_row(row[2 * k + 1], i, dims);
        if (half) {
            pair[k] = (vf)_mm512_unpackhi_epi16(x, y);
        } else {
            pair[k] = (vf)_mm512_unpacklo_epi16(x, y);
            x = _mm512_sub_epi16(_mm512_and_si512(x, magnitude), one);
            y = _mm512_sub_epi16(_mm512_and_si512(y, magnitude), one);
            least = _mm512_min_epu16(least, _mm512_min_epu16(x, y));
        }
    }
    v_transpose(pair);
    V_FOR(k, 16) {
        const int64_t dim = k / 4 * 8 + half * 4 + k % 4;
        if (dim < dims)
            v_store((float *)(void *)(vt + (i + dim) * PAIRS_KEYS), pair[k]);
    }
    return least;
}

/* vt of the values of 32 rows. Answers 0 where they are so small that products with weights may be
 * flushed to zero. */
static inline int pairs_pack(uint16_t *vt, const char *const *row, int64_t d) {
    const __m512i limit = _mm512_set1_epi16((127 - 40) << 7);
    __m512i least = _mm512_set1_epi16(-1);
    int64_t i = 0;
    for (; i + 32 <= d; i += 32) {
        least = pairs_turn(vt, row, i, 32, 0, least);
        least = pairs_turn(vt, row, i, 32, 1, least);
    }
    if (i < d) {
        least = pairs_turn(vt, row, i, 16, 0, least);
        least = pairs_turn(vt, row, i, 16, 1, least);
    }
    return !_mm512_cmplt_epu16_mask(least, limit);
}

/* Fills groups first ... first + n - 1 of a head's store. */
static inline void pairs_store_fill(const struct pairs_store *s, const struct cpu_head *v,
                                    int64_t first, int64_t n, int64_t d) {
    const char *row[PAIRS_KEYS];
    for (int64_t group = first; group < first + n; group++) {
        for (int64_t j = 0; j < PAIRS_KEYS; j++)
            row[j] = v->data + (group * PAIRS_KEYS + j) * v->stride;
        s->tiny[group] = !pairs_pack(s->vt + group * d * PAIRS_KEYS, row, d);
    }
}

/* n keys in two views, and the last again up to a whole step, become rows 0, 1, ... of scratch, which
 * `number` names. */
static inline struct cpu_head pairs_join(const struct pairs *a, const struct cpu_head *k,
                                         const int32_t *key, int32_t n, int64_t d,
                                         int32_t number[PAIRS_KEYS]) {
    const int64_t first = d - k->rope_dims;
    for (int32_t j = 0; j < PAIRS_KEYS; j++) {
        const int32_t of = key[j < n ? j : n - 1];
        uint16_t *row = a->k + j * d;
        memcpy(row, cpu_key(k, of), (size_t)first * sizeof *row);
        memcpy(row + first, cpu_key(k->rope, of), (size_t)k->rope_dims * sizeof *row);
        number[j] = j;
    }
    return (struct cpu_head){.data = (char *)a->k, .stride = 2 * d};
}

/* Whether n keys lie side by side. */
V_INLINE int pairs_together(const int32_t *key, int n) {
    int together = 1;
    for (int j = 1; j < n; j++)
        together &= key[j] == key[0] + j;
    return together;
}

/* vt of n keys and whole steps, where the last key stands again. Answers 0 where some are not fit
 * for the unit. */
static inline int pairs_load_values(const struct pairs *a, const struct pairs_store *store,
                                    const struct cpu_head *v, const int32_t *key, int32_t n,
                                    int64_t d, struct pairs_values *out) {
    const char *row[PAIRS_KEYS];
    int fit = 1;
    out->packed = 0;
    for (int32_t j = 0; j < n; j += PAIRS_KEYS) {
        if (store->groups && n - j >= PAIRS_KEYS && key[j] % PAIRS_KEYS == 0 &&
            pairs_together(key + j, PAIRS_KEYS)) {
            out->vt[j / PAIRS_KEYS] = store->vt + key[j] * d;
            fit &= !store->tiny[key[j] / PAIRS_KEYS];
            continue;
        }
        for (int32_t i = j; i < j + PAIRS_KEYS; i++)
            row[i - j] = cpu_key(v, key[i < n ? i : n - 1]);
        fit &= pairs_pack(a->vt + j * d, row, d);
        out->vt[j / PAIRS_KEYS] = a->vt + j * d;
        out->packed = 1;
    }
    return fit;
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
    static const uint16_t order[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                       21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                       11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i pairs = _mm512_loadu_si512(order);
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
            __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)y, (__m512)x);
            _mm512_store_si512(pt + j / 2 * width + v * CPU_LANES,
                               _mm512_permutexvar_epi16(pairs, both));
        }
    V_FOR(v, vectors) {
        sum[v] = total[v];
    }
}

/* The same for all of them, and 0 from n to the next multiple of 32. */
static inline void pairs_weigh(uint32_t *pt, const float *st, int32_t n, float factor,
                               const vf *base, int vectors, vf *sum) {
    const int64_t width = vectors * CPU_LANES, end = (n + 31) / 32 * 16, at = (n + 1) / 2;
    const unsigned before = v_flush_begin();
    if (vectors == CPU_VECTORS)
        pairs_weigh_body(pt, st, n, CPU_GROUP, factor, base, CPU_VECTORS, sum);
    else
        for (int v = 0; v < vectors; v++)
            pairs_weigh_body(pt + v * CPU_LANES, st + v * CPU_LANES, n, width, factor, base + v, 1,
                             sum + v);
    v_flush_end(before);
    memset(pt + at * width, 0, (size_t)((end - at) * width) * sizeof *pt);
}

/* Where the weights of the batch's next keys go. */
static inline uint32_t *pairs_next(const struct pairs *a, const struct pairs_batch *batch,
                                   int vectors) {
    return a->pt + batch->n / 2 * vectors * CPU_LANES;
}

/* Takes n keys more. */
static inline void pairs_append(struct pairs_batch *batch, const struct pairs_values *values,
                                int32_t n) {
    for (int32_t j = 0; j < n; j += PAIRS_KEYS, batch->n += PAIRS_KEYS)
        batch->vt[batch->n / PAIRS_KEYS] = values->vt[j / PAIRS_KEYS];
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
