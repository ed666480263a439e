/*
 * Running plans over device patterns: tensors, arguments, comparison with the oracle. What cannot be
 * made ends the test.
 */
#ifndef TESTS_DEVICE_RUN_H
#define TESTS_DEVICE_RUN_H

#include "support/caches.h"
#include "support/device_lists.h"

struct tensors {
    struct lab_tensor q, k, v, o, lse;
    struct lab_cache cache; /* stands in place of k and v, for runs and the oracle */
    struct lab_buffer workspace;
};
/* k and v have the problem's types; pages and scales are drawn. */
void tensors_make(struct tensors *t, const tess_problem *p, uint64_t seed);

/* To be called after a change of k or v, such as poison. */
void tensors_store(struct tensors *t);

void tensors_free(struct tensors *t);

/* The arguments of a run into poisoned outputs, with a workspace of the plan's size. */
tess_arguments arguments_of(struct tensors *t, const tess_plan *plan, const void *image);

/* Runs, and checks what stands beside workspace and outputs. */
void run(struct tensors *t, const tess_plan *plan, const tess_arguments *a);

/* A hash of o and lse. */
uint64_t bits_of(const struct tensors *t);

/* Holds o and lse against the oracle over the same keys as a host pattern. */
void hold(const struct tensors *t, const tess_pattern *pattern, const struct lab_scoring *scoring,
          uint64_t seed);

#endif
