/* Parts that several tests share: a case with its tensors, planned and run in one call; and tests that hold for
 * every backend. */
#ifndef TESTS_SUPPORT_H
#define TESTS_SUPPORT_H

#include "lab/files/cases.h"
#include "lab/check/check.h"

/* A case's words; a setting of them; and all that a check needs. What cannot be made ends the test. */
struct lab_case case_of(const char *text);
void setting_make(struct lab_setting *s, const char *text);
void work_make(struct lab_work *w, const struct lab_case *c);

/* The cases of a file; ends the test when it cannot be read. Paths are relative to the project's
 * folder, in which ctest runs the tests that read files. */
struct lab_cases cases_of(const char *path);

/* Ends the test with the command that repeats a case. */
void case_fails(const struct lab_case *c, tess_backend backend, tess_pipeline pipeline,
                const char *why);

/* Holds each case of a file against the oracle, on each pipeline that it asks for. */
void cases_are_right(const char *path, tess_backend backend);

/* Cases are right with inputs that all heads and batches share, by strides of 0. */
void shared_inputs_are_right(const char *path, tess_backend backend);

/* Only the product of scale, query and key has to be in range, not that of two of them. */
void extreme_scales_are_right(tess_backend backend);

/* A plan for the setting's problem and another pattern (NULL: its own); ends the test on failure.
 */
tess_plan *setting_plan(const struct lab_setting *s, const tess_pattern *pattern,
                        tess_pipeline pipeline, int64_t threads);

/* Workspace of exactly the plan's size between canaries; ends the test without memory. */
struct lab_buffer setting_workspace(const tess_plan *plan);
tess_arguments setting_arguments(const struct lab_setting *s, const struct lab_buffer *workspace);

/* Runs into s->o and s->lse, poisoned before, between canaries; ends the test on failure. */
void setting_run_plan(struct lab_setting *s, const tess_plan *plan);

/* Plans, runs and frees the plan. */
void setting_run(struct lab_setting *s, const tess_pattern *pattern, tess_pipeline pipeline,
                 int64_t threads);

/* The statement that follows for each case string of the array `cases`, by either pipeline. */
#define FOR_EACH_CASE(s, pipeline)                                                                 \
    for (size_t i_ = 0; i_ < sizeof cases / sizeof *cases; i_++)                                   \
        for (int p_ = TESS_FUSED;                                                                  \
             p_ <= TESS_STAGED && (setting_make(s, cases[i_]), pipeline = (tess_pipeline)p_, 1);   \
             p_++, lab_setting_free(s))

/* Makes every element 0; whether every one is NaN. */
void tensor_clear(struct lab_tensor *x);
int tensor_is_nan(const struct lab_tensor *x);

#endif
