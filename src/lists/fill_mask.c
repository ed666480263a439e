/* Fills block rows of a boolean mask: words of each block, and runs by how many of its elements are listed. */
#include "lists/filler.h"

#include <string.h>

/* Bytes of a list's block, from the tile's first query and the block's first key on. */
struct mask_block {
    const uint8_t *from;
    int64_t stride;      /* bytes from query to query */
    int32_t first, keys; /* the first key, and how many there are today */
};

/* Writes the words of a block's keys; answers the pairs. */
static int64_t block_words(const struct fill_shape *s, const struct mask_block *b,
                           const struct fill_cut *cut, uint64_t *words) {
    const int64_t each = fill_words(s);
    int64_t pairs = 0;
    memset(words, 0, (size_t)(s->block_kv * each) * sizeof *words);
    for (int32_t r = 0; r < cut->rows; r++) {
        const uint8_t *from = b->from + r * b->stride;
        uint64_t *to = words + r / 64;
        for (int32_t c = 0; c < b->keys; c++)
            to[c * each] |= (uint64_t)(from[c] != 0) << r % 64;
    }
    for (int32_t c = 0; c < b->keys; c++)
        for (int32_t w = 0; w < each; w++) {
            uint64_t *word = &words[c * each + w];
            *word &= fill_mask_rows(cut, s->cut, b->first + c, w);
            pairs += __builtin_popcountll(*word);
        }
    return pairs;
}

/* A run of bits at place `at`, whose words stand at `word`. */
static void bits_put(const struct filler *f, int64_t at, const struct mask_block *b, int64_t word) {
    const struct fill_arrays *a = f->a;
    const int64_t words = fill_listed_words(f->shape), each = fill_words(f->shape);
    uint64_t *listed = a->listed + at * words;
    a->masked[at] = (struct list_masked){.key = b->first, .count = b->keys, .u.word = word};
    memset(listed, 0, (size_t)words * sizeof *listed);
    for (int32_t c = 0; c < b->keys; c++) {
        uint64_t some = 0;
        for (int32_t w = 0; w < each; w++)
            some |= a->words[word + c * each + w];
        listed[c / 64] |= (uint64_t)(some != 0) << c % 64;
    }
}

/* Adds the run of a block with so many pairs to tile T. */
static void block_put(const struct filler *f, int64_t T, const struct mask_block *b, int32_t rows,
                      int64_t pairs) {
    const struct fill_arrays *a = f->a;
    int64_t *bits_end = &a->masked_end[LIST_MASKED_KINDS * T + LIST_BITS];
    if (!pairs)
        return;
    if (pairs == (int64_t)b->keys * rows)
        a->full[a->full_end[T]++] = (struct list_run){b->first, b->keys};
    else
        bits_put(f, (*bits_end)++, b, fill_word(f->shape, T, b->first));
    a->keys[T] += b->keys;
}

/* Empties tile T, whose first runs stand at `first`. */
static void tile_clear(const struct filler *f, int64_t T, int64_t first) {
    const struct fill_arrays *a = f->a;
    a->keys[T] = 0;
    a->full_ptr[T] = a->full_end[T] = first;
    for (int64_t at = LIST_MASKED_KINDS * T; at < LIST_MASKED_KINDS * (T + 1); at++)
        a->masked_ptr[at] = a->masked_end[at] = first;
}

/* Block c of a row: its tiles' words and, where `put`, runs. Answers the pairs. */
static int64_t column_put(const struct filler *f, const struct mask_row *r, int64_t c, int put) {
    const struct fill_shape *s = f->shape;
    const int64_t key = c * s->block_kv;
    int64_t pairs = 0;
    for (int64_t t = r->begin; t < r->end; t++) {
        const int64_t query = fill_tile_row(s, t), T = r->T + t;
        const struct fill_cut cut = fill_cut_at(s->cut_lo, s->cut_hi, query + r->length - s->n_q,
                                                (int32_t)(fill_tile_row(s, t + 1) - query));
        const struct mask_block b = {r->mask + query * s->n_kv + key, s->n_kv, (int32_t)key,
                                     (int32_t)min_i64(s->block_kv, r->length - key)};
        const int64_t own = block_words(s, &b, &cut, f->a->words + fill_word(s, T, key));
        if (put)
            block_put(f, T, &b, cut.rows, own);
        pairs += own;
    }
    return pairs;
}

void fill_mask_row(const struct filler *f, const struct mask_row *r, int64_t row,
                   struct fill_counts *counts) {
    const struct fill_shape *s = f->shape;
    int64_t pairs = 0, taken = 0;
    for (int64_t t = r->begin; t < r->end; t++)
        tile_clear(f, r->T + t, r->first + (t - r->begin) * s->capacity);
    for (int64_t c = 0; c < fill_blocks(r->length, (int32_t)s->block_kv) && taken <= s->capacity;
         c++) {
        const int64_t own = column_put(f, r, c, taken < s->capacity);
        pairs += own;
        taken += own > 0;
    }
    if (taken > s->capacity) {
        for (int64_t t = r->begin; t < r->end; t++)
            tile_clear(f, r->T + t, r->first + (t - r->begin) * s->capacity);
        fill_tell(counts, s, FILL_OVERFLOW, row, FILL_AT_ROW);
        return;
    }
    for (int64_t t = r->begin; t < r->end; t++)
        counts->keys += f->a->keys[r->T + t];
    counts->pairs += pairs;
}
