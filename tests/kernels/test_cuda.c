/* Promises of the CUDA backend, on a device. Without one the test says so and is skipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lab/device/device.h"
#include "lab/fill/half.h"
#include "lab/run/run.h"
#include "support/merging.h"
#include "support/modified.h"
#include "support/on_device.h"

static void checks(void **state) {
    (void)state;
    cases_are_right("tests/cases/cuda.txt", TESS_CUDA);
}

static void column_sums(void **state) {
    (void)state;
    cases_are_right("tests/cases/column_sums.txt", TESS_CUDA);
    cases_are_right("tests/cases/sm90_column_sums.txt", TESS_CUDA);
}

static void shared_inputs(void **state) {
    (void)state;
    shared_inputs_are_right("tests/cases/cuda_shared.txt", TESS_CUDA);
}

/* Cases that name Hopper's kernels for tiles of up to 64 rows. Other devices refuse them. */
static void own_lists(void **state) {
    (void)state;
    tess_target target = tess_target_init();
    assert_int_equal(tess_target_query(&target, TESS_CUDA, -1, NULL), TESS_OK);
    if (target.architecture != 90)
        skip();
    cases_are_right("tests/cases/own_lists.txt", TESS_CUDA);
    shared_inputs_are_right("tests/cases/own_lists_shared.txt", TESS_CUDA);
}

static void extreme_scales(void **state) {
    (void)state;
    extreme_scales_are_right(TESS_CUDA);
}

/* Later scores exceed a row's maximum by 2 in base 2, where neighbouring numbers are 2 apart. The
 * maximum and the lag that is allowed, added up, round to the later score: taken for one that may
 * stay behind, its weight would be more than f16 can hold. */
static void ties_of_maxima(void **state) {
    (void)state;
    static const tess_type types[] = {TESS_F32, TESS_F16, TESS_BF16};
    enum { QUERIES = 4, KEYS = 256, D = 8 };
    static const double keys[2][D] = {{4096, 2}, {4096, 4}}; /* the first half's, the other's */
    for (size_t i = 0; i < 2 * sizeof types / sizeof *types; i++) {
        const tess_pipeline pipeline = i % 2 ? TESS_STAGED : TESS_FUSED;
        struct lab_work w;
        struct lab_outcome outcome;
        struct lab_case c = case_of("h=1,n=4,nkv=256,d=8,pattern=dense");
        c.type = types[i / 2], c.scale = 0.69314718055994531; /* so that scores are q k in base 2 */
        work_make(&w, &c);
        for (int64_t n = 0; n < KEYS; n++)
            for (int64_t d = 0; d < D; d++)
                lab_put(w.s.k.view.data, w.s.c.type, n * D + d, keys[n >= KEYS / 2][d]);
        for (int64_t n = 0; n < QUERIES; n++)
            for (int64_t d = 0; d < D; d++)
                lab_put(w.s.q.view.data, w.s.c.type, n * D + d, d == 0 ? 4096 : d == 1);
        assert_int_equal(lab_work_answer(&w), 0);
        lab_check(&outcome, &w, TESS_CUDA, pipeline, NULL);
        if (outcome.verdict != LAB_PASSED)
            fail_msg("%s: %s", tess_type_name(types[i / 2]), outcome.message);
        lab_work_free(&w);
    }
}

/* ---- the backward ---- */

static void backward(void **state) {
    (void)state;
    cases_are_right("tests/cases/cuda_backward.txt", TESS_CUDA);
    cases_are_right("tests/cases/cuda_backward_staged.txt", TESS_CUDA);
}

/* ---- refusals, one calls ---- */

/* Refusals before anything is launched; the outputs keep their poison. */
static void refusals(void **state) {
    (void)state;
    struct lab_work w;
    struct lab_planned p;
    tess_error error = tess_error_init();
    const struct lab_case c = case_of("h=1,n=100,d=16,block=8x8,pattern=causal");
    work_make(&w, &c);
    planned_make(&p, &w, TESS_STAGED);
    assert_non_null(p.place);
    void *room = lab_device_alloc(TESS_CUDA, tess_plan_workspace_size(p.plan));
    assert_non_null(room);
    tess_arguments a = tess_arguments_init();
    a.q = &w.s.q.view, a.k = &w.s.k.view, a.v = &w.s.v.view, a.o = &w.s.o.view;
    a.workspace = room, a.workspace_size = tess_plan_workspace_size(p.plan);
    const struct {
        void *image;
        size_t size;
        tess_status status;
    } bad[] = {
        {NULL, p.image.size, TESS_INVALID_ARGUMENT},
        {(char *)p.place + 16, p.image.size, TESS_INVALID_ARGUMENT},
        {p.place, p.image.size - 1, TESS_WORKSPACE_TOO_SMALL},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        a.image = bad[i].image, a.image_size = bad[i].size;
        assert_int_equal(tess_run(p.plan, &a, &error, NULL), bad[i].status);
        assert_string_equal(error.argument, "image");
        assert_int_equal(tess_plan_upload(p.plan, bad[i].image, bad[i].size, &error, NULL),
                         bad[i].status);
    }
    assert_null(lab_device_synchronize(TESS_CUDA));
    assert_null(lab_mirror_fetch(&p.home));
    assert_true(lab_buffer_hash(&p.image) == p.hash);
    lab_device_free(TESS_CUDA, room);
    lab_planned_free(&p);
    lab_work_free(&w);
}

