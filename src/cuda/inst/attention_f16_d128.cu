#include "forward/sm80/kernel.cuh"

cudaError_t cuda_attention_f16_d128(const struct attention_params *p, cudaStream_t stream) {
    return attention_mma_launch<__half, 128>(p, stream);
}

int64_t cuda_attention_f16_d128_shared(int32_t rows) {
    return attention_mma_shared<__half, 128>(rows);
}
