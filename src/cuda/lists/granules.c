/* Granules: each tile's are counted, then filled; and the items of a schedule, assigned. */
#include "lists/granules.h"

#include "lists/balance.h"
#include "lists/order.h"
#include "plan/assign.h"
#include "lists/fragment_masks.h"
#include "base/status.h"
#include "base/threads.h"

#include <stdlib.h>

/* The largest size is taken that adds at most one place in this many to the listed keys. */
#define GRANULE_SLACK 32

/* The granule size for these lists, `size` at most. Places that a run of n keys adds at a size
 * follow from n modulo the largest size, so one look at every run is enough. */
static int32_t size_choose(const struct lists *lists, int32_t size) {
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
    for (; size > 1; size /= 2) {
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

/* What is known of a tile while its items are made. */
struct tile_cut {
    struct cut cut;
    int64_t bits; /* its first word of score_bits */
};

/* Plans have single-consumer steps where they make up at least one chunk in this many. */
#define GRANULE_SINGLE_STEPS 4

/* The order of each tile's granules, and in ptr[T + 1] and mask_ptr[T + 1] how many there are. */
static void tiles_count(struct granules *out, const struct lists *lists, struct tile_cut *tiles,
                        int single_steps) {
    int64_t alone = 0, places = 0;
#pragma omp parallel for schedule(dynamic, 16) reduction(+ : alone, places) \
    if (threads_pay(tiles_seconds(lists)))
    for (int64_t T = 0; T < out->tiles; T++) {
        const struct cut *cut = &tiles[T].cut;
        cut_count(&tiles[T].cut, lists, T, out->size, single_steps);
        out->mask_ptr[T + 1] = cut_masked(cut);
        out->ptr[T + 1] = cut->n[CUT_WHOLE] + out->mask_ptr[T + 1];
        alone += cut->chunks[0] + cut->chunks[1];
        places += out->ptr[T + 1] * out->size;
    }
    out->single_steps = alone > 0 && GRANULE_SINGLE_STEPS * alone * SCHEDULE_CHUNK >= places;
}

/* Whether no granule of a tile has places that no key fills, but past the last of all keys. */
static int tile_filled(const struct granules *g, int64_t T, int64_t n_kv) {
    const int32_t *keys = g->keys + g->ptr[T + 1] - (g->mask_ptr[T + 1] - g->mask_ptr[T]);
    int filled = 1;
    for (int64_t i = g->mask_ptr[T]; i < g->mask_ptr[T + 1]; i++) {
        const int64_t count = g->masks[i].count;
        filled &= count == g->size || keys[i - g->mask_ptr[T]] + count == n_kv;
    }
    return filled;
}

/* Zero, or -1 when memory ran out. */
static int tiles_fill(struct granules *out, const struct lists *lists,
                      const struct granule_rules *rules, const struct tile_cut *tiles) {
    int filled = 1, failed = 0;
#pragma omp parallel for schedule(dynamic, 16) reduction(&& : filled) reduction(| : failed) \
    if (threads_pay(tiles_seconds(lists)))
    for (int64_t T = 0; T < out->tiles; T++) {
        struct granule_mask *masks = out->masks + out->mask_ptr[T];
        int32_t *keys = out->keys + out->ptr[T];
        const int64_t whole = tiles[T].cut.n[CUT_WHOLE], masked = cut_masked(&tiles[T].cut);
        cut_fill(&tiles[T].cut, lists, T, keys, masks);
        if (rules->step.keys && rules->step.rows < lists->tile_rows && masked > 1)
            failed |=
                balance_tile(lists, &rules->step, out->size, whole, keys + whole, masks, masked);
        if (out->score_bits)
            score_bits_fill(out->score_bits + tiles[T].bits, &tiles[T].cut, lists, masks);
        filled = filled && tile_filled(out, T, rules->n_kv);
    }
    out->filled = filled;
    return failed;
}

/* Granules [begin, end) of a tile of `count` that part `part` of `parts` computes. */
static void part_cut(int64_t count, int32_t size, int32_t part, int32_t parts, int64_t *begin,
                     int64_t *end) {
    schedule_part(count * size, part, parts, begin, end);
    *begin /= size;
    *end /= size;
}

static struct granule_item item_make(const struct granules *g, const struct lists *lists,
                                     const struct granule_rules *rules, int32_t batch_head,
                                     int32_t tile, int32_t part, int32_t parts) {
    int64_t first = batch_head * rules->stack; /* of packed heads */
    int64_t T = rules->list_of[first] * lists->tiles + tile;
    int64_t head = first % rules->heads_q;
    int64_t count = g->ptr[T + 1] - g->ptr[T];
    int64_t whole = count - (g->mask_ptr[T + 1] - g->mask_ptr[T]);
    int64_t begin, end;
    part_cut(count, g->size, part, parts, &begin, &end);
    int64_t masked = begin > whole ? begin - whole : 0;
    int64_t here = (end < whole ? end : whole) - begin;
    return (struct granule_item){
        .first = g->ptr[T] + begin,
        .mask = g->mask_ptr[T] + masked,
        .slot = -1,
        .count = (int32_t)(end - begin),
        .whole = here > 0 ? (int32_t)here : 0,
        .batch = (int32_t)(first / rules->heads_q),
        .head = (int32_t)head,
        .head_kv = (int32_t)(head / (rules->heads_q / rules->heads_kv)),
        .row = (int32_t)lists->tile_row[tile],
        .rows = (int32_t)(lists->tile_row[tile + 1] - lists->tile_row[tile]),
        .parts = parts,
    };
}

static struct granule_consumer_info consumer_info_make(const struct granules *g,
                                                       const struct lists *lists,
                                                       const struct tile_cut *tile,
                                                       const struct granule_item *item, int64_t T) {
    const int64_t begin = item->first - g->ptr[T], end = begin + item->count;
    struct granule_consumer_info consumer_info = {
        .bits = tile->bits + score_bits_before(&tile->cut, lists->tile_rows, begin),
        .uniform = (int32_t)max_i64(min_i64(end, cut_uniform(&tile->cut)) - begin, 0),
    };
    cut_single_steps(&consumer_info.single_steps, &tile->cut, begin, end);
    return consumer_info;
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

/* The worker of each item. Items without keys are assigned by themselves: on Hopper other warps do
 * them meanwhile, elsewhere they cost little. */
static int workers_choose(int32_t *worker, const struct granules *g,
                          const struct granule_item *items) {
    struct assign_item *order = array_make(g->n_items, sizeof *order);
    int64_t n = 0, empty = g->n_items;
    for (int64_t i = 0; i < g->n_items && order; i++)
        if (items[i].count)
            order[n++] = (struct assign_item){item_cost(g, &items[i]), i};
        else
            order[--empty] = (struct assign_item){1, i};
    int failed = !order;
    if (!failed)
        assign_sort(order, n, g->workers);
    failed = failed || assign_in_order(worker, order, n, g->workers) ||
             assign_in_order(worker, order + n, g->n_items - n, g->workers);
    free(order);
    return failed;
}

/* Assigns the items: place[i] is where item i of the schedule goes. */
static int items_assign(struct granules *out, const struct granule_item *items, int64_t *place) {
    int32_t *worker = array_make(out->n_items, sizeof *worker);
    int failed = !worker || workers_choose(worker, out, items);
    for (int64_t i = 0; i < out->n_items && !failed; i++)
        out->worker_ptr[worker[i] + 1]++;
    if (!failed)
        prefix_sum(out->worker_ptr, out->workers);
    for (int64_t i = 0; i < out->n_items && !failed; i++)
        place[i] = out->worker_ptr[worker[i]]++;
    for (int32_t w = out->workers; w > 0 && !failed; w--)
        out->worker_ptr[w] = out->worker_ptr[w - 1];
    out->worker_ptr[0] = 0;
    free(worker);
    return failed ? -1 : 0;
}

/* Zero, or -1 when memory ran out. */
static int items_fill(struct granules *out, const struct lists *lists,
                      const struct schedule *schedule, const struct granule_rules *rules,
                      const struct tile_cut *tiles) {
    struct granule_item *items = array_make(out->n_items, sizeof *items);
    int64_t *place = array_make(out->n_items, sizeof *place);
    int failed = !items || !place;
    for (int64_t i = 0; i < schedule->n_items && !failed; i++) {
        const struct work_item *w = &schedule->items[i];
        items[i] = item_make(out, lists, rules, w->batch_head, w->tile, w->part, w->parts);
        if (w->slot >= 0)
            items[i].slot = (w->slot - w->part) * rules->stack + w->part;
    }
    failed = failed || items_assign(out, items, place);
    for (int64_t i = 0; i < schedule->n_items && !failed; i++) {
        const struct work_item *w = &schedule->items[i];
        const int64_t T = rules->list_of[w->batch_head * rules->stack] * lists->tiles + w->tile;
        out->items[place[i]] = items[i];
        if (out->consumer_info)
            out->consumer_info[place[i]] = consumer_info_make(out, lists, &tiles[T], &items[i], T);
    }
    for (int64_t i = 0; i < schedule->n_merges * rules->stack; i++) {
        const struct merge_item *m = &schedule->merges[i / rules->stack];
        const int64_t of_stack = i % rules->stack;
        out->merges[i] = item_make(out, lists, rules, m->batch_head, m->tile, 0, m->parts);
        out->merges[i].head += (int32_t)of_stack;
        out->merges[i].slot = m->first_slot * rules->stack + of_stack * m->parts;
    }
    free(items);
    free(place);
    return failed ? -1 : 0;
}

/* The parts of *out whose sizes are known from the schedule, and those of its tiles. */
static int granules_allocate(struct granules *out, const struct granule_rules *rules) {
    out->ptr = array_make(out->tiles, sizeof *out->ptr);
    out->mask_ptr = array_make(out->tiles, sizeof *out->mask_ptr);
    out->items = array_make(out->n_items, sizeof *out->items);
    out->consumer_info =
        rules->consumer_info ? array_make(out->n_items, sizeof *out->consumer_info) : NULL;
    out->merges = array_make(out->n_merges, sizeof *out->merges);
    out->worker_ptr = array_make(out->workers, sizeof *out->worker_ptr);
    return out->ptr && out->mask_ptr && out->items &&
                   (out->consumer_info || !rules->consumer_info) && out->merges && out->worker_ptr
               ? 0
               : -1;
}

static int granules_build(struct granules *out, const struct lists *lists,
                          const struct schedule *schedule, const struct granule_rules *rules,
                          struct tile_cut *tiles) {
    tiles_count(out, lists, tiles, rules->single_steps);
    out->n = prefix_sum(out->ptr, out->tiles);
    out->n_masks = prefix_sum(out->mask_ptr, out->tiles);
    for (int64_t T = 0; T < out->tiles && rules->consumer_info; T++) {
        tiles[T].bits = out->n_bits;
        out->n_bits += score_bits_before(&tiles[T].cut, lists->tile_rows, INT64_MAX);
    }
    out->keys = array_make(out->n, sizeof *out->keys);
    out->masks = array_make(out->n_masks, sizeof *out->masks);
    out->score_bits =
        rules->consumer_info ? array_make(out->n_bits, sizeof *out->score_bits) : NULL;
    if (!out->keys || !out->masks || (rules->consumer_info && !out->score_bits))
        return -1;
    return tiles_fill(out, lists, rules, tiles) || items_fill(out, lists, schedule, rules, tiles)
               ? -1
               : 0;
}

tess_status granules_make(struct granules *out, const struct lists *lists,
                          const struct schedule *schedule, const struct granule_rules *rules,
                          tess_error *error) {
    *out = (struct granules){.size = size_choose(lists, rules->size),
                             .tiles = lists->n_lists * lists->tiles,
                             .n_items = schedule->n_items,
                             .n_merges = schedule->n_merges * rules->stack,
                             .workers = rules->workers};
    struct tile_cut *tiles = array_make(out->tiles, sizeof *tiles);
    const int failed = !tiles || granules_allocate(out, rules) ||
                       granules_build(out, lists, schedule, rules, tiles);
    free(tiles);
    if (failed)
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
    free(g->consumer_info);
    free(g->score_bits);
    free(g->merges);
    free(g->worker_ptr);
    *g = (struct granules){0};
}

size_t granules_memory(const struct granules *g) {
    return (size_t)g->n * sizeof *g->keys + (size_t)g->n_masks * sizeof *g->masks +
           (size_t)(g->n_items + g->n_merges) * sizeof *g->items +
           (g->consumer_info ? (size_t)g->n_items * sizeof *g->consumer_info : 0) +
           (size_t)g->n_bits * sizeof *g->score_bits +
           (size_t)(g->tiles + 1) * (sizeof *g->ptr + sizeof *g->mask_ptr) +
           ((size_t)g->workers + 1) * sizeof *g->worker_ptr;
}
