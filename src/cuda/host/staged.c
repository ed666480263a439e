/* The host's side of the three stages on CUDA: a plan's image, and what their kernels get. */
#include "host/staged.h"

#include <math.h>

/* ---- what kernels are handed ---- */

/* Columns of all block rows: the scores of each head fill block_q rows of them. */
static int64_t columns_of(const struct kernel_args *args) {
    const struct bcsr *m = args->bcsr;
    const int64_t last = args->problem->batch * args->problem->heads_q - 1;
    const int64_t list = args->list_of[last];
    const int64_t tiles = bcsr_row_begin(m, list, m->rows) - bcsr_row_begin(m, list, 0);
    return args->scores_offset[last] / m->block_q + tiles * m->block_kv;
}

static int64_t mean_width_of(const struct kernel_args *args) {
    return columns_of(args) / (args->schedule->n_items > 0 ? args->schedule->n_items : 1);
}

/* Chunks of a block row of mean width. */
static int32_t chunks_of_block_row(const struct kernel_args *args) {
    const int64_t chunks = (mean_width_of(args) + CUDA_CHUNK - 1) / CUDA_CHUNK;
    return chunks > 0 ? (int32_t)chunks : 1;
}

/* Columns of the first item's block row: items stand longest first within a group of heads. */
static int64_t widest_of(const struct kernel_args *args) {
    const struct bcsr *m = args->bcsr;
    if (args->schedule->n_items == 0)
        return 0;
    const struct work_item *first = args->schedule->items;
    const int64_t list = args->list_of[first->batch_head];
    return (bcsr_row_end(m, list, first->tile) - bcsr_row_begin(m, list, first->tile)) *
           m->block_kv;
}

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

struct staged_params staged_params_of(const struct kernel_args *args, void *image) {
    const struct problem *p = args->problem;
    const struct bcsr *m = args->bcsr;
    struct carve carve = {.base = image};
    const double q_scale = ldexp(1, cuda_scale_power(p->scale, p->type));
    const int64_t widest = widest_of(args);
    const int even = widest <= 2 * mean_width_of(args) + 32; /* as widths drawn for each are */
    return (struct staged_params){
        .image = staged_image(&carve, args),
        .q = rows_view_of(&args->q),
        .k = rows_view_of(&args->k),
        .v = rows_view_of(&args->v),
        .o = rows_view_of(&args->o),
        .lse = rows_view_of(&args->lse),
        .scores = args->scores,
        .n_items = args->schedule->n_items,
        .n_bands = m->n_bands,
        .n_bitmasks = m->n_bitmasks,
        .n_q = p->n_q,
        .n_kv = p->n_kv,
        .block_q = m->block_q,
        .block_kv = m->block_kv,
        .by_block_kv = divisor_of(m->block_kv),
        .by_heads_q = divisor_of(p->heads_q),
        .by_heads_per_kv = divisor_of(p->heads_q / p->heads_kv),
        .rows = m->rows,
        .height = m->block_q < p->n_q ? m->block_q : p->n_q,
        .columns = columns_of(args),
        .batch = p->batch,
        .heads_q = (int32_t)p->heads_q,
        .heads_per_kv = (int32_t)(p->heads_q / p->heads_kv),
        .d_qk = (int32_t)p->d_qk,
        .d_v = (int32_t)p->d_v,
        .alignment = (int32_t)(p->alignment < 16 ? p->alignment : 16),
        .shared = args->target->shared_memory_per_block,
        .multiprocessors = args->target->multiprocessors,
        .architecture = args->target->architecture,
        .q_scale = (float)q_scale,
        .score_scale = (float)(p->scale / q_scale),
        .block_row_chunks = chunks_of_block_row(args),
        .even = even,
        .in_order = even && m->block_kv % 8 != 0,
        .widest = widest,
    };
}

/* ---- the image ---- */

size_t staged_image_size(const struct kernel_args *args) {
    struct carve carve = {0};
    staged_image(&carve, args);
    return carve.overflow ? SIZE_MAX : carve.used;
}

tess_status staged_image_upload(const struct kernel_args *args, void *image, tess_error *error) {
    const struct bcsr *m = args->bcsr;
    const struct staged_params p = staged_params_of(args, image);
    const struct staged_image *to = &p.image;
    const int64_t heads = args->problem->batch * args->problem->heads_q;
    const struct device_part parts[] = {
        {to->row_ptr, m->row_ptr, m->batch * m->heads * (m->rows + 1), sizeof *to->row_ptr},
        {to->col_idx, m->col_idx, m->n_tiles, sizeof *to->col_idx},
        {to->band_entry, m->band_entry, m->n_bands, sizeof *to->band_entry},
        {to->band, m->band, m->n_bands, 2 * sizeof *to->band},
        {to->bitmask_entry, m->bitmask_entry, m->n_bitmasks, sizeof *to->bitmask_entry},
        {to->bits, m->bits, staged_image_words(m), sizeof *to->bits},
        {to->items, args->schedule->items, args->schedule->n_items, sizeof *to->items},
        {to->list_of, args->list_of, heads, sizeof *to->list_of},
        {to->scores_offset, args->scores_offset, heads, sizeof *to->scores_offset},
    };
    tess_status status = device_copy(parts, sizeof parts / sizeof *parts, args->stream, error);
    return status ? status : staged_derive(&p, (size_t)m->n_tiles, args->stream, error);
}
