/* See support.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "lab/fill/half.h"
#include "support/support.h"

struct lab_case case_of(const char *text) {
    struct lab_case c;
    char why[LAB_WHY];
    if (lab_case_parse(&c, text, why))
        fail_msg("%s: %s", text, why);
    return c;
}

void setting_make(struct lab_setting *s, const char *text) {
    const struct lab_case c = case_of(text);
    char why[LAB_WHY];
    if (lab_setting_make(s, &c, why))
        fail_msg("%s: %s", text, why);
}

void work_make(struct lab_work *w, const struct lab_case *c) {
    char why[LAB_WHY], text[LAB_CASE_TEXT];
    if (lab_work_make(w, c, why) == 0)
        return;
    lab_case_print(c, text);
    fail_msg("%s: %s", text, why);
}

struct lab_cases cases_of(const char *path) {
    struct lab_cases cases = {NULL, 0, 0};
    char why[LAB_WHY];
    if (lab_cases_read(&cases, path, why))
        fail_msg("%s", why);
    return cases;
}

void case_fails(const struct lab_case *c, tess_backend backend, tess_pipeline pipeline,
                const char *why) {
    struct lab_case one = *c;
    char text[LAB_CASE_TEXT];
    one.backend = (int)backend, one.pipeline = (int)pipeline;
    lab_case_print(&one, text);
    fail_msg("tessera verify '%s': %s", text, why);
}

tess_plan *setting_plan(const struct lab_setting *s, const tess_pattern *pattern,
                        tess_pipeline pipeline, int64_t threads) {
    tess_error error = tess_error_init();
    tess_problem problem = lab_case_problem(&s->c, pipeline);
    tess_plan *plan = NULL;
    problem.threads = threads;
    if (tess_plan_create(&plan, &problem, pattern ? pattern : s->pattern, NULL, &error) != TESS_OK)
        fail_msg("%s: %s", s->c.pattern, error.message);
    return plan;
}

struct lab_buffer setting_workspace(const tess_plan *plan) {
    struct lab_buffer workspace;
    size_t size = tess_plan_workspace_size(plan);
    if (lab_buffer_make(&workspace, size, 64) != 0)
        fail_msg("no memory for a workspace of %zu bytes", size);
    return workspace;
}

tess_arguments setting_arguments(const struct lab_setting *s, const struct lab_buffer *workspace) {
    tess_arguments arguments = tess_arguments_init();
    arguments.q = &s->q.view;
    arguments.k = &s->k.view;
    arguments.v = &s->v.view;
    arguments.o = &s->o.view;
    arguments.lse = &s->lse.view;
    if (s->c.sum_rows)
        arguments.lse_reference = &s->sums.reference.view,
        arguments.column_sums = &s->sums.sums.view;
    arguments.alibi = (const float *)(const void *)s->modifiers.alibi.data;
    arguments.sink = (const float *)(const void *)s->modifiers.sink.data;
    arguments.seed = (const uint64_t *)(const void *)s->modifiers.seed.data;
    arguments.workspace = workspace->data;
    arguments.workspace_size = workspace->size;
    return arguments;
}

void setting_run_plan(struct lab_setting *s, const tess_plan *plan) {
    char why[LAB_WHY];
    tess_error error = tess_error_init();
    struct lab_buffer workspace = setting_workspace(plan);
    tess_arguments arguments = setting_arguments(s, &workspace);
    lab_tensor_poison(&s->o);
    lab_tensor_poison(&s->lse);
    if (tess_run(plan, &arguments, &error, NULL) != TESS_OK)
        fail_msg("%s: %s", s->c.pattern, error.message);
    if (lab_buffer_check(&workspace, "workspace", why) != 0 ||
        lab_tensor_check(&s->o, "o", why) != 0 || lab_tensor_check(&s->lse, "lse", why) != 0)
        fail_msg("%s: %s", s->c.pattern, why);
    lab_buffer_free(&workspace);
}

void setting_run(struct lab_setting *s, const tess_pattern *pattern, tess_pipeline pipeline,
                 int64_t threads) {
    tess_plan *plan = setting_plan(s, pattern, pipeline, threads);
    setting_run_plan(s, plan);
    tess_plan_free(plan);
}

/* ---- tests that hold for every backend ---- */

static void case_is_right(const struct lab_case *c, tess_backend backend, tess_pipeline pipeline) {
    struct lab_outcome outcome;
    struct lab_work w;
    work_make(&w, c);
    lab_check(&outcome, &w, backend, pipeline, NULL);
    if (outcome.verdict != LAB_PASSED)
        case_fails(c, backend, pipeline, outcome.message);
    lab_work_free(&w);
}

static void case_is_right_shared(const struct lab_case *c, tess_backend backend,
                                 tess_pipeline pipeline) {
    struct lab_outcome outcome;
    lab_check_shared(&outcome, c, backend, pipeline);
    if (outcome.verdict != LAB_PASSED)
        case_fails(c, backend, pipeline, outcome.message);
}

static void each_case(const char *path, tess_backend backend,
                      void (*holds)(const struct lab_case *, tess_backend, tess_pipeline)) {
    struct lab_cases cases = cases_of(path);
    int64_t runs = 0;
    for (int64_t i = 0; i < cases.count; i++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++)
            if (lab_case_asks(&cases.at[i], (int)backend, pipeline)) {
                holds(&cases.at[i], backend, (tess_pipeline)pipeline);
                runs++;
            }
    assert_true(runs >= cases.count); /* each asks for this backend */
    print_message("%s: %lld cases, %lld checks\n", path, (long long)cases.count, (long long)runs);
    lab_cases_free(&cases);
}

