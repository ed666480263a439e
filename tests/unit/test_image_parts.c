/*
 * An operation of two products over lists that a fill writes, each with a part of the image of its own. Sums of
 * the listed values of each query, then sums of those: no line of the core knows it. Linked with
 * --wrap=operation_get.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "plan/operation.h"
#include "plan/problem.h"
#include "plan/reserve.h"
#include "support/plans.h"

enum { N = 40, BLOCK_Q = 16, CAPACITY = 4, ROWS = (N + BLOCK_Q - 1) / BLOCK_Q, TWO_SUMS = 9 };

/* ---- the operation ---- */

struct two_sums_operands {
    const float *values; /* [n_kv] */
    float *sums;         /* [n_q], in the workspace */
    float *sums_of_sums; /* [n_q] */
};

struct sum_operands {
    const float *from;
    float *to;
};

#define SUM(from, to) BIND(two_sums_operands, from, sum_operands, to)
#define WHOLE offsetof(struct problem, d_qk), offsetof(struct problem, d_v), KEEPS_BOTH, 0

static const struct binding first[] = {SUM(values, from), SUM(sums, to), {0}};
static const struct binding second[] = {SUM(sums, from), SUM(sums_of_sums, to), {0}};
static const struct step steps[] = {
    {TESS_FUSED, TESS_STAGE_ATTENTION, 0, 0, "sums", first, WHOLE},
    {TESS_FUSED, TESS_STAGE_GRADIENT_ROWS, 0, 0, "sums of sums", second, WHOLE},
};

static void two_sums_carve(const tess_plan *plan, struct carve *carve, void *operands) {
    float *sums = carve_take(carve, (size_t)plan->problem.n_q, sizeof *sums);
    if (operands)
        ((struct two_sums_operands *)operands)->sums = sums;
}

const struct operation *__wrap_operation_get(tess_operation operation);

const struct operation *__wrap_operation_get(tess_operation operation) {
    static const struct operation two_sums = {"two sums", "it has no two sums", steps,
                                              sizeof steps / sizeof *steps, two_sums_carve};
    assert_int_equal(operation, TWO_SUMS);
    return &two_sums;
}

/* ---- its kernels: one for each pass, of tiles of other heights ---- */

static size_t workspace(const struct kernel_args *args) {
    return (size_t)args->work.filled->most_items;
}

static const char *refuses(const struct kernel *kernel, const struct problem *problem,
                           const tess_target *target) {
    (void)kernel, (void)problem, (void)target;
    return NULL;
}

static const char *unusable(void) {
    return NULL;
}

static tess_status run(const struct kernel_args *args, tess_error *error) {
    const struct sum_operands *given = args->operands;
    const struct lists *l = args->work.lists;
    const struct schedule *schedule = args->work.schedule;
    (void)error;
    assert_int_equal(l->tile_rows, args->kernel->rows[0]);
    assert_int_equal(schedule->n_items, l->tiles);
    for (int64_t i = 0; i < schedule->n_items; i++) {
        const int64_t T = schedule->items[i].tile;
        float sum = 0;
        for (int64_t r = l->full_ptr[T]; r < l->full_end[T]; r++)
            for (int32_t c = 0; c < l->full[r].count; c++)
                sum += given->from[l->full[r].key + c];
        for (int64_t row = l->tile_row[T]; row < l->tile_row[T + 1]; row++)
            given->to[row] = sum;
    }
    return TESS_OK;
}

static struct backend backend_make(void) {
    static const struct family family = {.refuses = refuses, .lists = LISTS_FILLED};
    static const int32_t high[] = {16, 0}, low[] = {8, 0};
#define KERNEL(its_name, its_stage, heights)                                                       \
    {                                                                                              \
        .name = its_name, .stage = its_stage, .family = &family, .cost = {.key_row_dim = 1e-10},   \
        .rows = heights, .unusable = unusable, .workspace = workspace, .run = run                  \
    }
    static const struct kernel kernels[] = {KERNEL("of_16", TESS_STAGE_ATTENTION, high),
                                            KERNEL("of_8", TESS_STAGE_GRADIENT_ROWS, low)};
    struct backend backend = *backend_get(TESS_CPU);
    backend.kernels = kernels, backend.n_kernels = sizeof kernels / sizeof *kernels;
    return backend;
}

/* ---- its plan, image and run ---- */

static const int32_t indices[ROWS][CAPACITY] = {{0, 7, 31, 39}, {16, 3, -1, -1}, {-1, 20, 21, 22}};

