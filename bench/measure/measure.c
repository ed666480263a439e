/* One measurement of ours. */
#include "measure/measure.h"

#include <math.h>
#include <stdio.h>

#include "lab/check/compare.h"
#include "lab/device/timer.h"
#include "measure/backward.h"
#include "measure/layer.h"
#include "measure/lists.h"
#include "measure/mlp.h"
#include "measure/peak.h"
#include "measure/sample.h"

void bench_result_make(struct bench_result *r, const struct bench_setting *s) {
    memset(r, 0, sizeof *r);
    r->c = s->lab.c;
    r->asked = s->asked;
    r->ms = r->ms_min = r->ms_max = r->plan_ms = r->upload_ms = r->tflops = NAN;
    for (int i = 0; i < BENCH_STAGES; i++)
        r->stage_ms[i] = r->stage_over_floor[i] = NAN;
    r->select_ms = r->fill_ms = r->step_ms = r->projection_ms = r->layer_ms = r->over_floor = NAN;
    r->noise = r->peak_tflops = r->predicted_ms = r->host_us = NAN;
    r->speedup = r->layer_speedup = r->copy_gbs = r->cache_gbs = r->matmul_tflops = NAN;
}

void bench_result_take(struct bench_result *r, const struct bench_times *times) {
    r->ms = times->ms, r->ms_min = times->min, r->ms_max = times->max;
    r->runs = times->runs, r->noise = times->noise;
    r->throttle = times->throttle;
}

double bench_flops(const struct lab_case *c, int64_t pairs) {
    const int64_t products = lab_case_backward(c) ? 3 * c->d + 2 * c->dv : c->d + c->dv;
    return 2.0 * (double)products * (double)pairs;
}

/* State of a measurement, step by step. */
struct measuring {
    struct bench_result *r;
    struct bench_setting *s;
    const struct bench_method *method;
    const tess_plan *plan;
    tess_pipeline pipeline;
    struct bench_place place;
    struct bench_lists lists; /* topk= */
    struct bench_clock clock;
    tess_error error;
};

/* ---- what is timed ---- */

static const char *run_attention(void *what, tess_stream stream) {
    struct measuring *m = what;
    if (m->lists.sets)
        m->place.arguments.image = m->lists.image[m->lists.turn];
    if (tess_run(m->plan, &m->place.arguments, &m->error, stream) != TESS_OK)
        return m->error.message;
    if (m->lists.sets)
        bench_lists_next(&m->lists);
    return NULL;
}

static const char *run_fill(void *what, tess_stream stream) {
    struct measuring *m = what;
    const char *why = bench_lists_fill(&m->lists, &m->error, stream);
    bench_lists_next(&m->lists);
    return why;
}

static const char *run_select(void *what, tess_stream stream) {
    struct measuring *m = what;
    const char *why = bench_lists_choose(&m->lists, &m->error, stream);
    bench_lists_next(&m->lists);
    return why;
}

static const char *run_step(void *what, tess_stream stream) {
    struct measuring *m = what;
    const char *why = bench_lists_step(&m->lists, &m->place.arguments, &m->error, stream);
    bench_lists_next(&m->lists);
    return why;
}

static const char *run_projection(void *what, tess_stream stream) {
    struct measuring *m = what;
    return bench_layer_project(&m->place, bench_gemm_cublas, stream);
}

static const char *run_layer(void *what, tess_stream stream) {
    const char *why = run_projection(what, stream);
    return why ? why : run_attention(what, stream);
}

/* A stage by itself; the scores lie between them in memory of their own. */
static const char *run_stage(struct measuring *m, tess_stream stream,
                             tess_status (*stage)(const tess_plan *, const tess_arguments *,
                                                  tess_error *, tess_stream)) {
    tess_arguments a = m->place.arguments;
    a.scores = m->place.scores;
    return stage(m->plan, &a, &m->error, stream) == TESS_OK ? NULL : m->error.message;
}

static const char *run_sddmm(void *what, tess_stream stream) {
    return run_stage(what, stream, tess_sddmm);
}

static const char *run_softmax(void *what, tess_stream stream) {
    return run_stage(what, stream, tess_softmax);
}

static const char *run_spmm(void *what, tess_stream stream) {
    return run_stage(what, stream, tess_spmm);
}

