/* Dealing work items among workers that take them without asking: so that all end at about the same
 * time, and each keeps the order of the schedule. */
#ifndef TESSERA_DEAL_H
#define TESSERA_DEAL_H

#include <stdint.h>

/* worker[i] = who does item i: items are dealt in order, each to the worker that would be free
 * first. Zero, or -1 when memory ran out. */
int deal(int32_t *worker, const int64_t *cost, int64_t items, int32_t workers);

#endif
