#include "staged/spmm/mma.cuh"

cudaError_t cuda_spmm_f16(const struct cuda_params *p, cudaStream_t stream) {
    const cudaError_t code = cuda_spmm_f16_sm90(p, stream);
    return code == cudaErrorNotSupported ? spmm_mma_launch<__half>(p, stream) : code;
}
