/* Caches for tests: keys and values in pages, of types of their own, with scales. */
#ifndef TESTS_CACHES_H
#define TESTS_CACHES_H

#include "lab/run/cache.h"

/* The cache of a problem. */
struct lab_cache_shape cache_shape(const tess_problem *p, uint64_t seed);

/* Draws pages, types and scales of keys and values, for half of the seeds. */
void cache_draw(tess_problem *p, uint64_t seed);

#endif
