/*
 * A query tile: what the stems that read tensors share. Queries stand in the lanes, so a key or
 * value row is read as scalars, in place, and max, sum and mask are vertical. The tile's rows are
 * cut into groups of CPU_GROUP lanes, each with its own panels:
 *
 *     qt      [groups][d_qk][CPU_GROUP]      queries, scaled
 *     factor  [groups][CPU_GROUP]            what scores have still to be multiplied by
 *     st      [CPU_KEYS][CPU_GROUP]          scores, then weights, of one group
 *     ot      [groups][d_v][CPU_GROUP]       outputs
 *     low     [groups][d_v][CPU_GROUP]       what rounding has cut off from ot
 *
 * Keys come in superblocks of at most CPU_KEYS. No sum runs far: dims and keys are summed CPU_CHUNK
 * at a time, chunks into a superblock, superblocks into ot with compensation, so that the error
 * does not grow with d or with the length of a row even where all terms have one sign.
 */
#ifndef TESSERA_CPU_TILE_H
#define TESSERA_CPU_TILE_H

#include "convert.h"
#include "cpu.h"
#include "simd/vector.h"

#include <math.h>

#define LOG2_E 1.4426950408889634074
#define LN_2 0.69314718055994530942

#define CPU_KEYS 128
#define CPU_CHUNK 16 /* terms of a running sum */
#define CPU_DIMS 256 /* dims that chunks are added up over in f32 */

/* The keys of a superblock. Without masks every row lists every key. */
struct cpu_keys {
    int32_t n;
    int masked;
    int32_t key[CPU_KEYS];
    uint64_t mask[CPU_KEYS]; /* rows of the tile, bit 0 first */
};

/* Rows of one (batch, head) of a tensor. */
struct cpu_head {
    char *data;
    int64_t stride; /* bytes */
    tess_type type;
};

static inline int64_t cpu_round_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

/* Lanes of a tile of `rows` rows: whole groups. */
static inline int64_t cpu_lanes(int64_t rows) {
    return cpu_round_up(rows, CPU_GROUP);
}

static inline struct cpu_head cpu_head(const struct view *view, tess_type type, int64_t b,
                                       int64_t h) {
    int64_t size = type == TESS_F32 ? 4 : 2;
    return (struct cpu_head){(char *)view->data +
                                 (b * view->stride[0] + h * view->stride[1]) * size,
                             view->stride[2] * size, type};
}

/* The lse of rows row, row + 1, ... of one head; NULL data when it is not wanted. */
struct cpu_lse {
    float *data;
    int64_t stride;
};

static inline struct cpu_lse cpu_lse(const struct view *view, int64_t b, int64_t h, int64_t row) {
    float *data = view->data;
    if (data)
        data += b * view->stride[0] + h * view->stride[1] + row * view->stride[2];
    return (struct cpu_lse){data, view->stride[2]};
}

/* The power of two by which a scaled query row is divided, and its scores multiplied again, so that
 * neither the row nor a sum of products with any key leaves the range of f32: 0 unless the row is
 * very large or very small. */
static inline int cpu_row_shift(const float *row, int64_t d, double scale) {
    double most = 0;
    for (int64_t i = 0; i < d; i++)
        most = fabs((double)row[i]) > most ? fabs((double)row[i]) : most;
    most *= fabs(scale);
    if (most == 0 || !isfinite(most))
        return 0;
    int exponent = ilogb(most);
    return exponent > 100 ? exponent - 100 : exponent < -30 ? exponent + 30 : 0;
}

/* qt and factor of rows first ... first + rows - 1, times scale; lanes without a row hold 0. row is
 * scratch for d floats. Answers whether any factor is not 1. */
static inline int cpu_load_queries(float *qt, float *factor, const struct cpu_head *q,
                                   int64_t first, int64_t rows, int64_t d, double scale,
                                   float *row) {
    int shifted = 0;
    memset(qt, 0, (size_t)(cpu_lanes(rows) * d) * sizeof *qt);
    for (int64_t r = 0; r < cpu_lanes(rows); r++)
        factor[r] = 1;
    for (int64_t r = 0; r < rows; r++) {
        float *lane = qt + r / CPU_GROUP * d * CPU_GROUP + r % CPU_GROUP;
        cpu_row_to_f32(row, q->data + (first + r) * q->stride, q->type, d);
        int shift = cpu_row_shift(row, d, scale);
        double row_scale = ldexp(scale, -shift);
        for (int64_t i = 0; i < d; i++)
            lane[i * CPU_GROUP] = (float)(row_scale * (double)row[i]);
        factor[r] = shift > 127 ? 0x1p127f : (float)ldexp(1, shift);
        shifted |= shift != 0;
    }
    return shifted;
}

