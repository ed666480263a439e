/* Plans: what they hold, what they refuse, what they say. What they choose: test_select.c. */
#include "support/plans.h"

#include <math.h>

static void pattern_may_go(void **state) {
    (void)state;
    tess_plan *plan = NULL;
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        tess_pattern *pattern = pattern_make("random(0.3,1)+causal", 300, 32, 2, 4);
        tess_problem problem = problem_make(300);
        problem.pipeline = (tess_pipeline)pipeline;
        assert_int_equal(tess_plan_create(&plan, &problem, pattern, NULL, NULL), TESS_OK);
        tess_pattern_info of_pattern = tess_pattern_info_init();
        tess_plan_info info = tess_plan_info_init();
        assert_int_equal(tess_pattern_describe(pattern, &of_pattern, NULL), TESS_OK);
        tess_pattern_free(pattern);
        assert_int_equal(tess_plan_describe(plan, &info, NULL), TESS_OK);
        assert_int_equal(info.pairs, of_pattern.pairs);
        assert_true(info.work_items >= 2 * 4 * 5 && info.memory_size > 0);
        assert_true(info.predicted_seconds > 0);
        assert_true(tess_plan_workspace_size(plan) > 0);
        tess_plan_free(plan);
    }
}

/* Passes stand in the order in which they run, and walk one work. */
static void plans_are_passes(void **state) {
    (void)state;
    static const struct {
        int n;
        tess_stage stages[PLAN_PASSES];
    } expected[] = {[TESS_FUSED] = {1, {TESS_STAGE_ATTENTION}},
                    [TESS_STAGED] = {3, {TESS_STAGE_SDDMM, TESS_STAGE_SOFTMAX, TESS_STAGE_SPMM}}};
    tess_pattern *pattern = pattern_make("causal", 100, 16, 1, 1);
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        tess_problem problem = problem_make(100);
        tess_plan *plan = NULL;
        problem.pipeline = (tess_pipeline)pipeline;
        assert_int_equal(tess_plan_create(&plan, &problem, pattern, NULL, NULL), TESS_OK);
        assert_int_equal(plan->n_passes, expected[pipeline].n);
        for (int i = 0; i < plan->n_passes; i++) {
            const struct pass *pass = &plan->passes[i];
            assert_int_equal(pass->stage, expected[pipeline].stages[i]);
            assert_int_equal(pass->kernel->stage, pass->stage);
            assert_ptr_equal(pass->work, &plan->work);
            assert_ptr_equal(plan_pass(plan, pass->stage), pass);
            assert_true(pass->workspace <= tess_plan_workspace_size(plan));
            assert_int_equal(tess_plan_stage_workspace_size(plan, pass->stage), pass->workspace);
        }
        assert_null(plan_pass(plan, (tess_stage)-1));
        tess_plan_free(plan);
    }
    assert_null(plan_pass(NULL, TESS_STAGE_ATTENTION));
    tess_pattern_free(pattern);
}

/* Head h reads the list of its key/value head, or its own, or the only one. */
static void heads_find_their_lists(void **state) {
    (void)state;
    const struct {
        int64_t batch, heads, list[8];
    } shapes[] = {
        {1, 1, {0, 0, 0, 0, 0, 0, 0, 0}}, {1, 2, {0, 0, 1, 1, 0, 0, 1, 1}},
        {1, 4, {0, 1, 2, 3, 0, 1, 2, 3}}, {2, 1, {0, 0, 0, 0, 1, 1, 1, 1}},
        {2, 2, {0, 0, 1, 1, 2, 2, 3, 3}}, {2, 4, {0, 1, 2, 3, 4, 5, 6, 7}},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        tess_pattern *pattern =
            pattern_make("random(0.3,1)", 100, 8, shapes[i].batch, shapes[i].heads);
        tess_problem problem = problem_make(100);
        tess_plan *plan = NULL;
        assert_int_equal(tess_plan_create(&plan, &problem, pattern, NULL, NULL), TESS_OK);
        assert_memory_equal(plan->list_of, shapes[i].list, sizeof shapes[i].list);
        tess_plan_free(plan);
        tess_pattern_free(pattern);
    }
}

