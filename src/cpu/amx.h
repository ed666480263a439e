/*
 * bf16 on the matrix unit of AMX: a superblock's scores and outputs from tiles of 16 x 16 sums over
 * 32 products. It multiplies pairs of elements that lie side by side, and treats subnormal numbers
 * as zero:
 *
 *     K            16 keys x 32 dims, as they lie            times
 *     qp           [d_qk / 2][width] pairs of dims           gives st
 *     vt           [keys / 32][d_v][32]                      times
 *     pt           [CPU_KEYS / 2][width] pairs of weights    gives ot, in the panels of micro.h
 *
 * Queries stay as they are stored: the scale is applied to the sums. Weights are rounded to bf16
 * once.
 *
 * vt of a whole tensor is made before all else where tiles would make it for the same keys again
 * and again; what it lacks (keys that do not lie side by side) is made for each superblock.
 */
#ifndef TESSERA_CPU_AMX_H
#define TESSERA_CPU_AMX_H

#include "tile.h"

/* What was written before this is in memory after it: compilers do not know that tiles read it. */
#define AMX_MEMORY __asm__ volatile("" ::: "memory")

#define AMX_KEYS 32 /* of a step: a tile's products */

/* What the matrix unit needs of a thread's scratch. */
struct amx {
    uint32_t *qp, *pt;
    uint16_t *k; /* keys that do not lie side by side [CPU_KEYS][d_qk] */
    uint16_t *vt;
};

/* vt of all heads' values, or from one head on; groups 0: of none. */
struct amx_store {
    uint16_t *vt;   /* [batch * heads_kv][groups][d_v][AMX_KEYS] */
    uint8_t *tiny;  /* [batch * heads_kv][groups]: not fit for the matrix unit */
    int64_t groups; /* whole ones of a head's keys */
};

/* Where vt of a superblock's steps stands. */
struct amx_values {
    const uint16_t *vt[CPU_KEYS / AMX_KEYS];
};

/* What scores are multiplied by. Without its sign, which the queries take. */
static inline float amx_factor(const struct problem *p) {
    return (float)fabs(p->scale * LOG2_E);
}

static inline void amx_take(struct carve *c, const struct problem *p, size_t lanes, struct amx *a) {
    a->qp = carve_take_panel(c, lanes, (size_t)p->d_qk / 2, sizeof *a->qp);
    a->pt = carve_take(c, CPU_KEYS / 2 * CPU_GROUP, sizeof *a->pt);
    a->k = carve_take_panel(c, CPU_KEYS, (size_t)p->d_qk, sizeof *a->k);
    a->vt = carve_take_panel(c, CPU_KEYS, (size_t)p->d_v, sizeof *a->vt);
}

/* Whether values are worth packing before all else: runs are long, and tiles list a key of V twice
 * and more. */
static inline int amx_store_pays(const struct kernel_args *args) {
    const struct problem *p = args->problem;
    const struct lists *lists = args->lists;
    double keys = 0;
    for (int64_t T = 0; T < lists->n_lists * lists->tiles; T++)
        keys += (double)lists->keys[T];
    return keys >= 64.0 * (double)(lists->n_full + lists->n_masked) &&
           keys * (double)p->heads_q >=
               2.0 * (double)lists->n_lists * (double)(p->heads_kv * p->n_kv);
}

static inline void amx_store_take(struct carve *c, const struct kernel_args *args,
                                  struct amx_store *s) {
    const struct problem *p = args->problem;
    const size_t heads = (size_t)(p->batch * p->heads_kv);
    s->groups = amx_store_pays(args) ? p->n_kv / AMX_KEYS : 0;
    s->vt =
        carve_take_panel(c, heads * (size_t)s->groups, (size_t)p->d_v * AMX_KEYS, sizeof *s->vt);
    s->tiny = carve_take_panel(c, heads, (size_t)s->groups, sizeof *s->tiny);
}

/* From head h of the values' on. */
static inline struct amx_store amx_store_of(const struct amx_store *s, int64_t head, int64_t d) {
    const int64_t skip = head * s->groups;
    return (struct amx_store){s->vt + skip * d * AMX_KEYS, s->tiny + skip, s->groups};
}

/* All eight tiles are 16 rows of 64 bytes. */
static inline void amx_begin(void) {
    _Alignas(64) uint8_t config[64] = {1};
    for (int tile = 0; tile < 8; tile++) {
        config[16 + 2 * tile] = 64;
        config[48 + tile] = 16;
    }
    AMX_MEMORY;
    _tile_loadconfig(config);
}

