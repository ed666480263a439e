/* The host's side of the three stages on CUDA: a plan's image, and what their kernels get. */
#include "host/staged.h"

#include <math.h>
#include <string.h>

/* ---- what kernels are handed ---- */

/* Block rows are narrower than 2^32 columns, so for wider blocks any wider number does. */
static struct cuda_divisor divisor_of(int64_t number) {
    const uint32_t n = number < UINT32_MAX ? (uint32_t)number : UINT32_MAX;
    uint32_t log2 = 0;
    while (log2 < 32 && (uint64_t)1 << log2 < n)
        log2++;
    return (struct cuda_divisor){
        .factor = (uint32_t)(((((uint64_t)1 << log2) - n) << 32) / n + 1),
        .halve = log2 > 0,
        .shift = log2 > 0 ? log2 - 1 : 0,
    };
}

/* The greatest weight, 65536 / (65536 - dropped), becomes 2^14 ... 2^15, within f16's range. */
static int32_t weight_power(const struct modifiers *m) {
    int32_t power = 15;
    while (m->dropped && (int64_t)(65536 - m->dropped) << (15 - power) < 65536)
        power--;
    return power;
}

struct staged_params staged_sizes(const struct problem *p, const tess_target *target) {
    const struct block_rows *listed = &p->block_rows;
    const double q_scale = ldexp(1, cuda_scale_power(p->scale, p->type));
    const int64_t mean = listed->count ? listed->columns / listed->count : 0;
    const int64_t chunks = (mean + CUDA_CHUNK - 1) / CUDA_CHUNK;
    const int even = listed->widest <= 2 * mean + 32; /* widths drawn for each are */
    return (struct staged_params){
        .n_items = listed->count,
        .n_bands = listed->bands,
        .n_bitmasks = listed->bitmasks,
        .n_q = p->n_q,
        .n_kv = p->n_kv,
        .block_q = listed->block_q,
        .block_kv = listed->block_kv,
        .height = listed->block_q < p->n_q ? listed->block_q : p->n_q,
        .columns = listed->columns,
        .batch = p->batch,
        .heads_q = (int32_t)p->heads_q,
        .heads_per_kv = (int32_t)(p->heads_q / p->heads_kv),
        .d_qk = (int32_t)p->d_qk,
        .d_v = (int32_t)p->d_v,
        .alignment = (int32_t)(p->alignment < 16 ? p->alignment : 16),
        .shared = target->shared_memory_per_block,
        .multiprocessors = target->multiprocessors,
        .architecture = target->architecture,
        .q_scale = (float)q_scale,
        .score_scale = (float)(p->scale / q_scale),
        .weight_power = weight_power(&p->modifiers),
        .block_row_chunks = chunks > 0 ? (int32_t)chunks : 1,
        .in_order = even && listed->block_kv % 8 != 0,
        .widest = listed->widest,
    };
}

/* Each query's share of its head's slope. */
static double *slopes_take(struct carve *c, const struct kernel_args *args) {
    const struct problem *p = args->problem;
    if (args->kernel->stage != TESS_STAGE_SOFTMAX_BACKWARD || !(p->gradients & TESS_GRADIENT_ALIBI))
        return NULL;
    return carve_take_panel(c, (size_t)(p->batch * p->heads_q), (size_t)p->n_q, sizeof(double));
}

size_t staged_workspace(const struct kernel_args *args) {
    struct carve carve = {0};
    slopes_take(&carve, args);
    return carve.overflow ? SIZE_MAX : carve.used;
}

struct staged_params staged_params_planned(const struct kernel_args *args, void *image) {
    const struct problem *problem = args->problem;
    struct carve carve = {.base = image};
    struct staged_params p = staged_sizes(problem, args->target);
    p.image = staged_image(&carve, args);
    p.scale = (float)problem->scale;
    p.heads_kv = (int32_t)problem->heads_kv;
    p.cols = staged_image_columns(args);
    p.rows = args->work.bcsr->rows;
    p.by_block_kv = divisor_of(p.block_kv);
    p.by_heads_q = divisor_of(problem->heads_q);
    p.by_heads_per_kv = divisor_of(p.heads_per_kv);
    return p;
}

struct staged_params staged_params_of(const struct kernel_args *args) {
    const struct stage_operands *given = stage_of(args);
    struct staged_params p = staged_params_planned(args, (void *)(uintptr_t)args->image);
    struct carve carve = {.base = args->workspace};
    p.q = rows_view_of(&given->q);
    p.k = rows_view_of(&given->k);
    p.v = rows_view_of(&given->v);
    p.o = rows_view_of(&given->o);
    p.lse = rows_view_of(&given->lse);
    p.scores = given->scores;
    p.modify = modify_params_of(args, 1);
    p.stats = given->stats;
    p.gradients = given->gradients;
    p.d_alibi = given->d_alibi;
    p.wide = given->o.type == TESS_F32;
    p.slopes = slopes_take(&carve, args);
    return p;
}

/* ---- the image ---- */

size_t staged_image_size(const struct kernel_args *args) {
    struct carve carve = {0};
    staged_image(&carve, args);
    return carve.overflow ? SIZE_MAX : carve.used;
}

size_t staged_image_parts(struct device_part parts[IMAGE_ARRAYS], const struct kernel_args *args,
                          char *image) {
    const struct bcsr *m = args->work.bcsr, *t = args->work.transposed;
    const struct staged_params p = staged_params_planned(args, image);
    const struct staged_image *to = &p.image;
    const int64_t heads = args->problem->batch * args->problem->heads_q;
    const int64_t turned = p.cols ? m->n_tiles : 0;
    const struct device_part all[] = {
        {to->row_ptr, m->row_ptr, m->batch * m->heads * (m->rows + 1), sizeof *to->row_ptr},
        {to->col_idx, m->col_idx, m->n_tiles, sizeof *to->col_idx},
        {to->band_entry, m->band_entry, m->n_bands, sizeof *to->band_entry},
        {to->band, m->band, m->n_bands, 2 * sizeof *to->band},
        {to->bitmask_entry, m->bitmask_entry, m->n_bitmasks, sizeof *to->bitmask_entry},
        {to->bits, m->bits, staged_image_words(m), sizeof *to->bits},
        {to->partial, NULL, to->partial ? m->n_tiles : 0, sizeof *to->partial},
        {to->items, args->work.schedule->items, p.n_items, sizeof *to->items},
        {to->block_rows, NULL, p.n_items, sizeof *to->block_rows},
        {to->rows, NULL, p.n_items, sizeof *to->rows},
        {to->chunks, NULL, p.n_items + 1, sizeof *to->chunks},
        {to->list_of, args->work.list_of, heads, sizeof *to->list_of},
        {to->scores_offset, args->work.scores_offset, heads, sizeof *to->scores_offset},
        {to->col_ptr, t->row_ptr, p.cols ? t->batch * t->heads * (p.cols + 1) : 0,
         sizeof *to->col_ptr},
        {to->row_idx, t->col_idx, turned, sizeof *to->row_idx},
        {to->entries, args->work.entries, turned, sizeof *to->entries},
    };
    _Static_assert(sizeof all / sizeof *all <= IMAGE_ARRAYS, "the header has room for them");
    memcpy(parts, all, sizeof all);
    return sizeof all / sizeof *all;
}
