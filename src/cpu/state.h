/* What the lanes of a fused tile have seen, and how parts of that are put together. */
#ifndef TESSERA_CPU_STATE_H
#define TESSERA_CPU_STATE_H

#include "tile.h"

/*
 * What a tile's rows have seen. `near`: of the last superblocks, in f32; per lane the maximum, the
 * sum of weights, and the sums of weighted values. `state`: of all before, which near is folded
 * into, with what rounding cuts off from ot kept in `low`, so that the error does not grow with the
 * length of a row even where all terms have one sign.
 */
struct near {
    float *m, *l, *ot;
};
struct state {
    float *m, *ot;
    double *l;
};

/* What is subtracted from scores whose maximum is top. */
static inline vf base_of(vf top) {
    return v_select((vi)(top == v_set(-INFINITY)), (vf){0}, top);
}

/* Nothing is near: the next maximum multiplies what stands in ot by 0. */
static inline void near_leave(const struct near *s, int64_t lanes) {
    for (int64_t i = 0; i < lanes; i++)
        s->m[i] = -INFINITY;
    memset(s->l, 0, (size_t)lanes * sizeof *s->l);
}

/* The same where ot may hold anything. */
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

/* to + low = a part. */
static inline void state_take_part(const struct state *to, float *low, const struct state *part,
                                   int64_t lanes, int64_t d) {
    memcpy(to->m, part->m, (size_t)lanes * sizeof *to->m);
    memcpy(to->l, part->l, (size_t)lanes * sizeof *to->l);
    memcpy(to->ot, part->ot, (size_t)(lanes * d) * sizeof *to->ot);
    memset(low, 0, (size_t)(lanes * d) * sizeof *low);
}

/* to + low = to + low and a part together. */
static inline void state_merge(const struct state *to, float *low, const struct state *part,
                               int64_t lanes, int64_t d) {
    for (int64_t lane = 0; lane < lanes; lane += CPU_LANES) {
        vf m_to = v_load(to->m + lane), m_part = v_load(part->m + lane), top = v_max(m_part, m_to);
        vf a = v_exp2(m_to - base_of(top)), a_part = v_exp2(m_part - base_of(top));
        v_store(to->m + lane, top);
        int64_t width;
        float *o = cpu_column(to->ot, lanes, lane, d, &width);
        float *rest = cpu_column(low, lanes, lane, d, &width);
        const float *o_part = cpu_column(part->ot, lanes, lane, d, &width);
        for (int64_t i = 0; i < d * width; i += width) {
            vf x = a * v_load(o + i), y = a * v_load(rest + i) + a_part * v_load(o_part + i);
            vf sum = x + y;
            v_store(o + i, sum);
            v_store(rest + i, y - (sum - x));
        }
        for (int i = 0; i < CPU_LANES; i++)
            to->l[lane + i] =
                (double)a[i] * to->l[lane + i] + (double)a_part[i] * part->l[lane + i];
    }
}

/* Moves what is near to the state, which holds something or, at first, nothing. */
static inline void near_fold(const struct state *to, float *low, const struct near *near,
                             int64_t lanes, int64_t d, int first) {
    double l[CPU_TILE_ROWS];
    const struct state part = {near->m, near->ot, l};
    for (int64_t i = 0; i < lanes; i++)
        l[i] = (double)near->l[i];
    if (first)
        state_take_part(to, low, &part, lanes, d);
    else
        state_merge(to, low, &part, lanes, d);
    near_leave(near, lanes);
}

static inline void low_add(const struct state *s, const float *low, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        s->ot[i] += low[i];
}

#endif
