/* A query tile of the backward under way: its thread's scratch, slots for parts of split tiles, and its
 * rows. */
#ifndef TESSERA_CPU_QUERY_TILE_H
#define TESSERA_CPU_QUERY_TILE_H

#include "backward/listed.h"
#if defined(__AVX512BF16__)
#include "backward/paired.h"
#endif
#include "forward/group.h"
#include "tile/parallel.h"
#include "tile/walk.h"

/* One thread's scratch. */
struct query_scratch {
    struct sums d_q;
    float *qt, *dot;                     /* panels of queries, scaled, and of dO */
    float *factor, *base, *left, *delta; /* facts of each lane */
    float *st, *dp, *slope; /* a group's scores, dP and then dS; softcap's derivative */
    float *k, *v;           /* rows converted to f32 */
    struct few few;
#if defined(__AVX512BF16__)
    struct paired paired;
#endif
    float *row; /* CPU_LANES rows of max(d_qk, d_v) floats */
};

struct query_job {
    const struct kernel_args *args;
    char *slots, *scratch;
    size_t slot_size, scratch_size;
    double *d_alibi; /* [items][heads of a tile] */
#if defined(__AVX512BF16__)
    struct paired_stores stores;
#endif
};

/* Rows of a tile, of all its heads. */
static size_t tile_lanes(const struct kernel_args *args) {
    return (size_t)cpu_lanes(args->work.tile_heads * args->work.lists->tile_rows);
}

static void scratch_take(struct carve *c, const struct kernel_args *args, struct query_scratch *s) {
    const struct problem *p = args->problem;
    const size_t lanes = tile_lanes(args), d_qk = (size_t)p->d_qk, d_v = (size_t)p->d_v;
    const size_t scores = CPU_ST_KEYS * CPU_GROUP;
    sums_take(c, lanes, p->gradients & TESS_GRADIENT_Q ? p->d_qk : 0, &s->d_q);
    s->qt = carve_take_panel(c, lanes, d_qk, sizeof *s->qt);
    s->dot = carve_take_panel(c, lanes, d_v, sizeof *s->dot);
    s->base = carve_take(c, lanes, sizeof *s->base);
    s->left = carve_take(c, lanes, sizeof *s->left);
    s->delta = carve_take(c, lanes, sizeof *s->delta);
    s->st = carve_take(c, scores, sizeof *s->st);
    s->dp = carve_take(c, scores, sizeof *s->dp);
    s->slope = carve_take(c, p->modifiers.softcap != 0 ? scores : 0, sizeof *s->slope);
    few_take(c, p, &s->few);
    const int32_t some = cpu_gradients_listed_fit(p) ? listed_keys(p) : 0;
    const int32_t keys = some > CPU_KEYS_SHORT ? some : CPU_KEYS_SHORT;
    s->k = carve_take(c, cpu_gather_size(p->type, keys, p->d_qk), sizeof *s->k);
    s->v = carve_take(c, cpu_gather_size(p->type, keys, p->d_v), sizeof *s->v);
    s->row = carve_take_panel(c, CPU_LANES, d_qk > d_v ? d_qk : d_v, sizeof *s->row);
#if defined(__AVX512BF16__)
    const int64_t d[] = {p->d_qk, p->d_v};
    const int summed[] = {s->d_q.d != 0, 0};
    paired_take(c, lanes, d, summed, &s->paired);
#endif
    s->factor = carve_take(c, lanes, sizeof *s->factor); /* last: every tile fills it */
}

static void job_take(struct carve *c, const struct kernel_args *args, struct query_job *job) {
    struct carve one = {0};
    struct query_scratch scratch;
    job->args = args;
    scratch_take(&one, args, &scratch);
    c->overflow |= one.overflow;
    job->slot_size = tile_lanes(args) * (size_t)scratch.d_q.d * sizeof(float);
    job->scratch_size = one.used;
    job->slots = carve_take(c, (size_t)args->work.schedule->n_slots, job->slot_size);
    job->scratch = carve_take(c, (size_t)args->problem->threads, one.used);
    job->d_alibi = carve_take_panel(
        c, args->problem->modifiers.alibi ? (size_t)args->work.schedule->n_items : 0,
        (size_t)args->work.tile_heads, sizeof *job->d_alibi);
#if defined(__AVX512BF16__)
    const struct problem *p = args->problem;
    const int summed[] = {scratch.d_q.d != 0, 0};
    job->stores = (struct paired_stores){args, .d = {p->d_qk, p->d_v}};
    if (args->operands) /* sizes are asked without */
        job->stores.y[0] = &attention_of(args)->k, job->stores.y[1] = &attention_of(args)->v;
    paired_stores_take(c, p->heads_kv, p->n_kv, summed, &job->stores);
#endif
}

