/* Mask groups: each group is classified, then gets its words, then fills them. */
#include "lists/mask_groups.h"

#include "base/threads.h"
#include "lists/pack.h"

#include <stdlib.h>
#include <string.h>

/* Kinds of groups, in granule_group.at until a group has its words. */
enum kind { KIND_ALL, KIND_COARSE, KIND_BAND, KIND_FINE };

/* A mask group: granules [begin, end) of tile T, which has `whole` whole granules. */
struct group {
    const struct granules *g;
    const struct lists *lists;
    int64_t T, begin, end, whole;
    int32_t rows; /* of the tile */
};

/* Words of a fine mask, for all rows of a tile. */
static int64_t words_fine(const struct lists *lists) {
    return (int64_t)(lists->tile_rows + 15) / 16 * 32;
}

static struct group group_at(const struct granules *g, const struct lists *lists, int64_t T,
                             int64_t number) {
    const int64_t each = GRANULE_GROUP / g->size, count = g->ptr[T + 1] - g->ptr[T];
    const int64_t tile = T % lists->tiles;
    return (struct group){
        .g = g,
        .lists = lists,
        .T = T,
        .begin = number * each,
        .end = min_i64((number + 1) * each, count),
        .whole = count - (g->mask_ptr[T + 1] - g->mask_ptr[T]),
        .rows = (int32_t)(lists->tile_row[tile + 1] - lists->tile_row[tile]),
    };
}

static struct granule_mask mask_at(const struct group *group, int64_t i) {
    if (i < group->whole)
        return (struct granule_mask){.count = (int16_t)group->g->size, .kind = GRANULE_ALL};
    return group->g->masks[group->g->mask_ptr[group->T] + i - group->whole];
}

/* Bits 8 o ... 8 o + 7 of a row mask. Rows past the tile's end have no bits. */
static uint32_t rows_eight(const struct group *group, const struct granule_mask *mask, int32_t o) {
    const int32_t valid = group->rows - 8 * o;
    const uint64_t word =
        mask->kind == GRANULE_ALL ? UINT64_MAX : group->lists->words_of_rows[mask->u.word + o / 8];
    return (uint32_t)(word >> o % 8 * 8) & 255u & (valid < 8 ? (1u << valid) - 1 : 255u);
}

/* Whether each 8 rows list each 8 places of a group all or not at all. */
static int is_coarse(const struct group *group) {
    if (group->g->size % 8)
        return 0;
    for (int64_t i = group->begin; i < group->end; i++) {
        const struct granule_mask mask = mask_at(group, i);
        if (mask.count % 8 || mask.kind == LIST_BAND || mask.kind == LIST_BITS)
            return 0;
        for (int32_t o = 0; 8 * o < group->rows; o++) {
            const uint32_t eight = rows_eight(group, &mask, o);
            const int32_t valid = group->rows - 8 * o;
            if (eight && eight != (valid < 8 ? (1u << valid) - 1 : 255u))
                return 0;
        }
    }
    return 1;
}

/* Whether all rows list all keys of a group. */
static int is_all(const struct group *group) {
    for (int64_t i = group->begin; i < group->end; i++)
        if (mask_at(group, i).kind != GRANULE_ALL)
            return 0;
    return 1;
}

static int is_short(const struct group *group) {
    for (int64_t i = group->begin; i < group->end; i++)
        if (mask_at(group, i).count < group->g->size)
            return 1;
    return 0;
}

/* ---- equal bands ---- */

#define BAND_SLOTS 4096 /* bands that can share words; further bands have words of their own */

struct bands {
    uint64_t key[BAND_SLOTS]; /* 0: free */
    int64_t at[BAND_SLOTS];
};

/* A number for each different band of up to 64 keys, never 0; 0: the group is no band. */
static uint64_t band_key(const struct group *group) {
    if (group->g->size != GRANULE_GROUP || group->begin < group->whole)
        return 0;
    const struct granule_mask mask = mask_at(group, group->begin);
    if (mask.kind != LIST_BAND)
        return 0;
    const int64_t lo = max_i64(mask.u.band.lo, -PACK_MAX_ROWS);
    const int64_t hi = min_i64(mask.u.band.hi, GRANULE_GROUP);
    return ((uint64_t)(lo + PACK_MAX_ROWS) << 32 | (uint64_t)(hi + PACK_MAX_ROWS) << 8 |
            (uint64_t)mask.count) +
           1;
}

