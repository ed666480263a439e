/*
 * Losses of o by rounding, over types, pipelines, packed heads, splits and tails. o is o + o_rest
 * rounded. o + o_rest is far nearer to the oracle than o alone could be, but on levels that round P. o and
 * lse have the same bits as without o_rest.
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
#include "support/support.h"

static void run(struct lab_setting *s, tess_pipeline pipeline, const tess_tensor *rest) {
    char why[LAB_WHY];
    tess_plan *plan;
    tess_error error = tess_error_init();
    tess_problem problem = lab_case_problem(&s->c, pipeline);
    problem.o_rest = rest != NULL;
    if (tess_plan_create(&plan, &problem, s->pattern, NULL, &error))
        fail_msg("%s", error.message);
    struct lab_buffer workspace = setting_workspace(plan);
    tess_arguments arguments = setting_arguments(s, &workspace);
    arguments.o_rest = rest;
    lab_tensor_poison(&s->o);
    lab_tensor_poison(&s->lse);
    if (tess_run(plan, &arguments, &error, NULL))
        fail_msg("%s", error.message);
    if (lab_tensor_check(&s->o, "o", why) || lab_tensor_check(&s->lse, "lse", why) ||
        lab_buffer_check(&workspace, "workspace", why))
        fail_msg("%s", why);
    lab_buffer_free(&workspace);
    tess_plan_free(plan);
}

/* Whether the fused kernel multiplies P rounded to the problem's type: bf16, in pairs. */
static int rounds_p(const struct lab_setting *s, tess_pipeline pipeline) {
    const char *isa = tess_cpu_isa();
    return pipeline == TESS_FUSED && s->c.type == TESS_BF16 &&
           (strcmp(isa, "amx") == 0 || strcmp(isa, "avx512bf16") == 0);
}

/* Checks row x; the largest |o_rest| joins *most. `c`: the error of o + o_rest by products, relative. */
static void row_check(const struct lab_setting *s, const struct lab_tensor *rest,
                      const struct lab_oracle *oracle, int64_t x, double c, const char *text,
                      double *most) {
    const struct lab_place *at = &oracle->place[x];
    const int64_t d = oracle->d_v;
    double error = 0, norm = 0;
    for (int64_t i = 0; i < d; i++) {
        const double o =
            lab_get(s->o.view.data, s->c.type, lab_row(&s->o.view, at->b, at->h, at->i) + i);
        const double more =
            lab_get(rest->view.data, s->c.type, lab_row(&rest->view, at->b, at->h, at->i) + i);
        const double should = oracle->o[x * d + i];
        float rounded[1];                                /* room for any type */
        lab_put(rounded, s->c.type, 0, o + 0.99 * more); /* a rest that was rounded up may tie */
        assert_true(lab_get(rounded, s->c.type, 0) == o);
        error += (o + more - should) * (o + more - should);
        norm += should * should;
        *most = fmax(*most, fabs(more));
    }
    const double r = fmax(sqrt(norm), oracle->spread[x]);
    const double e32 = 0x1p-22 * (4 + oracle->size[x]) * (1 + sqrt((double)oracle->keys[x]) / 64);
    const double bound = (c + e32) * r * (1 + 2 / sqrt((double)d)) +
                         0x1p-25 * sqrt((double)d); /* a rest may be subnormal in f16 */
    if (!(sqrt(error) <= bound))
        fail_msg("%s: row (%d, %d, %d): error %g is past the bound %g", text, (int)at->b,
                 (int)at->h, (int)at->i, sqrt(error), bound);
}

static void case_check(const char *text) {
    struct lab_setting s;
    struct lab_tensor rest;
    struct lab_oracle oracle;
    char why[LAB_WHY];
    setting_make(&s, text);
    const struct lab_scoring scoring = lab_modifiers_scoring(&s.modifiers, &s.c);
    assert_int_equal(0, lab_setting_again(&s, &s.o, &rest));
    assert_int_equal(
        0, lab_oracle_run(&oracle, &s.q.view, &s.k.view, &s.v.view, s.pattern, &scoring, NULL, 0));
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        static const double unit[] = {0, 1e-3, 6e-3}; /* units in which o is accurate, by type */
        const double of_p = unit[s.c.type];
        const double c = rounds_p(&s, (tess_pipeline)pipeline) ? of_p : of_p * of_p;
        double most = 0;
        run(&s, (tess_pipeline)pipeline, NULL);
        const uint64_t o = lab_buffer_hash(&s.o.buffer), lse = lab_buffer_hash(&s.lse.buffer);
        lab_tensor_poison(&rest);
        run(&s, (tess_pipeline)pipeline, &rest.view);
        if (lab_tensor_check(&rest, "o_rest", why))
            fail_msg("%s: %s", text, why);
        assert_true(o == lab_buffer_hash(&s.o.buffer) && lse == lab_buffer_hash(&s.lse.buffer));
        for (int64_t x = 0; x < oracle.rows; x++)
            row_check(&s, &rest, &oracle, x, c, text, &most);
        assert_true((most > 0) == (s.c.type != TESS_F32));
    }
    lab_oracle_free(&oracle);
    lab_tensor_free(&rest);
    lab_setting_free(&s);
}

static void o_and_its_rest_are_right(void **state) {
    static const char *const cases[] = {
        "h=2,n=130,d=32,dtype=f32,pattern=causal",
        "h=2,n=130,d=32,dtype=f16,pattern=causal",
        "h=2,n=130,d=32,dtype=bf16,pattern=causal,layout=padded",
        "h=4,hkv=1,n=7,nkv=300,d=64,dv=80,dtype=bf16,pattern=dense,block=1x64,layout=bnhd",
        "h=4,hkv=1,n=3,nkv=5000,d=16,dtype=f16,pattern=dense,split=128",
        "h=1,n=200,d=64,dtype=bf16,block=2x1,pattern=random(0.1,3)",
        "h=1,n=200,d=64,dtype=f16,block=1x1,pattern=random(0.05,3),tile=64",
        "h=2,n=99,d=48,dv=17,dtype=bf16,block=16x16,pattern=random(0.3,3),sink=1,dropout=0.2",
        "h=1,n=60,d=8,dtype=f16,block=16x16,pattern=segments(9,20)",
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        case_check(cases[i]);
}

/* Else o + o_rest would be NaN where o is infinite. */
static void what_is_not_finite_has_no_rest(void **state) {
    struct lab_setting s;
    struct lab_tensor rest;
    (void)state;
    setting_make(&s, "h=1,n=4,nkv=40,d=8,dtype=f16,pattern=dense");
    assert_int_equal(0, lab_setting_again(&s, &s.o, &rest));
    for (int64_t j = 0; j < 40; j++)
        lab_put(s.v.view.data, TESS_F16, lab_row(&s.v.view, 0, 0, j) + 3, NAN);
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        run(&s, (tess_pipeline)pipeline, &rest.view);
        assert_true(isnan(lab_get(s.o.view.data, TESS_F16, lab_row(&s.o.view, 0, 0, 1) + 3)));
        assert_true(lab_get(rest.view.data, TESS_F16, lab_row(&rest.view, 0, 0, 1) + 3) == 0);
    }
    lab_tensor_free(&rest);
    lab_setting_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(o_and_its_rest_are_right),
        cmocka_unit_test(what_is_not_finite_has_no_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
