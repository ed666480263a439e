/*
 * How long a decode step takes on the CUDA device over lists that the device holds: T queries of HEADS
 * heads, K of 512 + 64 dims with V inside, 2048 keys each of a cache of 624 MB, bf16. Eight sets of lists
 * take turns, so that keys come from memory (cold), or one is repeated (warm); graph replays, microseconds
 * of a step, medians. Beside it the same with fills. Usage:
 * decode_latency [T [HEADS [KEYS [PERCENT LISTED [KERNEL]]]]]
 */
#include <stdio.h>
#include <stdlib.h>

#include "lab/device.h"
#include "lab/rng.h"
#include "tessera.h"

enum { N = 541568, D = 576, D_V = 512, SETS = 8, STEPS = 16, ROUNDS = 31 };

struct step {
    tess_plan *plan;
    tess_arguments arguments;
    tess_device_pattern pattern[SETS];
    void *image[SETS];
    size_t image_size;
};

static void need(int done, const char *what) {
    if (done)
        return;
    fprintf(stderr, "decode_latency: %s\n", what);
    exit(1);
}

static void *take(size_t size) {
    void *memory = lab_device_alloc(TESS_CUDA, size + 1);
    need(memory != NULL, "no memory on the device");
    return memory;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* bf16 numbers of about 1, the same few over and over. */
static void *numbers(int64_t count) {
    enum { SOME = 1 << 20 };
    uint16_t *some = malloc(SOME * sizeof *some);
    char *to = take((size_t)count * sizeof *some);
    need(some != NULL, "no memory");
    for (int64_t i = 0; i < SOME; i++)
        some[i] = (uint16_t)(0x3e00 | lab_below(1, 2, (uint64_t)i, 256) |
                             lab_below(1, 3, (uint64_t)i, 2) << 15);
    for (int64_t at = 0; at < count; at += SOME) {
        const int64_t n = count - at < SOME ? count - at : SOME;
        need(!lab_device_to_device(TESS_CUDA, to + at * 2, some, (size_t)n * 2), "a copy");
    }
    free(some);
    return to;
}

static tess_tensor tensor(void *data, tess_type type, int64_t heads, int64_t n, int64_t d,
                          int64_t stride) {
    tess_tensor t = tess_tensor_init();
    t.data = data, t.type = type;
    t.size[0] = 1, t.size[1] = heads, t.size[2] = n, t.size[3] = d;
    t.stride[0] = heads * n * stride, t.stride[1] = n * stride, t.stride[2] = stride;
    t.stride[3] = 1;
    return t;
}

/* Keys of each query: `listed` percent of them, ascending in order, then -1. */
static void lists_make(struct step *s, int64_t t, int64_t keys, int64_t percent) {
    const int64_t listed = keys * percent / 100;
    int32_t *index = malloc((size_t)(t * keys) * sizeof *index);
    need(index != NULL, "no memory");
    for (uint64_t set = 0; set < SETS; set++) {
        for (int64_t i = 0; i < t * keys; i++)
            index[i] =
                i % keys < listed
                    ? (int32_t)(i % keys * (N / keys) + lab_below(set, 4, (uint64_t)i, N / keys))
                    : -1;
        int32_t *there = take((size_t)(t * keys) * sizeof *index);
        need(!lab_device_to_device(TESS_CUDA, there, index, (size_t)(t * keys) * sizeof *index),
             "a copy");
        s->pattern[set].indices = there;
        s->image[set] = take(s->image_size);
    }
    free(index);
}

/* Gives a stream STEPS steps. */
static void steps(struct step *s, int cold, int fill, int run, tess_stream stream) {
    tess_error error = tess_error_init();
    for (int i = 0; i < STEPS; i++) {
        const int set = cold ? i % SETS : 0;
        if (fill &&
            tess_plan_fill(s->plan, &s->pattern[set], s->image[set], s->image_size, &error, stream))
            need(0, error.message);
        s->arguments.image = s->image[set], s->arguments.image_size = s->image_size;
        if (run && tess_run(s->plan, &s->arguments, &error, stream))
            need(0, error.message);
    }
}

/* Microseconds of a step. */
static double measure(struct step *s, int cold, int fill, int run) {
    struct lab_device_timer timer;
    tess_stream stream;
    void *graph;
    double took[ROUNDS];
    need(!lab_device_timer_make(&timer, TESS_CUDA), "a timer");
    need(!lab_device_stream_make(TESS_CUDA, &stream), "a stream");
    need(!lab_device_graph_begin(TESS_CUDA, stream), "a graph");
    steps(s, cold, fill, run, stream);
    need(!lab_device_graph_end(TESS_CUDA, stream, &graph), "a graph");
    for (int i = -3; i < ROUNDS; i++) {
        double ms;
        need(!lab_device_timer_start(&timer, stream), "a timer");
        need(!lab_device_graph_launch(TESS_CUDA, graph, stream), "a launch");
        const char *why = lab_device_timer_stop(&timer, stream, &ms);
        need(!why, why);
        took[i < 0 ? 0 : i] = 1e3 * ms / STEPS;
    }
    lab_device_graph_free(TESS_CUDA, graph);
    lab_device_stream_free(TESS_CUDA, stream);
    lab_device_timer_free(&timer);
    qsort(took, ROUNDS, sizeof *took, ascending);
    return took[ROUNDS / 2];
}

int main(int argc, char **argv) {
    int64_t asked[4] = {8, 16, 2048, 100};
    for (int i = 1; i < argc && i < 5; i++)
        asked[i - 1] = strtoll(argv[i], NULL, 10);
    const int64_t t = asked[0], heads = asked[1], keys = asked[2];
    tess_error error = tess_error_init();
    tess_target target = tess_target_init();
    tess_problem problem = tess_problem_init();
    tess_device_pattern pattern = tess_device_pattern_init();
    struct step s = {.arguments = tess_arguments_init()};
    if (!lab_device_available(TESS_CUDA)) {
        printf("decode_latency: no device\n");
        return 77;
    }
    pattern.n_q = t, pattern.n_kv = N, pattern.block_q = pattern.block_kv = 1;
    pattern.capacity = keys;
    problem.batch = 1, problem.heads_q = heads, problem.heads_kv = 1, problem.n_q = t,
    problem.n_kv = N;
    problem.d_qk = D, problem.d_v = D_V, problem.type = TESS_BF16, problem.alignment = 16;
    problem.kernel = argc > 5 ? argv[5] : NULL;
    if (tess_target_query(&target, TESS_CUDA, -1, &error) ||
        tess_plan_reserve(&s.plan, &problem, &pattern, &target, &error))
        need(0, error.message);
    for (int set = 0; set < SETS; set++)
        s.pattern[set] = pattern;
    s.image_size = tess_plan_image_size(s.plan);
    lists_make(&s, t, keys, asked[3]);
    void *cache = numbers((int64_t)N * D);
    tess_tensor q = tensor(numbers(heads * t * D), TESS_BF16, heads, t, D, D);
    tess_tensor k = tensor(cache, TESS_BF16, 1, N, D, D);
    tess_tensor v = tensor(cache, TESS_BF16, 1, N, D_V, D);
    tess_tensor o = tensor(take((size_t)(heads * t * D_V) * 2), TESS_BF16, heads, t, D_V, D_V);
    tess_tensor lse = tensor(take((size_t)(heads * t) * 4), TESS_F32, heads, t, 1, 1);
    s.arguments.q = &q, s.arguments.k = &k, s.arguments.v = &v, s.arguments.o = &o;
    s.arguments.lse = &lse;
    s.arguments.workspace_size = tess_plan_workspace_size(s.plan);
    s.arguments.workspace = take(s.arguments.workspace_size);
    steps(&s, 1, 1, 0, NULL);
    const char *why = lab_device_synchronize(TESS_CUDA);
    need(!why, why);
    const double floor = (double)(t * (keys * asked[3] / 100) * D * 2) / 4.0e6; /* 4 TB/s */
    printf("%lld x %lld heads x %lld keys, %lld%% listed: run cold %.1f warm %.1f; fill and run "
           "cold %.1f; fill %.1f; keys from memory %.1f us\n",
           (long long)t, (long long)heads, (long long)keys, (long long)asked[3],
           measure(&s, 1, 0, 1), measure(&s, 0, 0, 1), measure(&s, 1, 1, 1), measure(&s, 1, 1, 0),
           floor);
    return 0; /* the device's memory ends with the program */
}