static inline void amx_end(void) {
    _tile_release();
}

/* The elements whose magnitude, as bits, is 1 ... limit. */
V_INLINE uint32_t amx_small(__m512i x, uint16_t limit) {
    __m512i bits = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
    return _mm512_cmplt_epu16_mask(_mm512_sub_epi16(bits, _mm512_set1_epi16(1)),
                                   _mm512_set1_epi16((int16_t)limit));
}

/* Packs the queries of a tile. Answers whether the matrix unit may have them: not where a query is
 * subnormal, nor so large that a subnormal key would matter. row is scratch for CPU_LANES * d
 * floats. */
static inline int amx_load_queries(const struct amx *a, const struct cpu_head *q, int64_t first,
                                   int64_t rows, const struct problem *p, float *row) {
    const int64_t d = p->d_qk, lanes = cpu_lanes(rows);
    const __m512i sign = _mm512_set1_epi16(p->scale < 0 ? INT16_MIN : 0);
    const __m512i large = _mm512_set1_epi16((127 + 60) << 7);
    uint32_t bad = 0;
    for (int64_t lane = 0; lane < lanes; lane += CPU_LANES) {
        memset(row, 0, (size_t)(CPU_LANES * d / 2) * sizeof *row);
        for (int64_t r = lane; r < rows && r < lane + CPU_LANES; r++)
            for (int64_t i = 0; i < d; i += 32) {
                __m512i x = _mm512_loadu_si512(cpu_row(q, first, r) + 2 * i);
                bad |= amx_small(x, 0x7f);
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
V_INLINE __m512i amx_row(const char *row, int64_t i, const int dims) {
    const void *at = row + 2 * i;
    return dims == 32 ? _mm512_loadu_si512(at) : _mm512_zextsi256_si512(_mm256_loadu_si256(at));
}

/* vt of 32 keys and `dims` dims: of each 8 dims the first (half 0) or last 4. Answers the least
 * magnitude, as bits, less 1: of no interest where it is 0. */
V_INLINE __m512i amx_turn(uint16_t *vt, const char *const *row, int64_t i, const int dims,
                          const int half, __m512i least) {
    const __m512i magnitude = _mm512_set1_epi16(0x7fff), one = _mm512_set1_epi16(1);
    vf pair[16];
    V_FOR(k, 16) {
        __m512i x = amx_row(row[2 * k], i, dims), y = amx_row(row[2 * k + 1], i, dims);
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
            v_store((float *)(void *)(vt + (i + dim) * AMX_KEYS), pair[k]);
    }
    return least;
}

/* vt of the values of 32 rows. Answers 0 where they are so small that products with weights may be
 * flushed to zero. */
static inline int amx_pack(uint16_t *vt, const char *const *row, int64_t d) {
    const __m512i limit = _mm512_set1_epi16((127 - 40) << 7);
    __m512i least = _mm512_set1_epi16(-1);
    int64_t i = 0;
    for (; i + 32 <= d; i += 32) {
        least = amx_turn(vt, row, i, 32, 0, least);
        least = amx_turn(vt, row, i, 32, 1, least);
    }
    if (i < d) {
        least = amx_turn(vt, row, i, 16, 0, least);
        least = amx_turn(vt, row, i, 16, 1, least);
    }
    return !_mm512_cmplt_epu16_mask(least, limit);
}

/* Fills groups first ... first + n - 1 of a head's store. */
static inline void amx_store_fill(const struct amx_store *s, const struct cpu_head *v,
                                  int64_t first, int64_t n, int64_t d) {
    const char *row[AMX_KEYS];
    for (int64_t group = first; group < first + n; group++) {
        for (int64_t j = 0; j < AMX_KEYS; j++)
            row[j] = v->data + (group * AMX_KEYS + j) * v->stride;
        s->tiny[group] = !amx_pack(s->vt + group * d * AMX_KEYS, row, d);
    }
}

/* Whether n keys lie side by side. */
V_INLINE int amx_together(const int32_t *key, int n) {
    int together = 1;
    for (int j = 1; j < n; j++)
        together &= key[j] == key[0] + j;
    return together;
}

/* vt of n keys and whole steps, where the last key stands again. Answers 0 where some are not fit
 * for the matrix unit. */
static inline int amx_load_values(const struct amx *a, const struct amx_store *store,
                                  const struct cpu_head *v, const int32_t *key, int32_t n,
                                  int64_t d, struct amx_values *out) {
    const char *row[AMX_KEYS];
    int fit = 1;
    for (int32_t j = 0; j < n; j += AMX_KEYS) {
        if (store->groups && n - j >= AMX_KEYS && key[j] % AMX_KEYS == 0 &&
            amx_together(key + j, AMX_KEYS)) {
            out->vt[j / AMX_KEYS] = store->vt + key[j] * d;
            fit &= !store->tiny[key[j] / AMX_KEYS];
            continue;
        }
        for (int32_t i = j; i < j + AMX_KEYS; i++)
            row[i - j] = v->data + key[i < n ? i : n - 1] * v->stride;
        fit &= amx_pack(a->vt + j * d, row, d);
        out->vt[j / AMX_KEYS] = a->vt + j * d;
    }
    return fit;
}

/* 16 keys from key[0] on, as rows: in place, or copied to `copy`. */
static inline const char *amx_keys(const struct cpu_head *k, const int32_t *key, int64_t d,
                                   uint16_t *copy, int64_t *stride) {
    const int together = amx_together(key, 16);
    *stride = together ? k->stride : 2 * d;
    if (together)
        return k->data + key[0] * k->stride;
    for (int j = 0; j < 16; j++)
        memcpy(copy + j * d, k->data + key[j] * k->stride, (size_t)d * sizeof *copy);
    return (const char *)copy;
}

/* Products of 32 keys with 2 vectors of queries (1: the second of each is left out). */
V_INLINE void amx_scores_step(const uint32_t *qp, int64_t width, int two, const char *const *k,
                              const int64_t *stride, int64_t d, float *st) {
    AMX_MEMORY;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < d; i += 32) {
        const uint32_t *q = qp + i / 2 * width;
        _tile_loadd(4, k[0] + 2 * i, stride[0]);
        _tile_loadd(5, k[1] + 2 * i, stride[1]);
        _tile_loadd(6, q, width * 4);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
        if (two) {
            _tile_loadd(7, q + CPU_LANES, width * 4);
            _tile_dpbf16ps(2, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, st, width * 4);
    _tile_stored(1, st + 16 * width, width * 4);
    if (two) {
        _tile_stored(2, st + CPU_LANES, width * 4);
        _tile_stored(3, st + 16 * width + CPU_LANES, width * 4);
    }
}

/* st of keys j ... j + 31 of n; key has room for CPU_KEYS, and keys past n are set to the last. */
static inline void amx_scores(const struct amx *a, int vectors, const struct cpu_head *head,
                              int32_t *key, int32_t j, int32_t n, int64_t d, float *st) {
    const int64_t width = vectors * CPU_LANES;
    int64_t stride[2];
    for (int32_t i = n; i < j + AMX_KEYS; i++)
        key[i] = key[n - 1];
    const char *k[2] = {amx_keys(head, key + j, d, a->k + j * d, &stride[0]),
                        amx_keys(head, key + j + 16, d, a->k + (j + 16) * d, &stride[1])};
    for (int v = 0; v < vectors; v += 2)
        amx_scores_step(a->qp + v * CPU_LANES, width, v + 1 < vectors, k, stride, d,
                        st + v * CPU_LANES);
}

/* The maximum that follows m when scores reach up to top: m itself until a weight would pass 2^7,
 * so that outputs are seldom multiplied. bf16 keeps as much of larger weights. */
V_INLINE vf amx_follow(vf top, vf m) {
    return v_select((vi)(top > m + 7.0f), top, m);
}

/* 2^x as v_exp2_flushed, to 3e-6 of it: bf16 keeps 4e-3. */
V_INLINE vf amx_exp2(vf x) {
    const vf r = (vf)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vf p = v_fma(v_set(0.0134267099f), r, v_set(0.0522424355f));
    p = v_fma(p, r, v_set(0.241280228f));
    p = v_fma(p, r, v_set(0.693044841f));
    p = v_fma(p, r, v_set(1.0f));
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)x);
}

/* Rounded by itself, as the maximum was: were the base subtracted from the exact product, a row of
 * scores past 2^24 would not have 1 as its largest weight. */
V_INLINE vf amx_scaled(const float *s, float factor) {
    vf x = v_load(s) * factor;
    __asm__("" : "+v"(x));
    return x;
}

/* pt = 2^(st * factor - base) of n keys, 0 from n to the next multiple of 32; and the sums. */
V_INLINE void amx_weigh_body(uint32_t *pt, const float *st, int32_t n, float factor, const vf *base,
                             const int vectors, vf *sum) {
    static const uint16_t order[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                       21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                       11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i pairs = _mm512_loadu_si512(order);
    const unsigned before = v_flush_begin();
    V_FOR(v, vectors) {
        sum[v] = (vf){0};
    }
    for (int32_t j = 0; j < n; j += 2)
        V_FOR(v, vectors) {
            const float *s = st + (j * vectors + v) * CPU_LANES;
            vf x = amx_exp2(amx_scaled(s, factor) - base[v]), y = {0};
            if (j + 1 < n)
                y = amx_exp2(amx_scaled(s + vectors * CPU_LANES, factor) - base[v]);
            sum[v] += x + y;
            __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)y, (__m512)x);
            _mm512_store_si512(pt + (j / 2 * vectors + v) * CPU_LANES,
                               _mm512_permutexvar_epi16(pairs, both));
        }
    v_flush_end(before);
    const int64_t end = (n + 31) / 32 * 16, at = (n + 1) / 2;
    memset(pt + at * vectors * CPU_LANES, 0, (size_t)((end - at) * vectors) * sizeof(vf));
}

static inline void amx_weigh(const struct amx *a, const float *st, int32_t n, float factor,
                             const vf *base, int vectors, vf *sum) {
    if (vectors == 4)
        amx_weigh_body(a->pt, st, n, factor, base, 4, sum);
    else
        amx_weigh_body(a->pt, st, n, factor, base, vectors, sum);
}

/* Adds outputs of 32 dims from i on for 2 vectors of queries (down, across 0: the second of each is left
 * out). */
V_INLINE void amx_values_step(const struct amx_values *values, int64_t i, const uint32_t *pt,
                              int64_t width, int down, int across, int32_t n, float *ot) {
    const int64_t size = width * 4;
    float *below = down ? ot + 16 * width : ot;
    AMX_MEMORY;
    _tile_loadd(0, ot, size);
    _tile_loadd(1, below, size);
    if (across) {
        _tile_loadd(2, ot + CPU_LANES, size);
        _tile_loadd(3, below + CPU_LANES, size);
    }
    for (int32_t j = 0; j < n; j += AMX_KEYS) {
        const uint16_t *vt = values->vt[j / AMX_KEYS] + i * AMX_KEYS;
        const uint32_t *p = pt + j / 2 * width;
        _tile_loadd(4, vt, 2 * AMX_KEYS);
        _tile_loadd(6, p, size);
        _tile_dpbf16ps(0, 4, 6);
        if (down) {
            _tile_loadd(5, vt + 16 * AMX_KEYS, 2 * AMX_KEYS);
            _tile_dpbf16ps(1, 5, 6);
        }
        if (across) {
            _tile_loadd(7, p + CPU_LANES, size);
            _tile_dpbf16ps(2, 4, 7);
        }
        if (down && across)
            _tile_dpbf16ps(3, 5, 7);
    }
    if (down)
        _tile_stored(1, below, size);
    if (down && across)
        _tile_stored(3, below + CPU_LANES, size);
    if (across)
        _tile_stored(2, ot + CPU_LANES, size);
    _tile_stored(0, ot, size);
}

/* ot = alpha * ot + vt pt. */
static inline void amx_add_values(const struct amx *a, const struct amx_values *values, int vectors,
                                  int32_t n, int64_t d, const vf *alpha, float *ot) {
    const int64_t width = vectors * CPU_LANES;
    int raised = 0;
    for (int v = 0; v < vectors; v++)
        raised |= _mm512_cmp_ps_mask((__m512)alpha[v], _mm512_set1_ps(1), _CMP_NEQ_UQ);
    for (int64_t i = 0; raised && i < d; i++)
        for (int v = 0; v < vectors; v++) {
            float *o = ot + i * width + v * CPU_LANES;
            v_store(o, v_load(o) * alpha[v]);
        }
    for (int64_t i = 0; i < d; i += 32)
        for (int v = 0; v < vectors; v += 2)
            amx_values_step(values, i, a->pt + v * CPU_LANES, width, i + 16 < d, v + 1 < vectors, n,
                            ot + i * width + v * CPU_LANES);
}

#endif
