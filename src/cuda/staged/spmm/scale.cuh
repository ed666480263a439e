/* Factor of P before rounding, by which SpMM divides its sums. */
#ifndef TESSERA_CUDA_SPMM_SCALE_CUH
#define TESSERA_CUDA_SPMM_SCALE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* P is 1 at most. f16 has little range below 1, so P is scaled up. */
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
