/* Cuts long tiles, and puts the pieces in order by counting sort: O(items), the same every time. */
#include "plan/schedule.h"

#include "plan/assign.h"
#include "base/status.h"
#include "base/threads.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Costs are told apart to one part in this many of the largest; finer order gains nothing. */
#define SCHEDULE_BUCKETS 1024

/* In how many parts each tile is done; [i], i = batch_head * tiles + t. */
struct cuts {
    int32_t *parts;
};

static double tile_cost(const struct schedule_rules *rules, int64_t keys) {
    return rules->item_cost + rules->key_cost * (double)keys;
}

static int32_t tile_parts(const struct schedule_rules *rules, int64_t keys, double limit) {
    int64_t most = keys / rules->min_part_keys;
    double wanted = tile_cost(rules, keys) / limit;
    int64_t parts = wanted < (double)most ? (int64_t)wanted + 1 : most;
    return parts < 1 ? 1 : (int32_t)parts;
}

/* Half a worker's share: where no item costs more, with longest first, no worker ends much after the
 * others. *largest: cost of the longest tile. */
static double limit_find(const int64_t *keys, int64_t tiles, const int64_t *list_of,
                         int64_t batch_heads, const struct schedule_rules *rules, double *largest) {
    double total = 0;
    *largest = 0;
    for (int64_t bh = 0; bh < batch_heads; bh++)
        for (int64_t t = 0; t < tiles; t++) {
            const double cost = tile_cost(rules, keys[list_of[bh] * tiles + t]);
            total += cost;
            *largest = cost > *largest ? cost : *largest;
        }
    return total / (2.0 * (double)rules->workers);
}

/* Cuts tiles that cost more than `limit`. */
static void cuts_decide(struct cuts *cuts, const int64_t *keys, int64_t tiles,
                        const int64_t *list_of, int64_t batch_heads,
                        const struct schedule_rules *rules, double limit) {
    for (int64_t bh = 0; bh < batch_heads; bh++)
        for (int64_t t = 0; t < tiles; t++)
            cuts->parts[bh * tiles + t] = tile_parts(rules, keys[list_of[bh] * tiles + t], limit);
}

/* Beginnings of each head's items, combines and slots; [batch_heads] has the sums. */
struct head_places {
    int64_t items, combines, slots;
};

static void places_sum(struct head_places *places, const struct cuts *cuts, int64_t tiles,
                       int64_t batch_heads) {
    struct head_places sum = {0};
    for (int64_t bh = 0; bh < batch_heads; bh++) {
        places[bh] = sum;
        for (int64_t t = 0; t < tiles; t++) {
            int32_t parts = cuts->parts[bh * tiles + t];
            sum.items += parts;
            sum.combines += parts > 1;
            sum.slots += parts > 1 ? parts : 0;
        }
    }
    places[batch_heads] = sum;
}

/* Bucket of a part of `parts` of a tile: costly ones first. */
static int bucket_of(const struct schedule_rules *rules, int64_t keys, int32_t parts,
                     double largest) {
    double share = tile_cost(rules, keys / parts) / largest;
    int b = SCHEDULE_BUCKETS - 1 - (int)(share * (SCHEDULE_BUCKETS - 1));
    return b < 0 ? 0 : b;
}

/* Orders the items of heads first ... last - 1, which stand at places[first].items. */
static void group_fill(struct schedule *out, const struct cuts *cuts, const int64_t *keys,
                       int64_t tiles, const int64_t *list_of, const struct head_places *places,
                       int64_t first, int64_t last, const struct schedule_rules *rules) {
    double largest = 0;
    for (int64_t bh = first; bh < last; bh++)
        for (int64_t t = 0; t < tiles; t++) {
            double cost =
                tile_cost(rules, keys[list_of[bh] * tiles + t] / cuts->parts[bh * tiles + t]);
            largest = cost > largest ? cost : largest;
        }
    int64_t place[SCHEDULE_BUCKETS + 1] = {0};
    for (int64_t bh = first; bh < last; bh++)
        for (int64_t t = 0; t < tiles; t++) {
            int32_t parts = cuts->parts[bh * tiles + t];
            place[bucket_of(rules, keys[list_of[bh] * tiles + t], parts, largest) + 1] += parts;
        }
    place[0] = places[first].items;
    for (int b = 0; b < SCHEDULE_BUCKETS; b++)
        place[b + 1] += place[b];
    for (int64_t bh = first; bh < last; bh++) {
        int64_t combine = places[bh].combines, slot = places[bh].slots;
        for (int64_t t = 0; t < tiles; t++) {
            int32_t parts = cuts->parts[bh * tiles + t];
            int64_t *at = &place[bucket_of(rules, keys[list_of[bh] * tiles + t], parts, largest)];
            for (int32_t part = 0; part < parts; part++)
                out->items[(*at)++] = (struct work_item){(int32_t)bh, (int32_t)t, part, parts,
                                                         parts > 1 ? slot + part : -1};
            if (parts > 1)
                out->combines[combine++] =
                    (struct combine_item){(int32_t)bh, (int32_t)t, parts, slot};
            slot += parts > 1 ? parts : 0;
        }
    }
}

