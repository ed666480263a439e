/* Granules: each tile's are counted, then filled; and the items of a schedule, assigned. */
#include "lists/granules.h"

#include "lists/balance.h"
#include "plan/assign.h"
#include "lists/mask_groups.h"
#include "base/status.h"
#include "base/threads.h"

#include <stdlib.h>

/* The largest size is taken that adds at most one place in this many to the listed keys. */
#define GRANULE_SLACK 32

/* The granule size for these lists, from `least` to `size`. Places that a run of n keys adds follow from n modulo
 * the largest size, so one look at every run is enough. */
static int32_t size_choose(const struct lists *lists, int32_t size, int32_t least) {
    const int64_t keys = lists->full_keys + lists->masked_keys;
    int64_t runs[GRANULE_MAX] = {0};
#pragma omp parallel for reduction(+ : runs[:GRANULE_MAX]) \
    if (threads_pay(1e-9 * (double)lists->n_full))
    for (int64_t i = 0; i < lists->n_full; i++)
        runs[lists->full[i].count % GRANULE_MAX]++;
#pragma omp parallel for reduction(+ : runs[:GRANULE_MAX]) \
    if (threads_pay(1e-9 * (double)lists->n_masked))
    for (int64_t i = 0; i < lists->n_masked; i++)
        runs[lists->masked[i].count % GRANULE_MAX]++;
    for (; size > least; size /= 2) {
        int64_t added = 0;
        for (int32_t n = 0; n < GRANULE_MAX; n++)
            added += runs[n] * ((size - n % size) % size);
        if (added <= keys / GRANULE_SLACK)
            break;
    }
    return size;
}

/* Seconds of one thread that cutting all tiles takes, roughly. */
static double tiles_seconds(const struct lists *lists) {
    return 1e-9 * (double)(lists->full_keys + 8 * lists->masked_keys);
}

/* Destination of a tile's granules; with `keys` NULL they are only counted. */
struct sink {
    int32_t *keys;
    struct granule_mask *masks;
    int64_t whole, n; /* whole granules, and granules with a mask, so far */
    int64_t of_whole; /* whole granules of the tile; those with a mask come after them */
};

static void put(struct sink *s, int64_t key, const struct granule_mask *mask) {
    const int64_t i = mask ? s->n++ : s->whole++;
    if (!s->keys)
        return;
    s->keys[mask ? s->of_whole + i : i] = (int32_t)key;
    if (mask)
        s->masks[i] = *mask;
}

static void walk_masked(struct sink *s, const struct lists *lists, int kind,
                        const struct list_masked *run, int32_t size) {
    for (int64_t at = 0; at < run->count; at += size) {
        int64_t count = run->count - at < size ? run->count - at : size;
        struct granule_mask mask = {.count = (int16_t)count, .kind = (int16_t)kind};
        if (kind == LIST_BAND)
            mask.u.band.lo = run->u.band.lo - (int32_t)at,
            mask.u.band.hi = run->u.band.hi - (int32_t)at;
        else
            mask.u.word = run->u.word + (kind == LIST_BITS ? at * lists->words : 0);
        put(s, run->key + at, &mask);
    }
}

/* Puts the granules of tile T of all lists. */
static void walk(struct sink *s, const struct lists *lists, int64_t T, int32_t size) {
    for (int64_t i = lists->full_ptr[T]; i < lists->full_ptr[T + 1]; i++) {
        const struct list_run *run = &lists->full[i];
        const int32_t rest = run->count & (size - 1);
        const struct granule_mask mask = {.count = (int16_t)rest, .kind = GRANULE_ALL};
        for (int64_t at = 0; at + size <= run->count; at += size)
            put(s, run->key + at, NULL);
        if (rest)
            put(s, (int64_t)run->key + run->count - rest, &mask);
    }
    const int64_t *ptr = lists->masked_ptr + LIST_MASKED_KINDS * T;
    for (int kind = 0; kind < LIST_MASKED_KINDS; kind++)
        for (int64_t i = ptr[kind]; i < ptr[kind + 1]; i++)
            walk_masked(s, lists, kind, &lists->masked[i], size);
}

/* Counts granules of each tile T in ptr[T + 1], and granules with a mask in mask_ptr[T + 1]. */
static void tiles_count(struct granules *out, const struct lists *lists) {
#pragma omp parallel for schedule(dynamic, 16) if (threads_pay(tiles_seconds(lists)))
    for (int64_t T = 0; T < out->tiles; T++) {
        struct sink sink = {.keys = NULL};
        walk(&sink, lists, T, out->size);
        out->mask_ptr[T + 1] = sink.n;
        out->ptr[T + 1] = sink.whole + sink.n;
    }
}

