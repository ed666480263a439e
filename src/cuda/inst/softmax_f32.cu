#include "staged/softmax/rows.cuh"

cudaError_t cuda_softmax_f32(const struct cuda_params *p, cudaStream_t stream) {
    const cudaError_t code = cuda_softmax_f32_sm90(p, stream);
    return code == cudaErrorNotSupported ? softmax_launch(p, stream) : code;
}
