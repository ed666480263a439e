/* Mask groups: slices are classified, then get their masks, whose words are then filled. */
#include "lists/mask_groups.h"

#include "base/threads.h"

#include <stdlib.h>
#include <string.h>

/* Records past the last one that kernels may load ahead. */
#define RECORDS_AHEAD 4
/* Words for four slices: 64 rows. */
#define SLICES 4

/* A mask group: granules [begin, end) of tile T, of which the first of the tile are whole. */
struct group {
    const struct granules *g;
    const struct lists *lists;
    int64_t T, begin, end, whole;
    int32_t rows; /* rows of the tile */
};

static struct group group_at(const struct granules *g, const struct lists *lists, int64_t T,
                             int64_t number) {
    const int64_t each = GRANULE_GROUP / g->size, count = g->ptr[T + 1] - g->ptr[T];
    const int64_t tile = T % lists->tiles;
    return (struct group){
        .g = g,
        .lists = lists,
        .T = T,
        .begin = min_i64(number * each, count),
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

/* The first n bits, of 64. */
static uint64_t bits_first(int64_t n) {
    return n <= 0 ? 0 : UINT64_MAX >> (64 - min_i64(n, 64));
}

/* Bits of the places of a group that hold a key; *is_short: a granule has fewer than its size. */
static uint64_t keys_of(const struct group *group, int *is_short) {
    uint64_t keys = 0;
    *is_short = 0;
    for (int64_t i = group->begin; i < group->end; i++) {
        const int32_t count = mask_at(group, i).count;
        keys |= bits_first(count) << (i - group->begin) * group->g->size;
        *is_short |= count < group->g->size;
    }
    return keys;
}

/* ---- columns: which rows list a place ---- */

/* Rows w, w + 1 ... w + 63 of a tile that exist, as slices have them. */
static uint64_t rows_valid(const struct group *group, int32_t w) {
    const uint64_t valid = bits_first(group->rows - w);
    return group->lists->tile_rows == 8 ? valid | valid << 8 : valid;
}

/* Sets column[k], the rows from row w on that list place k of a group. */
static void columns_find(uint64_t *column, const struct group *group, int32_t w) {
    const uint64_t valid = bits_first(group->rows - w);
    const uint64_t *words = group->lists->words_of_rows + w / 64;
    memset(column, 0, GRANULE_GROUP * sizeof *column);
    for (int64_t i = group->begin; i < group->end; i++) {
        const struct granule_mask mask = mask_at(group, i);
        uint64_t *out = column + (i - group->begin) * group->g->size;
        for (int32_t k = 0; k < mask.count; k++)
            out[k] = valid &
                     (mask.kind == GRANULE_ALL ? UINT64_MAX
                      : mask.kind == LIST_BAND ? bits_first((int64_t)k - mask.u.band.lo - w + 1) &
                                                     ~bits_first((int64_t)k - mask.u.band.hi - w)
                      : mask.kind == LIST_MEMBERS ? words[mask.u.word]
                                                  : words[mask.u.word + k * group->lists->words]);
    }
    if (group->lists->tile_rows == 8)
        for (int k = 0; k < GRANULE_GROUP; k++)
            column[k] |= column[k] << 8;
}

/* ---- classes ---- */

/* Classes of masks. Classes from CLASS_ROWS on have one mask each. */
enum {
    CLASS_OWN = MASK_ALL + 1,
    CLASS_ROWS,                            /* + the rows */
    CLASS_COARSE = CLASS_ROWS + (1 << 16), /* + bits of rows 0 ... 7, then of rows 8 ... 15 */
    CLASS_BAND = CLASS_COARSE + (1 << 16), /* + band_class */
    CLASSES = CLASS_BAND + (1 << 20)
};

/* The class of a slice from row `row` on of a group that is one granule, a band; 0: it is not. */
static uint32_t band_class(const struct group *group, int32_t row) {
    if (group->g->size != GRANULE_GROUP || group->begin == group->end)
        return 0;
    const struct granule_mask mask = mask_at(group, group->begin);
    const int64_t least = -GRANULE_SLICE, most = GRANULE_GROUP;
    int64_t lo = least, hi = most;
    if (mask.kind == LIST_BAND) {
        lo = max_i64(least, min_i64(mask.u.band.lo + (int64_t)row, most));
        hi = max_i64(least, min_i64(mask.u.band.hi + (int64_t)row, most));
    } else if (mask.kind != GRANULE_ALL) {
        return 0;
    }
    return (uint32_t)(CLASS_BAND +
                      (((lo - least) << 7 | (hi - least)) << 6 | (int64_t)(mask.count - 1)));
}

/* Whether a slice's bytes, of 8 rows each, are all ones or all zeros; *bits: which are. */
static int bytes_whole(uint32_t slice, uint32_t *bits) {
    *bits = (slice & 1) | (slice >> 8 & 1) << 8;
    return slice == *bits * 255;
}

/* Classes of the slices from row w on, of which `n` exist. */
static void slices_classify(uint32_t *class, const struct group *group, int32_t w, int32_t n) {
    uint64_t column[GRANULE_GROUP], any[8], all[8], some = 0, every = UINT64_MAX;
    const uint64_t valid = rows_valid(group, w);
    columns_find(column, group, w);
    for (int j = 0; j < 8; j++) {
        any[j] = 0, all[j] = UINT64_MAX;
        for (int k = 8 * j; k < 8 * j + 8; k++)
            any[j] |= column[k], all[j] &= column[k];
        some |= any[j], every &= all[j];
    }
    for (int32_t s = 0; s < n; s++) {
        const int at = GRANULE_SLICE * s;
        const uint32_t of_some = some >> at & 0xffff, of_every = every >> at & 0xffff;
        const uint32_t of_valid = valid >> at & 0xffff;
        uint32_t coarse = 0, bits;
        int is_coarse = 1;
        for (int j = 0; j < 8; j++) {
            const uint32_t of_any = any[j] >> at & 0xffff;
            is_coarse &= of_any == (all[j] >> at & 0xffff) && bytes_whole(of_any, &bits);
            coarse |= is_coarse ? bits << j : 0;
        }
        /* Tiles of fewer rows share no masks: bits of their other rows are clear. */
        const uint32_t band = of_valid == 0xffff ? band_class(group, w + at) : 0;
        class[s] = !of_some               ? MASK_NONE
                   : of_every == of_valid ? MASK_ALL
                   : of_valid != 0xffff   ? CLASS_OWN
                   : of_some == of_every  ? CLASS_ROWS + of_some
                   : is_coarse            ? CLASS_COARSE + coarse
                   : band                 ? band
                                          : CLASS_OWN;
    }
}

/* ---- words ---- */

/* Transposes 8 x 8 bits: bit 8 y + x becomes bit 8 x + y. */
static uint64_t transposed(uint64_t x) {
    uint64_t t = (x ^ x >> 7) & UINT64_C(0x00aa00aa00aa00aa);
    x ^= t ^ t << 7;
    t = (x ^ x >> 14) & UINT64_C(0x0000cccc0000cccc);
    x ^= t ^ t << 14;
    t = (x ^ x >> 28) & UINT64_C(0x00000000f0f0f0f0);
    return x ^ t ^ t << 28;
}

/* Rows g and g + 8 of two places next to one another, in the order of a lane's bits. */
static uint64_t pair_of(const uint64_t *column, int at) {
    const uint64_t a = column[0] >> at, b = column[1] >> at;
    return (a & 255) | (b & 255) << 8 | (a >> 8 & 255) << 16 | (b >> 8 & 255) << 24;
}

/* Fills the words of the slice from row `at` of its columns on. */
static void words_fill(uint32_t *words, const uint64_t *column, int at) {
    memset(words, 0, 32 * sizeof *words);
    for (int t = 0; t < 4; t++)
        for (int j = 0; j < 8; j += 2) {
            const uint64_t bits = transposed(pair_of(column + 8 * j + 2 * t, at) |
                                             pair_of(column + 8 * j + 8 + 2 * t, at) << 32);
            for (int g = 0; g < 8; g++)
                words[4 * g + t] |= (uint32_t)(bits >> 8 * g & 255) << 4 * j;
        }
}

/* ---- all tiles ---- */

/* Marks masks whose words are to be filled, in records that have their mask. */
#define MASK_NEW (UINT32_C(1) << 30)
/* Masks that words can be addressed of: lanes have 32-bit offsets. */
#define MASKS (UINT32_C(1) << (32 - MASK_WORDS_BITS))

static int32_t slices_of(const struct lists *lists) {
    return (lists->tile_rows + GRANULE_SLICE - 1) / GRANULE_SLICE;
}

/* Sets keys and classes of each group. */
static void groups_classify(struct granules *g, const struct lists *lists) {
    const int32_t slices = slices_of(lists);
#pragma omp parallel for schedule(dynamic, 16) if (threads_pay(1e-6 * (double)g->n_groups))
    for (int64_t T = 0; T < g->tiles; T++)
        for (int64_t i = g->group_ptr[T]; i < g->group_ptr[T + 1]; i++) {
            const struct group group =
                group_at(g, lists, T, g->group_whole[T] + i - g->group_ptr[T]);
            uint32_t class[SLICES];
            int is_short;
            g->group_keys[i] = keys_of(&group, &is_short);
            for (int32_t s = 0; s < slices; s++) {
                if (s % SLICES == 0)
                    slices_classify(class, &group, GRANULE_SLICE * s,
                                    (int32_t)min_i64(slices - s, SLICES));
                g->records[s * g->n_groups + i] = class[s % SLICES] | (is_short ? MASK_SHORT : 0);
            }
            g->records[slices * g->n_groups + i] = MASK_NONE | (is_short ? MASK_SHORT : 0);
        }
}

/* Gives each slice its mask. */
static int masks_number(struct granules *g, const struct lists *lists) {
    const int32_t slices = slices_of(lists);
    uint32_t *mask_of = calloc(CLASSES, sizeof *mask_of), masks = MASK_ALL + 1;
    for (int64_t i = 0; i < g->n_groups && mask_of && masks < MASKS - 16; i++)
        for (int32_t s = 0; s < slices; s++) {
            uint32_t *record = &g->records[s * g->n_groups + i];
            const uint32_t class = *record & ~MASK_SHORT;
            if (class < CLASS_OWN)
                continue;
            const int is_new = class == CLASS_OWN || !mask_of[class];
            if (is_new)
                mask_of[class] = masks++;
            *record = mask_of[class] | (*record & MASK_SHORT) | (is_new ? MASK_NEW : 0);
        }
    g->n_bits = (int64_t)masks << MASK_WORDS_BITS;
    const int failed = !mask_of || masks >= MASKS - 16;
    free(mask_of);
    return failed ? -1 : 0;
}

/* Fills the words of new masks. */
static void groups_fill(struct granules *g, const struct lists *lists) {
    const int32_t slices = slices_of(lists);
    memset(g->mask_bits + (MASK_ALL << MASK_WORDS_BITS), 255, 32 * sizeof *g->mask_bits);
#pragma omp parallel for schedule(dynamic, 16) if (threads_pay(1e-6 * (double)g->n_groups))
    for (int64_t T = 0; T < g->tiles; T++)
        for (int64_t i = g->group_ptr[T]; i < g->group_ptr[T + 1]; i++) {
            const struct group group =
                group_at(g, lists, T, g->group_whole[T] + i - g->group_ptr[T]);
            uint64_t column[GRANULE_GROUP];
            int32_t found = -1; /* columns of these 64 rows */
            for (int32_t s = 0; s < slices; s++) {
                uint32_t *record = &g->records[s * g->n_groups + i];
                if (!(*record & MASK_NEW))
                    continue;
                *record &= ~MASK_NEW;
                if (found != s / SLICES)
                    columns_find(column, &group, GRANULE_SLICE * SLICES * (s / SLICES));
                found = s / SLICES;
                words_fill(g->mask_bits + ((int64_t)(*record & ~MASK_SHORT) << MASK_WORDS_BITS),
                           column, s % SLICES * GRANULE_SLICE);
            }
        }
}

int mask_groups_make(struct granules *g, const struct lists *lists) {
    g->group_ptr = calloc((size_t)g->tiles + 1, sizeof *g->group_ptr);
    g->group_whole = calloc((size_t)g->tiles + 1, sizeof *g->group_whole);
    if (!g->group_ptr || !g->group_whole)
        return -1;
    for (int64_t T = 0; T < g->tiles; T++) {
        const int64_t count = g->ptr[T + 1] - g->ptr[T], two = 2 * GRANULE_GROUP;
        const int64_t whole = count - (g->mask_ptr[T + 1] - g->mask_ptr[T]);
        g->group_whole[T] = mask_groups_whole(whole, g->size);
        g->group_ptr[T + 1] =
            g->group_ptr[T] - g->group_whole[T] + (count * g->size + two - 1) / two * 2;
    }
    g->n_groups = g->group_ptr[g->tiles];
    g->n_records = (slices_of(lists) + 1) * g->n_groups + RECORDS_AHEAD;
    g->group_keys = malloc((size_t)(g->n_groups + 1) * sizeof *g->group_keys);
    g->records = calloc((size_t)g->n_records, sizeof *g->records);
    if (!g->group_keys || !g->records)
        return -1;
    groups_classify(g, lists);
    if (masks_number(g, lists))
        return -1;
    g->mask_bits = calloc((size_t)g->n_bits, sizeof *g->mask_bits);
    if (!g->mask_bits)
        return -1;
    groups_fill(g, lists);
    return 0;
}
