/*
 * Steps of a superblock for one group of a tile's lanes: its keys, its scores, which of them count,
 * its maxima, its outputs.
 */
#ifndef TESSERA_CPU_GROUP_H
#define TESSERA_CPU_GROUP_H

#include "forward/state.h"
#include "tile/tile.h"

/* Replaces the scores of lanes that do not list the key, whatever they are, by -Inf; bit 0 of a mask
 * is the group's first lane. */
static inline void st_mask(float *st, int vectors, int32_t n, const uint64_t *mask) {
    const vf none = v_set(-INFINITY);
    for (int32_t j = 0; j < n; j++)
        for (int v = 0; v < vectors; v++, st += CPU_LANES)
            v_store(st, v_pick((uint32_t)(mask[j] >> (v * CPU_LANES)), v_load(st), none));
}

/* Maxima of `vectors` vectors of keys that are `step` floats apart. */
V_INLINE void st_max_body(const float *st, const int vectors, int64_t step, int32_t n, vf *top) {
    vf even[CPU_VECTORS], odd[CPU_VECTORS]; /* two, or each key waits for the one before */
    V_FOR(v, vectors) {
        even[v] = odd[v] = top[v];
    }
    for (int32_t j = 0; j + 2 <= n; j += 2)
        V_FOR(v, vectors) {
            even[v] = v_max(v_load(st + j * step + v * CPU_LANES), even[v]);
            odd[v] = v_max(v_load(st + (j + 1) * step + v * CPU_LANES), odd[v]);
        }
    V_FOR(v, vectors) {
        if (n % 2)
            even[v] = v_max(v_load(st + (n - 1) * step + v * CPU_LANES), even[v]);
        top[v] = v_max(odd[v], even[v]);
    }
}

static inline void st_max(const float *st, int vectors, int32_t n, vf *top) {
    if (vectors == CPU_VECTORS) {
        st_max_body(st, CPU_VECTORS, CPU_GROUP, n, top);
        return;
    }
    for (int v = 0; v < vectors; v++)
        st_max_body(st + v * CPU_LANES, 1, vectors * CPU_LANES, n, top + v);
}

/* The keys that some lane of the group at `lane` lists, with the group's own masks and their
 * numbers in the superblock; answers how many. */
static inline int32_t group_keys(const struct cpu_keys *keys, const float **k, const float **v,
                                 int64_t lane, const float **group_k, const float **group_v,
                                 uint64_t *mask, int32_t *number) {
    const uint64_t lanes = UINT64_MAX >> (64 - CPU_GROUP);
    int32_t n = 0;
    for (int32_t j = 0; j < keys->n; j++) {
        mask[n] = keys->mask[j] >> lane & lanes;
        group_k[n] = k[j];
        group_v[n] = v[j];
        number[n] = j;
        n += mask[n] != 0;
    }
    cpu_rows_end(group_k, n);
    cpu_rows_end(group_v, n);
    return n;
}

/* Takes new maxima of a group's lanes: answers what is subtracted from scores now, and what sums so
 * far are multiplied by. */
static inline void lanes_raise(float *m, int vectors, const vf *top, vf *base, vf *alpha) {
    for (int v = 0; v < vectors; v++) {
        base[v] = base_of(top[v]);
        alpha[v] = v_exp2(v_load(m + v * CPU_LANES) - base[v]);
        v_store(m + v * CPU_LANES, top[v]);
    }
}

/* cpu_scores and cpu_values of rows of any type: 16 bits are converted a part at a time, into the
 * same few rows of a buffer, which stay in the nearest cache. */
static inline void rows_scores(const float *qt, int vectors, const float *const *key,
                               tess_type type, int32_t n, int64_t d, float *buffer, float *st,
                               vf *top) {
    const float *row[2 * CPU_AHEAD];
    const int32_t keys = cpu_shapes[vectors - 1].scores[0].keys, most = CPU_AHEAD / keys * keys;
    if (type == TESS_F32) {
        cpu_scores(qt, vectors, key, n, d, st, top);
        return;
    }
    for (int32_t j = 0; j < n; j += most) {
        const int32_t part = n - j < most ? n - j : most;
        cpu_convert(row, key + j, type, part, d, buffer);
        cpu_scores(qt, vectors, row, part, d, st + j * vectors * CPU_LANES, top);
    }
}

static inline void rows_values(const float *st, int vectors, const float *const *value,
                               tess_type type, int32_t n, int64_t d, float *buffer, const vf *alpha,
                               float *ot) {
    const float *row[2 * CPU_AHEAD];
    if (type == TESS_F32) {
        cpu_values(st, vectors, value, n, d, alpha, ot);
        return;
    }
    for (int32_t j = 0; j < n; j += CPU_AHEAD) {
        const int32_t part = n - j < CPU_AHEAD ? n - j : CPU_AHEAD;
        cpu_convert(row, value + j, type, part, d, buffer);
        cpu_values(st + j * vectors * CPU_LANES, vectors, row, part, d, j ? NULL : alpha, ot);
    }
}

#endif
