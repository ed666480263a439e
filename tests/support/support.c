/* See support.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/fill.h"
#include "support/support.h"

void setting_make(struct setting *s, const char *text) {
    char why[LAB_WHY];
    tess_error error = tess_error_init();
    *s = (struct setting){.pattern = NULL};
    if (lab_case_parse(&s->c, text, why) != 0)
        fail_msg("%s: %s", text, why);
    if (lab_case_pattern(&s->c, &s->pattern, &error) != TESS_OK)
        fail_msg("%s: %s", text, error.message);

    const struct lab_case *c = &s->c;
    const struct {
        struct lab_tensor *tensor;
        tess_type type;
        int64_t size[4];
    } wanted[] = {
        {&s->q, c->type, {c->b, c->h, c->n, c->d}},
        {&s->k, c->type, {c->b, c->hkv, c->nkv, c->d}},
        {&s->v, c->type, {c->b, c->hkv, c->nkv, c->dv}},
        {&s->o, c->type, {c->b, c->h, c->n, c->dv}},
        {&s->lse, TESS_F32, {c->b, c->h, c->n, 1}},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (lab_tensor_make(wanted[i].tensor, wanted[i].type, wanted[i].size, c->layout,
                            c->align) != 0)
            fail_msg("%s: no memory for the tensors", text);
    lab_fill(c, &s->q.view, &s->k.view, &s->v.view);
}

void setting_free(struct setting *s) {
    lab_tensor_free(&s->q);
    lab_tensor_free(&s->k);
    lab_tensor_free(&s->v);
    lab_tensor_free(&s->o);
    lab_tensor_free(&s->lse);
    tess_pattern_free(s->pattern);
}

tess_plan *setting_plan(const struct setting *s, const tess_pattern *pattern,
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

tess_arguments setting_arguments(const struct setting *s, const struct lab_buffer *workspace) {
    tess_arguments arguments = tess_arguments_init();
    arguments.q = &s->q.view;
    arguments.k = &s->k.view;
    arguments.v = &s->v.view;
    arguments.o = &s->o.view;
    arguments.lse = &s->lse.view;
    arguments.workspace = workspace->data;
    arguments.workspace_size = workspace->size;
    return arguments;
}

void setting_run_plan(struct setting *s, const tess_plan *plan) {
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

void setting_run(struct setting *s, const tess_pattern *pattern, tess_pipeline pipeline,
                 int64_t threads) {
    tess_plan *plan = setting_plan(s, pattern, pipeline, threads);
    setting_run_plan(s, plan);
    tess_plan_free(plan);
}
