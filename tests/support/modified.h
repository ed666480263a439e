/* Score modifiers on every backend: the words of dropout, slices of a whole problem, key
 * positions, sinks at their ends. */
#ifndef TESTS_MODIFIED_H
#define TESTS_MODIFIED_H

#include "support/support.h"

/* A slice of a setting's problem: batches, heads, queries and keys from b, h, i and j on. Its pattern is
 * dense. */
struct slice {
    int64_t b, batches, h, heads, i, queries, j, keys;
    const int32_t *positions; /* NULL: of contiguous keys */
};

/* Runs over views of the setting's tensors; ends the test on failure. */
void slice_run(struct lab_setting *s, const struct slice *at, tess_backend backend,
               tess_pipeline pipeline);

void every_way_drops_the_same(tess_backend backend);
void slices_are_of_the_whole(tess_backend backend);
void positions_may_be_given(tess_backend backend);
void gradients_of_slices_are_of_the_whole(tess_backend backend);
void sinks_stand_at_their_ends(tess_backend backend);

#endif
