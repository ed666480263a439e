#include "forward/sm90/kernel.cuh"

cudaError_t cuda_attention_f16_sm90_d1024(const struct attention_params *p, cudaStream_t stream) {
    return attention_sm90_launch<__half, sm90_shape<512, 512, 2, 2>>(p, stream);
}

int64_t cuda_attention_f16_sm90_d1024_shared(int32_t rows) {
    (void)rows;
    return sm90_shape<512, 512, 2, 2>::BYTES;
}