static const char *run_stages(void *what, tess_stream stream) {
    const char *why = run_sddmm(what, stream);
    if (!why)
        why = run_softmax(what, stream);
    return why ? why : run_spmm(what, stream);
}

/* ---- steps ---- */

static const char *upload(struct measuring *m) {
    if (lab_case_listed(&m->s->lab.c))
        return bench_lists_make(&m->lists, &m->s->lab, m->plan, m->clock.backend,
                                m->method->timing == BENCH_ROTATE ? BENCH_SETS : 1, m->place.image,
                                &m->error);
    double before = lab_seconds();
    if (tess_plan_upload(m->plan, m->place.image, m->place.arguments.image_size, &m->error, NULL) !=
        TESS_OK)
        return m->error.message;
    const char *why = lab_device_synchronize(m->clock.backend);
    m->r->upload_ms = m->place.image ? 1e3 * (lab_seconds() - before) : 0;
    return why;
}

/* Runs once and compares. A sample cannot tell which rows a NaN of others may reach, so fills with
 * NaN and Inf are timed unchecked. Answers BENCH_DONE, BENCH_BAD or BENCH_FAILED. */
static int check_run(struct measuring *m, const char *(*run)(void *, tess_stream),
                     char why[LAB_WHY]) {
    const int layer = run == run_layer;
    struct lab_oracle oracle;
    const char *broken = run(m, m->clock.stream);
    if (!broken)
        broken = lab_mirror_fetch(&m->place.tensors);
    if (broken) {
        snprintf(why, LAB_WHY, "%s", broken);
        return BENCH_BAD;
    }
    if (m->s->lab.c.fill >= LAB_FILL_NANK && m->s->lab.c.fill <= LAB_FILL_INF)
        return BENCH_DONE;
    if (lab_case_backward(&m->s->lab.c))
        return bench_backward_check(m->s, why);
    if (lab_case_mlp(&m->s->lab.c))
        return bench_mlp_check(m->s, why);
    int status = layer && bench_layer_check(m->s, why) ? BENCH_FAILED : BENCH_DONE;
    if (bench_sample_make(&oracle, m->s, m->s->lab.pattern)) {
        snprintf(why, LAB_WHY, "out of memory for the oracle");
        status = BENCH_BAD;
    } else if (status == BENCH_DONE) {
        lab_rounds(&oracle, m->plan);
        status = bench_sample_check(&oracle, m->s, 1, why) ? BENCH_FAILED : BENCH_DONE;
    }
    lab_oracle_free(&oracle);
    return status;
}

/* All that time_all times. The stages run on what a layer's projections left. */
static int check(struct measuring *m, char why[LAB_WHY]) {
    int status = check_run(m, m->method->layer ? run_layer : run_attention, why);
    if (status != BENCH_DONE || !m->place.scores)
        return status;
    bench_setting_spoil(m->s, 0);
    const char *broken = lab_mirror_send(&m->place.tensors);
    if (!broken)
        return check_run(m, run_stages, why);
    snprintf(why, LAB_WHY, "%s", broken);
    return BENCH_BAD;
}

static const char *time_one(double *ms, struct measuring *m,
                            const char *(*run)(void *, tess_stream)) {
    const struct bench_work work = {run, m};
    struct bench_times times;
    const char *why = bench_time(&times, &m->clock, &work);
    *ms = why ? NAN : times.ms;
    return why;
}

static const char *time_all(struct measuring *m) {
    static const char *(*const stages[BENCH_STAGES])(void *, tess_stream) = {run_sddmm, run_softmax,
                                                                             run_spmm};
    const struct bench_work attention = {run_attention, m};
    struct bench_times times;
    const char *why = bench_time(&times, &m->clock, &attention);
    if (why)
        return why;
    bench_result_take(m->r, &times);
    if (m->clock.backend == TESS_CUDA)
        why = bench_time_host(&m->r->host_us, &m->clock, &attention);
    for (int i = 0; i < BENCH_STAGES && m->place.scores && !why; i++)
        why = time_one(&m->r->stage_ms[i], m, stages[i]);
    if (!why && m->s->lab.c.select[0])
        why = time_one(&m->r->select_ms, m, run_select);
    if (!why && m->lists.sets)
        why = time_one(&m->r->fill_ms, m, run_fill);
    if (m->lists.sets)
        m->r->step = m->lists.direct ? "direct" : "filled";
    if (!why && m->lists.sets)
        why = time_one(&m->r->step_ms, m, run_step);
    if (!why && m->method->layer)
        why = time_one(&m->r->projection_ms, m, run_projection);
    if (!why && m->method->layer)
        why = time_one(&m->r->layer_ms, m, run_layer);
    return why;
}

