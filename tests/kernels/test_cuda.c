/* What the CUDA backend promises, on a device. Without one the test says so and is skipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lab/device.h"
#include "lab/half.h"
#include "lab/run.h"
#include "support/merging.h"
#include "support/modified.h"

enum { SKIPPED = 77, REPEATS = 500, MANY_REPEATS = 1250 };

static void planned_make(struct lab_planned *p, const struct lab_work *w, tess_pipeline pipeline) {
    tess_error error = tess_error_init();
    tess_target target = tess_target_init();
    tess_problem problem = lab_case_problem(&w->s.c, pipeline);
    assert_int_equal(tess_target_query(&target, TESS_CUDA, -1, &error), TESS_OK);
    if (lab_planned_make(p, &problem, w->s.pattern, &target, &error) != TESS_OK)
        fail_msg("the plan: %s", error.message);
}

static void checks(void **state) {
    (void)state;
    cases_are_right("tests/cases/cuda.txt", TESS_CUDA);
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
    static const double keys[2][D] = {{4096, 2}, {4096, 4}}; /* of the first half, of the other */
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

static void gradients_of_case_repeat(const char *text, tess_pipeline pipeline) {
    struct lab_work w;
    struct lab_planned p;
    char why[LAB_WHY] = "";
    const struct lab_case c = case_of(text);
    work_make(&w, &c);
    planned_make(&p, &w, pipeline);
    struct lab_run run = {.planned = &p,
                          .q = &w.s.q,
                          .k = &w.s.k,
                          .v = &w.s.v,
                          .o = &w.s.o,
                          .lse = &w.s.lse,
                          .modifiers = &w.s.modifiers,
                          .given = &w.s.given,
                          .wanted = &w.s.wanted};
    assert_int_equal(lab_run_whole(&run, why), 0);
    run.wanted = &w.wanted2;
    for (int r = 0; r < REPEATS; r++)
        if (lab_run_whole(&run, why) || lab_wanted_same(&w.s.wanted, &w.wanted2, why))
            case_fails(&c, TESS_CUDA, pipeline, why);
    lab_planned_free(&p);
    lab_work_free(&w);
}

/* Runs of one plan, with parts and heads that share, have the same bits. */
static void gradients_repeat(void **state) {
    (void)state;
    static const char *const texts[] = {
        "h=4,hkv=2,n=500,d=64,dtype=bf16,pattern=window(90,9),block=16x16,op=backward",
        "h=8,hkv=1,n=40,nkv=1900,d=128,dtype=f16,block=16x64,part=128,op=backward,sink=1,grads="
        "qkvs",
        "h=2,n=300,d=64,pattern=random(0.2,1),block=8x8,op=backward",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++)
            gradients_of_case_repeat(texts[i], (tess_pipeline)pipeline);
    gradients_of_case_repeat("h=4,hkv=2,n=300,d=64,pattern=causal,block=16x16,alibi=1,softcap=9,"
                             "dropout=0.2,op=backward,grads=qkva",
                             TESS_STAGED);
}

/* ---- tensors of more than 2^31 elements ---- */

#define ROW_ELEMENTS ((int64_t)1 << 19 | 64) /* from row to row */

/* On the device, of the shape and type of a tensor, rows far apart. data NULL: no room. */
static tess_tensor apart_make(const tess_tensor *from) {
    tess_tensor t = *from;
    t.stride[2] = ROW_ELEMENTS;
    t.stride[1] = t.size[2] * t.stride[2];
    t.stride[0] = t.size[1] * t.stride[1];
    assert_true(t.size[0] * t.stride[0] > INT64_C(1) << 31);
    t.data =
        lab_device_alloc(TESS_CUDA, (size_t)(t.size[0] * t.stride[0]) * tess_type_size(t.type));
    return t;
}

/* Row by row, to the device or back. */
static void apart_copy(const tess_tensor *apart, const tess_tensor *host, int back) {
    const int64_t element = (int64_t)tess_type_size(host->type);
    const size_t size = (size_t)(host->size[3] * element);
    for (int64_t b = 0; b < host->size[0]; b++)
        for (int64_t h = 0; h < host->size[1]; h++)
            for (int64_t i = 0; i < host->size[2]; i++) {
                char *far = (char *)apart->data + lab_row(apart, b, h, i) * element;
                char *near = (char *)host->data + lab_row(host, b, h, i) * element;
                assert_null(back ? lab_device_to_host(TESS_CUDA, near, far, size)
                                 : lab_device_to_device(TESS_CUDA, far, near, size));
            }
}

