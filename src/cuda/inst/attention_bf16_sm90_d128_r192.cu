#include "forward/sm90/kernel.cuh"

cudaError_t cuda_attention_bf16_sm90_d128_r192(const struct attention_params *p, cudaStream_t stream) {
    return attention_sm90_launch<__nv_bfloat16, sm90_shape<128, 128, 3>>(p, stream);
}

int64_t cuda_attention_bf16_sm90_d128_r192_shared(int32_t rows) {
    (void)rows;
    return sm90_shape<128, 128, 3>::BYTES;
}
