/* Which passes a plan has, by operation and pipeline, and what each of them is handed. */
#include "plan/plan.h"

#include "base/status.h"

/* What a pass has of the problem's scale and modifiers. */
enum keeps { ALL, NO_MODIFIERS, NO_SCALE /* and no modifiers */ };

/* A pass as it stands in the table. */
struct step {
    tess_operation operation;
    tess_pipeline pipeline;
    tess_stage stage;
    int64_t wanted; /* of TESS_GRADIENT_...: left out where none of these is wanted; 0: never */
    int64_t joint;  /* the same, and what it writes, where dQ joins the pass over keys */
    const char *what;
    struct operands operands;
    size_t d_qk, d_v; /* which dims of the problem these are: places in struct problem */
    enum keeps keeps;
    int over_keys;
};

#define FUSED TESS_ATTENTION, TESS_FUSED
#define STAGED TESS_ATTENTION, TESS_STAGED
#define FUSED_BACKWARD TESS_ATTENTION_BACKWARD, TESS_FUSED
#define STAGED_BACKWARD TESS_ATTENTION_BACKWARD, TESS_STAGED

#define ARG(name) offsetof(struct kernel_args, name)
#define BIND(q, k, v, o, scores)                                                                   \
    { ARG(q), ARG(k), ARG(v), ARG(o), ARG(scores) }
#define DIMS(qk, v) offsetof(struct problem, qk), offsetof(struct problem, v)
#define OWN BIND(q, k, v, o, scores), DIMS(d_qk, d_v)

#define OF_KEYS (TESS_GRADIENT_K | TESS_GRADIENT_V)
#define OF_ROWS (TESS_GRADIENT_Q | TESS_GRADIENT_ALIBI)
#define OF_SCORES (OF_ROWS | TESS_GRADIENT_K)
#define OF_TILES (OF_SCORES | TESS_GRADIENT_V)
#define OF_BOTH (OF_KEYS | TESS_GRADIENT_Q)

/* In the order in which they run. */
static const struct step steps[] = {
    {FUSED, TESS_STAGE_ATTENTION, 0, 0, NULL, OWN, ALL, 0},

    {STAGED, TESS_STAGE_SDDMM, 0, 0, NULL, OWN, ALL, 0},
    {STAGED, TESS_STAGE_SOFTMAX, 0, 0, NULL, OWN, ALL, 0},
    {STAGED, TESS_STAGE_SPMM, 0, 0, NULL, OWN, ALL, 0},

    {FUSED_BACKWARD, TESS_STAGE_DELTA, 0, 0, NULL, OWN, ALL, 0},
    {FUSED_BACKWARD, TESS_STAGE_GRADIENT_KEYS, OF_KEYS, OF_BOTH, NULL, OWN, ALL, 1},
    {FUSED_BACKWARD, TESS_STAGE_GRADIENT_ROWS, OF_ROWS, TESS_GRADIENT_ALIBI, NULL, OWN, ALL, 0},

    {STAGED_BACKWARD, TESS_STAGE_DELTA, 0, 0, NULL, OWN, ALL, 0},
    {STAGED_BACKWARD, TESS_STAGE_SDDMM, OF_TILES, 0, "scores of q and k", OWN, NO_MODIFIERS, 0},
    {STAGED_BACKWARD, TESS_STAGE_SDDMM, OF_SCORES, 0, "gradients of d_o and v",
     BIND(d_o, v, v, o, gradients), DIMS(d_v, d_v), NO_SCALE, 0},
    {STAGED_BACKWARD, TESS_STAGE_SOFTMAX_BACKWARD, OF_TILES, 0, NULL, OWN, ALL, 0},
    {STAGED_BACKWARD, TESS_STAGE_SPMM_TRANSPOSED, TESS_GRADIENT_V, 0, "d_v from weights and d_o",
     BIND(q, k, d_o, d_v, scores), DIMS(d_qk, d_v), NO_SCALE, 1},
    {STAGED_BACKWARD, TESS_STAGE_SPMM, TESS_GRADIENT_Q, 0, "d_q from gradients and k",
     BIND(q, k, k, d_q, gradients), DIMS(d_qk, d_qk), NO_SCALE, 0},
    {STAGED_BACKWARD, TESS_STAGE_SPMM_TRANSPOSED, TESS_GRADIENT_K, 0, "d_k from gradients and q",
     BIND(q, k, q, d_k, gradients), DIMS(d_qk, d_qk), NO_SCALE, 1},
};

static int64_t dim_at(const struct problem *p, size_t place) {
    return *(const int64_t *)(const void *)((const char *)p + place);
}

static struct problem step_problem(const struct step *step, const struct problem *of) {
    struct problem p = *of;
    p.d_qk = dim_at(of, step->d_qk);
    p.d_v = dim_at(of, step->d_v);
    if (step->keeps != ALL)
        p.modifiers = (struct modifiers){0};
    if (step->keeps == NO_SCALE)
        p.scale = 1;
    return p;
}

void passes_begin(struct candidate *c, const struct problem *p, int joins) {
    *c = (struct candidate){.joint = joins};
    for (const struct step *s = steps; s < steps + sizeof steps / sizeof *steps; s++) {
        const int64_t wanted = joins ? s->joint : s->wanted;
        const int joint = joins && s->over_keys;
        if (s->operation != p->operation || s->pipeline != p->pipeline ||
            (s->wanted && !(wanted & p->gradients)))
            continue;
        struct pass *pass = &c->passes[c->n_passes++];
        *pass = (struct pass){.stage = s->stage,
                              .what = joint ? "d_q too, in strips of key tiles" : s->what,
                              .problem = step_problem(s, p),
                              .operands = s->operands,
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
                                .bcsr = &plan->work.bcsr,
                                .transposed = &plan->key_work.bcsr,
                                .entries = plan->key_work.entries,
                                .list_of = plan->list_of,
                                .scores_offset = plan->scores_offset,
                                .seconds = plan->predicted_seconds};
}

static struct view view_at(const struct kernel_args *args, size_t place) {
    return *(const struct view *)(const void *)((const char *)args + place);
}

struct kernel_args pass_args(const struct kernel_args *run, const struct pass *pass) {
    struct kernel_args args = *run;
    args.kernel = pass->kernel;
    args.problem = &pass->problem;
    args.lists = &pass->work->lists;
    args.prepared = pass->work->prepared;
    args.schedule = &pass->work->schedule;
    args.strips = pass->joint ? &pass->work->strips : NULL;
    args.tile_heads = pass->work->tile_heads;
    args.image = run->image ? (const char *)run->image + pass->image_at : NULL;
    args.header = pass->header;
    args.q = view_at(run, pass->operands.q);
    args.k = view_at(run, pass->operands.k);
    args.v = view_at(run, pass->operands.v);
    args.o = view_at(run, pass->operands.o);
    args.scores = pass->operands.scores == ARG(gradients) ? run->gradients : run->scores;
    return args;
}

tess_status kernel_ask(const struct kernel_args *args, tess_error *error) {
    const struct kernel *kernel = args->kernel;
    const char *why = kernel->refuses_run ? kernel->refuses_run(args) : NULL;
    return why ? error_set(error, TESS_UNSUPPORTED, args->function, NULL,
                           "kernel %s: %s: the problem can name another kernel", kernel->name, why)
               : TESS_OK;
}
