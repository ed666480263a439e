/*
 * Micro-kernels for few queries, whose rows would leave most lanes empty: dims stand in the lanes. A set
 * is `rows` queries (1, 2 or 4) that list the same n keys. A vector of products has CPU_LANES / rows dims
 * of each query, so that sums have few lanes to be added up:
 *
 *     q   [d_qk / dims][rows][dims]      queries, scaled; dims = CPU_LANES / rows
 *     s   [keys / 4][rows][4]            scores, then weights
 *     o   [rows][d_v]                    outputs
 *
 * Keys and values are read whole, in place, by the numbers of their rows.
 */
#ifndef TESSERA_CPU_FEW_H
#define TESSERA_CPU_FEW_H

#include "forward/state.h"
#include "tile/tile.h"

#define CPU_FEW_SET (CPU_LANES / 4) /* rows of the largest set */
#define CPU_FEW_STEP 16 /* keys of a step of scores: s and lists have room for whole ones */
#define CPU_FEW_HALF (CPU_FEW_STEP / 2)
#define CPU_FEW_AHEAD 16 /* keys whose rows a set of 4 fetches ahead: lists are as much longer */

/* Rows of a tensor as f32. */
struct cpu_few_rows {
    const float *data;
    int64_t stride; /* floats */
};

/* A row that is met soon, for sets of 4: fewer rows have no time to spare for it. */
V_INLINE void cpu_few_fetch(const float *row, const int floats, const int rows) {
    for (int i = 0; rows == 4 && i < floats; i += 16)
        __builtin_prefetch(row + i);
}

/* A set's queries side by side, `dims` of each. */
V_INLINE void cpu_few_queries_body(const float *q, int64_t d, const int rows, const int dims,
                                   float *out) {
    for (int64_t i = 0; i < d; i += dims)
        for (int r = 0; r < rows; r++, out += dims)
            memcpy(out, q + r * d + i, (size_t)dims * sizeof *q);
}

/* s = the scores of a set and n keys, whole steps, over dims first ... first + dims - 1; added to s
 * where first is not 0. */
V_INLINE void cpu_few_scores_body(const float *q, const struct cpu_few_rows *keys,
                                  const int32_t *list, int32_t n, int64_t first, const int rows,
                                  const int dims, float *s) {
    vf x[16];
    V_FOR(i, dims * rows / CPU_LANES) {
        x[i] = v_load(q + first * rows + i * CPU_LANES);
    }
    for (int32_t j = 0; j < n; j += CPU_FEW_STEP, s += CPU_FEW_STEP * rows) {
        vf fours[CPU_FEW_STEP / 4];
        V_FOR(half, 2) {
            const float *k[CPU_FEW_HALF];
            vf sum[CPU_FEW_HALF];
            V_FOR(u, CPU_FEW_HALF) {
                const int32_t *key = list + j + half * CPU_FEW_HALF + u;
                k[u] = keys->data + key[0] * keys->stride + first;
                cpu_few_fetch(keys->data + key[CPU_FEW_AHEAD] * keys->stride + first, dims, rows);
                sum[u] = (vf){0};
            }
            V_FOR(i, dims * rows / CPU_LANES) {
                V_FOR(u, CPU_FEW_HALF) {
                    vf y = v_load_copies(k[u] + i * (CPU_LANES / rows), rows);
                    sum[u] = v_fma(y, x[i], sum[u]);
                }
            }
            V_FOR(u, CPU_FEW_HALF / 4) {
                fours[half * (CPU_FEW_HALF / 4) + u] = v_sum_fours(sum + 4 * u);
            }
        }
        int vectors = CPU_FEW_STEP / 4;
        for (int fold = CPU_FEW_SET; fold > rows; fold /= 2) {
            vectors /= 2;
            V_FOR(i, vectors) {
                fours[i] = v_sum_pairs(fours[2 * i], fours[2 * i + 1]);
            }
        }
        V_FOR(i, vectors) {
            if (first)
                fours[i] += v_load(s + i * CPU_LANES);
            v_store(s + i * CPU_LANES, fours[i]);
        }
    }
}

#if CPU_FEW_SET >= 4
/* Scores of four rows whose queries stand CPU_LANES dims of each side by side: keys are loaded
 * whole, once for all rows, and sums have more lanes to be added up. That pays where shuffles and
 * additions leave multiply-adds their ports, but copies of a quarter do not. */
