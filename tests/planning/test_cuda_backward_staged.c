/* Plans of the staged backward on CUDA, which need no device: kernels, the image that all passes share,
 * refusals, and where kernels find the scores of a block column. */
#include "support/plans.h"

#include "host/table.h"
#include "staged/block_column.h"

enum { BATCH = 2, HEADS_Q = 6, HEADS_KV = 2, N_Q = 150, N_KV = 170 };

static tess_problem backward_of(tess_type type, int64_t d) {
    tess_problem p = tess_problem_init();
    p.operation = TESS_ATTENTION_BACKWARD;
    p.pipeline = TESS_STAGED;
    p.type = type;
    p.batch = BATCH, p.heads_q = HEADS_Q, p.heads_kv = HEADS_KV;
    p.n_q = N_Q, p.n_kv = N_KV;
    p.d_qk = p.d_v = d;
    return p;
}

static tess_status plan_make_of(tess_plan **plan, const tess_problem *problem, const char *spec,
                                int64_t block_q, int64_t block_kv, tess_error *error) {
    const tess_target target = cuda_target(80, 166912);
    tess_pattern *pattern =
        make(spec, (const int64_t[]){N_Q, N_KV, block_q, block_kv}, BATCH, HEADS_Q);
    *plan = NULL;
    const tess_status status = tess_plan_create(plan, problem, pattern, &target, error);
    tess_pattern_free(pattern);
    return status;
}

static tess_plan *plan_of(const tess_problem *problem, const char *spec, int64_t block_q,
                          int64_t block_kv) {
    tess_error error = tess_error_init();
    tess_plan *plan;
    if (plan_make_of(&plan, problem, spec, block_q, block_kv, &error) != TESS_OK)
        fail_msg("%s", error.message);
    return plan;
}

static void kernels_of_each_type(void **state) {
    (void)state;
    static const struct {
        tess_type type;
        int64_t d, block;
        const char *sddmm, *spmm, *transposed;
    } cases[] = {
        {TESS_BF16, 64, 16, "cuda_sddmm_bf16_mma", "cuda_spmm_bf16_gradient",
         "cuda_spmm_transposed_bf16_gather"},
        {TESS_F16, 576, 8, "cuda_sddmm_f16_gather", "cuda_spmm_f16_gradient",
         "cuda_spmm_transposed_f16_gather"},
        {TESS_F32, 300, 64, "cuda_sddmm_f32_gather", "cuda_spmm_f32_gather",
         "cuda_spmm_transposed_f32_gather"},
        {TESS_F32, 1500, 1, "cuda_sddmm_f32_row", "cuda_spmm_f32_row",
         "cuda_spmm_transposed_f32_gather"},
    };
    cuda_table_needed();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_problem problem = backward_of(cases[i].type, cases[i].d);
        problem.softcap = 3, problem.alibi = 1, problem.sink = 1, problem.dropout = 0.1;
        problem.o_rest = cases[i].type != TESS_F32;
        tess_plan *plan = plan_of(&problem, "window(90,9)", cases[i].block, cases[i].block);
        assert_string_equal(tess_plan_kernel(plan, TESS_STAGE_DELTA), "cuda_delta");
        assert_string_equal(tess_plan_kernel(plan, TESS_STAGE_SDDMM), cases[i].sddmm);
        assert_string_equal(tess_plan_kernel(plan, TESS_STAGE_SOFTMAX_BACKWARD),
                            "cuda_softmax_backward_f32_rows");
        assert_string_equal(tess_plan_kernel(plan, TESS_STAGE_SPMM), cases[i].spmm);
        assert_string_equal(tess_plan_kernel(plan, TESS_STAGE_SPMM_TRANSPOSED),
                            cases[i].transposed);
        tess_plan_free(plan);
    }
}

static void plans_print_passes(void **state) {
    (void)state;
    static const char *const lines[] = {
        "staged backward of attention on cuda\n",
        "kernel    delta: cuda_delta\n",
        "kernel    sddmm: cuda_sddmm_bf16_mma, gradients of d_o and v\n",
        "kernel    softmax_backward: cuda_softmax_backward_f32_rows\n",
        "kernel    spmm_transposed: cuda_spmm_transposed_bf16_gather, d_v from weights and d_o\n",
        "kernel    spmm: cuda_spmm_bf16_gradient, d_q from gradients and k\n",
        "kernel    spmm_transposed: cuda_spmm_transposed_bf16_gather, d_k from gradients and q\n",
    };
    char text[16384];
    cuda_table_needed();
    const tess_problem problem = backward_of(TESS_BF16, 64);
    tess_plan *plan = plan_of(&problem, "causal", 64, 64);
    assert_true(tess_plan_print(plan, text, sizeof text) < sizeof text);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (!strstr(text, lines[i]))
            fail_msg("'%s' does not say '%s'", text, lines[i]);
    tess_plan_free(plan);
}

