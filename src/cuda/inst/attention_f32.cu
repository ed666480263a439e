#include "attention_fma.cuh"

cudaError_t cuda_attention_f32(const struct attention_params *p, cudaStream_t stream) {
    return attention_fma_launch<float>(p, stream);
}
