/* Runs that start from a base, on any backend. */
#ifndef TESTS_BASING_H
#define TESTS_BASING_H

#include "support/support.h"

/* A run over some keys that starts from a run over the others is one over all of them, by the lab's bounds; also
 * where o is the base's. Rows of the list without keys keep the base's bits. */
void lists_join_their_complements(tess_backend backend);

/* At the step of caching, what is cached and the list alone give the dense step again: by ADD and by MERGE. */
void deltas_are_dense_when_cached(tess_backend backend);

#endif
