/* Passes of a plan, by operation and pipeline, their arguments, and their runs. */
#include "plan/operation.h"
#include "plan/reserve.h"

#include "base/status.h"

#include <string.h>

static int64_t dim_at(const struct problem *p, size_t place) {
    return *(const int64_t *)(const void *)((const char *)p + place);
}

static struct problem step_problem(const struct step *step, const struct problem *whole) {
    struct problem p = *whole;
    p.d_qk = dim_at(whole, step->d_qk);
    p.d_v = dim_at(whole, step->d_v);
    if (step->keeps != KEEPS_BOTH)
        p.modifiers = (struct modifiers){0};
    if (step->keeps == KEEPS_NEITHER)
        p.scale = 1;
    return p;
}

void passes_begin(struct candidate *c, const struct problem *p, int joins) {
    const struct operation *operation = operation_get(p->operation);
    *c = (struct candidate){.joint = joins};
    for (const struct step *s = operation->steps; s < operation->steps + operation->n_steps; s++) {
        const int64_t wanted = joins ? s->joint : s->wanted;
        const int joint = joins && s->over_keys;
        if (s->pipeline != p->pipeline || (s->wanted && !(wanted & p->gradients)) ||
            (s->stage == TESS_STAGE_COLUMN_SUMS && !p->sum_rows))
            continue;
        struct pass *pass = &c->passes[c->n_passes++];
        *pass = (struct pass){.stage = s->stage,
                              .what = joint ? "d_q too, in strips of key tiles" : s->what,
                              .problem = step_problem(s, p),
                              .bindings = s->bindings,
                              .over_keys = s->over_keys,
                              .joint = joint};
        if (joins && wanted)
            pass->problem.gradients &= wanted;
    }
}

const struct pass *plan_pass(const tess_plan *plan, tess_stage stage) {
    for (int i = 0; plan && i < plan->n_passes; i++)
        if (plan->passes[i].stage == stage)
            return &plan->passes[i];
    return NULL;
}

struct kernel_args plan_args(const tess_plan *plan) {
    return (struct kernel_args){.problem = &plan->problem,
                                .target = &plan->target,
                                .work = {.bcsr = &plan->work.bcsr,
                                         .transposed = &plan->key_work.bcsr,
                                         .entries = plan->key_work.entries,
                                         .list_of = plan->list_of,
                                         .scores_offset = plan->scores_offset,
                                         .seconds = plan->predicted_seconds}};
}

struct kernel_args pass_args(const struct kernel_args *run, const struct pass *pass) {
    struct kernel_args args = *run;
    args.kernel = pass->kernel;
    args.problem = &pass->problem;
    args.work.lists = &pass->work->lists;
    args.work.prepared = pass->work->prepared;
    args.work.schedule = &pass->work->schedule;
    args.work.strips = pass->joint ? &pass->work->strips : NULL;
    args.work.tile_heads = pass->work->tile_heads;
    args.image = run->image && pass->part ? (const char *)run->image + pass->part->at : NULL;
    return args;
}

/* ---- runs ---- */

/* Memory that a pass's arguments point to. */
struct room {
    uint64_t operands[PASS_OPERANDS / sizeof(uint64_t)];
    struct filled_work filled;
};

/* The arguments of a pass with what its kernel reads and writes. Images of the host that are filled already are
 * read. */
static tess_status args_bind(struct kernel_args *args, struct room *room, const tess_plan *plan,
                             const struct pass *pass, int filled, const struct kernel_args *run,
                             tess_error *error) {
    *args = pass_args(run, pass);
    if (pass->bindings) {
        memset(room->operands, 0, PASS_OPERANDS);
        for (const struct binding *b = pass->bindings; b->size; b++)
            memcpy((char *)room->operands + b->to, (const char *)run->operands + b->from, b->size);
        args->operands = room->operands;
    }
    if (!plan->filled || !pass->part)
        return TESS_OK;
    reserve_bind(args, &room->filled, plan, pass->part, run->image);
    return filled ? reserve_read(args, &room->filled, plan, pass->part, run->image, error)
                  : TESS_OK;
}

static tess_status kernel_ask(const struct kernel_args *args, tess_error *error) {
    const struct kernel *kernel = args->kernel;
    const char *why = kernel->refuses_run ? kernel->refuses_run(args) : NULL;
    return why ? error_set(error, TESS_UNSUPPORTED, args->function, NULL,
                           "kernel %s: %s: the problem can name another kernel", kernel->name, why)
               : TESS_OK;
}

tess_status passes_run(const tess_plan *plan, const struct pass *passes, int n,
                       const struct filling *filling, const struct kernel_args *run,
                       tess_error *error) {
    struct kernel_args args;
    struct room room;
    tess_status status = TESS_OK;
    for (int i = 0; i < n && !status; i++) {
        status = args_bind(&args, &room, plan, &passes[i], !filling, run, error);
        if (!status)
            status = kernel_ask(&args, error);
    }
    if (!status && filling)
        status = reserve_fill(plan, filling, run->function, run->image, run->stream, error);
    for (int i = 0; i < n && !status; i++) {
        status = args_bind(&args, &room, plan, &passes[i], 1, run, error);
        if (!status)
            status = args.kernel->run(&args, error);
    }
    return status;
}
