/*
 * The backward of stage 2 on the CPU: one sweep over the scores and over dP = dO v^T, which is laid out
 * as they are. With a query's lse, w and delta (struct query_stats), z of dropout and s' of a score s
 * by softcap and ALiBi,
 *
 *     P = exp(s' - lse)            scores become w z P, the weights that dV is summed with
 *     dS' = P (w z dP - delta)     dP becomes scale (1 - tanh(s / softcap)^2) dS'
 *
 * Scores come without modifiers: a capped one does not tell 1 - tanh^2 where tanh is near 1. Masked
 * elements hold -Inf, and both are selected to be 0. Slopes of ALiBi get the sum of dS' times distance:
 * in double, row by row, then over block rows in their order.
 */
#include "backward/gradient.h"
#include "tile/parallel.h"
#include "staged/block_row.h"

/* Elements whose distances are summed in f32 before the sum goes on in double. */
#define SUM_CHUNK (CPU_CHUNK * CPU_LANES)

/* Facts that the elements of a row have in common. */
struct row {
    float base, left, delta; /* struct query_stats; left is also what dropout leaves of a weight */
    float slope, back;       /* ALiBi's slope; queries from the chunk's first to this one */
    float in, out, scale;    /* softcap: out * tanh(in * s); in is 0 where there is none */
};

/* Facts that the elements of a column have in common, for CPU_KEYS_SHORT of them. */
struct columns {
    _Alignas(64) float distance[CPU_KEYS_SHORT]; /* ALiBi: from the chunk's first query */
    /* By bits, of rows 0 ... 31 of a chunk and of the others: those that list a key, and keep it. */
    _Alignas(64) uint32_t listed[2][CPU_KEYS_SHORT];
    _Alignas(64) uint32_t keep[2][CPU_KEYS_SHORT];
};

struct softmax_job {
    const struct kernel_args *args;
    double *slopes; /* [batch * heads_q][block rows]; NULL: not wanted */
};

static struct softmax_job job_take(struct carve *c, const struct kernel_args *args) {
    const struct problem *p = args->problem;
    struct softmax_job job = {.args = args};
    if (p->gradients & TESS_GRADIENT_ALIBI)
        job.slopes = carve_take_panel(c, (size_t)(p->batch * p->heads_q),
                                      (size_t)args->work.bcsr->rows, sizeof *job.slopes);
    return job;
}

size_t CPU_NAME(softmax_backward_workspace)(const struct kernel_args *args) {
    struct carve c = {0};
    job_take(&c, args);
    return c.overflow ? SIZE_MAX : c.used;
}

/* The next n <= CPU_LANES elements, filled up; and back. */
V_INLINE vf some_load(const float *x, int64_t n, float fill) {
    vf out = v_set(fill);
    if (n == CPU_LANES)
        return v_load_any(x);
    memcpy(&out, x, (size_t)n * sizeof *x);
    return out;
}
V_INLINE void some_store(float *x, vf a, int64_t n) {
    if (n == CPU_LANES)
        v_store_any(x, a);
    else
        memcpy(x, &a, (size_t)n * sizeof *x);
}

/* Facts of a vector of elements beside what they hold. */
struct elements {
    vf away; /* distance from the row's own query */
    vi masked, kept;
};

static inline struct elements elements_of(const struct columns *c, const struct row *r, int64_t i,
                                          int64_t number) {
    const uint32_t bit = UINT32_C(1) << number % 32;
    const vu listed = *(const vu *)(c->listed[number / 32] + i);
    const vu keep = *(const vu *)(c->keep[number / 32] + i);
    return (struct elements){v_load(c->distance + i) - r->back, (vi)((listed & bit) == 0),
                             (vi)((keep & bit) != 0)};
}

/* A vector of scores, and of dP. Answers their shares of the slope's gradient. */
V_INLINE vf elements_run(const struct row *r, const struct elements *e, vf *score, vf *gradient) {
    const vf none = {0};
    vf s = *score, steep = v_set(1.0f);
    if (r->in > 0) {
        steep = gradient_slope(r->in * s);
        s = r->out * v_tanh(r->in * s);
    }
    s = v_fma(v_set(r->slope), e->away, s);
    const vf p = gradient_weight(s, v_set((float)LOG2_E), v_set(r->base));
    const vf left = v_select(e->kept, v_set(r->left), none);
    const vf biased = v_select(e->masked, none, p * (left * *gradient - r->delta));
    *score = v_select(e->masked, none, left * p);
    *gradient = v_select(e->masked, none, biased * steep * r->scale);
    return biased * e->away;
}

