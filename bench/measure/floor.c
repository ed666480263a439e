/* Rates of the device, and floors from them. */
#include "measure/floor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "baselines/gemm.h"
#include "baselines/read.h"
#include "lab/fill/half.h"
#include "lab/fill/rng.h"
#include "measure/timing.h"

enum { MATRIX = 8192 };
static const size_t COPY_SIZE = (size_t)1 << 30, CACHED_SIZE = (size_t)16 << 20;
enum { CACHED_PASSES = 64 };
static const double SECONDS = 0.05;

struct copy {
    void *to;
    const void *from;
};

static const char *copy_run(void *what, tess_stream stream) {
    const struct copy *c = what;
    return lab_device_copy(TESS_CUDA, c->to, c->from, COPY_SIZE, stream);
}

static const char *read_run(void *zeros, tess_stream stream) {
    return bench_read_cached(zeros, CACHED_SIZE, CACHED_PASSES, stream);
}

/* The L2 cache's rate, by zeros that lie in it. */
static const char *measure_cache(struct bench_limits *l, struct bench_clock *clock, void *memory) {
    const struct bench_work reading = {read_run, memory};
    struct bench_times times;
    void *zeros = calloc(1, CACHED_SIZE);
    if (!zeros)
        return "out of memory";
    const char *why = lab_device_to_device(TESS_CUDA, memory, zeros, CACHED_SIZE);
    free(zeros);
    if (!why)
        why = bench_time(&times, clock, &reading);
    if (!why)
        l->cache_gbs = 1e-6 * (double)CACHED_SIZE * CACHED_PASSES / times.ms;
    return why;
}

static const char *gemm_run(void *what, tess_stream stream) {
    return bench_gemm_cublas(what, stream);
}

/* Random numbers: a product of zeros can run faster than one of data. */
static const char *fill(void *device, tess_type type) {
    size_t count = (size_t)MATRIX * MATRIX, size = count * tess_type_size(type);
    void *host = lab_device_alloc(TESS_CPU, size);
    if (!host)
        return "out of memory";
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < (int64_t)count; i++)
        lab_put(host, type, i, lab_uniform(1, 0, (uint64_t)i) - 0.5);
    const char *why = lab_device_to_device(TESS_CUDA, device, host, size);
    lab_device_free(TESS_CPU, host);
    return why;
}

static const char *measure(struct bench_limits *l, struct bench_clock *clock, char *memory) {
    struct copy copy = {memory + COPY_SIZE, memory};
    const struct bench_work copying = {copy_run, &copy};
    struct bench_times times;
    const size_t part = (size_t)MATRIX * MATRIX * sizeof(float);
    const char *why = fill(memory, TESS_F32);
    for (size_t at = part; at < COPY_SIZE && !why; at += part)
        why = lab_device_copy(TESS_CUDA, memory + at, memory, part, clock->stream);
    if (!why)
        why = bench_time(&times, clock, &copying);
    if (!why)
        l->copy_gbs = 2e-6 * (double)COPY_SIZE / times.ms;
    if (!why)
        why = measure_cache(l, clock, memory);
    for (int t = TESS_F32; t <= TESS_BF16 && !why; t++) {
        size_t size = (size_t)MATRIX * MATRIX * tess_type_size((tess_type)t);
        struct bench_gemm g = {.rows = MATRIX, .columns = MATRIX, .depth = MATRIX};
        const struct bench_work multiplying = {gemm_run, &g};
        g.a = memory, g.b = memory + size, g.c = memory + 2 * size;
        g.row_a = g.row_b = g.row_c = MATRIX;
        g.count = 1, g.alpha = 1;
        g.type = g.type_c = (tess_type)t;
        why = fill(memory, g.type);
        if (!why)
            why = lab_device_copy(TESS_CUDA, memory + size, memory, size, clock->stream);
        if (!why && !bench_time(&times, clock, &multiplying))
            l->matmul_tflops[t] = 2e-9 * pow(MATRIX, 3) / times.ms;
    }
    return why;
}

const char *bench_limits_measure(struct bench_limits *limits) {
    struct bench_clock clock;
    if (limits->measured)
        return NULL;
    limits->measured = 1;
    limits->copy_gbs = limits->cache_gbs = NAN;
    for (int t = 0; t < 3; t++)
        limits->matmul_tflops[t] = NAN;
    char *memory = lab_device_alloc(TESS_CUDA, 2 * COPY_SIZE);
    const char *why = bench_clock_make(&clock, TESS_CUDA, BENCH_HOT, SECONDS, 0);
    if (!memory)
        why = "out of device memory for measuring the limits";
    if (!why)
        why = measure(limits, &clock, memory);
    bench_clock_free(&clock);
    lab_device_free(TESS_CUDA, memory);
    return why;
}

static double elements(const tess_problem *p, int64_t heads, int64_t n, int64_t d) {
    return (double)(p->batch * heads) * (double)n * (double)d;
}

double bench_floor_bytes(const tess_problem *p, tess_stage stage, const struct bench_amounts *a) {
    const double element = (double)tess_type_size(p->type);
    const double q = element * elements(p, p->heads_q, p->n_q, p->d_qk);
    const double o = element * elements(p, p->heads_q, p->n_q, p->d_v);
    const double k = element * elements(p, p->heads_kv, p->n_kv, p->d_qk);
    const double v = element * elements(p, p->heads_kv, p->n_kv, p->d_v);
    const double between = 4 * (double)a->scores, lists = 4 * (double)a->tiles;
    const double bytes[] = {[TESS_STAGE_ATTENTION] = (double)a->bytes + lists,
                            [TESS_STAGE_SDDMM] = q + k + between + lists,
                            [TESS_STAGE_SOFTMAX] = 2 * between,
                            [TESS_STAGE_SPMM] = between + v + o + lists};
    return bytes[stage];
}

double bench_floor_ms(const struct bench_limits *limits, const tess_problem *p, tess_stage stage,
                      const struct bench_amounts *a) {
    const int64_t dims[] = {[TESS_STAGE_ATTENTION] = p->d_qk + p->d_v,
                            [TESS_STAGE_SDDMM] = p->d_qk,
                            [TESS_STAGE_SOFTMAX] = 0,
                            [TESS_STAGE_SPMM] = p->d_v};
    const double element = (double)tess_type_size(p->type);
    const double bytes = bench_floor_bytes(p, stage, a);
    const double gathered = (double)a->keys * (double)(p->d_qk + p->d_v) * element;
    double move = bytes > (double)limits->kept ? 1e-6 * bytes / limits->copy_gbs : 0;
    if (dims[stage] == 0)
        return move;
    double compute = 2e-9 * (double)dims[stage] * (double)a->pairs / limits->matmul_tflops[p->type];
    double gather = a->keys ? 1e-6 * gathered / limits->cache_gbs : 0;
    return isnan(move + compute + gather) ? NAN : fmax(fmax(move, compute), gather);
}
