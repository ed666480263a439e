/* One stage of a staged plan by itself: a case's plan, its tensors and its scores. What cannot be made ends
 * the test. */
#ifndef TESTS_STAGE_H
#define TESTS_STAGE_H

#include "lab/case/case.h"
#include "lab/memory/guard.h"
#include "pattern/pattern.h"

struct stage {
    struct lab_case c;
    tess_pattern *pattern;
    tess_plan *plan;
    struct lab_tensor q, k, v; /* filled, rows that no query lists poisoned */
    struct lab_tensor o;       /* canaries */
    struct lab_buffer scores;
    float *x; /* the scores */
};

void stage_make(struct stage *s, const char *text);
void stage_free(struct stage *s);

typedef tess_status stage_function(const tess_plan *plan, const tess_arguments *arguments,
                                   tess_error *error, tess_stream stream);

/* Runs the stage in a workspace of exactly its size, between canaries, scores among them. */
void stage_run(const struct stage *s, tess_stage stage, stage_function *function,
               tess_arguments arguments);

#endif
