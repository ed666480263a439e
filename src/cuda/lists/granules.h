/*
 * Granules: packed lists cut into pieces of equal size, which is how kernels that gather keys into
 * shared memory walk them. A granule is up to `size` consecutive keys, a power of two chosen for
 * the whole plan: blocks of 64 keys need one number for 64 keys, single columns one for each.
 *
 *   tile T    whole granules        granules with a mask
 *             key key key ...       key key ...              keys[ptr[T]] ... keys[ptr[T + 1] - 1]
 *                                   mask mask ...            mask[mask_ptr[T]] ...
 *
 * Those with a mask stand in the order of the lists, or as balance.h says; kernels that ask read
 * their masks as mask_groups.h has them.
 *
 * A whole granule has `size` keys that all rows list. The mask of the others says how many keys
 * they have and which rows list them. Places past a granule's keys count as keys that no row lists:
 * nothing that stands there shows in a result. Plain arrays, copied to the device as they are.
 */
#ifndef TESSERA_GRANULES_H
#define TESSERA_GRANULES_H

#include "lists/lists.h"
#include "plan/schedule.h"

#define GRANULE_MAX 64 /* keys; parts of a tile begin at multiples of SCHEDULE_CHUNK places */

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

/* One piece of work: a work_item with all that a kernel has to look up for it. */
struct granule_item {
    int64_t first;                /* its first granule */
    int64_t mask;                 /* mask, or group, of its first granule that has one */
    int64_t slot;                 /* place of the partial result, -1 where the tile is one item */
    int32_t count;                /* granules */
    int32_t whole;                /* of these, those without a mask, which come first */
    int32_t batch, head, head_kv; /* head: the first of those that are stacked */
    int32_t row, rows;            /* queries row ... row + rows - 1 */
    int32_t parts;                /* partial results in a row, where this stands for their merge */
};

/* 64 places of a tile of which not all count for all rows (mask_groups.h). */
#define GRANULE_GROUP 64
struct granule_group {
    uint64_t keys; /* bit i: place i holds a key */
    int64_t at;    /* twice its first word of mask_bits, + 1 where that is a coarse one */
};

struct granules {
    int32_t size;
    int64_t tiles; /* of all lists */
    int64_t n, n_masks;
    int64_t *ptr, *mask_ptr; /* [tiles + 1] */
    int32_t *keys;           /* [n] */
    struct granule_mask *masks;
    int64_t n_items, n_merges;
    struct granule_item *items;  /* of worker 0, of worker 1, ...; each in the schedule's order */
    struct granule_item *merges; /* slot: the first of `parts` */
    /* Where the rules ask for groups: */
    int64_t n_groups, n_bits;
    int64_t *group_ptr;   /* [tiles + 1] */
    int64_t *group_whole; /* [tiles] groups that have no record, which come first */
    struct granule_group *groups;
    uint32_t *mask_bits; /* [n_bits] */
    int32_t workers;
    int64_t *worker_ptr; /* [workers + 1] */
};

/* A step of a kernel has `keys` places, of which each warp computes those that one of its `rows`
 * rows lists; keys 0: granules stand in the order of the lists. */
struct granule_step {
    int32_t keys, rows;
};

/*
 * How heads read lists, keys and values, and among how many the items are assigned. `stack` query
 * heads in a row share their list, keys and values, and make one item of the schedule: its part k
 * of P leaves head s's result in slot `slot` + s P of its own rows, where `slot` is that of head 0,
 * so that each head has its merge, of P slots in a row.
 */
struct granule_rules {
    const int64_t *list_of; /* [batch * heads_q] */
    int64_t heads_q, heads_kv;
    int64_t stack;
    int32_t workers;          /* 1: all stand in the order of the schedule */
    int64_t n_kv;             /* keys of each head */
    int32_t size;             /* keys of a granule at most, a power of two, GRANULE_MAX at most */
    int groups;               /* 1: with groups and mask_bits */
    struct granule_step step; /* without groups: those with masks stand as balance.h says */
};

/* Cuts lists, and looks up the items of a schedule. Allocates *out, which granules_free releases
 * whether or not it succeeded. */
tess_status granules_make(struct granules *out, const struct lists *lists,
                          const struct schedule *schedule, const struct granule_rules *rules,
                          tess_error *error);
void granules_free(struct granules *granules);

/* How much more the worker with the most has been assigned than all have in the mean, 1 at least. */
double granules_unevenness(const struct granules *granules);
size_t granules_memory(const struct granules *granules);

#endif
