/*
 * Balanced steps: granules are sorted by the warps that list them, then taken a group of places at
 * a time. Each time those are taken that leave the step's warps nearest to an equal share. Kernels
 * that pass over steps have them as they were sorted.
 */
#include "lists/balance.h"

#include <stdlib.h>
#include <string.h>

#define GROUP 8 /* places that a warp computes or passes over together */
#define WARPS 8 /* at most */
#define SETS (1 << WARPS)
#define HALF_SETS (1 << WARPS / 2)
#define ROWS_MAX 256 /* rows of a tile */

/* The granules of a tile by the set of warps that list them. */
struct sets {
    int64_t first[SETS + 1]; /* set s: by[first[s]] ... by[first[s + 1] - 1] */
    int64_t taken[SETS];
    int64_t *by;
    int32_t some[SETS]; /* sets with granules that are not taken, those of few warps first */
    int32_t n_some;
};

/* A step while it is filled. */
struct fill {
    int64_t left;        /* granules that were not taken when it began */
    int64_t tot[WARPS];  /* granules that each warp lists */
    int64_t load[WARPS]; /* load of the step */
    int64_t placed;
};

/* The warps, of `rows` rows each, that have rows [first, last] of the tile. */
static int32_t warps_of(int64_t first, int64_t last, int32_t rows) {
    first = max_i64(first, 0) / rows;
    last = min_i64(last, ROWS_MAX - 1) / rows;
    return first > last ? 0 : (int32_t)((2u << last) - (1u << first));
}

static int32_t warps_of_words(const uint64_t *words, int32_t n, int32_t rows) {
    int32_t warps = 0;
    for (int32_t row = 0; row < 64 * n; row += rows)
        if (words[row / 64] >> row % 64 & (UINT64_MAX >> (64 - rows)))
            warps |= 1 << row / rows;
    return warps;
}

/* The warps that list a key of a granule. */
static int32_t set_of(const struct lists *lists, const struct granule_mask *mask, int32_t rows) {
    if (mask->kind == GRANULE_ALL)
        return warps_of(0, lists->tile_rows - 1, rows);
    if (mask->kind == LIST_BAND)
        return warps_of(-(int64_t)mask->u.band.hi,
                        min_i64(mask->count - 1 - (int64_t)mask->u.band.lo, lists->tile_rows - 1),
                        rows);
    const uint64_t *words = lists->words_of_rows + mask->u.word;
    int32_t warps = 0;
    for (int32_t k = 0; k < (mask->kind == LIST_BITS ? mask->count : 1); k++)
        warps |= warps_of_words(words + k * lists->words, lists->words, rows);
    return warps;
}

/* Sorts granules by their sets, in each as they stood; tot: how many each warp lists. */
static void sets_make(struct sets *sets, const uint8_t *set, int64_t n, int64_t *tot) {
    for (int64_t i = 0; i < n; i++)
        sets->first[set[i] + 1]++;
    for (int32_t s = 0; s < SETS; s++) {
        for (int w = 0; w < WARPS; w++)
            tot[w] += (s >> w & 1) * sets->first[s + 1];
        sets->first[s + 1] += sets->first[s];
    }
    for (int64_t i = 0; i < n; i++)
        sets->by[sets->first[set[i]] + sets->taken[set[i]]++] = i;
    memset(sets->taken, 0, sizeof sets->taken);
    for (int count = 0; count <= WARPS; count++)
        for (int32_t s = 0; s < SETS; s++)
            if (__builtin_popcount((unsigned)s) == count && sets->first[s] < sets->first[s + 1])
                sets->some[sets->n_some++] = s;
}

/* Index in `some` of the step's next set, for `room` granules. At first granules of the fewest warps, which
 * leave most choice for the others. Then granules by which the squares of what each warp has more than its
 * share, summed over the warps of a set, grow least. */
static int32_t set_choose(const struct sets *sets, const struct fill *fill, int64_t room) {
    int64_t grows[2][HALF_SETS] = {{0}}, least = INT64_MAX;
    int32_t best = 0;
    if (!fill->placed)
        return 0;
    for (int w = 0; w < WARPS; w++) {
        const int64_t more =
            2 * (fill->load[w] * fill->left - fill->tot[w] * (fill->placed + room)) +
            room * fill->left;
        const int bit = 1 << w % (WARPS / 2);
        for (int s = 0; s < bit; s++)
            grows[w / (WARPS / 2)][bit + s] = grows[w / (WARPS / 2)][s] + more;
    }
    for (int32_t i = 0; i < sets->n_some; i++) {
        const int32_t s = sets->some[i];
        const int64_t grow = grows[0][s % HALF_SETS] + grows[1][s / HALF_SETS];
        if (grow < least)
            least = grow, best = i;
    }
    return best;
}

