#include "attention_mma.cuh"

cudaError_t cuda_attention_bf16_d128(const struct attention_params *p, cudaStream_t stream) {
    return attention_mma_launch<__nv_bfloat16, 128>(p, stream);
}