static void problems_are_checked(void **state) {
    (void)state;
    tess_pattern *pattern = pattern_make("causal", 64, 16, 1, 1);
    const struct {
        size_t field;
        int64_t value;
        const char *words;
    } bad[] = {
        {offsetof(tess_problem, batch), 0, "batch is 0"},
        {offsetof(tess_problem, heads_q), -4, "heads_q is -4"},
        {offsetof(tess_problem, heads_kv), 3, "heads_kv does not divide"},
        {offsetof(tess_problem, heads_kv), 0, "heads_kv is 0"},
        {offsetof(tess_problem, n_q), INT64_C(1) << 31, "n_q is 2147483648"},
        {offsetof(tess_problem, n_kv), 0, "n_kv is 0"},
        {offsetof(tess_problem, n_kv), 63, "pattern is for 64 x 64"},
        {offsetof(tess_problem, d_qk), 0, "d_qk is 0"},
        {offsetof(tess_problem, d_v), 65537, "d_v is 65537"},
        {offsetof(tess_problem, batch), INT32_MAX, "past 2^31"},
        {offsetof(tess_problem, alignment), 24, "power of two"},
        {offsetof(tess_problem, alignment), 2, "less than the size"},
        {offsetof(tess_problem, alignment), -16, "power of two"},
        {offsetof(tess_problem, threads), -1, "threads"},
        {offsetof(tess_problem, tile_rows), 257, "tile_rows"},
        {offsetof(tess_problem, part_keys), -1, "part_keys"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tess_problem problem = problem_make(64);
        memcpy((char *)&problem + bad[i].field, &bad[i].value, sizeof bad[i].value);
        refuse(problem, pattern, TESS_INVALID_ARGUMENT, bad[i].words);
    }
    tess_problem problem = problem_make(64);
    problem.type = (tess_type)5;
    refuse(problem, pattern, TESS_INVALID_ARGUMENT, "type");
    problem = problem_make(64);
    problem.pipeline = (tess_pipeline)2;
    refuse(problem, pattern, TESS_INVALID_ARGUMENT, "pipeline");
    problem = problem_make(64);
    problem.scale = -1.0 / 0.0;
    refuse(problem, pattern, TESS_INVALID_ARGUMENT, "scale");
    problem.scale = 1e39;
    refuse(problem, pattern, TESS_INVALID_ARGUMENT, "scale");
    problem = problem_make(64);
    problem.struct_size = 0;
    refuse(problem, pattern, TESS_INVALID_ARGUMENT, "struct_size");
    problem.struct_size = offsetof(tess_problem, part_keys); /* less than version 0.1's */
    refuse(problem, pattern, TESS_INVALID_ARGUMENT, "struct_size");
    problem = problem_make(64);
    problem.kernel = "a\nb";
    refuse(problem, pattern, TESS_UNSUPPORTED, "no kernel named a?b");
    refuse(problem_make(64), NULL, TESS_INVALID_ARGUMENT, "pattern is NULL");
    tess_pattern_free(pattern);

    pattern = pattern_make("random(0.5,1)", 64, 16, 1, 3);
    refuse(problem_make(64), pattern, TESS_INVALID_ARGUMENT, "3 heads");
    tess_pattern_free(pattern);
    pattern = pattern_make("random(0.5,1)", 64, 16, 3, 1);
    refuse(problem_make(64), pattern, TESS_INVALID_ARGUMENT, "3 batches");
    tess_pattern_free(pattern);

    assert_int_equal(tess_plan_create(NULL, NULL, NULL, NULL, NULL), TESS_INVALID_ARGUMENT);
    tess_plan_free(NULL);
}

/* Splits depend on the pattern and the declared numbers, not on the threads. */
static void threads_do_not_change_the_schedule(void **state) {
    (void)state;
    tess_pattern *pattern = pattern_make("global(8)+window(64,64)", 8192, 64, 1, 1);
    struct schedule first = {0};
    for (int threads = 1; threads <= 8; threads++) {
        tess_problem problem = problem_make(8192);
        tess_plan *plan = NULL;
        problem.threads = threads;
        assert_int_equal(tess_plan_create(&plan, &problem, pattern, NULL, NULL), TESS_OK);
        assert_true(plan->work.schedule.n_combines > 0);
        if (threads == 1) {
            first = plan->work.schedule;
            plan->work.schedule = (struct schedule){0};
        } else {
            assert_int_equal(plan->work.schedule.n_items, first.n_items);
            assert_memory_equal(plan->work.schedule.items, first.items,
                                (size_t)first.n_items * sizeof *first.items);
        }
        tess_plan_free(plan);
    }
    schedule_free(&first);
    tess_pattern_free(pattern);
}

static void printing_is_snprintf(void **state) {
    (void)state;
    static const char *const words[2][4] = {
        {"fused attention on cpu", "cpu_attention_", "64 x 64 tiles", "split"},
        {"staged attention on cpu", "cpu_sddmm_", "floats between the stages", "predicted"}};
    tess_pattern *pattern = pattern_make("longformer(64,4)", 512, 64, 1, 1);
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        tess_problem problem = problem_make(512);
        tess_plan *plan = NULL;
        problem.pipeline = (tess_pipeline)pipeline;
        assert_int_equal(tess_plan_create(&plan, &problem, pattern, NULL, NULL), TESS_OK);
        size_t length = tess_plan_print(plan, NULL, 0);
        char *text = malloc(length + 2), piece[40];
        memset(text, 'x', length + 2);
        assert_int_equal(tess_plan_print(plan, text, length + 1), length);
        assert_int_equal(strlen(text), length);
        assert_int_equal(text[length + 1], 'x');
        for (int i = 0; i < 4; i++)
            if (!strstr(text, words[pipeline][i]))
                fail_msg("'%s' is not in\n%s", words[pipeline][i], text);
        /* the problem is f32: kernels for other types are counted, not listed */
        assert_null(strstr(text, "it multiplies bf16"));
        assert_int_equal(tess_plan_print(plan, piece, sizeof piece), length);
        assert_int_equal(strlen(piece), sizeof piece - 1);
        assert_memory_equal(piece, text, sizeof piece - 1);
        free(text);
        tess_plan_free(plan);
    }
    char nothing[4] = "abc";
    assert_int_equal(tess_plan_print(NULL, nothing, sizeof nothing), 0);
    assert_int_equal(nothing[0], 0);
    tess_pattern_free(pattern);
}

