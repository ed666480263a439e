/* Scores of a block column: for C, which tests it, and for CUDA, which defines BLOCK_COLUMN as what
 * functions of a device begin with. */
#ifndef TESSERA_CUDA_BLOCK_COLUMN_H
#define TESSERA_CUDA_BLOCK_COLUMN_H

#include "host/staged.h"

#ifndef BLOCK_COLUMN
#define BLOCK_COLUMN static inline
#endif

/* One query of a tile: its scores are the tile's keys side by side. */
struct block_column_query {
    int64_t scores; /* the first one's place */
    int64_t query;  /* -1: none, past the last one */
};

/* Queries that the tiles of a block column count, p.height each: the last block row may have fewer. */
BLOCK_COLUMN int64_t block_column_queries(const struct staged_params *p, int64_t list,
                                          int64_t column) {
    const int64_t *ptr = p->image.col_ptr + list * (p->cols + 1) + column;
    return (ptr[1] - ptr[0]) * p->height;
}

/* Query number t of them. head: b * heads_q + h; list: the one that it reads. */
BLOCK_COLUMN struct block_column_query block_column_query_at(const struct staged_params *p,
                                                             int64_t head, int64_t list,
                                                             int64_t column, int64_t t) {
    const int64_t tile = t / p->height, r = t % p->height;
    const int64_t at = p->image.col_ptr[list * (p->cols + 1) + column] + tile;
    const int64_t row = p->image.row_idx[at];
    const struct block_row_scores s = p->image.rows[head * p->rows + row];
    const int64_t before = p->image.entries[at] - p->image.row_ptr[list * (p->rows + 1) + row];
    struct block_column_query q;
    q.scores = s.scores + (r * s.tiles + before) * p->block_kv;
    q.query = row * p->block_q + r;
    if (q.query >= p->n_q)
        q.query = -1;
    return q;
}

#endif
