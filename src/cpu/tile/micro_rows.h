/*
 * Products that are added to rows in memory. Dims stand in the lanes, where scores have queries: of rows x
 * of n numbers each, and a panel of n rows of dims,
 *
 *     to[j] += sum_i x[j][i] panel[i]          panel [groups of dims][n][width], as tile.h has panels
 *
 * Sums run over a chunk, chunks are added up, and all n products are added to a row at once.
 */
#ifndef TESSERA_CPU_MICRO_ROWS_H
#define TESSERA_CPU_MICRO_ROWS_H

#include "tile/tile.h"

/* to += part, and what is cut off to `low` (Knuth: exact); NULL: it is let go. */
V_INLINE void cpu_rows_store(float *to, float *low, vf part) {
    const vf x = v_load(to);
    if (!low) {
        v_store(to, x + part);
        return;
    }
    const vf sum = x + part, back = sum - x;
    v_store(to, sum);
    v_store(low, v_load(low) + ((x - (sum - back)) + (part - back)));
}

/* Some rows, `first` being the panel's first dim. */
V_INLINE void cpu_rows_step(const float *restrict panel, const float *x, int64_t stride, int64_t n,
                            const int vectors, const int rows, float *const *row, int64_t first,
                            int64_t low) {
    const float *k[CPU_STEP_MAX];
    vf sum[CPU_STEP_MAX][CPU_VECTORS], total[CPU_STEP_MAX][CPU_VECTORS];
    V_FOR(j, rows) {
        k[j] = x + j * stride;
    }
    cpu_scores_dims(panel, k, 0, min_i64(n, CPU_CHUNK), vectors, rows, total);
    for (int64_t i = CPU_CHUNK; i < n; i += CPU_CHUNK) {
        cpu_scores_dims(panel, k, i, min_i64(n, i + CPU_CHUNK), vectors, rows, sum);
        V_FOR(j, rows) {
            V_FOR(v, vectors) {
                total[j][v] += sum[j][v];
            }
        }
    }
    V_FOR(j, rows) {
        float *to = row[j] + first;
        V_FOR(v, vectors) {
            cpu_rows_store(to + v * CPU_LANES, low ? to + low + v * CPU_LANES : NULL, total[j][v]);
        }
    }
}

typedef void cpu_rows_fn(const float *restrict panel, const float *x, int64_t stride, int64_t n,
                         int32_t rows, float *const *row, int64_t first, int64_t low);

/* Whole steps of `step` rows. */
#define CPU_ROWS_KERNEL(vectors, step, name)                                                       \
    CPU_KERNEL void cpu_rows_##vectors##_##name(const float *restrict panel, const float *x,       \
                                                int64_t stride, int64_t n, int32_t rows,           \
                                                float *const *row, int64_t first, int64_t low) {   \
        for (int32_t j = 0; j < rows; j += step)                                                   \
            cpu_rows_step(panel, x + j * stride, stride, n, vectors, step, row + j, first, low);   \
    }
#define CPU_ROWS_SHAPE(vectors)                                                                    \
    CPU_ROWS_KERNEL(vectors, CPU_STEP_##vectors, step)                                             \
    CPU_ROWS_KERNEL(vectors, 1, one)
#define CPU_ROWS_SHAPE_ROW(vectors)                                                                \
    { CPU_STEP_##vectors, cpu_rows_##vectors##_step, cpu_rows_##vectors##_one }

CPU_ROWS_SHAPE(1)
CPU_ROWS_SHAPE(2)
#if CPU_VECTORS == 4
CPU_ROWS_SHAPE(3)
CPU_ROWS_SHAPE(4)
#endif

/* Shapes of a panel of 1, 2, ... vectors. */
static const struct cpu_rows_shape {
    int32_t rows;
    cpu_rows_fn *run, *one;
} cpu_rows_shapes[] = {CPU_ROWS_SHAPE_ROW(1), CPU_ROWS_SHAPE_ROW(2),
#if CPU_VECTORS == 4
                       CPU_ROWS_SHAPE_ROW(3), CPU_ROWS_SHAPE_ROW(4)
#endif
};

/* Adds to `rows` rows of d dims, padded to whole vectors, of a panel of n rows. */
static inline void cpu_rows_add(const float *panel, const float *x, int64_t stride, int64_t n,
                                int32_t rows, int64_t d, float *const *row, int64_t low) {
    const int64_t dims = cpu_round_up(d, CPU_LANES);
    for (int64_t first = 0; first < dims; first += CPU_GROUP) {
        const int64_t width = min_i64(dims - first, CPU_GROUP);
        const struct cpu_rows_shape *shape = &cpu_rows_shapes[width / CPU_LANES - 1];
        const int32_t whole = rows / shape->rows * shape->rows;
        shape->run(panel + first * n, x, stride, n, whole, row, first, low);
        shape->one(panel + first * n, x + whole * stride, stride, n, rows - whole, row + whole,
                   first, low);
    }
}

#endif
