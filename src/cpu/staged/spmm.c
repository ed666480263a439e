/* Stage 3 on the CPU: o = scores v. Keys that no row of a chunk lists are not read. */
#include "tile/parallel.h"
#include "staged/strip.h"

size_t CPU_NAME(spmm_workspace)(const struct kernel_args *args) {
    return cpu_stage_workspace(args, args->problem->d_v, 2 * args->problem->d_v);
}

/* The weights of rows row ... row + rows - 1 of the chunk into the lanes; 0 in lanes without a row.
 * Answers, from bit `row` on, which of the rows have a weight that is not 0. */
static uint64_t weights_load(const struct cpu_chunk *c, const struct cpu_strip_keys *s, int64_t row,
                             int64_t rows, float *pt) {
    const int64_t width = cpu_lanes(rows), stride = c->strip->width;
    const float *scores = c->strip->scores + (c->row + row) * stride;
    const int gaps = s->keys.n < s->to - s->from;
    uint64_t weighty = 0;
    int64_t r = 0;
    for (; !gaps && r + CPU_LANES <= rows; r += CPU_LANES)
        cpu_to_column(pt + r, width, scores + r * stride + s->from, stride, s->keys.n);
    for (; r < width; r++)
        for (int32_t j = 0; j < s->keys.n; j++)
            pt[j * width + r] = r < rows ? scores[r * stride + s->at[j]] : 0;
    for (int64_t lane = 0; lane < width; lane += CPU_LANES) {
        vi any = {0};
        for (int32_t j = 0; j < s->keys.n; j++)
            any |= (vi)(v_load(pt + j * width + lane) != (vf){0});
        for (int i = 0; i < CPU_LANES; i++)
            weighty |= (uint64_t)(any[i] != 0) << (row + lane + i);
    }
    return weighty;
}

/* Rows without a weight are empty: 0, whatever the values that others of the chunk list. */
static void empty_rows_clear(float *ot, int64_t rows, int64_t d, uint64_t weighty) {
    for (int64_t r = 0; r < rows; r++) {
        int64_t width;
        float *column = cpu_column(ot, cpu_lanes(rows), r, d, &width);
        for (int64_t i = 0; i < d && !(weighty >> r & 1); i++)
            column[i * width] = 0;
    }
}

/* total + low += near, and near = 0. */
static void near_fold(float *restrict total, float *restrict low, float *restrict near, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float y = low[i] + near[i], sum = total[i] + y;
        low[i] = y - (sum - total[i]);
        total[i] = sum;
        near[i] = 0;
    }
}

static void chunk_run(const struct kernel_args *args, struct cpu_chunk *c, const struct cpu_head *v,
                      const struct cpu_head *o, const struct cpu_stage_scratch *s) {
    const int64_t d = args->problem->d_v;
    const float *v_row[CPU_ROWS];
    struct cpu_strip_keys keys;
    const int64_t panel = cpu_lanes(c->rows) * d;
    float *near = s->panel, *total = s->side, *low = s->side + panel;
    uint64_t weighty = 0;
    memset(near, 0, (size_t)panel * sizeof *near);
    memset(total, 0, 2 * (size_t)panel * sizeof *total);
    for (int64_t done = 1; cpu_chunk_next(c, &keys); done++) {
        cpu_gather(v_row, v, keys.keys.key, keys.keys.n, d, s->rows);
        for (int64_t lane = 0; lane < c->rows; lane += CPU_GROUP) {
            int64_t rows = c->rows - lane < CPU_GROUP ? c->rows - lane : CPU_GROUP;
            weighty |= weights_load(c, &keys, lane, rows, s->st);
            cpu_values(s->st, (int)(cpu_lanes(rows) / CPU_LANES), v_row, keys.keys.n, d, NULL,
                       near + lane * d);
        }
        if (done % (cpu_near(d) / CPU_KEYS_SHORT) == 0)
            near_fold(total, low, near, panel);
    }
    near_fold(total, low, near, panel);
    for (int64_t i = 0; i < panel; i++)
        total[i] += low[i];
    empty_rows_clear(total, c->rows, d, weighty);
    cpu_store_outputs(o, c->strip->first + c->row, c->rows, d, total, s->row);
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
    struct cpu_stage stage = cpu_stage(&c, args, args->problem->d_v, 2 * args->problem->d_v);
    cpu_for_each(args, args->schedule->n_items, item_run, &stage);
    return TESS_OK;
}
