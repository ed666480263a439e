/* Which variants of the stages plans choose on CUDA, and why not the others: what runs is printed. */
#include "support/plans.h"

/* A problem and a pattern on a machine like an H200. */
struct setting {
    const char *spec;
    int64_t heads, n, block, d;
    tess_type type;
    double scale;
    int64_t alignment;
};

static tess_status setting_plan(tess_plan **plan, const struct setting *setting, const char *kernel,
                                int32_t architecture, tess_error *error) {
    tess_pattern *pattern = pattern_make(setting->spec, setting->n, setting->block, 1, 1);
    tess_problem problem = tess_problem_init();
    const tess_target target = cuda_target(architecture, 232448);
    problem.batch = 1, problem.heads_q = problem.heads_kv = setting->heads;
    problem.n_q = problem.n_kv = setting->n, problem.d_qk = problem.d_v = setting->d;
    problem.pipeline = TESS_STAGED, problem.type = setting->type, problem.scale = setting->scale;
    problem.alignment = setting->alignment, problem.kernel = kernel;
    *plan = NULL;
    const tess_status status = tess_plan_create(plan, &problem, pattern, &target, error);
    tess_pattern_free(pattern);
    return status;
}

/* A kernel's name without "cuda_" and the stage's: "bf16_mma". */
static const char *variant(const tess_plan *plan, tess_stage stage) {
    const char *name = tess_plan_kernel(plan, stage);
    assert_non_null(name);
    return strchr(name + strlen("cuda_"), '_') + 1;
}

/* Whatever the machine. */
static void the_shape_of_block_rows_chooses(void **state) {
    (void)state;
    static const char many[] = "random(0.1,1)", few[] = "blockdiag(64)";
    static const struct {
        struct setting setting;
        const char *sddmm, *softmax, *spmm;
    } cases[] = {
        {{many, 16, 4096, 32, 128, TESS_BF16, 0, 0}, "bf16_mma", "f32_rows", "bf16_mma"},
        {{many, 16, 4096, 64, 64, TESS_F16, 0, 0}, "f16_mma", "f32_rows", "f16_mma"},
        {{many, 16, 4096, 32, 256, TESS_BF16, 0, 0}, "bf16_mma", "f32_rows", "bf16_mma"},
        {{many, 16, 4096, 32, 128, TESS_BF16, 1e-3, 8}, "bf16_mma", "f32_rows", "bf16_mma"},
        {{"causal", 16, 4096, 64, 128, TESS_BF16, 0, 0}, "bf16_mma", "f32_rows", "bf16_mma"},
        {{many, 16, 4096, 8, 128, TESS_BF16, 0, 0}, "bf16_gather", "f32_rows", "bf16_gather"},
        {{many, 1, 4096, 1, 64, TESS_BF16, 0, 0}, "bf16_row", "f32_rows", "bf16_row"},
        {{"random_row(0.004,1)", 1, 4096, 1, 64, TESS_BF16, 0, 0},
         "bf16_narrow",
         "f32_rows",
         "bf16_row"},
        {{many, 1, 4096, 1, 64, TESS_F32, 0, 0}, "f32_row", "f32_rows", "f32_row"},
        {{"random_row(0.004,1)", 1, 4096, 1, 64, TESS_F32, 0, 0},
         "f32_narrow",
         "f32_rows",
         "f32_row"},
        {{"random_row(0.004,1)", 1, 4096, 1, 64, TESS_F32, 0, 4}, "f32_row", "f32_rows", "f32_row"},
        {{many, 1, 4096, 32, 64, TESS_F32, 0, 0}, "f32_gather", "f32_rows", "f32_gather"},
        {{few, 8, 1024, 64, 512, TESS_F32, 0, 0}, "f32_gather", "f32_rows", "f32_short"},
        {{few, 8, 1024, 64, 128, TESS_F32, 0, 0}, "f32_gather", "f32_rows", "f32_gather"},
    };
    cuda_table_needed();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_plan *plan;
        const int32_t architecture = 80 + 10 * (int32_t)(i % 5);
        assert_int_equal(setting_plan(&plan, &cases[i].setting, NULL, architecture, NULL), TESS_OK);
        const char *const got[] = {variant(plan, TESS_STAGE_SDDMM),
                                   variant(plan, TESS_STAGE_SOFTMAX),
                                   variant(plan, TESS_STAGE_SPMM)};
        if (strcmp(got[0], cases[i].sddmm) || strcmp(got[1], cases[i].softmax) ||
            strcmp(got[2], cases[i].spmm))
            fail_msg("case %zu: %s %s %s", i, got[0], got[1], got[2]);
        tess_plan_free(plan);
    }
}

