/* One measurement. */
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>

#include "lab/device.h"
#include "lab/fill.h"
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

static int time_runs(struct bench_result *r, const tess_plan *plan, const tess_arguments *a,
                     double seconds, tess_error *error) {
    double times[MOST_RUNS], start = 0;
    int64_t runs = 0;
    for (int64_t i = -1; i < MOST_RUNS; i++) { /* -1 warms up */
        double before = lab_seconds();
        if (tess_run(plan, a, error, NULL) != TESS_OK)
            return -1;
        double after = lab_seconds();
        if (i < 0) {
            start = after;
            continue;
        }
        times[runs++] = 1e3 * (after - before);
        if (runs >= LEAST_RUNS && after - start >= seconds)
            break;
    }
    qsort(times, (size_t)runs, sizeof *times, ascending);
    r->runs = runs;
    r->ms_min = times[0];
    r->ms_max = times[runs - 1];
    r->ms = runs % 2 ? times[runs / 2] : 0.5 * (times[runs / 2 - 1] + times[runs / 2]);
    return 0;
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

static int run_plan(struct bench_result *r, const struct bench_setting *s, const tess_plan *plan,
                    double seconds, tess_error *error) {
    tess_plan_info info = tess_plan_info_init();
    tess_arguments a = tess_arguments_init();
    if (tess_plan_describe(plan, &info, error) != TESS_OK)
        return -1;
    a.q = &s->q.view, a.k = &s->k.view, a.v = &s->v.view, a.o = &s->o.view, a.lse = &s->lse.view;
    a.workspace_size = tess_plan_workspace_size(plan);
    a.workspace = lab_device_alloc((tess_backend)r->c.backend, a.workspace_size);
    if (!a.workspace) {
        snprintf(error->message, sizeof error->message, "out of memory for the workspace");
        return -1;
    }
    int failed = time_runs(r, plan, &a, seconds, error);
    lab_device_free((tess_backend)r->c.backend, a.workspace);
    if (failed)
        return -1;
    r->pairs = info.pairs;
    r->tflops = 2.0 * (double)(s->c.d + s->c.dv) * (double)info.pairs / (r->ms * 1e9);
    name_kernels(r, plan);
    return 0;
}

int bench_measure(struct bench_result *r, const struct bench_setting *s, tess_backend backend,
                  tess_pipeline pipeline, double seconds, char why[LAB_WHY]) {
    tess_error error = tess_error_init();
    tess_target target = tess_target_init();
    tess_device_info device = tess_device_info_init();
    tess_problem problem = lab_case_problem(&s->c, pipeline);
    tess_plan *plan = NULL;
    memset(r, 0, sizeof *r);
    r->c = s->c;
    r->c.backend = (int)backend;
    r->c.pipeline = (int)pipeline;
    int failed = tess_target_query(&target, backend, 0, &error) != TESS_OK ||
                 tess_device_describe(backend, 0, &device, &error) != TESS_OK;
    double before = lab_seconds();
    failed = failed || tess_plan_create(&plan, &problem, s->pattern, &target, &error) != TESS_OK;
    r->plan_ms = 1e3 * (lab_seconds() - before);
    memcpy(r->device, device.name, sizeof r->device);
    failed = failed || run_plan(r, s, plan, seconds, &error);
    if (failed)
        snprintf(why, LAB_WHY, "%s", error.message);
    int refused = failed && error.status == TESS_UNSUPPORTED && s->c.kernel[0];
    tess_plan_free(plan);
    return refused ? 1 : failed ? -1 : 0;
}