void cases_are_right(const char *path, tess_backend backend) {
    each_case(path, backend, case_is_right);
}

void shared_inputs_are_right(const char *path, tess_backend backend) {
    each_case(path, backend, case_is_right_shared);
}

/* Contents of all dims of the one query and of the first of two keys; the other key is 0. */
struct extreme {
    tess_type type;
    double scale, q, k;
};

enum { EXTREME_DIMS = 4 };

/* On the CPU in f32 sums of four terms are near exact: o and lse against the formula for two keys. */
static void two_keys_are_right(const struct lab_work *w) {
    const double score = EXTREME_DIMS * w->s.c.scale * lab_get(w->s.q.view.data, TESS_F32, 0) *
                         lab_get(w->s.k.view.data, TESS_F32, 0);
    const double top = fmax(score, 0), want = top + log(exp(score - top) + exp(-top));
    const double weight = exp(score - want);
    const double v[2] = {lab_get(w->s.v.view.data, TESS_F32, 0),
                         lab_get(w->s.v.view.data, TESS_F32, 1)};
    const double o = lab_get(w->s.o.view.data, TESS_F32, 0);
    const double lse = lab_get(w->s.lse.view.data, TESS_F32, 0);
    assert_true(fabs(lse - want) <= 1e-6 * fmax(1, want));
    assert_true(fabs(o - (v[0] * weight + v[1] * (1 - weight))) < 1e-5);
}

static void extreme_is_right(const struct extreme *x, tess_backend backend,
                             tess_pipeline pipeline) {
    struct lab_outcome outcome;
    struct lab_work w;
    struct lab_case c = case_of("h=1,n=1,nkv=2,d=4,dv=1,pattern=dense");
    c.type = x->type, c.scale = x->scale;
    work_make(&w, &c);
    for (int64_t d = 0; d < EXTREME_DIMS; d++) {
        lab_put(w.s.q.view.data, c.type, d, x->q);
        lab_put(w.s.k.view.data, c.type, d, x->k);
        lab_put(w.s.k.view.data, c.type, EXTREME_DIMS + d, 0);
    }
    assert_int_equal(lab_work_answer(&w), 0);
    lab_check(&outcome, &w, backend, pipeline, NULL);
    if (outcome.verdict != LAB_PASSED)
        fail_msg("%s, %s, scale %g, q %g, k %g: %s", lab_pipeline_name((int)pipeline),
                 tess_type_name(x->type), x->scale, x->q, x->k, outcome.message);
    if (backend == TESS_CPU && c.type == TESS_F32)
        two_keys_are_right(&w);
    lab_work_free(&w);
}

void extreme_scales_are_right(tess_backend backend) {
    static const struct extreme cases[] = {{TESS_F32, 1e30, 1e10, 1e-35},
                                           {TESS_F32, 1e30, 1e10, 0},
                                           {TESS_F32, 1e-30, 1e20, 1e12},
                                           {TESS_F32, 1e-42, 0.5, 2e38},
                                           {TESS_F32, 1e-42, 1e38, 1e33},
                                           {TESS_F32, 1, 1e-40, 1e38},
                                           {TESS_F32, -1e20, 1e19, 1e-38},
                                           {TESS_BF16, 1e30, 1e10, 1e-35},
                                           {TESS_BF16, 1e-30, 1e20, 1e12},
                                           {TESS_BF16, 1e-42, 0.5, 2e38},
                                           {TESS_BF16, 1e-42, 1e38, 1e33},
                                           {TESS_BF16, -1e20, 1e19, 1e-38},
                                           {TESS_BF16, 0x1p-7, 0x1.84p-124, 0x1p127},
                                           {TESS_BF16, 0x1p-12, 0x1.84p-118, 0x1p127},
                                           {TESS_F16, 1e30, 6e-8, 6e-8},
                                           {TESS_F16, 1e-42, 6e4, 6e4},
                                           {TESS_F16, 0x1p-12, 0x1.b34p-8, 6e4},
                                           {TESS_F16, -0x1p-12, 0x1.b34p-8, 6e4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++)
            extreme_is_right(&cases[i], backend, (tess_pipeline)pipeline);
}

/* ---- elements ---- */

static int64_t element(const struct lab_tensor *x, int64_t i) {
    const int64_t *n = x->view.size, row = i / n[3];
    return lab_row(&x->view, row / n[2] / n[1], row / n[2] % n[1], row % n[2]) + i % n[3];
}

static int64_t elements(const struct lab_tensor *x) {
    const int64_t *n = x->view.size;
    return n[0] * n[1] * n[2] * n[3];
}

void tensor_clear(struct lab_tensor *x) {
    for (int64_t i = 0; i < elements(x); i++)
        lab_put(x->view.data, x->view.type, element(x, i), 0);
}

int tensor_is_nan(const struct lab_tensor *x) {
    for (int64_t i = 0; i < elements(x); i++)
        if (!isnan(lab_get(x->view.data, x->view.type, element(x, i))))
            return 0;
    return 1;
}
