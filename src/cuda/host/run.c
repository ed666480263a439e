/* Launches of the table's kernels, in its order. */
#include "base/status.h"
#include "host/backward.h"
#include "host/column_sums.h"
#include "host/decode.h"
#include "host/launch.h"
#include "host/mlp.h"
#include "host/staged.h"
#include "host/table.h"

union launch {
    cudaError_t (*staged)(const struct staged_params *, cudaStream_t);
    cudaError_t (*forward)(const struct attention_params *, cudaStream_t);
    cudaError_t (*decode)(const struct decode_params *, cudaStream_t);
    cudaError_t (*gradient)(const struct gradient_params *, cudaStream_t);
    cudaError_t (*delta)(const struct delta_params *, cudaStream_t);
    cudaError_t (*column_sums)(const struct column_sums_params *, cudaStream_t);
    cudaError_t (*mlp)(const struct mlp_params *, cudaStream_t);
};

#define STAGED_any(name, variant) {.staged = cuda_##name##_f32_##variant},
#define STAGED_f32 STAGED_any
#define STAGED_16bit(name, variant)                                                                \
    {.staged = cuda_##name##_bf16_##variant}, {.staged = cuda_##name##_f16_##variant},
#define FORWARD_f32(name) {.forward = cuda_attention_f32_##name},
#define FORWARD_16bit(name)                                                                        \
    {.forward = cuda_attention_bf16_##name}, {.forward = cuda_attention_f16_##name},
#define DECODE_16bit(name) {.decode = cuda_decode_bf16_##name}, {.decode = cuda_decode_f16_##name},
#define DECODE_f32_f16(name) {.decode = cuda_decode_f32_f16_##name},
#define DECODE_f32_bf16(name) {.decode = cuda_decode_f32_bf16_##name},
#define CUDA_STAGED(types, stem, variant, ...) STAGED_##types(stem, variant)
#define CUDA_FORWARD(types, name, ...) FORWARD_##types(name)
#define CUDA_DECODE(types, name, ...) DECODE_##types(name)
#define CUDA_BACKWARD(type, name, pass, ...) {.gradient = cuda_gradient_##pass##_##type##_##name},
#define CUDA_DELTA(...) {.delta = cuda_delta},
#define CUDA_SUMS(...) {.column_sums = cuda_column_sums},
#define CUDA_MLP_UP(name, ...) {.mlp = cuda_mlp_up_bf16_##name}, {.mlp = cuda_mlp_up_f16_##name},
#define CUDA_MLP_DOWN(name, ...)                                                                   \
    {.mlp = cuda_mlp_down_bf16_##name}, {.mlp = cuda_mlp_down_f16_##name},
static const union launch launches[] = {
#include "instances.def"
};
_Static_assert(sizeof launches / sizeof *launches == CUDA_ROWS, "a launch for each row");

static const union launch *launch_of(const struct kernel_args *args) {
    return &launches[args->kernel - cuda_table];
}

/* ---- what kernels without another way than TMA refuse ---- */

const char *forward_refuses_run(const struct kernel_args *args) {
    if (!args->kernel->family->sums)
        return NULL;
    const struct forward_kernel *own = args->kernel->own;
    const struct attention_params p = attention_params_of(args);
    return cuda_sums_refuses_run(&p, own->type);
}

const char *decode_refuses_run(const struct kernel_args *args) {
    if (cuda_family_of(args->kernel)->maps != MAPS_ALONE)
        return NULL;
    const struct forward_kernel *own = args->kernel->own;
    const struct decode_params p = decode_params_of(args);
    return cuda_decode_refuses_run(&p, own->type);
}

const char *mlp_refuses_run(const struct kernel_args *args) {
    if (cuda_family_of(args->kernel)->maps != MAPS_ALONE)
        return NULL;
    const struct mlp_params p = mlp_params_of(args);
    return cuda_mlp_refuses_run(&p, args->problem->type,
                                args->kernel->stage == TESS_STAGE_MLP_DOWN);
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
    const struct staged_params p = staged_params_of(args);
    cudaError_t code = launch_of(args)->staged(&p, args->stream);
    if (!code && args->kernel->stage == TESS_STAGE_SDDMM && p.modify.scores)
        code = cuda_sddmm_modify(&p, args->stream);
    return answer(args, code, error);
}

/* Runs of kernels of a kind, which take parameters of their own. */
#define RUN(kind, its_params)                                                                      \
    tess_status kind##_run(const struct kernel_args *args, tess_error *error) {                    \
        const tess_status status = device_is_current(args->target, args->function, error);         \
        if (status)                                                                                \
            return status;                                                                         \
        const struct its_params p = its_params##_of(args);                                         \
        return answer(args, launch_of(args)->kind(&p, args->stream), error);                       \
    }
RUN(forward, attention_params)
RUN(decode, decode_params)
RUN(gradient, gradient_params)
RUN(delta, delta_params)
RUN(column_sums, column_sums_params)
RUN(mlp, mlp_params)

tess_status cuda_fill_run(const struct fill_job *job, tess_error *error) {
    const tess_status status = device_is_current(job->target, job->function, error);
    if (status)
        return status;
    const struct fill_params p = fill_params_of(job);
    const cudaError_t code = cuda_fill(&p, job->stream);
    return code == cudaSuccess ? TESS_OK : cuda_failed(error, code, job->function, NULL, "fill");
}
