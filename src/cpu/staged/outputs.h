/*
 * Sums of weighted rows, for stages that multiply the scores by a tensor. The rows of a chunk stand
 * in the lanes. Superblocks are summed in f32 (`near`), their sums with compensation (`total`, `low`),
 * so that errors do not grow with the length of a row.
 */
#ifndef TESSERA_CPU_OUTPUTS_H
#define TESSERA_CPU_OUTPUTS_H

#include "staged/block_row.h"

/* Floats of a lane beside its panel: total and low. */
#define CPU_OUTPUTS_SIDE 2

struct cpu_outputs {
    const struct cpu_stage_scratch *s;
    int64_t rows, d; /* rows of the chunk; dims of an output */
    float *near, *total, *low;
    uint64_t nonzero; /* rows that have met a weight that is not 0 */
    int64_t done;     /* superblocks */
};

static inline struct cpu_outputs cpu_outputs_begin(const struct cpu_stage_scratch *s, int64_t rows,
                                                   int64_t d) {
    const int64_t panel = cpu_lanes(rows) * d;
    struct cpu_outputs out = {
        .s = s, .rows = rows, .d = d, .near = s->panel, .total = s->side, .low = s->side + panel};
    memset(out.near, 0, (size_t)panel * sizeof *out.near);
    memset(out.total, 0, 2 * (size_t)panel * sizeof *out.total);
    return out;
}

/* Which rows, from bit `row` on, have a weight that is not 0 among those of n keys. */
static inline uint64_t cpu_nonzero(const float *pt, int64_t width, int32_t n, int64_t row) {
    uint64_t nonzero = 0;
    for (int64_t lane = 0; lane < width; lane += CPU_LANES) {
        vi any = {0};
        for (int32_t j = 0; j < n; j++)
            any |= (vi)(v_load(pt + j * width + lane) != (vf){0});
        nonzero |= (uint64_t)v_bits(any) << (row + lane);
    }
    return nonzero;
}

/* Adds n rows `value` times the weights pt of the group of lanes that begins at `lane`. */
static inline void cpu_outputs_add(struct cpu_outputs *out, int64_t lane, int64_t width,
                                   const float *pt, const float *const *value, int32_t n) {
    out->nonzero |= cpu_nonzero(pt, width, n, lane);
    cpu_values(pt, (int)(width / CPU_LANES), value, n, out->d, NULL, out->near + lane * out->d);
}

/* total + low += near, and near = 0. */
static inline void cpu_outputs_fold(struct cpu_outputs *out) {
    const int64_t n = cpu_lanes(out->rows) * out->d;
    float *restrict total = out->total, *restrict low = out->low, *restrict near = out->near;
    for (int64_t i = 0; i < n; i++) {
        float y = low[i] + near[i], sum = total[i] + y;
        low[i] = y - (sum - total[i]);
        total[i] = sum;
        near[i] = 0;
    }
}

/* After each superblock. */
static inline void cpu_outputs_step(struct cpu_outputs *out) {
    if (++out->done % (cpu_near(out->d) / CPU_KEYS_SHORT) == 0)
        cpu_outputs_fold(out);
}

/* Writes the rows from `first` on. Those without a weight are empty: 0, whatever the rows that others
 * of the chunk list. */
static inline void cpu_outputs_end(struct cpu_outputs *out, const struct cpu_head *o,
                                   int64_t first) {
    const int64_t lanes = cpu_lanes(out->rows);
    cpu_outputs_fold(out);
    for (int64_t i = 0; i < lanes * out->d; i++)
        out->total[i] += out->low[i];
    for (int64_t r = 0; r < out->rows; r++) {
        int64_t width;
        float *column = cpu_column(out->total, lanes, r, out->d, &width);
        for (int64_t i = 0; i < out->d && !(out->nonzero >> r & 1); i++)
            column[i * width] = 0;
    }
    cpu_store_outputs(o, first, out->rows, out->d, out->total, out->s->row);
}

#endif
