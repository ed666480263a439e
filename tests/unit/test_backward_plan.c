/*
 * Plans of the backward: passes, lists in both orientations, schedules, workspace, refusals, words.
 * Kernels that only look at what they are handed stand in for the CPU's, by --wrap=backend_get.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "support/plans.h"

const struct backend *__real_backend_get(tess_backend backend);
const struct backend *__wrap_backend_get(tess_backend backend);

enum { MOST_RUNS = 16, PASS_BYTES = 192 };

/* What the stand-in has seen: the arguments of each pass, in order. */
static struct {
    struct kernel_args runs[MOST_RUNS];
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

static tess_status run(const struct kernel_args *args, tess_error *error) {
    (void)error;
    assert_true(seen.n < MOST_RUNS);
    seen.problems[seen.n] = *args->problem;
    seen.runs[seen.n++] = *args;
    return TESS_OK;
}

static const struct tiling tiles = {.rows = (const int32_t[]){16, 32, 64, 0}, .stacked_rows = 64};
static const struct tiling key_tiles = {.rows = (const int32_t[]){16, 32, 64, 0}};

#define STAND_IN(its_stage, its_name, its_tiling)                                                  \
    {                                                                                              \
        .name = its_name, .stage = its_stage, .tiling = its_tiling, .unusable = unusable,          \
        .refuses = refuses, .workspace = workspace, .run = run, .cost = {                          \
            .item = 1e-6,                                                                          \
            .key_row_dim = 1e-11,                                                                  \
            .key_dim = 1e-10                                                                       \
        }                                                                                          \
    }
static const struct kernel kernels[] = {
    STAND_IN(TESS_STAGE_ATTENTION, "attention", &tiles),
    STAND_IN(TESS_STAGE_SDDMM, "sddmm", NULL),
    STAND_IN(TESS_STAGE_SOFTMAX, "softmax", NULL),
    STAND_IN(TESS_STAGE_SPMM, "spmm", NULL),
    STAND_IN(TESS_STAGE_DELTA, "delta", NULL),
    STAND_IN(TESS_STAGE_GRADIENT_KEYS, "gradient_keys", &key_tiles),
    STAND_IN(TESS_STAGE_GRADIENT_ROWS, "gradient_rows", &tiles),
    STAND_IN(TESS_STAGE_SOFTMAX_BACKWARD, "softmax_backward", NULL),
    STAND_IN(TESS_STAGE_SPMM_TRANSPOSED, "spmm_transposed", NULL),
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

static tess_plan *plan_of(const tess_problem *problem, const tess_pattern *pattern) {
    tess_error error = tess_error_init();
    tess_plan *plan = NULL;
    if (tess_plan_create(&plan, problem, pattern, NULL, &error))
        fail_msg("%s", error.message);
    return plan;
}

/* A plan has the passes that its gradients need, and no others. */
static void passes_are_those_wanted(void **state) {
    enum {
        Q = TESS_GRADIENT_Q,
        K = TESS_GRADIENT_K,
        V = TESS_GRADIENT_V,
        ALIBI = TESS_GRADIENT_ALIBI,
        SINK = TESS_GRADIENT_SINK
    };
    static const struct {
        tess_pipeline pipeline;
        int64_t gradients;
        const char *stages;
    } cases[] = {
        {TESS_FUSED, 0, "delta gradient_keys gradient_rows "},
        {TESS_FUSED, Q | K | V, "delta gradient_keys gradient_rows "},
        {TESS_FUSED, Q, "delta gradient_rows "},
        {TESS_FUSED, K, "delta gradient_keys "},
        {TESS_FUSED, V, "delta gradient_keys "},
        {TESS_FUSED, ALIBI, "delta gradient_rows "},
        {TESS_FUSED, SINK, "delta "},
        {TESS_STAGED, 0,
         "delta sddmm sddmm softmax_backward spmm_transposed spmm spmm_transposed "},
        {TESS_STAGED, Q, "delta sddmm sddmm softmax_backward spmm "},
        {TESS_STAGED, K, "delta sddmm sddmm softmax_backward spmm_transposed "},
        {TESS_STAGED, V, "delta sddmm softmax_backward spmm_transposed "},
        {TESS_STAGED, ALIBI, "delta sddmm sddmm softmax_backward "},
        {TESS_STAGED, SINK, "delta "},
    };
    (void)state;
    tess_pattern *pattern = pattern_make("causal", 100, 16, 1, 1);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const tess_problem problem = backward_make(100, cases[c].pipeline, cases[c].gradients);
        tess_plan *plan = plan_of(&problem, pattern);
        char stages[256] = "";
        double seconds = 0;
        size_t largest = 0;
        for (const struct pass *p = plan->passes; p < plan->passes + plan->n_passes; p++) {
            strcat(strcat(stages, tess_stage_name(p->stage)), " ");
            seconds += p->seconds;
            assert_true(p->seconds > 0);
            largest = p->workspace > largest ? p->workspace : largest;
            assert_non_null(tess_plan_kernel(plan, p->stage));
        }
        assert_string_equal(stages, cases[c].stages);
        assert_true(plan->predicted_seconds == seconds);
        assert_true(tess_plan_workspace_size(plan) >= largest);
        tess_plan_free(plan);
    }
    tess_pattern_free(pattern);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_are_those_wanted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
