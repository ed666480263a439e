/*
 * The MLP on the CPU: what its two stems share. An item, a query tile, is done in pieces by different threads where
 * there are few items: of its columns (up.c), of the dims of o (down.c). No sum depends on how.
 */
#ifndef TESSERA_CPU_MLP_H
#define TESSERA_CPU_MLP_H

#include "plan/mlp.h"
#include "tile/parallel.h"
#include "tile/tile.h"

#define MLP_PIECES_EACH 4 /* pieces of a thread at least, where there are as many */

struct mlp_job {
    const struct kernel_args *args;
    int64_t pieces; /* pieces of an item */
    char *scratch;
    size_t scratch_size;
};

struct mlp_tile {
    int64_t b, first, rows; /* queries */
    int64_t T;              /* its list's number */
    char *values;           /* its rows of values */
};

static inline struct mlp_tile mlp_tile(const struct kernel_args *args, int64_t number) {
    const struct work_item *item = &args->work.schedule->items[number];
    const struct lists *l = args->work.lists;
    const struct mlp_operands *given = mlp_of(args);
    const int64_t block = item->batch_head * l->tiles + item->tile;
    const int64_t row = given->value_stride * (int64_t)tess_type_size(args->problem->type);
    const int64_t first = l->tile_row[item->tile];
    return (struct mlp_tile){.b = item->batch_head,
                             .first = first,
                             .rows = l->tile_row[item->tile + 1] - first,
                             .T = args->work.list_of[item->batch_head] * l->tiles + item->tile,
                             .values = (char *)given->values + block * l->tile_rows * row};
}

/* Pieces of an item that has `most`. */
static inline int64_t mlp_pieces(const struct kernel_args *args, int64_t most) {
    const int64_t items = args->work.schedule->n_items;
    const int64_t wanted = MLP_PIECES_EACH * (int64_t)args->problem->threads;
    return items ? max_i64(1, min_i64(most, (wanted + items - 1) / items)) : 1;
}

/* columns = those that the tile lists, in the order of the list; answers how many. Runs are all full. */
static inline int64_t mlp_columns(const struct lists *l, int64_t T, int32_t *columns) {
    int64_t n = 0;
    for (int64_t i = l->full_ptr[T]; i < l->full_end[T]; i++)
        for (int32_t c = 0; c < l->full[i].count; c++)
            columns[n++] = l->full[i].key + c;
    return n;
}

/* A tensor's rows, from dim `first` on. */
static inline struct cpu_head mlp_dims_from(struct cpu_head head, int64_t first) {
    head.data += first * (int64_t)tess_type_size(head.type);
    return head;
}

/* Pieces of rows that products are to read next: fetched to the second cache a few at a time, while others are
 * multiplied. */
struct mlp_ahead {
    const struct cpu_head *rows;
    const int32_t *row; /* n numbers */
    int64_t n, at;
    int64_t offset, size; /* bytes of each row */
};

#define MLP_LINE 64 /* bytes */

static inline void mlp_fetch(struct mlp_ahead *ahead, int64_t rows) {
    for (const int64_t end = min_i64(ahead->n, ahead->at + rows); ahead->at < end; ahead->at++) {
        const char *row = cpu_key(ahead->rows, ahead->row[ahead->at]) + ahead->offset;
        for (int64_t i = 0; i < ahead->size; i += MLP_LINE)
            __builtin_prefetch(row + i, 0, 2);
    }
}

/* out = elements first ... first + n - 1 of a bias; zeros where there is none. */
static inline void mlp_bias(float *out, const struct view *bias, int64_t first, int64_t n) {
    if (!bias->data)
        memset(out, 0, (size_t)n * sizeof *out);
    else
        cpu_load_any(out, (const char *)bias->data + first * (int64_t)tess_type_size(bias->type),
                     bias->type, n);
}

#endif