static void cuda_refuses_o_rest(void **state) {
    (void)state;
    cuda_table_needed();
    tess_pattern *pattern = pattern_make("causal", 64, 16, 1, 1);
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        const tess_target target = cuda_target(90, 0);
        tess_problem problem = problem_make(64);
        tess_error error = tess_error_init();
        tess_plan *plan = NULL;
        problem.o_rest = 1;
        problem.pipeline = (tess_pipeline)pipeline;
        assert_int_equal(tess_plan_create(&plan, &problem, pattern, &target, &error),
                         TESS_UNSUPPORTED);
        assert_non_null(strstr(error.message, "it does not write o_rest"));
    }
    tess_pattern_free(pattern);
}

/* Plans for CUDA can be made and looked at on a machine without a device, in a build with CUDA. */
static void cuda_plans_need_no_device(void **state) {
    (void)state;
    static const struct {
        tess_pipeline pipeline;
        tess_type type;
        int64_t d;
        tess_stage stage;
        const char *kernel; /* NULL: refused */
    } cases[] = {
        {TESS_FUSED, TESS_F32, 16, TESS_STAGE_ATTENTION, "cuda_attention_f32_d32"},
        {TESS_FUSED, TESS_F32, 128, TESS_STAGE_ATTENTION, "cuda_attention_f32_small_m_d128"},
        {TESS_FUSED, TESS_F32, 256, TESS_STAGE_ATTENTION, "cuda_attention_f32_small_m_d256"},
        {TESS_FUSED, TESS_F32, 257, TESS_STAGE_ATTENTION, "cuda_attention_f32_small_m_d512"},
        {TESS_FUSED, TESS_F32, 1024, TESS_STAGE_ATTENTION, "cuda_attention_f32_small_m_d1024"},
        {TESS_FUSED, TESS_F32, 1025, TESS_STAGE_ATTENTION, NULL},
        {TESS_FUSED, TESS_BF16, 64, TESS_STAGE_ATTENTION, "cuda_attention_bf16_sm90_d64_r64"},
        {TESS_FUSED, TESS_F16, 80, TESS_STAGE_ATTENTION, "cuda_attention_f16_sm90_d128_r64"},
        {TESS_FUSED, TESS_BF16, 256, TESS_STAGE_ATTENTION, "cuda_attention_bf16_sm90_d256_r64"},
        {TESS_FUSED, TESS_BF16, 257, TESS_STAGE_ATTENTION, "cuda_attention_bf16_small_m_d512"},
        {TESS_FUSED, TESS_F16, 768, TESS_STAGE_ATTENTION, "cuda_attention_f16_small_m_d768"},
        {TESS_FUSED, TESS_BF16, 1025, TESS_STAGE_ATTENTION, NULL},
        {TESS_STAGED, TESS_F32, 16, TESS_STAGE_SOFTMAX, "cuda_softmax_f32_rows"},
    };
    tess_pattern *pattern = pattern_make("causal", 64, 16, 1, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_problem problem = problem_make(64);
        tess_target target = tess_target_init();
        tess_error error = tess_error_init();
        tess_plan *plan = NULL;
        problem.pipeline = cases[i].pipeline, problem.type = cases[i].type;
        problem.d_qk = cases[i].d, problem.heads_kv = problem.heads_q;
        target.backend = TESS_CUDA;
        assert_int_equal(tess_plan_create(&plan, &problem, pattern, &target, &error),
                         TESS_INVALID_ARGUMENT);
        target.multiprocessors = 132, target.architecture = 90;
        tess_status status = tess_plan_create(&plan, &problem, pattern, &target, &error);
        if (!cases[i].kernel) {
            assert_int_equal(status, TESS_UNSUPPORTED);
            assert_non_null(strstr(error.message, "1024 dims"));
            continue;
        }
        assert_int_equal(status, TESS_OK);
        assert_string_equal(tess_plan_kernel(plan, cases[i].stage), cases[i].kernel);
        assert_true(tess_plan_image_size(plan) > 0);
        assert_true(tess_plan_print(plan, NULL, 0) > 0);
        tess_plan_free(plan);
        plan = NULL;
        target.architecture = 75;
        assert_int_equal(tess_plan_create(&plan, &problem, pattern, &target, &error),
                         TESS_UNSUPPORTED);
        target.backend = (tess_backend)7;
        assert_int_equal(tess_plan_create(&plan, &problem, pattern, &target, &error),
                         TESS_INVALID_ARGUMENT);
    }
    tess_pattern_free(pattern);
}

