/* Factor of P before rounding, by which SpMM divides its sums: a power of two. f16 has little range
 * below 1. The greatest P is 1, with dropout 1 / (1 - p); the factor scales it up to 2^15 at most
 * (staged_params.weight_power). */
#ifndef TESSERA_CUDA_SPMM_SCALE_CUH
#define TESSERA_CUDA_SPMM_SCALE_CUH

#include "device/inline.cuh"
#include "host/staged.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <class T> DEVICE float spmm_scale(const struct staged_params &, T) {
    return 1.0f;
}
DEVICE float spmm_scale(const struct staged_params &p, __half) {
    return __int_as_float((127 + p.weight_power) << 23);
}

/* Inverse of that factor. */
template <class T> DEVICE float spmm_unscale(const struct staged_params &, T) {
    return 1.0f;
}
DEVICE float spmm_unscale(const struct staged_params &p, __half) {
    return __int_as_float((127 - p.weight_power) << 23);
}

#endif
