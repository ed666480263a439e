/* A key tile of the backward under way: its thread's scratch, slots for parts of split tiles, and the
 * queries that it meets. */
#ifndef TESSERA_CPU_KEY_TILE_H
#define TESSERA_CPU_KEY_TILE_H

#include "backward/listed.h"
#if defined(__AVX512BF16__)
#include "backward/paired.h"
#endif
#include "tile/parallel.h"
#include "tile/walk.h"

/* Queries of a superblock, or those that a group of lanes meets. */
struct queries {
    int32_t n;
    int masked, shifted; /* some factor is not 1 */
    int32_t number[CPU_KEYS + CPU_KEYS_SLACK];
    const float *q[CPU_ROWS], *d_o[CPU_ROWS]; /* scaled, and as they are; f32 */
    float base[CPU_KEYS], left[CPU_KEYS], delta[CPU_KEYS];
    float factor[CPU_KEYS]; /* factors by which scores are still to be multiplied */
    float back[CPU_KEYS];   /* from the superblock's first query */
    uint64_t mask[CPU_KEYS], keep[CPU_KEYS]; /* keys of the tile that list it, that it keeps */
    int32_t place[CPU_KEYS];                 /* places of a group's queries in the superblock */
};

/* Some of them, side by side. */
struct part {
    int32_t n;
    float by; /* factor by which all scores are still to be multiplied */
    const float *base, *left, *delta, *back;
    const float *factor;         /* NULL: all 1 */
    const uint64_t *mask, *keep; /* mask NULL: all keys list them */
};

static inline struct part queries_part(const struct queries *queries, int32_t from, int32_t n) {
    return (struct part){.n = n,
                         .by = 1,
                         .base = queries->base + from,
                         .left = queries->left + from,
                         .delta = queries->delta + from,
                         .back = queries->back + from,
                         .factor = queries->shifted ? queries->factor + from : NULL,
                         .mask = queries->masked ? queries->mask + from : NULL,
                         .keep = queries->keep + from};
}

/* Facts of the queries of a superblock whose listed pairs alone are computed; and of
 * those of a set, in the order of its scores (tile/micro_dims.h). */
enum { BASE, LEFT, DELTA, FACTOR, KNOWN };
struct side {
    float *fact[KNOWN], *spread[KNOWN];
    int32_t *number; /* numbers of all queries */
    int32_t *list;   /* numbers of a set's queries */
    int shifted;     /* some factor is not 1 */
};

/* One thread's scratch. */
struct key_scratch {
    struct sums d_k, d_v;
    float *kt, *vt; /* panels of keys and values */
    float *st, *dp,
        *slope;     /* a group's scores and then weights, dP and then dS; softcap's derivative */
    float *q, *d_o; /* rows scaled, rows converted to f32 */
    float *k, *ds;  /* strips: K with dims in the lanes; dS of a superblock, of several groups */
    struct few few;
    struct side side;
    float *row; /* CPU_LANES rows of max(d_qk, d_v) floats */
    struct queries *queries, *met;
#if defined(__AVX512BF16__)
    struct paired paired;
#endif
};

/* Sums of dQ of all strips: a row is `stride` floats, and what rounding cut off of it stands `low` floats
 * behind; 0: it is let go. */
struct row_sums {
    float *at;
    char *met; /* marks of each STRIPS_QUERIES rows: whether anything was added */
    int64_t stride, low;
};

struct key_job {
    const struct kernel_args *args;
    char *slots, *scratch;
    size_t slot_size, scratch_size;
    struct row_sums sums;
#if defined(__AVX512BF16__)
    struct paired_stores stores;
#endif
};

static size_t tile_lanes(const struct kernel_args *args) {
    return (size_t)cpu_lanes(args->work.lists->tile_rows);
}

static void side_take(struct carve *c, size_t queries, struct side *s) {
    s->number = carve_take(c, queries, sizeof *s->number);
    s->list = carve_take(c, queries + CPU_FEW_STEP + CPU_FEW_AHEAD, sizeof *s->list);
    for (int i = 0; i < KNOWN; i++) {
        s->fact[i] = carve_take(c, queries + CPU_FEW_STEP, sizeof *s->fact[i]);
        s->spread[i] = carve_take_panel(c, CPU_FEW_SET, queries + CPU_FEW_STEP, sizeof(float));
    }
}