/* tess_attention on device memory. */
static void one_call_of(const struct lab_case *c) {
    struct lab_work w;
    struct lab_mirror m;
    struct lab_report report;
    tess_tensor q, k, v, o, lse;
    tess_error error = tess_error_init();
    work_make(&w, c);
    lab_mirror_make(&m, TESS_CUDA);
    assert_int_equal(lab_mirror_tensor(&m, &w.s.q, &q) | lab_mirror_tensor(&m, &w.s.k, &k), 0);
    assert_int_equal(lab_mirror_tensor(&m, &w.s.v, &v) | lab_mirror_tensor(&m, &w.s.o, &o), 0);
    assert_int_equal(lab_mirror_tensor(&m, &w.s.lse, &lse), 0);
    tess_status status = tess_attention(TESS_CUDA, &q, &k, &v, w.s.pattern, &o, &lse, &error);
    assert_int_equal(status, TESS_OK);
    assert_null(lab_mirror_fetch(&m));
    lab_compare(&report, &w.oracle, &w.s.o.view, &w.s.lse.view, 256);
    assert_true(report.ok);
    lab_mirror_free(&m);
    lab_work_free(&w);
}

/* Fused; where no fused kernel is, staged; where staged is cheaper. */
static void one_call(void **state) {
    static const char *const cases[] = {"h=2,n=100,d=16,block=8x8,pattern=causal",
                                        "h=2,n=100,d=1100,pattern=causal",
                                        "h=2,n=300,d=600,pattern=dense"};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct lab_case c = case_of(cases[i]);
        one_call_of(&c);
    }
}

/* A plan for another device than the current one is refused before anything is copied or launched. */
static void another_device(void **state) {
    (void)state;
    struct lab_work w;
    struct lab_planned p;
    tess_target target = tess_target_init();
    tess_error error = tess_error_init();
    const struct lab_case c = case_of("h=2,n=100,d=16,block=8x8,pattern=causal");
    work_make(&w, &c);
    assert_int_equal(tess_target_query(&target, TESS_CUDA, -1, NULL), TESS_OK);
    target.device++;
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        const tess_problem problem = lab_case_problem(&c, (tess_pipeline)pipeline);
        assert_int_equal(lab_planned_make(&p, &problem, w.s.pattern, &target, &error),
                         TESS_INVALID_ARGUMENT);
        assert_string_equal(error.argument, "plan");
        assert_non_null(strstr(error.message, "cudaSetDevice"));
        lab_planned_free(&p);
    }
    lab_work_free(&w);
}

/* ---- score modifiers ---- */

static void modifiers(void **state) {
    (void)state;
    cases_are_right("tests/cases/modifiers.txt", TESS_CUDA);
    cases_are_right("tests/cases/cuda_modifiers.txt", TESS_CUDA);
}

static void words_of_dropout(void **state) {
    (void)state;
    every_way_drops_the_same(TESS_CUDA);
}

static void places_of_modifiers(void **state) {
    (void)state;
    slices_are_of_the_whole(TESS_CUDA);
    positions_may_be_given(TESS_CUDA);
    sinks_stand_at_their_ends(TESS_CUDA);
    gradients_of_slices_are_of_the_whole(TESS_CUDA);
}

/* ---- merges ---- */

static void merged_parts(void **state) {
    (void)state;
    parts_join_to_the_whole(TESS_CUDA);
}

static void merges(void **state) {
    (void)state;
    merges_are_right(TESS_CUDA);
    equal_parts_are_one(TESS_CUDA, 1);
    equal_parts_are_one(TESS_CUDA, 60);
}

/* Nothing is launched, so host memory will do. */
static void merges_of_too_many_parts(void **state) {
    (void)state;
    enum { TOO_MANY = 61 };
    static float data[4];
    const tess_tensor o = tess_tensor_bhnd(&data[0], TESS_F32, 1, 1, 1, 1);
    const tess_tensor lse = tess_tensor_bhnd(&data[1], TESS_F32, 1, 1, 1, 1);
    const tess_tensor out = tess_tensor_bhnd(&data[2], TESS_F32, 1, 1, 1, 1);
    const tess_tensor *os[TOO_MANY], *lses[TOO_MANY];
    tess_error error = tess_error_init();
    for (int p = 0; p < TOO_MANY; p++)
        os[p] = &o, lses[p] = &lse;
    assert_int_equal(tess_merge(TESS_CUDA, TOO_MANY, os, lses, &out, NULL, &error, NULL),
                     TESS_UNSUPPORTED);
    assert_string_equal(error.function, "tess_merge");
    assert_string_equal(error.argument, "parts");
    assert_non_null(strstr(error.message, "at most 60 parts"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals),
        cmocka_unit_test(one_call),
        cmocka_unit_test(another_device),
        cmocka_unit_test(merged_parts),
        cmocka_unit_test(merges),
        cmocka_unit_test(merges_of_too_many_parts),
        cmocka_unit_test(checks),
        cmocka_unit_test(column_sums),
        cmocka_unit_test(own_lists),
        cmocka_unit_test(modifiers),
        cmocka_unit_test(words_of_dropout),
        cmocka_unit_test(places_of_modifiers),
        cmocka_unit_test(extreme_scales),
        cmocka_unit_test(ties_of_maxima),
        cmocka_unit_test(shared_inputs),
        cmocka_unit_test(backward),
    };
    const int absent = device_absent();
    if (absent)
        return absent;
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
