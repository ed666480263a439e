/*
 * Tiles of few queries, and tiles whose rows list few of the tile's keys: each set of rows computes
 * the keys that it lists, and no others. A superblock's rows of K and V stay in the near caches
 * while all sets of a tile pass over them. Rows that many sets list are thus fetched once.
 *
 * The tile's outputs stand in rows here, not in lanes: near.ot, state.ot and low are [rows][d_v].
 */
#ifndef TESSERA_CPU_LISTED_H
#define TESSERA_CPU_LISTED_H

#include "tile/micro_dims.h"
#include "tile/modify.h"
#include "forward/state.h"
#include "tile/walk.h"

/* Bytes of K and V, as f32, of a superblock; where they are converted first, so that what is
 * written is read again soon. */
#define LISTED_BYTES (1 << 19)
#define LISTED_BYTES_CONVERTED (1 << 18)

/* Scratch of a thread for such tiles. */
struct listed {
    int32_t *key;         /* rows of K and V, or of their conversions */
    uint32_t *mask[2];    /* rows 0 ... 31, and those after them: for each key who lists it */
    int32_t *list, *seen; /* a set's keys; how many keys of each row are near */
    int32_t *number; /* places of K and V's rows, where conversions have numbers of their own */
    float *q, *s;    /* a set's queries side by side, and its scores */
};

/* One such tile. */
struct listed_tile {
    const struct problem *p;
    const struct listed *s;
    struct near near;
    struct state state;
    float *low;
    const float *q, *factor;     /* [rows][d_qk]; of each row */
    const struct modify *modify; /* NULL: none */
    int64_t rows;
    int folded; /* the state holds something */
};

_Static_assert(CPU_LISTED_DIMS % CPU_LANES == 0 && CPU_LISTED_MOST <= CPU_DIMS, "cpu_listed_fits");

/* Keys of a superblock. */
static inline int32_t listed_keys(const struct problem *p) {
    const int64_t bytes = cpu_in_place(p) ? LISTED_BYTES : LISTED_BYTES_CONVERTED;
    const int64_t keys =
        bytes / ((p->d_qk + p->d_v) * (int64_t)sizeof(float)) / CPU_KEYS_SHORT * CPU_KEYS_SHORT;
    const int64_t most = cpu_near(p->d_v);
    return (int32_t)(keys > most ? most : keys < CPU_KEYS_SHORT ? CPU_KEYS_SHORT : keys);
}

static inline void listed_take(struct carve *c, const struct problem *p, struct listed *s) {
    const size_t keys = cpu_listed_fits(p) ? (size_t)listed_keys(p) : 0, d = (size_t)p->d_qk;
    s->key = carve_take(c, keys + CPU_FEW_AHEAD, sizeof *s->key);
    for (int half = 0; half < 2; half++)
        s->mask[half] = carve_take(c, keys, sizeof *s->mask[half]);
    s->list = carve_take(c, keys + CPU_FEW_STEP + CPU_FEW_AHEAD, sizeof *s->list);
    s->seen = carve_take(c, CPU_TILE_ROWS, sizeof *s->seen);
    const int numbered = !cpu_in_place(p) && (p->modifiers.alibi || p->modifiers.dropped);
    s->number = carve_take(c, numbered ? keys : 0, sizeof *s->number);
    s->q = carve_take_panel(c, CPU_FEW_SET, d, sizeof *s->q);
    s->s = carve_take_panel(c, CPU_FEW_SET, keys, sizeof *s->s);
}

/* Pairs of the tile's rows and keys that are listed. */
static inline int64_t listed_pairs(const struct lists *lists, int64_t T, int64_t rows) {
    const int64_t *masked = lists->masked_ptr + LIST_MASKED_KINDS * T;
    const int64_t *masked_end = lists->masked_end + LIST_MASKED_KINDS * T;
    int64_t pairs = 0, keys = lists->keys[T];
    for (int kind = 0; kind < LIST_MASKED_KINDS; kind++)
        for (int64_t i = masked[kind]; i < masked_end[kind]; i++) {
            const struct list_masked *run = &lists->masked[i];
            const struct walk at = {.lists = lists, .kind = kind};
            const int64_t last = kind == LIST_MEMBERS ? 1 : run->count;
            int64_t listed = 0;
            for (int64_t c = 0; c < last; c++)
                listed += __builtin_popcountll(key_mask(&at, run, c) & UINT64_MAX >> (64 - rows));
            pairs += kind == LIST_MEMBERS ? listed * run->count : listed;
            keys -= run->count;
        }
    return pairs + keys * rows;
}

/* Whether a tile of these rows of some heads is computed so: at least half of its lanes would be
 * idle otherwise. */
static inline int listed_pays(const struct problem *p, const struct lists *lists, int64_t T,
                              int64_t rows, int64_t heads) {
    const int64_t lanes = cpu_lanes(rows * heads);
    return cpu_listed_fits(p) &&
           (2 * rows * heads <= lanes ||
            2 * heads * listed_pairs(lists, T, rows) <= lanes * lists->keys[T]);
}