static void name_kernels(struct bench_result *r, const tess_plan *plan) {
    size_t used = 0;
    for (int s = TESS_STAGE_ATTENTION; s <= TESS_STAGE_MLP_DOWN; s++) {
        const char *name = tess_plan_kernel(plan, (tess_stage)s);
        if (name && used < sizeof r->kernel)
            used += (size_t)snprintf(r->kernel + used, sizeof r->kernel - used, "%s%s",
                                     used ? "+" : "", name);
    }
}

/* CPU: the faster of what the multipliers reach before and after, as clocks and neighbours change. */
static const char *time_beside_peak(struct measuring *m) {
    const char *level = strrchr(m->r->kernel, '_');
    if (m->r->c.backend != TESS_CPU || !level)
        return time_all(m);
    double before = bench_peak_tflops(level + 1, m->s->lab.c.threads);
    const char *why = time_all(m);
    m->r->peak_tflops = fmax(before, bench_peak_tflops(level + 1, m->s->lab.c.threads));
    return why;
}

/* A CPU's limits: its peak, and the rate of its memory where a stage moves more than its cache
 * holds. */
static struct bench_limits cpu_limits(const struct measuring *m, const tess_problem *problem,
                                      const struct bench_amounts *amounts) {
    const struct bench_result *r = m->r;
    tess_target target = tess_target_init();
    struct bench_limits l = {.measured = 1, .copy_gbs = NAN, .cache_gbs = INFINITY};
    for (int t = TESS_F32; t <= TESS_BF16; t++)
        l.matmul_tflops[t] = r->peak_tflops;
    double most = 0;
    for (int s = TESS_STAGE_ATTENTION; s <= TESS_STAGE_SPMM; s++)
        if (tess_plan_kernel(m->plan, (tess_stage)s))
            most = fmax(most, bench_floor_bytes(problem, (tess_stage)s, amounts));
    l.kept = INT64_MAX;
    if (tess_target_query(&target, TESS_CPU, 0, NULL) == TESS_OK && target.cache_size > 0)
        l.kept = target.cache_size;
    if (most > (double)l.kept)
        l.copy_gbs = bench_peak_copy_gbs(problem->threads);
    return l;
}

/* A device's floor is of bytes that cross its memory; in a warm cache they need not. */
static void set_beside_limits(struct measuring *m, const tess_plan_info *plan,
                              const struct bench_limits *device) {
    struct bench_result *r = m->r;
    const int cuda = r->c.backend == TESS_CUDA;
    tess_problem problem = lab_case_problem(&r->c, m->pipeline);
    tess_pattern_info info = tess_pattern_info_init();
    if (tess_pattern_describe(m->s->lab.pattern, &info, NULL) != TESS_OK)
        return;
    int64_t first = TESS_STAGE_ATTENTION, last = first;
    const struct bench_amounts amounts = {
        .pairs = r->pairs,
        .tiles = info.full_tiles + info.band_tiles + info.bitmask_tiles,
        .scores = tess_plan_scores_count(m->plan),
        .keys = m->pipeline == TESS_STAGED
                    ? 0
                    : plan->packed_keys * (problem.batch * problem.heads_q / plan->tile_heads) /
                          (info.batch * info.heads),
        .bytes = plan->bytes,
    };
    const struct bench_limits limits = cuda ? *device : cpu_limits(m, &problem, &amounts);
    r->copy_gbs = limits.copy_gbs, r->cache_gbs = limits.cache_gbs;
    if (cuda)
        r->matmul_tflops = limits.matmul_tflops[r->c.type];
    if (cuda && m->clock.timing != BENCH_COLD)
        return;
    double floor = 0;
    if (m->pipeline == TESS_STAGED)
        first = TESS_STAGE_SDDMM, last = TESS_STAGE_SPMM;
    for (int64_t s = first; s <= last; s++) {
        double ms = bench_floor_ms(&limits, &problem, (tess_stage)s, &amounts);
        if (m->pipeline == TESS_STAGED && ms > 0)
            r->stage_over_floor[s - first] = r->stage_ms[s - first] / ms;
        floor += ms;
    }
    r->over_floor = r->ms / floor;
}