/* The n elements of a row at x and g. g NULL: gradients of scores are not wanted. c NULL: no modifier
 * differs from column to column; else c has n columns or more. Answers the row's share of the slope's
 * gradient. */
static double row_run(const struct row *r, float *x, float *g, int64_t n, const struct columns *c,
                      int64_t number) {
    double sum = 0;
    for (int64_t begin = 0; begin < n; begin += SUM_CHUNK) {
        const int64_t end = n - begin < SUM_CHUNK ? n : begin + SUM_CHUNK;
        vf part = {0};
        for (int64_t i = begin; i < end; i += CPU_LANES) {
            const int64_t some = min_i64(end - i, CPU_LANES);
            vf score = some_load(x + i, some, -INFINITY);
            vf gradient = g ? some_load(g + i, some, 0) : (vf){0};
            struct elements e = {{0}, (vi)(score == v_set(-INFINITY)), ~(vi){0}};
            if (c)
                e = elements_of(c, r, i, number);
            part += elements_run(r, &e, &score, &gradient);
            some_store(x + i, score, some);
            if (g)
                some_store(g + i, gradient, some);
        }
        for (int lane = 0; c && lane < CPU_LANES; lane++)
            sum += (double)part[lane];
    }
    return sum;
}

/* The row of query number `query` over all heads. Answers 0 where the query is empty: then all of it
 * is masked. */
static int row_begin(struct row *row, const struct kernel_args *args, int64_t query) {
    const struct problem *p = args->problem;
    const struct query_stats *stats = &stage_of(args)->stats;
    const double kept = 65536.0 / (65536 - p->modifiers.dropped);
    *row = (struct row){.base = stats->base[query],
                        .left = (float)((double)stats->left[query] * kept),
                        .delta = stats->delta[query],
                        .in = p->modifiers.softcap != 0 ? (float)(1 / p->modifiers.softcap) : 0,
                        .out = (float)p->modifiers.softcap,
                        .scale = (float)p->scale};
    return row->base != INFINITY;
}

/* key[x] = the key in column from + x of the block row; the last key in columns past the keys. */
static void columns_keys(const struct cpu_block_row *s, int64_t from, int32_t n, int32_t *key) {
    const struct bcsr *m = s->m;
    const int32_t *col = m->col_idx + bcsr_row_begin(m, s->list, s->number);
    int64_t tile = from / m->block_kv, c = from % m->block_kv;
    for (int32_t x = 0; x < n; x++) {
        key[x] = (int32_t)min_i64(col[tile] * m->block_kv + c, m->n_kv - 1);
        c = c + 1 == m->block_kv ? 0 : c + 1;
        tile += c == 0;
    }
}

/* mask[x] = the chunk's rows that list the key in column from + x. */
static void columns_masks(struct cpu_chunk *c, int64_t from, int32_t n, uint64_t *mask) {
    const struct bcsr *m = c->block->m;
    const int64_t entry = bcsr_row_begin(m, c->block->list, c->block->number);
    for (int64_t x = 0, some; x < n; x += some) {
        const int64_t column = (from + x) % m->block_kv;
        some = min_i64(min_i64(m->block_kv - column, n - x), 64);
        tile_at(m, entry + (from + x) / m->block_kv, &c->tile);
        cpu_chunk_masks(c, column, (int)some, mask + x);
        const int64_t keys = m->n_kv - (c->tile.col * m->block_kv + column);
        for (int64_t past = max_i64(keys, 0); past < some; past++)
            mask[x + past] = 0;
    }
}

static void words_of(uint32_t words[2][CPU_KEYS_SHORT], int32_t x, uint64_t mask) {
    words[0][x] = (uint32_t)mask;
    words[1][x] = (uint32_t)(mask >> 32);
}

