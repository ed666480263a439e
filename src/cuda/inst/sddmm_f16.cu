#include "sddmm_mma.cuh"

cudaError_t cuda_sddmm_f16(const struct cuda_params *p, cudaStream_t stream) {
    return sddmm_mma_launch<__half>(p, stream);
}
