/* Rows of what Tessera is compared with. */
#include "run/baseline.h"

#include <math.h>
#include <stdio.h>

#include "baselines/blocks.h"
#include "baselines/dense.h"
#include "measure/layer.h"
#include "measure/sample.h"
#include "measure/trial.h"
#include "run/options.h"

const char *bench_baseline_word(int number) {
    const struct bench_dense_kind *dense = bench_dense_kind(number);
    static const char *const more[] = {"cusparse", "openblas_blocks", NULL};
    int kinds = 0;
    if (dense)
        return dense->word;
    while (bench_dense_kind(kinds))
        kinds++;
    return number < kinds + 2 ? more[number - kinds] : NULL;
}

/* Arguments that the measurements of one case share. */
struct comparing {
    struct bench_rows *rows;
    struct bench_setting *s;
    const struct bench_method *method;
    const struct bench_result *ours;
};

static void result_make(struct bench_result *r, const struct comparing *x, tess_backend backend,
                        const char *pipeline, const char *kernel) {
    tess_device_info device = tess_device_info_init();
    bench_result_make(r, x->s);
    r->c.backend = (int)backend;
    r->c.pipeline = LAB_ANY;
    r->c.kernel[0] = '\0';
    r->pipeline = pipeline;
    r->timing = bench_timing_name(backend == TESS_CPU ? BENCH_HOT : x->method->timing);
    snprintf(r->kernel, sizeof r->kernel, "%s", kernel);
    memcpy(r->device, x->ours->device, sizeof r->device);
    if (tess_device_describe(backend, 0, &device, NULL) == TESS_OK)
        memcpy(r->device, device.name, sizeof r->device);
    if (backend == TESS_CUDA)
        r->copy_gbs = x->ours->copy_gbs, r->cache_gbs = x->ours->cache_gbs,
        r->matmul_tflops = x->ours->matmul_tflops;
}

static int add(const struct comparing *x, const struct bench_result *r) {
    if (bench_rows_add(x->rows, r))
        return bench_refuse("out of memory");
    bench_print(stdout, r);
    fflush(stdout);
    return BENCH_DONE;
}

/* ---- dense attention ---- */

/* Dense attention, and the projections that a layer has before it. */
struct dense_layer {
    struct bench_dense dense;
    const struct bench_place *place;
    int projects;
};

/* Projections on CUDA are cuBLAS's, as ours are, so that a layer's speed-up is its attention's. */
static const char *run_dense(void *what, tess_stream stream) {
    struct dense_layer *d = what;
    const struct bench_dense_kind *kind = d->dense.kind;
    bench_gemm_function *gemm = kind->backend == TESS_CUDA ? bench_gemm_cublas : kind->gemm;
    const char *why = d->projects ? bench_layer_project(d->place, gemm, stream) : NULL;
    return why ? why : bench_dense_run(&d->dense, stream);
}

static const char *time_dense(struct bench_result *r, struct dense_layer *d,
                              struct bench_clock *clock, int layer) {
    const int all = BENCH_DENSE_ALL;
    const struct bench_work work = {run_dense, d};
    struct bench_times times;
    d->dense.steps = all, d->projects = 0;
    const char *why = bench_time(&times, clock, &work);
    if (why)
        return why;
    bench_result_take(r, &times);
    const struct {
        double *ms;
        int steps, projects, asked;
    } parts[] = {
        {&r->stage_ms[0], 1, 0, 1},       {&r->stage_ms[1], 2, 0, 1},    {&r->stage_ms[2], 4, 0, 1},
        {&r->projection_ms, 0, 1, layer}, {&r->layer_ms, all, 1, layer},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !why; i++) {
        d->dense.steps = parts[i].steps, d->projects = parts[i].projects;
        if (parts[i].asked)
            why = bench_time(&times, clock, &work);
        if (parts[i].asked && !why)
            *parts[i].ms = times.ms;
    }
    return why;
}

