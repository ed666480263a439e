/* Column sums: against the oracle with any reference, and with today's lse, where they add up to queries. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <math.h>

#include "lab/fill/half.h"
#include "support/support.h"

static void sums_are_those_of_the_oracle(void **state) {
    (void)state;
    cases_are_right("tests/cases/column_sums.txt", TESS_CPU);
}

/* The setting's run; its sums by today's lse add up to the queries of each group that list a key. */
static void today_check(const char *text) {
    struct lab_setting s;
    setting_make(&s, text);
    tess_plan *plan = setting_plan(&s, NULL, TESS_FUSED, 0);
    setting_run_plan(&s, plan);
    const tess_tensor *lse = &s.lse.view, *sums = &s.sums.sums.view;
    for (int64_t x = 0; x < s.c.h * s.c.n; x++)
        lab_put(s.sums.reference.view.data, TESS_F32,
                lab_row(&s.sums.reference.view, 0, x / s.c.n, x % s.c.n),
                lab_get(lse->data, TESS_F32, lab_row(lse, 0, x / s.c.n, x % s.c.n)));
    setting_run_plan(&s, plan);
    for (int64_t x = 0; x < s.c.h * sums->size[2]; x++) {
        const int64_t h = x / sums->size[2], group = x % sums->size[2];
        double mass = 0, queries = 0;
        for (int64_t j = 0; j < s.c.nkv; j++)
            mass += lab_get(sums->data, TESS_F32, lab_row(sums, 0, h, group) + j);
        for (int64_t i = group * s.c.sum_rows; i < s.c.n && i < (group + 1) * s.c.sum_rows; i++)
            queries += isfinite(lab_get(lse->data, TESS_F32, lab_row(lse, 0, h, i)));
        if (!(fabs(mass - queries) <= 1e-5 * (1 + queries)))
            fail_msg("%s: head %d, group %d: sums of %g for %g queries", text, (int)h, (int)group,
                     mass, queries);
    }
    tess_plan_free(plan);
    lab_setting_free(&s);
}

static void sums_by_todays_lse_are_whole_queries(void **state) {
    (void)state;
    today_check("h=2,n=130,nkv=150,d=32,pattern=dense,sums=32");
    today_check("h=2,n=130,nkv=150,d=32,block=16x16,pattern=random(0.2,1)&segments(50,40),sums=48");
    today_check("h=4,hkv=2,n=300,d=64,dtype=bf16,block=64x64,pattern=causal,sums=192");
}

/* Sums of a group without its last query, with it twice, and in base 2 are all told. */
static void wrong_sums_are_found(void **state) {
    struct lab_work w;
    struct lab_report report;
    struct lab_column_sums other;
    struct lab_case c = case_of("h=1,n=70,nkv=50,d=16,pattern=dense,sums=32");
    (void)state;
    work_make(&w, &c);
    const struct lab_scoring scoring = lab_setting_scoring(&w.s);
    struct lab_sums_of inputs = {&w.s.q.view, &w.s.k.view, &w.s.sums.reference.view,
                                 w.spec,      &scoring,    32};
    for (int wrong = 0; wrong < 3; wrong++) {
        tess_tensor *const reference = &w.s.sums.reference.view;
        const int64_t last = lab_row(reference, 0, 0, 69);
        lab_put(reference->data, TESS_F32, last, 2);
        assert_int_equal(lab_work_answer(&w), 0);
        if (wrong == 1)
            lab_put(reference->data, TESS_F32, last, -(double)INFINITY);
        if (wrong == 2)
            lab_put(reference->data, TESS_F32, last, 2 - log(2.0));
        assert_int_equal(lab_column_sums_run(&other, &inputs), 0);
        for (int64_t x = 0; x < 3 * 50; x++)
            lab_put(w.s.sums.sums.view.data, TESS_F32, x, other.value[x]);
        lab_compare_sums(&report, &w.sums, &w.s.sums.sums.view);
        assert_int_equal(report.ok, wrong == 0);
        lab_column_sums_free(&other);
    }
    lab_work_free(&w);
}

static void refuse(tess_problem problem, const tess_pattern *pattern, tess_status status,
                   const char *words) {
    tess_plan *plan;
    tess_error error = tess_error_init();
    assert_int_equal(tess_plan_create(&plan, &problem, pattern, NULL, &error), status);
    if (!strstr(error.message, words))
        fail_msg("no '%s' in: %s", words, error.message);
}

static void sums_that_cannot_be_are_refused_by_name(void **state) {
    struct lab_setting s;
    (void)state;
    setting_make(&s, "h=1,n=130,d=16,block=48x16,pattern=causal,sums=48");
    const tess_problem good = lab_case_problem(&s.c, TESS_FUSED);
    tess_problem bad = good;
    bad.pipeline = TESS_STAGED;
    refuse(bad, s.pattern, TESS_INVALID_ARGUMENT, "sum_rows");
    bad = good, bad.operation = TESS_ATTENTION_BACKWARD;
    refuse(bad, s.pattern, TESS_INVALID_ARGUMENT, "sum_rows");
    bad = good, bad.sum_type = TESS_F16;
    refuse(bad, s.pattern, TESS_INVALID_ARGUMENT, "sum_type");
    bad = good, bad.sum_rows = 64;
    refuse(bad, s.pattern, TESS_UNSUPPORTED, "sum_rows has to divide block_q");
    bad = good, bad.sum_rows = -1;
    refuse(bad, s.pattern, TESS_INVALID_ARGUMENT, "sum_rows");

    tess_plan *plan = setting_plan(&s, NULL, TESS_FUSED, 0);
    struct lab_buffer workspace = setting_workspace(plan);
    tess_arguments arguments = setting_arguments(&s, &workspace);
    tess_error error = tess_error_init();
    arguments.column_sums = NULL;
    assert_int_equal(tess_run(plan, &arguments, &error, NULL), TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "column_sums");
    arguments = setting_arguments(&s, &workspace);
    arguments.lse_reference = arguments.lse;
    assert_int_equal(tess_run(plan, &arguments, &error, NULL), TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "lse");
    lab_buffer_free(&workspace);
    tess_plan_free(plan);
    lab_setting_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_those_of_the_oracle),
        cmocka_unit_test(sums_by_todays_lse_are_whole_queries),
        cmocka_unit_test(wrong_sums_are_found),
        cmocka_unit_test(sums_that_cannot_be_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
