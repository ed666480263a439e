/*
 * The unit of bf16_pairs.h on the matrix unit of AMX: tiles of 16 x 16 sums over 32 products. Keys are
 * read as they lie, 16 rows at a time, values from vt.
 */
#ifndef TESSERA_CPU_AMX_H
#define TESSERA_CPU_AMX_H

#include "tile/bf16_pairs.h"

/* A barrier, before which all that was written is in memory: compilers do not know that tiles read it. */
#define AMX_MEMORY __asm__ volatile("" ::: "memory")

/* All eight tiles are 16 rows of 64 bytes. Constant: compilers know of 8 bytes only that are read,
 * and may leave out what is written to the others. */
static inline void unit_begin(void) {
    static const _Alignas(64)
        uint8_t config[64] = {[0] = 1,   [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64,
                              [26] = 64, [28] = 64, [30] = 64, [48] = 16, [49] = 16, [50] = 16,
                              [51] = 16, [52] = 16, [53] = 16, [54] = 16, [55] = 16};
    _tile_loadconfig(config);
}

static inline void unit_end(void) {
    _tile_release();
}

/* 16 keys from key[0] on, as rows: in place, or copied to `copy`. */
static inline const char *amx_keys(const struct cpu_head *k, const int32_t *key, int64_t d,
                                   uint16_t *copy, int64_t *stride) {
    const int together = !k->table && pairs_together(key, 16);
    *stride = together ? k->stride : 2 * d;
    if (together)
        return k->data + key[0] * k->stride;
    for (int j = 0; j < 16; j++)
        memcpy(copy + j * d, cpu_key(k, key[j]), (size_t)d * sizeof *copy);
    return (const char *)copy;
}

/* Products of 32 keys with 2 vectors of queries (1: the second of each is left out). */
V_INLINE void amx_scores_step(const uint32_t *qp, int64_t width, int two, const char *const *k,
                              const int64_t *stride, int64_t d, float *st) {
    AMX_MEMORY;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < d; i += 32) {
        const uint32_t *q = qp + i / 2 * width;
        _tile_loadd(4, k[0] + 2 * i, stride[0]);
        _tile_loadd(5, k[1] + 2 * i, stride[1]);
        _tile_loadd(6, q, width * 4);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
        if (two) {
            _tile_loadd(7, q + CPU_LANES, width * 4);
            _tile_dpbf16ps(2, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, st, width * 4);
    _tile_stored(1, st + 16 * width, width * 4);
    if (two) {
        _tile_stored(2, st + CPU_LANES, width * 4);
        _tile_stored(3, st + 16 * width + CPU_LANES, width * 4);
    }
}

/* st of keys j ... j + 31 of n; key has room for CPU_KEYS, and keys past n are set to the last. */
static inline void unit_scores(const uint32_t *xp, uint16_t *copy, int vectors,
                               const struct cpu_head *head, int32_t *key, int32_t j, int32_t n,
                               int64_t d, float *st) {
    const int64_t width = vectors * CPU_LANES;
    int64_t stride[2];
    for (int32_t i = n; i < j + PAIRS_KEYS; i++)
        key[i] = key[n - 1];
    const char *k[2] = {amx_keys(head, key + j, d, copy, &stride[0]),
                        amx_keys(head, key + j + 16, d, copy + 16 * d, &stride[1])};
    for (int v = 0; v < vectors; v += 2)
        amx_scores_step(xp + v * CPU_LANES, width, v + 1 < vectors, k, stride, d,
                        st + v * CPU_LANES);
}

/* Adds outputs of 32 dims from i on for 2 vectors of queries (down, across 0: the second of each is left
 * out). */
V_INLINE void amx_values_step(const struct pairs_batch *batch, int64_t i, const uint32_t *pt,
                              int64_t width, int down, int across, float *ot) {
    const int64_t size = width * 4;
    float *below = down ? ot + 16 * width : ot;
    AMX_MEMORY;
    _tile_loadd(0, ot, size);
    _tile_loadd(1, below, size);
    if (across) {
        _tile_loadd(2, ot + CPU_LANES, size);
        _tile_loadd(3, below + CPU_LANES, size);
    }
    for (int32_t j = 0; j < batch->n; j += PAIRS_KEYS) {
        const uint16_t *vt = batch->vt[j / PAIRS_KEYS] + i * PAIRS_KEYS;
        const uint32_t *p = pt + j / 2 * width;
        _tile_loadd(4, vt, 2 * PAIRS_KEYS);
        _tile_loadd(6, p, size);
        _tile_dpbf16ps(0, 4, 6);
        if (down) {
            _tile_loadd(5, vt + 16 * PAIRS_KEYS, 2 * PAIRS_KEYS);
            _tile_dpbf16ps(1, 5, 6);
        }
        if (across) {
            _tile_loadd(7, p + CPU_LANES, size);
            _tile_dpbf16ps(2, 4, 7);
        }
        if (down && across)
            _tile_dpbf16ps(3, 5, 7);
    }
    if (down)
        _tile_stored(1, below, size);
    if (down && across)
        _tile_stored(3, below + CPU_LANES, size);
    if (across)
        _tile_stored(2, ot + CPU_LANES, size);
    _tile_stored(0, ot, size);
}

/* ot += vt pt. */
static inline void unit_add_values(const uint32_t *pt, const struct pairs_batch *batch, int vectors,
                                   int64_t d, float *ot) {
    const int64_t width = vectors * CPU_LANES;
    for (int64_t i = 0; i < d; i += 32)
        for (int v = 0; v < vectors; v += 2)
            amx_values_step(batch, i, pt + v * CPU_LANES, width, i + 16 < d, v + 1 < vectors,
                            ot + i * width + v * CPU_LANES);
}

#endif
