/* Refusals of the run functions, in words, with outputs untouched; and the one call. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "plan/problem.h"
#include "tessera.h"

enum { B = 2, H = 4, HKV = 2, N = 70, DQK = 24, DV = 16, O_SIZE = B * H * N * DV };

static float q_data[B * H * N * DQK], k_data[B * HKV * N * DQK], v_data[B * HKV * N * DV];
static _Alignas(64) float o_data[O_SIZE], lse_data[B * H * N];

/* A planned problem with good arguments, which a test then spoils. */
struct setting {
    tess_pattern *pattern;
    tess_plan *plan;
    tess_tensor q, k, v, o, lse;
    tess_arguments arguments;
    float *scores;
};

static void setting_make(struct setting *s, tess_pipeline pipeline) {
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_problem problem = tess_problem_init();
    memset(s, 0, sizeof *s);
    shape.n_q = N, shape.block_q = shape.block_kv = 16;
    assert_int_equal(tess_pattern_from_spec(&s->pattern, "causal", &shape, NULL), TESS_OK);
    s->q = tess_tensor_bhnd(q_data, TESS_F32, B, H, N, DQK);
    s->k = tess_tensor_bhnd(k_data, TESS_F32, B, HKV, N, DQK);
    s->v = tess_tensor_bhnd(v_data, TESS_F32, B, HKV, N, DV);
    s->o = tess_tensor_bhnd(o_data, TESS_F32, B, H, N, DV);
    s->lse = tess_tensor_bhnd(lse_data, TESS_F32, B, H, N, 1);
    assert_int_equal(tess_problem_from_tensors(&problem, &s->q, &s->k, &s->v, &s->o, NULL),
                     TESS_OK);
    problem.pipeline = pipeline;
    assert_int_equal(tess_plan_create(&s->plan, &problem, s->pattern, NULL, NULL), TESS_OK);
    s->arguments = tess_arguments_init();
    s->arguments.q = &s->q, s->arguments.k = &s->k, s->arguments.v = &s->v;
    s->arguments.o = &s->o, s->arguments.lse = &s->lse;
    s->arguments.workspace_size = tess_plan_workspace_size(s->plan);
    s->arguments.workspace = aligned_alloc(64, s->arguments.workspace_size);
    s->scores = malloc((size_t)tess_plan_scores_count(s->plan) * sizeof(float) + 1);
    for (int i = 0; i < O_SIZE; i++)
        o_data[i] = 77;
}

static void setting_free(struct setting *s) {
    free(s->arguments.workspace);
    free(s->scores);
    tess_plan_free(s->plan);
    tess_pattern_free(s->pattern);
}

/* The call fails so, names the argument, says the words, and has not touched o. */
static void expect(tess_status got, const tess_error *error, tess_status status,
                   const char *argument, const char *words) {
    assert_int_equal(got, status);
    assert_int_equal(error->status, status);
    assert_string_equal(error->argument, argument);
    if (!strstr(error->message, words))
        fail_msg("'%s' does not say '%s'", error->message, words);
    for (int i = 0; i < O_SIZE; i++)
        assert_true(o_data[i] == 77);
}

static void expect_run(struct setting *s, tess_status status, const char *argument,
                       const char *words) {
    tess_error error = tess_error_init();
    expect(tess_run(s->plan, &s->arguments, &error, NULL), &error, status, argument, words);
    assert_string_equal(error.function, "tess_run");
}

