/*
 * bf16 as it is stored: sums of products of pairs of elements that lie side by side, by a unit that
 * takes subnormal numbers for zero (amx.h, dpbf16.h). A tile's rows x stand in the lanes, rows y of
 * the other side ("keys" here) stream:
 *
 *     y     keys x dims, as they lie                       times
 *     xp    [d / 2][width] pairs of dims                   gives st: scores, or dP
 *     vt    [keys / 32][d][32]: y turned                   times
 *     pt    [PAIRS_BATCH / 2][width] pairs of weights      gives ot, in the panels of micro.h
 *
 * Elements stay as they are stored: scales are applied to sums. Weights are rounded to bf16 once.
 *
 * vt of a whole tensor is made before all else where tiles would make it for the same keys again
 * and again; what it lacks (keys that do not lie side by side) is made for each superblock.
 *
 * The units:
 *     unit_begin, unit_end      around an item
 *     unit_scores               st = keys j ... j + 31 of n times xp; key has room for CPU_KEYS, and
 *                               keys past n are set to the last; copy has room for PAIRS_KEYS rows
 *     unit_add_values           ot += vt pt, for a batch
 */
#ifndef TESSERA_CPU_PAIRS_H
#define TESSERA_CPU_PAIRS_H

#include "tile/tile.h"

#define PAIRS_KEYS 32        /* keys of a step */
#define PAIRS_BATCH CPU_NEAR /* keys whose values are multiplied at once, at most */

/* Magnitudes, as bits, that elements other than 0 must have: least ... most. */
struct pairs_limits {
    uint16_t least, most;
};
#define PAIRS_POWER(exponent) ((127 + (exponent)) << 7) /* bits of a power of two */

enum { PAIRS_FIT = 1, PAIRS_SOME = 2 }; /* all are within the limits; some are not 0 */

/* vt of all heads' rows, or from one head on; groups 0: of none. */
struct pairs_store {
    uint16_t *vt;   /* [batch * heads][groups][d][PAIRS_KEYS], d being 0 where none is needed */
    uint8_t *state; /* [batch * heads][groups]: PAIRS_FIT, PAIRS_SOME */
    int64_t groups; /* whole ones of a head's keys */
    int64_t d;
};

/* vt of each step of a superblock. */
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

/* Whether rows of `heads` heads are worth packing before all else: runs are long, and tiles list a
 * row twice and more. Not where lists are filled: values past today's length are not to be read; nor
 * pages. */
static inline int pairs_store_pays(const struct kernel_args *args, int64_t heads, int64_t rows) {
    const struct problem *p = args->problem;
    const struct lists *lists = args->work.lists;
    double keys = 0;
    if (lists->filled || caches_paged(&p->caches))
        return 0;
    for (int64_t T = 0; T < lists->n_lists * lists->tiles; T++)
        keys += (double)lists->keys[T];
    return keys >= 64.0 * (double)(lists->n_full + lists->n_masked) &&
           keys * (double)p->heads_q >= 2.0 * (double)lists->n_lists * (double)(heads * rows);
}

static inline void pairs_store_take(struct carve *c, const struct kernel_args *args, int64_t heads,
                                    int64_t rows, int64_t d, struct pairs_store *s) {
    const size_t all = (size_t)(args->problem->batch * heads);
    s->groups = pairs_store_pays(args, heads, rows) ? rows / PAIRS_KEYS : 0;
    s->d = d;
    s->vt = carve_take_panel(c, all * (size_t)s->groups, (size_t)d * PAIRS_KEYS, sizeof *s->vt);
    s->state = carve_take_panel(c, all, (size_t)s->groups, sizeof *s->state);
}

/* From head h of the values' on. */
static inline struct pairs_store pairs_store_of(const struct pairs_store *s, int64_t head) {
    const int64_t skip = head * s->groups;
    return (struct pairs_store){s->vt + skip * s->d * PAIRS_KEYS, s->state + skip, s->groups, s->d};
}

V_INLINE __m512i pairs_magnitude(__m512i x) {
    return _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
}

/* Packs rows first ... first + rows - 1 of a tile, their signs turned where `negate`. Answers whether
 * the unit may have them. row is scratch for CPU_LANES * d floats. */
