/* A fill under way, for the files that fill block rows. */
#ifndef TESSERA_FILLER_H
#define TESSERA_FILLER_H

#include "lists/fill.h"

struct filler {
    const struct fill_shape *shape;
    const tess_device_pattern *pattern;
    const struct fill_arrays *a;
};

/* Counts what is wrong with block row `row` over all lists of all batches, and keeps the first. */
void fill_tell(struct fill_counts *counts, const struct fill_shape *s, enum fill_wrong wrong,
               int64_t row, int64_t where);

/* A block row under way, of a list whose first tile is T. */
struct mask_row {
    int64_t T, first;    /* first: place of the first tile's runs */
    int64_t begin, end;  /* tiles of the list */
    const uint8_t *mask; /* the list's bytes */
    int32_t length;
};

/* A block row of a mask. A block counts toward the capacity where some tile lists any of it. */
void fill_mask_row(const struct filler *f, const struct mask_row *r, int64_t row,
                   struct fill_counts *counts);

#endif