/* The bits must be those of the same rows side by side. 0 where the device has no room. */
static int rows_apart(const struct lab_case *c, tess_pipeline pipeline) {
    struct lab_work w;
    struct lab_planned p;
    char why[LAB_WHY] = "";
    work_make(&w, c);
    planned_make(&p, &w, pipeline);
    const struct lab_run run = {.planned = &p,
                                .q = &w.s.q,
                                .k = &w.s.k,
                                .v = &w.s.v,
                                .o = &w.s.o,
                                .lse = &w.s.lse,
                                .modifiers = &w.s.modifiers};
    assert_int_equal(lab_run_whole(&run, why), 0);

    tess_tensor q = apart_make(&w.s.q.view), k = apart_make(&w.s.k.view),
                v = apart_make(&w.s.v.view), o = apart_make(&w.s.o.view);
    const size_t size = tess_plan_workspace_size(p.plan);
    void *workspace = lab_device_alloc(TESS_CUDA, size + 1);
    const int room = q.data && k.data && v.data && o.data && workspace;
    if (room) {
        tess_arguments a = tess_arguments_init();
        a.q = &q, a.k = &k, a.v = &v, a.o = &o;
        a.workspace = workspace, a.workspace_size = size;
        a.image = p.place, a.image_size = p.image.size;
        apart_copy(&q, &w.s.q.view, 0);
        apart_copy(&k, &w.s.k.view, 0);
        apart_copy(&v, &w.s.v.view, 0);
        assert_int_equal(tess_run(p.plan, &a, NULL, NULL), TESS_OK);
        assert_null(lab_device_synchronize(TESS_CUDA));
        apart_copy(&o, &w.o2.view, 1);
        if (lab_tensor_same(&w.s.o.view, &w.o2.view, "o", why))
            case_fails(c, TESS_CUDA, pipeline, why);
    }
    void *const all[] = {q.data, k.data, v.data, o.data, workspace};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        lab_device_free(TESS_CUDA, all[i]);
    lab_planned_free(&p);
    lab_work_free(&w);
    return room;
}

static void tensors_past_2_31(void **state) {
    (void)state;
    struct lab_cases cases = cases_of("tests/cases/cuda_rows_apart.txt");
    int64_t done = 0;
    for (int64_t i = 0; i < cases.count; i++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
            if (!lab_case_asks(&cases.at[i], TESS_CUDA, pipeline))
                continue;
            if (rows_apart(&cases.at[i], (tess_pipeline)pipeline))
                done++;
            else
                print_message("no room for case %lld\n", (long long)i + 1);
        }
    lab_cases_free(&cases);
    if (!done)
        skip();
}

/* Outputs and workspace of one stream. */
struct lane {
    struct lab_mirror mirror;
    tess_stream stream;
    tess_arguments arguments;
    tess_tensor o, lse;
    struct lab_buffer workspace;
};

/* cudaStreamPerThread: the default stream of the thread that names it. */
#define STREAM_PER_THREAD ((tess_stream)0x2)

/* stream NULL: one of its own. */
static void lane_make(struct lane *lane, const struct lab_planned *p, const struct lab_tensor *o,
                      const struct lab_tensor *lse, const tess_arguments *inputs,
                      tess_stream stream) {
    size_t size = tess_plan_workspace_size(p->plan);
    lane->arguments = *inputs;
    lab_mirror_make(&lane->mirror, TESS_CUDA);
    assert_int_equal(lab_buffer_make(&lane->workspace, size, 64), 0);
    assert_int_equal(lab_mirror_tensor(&lane->mirror, o, &lane->o), 0);
    assert_int_equal(lab_mirror_tensor(&lane->mirror, lse, &lane->lse), 0);
    lane->arguments.o = &lane->o, lane->arguments.lse = &lane->lse;
    lane->arguments.workspace = lab_mirror_add(&lane->mirror, &lane->workspace);
    lane->arguments.workspace_size = size;
    assert_non_null(lane->arguments.workspace);
    lane->stream = stream;
    if (!stream)
        assert_null(lab_device_stream_make(TESS_CUDA, &lane->stream));
}

static void lane_free(struct lane *lane) {
    if (lane->stream != STREAM_PER_THREAD)
        lab_device_stream_free(TESS_CUDA, lane->stream);
    lab_mirror_free(&lane->mirror);
    lab_buffer_free(&lane->workspace);
}

