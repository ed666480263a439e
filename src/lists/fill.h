/*
 * Filling: from a device pattern to packed lists, in memory of a size that is fixed beforehand. Every
 * query tile has places of its own for as many runs as its block row has entries, so that tiles are
 * filled in any order and by any number of threads (docs/design/device_lists.md).
 */
#ifndef TESSERA_FILL_H
#define TESSERA_FILL_H

#include "base/carve.h"
#include "lists/fill_rules.h"
#include "lists/lists.h"

/* Runs of one range that a cut goes through (fill_range_cut): full ones, and bands. */
#define FILL_RANGE_BANDS 2
#define FILL_RANGES 4 /* entries of a block row at most */

/* Facts of a fill that are known when a plan is reserved. */
struct fill_shape {
    tess_form form;
    int64_t n_q, n_kv, block_q, block_kv;
    int64_t batch, heads;   /* the pattern's */
    int64_t batches;        /* the problem's: each has lists of its own, as its length differs */
    int64_t rows, cols;     /* block rows of a list, block columns */
    int64_t capacity;       /* see tess_device_pattern */
    int64_t cut_lo, cut_hi; /* within +-2^33 */
    int cut;                /* whether there is one */
    int32_t threads;
    int32_t tile_rows;
    int64_t row_tiles; /* query tiles of a whole block row */
    int64_t tiles;     /* query tiles of a list */
};

/* Whether block rows of a form have `capacity` places each, in the order of the rows. */
FILL_RULE int fill_is_padded(tess_form form) {
    return form == TESS_INDICES || form == TESS_RANGES || form == TESS_MASK;
}

/* Words of a mask of a query tile's rows. */
FILL_RULE int64_t fill_words(const struct fill_shape *s) {
    return (s->tile_rows + 63) / 64;
}

/* Counts of a fill; tess_fill_report, but for items. */
struct fill_counts {
    int64_t faults, overflows, keys, pairs; /* pairs: of one head for each list */
    uint64_t first; /* number by fill_order, FILL_NOWHERE: nothing is wrong */
};

/* Arrays of the image, placed. Tile T of lists has full runs full_ptr[T] ... full_end[T] - 1, and of
 * masked kind k masked_ptr[3 T + k] ... masked_end[3 T + k] - 1: bits where a mask is given, else bands. */
struct fill_arrays {
    int32_t *lengths; /* [batches] */
    int64_t *place;   /* [batch * heads * rows + 1] entries of all block rows before each */
    int64_t *keys;    /* [batches * heads * tiles] */
    int64_t *full_ptr, *full_end, *masked_ptr, *masked_end;
    struct list_run *full;
    struct list_masked *masked;
    /* MASK alone. Rows of tile T that list key j: words[fill_word ...], of each block with a run of bits. Keys of
     * run i that some row lists: bit c % 64 of listed[i * fill_listed_words + c / 64]. */
    uint64_t *words, *listed;
};

/* Takes the arrays' room: as much as the shape's capacity needs. */
void fill_take(struct carve *c, const struct fill_shape *shape, struct fill_arrays *a);

/* Place of a fault, from the number that fill_order gave it. */
struct fill_place {
    enum fill_wrong wrong;
    int64_t batch, head, row, position; /* -1: does not apply */
};
struct fill_place fill_place_of(const struct fill_shape *shape, uint64_t number);
tess_list_fault fill_list_fault(enum fill_wrong wrong);

/* Fills the arrays. `pattern` has the shape's sizes, and the arrays of its form. */
void fill_lists(const struct fill_shape *shape, const tess_device_pattern *pattern,
                const struct fill_arrays *a, struct fill_counts *counts);

/* First word of tile T's mask for a key; words of the keys of a block. */
FILL_RULE int64_t fill_word(const struct fill_shape *s, int64_t T, int64_t key) {
    return (T * s->cols * s->block_kv + key) * fill_words(s);
}
FILL_RULE int64_t fill_listed_words(const struct fill_shape *s) {
    return (s->block_kv + 63) / 64;
}

/* Filled arrays as kernels walk them. tile_row: the shape's tiles, from fill_tile_rows. */
struct lists fill_view(const struct fill_shape *shape, const struct fill_arrays *a,
                       int64_t *tile_row);

/* First query of tile t, 0 ... tiles. */
static inline int64_t fill_tile_row(const struct fill_shape *shape, int64_t t) {
    return fill_tile_query(t, shape->row_tiles, shape->block_q, shape->tile_rows, shape->n_q);
}

#endif