/* Rows first ... of o = ot. row is scratch for d floats. */
static inline void cpu_store_outputs(const struct cpu_head *o, int64_t first, int64_t rows,
                                     int64_t d, const float *ot, float *row) {
    for (int64_t r = 0; r < rows; r++) {
        const float *lane = ot + r / CPU_GROUP * d * CPU_GROUP + r % CPU_GROUP;
        for (int64_t i = 0; i < d; i++)
            row[i] = lane[i * CPU_GROUP];
        cpu_row_from_f32(o->data + (first + r) * o->stride, row, o->type, d);
    }
}

/* row[j] = the d elements of key[j], as f32: in place, or converted into buffer. */
static inline void cpu_gather(const float **row, const struct cpu_head *head, const int32_t *key,
                              int32_t n, int64_t d, float *buffer) {
    for (int32_t j = 0; j < n; j++) {
        const char *data = head->data + key[j] * head->stride;
        row[j] = (const float *)(const void *)data;
        if (head->type != TESS_F32) {
            float *copy = buffer + j * d;
            cpu_row_to_f32(copy, data, head->type, d);
            row[j] = copy;
        }
    }
}

/* Floats that cpu_gather's buffer needs. */
static inline size_t cpu_gather_size(tess_type type, int64_t d) {
    return type == TESS_F32 ? 0 : CPU_KEYS * (size_t)d;
}

/* ---- micro-kernels: not inlined, or their accumulators leave the registers ---- */

/* st = the products of dims first ... first + d - 1 for CPU_STEP keys. */
static __attribute__((noinline)) void cpu_scores_step(const float *restrict qt,
                                                      const float *const *key, int64_t first,
                                                      int64_t d, float *restrict st) {
    const float *k[CPU_STEP];
    vf sum[CPU_STEP][CPU_VECTORS];
    V_FOR(j, CPU_STEP) {
        k[j] = key[j] + first;
    }
    qt += first * CPU_GROUP;
    for (int64_t begin = 0; begin < d; begin += CPU_CHUNK) {
        int64_t end = d - begin < CPU_CHUNK ? d : begin + CPU_CHUNK;
        V_FOR(j, CPU_STEP) {
            V_FOR(v, CPU_VECTORS) {
                sum[j][v] = (vf){0};
            }
        }
        for (int64_t i = begin; i < end; i++) {
            vf q[CPU_VECTORS];
            V_FOR(v, CPU_VECTORS) {
                q[v] = v_load(qt + i * CPU_GROUP + v * CPU_LANES);
            }
            V_FOR(j, CPU_STEP) {
                vf x = v_set(k[j][i]);
                V_FOR(v, CPU_VECTORS) {
                    sum[j][v] = v_fma(q[v], x, sum[j][v]);
                }
            }
        }
        V_FOR(j, CPU_STEP) {
            V_FOR(v, CPU_VECTORS) {
                float *s = st + j * CPU_GROUP + v * CPU_LANES;
                v_store(s, begin ? (vf)(v_load(s) + sum[j][v]) : (vf)sum[j][v]);
            }
        }
    }
}

/* The same over more than CPU_DIMS dims. */
static __attribute__((noinline)) void cpu_scores_long(const float *qt, const float *const *key,
                                                      int64_t d, float *st) {
    _Alignas(64) float part[CPU_STEP * CPU_GROUP];
    double total[CPU_STEP * CPU_GROUP] = {0};
    for (int64_t first = 0; first < d; first += CPU_DIMS) {
        cpu_scores_step(qt, key, first, d - first < CPU_DIMS ? d - first : CPU_DIMS, part);
        for (int i = 0; i < CPU_STEP * CPU_GROUP; i++)
            total[i] += (double)part[i];
    }
    for (int i = 0; i < CPU_STEP * CPU_GROUP; i++)
        st[i] = (float)total[i];
}

