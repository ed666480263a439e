/* Dealing work items among workers that take them without asking: so that all end at about the same
 * time, and each keeps the order of the schedule. */
#ifndef TESSERA_DEAL_H
#define TESSERA_DEAL_H

#include <stdint.h>

struct deal_item {
    int64_t cost, number;
};

/*
 * Puts items in the order in which they are dealt, which is their own but for the last few of each
 * worker: those stand longest first. Groups of heads come one after the other, so that short items of
 * one stand before long ones of the next: which is well but at the end, where only short ones even
 * out.
 */
void deal_sort(struct deal_item *items, int64_t n, int32_t workers);

/* What each worker has been dealt so far. */
struct deal {
    int32_t workers;
    struct deal_hand *heap; /* whoever is free first on top */
};

/* Zero, or -1 when memory ran out; deal_free in either case. */
int deal_begin(struct deal *deal, int32_t workers);
void deal_free(struct deal *deal);

/* The worker that would be free first takes an item. */
int32_t deal_next(struct deal *deal, int64_t cost);

/* The loads of the workers that would be free first and last. */
int64_t deal_least(const struct deal *deal);
int64_t deal_most(const struct deal *deal);

#endif
