#include "staged/sddmm/tma.cuh"

cudaError_t cuda_sddmm_f16_sm90(const struct cuda_params *p, cudaStream_t stream) {
    return sddmm_boxes_launch<__half>(p, stream);
}