V_INLINE void cpu_few_whole_body(const float *q, const struct cpu_few_rows *keys,
                                 const int32_t *list, int32_t n, int64_t first, const int dims,
                                 float *s) {
    q += first * 4;
    for (int32_t j = 0; j < cpu_round_up(n, CPU_FEW_STEP); j += 4, s += CPU_LANES) {
        const float *k[4];
        vf sum[4][4], fours[4];
        V_FOR(u, 4) {
            k[u] = keys->data + list[j + u] * keys->stride + first;
            cpu_few_fetch(keys->data + list[j + u + CPU_FEW_AHEAD] * keys->stride + first, dims, 4);
            V_FOR(r, 4) {
                sum[r][u] = (vf){0};
            }
        }
        V_FOR(i, dims / CPU_LANES) {
            vf y[4];
            V_FOR(u, 4) {
                y[u] = v_hold(v_load_any(k[u] + i * CPU_LANES));
            }
            V_FOR(r, 4) {
                const vf x = v_hold(v_load(q + (i * 4 + r) * CPU_LANES));
                V_FOR(u, 4) {
                    sum[r][u] = v_fma(y[u], x, sum[r][u]);
                }
            }
        }
        V_FOR(r, 4) {
            fours[r] = v_sum_fours(sum[r]);
        }
        vf out = v_sum_pairs(v_sum_pairs(fours[0], fours[1]), v_sum_pairs(fours[2], fours[3]));
        if (first)
            out += v_load(s);
        v_store(s, out);
    }
}
#endif

/* A number of each row, in the lanes of its scores. */
V_INLINE vf cpu_few_spread(const float *x, const int rows) {
    vf out = v_set(x[0]);
    V_FOR(r, rows - 1) {
        const uint32_t four = 0xf0u << (4 * r); /* and every 4 * rows lanes on */
        out = v_pick(rows == 4 ? four : four | four << 8, v_set(x[r + 1]), out);
    }
    return out;
}

V_INLINE vf cpu_few_top(vf x, const int rows) {
    x = v_max(v_swap(x, 1), x);
    x = v_max(v_swap(x, 2), x);
    for (int far = 4 * rows; far < CPU_LANES; far *= 2)
        x = v_max(v_swap(x, far), x);
    return x;
}

V_INLINE vf cpu_few_sum(vf x, const int rows) {
    x += v_swap(x, 1);
    x += v_swap(x, 2);
    for (int far = 4 * rows; far < CPU_LANES; far *= 2)
        x += v_swap(x, far);
    return x;
}

/* Scores of n keys to weights, 0 in the rest of the last step; alpha = what outputs so far are
 * multiplied by. Sums are of at most CPU_CHUNK terms a lane, and of those. */
V_INLINE void cpu_few_weigh_body(float *s, int32_t n, const int rows, const float *factor, float *m,
                                 float *l, float *alpha) {
    const int64_t size = cpu_round_up(n, CPU_FEW_STEP) * rows, chunk = CPU_CHUNK * CPU_LANES;
    const int64_t whole =
        n / CPU_FEW_STEP * CPU_FEW_STEP * rows; /* terms of steps without an end */
    const vf none = v_set(-INFINITY), by = cpu_few_spread(factor, rows);
    const vf before = cpu_few_spread(m, rows);
    vf top = before, sum = {0};
    vi key;
    V_FOR(i, CPU_LANES) {
        key[i] = i / (4 * rows) * 4 + i % 4;
    }
    for (int64_t i = whole; i < size; i += CPU_LANES) {
        const vi listed = (vi)(key < (vi){0} + (n - (int32_t)(i / rows)));
        v_store(s + i, v_select(listed, v_load(s + i), none));
    }
    for (int64_t i = 0; i < size; i += CPU_LANES)
        top = v_max(v_load(s + i) * by, top);
    top = cpu_few_top(top, rows);
    const vf base = base_of(top), change = v_exp2(before - base);
    for (int64_t begin = 0; begin < size; begin += chunk) {
        const int64_t end = size - begin < chunk ? size : begin + chunk;
        vf part = {0};
        for (int64_t i = begin; i < end; i += CPU_LANES) {
            vf p = v_exp2(v_load(s + i) * by - base);
            v_store(s + i, p);
            part += p;
        }
        sum += part;
    }
    sum = cpu_few_sum(sum, rows);
    V_FOR(r, rows) {
        m[r] = top[4 * r];
        alpha[r] = change[4 * r];
        l[r] = change[4 * r] * l[r] + sum[4 * r];
    }
}