/* Two streams, one the thread's default, run one plan at once, `times` each: always the same bits. */
static void repeats(const struct lab_case *c, tess_pipeline pipeline, int times) {
    struct lab_work w;
    struct lab_planned p;
    struct lab_run first = {.planned = &p};
    struct lab_mirror inputs;
    struct lane lanes[2];
    tess_arguments a = tess_arguments_init();
    tess_tensor q, k, v;
    char why[LAB_WHY] = "";
    work_make(&w, c);
    planned_make(&p, &w, pipeline);
    first.q = &w.s.q, first.k = &w.s.k, first.v = &w.s.v, first.o = &w.s.o, first.lse = &w.s.lse;
    assert_int_equal(lab_run_whole(&first, why), 0);
    size_t size = w.s.o.buffer.size;
    unsigned char *wanted = malloc(size);
    assert_non_null(wanted);
    memcpy(wanted, w.s.o.buffer.data, size);

    lab_mirror_make(&inputs, TESS_CUDA);
    assert_int_equal(lab_mirror_tensor(&inputs, &w.s.q, &q), 0);
    assert_int_equal(lab_mirror_tensor(&inputs, &w.s.k, &k), 0);
    assert_int_equal(lab_mirror_tensor(&inputs, &w.s.v, &v), 0);
    a.q = &q, a.k = &k, a.v = &v;
    a.image = p.place, a.image_size = p.image.size;
    lane_make(&lanes[0], &p, &w.s.o, &w.s.lse, &a, NULL);
    lane_make(&lanes[1], &p, &w.o2, &w.lse2, &a, STREAM_PER_THREAD);
    for (int i = 0; i < times; i++) {
        for (int l = 0; l < 2; l++)
            assert_int_equal(tess_run(p.plan, &lanes[l].arguments, NULL, lanes[l].stream), TESS_OK);
        for (int l = 0; l < 2; l++)
            assert_null(lab_mirror_fetch(&lanes[l].mirror));
        assert_memory_equal(w.s.o.buffer.data, wanted, size);
        assert_memory_equal(w.o2.buffer.data, wanted, size);
    }
    lane_free(&lanes[0]);
    lane_free(&lanes[1]);
    lab_mirror_free(&inputs);
    lab_planned_free(&p);
    lab_work_free(&w);
    free(wanted);
}

/* Answers how many runs there were. */
static int64_t repeat_cases(const char *path, int times) {
    struct lab_cases cases = cases_of(path);
    int64_t runs = 0;
    for (int64_t i = 0; i < cases.count; i++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++)
            if (lab_case_asks(&cases.at[i], TESS_CUDA, pipeline)) {
                repeats(&cases.at[i], (tess_pipeline)pipeline, times);
                runs += 2 * times;
            }
    lab_cases_free(&cases);
    return runs;
}

static void repeats_have_the_same_bits(void **state) {
    (void)state;
    assert_true(repeat_cases("tests/cases/cuda_repeats.txt", REPEATS) >= 2 * REPEATS);
}

static void ten_thousand_runs_have_the_same_bits(void **state) {
    (void)state;
    assert_true(repeat_cases("tests/cases/cuda_many_repeats.txt", MANY_REPEATS) >= 10000);
}

/* What is refused before anything is launched; the outputs keep their poison. */
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
        cmocka_unit_test(own_lists),
        cmocka_unit_test(modifiers),
        cmocka_unit_test(words_of_dropout),
        cmocka_unit_test(places_of_modifiers),
        cmocka_unit_test(extreme_scales),
        cmocka_unit_test(ties_of_maxima),
        cmocka_unit_test(shared_inputs),
        cmocka_unit_test(tensors_past_2_31),
        cmocka_unit_test(backward),
        cmocka_unit_test(gradients_repeat),
        cmocka_unit_test(repeats_have_the_same_bits),
        cmocka_unit_test(ten_thousand_runs_have_the_same_bits),
    };
    if (!lab_device_available(TESS_CUDA)) {
        printf("cuda: no device, skipped\n");
        return SKIPPED;
    }
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        const char *lacks = lab_device_lacks(TESS_CUDA, TESS_ATTENTION, (tess_pipeline)pipeline);
        if (lacks) {
            printf("cuda: a device, but %s\n", lacks);
            return EXIT_FAILURE;
        }
    }
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