/* The slot of a band, or a free slot for the band; -1: the table is full. */
static int64_t band_slot(const struct bands *bands, uint64_t key) {
    const uint64_t first = key * UINT64_C(0x9E3779B97F4A7C15) >> 52;
    for (uint64_t i = 0; i < BAND_SLOTS; i++) {
        const uint64_t slot = (first + i) % BAND_SLOTS;
        if (!bands->key[slot] || bands->key[slot] == key)
            return (int64_t)slot;
    }
    return -1;
}

/* ---- words ---- */

/* Sets places[r], one bit for each place of a group that row r lists. */
static void rows_find(uint64_t *places, const struct group *group) {
    memset(places, 0, (size_t)group->lists->tile_rows * sizeof *places);
    for (int64_t i = group->begin; i < group->end; i++) {
        const struct granule_mask mask = mask_at(group, i);
        const int64_t at = (i - group->begin) * group->g->size;
        const uint64_t all = (mask.count < 64 ? (UINT64_C(1) << mask.count) - 1 : UINT64_MAX) << at;
        for (int32_t r = 0; r < group->rows; r++) {
            if (mask.kind == GRANULE_ALL) {
                places[r] |= all;
            } else if (mask.kind == LIST_BAND) {
                const int64_t first = max_i64(r + (int64_t)mask.u.band.lo, 0);
                const int64_t last = min_i64(r + (int64_t)mask.u.band.hi, mask.count - 1);
                if (first <= last)
                    places[r] |= (UINT64_MAX >> (63 - (last - first))) << (at + first);
            } else {
                const int bits = mask.kind == LIST_BITS;
                for (int64_t k = 0; k < (bits ? mask.count : 1); k++) {
                    const uint64_t *rows = group->lists->words_of_rows + mask.u.word +
                                           (bits ? k * group->lists->words : 0);
                    if (rows[r / 64] >> r % 64 & 1)
                        places[r] |= bits ? UINT64_C(1) << (at + k) : all;
                }
            }
        }
    }
}

static void fill_fine(uint32_t *words, const uint64_t *places, int32_t tile_rows) {
    for (int32_t r = 0; r < tile_rows; r++) {
        uint32_t *of = words + r / 16 * 32 + r % 8 * 4;
        for (int j = 0; j < 8; j++)
            for (int t = 0; t < 4; t++)
                of[t] |= (uint32_t)(places[r] >> (8 * j + 2 * t) & 3) << (r / 8 % 2 * 16 + 2 * j);
    }
}

static void fill_coarse(uint32_t *words, const struct group *group) {
    for (int64_t i = group->begin; i < group->end; i++) {
        const struct granule_mask mask = mask_at(group, i);
        const int64_t j = (i - group->begin) * group->g->size / 8;
        const uint32_t eights = (1u << mask.count / 8) - 1;
        for (int32_t o = 0; 8 * o < group->rows; o++)
            if (rows_eight(group, &mask, o))
                words[o / 2] |= eights << (o % 2 * 8 + j);
    }
}

/* Bits of the places of a group that hold a key. */
static uint64_t keys_of(const struct group *group) {
    uint64_t keys = 0;
    for (int64_t i = group->begin; i < group->end; i++) {
        const int32_t count = mask_at(group, i).count;
        keys |= (count < 64 ? (UINT64_C(1) << count) - 1 : UINT64_MAX)
                << (i - group->begin) * group->g->size;
    }
    return keys;
}

/* ---- all tiles ---- */

static enum kind kind_of(const struct group *group) {
    return is_all(group)      ? KIND_ALL
           : is_coarse(group) ? KIND_COARSE
           : band_key(group)  ? KIND_BAND
                              : KIND_FINE;
}

/* Gives each group its words. Marks groups in `filled` that have no words, or share those of an earlier
 * group. */
