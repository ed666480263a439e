/*
 * Packed lists: BCSR turned into what a kernel walks. A query tile is up to tile_rows consecutive
 * queries; its list names every key that any of its rows lists, each key once, as runs of
 * consecutive keys:
 *
 *   full      every row of the tile lists every key of the run
 *   band      row r lists the run's key c when lo <= c - r <= hi (r, c from 0 within tile and run)
 *   members   one row mask for all keys of the run: block rows shorter than the tile share it, and
 *             those that list the block have their rows' bits set
 *   bits      one row mask for each key of the run
 *
 * A row mask is `words` 64-bit words; bit r % 64 of word r / 64 is row r of the tile. Masks are
 * never all zero: a key that no row lists is in no run. Runs of bits that a fill has written are whole
 * blocks, in which it has a mask of zeros. Bits of rows past the tile's end are clear.
 * Keys that all rows list may stand in masked runs too, where a full run would be short.
 * Arrays are plain: fills write ones of the same form on the device (docs/design/device_lists.md).
 */
#ifndef TESSERA_LISTS_H
#define TESSERA_LISTS_H

#include "pattern/pattern.h"

/* Rows that kernels pass over together where none of them lists a key. */
#define LISTS_GROUP 16

struct list_run {
    int32_t key, count;
};

struct list_masked {
    int32_t key, count;
    union {
        struct {
            int32_t lo, hi;
        } band;
        int64_t word; /* members, bits: first mask word in words[] */
    } u;
};

/* The kinds of masked runs. Key positions within a tile (schedule_part) count through its full
 * runs, then through its band, members and bits runs. */
enum { LIST_BAND, LIST_MEMBERS, LIST_BITS, LIST_MASKED_KINDS };

/*
 * Query tile t (0 ... tiles - 1) of list l is number T = l * tiles + t and has queries
 * tile_row[t] ... tile_row[t + 1] - 1. A tile is a part of one block row (block_q >= tile_rows), or
 * whole ones (block_q < tile_rows); or, where those would not fill it, pieces of 64 rows of them.
 */
struct lists {
    int64_t n_lists, tiles;
    int32_t tile_rows; /* M */
    int32_t words;     /* ceil(M / 64) */
    int64_t *tile_row; /* [tiles + 1] */
    int64_t *keys;     /* [n_lists * tiles] keys of the tile, all runs together */

    int64_t n_full, n_masked, n_words;
    int64_t full_keys, masked_keys, masked_groups; /* see lists_sums */
    int64_t *full_ptr;                             /* [n_lists * tiles + 1] */
    int64_t *full_end;     /* [n_lists * tiles]: full_ptr + 1, where tiles leave no gaps (fill.h) */
    struct list_run *full; /* [n_full] */
    int64_t
        *masked_ptr; /* [LIST_MASKED_KINDS * n_lists * tiles + 1], kind k of tile T at 3 T + k */
    int64_t *masked_end;        /* likewise of masked_ptr */
    struct list_masked *masked; /* [n_masked] */
    uint64_t *words_of_rows;    /* [n_words] row masks */
    int filled; /* 1: in a plan's image, of which nothing is known before a run but the shape */
};

/* Packs m for query tiles of tile_rows (1 ... 256) rows. Allocates *out, which lists_free releases
 * whether or not packing succeeded. */
tess_status lists_pack(struct lists *out, const struct bcsr *m, int32_t tile_rows,
                       tess_error *error);
void lists_free(struct lists *lists);
size_t lists_memory(const struct lists *lists);

/* Sums over the query tiles of all lists. */
struct lists_sums {
    double tiles;         /* query tiles that list any key */
    double full_keys;     /* keys in full runs */
    double masked_keys;   /* keys in the other runs */
    double masked_groups; /* for each of these keys, the groups of LISTS_GROUP rows that list it */
    double most_keys;     /* keys of one tile */
};
void lists_sum(struct lists_sums *out, const struct lists *lists);

/* Sums that packing with tile_rows would give: counted on at most `samples` evenly spread tiles, all
 * where there are fewer, and scaled up to all tiles. No list is built. */
tess_status lists_estimate(struct lists_sums *out, const struct bcsr *m, int32_t tile_rows,
                           int64_t samples, tess_error *error);

#endif
