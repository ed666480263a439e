/* The MLP on lists: its passes, what lives between them, and rejecting callers. */
#include "plan/mlp.h"

#include "base/status.h"
#include "plan/operation.h"
#include "plan/reserve.h"

/* ---- rejecting callers ---- */

static int whole_alone(const tess_problem *p) {
    return p->batch_offset || p->head_offset || p->query_offset || p->key_offset ||
           p->whole_heads_q != p->heads_q || p->whole_n_q != p->n_q || p->whole_n_kv != p->n_kv;
}

const char *mlp_wrong(const tess_problem *p) {
    if (p->operation != TESS_MLP)
        return p->activation ? "activation is given, and operation is not TESS_MLP" : NULL;
    if ((unsigned)p->activation > TESS_IDENTITY)
        return "activation is none of TESS_GELU ... TESS_IDENTITY";
    if (p->pipeline != TESS_FUSED)
        return "TESS_MLP has no staged pipeline: pipeline must be TESS_FUSED";
    if (p->heads_q != 1 || p->heads_kv != 1)
        return "TESS_MLP has no heads: heads_q and heads_kv must be 1";
    if (p->scale != 0 && p->scale != 1)
        return "TESS_MLP has no scale: it must be 0 or 1";
    if (p->softcap != 0 || p->alibi || p->sink || p->dropout > 0 || p->key_positions)
        return "TESS_MLP has no score modifiers: softcap, alibi, sink, dropout and key_positions "
               "must be 0";
    if (whole_alone(p))
        return "TESS_MLP has no positions: offsets and sizes of a whole problem must be 0";
    if (p->part_keys)
        return "TESS_MLP splits no lists: part_keys must be 0";
    return NULL;
}

tess_status mlp_check_pattern(const struct bcsr *m, const char *function, tess_error *error) {
    if (!m->n_bands && !m->n_bitmasks)
        return TESS_OK;
    return error_set(error, TESS_UNSUPPORTED, function, "pattern",
                     "pattern has %lld tiles of which some elements alone are listed: an MLP takes "
                     "whole columns of groups of rows, as tess_pattern_from_counts makes them",
                     (long long)(m->n_bands + m->n_bitmasks));
}

tess_status mlp_check_shape(const struct fill_shape *shape, const char *function,
                            tess_error *error) {
    const char *given = shape->cut                 ? "cut_lo and cut_hi are given"
                        : shape->form == TESS_MASK ? "form is TESS_MASK"
                                                   : NULL;
    return given ? error_set(error, TESS_UNSUPPORTED, function, "pattern",
                             "pattern: %s: an MLP takes whole columns of groups of rows, in "
                             "any form but TESS_MASK",
                             given)
                 : TESS_OK;
}

/* ---- planning ---- */

#define OWN NULL, offsetof(struct problem, d_qk), offsetof(struct problem, d_v), KEEPS_BOTH, 0

static const struct step steps[] = {
    {TESS_FUSED, TESS_STAGE_MLP_UP, 0, 0, NULL, OWN},
    {TESS_FUSED, TESS_STAGE_MLP_DOWN, 0, 0, NULL, OWN},
};

/* Columns of the longest list. */
static int64_t columns_most(const tess_plan *plan) {
    const struct lists *l = &plan->passes->work->lists;
    int64_t most = 0;
    if (plan->filled)
        return reserve_keys_most(plan->filled);
    for (int64_t T = 0; T < l->n_lists * l->tiles; T++)
        most = max_i64(most, l->keys[T]);
    return most;
}

static void mlp_carve(const tess_plan *plan, struct carve *carve, void *operands) {
    const struct lists *l = &plan->passes->work->lists;
    const int64_t blocks = (columns_most(plan) + MLP_COLUMNS - 1) / MLP_COLUMNS;
    const int64_t stride =
        (blocks | 1) * MLP_COLUMNS; /* odd, so that rows differ in their sets of a cache */
    const size_t rows = (size_t)(plan->problem.batch * l->tiles * l->tile_rows);
    void *values =
        carve_take_panel(carve, rows, (size_t)stride, tess_type_size(plan->problem.type));
    if (operands) {
        struct mlp_operands *given = operands;
        given->values = values, given->value_stride = stride;
        given->ranges = plan->filled && plan->filled->form == TESS_RANGES;
    }
}

const struct operation operation_mlp = {"MLP", "this backend has no MLP", steps,
                                        sizeof steps / sizeof *steps, mlp_carve};
