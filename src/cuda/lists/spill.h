/*
 * Lists of a joint backward, whose pass over keys spills dS for dQ (backward/sm90/spilled.cuh). A unit is dS of 64 keys
 * and 64 queries: granule i of key tile t has one for each 64 of the tile's keys, numbers i C + c, C a tile. So dQ's
 * lists are those of the key tiles, turned:
 *
 *     key tile t    granules   q0  q2  q5 ...              query tile Q    steps   keys of t, its units of Q's queries
 *
 * Units of a head live from the pass over its keys to that over its queries, so heads go in chunks: a launch has
 * the keys of a chunk, and the queries of the chunk before. Two buffers of units are enough, whatever the heads.
 */
#ifndef TESSERA_CUDA_SPILL_H
#define TESSERA_CUDA_SPILL_H

#include "lists/granules.h"
#include "plan/kernels.h"

#define SPILL_SIDE 64                            /* keys and queries of a unit */
#define SPILL_UNIT (2 * SPILL_SIDE * SPILL_SIDE) /* bytes */

/* 64 keys that queries of a query tile list. */
struct spill_step {
    int32_t key; /* the first */
    int32_t unit
        [2]; /* units of the tile's first and second 64 queries, counted over all lists; -1: none */
    int32_t absent; /* place of the keys that none of them lists; -1: none */
};

struct spill {
    int32_t chunks, workers;
    int64_t units; /* units of all buffers */
    int64_t n_steps, n_absent, n_items, n_heads;
    struct spill_step *steps;
    uint64_t *absent;           /* bit k: key k of a step */
    struct granule_item *items; /* query tiles: of chunk 0, workers 0, 1 ...; first, count: steps */
    int64_t *worker_ptr;        /* [chunks * workers + 1] */
    int32_t *unit_of;           /* [n_heads]: what a unit's number is less than its place */
};

/*
 * Turns key tiles' granules, and assigns items anew, those of `granules` too: worker w of chunk c is number c workers +
 * w there. TESS_UNSUPPORTED where tiles are not of whole units, or where units of two chunks take over `most` bytes.
 * Allocates *out, which spill_free releases whether or not it succeeded.
 */
tess_status spill_make(struct spill *out, struct granules *granules, const struct kernel_args *args,
                       int64_t most, tess_error *error);
void spill_free(struct spill *spill);
size_t spill_memory(const struct spill *spill);

/* Lists of a joint pass; NULL: the pass is not joint (prepare.c). */
const struct spill *prepared_spill(const struct kernel_args *args);

#endif
