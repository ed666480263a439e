/*
 * Queries, keys and values of a real model, from the file of examples/data: f16 there, f32 here. What includes it names
 * HEADS, TOKENS and DIM, and f16.
 */
#ifndef EXAMPLES_MINILM_H
#define EXAMPLES_MINILM_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float model[3][HEADS][TOKENS][DIM]; /* q, k and v of the file */

static float wide(f16 x) {
    const int exponent = x >> 10 & 31, digits = x & 1023;
    const float y =
        exponent ? ldexpf((float)(1024 + digits), exponent - 25) : ldexpf((float)digits, -24);
    return x & 0x8000 ? -y : y;
}

/* Rounded to nearest; numbers of the model are within f16's normal range, or 0. */
static f16 narrow(float x) {
    int exponent;
    const float half = frexpf(fabsf(x), &exponent); /* in [1/2, 1) */
    long digits = lrintf(half * 2048) + (long)(exponent + 13) * 1024;
    if (digits < 1024)
        digits = 0;
    return (f16)((x < 0 ? 0x8000 : 0) | digits);
}

/* Tensors of the file: its header ends where their offsets count from. */
static void model_read(const char *path) {
    static const char *const names[] = {"\"q\"", "\"k\"", "\"v\""};
    FILE *file = fopen(path, "rb");
    static tokens stored;
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
            for (int n = 0; n < TOKENS; n++)
                for (int d = 0; d < DIM; d++)
                    model[t][h][n][d] = wide(stored[h][n][d]);
    }
    if (file)
        fclose(file);
    if (!good) {
        fprintf(stderr, "denoise: %s holds no q, k and v of %d x %d x %d\n", path, HEADS, TOKENS,
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