static void tensors_are_checked(void **state) {
    (void)state;
    struct setting s;
    setting_make(&s, TESS_FUSED);
    tess_tensor *const tensors[] = {&s.q, &s.k, &s.v, &s.o, &s.lse};
    static const char *const names[] = {"q", "k", "v", "o", "lse"};
    for (int i = 0; i < 5; i++) {
        const tess_tensor good = *tensors[i];
        tess_tensor *t = tensors[i];
        t->struct_size = 0;
        expect_run(&s, TESS_INVALID_ARGUMENT, names[i], "struct_size");
        *t = good, t->data = NULL;
        expect_run(&s, TESS_INVALID_ARGUMENT, names[i], "data is NULL");
        *t = good, t->type = TESS_BF16;
        expect_run(&s, TESS_INVALID_ARGUMENT, names[i], "type bf16, should be f32");
        *t = good, t->type = (tess_type)9;
        expect_run(&s, TESS_INVALID_ARGUMENT, names[i], "unknown");
        static const char *const sizes[] = {"batches", "heads", "rows", "dims"};
        for (int j = 0; j < 4; j++) {
            *t = good, t->size[j]++;
            expect_run(&s, TESS_INVALID_ARGUMENT, names[i], sizes[j]);
        }
        *t = good, t->data = (char *)good.data + 2;
        expect_run(&s, TESS_INVALID_ARGUMENT, names[i], "aligned");
        *t = good, t->stride[2] = -t->stride[2];
        expect_run(&s, TESS_INVALID_ARGUMENT, names[i], "negative");
        *t = good, t->stride[1] = INT64_MAX / 2 / 4 * 4;
        expect_run(&s, TESS_INVALID_ARGUMENT, names[i], "64 bits");
        if (i < 4) {
            *t = good, t->stride[3] = 2;
            expect_run(&s, TESS_INVALID_ARGUMENT, names[i], "last stride");
            *t = good, t->stride[2]++;
            expect_run(&s, TESS_INVALID_ARGUMENT, names[i], "multiple of the alignment");
        }
        if (i >= 3) {
            *t = good, t->stride[1] = 0;
            expect_run(&s, TESS_INVALID_ARGUMENT, names[i], "overlap");
            *t = good, t->stride[0] = t->stride[1];
            expect_run(&s, TESS_INVALID_ARGUMENT, names[i], "overlap");
        }
        *t = good;
    }
    s.o.data = v_data;
    expect_run(&s, TESS_INVALID_ARGUMENT, "o", "outputs overlap nothing");
    s.o.data = o_data;
    s.lse.data = o_data;
    expect_run(&s, TESS_INVALID_ARGUMENT, "o", "outputs overlap nothing");
    s.lse.data = q_data;
    expect_run(&s, TESS_INVALID_ARGUMENT, "lse", "outputs overlap nothing");
    s.lse.data = lse_data;
    s.arguments.k = NULL;
    expect_run(&s, TESS_INVALID_ARGUMENT, "k", "k is NULL");
    setting_free(&s);
}

/* Strides of dimensions of size 1 may be anything; broadcast inputs and lse NULL are fine. */
static void free_strides_are_free(void **state) {
    (void)state;
    struct view view;
    tess_tensor t = tess_tensor_bhnd(q_data, TESS_F32, 1, 3, 1, 8);
    struct tensor_rule rule = {"t", TESS_F32, {1, 3, 1, 8}, 16, 1, 0, 0, 0};
    t.stride[0] = -7, t.stride[2] = INT64_MAX;
    assert_int_equal(check_tensor(&view, &t, &rule, "f", NULL), TESS_OK);
    assert_true(view.stride[0] == 0 && view.stride[1] == 8 && view.stride[2] == 0);

    struct setting s;
    setting_make(&s, TESS_FUSED);
    s.arguments.lse = NULL;
    s.k.stride[1] = 0;
    assert_int_equal(tess_run(s.plan, &s.arguments, NULL, NULL), TESS_OK);
    setting_free(&s);
}

static void workspace_is_exact(void **state) {
    (void)state;
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        struct setting s;
        char words[32];
        setting_make(&s, (tess_pipeline)pipeline);
        const tess_arguments good = s.arguments;
        s.arguments.workspace_size--;
        snprintf(words, sizeof words, "must have %zu", good.workspace_size);
        expect_run(&s, TESS_WORKSPACE_TOO_SMALL, "workspace", words);
        s.arguments = good;
        s.arguments.workspace = NULL;
        expect_run(&s, TESS_INVALID_ARGUMENT, "workspace", "NULL");
        s.arguments.workspace = (char *)good.workspace + 4;
        expect_run(&s, TESS_INVALID_ARGUMENT, "workspace", "64 bytes");
        s.arguments = good;
        assert_int_equal(tess_run(s.plan, &s.arguments, NULL, NULL), TESS_OK);
        setting_free(&s);
    }
}

static void plans_and_arguments_are_checked(void **state) {
    (void)state;
    struct setting s;
    tess_error error = tess_error_init();
    setting_make(&s, TESS_FUSED);
    expect(tess_run(NULL, &s.arguments, &error, NULL), &error, TESS_INVALID_ARGUMENT, "plan",
           "plan is NULL");
    expect(tess_run(s.plan, NULL, &error, NULL), &error, TESS_INVALID_ARGUMENT, "arguments",
           "NULL");
    s.arguments.struct_size = 3;
    expect_run(&s, TESS_INVALID_ARGUMENT, "arguments", "struct_size");
    setting_free(&s);
}

