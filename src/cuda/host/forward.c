/* The host's side of fused attention on CUDA: a plan's image, the workspace, what kernels get. */
#include "host/forward.h"
#include "host/staged.h"

#include <math.h>
#include <string.h>

static const struct granules *granules_of(const struct kernel_args *args) {
    return &args->work.prepared->granules;
}

/* ---- the image ---- */

/* Words of row masks in the image: none where the kernel reads mask groups. */
static int64_t row_masks(const struct kernel_args *args) {
    return granules_of(args)->records ? 0 : args->work.lists->n_words;
}

static struct attention_image image_take(struct carve *c, const struct kernel_args *args) {
    const struct granules *g = granules_of(args);
    struct attention_image i;
    carve_take(c, 1, sizeof(struct image_header));
    i.keys = carve_take(c, (size_t)g->n, sizeof *i.keys);
    i.masks = carve_take(c, (size_t)g->n_masks, sizeof *i.masks);
    i.words = carve_take(c, (size_t)row_masks(args), sizeof *i.words);
    i.items = carve_take(c, (size_t)g->n_items, sizeof *i.items);
    i.combines = carve_take(c, (size_t)g->n_combines, sizeof *i.combines);
    i.worker_ptr = carve_take(c, (size_t)g->workers + 1, sizeof *i.worker_ptr);
    i.n_groups = g->n_groups;
    i.group_keys = carve_take(c, (size_t)g->n_groups, sizeof *i.group_keys);
    i.records = carve_take(c, (size_t)g->n_records, sizeof *i.records);
    i.mask_bits = carve_take(c, (size_t)g->n_bits, sizeof *i.mask_bits);
    return i;
}

struct attention_image attention_image_of(const struct kernel_args *args) {
    struct carve carve = {.base = (char *)(uintptr_t)args->image};
    return image_take(&carve, args);
}

size_t attention_image_size(const struct kernel_args *args) {
    struct carve carve = {0};
    image_take(&carve, args);
    return carve.overflow ? SIZE_MAX : carve.used;
}

size_t attention_image_parts(struct device_part parts[IMAGE_ARRAYS], const struct kernel_args *args,
                             char *image) {
    const struct granules *g = granules_of(args);
    struct carve carve = {.base = image};
    const struct attention_image to = image_take(&carve, args);
    const struct device_part all[] = {
        {to.keys, g->keys, g->n, sizeof *to.keys},
        {to.masks, g->masks, g->n_masks, sizeof *to.masks},
        {to.words, args->work.lists->words_of_rows, row_masks(args), sizeof *to.words},
        {to.items, g->items, g->n_items, sizeof *to.items},
        {to.combines, g->combines, g->n_combines, sizeof *to.combines},
        {to.worker_ptr, g->worker_ptr, g->workers + 1, sizeof *to.worker_ptr},
        {to.group_keys, g->group_keys, g->n_groups, sizeof *to.group_keys},
        {to.records, g->records, g->n_records, sizeof *to.records},
        {to.mask_bits, g->mask_bits, g->n_bits, sizeof *to.mask_bits},
    };
    _Static_assert(sizeof all / sizeof *all <= IMAGE_ARRAYS, "the header has room for them");
    memcpy(parts, all, sizeof all);
    return sizeof all / sizeof *all;
}

/* ---- runs ---- */

/* A slot's rows of o are whole eights of floats, as forward/sm80_small_m/rows.cuh stores them. */
static int32_t slot_dims(const struct kernel_args *args) {
    return (int32_t)((args->problem->d_v + 7) / 8 * 8);
}

/* Whole 16-byte pieces, also of tiles of one row: combines read four floats at a time. */
static int64_t slot_floats(const struct kernel_args *args) {
    return ((int64_t)args->work.lists->tile_rows * (slot_dims(args) + 2) + 3) / 4 * 4;
}