/* Zero, or -1 when memory ran out. */
static int tiles_fill(struct granules *out, const struct lists *lists,
                      const struct granule_rules *rules) {
    int failed = 0;
#pragma omp parallel for schedule(dynamic, 16)                                                     \
    reduction(|                                                                                    \
              : failed) if (threads_pay(tiles_seconds(lists)))
    for (int64_t T = 0; T < out->tiles; T++) {
        const int64_t masked = out->mask_ptr[T + 1] - out->mask_ptr[T];
        struct sink sink = {.keys = out->keys + out->ptr[T],
                            .masks = out->masks + out->mask_ptr[T],
                            .of_whole = out->ptr[T + 1] - out->ptr[T] - masked};
        walk(&sink, lists, T, out->size);
        if (rules->step.keys && rules->step.rows < lists->tile_rows && masked > 1)
            failed |= balance_tile(lists, &rules->step, out->size, sink.of_whole,
                                   sink.keys + sink.of_whole, sink.masks, masked);
        else if (rules->groups && out->size >= GRANULE_TMA && masked > 1)
            failed |= balance_sort(lists, T, sink.keys + sink.of_whole, sink.masks, masked);
    }
    return failed;
}

/* Granules [begin, end) of a tile of `count` that part `part` of `parts` computes. */
static void part_cut(int64_t count, int32_t size, int32_t part, int32_t parts, int64_t *begin,
                     int64_t *end) {
    schedule_part(count * size, part, parts, begin, end);
    *begin /= size;
    *end /= size;
}

/* Granules [begin, end) of tile T, which is tile number `tile` of the list of query head bh. */
static struct granule_item piece_make(const struct granules *g, const struct lists *lists,
                                      const struct granule_rules *rules, int64_t bh, int32_t tile,
                                      int64_t begin, int64_t end) {
    int64_t T = rules->list_of[bh] * lists->tiles + tile, head = bh % rules->heads_q;
    int64_t count = g->ptr[T + 1] - g->ptr[T];
    int64_t whole = count - (g->mask_ptr[T + 1] - g->mask_ptr[T]);
    int64_t mask = g->records ? g->group_ptr[T] +
                                    max_i64(begin * g->size / GRANULE_GROUP - g->group_whole[T], 0)
                              : g->mask_ptr[T] + max_i64(begin - whole, 0);
    int64_t inside = (end < whole ? end : whole) - begin;
    return (struct granule_item){
        .first = g->ptr[T] + begin,
        .mask = mask,
        .slot = -1,
        .count = (int32_t)(end - begin),
        .whole = inside > 0 ? (int32_t)inside : 0,
        .batch = (int32_t)(bh / rules->heads_q),
        .head = (int32_t)head,
        .head_kv = (int32_t)(head / (rules->heads_q / rules->heads_kv)),
        .row = (int32_t)lists->tile_row[tile],
        .rows = (int32_t)(lists->tile_row[tile + 1] - lists->tile_row[tile]),
    };
}

/* Query heads of one head of the schedule: packed ones, or over keys those of a group. */
static int64_t heads_together(const struct granule_rules *rules) {
    return rules->over_keys ? rules->heads_q / rules->heads_kv : rules->tile_heads;
}

/* Places of a head's list in the concatenation that parts cut, in granules. Mask groups begin at whole chunks. */
static int64_t head_places(const struct granules *g, const struct granule_rules *rules,
                           int64_t count) {
    const int64_t chunk = rules->groups ? SCHEDULE_CHUNK / g->size : 1;
    return (count + chunk - 1) / chunk * chunk;
}

/* Pieces of an item: one, or over keys one for each head of the group with granules, and one where no head
 * has any. Answers how many; `to` NULL: they are only counted. */
static int64_t item_pieces(const struct granules *g, const struct lists *lists,
                           const struct granule_rules *rules, const struct work_item *w,
                           struct granule_item *to) {
    const int64_t heads = rules->over_keys ? heads_together(rules) : 1;
    const int64_t first = w->batch_head * heads_together(rules);
    int64_t begin, end, all = 0, before = 0, n = 0;
    for (int64_t h = 0; h < heads; h++) {
        const int64_t T = rules->list_of[first + h] * lists->tiles + w->tile;
        all += head_places(g, rules, g->ptr[T + 1] - g->ptr[T]);
    }
    part_cut(all, g->size, w->part, w->parts, &begin, &end);
    for (int64_t h = 0; h < heads; h++) {
        const int64_t T = rules->list_of[first + h] * lists->tiles + w->tile;
        const int64_t count = g->ptr[T + 1] - g->ptr[T];
        const int64_t from = min_i64(max_i64(begin - before, 0), count);
        const int64_t until = max_i64(min_i64(end - before, count), from);
        before += head_places(g, rules, count);
        if (from == until && (n > 0 || h < heads - 1))
            continue;
        if (to) {
            to[n] = piece_make(g, lists, rules, first + h, w->tile, from, until);
            to[n].slot = w->slot < 0 ? -1 : (w->slot - w->part) * rules->tile_heads + w->part;
            to[n].parts = rules->over_keys ? 0 : w->parts;
        }
        n++;
    }
    if (to && rules->over_keys) {
        to[0].parts |= GRANULE_FIRST;
        to[n - 1].parts |= GRANULE_LAST;
    }
    return n;
}

