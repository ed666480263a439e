/*
 * Tiles of the backward by the unit of tile/bf16_pairs.h. Rows x of a tile stand in the lanes, rows y
 * of the other side stream, PAIRS_KEYS of them at a time:
 *
 *     pass over   x0, x1    y0, y1      st = y0 . x0    dp = y1 . x1
 *     rows        q, dO     k, v        dQt += y0t dS
 *     keys        k, v      q, dO       dKt += y0t dS   dVt += y1t P
 *
 * The unit takes what is smaller than 2^-126 for zero. An item is therefore computed in f32 where an
 * element is out of paired_limits, or where a row of a gradient is so small that such zeros may be
 * seen (paired_faint): the item begins anew, so that one item has sums of one kind.
 */
#ifndef TESSERA_CPU_PAIRED_H
#define TESSERA_CPU_PAIRED_H

#if defined(__AMX_BF16__)
#include "isa/amx.h"
#else
#include "isa/dpbf16.h"
#endif
#include "backward/sums.h"
#include "tile/parallel.h"

#define PAIRED_BATCH (CPU_NEAR / 2) /* rows whose sums are multiplied at once, at most */
#define PAIRED_GROUPS 8             /* groups of a store that a thread takes at a time */

/* Zeros that the unit makes of n terms then take n 2^-103 of a sum at most, with d up to 256:
 * those of dP 2^-126 d, times a weight of at most 1 and a y of 2^14. */
static const struct pairs_limits paired_limits = {PAIRS_POWER(-126), PAIRS_POWER(14)};
#define PAIRED_FAINT 0x1p-94f /* n of it: so large must a gradient's row be */
#define PAIRED_END 0x1p100f   /* weights from here on may leave bf16 */

/* One of the two products with x, and the sums over its y. */
struct paired_side {
    int64_t d;
    int summed;
    uint32_t *x;       /* [d / 2][width] pairs of dims */
    uint32_t *weights; /* [PAIRED_BATCH / 2][width] pairs of rows */
    uint16_t *turned;  /* [PAIRED_BATCH][d]: y that the store lacks */
    float *most;       /* the largest |weight| of each lane */
    int some;          /* some y is not 0 */
    struct cpu_head y;
    struct pairs_store store;
    struct pairs_values values; /* values of the superblock */
    struct pairs_batch batch;
};

struct paired {
    int fit;
    int32_t n;      /* rows of the batch, in whole steps */
    int64_t seen;   /* rows of the item */
    uint16_t *copy; /* copies of a step's y that do not lie side by side */
    struct paired_side side[2];
};

static inline void paired_take(struct carve *c, size_t lanes, const int64_t *d, const int *summed,
                               struct paired *a) {
    for (int i = 0; i < 2; i++) {
        struct paired_side *s = &a->side[i];
        const size_t rows = summed[i] ? PAIRED_BATCH : 0;
        s->d = d[i];
        s->summed = summed[i];
        s->x = carve_take_panel(c, lanes, (size_t)d[i] / 2, sizeof *s->x);
        s->weights = carve_take(c, rows / 2 * CPU_GROUP, sizeof *s->weights);
        s->turned = carve_take_panel(c, rows, (size_t)d[i], sizeof *s->turned);
        s->most = carve_take(c, CPU_GROUP, sizeof *s->most);
    }
    a->copy = carve_take_panel(c, PAIRS_KEYS, (size_t)(d[0] > d[1] ? d[0] : d[1]), sizeof *a->copy);
}

/* Whether all rows of tile T are listed: only then may what they hold decide how the tile is computed, for
 * a row that is not listed changes no bit of another. */
static inline int paired_listed(const struct lists *lists, int64_t T) {
    return lists->full_end[T] > lists->full_ptr[T];
}

