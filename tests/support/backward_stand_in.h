/* A stand-in for the CPU's kernels, by --wrap=backend_get: they only look at what they are handed. One
 * translation unit includes this. */
#ifndef TESTS_BACKWARD_STAND_IN_H
#define TESTS_BACKWARD_STAND_IN_H

#include <stdlib.h>
#include <string.h>

#include "plan/attention.h"
#include "plan/cost.h"
#include "support/plans.h"

const struct backend *__real_backend_get(tess_backend backend);
const struct backend *__wrap_backend_get(tess_backend backend);

enum { MOST_RUNS = 16, PASS_BYTES = 192 };

/* Calls that the stand-in has seen: the arguments of each pass, in order, and the operands that they point to: of
 * stages, or of the operation, whose room is that of a gradient's. */
static struct {
    struct kernel_args runs[MOST_RUNS];
    struct stage_operands stages[MOST_RUNS];
    struct gradient_operands own[MOST_RUNS];
    struct problem problems[MOST_RUNS];
    int n;
} seen;

static const char *unusable(void) {
    return NULL;
}

static const char *refuses(const struct kernel *kernel, const struct problem *problem,
                           const tess_target *target) {
    (void)kernel, (void)problem, (void)target;
    return NULL;
}

/* Each stage another size, so that the largest is told from the last. */
static size_t workspace(const struct kernel_args *args) {
    return PASS_BYTES * (size_t)(1 + (args->kernel->stage * 5) % 9);
}

static int is_of_stages(tess_stage stage) {
    return stage == TESS_STAGE_SDDMM || stage == TESS_STAGE_SOFTMAX || stage == TESS_STAGE_SPMM ||
           stage == TESS_STAGE_SOFTMAX_BACKWARD || stage == TESS_STAGE_SPMM_TRANSPOSED;
}

static tess_status run(const struct kernel_args *args, tess_error *error) {
    (void)error;
    assert_true(seen.n < MOST_RUNS);
    if (is_of_stages(args->kernel->stage))
        seen.stages[seen.n] = *stage_of(args);
    else
        seen.own[seen.n] = *gradient_of(args);
    seen.problems[seen.n] = *args->problem;
    seen.runs[seen.n++] = *args;
    return TESS_OK;
}

static const int32_t heights[] = {16, 32, 64, 0};
static const struct family of_tiles = {.refuses = refuses, .seconds = cost_tiles};
static const struct family of_rows = {.refuses = refuses, .seconds = cost_rows};
static const struct family row_tiles = {
    .refuses = refuses, .seconds = cost_lists, .lists = LISTS_PACKED, .packed_rows = 64};
static const struct family key_tiles = {
    .refuses = refuses, .seconds = cost_lists, .lists = LISTS_PACKED};

#define STAND_IN(its_stage, its_name, its_family, its_heights)                                     \
    {                                                                                              \
        .name = its_name, .stage = its_stage, .family = &its_family, .rows = its_heights,          \
        .unusable = unusable, .workspace = workspace, .run = run, .cost = {                        \
            .item = 1e-6,                                                                          \
            .key_row_dim = 1e-11,                                                                  \
            .key_dim = 1e-10                                                                       \
        }                                                                                          \
    }
static const struct kernel kernels[] = {
    STAND_IN(TESS_STAGE_ATTENTION, "attention", row_tiles, heights),
    STAND_IN(TESS_STAGE_SDDMM, "sddmm", of_tiles, NULL),
    STAND_IN(TESS_STAGE_SOFTMAX, "softmax", of_tiles, NULL),
    STAND_IN(TESS_STAGE_SPMM, "spmm", of_tiles, NULL),
    STAND_IN(TESS_STAGE_DELTA, "delta", of_rows, NULL),
    STAND_IN(TESS_STAGE_GRADIENT_KEYS, "gradient_keys", key_tiles, heights),
    STAND_IN(TESS_STAGE_GRADIENT_ROWS, "gradient_rows", row_tiles, heights),
    STAND_IN(TESS_STAGE_SOFTMAX_BACKWARD, "softmax_backward", of_tiles, NULL),
    STAND_IN(TESS_STAGE_SPMM_TRANSPOSED, "spmm_transposed", of_tiles, NULL),
};

const struct backend *__wrap_backend_get(tess_backend backend) {
    static struct backend other;
    assert_int_equal(backend, TESS_CPU);
    other = *__real_backend_get(TESS_CPU);
    other.kernels = kernels;
    other.n_kernels = sizeof kernels / sizeof *kernels;
    return &other;
}

static tess_problem backward_make(int64_t n, tess_pipeline pipeline, int64_t gradients) {
    tess_problem p = problem_make(n);
    p.operation = TESS_ATTENTION_BACKWARD, p.pipeline = pipeline, p.gradients = gradients;
    p.alibi = (gradients & TESS_GRADIENT_ALIBI) != 0;
    p.sink = (gradients & TESS_GRADIENT_SINK) != 0;
    return p;
}

#endif
