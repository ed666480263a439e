/*
 * The micro-kernels: what the CPU spends its time in. Queries stand in the lanes, so keys and
 * values are read as scalars, in place, through row pointers. One group of 1 ... CPU_VECTORS
 * vectors of queries at a time; `width` is its lanes:
 *
 *     qt   [d_qk][width]       queries, scaled
 *     st   [CPU_ST_KEYS][width]  scores, then weights
 *     ot   [d_v][width]        outputs
 *
 * No sum runs far: dims and keys are summed a chunk at a time, chunks into the result. They are not
 * inlined, or their accumulators leave the registers, and begin with a line, or how fast their loops
 * are depends on where they come to lie.
 */
#ifndef TESSERA_CPU_MICRO_H
#define TESSERA_CPU_MICRO_H

#include "isa/lanes.h"

#include <stddef.h>

#define CPU_KEYS 256       /* keys of a superblock, at most */
#define CPU_KEYS_SHORT 128 /* in a short list: more of them, for forward/prefetch.h */
#define CPU_ST_KEYS (CPU_KEYS + CPU_STEP_MAX) /* with room for the last step */
#define CPU_CHUNK 16                          /* terms of a running sum */
#define CPU_SPAN 128                          /* dims that chunks are added up over */
#define CPU_DIMS 256                          /* and those sums in f32: two of them */
#define CPU_AHEAD (2 * CPU_CHUNK)             /* keys whose rows are fetched early, at most */
#define CPU_ROWS (CPU_KEYS + CPU_AHEAD)       /* rows of K or V, with room for keys ahead */

/* Adds the products of dim i. */
V_INLINE void cpu_scores_dim(const float *restrict qt, const float *const *k, int64_t i,
                             const int vectors, const int keys, vf (*sum)[CPU_VECTORS]) {
    vf q[CPU_VECTORS];
    V_FOR(v, vectors) {
        q[v] = v_load(qt + (i * vectors + v) * CPU_LANES);
        if (CPU_LANES == 16)
            q[v] = v_hold(q[v]);
    }
    V_FOR(j, keys) {
        vf x = v_set(k[j][i]);
        V_FOR(v, vectors) {
            sum[j][v] = v_fma(q[v], x, sum[j][v]);
        }
    }
}

/* sum = the products of dims i ... end - 1. Without multiply-adds each product has been rounded
 * already; two are added to each other first, which rounds the running sum half as often in as many
 * instructions. */
V_INLINE void cpu_scores_dims(const float *restrict qt, const float *const *k, int64_t i,
                              int64_t end, const int vectors, const int keys,
                              vf (*sum)[CPU_VECTORS]) {
    V_FOR(j, keys) {
        V_FOR(v, vectors) {
            sum[j][v] = (vf){0};
        }
    }
#if !V_FMA
    for (; i + 2 <= end; i += 2) {
        vf q[2 * CPU_VECTORS];
        V_FOR(v, 2 * vectors) {
            q[v] = v_load(qt + (i * vectors + v) * CPU_LANES);
        }
        V_FOR(j, keys) {
            const vf x = v_set(k[j][i]), y = v_set(k[j][i + 1]);
            V_FOR(v, vectors) {
                sum[j][v] += q[v] * x + q[vectors + v] * y;
            }
        }
    }
#else
    for (; i + CPU_UNROLL <= end; i += CPU_UNROLL) {
        V_FOR(u, CPU_UNROLL) {
            cpu_scores_dim(qt, k, i + u, vectors, keys, sum);
        }
    }
#endif
    for (; i < end; i++)
        cpu_scores_dim(qt, k, i, vectors, keys, sum);
}

/* A few queries wait for their keys: the next step's dims i ... of d are fetched meanwhile. AVX2 has
 * little time to spare for it, and does without where rows are short. */
V_INLINE void cpu_scores_fetch(const float *const *key, int64_t i, int64_t d, const int vectors,
                               const int keys) {
    V_FOR(j, keys) {
        if (vectors < 3 && (CPU_LANES == 16 || d > 4 * CPU_CHUNK))
            v_fetch(key[keys + j] + i);
    }
}

