#include "softmax.cuh"

cudaError_t cuda_softmax_f32(const struct cuda_params *p, cudaStream_t stream) {
    return softmax_launch(p, stream);
}