/* Holds sampled rows of a run that was fetched against the definition in double precision. */
static int check_outputs(const struct comparing *x, const tess_pattern *pattern,
                         char why[LAB_WHY]) {
    struct lab_oracle oracle;
    int status = BENCH_DONE;
    if (bench_sample_make(&oracle, x->s, pattern)) {
        snprintf(why, LAB_WHY, "out of memory for the oracle");
        status = BENCH_BAD;
    } else if (bench_sample_check(&oracle, x->s, 0, why))
        status = BENCH_FAILED;
    lab_oracle_free(&oracle);
    return status;
}

static int check_dense(const struct comparing *x, char why[LAB_WHY]) {
    tess_pattern *dense = NULL;
    tess_pattern_shape shape = lab_case_shape(&x->s->lab.c);
    shape.batch = shape.heads = 1, shape.block_q = shape.block_kv = 128;
    if (x->method->layer && bench_layer_check(x->s, why))
        return BENCH_FAILED;
    if (tess_pattern_from_spec(&dense, "dense", &shape, NULL) != TESS_OK) {
        snprintf(why, LAB_WHY, "out of memory for the oracle's pattern");
        return BENCH_BAD;
    }
    int status = check_outputs(x, dense, why);
    tess_pattern_free(dense);
    return status;
}

/* Into *r: times, or a note why there are none. */
static int measure_dense(struct bench_result *r, const struct comparing *x,
                         const struct bench_dense_kind *kind) {
    struct bench_clock clock;
    struct bench_place place;
    struct dense_layer dense = {.place = &place, .projects = x->method->layer};
    char why[LAB_WHY];
    int status = BENCH_DONE;
    const char *broken = bench_clock_make(&clock, kind->backend, x->method->timing,
                                          x->method->seconds, x->method->noise);
    bench_setting_spoil(x->s, x->method->layer);
    const char *no_place = bench_place_make(&place, x->s, NULL, kind->backend, 0);
    broken = broken ? broken : no_place;
    if (!broken)
        broken = bench_dense_make(&dense.dense, kind, &x->s->lab.c, &place.arguments);
    dense.dense.steps = BENCH_DENSE_ALL;
    if (!broken)
        broken = run_dense(&dense, clock.stream);
    if (!broken)
        broken = lab_mirror_fetch(&place.tensors);
    if (!broken)
        status = check_dense(x, why);
    if (!broken && status == BENCH_DONE)
        broken = time_dense(r, &dense, &clock, x->method->layer);
    if (broken)
        snprintf(r->note, sizeof r->note, "%s", broken);
    if (status != BENCH_DONE)
        bench_refuse("%s: %s", kind->kernel, why);
    bench_dense_free(&dense.dense);
    bench_place_free(&place);
    bench_clock_free(&clock);
    return status;
}

/* The times of an earlier row; whether there was one. */
static bool take_times(struct bench_result *r, const struct comparing *x) {
    const json_t *row;
    r->layer_ms = x->method->layer ? 0 : NAN; /* the row must have one */
    row = bench_rows_like(x->rows, r);
    r->layer_ms = NAN;
    const struct {
        const char *name;
        double *to;
    } fields[] = {
        {"ms", &r->ms},
        {"ms_min", &r->ms_min},
        {"ms_max", &r->ms_max},
        {"noise", &r->noise},
        {"sddmm_ms", &r->stage_ms[0]},
        {"softmax_ms", &r->stage_ms[1]},
        {"spmm_ms", &r->stage_ms[2]},
        {"projection_ms", &r->projection_ms},
        {"layer_ms", &r->layer_ms},
    };
    for (size_t i = 0; row && i < sizeof fields / sizeof *fields; i++) {
        const json_t *value = json_object_get(row, fields[i].name);
        *fields[i].to = json_is_real(value) ? json_real_value(value) : NAN;
    }
    if (row)
        r->runs = json_integer_value(json_object_get(row, "runs"));
    return row != NULL;
}

static int compare_dense(const struct comparing *x, const struct bench_dense_kind *kind) {
    struct bench_result r;
    const struct lab_case *c = &x->s->lab.c;
    result_make(&r, x, kind->backend, "dense", kind->kernel);
    r.pairs = c->b * c->h * c->n * c->nkv;
    const char *refusal = bench_dense_refuses(kind, c);
    int status = BENCH_DONE;
    if (refusal)
        snprintf(r.note, sizeof r.note, "%s", refusal);
    else if (!take_times(&r, x))
        status = measure_dense(&r, x, kind);
    if (status != BENCH_DONE)
        return status;
    r.tflops = 2.0 * (double)(c->d + c->dv) * (double)r.pairs / (r.ms * 1e9);
    r.speedup = r.ms / x->ours->ms;
    r.layer_speedup = r.layer_ms / x->ours->layer_ms;
    return add(x, &r);
}