static int schedule_build(struct schedule *out, struct cuts *cuts, struct head_places *places,
                          const int64_t *keys, int64_t tiles, const int64_t *list_of,
                          int64_t batch_heads, const struct schedule_rules *rules) {
    places_sum(places, cuts, tiles, batch_heads);
    out->n_items = places[batch_heads].items;
    out->n_combines = places[batch_heads].combines;
    out->n_slots = places[batch_heads].slots;
    out->items = calloc((size_t)out->n_items + 1, sizeof *out->items);
    out->combines = calloc((size_t)out->n_combines + 1, sizeof *out->combines);
    if (!out->items || !out->combines)
        return -1;
    int64_t step = rules->heads_per_group;
    const int shared = batch_heads > step && threads_pay(20e-9 * (double)out->n_items);
#pragma omp parallel for schedule(dynamic, 1) if (shared)
    for (int64_t first = 0; first < batch_heads; first += step)
        group_fill(out, cuts, keys, tiles, list_of, places, first,
                   batch_heads - first < step ? batch_heads : first + step, rules);
    return 0;
}

/* ---- the last wave ---- */

/* A tile is cut into so many at most, however little room there is at the end. */
#define WAVE_PARTS 16

/* Costs in keys of one worker. */
struct wave {
    struct assign_item *order;
    int64_t n, item, part, total; /* item: of any; part: what a part takes more */
    struct assignment assignment;
};

static int wave_begin(struct wave *wave, const struct schedule *s, const int64_t *keys,
                      int64_t tiles, const int64_t *list_of, const struct schedule_rules *rules) {
    *wave = (struct wave){.order = malloc(((size_t)s->n_items + 1) * sizeof *wave->order),
                          .n = s->n_items,
                          .item = (int64_t)(rules->item_cost / rules->key_cost),
                          .part = (int64_t)(rules->part_cost / rules->key_cost)};
    if (!wave->order)
        return -1;
    for (int64_t i = 0; i < s->n_items; i++) {
        const struct work_item *w = &s->items[i];
        const int64_t of_tile = keys[list_of[w->batch_head] * tiles + w->tile];
        /* Rows without keys are seen to meanwhile. */
        const int64_t more = wave->item + (w->parts > 1 ? wave->part : 0);
        wave->order[i] = (struct assign_item){of_tile ? of_tile / w->parts + more : 0, i};
        wave->total += wave->order[i].cost;
    }
    assign_sort(wave->order, wave->n, (int32_t)rules->workers);
    return 0;
}

/*
 * Assigns the items; *end: when the last worker ends. Where `cuts` is given, whole tiles that would run past a
 * worker's share are cut. A tile has its cost over the room of the worker that is free first as parts, at least
 * 2. Zero, or -1 when memory ran out.
 */
static int wave_assign(struct wave *wave, const struct schedule *s, int64_t tiles,
                       struct cuts *cuts, const struct schedule_rules *rules, int64_t *end) {
    const int64_t share = wave->total / rules->workers;
    int failed = assign_begin(&wave->assignment, (int32_t)rules->workers);
    for (int64_t i = 0; i < wave->n && !failed; i++) {
        const struct work_item *w = &s->items[wave->order[i].number];
        const int64_t keys = wave->order[i].cost - wave->item;
        const int64_t room = share - assign_least(&wave->assignment);
        const int64_t most = min_i64(keys / rules->min_part_keys, WAVE_PARTS);
        int64_t parts = 1;
        if (cuts && w->parts == 1 && keys > room && most > 1) {
            /* Rounded down: of equal tiles, parts for more workers than there are would end last. */
            parts = room > 0 ? min_i64(max_i64(wave->order[i].cost / room, 2), most) : most;
            cuts->parts[w->batch_head * tiles + w->tile] = (int32_t)parts;
        }
        for (int64_t part = 0; part < parts; part++)
            assign_next(&wave->assignment,
                        keys / parts + wave->item + (parts > 1 ? wave->part : 0));
    }
    *end = failed ? 0 : assign_most(&wave->assignment);
    assign_free(&wave->assignment);
    return failed;
}

