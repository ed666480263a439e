/*
 * The transposed product of the staged backward on the CPU: each key's row of the output is the sum of
 * score times row v over the queries that list the key, in all heads that read its K/V head. Keys stand in the lanes, for a tile holds those of a query side by side. Queries that no
 * key of a chunk is listed by are not read.
 */
#include "tile/parallel.h"
#include "staged/outputs.h"

static int64_t side_of(const struct kernel_args *args) {
    return CPU_OUTPUTS_SIDE * args->problem->d_v;
}

size_t CPU_NAME(spmm_transposed_workspace)(const struct kernel_args *args) {
    return cpu_stage_workspace(args, args->work.transposed, args->problem->d_v, side_of(args));
}

/* A block column of one query head, as a block row of the transposed lists. */
static struct cpu_block_row block_row_of(const struct kernel_args *args, int64_t bh,
                                         int64_t column) {
    const struct bcsr *m = args->work.transposed;
    const int64_t list = args->work.list_of[bh];
    return (struct cpu_block_row){
        .m = m,
        .b = bh / args->problem->heads_q,
        .h = bh % args->problem->heads_q,
        .list = list,
        .number = column,
        .first = column * m->block_q,
        .rows = bcsr_row_height(m, column),
        .width = (bcsr_row_end(m, list, column) - bcsr_row_begin(m, list, column)) * m->block_kv,
        .scores = stage_of(args)->scores + args->work.scores_offset[bh],
    };
}

/* The first row of the tile at `entry` of the transposed lists, as the scores hold it, and how far its
 * rows are apart (tessera.h, section 4). */
static const float *tile_place(const struct kernel_args *args, const struct cpu_block_row *s,
                               int64_t entry, int64_t *stride) {
    const struct bcsr *m = args->work.bcsr;
    const int64_t row = args->work.transposed->col_idx[entry];
    const int64_t r0 = bcsr_row_begin(m, s->list, row), r1 = bcsr_row_end(m, s->list, row);
    const int64_t before = (r0 - bcsr_row_begin(m, s->list, 0)) * m->block_q;
    *stride = (r1 - r0) * m->block_kv;
    return s->scores + (before + args->work.entries[entry] - r0) * m->block_kv;
}

/* from[j] = the weights of the superblock's query j, of the chunk's keys. */
static void weights_find(const struct kernel_args *args, const struct cpu_chunk *c,
                         const struct cpu_block_row_keys *keys, const float **from) {
    const struct cpu_block_row *s = c->block;
    const int64_t block = s->m->block_kv, first = bcsr_row_begin(s->m, s->list, s->number);
    const float *tile = NULL;
    int64_t begin = 0, end = 0, stride = 0; /* columns of the block row that the tile takes */
    for (int32_t j = 0; j < keys->keys.n; j++) {
        if (keys->at[j] >= end) {
            begin = keys->at[j] / block * block;
            end = begin + block;
            tile = tile_place(args, s, first + begin / block, &stride);
        }
        from[j] = tile + (keys->at[j] - begin) * stride + c->row;
    }
}

/* The weights of a group's `rows` keys into the lanes; 0 in lanes without a key. */
static void weights_load(const float *const *from, int32_t n, int64_t lane, int64_t rows,
                         float *pt) {
    const int64_t width = cpu_lanes(rows);
    for (int32_t j = 0; j < n; j++, pt += width) {
        int64_t r = 0;
        for (; r + CPU_LANES <= rows; r += CPU_LANES)
            v_store(pt + r, v_load_any(from[j] + lane + r));
        if (r < rows) {
            vf tail = {0};
            memcpy(&tail, from[j] + lane + r, (size_t)(rows - r) * sizeof *pt);
            v_store(pt + r, tail);
        }
    }
}

/* Adds what one head's queries give to the chunk's keys. */
static void chunk_add(const struct kernel_args *args, struct cpu_chunk *c, const struct cpu_head *v,
                      const struct cpu_stage_scratch *s, struct cpu_outputs *out) {
    const float *v_row[CPU_ROWS], *from[CPU_KEYS_SHORT];
    struct cpu_block_row_keys keys;
    while (cpu_chunk_next(c, &keys)) {
        const int32_t n = keys.keys.n;
        cpu_gather(v_row, v, keys.keys.key, n, out->d, s->rows);
        weights_find(args, c, &keys, from);
        for (int64_t lane = 0; lane < c->rows; lane += CPU_GROUP) {
            int64_t rows = c->rows - lane < CPU_GROUP ? c->rows - lane : CPU_GROUP;
            weights_load(from, n, lane, rows, s->st);
            cpu_outputs_add(out, lane, cpu_lanes(rows), s->st, v_row, n);
        }
        cpu_outputs_step(out);
    }
}

/* An item is a block column of a key/value head; heads that read it are summed in their order. */
static void item_run(const void *context, int64_t number, int32_t thread) {
    const struct cpu_stage *stage = context;
    const struct kernel_args *args = stage->args;
    const struct problem *p = args->problem;
    const struct stage_operands *given = stage_of(args);
    const struct work_item *item = &args->work.schedule->items[number];
    const int64_t b = item->batch_head / p->heads_kv, h_kv = item->batch_head % p->heads_kv;
    const int64_t group = p->heads_q / p->heads_kv, rows = bcsr_row_height(stage->m, item->tile);
    struct cpu_stage_scratch s = cpu_stage_thread(stage, thread);
    struct cpu_head o = cpu_head(&given->o, given->o.type, b, h_kv);
    for (int64_t row = 0; row < rows; row += CPU_TILE_ROWS) {
        const int64_t some = rows - row < CPU_TILE_ROWS ? rows - row : CPU_TILE_ROWS;
        struct cpu_outputs out = cpu_outputs_begin(&s, some, p->d_v);
        for (int64_t h = h_kv * group; h < (h_kv + 1) * group; h++) {
            const struct cpu_block_row block_row =
                block_row_of(args, b * p->heads_q + h, item->tile);
            const struct cpu_head v = cpu_head(&given->v, p->type, b, h);
            struct cpu_chunk chunk = cpu_chunk(&block_row, row);
            chunk_add(args, &chunk, &v, &s, &out);
        }
        cpu_outputs_end(&out, &o, item->tile * stage->m->block_q + row);
    }
}

tess_status CPU_NAME(spmm_transposed)(const struct kernel_args *args, tess_error *error) {
    (void)error;
    struct carve c = {.base = args->workspace};
    struct cpu_stage stage =
        cpu_stage(&c, args, args->work.transposed, args->problem->d_v, side_of(args));
    cpu_for_each(args, args->work.schedule->n_items, item_run, &stage);
    return TESS_OK;
}
