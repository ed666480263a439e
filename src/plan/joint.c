/*
 * Which form a fused backward has: dQ in a pass of its own, which computes scores anew (seven products), or in
 * the pass over keys (five), whose strips have sums of their own. Gradients that are wanted beside dQ, and
 * threads, have no say: the bits of dQ depend on neither.
 */
#include "plan/plan.h"
#include "base/status.h"
#include "plan/select.h"

#include <string.h>

/* That forms are compared with. */
#define JOINT_GRADIENTS (TESS_GRADIENT_Q | TESS_GRADIENT_K | TESS_GRADIENT_V)

/* Bytes of sums at most, where the problem names no spill_size; and of a float with what rounding cut off. */
#define JOINT_BYTES (INT64_C(1) << 30)
#define JOINT_FLOAT 8

/* Seconds of a float of sums: cleared once, and read once. */
#define JOINT_FLOAT_SECONDS 0.5e-9

int joint_possible(const tess_plan *plan) {
    const struct problem *p = &plan->problem;
    return p->operation == TESS_ATTENTION_BACKWARD && p->pipeline == TESS_FUSED &&
           plan->target.backend == TESS_CPU && (p->gradients & TESS_GRADIENT_Q) && !p->parts_asked;
}

double joint_seconds(const tess_plan *plan, const struct strips *strips) {
    return JOINT_FLOAT_SECONDS * (double)strips->rows * (double)strips_width(plan->problem.d_qk);
}

/* A form of the plan in which dQ, dK and dV are wanted; its passes' kernels and heights. */
struct form {
    tess_plan plan;
    int32_t rows; /* of key tiles */
    double seconds;
};

/* TESS_UNSUPPORTED where it has no kernels, or not of the height that the problem asks for. heads: heads that
 * read each list. */
static tess_status form_make(struct form *form, const tess_plan *of, int joint, double heads,
                             struct estimates *m, struct estimates *transposed) {
    tess_plan *plan = &form->plan;
    *form = (struct form){.plan = *of};
    plan->problem.gradients = JOINT_GRADIENTS;
    plan->joint = joint;
    passes_begin(plan);
    if (select_kernels(plan, NULL, NULL))
        return TESS_UNSUPPORTED;
    for (struct pass *pass = plan->passes; pass < plan->passes + plan->n_passes; pass++) {
        int32_t rows = 0;
        double seconds = 0;
        if (!pass->kernel->tiling)
            continue;
        if (pass->joint && !pass->kernel->tiling->joint)
            return TESS_UNSUPPORTED;
        const tess_status status = select_height(plan, pass, pass->over_keys ? transposed : m,
                                                 heads, 0, &rows, &seconds, NULL);
        if (status)
            return status;
        form->seconds += seconds;
        form->rows = pass->over_keys ? rows : form->rows;
    }
    return TESS_OK;
}

/* Lists and strips of the form whose passes are joint; none where they take too much room or time. */
static tess_status strips_try(tess_plan *plan, const struct form *five, double seven,
                              const struct bcsr *transposed, tess_error *error) {
    const struct problem *p = &plan->problem;
    const struct pass *keys = plan_pass(&five->plan, TESS_STAGE_GRADIENT_KEYS);
    const double query = select_key_cost(plan, keys, keys->kernel, select_dims(keys, keys->kernel),
                                         (double)five->rows);
    const int64_t room = p->spill_size ? p->spill_size : JOINT_BYTES;
    const int64_t most = room / JOINT_FLOAT / (int64_t)strips_width(p->d_qk);
    struct work *work = &plan->key_work;
    tess_status status = lists_pack(&work->lists, transposed, five->rows, error);
    if (!status)
        status =
            strips_make(&work->strips, &work->lists, plan->list_of, p->batch * p->heads_kv,
                        p->heads_q / p->heads_kv, keys->kernel->cost.item / query, most, error);
    if (status)
        return status;
    plan->joint = work->strips.n > 0 && five->seconds + joint_seconds(plan, &work->strips) < seven;
    if (plan->joint) {
        memcpy(work->heights, five->plan.key_work.heights, sizeof work->heights);
        return TESS_OK;
    }
    lists_free(&work->lists);
    strips_free(&work->strips);
    return TESS_OK;
}

/* A name decides no form, but its kernel has to be in it. */
static int name_joins(const tess_plan *plan, const char *kernel) {
    tess_plan joint = *plan;
    joint.problem.gradients = JOINT_GRADIENTS;
    joint.joint = 1;
    passes_begin(&joint);
    return !select_kernels(&joint, kernel, NULL) &&
           plan_pass(&joint, TESS_STAGE_GRADIENT_KEYS)->kernel->tiling->joint;
}

tess_status joint_decide(tess_plan *plan, struct estimates *m, struct estimates *transposed,
                         const char *kernel, tess_error *error) {
    const double heads =
        (double)(plan->problem.batch * plan->problem.heads_q) / (double)plan->n_lists;
    struct form five, seven;
    tess_status status = name_joins(plan, kernel) ? TESS_OK : TESS_UNSUPPORTED;
    if (!status)
        status = form_make(&five, plan, 1, heads, m, transposed);
    if (!status)
        status = form_make(&seven, plan, 0, heads, m, transposed);
    if (status == TESS_UNSUPPORTED)
        return TESS_OK;
    if (status)
        return error_set(error, status, "tess_plan_create", NULL, "out of memory for tiles");
    if (five.seconds < seven.seconds)
        status = strips_try(plan, &five, seven.seconds, transposed->m, error);
    if (!status && plan->joint) {
        passes_begin(plan);
        status = select_kernels(plan, kernel, error);
    }
    return status;
}
