#include "staged/spmm/gather.cuh"

cudaError_t cuda_spmm_f32(const struct cuda_params *p, cudaStream_t stream) {
    return spmm_launch_f32(p, stream);
}
