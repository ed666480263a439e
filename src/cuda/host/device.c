/* Devices, memory and streams. The runtime is linked statically, so one library serves machines with
 * and without a driver: without one every call says so. */
#include "base/status.h"
#include "host/launch.h"
#include "host/merge.h"
#include "host/pool.h"
#include "host/select.h"
#include "host/staged.h"
#include "host/table.h"

#include <stdio.h>

/* Why there is no device, NULL where the code does not say so: the runtime's words are of its versions alone. */
static const char *absence(cudaError_t code) {
    int driver = 0; /* 0 where none is installed */
    if (code == cudaErrorNoDevice)
        return "the NVIDIA driver finds no GPU";
    if (code != cudaErrorInsufficientDriver)
        return NULL;
    cudaDriverGetVersion(&driver);
    return driver ? "the NVIDIA driver is too old for this library's CUDA: install a newer one"
                  : "there is no NVIDIA driver on this machine";
}

tess_status cuda_failed(tess_error *error, cudaError_t code, const char *function,
                        const char *argument, const char *call) {
    const char *absent = absence(code);
    cudaGetLastError(); /* so that a caller's own check does not find our error */
    if (absent)
        return error_set(error, TESS_NO_CUDA, function, argument, "%s", absent);
    return error_set(error, TESS_CUDA_ERROR, function, argument, "%s: %s", call,
                     cudaGetErrorString(code));
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

/* Bytes a second; 0 where the driver has no answer, or the memory is a host's. */
static int64_t memory_rate(int32_t device) {
    int32_t clock, width; /* kHz, of two transfers each; bits */
    if (cudaDeviceGetAttribute(&clock, cudaDevAttrMemoryClockRate, device) == cudaSuccess &&
        cudaDeviceGetAttribute(&width, cudaDevAttrGlobalMemoryBusWidth, device) == cudaSuccess)
        return (int64_t)clock * 1000 * 2 * width / 8;
    cudaGetLastError(); /* no error stays set */
    return 0;
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
    target->memory_rate = memory_rate(device);
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

tess_status device_is_current(const tess_target *target, const char *function, tess_error *error) {
    int current;
    const cudaError_t code = cudaGetDevice(&current);
    if (code != cudaSuccess)
        return cuda_failed(error, code, function, "plan", "cudaGetDevice");
    if (target->device == -1 || target->device == current)
        return TESS_OK;
    return error_set(error, TESS_INVALID_ARGUMENT, function, "plan",
                     "the plan is for device %d, and the current device is %d: call "
                     "cudaSetDevice(%d) before",
                     (int)target->device, current, (int)target->device);
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

/* ---- images ---- */

static tess_status part_copy(const struct device_part *part, tess_stream stream,
                             tess_error *error) {
    const cudaError_t code =
        part->from && part->count
            ? cudaMemcpyAsync(part->to, part->from, (size_t)part->count * part->size,
                              cudaMemcpyHostToDevice, stream)
            : cudaSuccess;
    return code == cudaSuccess
               ? TESS_OK
               : cuda_failed(error, code, "tess_plan_upload", "image", "cudaMemcpyAsync");
}

static tess_status staged_derive(const struct kernel_args *args, void *image, tess_error *error) {
    const struct staged_params p = staged_params_planned(args, image);
    const size_t tiles = (size_t)args->work.bcsr->n_tiles;
    cudaError_t code =
        p.image.partial
            ? cudaMemsetAsync(p.image.partial, 0, tiles * sizeof *p.image.partial, args->stream)
            : cudaSuccess;
    if (code != cudaSuccess)
        return cuda_failed(error, code, "tess_plan_upload", "image", "cudaMemsetAsync");
    code = cuda_image_derive(&p, args->stream);
    return code == cudaSuccess
               ? TESS_OK
               : cuda_failed(error, code, "tess_plan_upload", "image", "cuda_image_derive");
}

/* All that is copied is memory of the plan, header included: the device may read it after the call. */
static tess_status cuda_image_upload(const struct kernel_args *args, const void *header,
                                     void *image, tess_error *error) {
    const struct device_part first = {image, header, 1, sizeof(struct image_header)};
    struct device_part parts[IMAGE_ARRAYS];
    const size_t count = cuda_image_parts(parts, args, image);
    tess_status status = device_is_current(args->target, "tess_plan_upload", error);
    for (size_t i = 0; i < count && !status; i++)
        status = part_copy(&parts[i], args->stream, error);
    if (!status)
        status = part_copy(&first, args->stream, error);
    return status || args->problem->pipeline == TESS_FUSED ? status
                                                           : staged_derive(args, image, error);
}

/* ---- the backend ---- */

const char *cuda_unusable(void) {
    int count = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    const char *absent = absence(code);
    if (code)
        cudaGetLastError();
    return absent ? absent : code || !count ? "the CUDA runtime finds no device" : NULL;
}

const struct backend *cuda_kernels(void) {
    static const struct backend backend = {
        CUDA_PLANNING,
        .device = {.count = cuda_device_count,
                   .describe = cuda_device_describe,
                   .target = cuda_target_query,
                   .memory_rate = cuda_memory_rate,
                   .allocate = cuda_allocate,
                   .release = cuda_release,
                   .synchronize = cuda_synchronize},
        .image = {CUDA_IMAGE, .upload = cuda_image_upload},
        .call = {.merge = cuda_merge_run,
                 .unmerge = cuda_unmerge_run,
                 .select = cuda_select_run,
                 .pool = cuda_pool_run,
                 .score = cuda_score_run,
                 .columns = cuda_columns_run},
    };
    return &backend;
}
