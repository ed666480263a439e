#include "forward/fma/kernel.cuh"

cudaError_t cuda_attention_f32(const struct attention_params *p, cudaStream_t stream) {
    return attention_fma_launch<float>(p, stream);
}

int64_t cuda_attention_f32_shared(int32_t rows) {
    return attention_fma_shared(rows);
}
