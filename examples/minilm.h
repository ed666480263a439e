/*
 * Queries, keys and values of a real model, from the file of examples/data: f16 there, f32 here. What includes it names
 * HEADS, TEXT (tokens) and DIM, and f16.
 */
#ifndef EXAMPLES_MINILM_H
#define EXAMPLES_MINILM_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float model[3][HEADS][TEXT][DIM]; /* q, k and v of the file */

/* f16's exponents are f32's less 112: digits move to their place, and a product scales them. */
static float wide(f16 x) {
    const uint32_t bits = (uint32_t)(x & 0x7fff) << 13 | (uint32_t)(x & 0x8000) << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y * 0x1p112f;
}

/* Rounded to nearest, ties to even; of numbers within f16's range. */
static f16 narrow(float x) {
    const float scaled = x * 0x1p-112f;
    uint32_t bits;
    memcpy(&bits, &scaled, sizeof bits);
    const uint32_t size = bits & 0x7fffffff;
    return (f16)((size + 0xfff + (size >> 13 & 1)) >> 13 | (bits >> 16 & 0x8000));
}

/* Tensors of the file: its header ends where their offsets count from. */
static void model_read(const char *path) {
    static const char *const names[] = {"\"q\"", "\"k\"", "\"v\""};
    FILE *file = fopen(path, "rb");
    static f16 stored[HEADS][TEXT][DIM];
    uint64_t length = 0;
    char header[4096] = "";
    int good = file && fread(&length, sizeof length, 1, file) == 1 && length < sizeof header &&
               fread(header, 1, (size_t)length, file) == length;
    for (int t = 0; t < 3 && good; t++) {
        const char *at = strstr(header, names[t]);
        at = at ? strstr(at, "data_offsets\":[") : NULL;
        const long begin = at ? strtol(at + strlen("data_offsets\":["), NULL, 10) : -1;
        good = begin >= 0 && fseek(file, (long)(sizeof length + length) + begin, SEEK_SET) == 0 &&
               fread(stored, sizeof stored, 1, file) == 1;
        for (int h = 0; h < HEADS; h++)
            for (int n = 0; n < TEXT; n++)
                for (int d = 0; d < DIM; d++)
                    model[t][h][n][d] = wide(stored[h][n][d]);
    }
    if (file)
        fclose(file);
    if (!good) {
        fprintf(stderr, "denoise: %s holds no q, k and v of %d x %d x %d\n", path, HEADS, TEXT,
                DIM);
        exit(EXIT_FAILURE);
    }
}

/* A number within a range about 0, from a sequence that is the same everywhere. */
static float drawn(float range) {
    static uint32_t state = 1;
    state = state * 1664525 + 1013904223;
    return range * ((float)(state >> 8) * 0x1p-23f - 1);
}

#endif
