/* Seconds of kernels over prepared lists: heights and kernels are weighed by these. */
#ifndef TESSERA_CUDA_DRAINED_H
#define TESSERA_CUDA_DRAINED_H

#include "plan/cost.h"

/* Seconds until the last CTA ends, on a device that is never idle. Each CTA takes whole items; or long tiles
 * are split, and combined. */
double drained_seconds(const struct trial *trial);

#endif