/* Takes up to `room` granules of one set for the step, into `order`; answers how many. */
static int64_t set_take(struct sets *sets, struct fill *fill, int64_t room, int64_t *order) {
    const int32_t i = set_choose(sets, fill, room), s = sets->some[i];
    const int64_t left = sets->first[s + 1] - sets->first[s] - sets->taken[s];
    const int64_t taken = min_i64(room, left);
    memcpy(order, sets->by + sets->first[s] + sets->taken[s], (size_t)taken * sizeof *order);
    sets->taken[s] += taken;
    fill->placed += taken;
    for (int w = 0; w < WARPS; w++)
        fill->load[w] += (s >> w & 1) * taken;
    if (taken == left) {
        sets->n_some--;
        memmove(sets->some + i, sets->some + i + 1,
                (size_t)(sets->n_some - i) * sizeof *sets->some);
    }
    return taken;
}

/* The order of n granules, the first of which stands at place `at` of its step. */
static void order_make(int64_t *order, struct sets *sets, int64_t n, int64_t at, int64_t each,
                       int64_t group, int64_t *tot) {
    for (int64_t i = 0; i < n;) {
        struct fill fill = {.left = n - i};
        const int64_t end = min_i64(n, i + each - at % each);
        memcpy(fill.tot, tot, sizeof fill.tot);
        while (i < end) {
            const int64_t taken =
                set_take(sets, &fill, min_i64(end - i, group - at % group), order + i);
            i += taken;
            at += taken;
        }
        for (int w = 0; w < WARPS; w++)
            tot[w] -= fill.load[w];
    }
}

int balance_tile(const struct lists *lists, const struct granule_step *step, int32_t size,
                 int64_t whole, int32_t *keys, struct granule_mask *masks, int64_t n) {
    const int64_t each = step->keys / size, group = size < GROUP ? GROUP / size : 1;
    int64_t tot[WARPS] = {0};
    struct sets sets = {.by = malloc((size_t)n * sizeof *sets.by)};
    int64_t *order = malloc((size_t)n * sizeof *order);
    uint8_t *set = malloc((size_t)n);
    struct granule_mask *masks_were = malloc((size_t)n * sizeof *masks);
    int32_t *keys_were = malloc((size_t)n * sizeof *keys);
    const int failed = !sets.by || !order || !set || !masks_were || !keys_were;
    if (!failed) {
        memcpy(masks_were, masks, (size_t)n * sizeof *masks);
        memcpy(keys_were, keys, (size_t)n * sizeof *keys);
        for (int64_t i = 0; i < n; i++)
            set[i] = (uint8_t)set_of(lists, &masks[i], step->rows);
        sets_make(&sets, set, n, tot);
        order_make(order, &sets, n, whole, each, group, tot);
        for (int64_t i = 0; i < n; i++)
            keys[i] = keys_were[order[i]], masks[i] = masks_were[order[i]];
    }
    free(sets.by);
    free(order);
    free(set);
    free(masks_were);
    free(keys_were);
    return failed ? -1 : 0;
}

/* The place of a set of `warps` warps in an order where neighbours differ by one warp (Gray code),
 * counted from warp `first` on. */
static int32_t set_rank(int32_t set, int32_t warps, int32_t first) {
    uint32_t rank = (((uint32_t)set << warps | (uint32_t)set) >> first) & ((1u << warps) - 1);
    for (int step = 1; step < warps; step *= 2)
        rank ^= rank >> step;
    return (int32_t)rank;
}

int balance_sort(const struct lists *lists, int64_t tile, int32_t *keys, struct granule_mask *masks,
                 int64_t n) {
    const int32_t warps = (lists->tile_rows + GRANULE_SLICE - 1) / GRANULE_SLICE;
    const int32_t first =
        (int32_t)((uint64_t)((uint32_t)tile * UINT32_C(0x9E3779B9)) * (uint64_t)warps >> 32);
    if (warps == 1)
        return 0;
    int64_t *end = calloc((size_t)2 << warps, sizeof *end);
    uint16_t *rank = malloc((size_t)n * sizeof *rank);
    struct granule_mask *masks_were = malloc((size_t)n * sizeof *masks);
    int32_t *keys_were = malloc((size_t)n * sizeof *keys);
    const int failed = !end || !rank || !masks_were || !keys_were;
    if (!failed) {
        memcpy(masks_were, masks, (size_t)n * sizeof *masks);
        memcpy(keys_were, keys, (size_t)n * sizeof *keys);
        for (int64_t i = 0; i < n; i++) {
            rank[i] = (uint16_t)set_rank(set_of(lists, &masks[i], GRANULE_SLICE), warps, first);
            end[rank[i] + 1]++;
        }
        for (int32_t s = 0; s < 1 << warps; s++)
            end[s + 1] += end[s];
        for (int64_t i = 0; i < n; i++) {
            const int64_t to = end[rank[i]]++;
            keys[to] = keys_were[i], masks[to] = masks_were[i];
        }
    }
    free(end);
    free(rank);
    free(masks_were);
    free(keys_were);
    return failed ? -1 : 0;
}