/* Rows first ... of x; answers whether the unit may have them. */
static inline int paired_begin(struct paired *a, const struct cpu_head *x0,
                               const struct cpu_head *x1, int64_t first, int64_t rows, float *row) {
    const struct cpu_head *const x[] = {x0, x1};
    a->fit = 1;
    a->n = 0;
    a->seen = 0;
    for (int i = 0; i < 2; i++) {
        struct paired_side *s = &a->side[i];
        a->fit &= pairs_load_lanes(s->x, x[i], first, rows, s->d, 0, paired_limits, row);
        s->some = 0;
        s->batch.n = 0;
        memset(s->most, 0, CPU_GROUP * sizeof *s->most);
    }
    return a->fit;
}

/* Which rows stream from now on: those of a head that is number `head` of the stores. */
static inline void paired_stream(struct paired *a, const struct pairs_store *stores, int64_t head,
                                 const struct cpu_head *y0, const struct cpu_head *y1) {
    a->side[0].y = *y0;
    a->side[1].y = *y1;
    for (int i = 0; i < 2; i++)
        a->side[i].store = pairs_store_of(&stores[i], head);
}

/* Adds what the batch holds. */
static inline void paired_flush(struct paired *a, struct sums *const *sums, int64_t lanes) {
    for (int i = 0; i < 2; i++) {
        struct paired_side *s = &a->side[i];
        if (s->batch.n)
            unit_add_values(s->weights, &s->batch, (int)(lanes / CPU_LANES), s->d, sums[i]->near);
        s->batch.n = 0;
    }
    a->n = 0;
}

/* Makes room for n rows more. Answers 0 where the unit may not have them. */
static inline int paired_load(struct paired *a, struct sums *const *sums, int64_t lanes,
                              const int32_t *key, int32_t n) {
    int flush = a->n + cpu_round_up(n, PAIRS_KEYS) > PAIRED_BATCH, fit = PAIRS_FIT;
    for (int i = 0; i < 2; i++)
        flush |= a->side[i].summed && sums[i]->seen + n > cpu_near(sums[i]->d);
    if (flush)
        paired_flush(a, sums, lanes);
    for (int i = 0; i < 2; i++) {
        struct paired_side *s = &a->side[i];
        uint16_t *room = s->summed ? s->turned + a->n * s->d : NULL;
        const int state =
            pairs_load_values(room, &s->store, &s->y, key, n, s->d, paired_limits, &s->values);
        fit &= state;
        s->some |= state & PAIRS_SOME;
        if (s->summed)
            sums_expect(sums[i], lanes, n);
    }
    a->seen += n;
    return fit;
}

/* st = rows j ... j + 31 of n, in whole steps, times x. */
static inline void paired_scores(const struct paired *a, int side, int vectors, int32_t *key,
                                 int32_t j, int32_t n, float *st) {
    const struct paired_side *s = &a->side[side];
    unit_scores(s->x, a->copy, vectors, &s->y, key, j, n, s->d, st);
}

/* st *= factor, n vectors. */
static inline void paired_scale(float *st, int64_t n, float factor) {
    for (int64_t i = 0; i < n * CPU_LANES; i += CPU_LANES)
        v_store(st + i, v_load(st + i) * factor);
}

/* Takes weights of n rows for `vectors` vectors of the group's. */
V_INLINE void paired_weigh_body(uint32_t *at, const float *weights, int32_t n, int64_t width,
                                const int vectors, float *most) {
    enum { LARGER = 0xb }; /* truth table: the larger of two magnitudes, without its sign */
    const __m512i order = pairs_order();
    vf larger[CPU_VECTORS];
    V_FOR(v, vectors) {
        larger[v] = v_load(most + v * CPU_LANES);
    }
    for (int32_t j = 0; j < n; j += 2, at += width, weights += 2 * width)
        V_FOR(v, vectors) {
            const vf x = v_load(weights + v * CPU_LANES);
            vf y = {0};
            if (j + 1 < n)
                y = v_load(weights + width + v * CPU_LANES);
            larger[v] = (vf)_mm512_range_ps((__m512)larger[v], (__m512)x, LARGER);
            larger[v] = (vf)_mm512_range_ps((__m512)larger[v], (__m512)y, LARGER);
            pairs_store_both(at + v * CPU_LANES, x, y, order);
        }
    V_FOR(v, vectors) {
        v_store(most + v * CPU_LANES, larger[v]);
    }
}

