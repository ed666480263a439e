/*
 * Mask groups: row masks in accumulator-fragment layout, as threads hold scores of a WGMMA. A group is 64
 * places of a tile, a slice 16 of its rows: those of a warp. Slices of groups that are not all whole granules
 * have a record: the number of a mask of 32 words, one a lane. With lane 4 g + t:
 *
 *   bit 4 j + e         row g lists place 8 j + 2 t + e      j = 0 ... 7, e = 0, 1
 *   bit 4 j + 2 + e     row g + 8 lists the same place
 *
 * Bit i is thus score i of that lane's fragment (PTX ISA, fragments of wgmma and mma). Tiles of 8
 * rows have them twice in their slice: heads packed in pairs share a warp. Places without keys have
 * no bits.
 *
 * A record is MASK_NONE where none of the slice's rows lists a key, and MASK_ALL where all rows
 * list all places. Equal masks of common kinds are one:
 *
 *   band       the slice of a granule of a window, of causal lists, or of fewer keys
 *   rows       each row lists all 64 places or none
 *   coarse     each 8 rows list each 8 places all or not at all, as in unions of small blocks
 *
 * A tile has records for an even number of groups: steps of 128 places. Behind those of the slices
 * stand as many of no rows, for warps that have none.
 */
#ifndef TESSERA_MASK_GROUPS_H
#define TESSERA_MASK_GROUPS_H

#include "lists/granules.h"

/* Makes records and words of all tiles from masks of granules. Zero, or -1 when memory ran out. */
int mask_groups_make(struct granules *granules, const struct lists *lists);

/* Groups without a record: the first of a tile, or of an item, that begins with `whole` whole
 * granules. */
static inline int64_t mask_groups_whole(int64_t whole, int32_t size) {
    return whole * size / GRANULE_GROUP;
}

#endif