/* Values of the keys that each query lists, summed. */
static void expect(const float from[N], float to[N]) {
    for (int i = 0; i < N; i++) {
        to[i] = 0;
        for (int e = 0; e < CAPACITY; e++)
            to[i] += indices[i / BLOCK_Q][e] < 0 ? 0 : from[indices[i / BLOCK_Q][e]];
    }
}

static tess_plan *plan_make_here(const struct backend *backend, tess_device_pattern *pattern) {
    const char *name;
    struct problem resolved;
    struct fill_shape shape;
    tess_plan *plan = NULL;
    tess_error error = tess_error_init();
    tess_problem problem = problem_make(N);
    tess_target target = tess_target_init();
    *pattern = tess_device_pattern_init();
    problem.batch = problem.heads_q = problem.heads_kv = 1;
    pattern->n_q = pattern->n_kv = N, pattern->block_q = BLOCK_Q, pattern->block_kv = 1;
    pattern->capacity = CAPACITY, pattern->indices = indices[0];
    assert_int_equal(tess_target_query(&target, TESS_CPU, -1, &error), TESS_OK);
    assert_int_equal(check_problem(&resolved, &name, &problem, "two_sums", &error), TESS_OK);
    assert_int_equal(check_device_pattern(&shape, pattern, &resolved, "two_sums", &error), TESS_OK);
    resolved.operation = (tess_operation)TWO_SUMS;
    if (reserve_make(&plan, &resolved, NULL, &shape, &target, backend, &error))
        fail_msg("%s", error.message);
    return plan;
}

static void each_pass_has_a_part_of_its_own(void **state) {
    (void)state;
    tess_error error = tess_error_init();
    tess_device_pattern pattern;
    const struct backend backend = backend_make();
    tess_plan *plan = plan_make_here(&backend, &pattern);
    const struct part *parts = plan->parts;
    assert_int_equal(plan->n_parts, 2);
    assert_int_equal(parts[0].at, 0);
    assert_int_equal(parts[1].at, parts[0].size);
    assert_int_equal(plan->image, parts[0].size + parts[1].size);
    assert_int_equal(parts[0].reserved->shape.tiles, 3);
    assert_int_equal(parts[1].reserved->shape.tiles, 5);
    assert_true(parts[0].reserved->layout != parts[1].reserved->layout);

    static float values[N], sums[N], expected[N], answer[N];
    struct two_sums_operands operands = {.values = values, .sums_of_sums = answer};
    struct kernel_args args = plan_args(plan);
    char *image = aligned_alloc(CARVE_ALIGNMENT, plan->image), text[4096];
    void *memory = aligned_alloc(CARVE_ALIGNMENT, plan->workspace);
    struct carve carve = {.base = memory};
    for (int i = 0; i < N; i++)
        values[i] = (float)(i % 7 - 3);
    expect(values, sums), expect(sums, expected);
    memset(image, 0, plan->image);
    assert_int_equal(
        reserve_fill(plan, &(struct filling){&pattern, NULL}, "two_sums", image, NULL, &error),
        TESS_OK);
    args.function = "two_sums", args.operands = &operands, args.image = image;
    args.workspace = plan_carve(plan, &carve, &operands);
    if (passes_run(plan, plan->passes, plan->n_passes, NULL, &args, &error))
        fail_msg("%s", error.message);
    assert_memory_equal(answer, expected, sizeof answer); /* whole numbers: exact in any order */
    assert_true(tess_plan_print(plan, text, sizeof text) < sizeof text);
    assert_non_null(strstr(text, "  tile      16 rows\n"));
    assert_non_null(strstr(text, "  tile      8 rows\n"));

    /* Fill and run in one, into an image that was none; the report is the first part's. */
    static uint64_t report[TESS_REPORT_SIZE / 8];
    memset(image, 0, plan->image), memset(answer, 0, sizeof answer);
    assert_int_equal(passes_run(plan, plan->passes, plan->n_passes,
                                &(struct filling){&pattern, report}, &args, &error),
                     TESS_OK);
    assert_memory_equal(answer, expected, sizeof answer);
    assert_memory_equal(report, image, sizeof report);

    /* One part that is not filled refuses the run before the first pass. */
    memset(image + parts[1].at, 0, TESS_REPORT_SIZE);
    memset(operands.sums, 0, sizeof sums), memset(expected, 0, sizeof expected);
    assert_int_equal(passes_run(plan, plan->passes, plan->n_passes, NULL, &args, &error),
                     TESS_INVALID_ARGUMENT);
    assert_memory_equal(operands.sums, expected, sizeof expected);
    free(image);
    free(memory);
    tess_plan_free(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_pass_has_a_part_of_its_own)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