static void scratch_take(struct carve *c, const struct kernel_args *args, struct key_scratch *s) {
    const struct problem *p = args->problem;
    const size_t lanes = tile_lanes(args), d_qk = (size_t)p->d_qk, d_v = (size_t)p->d_v;
    const size_t scores = CPU_ST_KEYS * CPU_GROUP;
    sums_take(c, lanes, p->gradients & TESS_GRADIENT_K ? p->d_qk : 0, &s->d_k);
    sums_take(c, lanes, p->gradients & TESS_GRADIENT_V ? p->d_v : 0, &s->d_v);
    s->kt = carve_take_panel(c, lanes, d_qk, sizeof *s->kt);
    s->vt = carve_take_panel(c, lanes, d_v, sizeof *s->vt);
    s->st = carve_take(c, scores, sizeof *s->st);
    s->dp = carve_take(c, scores, sizeof *s->dp);
    s->slope = carve_take(c, p->modifiers.softcap != 0 ? scores : 0, sizeof *s->slope);
    const int32_t some = cpu_gradients_listed_fit(p) ? listed_keys(p) : 0;
    const int32_t most = some > CPU_KEYS_SHORT ? some : CPU_KEYS_SHORT;
    few_take(c, p, &s->few);
    side_take(c, (size_t)some, &s->side);
    s->q = carve_take_panel(c, (size_t)most, d_qk, sizeof *s->q);
    s->d_o = carve_take(c, cpu_gather_size(p->type, most, p->d_v), sizeof *s->d_o);
    s->k = carve_take_panel(c, args->work.strips ? lanes : 0, strips_width(p->d_qk), sizeof *s->k);
    s->ds = carve_take_panel(c, args->work.strips && lanes > CPU_GROUP ? lanes : 0, CPU_KEYS_SHORT,
                             sizeof *s->ds);
    s->queries = carve_take(c, 1, sizeof *s->queries);
    s->met = carve_take(c, 1, sizeof *s->met);
    s->row = carve_take_panel(c, CPU_LANES, d_qk > d_v ? d_qk : d_v, sizeof *s->row);
#if defined(__AVX512BF16__)
    const int64_t d[] = {p->d_qk, p->d_v};
    const int summed[] = {s->d_k.d != 0, s->d_v.d != 0};
    paired_take(c, lanes, d, summed, &s->paired);
#endif
}

/* A strip of few keys adds up in f32 alone, as sums do near (sums.h). */
static void row_sums_take(struct carve *c, const struct kernel_args *args, struct row_sums *s) {
    const struct strips *strips = args->work.strips;
    const int64_t d = args->problem->d_qk;
    *s = (struct row_sums){0};
    if (!strips)
        return;
    const int longer = strips->tiles * args->work.lists->tile_rows > cpu_near(d);
    s->stride = (int64_t)strips_width(d);
    s->low = longer ? strips->rows * s->stride : 0;
    s->at =
        carve_take_panel(c, (size_t)(strips->rows * (1 + longer)), strips_width(d), sizeof *s->at);
    s->met = carve_take(c, (size_t)strips->rows / STRIPS_QUERIES, sizeof *s->met);
}

/* A slot:  | dK panel | dV panel | */
static void job_take(struct carve *c, const struct kernel_args *args, struct key_job *job) {
    const struct problem *p = args->problem;
    struct carve one = {0};
    struct key_scratch scratch;
    job->args = args;
    scratch_take(&one, args, &scratch);
    c->overflow |= one.overflow;
    job->slot_size = tile_lanes(args) * (size_t)(scratch.d_k.d + scratch.d_v.d) * sizeof(float);
    job->scratch_size = one.used;
    job->slots = carve_take(c, (size_t)args->work.schedule->n_slots, job->slot_size);
    job->scratch = carve_take(c, (size_t)p->threads, one.used);
    row_sums_take(c, args, &job->sums);
#if defined(__AVX512BF16__)
    const int summed[] = {scratch.d_k.d != 0, scratch.d_v.d != 0};
    job->stores = (struct paired_stores){args, .d = {p->d_qk, p->d_v}};
    if (args->operands) /* sizes are asked without */
        job->stores.y[0] = &attention_of(args)->q, job->stores.y[1] = &gradient_of(args)->d_o;
    paired_stores_take(c, p->heads_q, p->n_q, summed, &job->stores);
#endif
}

