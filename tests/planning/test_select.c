/* Which kernels and which tile heights plans choose. */
#include "support/plans.h"

/* The height of every pass over lists that the plan has: where dQ joins the pass over keys, there is none
 * over queries. */
static void height_is_had(const tess_problem *problem, const tess_pattern *pattern) {
    tess_plan *plan = plan_created(problem, pattern);
    const int backward = problem->operation == TESS_ATTENTION_BACKWARD;
    assert_int_equal(plan->work.lists.tile_rows, plan->joint ? 0 : problem->tile_rows);
    assert_int_equal(plan->key_work.lists.tile_rows, backward ? problem->tile_rows : 0);
    assert_false(plan->joint && (!backward || problem->spill_size == 1));
    tess_plan_free(plan);
}

/* In the form of the backward that costs least, which levels and heights decide; and in two passes, as
 * there is no room for sums of dQ. */
static void heights_can_be_asked_for(void **state) {
    (void)state;
    tess_pattern *pattern = pattern_make("random(0.2,1)", 256, 8, 1, 1);
    const struct backend *cpu = cpu_kernels();
    for (int64_t k = 0; k < cpu->n_kernels; k++)
        for (const int32_t *rows = cpu->kernels[k].rows;
             rows && *rows && !cpu->kernels[k].unusable(); rows++) {
            tess_problem problem = problem_for_all(256);
            problem.kernel = cpu->kernels[k].name;
            problem.tile_rows = *rows;
            if (cpu->kernels[k].stage == TESS_STAGE_MLP_UP)
                continue; /* whose tiles are no higher than blocks: kernels/test_mlp.c */
            if (cpu->kernels[k].stage == TESS_STAGE_COLUMN_SUMS)
                problem.sum_rows = *rows;
            else if (cpu->kernels[k].stage != TESS_STAGE_ATTENTION)
                problem.operation = TESS_ATTENTION_BACKWARD;
            height_is_had(&problem, pattern);
            if (problem.operation == TESS_ATTENTION)
                continue;
            problem.spill_size = 1;
            height_is_had(&problem, pattern);
        }
    tess_pattern_free(pattern);
}

/* The tile's height follows from what the lists would cost: whole tiles for large blocks, and not
 * the tallest where few rows share a key. */
static void cuda_heights_follow_the_lists(void **state) {
    (void)state;
    cuda_table_needed();
    static const struct {
        const char *spec;
        int64_t block;
        int32_t architecture, lowest, highest;
    } cases[] = {{"random(0.1,1)", 128, 90, 128, 128},
                 {"dense", 64, 90, 192, 192},
                 {"random(0.1,1)", 32, 90, 32, 32},
                 {"random(0.02,1)", 4, 80, 16, 64}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_pattern *pattern = pattern_make(cases[i].spec, 10240, cases[i].block, 1, 1);
        tess_problem problem = problem_for_all(10240); /* whole waves of tiles of 16 rows */
        tess_target target = cuda_target(cases[i].architecture, 0);
        tess_plan *plan = NULL;
        problem.d_qk = problem.d_v = 64, problem.heads_kv = problem.heads_q;
        assert_int_equal(tess_plan_create(&plan, &problem, pattern, &target, NULL), TESS_OK);
        assert_in_range(plan->work.lists.tile_rows, cases[i].lowest, cases[i].highest);
        tess_plan_free(plan);
        tess_pattern_free(pattern);
    }
}

/* A lower tile of a window lists fewer keys than its block row: the CPU weighs all heights. */
static void cpu_heights_below_blocks_are_weighed(void **state) {
    (void)state;
    tess_pattern *pattern = pattern_make("window(8,8)", 1024, 64, 1, 1);
    tess_problem problem = problem_make(1024);
    tess_target target = tess_target_init();
    tess_plan *plan = NULL;
    problem.heads_kv = problem.heads_q;
    assert_int_equal(tess_target_query(&target, TESS_CPU, -1, NULL), TESS_OK);
    assert_int_equal(tess_plan_create(&plan, &problem, pattern, &target, NULL), TESS_OK);
    assert_true(plan->passes->tiles.heights[0].rows < 64 && plan->passes->tiles.heights[1].rows);
    tess_plan_free(plan);
    tess_pattern_free(pattern);
}