static int groups_place(struct granules *g, const struct lists *lists, unsigned char *filled) {
    const int64_t fine = words_fine(lists), coarse = fine / 32;
    struct bands *bands = calloc(1, sizeof *bands);
    for (int64_t T = 0, i = 0; T < g->tiles && bands; T++) {
        const int64_t first = i - g->group_whole[T];
        for (; i < g->group_ptr[T + 1]; i++) {
            struct granule_group *record = &g->groups[i];
            const enum kind kind = (enum kind)record->at;
            const struct group group = group_at(g, lists, T, i - first);
            const uint64_t key = kind == KIND_BAND ? band_key(&group) : 0;
            const int64_t slot = kind == KIND_BAND ? band_slot(bands, key) : -1;
            const int again = slot >= 0 && bands->key[slot] != 0;
            const int64_t word = kind == KIND_ALL ? -1 : again ? bands->at[slot] : g->n_bits;
            record->at = word * (1 << GROUP_SHIFT) + (kind == KIND_COARSE ? GROUP_COARSE : 0) +
                         (is_short(&group) ? GROUP_SHORT : 0);
            filled[i] = again || kind == KIND_ALL;
            if (filled[i])
                continue;
            g->n_bits += kind == KIND_COARSE ? coarse : fine;
            if (slot >= 0)
                bands->key[slot] = key, bands->at[slot] = word;
        }
    }
    free(bands);
    return bands ? 0 : -1;
}

/* Sets keys and kind of each group. */
static void groups_classify(struct granules *g, const struct lists *lists) {
#pragma omp parallel for schedule(dynamic, 16) if (threads_pay(1e-6 * (double)g->n_groups))
    for (int64_t T = 0; T < g->tiles; T++)
        for (int64_t i = g->group_ptr[T]; i < g->group_ptr[T + 1]; i++) {
            const struct group group =
                group_at(g, lists, T, g->group_whole[T] + i - g->group_ptr[T]);
            g->groups[i] = (struct granule_group){keys_of(&group), kind_of(&group)};
        }
}

/* Fills the words of the other groups. */
static void groups_fill(struct granules *g, const struct lists *lists,
                        const unsigned char *filled) {
#pragma omp parallel for schedule(dynamic, 16) if (threads_pay(1e-6 * (double)g->n_groups))
    for (int64_t T = 0; T < g->tiles; T++)
        for (int64_t i = g->group_ptr[T]; i < g->group_ptr[T + 1]; i++) {
            struct group group = group_at(g, lists, T, g->group_whole[T] + i - g->group_ptr[T]);
            uint64_t places[PACK_MAX_ROWS];
            if (filled[i])
                continue;
            uint32_t *words = g->mask_bits + (g->groups[i].at >> GROUP_SHIFT);
            if (band_key(&group)) /* tiles of more rows may share the words */
                group.rows = lists->tile_rows;
            if (g->groups[i].at & GROUP_COARSE) {
                fill_coarse(words, &group);
            } else {
                rows_find(places, &group);
                fill_fine(words, places, lists->tile_rows);
            }
        }
}

int mask_groups_make(struct granules *g, const struct lists *lists) {
    g->group_ptr = calloc((size_t)g->tiles + 1, sizeof *g->group_ptr);
    g->group_whole = calloc((size_t)g->tiles + 1, sizeof *g->group_whole);
    if (!g->group_ptr || !g->group_whole)
        return -1;
    for (int64_t T = 0; T < g->tiles; T++) {
        const int64_t count = g->ptr[T + 1] - g->ptr[T];
        const int64_t whole = count - (g->mask_ptr[T + 1] - g->mask_ptr[T]);
        g->group_whole[T] = mask_groups_whole(whole, g->size);
        g->group_ptr[T + 1] = g->group_ptr[T] - g->group_whole[T] +
                              (count * g->size + GRANULE_GROUP - 1) / GRANULE_GROUP;
    }
    g->n_groups = g->group_ptr[g->tiles];
    g->groups = calloc((size_t)g->n_groups + 1, sizeof *g->groups);
    unsigned char *filled = calloc((size_t)g->n_groups + 1, 1);
    int failed = !g->groups || !filled;
    if (!failed) {
        groups_classify(g, lists);
        failed = groups_place(g, lists, filled);
    }
    if (!failed) {
        g->mask_bits = calloc((size_t)g->n_bits + 1, sizeof *g->mask_bits);
        failed = !g->mask_bits;
    }
    if (!failed)
        groups_fill(g, lists, filled);
    free(filled);
    return failed ? -1 : 0;
}
