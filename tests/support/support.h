/* What several tests share: a case with its tensors, planned and run in one call. */
#ifndef TESTS_SUPPORT_H
#define TESTS_SUPPORT_H

#include "lab/case.h"
#include "lab/guard.h"

/* The case's pattern and tensors, filled; ends the test when it cannot be made. */
struct setting {
    struct lab_case c;
    tess_pattern *pattern;
    struct lab_tensor q, k, v, o, lse;
};
void setting_make(struct setting *s, const char *text);
void setting_free(struct setting *s);

/* A plan for the setting's problem and another pattern (NULL: its own); ends the test on failure.
 */
tess_plan *setting_plan(const struct setting *s, const tess_pattern *pattern,
                        tess_pipeline pipeline, int64_t threads);

/* Workspace of exactly the plan's size between canaries; ends the test without memory. */
struct lab_buffer setting_workspace(const tess_plan *plan);
tess_arguments setting_arguments(const struct setting *s, const struct lab_buffer *workspace);

/* Runs into s->o and s->lse, poisoned before, between canaries; ends the test on failure. */
void setting_run_plan(struct setting *s, const tess_plan *plan);

/* Plans, runs and frees the plan. */
void setting_run(struct setting *s, const tess_pattern *pattern, tess_pipeline pipeline,
                 int64_t threads);

#endif
