/* The arguments of a run, checked against its plan and turned into what kernels are handed. */
#ifndef TESSERA_ARGUMENTS_H
#define TESSERA_ARGUMENTS_H

#include "plan/plan.h"

/* Which arguments a call uses. */
enum {
    USES_Q = 1,
    USES_K = 2,
    USES_V = 4,
    USES_O = 8,
    USES_LSE = 16,
    USES_SCORES = 32,
    USES_BIAS = 64,     /* what changes scores: alibi */
    USES_WEIGHTS = 128, /* what changes weights: sink, seed */
};

/* Checks the tensors that a call uses and turns them into views. */
tess_status tensors_take(struct kernel_args *out, const struct problem *p, const tess_arguments *a,
                         int uses, const char *function, tess_error *error);

/* Checks the arguments that a call uses and turns them into what kernels are handed. */
tess_status arguments_take(struct kernel_args *out, const tess_plan *plan,
                           const tess_arguments *given, int uses, size_t workspace_size,
                           const char *function, tess_error *error);

/* The image of a plan, as given for upload or a run. */
tess_status image_check(const tess_plan *plan, const void *image, size_t image_size,
                        const char *function, tess_error *error);

#endif
