/* The oracle, the comparison with it and the fills: by hand, and that planted errors are seen. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lab/check/check.h"
#include "lab/fill/fill.h"
#include "lab/fill/half.h"

/* ---- the oracle ---- */

/* Tensors with one dim each, f32, one batch; heads of q: 2, of k and v: 1. */
struct small {
    float q[4], k[2], v[2];
    tess_tensor tq, tk, tv;
    tess_pattern *pattern;
    struct lab_oracle oracle;
};

static void small_run(struct small *s, const char *spec, double scale) {
    tess_pattern_shape shape = tess_pattern_shape_init();
    shape.n_q = 2;
    shape.block_q = shape.block_kv = 1;
    assert_int_equal(tess_pattern_from_spec(&s->pattern, spec, &shape, NULL), TESS_OK);
    s->tq = tess_tensor_bhnd(s->q, TESS_F32, 1, 2, 2, 1);
    s->tk = tess_tensor_bhnd(s->k, TESS_F32, 1, 1, 2, 1);
    s->tv = tess_tensor_bhnd(s->v, TESS_F32, 1, 1, 2, 1);
    assert_int_equal(lab_oracle_run(&s->oracle, &s->tq, &s->tk, &s->tv, s->pattern,
                                    &(struct lab_scoring){.scale = scale}, NULL, 0),
                     0);
}

static void small_free(struct small *s) {
    lab_oracle_free(&s->oracle);
    tess_pattern_free(s->pattern);
}

static void assert_near(double a, double b) {
    if (!(fabs(a - b) <= 1e-6))
        fail_msg("%.17g is not %.17g", a, b);
}

static void oracle_by_hand(void **state) {
    (void)state;
    /* Weights 1 : 3 in head 0, 1 : 9 in head 1, of the values 1 and 5. */
    struct small s = {.q = {1, 1, 2, 2}, .k = {0, (float)log(3)}, .v = {1, 5}};
    small_run(&s, "causal", 0);
    assert_int_equal(s.oracle.rows, 4);
    assert_near(s.oracle.o[0], 1);
    assert_near(s.oracle.lse[0], 0);
    assert_near(s.oracle.o[1], 4);
    assert_near(s.oracle.lse[1], log(4));
    assert_near(s.oracle.o[2], 1);
    assert_near(s.oracle.o[3], 4.6);
    assert_near(s.oracle.lse[3], log(10));
    assert_int_equal(s.oracle.keys[0], 1);
    assert_int_equal(s.oracle.keys[1], 2);
    assert_near(s.oracle.size[1], log(3));
    assert_near(s.oracle.size[3], 2 * log(3));
    assert_near(s.oracle.spread[1], sqrt(1.0 / 16 + 225.0 / 16));
    const struct lab_place place = {0, 1, 1};
    struct lab_oracle one;
    assert_int_equal(lab_oracle_run(&one, &s.tq, &s.tk, &s.tv, s.pattern,
                                    &(struct lab_scoring){.scale = 2}, &place, 1),
                     0);
    assert_int_equal(one.rows, 1);
    assert_near(one.lse[0], log(1 + 81));
    lab_oracle_free(&one);
    small_free(&s);
}

static void oracle_special_rows(void **state) {
    (void)state;
    const float inf = INFINITY;
    struct small s = {.q = {1, 1, -1, -1}, .k = {-inf, 2}, .v = {1, 5}};
    small_run(&s, "causal", 1);
    assert_true(s.oracle.o[0] == 0); /* all scores -Inf: as if empty */
    assert_true(s.oracle.lse[0] == -(double)INFINITY);
    assert_near(s.oracle.o[1], 5);
    assert_near(s.oracle.lse[1], 2);
    assert_true(isnan(s.oracle.o[2])); /* a score of +Inf */
    assert_true(isnan(s.oracle.lse[3]));
    assert_int_equal(s.oracle.lists_bad[0], LAB_BAD_K);
    assert_true(isfinite(s.oracle.size[1]));
    small_free(&s);

    struct small empty = {.q = {1, 1, 1, 1}, .k = {1, 1}, .v = {1, inf}};
    small_run(&empty, "random(0,1)", 1);
    assert_true(empty.oracle.o[3] == 0);
    assert_true(empty.oracle.lse[3] == -(double)INFINITY);
    assert_int_equal(empty.oracle.lists_bad[3], 0);
    small_free(&empty);

    struct small bad_v = {.q = {1, 1, 1, 1}, .k = {1, 1}, .v = {1, inf}};
    small_run(&bad_v, "causal", 1);
    assert_near(bad_v.oracle.o[0], 1);
    assert_true(!isfinite(bad_v.oracle.o[1]));
    assert_near(bad_v.oracle.lse[1], 1 + log(2));
    assert_true(lab_oracle_near(&bad_v.oracle, 0, 2, LAB_BAD_V));
    assert_false(lab_oracle_near(&bad_v.oracle, 0, 1, LAB_BAD_V));
    small_free(&bad_v);
}

