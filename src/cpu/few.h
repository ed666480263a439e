/*
 * Micro-kernels for tiles of few rows, which would leave most lanes empty: dims stand in the lanes
 * instead. Rows, keys and values are read whole; one row's scores are consecutive:
 *
 *     q   [rows][d_qk]       queries, scaled
 *     s   [rows][CPU_KEYS]   scores, then weights
 *     o   [rows][d_v]        outputs
 */
#ifndef TESSERA_CPU_FEW_H
#define TESSERA_CPU_FEW_H

#include "tile.h"

/* Rows that are few. */
#define CPU_FEW (CPU_LANES / 2)

/* Whether a tile of these rows is one: dims have to fill vectors, and no lane to sum up more than a
 * chunk of them. */
static inline int cpu_few(const struct problem *p, int64_t rows) {
    return rows <= CPU_FEW && p->d_qk % CPU_LANES == 0 && p->d_v % CPU_LANES == 0 &&
           p->d_qk <= CPU_CHUNK * CPU_LANES;
}

/* s = the products of one query with CPU_LANES keys, of `vectors` vectors each. */
V_INLINE void cpu_few_scores_body(const float *q, const float *const *key, const int vectors,
                                  float *s) {
    vf sum[CPU_LANES];
    V_FOR(j, CPU_LANES) {
        const float *k = key[j];
        sum[j] = v_load_any(k) * v_load(q);
        V_FOR(c, vectors - 1) {
            sum[j] =
                v_fma(v_load_any(k + (c + 1) * CPU_LANES), v_load(q + (c + 1) * CPU_LANES), sum[j]);
        }
    }
    v_store(s, v_sum_rows(sum));
}

#define CPU_FEW_SCORES(vectors)                                                                    \
    static __attribute__((noinline)) void cpu_few_scores_##vectors(                                \
        const float *q, const float *const *key, float *s) {                                       \
        cpu_few_scores_body(q, key, vectors, s);                                                   \
    }
CPU_FEW_SCORES(1)
CPU_FEW_SCORES(2)
CPU_FEW_SCORES(3)
CPU_FEW_SCORES(4)
CPU_FEW_SCORES(8)

/* Any number of vectors: the sum of parts. */
static inline void cpu_few_scores_any(const float *q, const float *const *key, int64_t vectors,
                                      float *s) {
    static void (*const parts[])(const float *, const float *const *, float *) = {
        cpu_few_scores_4, cpu_few_scores_1, cpu_few_scores_2, cpu_few_scores_3, cpu_few_scores_8};
    if (vectors <= 4) {
        parts[vectors % 4](q, key, s);
        return;
    }
    vf total = {0};
    for (int64_t c = 0; c < vectors;) {
        const int64_t take = vectors - c >= 8 ? 8 : vectors - c > 4 ? 4 : vectors - c;
        const float *k[CPU_LANES];
        for (int j = 0; j < CPU_LANES; j++)
            k[j] = key[j] + c * CPU_LANES;
        parts[take == 8 ? 4 : take % 4](q + c * CPU_LANES, k, s);
        total += v_load(s);
        c += take;
    }
    v_store(s, total);
}

/* s[r][j] = dot(q[r], key[j]) for n >= 1 keys. Whole vectors, as cpu_scores. */
static inline void cpu_few_scores(const float *q, int64_t rows, const float **key, int32_t n,
                                  int64_t d, float *s) {
    for (int32_t j = n; j % CPU_LANES; j++)
        key[j] = key[n - 1];
    for (int32_t j = 0; j < n; j += CPU_LANES)
        for (int64_t r = 0; r < rows; r++)
            cpu_few_scores_any(q + r * d, key + j, d / CPU_LANES, s + r * CPU_KEYS + j);
}

/* One row's scores to weights; mask NULL: it lists all n keys, else those whose bit `row` is set.
 * Answers alpha. */
static inline float cpu_few_weigh(float *s, int32_t n, const uint64_t *mask, int64_t row,
                                  float factor, float *m, float *l) {
    const vf none = v_set(-INFINITY);
    vf top = v_set(*m), sum = {0};
    for (int32_t j = 0; j < n; j += CPU_LANES) {
        uint32_t keep = n - j < CPU_LANES ? (1u << (n - j)) - 1 : (1u << CPU_LANES) - 1;
        if (mask)
            keep &= v_row_bits(mask + j, row);
        vf x = v_pick(keep, v_load(s + j) * factor, none);
        v_store(s + j, x);
        top = v_max(x, top);
    }
    const float most = v_top(top), base = most == -INFINITY ? 0 : most;
    const float alpha = v_exp2(v_set(*m - base))[0];
    for (int32_t j = 0; j < n; j += CPU_LANES) {
        vf p = v_exp2(v_load(s + j) - base);
        v_store(s + j, p);
        sum += p;
    }
    *m = most;
    *l = alpha * *l + v_sum(sum);
    return alpha;
}

