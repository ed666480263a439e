/*
 * Sums of a gradient over the pairs of a tile: rows of the tile in the lanes, panels as tile.h has
 * them. Products are added to `near`, in f32. After cpu_near rows of the other side near is folded into
 * `total`, and what rounding cuts off there is kept in `low`, as the forward does.
 */
#ifndef TESSERA_CPU_SUMS_H
#define TESSERA_CPU_SUMS_H

#include "tile/tile.h"

struct sums {
    float *near, *total, *low;
    int64_t d;
    int64_t seen; /* rows of the other side whose products are near */
    int folded;   /* total holds something */
};

static inline void sums_take(struct carve *c, size_t lanes, int64_t d, struct sums *s) {
    s->near = carve_take_panel(c, lanes, (size_t)d, sizeof(float));
    s->total = carve_take_panel(c, lanes, (size_t)d, sizeof(float));
    s->low = carve_take_panel(c, lanes, (size_t)d, sizeof(float));
    s->d = d;
}

static inline void sums_begin(struct sums *s, int64_t lanes) {
    s->seen = s->folded = 0;
    memset(s->near, 0, (size_t)(lanes * s->d) * sizeof *s->near);
}

/* Adds `part` to total + low; the error of the addition is exact (Knuth). */
static inline void sums_fold(struct sums *s, int64_t lanes, const float *part) {
    const int64_t n = lanes * s->d;
    s->seen = 0;
    if (!s->folded++) {
        memcpy(s->total, part, (size_t)n * sizeof *part);
        memset(s->low, 0, (size_t)n * sizeof *s->low);
        return;
    }
    for (int64_t i = 0; i < n; i += CPU_LANES) {
        const vf x = v_load(s->total + i), y = v_load(part + i) + v_load(s->low + i);
        const vf sum = x + y, back = sum - x;
        v_store(s->total + i, sum);
        v_store(s->low + i, (x - (sum - back)) + (y - back));
    }
}

/* Before products of n more rows are added. */
static inline void sums_expect(struct sums *s, int64_t lanes, int64_t n) {
    if (s->seen && s->seen + n > cpu_near(s->d)) {
        sums_fold(s, lanes, s->near);
        memset(s->near, 0, (size_t)(lanes * s->d) * sizeof *s->near);
    }
    s->seen += n;
}

/* Leaves the whole sum in near. */
static inline void sums_end(struct sums *s, int64_t lanes) {
    if (!s->folded)
        return;
    sums_fold(s, lanes, s->near);
    for (int64_t i = 0; i < lanes * s->d; i += CPU_LANES)
        v_store(s->near + i, v_load(s->total + i) + v_load(s->low + i));
}

/* Writes the rows of the tile: near times scale, which may be far out of f32's range. */
static inline void sums_store(struct sums *s, const struct view *view, int64_t b, int64_t h,
                              int64_t heads, int64_t first, int64_t rows, double scale,
                              float *row) {
    const struct cpu_head to = cpu_heads(view, view->type, b, h, heads);
    if (scale < 1 || scale > 1)
        for (int64_t i = 0; i < cpu_lanes(rows) * s->d; i++)
            s->near[i] = (float)(scale * (double)s->near[i]);
    cpu_store_outputs(&to, first, rows, s->d, s->near, row);
}

#endif
