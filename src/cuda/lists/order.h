/*
 * A query tile's packed list cut into granules, and the order in which they stand, but for kernels
 * that want steps balanced (balance.h):
 *
 *   whole       no mask
 *   others      even ones: full, and each row lists all of their keys or none; those of rows of both
 *               halves of a tile, of the first half alone, of the second
 *   uneven      with places that no key fills, or row masks that differ from key to key
 *
 * A half is rows 0 ... 63 of a tile of up to 128, or those after them, which Hopper's kernel gives to
 * one group of warps each. Kernels that ask get chunks of SCHEDULE_CHUNK places that one half alone
 * lists, which they compute in one step, so that each group has its turn:
 *
 *   whole       and even ones, to the end of the chunk
 *   turns       chunks of even ones: of the first half alone, of the second half alone, ...
 *   alone       and what more there is of the one half
 *   others      all other even ones
 *   uneven
 */
#ifndef TESSERA_CUT_H
#define TESSERA_CUT_H

#include "lists/granules.h"

/* Even ones by who lists them: rows of both halves, or of one; then the others. */
enum { CUT_BOTH, CUT_FIRST, CUT_SECOND, CUT_WHOLE, CUT_PER_KEY, CUT_KINDS };

struct cut {
    int32_t size; /* of a granule */
    int64_t n[CUT_KINDS];
    int64_t seam[CUT_WHOLE]; /* of each even kind, those that fill up the last whole chunk */
    int64_t chunks[2];       /* in turns and alone, of each half */
};

/* Granules of tile T of all lists, and their order: with turns, or without. */
void cut_count(struct cut *cut, const struct lists *lists, int64_t T, int32_t size,
               int single_steps);

/* Writes them; masks: of those after the whole ones. */
void cut_fill(const struct cut *cut, const struct lists *lists, int64_t T, int32_t *keys,
              struct granule_mask *masks);

/* Those that come before the uneven ones. */
static inline int64_t cut_uniform(const struct cut *cut) {
    return cut->n[CUT_WHOLE] + cut->n[CUT_BOTH] + cut->n[CUT_FIRST] + cut->n[CUT_SECOND];
}

static inline int64_t cut_masked(const struct cut *cut) {
    return cut_uniform(cut) - cut->n[CUT_WHOLE] + cut->n[CUT_PER_KEY];
}

/* Sets the turns of an item that has granules [begin, end) of the tile, both multiples of a chunk
 * but for the tile's end. Where one of the halves would have nothing, there are none. */
void cut_single_steps(struct granule_single_steps *single_steps, const struct cut *cut,
                      int64_t begin, int64_t end);

#endif