/* o = alpha * o + s value for dims first ... first + vectors * CPU_LANES - 1 of `rows` rows; `ways`
 * keys at a time have sums of their own. */
V_INLINE void cpu_few_values_body(const float *s, const float *const *value, int32_t n,
                                  int64_t first, const int rows, const int vectors, const int ways,
                                  const float *alpha, float *o, int64_t d) {
    vf sum[4][4][4];
    V_FOR(w, ways) {
        V_FOR(r, rows) {
            V_FOR(c, vectors) {
                sum[w][r][c] = (vf){0};
            }
        }
    }
    int32_t j = 0;
    for (; j + ways <= n; j += ways) {
        V_FOR(w, ways) {
            const float *x = v_keep(value[j + w] + first);
            V_FOR(c, vectors) {
                vf y = v_load_any(x + c * CPU_LANES);
                V_FOR(r, rows) {
                    sum[w][r][c] = v_fma(v_set(s[r * CPU_KEYS + j + w]), y, sum[w][r][c]);
                }
            }
        }
    }
    for (; j < n; j++)
        V_FOR(c, vectors) {
            vf y = v_load_any(value[j] + first + c * CPU_LANES);
            V_FOR(r, rows) {
                sum[0][r][c] = v_fma(v_set(s[r * CPU_KEYS + j]), y, sum[0][r][c]);
            }
        }
    V_FOR(r, rows) {
        V_FOR(c, vectors) {
            float *out = o + r * d + first + c * CPU_LANES;
            vf total = sum[0][r][c];
            V_FOR(w, ways - 1) {
                total += sum[w + 1][r][c];
            }
            v_store(out, v_fma(v_set(alpha[r]), v_load(out), total));
        }
    }
}

#define CPU_FEW_VALUES(rows, vectors, ways)                                                        \
    static __attribute__((noinline)) void cpu_few_values_##rows##_##vectors(                       \
        const float *s, const float *const *value, int32_t n, int64_t first, const float *alpha,   \
        float *o, int64_t d) {                                                                     \
        cpu_few_values_body(s, value, n, first, rows, vectors, ways, alpha, o, d);                 \
    }
CPU_FEW_VALUES(1, 4, CPU_FEW_WAYS)
CPU_FEW_VALUES(2, 4, CPU_FEW_WAYS / 2)
CPU_FEW_VALUES(4, 4, CPU_FEW_WAYS / 4)
CPU_FEW_VALUES(1, 1, 4)
CPU_FEW_VALUES(2, 1, 2)
CPU_FEW_VALUES(4, 1, 2)

static const struct cpu_few_shape {
    int64_t rows;
    void (*wide)(const float *, const float *const *, int32_t, int64_t, const float *, float *,
                 int64_t); /* 4 vectors */
    void (*slim)(const float *, const float *const *, int32_t, int64_t, const float *, float *,
                 int64_t); /* 1 vector */
} cpu_few_shapes[] = {{4, cpu_few_values_4_4, cpu_few_values_4_1},
                      {2, cpu_few_values_2_4, cpu_few_values_2_1},
                      {1, cpu_few_values_1_4, cpu_few_values_1_1}};

/* o = alpha * o + s value. */
static inline void cpu_few_values(const float *s, int64_t rows, const float *const *value,
                                  int32_t n, int64_t d, const float *alpha, float *o) {
    const float one[4] = {1, 1, 1, 1};
    const int32_t chunk = 2 * CPU_CHUNK;
    for (int32_t j = 0; j < n; j += chunk) {
        const int32_t keys = n - j < chunk ? n - j : chunk;
        int64_t r = 0;
        for (int shape = 0; shape < 3; shape++) {
            const struct cpu_few_shape *few = &cpu_few_shapes[shape];
            for (; r + few->rows <= rows; r += few->rows) {
                const float *a = j ? one : alpha + r;
                int64_t i = 0;
                for (; i + 4 * CPU_LANES <= d; i += 4 * CPU_LANES)
                    few->wide(s + r * CPU_KEYS + j, value + j, keys, i, a, o + r * d, d);
                for (; i < d; i += CPU_LANES)
                    few->slim(s + r * CPU_KEYS + j, value + j, keys, i, a, o + r * d, d);
            }
        }
    }
}

#endif
