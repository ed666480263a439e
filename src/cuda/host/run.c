/* Launches of the table's kernels, in its order. */
#include "base/status.h"
#include "host/launch.h"
#include "host/table.h"

#define CUDA_FORWARD(...)
#define CUDA_DECODE(...)
#define CUDA_BACKWARD(...)
#define CUDA_DELTA(...)
#define CUDA_STAGED_LAUNCHES_any(stem, variant) cuda_##stem##_f32_##variant,
#define CUDA_STAGED_LAUNCHES_f32(stem, variant) cuda_##stem##_f32_##variant,
#define CUDA_STAGED_LAUNCHES_16bit(stem, variant)                                                  \
    cuda_##stem##_bf16_##variant, cuda_##stem##_f16_##variant,
#define CUDA_STAGED(types, stem, variant, ...) CUDA_STAGED_LAUNCHES_##types(stem, variant)
static cudaError_t (*const staged[])(const struct staged_params *, cudaStream_t) = {
#include "instances.def"
};
#undef CUDA_FORWARD
#undef CUDA_STAGED

#define CUDA_STAGED(...)
#define CUDA_FORWARD_LAUNCHES_f32(name) cuda_attention_f32_##name,
#define CUDA_FORWARD_LAUNCHES_16bit(name) cuda_attention_bf16_##name, cuda_attention_f16_##name,
#define CUDA_FORWARD(types, name, ...) CUDA_FORWARD_LAUNCHES_##types(name)
static cudaError_t (*const forward[])(const struct attention_params *, cudaStream_t) = {
#include "instances.def"
};
#undef CUDA_FORWARD
#undef CUDA_DECODE

#define CUDA_FORWARD(...)
#define CUDA_DECODE_LAUNCHES_16bit(name) cuda_decode_bf16_##name, cuda_decode_f16_##name,
#define CUDA_DECODE_LAUNCHES_f32_f16(name) cuda_decode_f32_f16_##name,
#define CUDA_DECODE_LAUNCHES_f32_bf16(name) cuda_decode_f32_bf16_##name,
#define CUDA_DECODE(types, name, ...) CUDA_DECODE_LAUNCHES_##types(name)
static cudaError_t (*const decode[])(const struct decode_params *, cudaStream_t) = {
#include "instances.def"
};
#undef CUDA_DECODE
#undef CUDA_BACKWARD

#define CUDA_DECODE(...)
#define CUDA_BACKWARD(type, name, pass, ...) cuda_gradient_##pass##_##type##_##name,
static cudaError_t (*const backward[])(const struct gradient_params *, cudaStream_t) = {
#include "instances.def"
};

/* ---- what kernels without another way than TMA refuse ---- */

/* One entry a kernel, as above; NULL: its launch takes every tensor. A new family says which it is. */
#undef CUDA_DECODE
#undef CUDA_BACKWARD
#define CUDA_BACKWARD(...)
#define ASKS_ALWAYS(name) cuda_##name##_refuses_run
#define ASKS_NEVER(name) NULL
#define ASKS_4 ASKS_NEVER
#define ASKS_8 ASKS_NEVER
#define ASKS_16 ASKS_NEVER
#define ASKS_16f ASKS_NEVER
#define ASKS_32 ASKS_NEVER
#define ASKS_64 ASKS_NEVER
#define ASKS_sm90 ASKS_NEVER
#define ASKS_blocks ASKS_NEVER /* another kernel takes the same image */
#define ASKS_blocks128 ASKS_ALWAYS
#define CUDA_DECODE_ASKS_16bit(name, high)                                                         \
    ASKS_##high(decode_bf16_##name), ASKS_##high(decode_f16_##name),
#define CUDA_DECODE_ASKS_f32_f16(name, high) ASKS_##high(decode_f32_f16_##name),
#define CUDA_DECODE_ASKS_f32_bf16(name, high) ASKS_##high(decode_f32_bf16_##name),
#define CUDA_DECODE(types, name, d_qk, d_v, high, ...) CUDA_DECODE_ASKS_##types(name, high)
static const char *(*const decode_asks[])(const struct decode_params *) = {
#include "instances.def"
};

const char *decode_refuses_run(const struct kernel_args *args) {
    const char *(*const refuses)(const struct decode_params *) =
        decode_asks[args->kernel - cuda_table - CUDA_BEFORE_DECODE];
    if (!refuses)
        return NULL;
    const struct decode_params p = decode_params_of(args);
    return refuses(&p);
}

/* ---- launches ---- */

static tess_status answer(const struct kernel_args *args, cudaError_t code, tess_error *error) {
    return code == cudaSuccess ? TESS_OK
                               : cuda_failed(error, code, args->function, NULL, args->kernel->name);
}

tess_status staged_run(const struct kernel_args *args, tess_error *error) {
    const tess_status status = device_is_current(args->target, args->function, error);
    if (status)
        return status;
    const struct staged_params p = staged_params_of(args, (void *)(uintptr_t)args->image);
    cudaError_t code = staged[args->kernel - cuda_table](&p, args->stream);
    if (!code && args->kernel->stage == TESS_STAGE_SDDMM && p.modify.scores)
        code = cuda_sddmm_modify(&p, args->stream);
    return answer(args, code, error);
}

tess_status forward_run(const struct kernel_args *args, tess_error *error) {
    const tess_status status = device_is_current(args->target, args->function, error);
    if (status)
        return status;
    const struct attention_params p = attention_params_of(args);
    return answer(args, forward[args->kernel - cuda_table - CUDA_STAGED_ROWS](&p, args->stream),
                  error);
}

tess_status decode_run(const struct kernel_args *args, tess_error *error) {
    const tess_status status = device_is_current(args->target, args->function, error);
    if (status)
        return status;
    const struct decode_params p = decode_params_of(args);
    return answer(args, decode[args->kernel - cuda_table - CUDA_BEFORE_DECODE](&p, args->stream),
                  error);
}

tess_status gradient_run(const struct kernel_args *args, tess_error *error) {
    const tess_status status = device_is_current(args->target, args->function, error);
    if (status)
        return status;
    const struct gradient_params p = gradient_params_of(args);
    return answer(
        args, backward[args->kernel - cuda_table - CUDA_BEFORE_BACKWARD](&p, args->stream), error);
}

tess_status delta_run(const struct kernel_args *args, tess_error *error) {
    const tess_status status = device_is_current(args->target, args->function, error);
    if (status)
        return status;
    const struct delta_params p = delta_params_of(args);
    return answer(args, cuda_delta(&p, args->stream), error);
}

tess_status cuda_fill_run(const struct fill_job *job, tess_error *error) {
    const tess_status status = device_is_current(job->target, job->function, error);
    if (status)
        return status;
    const struct fill_params p = fill_params_of(job);
    const cudaError_t code = cuda_fill(&p, job->stream);
    return code == cudaSuccess ? TESS_OK : cuda_failed(error, code, job->function, NULL, "fill");
}