static void refused_by_name(void **state) {
    (void)state;
    static const struct {
        tess_operation operation;
        const char *kernel, *words;
        int32_t architecture;
    } cases[] = {
        {TESS_ATTENTION_BACKWARD, "cuda_spmm_bf16_mma", "it rounds weights of attention", 80},
        {TESS_ATTENTION_BACKWARD, "cuda_spmm_bf16_gather", "it rounds weights of attention", 80},
        {TESS_ATTENTION_BACKWARD, "cuda_spmm_bf16_row", "it rounds weights of attention", 80},
        {TESS_ATTENTION_BACKWARD, "cuda_spmm_transposed_f32_gather", "it computes f32 only", 80},
        {TESS_ATTENTION_BACKWARD, "cuda_softmax_backward_f32_rows", "below 80", 75},
        {TESS_ATTENTION_BACKWARD, "cuda_softmax_f32_rows", "does not contain", 80},
        {TESS_ATTENTION, "cuda_spmm_bf16_gradient", "it computes gradients alone", 80},
        {TESS_ATTENTION, "cuda_spmm_transposed_bf16_gather", "does not contain", 80},
    };
    cuda_table_needed();
    tess_pattern *pattern = make("dense", (const int64_t[]){N_Q, N_KV, 32, 32}, BATCH, HEADS_Q);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tess_target target = cuda_target(cases[i].architecture, 166912);
        tess_problem problem = backward_of(TESS_BF16, 64);
        tess_error error = tess_error_init();
        tess_plan *plan = NULL;
        problem.operation = cases[i].operation;
        problem.kernel = cases[i].kernel;
        assert_int_equal(tess_plan_create(&plan, &problem, pattern, &target, &error),
                         TESS_UNSUPPORTED);
        if (!strstr(error.message, cases[i].words))
            fail_msg("case %zu: %s", i, error.message);
    }
    tess_pattern_free(pattern);
}

/* The one call compares the fused plan with the staged one, and takes this one where there is no other. */
static void wide_heads_are_staged(void **state) {
    (void)state;
    cuda_table_needed();
    const tess_target target = cuda_target(90, 232448);
    tess_pattern *pattern = pattern_make("causal", 4096, 64, 1, 8);
    for (int64_t d = 64; d <= 320; d += 256) {
        tess_problem problem = backward_of(TESS_BF16, d);
        tess_error error = tess_error_init();
        tess_plan *plan = NULL;
        problem.pipeline = TESS_FUSED;
        problem.batch = 1, problem.heads_q = problem.heads_kv = 8;
        problem.n_q = problem.n_kv = 4096;
        const tess_status status = tess_plan_create(&plan, &problem, pattern, &target, &error);
        if (d > 256) {
            assert_int_equal(status, TESS_UNSUPPORTED);
            assert_non_null(strstr(error.message, "its heads have at most 256 dims"));
            problem.pipeline = TESS_STAGED;
            assert_int_equal(tess_plan_create(&plan, &problem, pattern, &target, NULL), TESS_OK);
        } else {
            assert_int_equal(status, TESS_OK);
            const double seconds = plan_staged_seconds(plan, pattern);
            assert_true(seconds > plan->predicted_seconds && seconds < 1);
        }
        tess_plan_free(plan);
    }
    tess_pattern_free(pattern);
}

/* ---- the image ---- */

/* The first pass fills it; all find the same arrays, whatever they walk. */
static void passes_share_the_image(void **state) {
    (void)state;
    cuda_table_needed();
    tess_problem problem = backward_of(TESS_F32, 16);
    problem.alibi = 1;
    for (int64_t gradients = 1; gradients < 2 * TESS_GRADIENT_ALIBI; gradients++) {
        problem.gradients = gradients;
        tess_plan *plan = plan_of(&problem, "random(0.3,1)&causal", 16, 5);
        const struct kernel_args of_plan = plan_args(plan);
        struct staged_params first = {0};
        for (int i = 0; i < plan->n_passes; i++) {
            const struct pass *pass = &plan->passes[i];
            const struct kernel_args args = pass_args(&of_plan, pass);
            const struct staged_params p =
                staged_params_planned(&args, (void *)(uintptr_t)IMAGE_ALIGNMENT);
            assert_ptr_equal(pass->part, plan->parts);
            assert_int_equal(pass->part->size, plan->image);
            assert_int_equal(pass->part->at, 0);
            assert_int_equal(cuda_image_size(&args), plan->image);
            first = i ? first : p;
            assert_memory_equal(&p.image, &first.image, sizeof p.image);
        }
        const int over_keys = (gradients & (TESS_GRADIENT_K | TESS_GRADIENT_V)) != 0;
        assert_int_equal(first.image.entries != NULL, over_keys);
        assert_int_equal(tess_plan_stage_workspace_size(plan, TESS_STAGE_SOFTMAX_BACKWARD) > 0,
                         (gradients & TESS_GRADIENT_ALIBI) != 0);
        tess_plan_free(plan);
    }
}

/* ---- block columns ---- */

