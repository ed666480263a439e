/*
 * Generating: several sequences of different lengths in one batch, each with a cache that grows by a
 * token a step. One plan is reserved for the capacity of the caches; a step says today's lengths, fills
 * and runs: no pattern and no plan is made for a token. Each query sees the first tokens of its sequence
 * and a window. Sequences begin and end at different steps: a length of 0 is an empty place of the batch.
 * On CUDA one captured graph of fill and run serves all steps. To build it:
 *
 *     cc generate.c $(pkg-config --cflags --libs tessera) -lm
 *     cc -DEXAMPLE_CUDA generate.c $(pkg-config --cflags --libs tessera) -lm -lcudart
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "either.h"

enum { SEQUENCES = 4, HEADS = 8, HEADS_KV = 2, DIM = 64, CAPACITY = 512, STEPS = CAPACITY };
enum { SINKS = 4, WINDOW = 128 };
#define SPEC "(window(127,0)+global(4))&causal" /* the window's keys as a pattern of the host */

/* Prompts, their last token being the first step's, and how many tokens each sequence generates: the first
 * grows from one token to the capacity. */
static const int prompt[SEQUENCES] = {1, 300, 40, 350}, steps[SEQUENCES] = {STEPS, 90, 160, 140};

/* In the memory of the plan's target; here the host sees it too. */
typedef uint16_t bf16;
static bf16 (
    *cache_k)[HEADS_KV][CAPACITY][DIM]; /* [sequence]; NaN past their ends, which nothing reads */
static bf16 (*cache_v)[HEADS_KV][CAPACITY][DIM];
static bf16 (*q)[HEADS][1][DIM], (*o)[HEADS][1][DIM];
static int32_t *length;

/* ---- a step ---- */

struct token {
    const tess_plan *plan;
    const tess_device_pattern *pattern;
    const tess_arguments *arguments;
    void *image;
};

static void give(const void *context, tess_stream stream) {
    const struct token *t = context;
    tess_error error = tess_error_init();
    require(tess_plan_fill_run(t->plan, t->pattern, t->image, tess_plan_image_size(t->plan), NULL,
                               t->arguments, &error, stream),
            &error);
}

/* A list is refused where the plan is strict alone: whether the fill took it as it was meant is read from its report. */
static void check_fill(const struct token *t) {
    tess_error error = tess_error_init();
    tess_fill_report report = tess_fill_report_init();
    require(tess_plan_report(t->plan, t->image, &report, &error), &error);
    if (report.first_fault) {
        fprintf(stderr, "lists: %s in batch %lld, row %lld\n",
                tess_list_fault_name(report.first_fault), (long long)report.batch,
                (long long)report.row);
        exit(EXIT_FAILURE);
    }
}

/* ---- a model's part ---- */

static float wide(bf16 x) {
    const uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/* Tensors that a model's projections would give. */
static void project(bf16 *x, size_t count) {
    static unsigned seed = 1;
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        const float y = (float)(seed >> 8) / 8388608.0f - 1.0f;
        uint32_t bits;
        memcpy(&bits, &y, sizeof bits);
        x[i] = (bf16)(bits >> 16);
    }
}

static void append(int s, int tokens) {
    for (int t = 0; t < tokens; t++, length[s]++)
        for (int h = 0; h < HEADS_KV; h++) {
            project(cache_k[s][h][length[s]], DIM);
            project(cache_v[s][h][length[s]], DIM);
        }
}

/* How far the outputs of a sequence are from those of a pattern that is made for this step alone. */
static double difference(int s) {
    tess_error error = tess_error_init();
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    static bf16 expected[HEADS][1][DIM];
    double most = 0;
    memset(expected, 0, sizeof expected); /* zeros, of an empty place */
    if (length[s] > 0) {
        tess_tensor tq = tess_tensor_bhnd(q[s], TESS_BF16, 1, HEADS, 1, DIM);
        tess_tensor tk = tess_tensor_bhnd(cache_k[s], TESS_BF16, 1, HEADS_KV, CAPACITY, DIM);
        tess_tensor tv = tess_tensor_bhnd(cache_v[s], TESS_BF16, 1, HEADS_KV, CAPACITY, DIM);
        tess_tensor to = tess_tensor_bhnd(expected, TESS_BF16, 1, HEADS, 1, DIM);
        tk.size[2] = tv.size[2] = length[s];
        shape.n_q = 1, shape.n_kv = length[s];
        require(tess_pattern_from_spec(&pattern, SPEC, &shape, &error), &error);
        require(tess_attention(TESS_CPU, &tq, &tk, &tv, pattern, &to, NULL, &error), &error);
        tess_pattern_free(pattern);
    }
    for (int h = 0; h < HEADS; h++)
        for (int d = 0; d < DIM; d++)
            most = fmax(most, fabs((double)wide(o[s][h][0][d]) - (double)wide(expected[h][0][d])));
    return most;
}

