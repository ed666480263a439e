#include "forward/sm90/kernel.cuh"

cudaError_t cuda_attention_bf16_sm90_d64(const struct attention_params *p, cudaStream_t stream) {
    return attention_sm90_launch<__nv_bfloat16, sm90_shape<64, 64>>(p, stream);
}

int64_t cuda_attention_bf16_sm90_d64_shared(int32_t rows) {
    (void)rows;
    return sm90_shape<64, 64>::BYTES;
}
