#include "forward/sm80_small_m/kernel.cuh"

cudaError_t cuda_attention_f16_low_d768(const struct attention_params *p, cudaStream_t stream) {
    return attention_low_launch<__half, 768>(p, stream);
}

int64_t cuda_attention_f16_low_d768_shared(int32_t rows) {
    return attention_low_shared<__half, 768>(rows);
}