static float *slot_of(const struct key_job *job, int64_t slot) {
    return (float *)(void *)(job->slots + (size_t)slot * job->slot_size);
}

/* A tile under way. */
struct key_item {
    const struct kernel_args *args;
    struct key_scratch s;
    int64_t b, hk, tile;
    int64_t first, rows;       /* the first key; keys */
    int64_t h;                 /* the query head that is met now */
    int listed;                /* only listed pairs are computed: sums and operands stand in rows */
    int d_s;                   /* gradients of scores are wanted */
    struct modify *modify;     /* its score modifiers; NULL: none */
    const struct strip *strip; /* NULL: dQ is another pass's */
    struct row_sums sums;
    uint64_t bad; /* strips: keys whose K is not finite */
#if defined(__AVX512BF16__)
    const struct paired_stores *stores;
    int paired; /* products are of the unit of bf16_pairs.h */
#endif
    float distance[CPU_TILE_ROWS]; /* j - p of each key and the superblock's first query */
};

/* Whether a tile is computed so, by all lists of the group: see listed_pays. */
static int item_listed(const struct key_item *item, const int64_t *list_of) {
    const struct problem *p = item->args->problem;
    const struct lists *lists = item->args->work.lists;
    const int64_t lanes = cpu_lanes(item->rows);
    int64_t met = 0, all = 0;
    if (!cpu_gradients_listed_fit(p) || 2 * item->rows <= lanes)
        return cpu_gradients_listed_fit(p);
    for (int64_t h = 0; h < p->heads_q / p->heads_kv; h++) {
        const int64_t tile = list_of[h] * lists->tiles + item->tile;
        met += listed_pairs(lists, tile, item->rows);
        all += lists->keys[tile];
    }
    return 2 * met <= lanes * all;
}

static struct key_item item_of(const struct key_job *job, int64_t batch_head, int64_t tile,
                               int32_t thread) {
    const struct kernel_args *args = job->args;
    const int64_t *row = &args->work.lists->tile_row[tile];
    struct carve c = {.base = job->scratch + (size_t)thread * job->scratch_size};
    struct key_item item = {.args = args,
                            .b = batch_head / args->problem->heads_kv,
                            .hk = batch_head % args->problem->heads_kv,
                            .tile = tile,
                            .first = row[0],
                            .rows = row[1] - row[0]};
    scratch_take(&c, args, &item.s);
    item.d_s = item.s.d_k.d != 0;
    const int64_t group = args->problem->heads_q / args->problem->heads_kv;
    item.listed = item_listed(&item, args->work.list_of + batch_head * group);
    return item;
}

/* ---- queries of a superblock ---- */

/* Factor by which query rows are multiplied, and the range of their largest elements that needs no care. */
struct scaling {
    double scale;
    float least, end;
};

static struct scaling scaling_of(const struct problem *p) {
    const double scale = p->scale * LOG2_E, size = fabs(scale);
    const int plain = size > 0x1p-20 && size < 0x1p20;
    return (struct scaling){scale, plain ? (float)(CPU_ROW_LEAST / size) : INFINITY,
                            plain ? (float)(CPU_ROW_END / size) : 0};
}

/* out = a query row, scaled; answers what its scores then lack. As cpu_load_query, and as
 * cpu_load_queries by vectors where no element is extreme. */
