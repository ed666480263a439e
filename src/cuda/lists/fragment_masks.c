/* Score bits, chunk by chunk, from the masks of its granules. */
#include "lists/fragment_masks.h"

/* Words for two rows of a chunk of whole granules and uniform masks. */
static int32_t uniform_words(const struct cut *cut) {
    return cut->size < 8 ? 8 : 1;
}

/* Chunks of a tile: of whole granules; of these and uniform masks; all. */
static void chunks_of(const struct cut *cut, int64_t *whole, int64_t *uniform, int64_t *all) {
    const int64_t each = SCHEDULE_CHUNK / cut->size;
    *whole = cut->n[CUT_WHOLE] / each;
    *uniform = cut_uniform(cut) / each;
    *all = (cut->n[CUT_WHOLE] + cut_masked(cut) + each - 1) / each;
}

int64_t score_bits_before(const struct cut *cut, int32_t tile_rows, int64_t end) {
    int64_t whole, uniform, all;
    chunks_of(cut, &whole, &uniform, &all);
    const int64_t chunk = min_i64(end / (SCHEDULE_CHUNK / cut->size), all);
    return (max_i64(min_i64(chunk, uniform) - whole, 0) * uniform_words(cut) +
            max_i64(chunk - uniform, 0) * 8) *
           (tile_rows / 2);
}

/* Rows 64 w ... 64 w + 63 that list key k of a granule. */
static uint64_t rows_of(const struct lists *lists, const struct granule_mask *mask, int64_t k,
                        int32_t w) {
    if (k >= mask->count)
        return 0;
    if (mask->kind == GRANULE_ALL)
        return UINT64_MAX;
    if (mask->kind != LIST_BAND)
        return lists
            ->words_of_rows[mask->u.word + w + (mask->kind == LIST_BITS ? k * lists->words : 0)];
    const int64_t first = max_i64(k - mask->u.band.hi - 64 * w, 0);
    const int64_t last = min_i64(k - mask->u.band.lo - 64 * w, 63);
    return first > last ? 0 : UINT64_MAX << first & UINT64_MAX >> (63 - last);
}

/* Sets the bits of the places of a granule that begins at place `at` of its chunk, whose rows have
 * `words` words. */
static void bits_set(uint32_t *chunk, int32_t words, const struct cut *cut,
                     const struct lists *lists, int64_t at, const struct granule_mask *mask) {
    const int64_t piece = 8 / words;
    for (int32_t w = 0; w < lists->words; w++)
        for (int64_t k = 0; k < cut->size; k += piece) {
            const int64_t j = (at + k) / 8, word = (at + k) % 8 / piece;
            uint64_t rows = rows_of(lists, mask, k, w);
            if (lists->tile_rows - 64 * w < 64)
                rows &= (UINT64_C(1) << (lists->tile_rows - 64 * w)) - 1;
            for (; rows; rows &= rows - 1) {
                const int r = 64 * w + __builtin_ctzll(rows);
                chunk[(r / 16 * 8 + r % 8) * words + word] |= 1u << (2 * j + r / 8 % 2);
            }
        }
}

void score_bits_fill(uint32_t *bits, const struct cut *cut, const struct lists *lists,
                     const struct granule_mask *masks) {
    const struct granule_mask whole_mask = {.count = (int16_t)cut->size, .kind = GRANULE_ALL};
    const int64_t each = SCHEDULE_CHUNK / cut->size, n = cut->n[CUT_WHOLE] + cut_masked(cut);
    int64_t whole, uniform, all;
    chunks_of(cut, &whole, &uniform, &all);
    for (int64_t g = whole * each; g < n; g++) {
        const int32_t words = g / each < uniform ? uniform_words(cut) : 8;
        bits_set(bits + score_bits_before(cut, lists->tile_rows, g), words, cut, lists,
                 g % each * cut->size,
                 g < cut->n[CUT_WHOLE] ? &whole_mask : &masks[g - cut->n[CUT_WHOLE]]);
    }
}
