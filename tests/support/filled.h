/* Images that two fillers write of the same lists. */
#ifndef TESTS_FILLED_H
#define TESTS_FILLED_H

#include "plan/reserve.h"
#include "support/device_lists.h"

/* Fills `memory`, of the plan's image size and 256-byte aligned, with what `l` lists, as no host does.
 * The plan is one of the CPU. */
typedef void filled_filler(const tess_plan *plan, const struct device_lists *l, void *memory,
                           uint64_t seed);

/* Ends the test where two images of the same plan differ in what is defined: header, places, runs of
 * each tile, items, merges. Between a tile's last run and the next tile's places anything may stand. */
void filled_same(const struct fill_job *a, const struct fill_job *b, uint64_t seed);

/* Fills what `l` lists now by the host and by the other, and holds one against the other. */
void filled_alike(const struct device_lists *l, filled_filler *fill, uint64_t seed);

/* Drawn lists of every form; capacities, counts, padding and lengths at their limits. */
void filled_cases(filled_filler *fill, uint64_t cases);
void filled_edges(filled_filler *fill);

#endif
