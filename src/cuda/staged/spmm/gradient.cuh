/* Stage 3 of the backward: dQ = dS K, of 16-bit types. Attention's SpMM rounds scores to 16 bits
 * (product.cuh says why not here), and writes the problem's type alone. */
#ifndef TESSERA_CUDA_SPMM_GRADIENT_CUH
#define TESSERA_CUDA_SPMM_GRADIENT_CUH

#include "staged/product.cuh"

template <class T>
static cudaError_t spmm_gradient_launch(const struct staged_params *p, cudaStream_t stream) {
    return product_launch<T, false>(p, stream);
}

#endif