/* Times that the one call compares: the staged pipeline as a plan of it would be predicted. */
static void staged_is_predicted_without_a_plan(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int64_t d, block;
        tess_type type;
    } cases[] = {{"causal", 64, 16, TESS_F32},
                 {"random(0.3,1)", 200, 8, TESS_BF16},
                 {"window(9,3)", 1024, 64, TESS_F16}};
    cuda_table_needed();
    for (int backend = TESS_CPU; backend <= TESS_CUDA; backend++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            tess_pattern *pattern = pattern_make(cases[i].spec, 256, cases[i].block, 1, 4);
            tess_problem problem = problem_make(256);
            tess_target target = backend == TESS_CUDA ? cuda_target(90, 0) : tess_target_init();
            tess_plan *fused, *staged;
            problem.type = cases[i].type, problem.d_qk = problem.d_v = cases[i].d;
            assert_int_equal(tess_plan_create(&fused, &problem, pattern, &target, NULL), TESS_OK);
            problem.pipeline = TESS_STAGED;
            assert_int_equal(tess_plan_create(&staged, &problem, pattern, &target, NULL), TESS_OK);
            assert_true(plan_staged_seconds(fused, pattern) == staged->predicted_seconds);
            fused->target.architecture = 75;
            assert_true(backend == TESS_CPU || isinf(plan_staged_seconds(fused, pattern)));
            tess_plan_free(fused);
            tess_plan_free(staged);
            tess_pattern_free(pattern);
        }
}