/* The arrays that block columns are found by, as an upload leaves them. */
static void image_fill(const struct staged_params *p, const struct kernel_args *args) {
    const struct bcsr *m = args->work.bcsr, *t = args->work.transposed;
    const struct staged_image *to = &p->image;
    const size_t lists = (size_t)(m->batch * m->heads), tiles = (size_t)m->n_tiles;
    memcpy(to->row_ptr, m->row_ptr, lists * (size_t)(m->rows + 1) * sizeof *to->row_ptr);
    memcpy(to->col_ptr, t->row_ptr, lists * (size_t)(p->cols + 1) * sizeof *to->col_ptr);
    memcpy(to->row_idx, t->col_idx, tiles * sizeof *to->row_idx);
    memcpy(to->entries, args->work.entries, tiles * sizeof *to->entries);
    for (int64_t bh = 0; bh < BATCH * HEADS_Q; bh++)
        for (int64_t i = 0, l = args->work.list_of[bh]; i < m->rows; i++) {
            const int64_t begin = bcsr_row_begin(m, l, i), end = bcsr_row_end(m, l, i);
            to->rows[bh * m->rows + i] = (struct block_row_scores){
                args->work.scores_offset[bh] +
                    (begin - bcsr_row_begin(m, l, 0)) * m->block_q * m->block_kv,
                (int32_t)(end - begin), (int32_t)bh};
        }
}

/* pair[x] = query * N_KV + key of score x of a head, from the block rows; -1 where there is none. */
static int64_t pairs_of(int64_t *pair, const struct kernel_args *args, int64_t bh) {
    const struct bcsr *m = args->work.bcsr;
    const int64_t l = args->work.list_of[bh];
    int64_t x = 0, count = 0;
    for (int64_t i = 0; i < m->rows; i++) {
        const int64_t begin = bcsr_row_begin(m, l, i), end = bcsr_row_end(m, l, i);
        for (int64_t r = 0; r < m->block_q; r++)
            for (int64_t e = begin; e < end; e++)
                for (int64_t c = 0; c < m->block_kv; c++, x++) {
                    const int64_t query = i * m->block_q + r;
                    const int64_t key = m->col_idx[e] * m->block_kv + c;
                    const int inside = query < N_Q && key < N_KV;
                    pair[x] = inside ? query * N_KV + key : -1;
                    count += inside;
                }
    }
    return count;
}

/* Each score of a query and a key is met once, where its block column looks for it. */
static void columns_meet_every_score(const struct staged_params *p, const struct kernel_args *args,
                                     int64_t bh) {
    const struct bcsr *m = args->work.bcsr;
    const int64_t l = args->work.list_of[bh], offset = args->work.scores_offset[bh];
    const int64_t tiles = bcsr_row_begin(m, l, m->rows) - bcsr_row_begin(m, l, 0);
    int64_t *pair = calloc((size_t)(tiles * m->block_q * m->block_kv) + 1, sizeof *pair);
    int64_t left = pairs_of(pair, args, bh);
    for (int64_t j = 0; j < p->cols; j++)
        for (int64_t t = 0; t < block_column_queries(p, l, j); t++) {
            const struct block_column_query q = block_column_query_at(p, bh, l, j, t);
            for (int64_t c = 0; q.query >= 0 && c < bcsr_col_width(m, j); c++, left--) {
                int64_t *at = &pair[q.scores + c - offset];
                assert_int_equal(*at, q.query * N_KV + j * m->block_kv + c);
                *at = -2;
            }
        }
    assert_int_equal(left, 0);
    free(pair);
}

static void block_columns(void **state) {
    (void)state;
    static const char *const specs[] = {"dense", "random(0.3,1)&causal", "window(20,3)",
                                        "random(0,1)"};
    static const int64_t blocks[][2] = {{1, 1},  {8, 8},   {16, 16},  {64, 64},
                                        {64, 1}, {5, 100}, {256, 64}, {17, 300}};
    cuda_table_needed();
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        for (size_t k = 0; k < sizeof blocks / sizeof *blocks; k++) {
            const tess_problem problem = backward_of(TESS_F16, 16);
            tess_plan *plan = plan_of(&problem, specs[i], blocks[k][0], blocks[k][1]);
            const struct kernel_args of_plan = plan_args(plan);
            const struct kernel_args args =
                pass_args(&of_plan, plan_pass(plan, TESS_STAGE_SPMM_TRANSPOSED));
            void *image = aligned_alloc(IMAGE_ALIGNMENT,
                                        (plan->image / IMAGE_ALIGNMENT + 1) * IMAGE_ALIGNMENT);
            const struct staged_params p = staged_params_planned(&args, image);
            image_fill(&p, &args);
            for (int64_t bh = 0; bh < BATCH * HEADS_Q; bh++)
                columns_meet_every_score(&p, &args, bh);
            free(image);
            tess_plan_free(plan);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_of_each_type),   cmocka_unit_test(plans_print_passes),
        cmocka_unit_test(refused_by_name),        cmocka_unit_test(wide_heads_are_staged),
        cmocka_unit_test(passes_share_the_image), cmocka_unit_test(block_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
