#include "forward/fma/kernel.cuh"

cudaError_t cuda_attention_bf16_wide(const struct attention_params *p, cudaStream_t stream) {
    return attention_fma_launch<__nv_bfloat16>(p, stream);
}

int64_t cuda_attention_bf16_wide_shared(int32_t rows) {
    return attention_fma_shared(rows);
}
