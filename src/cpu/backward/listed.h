/*
 * Tiles of few rows, and tiles whose rows list few of the other side's: only listed pairs are
 * computed, dims in the lanes, as in forward/listed.h. Sums stand in rows here: [rows][d].
 */
#ifndef TESSERA_CPU_GRADIENT_LISTED_H
#define TESSERA_CPU_GRADIENT_LISTED_H

#include "backward/gradient.h"
#include "backward/sums.h"
#include "forward/listed.h"

/* Scratch of a thread for such tiles. */
struct few {
    struct listed listed;
    float *x, *dp; /* a set's rows of dO or V; its dP, then dS */
};

static inline void few_take(struct carve *c, const struct problem *p, struct few *s) {
    const size_t keys = cpu_gradients_listed_fit(p) ? (size_t)listed_keys(p) : 0;
    listed_take(c, p, &s->listed);
    s->x = carve_take_panel(c, CPU_FEW_SET, (size_t)p->d_v, sizeof *s->x);
    s->dp = carve_take_panel(c, CPU_FEW_SET, keys + CPU_FEW_STEP, sizeof *s->dp);
}

/* The shape of a set that begins at row r of those of a tile, whose sets have `set` rows: see
 * listed_next. */
static inline const struct cpu_few_shape *few_shape(int64_t set, int64_t r, int64_t rows) {
    const int64_t some = min_i64(rows - r, set ? set : CPU_FEW_SET);
    const struct cpu_few_shape *shape = cpu_few_begin();
    while (shape->rows >= 2 * some)
        shape++;
    return shape;
}

/* Before the set at row r is given n more products: folds all sums of the tile where more than
 * `most` would be near. seen[] counts those of each row. */
static inline void few_expect(const struct few *s, struct sums *const *sums, int count,
                              int64_t most, int64_t r, int64_t rows, int32_t n, int64_t lanes) {
    int32_t seen = 0; /* by the row that has seen most: sets may have had other sizes */
    for (int64_t i = r; i < r + rows; i++)
        seen = s->listed.seen[i] > seen ? s->listed.seen[i] : seen;
    if (seen && seen + n > most) {
        for (int i = 0; i < count; i++) {
            sums_fold(sums[i], lanes, sums[i]->near);
            memset(sums[i]->near, 0, (size_t)(lanes * sums[i]->d) * sizeof *sums[i]->near);
        }
        memset(s->listed.seen, 0, CPU_TILE_ROWS * sizeof *s->listed.seen);
    }
    for (int64_t i = r; i < r + rows; i++)
        s->listed.seen[i] += n;
}

/* In which lanes of a vector of scores, floats i ... of them, stand keys below n. */
V_INLINE vi few_within(int64_t i, int32_t rows, int32_t n) {
    vi key;
    V_FOR(x, CPU_LANES) {
        key[x] = x / (4 * rows) * 4 + x % 4;
    }
    return (vi)(key < (vi){0} + (n - (int32_t)(i / rows)));
}

/* Rows first ... first + rows - 1 as they are, [rows][d]; zeros to the end of the last vector. */
static inline void few_load(float *to, const struct cpu_head *head, int64_t first, int64_t rows,
                            int64_t d) {
    for (int64_t r = 0; r < rows; r++)
        cpu_row_to_f32(to + r * d, cpu_row(head, first, r), head->type, d);
    memset(to + rows * d, 0, (size_t)((cpu_lanes(rows) - rows) * d) * sizeof *to);
}

/* sums_store of sums that stand in rows. */
static inline void few_store(const struct sums *s, const struct view *view, int64_t b, int64_t h,
                             int64_t heads, int64_t first, int64_t rows, double scale) {
    const struct cpu_head to = cpu_heads(view, view->type, b, h, heads);
    for (int64_t i = 0; i < rows * s->d; i++)
        s->near[i] = (float)(scale * (double)s->near[i]);
    for (int64_t r = 0; r < rows; r++)
        cpu_row_from_f32(cpu_row(&to, first, r), s->near + r * s->d, to.type, s->d);
}

#endif
