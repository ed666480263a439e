/*
 * Granules: packed lists cut into KV chunks of equal size, which is how kernels that gather keys into shared
 * memory walk lists. A granule is up to `size` consecutive keys, a power of two chosen for the whole plan.
 * Blocks of 64 keys need one number for 64 keys, single columns one each.
 *
 *   tile T    whole granules        granules with a mask
 *             key key key ...       key key ...              keys[ptr[T]] ... keys[ptr[T + 1] - 1]
 *                                   mask mask ...            mask[mask_ptr[T]] ...
 *
 * Granules with a mask are in the order of the lists, or as in balance.h. For kernels that read
 * mask groups, mask_groups.h turns masks into bits in accumulator-fragment layout.
 *
 * A whole granule has `size` keys that all rows list. The mask of any other granule gives its
 * number of keys and the rows that list them. Places past a granule's keys count as keys that no
 * row lists: what stands there shows in no result. Plain arrays, copied to the device as they are.
 */
#ifndef TESSERA_GRANULES_H
#define TESSERA_GRANULES_H

#include "lists/lists.h"
#include "plan/schedule.h"

#define GRANULE_MAX 64 /* keys; parts of a tile begin at multiples of SCHEDULE_CHUNK places */
#define GRANULE_TMA 8  /* keys of the smallest that TMA copies */

/* The kinds of masks: those of masked runs, and all rows. */
enum { GRANULE_ALL = LIST_MASKED_KINDS };

struct granule_mask {
    int16_t count; /* keys */
    int16_t kind;
    union {
        struct {
            int32_t lo, hi; /* row r lists key c of the granule when lo <= c - r <= hi */
        } band;
        int64_t word; /* members: its mask in words_of_rows; bits: that of its first key */
    } u;
};

/* One piece of work: a work_item with all that a kernel has to look up for it. Over keys an item is
 * several, one after the other: a piece for each query head whose list it has granules of. */
enum { GRANULE_FIRST = 1, GRANULE_LAST = 2 };
struct granule_item {
    int64_t first;                /* its first granule */
    int64_t mask;                 /* mask or mask group of its first granule that has one */
    int64_t slot;                 /* place of the partial result, -1 where the tile is one item */
    int32_t count;                /* granules */
    int32_t whole;                /* granules without a mask, which come first */
    int32_t batch, head, head_kv; /* head: the first of packed heads (GQA packing) */
    int32_t row, rows;            /* queries row ... row + rows - 1; over keys, keys */
    /* Partial results to combine, where this stands for a combine; of an item over keys, which of its
     * ends this piece is. */
    int32_t parts;
};

/* A mask group: 64 places of a tile that are not all in whole granules. A slice: 16 of its rows. A
 * record, of one slice of a group, is the number of a mask, which is 32 words (mask_groups.h). */
#define GRANULE_GROUP 64
#define GRANULE_SLICE 16
#define MASK_WORDS_BITS 5
enum { MASK_NONE, MASK_ALL }; /* masks that all plans have */
/* Beside the number: some granule of the group has fewer keys than its size. */
#define MASK_SHORT (UINT32_C(1) << 31)

struct granules {
    int32_t size;
    int64_t tiles; /* tiles of all lists */
    int64_t n, n_masks;
    int64_t *ptr, *mask_ptr; /* [tiles + 1] */
    int32_t *keys;           /* [n] */
    struct granule_mask *masks;
    int64_t n_items, n_combines;
    struct granule_item *items;    /* items of worker 0, 1, ...; each in the schedule's order */
    struct granule_item *combines; /* slot: the first of `parts` */
    /* Mask groups, for rules that ask for them: */
    int64_t n_groups, n_records, n_bits;
    int64_t *group_ptr;   /* [tiles + 1] */
    int64_t *group_whole; /* [tiles] groups without a mask, which come first and have no record */
    uint64_t *group_keys; /* [n_groups] bit i: place i holds a key */
    uint32_t *records;    /* [n_records] of slice s of group i at s n_groups + i */
    uint32_t *mask_bits;  /* [n_bits] */
    int32_t workers;
    int64_t *worker_ptr; /* [workers + 1] */
};

/* A kernel's step has `keys` places; a warp computes the places that one of the warp's `rows` rows lists.
 * keys 0: granules are in the order of the lists, or with groups sorted (balance.h). */
struct granule_step {
    int32_t keys, rows;
};

/* Rules of heads that read lists, keys and values, and of workers to which items are assigned. `tile_heads`
 * query heads (GQA packing) share their list, keys and values, and are one item of the schedule. KV split k
 * of P leaves the result of head s in slot `slot` + s P, where `slot` is that of head 0. Each head thus has
 * its own combine, of P consecutive slots. */
struct granule_rules {
    const int64_t *list_of; /* [batch * heads_q] */
    int64_t heads_q, heads_kv;
    int64_t tile_heads;
    int over_keys;            /* lists are those of the transposed pattern: items name K/V heads */
    int32_t workers;          /* 1: all stand in the order of the schedule */
    int32_t size;             /* keys of a granule at most, a power of two, GRANULE_MAX at most */
    int32_t least;            /* and at least, whatever the lists; 0: 1 */
    int groups;               /* 1: with mask groups and mask_bits, which replace masks */
    struct granule_step step; /* without groups: masked granules are ordered as in balance.h */
};

/* Cuts lists, and looks up the items of a schedule. Allocates *out, which granules_free releases
 * whether or not it succeeded. */
tess_status granules_make(struct granules *out, const struct lists *lists,
                          const struct schedule *schedule, const struct granule_rules *rules,
                          tess_error *error);
void granules_free(struct granules *granules);

/* Load of the worker with the most, divided by the mean load; at least 1. */
double granules_unevenness(const struct granules *granules);
size_t granules_memory(const struct granules *granules);

#endif