/* ---- comparison ---- */

/* A case's oracle, and its answer rounded to the case's type in work.s.o and work.s.lse. */
static void exact_answer(struct lab_work *w, const char *text) {
    struct lab_case c;
    char why[LAB_WHY];
    assert_int_equal(lab_case_parse(&c, text, why), 0);
    assert_int_equal(lab_work_make(w, &c, why), 0);
    for (int64_t x = 0; x < w->oracle.rows; x++) {
        const struct lab_place *at = &w->oracle.place[x];
        for (int64_t d = 0; d < c.dv; d++)
            lab_put(w->s.o.view.data, c.type, lab_row(&w->s.o.view, at->b, at->h, at->i) + d,
                    w->oracle.o[x * c.dv + d]);
        lab_put(w->s.lse.view.data, TESS_F32, lab_row(&w->s.lse.view, at->b, at->h, at->i),
                w->oracle.lse[x]);
    }
}

static struct lab_report compare(const struct lab_work *w) {
    struct lab_report report;
    lab_compare(&report, &w->oracle, &w->s.o.view, &w->s.lse.view, 8);
    return report;
}

static void assert_caught(const struct lab_work *w, const char *part) {
    struct lab_report report = compare(w);
    assert_false(report.ok);
    if (!strstr(report.message, part))
        fail_msg("'%s' does not say '%s'", report.message, part);
}

static void compare_passes_rounding(void **state) {
    (void)state;
    static const char *const types[] = {"f32", "f16", "bf16"};
    for (int t = 0; t < 3; t++) {
        struct lab_work w;
        char text[128];
        snprintf(text, sizeof text, "h=2,n=50,nkv=70,d=16,block=1x1,pattern=causal,dtype=%s",
                 types[t]);
        exact_answer(&w, text);
        struct lab_report report = compare(&w);
        assert_true(report.ok);
        assert_string_equal(report.message, "");
        assert_true(report.worst > 0 && report.worst < 1);
        lab_work_free(&w);
    }
    struct lab_work w; /* and one more bit of noise in every element */
    exact_answer(&w, "h=2,n=50,nkv=70,d=16,block=1x1,pattern=causal");
    float *o = w.s.o.view.data, *lse = w.s.lse.view.data;
    for (int i = 0; i < 2 * 50 * 16; i++)
        o[i] = nextafterf(o[i], i % 2 ? INFINITY : -INFINITY);
    for (int i = 0; i < 2 * 50; i++)
        lse[i] = nextafterf(lse[i], INFINITY);
    assert_true(compare(&w).ok);
    lab_work_free(&w);
}

/* The key among the first 100 that counts most for query 2 of one head. */
static int64_t weighty_key(const struct lab_work *w) {
    double best = -(double)INFINITY;
    int64_t key = 0;
    for (int64_t j = 0; j < 100; j++) {
        double dot = 0;
        for (int64_t d = 0; d < w->s.c.d; d++)
            dot += lab_get(w->s.q.view.data, w->s.c.type, lab_row(&w->s.q.view, 0, 0, 2) + d) *
                   lab_get(w->s.k.view.data, w->s.c.type, lab_row(&w->s.k.view, 0, 0, j) + d);
        if (dot > best)
            best = dot, key = j;
    }
    return key;
}

