/*
 * Order of a tile's granules with masks, for kernels whose warps have few rows each and meet at the end of each
 * step. A warp computes those groups of 8 places that one of its rows lists. A step takes as long as the warp
 * that lists most of it:
 *
 *                 step 0     step 1                        step 0     step 1
 *     warp 0      # # . .    . . . .                       # . # .    . . . .
 *     warp 1      # # . .    . . . .      in order,        # . # .    . . . .
 *     warp 2      . . # #    # # . .      balanced:        . # . #    # # . .   ...
 *
 * So each step gets granules that different warps list. Granules shorter than 8 places that the same warps list
 * fill a group. The order follows from the masks alone.
 */
#ifndef TESSERA_BALANCE_H
#define TESSERA_BALANCE_H

#include "lists/granules.h"

/* Orders a tile's masked granules, whose keys and masks these are; `whole` ones stand before them.
 * Zero, or -1 when memory ran out. */
int balance_tile(const struct lists *lists, const struct granule_step *step, int32_t size,
                 int64_t whole, int32_t *keys, struct granule_mask *masks, int64_t n);

/* Order of granules that TMA copies, for kernels whose warps, of 16 rows each, compute all of a step or
 * none. Granules that the same warps list stand together, next to those of one warp more or less. Tiles
 * begin with different warps, since CTAs that share a multiprocessor would otherwise use the same. */
int balance_sort(const struct lists *lists, int64_t tile, int32_t *keys, struct granule_mask *masks,
                 int64_t n);

#endif
