/*
 * The CUDA backend's table: kernels, the plan's image, devices. The runtime is linked statically,
 * so one library serves machines with and without a driver: without one every call says so.
 */
#include "host/forward.h"
#include "host/staged.h"
#include "base/status.h"

#include <math.h>
#include <stdio.h>

tess_status cuda_failed(tess_error *error, cudaError_t code, const char *function,
                        const char *argument, const char *call) {
    int absent = code == cudaErrorInsufficientDriver || code == cudaErrorNoDevice;
    cudaGetLastError(); /* so that a caller's own check does not find our error */
    return error_set(error, absent ? TESS_NO_CUDA : TESS_CUDA_ERROR, function, argument, "%s: %s",
                     call, cudaGetErrorString(code));
}

/* ---- devices ---- */

static int32_t cuda_device_count(void) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return count;
}

static tess_status cuda_attribute(int32_t *value, enum cudaDeviceAttr attribute, int32_t device,
                                  const char *function, tess_error *error) {
    cudaError_t code = cudaDeviceGetAttribute(value, attribute, device);
    return code == cudaSuccess
               ? TESS_OK
               : cuda_failed(error, code, function, "device", "cudaDeviceGetAttribute");
}

static tess_status cuda_target_query(int32_t device, tess_target *target, tess_error *error) {
    int32_t major, minor, multiprocessors, shared, cache;
    const struct {
        int32_t *value;
        enum cudaDeviceAttr attribute;
    } wanted[] = {
        {&major, cudaDevAttrComputeCapabilityMajor},
        {&minor, cudaDevAttrComputeCapabilityMinor},
        {&multiprocessors, cudaDevAttrMultiProcessorCount},
        {&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin},
        {&cache, cudaDevAttrL2CacheSize},
    };
    cudaError_t code = device == -1 ? cudaGetDevice(&device) : cudaSuccess;
    if (code != cudaSuccess)
        return cuda_failed(error, code, "tess_target_query", "device", "cudaGetDevice");
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        tess_status status = cuda_attribute(wanted[i].value, wanted[i].attribute, device,
                                            "tess_target_query", error);
        if (status != TESS_OK)
            return status;
    }
    target->backend = TESS_CUDA;
    target->device = device;
    target->architecture = 10 * major + minor;
    target->multiprocessors = multiprocessors;
    target->shared_memory_per_block = shared;
    target->cache_size = cache;
    return TESS_OK;
}

static tess_status cuda_device_describe(int32_t device, tess_device_info *info, tess_error *error) {
    struct cudaDeviceProp properties;
    cudaError_t code = cudaGetDeviceProperties(&properties, device);
    if (code != cudaSuccess)
        return cuda_failed(error, code, "tess_device_describe", "device",
                           "cudaGetDeviceProperties");
    snprintf(info->name, sizeof info->name, "%.*s", (int)sizeof info->name - 1, properties.name);
    info->architecture = 10 * properties.major + properties.minor;
    info->multiprocessors = properties.multiProcessorCount;
    info->memory_size = (int64_t)properties.totalGlobalMem;
    info->cache_size = properties.l2CacheSize;
    return TESS_OK;
}

/* ---- memory and streams ---- */

