/*
 * Products of the MLP in f32, at every level, whatever the type: queries stand in the lanes (tile/micro.h).
 *
 *     up      sums of MLP_COLUMNS columns of W1, in spans of dims that leave queries in the nearest cache
 *     down    sums of MLP_SPAN_OUT dims of o over a tile's columns
 */
#ifndef TESSERA_CPU_MLP_F32_H
#define TESSERA_CPU_MLP_F32_H

#include "mlp/mlp.h"

#define MLP_GROUP CPU_GROUP                           /* lanes of a group of sums */
#define MLP_SUMS_COLUMNS (MLP_COLUMNS + CPU_STEP_MAX) /* with room for the last step */
#define MLP_SPAN 128                                  /* dims of x and W1 at once */
#define MLP_SPAN_OUT 256                              /* dims of o at once, MLP_COLUMNS at least */

static inline int64_t mlp_lanes(int64_t rows) {
    return cpu_lanes(rows);
}

/* ---- up ---- */

struct up_products {
    float *x;    /* panels of all lanes */
    float *w;    /* rows of W1 converted to f32 */
    float *st;   /* a group's sums of a span */
    float *row;  /* CPU_LANES rows of x */
    float *sums; /* [group][MLP_SUMS_COLUMNS][width] */
};

static inline void up_products_take(struct carve *c, const struct kernel_args *args,
                                    struct up_products *s) {
    const size_t lanes = (size_t)mlp_lanes(args->work.lists->tile_rows);
    const size_t d = (size_t)args->problem->d_qk;
    s->x = carve_take_panel(c, lanes, d, sizeof(float));
    s->w =
        carve_take(c, cpu_gather_size(args->problem->type, MLP_COLUMNS, MLP_SPAN), sizeof(float));
    s->st = carve_take(c, MLP_SUMS_COLUMNS * CPU_GROUP, sizeof(float));
    s->row = carve_take_panel(c, CPU_LANES, d, sizeof(float));
    s->sums = carve_take_panel(c, lanes, MLP_SUMS_COLUMNS, sizeof(float));
}

static inline void up_products_begin(struct up_products *s, const struct cpu_head *x, int64_t first,
                                     int64_t rows, int64_t d) {
    cpu_load_columns(s->x, x, first, rows, d, s->row);
}

/* sums = those of n columns, MLP_COLUMNS at most; `next` more follow. */
static inline void up_products(struct up_products *s, const struct cpu_head *w1,
                               const int32_t *column, int32_t n, int32_t next, int64_t rows,
                               int64_t d) {
    (void)next;
    const int64_t lanes = cpu_lanes(rows);
    const float *w_row[CPU_ROWS];
    vf ignored[CPU_VECTORS] = {{0}};
    for (int64_t i = 0; i < d; i += MLP_SPAN) {
        const int64_t span = min_i64(MLP_SPAN, d - i);
        const struct cpu_head from = mlp_dims_from(*w1, i);
        cpu_gather(w_row, &from, column, n, span, s->w);
        for (int64_t lane = 0; lane < lanes; lane += CPU_GROUP) {
            const int64_t width = cpu_width(lanes, lane);
            const int vectors = (int)(width / CPU_LANES);
            float *sums = s->sums + lane * MLP_SUMS_COLUMNS;
            cpu_scores(s->x + lane * d + i * width, vectors, w_row, n, span, i ? s->st : sums,
                       ignored);
            for (int64_t e = 0; i && e < n * width; e += CPU_LANES)
                v_store(sums + e, v_load(sums + e) + v_load(s->st + e));
        }
    }
}

static inline void up_products_end(void) {
}

/* ---- down ---- */

struct down_products {
    float *ot, *total; /* panels of all lanes: sums of CPU_NEAR columns, and of those before them */
    float *w;          /* rows of W2 converted to f32 */
    float *st;         /* a group's values */
    float *row;        /* CPU_LANES rows of values, or of o */
};

static inline void down_products_take(struct carve *c, const struct kernel_args *args,
                                      struct down_products *s) {
    const size_t lanes = (size_t)mlp_lanes(args->work.lists->tile_rows);
    s->ot = carve_take_panel(c, lanes, MLP_SPAN_OUT, sizeof(float));
    s->total = carve_take_panel(c, lanes, MLP_SPAN_OUT, sizeof(float));
    s->w = carve_take(c, cpu_gather_size(args->problem->type, MLP_COLUMNS, MLP_SPAN_OUT),
                      sizeof(float));
    s->st = carve_take(c, MLP_COLUMNS * CPU_GROUP, sizeof(float));
    s->row = carve_take(c, CPU_LANES * MLP_SPAN_OUT, sizeof(float));
}

/* st = values of `width` lanes from `lane` on, of n columns that begin at `from`; 0 in lanes without a row. */
static inline void down_values_load(struct down_products *s, const struct cpu_head *values,
                                    int64_t lane, int64_t width, int64_t rows, int64_t n) {
    for (int64_t l = 0; l < width; l += CPU_LANES) {
        const float *at[CPU_LANES];
        cpu_lane_rows(at, values, 0, lane + l, max_i64(0, min_i64(rows - lane - l, CPU_LANES)), n,
                      s->row);
        cpu_rows_to_column(s->st + l, width, at, n);
    }
}

/* total = sums of dims first ... first + d - 1 of o over n columns. values: the tile's rows. */
static inline void down_products(struct down_products *s, const struct cpu_head *values,
                                 const struct cpu_head *w2, const int32_t *column, int64_t n,
                                 int64_t tile_rows, int64_t rows, int64_t first, int64_t d) {
    (void)tile_rows;
    const int64_t lanes = cpu_lanes(rows);
    const struct cpu_head from = mlp_dims_from(*w2, first);
    const float *w_row[CPU_ROWS];
    memset(s->total, 0, (size_t)(lanes * d) * sizeof *s->total);
    memset(s->ot, 0, (size_t)(lanes * d) * sizeof *s->ot);
    for (int64_t p = 0; p < n; p += MLP_COLUMNS) {
        const int32_t some = (int32_t)min_i64(MLP_COLUMNS, n - p);
        const struct cpu_head block = mlp_dims_from(*values, p);
        cpu_gather(w_row, &from, column + p, some, d, s->w);
        for (int64_t lane = 0; lane < lanes; lane += CPU_GROUP) {
            const int64_t width = cpu_width(lanes, lane);
            down_values_load(s, &block, lane, width, rows, some);
            cpu_values(s->st, (int)(width / CPU_LANES), w_row, some, d, NULL, s->ot + lane * d);
        }
        for (int64_t e = 0; ((p + some) % CPU_NEAR == 0 || p + some == n) && e < lanes * d;
             e += CPU_LANES) {
            v_store(s->total + e, v_load(s->total + e) + v_load(s->ot + e));
            v_store(s->ot + e, (vf){0});
        }
    }
}

/* Rows r ... r + CPU_LANES - 1 of the sums, `*stride` floats apart. */
static inline const float *down_rows(struct down_products *s, int64_t r, int64_t rows, int64_t d,
                                     int64_t *stride) {
    int64_t width;
    const float *column = cpu_column(s->total, cpu_lanes(rows), r, d, &width);
    cpu_from_column(s->row, d, column, width, d);
    *stride = d;
    return s->row;
}

#endif