/* One step of keys; top = the larger of top and st, lane by lane. */
V_INLINE void cpu_scores_step(const float *restrict qt, const float *const *key, int64_t d,
                              const int vectors, const int keys, float *restrict st, vf *top) {
    const int64_t width = vectors * CPU_LANES;
    const float *k[CPU_STEP_MAX];
    vf sum[CPU_STEP_MAX][CPU_VECTORS], total[CPU_STEP_MAX][CPU_VECTORS];
    V_FOR(j, keys) {
        k[j] = key[j];
    }
    int64_t begin = 0;
    do {
        const int64_t end = min_i64(d, begin + CPU_SPAN);
        int64_t i = begin;
        cpu_scores_fetch(key, i, d, vectors, keys);
        cpu_scores_dims(qt, k, i, min_i64(end, i + CPU_CHUNK), vectors, keys, total);
        while ((i += CPU_CHUNK) < end) {
            cpu_scores_fetch(key, i, d, vectors, keys);
            cpu_scores_dims(qt, k, i, min_i64(end, i + CPU_CHUNK), vectors, keys, sum);
            V_FOR(j, keys) {
                V_FOR(v, vectors) {
                    total[j][v] += sum[j][v];
                }
            }
        }
        V_FOR(j, keys) {
            V_FOR(v, vectors) {
                float *s = st + j * width + v * CPU_LANES;
                if (begin)
                    total[j][v] += v_load(s);
                v_store(s, total[j][v]);
            }
        }
        begin = end;
    } while (begin < d);
    V_FOR(v, vectors) {
        V_FOR(j, keys) {
            top[v] = v_max(total[j][v], top[v]);
        }
    }
}

/* st = the products of dims 0 ... d - 1 for n keys, whole steps. */
V_INLINE void cpu_scores_body(const float *restrict qt, const float *const *key, int32_t n,
                              int64_t d, const int vectors, const int keys, float *restrict st,
                              vf *top) {
    vf most[CPU_VECTORS];
    V_FOR(v, vectors) {
        most[v] = top[v];
    }
    for (int32_t j = 0; j < n; j += keys)
        cpu_scores_step(qt, key + j, d, vectors, keys, st + j * vectors * CPU_LANES, most);
    V_FOR(v, vectors) {
        top[v] = most[v];
    }
}

/* Adds the products of key j, whose values are x; `first`: there is nothing to add them to. */
V_INLINE void cpu_values_key(const float *restrict st, const float *x, int32_t j, const int vectors,
                             const int dims, const int first, vf (*sum)[CPU_VECTORS]) {
    vf p[CPU_VECTORS];
    V_FOR(v, vectors) {
        p[v] = v_load(st + (j * vectors + v) * CPU_LANES);
    }
    V_FOR(i, dims) {
        vf y = v_set(x[i]);
        V_FOR(v, vectors) {
            if (first)
                sum[i][v] = p[v] * y;
            else
                sum[i][v] = v_fma(p[v], y, sum[i][v]);
        }
    }
}

/* Fetches what a chunk's four keys need. */
V_INLINE void cpu_values_fetch(const float *const *ahead, int64_t first, const int dims) {
    V_FOR(u, dims / 4) {
        v_fetch(ahead[u] + first);
    }
}

/* ot[i] = alpha * ot[i] + sum_j st[j] * value[j][i] for n keys, a chunk of them, and dims first ...
 * first + dims - 1; alpha NULL: 1. Meanwhile these dims' share of the next chunk is fetched: a line
 * of as many of its rows as dims are of 16, from ahead[0] on. Everything is added before anything is
 * stored: a store takes from Zen 4's multiply-adds a register that they read. */
V_INLINE void cpu_values_body(const float *restrict st, const float *const *value,
                              const float *const *ahead, int32_t n, int64_t first,
                              const int vectors, const int dims, const vf *alpha,
                              float *restrict ot) {
    const int64_t width = vectors * CPU_LANES;
    vf sum[CPU_DIMS_MAX][CPU_VECTORS];
    cpu_values_fetch(ahead, first, dims);
    cpu_values_key(st, v_keep(value[0] + first), 0, vectors, dims, 1, sum);
    int32_t j = 1;
    for (; j + 4 <= n; j += 4) {
        cpu_values_fetch(ahead += dims / 4, first, dims);
        V_FOR(u, 4) {
            cpu_values_key(st, v_keep(value[j + u] + first), j + u, vectors, dims, 0, sum);
        }
    }
    for (; j < n; j++)
        cpu_values_key(st, v_keep(value[j] + first), j, vectors, dims, 0, sum);
    ot += first * width;
    if (alpha) {
        V_FOR(i, dims) {
            V_FOR(v, vectors) {
                sum[i][v] = v_fma(alpha[v], v_load(ot + i * width + v * CPU_LANES), sum[i][v]);
            }
        }
    } else {
        const float *const o = v_keep(ot); /* or gcc loads for both branches, ahead of them */
        V_FOR(i, dims) {
            V_FOR(v, vectors) {
                sum[i][v] += v_load(o + i * width + v * CPU_LANES);
            }
        }
    }
    V_FOR(i, dims) {
        V_FOR(v, vectors) {
            v_store(ot + i * width + v * CPU_LANES, sum[i][v]);
        }
    }
}

/* st[j] = 2^(st[j] - base), and the sums over n keys. A few queries wait for their values as well: of
 * the first ones a line is fetched for each key. */
