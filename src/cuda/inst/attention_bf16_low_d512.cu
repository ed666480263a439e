#include "forward/sm80_small_m/kernel.cuh"

cudaError_t cuda_attention_bf16_low_d512(const struct attention_params *p, cudaStream_t stream) {
    return attention_low_launch<__nv_bfloat16, 512>(p, stream);
}

int64_t cuda_attention_bf16_low_d512_shared(int32_t rows) {
    return attention_low_shared<__nv_bfloat16, 512>(rows);
}
