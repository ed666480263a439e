#include "forward/sm80_small_m/kernel.cuh"

cudaError_t cuda_attention_f32_low_d256(const struct attention_params *p, cudaStream_t stream) {
    return attention_low_launch<float, 256>(p, stream);
}

int64_t cuda_attention_f32_low_d256_shared(int32_t rows) {
    return attention_low_shared<float, 256>(rows);
}
