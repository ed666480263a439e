/*
 * Mask groups: row masks in accumulator-fragment layout, as threads hold scores of a WGMMA. A group
 * is 64 places of a tile. A group that is not all whole granules has a record (granule_group), and
 * 1 or 32 words for each 16 rows of the tile:
 *
 *   fine     word 4 g + t of 32     bit 2 j + e          row g lists place 8 j + 2 t + e
 *                                   bit 16 + 2 j + e     row g + 8 lists place 8 j + 2 t + e
 *   coarse   one word               bit j                rows 0 ... 7 list places 8 j ... 8 j + 7
 *                                   bit 8 + j            rows 8 ... 15 list the same places
 *
 * Word 4 g + t has the bits of the scores of lane 4 g + t (PTX ISA, fragments of wgmma and mma). A
 * mask is coarse where 8 rows list 8 places all or not at all, as in unions of small blocks. Groups
 * that are one band share the words of equal bands: windows have few different bands. Places
 * without keys have no bits. A group has no words where all rows list all of its keys.
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
