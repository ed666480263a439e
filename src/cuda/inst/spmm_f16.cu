#include "spmm_mma.cuh"

cudaError_t cuda_spmm_f16(const struct cuda_params *p, cudaStream_t stream) {
    return spmm_mma_launch<__half>(p, stream);
}