/* o = alpha * o + s value for n keys, a multiple of 4, and dims first ... first + vectors *
 * CPU_LANES - 1; `ways` keys at a time have sums of their own. */
V_INLINE void cpu_few_values_body(const float *s, const struct cpu_few_rows *values,
                                  const int32_t *list, int32_t n, int64_t first, const int rows,
                                  const int vectors, const int ways, const float *alpha, float *o,
                                  int64_t d) {
    vf sum[4][4][4];
    V_FOR(w, ways) {
        V_FOR(r, rows) {
            V_FOR(c, vectors) {
                sum[w][r][c] = (vf){0};
            }
        }
    }
    for (int32_t j = 0; j < n; j += 4) {
        V_FOR(w, 4) {
            const int32_t *key = list + j + w;
            const float *x = v_keep(values->data + key[0] * values->stride + first);
            cpu_few_fetch(values->data + key[CPU_FEW_AHEAD] * values->stride + first,
                          vectors * CPU_LANES, rows);
            V_FOR(c, vectors) {
                vf y = v_load_any(x + c * CPU_LANES);
                if (rows > 1)
                    y = v_hold(y);
                V_FOR(r, rows) {
                    vf *to = &sum[w % ways][r][c];
                    *to = v_fma(v_set(s[j * rows + 4 * r + w]), y, *to);
                }
            }
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

typedef void cpu_few_queries_fn(const float *q, int64_t d, float *out);
typedef void cpu_few_scores_fn(const float *q, const struct cpu_few_rows *keys, const int32_t *list,
                               int32_t n, int64_t first, float *s);
typedef void cpu_few_weigh_fn(float *s, int32_t n, const float *factor, float *m, float *l,
                              float *alpha);
typedef void cpu_few_values_fn(const float *s, const struct cpu_few_rows *values,
                               const int32_t *list, int32_t n, int64_t first, const float *alpha,
                               float *o, int64_t d);

#define CPU_FEW_VALUES(rows, vectors, ways, name)                                                  \
    static __attribute__((noinline)) void cpu_few_values_##rows##_##name(                          \
        const float *s, const struct cpu_few_rows *values, const int32_t *list, int32_t n,         \
        int64_t first, const float *alpha, float *o, int64_t d) {                                  \
        cpu_few_values_body(s, values, list, n, first, rows, vectors, ways, alpha, o, d);          \
    }
#define CPU_FEW_SCORES(rows, dims, name)                                                           \
    static __attribute__((noinline)) void cpu_few_scores_##rows##_##name(                          \
        const float *q, const struct cpu_few_rows *keys, const int32_t *list, int32_t n,           \
        int64_t first, float *s) {                                                                 \
        cpu_few_scores_body(q, keys, list, n, first, rows, dims, s);                               \
    }
#define CPU_FEW_WHOLE_SCORES(dims, name)                                                           \
    static __attribute__((noinline)) void cpu_few_scores_whole_##name(                             \
        const float *q, const struct cpu_few_rows *keys, const int32_t *list, int32_t n,           \
        int64_t first, float *s) {                                                                 \
        cpu_few_whole_body(q, keys, list, n, first, dims, s);                                      \
    }
