/*
 * A query tile's packed list cut into granules, and their order, except for kernels that balance
 * steps (balance.h):
 *
 *   whole       no mask
 *   others      full granules of uniform masks: each row lists all of their keys or none. First
 *               those of rows of both consumers, then of consumer 0 only, then of consumer 1 only
 *   per key     granules with places that no key fills, or row masks that differ from key to key
 *
 * Consumer 0 has rows 0 ... 63 of a tile of up to 128, consumer 1 the others: the two consumer
 * warpgroups of Hopper's kernel. For kernels with single-consumer steps, chunks of SCHEDULE_CHUNK
 * places that only one consumer's rows list come together:
 *
 *   whole       and granules of uniform masks, to the end of the chunk
 *   alternate   chunks of uniform masks: of consumer 0, of consumer 1, of consumer 0, ...
 *   tail        the further chunks of one consumer
 *   others      all other granules of uniform masks
 *   per key
 */
#ifndef TESSERA_CUT_H
#define TESSERA_CUT_H

#include "lists/granules.h"

/* Uniform masks by rows: of both consumers, of the first or the second only; then the other
 * granules. */
enum { CUT_BOTH, CUT_FIRST, CUT_SECOND, CUT_WHOLE, CUT_PER_KEY, CUT_KINDS };

struct cut {
    int32_t size; /* of a granule */
    int64_t n[CUT_KINDS];
    int64_t
        seam[CUT_WHOLE]; /* of each kind of uniform mask, those that fill up the last whole chunk */
    int64_t chunks[2];   /* single-consumer steps of each consumer */
};

/* Counts granules of tile T of all lists; single_steps: they are ordered with single-consumer
 * steps. */
void cut_count(struct cut *cut, const struct lists *lists, int64_t T, int32_t size,
               int single_steps);

/* Writes the granules; masks: of those after the whole ones. */
void cut_fill(const struct cut *cut, const struct lists *lists, int64_t T, int32_t *keys,
              struct granule_mask *masks);

/* Granules that come before those with masks that differ from key to key. */
static inline int64_t cut_uniform(const struct cut *cut) {
    return cut->n[CUT_WHOLE] + cut->n[CUT_BOTH] + cut->n[CUT_FIRST] + cut->n[CUT_SECOND];
}

static inline int64_t cut_masked(const struct cut *cut) {
    return cut_uniform(cut) - cut->n[CUT_WHOLE] + cut->n[CUT_PER_KEY];
}

/* Sets the single-consumer steps of an item that has granules [begin, end) of the tile, both
 * multiples of a chunk except at the tile's end. There are none where one of the consumers would
 * have no step at all. */
void cut_single_steps(struct granule_single_steps *single_steps, const struct cut *cut,
                      int64_t begin, int64_t end);

#endif