/* One row of the answer computed without one of its 3000 keys. */
static void compare_sees_lost_key(void **state) {
    (void)state;
    static const char *const types[] = {"f32", "f16", "bf16"};
    for (int t = 0; t < 3; t++) {
        struct lab_work w;
        char text[128];
        snprintf(text, sizeof text, "h=1,n=3,nkv=3000,d=16,dtype=%s", types[t]);
        exact_answer(&w, text);
        uint8_t *mask = malloc(3 * 3000);
        assert_non_null(mask);
        memset(mask, 1, 3 * 3000);
        mask[2 * 3000 + weighty_key(&w)] = 0;
        tess_pattern_shape shape = tess_pattern_shape_init();
        shape.n_q = 3, shape.n_kv = 3000;
        tess_pattern *less;
        struct lab_oracle wrong;
        assert_int_equal(tess_pattern_from_mask(&less, mask, &shape, NULL), TESS_OK);
        assert_int_equal(
            lab_oracle_run(&wrong, &w.s.q.view, &w.s.k.view, &w.s.v.view, less, NULL, NULL, 0), 0);
        for (int64_t i = 0; i < 3 * 16; i++)
            lab_put(w.s.o.view.data, w.s.c.type, i, wrong.o[i]);
        assert_caught(&w, "query 2");
        lab_oracle_free(&wrong);
        tess_pattern_free(less);
        free(mask);
        lab_work_free(&w);
    }
}

static void compare_sees_planted_errors(void **state) {
    (void)state;
    struct lab_work w;
    exact_answer(&w, "h=2,hkv=1,n=40,d=16,pattern=segments(30)&causal,block=8x8");
    float *o = w.s.o.view.data, *lse = w.s.lse.view.data, kept = lse[7];
    assert_true(compare(&w).ok);
    lse[7] += 1e-4f;
    assert_caught(&w, "lse of batch 0, head 0, query 7");
    lse[7] = NAN;
    assert_caught(&w, "lse of batch 0, head 0, query 7");
    lse[7] = kept, kept = lse[75]; /* head 1, query 35 sees nothing */
    lse[75] = -1e30f;
    assert_caught(&w, "lse of batch 0, head 1, query 35");
    lse[75] = INFINITY;
    assert_caught(&w, "lse of batch 0, head 1, query 35");
    lse[75] = kept, kept = o[75 * 16 + 3];
    assert_true(kept == 0);
    o[75 * 16 + 3] = 1e-30f;
    assert_caught(&w, "o of batch 0, head 1, query 35");
    o[75 * 16 + 3] = 0, kept = o[50 * 16 + 4];
    o[50 * 16 + 4] = NAN;
    assert_caught(&w, "element 4");
    o[50 * 16 + 4] = kept;
    assert_true(compare(&w).ok);
    lab_work_free(&w);
}

/* Errors that each row may have but all rows together may not; those that weights rounded times scales explain, may. */
static void compare_sees_bias(void **state) {
    (void)state;
    static const struct {
        double error;
        int scales, caught;
    } bias[] = {{5.3e-4, 0, 1}, {5.3e-4, 1, 0}, {6e-4, 1, 1}};
    for (int i = 0; i < 3; i++) {
        struct lab_work w;
        exact_answer(&w, "h=2,n=200,d=16,dtype=f16");
        w.oracle.scales = bias[i].scales;
        for (int64_t x = 0; x < w.oracle.rows; x++) {
            double *ref = w.oracle.o + 16 * x, norm = 0;
            for (int d = 0; d < 16; d++)
                norm += ref[d] * ref[d];
            double size = fmax(sqrt(norm), w.oracle.spread[x]);
            lab_put(w.s.o.view.data, TESS_F16, 16 * x, ref[0] + bias[i].error * size);
        }
        if (bias[i].caught)
            assert_caught(&w, "the whole of o");
        assert_int_equal(compare(&w).ok, !bias[i].caught);
        lab_work_free(&w);
    }
}

static void compare_places_of_nan(void **state) {
    (void)state;
    struct lab_work w;
    exact_answer(&w, "h=1,n=300,d=4,pattern=window(0,0),block=4x4,fill=nanv,seed=3");
    int64_t bad = 0;
    while (bad < 300 && !(w.oracle.lists_bad[bad] & LAB_BAD_V))
        bad++;
    assert_true(bad < 299);
    float *o = w.s.o.view.data;
    assert_true(compare(&w).ok);
    float kept = o[4 * bad + 4];
    o[4 * bad + 4] = NAN; /* next to it: the same query tile, perhaps */
    assert_true(compare(&w).ok);
    o[4 * bad + 4] = kept;
    for (int d = 0; d < 4; d++)
        if (!isfinite(o[4 * bad + d]))
            o[4 * bad + d] = 1;
    assert_caught(&w, "the oracle has");
    lab_work_free(&w);
}

