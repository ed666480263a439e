/* Lines that CUDA plans print beside kernels: operand paths, rows of a warp, launches that follow. */
#include "support/plans.h"

#include <stdio.h>

struct setting {
    const char *spec;
    int64_t block_q, block_kv, d;
    tess_pipeline pipeline;
    int32_t architecture;
    int64_t alignment, tile_rows;
    double softcap;
};

/* The text of a plan for bf16, 4096 tokens and two heads. */
static void print(char *text, size_t size, const struct setting *setting) {
    tess_pattern *pattern = make(
        setting->spec, (const int64_t[]){4096, 4096, setting->block_q, setting->block_kv}, 1, 1);
    tess_problem problem = tess_problem_init();
    const tess_target target = cuda_target(setting->architecture, 232448);
    tess_plan *plan = NULL;
    problem.batch = 1, problem.heads_q = problem.heads_kv = 2;
    problem.n_q = problem.n_kv = 4096, problem.d_qk = problem.d_v = setting->d;
    problem.type = TESS_BF16, problem.pipeline = setting->pipeline,
    problem.alignment = setting->alignment;
    problem.tile_rows = setting->tile_rows, problem.softcap = setting->softcap;
    assert_int_equal(tess_plan_create(&plan, &problem, pattern, &target, NULL), TESS_OK);
    assert_true(tess_plan_print(plan, text, size) < size);
    tess_plan_free(plan);
    tess_pattern_free(pattern);
}

static void operand_paths_are_printed(void **state) {
    (void)state;
    static const char sparse[] = "random(0.3,1)", cut[] = "window(70,0)";
    static const struct {
        struct setting setting;
        const char *line;
    } cases[] = {
        {{"causal", 64, 64, 128, TESS_FUSED, 90, 0, 128, 0},
         "granules of 64 keys, copied by TMA, or by cp.async where strides need it\n"},
        {{sparse, 128, 8, 128, TESS_FUSED, 90, 0, 128, 0},
         "granules of 8 keys, copied by TMA, or by cp.async where strides need it\n"},
        {{sparse, 128, 4, 128, TESS_FUSED, 90, 0, 128, 0},
         "granules of 4 keys, copied by cp.async\n"},
        {{sparse, 64, 64, 128, TESS_FUSED, 80, 0, 64, 0},
         "granules of 32 keys, copied by cp.async, or one by one where strides need it; "
         "16 rows a warp\n"},
        {{sparse, 64, 64, 128, TESS_FUSED, 90, 8, 64, 0},
         "granules of 32 keys, copied one by one, as rows are not aligned pieces of 16 bytes; "
         "16 rows a warp\n"},
        {{sparse, 64, 64, 60, TESS_FUSED, 90, 0, 64, 0},
         "granules of 32 keys, copied one by one, as rows are not aligned pieces of 16 bytes; "
         "16 rows a warp\n"},
        {{sparse, 128, 128, 64, TESS_FUSED, 80, 0, 128, 0}, "; 32 rows a warp\n"},
        {{cut, 128, 128, 64, TESS_FUSED, 80, 0, 128, 0}, "; 16 rows a warp\n"},
        {{cut, 128, 128, 128, TESS_FUSED, 80, 0, 128, 0}, "; 32 rows a warp\n"},
    };
    cuda_table_needed();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[16384];
        print(text, sizeof text, &cases[i].setting);
        if (!strstr(text, cases[i].line))
            fail_msg("case %zu: '%s' does not say '%s'", i, text, cases[i].line);
    }
}

static void the_launch_after_sddmm_is_printed(void **state) {
    (void)state;
    static const char line[] = "_mma\n            then cuda_sddmm_modify, for softcap and ALiBi\n";
    struct setting setting = {"causal", 64, 64, 64, TESS_STAGED, 90, 0, 0, 0};
    char text[16384];
    cuda_table_needed();
    print(text, sizeof text, &setting);
    assert_null(strstr(text, "then "));
    setting.softcap = 30;
    print(text, sizeof text, &setting);
    const char *at = strstr(text, line);
    assert_non_null(at);
    assert_null(strstr(at + sizeof line - 1, "then ")); /* after SDDMM alone */
}

/* V in K by declaration alone, and which kernels fetch such rows once. */
static void v_in_k_is_printed(void **state) {
    (void)state;
    static const struct {
        int64_t d, d_v, v_in_k;
        const char *line; /* NULL: nothing of it */
    } cases[] = {{576, 512, 1, "V in K: a row is fetched once\n"},
                 {128, 128, 1, "V in K: a row is fetched twice\n"},
                 {576, 512, 0, NULL}};
    cuda_table_needed();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tess_target target = cuda_target(90, 232448);
        tess_device_pattern pattern = tess_device_pattern_init();
        tess_problem problem = problem_make(64);
        tess_plan *plan;
        char text[16384];
        problem.type = TESS_BF16, problem.d_qk = cases[i].d, problem.d_v = cases[i].d_v;
        problem.alignment = 16, problem.v_in_k = cases[i].v_in_k;
        problem.rope_dims = cases[i].d - cases[i].d_v, problem.o_f32 = 1;
        pattern.n_q = pattern.n_kv = 64, pattern.block_q = pattern.block_kv = 1;
        pattern.capacity = 32;
        assert_int_equal(tess_plan_reserve(&plan, &problem, &pattern, &target, NULL), TESS_OK);
        assert_true(tess_plan_print(plan, text, sizeof text) < sizeof text);
        if (cases[i].line ? !strstr(text, cases[i].line) : strstr(text, "V in K") != NULL)
            fail_msg("case %zu: '%s'", i, text);
        assert_non_null(strstr(text, ", o f32\n"));
        tess_plan_free(plan);
    }
}

/* Which kernel runs where TMA cannot address a run's tensors: one of the table, of the same type and dims. */
static void the_kernel_without_maps_is_printed(void **state) {
    (void)state;
    const tess_target target = cuda_target(90, 232448);
    cuda_table_needed();
    for (int i = 0; i < 4; i++) {
        const int half = i % 2, d = i < 2 ? 64 : 128;
        tess_device_pattern pattern = tess_device_pattern_init();
        tess_problem problem = problem_make(512);
        tess_plan *plan;
        int rows = 0;
        char name[64], line[128], text[16384];
        snprintf(name, sizeof name, "cuda_decode_%s_sm90_blocks_d%d", half ? "f16" : "bf16", d);
        problem.type = half ? TESS_F16 : TESS_BF16, problem.d_qk = problem.d_v = d;
        problem.alignment = 16, problem.kernel = name;
        pattern.n_q = pattern.n_kv = 512, pattern.block_q = pattern.block_kv = 64;
        pattern.capacity = 4;
        assert_int_equal(tess_plan_reserve(&plan, &problem, &pattern, &target, NULL), TESS_OK);
        assert_true(tess_plan_print(plan, text, sizeof text) < sizeof text);
        snprintf(name, sizeof name, "cuda_decode_%s_d%d_r64", half ? "f16" : "bf16", d);
        snprintf(line, sizeof line, "            copied by TMA, or %s where strides need it\n",
                 name);
        assert_non_null(strstr(text, line));
        for (int64_t k = 0; k < backend_get(TESS_CUDA)->n_kernels; k++)
            rows += !strcmp(backend_get(TESS_CUDA)->kernels[k].name, name);
        assert_int_equal(rows, 1);
        tess_plan_free(plan);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operand_paths_are_printed),
        cmocka_unit_test(v_in_k_is_printed),
        cmocka_unit_test(the_kernel_without_maps_is_printed),
        cmocka_unit_test(the_launch_after_sddmm_is_printed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
