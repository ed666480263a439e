/* Tests that need a CUDA device. */
#ifndef TESTS_ON_DEVICE_H
#define TESTS_ON_DEVICE_H

#include "support/support.h"

enum { SKIPPED = 77 };

/* A plan for the current device, with its image there. */
static inline void planned_make(struct lab_planned *p, const struct lab_work *w,
                                tess_pipeline pipeline) {
    tess_error error = tess_error_init();
    tess_target target = tess_target_init();
    tess_problem problem = lab_case_problem(&w->s.c, pipeline);
    assert_int_equal(tess_target_query(&target, TESS_CUDA, -1, &error), TESS_OK);
    if (lab_planned_make(p, &problem, w->s.pattern, &target, &error) != TESS_OK)
        fail_msg("the plan: %s", error.message);
}

/* 0 where tests can run; else the exit status, said why: skipped without a device, failed where a
 * device lacks a pipeline. */
static inline int device_absent(void) {
    if (!lab_device_available(TESS_CUDA)) {
        printf("cuda: no device, skipped\n");
        return SKIPPED;
    }
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        const char *lacks = lab_device_lacks(TESS_CUDA, TESS_ATTENTION, (tess_pipeline)pipeline);
        if (lacks) {
            printf("cuda: a device, but %s\n", lacks);
            return EXIT_FAILURE;
        }
    }
    return 0;
}

#endif
