/* The host's side of the fused backward on CUDA: workspaces, what kernels get. */
#include "host/backward.h"
#include "host/drained.h"
#include "host/staged.h"
#include "host/table.h"
#include "plan/cost.h"

#include <math.h>
#include <string.h>

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
    return (int64_t)args->work.lists->tile_rows * (s.dims[0] + s.dims[1]);
}

/* Warps of a thread block with modifiers: each has 16 rows. */
static int32_t slope_warps(const struct kernel_args *args) {
    return (args->work.lists->tile_rows + 15) / 16;
}

static float *slots_take(struct carve *carve, const struct kernel_args *args) {
    return carve_take_panel(carve, (size_t)args->work.schedule->n_slots, (size_t)slot_floats(args),
                            sizeof(float));
}

/* Shares of d_alibi of each warp of each item. */
static double *slopes_take(struct carve *carve, const struct kernel_args *args) {
    if (over_keys(args) || !(args->problem->gradients & TESS_GRADIENT_ALIBI))
        return NULL;
    return carve_take_panel(carve, (size_t)args->work.schedule->n_items, (size_t)slope_warps(args),
                            sizeof(double));
}

/* Units of dS of a joint pass. */
static char *units_take(struct carve *carve, const struct kernel_args *args) {
    const struct spill *spill = prepared_spill(args);
    return spill ? carve_take_panel(carve, (size_t)spill->units, SPILL_UNIT, 1) : NULL;
}

static struct gradient_spill spill_take(struct carve *carve, const struct kernel_args *args) {
    const struct spill *s = prepared_spill(args);
    struct gradient_spill to = {.chunks = s->chunks, .workers = s->workers};
    to.steps = carve_take(carve, (size_t)s->n_steps, sizeof *to.steps);
    to.absent = carve_take(carve, (size_t)s->n_absent, sizeof *to.absent);
    to.items = carve_take(carve, (size_t)s->n_items, sizeof *to.items);
    to.worker_ptr =
        carve_take_panel(carve, (size_t)s->chunks, (size_t)s->workers + 1, sizeof *to.worker_ptr);
    to.unit_of = carve_take(carve, (size_t)s->n_heads, sizeof *to.unit_of);
    return to;
}

size_t gradient_image_size(const struct kernel_args *args) {
    struct carve carve = {.used = attention_image_size(args)};
    spill_take(&carve, args);
    return carve.overflow ? SIZE_MAX : carve.used;
}

size_t gradient_image_parts(struct device_part parts[IMAGE_ARRAYS], const struct kernel_args *args,
                            char *image) {
    const struct spill *s = prepared_spill(args);
    const size_t n = attention_image_parts(parts, args, image);
    struct carve carve = {.base = image, .used = attention_image_size(args)};
    const struct gradient_spill to = spill_take(&carve, args);
    const struct device_part more[] = {
        {to.steps, s->steps, s->n_steps, sizeof *to.steps},
        {to.absent, s->absent, s->n_absent, sizeof *to.absent},
        {to.items, s->items, s->n_items, sizeof *to.items},
        {to.worker_ptr, s->worker_ptr, (int64_t)s->chunks * s->workers + 1, sizeof *to.worker_ptr},
        {to.unit_of, s->unit_of, s->n_heads, sizeof *to.unit_of},
    };
    memcpy(parts + n, more, sizeof more);
    return n + sizeof more / sizeof *more;
}

size_t gradient_workspace(const struct kernel_args *args) {
    struct carve carve = {0};
    slots_take(&carve, args);
    slopes_take(&carve, args);
    units_take(&carve, args);
    return carve.overflow ? SIZE_MAX : carve.used;
}

/* The power of two that q is multiplied by: scores below 2^67 stay in range. All scales but the smallest
 * give 1, since dK is a sum of q, no digit of which may be lost. f16 has none. */
static double query_scale(const struct problem *p) {
    int exponent;
    frexp(p->scale, &exponent);
    return p->type == TESS_F16 || exponent >= -60 ? 1 : ldexp(1, exponent + 60);
}