/* Adds sum_j st[j] * value[j][i] to alpha * (ot[i] + low[i]) for dims first ... + dims - 1. */
V_INLINE void cpu_values_body(const float *restrict st, const float *const *value, int32_t n,
                              int64_t first, const int dims, const vf *alpha, float *restrict ot,
                              float *restrict low) {
    vf total[CPU_STEP][CPU_VECTORS];
    V_FOR(i, dims) {
        V_FOR(v, CPU_VECTORS) {
            total[i][v] = (vf){0};
        }
    }
    for (int32_t begin = 0; begin < n; begin += CPU_CHUNK) {
        int32_t end = n - begin < CPU_CHUNK ? n : begin + CPU_CHUNK;
        vf sum[CPU_STEP][CPU_VECTORS];
        V_FOR(i, dims) {
            V_FOR(v, CPU_VECTORS) {
                sum[i][v] = (vf){0};
            }
        }
        for (int32_t j = begin; j < end; j++) {
            const float *x = value[j] + first;
            vf p[CPU_VECTORS];
            V_FOR(v, CPU_VECTORS) {
                p[v] = v_load(st + j * CPU_GROUP + v * CPU_LANES);
            }
            V_FOR(i, dims) {
                vf y = v_set(x[i]);
                V_FOR(v, CPU_VECTORS) {
                    sum[i][v] = v_fma(p[v], y, sum[i][v]);
                }
            }
        }
        V_FOR(i, dims) {
            V_FOR(v, CPU_VECTORS) {
                total[i][v] += sum[i][v];
            }
        }
    }
    V_FOR(i, dims) {
        V_FOR(v, CPU_VECTORS) {
            int64_t at = (first + i) * CPU_GROUP + v * CPU_LANES;
            vf x = alpha[v] * v_load(ot + at), y = alpha[v] * v_load(low + at) + total[i][v];
            vf sum = x + y;
            v_store(ot + at, sum);
            v_store(low + at, y - (sum - x));
        }
    }
}

static __attribute__((noinline)) void cpu_values_step(const float *restrict st,
                                                      const float *const *value, int32_t n,
                                                      int64_t first, const vf *alpha,
                                                      float *restrict ot, float *restrict low) {
    cpu_values_body(st, value, n, first, CPU_STEP, alpha, ot, low);
}

static __attribute__((noinline)) void cpu_values_one(const float *restrict st,
                                                     const float *const *value, int32_t n,
                                                     int64_t first, const vf *alpha,
                                                     float *restrict ot, float *restrict low) {
    cpu_values_body(st, value, n, first, 1, alpha, ot, low);
}

/* st[j] = dot(qt, key[j]) for n keys, times factor unless that is NULL. Writes whole steps: st has
 * room for CPU_KEYS, and key for as many pointers, of which those past n are set to a valid row. */
static inline void cpu_scores(const float *qt, const float *factor, const float **key, int32_t n,
                              int64_t d, float *st) {
    for (int32_t j = n; j % CPU_STEP; j++)
        key[j] = key[n - 1];
    for (int32_t j = 0; j < n; j += CPU_STEP) {
        float *s = st + (int64_t)j * CPU_GROUP;
        if (d <= CPU_DIMS)
            cpu_scores_step(qt, key + j, 0, d, s);
        else
            cpu_scores_long(qt, key + j, d, s);
        for (int i = 0; factor && i < CPU_STEP * CPU_GROUP; i++)
            s[i] *= factor[i % CPU_GROUP];
    }
}

/* ot + low = alpha * (ot + low) + st^T value, for n keys and d dims. */
static inline void cpu_values(const float *st, const float *const *value, int32_t n, int64_t d,
                              const vf *alpha, float *ot, float *low) {
    int64_t i = 0;
    for (; i + CPU_STEP <= d; i += CPU_STEP)
        cpu_values_step(st, value, n, i, alpha, ot, low);
    for (; i < d; i++)
        cpu_values_one(st, value, n, i, alpha, ot, low);
}

/* ot += low. */
static inline void cpu_values_fold(float *ot, const float *low, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        ot[i] += low[i];
}

#endif
