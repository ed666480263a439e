/* Parts that examples of deltas have in common: plans of attention, the choice of columns, and time. */
#ifndef EXAMPLES_DELTAS_H
#define EXAMPLES_DELTAS_H

#include <time.h>

#include "either.h"

/* Plans for one problem: `dense`, in blocks of `block`, with column sums of groups of `group` queries; and `kept`, over
 * lists that are filled. */
static inline void plans_of_layer(tess_plan **dense, tess_plan **kept, tess_problem problem,
                                  const tess_device_pattern *lists, int64_t block, int64_t group,
                                  const tess_target *target) {
    tess_error error = tess_error_init();
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    shape.n_q = problem.n_q, shape.n_kv = problem.n_kv;
    shape.block_q = shape.block_kv = block;
    require(tess_plan_reserve(kept, &problem, lists, target, &error), &error);
    problem.sum_rows = group;
    require(tess_pattern_from_spec(&pattern, "dense", &shape, &error), &error);
    require(tess_plan_create(dense, &problem, pattern, target, &error), &error);
    tess_pattern_free(pattern);
}

/* The `keep` columns with the largest sums of each group, the first `first` among them: as indices, then packed. */
static inline void columns_choose(const tess_tensor *sums, int64_t keep, int64_t first,
                                  int32_t *indices, int32_t *counts, uint64_t *bits,
                                  tess_stream stream) {
    tess_error error = tess_error_init();
    tess_selection selection = tess_selection_init();
    tess_selected selected = tess_selected_init();
    tess_columns from = tess_columns_init(), to = tess_columns_init();
    selection.k = keep, selection.keep_first = first;
    selected.capacity = keep, selected.indices = indices, selected.counts = counts;
    require(tess_select(backend, &selection, sums, &selected, &error, stream), &error);
    from.rows = to.rows = sums->size[1] * sums->size[2], from.columns = to.columns = sums->size[3];
    from.capacity = keep, from.indices = indices, from.counts = counts;
    to.bits = bits;
    require(tess_columns_convert(backend, &from, &to, &error, stream), &error);
}

/* Time of a launch. */
static inline double launch_ms(struct step *step) {
    struct timespec from, to;
    timespec_get(&from, TIME_UTC);
    launch(step);
    timespec_get(&to, TIME_UTC);
    return 1e3 * (double)(to.tv_sec - from.tv_sec) + 1e-6 * (double)(to.tv_nsec - from.tv_nsec);
}

#endif
