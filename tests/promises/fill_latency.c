/*
 * How long a decode step takes over lists that change: filling, then running, one query of 16 heads over
 * 2048 keys of 8462, by one thread. Lists are shared by all heads (K 512 + 64 dims, V 512) or one for
 * each of 16 KV heads of 128 dims. Beside it, the same by a pattern and a plan of the host. Usage:
 * fill_latency [ROUNDS]
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tessera.h"

enum { HEADS = 16, KEYS = 2048, N = 8462, ROUNDS = 301 };

static double microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + 1e-3 * (double)now.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, ascending);
    return x[n / 2];
}

static void *take(size_t size) {
    void *memory = aligned_alloc(256, (size + 255) / 256 * 256);
    if (!memory)
        exit(2);
    return memory;
}

/* KEYS different keys for each list, in order or not. */
static void draw(int32_t *index, int64_t lists, int ordered) {
    for (int64_t l = 0; l < lists; l++)
        for (int64_t i = 0; i < KEYS; i++) {
            const int64_t at = ordered ? i : i * 997 % KEYS;
            index[l * KEYS + i] = (int32_t)(at * 4 + (at * 7 + l) % 4);
        }
}

/* Microseconds of a pattern and a plan of the host. */
static double planned(const tess_problem *problem, const int32_t *index, int64_t lists, int n,
                      double *took) {
    tess_pattern_shape shape = tess_pattern_shape_init();
    shape.n_q = 1, shape.n_kv = N, shape.heads = lists, shape.threads = 1;
    for (int i = 0; i < n; i++) {
        tess_pattern *pattern = NULL;
        tess_plan *plan = NULL;
        const double begin = microseconds();
        if (tess_pattern_from_topk(&pattern, index, KEYS, &shape, NULL) ||
            tess_plan_create(&plan, problem, pattern, NULL, NULL))
            exit(1);
        tess_plan_free(plan);
        tess_pattern_free(pattern);
        took[i] = microseconds() - begin;
    }
    return median(took, n);
}

static void measure(int64_t heads_kv, int64_t d, int64_t d_v, int ordered, int rounds) {
    const int64_t lists = heads_kv;
    int32_t *index = take((size_t)(lists * KEYS) * sizeof *index);
    double *fill = take((size_t)rounds * sizeof *fill), *run = take((size_t)rounds * sizeof *run);
    tess_error error = tess_error_init();
    tess_device_pattern pattern = tess_device_pattern_init();
    tess_problem problem = tess_problem_init();
    tess_plan *plan;
    pattern.n_q = 1, pattern.n_kv = N, pattern.block_q = pattern.block_kv = 1;
    pattern.heads = lists, pattern.capacity = KEYS, pattern.indices = index;
    problem.batch = 1, problem.heads_q = HEADS, problem.heads_kv = heads_kv, problem.n_q = 1;
    problem.n_kv = N, problem.d_qk = d, problem.d_v = d_v, problem.type = TESS_BF16;
    problem.threads = 1;
    draw(index, lists, ordered);
    if (tess_plan_reserve(&plan, &problem, &pattern, NULL, &error)) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
    tess_arguments a = tess_arguments_init();
    uint16_t *k = take((size_t)(heads_kv * N * d) * sizeof *k);
    uint16_t *q = take((size_t)(HEADS * d) * sizeof *q), *o = take((size_t)(HEADS * d) * sizeof *o);
    for (int64_t i = 0; i < heads_kv * N * d; i++)
        k[i] = (uint16_t)(0x3c00 + i * 7 % 900);
    for (int64_t i = 0; i < HEADS * d; i++)
        q[i] = (uint16_t)(0x3c00 + i % 64);
    tess_tensor tq = tess_tensor_bhnd(q, TESS_BF16, 1, HEADS, 1, d);
    tess_tensor tk = tess_tensor_bhnd(k, TESS_BF16, 1, heads_kv, N, d), tv = tk;
    tess_tensor to = tess_tensor_bhnd(o, TESS_BF16, 1, HEADS, 1, d_v);
    tv.size[3] = d_v; /* V is the first dims of K */
    a.q = &tq, a.k = &tk, a.v = &tv, a.o = &to;
    a.workspace_size = tess_plan_workspace_size(plan), a.workspace = take(a.workspace_size);
    a.image_size = tess_plan_image_size(plan);
    void *image = take(a.image_size);
    a.image = image;
    for (int i = 0; i < rounds; i++) {
        const double begin = microseconds();
        const int failed = tess_plan_fill(plan, &pattern, image, a.image_size, &error, NULL);
        const double middle = microseconds();
        if (failed || tess_run(plan, &a, &error, NULL))
            exit(1);
        fill[i] = middle - begin, run[i] = microseconds() - middle;
    }
    const double filled = median(fill, rounds), ran = median(run, rounds), least = run[0];
    const double host = planned(&problem, index, lists, rounds / 4 + 1, run);
    printf("%2lld list%s, %s: fill %.1f us (least %.1f)", (long long)lists, lists > 1 ? "s" : "",
           ordered ? "ascending" : "unordered", filled, fill[0]);
    printf(", run %.0f us (%.0f); pattern and plan of the host %.0f us (%.0f)\n", ran, least, host,
           run[0]);
    tess_plan_free(plan);
    free(index), free(fill), free(run), free(k), free(q), free(o), free(a.workspace), free(image);
}

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : ROUNDS;
    if (rounds < 1)
        return 2;
    for (int ordered = 1; ordered >= 0; ordered--) {
        measure(1, 576, 512, ordered, rounds);
        measure(16, 128, 128, ordered, rounds);
    }
    return 0;
}