/* Rows of the largest sets whose rows all list the same keys: 1, 2 or 4. ones and twos: where some
 * key's mask differs from itself, shifted by one row and by two. */
static inline int64_t listed_alike(uint64_t ones, uint64_t twos, int64_t rows) {
    const uint64_t all = UINT64_MAX >> (64 - rows);
    if (CPU_FEW_SET == 1 || ones & UINT64_C(0x5555555555555555) & all >> 1)
        return 1;
    return CPU_FEW_SET == 2 || twos & UINT64_C(0x1111111111111111) & all >> 2 ? 2 : 4;
}

/* The next superblock. Answers how many keys it has, and the rows of its sets; 0: that all rows list
 * all keys. */
static inline int32_t listed_next(struct walk *w, const struct problem *p, int64_t rows,
                                  const struct listed *s, int64_t *set) {
    const int32_t most = listed_keys(p) - CPU_KEYS_SHORT;
    const uint64_t all = UINT64_MAX >> (64 - rows);
    uint64_t ones = 0, twos = 0;
    struct cpu_keys keys;
    int32_t n = 0;
    *set = 0;
    while (n <= most && walk_next(w, &keys)) {
        memcpy(s->key + n, keys.key, (size_t)keys.n * sizeof *keys.key);
        for (int32_t j = 0; j < keys.n; j++) {
            const uint64_t mask = keys.masked ? keys.mask[j] : all;
            ones |= mask ^ mask >> 1;
            twos |= mask ^ mask >> 2;
            s->mask[0][n + j] = (uint32_t)mask;
            s->mask[1][n + j] = (uint32_t)(mask >> 32);
        }
        n += keys.n;
        if (keys.masked)
            *set = 1;
    }
    for (int32_t j = n; j % CPU_FEW_STEP; j++)
        s->mask[0][j] = s->mask[1][j] = 0;
    if (*set)
        *set = listed_alike(ones, twos, rows);
    return n;
}

/* The keys of the set that begins at row r; answers how many. */
static inline int32_t listed_list(const struct listed *s, int32_t n, int64_t r) {
    int32_t listed = 0;
    for (int32_t j = 0; j < n; j += CPU_FEW_STEP)
        listed += v_take(s->key + j, s->mask[r / 32] + j, UINT32_C(1) << r % 32, s->list + listed);
    return listed;
}

/* Moves what is near of rows r ... r + rows - 1 to their state. */
static inline void listed_fold(struct listed_tile *t, int64_t r, int64_t rows) {
    const struct state *to = &t->state;
    const struct near *near = &t->near;
    const int64_t d = t->p->d_v;
    if (!t->folded)
        state_clear(to, t->low, cpu_lanes(t->rows), d);
    t->folded = 1;
    for (const int64_t end = r + rows; r < end; r++) {
        const float m = near->m[r] > to->m[r] ? near->m[r] : to->m[r];
        const vf base = base_of(v_set(m));
        const vf a = v_exp2(v_set(to->m[r]) - base), b = v_exp2(v_set(near->m[r]) - base);
        for (int64_t i = r * d; i < (r + 1) * d; i += CPU_LANES) {
            vf x = a * v_load(to->ot + i), y = a * v_load(t->low + i) + b * v_load(near->ot + i);
            vf sum = x + y;
            v_store(to->ot + i, sum);
            v_store(t->low + i, y - (sum - x));
            v_store(near->ot + i, (vf){0});
        }
        to->l[r] = (double)a[0] * to->l[r] + (double)b[0] * (double)near->l[r];
        to->m[r] = m;
        near->m[r] = -INFINITY;
        near->l[r] = 0;
        t->s->seen[r] = 0;
    }
}

/* Number of the key in row `row` of K, or of its conversion. */
static inline int32_t listed_number(const struct listed_tile *t, int32_t row) {
    return cpu_in_place(t->p) ? row : t->s->number[row];
}

/* Keys of a vector of scores that begins at i, floats of s; the last stands for those past n. */
V_INLINE void listed_lanes(const struct listed_tile *t, int64_t i, int32_t rows,
                           const int32_t *list, int32_t n, int32_t *key) {
    V_FOR(x, CPU_LANES) {
        const int32_t j = (int32_t)(i / rows) + x / (4 * rows) * 4 + x % 4;
        key[x] = listed_number(t, list[j < n ? j : n - 1]);
    }
}

/* Softcap and ALiBi on the scores of the set at row r, which are multiplied by its factors before. */
static inline void listed_modify(const struct listed_tile *t, int64_t r, int32_t rows,
                                 const int32_t *list, int32_t n) {
    const struct modify *m = t->modify;
    const vf factor = cpu_few_spread(t->factor + r, rows);
    const vf slope = cpu_few_spread(m->slope + r, rows), back = cpu_few_spread(m->back + r, rows);
    for (int64_t i = 0; i < (int64_t)n * rows; i += CPU_LANES) {
        vf s = v_load(t->s->s + i) * factor, distance = {0};
        int32_t key[CPU_LANES];
        if (m->capped)
            s = m->out * v_tanh(m->in * s);
        if (m->biased) {
            listed_lanes(t, i, rows, list, n, key);
            V_FOR(x, CPU_LANES) {
                distance[x] = modify_distance(m, key[x]);
            }
            s = v_fma(slope, distance - back, s);
        }
        v_store(t->s->s + i, s);
    }
}

