/* One measurement. */
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>

#include "lab/device.h"
#include "lab/fill.h"
#include "lab/mirror.h"
#include "lab/timer.h"

enum { LEAST_RUNS = 5, MOST_RUNS = 1000 };

int bench_setting_make(struct bench_setting *s, const struct lab_case *c, char why[LAB_WHY]) {
    tess_error error = tess_error_init();
    const int64_t q[4] = {c->b, c->h, c->n, c->d}, k[4] = {c->b, c->hkv, c->nkv, c->d};
    const int64_t v[4] = {c->b, c->hkv, c->nkv, c->dv}, o[4] = {c->b, c->h, c->n, c->dv};
    const int64_t lse[4] = {c->b, c->h, c->n, 1};
    int64_t lse_align = c->align < 4 ? 4 : c->align;
    memset(s, 0, sizeof *s);
    s->c = *c;
    if (lab_case_pattern(c, &s->pattern, &error) != TESS_OK) {
        snprintf(why, LAB_WHY, "%s", error.message);
        return -1;
    }
    if (lab_tensor_make(&s->q, c->type, q, c->layout, c->align) ||
        lab_tensor_make(&s->k, c->type, k, c->layout, c->align) ||
        lab_tensor_make(&s->v, c->type, v, c->layout, c->align) ||
        lab_tensor_make(&s->o, c->type, o, c->layout, c->align) ||
        lab_tensor_make(&s->lse, TESS_F32, lse, c->layout, lse_align)) {
        snprintf(why, LAB_WHY, "out of memory for the tensors of this case");
        return -1;
    }
    lab_fill(c, &s->q.view, &s->k.view, &s->v.view);
    return 0;
}

