/*
 * Kernels of f16 for builds that are checks alone and compile none of them (TESSERA_CUDA_F16=OFF): they
 * launch nothing, and answer a size below 0 where one is asked for.
 */
#include "host/launch.h"

#define STAND_IN(name, params)                                                                     \
    cudaError_t name(const struct params *p, cudaStream_t stream) {                                \
        (void)p, (void)stream;                                                                     \
        return cudaErrorInvalidDeviceFunction;                                                     \
    }
#define STAND_IN_SHARED(name)                                                                      \
    int64_t name##_shared(int32_t rows) {                                                          \
        (void)rows;                                                                                \
        return -1;                                                                                 \
    }

#define STAGED_any(stem, variant)
#define STAGED_f32(stem, variant)
#define STAGED_16bit(stem, variant) STAND_IN(cuda_##stem##_f16_##variant, staged_params)
#define CUDA_STAGED(types, stem, variant, ...) STAGED_##types(stem, variant)

#define FORWARD_f32(name)
#define FORWARD_16bit(name)                                                                        \
    STAND_IN(cuda_attention_f16_##name, attention_params)                                          \
    STAND_IN_SHARED(cuda_attention_f16_##name)
#define CUDA_FORWARD(types, name, ...) FORWARD_##types(name)

#define DECODE_f32_f16(name) /* has no twin */
#define DECODE_f32_bf16(name)
#define DECODE_16bit(name)                                                                         \
    STAND_IN(cuda_decode_f16_##name, decode_params)                                                \
    STAND_IN_SHARED(cuda_decode_f16_##name)
#define CUDA_DECODE(types, name, ...) DECODE_##types(name)

#define BACKWARD_f32(name, pass)
#define BACKWARD_bf16(name, pass)
#define BACKWARD_f16(name, pass)                                                                   \
    STAND_IN(cuda_gradient_##pass##_f16_##name, gradient_params)                                   \
    STAND_IN_SHARED(cuda_gradient_##pass##_f16_##name)
#define CUDA_BACKWARD(type, name, pass, ...) BACKWARD_##type(name, pass)

#define CUDA_DELTA(...)
#define CUDA_SUMS(...)
#define CUDA_MLP_UP(name, ...)                                                                     \
    STAND_IN(cuda_mlp_up_f16_##name, mlp_params) STAND_IN_SHARED(cuda_mlp_up_f16_##name)
#define CUDA_MLP_DOWN(name, ...) STAND_IN(cuda_mlp_down_f16_##name, mlp_params)
#include "instances.def"
