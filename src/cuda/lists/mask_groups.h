/*
 * Row masks in the order of matrix fragments, as kernels read them that multiply 16 rows by 8 keys at
 * a time. The places of a tile stand in groups of 64. A group that is not all whole granules has a
 * record, and one word or 32 for each 16 rows of the tile:
 *
 *   fine     word 4 g + t of 32      bit 2 j + e           row g lists place 8 j + 2 t + e
 *                                    bit 16 + 2 j + e      row g + 8 lists it
 *   coarse   the only word           bit j                 rows 0 ... 7 list places 8 j ... 8 j + 7
 *                                    bit 8 + j             rows 8 ... 15 list them
 *
 * Lane 4 g + t of a warp holds just those scores of 16 rows (PTX ISA, fragments of wgmma and mma).
 * Masks are coarse where rows and places go together by eights, as in unions of small blocks. Groups
 * that are one run's band share the words of equal bands: windows have few of them.
 */
#ifndef TESSERA_MASK_GROUPS_H
#define TESSERA_MASK_GROUPS_H

#include "lists/granules.h"

/* Records and words for all tiles, from the granules' own masks. Zero, or -1 when memory ran out. */
int mask_groups_make(struct granules *granules, const struct lists *lists);

/* Groups without a record that a tile, or an item, of `whole` whole granules begins with. */
static inline int64_t mask_groups_whole(int64_t whole, int32_t size) {
    return whole * size / GRANULE_GROUP;
}

#endif
