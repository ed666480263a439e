#include "forward/sm80/kernel.cuh"

cudaError_t cuda_attention_bf16_d32(const struct attention_params *p, cudaStream_t stream) {
    return attention_mma_launch<__nv_bfloat16, 32>(p, stream);
}

int64_t cuda_attention_bf16_d32_shared(int32_t rows) {
    return attention_mma_shared<__nv_bfloat16, 32>(rows);
}