static inline int pairs_load_lanes(uint32_t *xp, const struct cpu_head *head, int64_t first,
                                   int64_t rows, int64_t d, int negate, struct pairs_limits limits,
                                   float *row) {
    const int64_t lanes = cpu_lanes(rows);
    const __m512i sign = _mm512_set1_epi16(negate ? INT16_MIN : 0), one = _mm512_set1_epi16(1);
    const __m512i least = _mm512_set1_epi16((int16_t)(limits.least - 1));
    const __m512i most = _mm512_set1_epi16((int16_t)limits.most);
    uint32_t bad = 0;
    for (int64_t lane = 0; lane < lanes; lane += CPU_LANES) {
        memset(row, 0, (size_t)(CPU_LANES * d / 2) * sizeof *row);
        for (int64_t r = lane; r < rows && r < lane + CPU_LANES; r++)
            for (int64_t i = 0; i < d; i += 32) {
                const int64_t in_rope = i - (d - head->rope_dims);
                const __m512i x =
                    _mm512_loadu_si512(in_rope < 0 ? cpu_row(head, first, r) + 2 * i
                                                   : cpu_row(head->rope, first, r) + 2 * in_rope);
                const __m512i size = pairs_magnitude(x);
                bad |= _mm512_cmplt_epu16_mask(_mm512_sub_epi16(size, one), least);
                bad |= _mm512_cmpgt_epu16_mask(size, most);
                _mm512_storeu_si512(row + (r - lane) * d / 2 + i / 2, _mm512_xor_si512(x, sign));
            }
        int64_t width;
        float *column = cpu_column((float *)(void *)xp, lanes, lane, d / 2, &width);
        cpu_to_column(column, width, row, d / 2, d / 2);
    }
    return !bad;
}

/* 32 elements of a row, or 16 and zeros. */
V_INLINE __m512i pairs_row(const char *row, int64_t i, const int dims) {
    const void *at = row + 2 * i;
    return dims == 32 ? _mm512_loadu_si512(at) : _mm512_zextsi256_si512(_mm256_loadu_si256(at));
}

/* The least magnitude of elements that are not 0, less 1, and the largest. */
struct pairs_range {
    __m512i least, most;
};

V_INLINE void pairs_see(struct pairs_range *range, __m512i x) {
    const __m512i size = pairs_magnitude(x);
    range->least = _mm512_min_epu16(range->least, _mm512_sub_epi16(size, _mm512_set1_epi16(1)));
    range->most = _mm512_max_epu16(range->most, size);
}

static inline int pairs_state(const struct pairs_range *range, struct pairs_limits limits) {
    const __m512i least = _mm512_set1_epi16((int16_t)(limits.least - 1));
    const __m512i most = _mm512_set1_epi16((int16_t)limits.most);
    const int fit = !_mm512_cmplt_epu16_mask(range->least, least) &&
                    !_mm512_cmpgt_epu16_mask(range->most, most);
    return (fit ? PAIRS_FIT : 0) |
           (_mm512_test_epi16_mask(range->most, range->most) ? PAIRS_SOME : 0);
}

static inline struct pairs_range pairs_nothing(void) {
    return (struct pairs_range){_mm512_set1_epi16(-1), _mm512_setzero_si512()};
}

/* vt of 32 keys and `dims` dims: of each 8 dims the first (half 0, which sees all) or last 4. */
V_INLINE void pairs_turn(uint16_t *vt, const char *const *row, int64_t i, const int dims,
                         const int half, struct pairs_range *range) {
    vf pair[16];
    V_FOR(k, 16) {
        __m512i x = pairs_row(row[2 * k], i, dims), y = pairs_row(row[2 * k + 1], i, dims);
        if (half) {
            pair[k] = (vf)_mm512_unpackhi_epi16(x, y);
        } else {
            pair[k] = (vf)_mm512_unpacklo_epi16(x, y);
            pairs_see(range, x);
            pairs_see(range, y);
        }
    }
    v_transpose(pair);
    V_FOR(k, 16) {
        const int64_t dim = k / 4 * 8 + half * 4 + k % 4;
        if (dim < dims)
            v_store((float *)(void *)(vt + (i + dim) * PAIRS_KEYS), pair[k]);
    }
}

