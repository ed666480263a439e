/* The transposed product of the backward: dV = weights^T dO and dK = dS^T Q, by block columns. */
#ifndef TESSERA_CUDA_SPMM_TRANSPOSED_GATHER_CUH
#define TESSERA_CUDA_SPMM_TRANSPOSED_GATHER_CUH

#include "staged/product.cuh"

template <class T>
static cudaError_t spmm_transposed_gather_launch(const struct staged_params *p,
                                                 cudaStream_t stream) {
    return product_launch<T, true>(p, stream);
}

#endif
