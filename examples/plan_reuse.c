/*
 * Plan once, run many times: the six layers of a small model share one pattern, so they share one
 * plan and one workspace. Planning and memory are paid for once, a run allocates nothing. To build
 * it:
 *
 *     cc plan_reuse.c $(pkg-config --cflags --libs tessera)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tessera.h>

enum { LAYERS = 6, HEADS = 4, N = 2048, DIM = 64, COUNT = HEADS * N * DIM };

static void require(tess_status status, const tess_error *error) {
    if (status) {
        fprintf(stderr, "%s: %s\n", tess_status_name(status), error->message);
        exit(EXIT_FAILURE);
    }
}

static void *allocate(size_t size) {
    void *p = aligned_alloc(64, (size / 64 + 1) * 64);
    if (!p) {
        fprintf(stderr, "out of memory\n");
        exit(EXIT_FAILURE);
    }
    return p;
}

static double milliseconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Stands for a layer's projections: numbers between -1 and 1. */
static void project(float *x, unsigned seed) {
    for (int i = 0; i < COUNT; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

int main(void) {
    tess_error error = tess_error_init();
    float *x[4]; /* q, k, v, o */
    tess_tensor t[4];
    for (int i = 0; i < 4; i++) {
        x[i] = allocate(sizeof(float) * COUNT);
        t[i] = tess_tensor_bhnd(x[i], TESS_F32, 1, HEADS, N, DIM);
    }
    double begin = milliseconds();
    tess_pattern *pattern;
    tess_pattern_shape shape = tess_pattern_shape_init();
    shape.n_q = N;
    require(tess_pattern_from_spec(&pattern, "(window(256,0)+global(16))&causal", &shape, &error),
            &error);
    tess_problem problem = tess_problem_init();
    require(tess_problem_from_tensors(&problem, &t[0], &t[1], &t[2], &t[3], &error), &error);
    tess_plan *plan;
    require(tess_plan_create(&plan, &problem, pattern, NULL, &error), &error);
    tess_pattern_free(pattern); /* the plan has what it needs */
    tess_arguments arguments = tess_arguments_init();
    arguments.q = &t[0], arguments.k = &t[1], arguments.v = &t[2], arguments.o = &t[3];
    arguments.workspace_size = tess_plan_workspace_size(plan);
    arguments.workspace = allocate(arguments.workspace_size);
    printf("pattern and plan: %.3f ms; workspace: %zu bytes; kernel: %s\n", milliseconds() - begin,
           arguments.workspace_size, tess_plan_kernel(plan, TESS_STAGE_ATTENTION));

    float *first = allocate(sizeof(float) * COUNT); /* layer 0's output */
    for (int layer = 0; layer <= LAYERS; layer++) { /* one more: layer 0 again */
        for (int i = 0; i < 3; i++)
            project(x[i], (unsigned)(layer % LAYERS * 3 + i));
        begin = milliseconds();
        require(tess_run(plan, &arguments, &error, NULL), &error);
        printf("layer %d: %.3f ms\n", layer % LAYERS, milliseconds() - begin);
        if (layer == 0)
            memcpy(first, x[3], sizeof(float) * COUNT);
    }

    int same = memcmp(first, x[3], sizeof(float) * COUNT) == 0;
    printf("layer 0 the second time: %s\n", same ? "the same bits" : "DIFFERENT BITS");
    tess_plan_free(plan);
    free(arguments.workspace);
    free(first);
    for (int i = 0; i < 4; i++)
        free(x[i]);
    return same ? EXIT_SUCCESS : EXIT_FAILURE;
}