/* Past the largest number of f16 an element is Inf of the reference's sign, and nothing else. */
static void compare_knows_where_a_type_ends(void **state) {
    (void)state;
    struct lab_work w;
    int64_t at = 0;
    exact_answer(&w, "h=1,n=64,d=4,block=1x1,pattern=window(0,0),fill=top,dtype=f16,dropout=0.5");
    while (w.oracle.o[at] == 0)
        at++;
    assert_true(w.oracle.o[at] > 131000 && isinf(lab_get(w.s.o.view.data, TESS_F16, at)));
    assert_true(compare(&w).ok);
    lab_put(w.s.o.view.data, TESS_F16, at, 65504);
    assert_caught(&w, "past the bound");
    lab_put(w.s.o.view.data, TESS_F16, at, -(double)INFINITY);
    assert_caught(&w, "the oracle has 131008");
    lab_put(w.s.o.view.data, TESS_F16, at, (double)NAN);
    assert_caught(&w, "the oracle has 131008");
    w.oracle.o[at] = 65500; /* rounding may take it to Inf, or not */
    lab_put(w.s.o.view.data, TESS_F16, at, (double)INFINITY);
    assert_true(compare(&w).ok);
    w.oracle.o[at] = 64000;
    assert_caught(&w, "the oracle has 64000");
    lab_work_free(&w);

    exact_answer(&w,
                 "h=1,n=8,d=4,fill=top,dtype=f16"); /* means, which rounding does not take there */
    assert_true(compare(&w).ok);
    lab_put(w.s.o.view.data, TESS_F16, 0, (double)INFINITY);
    assert_caught(&w, "the oracle has 65504");
    lab_work_free(&w);
}

/* Two of many rows list a key: their errors do not average out. */
static void compare_counts_what_is_not_empty(void **state) {
    (void)state;
    struct lab_work w;
    exact_answer(&w, "h=1,n=2000,nkv=2,d=4,block=1x1,pattern=window(0,0),dtype=bf16,seed=1");
    for (int64_t i = 1998 * 4; i < 2000 * 4; i++)
        lab_put(w.s.o.view.data, TESS_BF16, i, 1.006 * w.oracle.o[i]);
    assert_true(w.oracle.keys[1997] == 0 && w.oracle.keys[1998] == 1);
    assert_true(compare(&w).ok);
    lab_work_free(&w);

    exact_answer(&w, "h=1,n=2000,d=4,block=1x1,pattern=window(0,0),dtype=bf16,seed=1");
    for (int64_t i = 0; i < 2000 * 4; i++)
        lab_put(w.s.o.view.data, TESS_BF16, i, 1.006 * w.oracle.o[i]);
    assert_caught(&w, "the whole of o");
    lab_work_free(&w);
}

static void compare_knows_what_a_sink_leaves(void **state) {
    (void)state;
    struct lab_work w;
    int64_t at = 0;
    /* The first head's slope is -1/2: over 257 queries scores fall to -128, under a sink of about 0. */
    exact_answer(&w, "h=8,n=257,nkv=1,d=4,block=1x64,alibi=1,sink=1,seed=970540");
    while (w.oracle.o[4 * at] == 0) /* too small for a double */
        at++;
    assert_true(w.oracle.lse[at] < -60 && w.oracle.lse[256] > -55);
    lab_put(w.s.o.view.data, TESS_F32, 4 * at, 0);
    assert_true(compare(&w).ok);
    lab_put(w.s.o.view.data, TESS_F32, 4 * at, 0x1p-80);
    assert_caught(&w, "past the bound");
    lab_put(w.s.o.view.data, TESS_F32, 4 * at, 0);
    lab_put(w.s.o.view.data, TESS_F32, 4 * 256, 0);
    assert_caught(&w, "past the bound");
    lab_work_free(&w);
}

/* ---- fills ---- */

static void fill_poisons_unlisted_keys(void **state) {
    (void)state;
    struct lab_case c;
    struct lab_work w;
    char why[LAB_WHY];
    assert_int_equal(
        lab_case_parse(&c, "h=2,hkv=1,n=10,nkv=20,d=3,pattern=window(1,0),block=4x4", why), 0);
    assert_int_equal(lab_work_make(&w, &c, why), 0);
    for (int64_t j = 0; j < 20; j++) { /* query 0 stands at key 10 */
        assert_int_equal(isnan(lab_get(w.s.k.view.data, TESS_F32, 3 * j)) != 0, j < 9);
        assert_int_equal(isnan(lab_get(w.s.v.view.data, TESS_F32, 3 * j + 2)) != 0, j < 9);
    }
    lab_work_free(&w);
}

