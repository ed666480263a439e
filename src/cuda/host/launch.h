/* Launch functions of the units that nvcc compiles, one for each kernel. Launches only: nothing is
 * allocated, copied or waited for. */
#ifndef TESSERA_CUDA_LAUNCH_FUNCTIONS_H
#define TESSERA_CUDA_LAUNCH_FUNCTIONS_H

#include "tessera.h"

#include <cuda_runtime_api.h>
#ifndef __cplusplus
#include <stdbool.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Operands by name alone: a unit includes its family's header, and is not compiled anew for another's. */
struct attention_params;
struct column_sums_params;
struct decode_params;
struct delta_params;
struct fill_params;
struct gradient_params;
struct mlp_params;
struct staged_params;

/* cuda_NAME; fused ones also have cuda_NAME_shared: shared bytes of a CTA, which the table tells planning. */
#define CUDA_FORWARD_UNIT(name)                                                                    \
    cudaError_t cuda_attention_##name(const struct attention_params *p, cudaStream_t stream);      \
    int64_t cuda_attention_##name##_shared(int32_t rows);
#define CUDA_FORWARD_UNITS_f32(name) CUDA_FORWARD_UNIT(f32_##name)
#define CUDA_FORWARD_UNITS_16bit(name) CUDA_FORWARD_UNIT(bf16_##name) CUDA_FORWARD_UNIT(f16_##name)
#define CUDA_FORWARD(types, name, ...) CUDA_FORWARD_UNITS_##types(name)
#define CUDA_DECODE_UNIT(name)                                                                     \
    cudaError_t cuda_decode_##name(const struct decode_params *p, cudaStream_t stream);            \
    int64_t cuda_decode_##name##_shared(int32_t rows);
#define CUDA_DECODE_UNITS_16bit(name) CUDA_DECODE_UNIT(bf16_##name) CUDA_DECODE_UNIT(f16_##name)
#define CUDA_DECODE_UNITS_f32_f16(name) CUDA_DECODE_UNIT(f32_f16_##name)
#define CUDA_DECODE_UNITS_f32_bf16(name) CUDA_DECODE_UNIT(f32_bf16_##name)
#define CUDA_DECODE(types, name, ...) CUDA_DECODE_UNITS_##types(name)
#define CUDA_STAGED_UNIT(name)                                                                     \
    cudaError_t cuda_##name(const struct staged_params *p, cudaStream_t stream);
#define CUDA_STAGED_UNITS_any(stem, variant) CUDA_STAGED_UNIT(stem##_f32_##variant)
#define CUDA_STAGED_UNITS_f32(stem, variant) CUDA_STAGED_UNIT(stem##_f32_##variant)
#define CUDA_STAGED_UNITS_16bit(stem, variant)                                                     \
    CUDA_STAGED_UNIT(stem##_bf16_##variant) CUDA_STAGED_UNIT(stem##_f16_##variant)
#define CUDA_STAGED(types, stem, variant, ...) CUDA_STAGED_UNITS_##types(stem, variant)
#define CUDA_BACKWARD(type, name, pass, ...)                                                       \
    cudaError_t cuda_gradient_##pass##_##type##_##name(const struct gradient_params *p,            \
                                                       cudaStream_t stream);                       \
    int64_t cuda_gradient_##pass##_##type##_##name##_shared(int32_t rows);
#define CUDA_DELTA(...) cudaError_t cuda_delta(const struct delta_params *p, cudaStream_t stream);
#define CUDA_SUMS(...)                                                                             \
    cudaError_t cuda_column_sums(const struct column_sums_params *p, cudaStream_t stream);
#define CUDA_MLP(name) cudaError_t cuda_mlp_##name(const struct mlp_params *p, cudaStream_t stream);
#define CUDA_MLP_UP(name, ...)                                                                     \
    CUDA_MLP(up_bf16_##name)                                                                       \
    CUDA_MLP(up_f16_##name)                                                                        \
    int64_t cuda_mlp_up_bf16_##name##_shared(int32_t rows);                                        \
    int64_t cuda_mlp_up_f16_##name##_shared(int32_t rows);
#define CUDA_MLP_DOWN(name, ...) CUDA_MLP(down_bf16_##name) CUDA_MLP(down_f16_##name)
#include "instances.def"
#undef CUDA_FORWARD
#undef CUDA_DECODE
#undef CUDA_STAGED
#undef CUDA_BACKWARD
#undef CUDA_DELTA
#undef CUDA_SUMS
#undef CUDA_MLP_UP
#undef CUDA_MLP_DOWN
#undef CUDA_MLP

/* Fills `partial`, `rows`, `block_rows` and `chunks` of an image whose other parts are in place. */
cudaError_t cuda_image_derive(const struct staged_params *p, cudaStream_t stream);

/* NULL, or why a run's tensors have no tensor maps, which kernels over filled blocks of the type read. */
const char *cuda_decode_refuses_run(const struct decode_params *p, tess_type type);

/* Likewise of kernels that write column sums beside o. */
const char *cuda_sums_refuses_run(const struct attention_params *p, tess_type type);

/* Likewise of a product of the MLP by Hopper's instructions. */
const char *cuda_mlp_refuses_run(const struct mlp_params *p, tess_type type, bool down);

/* Fills an image. */
cudaError_t cuda_fill(const struct fill_params *p, cudaStream_t stream);

/* Softcap and ALiBi on the scores that SDDMM has written. */
cudaError_t cuda_sddmm_modify(const struct staged_params *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

/* Whether the current device is the target's, where images lie and kernels run; -1 is any. */
tess_status device_is_current(const tess_target *target, const char *function, tess_error *error);

tess_status cuda_failed(tess_error *error, cudaError_t code, const char *function,
                        const char *argument, const char *call);

#endif