static void *cuda_allocate(size_t size) {
    void *memory = NULL;
    if (cudaMalloc(&memory, size) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    return memory;
}

static void cuda_release(void *memory) {
    cudaFree(memory);
}

static tess_status cuda_synchronize(tess_stream stream, tess_error *error) {
    cudaError_t code = cudaStreamSynchronize(stream);
    return code == cudaSuccess
               ? TESS_OK
               : cuda_failed(error, code, "tess_attention", NULL, "cudaStreamSynchronize");
}

/* ---- what both pipelines ask for ---- */

int cuda_scale_power(double scale, tess_type type) {
    int exponent;
    frexp(scale, &exponent);
    return type == TESS_F16 || exponent >= -8 ? 0 : exponent < -141 ? -133 : exponent + 8;
}

tess_status cuda_parts_upload(const struct cuda_part *parts, size_t count, cudaStream_t stream,
                              tess_error *error) {
    for (size_t i = 0; i < count; i++) {
        cudaError_t code = parts[i].count ? cudaMemcpyAsync(parts[i].to, parts[i].from,
                                                            (size_t)parts[i].count * parts[i].size,
                                                            cudaMemcpyHostToDevice, stream)
                                          : cudaSuccess;
        if (code != cudaSuccess)
            return cuda_failed(error, code, "tess_plan_upload", "image", "cudaMemcpyAsync");
    }
    return TESS_OK;
}

static size_t cuda_image_size(const struct kernel_args *args) {
    return args->problem->pipeline == TESS_FUSED ? attention_image_size(args)
                                                 : staged_image_size(args);
}

static tess_status cuda_image_upload(const struct kernel_args *args, void *image,
                                     tess_error *error) {
    return args->problem->pipeline == TESS_FUSED ? attention_image_upload(args, image, error)
                                                 : staged_image_upload(args, image, error);
}

/* ---- kernels ---- */

static const char *kernel_unusable(void) {
    return cuda_device_count() ? NULL : "there is no CUDA driver or device on this machine";
}

/* Staged kernels take every shape; what they need is a device and one type: NULL, or which. */
static const char *refused(const tess_target *target, const char *otherwise) {
    if (target->architecture < 80)
        return "the target's architecture is below 80 (compute capability 8.0)";
    return otherwise;
}

static size_t workspace_none(const struct kernel_args *args) {
    (void)args;
    return 0;
}

/* What `takes` in instances.def may be. */
#define TAKES_any NULL
#define TAKES_f32 problem->type == TESS_F32 ? NULL : "it computes f32 only"
#define TAKES_f16 problem->type == TESS_F16 ? NULL : "it computes f16 only"
#define TAKES_bf16 problem->type == TESS_BF16 ? NULL : "it computes bf16 only"

/* Fused kernels hold scale * log2(e). */
static const char *scale_refused(const struct problem *problem) {
    return fabs(problem->scale) > 0x1p127 ? "it computes scales of up to 2^127" : NULL;
}

#define CUDA_KERNEL(name, its_stage, takes, ...)                                                   \
    static const char *name##_refuses(const struct problem *problem, const tess_target *target) {  \
        (void)problem;                                                                             \
        return refused(target, TAKES_##takes);                                                     \
    }                                                                                              \
    static tess_status name##_run(const struct kernel_args *args, tess_error *error) {             \
        const struct cuda_params p = staged_params_of(args, (void *)(uintptr_t)args->image);       \
        cudaError_t code = cuda_##name(&p, args->stream);                                          \
        return code == cudaSuccess                                                                 \
                   ? TESS_OK                                                                       \
                   : cuda_failed(error, code, args->function, NULL, "cuda_" #name);                \
    }
#define CUDA_ATTENTION(name, type, head, way, ...)                                                 \
    static const char *name##_refuses(const struct problem *problem, const tess_target *target) {  \
        const int64_t d = problem->d_qk > problem->d_v ? problem->d_qk : problem->d_v;             \
        const char *why = d > head ? "its heads have at most " #head " dims" : TAKES_##type;       \
        const char *of_all = scale_refused(problem);                                               \
        of_all = of_all ? of_all : why;                                                            \
        return refused(target, of_all ? of_all : (REFUSES_##way(problem, target, head)));          \
    }                                                                                              \
    static struct granule_step name##_step(int32_t rows) {                                         \
        (void)rows;                                                                                \
        return (struct granule_step){STEP_##way(head, rows)};                                      \
    }                                                                                              \
    static const struct tiling name##_tiling = {                                                   \
        .granule = GRANULE_##way, .halves = HALVES_##way, .step = name##_step};                    \
    static int32_t name##_workers(const tess_target *target, int32_t rows) {                       \
        (void)target, (void)rows;                                                                  \
        return WORKERS_##way(head, cuda_##name##_shared(rows));                                    \
    }                                                                                              \
    static tess_status name##_run(const struct kernel_args *args, tess_error *error) {             \
        const struct attention_params p = attention_params_of(args);                               \
        cudaError_t code = cuda_##name(&p, args->stream);                                          \
        return code == cudaSuccess                                                                 \
                   ? TESS_OK                                                                       \
                   : cuda_failed(error, code, args->function, NULL, "cuda_" #name);                \
    }

/* Blocks of tensor-core kernels stay for several items, which are dealt among them; the others have
 * a block for each. */
static int32_t blocks_of_all(const tess_target *target, int32_t blocks, int64_t shared) {
    /* A multiprocessor has a little more than one block can ask for, and keeps 1 KB of each. */
    const int64_t fit = (target->shared_memory_per_block + 1024) / (shared + 1024);
    const int64_t each = fit < 1 || fit > blocks ? blocks : fit;
    const int64_t all = target->multiprocessors * each;
    return all < 1 << 20 ? (int32_t)all : 1 << 20;
}

/* The same of kernels of which two multiprocessors share an item. */
static int32_t pairs_of_all(const tess_target *target) {
    return target->multiprocessors < 2 ? 1 : target->multiprocessors / 2;
}

/* Rows of a query tile of fused kernels; of attention_low.cuh by heads' dims. */
static const int32_t sm90_rows[] = {32, 64, 128, 0}, sm90_r192_rows[] = {192, 0};
static const int32_t sm90_wide_rows[] = {32, 64, 0};
static const int32_t mma_rows[] = {8, 16, 32, 64, 128, 0}, mma_f32_rows[] = {16, 32, 64, 128, 0};
static const int32_t low_rows_64[] = {8, 0}, low_rows_128[] = {8, 16, 0};
static const int32_t low_rows_192[] = {8, 16, 0}, low_rows_256[] = {8, 16, 32, 0};
static const int32_t low_rows_512[] = {8, 16, 0}, low_rows_768[] = {8, 16, 0};
static const int32_t low_rows_1024[] = {8, 16, 0}, low_16bit_rows_512[] = {8, 16, 32, 0};
static const int32_t low_16bit_rows_768[] = {8, 16, 0}, low_16bit_rows_1024[] = {8, 16, 32, 0};
static const int32_t fma_rows[] = {8, 16, 32, 64, 0};

static int has_rows(const struct problem *problem, const int32_t *rows) {
    while (*rows && *rows != problem->tile_rows)
        rows++;
    return *rows || !problem->tile_rows;
}

/* What kernels of one way refuse beside that. */
static const char *sm90_refuses(const struct problem *problem, const tess_target *target) {
    if (target->architecture != 90)
        return "the target's architecture is not 90 (compute capability 9.0)";
    if (problem->alignment < 16 || problem->d_qk % 8 || problem->d_v % 8)
        return "it copies 16 bytes at a time: rows have to be aligned to that";
    if (!(problem->scale >= 0x1p-8 && problem->scale <= 0x1p8))
        return "its scale is not within 2^-8 ... 2^8";
    return NULL;
}
static const char *sm90_rows_refuse(const struct problem *problem, const tess_target *target,
                                    const int32_t *rows, const char *otherwise) {
    return has_rows(problem, rows) ? sm90_refuses(problem, target) : otherwise;
}
#define REFUSES_sm90(problem, target, head)                                                        \
    sm90_rows_refuse(problem, target, sm90_rows, "its query tiles have 32, 64 or 128 rows")
#define REFUSES_sm90_v128(problem, target, head)                                                   \
    (problem)->d_v > 128 ? "its values have at most 128 dims" : REFUSES_sm90(problem, target, head)
#define REFUSES_sm90_r192(problem, target, head)                                                   \
    sm90_rows_refuse(problem, target, sm90_r192_rows, "its query tiles have 192 rows")
#define REFUSES_sm90_pair(problem, target, head)                                                   \
    sm90_rows_refuse(problem, target, sm90_wide_rows, "its query tiles have 32 or 64 rows")
#define REFUSES_sm90_wide(problem, target, head)                                                   \
    (problem)->d_v > 512 ? "its values have at most 512 dims"                                      \
                         : REFUSES_sm90_pair(problem, target, head)
#define REFUSES_mma(problem, target, head) NULL
#define REFUSES_mma_f32(problem, target, head) NULL
#define REFUSES_low(problem, target, head)                                                         \
    has_rows(problem, low_rows_##head)                                                             \
        ? NULL                                                                                     \
        : "its query tiles have 8 rows (of more than 64 dims 16 as well, of 193 to 256 dims 32)"
#define REFUSES_low_16bit(problem, target, head)                                                   \
    has_rows(problem, low_16bit_rows_##head)                                                       \
        ? NULL                                                                                     \
        : "its query tiles have 8 or 16 rows (of up to 512 and of more than 768 dims 32 as well)"
#define REFUSES_fma(problem, target, head) NULL

/* Hopper's are the fastest but for the thinnest of patterns. */
#define WEIGHED_sm90 1
#define WEIGHED_sm90_v128 1
#define WEIGHED_sm90_r192 1
#define WEIGHED_sm90_wide 1
#define WEIGHED_sm90_pair 1
#define WEIGHED_mma 0
#define WEIGHED_mma_f32 0
#define WEIGHED_low 1
#define WEIGHED_low_16bit 1
#define WEIGHED_fma 0

/* Dims that a key has, of K and V together, by two. */
#define PADDED_sm90(head) head
#define PADDED_sm90_v128(head) (((head) + 128) / 2)
#define PADDED_sm90_r192(head) head
#define PADDED_sm90_wide(head) (((head) + 512) / 2)
#define PADDED_sm90_pair(head) head
#define PADDED_mma(head) head
#define PADDED_mma_f32(head) head
#define PADDED_low(head) head
#define PADDED_low_16bit(head) head
#define PADDED_fma(head) 0

#define WORKERS_sm90(head, shared) blocks_of_all(target, 1, shared)
#define WORKERS_sm90_v128(head, shared) WORKERS_sm90(head, shared)
#define WORKERS_sm90_r192(head, shared) WORKERS_sm90(head, shared)
#define WORKERS_sm90_wide(head, shared) WORKERS_sm90(head, shared)
#define WORKERS_sm90_pair(head, shared) pairs_of_all(target)
#define WORKERS_mma(head, shared) blocks_of_all(target, ATTENTION_BLOCKS(head, rows), shared)
#define WORKERS_mma_f32(head, shared)                                                              \
    blocks_of_all(target, ATTENTION_BLOCKS_F32(head, rows), shared)
#define WORKERS_low(head, shared) blocks_of_all(target, ATTENTION_BLOCKS_LOW(head, rows), shared)
#define WORKERS_low_16bit(head, shared)                                                            \
    blocks_of_all(target, ATTENTION_BLOCKS_LOW_16BIT(head, rows), shared)
#define WORKERS_fma(head, shared) 1
/* Of tall tiles of up to 64 dims as thin lists have them: of others few granules have masks. */
#define STEP_sm90(head, rows) 0, 0
#define STEP_sm90_v128(head, rows) 0, 0
#define STEP_sm90_r192(head, rows) 0, 0
#define STEP_sm90_wide(head, rows) 0, 0
#define STEP_sm90_pair(head, rows) 0, 0
#define STEP_mma(head, rows) ATTENTION_STEP(head, rows), ATTENTION_WARP(head, rows, 1)
#define STEP_mma_f32(head, rows) ATTENTION_STEP_F32(rows), ATTENTION_WARP_F32(head, rows)
#define STEP_low(head, rows) 0, 0
#define STEP_low_16bit(head, rows) 0, 0
#define STEP_fma(head, rows) 0, 0
#define HALVES_sm90 1
#define HALVES_sm90_v128 1
#define HALVES_sm90_r192 1
#define HALVES_sm90_wide 1
#define HALVES_sm90_pair 1
#define HALVES_mma 0
#define HALVES_mma_f32 0
#define HALVES_low 0
#define HALVES_low_16bit 0
#define HALVES_fma 0
/* As sm90_shape's HALVED. */
#define TURNS_sm90(head) ((head) <= 128)
#define TURNS_sm90_v128(head) 1
#define TURNS_sm90_r192(head) 0
#define TURNS_sm90_wide(head) 0
#define TURNS_sm90_pair(head) 0
#define TURNS_mma(head) 0
#define TURNS_mma_f32(head) 0
#define TURNS_low(head) 0
#define TURNS_low_16bit(head) 0
#define TURNS_fma(head) 0
#define GRANULE_sm90 GRANULE_MAX
#define GRANULE_sm90_v128 GRANULE_MAX
#define GRANULE_sm90_r192 GRANULE_MAX
#define GRANULE_sm90_wide GRANULE_MAX
#define GRANULE_sm90_pair GRANULE_MAX
#define GRANULE_mma ATTENTION_GRANULE
#define GRANULE_mma_f32 ATTENTION_GRANULE_F32
#define GRANULE_low ATTENTION_GRANULE_LOW
#define GRANULE_low_16bit ATTENTION_GRANULE_LOW
#define GRANULE_fma GRANULE_MAX

#include "instances.def"
#undef CUDA_KERNEL
#undef CUDA_ATTENTION

/* Those rows, and the ones that heads are stacked to (kernels.h). */
#define ROWS_sm90(head) sm90_rows
#define ROWS_sm90_v128(head) sm90_rows
#define ROWS_sm90_r192(head) sm90_r192_rows
#define ROWS_sm90_wide(head) sm90_wide_rows
#define ROWS_sm90_pair(head) sm90_wide_rows
#define ROWS_mma(head) mma_rows
#define ROWS_mma_f32(head) mma_f32_rows
#define ROWS_low(head) low_rows_##head
#define ROWS_low_16bit(head) low_16bit_rows_##head
#define ROWS_fma(head) fma_rows
#define STACKED_sm90 128
#define STACKED_sm90_v128 128
#define STACKED_sm90_r192 0
#define STACKED_sm90_wide 64
#define STACKED_sm90_pair 64
#define STACKED_mma 0
#define STACKED_mma_f32 0
#define STACKED_low 0
#define STACKED_low_16bit 0
#define STACKED_fma 0

static const struct kernel kernels[] = {
#define CUDA_KERNEL(name_, its_stage, takes, ...)                                                  \
    {.name = "cuda_" #name_,                                                                       \
     .stage = TESS_STAGE_##its_stage,                                                              \
     .cost = {__VA_ARGS__},                                                                        \
     .unusable = kernel_unusable,                                                                  \
     .refuses = name_##_refuses,                                                                   \
     .workspace = workspace_none,                                                                  \
     .run = name_##_run},
#define CUDA_ATTENTION(name_, type, head, way, ...)                                                \
    {.name = "cuda_" #name_,                                                                       \
     .stage = TESS_STAGE_ATTENTION,                                                                \
     .tile_rows = ROWS_##way(head),                                                                \
     .cost = {__VA_ARGS__},                                                                        \
     .stacked_rows = STACKED_##way,                                                                \
     .stacked_whole = 1,                                                                           \
     .padded_head = PADDED_##way(head),                                                            \
     .weighed = WEIGHED_##way,                                                                     \
     .workers = name_##_workers,                                                                   \
     .shared = cuda_##name_##_shared,                                                              \
     .turns = TURNS_##way(head),                                                                   \
     .tiling = &name_##_tiling,                                                                    \
     .unusable = kernel_unusable,                                                                  \
     .refuses = name_##_refuses,                                                                   \
     .workspace = attention_workspace,                                                             \
     .run = name_##_run},
#include "instances.def"
#undef CUDA_KERNEL
#undef CUDA_ATTENTION
};

const struct backend *cuda_kernels(void) {
    static const struct backend backend = {
        .name = "cuda",
        .kernels = kernels,
        .n_kernels = sizeof kernels / sizeof *kernels,
        .device_count = cuda_device_count,
        .device_describe = cuda_device_describe,
        .target_query = cuda_target_query,
        .prepare = prepare_lists,
        .prepared_free = prepare_free,
        .prepared_memory = prepare_memory,
        .unevenness = prepare_unevenness,
        .image_size = cuda_image_size,
        .image_upload = cuda_image_upload,
        .allocate = cuda_allocate,
        .release = cuda_release,
        .synchronize = cuda_synchronize,
    };
    return &backend;
}
