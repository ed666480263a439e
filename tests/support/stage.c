/* One stage of a staged plan by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/stage.h"

#include "lab/fill/fill.h"
#include "lab/lists/source.h"

void stage_make(struct stage *s, const char *text) {
    char why[LAB_WHY];
    tess_error error = tess_error_init();
    if (lab_case_parse(&s->c, text, why))
        fail_msg("%s: %s", text, why);
    if (lab_case_pattern(&s->c, &s->pattern, &error))
        fail_msg("%s: %s", text, error.message);
    const struct lab_case *c = &s->c;
    const int64_t q[4] = {c->b, c->h, c->n, c->d}, k[4] = {c->b, c->hkv, c->nkv, c->d};
    const int64_t v[4] = {c->b, c->hkv, c->nkv, c->dv}, o[4] = {c->b, c->h, c->n, c->dv};
    assert_int_equal(0, lab_tensor_make(&s->q, c->type, q, c->layout, c->align));
    assert_int_equal(0, lab_tensor_make(&s->k, c->type, k, c->layout, c->align));
    assert_int_equal(0, lab_tensor_make(&s->v, c->type, v, c->layout, c->align));
    assert_int_equal(0, lab_tensor_make(&s->o, c->type, o, c->layout, c->align));
    lab_fill(c, &s->q.view, &s->k.view, &s->v.view);
    assert_int_equal(0, lab_fill_poison(s->pattern, c->h, &s->k.view, &s->v.view));
    tess_problem problem = lab_case_problem(c, TESS_STAGED);
    if (tess_plan_create(&s->plan, &problem, s->pattern, NULL, &error))
        fail_msg("%s: %s", text, error.message);
    size_t size = (size_t)tess_plan_scores_count(s->plan) * sizeof(float);
    assert_int_equal(0, lab_buffer_make(&s->scores, size, 64));
    s->x = (float *)(void *)s->scores.data;
}

void stage_free(struct stage *s) {
    tess_plan_free(s->plan);
    tess_pattern_free(s->pattern);
    lab_tensor_free(&s->q);
    lab_tensor_free(&s->k);
    lab_tensor_free(&s->v);
    lab_tensor_free(&s->o);
    lab_buffer_free(&s->scores);
}

void stage_run(const struct stage *s, tess_stage stage, stage_function *function,
               tess_arguments arguments) {
    char why[LAB_WHY];
    struct lab_buffer workspace;
    tess_error error = tess_error_init();
    assert_int_equal(
        0, lab_buffer_make(&workspace, tess_plan_stage_workspace_size(s->plan, stage), 64));
    arguments.scores = s->x;
    arguments.workspace = workspace.data;
    arguments.workspace_size = workspace.size;
    if (function(s->plan, &arguments, &error, NULL))
        fail_msg("%s", error.message);
    if (lab_buffer_check(&s->scores, "scores", why) ||
        lab_buffer_check(&workspace, "workspace", why))
        fail_msg("%s", why);
    lab_buffer_free(&workspace);
}