/* Cuts tiles that all but a few workers would wait for at the end, where that saves more than merging
 * them costs: then *cut. *end: when all is done, combines included. Zero, or -1 when memory ran out. */
static int wave_cut(struct cuts *cuts, const struct schedule *s, const int64_t *keys, int64_t tiles,
                    const int64_t *list_of, int64_t batch_heads, const struct schedule_rules *rules,
                    int *cut, int64_t *end) {
    const size_t bytes = (size_t)(batch_heads * tiles) * sizeof *cuts->parts;
    struct wave wave;
    struct cuts even = {malloc(bytes + 1)};
    int64_t whole = 0, parts = 0, combine = 0;
    int failed = wave_begin(&wave, s, keys, tiles, list_of, rules) || !even.parts;
    if (!failed) {
        combine = (int64_t)(rules->combine_cost / rules->key_cost / (double)rules->workers);
        memcpy(even.parts, cuts->parts, bytes);
        failed = wave_assign(&wave, s, tiles, NULL, rules, &whole) ||
                 wave_assign(&wave, s, tiles, &even, rules, &parts);
        whole += s->n_combines > 0 ? combine : 0;
        parts += combine;
    }
    *cut = !failed && parts < whole;
    *end = *cut ? parts : whole;
    if (*cut)
        memcpy(cuts->parts, even.parts, bytes);
    free(even.parts);
    free(wave.order);
    return failed;
}

/* A schedule of tiles that are cut where they cost more than `limit`, and for the last wave. *end: when
 * all is done, in keys of one worker, where merging has a cost. Zero, or -1 when memory ran out. */
static int schedule_try(struct schedule *out, struct cuts *cuts, struct head_places *places,
                        const int64_t *keys, int64_t tiles, const int64_t *list_of,
                        int64_t batch_heads, const struct schedule_rules *rules, double limit,
                        int64_t *end) {
    int cut = 0;
    *end = 0;
    cuts_decide(cuts, keys, tiles, list_of, batch_heads, rules, limit);
    int failed = schedule_build(out, cuts, places, keys, tiles, list_of, batch_heads, rules);
    if (!failed && rules->combine_cost > 0)
        failed = wave_cut(cuts, out, keys, tiles, list_of, batch_heads, rules, &cut, end);
    if (!failed && cut) {
        schedule_free(out);
        failed = schedule_build(out, cuts, places, keys, tiles, list_of, batch_heads, rules);
    }
    return failed;
}

tess_status schedule_make(struct schedule *out, const int64_t *keys, int64_t tiles,
                          const int64_t *list_of, int64_t batch_heads,
                          const struct schedule_rules *rules, tess_error *error) {
    *out = (struct schedule){0};
    struct cuts cuts = {calloc((size_t)(batch_heads * tiles) + 1, sizeof *cuts.parts)};
    struct head_places *places = calloc((size_t)batch_heads + 1, sizeof *places);
    struct schedule whole = {0};
    double largest;
    const double limit = limit_find(keys, tiles, list_of, batch_heads, rules, &largest);
    int64_t end = 0, end_whole = INT64_MAX;
    int failed = !cuts.parts || !places;
    if (!failed && rules->may_stay_whole && rules->combine_cost > 0 && largest > limit)
        failed = schedule_try(&whole, &cuts, places, keys, tiles, list_of, batch_heads, rules,
                              INFINITY, &end_whole);
    if (!failed)
        failed =
            schedule_try(out, &cuts, places, keys, tiles, list_of, batch_heads, rules, limit, &end);
    if (!failed && end_whole <= end) {
        schedule_free(out);
        *out = whole;
    } else {
        schedule_free(&whole);
    }
    free(cuts.parts);
    free(places);
    if (failed)
        return error_set(error, TESS_OUT_OF_MEMORY, "tess_plan_create", NULL,
                         "out of memory while scheduling %lld tiles for %lld heads",
                         (long long)tiles, (long long)batch_heads);
    return TESS_OK;
}

void schedule_free(struct schedule *schedule) {
    free(schedule->items);
    free(schedule->combines);
    *schedule = (struct schedule){0};
}

size_t schedule_memory(const struct schedule *schedule) {
    return (size_t)schedule->n_items * sizeof *schedule->items +
           (size_t)schedule->n_combines * sizeof *schedule->combines;
}
