/* State of a fused tile's lanes, and how parts of it are put together. */
#ifndef TESSERA_CPU_STATE_H
#define TESSERA_CPU_STATE_H

#include "tile/tile.h"

/*
 * State of a tile's rows. `near`: of the last superblocks, in f32; per lane the maximum, the
 * sum of weights, and the sums of weighted V. `state`: the same of all superblocks before; near is
 * folded into it. `low` keeps what rounding cuts off from ot (compensated summation): the error does
 * not grow with the length of a row, even where all terms have one sign.
 */
struct near {
    float *m, *l, *ot;
};
struct state {
    float *m, *ot;
    double *l;
};

/* Base that is subtracted from scores whose maximum is top. */
static inline vf base_of(vf top) {
    return v_select((vi)(top == v_set(-INFINITY)), (vf){0}, top);
}

/* Nothing is near: the next maximum multiplies what stands in ot by 0. */
static inline void near_leave(const struct near *s, int64_t lanes) {
    for (int64_t i = 0; i < lanes; i++)
        s->m[i] = -INFINITY;
    memset(s->l, 0, (size_t)lanes * sizeof *s->l);
}

/* Clears the state where ot may hold anything. */
static inline void near_clear(const struct near *s, int64_t lanes, int64_t d) {
    near_leave(s, lanes);
    memset(s->ot, 0, (size_t)(lanes * d) * sizeof *s->ot);
}

static inline void state_clear(const struct state *s, float *low, int64_t lanes, int64_t d) {
    for (int64_t i = 0; i < lanes; i++)
        s->m[i] = -INFINITY;
    memset(s->l, 0, (size_t)lanes * sizeof *s->l);
    memset(s->ot, 0, (size_t)(lanes * d) * sizeof *s->ot);
    memset(low, 0, (size_t)(lanes * d) * sizeof *low);
}

/* Adds a part to those that are in `to`, `before` of them: none, and it may hold anything; one, and
 * low may. Then out + low, which may be to + low, is their sum; after the last part out alone is. In
 * the order of memory: tiles meet their parts seldom, far from the near caches. */
static inline void state_merge(const struct state *out, const struct state *to, float *low,
                               const struct state *part, int64_t lanes, int64_t d, int before,
                               int last) {
    if (!before) {
        memcpy(out->m, part->m, (size_t)lanes * sizeof *out->m);
        memcpy(out->l, part->l, (size_t)lanes * sizeof *out->l);
        memcpy(out->ot, part->ot, (size_t)(lanes * d) * sizeof *out->ot);
        return;
    }
    for (int64_t lane = 0; lane < lanes; lane += CPU_GROUP) {
        const int64_t width = cpu_width(lanes, lane);
        vf a[CPU_VECTORS], b[CPU_VECTORS];
        for (int64_t v = 0; v < width; v += CPU_LANES) {
            const vf m = v_load(to->m + lane + v), m_part = v_load(part->m + lane + v);
            const vf top = v_max(m_part, m);
            a[v / CPU_LANES] = v_exp2(m - base_of(top));
            b[v / CPU_LANES] = v_exp2(m_part - base_of(top));
            v_store(out->m + lane + v, top);
        }
        for (int64_t i = 0; i < width; i++)
            out->l[lane + i] = (double)a[i / CPU_LANES][i % CPU_LANES] * to->l[lane + i] +
                               (double)b[i / CPU_LANES][i % CPU_LANES] * part->l[lane + i];
        for (int64_t i = lane * d; i < (lane + width) * d; i += width)
            for (int64_t v = 0; v < width; v += CPU_LANES) {
                const vf x = a[v / CPU_LANES] * v_load(to->ot + i + v);
                vf y = b[v / CPU_LANES] * v_load(part->ot + i + v);
                if (before > 1)
                    y += a[v / CPU_LANES] * v_load(low + i + v);
                const vf sum = x + y;
                v_store(out->ot + i + v, sum);
                if (!last)
                    v_store(low + i + v, y - (sum - x));
            }
    }
}

/* Folds what is near, which then is empty. */
static inline void near_fold(const struct state *out, const struct state *to, float *low,
                             const struct near *near, int64_t lanes, int64_t d, int before,
                             int last) {
    double l[CPU_TILE_ROWS];
    const struct state part = {near->m, near->ot, l};
    for (int64_t i = 0; i < lanes; i++)
        l[i] = (double)near->l[i];
    state_merge(out, to, low, &part, lanes, d, before, last);
    near_leave(near, lanes);
}

#endif
