/*
 * The CUDA backend as planning knows it, for tests of builds without CUDA: linked with
 * --wrap=backend_get beside the rooms that planning is made of. Nothing here runs, uploads or finds a
 * device.
 */
#include "base/status.h"
#include "host/staged.h"
#include "host/table.h"

static const char *const absent = "this build has no CUDA";

const char *cuda_unusable(void) {
    return absent;
}

const char *forward_refuses_run(const struct kernel_args *args) {
    (void)args;
    return NULL;
}

const char *decode_refuses_run(const struct kernel_args *args) {
    (void)args;
    return NULL;
}

tess_status staged_run(const struct kernel_args *args, tess_error *error) {
    (void)args, (void)error;
    return TESS_NO_CUDA;
}

tess_status forward_run(const struct kernel_args *args, tess_error *error) {
    return staged_run(args, error);
}

tess_status decode_run(const struct kernel_args *args, tess_error *error) {
    return staged_run(args, error);
}

tess_status gradient_run(const struct kernel_args *args, tess_error *error) {
    return staged_run(args, error);
}

tess_status delta_run(const struct kernel_args *args, tess_error *error) {
    return staged_run(args, error);
}

tess_status column_sums_run(const struct kernel_args *args, tess_error *error) {
    return staged_run(args, error);
}

const char *mlp_refuses_run(const struct kernel_args *args) {
    (void)args;
    return NULL;
}

tess_status mlp_run(const struct kernel_args *args, tess_error *error) {
    return staged_run(args, error);
}

tess_status cuda_fill_run(const struct fill_job *job, tess_error *error) {
    (void)job, (void)error;
    return TESS_NO_CUDA;
}

static int32_t device_count(void) {
    return 0;
}

static tess_status device_describe(int32_t device, tess_device_info *info, tess_error *error) {
    (void)device, (void)info;
    return error_set(error, TESS_NO_CUDA, "tess_device_describe", "device", "%s", absent);
}

static tess_status target_query(int32_t device, tess_target *target, tess_error *error) {
    (void)device, (void)target;
    return error_set(error, TESS_NO_CUDA, "tess_target_query", "device", "%s", absent);
}

const struct backend *__real_backend_get(tess_backend backend);
const struct backend *__wrap_backend_get(tess_backend backend);

const struct backend *__wrap_backend_get(tess_backend backend) {
    static const struct backend planning = {CUDA_PLANNING,
                                            .device = {.count = device_count,
                                                       .describe = device_describe,
                                                       .target = target_query,
                                                       .memory_rate = cuda_memory_rate},
                                            .image = {CUDA_IMAGE}};
    return backend == TESS_CUDA ? &planning : __real_backend_get(backend);
}
