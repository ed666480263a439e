#include "staged/sddmm/mma.cuh"

cudaError_t cuda_sddmm_f16(const struct cuda_params *p, cudaStream_t stream) {
    const cudaError_t code = cuda_sddmm_f16_sm90(p, stream);
    return code == cudaErrorNotSupported ? sddmm_mma_launch<__half>(p, stream) : code;
}
