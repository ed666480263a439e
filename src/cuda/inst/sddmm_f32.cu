#include "staged/sddmm/gather.cuh"

cudaError_t cuda_sddmm_f32(const struct cuda_params *p, cudaStream_t stream) {
    return sddmm_launch<float>(p, stream);
}
