/* Cuts the key tiles of each K/V head into strips of like cost. */
#include "plan/strips.h"

#include "base/status.h"
#include "plan/kernels.h"

#include <math.h>
#include <stdlib.h>

/* Queries that a key tile lists: the first, and the one past the last; 0 and 0 of none. */
struct span {
    int32_t query, end;
};

static void span_add(struct span *s, int32_t query, int32_t count) {
    if (s->end == 0 || query < s->query)
        s->query = query;
    if (query + count > s->end)
        s->end = query + count;
}

static struct span tile_span(const struct lists *lists, int64_t tile) {
    struct span s = {0, 0};
    for (int64_t r = lists->full_ptr[tile]; r < lists->full_end[tile]; r++)
        span_add(&s, lists->full[r].key, lists->full[r].count);
    for (int64_t kind = LIST_MASKED_KINDS * tile; kind < LIST_MASKED_KINDS * (tile + 1); kind++)
        for (int64_t r = lists->masked_ptr[kind]; r < lists->masked_end[kind]; r++)
            span_add(&s, lists->masked[r].key, lists->masked[r].count);
    return s;
}

/* State while strips are cut. */
struct cutting {
    const struct lists *lists;
    const int64_t *list_of;
    const struct span *span; /* [list][tile] */
    int64_t heads, group;
    double item;
};

/* Cost of a tile for all query heads of K/V head `head`. */
static double tile_cost(const struct cutting *c, int64_t head, int64_t tile) {
    double cost = c->item;
    for (int64_t h = head * c->group; h < (head + 1) * c->group; h++)
        cost += (double)c->lists->keys[c->list_of[h] * c->lists->tiles + tile];
    return cost;
}

static double head_cost(const struct cutting *c, int64_t head) {
    double cost = 0;
    for (int64_t t = 0; t < c->lists->tiles; t++)
        cost += tile_cost(c, head, t);
    return cost;
}

static struct strip strip_of(const struct cutting *c, int64_t head, int64_t first, int64_t end) {
    struct span s = {0, 0};
    for (int64_t h = head * c->group; h < (head + 1) * c->group; h++)
        for (int64_t t = first; t < end; t++) {
            const struct span covered = c->span[c->list_of[h] * c->lists->tiles + t];
            if (covered.end)
                span_add(&s, covered.query, covered.end - covered.query);
        }
    const int64_t whole = STRIPS_QUERIES;
    return (struct strip){.batch_head = (int32_t)head,
                          .first = (int32_t)first,
                          .end = (int32_t)end,
                          .query = s.query / whole * whole,
                          .query_end = (s.end + whole - 1) / whole * whole};
}

/* Appends `parts` strips of a head: each ends with the tile that reaches its share of the cost. */
static void head_cut(struct strips *out, const struct cutting *c, int64_t head, int64_t parts) {
    const double all = head_cost(c, head);
    const int64_t tiles = c->lists->tiles;
    double cost = 0;
    int64_t first = 0;
    for (int64_t t = 0, part = 1; t < tiles; t++) {
        const double next = tile_cost(c, head, t);
        cost += next;
        /* the tile belongs to the share that most of it lies in */
        if (t + 1 < tiles && (part == parts || cost + tile_cost(c, head, t + 1) / 2 <
                                                   all * (double)part / (double)parts))
            continue;
        struct strip *s = &out->strip[out->n++];
        *s = strip_of(c, head, first, t + 1);
        s->at = out->rows;
        out->rows += c->group * (s->query_end - s->query);
        out->tiles = t + 1 - first > out->tiles ? t + 1 - first : out->tiles;
        first = t + 1;
        part++;
    }
}

/* Strips of all heads, if none is at its most: two for each worker, as threads seldom end together. */
#define STRIPS (2.0 * PLAN_CPU_WORKERS)

/* All heads, in `cap` strips each at most. */
static void heads_cut(struct strips *out, const struct cutting *c, int64_t cap) {
    double all = 0;
    for (int64_t head = 0; head < c->heads; head++)
        all += head_cost(c, head);
    out->n = out->rows = out->tiles = 0;
    for (int64_t head = 0; head < c->heads; head++) {
        const double share = head_cost(c, head) / all * STRIPS;
        const int64_t most = min_i64(c->lists->tiles, cap);
        out->head[head] = out->n;
        head_cut(out, c, head, share < (double)most ? (int64_t)ceil(share * (1 - 1e-9)) : most);
    }
    out->head[c->heads] = out->n;
}

/* A strip and what it costs, to be put in order. */
struct ordered {
    double cost;
    int32_t strip;
};

static int longer_first(const void *a, const void *b) {
    const struct ordered *x = a, *y = b;
    if (x->cost > y->cost || x->cost < y->cost)
        return x->cost > y->cost ? -1 : 1;
    return x->strip < y->strip ? -1 : 1;
}

/* Zero, or -1 when memory ran out. */
static int strips_order(struct strips *out, const struct cutting *c) {
    struct ordered *o = malloc(((size_t)out->n + 1) * sizeof *o);
    for (int64_t i = 0; o && i < out->n; i++) {
        o[i] = (struct ordered){0, (int32_t)i};
        for (int64_t t = out->strip[i].first; t < out->strip[i].end; t++)
            o[i].cost += tile_cost(c, out->strip[i].batch_head, t);
    }
    if (o)
        qsort(o, (size_t)out->n, sizeof *o, longer_first);
    for (int64_t i = 0; o && i < out->n; i++)
        out->order[i] = o[i].strip;
    free(o);
    return o ? 0 : -1;
}

tess_status strips_make(struct strips *out, const struct lists *lists, const int64_t *list_of,
                        int64_t heads, int64_t group, double item, int64_t most,
                        tess_error *error) {
    const int64_t tiles = lists->n_lists * lists->tiles;
    const size_t strips = (size_t)(heads * min_i64(STRIPS_OF_HEAD, lists->tiles)) + 1;
    struct span *span = malloc(((size_t)tiles + 1) * sizeof *span);
    *out = (struct strips){.heads = heads,
                           .strip = malloc(strips * sizeof *out->strip),
                           .head = malloc(((size_t)heads + 1) * sizeof *out->head),
                           .order = malloc(strips * sizeof *out->order)};
    int failed = !span || !out->strip || !out->head || !out->order;
    if (!failed) {
        const struct cutting c = {lists, list_of, span, heads, group, item};
        for (int64_t t = 0; t < tiles; t++)
            span[t] = tile_span(lists, t);
        int64_t cap = 2 * STRIPS_OF_HEAD;
        do
            heads_cut(out, &c, cap /= 2);
        while (out->rows > most && cap > 1);
        if (out->rows > most)
            out->n = 0;
        failed = strips_order(out, &c);
    }
    free(span);
    return failed ? error_set(error, TESS_OUT_OF_MEMORY, "tess_plan_create", NULL,
                              "out of memory for strips of %lld key tiles", (long long)tiles)
                  : TESS_OK;
}

void strips_free(struct strips *strips) {
    free(strips->strip);
    free(strips->head);
    free(strips->order);
    *strips = (struct strips){0};
}

size_t strips_memory(const struct strips *strips) {
    return strips->n ? (size_t)strips->n * (sizeof *strips->strip + sizeof *strips->order) +
                           ((size_t)strips->heads + 1) * sizeof *strips->head
                     : 0;
}
