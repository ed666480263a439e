#include "sddmm_mma.cuh"

cudaError_t cuda_sddmm_bf16(const struct cuda_params *p, cudaStream_t stream) {
    return sddmm_mma_launch<__nv_bfloat16>(p, stream);
}