void bench_setting_free(struct bench_setting *s) {
    lab_tensor_free(&s->q);
    lab_tensor_free(&s->k);
    lab_tensor_free(&s->v);
    lab_tensor_free(&s->o);
    lab_tensor_free(&s->lse);
    tess_pattern_free(s->pattern);
    memset(s, 0, sizeof *s);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One run between start and stop; flushes the cache before it unless `hot`. */
static const char *time_run(double *ms, struct lab_device_timer *timer, const tess_plan *plan,
                            const tess_arguments *a, int hot, tess_error *error) {
    const char *why = hot ? NULL : lab_device_timer_flush(timer, NULL);
    if (!why)
        why = lab_device_timer_start(timer, NULL);
    if (!why && tess_run(plan, a, error, NULL) != TESS_OK)
        why = error->message;
    return why ? why : lab_device_timer_stop(timer, NULL, ms);
}

static const char *time_runs(struct bench_result *r, struct lab_device_timer *timer,
                             const tess_plan *plan, const tess_arguments *a,
                             const struct bench_manner *manner, tess_error *error) {
    double times[MOST_RUNS], start = 0;
    int64_t runs = 0;
    for (int64_t i = -1; i < MOST_RUNS; i++) { /* -1 warms up */
        double ms;
        const char *why = time_run(&ms, timer, plan, a, manner->hot, error);
        if (why)
            return why;
        if (i < 0) {
            start = lab_seconds();
            continue;
        }
        times[runs++] = ms;
        if (runs >= LEAST_RUNS && lab_seconds() - start >= manner->seconds)
            break;
    }
    qsort(times, (size_t)runs, sizeof *times, ascending);
    r->runs = runs;
    r->ms_min = times[0];
    r->ms_max = times[runs - 1];
    r->ms = runs % 2 ? times[runs / 2] : 0.5 * (times[runs / 2 - 1] + times[runs / 2]);
    return NULL;
}

static void name_kernels(struct bench_result *r, const tess_plan *plan) {
    size_t used = 0;
    for (int s = TESS_STAGE_ATTENTION; s <= TESS_STAGE_SPMM; s++) {
        const char *name = tess_plan_kernel(plan, (tess_stage)s);
        if (name && used < sizeof r->kernel)
            used += (size_t)snprintf(r->kernel + used, sizeof r->kernel - used, "%s%s",
                                     used ? "+" : "", name);
    }
}

/* What a plan's runs are handed, in the memory of its backend. */
struct place {
    struct lab_mirror tensors;
    tess_tensor q, k, v, o, lse;
    void *workspace, *image;
    tess_arguments arguments;
};

static void place_free(struct place *p, tess_backend backend) {
    lab_mirror_free(&p->tensors);
    lab_device_free(backend, p->workspace);
    lab_device_free(backend, p->image);
}

/* Answers NULL, or why not; place_free in either case. */
static const char *place_make(struct place *p, const struct bench_setting *s, const tess_plan *plan,
                              tess_backend backend) {
    memset(p, 0, sizeof *p);
    lab_mirror_make(&p->tensors, backend);
    if (lab_mirror_tensor(&p->tensors, &s->q, &p->q) ||
        lab_mirror_tensor(&p->tensors, &s->k, &p->k) ||
        lab_mirror_tensor(&p->tensors, &s->v, &p->v) ||
        lab_mirror_tensor(&p->tensors, &s->o, &p->o) ||
        lab_mirror_tensor(&p->tensors, &s->lse, &p->lse))
        return p->tensors.why;
    tess_arguments a = tess_arguments_init();
    a.workspace_size = tess_plan_workspace_size(plan);
    a.image_size = tess_plan_image_size(plan);
    a.workspace = p->workspace = lab_device_alloc(backend, a.workspace_size);
    if (!a.workspace)
        return "out of memory for the workspace";
    if (a.image_size)
        a.image = p->image = lab_device_alloc(backend, a.image_size);
    if (a.image_size && !a.image)
        return "out of memory for the plan";
    a.q = &p->q, a.k = &p->k, a.v = &p->v, a.o = &p->o, a.lse = &p->lse;
    p->arguments = a;
    return NULL;
}

static const char *upload(struct bench_result *r, const struct place *p, const tess_plan *plan,
                          tess_backend backend, tess_error *error) {
    double before = lab_seconds();
    if (tess_plan_upload(plan, p->image, p->arguments.image_size, error, NULL) != TESS_OK)
        return error->message;
    const char *why = lab_device_synchronize(backend);
    r->upload_ms = p->image ? 1e3 * (lab_seconds() - before) : 0;
    return why;
}

/* Answers NULL, or why not. */
static const char *run_plan(struct bench_result *r, const struct bench_setting *s,
                            const tess_plan *plan, const struct bench_manner *manner,
                            tess_error *error) {
    tess_backend backend = (tess_backend)r->c.backend;
    tess_plan_info info = tess_plan_info_init();
    struct lab_device_timer timer;
    struct place place;
    if (tess_plan_describe(plan, &info, error) != TESS_OK)
        return error->message;
    const char *why = place_make(&place, s, plan, backend);
    if (!why)
        why = upload(r, &place, plan, backend, error);
    const char *no_timer = lab_device_timer_make(&timer, backend);
    why = why ? why : no_timer;
    if (!why)
        why = time_runs(r, &timer, plan, &place.arguments, manner, error);
    lab_device_timer_free(&timer);
    place_free(&place, backend);
    if (why)
        return why;
    r->pairs = info.pairs;
    r->tflops = 2.0 * (double)(s->c.d + s->c.dv) * (double)info.pairs / (r->ms * 1e9);
    name_kernels(r, plan);
    return NULL;
}

int bench_measure(struct bench_result *r, const struct bench_setting *s, tess_backend backend,
                  tess_pipeline pipeline, const struct bench_manner *manner, char why[LAB_WHY]) {
    tess_error error = tess_error_init();
    tess_target target = tess_target_init();
    tess_device_info device = tess_device_info_init();
    tess_problem problem = lab_case_problem(&s->c, pipeline);
    tess_plan *plan = NULL;
    memset(r, 0, sizeof *r);
    r->c = s->c;
    r->c.backend = (int)backend;
    r->c.pipeline = (int)pipeline;
    const char *reason = error.message;
    int failed = tess_target_query(&target, backend, 0, &error) != TESS_OK ||
                 tess_device_describe(backend, 0, &device, &error) != TESS_OK;
    double before = lab_seconds();
    failed = failed || tess_plan_create(&plan, &problem, s->pattern, &target, &error) != TESS_OK;
    r->plan_ms = 1e3 * (lab_seconds() - before);
    memcpy(r->device, device.name, sizeof r->device);
    int refused = failed && error.status == TESS_UNSUPPORTED && s->c.kernel[0];
    if (!failed) {
        reason = run_plan(r, s, plan, manner, &error);
        failed = reason != NULL;
    }
    if (failed)
        snprintf(why, LAB_WHY, "%s", reason);
    tess_plan_free(plan);
    return refused ? 1 : failed ? -1 : 0;
}
