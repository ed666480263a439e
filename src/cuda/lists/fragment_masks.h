/*
 * Row masks in accumulator-fragment layout, as threads hold scores of a WGMMA: for every chunk of
 * SCHEDULE_CHUNK places that is not all whole granules, in their order
 *
 *   each 16 rows of the tile    r = 0 ... 7      rows r and r + 8 of these 16
 *     each r                    1 or 8 words     1: for all places; 8: word n for places 8 j + n
 *       bit 2 j + h of a word   j = 0 ... 15     row r + 8 h lists these places
 *
 * One word is enough for chunks of uniform masks (order.h) and granules of at least 8 keys. Places
 * without keys have no bits.
 */
#ifndef TESSERA_SCORE_BITS_H
#define TESSERA_SCORE_BITS_H

#include "lists/order.h"

/* Words of a tile's chunks before that of granule `end`; INT64_MAX: of all. */
int64_t score_bits_before(const struct cut *cut, int32_t tile_rows, int64_t end);

/* Sets the bits of a tile, which are 0. masks: of its granules past the whole ones. */
void score_bits_fill(uint32_t *bits, const struct cut *cut, const struct lists *lists,
                     const struct granule_mask *masks);

#endif
