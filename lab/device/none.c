/* Builds without CUDA: no device. */
#include "lab/device/calls.h"

static int none(void) {
    return 0;
}

const struct device_calls device_cuda = {.available = none};