/* Few tiles are spread over the device, where lower tiles list fewer keys. Tiles lower than their block row
 * do not, unless the problem asks for them. */
static void cuda_small_problems_are_spread(void **state) {
    (void)state;
    cuda_table_needed();
    static const struct {
        const char *spec;
        int64_t n, block, asked, rows;
    } cases[] = {{"random(0.1,1)", 1024, 8, 0, 32},
                 {"random(0.3,1)", 16384, 8, 0, 64},
                 {"random(0.1,1)", 1024, 64, 0, 64},
                 {"random(0.1,1)", 1024, 64, 8, 8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_pattern *pattern = pattern_make(cases[i].spec, cases[i].n, cases[i].block, 1, 1);
        tess_problem problem = problem_make(cases[i].n);
        const tess_target target = cuda_target(90, 232448);
        tess_plan *plan = NULL;
        problem.type = TESS_BF16, problem.d_qk = problem.d_v = 64;
        problem.heads_kv = problem.heads_q, problem.tile_rows = cases[i].asked;
        assert_int_equal(tess_plan_create(&plan, &problem, pattern, &target, NULL), TESS_OK);
        assert_int_equal(plan->work.lists.tile_rows, cases[i].rows);
        tess_plan_free(plan);
        tess_pattern_free(pattern);
    }
}

/* Portable kernels split few long tiles, and their parts count: tiles stay high, and Hopper's kernel ahead. */
static void cuda_long_tiles_are_split(void **state) {
    (void)state;
    cuda_table_needed();
    static const struct {
        int32_t architecture;
        int64_t n, shared;
        const char *kernel;
    } cases[] = {{80, 4096, 166912, "cuda_attention_bf16_d64"},
                 {80, 8192, 166912, "cuda_attention_bf16_d64"},
                 {90, 2048, 232448, "cuda_attention_bf16_sm90_d64"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_pattern *pattern = pattern_make("dense", cases[i].n, 128, 1, 1);
        tess_problem problem = problem_make(cases[i].n);
        const tess_target target = cuda_target(cases[i].architecture, cases[i].shared);
        tess_plan *plan = NULL;
        problem.type = TESS_BF16, problem.d_qk = problem.d_v = 64;
        problem.batch = problem.heads_q = problem.heads_kv = 1;
        assert_int_equal(tess_plan_create(&plan, &problem, pattern, &target, NULL), TESS_OK);
        assert_string_equal(plan->passes->kernel->name, cases[i].kernel);
        assert_true(plan->work.lists.tile_rows >= 64);
        assert_true(plan->work.schedule.n_combines > 0);
        tess_plan_free(plan);
        tess_pattern_free(pattern);
    }
}

/* Small-M tiles of f32, and of 16 bits past 256 dims, have kernels of their own, which are weighed
 * against the others. */
static void cuda_small_m_tiles_are_weighed(void **state) {
    (void)state;
    cuda_table_needed();
    static const struct {
        tess_type type;
        const char *spec;
        int64_t d, block, tile_rows, rows;
        const char *kernel;
    } cases[] = {
        {TESS_F32, "random(0.1,1)", 64, 8, 0, 8, "cuda_attention_f32_small_m_d64"},
        {TESS_F32, "random(0.1,1)", 128, 8, 0, 8, "cuda_attention_f32_small_m_d128"},
        {TESS_F32, "random(0.02,1)", 40, 1, 0, 8, "cuda_attention_f32_small_m_d64"},
        {TESS_F32, "random(0.1,1)", 64, 16, 0, 16, "cuda_attention_f32_d64"},
        {TESS_F32, "random(0.1,1)", 128, 16, 0, 16, "cuda_attention_f32_small_m_d128"},
        {TESS_F32, "random(0.1,1)", 128, 16, 8, 8, "cuda_attention_f32_small_m_d128"},
        {TESS_F32, "random(0.1,1)", 96, 8, 64, 64, "cuda_attention_f32_d128"},
        {TESS_F32, "random(0.1,1)", 136, 8, 8, 8, "cuda_attention_f32_small_m_d192"},
        {TESS_F32, "random(0.1,1)", 256, 8, 0, 8, "cuda_attention_f32_small_m_d256"},
        {TESS_F32, "random(0.1,1)", 192, 128, 0, 16, "cuda_attention_f32_small_m_d192"},
        {TESS_F32, "random(0.1,1)", 200, 32, 0, 32, "cuda_attention_f32_small_m_d256"},
        {TESS_F32, "random(0.1,1)", 256, 8, 16, 16, "cuda_attention_f32_small_m_d256"},
        {TESS_F32, "random(0.1,1)", 264, 8, 8, 8, "cuda_attention_f32_small_m_d512"},
        {TESS_F32, "random(0.1,1)", 768, 32, 0, 16, "cuda_attention_f32_small_m_d768"},
        {TESS_BF16, "random(0.1,1)", 264, 8, 0, 8, "cuda_attention_bf16_small_m_d512"},
        {TESS_BF16, "random(0.1,1)", 512, 32, 0, 32, "cuda_attention_bf16_small_m_d512"},
        {TESS_F16, "random(0.1,1)", 576, 128, 0, 16, "cuda_attention_f16_small_m_d768"},
        {TESS_BF16, "random(0.1,1)", 1024, 128, 0, 32, "cuda_attention_bf16_small_m_d1024"},
        {TESS_F32, "dense", 64, 128, 0, 128, "cuda_attention_f32_d64"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_pattern *pattern = pattern_make(cases[i].spec, 8192, cases[i].block, 1, 1);
        tess_problem problem = problem_make(8192);
        tess_target target = cuda_target(cases[i].type == TESS_F32 ? 90 : 100, 232448);
        tess_plan *plan = NULL;
        problem.type = cases[i].type;
        problem.d_qk = problem.d_v = cases[i].d, problem.tile_rows = cases[i].tile_rows;
        problem.heads_kv = problem.heads_q;
        assert_int_equal(tess_plan_create(&plan, &problem, pattern, &target, NULL), TESS_OK);
        assert_string_equal(tess_plan_kernel(plan, TESS_STAGE_ATTENTION), cases[i].kernel);
        assert_int_equal(plan->work.lists.tile_rows, cases[i].rows);
        tess_plan_free(plan);
        tess_pattern_free(pattern);
    }
}

/* Work is split for as many workers as there are, of multiprocessors that share items half: each of
 * 132 equal tiles is half of what one of 66 has to do, and stays whole. */
static void cuda_pairs_are_workers(void **state) {
    (void)state;
    cuda_table_needed();
    static const struct {
        int64_t d;
        int32_t multiprocessors, workers;
    } cases[] = {{1024, 132, 66}, {1024, 131, 65}, {1024, 1, 1}, {512, 132, 132}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_pattern *pattern = pattern_make("dense", 8448, 128, 1, 1);
        tess_problem problem = problem_make(8448);
        tess_target target = cuda_target(90, 232448);
        tess_plan *plan = NULL;
        target.multiprocessors = cases[i].multiprocessors;
        problem.type = TESS_BF16, problem.d_qk = problem.d_v = cases[i].d;
        problem.batch = problem.heads_q = problem.heads_kv = 1;
        assert_int_equal(tess_plan_create(&plan, &problem, pattern, &target, NULL), TESS_OK);
        const struct kernel *kernel = plan->passes->kernel;
        assert_int_equal(kernel->family->workers(kernel, &target, plan->work.lists.tile_rows),
                         cases[i].workers);
        assert_true(plan->work.schedule.n_slots == 0 || cases[i].workers != 66);
        tess_plan_free(plan);
        tess_pattern_free(pattern);
    }
}

/* Heads that share their list and keys are packed to whole tiles where that saves pairs that no
 * one lists. */
static void cuda_heads_are_packed(void **state) {
    (void)state;
    cuda_table_needed();
    static const struct {
        const char *spec;
        int64_t block, lists, heads_kv;
        int32_t tile_heads;
    } cases[] = {{"random(0.1,1)", 64, 1, 2, 2},  {"random(0.1,1)", 64, 2, 2, 2},
                 {"random(0.1,1)", 64, 4, 2, 1},  {"random(0.1,1)", 64, 1, 4, 1},
                 {"random(0.1,1)", 128, 1, 2, 1}, {"random(0.1,1)", 32, 1, 1, 4},
                 {"dense", 64, 1, 2, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_pattern *pattern =
            pattern_make(cases[i].spec, 8192, cases[i].block, 1, cases[i].lists);
        tess_problem problem = problem_make(8192);
        tess_target target = cuda_target(90, 0);
        tess_plan *plan = NULL;
        problem.type = TESS_BF16, problem.d_qk = problem.d_v = 128;
        problem.heads_kv = cases[i].heads_kv;
        problem.kernel = "cuda_attention_bf16_sm90_d128";
        assert_int_equal(tess_plan_create(&plan, &problem, pattern, &target, NULL), TESS_OK);
        assert_int_equal(plan->work.tile_heads, cases[i].tile_heads);
        tess_plan_info info = tess_plan_info_init();
        assert_int_equal(tess_plan_describe(plan, &info, NULL), TESS_OK);
        assert_int_equal(info.tile_heads, cases[i].tile_heads);
        assert_int_equal(plan->work.lists.tile_rows * plan->work.tile_heads, 128);
        tess_plan_free(plan);
        tess_pattern_free(pattern);
    }
}

/* A kernel, or a height of it, that takes more shared memory than the target's blocks have is not
 * chosen: 99 KB on compute capability 8.6 and 8.9, 163 KB on 8.0, 227 KB on 9.0. */
static void cuda_plans_fit_shared_memory(void **state) {
    (void)state;
    cuda_table_needed();
    static const struct {
        int64_t shared, d, asked, rows; /* rows 0: refused */
        const char *says;               /* the kernel, or of the refusal */
    } cases[] = {{232448, 128, 0, 128, "cuda_attention_bf16_d128"},
                 {101376, 128, 0, 64, "cuda_attention_bf16_d128"},
                 {101376, 128, 128, 0, "query tiles of 128 rows"},
                 {101376, 64, 0, 128, "cuda_attention_bf16_d64"},
                 {232448, 256, 0, 128, "cuda_attention_bf16_d256"},
                 {166912, 256, 0, 16, "cuda_attention_bf16_d256"},
                 {166912, 256, 64, 0, "query tiles of 64 rows"},
                 {101376, 256, 0, 16, "cuda_attention_bf16_d256"},
                 {65536, 256, 0, 32, "cuda_attention_bf16_small_m_d512"},
                 {101376, 1024, 0, 16, "cuda_attention_bf16_small_m_d1024"},
                 {50000, 1024, 0, 0, "shared memory"},
                 {0, 256, 0, 128, "cuda_attention_bf16_d256"},
                 {16384, 64, 0, 0, "shared memory"}};
    tess_pattern *pattern = pattern_make("dense", 16384, 128, 1, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_problem problem = problem_make(16384);
        tess_target target = cuda_target(86, cases[i].shared);
        tess_error error = tess_error_init();
        tess_plan *plan = NULL;
        problem.type = TESS_BF16, problem.d_qk = problem.d_v = cases[i].d;
        problem.tile_rows = cases[i].asked;
        tess_status status = tess_plan_create(&plan, &problem, pattern, &target, &error);
        assert_int_equal(status, cases[i].rows ? TESS_OK : TESS_UNSUPPORTED);
        if (cases[i].rows) {
            assert_string_equal(tess_plan_kernel(plan, TESS_STAGE_ATTENTION), cases[i].says);
            assert_int_equal(plan->work.lists.tile_rows, cases[i].rows);
        } else if (!strstr(error.message, cases[i].says)) {
            fail_msg("'%s' does not say '%s'", error.message, cases[i].says);
        }
        tess_plan_free(plan);
    }
    tess_pattern_free(pattern);
}

/* On Hopper its own kernel is taken where it is predicted to be faster, and where it can be. */
static void cuda_hopper_kernels_are_weighed(void **state) {
    (void)state;
    cuda_table_needed();
    static const struct {
        const char *spec;
        int64_t d, d_v, block, tile_rows, alignment;
        double scale;
        int32_t architecture, shared;
        const char *kernel;
    } cases[] = {
        {"random(0.1,1)", 128, 128, 128, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d128"},
        {"window(1000,0)", 128, 128, 64, 0, 0, 0.5, 90, 232448, "cuda_attention_bf16_sm90_d128"},
        {"random(0.02,1)", 128, 128, 8, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d128_r64"},
        {"random(0.01,1)", 64, 64, 64, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d64_r64"},
        {"random(0.1,1)", 128, 128, 128, 0, 0, 0, 100, 232448, "cuda_attention_bf16_d128"},
        {"random(0.1,1)", 128, 128, 128, 0, 0, 0, 90, 101376, "cuda_attention_bf16_d128"},
        {"random(0.1,1)", 128, 128, 128, 64, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d128_r64"},
        {"random(0.1,1)", 128, 128, 128, 0, 8, 0, 90, 232448, "cuda_attention_bf16_d128"},
        {"random(0.1,1)", 128, 128, 128, 0, 0, -1, 90, 232448, "cuda_attention_bf16_d128"},
        {"random(0.1,1)", 128, 128, 128, 0, 0, 0x1p-9, 90, 232448, "cuda_attention_bf16_d128"},
        {"random(0.1,1)", 32, 32, 128, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d32_r64"},
        {"dense", 32, 32, 128, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d32"},
        {"random(0.1,1)", 32, 8, 32, 0, 0, 0, 90, 232448, "cuda_attention_bf16_d32"},
        {"random(0.1,1)", 32, 32, 64, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d32_r64"},
        {"random(0.1,1)", 32, 40, 128, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d64"},
        {"random(0.1,1)", 64, 64, 128, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d64"},
        {"random(0.1,1)", 64, 64, 8, 0, 0, 0, 90, 232448, "cuda_attention_bf16_d64"},
        {"random(0.1,1)", 64, 64, 32, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d64_r64"},
        {"random(0.05,1)", 64, 64, 1, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d64"},
        {"random(0.1,1)", 80, 80, 128, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d128"},
        {"random(0.1,1)", 96, 96, 128, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d128"},
        {"random(0.1,1)", 96, 104, 128, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d128"},
        {"random(0.1,1)", 96, 96, 128, 0, 0, 0, 80, 101376, "cuda_attention_bf16_d128"},
        {"random(0.1,1)", 136, 136, 128, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d192"},
        {"random(0.1,1)", 192, 128, 128, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d192_v128"},
        {"random(0.1,1)", 128, 192, 128, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d192"},
        {"random(0.1,1)", 256, 256, 128, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d256"},
        {"random(0.1,1)", 128, 128, 192, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d128_r192"},
        {"random(0.1,1)", 64, 64, 192, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d64_r192"},
        {"random(0.1,1)", 192, 192, 192, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d192_r64"},
        {"random(0.1,1)", 192, 192, 64, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d192_r64"},
        {"random(0.1,1)", 192, 128, 32, 0, 0, 0, 90, 232448,
         "cuda_attention_bf16_sm90_d192_v128_r64"},
        {"random(0.1,1)", 256, 256, 32, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d256_r64"},
        {"random(0.5,1)", 256, 256, 32, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d256"},
        {"random(0.1,1)", 96, 96, 64, 192, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d128_r192"},
        {"dense", 128, 128, 128, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d128"},
        {"dense", 64, 64, 128, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d64_r192"},
        {"random(0.1,1)", 264, 264, 128, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d512"},
        {"random(0.1,1)", 264, 264, 128, 0, 0, 0, 80, 166912, "cuda_attention_bf16_small_m_d512"},
        {"random(0.1,1)", 264, 264, 128, 16, 0, 0, 90, 232448, "cuda_attention_bf16_small_m_d512"},
        {"random(0.1,1)", 576, 512, 128, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d576_v512"},
        {"random(0.1,1)", 512, 576, 128, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d768"},
        {"random(0.1,1)", 1024, 1024, 8, 0, 0, 0, 90, 232448, "cuda_attention_bf16_sm90_d1024"},
        {"random(0.1,1)", 1024, 1024, 128, 0, 8, 0, 90, 232448,
         "cuda_attention_bf16_small_m_d1024"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_pattern *pattern = pattern_make(cases[i].spec, 12288, cases[i].block, 1, 1);
        tess_problem problem = problem_make(12288);
        tess_target target = cuda_target(cases[i].architecture, cases[i].shared);
        tess_plan *plan = NULL;
        problem.type = TESS_BF16, problem.d_qk = cases[i].d, problem.d_v = cases[i].d_v;
        problem.tile_rows = cases[i].tile_rows, problem.alignment = cases[i].alignment;
        problem.scale = cases[i].scale, problem.heads_kv = problem.heads_q;
        assert_int_equal(tess_plan_create(&plan, &problem, pattern, &target, NULL), TESS_OK);
        assert_string_equal(tess_plan_kernel(plan, TESS_STAGE_ATTENTION), cases[i].kernel);
        tess_plan_free(plan);
        tess_pattern_free(pattern);
    }
}

/* Heights that pack heads are refused where they have nothing to share. */
static void cuda_heights_of_packed_heads(void **state) {
    (void)state;
    cuda_table_needed();
    static const struct {
        int64_t d, heads_kv, rows; /* rows of a block, and of a tile: two heads make one up */
        const char *kernel;
    } cases[] = {{128, 1, 64, "cuda_attention_bf16_sm90_d128"},
                 {128, 8, 64, "cuda_attention_bf16_sm90_d128"},
                 {512, 1, 32, "cuda_attention_bf16_sm90_d512"},
                 {512, 8, 32, "cuda_attention_bf16_sm90_d512"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_pattern *pattern = pattern_make("random(0.1,1)", 8192, cases[i].rows, 1, 1);
        tess_problem problem = problem_make(8192);
        tess_target target = cuda_target(90, 0);
        tess_error error = tess_error_init();
        tess_plan *plan = NULL;
        const int shared = cases[i].heads_kv == 1;
        problem.type = TESS_BF16, problem.d_qk = problem.d_v = cases[i].d;
        problem.heads_q = 8, problem.heads_kv = cases[i].heads_kv;
        problem.tile_rows = cases[i].rows, problem.kernel = cases[i].kernel;
        assert_int_equal(tess_plan_create(&plan, &problem, pattern, &target, &error),
                         shared ? TESS_OK : TESS_UNSUPPORTED);
        assert_true(shared ? plan->work.tile_heads == 2
                           : strstr(error.message, "that share a list") != NULL);
        tess_plan_free(plan);
        tess_pattern_free(pattern);
    }
}

/* Tiles of many rows are cheap for single keys only where the listed pairs alone can be computed, which
 * takes dims that fill vectors. */
static void cpu_heights_know_what_is_listed(void **state) {
    (void)state;
    static const struct { int64_t d, lowest, highest; } cases[] = {{40, 1, 8}, {320, 1, 8}};
    tess_pattern *pattern = pattern_make("random(0.01,1)", 4096, 1, 1, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_problem problem = problem_make(4096);
        tess_plan *plan = NULL;
        problem.d_qk = problem.d_v = cases[i].d, problem.heads_kv = problem.heads_q;
        assert_int_equal(tess_plan_create(&plan, &problem, pattern, NULL, NULL), TESS_OK);
        assert_in_range(plan->work.lists.tile_rows, cases[i].lowest, cases[i].highest);
        tess_plan_free(plan);
    }
    tess_pattern_free(pattern);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heights_can_be_asked_for),
        cmocka_unit_test(cpu_heights_know_what_is_listed),
        cmocka_unit_test(cpu_heights_below_blocks_are_weighed),
        cmocka_unit_test(cuda_heights_follow_the_lists),
        cmocka_unit_test(cuda_small_problems_are_spread),
        cmocka_unit_test(cuda_long_tiles_are_split),
        cmocka_unit_test(cuda_small_m_tiles_are_weighed),
        cmocka_unit_test(cuda_pairs_are_workers),
        cmocka_unit_test(cuda_heads_are_packed),
        cmocka_unit_test(cuda_plans_fit_shared_memory),
        cmocka_unit_test(cuda_hopper_kernels_are_weighed),
        cmocka_unit_test(cuda_heights_of_packed_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