struct gradient_params gradient_params_of(const struct kernel_args *args) {
    const struct problem *p = args->problem;
    const struct granules *g = &args->work.prepared->granules;
    const struct slot_shape slot = slot_shape(args);
    const struct view none = {0};
    const bool keys = over_keys(args);
    const double q_scale = query_scale(p);
    const struct gradient_operands *given = gradient_of(args);
    const struct attention_operands *forward = &given->forward;
    const struct view *out[2] = {keys ? &given->d_k : &given->d_q, keys ? &given->d_v : &none};
    struct carve carve = {.base = args->workspace};
    struct gradient_params params = {
        .image = attention_image_of(args),
        .x = {rows_view_of(keys ? &forward->k : &forward->q),
              rows_view_of(keys ? &forward->v : &given->d_o)},
        .y = {rows_view_of(keys ? &forward->q : &forward->k),
              rows_view_of(keys ? &given->d_o : &forward->v)},
        .factor = {(float)(keys ? p->scale / q_scale : p->scale), 1},
        .x_scale = keys ? 1 : (float)q_scale,
        .y_scale = keys ? (float)q_scale : 1,
        .score_scale = (float)(p->scale / q_scale * LOG2_E),
        .stats = given->stats,
        .slots = slots_take(&carve, args),
        .slot_floats = slot_floats(args),
        .n_combines = g->n_combines,
        .d = {(int32_t)p->d_qk, (int32_t)p->d_v},
        .granule_bits = __builtin_ctz((unsigned)g->size),
        .tile_rows = args->work.lists->tile_rows,
        .words = args->work.lists->words,
        .workers = g->workers,
        .heads_q = (int32_t)p->heads_q,
        .n_q = (int32_t)p->n_q,
        .alignment = (int32_t)(p->alignment < 16 ? p->alignment : 16),
        .copied = attention_rows_copied(args, &given->d_o),
        .modify = modify_params_of(args, LOG2_E),
        .n_kv = (int32_t)p->n_kv,
        .slope_warps = slope_warps(args),
        .slopes = slopes_take(&carve, args),
        .d_alibi = given->d_alibi,
        .batch = (int32_t)p->batch,
        .heads_kv = (int32_t)p->heads_kv,
        .after_keys = !keys && (p->gradients & (TESS_GRADIENT_K | TESS_GRADIENT_V)),
    };
    if (prepared_spill(args)) {
        struct carve image = {.base = (char *)(uintptr_t)args->image,
                              .used = attention_image_size(args)};
        params.spill = spill_take(&image, args);
        params.spill.units = units_take(&carve, args);
        params.spill.d_q = rows_view_of(p->gradients & TESS_GRADIENT_Q ? &given->d_q : &none);
        params.spill.wide = given->d_q.type == TESS_F32;
        params.spill.factor = (float)p->scale;
    }
    if (params.modify.cap != 0)
        params.cap_scale = params.score_scale / params.modify.cap; /* rounded as the forward does */
    for (int i = 0; i < 2; i++) {
        params.out[i] = rows_view_of(slot.dims[i] ? out[i] : &none);
        params.wide[i] = out[i]->type == TESS_F32;
        params.slot_dims[i] = (int32_t)slot.dims[i];
    }
    return params;
}

/* ---- what Hopper's refuse, and costs ---- */

/* Granules have 64 places: smaller blocks would be mostly padding. */
const char *gradient_sm90_refuses(const struct problem *problem, const tess_target *target) {
    const struct block_rows *b = &problem->block_rows;
    const int64_t group = problem->heads_q / problem->heads_kv;
    if (problem->type == TESS_F16 &&
        max_i64(problem->n_kv, problem->n_q * group) > GRADIENT_SM90_F16_ROWS)
        return "in f16 it sums up to 2^17 queries of a group, or keys: bf16 has no such bound";
    if (b->count > 0 && (min_i64(b->block_q, problem->n_q) < GRANULE_MAX ||
                         min_i64(b->block_kv, problem->n_kv) < GRANULE_MAX))
        return "it computes blocks of 64 queries and keys or more";
    return attention_sm90_refuses(problem, target);
}

const char *gradient_wide_refuses(const struct problem *problem, const tess_target *target) {
    return modifiers_any(&problem->modifiers) ? "it computes no score modifiers"
                                              : gradient_sm90_refuses(problem, target);
}

/* A joint pass has a product more, and half of the CTAs multiply while others read: half of the time that memory takes
 * for dS, written and read, is not seen. */
double gradient_sm90_seconds(const struct trial *trial) {
    const struct problem *p = trial->problem;
    const double keys = drained_seconds(trial), products = trial->kernel->family->products;
    const double given = (double)trial->target->memory_rate;
    if (!trial->joint)
        return keys;
    if (p->type != TESS_BF16 || trial->block_rows % SPILL_SIDE ||
        trial->block_columns % SPILL_SIDE || modifiers_any(&p->modifiers))
        return INFINITY;
    const double listed = trial->sums->full_keys + trial->sums->masked_keys;
    const double bytes = listed * trial->heads * trial->rows * (double)tess_type_size(p->type);
    const double rate = given > 0 ? given : (double)cuda_memory_rate(trial->target->architecture);
    const double chunks = 1 + floor(2 * bytes / (double)spill_room(p));
    return keys * (products + 1) / products + bytes / rate + chunks * cost_launch(trial);
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
    const struct gradient_operands *given = gradient_of(args);
    const struct attention_operands *forward = &given->forward;
    const tess_type o_type = forward->o.data ? forward->o.type : p->type;
    struct carve carve = {.base = args->workspace};
    return (struct delta_params){
        .d_o = rows_view_of(&given->d_o),
        .o = rows_view_of(&forward->o),
        .o_rest = rows_view_of(&forward->o_rest),
        .lse = rows_view_of(&forward->lse),
        .d_lse = rows_view_of(&given->d_lse),
        .delta = rows_view_of(&given->delta),
        .stats = given->stats,
        .sink = forward->modifiers.sink,
        .sums = given->stats.delta ? delta_sums(&carve, args) : NULL,
        .d_sink = given->d_sink,
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
