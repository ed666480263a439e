/* The MLP on lists, on the CPU: against its oracle, which finds slips that were planted; and its refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lab/fill/fill.h"
#include "lab/fill/half.h"
#include "support/support.h"

static void mlps_are_those_of_the_oracle(void **state) {
    (void)state;
    cases_are_right("tests/cases/mlp.txt", TESS_CPU);
    cases_are_right("tests/cases/mlp_cpu.txt", TESS_CPU);
}

/* Runs the setting by a pattern, NULL: of all columns. */
static void run_by(struct lab_setting *s, const tess_pattern *pattern) {
    const tess_problem problem = lab_case_problem(&s->c, TESS_FUSED);
    tess_target target = tess_target_init();
    tess_error error = tess_error_init();
    struct lab_planned planned;
    char why[LAB_WHY];
    assert_int_equal(tess_target_query(&target, TESS_CPU, 0, &error), TESS_OK);
    if (lab_planned_make(&planned, &problem, pattern, &target, &error))
        fail_msg("%s", error.message);
    const struct lab_run run = lab_setting_run(s, &planned);
    if (lab_run_whole(&run, why))
        fail_msg("%s", why);
    lab_planned_free(&planned);
}

static int is_right(const struct lab_work *w) {
    struct lab_report report;
    lab_compare_mlp(&report, &w->s, &w->mlp, &w->s.o.view);
    return report.ok;
}

static void scale(const struct lab_tensor *bias, double factor) {
    for (int64_t i = 0; i < bias->view.size[3]; i++)
        lab_put(bias->view.data, bias->view.type, i,
                factor * lab_get(bias->view.data, bias->view.type, i));
}

#define SLIPS "n=136,nkv=264,d=40,dv=72,dtype=bf16,op=mlp,bias=ho,"

/* A bias that is added twice, of either kind. */
static void a_bias_that_is_added_twice_is_found(void **state) {
    struct lab_work w;
    const struct lab_case c = case_of(SLIPS "block=64x1,pattern=random_row(0.3,1)");
    (void)state;
    work_make(&w, &c);
    const struct lab_tensor *const biases[] = {&w.s.mlp.bias, &w.s.mlp.bias_out};
    for (int b = 0; b < 2; b++) {
        scale(biases[b], 2);
        run_by(&w.s, w.s.pattern);
        assert_false(is_right(&w));
        scale(biases[b], 0.5);
        run_by(&w.s, w.s.pattern);
        assert_true(is_right(&w));
    }
    lab_work_free(&w);
}

/* A cache that is read after it was written makes a delta of nothing; one that is not written stays. */
static void a_cache_in_the_wrong_order_is_found(void **state) {
    struct lab_work w;
    const struct lab_case c =
        case_of(SLIPS "block=64x1,pattern=random_row(0.3,1),cache=delta,seed=3");
    (void)state;
    work_make(&w, &c);
    run_by(&w.s, w.s.pattern);
    assert_true(is_right(&w));
    lab_mlp_reset(&w.s.mlp);
    assert_false(is_right(&w));
    run_by(&w.s, w.s.pattern);
    memcpy(w.s.o.buffer.data, w.s.base.o.buffer.data, w.s.o.buffer.size);
    assert_false(is_right(&w));
    lab_work_free(&w);
}

/* The last group, which is short, by the columns of the one before. */
static void a_wrong_group_at_a_ragged_end_is_found(void **state) {
    enum { ROWS = 3, COLUMNS = 40 };
    static int32_t columns[ROWS][COLUMNS];
    struct lab_work w;
    tess_pattern *pattern;
    const struct lab_case c = case_of(SLIPS "block=64x1,pattern=dense");
    tess_pattern_shape shape = lab_case_shape(&c);
    (void)state;
    work_make(&w, &c);
    for (int wrong = 0; wrong < 2; wrong++) {
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < COLUMNS; i++)
                columns[r][i] = 6 * i + (wrong && r == ROWS - 1 ? r - 1 : r);
        assert_int_equal(
            tess_pattern_from_counts(&pattern, columns[0], NULL, COLUMNS, &shape, NULL), TESS_OK);
        if (!wrong) {
            lab_mlp_answer_free(&w.mlp);
            assert_int_equal(lab_setting_mlp(&w.s, pattern, NULL, 0, &w.mlp), 0);
        }
        run_by(&w.s, pattern);
        assert_int_equal(is_right(&w), !wrong);
        tess_pattern_free(pattern);
    }
    lab_work_free(&w);
}

