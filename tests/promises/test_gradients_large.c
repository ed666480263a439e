/*
 * The backward at sizes that no oracle reaches, and of parts: what must hold of sums of gradients.
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
#include "lab/check/identities.h"
#include "support/support.h"

/* The plan of a setting's operation, run on its tensors. o NULL: not given. */
static void run_on(struct lab_setting *s, tess_operation operation, tess_pipeline pipeline,
                   const tess_pattern *pattern, struct lab_wanted *wanted) {
    tess_error error = tess_error_init();
    tess_problem problem = lab_case_problem(&s->c, pipeline);
    tess_plan *plan;
    problem.operation = operation;
    if (operation == TESS_ATTENTION)
        problem.gradients = 0;
    if (tess_plan_create(&plan, &problem, pattern, NULL, &error) != TESS_OK)
        fail_msg("%s", error.message);
    struct lab_buffer workspace = setting_workspace(plan);
    tess_arguments a = setting_arguments(s, &workspace);
    if (operation == TESS_ATTENTION_BACKWARD) {
        a.d_o = &s->given.d_o.view;
        a.d_q = &wanted->d_q.view, a.d_k = &wanted->d_k.view, a.d_v = &wanted->d_v.view;
    }
    if (tess_run(plan, &a, &error, NULL) != TESS_OK)
        fail_msg("%s", error.message);
    lab_buffer_free(&workspace);
    tess_plan_free(plan);
}

static void sums_agree(const char *text, tess_pipeline pipeline) {
    struct lab_setting s;
    char why[LAB_WHY];
    setting_make(&s, text);
    run_on(&s, TESS_ATTENTION, pipeline, s.pattern, NULL);
    run_on(&s, TESS_ATTENTION_BACKWARD, pipeline, s.pattern, &s.wanted);
    if (lab_identities_hold(&s, why))
        fail_msg("%s: %s", text, why);
    /* A wrong gradient breaks the identities. */
    float *first = (float *)(void *)s.wanted.d_v.buffer.data;
    if (s.wanted.d_v.view.type == TESS_F32) {
        first[0] += 100;
        assert_int_equal(lab_identities_hold(&s, why), -1);
        assert_non_null(strstr(why, "dV"));
    }
    lab_setting_free(&s);
}

static void sums_of_many_tokens_agree(void **state) {
    (void)state;
    static const char *const cases[] = {
        "h=1,n=1000000,d=8,pattern=window(20,20),op=backward",
        "h=2,hkv=1,n=100000,d=16,pattern=longformer(64,4),op=backward",
        "h=2,n=20000,d=64,dtype=bf16,pattern=random(0.01,1),op=backward",
        "h=4,hkv=2,n=3000,d=64,dtype=f16,pattern=causal,op=backward",
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        sums_agree(cases[c], TESS_FUSED);
    sums_agree("h=2,hkv=1,n=20000,d=16,pattern=longformer(64,4),op=backward", TESS_STAGED);
}

/* Gradients of rows of x and y added: the largest difference from those of z, over the largest of z. */
static double parts_apart(const struct lab_tensor *x, const struct lab_tensor *y,
                          const struct lab_tensor *z) {
    const float *a = (const float *)(const void *)x->buffer.data,
                *b = (const float *)(const void *)y->buffer.data,
                *whole = (const float *)(const void *)z->buffer.data;
    double apart = 0, largest = 0;
    for (size_t i = 0; i < z->buffer.size / sizeof(float); i++) {
        assert_true(isfinite(a[i]) && isfinite(b[i]) && isfinite(whole[i]));
        apart = fmax(apart, fabs((double)a[i] + (double)b[i] - (double)whole[i]));
        largest = fmax(largest, fabs((double)whole[i]));
    }
    return apart / largest;
}

/* One list's half: the pairs that causal lists, or those that it does not. */
static tess_pattern *half_make(const tess_pattern_shape *whole, int after) {
    tess_pattern_shape shape = *whole;
    tess_pattern *pattern;
    uint8_t *mask = malloc((size_t)(whole->n_q * whole->n_kv));
    assert_non_null(mask);
    for (int64_t x = 0; x < whole->n_q * whole->n_kv; x++)
        mask[x] = (x % whole->n_kv > x / whole->n_kv) == after;
    shape.batch = shape.heads = 1;
    assert_int_equal(tess_pattern_from_mask(&pattern, mask, &shape, NULL), TESS_OK);
    free(mask);
    return pattern;
}

/* Two patterns without a common pair, each run with the lse and o of their union: gradients add up. */
static void parts_add_up(void **state) {
    (void)state;
    static const char *const text = "h=4,hkv=2,n=300,d=32,block=10x10,pattern=dense,op=backward";
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        struct lab_setting s;
        struct lab_wanted near, far;
        tess_pattern_shape shape;
        tess_pattern *parts[2];
        setting_make(&s, text);
        shape = lab_case_shape(&s.c);
        assert_int_equal(lab_wanted_make(&near, &s.c), 0);
        assert_int_equal(lab_wanted_make(&far, &s.c), 0);
        parts[0] = half_make(&shape, 0), parts[1] = half_make(&shape, 1);
        run_on(&s, TESS_ATTENTION, (tess_pipeline)pipeline, s.pattern, NULL);
        run_on(&s, TESS_ATTENTION_BACKWARD, (tess_pipeline)pipeline, s.pattern, &s.wanted);
        run_on(&s, TESS_ATTENTION_BACKWARD, (tess_pipeline)pipeline, parts[0], &near);
        run_on(&s, TESS_ATTENTION_BACKWARD, (tess_pipeline)pipeline, parts[1], &far);
        assert_true(parts_apart(&near.d_q, &far.d_q, &s.wanted.d_q) < 1e-5);
        assert_true(parts_apart(&near.d_k, &far.d_k, &s.wanted.d_k) < 1e-5);
        assert_true(parts_apart(&near.d_v, &far.d_v, &s.wanted.d_v) < 1e-5);
        assert_true(parts_apart(&near.d_v, &near.d_v, &s.wanted.d_v) > 1e-2);
        for (int p = 0; p < 2; p++)
            tess_pattern_free(parts[p]);
        lab_wanted_free(&near);
        lab_wanted_free(&far);
        lab_setting_free(&s);
    }
}

/* V of equal rows: o does not depend on the weights, and dQ and dK are 0 but for rounding. */
static void equal_values_have_no_score_gradients(void **state) {
    (void)state;
    struct lab_setting s;
    setting_make(&s, "h=2,n=200,d=32,pattern=window(30,10),op=backward");
    for (int64_t h = 0; h < s.c.hkv; h++)
        for (int64_t j = 0; j < s.c.nkv; j++)
            for (int64_t d = 0; d < s.c.dv; d++)
                lab_put(s.v.view.data, TESS_F32, lab_row(&s.v.view, 0, h, j) + d, 0.25 * (double)d);
    run_on(&s, TESS_ATTENTION, TESS_FUSED, s.pattern, NULL);
    run_on(&s, TESS_ATTENTION_BACKWARD, TESS_FUSED, s.pattern, &s.wanted);
    const struct lab_tensor *const none[] = {&s.wanted.d_q, &s.wanted.d_k};
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < none[t]->buffer.size / sizeof(float); i++)
            assert_true(fabs(lab_get(none[t]->buffer.data, TESS_F32, (int64_t)i)) < 1e-3);
    assert_true(fabs(lab_get(s.wanted.d_v.buffer.data, TESS_F32, 0)) > 1e-3);
    lab_setting_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_many_tokens_agree),
        cmocka_unit_test(parts_add_up),
        cmocka_unit_test(equal_values_have_no_score_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
