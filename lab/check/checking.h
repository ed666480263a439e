/* Parts that the checks of attention and of its backward share. */
#ifndef LAB_CHECKING_H
#define LAB_CHECKING_H

#include "lab/check/check.h"
#include "lab/run/run.h"

/* A run and its name in messages. */
struct lab_named_run {
    struct lab_run run;
    const char *name;
};

/* The check fails for this reason. Answers -1. */
int lab_fail(struct lab_outcome *out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Runs it in one way of lab/run/run.h. 0, or -1: the check failed. */
int lab_ran(struct lab_outcome *out, const struct lab_named_run *r,
            int (*way)(const struct lab_run *, char *));

/* Rows of a query tile at most. */
int64_t lab_tile_reach(const tess_plan *plan);

/* The runs of an MLP, likewise. */
void lab_check_mlp(struct lab_outcome *out, struct lab_work *w, const struct lab_planned *planned,
                   const struct lab_planned *again);

/* The runs of a backward, in order; any failure ends them. again: the plan for other threads. */
void lab_check_backward(struct lab_outcome *out, struct lab_work *w,
                        const struct lab_planned *planned, const struct lab_planned *again,
                        const tess_problem *problem, const tess_target *target);

#endif
