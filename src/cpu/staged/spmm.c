/* Stage 3 on the CPU: o = scores v. Keys that no row of a chunk lists are not read. */
#include "tile/parallel.h"
#include "staged/outputs.h"

static int64_t side_of(const struct kernel_args *args) {
    return CPU_OUTPUTS_SIDE * args->problem->d_v;
}

size_t CPU_NAME(spmm_workspace)(const struct kernel_args *args) {
    return cpu_stage_workspace(args, args->work.bcsr, args->problem->d_v, side_of(args));
}

/* The weights of rows row ... row + rows - 1 of the chunk into the lanes; 0 in lanes without a row. */
static void weights_load(const struct cpu_chunk *c, const struct cpu_block_row_keys *s, int64_t row,
                         int64_t rows, float *pt) {
    const int64_t width = cpu_lanes(rows), stride = c->block->width;
    const float *scores = c->block->scores + (c->row + row) * stride;
    const int gaps = s->keys.n < s->to - s->from;
    int64_t r = 0;
    for (; !gaps && r + CPU_LANES <= rows; r += CPU_LANES)
        cpu_to_column(pt + r, width, scores + r * stride + s->from, stride, s->keys.n);
    for (; r < width; r++)
        for (int32_t j = 0; j < s->keys.n; j++)
            pt[j * width + r] = r < rows ? scores[r * stride + s->at[j]] : 0;
}

static void chunk_run(const struct kernel_args *args, struct cpu_chunk *c, const struct cpu_head *v,
                      const struct cpu_head *o, const struct cpu_stage_scratch *s) {
    const int64_t d = args->problem->d_v;
    const float *v_row[CPU_ROWS];
    struct cpu_block_row_keys keys;
    struct cpu_outputs out = cpu_outputs_begin(s, c->rows, d);
    while (cpu_chunk_next(c, &keys)) {
        cpu_gather(v_row, v, keys.keys.key, keys.keys.n, d, s->rows);
        for (int64_t lane = 0; lane < c->rows; lane += CPU_GROUP) {
            int64_t rows = c->rows - lane < CPU_GROUP ? c->rows - lane : CPU_GROUP;
            weights_load(c, &keys, lane, rows, s->st);
            cpu_outputs_add(&out, lane, cpu_lanes(rows), s->st, v_row, keys.keys.n);
        }
        cpu_outputs_step(&out);
    }
    cpu_outputs_end(&out, o, c->block->first + c->row);
    if (stage_of(args)->o_rest.data) {
        const struct cpu_head rest =
            cpu_head(&stage_of(args)->o_rest, o->type, c->block->b, c->block->h);
        cpu_store_rest(&rest, o, c->block->first + c->row, c->rows, d, out.total, s->row);
    }
}

static void item_run(const void *context, int64_t number, int32_t thread) {
    const struct cpu_stage *stage = context;
    const struct kernel_args *args = stage->args;
    const struct problem *p = args->problem;
    struct cpu_stage_scratch s = cpu_stage_thread(stage, thread);
    struct cpu_block_row block_row = cpu_block_row(args, &args->work.schedule->items[number]);
    const struct stage_operands *given = stage_of(args);
    struct cpu_head v =
        cpu_head(&given->v, p->type, block_row.b, block_row.h / (p->heads_q / p->heads_kv));
    struct cpu_head o = cpu_head(&given->o, given->o.type, block_row.b, block_row.h);
    for (int64_t row = 0; row < block_row.rows; row += CPU_TILE_ROWS) {
        struct cpu_chunk chunk = cpu_chunk(&block_row, row);
        chunk_run(args, &chunk, &v, &o, &s);
    }
}

tess_status CPU_NAME(spmm)(const struct kernel_args *args, tess_error *error) {
    (void)error;
    struct carve c = {.base = args->workspace};
    struct cpu_stage stage =
        cpu_stage(&c, args, args->work.bcsr, args->problem->d_v, side_of(args));
    cpu_for_each(args, args->work.schedule->n_items, item_run, &stage);
    return TESS_OK;
}
