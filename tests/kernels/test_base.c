/* Runs on the CPU that start from a base, and what is refused on any backend. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/basing.h"

static void cases(void **state) {
    (void)state;
    cases_are_right("tests/cases/base.txt", TESS_CPU);
}

static void complements(void **state) {
    (void)state;
    lists_join_their_complements(TESS_CPU);
}

static void deltas(void **state) {
    (void)state;
    deltas_are_dense_when_cached(TESS_CPU);
}

/* ---- refusals ---- */

/* A plan of each pipeline and its run, which a test then spoils. */
struct given {
    struct lab_setting s;
    tess_plan *plan;
    struct lab_buffer workspace;
    struct lab_tensor base_o, base_lse;
    tess_arguments a;
};

static void given_make(struct given *g, tess_pipeline pipeline) {
    setting_make(&g->s, "h=2,n=20,d=8,dtype=bf16,block=4x4,pattern=causal");
    g->plan = setting_plan(&g->s, NULL, pipeline, 1);
    g->workspace = setting_workspace(g->plan);
    assert_int_equal(lab_setting_again(&g->s, &g->s.o, &g->base_o), 0);
    assert_int_equal(lab_setting_again(&g->s, &g->s.lse, &g->base_lse), 0);
    tensor_clear(&g->base_o);
    tensor_clear(&g->base_lse);
    g->a = setting_arguments(&g->s, &g->workspace);
    g->a.base = TESS_BASE_MERGE;
    g->a.base_o = &g->base_o.view, g->a.base_lse = &g->base_lse.view;
}

static void given_free(struct given *g) {
    tess_plan_free(g->plan);
    lab_buffer_free(&g->workspace);
    lab_tensor_free(&g->base_o);
    lab_tensor_free(&g->base_lse);
    lab_setting_free(&g->s);
}

/* Refused, with these words about this argument; what the run was given before is good. */
static void expect(struct given *g, tess_status status, const char *argument, const char *words) {
    tess_error error = tess_error_init();
    assert_int_equal(tess_run(g->plan, &g->a, &error, NULL), status);
    assert_string_equal(error.function, "tess_run");
    assert_string_equal(error.argument, argument);
    if (!strstr(error.message, words))
        fail_msg("'%s' does not say '%s'", error.message, words);
    g->a.base = TESS_BASE_MERGE, g->a.beta = 0;
    g->a.base_o = &g->base_o.view, g->a.base_lse = &g->base_lse.view;
    g->a.o = &g->s.o.view, g->a.lse = &g->s.lse.view;
    assert_int_equal(tess_run(g->plan, &g->a, NULL, NULL), TESS_OK);
}

static void arguments_are_checked(void **state) {
    (void)state;
    const tess_status invalid = TESS_INVALID_ARGUMENT;
    struct given g;
    given_make(&g, TESS_FUSED);
    g.a.base = (tess_base)3;
    expect(&g, invalid, "base", "none of TESS_BASE_");
    g.a.base = TESS_BASE_NONE;
    expect(&g, invalid, "base_o", "base is TESS_BASE_NONE");
    g.a.base = TESS_BASE_NONE, g.a.base_o = NULL;
    expect(&g, invalid, "base_lse", "base is not TESS_BASE_MERGE");
    g.a.base = TESS_BASE_ADD;
    expect(&g, invalid, "base_lse", "base is not TESS_BASE_MERGE");
    g.a.beta = 0.5;
    expect(&g, invalid, "beta", "base is not TESS_BASE_ADD");
    g.a.base = TESS_BASE_ADD, g.a.base_lse = NULL, g.a.beta = (double)NAN;
    expect(&g, invalid, "beta", "not finite");
    g.a.base_o = NULL;
    expect(&g, invalid, "base_o", "NULL");
    g.a.base_lse = NULL;
    expect(&g, invalid, "base_lse", "NULL");
    tess_tensor t = g.base_o.view;
    t.type = TESS_F32;
    g.a.base_o = &t;
    expect(&g, invalid, "base_o", "should be bf16");
    t = g.base_o.view, t.size[2]--;
    g.a.base_o = &t;
    expect(&g, invalid, "base_o", "rows");
    g.a.lse = &g.base_lse.view;
    expect(&g, invalid, "lse", "begins where another");
    t = g.base_o.view, t.stride[1] *= 2, t.size[1] = 2;
    g.a.o = &g.base_o.view, g.a.base_o = &t;
    expect(&g, invalid, "o", "begins where another");
    given_free(&g);
}

static void other_runs_take_none(void **state) {
    (void)state;
    struct given g;
    tess_error error = tess_error_init();
    given_make(&g, TESS_STAGED);
    assert_int_equal(tess_run(g.plan, &g.a, &error, NULL), TESS_UNSUPPORTED);
    assert_string_equal(error.argument, "base");
    assert_non_null(strstr(error.message, "TESS_FUSED"));
    given_free(&g);
    struct lab_setting s;
    setting_make(&s, "h=2,n=20,d=8,pattern=causal,op=backward");
    tess_plan *plan = setting_plan(&s, NULL, TESS_FUSED, 1);
    tess_arguments a = tess_arguments_init();
    a.base = TESS_BASE_ADD;
    assert_int_equal(tess_run(plan, &a, &error, NULL), TESS_UNSUPPORTED);
    assert_string_equal(error.argument, "base");
    tess_plan_free(plan);
    lab_setting_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cases),
        cmocka_unit_test(complements),
        cmocka_unit_test(deltas),
        cmocka_unit_test(arguments_are_checked),
        cmocka_unit_test(other_runs_take_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