V_INLINE void cpu_weigh_body(float *st, int32_t n, const vf *base, const float *const *value,
                             const int vectors, vf *sum) {
    const unsigned before = v_flush_begin();
    vf from[CPU_VECTORS];
    V_FOR(v, vectors) {
        from[v] = base[v]; /* in registers: for all that gcc knows st may be there */
        sum[v] = (vf){0};
    }
    for (int32_t begin = 0; begin < n; begin += CPU_CHUNK) {
        const int32_t end = n - begin < CPU_CHUNK ? n : begin + CPU_CHUNK;
        vf part[CPU_VECTORS];
        V_FOR(v, vectors) {
            part[v] = (vf){0};
        }
        for (int32_t j = begin; j < end; j++) {
            if (vectors < 3)
                v_fetch(value[j / 4] + j % 4 * 16);
            V_FOR(v, vectors) {
                float *s = st + (j * vectors + v) * CPU_LANES;
                vf p = v_exp2_flushed(v_load(s), from[v]);
                v_store(s, p);
                part[v] += p;
            }
        }
        V_FOR(v, vectors) {
            sum[v] += part[v];
        }
    }
    v_flush_end(before);
}

typedef void cpu_scores_fn(const float *restrict qt, const float *const *key, int32_t n, int64_t d,
                           float *restrict st, vf *top);
typedef void cpu_values_fn(const float *restrict st, const float *const *value,
                           const float *const *ahead, int32_t n, int64_t first, const vf *alpha,
                           float *restrict ot);

typedef void cpu_weigh_fn(float *st, int32_t n, const vf *base, const float *const *value, vf *sum);

#define CPU_KERNEL static __attribute__((noinline, aligned(64)))
#define CPU_SCORES(vectors, keys, name)                                                            \
    CPU_KERNEL void cpu_scores_##vectors##_##name(const float *restrict qt,                        \
                                                  const float *const *key, int32_t n, int64_t d,   \
                                                  float *restrict st, vf *top) {                   \
        cpu_scores_body(qt, key, n, d, vectors, keys, st, top);                                    \
    }
#define CPU_VALUES(vectors, dims, name)                                                            \
    CPU_KERNEL void cpu_values_##vectors##_##name(                                                 \
        const float *restrict st, const float *const *value, const float *const *ahead, int32_t n, \
        int64_t first, const vf *alpha, float *restrict ot) {                                      \
        cpu_values_body(st, value, ahead, n, first, vectors, dims, alpha, ot);                     \
    }
#define CPU_WEIGH(vectors)                                                                         \
    CPU_KERNEL void cpu_weigh_##vectors(float *st, int32_t n, const vf *base,                      \
                                        const float *const *value, vf *sum) {                      \
        cpu_weigh_body(st, n, base, value, vectors, sum);                                          \
    }
