#include "staged/softmax/bulk.cuh"

cudaError_t cuda_softmax_f32_sm90(const struct cuda_params *p, cudaStream_t stream) {
    return softmax_bulk_launch(p, stream);
}
