/* Steps of the benchmark that a backward has beyond those of attention. */
#ifndef BENCH_BACKWARD_H
#define BENCH_BACKWARD_H

#include "measure/measure.h"

/* Why a case and its method cannot be measured, or NULL. */
const char *bench_backward_refuses(const struct lab_case *c, const struct bench_method *method);

/* Fills what a backward reads: o, lse and, where the case has them, o_rest and delta, by attention on the
 * CPU. Nothing for other cases. 0, or -1 and why. */
int bench_backward_make(struct lab_setting *s, char why[LAB_WHY]);

/* Before a run that is checked: gradients become NaN. */
void bench_backward_spoil(struct lab_wanted *wanted);

/* Puts the backward's tensors where the place's backend finds them. NULL, or why not. */
const char *bench_backward_place(struct bench_place *p, const struct lab_setting *s);

/* Whether gradients are right: all of them where the oracle is quick, else what must hold of their sums.
 * BENCH_DONE, or BENCH_FAILED or BENCH_BAD and why. */
int bench_backward_check(const struct bench_setting *s, char why[LAB_WHY]);

#endif
