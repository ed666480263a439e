/* Stage 3 on the CPU: o = values v. Keys that no row of a chunk lists are not read. */
#include "parallel.h"
#include "strip.h"

size_t CPU_NAME(spmm_workspace)(const struct kernel_args *args) {
    return cpu_stage_workspace(args, args->problem->d_v, args->problem->d_v);
}

/* The weights of rows row ... row + rows - 1 of the chunk into the lanes; 0 in lanes without a row.
 * Answers, from bit `row` on, which of the rows have a weight that is not 0. */
static uint64_t weights_load(const struct cpu_chunk *c, const struct cpu_strip_keys *s, int64_t row,
                             int64_t rows, float *pt) {
    uint64_t weighty = 0;
    memset(pt, 0, (size_t)s->keys.n * CPU_GROUP * sizeof *pt);
    for (int64_t r = 0; r < rows; r++) {
        const float *values = c->strip->values + (c->row + row + r) * c->strip->width;
        int any = 0;
        for (int32_t j = 0; j < s->keys.n; j++) {
            pt[(int64_t)j * CPU_GROUP + r] = values[s->at[j]];
            any |= values[s->at[j]] != 0;
        }
        weighty |= (uint64_t)any << (row + r);
    }
    return weighty;
}

/* Rows without a weight are empty: 0, whatever the values that others of the chunk list. */
static void empty_rows_clear(float *ot, int64_t rows, int64_t d, uint64_t weighty) {
    for (int64_t r = 0; r < rows; r++)
        if (!(weighty >> r & 1))
            for (int64_t i = 0; i < d; i++)
                ot[(r / CPU_GROUP * d + i) * CPU_GROUP + r % CPU_GROUP] = 0;
}

static void chunk_run(const struct kernel_args *args, struct cpu_chunk *c, const struct cpu_head *v,
                      const struct cpu_head *o, const struct cpu_stage_scratch *s) {
    const int64_t d = args->problem->d_v;
    const float *v_row[CPU_KEYS];
    struct cpu_strip_keys keys;
    const int64_t panel = cpu_lanes(c->rows) * d;
    uint64_t weighty = 0;
    vf one[CPU_VECTORS];
    for (int i = 0; i < CPU_VECTORS; i++)
        one[i] = v_set(1.0f);
    memset(s->panel, 0, (size_t)panel * sizeof *s->panel);
    memset(s->side, 0, (size_t)panel * sizeof *s->side);
    while (cpu_chunk_next(c, &keys)) {
        cpu_gather(v_row, v, keys.keys.key, keys.keys.n, d, s->rows);
        for (int64_t lane = 0; lane < c->rows; lane += CPU_GROUP) {
            int64_t rows = c->rows - lane < CPU_GROUP ? c->rows - lane : CPU_GROUP;
            weighty |= weights_load(c, &keys, lane, rows, s->st);
            cpu_values(s->st, v_row, keys.keys.n, d, one, s->panel + lane * d, s->side + lane * d);
        }
    }
    cpu_values_fold(s->panel, s->side, panel);
    empty_rows_clear(s->panel, c->rows, d, weighty);
    cpu_store_outputs(o, c->strip->first + c->row, c->rows, d, s->panel, s->row);
}

static void item_run(const void *context, int64_t number, int32_t thread) {
    const struct cpu_stage *stage = context;
    const struct kernel_args *args = stage->args;
    const struct problem *p = args->problem;
    struct cpu_stage_scratch s = cpu_stage_thread(stage, thread);
    struct cpu_strip strip = cpu_strip(args, &args->schedule->items[number]);
    struct cpu_head v = cpu_head(&args->v, p->type, strip.b, strip.h / (p->heads_q / p->heads_kv));
    struct cpu_head o = cpu_head(&args->o, p->type, strip.b, strip.h);
    for (int64_t row = 0; row < strip.rows; row += CPU_TILE_ROWS) {
        struct cpu_chunk chunk = cpu_chunk(&strip, row);
        chunk_run(args, &chunk, &v, &o, &s);
    }
}

tess_status CPU_NAME(spmm)(const struct kernel_args *args, tess_error *error) {
    (void)error;
    struct carve c = {.base = args->workspace};
    struct cpu_stage stage = cpu_stage(&c, args, args->problem->d_v, args->problem->d_v);
    cpu_for_each(args->problem->threads, args->schedule->n_items, item_run, &stage);
    return TESS_OK;
}
