/* Steps of the benchmark that an MLP has beyond those of attention. */
#ifndef BENCH_MLP_H
#define BENCH_MLP_H

#include "measure/measure.h"

/* Why an MLP and its method cannot be measured, or NULL; NULL for other cases. */
const char *bench_mlp_refuses(const struct lab_case *c, const struct bench_method *method);

/* Puts biases and cached activations where the place's backend finds them. NULL, or why not. */
const char *bench_mlp_place(struct bench_place *p, const struct lab_setting *s);

/* Whether a sample of rows is right. BENCH_DONE, or BENCH_FAILED or BENCH_BAD and why. */
int bench_mlp_check(const struct bench_setting *s, char why[LAB_WHY]);

#endif