static float query_scale(float *out, const char *row, tess_type type, int64_t d,
                         const struct scaling *by) {
    const double scale = by->scale;
    const float *from = (const float *)(const void *)row;
    vf some[4] = {{0}};
    float most = 0;
    int64_t i = 0;
    if (type != TESS_F32) {
        cpu_load_halves(out, row, type, d);
        from = out;
    }
    for (; i + 4 * CPU_LANES <= d; i += 4 * CPU_LANES) {
        V_FOR(u, 4) {
            const vf x = v_load_any(from + i + u * CPU_LANES);
            some[u] = v_max(v_abs(x), some[u]);
            v_store_any(out + i + u * CPU_LANES, v_multiply(x, scale));
        }
    }
    for (; i + CPU_LANES <= d; i += CPU_LANES) {
        const vf x = v_load_any(from + i);
        some[0] = v_max(v_abs(x), some[0]);
        v_store_any(out + i, v_multiply(x, scale));
    }
    for (; i < d; i++) {
        most = fabsf(from[i]) > most ? fabsf(from[i]) : most;
        out[i] = (float)(scale * (double)from[i]);
    }
    const vf all = v_max(v_max(v_max(some[0], some[1]), v_max(some[2], some[3])), v_set(most));
    const vi outside = (vi)(all >= v_set(by->end)), enough = (vi)(all >= v_set(by->least));
    if (v_bits(outside) || (v_bits((vi)(all > (vf){0})) && !v_bits(enough)))
        return (float)cpu_load_query(out, row, type, d, scale);
    return 1;
}

/* The queries of `keys` that are not empty, but for their rows. */
static void queries_list(const struct key_item *item, const struct cpu_keys *keys,
                         struct queries *to) {
    const struct kernel_args *args = item->args;
    const struct problem *p = args->problem;
    const struct query_stats *stats = &gradient_of(args)->stats;
    const float kept = gradient_kept(p);
    int32_t *number = to->number, n = 0;
    to->masked = keys->masked;
    to->shifted = 0;
    for (int32_t j = 0; j < keys->n; j++) {
        const int64_t at = stats_at(p, item->b, item->h, keys->key[j]);
        number[n] = keys->key[j];
        to->mask[n] = keys->masked ? keys->mask[j] : UINT64_MAX;
        to->base[n] = stats->base[at];
        to->left[n] = stats->left[at] * kept;
        to->delta[n] = stats->delta[at];
        n += to->base[n] != INFINITY;
    }
    for (int32_t j = 0; j < n; j++)
        to->back[j] = (float)(number[j] - number[0]);
    to->n = n;
    if (item->modify && item->modify->drops)
        draw_queries(item->modify, item->first, item->rows, number, n, to->keep);
    if (item->modify)
        item->modify->first = n ? number[0] : 0;
}

/* Their rows, in f32. */
static void queries_load(const struct key_item *item, struct queries *to) {
    const struct kernel_args *args = item->args;
    const struct problem *p = args->problem;
    const struct cpu_head q = cpu_head(&attention_of(args)->q, p->type, item->b, item->h);
    const struct cpu_head d_o = cpu_head(&gradient_of(args)->d_o, p->type, item->b, item->h);
    const struct scaling by = scaling_of(p);
    for (int32_t j = 0; j < to->n; j++) {
        to->q[j] = item->s.q + j * p->d_qk;
        to->factor[j] = query_scale(item->s.q + j * p->d_qk, cpu_row(&q, 0, to->number[j]), p->type,
                                    p->d_qk, &by);
        to->shifted |= to->factor[j] != 1;
    }
    cpu_rows_end(to->q, to->n);
    cpu_gather(to->d_o, &d_o, to->number, to->n, p->d_v, item->s.d_o);
}

/* Queries that a group of lanes lists, with its own masks. */
static void queries_met(const struct queries *queries, int64_t lane, struct queries *to) {
    const uint64_t lanes = UINT64_MAX >> (64 - CPU_GROUP);
    int32_t n = 0;
    to->shifted = queries->shifted;
    to->masked = 1;
    for (int32_t j = 0; j < queries->n; j++) {
        to->mask[n] = queries->mask[j] >> lane & lanes;
        to->q[n] = queries->q[j], to->d_o[n] = queries->d_o[j];
        to->base[n] = queries->base[j], to->left[n] = queries->left[j],
        to->delta[n] = queries->delta[j];
        to->factor[n] = queries->factor[j], to->back[n] = queries->back[j],
        to->keep[n] = queries->keep[j];
        to->place[n] = j;
        n += to->mask[n] != 0;
    }
    to->n = n;
    cpu_rows_end(to->q, n);
    cpu_rows_end(to->d_o, n);
}

#endif