static int64_t prefix_sum(int64_t *ptr, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        ptr[i + 1] += ptr[i];
    return ptr[n];
}

/* An array of at least one element, so that NULL always means that memory ran out. */
static void *array_make(int64_t count, size_t size) {
    return calloc((size_t)count + 1, size);
}

/* Fixed cost of an item, in keys. */
#define GRANULE_ITEM_KEYS 128
static int64_t item_cost(const struct granules *g, const struct granule_item *item) {
    return item->count ? (int64_t)item->count * g->size + GRANULE_ITEM_KEYS : 0;
}

/* Assigns items in this order; all loads are equal at first. Zero, or -1 when memory ran out. */
static int assign_in_order(int32_t *worker, const struct assign_item *order, int64_t n,
                           int32_t workers) {
    struct assignment assignment;
    int failed = assign_begin(&assignment, workers);
    for (int64_t i = 0; i < n && !failed; i++)
        worker[order[i].number] = assign_next(&assignment, order[i].cost);
    assign_free(&assignment);
    return failed;
}

/* Items of the schedule before they are assigned: item i has pieces ptr[i] ... ptr[i + 1] - 1. */
struct unassigned {
    int64_t n, *ptr;
    struct granule_item *pieces;
    int32_t *worker;
};

/* The worker of each item. Items without keys are assigned by themselves: on Hopper other warps do
 * them meanwhile, elsewhere they cost little. */
static int workers_choose(const struct unassigned *items, const struct granules *g) {
    struct assign_item *order = array_make(items->n, sizeof *order);
    int64_t n = 0, empty = items->n;
    for (int64_t i = 0; i < items->n && order; i++) {
        int64_t cost = 0;
        for (int64_t k = items->ptr[i]; k < items->ptr[i + 1]; k++)
            cost += item_cost(g, &items->pieces[k]);
        if (cost)
            order[n++] = (struct assign_item){cost, i};
        else
            order[--empty] = (struct assign_item){1, i};
    }
    int failed = !order;
    if (!failed)
        assign_sort(order, n, g->workers);
    failed = failed || assign_in_order(items->worker, order, n, g->workers) ||
             assign_in_order(items->worker, order + n, items->n - n, g->workers);
    free(order);
    return failed;
}

/* Puts the pieces of each worker's items side by side. */
static void items_assign(struct granules *out, const struct unassigned *items) {
    for (int64_t i = 0; i < items->n; i++)
        out->worker_ptr[items->worker[i] + 1] += items->ptr[i + 1] - items->ptr[i];
    prefix_sum(out->worker_ptr, out->workers);
    for (int64_t i = 0; i < items->n; i++)
        for (int64_t k = items->ptr[i]; k < items->ptr[i + 1]; k++)
            out->items[out->worker_ptr[items->worker[i]]++] = items->pieces[k];
    for (int32_t w = out->workers; w > 0; w--)
        out->worker_ptr[w] = out->worker_ptr[w - 1];
    out->worker_ptr[0] = 0;
}

static void combines_fill(struct granules *out, const struct lists *lists,
                          const struct schedule *schedule, const struct granule_rules *rules) {
    for (int64_t i = 0; i < out->n_combines; i++) {
        const struct combine_item *m = &schedule->combines[i / rules->tile_heads];
        const int64_t of_tile = i % rules->tile_heads;
        const int64_t bh = m->batch_head * heads_together(rules) + of_tile;
        out->combines[i] = piece_make(out, lists, rules, bh, m->tile, 0, 0);
        out->combines[i].parts = m->parts;
        out->combines[i].slot = m->first_slot * rules->tile_heads + of_tile * m->parts;
    }
}

