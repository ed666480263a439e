/*
 * dQ of the pass over keys: dS of a key tile times K, added to sums of the tile's strip (plan/strips.h),
 * dims in the lanes. A key's row of K meets the queries that list the key, and no others.
 */
#ifndef TESSERA_CPU_KEY_ROWS_H
#define TESSERA_CPU_KEY_ROWS_H

#include "backward/key_tile.h"
#include "tile/micro_rows.h"

#define ROWS_CHUNK 64 /* queries whose strips are added up by one thread */

/* ---- K, dims in the lanes ---- */

/* Row r of the tile's keys into the panel, or zeros. Answers whether the key's numbers are finite. */
static int rows_key(const struct key_item *item, int64_t r, int shown) {
    const struct problem *p = item->args->problem;
    const struct cpu_head k = cpu_head(&attention_of(item->args)->k, p->type, item->b, item->hk);
    const int64_t dims = cpu_round_up(p->d_qk, CPU_LANES);
    float *row = item->s.row;
    vf none = {0};
    memset(row, 0, (size_t)dims * sizeof *row);
    if (shown)
        cpu_load_any(row, cpu_row(&k, item->first, r), p->type, p->d_qk);
    for (int64_t i = 0; i < dims; i += CPU_LANES)
        none += v_load(row + i) * (vf){0};
    for (int64_t i = 0; i < dims; i += CPU_GROUP) {
        const int64_t width = min_i64(dims - i, CPU_GROUP);
        memcpy(item->s.k + i * item->rows + r * width, row + i, (size_t)width * sizeof *row);
    }
    return v_all((vi)(none == (vf){0}));
}

/* The panel of the tile's keys. */
static void rows_begin(struct key_item *item) {
    item->bad = 0;
    for (int64_t r = 0; r < item->rows; r++)
        item->bad |= (uint64_t)!rows_key(item, r, 1) << r;
}

/* ---- adding ---- */

/* The row of a query, of all strips'. */
static int64_t rows_at(const struct strip *strip, int64_t head, int64_t query) {
    const int64_t queries = strip->query_end - strip->query;
    return strip->at + head * queries + (query - strip->query);
}

/* Nothing has been added. */
static void rows_forget(const struct key_job *job, const struct strip *strip) {
    const struct problem *p = job->args->problem;
    const int64_t group = p->heads_q / p->heads_kv;
    const int64_t first = rows_at(strip, 0, strip->query),
                  end = rows_at(strip, group, strip->query);
    memset(job->sums.met + first / STRIPS_QUERIES, 0, (size_t)(end - first) / STRIPS_QUERIES);
}

/* The sums of row x, zeros when they are first met. */
static float *rows_meet(const struct row_sums *sums, int64_t x) {
    char *met = sums->met + x / STRIPS_QUERIES;
    if (!*met) {
        float *first = sums->at + x / STRIPS_QUERIES * STRIPS_QUERIES * sums->stride;
        const size_t size = (size_t)(STRIPS_QUERIES * sums->stride) * sizeof *first;
        memset(first, 0, size);
        if (sums->low)
            memset(first + sums->low, 0, size);
        *met = 1;
    }
    return sums->at + x * sums->stride;
}

/* Adds where rows of K are not finite, query by query: of keys that one does not list zeros stand in
 * the panel meanwhile, which give the bits of numbers. */
static void rows_add_apart(const struct key_item *item, const struct queries *queries,
                           const float *ds, int64_t stride, float *const *row) {
    uint64_t hidden = 0;
    for (int32_t j = 0; j <= queries->n; j++) {
        const uint64_t hide = j < queries->n ? item->bad & ~queries->mask[j] : 0;
        for (int64_t r = 0; r < item->rows; r++)
            if ((hidden ^ hide) >> r & 1)
                rows_key(item, r, !(hide >> r & 1));
        hidden = hide;
        if (j < queries->n)
            cpu_rows_add(item->s.k, ds + j * stride, stride, item->rows, 1,
                         item->args->problem->d_qk, row + j, item->sums.low);
    }
}