static void fill_ranges(void **state) {
    (void)state;
    struct lab_work w;
    exact_answer(&w, "h=1,n=300,d=16,fill=large,seed=5");
    double largest = 0;
    for (int64_t x = 0; x < 300; x++)
        largest = fmax(largest, w.oracle.size[x]);
    assert_true(largest > 5e3 && largest < 5e4);
    lab_work_free(&w);
    exact_answer(&w, "h=1,n=300,d=16,fill=huge,seed=5,dtype=bf16");
    for (int64_t i = 0; i < 300 * 16; i++)
        largest = fmax(largest, fabs(lab_get(w.s.v.view.data, TESS_BF16, i)));
    assert_true(largest > 5e29 && largest < 1.01e30);
    lab_work_free(&w);
    exact_answer(&w, "h=1,n=300,d=16,fill=subnormal,seed=5,dtype=f16");
    for (int64_t i = 0; i < 300 * 16; i++)
        assert_true(fabs(lab_get(w.s.k.view.data, TESS_F16, i)) < 0x1p-14);
    lab_work_free(&w);
    exact_answer(&w, "h=1,n=300,d=16,fill=extreme,seed=5,dtype=f16");
    for (int64_t x = 0; x < 300; x++)
        assert_true(w.oracle.size[x] > 1e8 && w.oracle.size[x] < 1e10);
    lab_work_free(&w);
}

/* Sinks take nearly all of each row's weight and leave nothing of it in the outputs. */
static void fill_sinks(void **state) {
    (void)state;
    struct lab_work w;
    exact_answer(&w, "h=1,n=300,d=16,fill=sink,seed=5,scale=-0.5");
    for (int64_t x = 0; x < 300; x++) {
        assert_true(w.oracle.lse[x] > 18 && w.oracle.lse[x] < 28);
        for (int64_t d = 0; d < 16; d++)
            assert_true(fabs(w.oracle.o[16 * x + d]) < 0.1);
    }
    lab_work_free(&w);
}

/* Large products that cancel; elements near the smallest normal numbers whose scores are of size 1;
 * means of f16's largest number. */
static void fill_extremes(void **state) {
    (void)state;
    struct lab_work w;
    exact_answer(&w, "h=1,n=300,d=16,pattern=dense,fill=cancel,seed=5,dtype=bf16");
    for (int64_t x = 0; x < 300; x++)
        assert_true(fabs(w.oracle.lse[x] - log(300)) < 1e-6 && w.oracle.size[x] > 1e4);
    lab_work_free(&w);
    exact_answer(&w, "h=1,n=300,d=16,pattern=dense,fill=tiny,seed=5");
    for (int64_t i = 0; i < 300 * 16; i++)
        assert_true(fabs(lab_get(w.s.k.view.data, TESS_F32, i)) < 0x1p-115);
    for (int64_t x = 0; x < 300; x++)
        assert_true(w.oracle.size[x] > 0.5 && w.oracle.size[x] < 20);
    lab_work_free(&w);
    exact_answer(&w, "h=1,n=300,d=16,pattern=dense,fill=top,seed=5,dtype=f16");
    for (int64_t i = 0; i < 300 * 16; i++)
        assert_true(lab_get(w.s.o.view.data, TESS_F16, i) == 65504);
    lab_work_free(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_by_hand),
        cmocka_unit_test(oracle_special_rows),
        cmocka_unit_test(compare_passes_rounding),
        cmocka_unit_test(compare_sees_lost_key),
        cmocka_unit_test(compare_sees_planted_errors),
        cmocka_unit_test(compare_sees_bias),
        cmocka_unit_test(compare_places_of_nan),
        cmocka_unit_test(compare_knows_where_a_type_ends),
        cmocka_unit_test(compare_counts_what_is_not_empty),
        cmocka_unit_test(compare_knows_what_a_sink_leaves),
        cmocka_unit_test(fill_poisons_unlisted_keys),
        cmocka_unit_test(fill_ranges),
        cmocka_unit_test(fill_sinks),
        cmocka_unit_test(fill_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