#define CPU_SHAPE(vectors)                                                                         \
    CPU_SCORES(vectors, CPU_STEP_##vectors, step)                                                  \
    CPU_SCORES(vectors, 4, four)                                                                   \
    CPU_VALUES(vectors, CPU_DIMS_##vectors, step)                                                  \
    CPU_VALUES(vectors, 4, four)                                                                   \
    CPU_VALUES(vectors, 1, one)                                                                    \
    CPU_WEIGH(vectors)
#define CPU_SHAPE_ROW(vectors)                                                                     \
    {                                                                                              \
        {{CPU_STEP_##vectors, cpu_scores_##vectors##_step}, {4, cpu_scores_##vectors##_four}},     \
            cpu_weigh_##vectors, {                                                                 \
            {CPU_DIMS_##vectors, cpu_values_##vectors##_step}, {4, cpu_values_##vectors##_four}, { \
                1, cpu_values_##vectors##_one                                                      \
            }                                                                                      \
        }                                                                                          \
    }

CPU_SHAPE(1)
CPU_SHAPE(2)
#if CPU_VECTORS == 4
CPU_SHAPE(3)
CPU_SHAPE(4)
#endif

/* Shapes of a group of 1, 2, ... vectors. */
static const struct cpu_shape {
    struct cpu_step {
        int32_t keys;
        cpu_scores_fn *run;
    } scores[2]; /* few keys at a time, and four */
    cpu_weigh_fn *weigh;
    struct {
        int32_t dims;
        cpu_values_fn *run;
    } values[3]; /* fewer and fewer dims */
} cpu_shapes[] = {CPU_SHAPE_ROW(1), CPU_SHAPE_ROW(2),
#if CPU_VECTORS == 4
                  CPU_SHAPE_ROW(3), CPU_SHAPE_ROW(4)
#endif
};

/* One step over more than CPU_DIMS dims. */
static inline void cpu_scores_long(const struct cpu_step *step, const float *qt, int64_t width,
                                   const float *const *key, int64_t d, float *st, vf *top) {
    double total[CPU_STEP_MAX * CPU_GROUP] = {0};
    const float *part[2 * CPU_STEP_MAX]; /* parts of this step, and of the next, which is fetched */
    vf ignored[CPU_VECTORS] = {{0}};
    for (int64_t first = 0; first < d; first += CPU_DIMS) {
        for (int32_t j = 0; j < 2 * step->keys; j++)
            part[j] = key[j] + first;
        step->run(qt + first * width, part, step->keys, min_i64(d - first, CPU_DIMS), st, ignored);
        for (int64_t i = 0; i < step->keys * width; i++)
            total[i] += (double)st[i];
    }
    for (int64_t i = 0; i < step->keys * width; i++)
        st[i] = (float)total[i];
    for (int32_t j = 0; j < step->keys; j++)
        for (int64_t v = 0; v < width / CPU_LANES; v++)
            top[v] = v_max(v_load(st + j * width + v * CPU_LANES), top[v]);
}

/* row[n] ... = the last row, for steps and fetches past the end. Rows of K that are handed on end so; of V,
 * rows past the last are only fetched, and may be any. */
static inline void cpu_rows_end(const float **row, int32_t n) {
    for (int32_t j = n; n && j < n + CPU_AHEAD; j++)
        row[j] = row[n - 1];
}

/* Keys of n that steps of `keys` begin with; fours compute the rest. As little as may be is
 * computed past the last key. */
static inline int32_t cpu_scores_first(int32_t n, int32_t keys) {
    int32_t least = INT32_MAX, first = 0;
    for (int32_t fours = 0; fours <= 8; fours += 4) {
        const int32_t some = n > fours ? (n - fours + keys - 1) / keys * keys : 0;
        if (some + fours < least) {
            least = some + fours;
            first = some;
        }
    }
    return first;
}

/* st[j] = dot(qt, key[j]) for n >= 1 keys, and top = the larger of top and these. Writes whole
 * steps, for which st has room. */
static inline void cpu_scores(const float *qt, int vectors, const float *const *key, int32_t n,
                              int64_t d, float *st, vf *top) {
    const struct cpu_shape *shape = &cpu_shapes[vectors - 1];
    const int64_t width = vectors * CPU_LANES;
    const int32_t first = cpu_scores_first(n, shape->scores[0].keys);
    for (int32_t j = 0; j < n;) {
        const struct cpu_step *step = &shape->scores[j >= first];
        const int32_t whole = j < first ? first : (n - j + 3) / 4 * 4;
        const int32_t some = d <= CPU_DIMS ? whole : step->keys;
        if (d <= CPU_DIMS)
            step->run(qt, key + j, some, d, st + j * width, top);
        else
            cpu_scores_long(step, qt, width, key + j, d, st + j * width, top);
        j += some;
    }
}

/* st[j] *= factor for n keys. */
static inline void cpu_multiply(float *st, int vectors, int32_t n, const float *factor) {
    for (int32_t j = 0; j < n; j++)
        for (int v = 0; v < vectors; v++, st += CPU_LANES)
            v_store(st, v_load(st) * v_load(factor + v * CPU_LANES));
}

/* Keys whose outputs are added up before they are folded into a sum with compensation. Rows of few
 * dims are held tighter than others: docs/semantics.md, "Accuracy". */
#define CPU_NEAR 1024 /* at most */
static inline int32_t cpu_near(int64_t d) {
    return d < 4 * CPU_CHUNK ? CPU_KEYS_SHORT : CPU_NEAR;
}

/* ot = alpha * ot + st^T value, for n keys and d dims; alpha NULL: 1. Chunk by chunk, so that
 * weights, values and outputs stay in the nearest cache. */
static inline void cpu_values(const float *st, int vectors, const float *const *value, int32_t n,
                              int64_t d, const vf *alpha, float *ot) {
    const struct cpu_shape *shape = &cpu_shapes[vectors - 1];
    const int32_t chunk = cpu_near(d) < CPU_NEAR ? CPU_CHUNK : 2 * CPU_CHUNK;

    for (int32_t j = 0; j < n; j += chunk) {
        const int32_t keys = n - j < chunk ? n - j : chunk;
        const float *const *now = value + j, *const *ahead = now + keys;
        int64_t i = 0;
        for (int s = 0; s < 3; s++) {
            const int64_t dims = shape->values[s].dims;
            const int64_t last = chunk - chunk / 4 * (dims / 4);        /* share */
            const int64_t past = dims == 6 && (d - i) % 6 == 2 ? 6 : 0; /* 8 dims: twice four */
            for (; i + dims + past <= d; i += dims) {
                const int64_t share = min_i64(i % 16 * chunk / 16, last);
                shape->values[s].run(st + j * vectors * CPU_LANES, now, ahead + share, keys, i,
                                     j ? NULL : alpha, ot);
            }
        }
    }
}

#endif
