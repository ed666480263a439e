/* Cuts long tiles, and puts the pieces in order by counting sort: O(items), the same every time. */
#include "schedule.h"

#include "status.h"

#include <stdlib.h>

/* Costs are told apart to one part in this many of the largest; finer order gains nothing. */
#define SCHEDULE_BUCKETS 1024

/* How the tiles of all lists are cut; [T], T = list * tiles + t. */
struct cuts {
    int32_t *parts;
    int64_t *slot; /* first slot among those of the list */
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

static void cuts_decide(struct cuts *cuts, const int64_t *keys, int64_t tiles, int64_t n_lists,
                        const int64_t *list_of, int64_t batch_heads,
                        const struct schedule_rules *rules) {
    double total = 0;
    for (int64_t bh = 0; bh < batch_heads; bh++)
        for (int64_t t = 0; t < tiles; t++)
            total += tile_cost(rules, keys[list_of[bh] * tiles + t]);
    /* Half a worker's share: with longest first, no worker then ends much after the others. */
    double limit = total / (2.0 * (double)rules->workers);
    for (int64_t l = 0; l < n_lists; l++) {
        int64_t slots = 0;
        for (int64_t T = l * tiles; T < (l + 1) * tiles; T++) {
            cuts->parts[T] = tile_parts(rules, keys[T], limit);
            cuts->slot[T] = slots;
            slots += cuts->parts[T] > 1 ? cuts->parts[T] : 0;
        }
    }
}

/* Where each head's items, merges and slots begin; [batch_heads] has the sums. */
struct head_places {
    int64_t items, merges, slots;
};

static void places_sum(struct head_places *places, const struct cuts *cuts, int64_t tiles,
                       const int64_t *list_of, int64_t batch_heads) {
    struct head_places sum = {0};
    for (int64_t bh = 0; bh < batch_heads; bh++) {
        places[bh] = sum;
        for (int64_t t = 0; t < tiles; t++) {
            int32_t parts = cuts->parts[list_of[bh] * tiles + t];
            sum.items += parts;
            sum.merges += parts > 1;
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
            int64_t T = list_of[bh] * tiles + t;
            double cost = tile_cost(rules, keys[T] / cuts->parts[T]);
            largest = cost > largest ? cost : largest;
        }
    int64_t place[SCHEDULE_BUCKETS + 1] = {0};
    for (int64_t bh = first; bh < last; bh++)
        for (int64_t t = 0; t < tiles; t++) {
            int64_t T = list_of[bh] * tiles + t;
            place[bucket_of(rules, keys[T], cuts->parts[T], largest) + 1] += cuts->parts[T];
        }
    place[0] = places[first].items;
    for (int b = 0; b < SCHEDULE_BUCKETS; b++)
        place[b + 1] += place[b];
    for (int64_t bh = first; bh < last; bh++) {
        int64_t merge = places[bh].merges;
        for (int64_t t = 0; t < tiles; t++) {
            int64_t T = list_of[bh] * tiles + t;
            int32_t parts = cuts->parts[T];
            int64_t slot = places[bh].slots + cuts->slot[T];
            int64_t *at = &place[bucket_of(rules, keys[T], parts, largest)];
            for (int32_t part = 0; part < parts; part++)
                out->items[(*at)++] = (struct work_item){(int32_t)bh, (int32_t)t, part, parts,
                                                         parts > 1 ? slot + part : -1};
            if (parts > 1)
                out->merges[merge++] = (struct merge_item){(int32_t)bh, (int32_t)t, parts, slot};
        }
    }
}

static int schedule_build(struct schedule *out, struct cuts *cuts, struct head_places *places,
                          const int64_t *keys, int64_t tiles, const int64_t *list_of,
                          int64_t batch_heads, const struct schedule_rules *rules) {
    places_sum(places, cuts, tiles, list_of, batch_heads);
    out->n_items = places[batch_heads].items;
    out->n_merges = places[batch_heads].merges;
    out->n_slots = places[batch_heads].slots;
    out->items = calloc((size_t)out->n_items + 1, sizeof *out->items);
    out->merges = calloc((size_t)out->n_merges + 1, sizeof *out->merges);
    if (!out->items || !out->merges)
        return -1;
    int64_t step = rules->heads_per_group;
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t first = 0; first < batch_heads; first += step)
        group_fill(out, cuts, keys, tiles, list_of, places, first,
                   batch_heads - first < step ? batch_heads : first + step, rules);
    return 0;
}

tess_status schedule_make(struct schedule *out, const int64_t *keys, int64_t tiles,
                          const int64_t *list_of, int64_t batch_heads,
                          const struct schedule_rules *rules, tess_error *error) {
    *out = (struct schedule){0};
    int64_t n_lists = 0;
    for (int64_t bh = 0; bh < batch_heads; bh++)
        n_lists = list_of[bh] >= n_lists ? list_of[bh] + 1 : n_lists;
    struct cuts cuts = {calloc((size_t)(n_lists * tiles) + 1, sizeof *cuts.parts),
                        calloc((size_t)(n_lists * tiles) + 1, sizeof *cuts.slot)};
    struct head_places *places = calloc((size_t)batch_heads + 1, sizeof *places);
    int failed = !cuts.parts || !cuts.slot || !places;
    if (!failed) {
        cuts_decide(&cuts, keys, tiles, n_lists, list_of, batch_heads, rules);
        failed = schedule_build(out, &cuts, places, keys, tiles, list_of, batch_heads, rules);
    }
    free(cuts.parts);
    free(cuts.slot);
    free(places);
    if (failed)
        return error_set(error, TESS_OUT_OF_MEMORY, "tess_plan_create", NULL,
                         "out of memory while scheduling %lld tiles for %lld heads",
                         (long long)tiles, (long long)batch_heads);
    return TESS_OK;
}

void schedule_free(struct schedule *schedule) {
    free(schedule->items);
    free(schedule->merges);
    *schedule = (struct schedule){0};
}

size_t schedule_memory(const struct schedule *schedule) {
    return (size_t)schedule->n_items * sizeof *schedule->items +
           (size_t)schedule->n_merges * sizeof *schedule->merges;
}