static void stages_are_checked(void **state) {
    (void)state;
    struct setting s;
    tess_error error = tess_error_init();
    tess_status (*const stages[])(const tess_plan *, const tess_arguments *, tess_error *,
                                  tess_stream) = {tess_sddmm, tess_softmax, tess_spmm};
    setting_make(&s, TESS_FUSED);
    for (int i = 0; i < 3; i++) {
        s.arguments.scores = o_data;
        expect(stages[i](s.plan, &s.arguments, &error, NULL), &error, TESS_INVALID_ARGUMENT, "plan",
               "TESS_STAGED");
        expect(stages[i](NULL, &s.arguments, &error, NULL), &error, TESS_INVALID_ARGUMENT, "plan",
               "NULL");
    }
    assert_int_equal(tess_plan_scores_count(s.plan), 0);
    setting_free(&s);

    setting_make(&s, TESS_STAGED);
    for (int i = 0; i < 3; i++) {
        tess_stage stage = (tess_stage)(TESS_STAGE_SDDMM + i);
        s.arguments.scores = NULL;
        expect(stages[i](s.plan, &s.arguments, &error, NULL), &error, TESS_INVALID_ARGUMENT,
               "scores", "NULL");
        s.arguments.scores = s.scores;
        size_t size = tess_plan_stage_workspace_size(s.plan, stage);
        if (!size)
            continue;
        s.arguments.workspace_size = size - 1;
        expect(stages[i](s.plan, &s.arguments, &error, NULL), &error, TESS_WORKSPACE_TOO_SMALL,
               "workspace", "must have");
    }
    setting_free(&s);
}

/* The stages one by one give the bits of tess_run. */
static void stages_make_the_whole(void **state) {
    (void)state;
    struct setting s;
    static float whole[O_SIZE], whole_lse[B * H * N];
    setting_make(&s, TESS_STAGED);
    for (size_t i = 0; i < sizeof q_data / sizeof *q_data; i++)
        q_data[i] = sinf((float)i);
    for (size_t i = 0; i < sizeof k_data / sizeof *k_data; i++)
        k_data[i] = cosf((float)(3 * i));
    for (size_t i = 0; i < sizeof v_data / sizeof *v_data; i++)
        v_data[i] = sinf((float)(7 * i));
    assert_int_equal(tess_run(s.plan, &s.arguments, NULL, NULL), TESS_OK);
    memcpy(whole, o_data, sizeof whole);
    memcpy(whole_lse, lse_data, sizeof whole_lse);
    memset(o_data, 0, sizeof o_data);
    memset(lse_data, 0, sizeof lse_data);
    s.arguments.scores = s.scores;
    assert_int_equal(tess_sddmm(s.plan, &s.arguments, NULL, NULL), TESS_OK);
    assert_int_equal(tess_softmax(s.plan, &s.arguments, NULL, NULL), TESS_OK);
    assert_int_equal(tess_spmm(s.plan, &s.arguments, NULL, NULL), TESS_OK);
    assert_memory_equal(whole, o_data, sizeof whole);
    assert_memory_equal(whole_lse, lse_data, sizeof whole_lse);
    setting_free(&s);
}

static void the_one_call(void **state) {
    (void)state;
    struct setting s;
    tess_error error = tess_error_init();
    static float planned[O_SIZE];
    setting_make(&s, TESS_FUSED);
    assert_int_equal(tess_run(s.plan, &s.arguments, NULL, NULL), TESS_OK);
    memcpy(planned, o_data, sizeof planned);
    memset(o_data, 0, sizeof o_data);
    assert_int_equal(tess_attention(TESS_CPU, &s.q, &s.k, &s.v, s.pattern, &s.o, &s.lse, &error),
                     TESS_OK);
    assert_memory_equal(planned, o_data, sizeof planned);

    for (int i = 0; i < O_SIZE; i++)
        o_data[i] = 77;
    expect(tess_attention(TESS_CPU, NULL, &s.k, &s.v, s.pattern, &s.o, NULL, &error), &error,
           TESS_INVALID_ARGUMENT, "q", "NULL");
    expect(tess_attention(TESS_CPU, &s.q, &s.k, &s.v, s.pattern, NULL, NULL, &error), &error,
           TESS_INVALID_ARGUMENT, "o", "NULL");
    expect(tess_attention(TESS_CPU, &s.q, &s.k, &s.v, NULL, &s.o, NULL, &error), &error,
           TESS_INVALID_ARGUMENT, "pattern", "NULL");
    expect(tess_attention((tess_backend)5, &s.q, &s.k, &s.v, s.pattern, &s.o, NULL, &error), &error,
           TESS_INVALID_ARGUMENT, "backend", "TESS_CPU");
    s.v.size[2]--;
    expect(tess_attention(TESS_CPU, &s.q, &s.k, &s.v, s.pattern, &s.o, NULL, &error), &error,
           TESS_INVALID_ARGUMENT, "v", "rows");
    setting_free(&s);
}

