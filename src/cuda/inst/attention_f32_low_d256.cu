#include "attention_low.cuh"

cudaError_t cuda_attention_f32_low_d256(const struct attention_params *p, cudaStream_t stream) {
    return p->tile_rows > LOW_ROWS ? attention_low_launch<256, 2>(p, stream)
                                   : attention_low_launch<256, 1>(p, stream);
}

int64_t cuda_attention_f32_low_d256_shared(int32_t rows) {
    return rows > LOW_ROWS ? attention_low_shape<256, 2>::BYTES
                           : attention_low_shape<256, 1>::BYTES;
}
