/*
 * The schedule: which piece of work is done when. Items are taken in order by whoever is free, so
 * they stand longest first inside each group of heads that fits the cache. A tile whose list is
 * long, or that would be left for a last wave of few workers, is split into parts (KV split). Their
 * partial results are combined in the order of the parts. Splits depend on the pattern and the
 * target's declared numbers only, so the bits of a result do not depend on threads or luck.
 */
#ifndef TESSERA_SCHEDULE_H
#define TESSERA_SCHEDULE_H

#include "lists/lists.h"

/* Part boundaries fall on multiples of this many keys of a tile's list. */
#define SCHEDULE_CHUNK 128

struct work_item {
    int32_t batch_head; /* b * heads_q + h, over the heads packed in a tile */
    int32_t tile;       /* query tile within its list (staged: block row) */
    int32_t part, parts;
    int64_t slot; /* place of the partial result, -1 when parts is 1 */
};

/* A split tile: parts partial results, slots first_slot ... first_slot + parts - 1. */
struct combine_item {
    int32_t batch_head, tile, parts;
    int64_t first_slot;
};

struct schedule {
    int64_t n_items, n_combines, n_slots;
    struct work_item *items;
    struct combine_item *combines;
};

/* Qualifiers of the rule below, which kernels compile too. */
#ifndef SCHEDULE_RULE
#define SCHEDULE_RULE static inline
#endif

/* Keys [begin, end) of a tile's list, in list order, that part `part` of `parts` computes. */
SCHEDULE_RULE void schedule_part(int64_t keys, int32_t part, int32_t parts, int64_t *begin,
                                 int64_t *end) {
    int64_t chunks = (keys + SCHEDULE_CHUNK - 1) / SCHEDULE_CHUNK;
    *begin = chunks * part / parts * SCHEDULE_CHUNK;
    *end = part + 1 == parts ? keys : chunks * (part + 1) / parts * SCHEDULE_CHUNK;
}

/* Rules by which work is cut and ordered. */
struct schedule_rules {
    double item_cost;        /* cost of any item, in the unit of key_cost */
    double key_cost;         /* cost of one key of a tile's list, done by all workers together */
    int64_t workers;         /* workers that work should divide among: a declared number, never
                              * the threads of this run */
    int64_t min_part_keys;   /* no part gets fewer keys than this; INT64_MAX = never split */
    int64_t heads_per_group; /* order only */
    double combine_cost; /* seconds of all workers to merge parts once all are done; 0: tiles are
                          * split for their length alone, not to end together */
    double part_cost;    /* a partial result, written and read, in the unit of key_cost */
    int may_stay_whole;  /* 1: long tiles are left whole where splits save less than combine_cost */
};

/*
 * Schedules tiles with `keys[list * tiles + t]` keys each (tiles per list), for batch * heads_q heads. Head (b, h)
 * reads list list_of[b * heads_q + h]. Allocates *out; schedule_free releases it whether or not scheduling succeeded.
 */
tess_status schedule_make(struct schedule *out, const int64_t *keys, int64_t tiles,
                          const int64_t *list_of, int64_t batch_heads,
                          const struct schedule_rules *rules, tess_error *error);
void schedule_free(struct schedule *schedule);
size_t schedule_memory(const struct schedule *schedule);

#endif