#define CPU_FEW_SHAPE(rows)                                                                        \
    static void cpu_few_queries_##rows(const float *q, int64_t d, float *out) {                    \
        cpu_few_queries_body(q, d, rows, CPU_LANES / rows, out);                                   \
    }                                                                                              \
    CPU_FEW_SCORES(rows, CPU_FEW_LEG, leg)                                                         \
    CPU_FEW_SCORES(rows, CPU_LANES, rest)                                                          \
    static __attribute__((noinline)) void cpu_few_weigh_##rows(                                    \
        float *s, int32_t n, const float *factor, float *m, float *l, float *alpha) {              \
        cpu_few_weigh_body(s, n, rows, factor, m, l, alpha);                                       \
    }                                                                                              \
    CPU_FEW_VALUES(rows, CPU_FEW_WIDE, CPU_FEW_WAYS_##rows, wide)                                  \
    CPU_FEW_VALUES(rows, 1, CPU_FEW_WAYS_##rows, slim)
#define CPU_FEW_ROW(rows)                                                                          \
    {                                                                                              \
        rows, CPU_FEW_WAYS_##rows, cpu_few_queries_##rows, cpu_few_scores_##rows##_leg,            \
            cpu_few_scores_##rows##_rest, cpu_few_weigh_##rows, cpu_few_values_##rows##_wide,      \
            cpu_few_values_##rows##_slim                                                           \
    }

#if CPU_FEW_SET >= 4
CPU_FEW_SHAPE(4)
CPU_FEW_WHOLE_SCORES(CPU_FEW_LEG, leg)
CPU_FEW_WHOLE_SCORES(CPU_LANES, rest)
static void cpu_few_queries_whole(const float *q, int64_t d, float *out) {
    cpu_few_queries_body(q, d, 4, CPU_LANES, out);
}
#endif
#if CPU_FEW_SET >= 2
CPU_FEW_SHAPE(2)
#endif
CPU_FEW_SHAPE(1)

/* Largest sets first; of four, the way that Zen 4 takes. */
static const struct cpu_few_shape {
    int32_t rows, ways;
    cpu_few_queries_fn *queries;
    cpu_few_scores_fn *leg, *rest; /* CPU_FEW_LEG dims, and CPU_LANES */
    cpu_few_weigh_fn *weigh;
    cpu_few_values_fn *wide, *slim; /* CPU_FEW_WIDE vectors of dims, and one */
} cpu_few_shapes[] = {
#if CPU_FEW_SET >= 4
    {4, CPU_FEW_WAYS_4, cpu_few_queries_whole, cpu_few_scores_whole_leg, cpu_few_scores_whole_rest,
     cpu_few_weigh_4, cpu_few_values_4_wide, cpu_few_values_4_slim},
    CPU_FEW_ROW(4),
#endif
#if CPU_FEW_SET >= 2
    CPU_FEW_ROW(2),
#endif
    CPU_FEW_ROW(1),
};

/* The first that this machine takes. */
static inline const struct cpu_few_shape *cpu_few_begin(void) {
#if CPU_FEW_SET >= 4
    return cpu_few_shapes + !__builtin_cpu_is("amdfam19h");
#else
    return cpu_few_shapes;
#endif
}

/* s = the scores of n keys and whole steps: the list is filled up with its last key, CPU_FEW_STEP +
 * CPU_FEW_AHEAD of them at most. */
static inline void cpu_few_scores(const struct cpu_few_shape *shape, const float *q,
                                  const struct cpu_few_rows *keys, int32_t *list, int32_t n,
                                  int64_t d, float *s) {
    int64_t i = 0;
    for (int32_t j = n; j < cpu_round_up(n, CPU_FEW_STEP) + CPU_FEW_AHEAD; j++)
        list[j] = list[n - 1];
    for (; i + CPU_FEW_LEG <= d; i += CPU_FEW_LEG)
        shape->leg(q, keys, list, n, i, s);
    for (; i < d; i += CPU_LANES)
        shape->rest(q, keys, list, n, i, s);
}

/* o = alpha * o + s value for n keys and whole steps, a chunk of them at a time. */
static inline void cpu_few_values(const struct cpu_few_shape *shape, const float *s,
                                  const struct cpu_few_rows *values, const int32_t *list, int32_t n,
                                  int64_t d, const float *alpha, float *o) {
    const float one[4] = {1, 1, 1, 1};
    const int32_t chunk = 2 * CPU_CHUNK * shape->ways;
    for (int32_t j = 0; j < n; j += chunk) {
        const int32_t keys = n - j < chunk ? (int32_t)cpu_round_up(n - j, 4) : chunk;
        int64_t i = 0;
        for (; i + CPU_FEW_WIDE * CPU_LANES <= d; i += CPU_FEW_WIDE * CPU_LANES)
            shape->wide(s + j * shape->rows, values, list + j, keys, i, j ? one : alpha, o, d);
        for (; i < d; i += CPU_LANES)
            shape->slim(s + j * shape->rows, values, list + j, keys, i, j ? one : alpha, o, d);
    }
}

#endif