/* Takes weights of rows j ... j + n - 1 of the superblock, n at most PAIRS_KEYS. */
static inline void paired_weigh(struct paired *a, int side, int vectors, const float *weights,
                                int32_t j, int32_t n) {
    const struct paired_side *s = &a->side[side];
    const int64_t width = vectors * CPU_LANES;
    uint32_t *at = s->weights + (a->n + j) / 2 * width;
    if (vectors == CPU_VECTORS)
        paired_weigh_body(at, weights, n, CPU_GROUP, CPU_VECTORS, s->most);
    else
        for (int v = 0; v < vectors; v++)
            paired_weigh_body(at + v * CPU_LANES, weights + v * CPU_LANES, n, width, 1,
                              s->most + v * CPU_LANES);
    pairs_pad(at, n, width);
}

/* After the weights of n rows. */
static inline void paired_append(struct paired *a, int32_t n) {
    for (int i = 0; i < 2; i++)
        if (a->side[i].summed)
            pairs_append(&a->side[i].batch, &a->side[i].values, n);
    a->n += (int32_t)cpu_round_up(n, PAIRS_KEYS);
}

/* Whether a row of the sums, which are whole, may lack what the unit took for zero; dP was multiplied
 * by `kept` at most. */
static inline int paired_faint(const struct paired *a, struct sums *const *sums, int64_t rows,
                               float kept) {
    const vf least = v_set(PAIRED_FAINT * kept * (float)a->seen), end = v_set(PAIRED_END);
    uint32_t faint = 0;
    for (int i = 0; i < 2; i++)
        for (int64_t lane = 0; a->side[i].summed && lane < rows; lane += CPU_LANES) {
            const uint32_t within = 0xffffu >> (CPU_LANES - min_i64(rows - lane, CPU_LANES));
            const vf weight = v_load(a->side[i].most + lane);
            int64_t width;
            const float *column =
                cpu_column(sums[i]->near, cpu_lanes(rows), lane, sums[i]->d, &width);
            vf most = {0};
            for (int64_t x = 0; x < sums[i]->d; x++)
                most = v_max(v_abs(v_load(column + x * width)), most);
            faint |= v_bits((vi)(weight >= end)) & within;
            if (a->side[i].some)
                faint |= v_bits((vi)(weight > (vf){0}) & (vi)(most < least)) & within;
        }
    return faint != 0;
}

/* ---- stores ---- */

/* Stores of y of a pass, made by all threads before its items. */
struct paired_stores {
    const struct kernel_args *args;
    const struct view *y[2];
    int64_t heads, d[2];
    struct pairs_store store[2];
};

/* summed: which y have sums, and are turned for them. */
static inline void paired_stores_take(struct carve *c, int64_t heads, int64_t rows,
                                      const int *summed, struct paired_stores *s) {
    for (int i = 0; i < 2; i++)
        pairs_store_take(c, s->args, heads, rows, summed[i] ? s->d[i] : 0, &s->store[i]);
    s->heads = heads;
}

static inline void paired_stores_run(const void *context, int64_t number, int32_t thread) {
    const struct paired_stores *s = context;
    const int64_t groups = s->store[0].groups;
    const int64_t pieces = (groups + PAIRED_GROUPS - 1) / PAIRED_GROUPS;
    const int64_t head = number / pieces, first = number % pieces * PAIRED_GROUPS;
    (void)thread;
    for (int i = 0; i < 2; i++) {
        const struct cpu_head y = cpu_head(s->y[i], TESS_BF16, head / s->heads, head % s->heads);
        const struct pairs_store store = pairs_store_of(&s->store[i], head);
        pairs_store_fill(&store, &y, first, min_i64(groups - first, PAIRED_GROUPS), s->d[i],
                         paired_limits);
    }
}

static inline void paired_stores_make(const struct paired_stores *s) {
    const int64_t pieces = (s->store[0].groups + PAIRED_GROUPS - 1) / PAIRED_GROUPS;
    cpu_for_each(s->args, s->args->problem->batch * s->heads * pieces, paired_stores_run, s);
}

#endif
