/*
 * Forms of a fused backward: dQ in a pass of its own, which computes scores anew (seven products), or in the
 * pass over keys (five). Strips of the latter have sums of their own; or, of families that prepare lists, gradients of
 * scores wait in the workspace for products of their own. Gradients that are wanted beside dQ, and
 * threads, have no say: the bits of dQ depend on neither.
 */
#include "plan/select.h"

#include "base/status.h"

/* Gradients that forms are compared with. */
#define JOINT_GRADIENTS (TESS_GRADIENT_Q | TESS_GRADIENT_K | TESS_GRADIENT_V)

/* Gradients of which a plan has one where gradients of scores wait in the workspace: dQ alone takes three products in a
 * pass of its own. */
#define JOINT_OTHERS (TESS_GRADIENT_K | TESS_GRADIENT_V)

/* Bytes of a float of sums with what rounding cut off. */
#define JOINT_FLOAT 8

/* Seconds of a float of sums: cleared once, and read once. */
#define JOINT_FLOAT_SECONDS 0.5e-9

int joint_possible(const struct premises *p) {
    const struct problem *problem = p->problem;
    int joins = 0;
    for (int64_t k = 0; k < p->backend->n_kernels; k++)
        joins |= p->backend->kernels[k].family->joint_rows > 0;
    return joins && problem->operation == TESS_ATTENTION_BACKWARD &&
           problem->pipeline == TESS_FUSED && (problem->gradients & TESS_GRADIENT_Q) &&
           !problem->parts_asked;
}

double joint_seconds(const struct problem *problem, const struct strips *strips) {
    return JOINT_FLOAT_SECONDS * (double)strips->rows * (double)strips_width(problem->d_qk);
}

static struct pass *keys_pass(struct candidate *c) {
    struct pass *pass = c->passes;
    while (!pass->over_keys)
        pass++;
    return pass;
}

int joint_spills(const struct pass *pass) {
    return pass->joint && pass->kernel->family->prepare;
}

/* Makes the joint form without tiles; answers whether kernels can have it. */
static int form_joins(struct candidate *form, const struct premises *p) {
    return !select_kernels(form, p, 1, NULL) && keys_pass(form)->kernel->family->joint_rows;
}

/* Lists and strips of the form whose passes are joint; none where they take too much room or time, `seven`
 * seconds. */
static tess_status strips_try(struct work *work, struct candidate *five, double seven,
                              const struct premises *p, const struct bcsr *transposed,
                              tess_error *error) {
    const struct problem *problem = p->problem;
    const struct pass *keys = keys_pass(five);
    const struct trial trial = select_trial(p, keys, keys->kernel);
    const int64_t most = spill_room(problem) / JOINT_FLOAT / (int64_t)strips_width(problem->d_qk);
    tess_status status = lists_pack(&work->lists, transposed, keys->tiles.rows, error);
    if (!status)
        status =
            strips_make(&work->strips, &work->lists, p->list_of, problem->batch * problem->heads_kv,
                        problem->heads_q / problem->heads_kv, cost_item(&trial) / cost_key(&trial),
                        most, error);
    if (!status && work->strips.n > 0 &&
        five->seconds + joint_seconds(problem, &work->strips) < seven)
        return TESS_OK;
    lists_free(&work->lists);
    strips_free(&work->strips);
    return status;
}

tess_status joint_decide(struct candidate *c, struct work *key_work, const struct premises *p,
                         struct estimates *m, struct estimates *transposed, tess_error *error) {
    struct problem all = *p->problem;
    struct premises whole = *p;
    struct candidate five, seven;
    all.gradients = JOINT_GRADIENTS;
    whole.problem = &all;
    /* A name decides no form, but its kernel has to be in it. */
    const int joins = form_joins(&five, &whole);
    whole.kernel = NULL;
    if (!joins || !form_joins(&five, &whole) || select_kernels(&seven, &whole, 0, NULL))
        return TESS_OK;
    tess_status status = select_tiles(&five, &whole, m, transposed, NULL);
    if (!status)
        status = select_tiles(&seven, &whole, m, transposed, NULL);
    if (status == TESS_UNSUPPORTED) /* not of the height that the problem asks for */
        return TESS_OK;
    if (status)
        return error_set(error, status, "tess_plan_create", NULL, "out of memory for tiles");
    if (joint_spills(keys_pass(&five))) {
        if (five.seconds >= seven.seconds || !(p->problem->gradients & JOINT_OTHERS))
            return TESS_OK;
        status = select_kernels(c, p, 1, error);
        if (!status)
            keys_pass(c)->what = "d_q too, from gradients of scores in the workspace";
        return status;
    }
    if (five.seconds < seven.seconds)
        status = strips_try(key_work, &five, seven.seconds, &whole, transposed->m, error);
    if (status || !work_packed(key_work))
        return status;
    status = select_kernels(c, p, 1, error);
    if (!status)
        keys_pass(c)->tiles = keys_pass(&five)->tiles;
    return status;
}
