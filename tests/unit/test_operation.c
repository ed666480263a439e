/*
 * A new operation takes this file, and no line elsewhere. Sums of the listed scores of each query, in two
 * passes: SDDMM, which the CPU has, and a kernel of the operation's own. Linked with --wrap=operation_get.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/attention.h"
#include "plan/cost.h"
#include "plan/operation.h"
#include "plan/problem.h"
#include "support/plans.h"

enum { N = 40, BLOCK = 16, HEADS = 2, D = 4, ROW_SUMS = 9 /* the operation */ };

/* ---- the operation: its operands, passes, and what lives between them ---- */

struct row_sums_operands {
    struct view q, k;
    float *scores; /* in the workspace */
    float *sums;   /* [batch * heads_q][n_q] */
};

#define WHOLE offsetof(struct problem, d_qk), offsetof(struct problem, d_v), KEEPS_BOTH, 0

static const struct binding of_scores[] = {BIND(row_sums_operands, q, stage_operands, q),
                                           BIND(row_sums_operands, k, stage_operands, k),
                                           BIND(row_sums_operands, scores, stage_operands, scores),
                                           {0}};
static const struct step steps[] = {
    {TESS_STAGED, TESS_STAGE_SDDMM, 0, 0, "scores", of_scores, WHOLE},
    {TESS_STAGED, TESS_STAGE_SOFTMAX, 0, 0, "their sums", NULL, WHOLE},
};

static void row_sums_carve(const tess_plan *plan, struct carve *carve, void *operands) {
    float *scores = carve_take(carve, (size_t)plan->scores_count, sizeof *scores);
    if (operands)
        ((struct row_sums_operands *)operands)->scores = scores;
}

const struct operation *__real_operation_get(tess_operation operation);
const struct operation *__wrap_operation_get(tess_operation operation);

const struct operation *__wrap_operation_get(tess_operation operation) {
    static const struct operation row_sums = {"row sums", "it has no row sums", steps,
                                              sizeof steps / sizeof *steps, row_sums_carve};
    return (int)operation == ROW_SUMS ? &row_sums : __real_operation_get(operation);
}

/* ---- its kernel ---- */

static size_t workspace(const struct kernel_args *args) {
    (void)args;
    return 0;
}

static const char *refuses(const struct kernel *kernel, const struct problem *problem,
                           const tess_target *target) {
    (void)kernel, (void)target;
    return problem->type == TESS_F32 ? NULL : "it sums scores of f32 alone";
}

static const char *unusable(void) {
    return NULL;
}

static tess_status run(const struct kernel_args *args, tess_error *error) {
    const struct row_sums_operands *given = args->operands;
    const struct kernel_work *work = &args->work;
    const struct bcsr *m = work->bcsr;
    (void)error;
    for (int64_t i = 0; i < work->schedule->n_items; i++) {
        const struct work_item *item = &work->schedule->items[i];
        const int64_t head = item->batch_head, list = work->list_of[head];
        const int64_t begin = bcsr_row_begin(m, list, item->tile);
        const int64_t width = (bcsr_row_end(m, list, item->tile) - begin) * m->block_kv;
        const float *row = given->scores + work->scores_offset[head] +
                           (begin - bcsr_row_begin(m, list, 0)) * m->block_q * m->block_kv;
        float *sum = given->sums + head * m->n_q + item->tile * m->block_q;
        for (int64_t r = 0; r < bcsr_row_height(m, item->tile); r++, row += width) {
            sum[r] = 0;
            for (int64_t c = 0; c < width; c++)
                sum[r] += row[c] == -INFINITY ? 0 : row[c];
        }
    }
    return TESS_OK;
}

