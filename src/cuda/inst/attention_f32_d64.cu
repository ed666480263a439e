#include "forward/sm80/kernel.cuh"

cudaError_t cuda_attention_f32_d64(const struct attention_params *p, cudaStream_t stream) {
    return attention_mma_launch<float, 64>(p, stream);
}

int64_t cuda_attention_f32_d64_shared(int32_t rows) {
    return attention_mma_shared<float, 64>(rows);
}
