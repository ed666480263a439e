/*
 * Granules: packed lists cut into KV chunks of equal size, which is how kernels that gather keys
 * into shared memory walk lists. A granule is up to `size` consecutive keys, a power of two chosen
 * for the whole plan: blocks of 64 keys need one number for 64 keys, single columns one for each.
 *
 *   tile T    whole granules        granules with a mask
 *             key key key ...       key key ...              keys[ptr[T]] ... keys[ptr[T + 1] - 1]
 *                                   mask mask ...            mask[mask_ptr[T]] ...
 *
 * order.h and balance.h give their order. For kernels with consumers, fragment_masks.h adds masks
 * in accumulator-fragment layout.
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
    int64_t mask;                 /* mask of its first granule that has one */
    int64_t slot;                 /* place of the partial result, -1 where the tile is one item */
    int32_t count;                /* granules */
    int32_t whole;                /* of these, those without a mask, which come first */
    int32_t batch, head, head_kv; /* head: the first of packed heads (GQA packing) */
    int32_t row, rows;            /* queries row ... row + rows - 1 */
    int32_t parts;                /* partial results to combine, where this stands for a combine */
};

/* Single-consumer steps of an item: chunks of SCHEDULE_CHUNK places that list keys of one
 * consumer's 64 rows only (order.h). Chunks [begin, end) alternate between consumers 0 and 1;
 * chunks [end, tail_end) belong to tail_consumer. begin may be negative: the item begins among
 * them. */
struct granule_single_steps {
    int32_t begin, end, tail_end, tail_consumer;
};

/* The only consumer whose rows list keys of a chunk; -1: both consumers, or not known. */
static inline int granule_single_consumer(const struct granule_single_steps *single_steps,
                                          int64_t chunk) {
    if (chunk < single_steps->begin || chunk >= single_steps->tail_end)
        return -1;
    return chunk < single_steps->end ? (int)(chunk - single_steps->begin) % 2
                                     : single_steps->tail_consumer;
}

/* What kernels with consumers know of an item besides. */
struct granule_consumer_info {
    struct granule_single_steps single_steps;
    int64_t bits;    /* its first word of score_bits */
    int32_t uniform; /* granules: whole ones and those of uniform masks, which come first */
};

struct granules {
    int32_t size;
    int filled;       /* 1: no granule but one that ends with the keys has fewer than `size` */
    int single_steps; /* 1: at least one chunk in four is a single-consumer step (order.h) */
    int64_t tiles;    /* of all lists */
    int64_t n, n_masks;
    int64_t *ptr, *mask_ptr; /* [tiles + 1] */
    int32_t *keys;           /* [n] */
    struct granule_mask *masks;
    int64_t n_items, n_merges;
    struct granule_item *items; /* of worker 0, of worker 1, ...; each in the schedule's order */
    struct granule_consumer_info *consumer_info; /* [n_items], where the rules ask */
    int64_t n_bits;
    uint32_t *score_bits;        /* [n_bits], likewise */
    struct granule_item *merges; /* slot: the first of `parts` */
    int32_t workers;
    int64_t *worker_ptr; /* [workers + 1] */
};

/* A step of a kernel has `keys` places, of which each warp computes those that one of its `rows`
 * rows lists; keys 0: granules stand as order.h says. */
struct granule_step {
    int32_t keys, rows;
};

/* How heads read lists, keys and values, and over how many workers items are assigned. `stack`
 * query heads (GQA packing) share their list, keys and values, and are one item of the schedule. KV
 * split k of P leaves the result of head s in slot `slot` + s P, where `slot` is that of head 0.
 * Each head thus has its own combine, of P consecutive slots. */
struct granule_rules {
    const int64_t *list_of; /* [batch * heads_q] */
    int64_t heads_q, heads_kv;
    int64_t stack;
    int32_t workers;   /* 1: all stand in the order of the schedule */
    int64_t n_kv;      /* keys of each head */
    int32_t size;      /* keys of a granule at most, a power of two, GRANULE_MAX at most */
    int consumer_info; /* 1: with consumer_info and score_bits; tiles have 16 n rows then */
    int single_steps;  /* 1: with single-consumer steps (order.h) */
    struct granule_step
        step; /* without consumer_info: masked granules are ordered as in balance.h */
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