/* Zero, or -1 when memory ran out. */
static int items_fill(struct granules *out, const struct lists *lists,
                      const struct schedule *schedule, const struct granule_rules *rules) {
    struct unassigned items = {.n = schedule->n_items,
                               .ptr = array_make(schedule->n_items, sizeof *items.ptr),
                               .worker = array_make(schedule->n_items, sizeof *items.worker)};
    int failed = !items.ptr || !items.worker;
    for (int64_t i = 0; i < items.n && !failed; i++)
        items.ptr[i + 1] = items.ptr[i] + item_pieces(out, lists, rules, &schedule->items[i], NULL);
    out->n_items = failed ? 0 : items.ptr[items.n];
    items.pieces = array_make(out->n_items, sizeof *items.pieces);
    out->items = array_make(out->n_items, sizeof *out->items);
    failed = failed || !items.pieces || !out->items;
    for (int64_t i = 0; i < items.n && !failed; i++)
        item_pieces(out, lists, rules, &schedule->items[i], items.pieces + items.ptr[i]);
    failed = failed || workers_choose(&items, out);
    if (!failed) {
        items_assign(out, &items);
        combines_fill(out, lists, schedule, rules);
    }
    free(items.ptr);
    free(items.pieces);
    free(items.worker);
    return failed ? -1 : 0;
}

static int granules_build(struct granules *out, const struct lists *lists,
                          const struct schedule *schedule, const struct granule_rules *rules) {
    out->ptr = array_make(out->tiles, sizeof *out->ptr);
    out->mask_ptr = array_make(out->tiles, sizeof *out->mask_ptr);
    out->combines = array_make(out->n_combines, sizeof *out->combines);
    out->worker_ptr = array_make(out->workers, sizeof *out->worker_ptr);
    if (!out->ptr || !out->mask_ptr || !out->combines || !out->worker_ptr)
        return -1;
    tiles_count(out, lists);
    out->n = prefix_sum(out->ptr, out->tiles);
    out->n_masks = prefix_sum(out->mask_ptr, out->tiles);
    out->keys = array_make(out->n, sizeof *out->keys);
    out->masks = array_make(out->n_masks, sizeof *out->masks);
    if (!out->keys || !out->masks || tiles_fill(out, lists, rules) ||
        (rules->groups && mask_groups_make(out, lists)))
        return -1;
    if (rules->groups) { /* mask groups replace the masks */
        free(out->masks);
        out->masks = NULL;
        out->n_masks = 0;
    }
    return items_fill(out, lists, schedule, rules);
}

tess_status granules_make(struct granules *out, const struct lists *lists,
                          const struct schedule *schedule, const struct granule_rules *rules,
                          tess_error *error) {
    *out = (struct granules){
        .size = size_choose(lists, rules->size, rules->least > 1 ? rules->least : 1),
        .tiles = lists->n_lists * lists->tiles,
        .n_combines = schedule->n_combines * rules->tile_heads,
        .workers = rules->workers};
    if (granules_build(out, lists, schedule, rules))
        return error_set(error, TESS_OUT_OF_MEMORY, "tess_plan_create", NULL,
                         "out of memory while cutting %lld query tiles into granules",
                         (long long)(lists->n_lists * lists->tiles));
    return TESS_OK;
}

double granules_unevenness(const struct granules *g) {
    double all = 0, most = 0;
    for (int32_t w = 0; w < g->workers; w++) {
        double load = 0;
        for (int64_t i = g->worker_ptr[w]; i < g->worker_ptr[w + 1]; i++)
            load += (double)item_cost(g, &g->items[i]);
        most = load > most ? load : most;
        all += load;
    }
    return all > 0 ? most * (double)g->workers / all : 1;
}

void granules_free(struct granules *g) {
    free(g->ptr);
    free(g->mask_ptr);
    free(g->keys);
    free(g->masks);
    free(g->items);
    free(g->group_ptr);
    free(g->group_whole);
    free(g->group_keys);
    free(g->records);
    free(g->mask_bits);
    free(g->combines);
    free(g->worker_ptr);
    *g = (struct granules){0};
}

size_t granules_memory(const struct granules *g) {
    return (size_t)g->n * sizeof *g->keys + (size_t)g->n_masks * sizeof *g->masks +
           (size_t)(g->n_items + g->n_combines) * sizeof *g->items +
           (size_t)g->n_groups * sizeof *g->group_keys + (size_t)g->n_records * sizeof *g->records +
           (size_t)g->n_bits * sizeof *g->mask_bits +
           (g->records ? 2 * (size_t)(g->tiles + 1) * sizeof *g->group_ptr : 0) +
           (size_t)(g->tiles + 1) * (sizeof *g->ptr + sizeof *g->mask_ptr) +
           ((size_t)g->workers + 1) * sizeof *g->worker_ptr;
}
