/* Stage 1 on the CPU: scores = scale * q k^T on the listed tiles, softcap and ALiBi applied, -Inf on
 * what a tile masks. Keys that no row of a chunk lists are not read. */
#include "tile/modify.h"
#include "tile/parallel.h"
#include "staged/block_row.h"

size_t CPU_NAME(sddmm_workspace)(const struct kernel_args *args) {
    return cpu_stage_workspace(args, args->work.bcsr, args->problem->d_qk, 1);
}

/* The scores of one group of lanes, rows row ... row + rows - 1 of the chunk, to the scores. */
static void scores_store(const struct cpu_chunk *c, const struct cpu_block_row_keys *s, int64_t row,
                         int64_t rows, const float *st) {
    const int64_t width = cpu_lanes(rows), stride = c->block->width;
    float *scores = c->block->scores + (c->row + row) * stride;
    const int gaps = s->keys.masked || s->keys.n < s->to - s->from;
    int64_t r = 0;
    for (; !gaps && r + CPU_LANES <= rows; r += CPU_LANES)
        cpu_from_column(scores + r * stride + s->from, stride, st + r, width, s->keys.n);
    for (; r < rows; r++) {
        float *out = scores + r * stride;
        for (int64_t i = s->from; gaps && i < s->to; i++)
            out[i] = -INFINITY;
        for (int32_t j = 0; j < s->keys.n; j++)
            if (s->keys.mask[j] >> (row + r) & 1)
                out[s->at[j]] = st[j * width + r];
    }
}

static void chunk_run(const struct kernel_args *args, struct cpu_chunk *c, const struct cpu_head *q,
                      const struct cpu_head *k, const struct cpu_stage_scratch *s) {
    const int64_t d = args->problem->d_qk;
    const float *k_row[CPU_ROWS];
    vf ignored[CPU_VECTORS];
    for (int v = 0; v < CPU_VECTORS; v++)
        ignored[v] = (vf){0};
    struct cpu_block_row_keys keys;
    struct modify modify;
    const int modified = modify_begin(&modify, args, MODIFY_SCORES, c->block->b, c->block->h, 1,
                                      c->block->first + c->row, c->rows, 1);
    int shifted = cpu_load_queries(s->panel, s->side, q, c->block->first + c->row, c->rows, d,
                                   args->problem->scale, s->row);
    while (cpu_chunk_next(c, &keys)) {
        cpu_gather(k_row, k, keys.keys.key, keys.keys.n, d, s->rows);
        if (modified)
            modify_keys(&modify, keys.keys.key, keys.keys.n);
        for (int64_t lane = 0; lane < c->rows; lane += CPU_GROUP) {
            int64_t rows = c->rows - lane < CPU_GROUP ? c->rows - lane : CPU_GROUP;
            const int vectors = (int)(cpu_lanes(rows) / CPU_LANES);
            if (keys.keys.n)
                cpu_scores(s->panel + lane * d, vectors, k_row, keys.keys.n, d, s->st, ignored);
            if (shifted)
                cpu_multiply(s->st, vectors, keys.keys.n, s->side + lane);
            if (modified)
                modify_scores(&modify, s->st, lane, vectors, keys.keys.n, NULL);
            scores_store(c, &keys, lane, rows, s->st);
        }
    }
}

static void item_run(const void *context, int64_t number, int32_t thread) {
    const struct cpu_stage *stage = context;
    const struct kernel_args *args = stage->args;
    const struct problem *p = args->problem;
    struct cpu_stage_scratch s = cpu_stage_thread(stage, thread);
    struct cpu_block_row block_row = cpu_block_row(args, &args->work.schedule->items[number]);
    struct cpu_head q = cpu_head(&stage_of(args)->q, p->type, block_row.b, block_row.h);
    struct cpu_head k = cpu_head(&stage_of(args)->k, p->type, block_row.b,
                                 block_row.h / (p->heads_q / p->heads_kv));
    for (int64_t row = 0; row < block_row.rows; row += CPU_TILE_ROWS) {
        struct cpu_chunk chunk = cpu_chunk(&block_row, row);
        chunk_run(args, &chunk, &q, &k, &s);
    }
}

tess_status CPU_NAME(sddmm)(const struct kernel_args *args, tess_error *error) {
    (void)error;
    struct carve c = {.base = args->workspace};
    struct cpu_stage stage = cpu_stage(&c, args, args->work.bcsr, args->problem->d_qk, 1);
    cpu_for_each(args, args->work.schedule->n_items, item_run, &stage);
    return TESS_OK;
}
