/*
 * The matrix unit of AMX in plain C, included before a stem by the compiler's command line:
 * what the level computes is then tested on processors without one. As the unit does it, subnormal
 * inputs and results count as zero; each sum takes its products in order.
 */
#ifndef AMX_EMULATED_H
#define AMX_EMULATED_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) amx_emulated_configure(config)
#define _tile_release() amx_emulated_configure(NULL)
#define _tile_zero(tile) memset(amx_emulated_tile(tile), 0, sizeof(amx_emulated_tiles[0]))
#define _tile_loadd(tile, from, stride) amx_emulated_load(tile, from, stride)
#define _tile_stored(tile, to, stride) amx_emulated_store(tile, to, stride)
#define _tile_dpbf16ps(sums, a, b) amx_emulated_multiply(sums, a, b)

static _Thread_local char amx_emulated_tiles[8][16][64];
static _Thread_local int amx_emulated_configured;

/* Only whole tiles are emulated. */
static inline void amx_emulated_configure(const void *config) {
    const uint8_t *bytes = config;
    amx_emulated_configured = config && bytes[0] == 1;
    for (int tile = 0; config && tile < 8; tile++)
        amx_emulated_configured &= bytes[16 + 2 * tile] == 64 && bytes[48 + tile] == 16;
}

/* NULL, so that a use of tiles that are not configured ends the test as it ends a process. */
static inline char (*amx_emulated_tile(int tile))[64] {
    return amx_emulated_configured ? amx_emulated_tiles[tile] : NULL;
}

static inline void amx_emulated_load(int tile, const void *from, int64_t stride) {
    for (int r = 0; r < 16; r++)
        memcpy(amx_emulated_tile(tile)[r], (const char *)from + r * stride, 64);
}

static inline void amx_emulated_store(int tile, void *to, int64_t stride) {
    for (int r = 0; r < 16; r++)
        memcpy((char *)to + r * stride, amx_emulated_tile(tile)[r], 64);
}

static inline float amx_emulated_element(const char *at) {
    uint16_t half;
    uint32_t bits;
    float x;
    memcpy(&half, at, sizeof half);
    bits = (uint32_t)(half & 0x7f80 ? half : half & 0x8000) << 16;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline void amx_emulated_multiply(int sums, int a, int b) {
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++) {
            char *at = &amx_emulated_tile(sums)[m][4 * n];
            float sum;
            memcpy(&sum, at, sizeof sum);
            for (int k = 0; k < 32; k++) {
                float x = amx_emulated_element(&amx_emulated_tile(a)[m][2 * k]);
                sum += x * amx_emulated_element(&amx_emulated_tile(b)[k / 2][4 * n + k % 2 * 2]);
                sum = fpclassify(sum) == FP_SUBNORMAL ? 0 : sum;
            }
            memcpy(at, &sum, sizeof sum);
        }
}

#endif
