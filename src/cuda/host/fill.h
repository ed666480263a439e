/* Filling images on a device: what its kernels are handed, and how large their launches are, which the
 * capacity alone says. */
#ifndef TESSERA_CUDA_FILL_H
#define TESSERA_CUDA_FILL_H

#include "plan/kernels.h"

#define FILL_WARPS 4          /* warps of a thread block that each take block rows */
#define FILL_MOST_BLOCKS 2048 /* thread blocks over block rows: so many tallies */
#define FILL_ROW_THREADS 512  /* threads for one block row, at most */
#define FILL_THREADS 1024     /* threads of a block over places or items */
#define FILL_MASK_WARPS 8     /* warps of a thread block that reads a mask */
#define FILL_MASK_KEYS 256    /* keys of such a warp */
#define FILL_TILE_THREADS 128 /* threads of a block over query tiles */

/* Shared memory: two sums of up to 32 warps, the tally, the first fault, ends of rows and keys of the first
 * tiles. Then each block row of indices under way has a bitmap, a count and a sum for each bucket, and room
 * for columns. Kernels over items have sums over units there. */
#define FILL_FEW 32               /* units that a warp has a lane each for */
#define FILL_SUMS (74 + FILL_FEW) /* words of 64 bits */
#define FILL_BUCKET 4             /* words of 32 columns */
#define FILL_BUCKET_COLUMNS (32 * FILL_BUCKET)
#define FILL_WINDOW 64       /* words: counts of their buckets are 16 bytes */
#define FILL_CHUNK (32 * 64) /* columns of bits that a warp looks at together */
#define FILL_STAGED(cols)                                                                          \
    ((int32_t)((cols) < FILL_CHUNK ? ((cols) + 63) / 64 * 64 : FILL_CHUNK)) /* 16 bits each */
#define FILL_MOST_SHARED (224 * 1024)                                       /* bytes */
#define FILL_SURE_SHARED (48 * 1024) /* bytes where the target says nothing */

/* Counts of a thread block: sums of integers, so that their order does not matter. */
enum tally { TALLY_FAULTS, TALLY_OVERFLOWS, TALLY_KEYS, TALLY_PAIRS, TALLIES };

struct fill_params {
    struct fill_shape shape;
    struct fill_splits splits;
    struct fill_arrays arrays;
    const int32_t *indices, *counts;
    const int64_t *row_ptr;
    const uint64_t *bits;
    const uint8_t *mask;
    const int32_t *lengths;
    struct fill_header *header, *report; /* report: a copy of the header, or NULL */
    struct work_item *items;
    struct combine_item *combines;
    uint64_t *tallies;    /* [blocks][TALLIES]: what each thread block over block rows counted */
    uint64_t *firsts;     /* [blocks]: what it found wrong first, by fill_order */
    uint32_t *mask_pairs; /* [tiles of all lists][cols]: listed elements of each block of a mask */
    uint32_t
        *mask_listed; /* [tiles of all lists][mask_marks]: keys that some row lists, 32 a word */
    uint64_t layout;
    int64_t units, list_heads, list_packs;
    int32_t threads;     /* threads that take a block row together: 32, or the thread block */
    int32_t thread_bits; /* 2^thread_bits threads */
    int32_t block;       /* threads of a thread block */
    int32_t blocks;      /* thread blocks over block rows (RANGES: query tiles) */
    int32_t words;       /* words of a bitmap, of 32 columns each, in FILL_WINDOWs; 0: none */
    int32_t stage; /* columns of a team in shared memory, at most; 0: they stand in the image */
    int32_t pairs; /* whether rows of indices begin at multiples of 8 bytes, and their runs of 16 */
    int32_t room;  /* words of 32 bits that a team has of shared memory */
    int64_t place_chunk; /* block rows of a thread block that sums places */
    int64_t items_chunk; /* units of a thread block that writes items */
};

/* Words of the keys of a mask's tile. */
FILL_RULE int64_t mask_marks(const struct fill_shape *s) {
    return (s->n_kv + 31) / 32;
}

struct fill_params fill_params_of(const struct fill_job *job);

/* The launches of a fill, one after another; the first waits for all that is before it in the stream.
 * Bits claim places (BLOCK_BITS), places are summed (and BLOCK_ROWS), lists are filled, then items; where one
 * thread block fills all lists, it writes items too. */
enum fill_kernel {
    FILL_CLAIMS,
    FILL_PLACES,
    FILL_TOKENS,
    FILL_INDICES,
    FILL_INDICES_CUT,
    FILL_BITS,
    FILL_BITS_CUT,
    FILL_RANGE_TILES,
    FILL_MASK_WORDS,
    FILL_MASK_ROWS,
    FILL_ITEMS,
    FILL_KERNELS
};
#define FILL_MOST_LAUNCHES 4
struct fill_launch {
    enum fill_kernel kernel;
    int32_t blocks, threads;
    size_t shared; /* bytes */
};
#ifdef __cplusplus
extern "C" {
#endif
int32_t fill_launches(const struct fill_params *p, struct fill_launch out[FILL_MOST_LAUNCHES]);
#ifdef __cplusplus
}
#endif

size_t cuda_fill_scratch(const struct fill_shape *shape);
int64_t cuda_workers(const tess_target *target);

#endif
