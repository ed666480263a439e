/* What SpMM multiplies weights by before they are rounded, and divides sums by. */
#ifndef TESSERA_CUDA_SPMM_SCALE_CUH
#define TESSERA_CUDA_SPMM_SCALE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* Weights are 1 at most. f16 has no room for small ones, so they are scaled up. */
static __device__ __forceinline__ constexpr float spmm_scale(float) {
    return 1.0f;
}
static __device__ __forceinline__ constexpr float spmm_scale(__half) {
    return 32768.0f;
}
static __device__ __forceinline__ constexpr float spmm_scale(__nv_bfloat16) {
    return 1.0f;
}

#endif
