/*
 * Stage 2 alone: rows of scores against softmax in double precision, long rows included; -Inf, +Inf
 * and NaN; the lse; and the exponential that the fused kernel shares.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "lab/fill/half.h"
#include "lab/memory/guard.h"
#include "lab/fill/rng.h"
#include "isa/vector.h"

#define SEED 40

/* ---- 2^x ---- */

static float exp2_of(float x) {
    vf p = v_exp2(v_set(x));
    for (int lane = 1; lane < CPU_LANES; lane++)
        assert_memory_equal((float *)&p + lane, &p, sizeof(float));
    return p[0];
}

static double ulp_of(double x) {
    int exponent;
    frexp(x, &exponent);
    return ldexp(1, exponent - 24);
}

/* Evenly spread arguments, and a run of neighbours near 0. 1.3 ulp is what was measured without FMA
 * over all arguments that a rounded exponent leaves. */
static void exp2_is_accurate(void **state) {
    double worst = 0;
    (void)state;
    for (int64_t i = 0; i < 3000000; i++) {
        float x = i < 2000000 ? (float)(-126.0 * (double)i / 2e6)
                              : -0x1p-13f - 0x1p-36f * (float)(i - 2000000);
        double exact = exp2((double)x);
        double error = fabs((double)exp2_of(x) - exact) / ulp_of(exact);
        worst = error > worst ? error : worst;
    }
    print_message("worst error of exp2: %.3f ulp\n", worst);
    assert_true(worst <= 1.3);
}

static void exp2_has_its_special_values(void **state) {
    (void)state;
    assert_true(exp2_of(0) == 1);
    assert_true(exp2_of(-0.0f) == 1);
    for (int n = 1; n <= 126; n++)
        assert_true(exp2_of((float)-n) == (float)ldexp(1, -n));
    assert_true(exp2_of(nextafterf(-126, -INFINITY)) == 0);
    assert_true(exp2_of(-1e30f) == 0);
    assert_true(exp2_of(-INFINITY) == 0);
    assert_true(isnan(exp2_of(NAN)));
    assert_true(isnan(exp2_of(-NAN)));
}

/* ---- rows: a pattern of dense blocks, whose scores are set by hand ---- */

struct stage {
    tess_pattern *pattern;
    tess_plan *plan;
    struct lab_buffer scores;
    struct lab_tensor lse;
    float *x; /* the scores: row r of block row i at ((i * block_q) + r) * n_kv */
};

static void stage_make(struct stage *s, int64_t n_q, int64_t n_kv, int64_t block_q,
                       int64_t block_kv) {
    tess_error error = tess_error_init();
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_problem problem = tess_problem_init();
    shape.n_q = problem.n_q = n_q;
    shape.n_kv = problem.n_kv = n_kv;
    shape.block_q = block_q;
    shape.block_kv = block_kv;
    problem.pipeline = TESS_STAGED;
    problem.batch = problem.heads_q = problem.heads_kv = problem.d_qk = problem.d_v = 1;
    problem.threads = 2;
    problem.alignment = 4;
    const int64_t lse[4] = {1, 1, n_q, 1};
    assert_int_equal(TESS_OK, tess_pattern_from_spec(&s->pattern, "dense", &shape, &error));
    if (tess_plan_create(&s->plan, &problem, s->pattern, NULL, &error))
        fail_msg("%s", error.message);
    size_t size = (size_t)tess_plan_scores_count(s->plan) * sizeof(float);
    assert_int_equal(0, lab_buffer_make(&s->scores, size, 64));
    assert_int_equal(0, lab_tensor_make(&s->lse, TESS_F32, lse, LAB_PADDED, 16));
    s->x = (float *)(void *)s->scores.data;
}

static void stage_run(struct stage *s, int with_lse) {
    char why[LAB_WHY];
    struct lab_buffer workspace;
    tess_error error = tess_error_init();
    size_t size = tess_plan_stage_workspace_size(s->plan, TESS_STAGE_SOFTMAX);
    assert_int_equal(0, lab_buffer_make(&workspace, size, 64));
    tess_arguments arguments = tess_arguments_init();
    arguments.scores = s->x;
    arguments.lse = with_lse ? &s->lse.view : NULL;
    arguments.workspace = workspace.data;
    arguments.workspace_size = workspace.size;
    if (tess_softmax(s->plan, &arguments, &error, NULL))
        fail_msg("%s", error.message);
    if (lab_buffer_check(&s->scores, "scores", why) || lab_tensor_check(&s->lse, "lse", why) ||
        lab_buffer_check(&workspace, "workspace", why))
        fail_msg("%s", why);
    lab_buffer_free(&workspace);
}