/* ---- the measurement ---- */

/* Runs of a graph over lists on the device: a launch of one alone would take as long as the run. */
enum { TURNS = 2 * BENCH_SETS };

static int measure_plan(struct measuring *m, const struct bench_limits *limits, char why[LAB_WHY]) {
    tess_backend backend = (tess_backend)m->r->c.backend;
    tess_plan_info info = tess_plan_info_init();
    int status = BENCH_BAD;
    const char *broken = bench_clock_make(&m->clock, backend, m->method->timing, m->method->seconds,
                                          m->method->noise);
    m->clock.turns = lab_case_listed(&m->s->lab.c) ? TURNS : 1;
    bench_setting_spoil(m->s, m->method->layer);
    const char *no_place = bench_place_make(&m->place, m->s, m->plan, backend,
                                            m->method->stages && m->pipeline == TESS_STAGED);
    broken = broken ? broken : no_place;
    if (!broken)
        broken = upload(m);
    if (!broken && tess_plan_describe(m->plan, &info, &m->error) != TESS_OK)
        broken = m->error.message;
    if (!broken && m->lists.sets) {
        tess_fill_report report = tess_fill_report_init();
        broken = bench_lists_report(&m->lists, &report, &m->error);
        info.pairs = report.pairs;
        info.predicted_seconds = tess_plan_predict(m->plan, report.keys);
    }
    if (!broken) {
        m->r->pairs = info.pairs;
        if (backend == TESS_CUDA || m->s->lab.c.threads == 1)
            m->r->predicted_ms = 1e3 * info.predicted_seconds;
        name_kernels(m->r, m->plan);
        status = check(m, why);
        broken = status == BENCH_DONE ? time_beside_peak(m) : NULL;
    }
    if (broken) {
        snprintf(why, LAB_WHY, "%s", broken);
        status = BENCH_BAD;
    }
    bench_lists_free(&m->lists);
    bench_place_free(&m->place);
    bench_clock_free(&m->clock);
    if (status != BENCH_DONE)
        return status;
    m->r->timing = bench_timing_name(m->clock.timing);
    m->r->tflops = bench_flops(&m->s->lab.c, info.pairs) / (m->r->ms * 1e9);
    if (m->s->lab.c.operation == TESS_ATTENTION && !m->lists.sets)
        set_beside_limits(m, &info, limits);
    return status;
}

int bench_measure(struct bench_result *r, struct bench_setting *s, tess_backend backend,
                  tess_pipeline pipeline, const struct bench_method *method,
                  const struct bench_limits *limits, char why[LAB_WHY]) {
    struct measuring m = {.r = r, .s = s, .method = method, .pipeline = pipeline};
    tess_target target = tess_target_init();
    tess_device_info device = tess_device_info_init();
    tess_problem problem = lab_case_problem(&s->lab.c, pipeline);
    tess_plan *plan = NULL;
    m.error = tess_error_init();
    bench_result_make(r, s);
    r->c.backend = (int)backend;
    r->c.pipeline = (int)pipeline;
    r->pipeline = lab_pipeline_name((int)pipeline);
    int failed = tess_target_query(&target, backend, 0, &m.error) != TESS_OK ||
                 tess_device_describe(backend, 0, &device, &m.error) != TESS_OK;
    double before = lab_seconds();
    if (!failed && lab_case_listed(&s->lab.c))
        failed = bench_lists_reserve(&plan, &s->lab, &problem, &target, &m.error) != TESS_OK;
    else if (!failed)
        failed = tess_plan_create(&plan, &problem, s->lab.pattern, &target, &m.error) != TESS_OK;
    r->plan_ms = 1e3 * (lab_seconds() - before);
    memcpy(r->device, device.name, sizeof r->device);
    if (failed) {
        snprintf(why, LAB_WHY, "%s", m.error.message);
        return m.error.status == TESS_UNSUPPORTED && s->lab.c.kernel[0] ? BENCH_REFUSED : BENCH_BAD;
    }
    m.plan = plan;
    int status = measure_plan(&m, limits, why);
    tess_plan_free(plan);
    return status;
}