/* Weights of the set at row r: 0 where they are dropped. */
static inline void listed_drop(const struct listed_tile *t, int64_t r, int32_t rows,
                               const int32_t *list, int32_t n) {
    for (int32_t j = 0; j < n; j += CPU_LANES) {
        vu position = {0};
        V_FOR(x, CPU_LANES) {
            position[x] =
                draw_position(t->modify, listed_number(t, list[j + x < n ? j + x : n - 1]));
        }
        for (int32_t i = 0; i < rows; i++) {
            const uint32_t keep = draw_row(t->modify, r + i, position);
            for (int32_t x = 0; x < CPU_LANES && j + x < n; x++)
                if (!(keep >> x & 1))
                    t->s->s[(j + x) / 4 * 4 * rows + 4 * i + (j + x) % 4] = 0;
        }
    }
}

/* Adds the n >= 1 keys of a list to what the set at row r has seen. */
static inline void listed_set(struct listed_tile *t, const struct cpu_few_shape *shape, int64_t r,
                              const struct cpu_few_rows *keys, const struct cpu_few_rows *values,
                              int32_t *list, int32_t n) {
    const struct listed *s = t->s;
    const int64_t d = t->p->d_qk, rows = shape->rows;
    float alpha[CPU_FEW_SET];
    int32_t seen = 0; /* by the row that has seen most: sets may have had other sizes */
    for (int64_t i = r; i < r + rows; i++)
        seen = s->seen[i] > seen ? s->seen[i] : seen;
    if (seen + n > cpu_near(t->p->d_v))
        listed_fold(t, r, rows);
    for (int64_t i = r; i < r + rows; i++)
        s->seen[i] += n;
    shape->queries(t->q + r * d, d, s->q);
    cpu_few_scores(shape, s->q, keys, list, n, d, s->s);
    static const float one[4] = {1, 1, 1, 1};
    const int scored = t->modify && modify_scored(t->modify);
    if (scored)
        listed_modify(t, r, (int32_t)rows, list, n);
    shape->weigh(s->s, n, scored ? one : t->factor + r, t->near.m + r, t->near.l + r, alpha);
    if (t->modify && t->modify->drops)
        listed_drop(t, r, (int32_t)rows, list, n);
    cpu_few_values(shape, s->s, values, list, n, t->p->d_v, alpha, t->near.ot + r * t->p->d_v);
}

/* Rows of one head as f32: where they are, or the superblock's n keys converted into buffer. */
static inline struct cpu_few_rows listed_rows(const struct cpu_head *head, int in_place,
                                              const int32_t *key, int32_t n, int64_t d,
                                              float *buffer) {
    if (in_place)
        return (struct cpu_few_rows){(const float *)(const void *)head->data,
                                     head->stride / (int64_t)sizeof(float)};
    for (int32_t j = 0; j < n; j++)
        cpu_load_key(buffer + j * d, head, cpu_key(head, key[j]), key[j], d);
    return (struct cpu_few_rows){buffer, d};
}

/* Adds a superblock of n keys; set: as listed_next has it. */
static inline void listed_superblock(struct listed_tile *t, int32_t n, int64_t set,
                                     const struct cpu_head *k, const struct cpu_head *v, float *k32,
                                     float *v32) {
    const struct listed *s = t->s;
    const int in_place = cpu_in_place(t->p);
    const struct cpu_few_rows keys = listed_rows(k, in_place, s->key, n, t->p->d_qk, k32);
    const struct cpu_few_rows values = listed_rows(v, in_place, s->key, n, t->p->d_v, v32);
    const int64_t step = set ? set : CPU_FEW_SET;
    if (!in_place && t->modify && (t->modify->biased || t->modify->drops))
        memcpy(s->number, s->key, (size_t)n * sizeof *s->number);
    for (int32_t j = 0; !in_place && j < n; j++)
        s->key[j] = j;
    for (int64_t r = 0; r < t->rows; r += step) {
        const struct cpu_few_shape *shape = cpu_few_begin();
        const int64_t rows = t->rows - r < step ? t->rows - r : step;
        while (shape->rows >= 2 * rows)
            shape++;
        const int32_t listed = set ? listed_list(s, n, r) : n;
        if (listed)
            listed_set(t, shape, r, &keys, &values, set ? s->list : s->key, listed);
    }
}

/* Leaves the state as tiles in lanes do, for a merge. */
static inline void listed_leave(struct listed_tile *t) {
    const int64_t d = t->p->d_v, lanes = cpu_lanes(t->rows);
    listed_fold(t, 0, t->rows);
    for (int64_t i = 0; i < lanes * d; i++)
        t->near.ot[i] = t->state.ot[i] + t->low[i];
    for (int64_t lane = 0; lane < lanes; lane += CPU_LANES) {
        int64_t width;
        float *column = cpu_column(t->state.ot, lanes, lane, d, &width);
        cpu_to_column(column, width, t->near.ot + lane * d, d, d);
    }
}

#endif
