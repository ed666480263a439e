/* Assigns work items to workers when the plan is made, so that all end at about the same time. Each
 * worker keeps the order of the schedule. */
#ifndef TESSERA_ASSIGN_H
#define TESSERA_ASSIGN_H

#include <stdint.h>

struct assign_item {
    int64_t cost, number;
};

/*
 * Puts items in the order in which they are assigned: their own, but for the last few of each worker,
 * which stand longest first. Heads come one after the other, so that one head's short items stand
 * before long ones of the next. At the end only short items even out the loads.
 */
void assign_sort(struct assign_item *items, int64_t n, int32_t workers);

/* A worker's assignment so far. */
struct assignment {
    int32_t workers;
    struct assign_worker *heap; /* whoever is free first on top */
};

/* Zero, or -1 when memory ran out; assign_free in either case. */
int assign_begin(struct assignment *assignment, int32_t workers);
void assign_free(struct assignment *assignment);

/* The worker that would be free first takes an item. */
int32_t assign_next(struct assignment *assignment, int64_t cost);

/* The loads of the workers that would be free first and last. */
int64_t assign_least(const struct assignment *assignment);
int64_t assign_most(const struct assignment *assignment);

#endif
