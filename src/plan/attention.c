/* Passes of attention and of its gradient, fused and staged. */
#include "plan/attention.h"

#include "plan/operation.h"

#define DIMS(qk, v) offsetof(struct problem, qk), offsetof(struct problem, v)
#define WHOLE DIMS(d_qk, d_v)
#define OWN NULL, WHOLE

#define FORWARD(from, to) BIND(attention_operands, from, stage_operands, to)
#define GRADIENT(from, to) BIND(gradient_operands, from, stage_operands, to)

_Static_assert(sizeof(struct stage_operands) <= PASS_OPERANDS, "a pass has room for them");
_Static_assert(!offsetof(struct gradient_operands, forward), "FORWARD binds a gradient's as well");

/* ---- attention ---- */

static const struct binding of_stage[] = {FORWARD(modifiers, modifiers),
                                          FORWARD(q, q),
                                          FORWARD(k, k),
                                          FORWARD(v, v),
                                          FORWARD(o, o),
                                          FORWARD(lse, lse),
                                          FORWARD(o_rest, o_rest),
                                          FORWARD(scores, scores),
                                          {0}};

static const struct step attention_steps[] = {
    {TESS_FUSED, TESS_STAGE_ATTENTION, 0, 0, NULL, OWN, KEEPS_BOTH, 0},
    {TESS_FUSED, TESS_STAGE_COLUMN_SUMS, 0, 0, NULL, OWN, KEEPS_BOTH, 0},

    {TESS_STAGED, TESS_STAGE_SDDMM, 0, 0, NULL, of_stage, WHOLE, KEEPS_BOTH, 0},
    {TESS_STAGED, TESS_STAGE_SOFTMAX, 0, 0, NULL, of_stage, WHOLE, KEEPS_BOTH, 0},
    {TESS_STAGED, TESS_STAGE_SPMM, 0, 0, NULL, of_stage, WHOLE, KEEPS_BOTH, 0},
};

static void attention_carve(const tess_plan *plan, struct carve *carve, void *operands) {
    float *scores = carve_take(carve, (size_t)plan->scores_count, sizeof *scores);
    if (operands)
        ((struct attention_operands *)operands)->scores = scores;
}

const struct operation operation_attention = {
    "attention", "this backend has no kernel for it", attention_steps,
    sizeof attention_steps / sizeof *attention_steps, attention_carve};

/* ---- its gradient ---- */

#define OF_KEYS (TESS_GRADIENT_K | TESS_GRADIENT_V)
#define OF_ROWS (TESS_GRADIENT_Q | TESS_GRADIENT_ALIBI)
#define OF_SCORES (OF_ROWS | TESS_GRADIENT_K)
#define OF_TILES (OF_SCORES | TESS_GRADIENT_V)
#define OF_BOTH (OF_KEYS | TESS_GRADIENT_Q)

static const struct binding of_scores[] = {
    FORWARD(q, q), FORWARD(k, k), FORWARD(scores, scores), {0}};
static const struct binding of_gradients[] = {
    GRADIENT(d_o, q), FORWARD(v, k), GRADIENT(gradients, scores), {0}};
static const struct binding of_softmax[] = {FORWARD(modifiers, modifiers),  FORWARD(scores, scores),
                                            GRADIENT(gradients, gradients), GRADIENT(stats, stats),
                                            GRADIENT(d_alibi, d_alibi),     {0}};
static const struct binding of_d_v[] = {
    FORWARD(scores, scores), GRADIENT(d_o, v), GRADIENT(d_v, o), {0}};
static const struct binding of_d_q[] = {
    GRADIENT(gradients, scores), FORWARD(k, v), GRADIENT(d_q, o), {0}};
static const struct binding of_d_k[] = {
    GRADIENT(gradients, scores), FORWARD(q, v), GRADIENT(d_k, o), {0}};

static const struct step gradient_steps[] = {
    {TESS_FUSED, TESS_STAGE_DELTA, 0, 0, NULL, OWN, KEEPS_BOTH, 0},
    {TESS_FUSED, TESS_STAGE_GRADIENT_KEYS, OF_KEYS, OF_BOTH, NULL, OWN, KEEPS_BOTH, 1},
    {TESS_FUSED, TESS_STAGE_GRADIENT_ROWS, OF_ROWS, TESS_GRADIENT_ALIBI, NULL, OWN, KEEPS_BOTH, 0},

    {TESS_STAGED, TESS_STAGE_DELTA, 0, 0, NULL, OWN, KEEPS_BOTH, 0},
    {TESS_STAGED, TESS_STAGE_SDDMM, OF_TILES, 0, "scores of q and k", of_scores, WHOLE, KEEPS_SCALE,
     0},
    {TESS_STAGED, TESS_STAGE_SDDMM, OF_SCORES, 0, "gradients of d_o and v", of_gradients,
     DIMS(d_v, d_v), KEEPS_NEITHER, 0},
    {TESS_STAGED, TESS_STAGE_SOFTMAX_BACKWARD, OF_TILES, 0, NULL, of_softmax, WHOLE, KEEPS_BOTH, 0},
    {TESS_STAGED, TESS_STAGE_SPMM_TRANSPOSED, TESS_GRADIENT_V, 0, "d_v from weights and d_o",
     of_d_v, WHOLE, KEEPS_NEITHER, 1},
    {TESS_STAGED, TESS_STAGE_SPMM, TESS_GRADIENT_Q, 0, "d_q from gradients and k", of_d_q,
     DIMS(d_qk, d_qk), KEEPS_NEITHER, 0},
    {TESS_STAGED, TESS_STAGE_SPMM_TRANSPOSED, TESS_GRADIENT_K, 0, "d_k from gradients and q",
     of_d_k, DIMS(d_qk, d_qk), KEEPS_NEITHER, 1},
};

static void gradient_carve(const tess_plan *plan, struct carve *carve, void *operands) {
    const struct problem *p = &plan->problem;
    const size_t heads = (size_t)(p->batch * p->heads_q), queries = (size_t)p->n_q;
    struct gradient_operands sizes, *o = operands ? operands : &sizes;
    o->stats.base = carve_take_panel(carve, heads, queries, sizeof(float));
    o->stats.left = carve_take_panel(carve, heads, queries, sizeof(float));
    o->stats.delta = carve_take_panel(carve, heads, queries, sizeof(float));
    attention_carve(plan, carve, &o->forward);
    for (int i = 0; i < plan->n_passes; i++)
        if (plan->passes[i].bindings == of_gradients)
            o->gradients = carve_take(carve, (size_t)plan->scores_count, sizeof(float));
}

const struct operation operation_gradient = {
    "backward of attention", "this backend has no backward", gradient_steps,
    sizeof gradient_steps / sizeof *gradient_steps, gradient_carve};
