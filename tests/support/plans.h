/* The problems and patterns that tests of plans begin with. */
#ifndef TESTS_PLANS_H
#define TESTS_PLANS_H

#include "support/words.h"

#include "plan/select.h"

static inline tess_pattern *pattern_make(const char *spec, int64_t n, int64_t block, int64_t batch,
                                         int64_t heads) {
    return make(spec, (const int64_t[]){n, n, block, block}, batch, heads);
}

static inline tess_problem problem_make(int64_t n) {
    tess_problem p = tess_problem_init();
    p.batch = 2, p.heads_q = 4, p.heads_kv = 2, p.n_q = p.n_kv = n, p.d_qk = 16, p.d_v = 8;
    return p;
}

/* A problem that every kernel of its stage computes. */
static inline tess_problem problem_for_all(int64_t n) {
    tess_problem p = problem_make(n);
    p.type = TESS_BF16, p.d_qk = p.d_v = 32;
    return p;
}

static inline tess_plan *plan_created(const tess_problem *problem, const tess_pattern *pattern) {
    tess_error error = tess_error_init();
    tess_plan *plan = NULL;
    if (tess_plan_create(&plan, problem, pattern, NULL, &error))
        fail_msg("%s", error.message);
    return plan;
}

/* Every build plans for CUDA here: cuda_planning.c stands in where nothing of CUDA was built. */
static inline void cuda_table_needed(void) {
    if (!backend_get(TESS_CUDA))
        fail_msg(
            "no table of CUDA's kernels: tessera_cuda_planning in cmake/tests.cmake links one");
}

/* A machine with a GPU of this compute capability; shared: bytes that a block may have, 0 unknown. */
static inline tess_target cuda_target(int32_t architecture, int64_t shared) {
    tess_target target = tess_target_init();
    target.backend = TESS_CUDA, target.multiprocessors = 132;
    target.architecture = architecture, target.shared_memory_per_block = shared;
    return target;
}

static inline void refuse(tess_problem problem, const tess_pattern *pattern, tess_status status,
                          const char *words) {
    tess_error error = tess_error_init();
    tess_plan *plan = (tess_plan *)&error;
    assert_int_equal(tess_plan_create(&plan, &problem, pattern, NULL, &error), status);
    assert_null(plan);
    assert_int_equal(error.status, status);
    assert_string_equal(error.function, "tess_plan_create");
    if (!strstr(error.message, words))
        fail_msg("'%s' does not say '%s'", error.message, words);
}

/* A dense plan of the problem, which `status` and `words` answer. */
static inline void plan_refuses(const tess_problem *p, const tess_target *target,
                                tess_status status, const char *words) {
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_error error = tess_error_init();
    tess_pattern *pattern;
    tess_plan *plan;
    shape.n_q = p->n_q, shape.n_kv = p->n_kv;
    assert_int_equal(tess_pattern_from_spec(&pattern, "dense", &shape, NULL), TESS_OK);
    const tess_status was = tess_plan_create(&plan, p, pattern, target, &error);
    tess_pattern_free(pattern);
    tess_plan_free(plan);
    if (was != status || !strstr(error.message, words))
        fail_msg("%d, '%s' does not say '%s'", (int)was, error.message, words);
}

#endif