/* Whatever is wrong, errors of the one call are its own and name an argument that it has. */
static void the_one_call_names_its_own(void **state) {
    (void)state;
    struct setting s;
    tess_pattern *other;
    tess_pattern_shape shape = tess_pattern_shape_init();
    setting_make(&s, TESS_FUSED);
    shape.n_q = N + 1;
    assert_int_equal(tess_pattern_from_spec(&other, "dense", &shape, NULL), TESS_OK);
    const struct {
        const char *argument, *words;
        int q, k, v, o, lse; /* a field of the tensor is spoilt: see below; 0: it is good */
        int pattern;
        tess_backend backend;
    } faults[] = {
        {"q", "NULL", .q = 'N'},
        {"k", "NULL", .k = 'N'},
        {"v", "NULL", .v = 'N'},
        {"o", "NULL", .o = 'N'},
        {"q", "data is NULL", .q = '0'},
        {"k", "data is NULL", .k = '0'},
        {"o", "data is NULL", .o = '0'},
        {"lse", "data is NULL", .lse = '0'},
        {"q", "type", .q = 't'},
        {"k", "type bf16", .k = 'b'},
        {"q", "0 dims", .q = 'd'},
        {"k", "dims", .k = 'd'},
        {"v", "0 dims", .v = 'd'},
        {"q", "-1 batches", .q = 'B'},
        {"k", "batches", .k = 'B'},
        {"k", "do not divide", .k = 'h'},
        {"v", "heads", .v = 'h'},
        {"v", "rows", .v = 'n'},
        {"o", "rows", .o = 'n'},
        {"lse", "rows", .lse = 'n'},
        {"k", "last stride", .k = 's'},
        {"o", "overlap", .o = 'S'},
        {"pattern", "NULL", .pattern = 'N'},
        {"pattern", "pattern is for 71", .pattern = 'n'},
        {"backend", "TESS_CPU", .backend = (tess_backend)5},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        const int spoilt[] = {faults[i].q, faults[i].k, faults[i].v, faults[i].o, faults[i].lse};
        tess_tensor t[] = {s.q, s.k, s.v, s.o, s.lse};
        const tess_tensor *given[5];
        for (int j = 0; j < 5; j++) {
            given[j] = spoilt[j] == 'N' ? NULL : &t[j];
            switch (spoilt[j]) {
            case '0':
                t[j].data = NULL;
                break;
            case 't':
                t[j].type = (tess_type)9;
                break;
            case 'b':
                t[j].type = TESS_BF16;
                break;
            case 'd':
                t[j].size[3] = 0;
                break;
            case 'B':
                t[j].size[0] = -1;
                break;
            case 'h':
                t[j].size[1] = 3;
                break;
            case 'n':
                t[j].size[2] = 69;
                break;
            case 's':
                t[j].stride[3] = 2;
                break;
            case 'S':
                t[j].stride[1] = 0;
                break;
            }
        }
        const tess_pattern *pattern = faults[i].pattern == 'N'   ? NULL
                                      : faults[i].pattern == 'n' ? other
                                                                 : s.pattern;
        tess_error error = tess_error_init();
        expect(tess_attention(faults[i].backend, given[0], given[1], given[2], pattern, given[3],
                              given[4], &error),
               &error, TESS_INVALID_ARGUMENT, faults[i].argument, faults[i].words);
        assert_string_equal(error.function, "tess_attention");
    }
    tess_error error = tess_error_init();
    setenv("TESSERA_ISA", "none", 1); /* no kernel is usable */
    expect(tess_attention(TESS_CPU, &s.q, &s.k, &s.v, s.pattern, &s.o, NULL, &error), &error,
           TESS_UNSUPPORTED, "backend", "TESSERA_ISA");
    unsetenv("TESSERA_ISA");
    assert_string_equal(error.function, "tess_attention");
    tess_pattern_free(other);
    setting_free(&s);
}

/* The alignment is the largest that all tensors have. */
static void alignment_is_found(void **state) {
    (void)state;
    static _Alignas(16) unsigned char memory[256];
    for (int offset = 0; offset < 16; offset += 2)
        for (int64_t d = 1; d < 20; d++) {
            tess_problem problem = tess_problem_init();
            tess_tensor t = tess_tensor_bhnd(memory + offset, TESS_F16, 1, 1, 2, d);
            assert_int_equal(tess_problem_from_tensors(&problem, &t, &t, &t, NULL, NULL), TESS_OK);
            int64_t expected = 16;
            while (offset % expected || 2 * d % expected)
                expected /= 2;
            assert_int_equal(problem.alignment, expected);
            assert_int_equal(problem.d_v, d);
            assert_int_equal(problem.n_kv, 2);
        }
    tess_tensor t = tess_tensor_bhnd(memory, TESS_F32, 1, 1, 1, 1);
    assert_int_equal(tess_problem_from_tensors(NULL, &t, &t, &t, NULL, NULL),
                     TESS_INVALID_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_checked),
        cmocka_unit_test(free_strides_are_free),
        cmocka_unit_test(workspace_is_exact),
        cmocka_unit_test(plans_and_arguments_are_checked),
        cmocka_unit_test(stages_are_checked),
        cmocka_unit_test(stages_make_the_whole),
        cmocka_unit_test(the_one_call),
        cmocka_unit_test(alignment_is_found),
        cmocka_unit_test(the_one_call_names_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
