/* Column sums: tiles of lists of either kind, and the places of a step: keys, and the rows that list each. */
#ifndef TESSERA_CUDA_COLUMN_SUMS_PLACES_CUH
#define TESSERA_CUDA_COLUMN_SUMS_PLACES_CUH

#include "host/column_sums.h"
#include "work/image.cuh"
#include "work/rows.cuh"

#define SUMS_KEYS 64 /* places of a step */
#define SUMS_WORDS (COLUMN_SUMS_ROWS / 64)

struct sums_places {
    int32_t key[SUMS_KEYS]; /* -1: none */
    uint64_t words[SUMS_KEYS][SUMS_WORDS];
};

/* A tile of one head, or a part of its list. */
struct sums_tile {
    int32_t batch, head, head_kv, row, rows;
    int32_t places;   /* places of the list, those without a key counted */
    int32_t position; /* key position of query 0 */
    int64_t first; /* packed lists: the first granule; filled: number of the tile, over all lists */
    int64_t mask;  /* packed lists: mask of the first granule that has one */
    int32_t whole; /* packed lists: granules without a mask */
};

/* Tiles; 0 where no fill of an equal plan made the image. */
DEVICE int64_t sums_tiles(const struct column_sums_params &p) {
    return !p.filled ? p.lists.run.n_items : filled_foreign(p.lists) ? 0 : p.lists.image.units;
}

DEVICE struct sums_tile sums_tile_of(const struct column_sums_params &p, int64_t i) {
    struct sums_tile to = {};
    if (p.filled) {
        struct work_item unit = {};
        unit.batch_head = (int32_t)(i / p.lists.tiles), unit.tile = (int32_t)(i % p.lists.tiles);
        const struct filled_tile tile = filled_tile_of(p.lists, unit);
        to.batch = tile.batch, to.head = tile.head, to.head_kv = tile.head_kv;
        to.row = tile.row, to.rows = tile.rows, to.position = tile.first, to.first = tile.T;
        to.places = (int32_t)p.lists.keys[tile.T];
        return to;
    }
    const struct granule_item &item = p.lists.run.image.items[i];
    to.batch = item.batch, to.head = item.head, to.head_kv = item.head_kv;
    to.row = item.row, to.rows = item.rows;
    to.position = (int32_t)p.lists.run.modify.first_position;
    to.first = item.first, to.mask = item.mask, to.whole = item.whole;
    to.places = item.count << p.lists.run.granule_bits;
    return to;
}

/* Rows 64 w ... 64 w + 63 that list column c of a band. */
DEVICE uint64_t sums_band(int64_t c, int32_t lo, int32_t hi, int w) {
    const int64_t first = c - hi - 64 * w, last = c - lo - 64 * w;
    if (first > last || first > 63 || last < 0)
        return 0;
    return (~(uint64_t)0 << (first < 0 ? 0 : first)) &
           (~(uint64_t)0 >> (last > 63 ? 0 : 63 - last));
}

/* Place `at` of a tile of packed lists: column c of a granule. */
DEVICE int32_t sums_packed(uint64_t (&words)[SUMS_WORDS], const struct attention_params &run,
                           const struct sums_tile &tile, int32_t at) {
    const int bits = run.granule_bits, n_words = (run.tile_rows + 63) / 64;
    const int32_t granule = at >> bits, c = at & ((1 << bits) - 1);
    const int32_t key = run.image.keys[tile.first + granule] + c;
    if (granule < tile.whole)
        return key;
    const struct granule_mask mask = run.image.masks[tile.mask + granule - tile.whole];
    if (c >= mask.count)
        return -1;
    for (int w = 0; w < n_words && mask.kind != GRANULE_ALL; w++)
        words[w] =
            mask.kind == LIST_BAND
                ? sums_band(c, mask.u.band.lo, mask.u.band.hi, w)
                : run.image.words[mask.u.word + (mask.kind == LIST_BITS ? c * n_words : 0) + w];
    return key;
}

/* Place `at` of a tile of filled lists. */
DEVICE int32_t sums_filled(uint64_t (&words)[SUMS_WORDS], const struct decode_params &p,
                           const struct sums_tile &tile, int32_t at) {
    const int64_t T = tile.first, kind = LIST_MASKED_KINDS * T + p.masked_kind, keys = p.keys[T];
    const int64_t full = p.full_ptr[T], masked = p.masked_ptr[kind];
    const struct fill_runs whole = fill_runs_of(
        &p.full[full].key, (int32_t)(sizeof *p.full / sizeof(int32_t)), p.full_end[T] - full, keys);
    if (at < whole.keys) {
        const int32_t run = fill_run_find(&whole, &at);
        return fill_run_key(&whole, run) + at;
    }
    at -= whole.keys;
    const struct fill_runs cut =
        fill_runs_of(&p.masked[masked].key, (int32_t)(sizeof *p.masked / sizeof(int32_t)),
                     p.masked_end[kind] - masked, keys);
    const struct list_masked *const run = p.masked + masked + fill_run_find(&cut, &at);
    const int n_words = (p.run.tile_rows + 63) / 64;
    for (int w = 0; w < n_words; w++)
        words[w] = p.words ? p.words[run->u.word + (int64_t)at * n_words + w]
                           : sums_band(at, run->u.band.lo, run->u.band.hi, w);
    return run->key + at;
}

/* Finds place i of the step that begins at `at`. */
DEVICE void sums_place(struct sums_places &to, const struct column_sums_params &p,
                       const struct sums_tile &tile, int32_t at, int i) {
    uint64_t words[SUMS_WORDS];
    int32_t key = -1;
    for (int w = 0; w < SUMS_WORDS; w++)
        words[w] = ~(uint64_t)0;
    if (at + i < tile.places)
        key = p.filled ? sums_filled(words, p.lists, tile, at + i)
                       : sums_packed(words, p.lists.run, tile, at + i);
    to.key[i] = key;
    for (int w = 0; w < SUMS_WORDS; w++)
        to.words[i][w] = key < 0 ? 0 : words[w];
}

#endif