/* Finds what the chunk's rows have of the n columns from `from` on. */
static void columns_find(struct columns *columns, struct modify *m, struct cpu_chunk *c,
                         int64_t from, int32_t n) {
    int32_t key[CPU_KEYS_SHORT];
    uint64_t mask[CPU_KEYS_SHORT];
    columns_keys(c->block, from, n, key);
    columns_masks(c, from, n, mask);
    modify_keys(m, key, n);
    memset(columns, 0, sizeof *columns);
    for (int32_t x = 0; x < n; x++) {
        columns->distance[x] = m->biased ? m->distance[x] : 0;
        words_of(columns->listed, x, mask[x]);
        words_of(columns->keep, x, m->drops ? m->keep[x] : UINT64_MAX);
    }
}

/* A block row of scores that are modified, or weights: chunk by chunk and superblock by superblock.
 * Answers its share of the slope's gradient. */
static double block_row_run_modified(const struct kernel_args *args, const struct cpu_block_row *s,
                                     float *gradients, int64_t query) {
    struct modify m;
    struct columns columns;
    struct row row;
    double sum = 0;
    for (int64_t first = 0; first < s->rows; first += CPU_TILE_ROWS) {
        struct cpu_chunk chunk = cpu_chunk(s, first);
        modify_begin(&m, args, MODIFY_SCORES | MODIFY_WEIGHTS, s->b, s->h, 1, s->first + first,
                     chunk.rows, 1);
        for (int64_t from = 0; from < s->width; from += CPU_KEYS_SHORT) {
            const int64_t n = min_i64(s->width - from, CPU_KEYS_SHORT);
            columns_find(&columns, &m, &chunk, from, (int32_t)n);
            for (int64_t r = 0; r < chunk.rows; r++) {
                const int64_t at = (first + r) * s->width + from;
                if (row_begin(&row, args, query + first + r)) {
                    row.slope = m.slope[r];
                    row.back = m.back[r];
                    sum += row_run(&row, s->scores + at, gradients ? gradients + at : NULL, n,
                                   &columns, r);
                }
            }
        }
    }
    return sum;
}

static void item_run(const void *context, int64_t number, int32_t thread) {
    const struct softmax_job *job = context;
    const struct kernel_args *args = job->args;
    const struct modifiers *m = &args->problem->modifiers;
    const int modified = m->softcap != 0 || m->alibi || m->dropped;
    const struct cpu_block_row s = cpu_block_row(args, &args->work.schedule->items[number]);
    const int64_t bh = s.b * args->problem->heads_q + s.h;
    const int64_t query = bh * args->problem->n_q + s.first;
    const struct stage_operands *given = stage_of(args);
    float *gradients = given->gradients ? given->gradients + (s.scores - given->scores) : NULL;
    struct row row;
    (void)thread;
    for (int64_t r = 0; r < s.rows; r++) {
        float *x = s.scores + r * s.width, *g = gradients ? gradients + r * s.width : NULL;
        if (!row_begin(&row, args, query + r)) {
            memset(x, 0, (size_t)s.width * sizeof *x);
            if (g)
                memset(g, 0, (size_t)s.width * sizeof *g);
        } else if (!modified) {
            row_run(&row, x, g, s.width, NULL, 0);
        }
    }
    if (modified) {
        const double sum = block_row_run_modified(args, &s, gradients, query);
        if (job->slopes)
            job->slopes[bh * s.m->rows + s.number] = sum;
    }
}

/* The gradient of one head's slope. */
static void slope_run(const void *context, int64_t h, int32_t thread) {
    const struct softmax_job *job = context;
    const struct problem *p = job->args->problem;
    const int64_t rows = job->args->work.bcsr->rows;
    double sum = 0;
    (void)thread;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t i = 0; i < rows; i++)
            sum += job->slopes[(b * p->heads_q + h) * rows + i];
    stage_of(job->args)->d_alibi[h] = (float)sum;
}

tess_status CPU_NAME(softmax_backward)(const struct kernel_args *args, tess_error *error) {
    (void)error;
    struct carve c = {.base = args->workspace};
    struct softmax_job job = job_take(&c, args);
    cpu_for_each(args, args->work.schedule->n_items, item_run, &job);
    if (job.slopes && stage_of(args)->d_alibi)
        cpu_for_each(args, args->problem->heads_q, slope_run, &job);
    return TESS_OK;
}
