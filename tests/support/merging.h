/* tess_merge and tess_unmerge on any backend. */
#ifndef TESTS_MERGING_H
#define TESTS_MERGING_H

#include "support/support.h"

/* Attention over parts of the keys, merged, is attention over all of them, by the lab's bounds. */
void parts_join_to_the_whole(tess_backend backend);

/* Rows of every kind, types and layouts against the formula; and what changes no bit: repeats, empty
 * parts, an lse that is not wanted, outputs in the place of a part. */
void merges_are_right(tess_backend backend);

/* Rows of every kind, types and layouts of what is left against the formula; outputs in the place of inputs; and the
 * rest merged with the kept is the whole. */
void rests_are_right(tess_backend backend);

/* `parts` times the same part is that part, its lse higher by log(parts). */
void equal_parts_are_one(tess_backend backend, int64_t parts);

#endif