int main(void) {
    /* Keys 0 ... SINKS - 1, and the last WINDOW: ends below 0 count back from today's length. */
    static const int32_t seen[2][2] = {{0, SINKS}, {-1 - WINDOW, -1}};
    tess_error error = tess_error_init();
    tess_device_pattern pattern = tess_device_pattern_init();
    tess_problem problem = tess_problem_init();
    tess_target target = tess_target_init();
    tess_plan *plan;
    if (tess_device_count(backend) < 1) {
        printf("no device\n");
        return 77;
    }
    int32_t *ranges = allocate(sizeof seen);
    memcpy(ranges, seen, sizeof seen);
    length = allocate(SEQUENCES * sizeof *length);
    memset(length, 0, SEQUENCES * sizeof *length);
    pattern.form = TESS_RANGES, pattern.capacity = 2;
    pattern.n_q = 1, pattern.n_kv = CAPACITY, pattern.block_q = 1;
    pattern.indices = ranges, pattern.lengths = length;
    problem.batch = SEQUENCES, problem.heads_q = HEADS, problem.heads_kv = HEADS_KV;
    problem.n_q = 1, problem.n_kv = CAPACITY, problem.d_qk = problem.d_v = DIM;
    problem.type = TESS_BF16, problem.alignment = 16;
    require(tess_target_query(&target, backend, -1, &error), &error);
    require(tess_plan_reserve(&plan, &problem, &pattern, &target, &error), &error);

    const size_t cache_size = SEQUENCES * sizeof *cache_k;
    cache_k = allocate(cache_size), cache_v = allocate(cache_size);
    q = allocate(SEQUENCES * sizeof *q), o = allocate(SEQUENCES * sizeof *o);
    tess_tensor tq = tess_tensor_bhnd(q, TESS_BF16, SEQUENCES, HEADS, 1, DIM);
    tess_tensor tk = tess_tensor_bhnd(cache_k, TESS_BF16, SEQUENCES, HEADS_KV, CAPACITY, DIM);
    tess_tensor tv = tess_tensor_bhnd(cache_v, TESS_BF16, SEQUENCES, HEADS_KV, CAPACITY, DIM);
    tess_tensor to = tess_tensor_bhnd(o, TESS_BF16, SEQUENCES, HEADS, 1, DIM);
    tess_arguments arguments = tess_arguments_init();
    arguments.q = &tq, arguments.k = &tk, arguments.v = &tv, arguments.o = &to;
    arguments.workspace_size = tess_plan_workspace_size(plan);
    arguments.workspace = allocate(arguments.workspace_size);
    const struct token token = {plan, &pattern, &arguments, allocate(tess_plan_image_size(plan))};
    struct step step = {give, &token, NULL};

    memset(cache_k, 0xff, cache_size);
    memset(cache_v, 0xff, cache_size);
    for (int s = 0; s < SEQUENCES; s++)
        append(s, prompt[s] - 1);
    double worst = 0;
    long tokens = 0;
    for (int n = 0; n < STEPS; n++) {
        for (int s = 0; s < SEQUENCES; s++) {
            if (n < steps[s])
                append(s, 1);
            else
                length[s] = 0;
            tokens += length[s] > 0;
        }
        project(q[0][0][0], SEQUENCES * sizeof *q / sizeof(bf16));
        launch(&step);
        check_fill(&token);
        for (int s = 0; s < SEQUENCES; s++)
            worst = fmax(worst, difference(s));
    }
    printf("%ld tokens of %d sequences in %d steps, by one plan; outputs differ from patterns made "
           "for "
           "each step by %.2g at most\n",
           tokens, SEQUENCES, STEPS, worst);
    tess_plan_free(plan);
    void *const all[] = {ranges, length, cache_k, cache_v, q, o, arguments.workspace, token.image};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        release(all[i]);
    return worst < 1e-2 ? EXIT_SUCCESS : EXIT_FAILURE;
}