/* ---- products of blocks ---- */

/* Into *r: times, or a note why there are none. Answers BENCH_FAILED, or BENCH_BAD, as a dense
 * baseline does. */
static int measure_blocks(struct bench_result *r, const struct comparing *x) {
    struct bench_clock clock;
    struct bench_place place;
    struct bench_blocks blocks = {0};
    const struct bench_work work = {bench_blocks_run, &blocks};
    struct bench_times times;
    char why[LAB_WHY];
    int status = BENCH_DONE;
    const char *broken =
        bench_clock_make(&clock, TESS_CPU, x->method->timing, x->method->seconds, x->method->noise);
    bench_setting_spoil(x->s, 0);
    const char *no_place = bench_place_make(&place, x->s, NULL, TESS_CPU, 0);
    broken = broken ? broken : no_place;
    if (!broken)
        broken = bench_blocks_make(&blocks, &x->s->lab.c, x->s->lab.pattern, &place.arguments);
    if (!broken)
        broken = bench_blocks_run(&blocks, clock.stream);
    if (!broken)
        broken = lab_mirror_fetch(&place.tensors);
    if (!broken)
        status = check_outputs(x, x->s->lab.pattern, why);
    if (!broken && status == BENCH_DONE)
        broken = bench_time(&times, &clock, &work);
    if (broken)
        snprintf(r->note, sizeof r->note, "%s", broken);
    else if (status == BENCH_DONE)
        bench_result_take(r, &times);
    else
        bench_refuse("%s: %s", r->kernel, why);
    bench_blocks_free(&blocks);
    bench_place_free(&place);
    bench_clock_free(&clock);
    return status;
}

static int compare_blocks(const struct comparing *x) {
    const struct lab_case *c = &x->s->lab.c;
    struct bench_result r;
    result_make(&r, x, TESS_CPU, "blocks", "blocks_openblas");
    r.pairs = x->ours->pairs;
    int status = measure_blocks(&r, x);
    if (status != BENCH_DONE)
        return status;
    r.tflops = 2.0 * (double)(c->d + c->dv) * (double)r.pairs / (r.ms * 1e9);
    r.speedup = r.ms / x->ours->ms;
    return add(x, &r);
}

/* ---- cuSPARSE ---- */

static int compare_peer(const struct comparing *x, const struct bench_peer_kind *kind) {
    const int stage = (int)kind->stage - TESS_STAGE_SDDMM;
    const struct lab_case *c = &x->s->lab.c;
    struct bench_result r;
    result_make(&r, x, TESS_CUDA, tess_stage_name(kind->stage), kind->kernel);
    r.pairs = x->ours->pairs;
    bench_peer_measure(&r, kind, x->s, x->method);
    const int64_t dims = kind->stage == TESS_STAGE_SDDMM ? c->d : c->dv;
    r.stage_ms[stage] = r.ms;
    r.tflops = 2.0 * (double)dims * (double)r.pairs / (r.ms * 1e9);
    r.speedup = r.ms / x->ours->stage_ms[stage];
    return add(x, &r);
}

int bench_baselines(struct bench_rows *rows, struct bench_setting *s,
                    const struct bench_method *method, const struct bench_result *ours) {
    const struct comparing x = {rows, s, method, ours};
    int status = BENCH_DONE, i = 0;
    for (; bench_dense_kind(i) && status == BENCH_DONE; i++)
        if (method->baselines >> i & 1)
            status = compare_dense(&x, bench_dense_kind(i));
    for (int k = 0; bench_peer_kind(k) && status == BENCH_DONE; k++)
        if (method->baselines >> i & 1)
            status = compare_peer(&x, bench_peer_kind(k));
    if (status == BENCH_DONE && method->baselines >> (i + 1) & 1)
        status = compare_blocks(&x);
    return status;
}