/* dQ of queries, whose dS of the tile's keys stand `stride` floats apart. */
static void rows_add(const struct key_item *item, const struct queries *queries, const float *ds,
                     int64_t stride) {
    const struct problem *p = item->args->problem;
    float *row[CPU_KEYS];
    for (int32_t j = 0; j < queries->n; j++)
        row[j] = rows_meet(&item->sums, rows_at(item->strip, item->h % (p->heads_q / p->heads_kv),
                                                queries->number[j]));
    if (queries->masked && item->bad)
        rows_add_apart(item, queries, ds, stride, row);
    else
        cpu_rows_add(item->s.k, ds, stride, item->rows, queries->n, p->d_qk, row, item->sums.low);
}

/* dS of the keys at `lane`. A tile of one group of lanes is added at once, of several when all have
 * theirs. */
static void rows_take(const struct key_item *item, const struct queries *queries, int64_t lane,
                      int vectors) {
    const int64_t lanes = cpu_lanes(item->rows), width = vectors * CPU_LANES;
    if (lanes <= CPU_GROUP) {
        rows_add(item, queries, item->s.dp, width);
        return;
    }
    for (int32_t j = 0; j < queries->n; j++) {
        const int32_t place = queries->masked ? queries->place[j] : j;
        memcpy(item->s.ds + place * lanes + lane, item->s.dp + j * width,
               (size_t)width * sizeof *item->s.ds);
    }
}

/* ---- strips become dQ ---- */

static int64_t rows_chunks(const struct kernel_args *args) {
    const struct problem *p = args->problem;
    return p->batch * p->heads_q * ((p->n_q + ROWS_CHUNK - 1) / ROWS_CHUNK);
}

/* out = the sum of n rows in their order, times scale. What is cut off of an infinite sum is no number. */
static void rows_sum(float *out, const float *const *row, int64_t n, int64_t low, int64_t d,
                     double scale) {
    for (int64_t i = 0; i < d; i += CPU_LANES) {
        vf total = {0}, rest = {0};
        for (int64_t r = 0; r < n; r++) {
            const vf x = total, y = v_load(row[r] + i), sum = x + y, back = sum - x;
            total = sum;
            rest += (x - (sum - back)) + (y - back);
            if (low)
                rest += v_load(row[r] + low + i);
        }
        v_store(out + i, v_select((vi)(rest == rest), total + rest, total));
    }
    if (scale < 1 || scale > 1) /* and it may be far out of f32's range */
        for (int64_t i = 0; i < d; i++)
            out[i] = (float)(scale * (double)out[i]);
}

/* Some queries of a query head. */
static void rows_run(const void *context, int64_t number, int32_t thread) {
    const struct key_job *job = context;
    const struct kernel_args *args = job->args;
    const struct problem *p = args->problem;
    const int64_t chunks = (p->n_q + ROWS_CHUNK - 1) / ROWS_CHUNK, group = p->heads_q / p->heads_kv;
    const int64_t head = number / chunks, first = number % chunks * ROWS_CHUNK;
    const struct strips *strips = args->work.strips;
    const struct view *d_q = &gradient_of(args)->d_q;
    const struct cpu_head to = cpu_head(d_q, d_q->type, head / p->heads_q, head % p->heads_q);
    struct carve c = {.base = job->scratch + (size_t)thread * job->scratch_size};
    struct key_scratch s;
    scratch_take(&c, args, &s);
    for (int64_t i = first; i < min_i64(p->n_q, first + ROWS_CHUNK); i++) {
        const float *row[STRIPS_OF_HEAD];
        int64_t n = 0;
        for (int64_t x = strips->head[head / group]; x < strips->head[head / group + 1]; x++) {
            const struct strip *strip = &strips->strip[x];
            const int64_t at = rows_at(strip, head % group, i);
            if (i >= strip->query && i < strip->query_end && job->sums.met[at / STRIPS_QUERIES])
                row[n++] = job->sums.at + at * job->sums.stride;
        }
        rows_sum(s.row, row, n, job->sums.low, p->d_qk, p->scale);
        cpu_row_from_f32(cpu_row(&to, 0, i), s.row, to.type, p->d_qk);
    }
}

#endif