/* Each is taken by name where it does not refuse, and says why where it does. */
static void variants_by_name(void **state) {
    (void)state;
    static const char many[] = "random(0.1,1)";
    static const struct {
        struct setting setting;
        const char *kernel;
        tess_stage stage;
        const char *why; /* NULL: taken */
    } cases[] = {
        {{many, 16, 4096, 32, 128, TESS_BF16, 0, 0}, "cuda_sddmm_bf16_mma", TESS_STAGE_SDDMM, NULL},
        {{many, 16, 4096, 32, 128, TESS_BF16, 0, 0},
         "cuda_spmm_bf16_gather",
         TESS_STAGE_SPMM,
         NULL},
        {{many, 16, 4096, 32, 128, TESS_BF16, 0, 0},
         "cuda_spmm_f16_gather",
         TESS_STAGE_SPMM,
         "f16 only"},
        {{many, 16, 4096, 32, 128, TESS_BF16, 0, 0},
         "cuda_spmm_bf16_row",
         TESS_STAGE_SPMM,
         "one query"},
        {{many, 1, 4096, 1, 64, TESS_BF16, 0, 0}, "cuda_sddmm_bf16_gather", TESS_STAGE_SDDMM, NULL},
        {{many, 1, 4096, 1, 64, TESS_BF16, 0, 0},
         "cuda_sddmm_bf16_narrow",
         TESS_STAGE_SDDMM,
         "32 keys"},
        {{many, 1, 4096, 1, 64, TESS_BF16, 0, 0},
         "cuda_sddmm_bf16_mma",
         TESS_STAGE_SDDMM,
         "more than 8 queries"},
        {{"random_row(0.004,1)", 1, 4096, 1, 64, TESS_F32, 0, 4},
         "cuda_sddmm_f32_narrow",
         TESS_STAGE_SDDMM,
         "aligned to that"},
        {{many, 1, 1024, 32, 512, TESS_F32, 0, 0},
         "cuda_spmm_f32_short",
         TESS_STAGE_SPMM,
         "64 keys"},
        {{many, 1, 1024, 32, 64, TESS_F32, 0, 0},
         "cuda_spmm_f32_short",
         TESS_STAGE_SPMM,
         "256 dims"},
    };
    cuda_table_needed();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_error error = tess_error_init();
        tess_plan *plan;
        const tess_status status =
            setting_plan(&plan, &cases[i].setting, cases[i].kernel, 90, &error);
        if (cases[i].why) {
            assert_int_equal(status, TESS_UNSUPPORTED);
            if (!strstr(error.message, cases[i].why))
                fail_msg("case %zu: '%s' does not say '%s'", i, error.message, cases[i].why);
            continue;
        }
        assert_int_equal(status, TESS_OK);
        assert_string_equal(tess_plan_kernel(plan, cases[i].stage), cases[i].kernel);
        tess_plan_free(plan);
    }
}

static void plans_print_variants(void **state) {
    (void)state;
    static const struct setting setting = {"random(0.1,1)", 16, 4096, 8, 128, TESS_BF16, 0, 0};
    static const char *const lines[] = {
        "kernel    sddmm: cuda_sddmm_bf16_gather\n",
        "not cuda_sddmm_bf16_mma: its block rows have more than 8 queries\n",
        "not cuda_sddmm_bf16_row: its block rows have one query\n",
        "not cuda_softmax_f32_modified: comes after it\n",
        "kernel    softmax: cuda_softmax_f32_rows\n",
    };
    char text[8192];
    tess_plan *plan;
    cuda_table_needed();
    assert_int_equal(setting_plan(&plan, &setting, NULL, 90, NULL), TESS_OK);
    assert_true(tess_plan_print(plan, text, sizeof text) < sizeof text);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (!strstr(text, lines[i]))
            fail_msg("'%s' does not say '%s'", text, lines[i]);
    tess_plan_free(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_shape_of_block_rows_chooses),
        cmocka_unit_test(variants_by_name),
        cmocka_unit_test(plans_print_variants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
