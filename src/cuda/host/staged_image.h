/* A plan's image: its block lists and schedule in device memory, in the order of one walk that both
 * sizes and places them. */
#ifndef TESSERA_CUDA_IMAGE_H
#define TESSERA_CUDA_IMAGE_H

#include "host/image.h"

/* Columns of a block row of scores that one unit of SDDMM computes. */
#define CUDA_CHUNK 128

/* Place of an item's block row, which would take three loads in sequence. Two pieces of 16 bytes, as kernels
 * load it. */
struct block_row_place {
    int64_t entry;  /* its first tile */
    int64_t scores; /* its first value */
    int64_t tiles;
    int32_t batch_head, row; /* b * heads_q + h, block row */
};

/* Scores of a block row, for kernels that pass over all block rows in memory order: one piece of 16 bytes. */
struct block_row_scores {
    int64_t scores;
    int32_t tiles, batch_head;
};

struct staged_image {
    int64_t *row_ptr; /* these six as in struct bcsr */
    int32_t *col_idx;
    int64_t *band_entry;
    int32_t *band;
    int64_t *bitmask_entry;
    uint64_t *bits;
    int64_t *partial;        /* [n_tiles] 0: full, i + 1: band i, -1 - i: bitmask i; NULL where all
                                 tiles are full */
    struct work_item *items; /* [n_items] one block row of one head each, longest first */
    struct block_row_place *block_rows; /* [n_items] */
    struct block_row_scores *rows;      /* [batch * heads_q * rows] of all, as their scores stand */
    int64_t *chunks;        /* [n_items + 1] chunks of the block rows of all items before */
    int64_t *list_of;       /* [batch * heads_q] */
    int64_t *scores_offset; /* [batch * heads_q] */
    /* Backward with passes over keys: the transposed tiles. Their masks are not needed, for scores
     * that a tile cuts are 0 there. */
    int64_t *col_ptr; /* [lists][cols + 1] */
    int32_t *row_idx; /* [n_tiles] */
    int64_t *entries; /* [n_tiles] places in col_idx */
};

/* Block columns of the transposed tiles; 0 where a plan has none. */
static inline int64_t staged_image_columns(const struct kernel_args *args) {
    return args->work.transposed->row_ptr ? args->work.transposed->rows : 0;
}

static inline int64_t staged_image_words(const struct bcsr *m) {
    return (m->n_bitmasks * m->block_q * m->block_kv + 63) / 64;
}

static inline struct staged_image staged_image(struct carve *c, const struct kernel_args *args) {
    const struct bcsr *m = args->work.bcsr;
    const size_t lists = (size_t)(m->batch * m->heads);
    const size_t heads = (size_t)(args->problem->batch * args->problem->heads_q);
    const size_t items = heads * (size_t)m->rows; /* passes over keys have another schedule */
    const int64_t n_partial = m->n_bands + m->n_bitmasks, columns = staged_image_columns(args);
    struct staged_image i;
    carve_take(c, 1, sizeof(struct image_header));
    i.row_ptr = (int64_t *)carve_take(c, lists * (size_t)(m->rows + 1), sizeof(int64_t));
    i.col_idx = (int32_t *)carve_take(c, (size_t)m->n_tiles, sizeof(int32_t));
    i.band_entry = (int64_t *)carve_take(c, (size_t)m->n_bands, sizeof(int64_t));
    i.band = (int32_t *)carve_take(c, (size_t)m->n_bands, 2 * sizeof(int32_t));
    i.bitmask_entry = (int64_t *)carve_take(c, (size_t)m->n_bitmasks, sizeof(int64_t));
    i.bits = (uint64_t *)carve_take(c, (size_t)staged_image_words(m), sizeof(uint64_t));
    i.partial = NULL;
    if (n_partial)
        i.partial = (int64_t *)carve_take(c, (size_t)m->n_tiles, sizeof(int64_t));
    i.items = (struct work_item *)carve_take(c, items, sizeof(struct work_item));
    i.block_rows = (struct block_row_place *)carve_take(c, items, sizeof(struct block_row_place));
    i.rows = (struct block_row_scores *)carve_take(c, heads * (size_t)m->rows,
                                                   sizeof(struct block_row_scores));
    i.chunks = (int64_t *)carve_take(c, items + 1, sizeof(int64_t));
    i.list_of = (int64_t *)carve_take(c, heads, sizeof(int64_t));
    i.scores_offset = (int64_t *)carve_take(c, heads, sizeof(int64_t));
    i.col_ptr = NULL;
    i.row_idx = NULL;
    i.entries = NULL;
    if (columns) {
        i.col_ptr = (int64_t *)carve_take(c, lists * (size_t)(columns + 1), sizeof(int64_t));
        i.row_idx = (int32_t *)carve_take(c, (size_t)m->n_tiles, sizeof(int32_t));
        i.entries = (int64_t *)carve_take(c, (size_t)m->n_tiles, sizeof(int64_t));
    }
    return i;
}

#endif