/* Values that do not fit 64 bits are refused, not wrapped. */
static void huge_scores_are_refused(void **state) {
    (void)state;
    tess_pattern *pattern = NULL;
    tess_pattern_shape shape = tess_pattern_shape_init();
    shape.n_q = shape.n_kv = INT32_MAX;
    shape.block_q = shape.block_kv = INT32_MAX;
    assert_int_equal(tess_pattern_from_spec(&pattern, "dense", &shape, NULL), TESS_OK);
    tess_problem problem = problem_make(INT32_MAX);
    problem.pipeline = TESS_STAGED;
    refuse(problem, pattern, TESS_INVALID_ARGUMENT, "do not fit");
    tess_pattern_free(pattern);
}

static void queries_answer(void **state) {
    (void)state;
    tess_device_info device = tess_device_info_init();
    tess_kernel_info kernel = tess_kernel_info_init();
    tess_target target = tess_target_init();
    tess_error error = tess_error_init();
    assert_int_equal(tess_device_count(TESS_CPU), 1);
    assert_int_equal(tess_device_describe(TESS_CPU, 0, &device, NULL), TESS_OK);
    assert_true(device.name[0] && device.multiprocessors >= 1 && device.memory_size > 0);
    assert_int_not_equal(tess_device_describe(TESS_CPU, 1, &device, &error), TESS_OK);
    assert_int_equal(tess_device_describe(TESS_CPU, -1, &device, &error), TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "device");
    assert_int_equal(tess_target_query(&target, TESS_CPU, -1, NULL), TESS_OK);
    assert_int_equal(tess_target_query(&target, TESS_CPU, 0, NULL), TESS_OK);
    assert_int_equal(target.backend, TESS_CPU);
    assert_int_equal(tess_device_count((tess_backend)9), 0);
    assert_int_equal(tess_target_query(&target, (tess_backend)9, 0, &error), TESS_INVALID_ARGUMENT);
    assert_int_not_equal(tess_target_query(&target, TESS_CUDA, 1000, &error), TESS_OK);
    assert_int_equal(tess_target_query(NULL, TESS_CPU, 0, &error), TESS_INVALID_ARGUMENT);
    assert_true(tess_kernel_count() >= 4);
    assert_int_equal(tess_kernel_describe(tess_kernel_count(), &kernel, &error),
                     TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_kernel_describe(-1, &kernel, &error), TESS_INVALID_ARGUMENT);
    assert_non_null(tess_cpu_isa());
    assert_int_equal(tess_plan_workspace_size(NULL), 0);
    assert_int_equal(tess_plan_scores_count(NULL), 0);
    assert_int_equal(tess_plan_stage_workspace_size(NULL, TESS_STAGE_SDDMM), 0);
    assert_int_equal(tess_plan_describe(NULL, NULL, &error), TESS_INVALID_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pattern_may_go),
        cmocka_unit_test(plans_are_passes),
        cmocka_unit_test(heads_find_their_lists),
        cmocka_unit_test(problems_are_checked),
        cmocka_unit_test(threads_do_not_change_the_schedule),
        cmocka_unit_test(printing_is_snprintf),
        cmocka_unit_test(cuda_plans_need_no_device),
        cmocka_unit_test(cuda_refuses_o_rest),
        cmocka_unit_test(staged_is_predicted_without_a_plan),
        cmocka_unit_test(huge_scores_are_refused),
        cmocka_unit_test(queries_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
