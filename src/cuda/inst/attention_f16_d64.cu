#include "forward/sm80/kernel.cuh"

cudaError_t cuda_attention_f16_d64(const struct attention_params *p, cudaStream_t stream) {
    return attention_mma_launch<__half, 64>(p, stream);
}

int64_t cuda_attention_f16_d64_shared(int32_t rows) {
    return attention_mma_shared<__half, 64>(rows);
}
