/* The host's side of the fused backward on CUDA: workspaces, what kernels get. */
#include "host/backward.h"
#include "host/staged.h"

#include <math.h>

/* Dims of each gradient in a slot: whole eights of floats, as MMAs have them; 0: it is not wanted. */
struct slot_shape {
    int64_t dims[2];
};

static int over_keys(const struct kernel_args *args) {
    return args->kernel->stage == TESS_STAGE_GRADIENT_KEYS;
}

static struct slot_shape slot_shape(const struct kernel_args *args) {
    const struct problem *p = args->problem;
    const int64_t wanted[2] = {over_keys(args) ? TESS_GRADIENT_K : TESS_GRADIENT_Q,
                               over_keys(args) ? TESS_GRADIENT_V : 0};
    return (struct slot_shape){{p->gradients & wanted[0] ? (p->d_qk + 7) / 8 * 8 : 0,
                                p->gradients & wanted[1] ? (p->d_v + 7) / 8 * 8 : 0}};
}

static int64_t slot_floats(const struct kernel_args *args) {
    const struct slot_shape s = slot_shape(args);
    return (int64_t)args->lists->tile_rows * (s.dims[0] + s.dims[1]);
}

size_t gradient_workspace(const struct kernel_args *args) {
    struct carve carve = {0};
    carve_take_panel(&carve, (size_t)args->schedule->n_slots, (size_t)slot_floats(args),
                     sizeof(float));
    return carve.overflow ? SIZE_MAX : carve.used;
}

struct gradient_params gradient_params_of(const struct kernel_args *args) {
    const struct problem *p = args->problem;
    const struct granules *g = &args->prepared->granules;
    const struct slot_shape slot = slot_shape(args);
    const struct view none = {0};
    const bool keys = over_keys(args);
    const double q_scale = ldexp(1, cuda_scale_power(p->scale, p->type));
    const struct view *out[2] = {keys ? &args->d_k : &args->d_q, keys ? &args->d_v : &none};
    struct gradient_params params = {
        .image = attention_image_of(args),
        .x = {rows_view_of(keys ? &args->k : &args->q), rows_view_of(keys ? &args->v : &args->d_o)},
        .y = {rows_view_of(keys ? &args->q : &args->k), rows_view_of(keys ? &args->d_o : &args->v)},
        .factor = {(float)(keys ? p->scale / q_scale : p->scale), 1},
        .x_scale = keys ? 1 : (float)q_scale,
        .y_scale = keys ? (float)q_scale : 1,
        .score_scale = (float)(p->scale / q_scale * LOG2_E),
        .stats = args->stats,
        .slots = args->workspace,
        .slot_floats = slot_floats(args),
        .n_merges = g->n_merges,
        .d = {(int32_t)p->d_qk, (int32_t)p->d_v},
        .granule_bits = __builtin_ctz((unsigned)g->size),
        .tile_rows = args->lists->tile_rows,
        .words = args->lists->words,
        .workers = g->workers,
        .heads_q = (int32_t)p->heads_q,
        .n_q = (int32_t)p->n_q,
        .alignment = (int32_t)(p->alignment < 16 ? p->alignment : 16),
        .copied = attention_rows_copied(args),
    };
    for (int i = 0; i < 2; i++) {
        params.out[i] = rows_view_of(slot.dims[i] ? out[i] : &none);
        params.wide[i] = out[i]->type == TESS_F32;
        params.slot_dims[i] = (int32_t)slot.dims[i];
    }
    return params;
}

/* ---- delta ---- */

/* Chunks of a head whose shares of d_sink wait in the workspace. */
static int64_t delta_chunks(const struct kernel_args *args) {
    return (args->problem->n_q + DELTA_ROWS - 1) / DELTA_ROWS;
}

static double *delta_sums(struct carve *carve, const struct kernel_args *args) {
    const struct problem *p = args->problem;
    if (!(p->gradients & TESS_GRADIENT_SINK))
        return NULL;
    return carve_take_panel(carve, (size_t)(p->batch * p->heads_q), (size_t)delta_chunks(args),
                            sizeof(double));
}

size_t delta_workspace(const struct kernel_args *args) {
    struct carve carve = {0};
    delta_sums(&carve, args);
    return carve.overflow ? SIZE_MAX : carve.used;
}

struct delta_params delta_params_of(const struct kernel_args *args) {
    const struct problem *p = args->problem;
    const tess_type o_type = args->o.data ? args->o.type : p->type;
    struct carve carve = {.base = args->workspace};
    return (struct delta_params){
        .d_o = rows_view_of(&args->d_o),
        .o = rows_view_of(&args->o),
        .o_rest = rows_view_of(&args->o_rest),
        .lse = rows_view_of(&args->lse),
        .d_lse = rows_view_of(&args->d_lse),
        .delta = rows_view_of(&args->delta),
        .stats = args->stats,
        .sink = args->sink,
        .sums = args->stats.delta ? delta_sums(&carve, args) : NULL,
        .d_sink = args->d_sink,
        .heads = p->batch * p->heads_q,
        .heads_q = p->heads_q,
        .n_q = p->n_q,
        .chunks = delta_chunks(args),
        .d_v = (int32_t)p->d_v,
        .type = p->type,
        .o_type = o_type,
        .vector = p->alignment >= 4 * (int64_t)tess_type_size(p->type),
        .o_vector = p->alignment >= 4 * (int64_t)tess_type_size(o_type),
    };
}
