/* tess_pool, tess_pool_score and tess_columns_convert on any backend, against their definitions in double. */
#ifndef TESTS_POOLING_H
#define TESTS_POOLING_H

#include "tessera.h"

void pools_are_right(tess_backend backend);
void pools_follow_a_growing_cache(tess_backend backend);
void scores_are_right(tess_backend backend);
void columns_are_right(tess_backend backend);

#endif
