/*
 * Generating: several sequences of different lengths in one batch, each with a cache that grows by a
 * token a step. One plan is reserved for the capacity of the caches; a step says today's lengths, fills
 * and runs. Each query sees the first tokens of its sequence and a window. Sequences begin and end at
 * different steps: a length of 0 is an empty place of the batch. To build it:
 *
 *     cc generate.c $(pkg-config --cflags --libs tessera) -lm
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tessera.h>

enum { SEQUENCES = 4, HEADS = 8, HEADS_KV = 2, DIM = 64, CAPACITY = 512, STEPS = 160 };
enum { SINKS = 4, WINDOW = 128 };
#define SPEC "(window(127,0)+global(4))&causal" /* the same keys as a pattern of the host */

/* Prompts that are in the caches already, and how many tokens each sequence generates. */
static const int prompt[SEQUENCES] = {1, 300, 40, 350}, steps[SEQUENCES] = {160, 90, 160, 140};

/* The caches, [sequence][head][token][dim]; NaN past their ends, which nothing reads. */
static float cache_k[SEQUENCES][HEADS_KV][CAPACITY][DIM];
static float cache_v[SEQUENCES][HEADS_KV][CAPACITY][DIM];
static float q[SEQUENCES][HEADS][1][DIM], o[SEQUENCES][HEADS][1][DIM];
static int32_t length[SEQUENCES];

static void require(tess_status status, const tess_error *error) {
    if (status) {
        fprintf(stderr, "%s: %s\n", tess_status_name(status), error->message);
        exit(EXIT_FAILURE);
    }
}

/* What a model's projections would give. */
static void project(float *x, size_t count) {
    static unsigned seed = 1;
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

static void append(int s, int tokens) {
    for (int t = 0; t < tokens; t++, length[s]++)
        for (int h = 0; h < HEADS_KV; h++) {
            project(cache_k[s][h][length[s]], DIM);
            project(cache_v[s][h][length[s]], DIM);
        }
}

static double microseconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* How far the outputs of a sequence are from those of a pattern that is made for this step alone. */
static double difference(int s) {
    tess_error error = tess_error_init();
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    static float expected[HEADS][1][DIM];
    double most = 0;
    const float *got = o[s][0][0], *want = expected[0][0];
    if (length[s] == 0) { /* an empty place: 0 */
        for (int i = 0; i < HEADS * DIM; i++)
            most += got[i] != 0;
        return most;
    }
    tess_tensor tq = tess_tensor_bhnd(q[s], TESS_F32, 1, HEADS, 1, DIM);
    tess_tensor tk = tess_tensor_bhnd(cache_k[s], TESS_F32, 1, HEADS_KV, CAPACITY, DIM);
    tess_tensor tv = tess_tensor_bhnd(cache_v[s], TESS_F32, 1, HEADS_KV, CAPACITY, DIM);
    tess_tensor to = tess_tensor_bhnd(expected, TESS_F32, 1, HEADS, 1, DIM);
    tk.size[2] = tv.size[2] = length[s];
    shape.n_q = 1, shape.n_kv = length[s];
    require(tess_pattern_from_spec(&pattern, SPEC, &shape, &error), &error);
    require(tess_attention(TESS_CPU, &tq, &tk, &tv, pattern, &to, NULL, &error), &error);
    tess_pattern_free(pattern);
    for (int i = 0; i < HEADS * DIM; i++)
        most = fmax(most, fabs((double)got[i] - (double)want[i]));
    return most;
}

int main(void) {
    /* Keys 0 ... SINKS - 1, and the last WINDOW: ends below 0 count back from today's length. */
    static const int32_t ranges[2][2] = {{0, SINKS}, {-1 - WINDOW, -1}};
    tess_error error = tess_error_init();
    tess_device_pattern pattern = tess_device_pattern_init();
    tess_problem problem = tess_problem_init();
    tess_plan *plan;
    pattern.form = TESS_RANGES, pattern.capacity = 2;
    pattern.n_q = 1, pattern.n_kv = CAPACITY, pattern.block_q = 1;
    pattern.indices = ranges[0], pattern.lengths = length;
    problem.batch = SEQUENCES, problem.heads_q = HEADS, problem.heads_kv = HEADS_KV;
    problem.n_q = 1, problem.n_kv = CAPACITY, problem.d_qk = problem.d_v = DIM;
    require(tess_plan_reserve(&plan, &problem, &pattern, NULL, &error), &error);

    const size_t workspace_size = tess_plan_workspace_size(plan);
    const size_t image_size = (tess_plan_image_size(plan) + 255) / 256 * 256;
    void *workspace = aligned_alloc(64, (workspace_size + 63) / 64 * 64);
    void *image = aligned_alloc(256, image_size);
    if (!workspace || !image)
        return EXIT_FAILURE;

    tess_tensor tq = tess_tensor_bhnd(q, TESS_F32, SEQUENCES, HEADS, 1, DIM);
    tess_tensor tk = tess_tensor_bhnd(cache_k, TESS_F32, SEQUENCES, HEADS_KV, CAPACITY, DIM);
    tess_tensor tv = tess_tensor_bhnd(cache_v, TESS_F32, SEQUENCES, HEADS_KV, CAPACITY, DIM);
    tess_tensor to = tess_tensor_bhnd(o, TESS_F32, SEQUENCES, HEADS, 1, DIM);
    tess_arguments arguments = tess_arguments_init();
    arguments.q = &tq, arguments.k = &tk, arguments.v = &tv, arguments.o = &to;
    arguments.workspace = workspace, arguments.workspace_size = workspace_size;
    arguments.image = image, arguments.image_size = image_size;

    memset(cache_k, 0xff, sizeof cache_k);
    memset(cache_v, 0xff, sizeof cache_v);
    for (int s = 0; s < SEQUENCES; s++)
        append(s, prompt[s] - 1);

    double filled = 0, ran = 0, worst = 0;
    long tokens = 0;
    for (int step = 0; step < STEPS; step++) {
        for (int s = 0; s < SEQUENCES; s++) {
            if (step < steps[s])
                append(s, 1);
            else
                length[s] = 0;
            tokens += length[s] > 0;
        }
        project(q[0][0][0], sizeof q / sizeof(float));
        const double begin = microseconds();
        require(tess_plan_fill(plan, &pattern, image, image_size, &error, NULL), &error);
        const double middle = microseconds();
        require(tess_run(plan, &arguments, &error, NULL), &error);
        filled += middle - begin, ran += microseconds() - middle;
        for (int s = 0; s < SEQUENCES; s++)
            worst = fmax(worst, difference(s));
    }
    printf("%ld tokens of %d sequences in %d steps: fill %.1f us, run %.1f us a step\n", tokens,
           SEQUENCES, STEPS, filled / STEPS, ran / STEPS);
    printf("outputs differ from patterns made for each step by %.2g at most\n", worst);
    tess_plan_free(plan);
    free(workspace);
    free(image);
    return worst < 1e-5 ? EXIT_SUCCESS : EXIT_FAILURE;
}
