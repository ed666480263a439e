/*
 * Row masks as threads that hold scores of a warpgroup product need them: of every chunk of
 * SCHEDULE_CHUNK places that is not all whole granules, in their order
 *
 *   each 16 rows of the tile    r = 0 ... 7      rows r and r + 8 of these 16
 *     of each r                 1 or 8 words     the only one of all places; or the n-th of places
 *                                                8 j + n of each j = 0 ... 15
 *     bit 2 j + h of each       row r + 8 h lists these places
 *
 * One word is enough for chunks of even granules (order.h) of 8 keys and more. Places without keys have
 * no bits.
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
