#include "staged/spmm/mma.cuh"

cudaError_t cuda_spmm_bf16(const struct cuda_params *p, cudaStream_t stream) {
    const cudaError_t code = cuda_spmm_bf16_sm90(p, stream);
    return code == cudaErrorNotSupported ? spmm_mma_launch<__nv_bfloat16>(p, stream) : code;
}