/* Bits of h do not depend on what else is listed, nor on how tiles are cut: the cache has the same. */
static void activations_do_not_depend_on_other_columns(void **state) {
    static const char *const types[] = {"f32", "f16", "bf16"};
    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        char text[LAB_CASE_TEXT];
        struct lab_work w, all;
        snprintf(
            text, sizeof text,
            "n=136,nkv=264,d=200,dv=40,dtype=%s,op=mlp,bias=h,cache=store,block=64x1,pattern=dense",
            types[t]);
        struct lab_case c = case_of(text);
        work_make(&all, &c);
        run_by(&all.s, NULL);
        snprintf(c.pattern, sizeof c.pattern, "random_row(0.2,1)");
        work_make(&w, &c);
        lab_fill(&c, &w.s.q.view, &w.s.k.view, &w.s.v.view);
        run_by(&w.s, w.s.pattern);
        const tess_tensor *part = &w.s.mlp.cache.view, *whole = &all.s.mlp.cache.view;
        int64_t columns[264], n, seen = 0;
        for (int64_t i = 0; i < c.n; i++) {
            assert_int_equal(tess_pattern_row(w.s.pattern, 0, 0, i, columns, 264, &n, NULL),
                             TESS_OK);
            for (int64_t j = 0; j < n; j++, seen++)
                assert_true(
                    lab_get(part->data, part->type, lab_row(part, 0, 0, columns[j]) + i) ==
                    lab_get(whole->data, whole->type, lab_row(whole, 0, 0, columns[j]) + i));
        }
        assert_true(seen > c.n * c.nkv / 10);
        lab_work_free(&w);
        lab_work_free(&all);
    }
}

/* ---- refusals ---- */

static void plan_refuses(const struct lab_setting *s, tess_problem problem, const char *words) {
    tess_plan *plan;
    tess_error error = tess_error_init();
    assert_int_not_equal(tess_plan_create(&plan, &problem, s->pattern, NULL, &error), TESS_OK);
    if (!strstr(error.message, words))
        fail_msg("no '%s' in: %s", words, error.message);
}

static void problems_that_are_no_mlp_are_refused_by_name(void **state) {
    struct lab_setting s;
    (void)state;
    setting_make(&s, "n=130,nkv=130,d=16,block=64x1,pattern=random_row(0.5,1),op=mlp");
    const tess_problem good = lab_case_problem(&s.c, TESS_FUSED);
    tess_problem bad = good;
    bad.pipeline = TESS_STAGED;
    plan_refuses(&s, bad, "no staged pipeline");
    bad = good, bad.heads_q = 2;
    plan_refuses(&s, bad, "heads_q and heads_kv must be 1");
    bad = good, bad.scale = 0.5;
    plan_refuses(&s, bad, "has no scale");
    bad = good, bad.softcap = 3;
    plan_refuses(&s, bad, "no score modifiers");
    bad = good, bad.whole_n_q = 200;
    plan_refuses(&s, bad, "offsets");
    bad = good, bad.part_keys = 128;
    plan_refuses(&s, bad, "part_keys must be 0");
    bad = good, bad.o_rest = 1;
    plan_refuses(&s, bad, "o_rest");
    bad = good, bad.v_in_k = 1;
    plan_refuses(&s, bad, "an MLP does not compute v_in_k");
    bad = good, bad.activation = (tess_activation)7;
    plan_refuses(&s, bad, "activation is none of");
    bad = good, bad.operation = TESS_ATTENTION, bad.activation = TESS_RELU;
    plan_refuses(&s, bad, "operation is not TESS_MLP");
    bad = good, bad.tile_rows = 128;
    plan_refuses(&s, bad, "leave tile_rows 0");
    lab_setting_free(&s);
    setting_make(&s, "n=130,nkv=130,d=16,block=64x64,pattern=dense,op=mlp");
    tess_pattern_free(s.pattern);
    const tess_pattern_shape shape = lab_case_shape(&s.c);
    assert_int_equal(tess_pattern_from_spec(&s.pattern, "causal", &shape, NULL), TESS_OK);
    plan_refuses(&s, good, "whole columns of groups of rows");
    lab_setting_free(&s);
}