/* vt of 32 rows. Answers their state. */
static inline int pairs_pack(uint16_t *vt, const char *const *row, int64_t d,
                             struct pairs_limits limits) {
    struct pairs_range range = pairs_nothing();
    int64_t i = 0;
    for (; i + 32 <= d; i += 32) {
        pairs_turn(vt, row, i, 32, 0, &range);
        pairs_turn(vt, row, i, 32, 1, &range);
    }
    if (i < d) {
        pairs_turn(vt, row, i, 16, 0, &range);
        pairs_turn(vt, row, i, 16, 1, &range);
    }
    return pairs_state(&range, limits);
}

/* The state of 32 rows, d in multiples of 32. */
static inline int pairs_look(const char *const *row, int64_t d, struct pairs_limits limits) {
    struct pairs_range range = pairs_nothing();
    for (int64_t j = 0; j < PAIRS_KEYS; j++)
        for (int64_t i = 0; i < d; i += 32)
            pairs_see(&range, pairs_row(row[j], i, 32));
    return pairs_state(&range, limits);
}

/* Fills groups first ... first + n - 1 of a head's store, whose rows have d elements. */
static inline void pairs_store_fill(const struct pairs_store *s, const struct cpu_head *v,
                                    int64_t first, int64_t n, int64_t d,
                                    struct pairs_limits limits) {
    const char *row[PAIRS_KEYS];
    for (int64_t group = first; group < first + n; group++) {
        for (int64_t j = 0; j < PAIRS_KEYS; j++)
            row[j] = v->data + (group * PAIRS_KEYS + j) * v->stride;
        s->state[group] =
            (uint8_t)(s->d ? pairs_pack(s->vt + group * d * PAIRS_KEYS, row, d, limits)
                           : pairs_look(row, d, limits));
    }
}

/* Whether n keys lie side by side. */
V_INLINE int pairs_together(const int32_t *key, int n) {
    int together = 1;
    for (int j = 1; j < n; j++)
        together &= key[j] == key[0] + j;
    return together;
}

/* vt of n keys and whole steps, where the last key stands again, in `room` where the store lacks it;
 * room NULL: none is needed. Answers their state. */
static inline int pairs_load_values(uint16_t *room, const struct pairs_store *store,
                                    const struct cpu_head *v, const int32_t *key, int32_t n,
                                    int64_t d, struct pairs_limits limits,
                                    struct pairs_values *out) {
    const char *row[PAIRS_KEYS];
    int fit = PAIRS_FIT, some = 0;
    out->packed = 0;
    for (int32_t j = 0; j < n; j += PAIRS_KEYS) {
        int state;
        if (store->groups && n - j >= PAIRS_KEYS && key[j] % PAIRS_KEYS == 0 &&
            pairs_together(key + j, PAIRS_KEYS)) {
            out->vt[j / PAIRS_KEYS] = store->vt + key[j] * store->d;
            state = store->state[key[j] / PAIRS_KEYS];
        } else {
            for (int32_t i = j; i < j + PAIRS_KEYS; i++)
                row[i - j] = cpu_key(v, key[i < n ? i : n - 1]);
            out->vt[j / PAIRS_KEYS] = room + j * d;
            state = room ? pairs_pack(room + j * d, row, d, limits) : pairs_look(row, d, limits);
            out->packed |= room != NULL;
        }
        fit &= state;
        some |= state;
    }
    return (fit & PAIRS_FIT) | (some & PAIRS_SOME);
}

/* Takes n keys more. */
static inline void pairs_append(struct pairs_batch *batch, const struct pairs_values *values,
                                int32_t n) {
    for (int32_t j = 0; j < n; j += PAIRS_KEYS, batch->n += PAIRS_KEYS)
        batch->vt[batch->n / PAIRS_KEYS] = values->vt[j / PAIRS_KEYS];
}

/* The order in which two vectors of 16 elements become one of pairs. */
V_INLINE __m512i pairs_order(void) {
    static const uint16_t order[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                       21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                       11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_loadu_si512(order);
}

/* at = pairs of x and y, rounded. */
V_INLINE void pairs_store_both(uint32_t *at, vf x, vf y, __m512i order) {
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)y, (__m512)x);
    _mm512_store_si512(at, _mm512_permutexvar_epi16(order, both));
}

/* Zeros from row n to the next whole step. */
static inline void pairs_pad(uint32_t *pt, int32_t n, int64_t width) {
    const int64_t end = (n + PAIRS_KEYS - 1) / PAIRS_KEYS * PAIRS_KEYS / 2, at = (n + 1) / 2;
    memset(pt + at * width, 0, (size_t)((end - at) * width) * sizeof *pt);
}

#endif
