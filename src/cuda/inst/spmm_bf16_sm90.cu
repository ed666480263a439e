#include "staged/spmm/tma.cuh"

cudaError_t cuda_spmm_bf16_sm90(const struct cuda_params *p, cudaStream_t stream) {
    return spmm_boxes_launch<__nv_bfloat16>(p, stream);
}