static float *slot_of(const struct query_job *job, int64_t slot) {
    return (float *)(void *)(job->slots + (size_t)slot * job->slot_size);
}

/* A tile under way. */
struct query_item {
    const struct kernel_args *args;
    struct query_scratch s;
    int64_t b, h, heads;   /* rows of heads h ... h + heads - 1, see cpu_row */
    int64_t first, rows;   /* the first query; rows of all heads together */
    int64_t list;          /* number T, see lists.h */
    struct modify *modify; /* NULL where the problem modifies nothing */
    double *d_alibi;       /* sums of each head; NULL: not wanted */
    int listed;            /* only listed pairs are computed: sums and operands stand in rows */
    int shifted;           /* some factor is not 1 */
};

static struct query_item item_of(const struct query_job *job, int64_t batch_head, int64_t tile,
                                 int32_t thread) {
    const struct kernel_args *args = job->args;
    const struct problem *p = args->problem;
    const struct kernel_work *work = &args->work;
    const int64_t head = batch_head * work->tile_heads, *row = &work->lists->tile_row[tile];
    struct carve c = {.base = job->scratch + (size_t)thread * job->scratch_size};
    struct query_item item = {.args = args,
                              .b = head / p->heads_q,
                              .h = head % p->heads_q,
                              .heads = work->tile_heads,
                              .first = row[0],
                              .rows = (row[1] - row[0]) * work->tile_heads};
    scratch_take(&c, args, &item.s);
    item.list = work->list_of[head] * work->lists->tiles + tile;
    item.listed = cpu_gradients_listed_fit(p) &&
                  listed_pays(p, work->lists, item.list, row[1] - row[0], work->tile_heads);
    return item;
}

/* Queries and dO in f32. */
static void item_load(struct query_item *item) {
    const struct kernel_args *args = item->args;
    const struct problem *p = args->problem;
    const struct query_scratch *s = &item->s;
    const struct cpu_head q =
        cpu_heads(&attention_of(args)->q, p->type, item->b, item->h, item->heads);
    const struct cpu_head d_o =
        cpu_heads(&gradient_of(args)->d_o, p->type, item->b, item->h, item->heads);
    if (item->listed) {
        cpu_load_query_rows(s->qt, s->factor, &q, item->first, item->rows, p->d_qk,
                            p->scale * LOG2_E);
        few_load(s->dot, &d_o, item->first, item->rows, p->d_v);
    } else {
        item->shifted = cpu_load_queries(s->qt, s->factor, &q, item->first, item->rows, p->d_qk,
                                         p->scale * LOG2_E, s->row);
        cpu_load_columns(s->dot, &d_o, item->first, item->rows, p->d_v, s->row);
    }
}

/* Lanes without a query are as those of empty ones. */
static void item_load_stats(const struct query_item *item) {
    const struct kernel_args *args = item->args;
    const struct query_stats *stats = &gradient_of(args)->stats;
    const struct query_scratch *s = &item->s;
    const float kept = gradient_kept(args->problem);
    for (int64_t r = 0; r < cpu_lanes(item->rows); r++) {
        s->base[r] = INFINITY;
        s->left[r] = s->delta[r] = 0;
        if (r >= item->rows)
            continue;
        const int64_t at = stats_at(args->problem, item->b, item->h + r % item->heads,
                                    item->first + r / item->heads);
        s->base[r] = stats->base[at];
        s->left[r] = stats->left[at] * kept;
        s->delta[r] = stats->delta[at];
    }
}

#endif