/* The CPU's kernels but for those of softmax, whose stage the sums are. */
static struct backend backend_make(void) {
    static const struct family family = {.refuses = refuses, .seconds = cost_tiles};
    static const struct kernel sums = {.name = "row_sums",
                                       .stage = TESS_STAGE_SOFTMAX,
                                       .family = &family,
                                       .cost = {.key_row_dim = 1e-10},
                                       .unusable = unusable,
                                       .workspace = workspace,
                                       .run = run};
    static struct kernel kernels[64];
    struct backend backend = *backend_get(TESS_CPU);
    int64_t n = 0;
    assert_true(backend.n_kernels < 64);
    for (int64_t k = 0; k < backend.n_kernels; k++)
        if (backend.kernels[k].stage != TESS_STAGE_SOFTMAX)
            kernels[n++] = backend.kernels[k];
    kernels[n++] = sums;
    backend.kernels = kernels, backend.n_kernels = n;
    return backend;
}

/* ---- its plan and run ---- */

static tess_plan *plan_of(const struct backend *backend, tess_type type, tess_error *error) {
    const char *name;
    struct problem resolved;
    tess_plan *plan = NULL;
    tess_problem problem = problem_make(N);
    tess_pattern *pattern = pattern_make("causal", N, BLOCK, 1, 1);
    tess_target target = tess_target_init();
    problem.batch = 1, problem.heads_q = problem.heads_kv = HEADS, problem.d_qk = D;
    problem.pipeline = TESS_STAGED, problem.scale = 1, problem.type = type;
    assert_int_equal(check_problem(&resolved, &name, &problem, "row_sums", error), TESS_OK);
    assert_int_equal(tess_target_query(&target, TESS_CPU, -1, error), TESS_OK);
    resolved.operation = (tess_operation)ROW_SUMS;
    const tess_status status = plan_make(&plan, &resolved, NULL, pattern, &target, backend, error);
    tess_pattern_free(pattern);
    assert_true(status ? !plan : plan != NULL);
    return plan;
}

static void row_sums_are_planned_and_run(void **state) {
    (void)state;
    static float q[HEADS][N][D], k[HEADS][N][D], sums[HEADS][N];
    const struct backend backend = backend_make();
    tess_error error = tess_error_init();
    tess_plan *plan = plan_of(&backend, TESS_F32, &error);
    struct row_sums_operands operands = {.q = {.data = q, .stride = {0, N * D, D}},
                                         .k = {.data = k, .stride = {0, N * D, D}},
                                         .sums = &sums[0][0]};
    struct kernel_args args = plan_args(plan);
    void *memory = aligned_alloc(CARVE_ALIGNMENT, plan->workspace);
    struct carve carve = {.base = memory};
    char text[8192];
    for (int i = 0; i < HEADS * N * D; i++)
        (&q[0][0][0])[i] = (float)(i % 7 - 3), (&k[0][0][0])[i] = (float)(i % 5 - 2);
    args.function = "row_sums", args.operands = &operands;
    args.workspace = plan_carve(plan, &carve, &operands);
    assert_int_equal(passes_run(plan, plan->passes, plan->n_passes, NULL, &args, &error), TESS_OK);
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < N; i++) {
            float sum = 0; /* whole numbers: exact in any order */
            for (int j = 0; j <= i; j++)
                for (int d = 0; d < D; d++)
                    sum += q[h][i][d] * k[h][j][d];
            assert_true(sums[h][i] == sum);
        }
    assert_true(tess_plan_print(plan, text, sizeof text) < sizeof text);
    assert_non_null(strstr(text, "row_sums, their sums\n"));
    free(memory);
    tess_plan_free(plan);
}

/* Its kernel's refusal is the plan's, as of any kernel. */
static void its_kernel_refuses(void **state) {
    (void)state;
    const struct backend backend = backend_make();
    tess_error error = tess_error_init();
    assert_null(plan_of(&backend, TESS_BF16, &error));
    assert_int_equal(error.status, TESS_UNSUPPORTED);
    assert_non_null(strstr(error.message, "it sums scores of f32 alone"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(row_sums_are_planned_and_run),
                                       cmocka_unit_test(its_kernel_refuses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
