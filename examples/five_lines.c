/*
 * Sparse attention in five lines: two heads over 256 tokens, where each query sees the 64 tokens on
 * either side of it and the first 8, which in turn see everything. To build it:
 *
 *     cc five_lines.c $(pkg-config --cflags --libs tessera)
 */
#include <stdio.h>
#include <stdlib.h>

#include <tessera.h>

enum { BATCH = 1, HEADS = 2, N = 256, DIM = 32, COUNT = BATCH * HEADS * N * DIM };

/* Numbers between -1 and 1 that stand for the output of a projection. */
static void fill(float *x, unsigned seed) {
    for (int i = 0; i < COUNT; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

int main(void) {
    static float q[COUNT], k[COUNT], v[COUNT], o[COUNT];
    fill(q, 1);
    fill(k, 2);
    fill(v, 3);
    for (int i = 0; i < COUNT; i += DIM)
        v[i] = 1.0f; /* the first feature of every value: for the check below */

    tess_tensor tq = tess_tensor_bhnd(q, TESS_F32, BATCH, HEADS, N, DIM);
    tess_tensor tk = tess_tensor_bhnd(k, TESS_F32, BATCH, HEADS, N, DIM);
    tess_tensor tv = tess_tensor_bhnd(v, TESS_F32, BATCH, HEADS, N, DIM);
    tess_tensor to = tess_tensor_bhnd(o, TESS_F32, BATCH, HEADS, N, DIM);
    tess_error error = tess_error_init();

    /* The five lines. */
    tess_pattern *pattern;
    tess_pattern_shape shape = tess_pattern_shape_init();
    shape.n_q = N;
    tess_status status =
        tess_pattern_from_spec(&pattern, "window(64,64)+global(8)", &shape, &error);
    if (!status)
        status = tess_attention(TESS_CPU, &tq, &tk, &tv, pattern, &to, NULL, &error);

    tess_pattern_free(pattern);
    if (status) {
        fprintf(stderr, "%s: %s\n", tess_status_name(status), error.message);
        return EXIT_FAILURE;
    }
    printf("tessera %s: o[0] = %.6f %.6f %.6f ...\n", tess_version(), o[0], o[1], o[2]);

    /* Every output is an average of values, so where all values are 1 the outputs are 1. */
    int right = 0;
    for (int i = 0; i < COUNT; i += DIM)
        right += o[i] > 1.0f - 1e-5f && o[i] < 1.0f + 1e-5f;
    printf("weights sum to 1 in %d of %d rows\n", right, COUNT / DIM);
    return right == COUNT / DIM ? EXIT_SUCCESS : EXIT_FAILURE;
}
