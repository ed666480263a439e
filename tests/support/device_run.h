/*
 * Running plans over device patterns: tensors, arguments, comparison with the oracle. What cannot be
 * made ends the test.
 */
#ifndef TESTS_DEVICE_RUN_H
#define TESTS_DEVICE_RUN_H

#include "lab/rng.h"
#include "support/device_lists.h"

/* Draw `what` of a seed: one of the numbers that follow. */
static inline int64_t pick(uint64_t seed, uint64_t what, const int64_t *from, int64_t n) {
    return from[lab_below(seed, 77, what, n)];
}
#define PICK(what, ...)                                                                            \
    pick(seed, what, (const int64_t[]){__VA_ARGS__},                                               \
         sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

/* Two heads of three queries and 40 keys, an index a place. */
extern const struct device_sizes device_small;

/* Any sizes, all forms. */
struct device_sizes device_sizes_draw(uint64_t seed);

struct tensors {
    struct lab_tensor q, k, v, o, lse;
    struct lab_buffer workspace;
};
void tensors_make(struct tensors *t, const tess_problem *p, uint64_t seed);
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
