/*
 * Rows that a thread is to read or write soon. Tensors other than K and V are met in bursts, once: so
 * their rows are fetched in the place of values past a superblock's last key. Those are the rows that
 * outputs go to, and before them the queries of the item that the thread is likely to take next.
 */
#ifndef TESSERA_CPU_SOON_H
#define TESSERA_CPU_SOON_H

#include "tile/tile.h"

struct cpu_soon {
    int64_t n;
    const float *row[2 * CPU_TILE_ROWS + CPU_AHEAD]; /* the first ones last */
};

/* Fetches the runs that a query tile's list begins with, eight to a line. */
static inline void cpu_soon_list(const struct lists *lists, int64_t tile) {
    const int64_t first = lists->full_ptr[tile], end = lists->full_end[tile];
    for (int64_t i = first; i < end && i < first + 32; i += 8)
        __builtin_prefetch(&lists->full[i]);
}

/* Of item `number`, whose outputs are rows of `o` from query `first` on. */
static inline void cpu_soon_find(struct cpu_soon *soon, const struct kernel_args *args,
                                 int64_t number, const struct cpu_head *o, int64_t first,
                                 int64_t rows) {
    const struct problem *p = args->problem;
    const int64_t next = number + p->threads;
    soon->n = cpu_rows_of(soon->row, o, first, rows);
    if (next < args->schedule->n_items) {
        const struct work_item *work = &args->schedule->items[next];
        const int64_t head = work->batch_head * args->stack;
        const int64_t *row = &args->lists->tile_row[work->tile];
        const struct cpu_head q =
            cpu_heads(&args->q, p->type, head / p->heads_q, head % p->heads_q, args->stack);
        soon->n += cpu_rows_of(soon->row + soon->n, &q, row[0], (row[1] - row[0]) * args->stack);
        cpu_soon_list(args->lists, args->list_of[head] * args->lists->tiles + work->tile);
    }
    cpu_rows_end(soon->row, (int32_t)soon->n);
}

/* Their share of a superblock after which `left` others are, to row[0] ... row[CPU_AHEAD - 1]. */
static inline void cpu_soon_put(const struct cpu_soon *soon, int64_t left, const float **row) {
    const int64_t at = left * CPU_AHEAD;
    if (at < soon->n)
        memcpy(row, soon->row + at, CPU_AHEAD * sizeof *row);
}

#endif
