/* Refusals of plans: kernels by name, and problems that no kernel computes. */
#include "support/plans.h"

/* A kernel asked for by name is used or refused: nothing falls back. */
static void kernels_by_name(void **state) {
    (void)state;
    tess_pattern *pattern = pattern_make("causal", 64, 16, 1, 1);
    static const struct {
        tess_operation operation;
        tess_pipeline pipeline;
    } by_stage[] = {
        [TESS_STAGE_ATTENTION] = {TESS_ATTENTION, TESS_FUSED},
        [TESS_STAGE_SDDMM] = {TESS_ATTENTION, TESS_STAGED},
        [TESS_STAGE_SOFTMAX] = {TESS_ATTENTION, TESS_STAGED},
        [TESS_STAGE_SPMM] = {TESS_ATTENTION, TESS_STAGED},
        [TESS_STAGE_DELTA] = {TESS_ATTENTION_BACKWARD, TESS_FUSED},
        [TESS_STAGE_GRADIENT_KEYS] = {TESS_ATTENTION_BACKWARD, TESS_FUSED},
        [TESS_STAGE_GRADIENT_ROWS] = {TESS_ATTENTION_BACKWARD, TESS_FUSED},
        [TESS_STAGE_SOFTMAX_BACKWARD] = {TESS_ATTENTION_BACKWARD, TESS_STAGED},
        [TESS_STAGE_SPMM_TRANSPOSED] = {TESS_ATTENTION_BACKWARD, TESS_STAGED},
        [TESS_STAGE_COLUMN_SUMS] = {TESS_ATTENTION, TESS_FUSED},
        [TESS_STAGE_MLP_UP] = {TESS_MLP, TESS_FUSED},
        [TESS_STAGE_MLP_DOWN] = {TESS_MLP, TESS_FUSED},
    };
    tess_problem problem = problem_make(64);
    problem.kernel = "cpu_attention_imaginary";
    refuse(problem, pattern, TESS_UNSUPPORTED, "cpu_attention_imaginary");
    problem.kernel = "cpu_sddmm_portable";
    refuse(problem, pattern, TESS_UNSUPPORTED, "does not contain");
    problem.kernel = NULL;
    problem.tile_rows = 3;
    refuse(problem, pattern, TESS_UNSUPPORTED, "3 rows");

    for (int64_t k = 0; k < tess_kernel_count(); k++) {
        tess_kernel_info info = tess_kernel_info_init();
        tess_plan *plan = NULL;
        assert_int_equal(tess_kernel_describe(k, &info, NULL), TESS_OK);
        if (info.backend != TESS_CPU || info.unusable)
            continue;
        problem = problem_for_all(64);
        problem.kernel = info.name;
        problem.pipeline = by_stage[info.stage].pipeline;
        problem.operation = by_stage[info.stage].operation;
        problem.sum_rows = info.stage == TESS_STAGE_COLUMN_SUMS ? 64 : 0;
        const int is_mlp = problem.operation == TESS_MLP;
        if (is_mlp) /* one head, all columns */
            problem.heads_q = problem.heads_kv = 1;
        assert_int_equal(tess_plan_create(&plan, &problem, is_mlp ? NULL : pattern, NULL, NULL),
                         TESS_OK);
        assert_string_equal(tess_plan_kernel(plan, info.stage), info.name);
        assert_null(tess_plan_kernel(plan, problem.pipeline == TESS_FUSED ? TESS_STAGE_SPMM
                                                                          : TESS_STAGE_ATTENTION));
        tess_plan_free(plan);
    }
    assert_null(tess_plan_kernel(NULL, TESS_STAGE_SPMM));
    tess_pattern_free(pattern);
}

/* The reason of a refusal is that of a kernel of the problem's own type and head size. */
static void cuda_refusals_are_of_near_kernels(void **state) {
    (void)state;
    cuda_table_needed();
    tess_pattern *pattern = pattern_make("dense", 1024, 64, 1, 1);
    tess_problem problem = problem_make(1024);
    tess_target target = cuda_target(80, 166912);
    tess_error error = tess_error_init();
    tess_plan *plan;
    problem.type = TESS_BF16, problem.d_qk = problem.d_v = 512, problem.tile_rows = 64;
    assert_int_equal(tess_plan_create(&plan, &problem, pattern, &target, &error), TESS_UNSUPPORTED);
    if (!strstr(error.message, "query tiles have 8 or 16 rows"))
        fail_msg("'%s'", error.message);
    tess_pattern_free(pattern);
}

/* scale * log2(e) has to be an f32. */
static void cuda_scales_are_refused(void **state) {
    (void)state;
    cuda_table_needed();
    tess_pattern *pattern = pattern_make("dense", 64, 64, 1, 1);
    for (int type = TESS_F32; type <= TESS_BF16; type++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
            tess_problem problem = problem_make(64);
            tess_target target = cuda_target(90, 0);
            tess_error error = tess_error_init();
            tess_plan *plan = NULL;
            problem.type = (tess_type)type, problem.pipeline = (tess_pipeline)pipeline;
            problem.scale = -0x1.8p127;
            tess_status status = tess_plan_create(&plan, &problem, pattern, &target, &error);
            assert_int_equal(status, pipeline == TESS_FUSED ? TESS_UNSUPPORTED : TESS_OK);
            assert_true(status == TESS_OK || strstr(error.message, "2^127"));
            tess_plan_free(plan);
        }
    tess_pattern_free(pattern);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_by_name),
        cmocka_unit_test(cuda_refusals_are_of_near_kernels),
        cmocka_unit_test(cuda_scales_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