static void stage_free(struct stage *s) {
    tess_plan_free(s->plan);
    tess_pattern_free(s->pattern);
    lab_buffer_free(&s->scores);
    lab_tensor_free(&s->lse);
}

static float lse_of(const struct stage *s, int64_t row) {
    return ((float *)s->lse.view.data)[lab_row(&s->lse.view, 0, 0, row)];
}

/* One row of n scores of a spread, some of them -Inf, against double precision. */
static void row_check(int64_t n, int64_t block_kv, double spread) {
    struct stage s;
    stage_make(&s, 1, n, 1, block_kv);
    int64_t width = tess_plan_scores_count(s.plan);
    double *score = malloc((size_t)width * sizeof *score), m = -INFINITY, l = 0, size = 1;
    assert_non_null(score);
    for (int64_t j = 0; j < width; j++) {
        uint64_t i = (uint64_t)j;
        float x = (float)(spread * lab_normal(SEED, 0, i));
        s.x[j] = j >= n || lab_below(SEED, 1, i, 4) == 0 ? -INFINITY : x;
        score[j] = (double)s.x[j];
        m = fmax(m, score[j]);
        size = isinf(score[j]) ? size : fmax(size, fabs(score[j]));
    }
    for (int64_t j = 0; j < width; j++)
        l += exp(score[j] - m);
    stage_run(&s, 1);
    for (int64_t j = 0; j < width; j++) {
        double exact = exp(score[j] - m) / l;
        if (isinf(score[j]))
            assert_true(s.x[j] == 0);
        assert_true(fabs((double)s.x[j] - exact) <= 0x1p-22 * (4 + size) * exact + 0x1p-125);
    }
    assert_true(fabs((double)lse_of(&s, 0) - (m + log(l))) <= 0x1p-23 * fmax(1, fabs(m + log(l))));
    free(score);
    stage_free(&s);
}

static void rows_are_right(void **state) {
    static const int64_t lengths[] = {5, 8, 31, 64, 1023, 1025, 5003, 200003};
    static const double spreads[] = {0.1, 3, 60, 3000};
    (void)state;
    for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++)
        for (size_t i = 0; i < sizeof spreads / sizeof spreads[0]; i++)
            row_check(lengths[n], n % 2 ? 64 : 7, spreads[i]);
}

static void special_rows(void **state) {
    enum { N = 22 };
    struct stage s;
    (void)state;
    stage_make(&s, 5, N, 8, N); /* one block row, whose last three rows do not exist */
    for (int with_lse = 0; with_lse < 2; with_lse++) {
        for (int j = 0; j < N; j++) {
            s.x[0 * N + j] = -INFINITY;
            s.x[1 * N + j] = j == 20 ? 1e30f : -INFINITY;
            s.x[2 * N + j] = j == 3 ? INFINITY : (float)j;
            s.x[3 * N + j] = j == 21 ? NAN : j % 2 ? -INFINITY : 1.0f;
            s.x[4 * N + j] = -3;
            s.x[5 * N + j] = s.x[6 * N + j] = s.x[7 * N + j] = 7;
        }
        stage_run(&s, with_lse);
        for (int j = 0; j < N; j++) {
            assert_true(s.x[0 * N + j] == 0);
            assert_true(s.x[1 * N + j] == (j == 20 ? 1 : 0));
            assert_true(j == 3 ? isnan(s.x[2 * N + j]) : !(s.x[2 * N + j] > 0));
            if (j % 2 && j != 21)
                assert_true(s.x[3 * N + j] == 0);
            else
                assert_true(isnan(s.x[3 * N + j]));
            assert_true(fabsf(s.x[4 * N + j] - 1.0f / N) <= 1e-8f);
            assert_true(s.x[5 * N + j] == 7 && s.x[6 * N + j] == 7 && s.x[7 * N + j] == 7);
        }
    }
    assert_true(lse_of(&s, 0) == -INFINITY);
    assert_true(lse_of(&s, 1) == 1e30f);
    assert_true(isnan(lse_of(&s, 2)));
    assert_true(isnan(lse_of(&s, 3)));
    assert_true(fabs((double)lse_of(&s, 4) - (log(N) - 3)) <= 1e-7);
    stage_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp2_is_accurate),
        cmocka_unit_test(exp2_has_its_special_values),
        cmocka_unit_test(rows_are_right),
        cmocka_unit_test(special_rows),
    };
    printf("seed %d\n", SEED);
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