size_t attention_workspace(const struct kernel_args *args) {
    struct carve carve = {0};
    carve_take_panel(&carve, (size_t)(args->work.schedule->n_slots * args->work.tile_heads),
                     (size_t)slot_floats(args), sizeof(float));
    return carve.overflow ? SIZE_MAX : carve.used;
}

bool attention_rows_copied(const struct kernel_args *args, const struct view *more) {
    const struct attention_operands *given = attention_of(args);
    const struct view *views[] = {&given->q, &given->k, &given->v, more};
    const int64_t size = (int64_t)tess_type_size(args->problem->type);
    bool copied = args->work.prepared->path != OPERANDS_ELEMENTS;
    for (int i = 0; i < 4; i++) {
        const int64_t step = views[i]->stride[2];
        copied &= step >= 0 && step <= UINT32_MAX / size;
    }
    return copied;
}

/* A sum with a base is no mean. */
static struct modify_params modify_params_based(const struct kernel_args *args) {
    const struct attention_operands *given = attention_of(args);
    struct modify_params modify = modify_params_of(args, LOG2_E);
    if (given->base_o.data && !given->base_lse.data)
        modify.mean_below = 0;
    return modify;
}

struct attention_params attention_params_shared(const struct kernel_args *args) {
    const struct problem *p = args->problem;
    const struct attention_operands *given = attention_of(args);
    const double q_scale = copysign(ldexp(1, cuda_scale_power(p->scale, p->type)), p->scale);
    return (struct attention_params){
        .q = rows_view_of(&given->q),
        .k = rows_view_of(&given->k),
        .v = rows_view_of(&given->v),
        .o = rows_view_of(&given->o),
        .lse = rows_view_of(&given->lse),
        .reference = rows_view_of(&given->lse_reference),
        .column_sums = rows_view_of(&given->column_sums),
        .sum_type = p->sum_type,
        .base = {rows_view_of(&given->base_o), rows_view_of(&given->base_lse), (float)given->beta},
        .slots = args->workspace,
        .tile_rows = args->work.lists->tile_rows,
        .slot_dims = slot_dims(args),
        .tile_heads = (int32_t)args->work.tile_heads,
        .slot_floats = slot_floats(args),
        .batch = (int32_t)p->batch,
        .heads_q = (int32_t)p->heads_q,
        .heads_kv = (int32_t)p->heads_kv,
        .n_q = (int32_t)p->n_q,
        .n_kv = (int32_t)p->n_kv,
        .d_qk = (int32_t)p->d_qk,
        .d_v = (int32_t)p->d_v,
        .alignment = (int32_t)(p->alignment < 16 ? p->alignment : 16),
        .q_scale = (float)q_scale,
        .score_scale = (float)(p->scale / q_scale * LOG2_E),
        .modify = modify_params_based(args),
    };
}

struct attention_params attention_params_of(const struct kernel_args *args) {
    const struct granules *g = granules_of(args);
    struct attention_params p = attention_params_shared(args);
    p.image = attention_image_of(args);
    p.header = args->image;
    p.n_items = g->n_items;
    p.n_combines = g->n_combines;
    p.granule_bits = __builtin_ctz((unsigned)g->size);
    p.thin = args->work.prepared->thin;
    p.tma = args->work.prepared->path == OPERANDS_TMA;
    p.copied = attention_rows_copied(args, &attention_of(args)->q);
    /* The first workers have the items (tests/planning/test_granules.c); more CTAs would be idle. */
    p.workers = g->n_items < g->workers ? (int32_t)g->n_items : g->workers;
    return p;
}

const char *attention_sm90_refuses(const struct problem *problem, const tess_target *target) {
    if (target->architecture != 90)
        return "the target's architecture is not 90 (compute capability 9.0)";
    if (problem->alignment < 16 || problem->d_qk % 8 || problem->d_v % 8)
        return "it copies 16 bytes at a time: rows have to be aligned to that";
    if (!(problem->scale >= 0x1p-8 && problem->scale <= 0x1p8))
        return "its scale is not within 2^-8 ... 2^8";
    return NULL;
}
