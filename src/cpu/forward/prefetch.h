/*
 * Prefetch queue for next Q and O rows, which are read once and in bursts. A superblock with fewer keys
 * than most has idle slots for prefetching V: each issues one entry. First the Q rows of the item that
 * the thread is likely to take next, then the O rows of this one.
 */
#ifndef TESSERA_CPU_PREFETCH_H
#define TESSERA_CPU_PREFETCH_H

#include "tile/tile.h"

struct cpu_prefetch {
    int64_t n;
    const float *row[2 * CPU_TILE_ROWS + CPU_AHEAD]; /* the first ones last */
};

/* Fetches the runs that a query tile's list begins with, eight to a line. */
static inline void cpu_prefetch_list(const struct lists *lists, int64_t tile) {
    const int64_t first = lists->full_ptr[tile], end = lists->full_end[tile];
    for (int64_t i = first; i < end && i < first + 32; i += 8)
        __builtin_prefetch(&lists->full[i]);
}

/* Fills the queue for item `number`, whose outputs are rows of `o` from query `first` on. */
static inline void cpu_prefetch_fill(struct cpu_prefetch *queue, const struct kernel_args *args,
                                     int64_t number, const struct cpu_head *o, int64_t first,
                                     int64_t rows) {
    const struct problem *p = args->problem;
    const struct lists *lists = args->work.lists;
    const int64_t heads = args->work.tile_heads;
    const int64_t next = number + p->threads;
    queue->n = cpu_rows_of(queue->row, o, first, rows);
    if (next < args->work.schedule->n_items) {
        const struct work_item *work = &args->work.schedule->items[next];
        const int64_t head = work->batch_head * heads;
        const int64_t *row = &lists->tile_row[work->tile];
        const struct cpu_head q =
            cpu_heads(&attention_of(args)->q, p->type, head / p->heads_q, head % p->heads_q, heads);
        queue->n += cpu_rows_of(queue->row + queue->n, &q, row[0], (row[1] - row[0]) * heads);
        cpu_prefetch_list(lists, args->work.list_of[head] * lists->tiles + work->tile);
    }
    cpu_rows_end(queue->row, (int32_t)queue->n);
}

/* Their share of a superblock after which `left` others are, to row[0] ... row[CPU_AHEAD - 1]. */
static inline void cpu_prefetch_take(const struct cpu_prefetch *queue, int64_t left,
                                     const float **row) {
    const int64_t at = left * CPU_AHEAD;
    if (at < queue->n)
        memcpy(row, queue->row + at, CPU_AHEAD * sizeof *row);
}

#endif