static void masks_and_cuts_are_refused_by_name(void **state) {
    struct lab_setting s;
    tess_error error = tess_error_init();
    tess_plan *plan;
    (void)state;
    setting_make(&s, "n=130,nkv=130,d=16,block=64x1,topk=40,op=mlp");
    const tess_problem problem = lab_case_problem(&s.c, TESS_FUSED);
    tess_device_pattern pattern = lab_listed_declared(&s.listed);
    pattern.cut_lo = -3;
    assert_int_equal(tess_plan_reserve(&plan, &problem, &pattern, NULL, &error), TESS_UNSUPPORTED);
    assert_non_null(strstr(error.message, "cut_lo"));
    pattern.cut_lo = 0, pattern.form = TESS_MASK;
    assert_int_equal(tess_plan_reserve(&plan, &problem, &pattern, NULL, &error), TESS_UNSUPPORTED);
    assert_non_null(strstr(error.message, "TESS_MASK"));
    lab_setting_free(&s);
}

static void run_refuses(const tess_plan *plan, tess_arguments arguments, const char *argument,
                        const char *words) {
    tess_error error = tess_error_init();
    assert_int_not_equal(tess_run(plan, &arguments, &error, NULL), TESS_OK);
    assert_string_equal(error.argument, argument);
    if (!strstr(error.message, words))
        fail_msg("no '%s' in: %s", words, error.message);
}

/* W2 as torch stores it, by its sizes and by its strides; a base and tensors that an MLP has no use for. */
static void arguments_that_do_not_fit_are_refused_by_name(void **state) {
    struct lab_setting s;
    (void)state;
    setting_make(&s, "n=64,nkv=120,d=16,dv=40,block=64x1,pattern=dense,op=mlp,cache=delta");
    tess_plan *plan = setting_plan(&s, NULL, TESS_FUSED, 0);
    struct lab_buffer workspace = setting_workspace(plan);
    tess_arguments good = tess_arguments_init(), bad;
    good.q = &s.q.view, good.k = &s.k.view, good.v = &s.v.view, good.o = &s.o.view;
    good.workspace = workspace.data, good.workspace_size = workspace.size;
    good.activations = &s.mlp.cache.view;
    tess_error error = tess_error_init();
    assert_int_equal(tess_run(plan, &good, &error, NULL), TESS_OK);
    tess_tensor torch = tess_tensor_bhnd(s.v.view.data, TESS_F32, 1, 1, 40, 120);
    bad = good, bad.v = &torch;
    run_refuses(plan, bad, "v", "torch stores [N, F]");
    torch.size[2] = 120, torch.size[3] = 40, torch.stride[2] = 1, torch.stride[3] = 120;
    run_refuses(plan, bad, "v", "torch stores [N, F]");
    bad = good, bad.base = TESS_BASE_MERGE, bad.base_o = &s.base.o.view;
    run_refuses(plan, bad, "base", "TESS_BASE_ADD");
    bad = good, bad.lse = &s.lse.view;
    run_refuses(plan, bad, "lse", "does not declare");
    const tess_tensor turned = tess_tensor_bhnd(s.mlp.cache.view.data, TESS_F32, 1, 1, 64, 120);
    bad = good, bad.activations = &turned;
    run_refuses(plan, bad, "activations", "should have 120");
    bad = good, bad.bias = &s.o.view;
    run_refuses(plan, bad, "bias", "should have 1");
    bad = good, bad.activations = &s.o.view;
    run_refuses(plan, bad, "activations", "activations");
    lab_buffer_free(&workspace);
    tess_plan_free(plan);
    lab_setting_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mlps_are_those_of_the_oracle),
        cmocka_unit_test(a_bias_that_is_added_twice_is_found),
        cmocka_unit_test(a_cache_in_the_wrong_order_is_found),
        cmocka_unit_test(a_wrong_group_at_a_ragged_end_is_found),
        cmocka_unit_test(activations_do_not_depend_on_other_columns),
        cmocka_unit_test(problems_that_are_no_mlp_are_refused_by_name),
        cmocka_unit_test(masks_and_cuts_are_refused_by_name),
        cmocka_unit_test(arguments_that_do_not_fit_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
