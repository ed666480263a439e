/* Descriptions: devices, targets, kernels, structs, and what a plan chose. */
#include "plan/plan.h"
#include "plan/problem.h"
#include "plan/reserve.h"
#include "base/status.h"

#include <math.h>
#include <string.h>

static const tess_backend backends[] = {TESS_CPU, TESS_CUDA};
#define BACKENDS (sizeof backends / sizeof *backends)

/* first: the struct's size in version 0.1. */
static tess_status give(void *out, const void *known, size_t size, size_t first,
                        const char *function, const char *argument, tess_error *error) {
    const char *wrong = out ? struct_give(out, known, size, first) : "it is NULL";
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, function, argument, "%s: %s", argument,
                         wrong);
    return TESS_OK;
}

int32_t tess_device_count(tess_backend backend) {
    const struct backend *b = backend_get(backend);
    return b ? b->device.count() : 0;
}

tess_status tess_device_describe(tess_backend backend, int32_t device, tess_device_info *info,
                                 tess_error *error) {
    const struct backend *b;
    tess_device_info known = tess_device_info_init();
    tess_status status = check_backend(&b, backend, __func__, "backend", error);
    if (status)
        return status;
    if (device < 0)
        return error_set(error, TESS_INVALID_ARGUMENT, __func__, "device",
                         "devices are numbered from 0; there is no device %d", (int)device);
    status = b->device.describe(device, &known, error);
    return status ? status
                  : give(info, &known, sizeof known, sizeof known, __func__, "info", error);
}

tess_status tess_target_query(tess_target *target, tess_backend backend, int32_t device,
                              tess_error *error) {
    const struct backend *b;
    tess_target known = tess_target_init();
    tess_status status = check_backend(&b, backend, __func__, "backend", error);
    if (!status)
        status = b->device.target(device, &known, error);
    return status
               ? status
               : give(target, &known, sizeof known, TARGET_FIRST_SIZE, __func__, "target", error);
}

tess_status check_target(tess_target *out, const tess_target *given, const char *function,
                         tess_error *error) {
    *out = tess_target_init();
    if (!given)
        return tess_target_query(out, TESS_CPU, -1, error);
    const char *wrong = struct_take(out, sizeof *out, TARGET_FIRST_SIZE, given);
    if (!wrong && !tess_backend_name(out->backend))
        wrong = "backend is not TESS_CPU or TESS_CUDA";
    if (!wrong && out->backend == TESS_CUDA && out->multiprocessors < 1)
        wrong = "multiprocessors is below 1";
    if (!wrong && out->memory_rate < 0)
        wrong = "memory_rate is negative";
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "target", "target: %s", wrong);
    const struct backend *backend = backend_get(out->backend);
    if (!out->memory_rate && backend && backend->device.memory_rate)
        out->memory_rate = backend->device.memory_rate(out->architecture);
    return TESS_OK;
}

int64_t tess_kernel_count(void) {
    int64_t n = 0;
    for (size_t i = 0; i < BACKENDS; i++) {
        const struct backend *b = backend_get(backends[i]);
        n += b ? b->n_kernels : 0;
    }
    return n;
}

tess_status tess_kernel_describe(int64_t number, tess_kernel_info *info, tess_error *error) {
    int64_t left = number;
    for (size_t i = 0; i < BACKENDS && left >= 0; i++) {
        const struct backend *b = backend_get(backends[i]);
        int64_t n = b ? b->n_kernels : 0;
        if (left < n) {
            const struct kernel *kernel = &b->kernels[left];
            tess_kernel_info known = tess_kernel_info_init();
            known.name = kernel->name;
            known.backend = backends[i];
            known.stage = kernel->stage;
            known.unusable = kernel->unusable();
            return give(info, &known, sizeof known, sizeof known, __func__, "info", error);
        }
        left -= n;
    }
    return error_set(error, TESS_INVALID_ARGUMENT, __func__, "number",
                     "there is no kernel %lld, only 0 ... %lld", (long long)number,
                     (long long)tess_kernel_count() - 1);
}

const char *tess_cpu_isa(void) {
    return cpu_isa();
}

/* ---- plans ---- */

size_t tess_plan_workspace_size(const tess_plan *plan) {
    return plan ? plan->workspace : 0;
}

size_t tess_plan_image_size(const tess_plan *plan) {
    return plan ? plan->image : 0;
}

int64_t tess_plan_scores_count(const tess_plan *plan) {
    return plan ? plan->scores_count : 0;
}

size_t tess_plan_stage_workspace_size(const tess_plan *plan, tess_stage stage) {
    const struct pass *pass = plan_pass(plan, stage);
    return pass ? pass->workspace : 0;
}

const char *tess_plan_kernel(const tess_plan *plan, tess_stage stage) {
    const struct pass *pass = plan_pass(plan, stage);
    return pass ? pass->kernel->name : NULL;
}

static int64_t listed_keys(const struct lists *lists) {
    int64_t keys = 0;
    for (int64_t T = 0; T < lists->n_lists * lists->tiles && !lists->filled; T++)
        keys += lists->keys[T];
    return keys;
}

tess_status tess_plan_describe(const tess_plan *plan, tess_plan_info *info, tess_error *error) {
    if (!plan)
        return error_set(error, TESS_INVALID_ARGUMENT, __func__, "plan", "plan is NULL");
    const struct work *rows = plan->passes->work, *keys = &plan->key_work;
    const int staged = plan->problem.pipeline == TESS_STAGED;
    const size_t batch_heads = (size_t)(plan->problem.batch * plan->problem.heads_q);
    tess_plan_info known = tess_plan_info_init();
    /* In strips each query by itself has dQ of the keys that it lists; else dQ has tiles as high as those of keys. */
    known.tile_rows = staged           ? plan->block_q
                      : !plan->joint   ? rows->lists.tile_rows
                      : keys->strips.n ? 1
                                       : keys->lists.tile_rows;
    known.query_tiles =
        staged ? plan->n_lists * rows->bcsr.rows : rows->lists.n_lists * rows->lists.tiles;
    known.packed_keys = staged ? plan->n_tiles * plan->block_kv : listed_keys(&rows->lists);
    known.pairs = plan->pairs;
    known.tile_heads = rows->tile_heads > 0 ? rows->tile_heads : 1;
    known.work_items = rows->schedule.n_items + keys->schedule.n_items + keys->strips.n;
    known.split_tiles = rows->schedule.n_combines + keys->schedule.n_combines;
    known.memory_size = (int64_t)(sizeof *plan + reserve_memory(plan) + work_memory(&plan->work) +
                                  work_memory(keys) + work_memory(&plan->sum_work) +
                                  batch_heads * (staged ? 2 : 1) * sizeof *plan->list_of);
    known.predicted_seconds = tess_plan_predict(plan, -1);
    known.bytes = (int64_t)fmin(plan->filled ? reserve_bytes(plan, -1) : plan->bytes, 0x1p62);
    known.fill_run_exact = plan->filled != NULL;
    known.fill_run_direct = reserve_direct(plan);
    known.tile_keys = work_copied(keys) ? plan->block_kv : keys->lists.tile_rows;
    known.packed_queries =
        work_copied(keys) ? plan->n_tiles * plan->block_q : listed_keys(&keys->lists);
    return give(info, &known, sizeof known, PLAN_INFO_FIRST_SIZE, __func__, "info", error);
}

double tess_plan_predict(const tess_plan *plan, int64_t keys) {
    return !plan          ? 0
           : plan->filled ? reserve_seconds(plan, keys)
                          : plan_seconds(plan, plan->predicted_seconds, plan->bytes);
}

/* ---- structs, for other languages ------------------------------------------------------------ */

#define STRUCT(name)                                                                               \
    { #name, sizeof(name) }
static const struct {
    const char *name;
    size_t size;
} structs[] = {
    STRUCT(tess_error),       STRUCT(tess_tensor),      STRUCT(tess_pattern_shape),
    STRUCT(tess_lists),       STRUCT(tess_problem),     STRUCT(tess_pattern_info),
    STRUCT(tess_target),      STRUCT(tess_arguments),   STRUCT(tess_plan_info),
    STRUCT(tess_kernel_info), STRUCT(tess_device_info), STRUCT(tess_device_pattern),
    STRUCT(tess_fill_report), STRUCT(tess_selection),   STRUCT(tess_selected),
    STRUCT(tess_fill_report), STRUCT(tess_pooling),     STRUCT(tess_scoring),
    STRUCT(tess_columns),
};

size_t tess_struct_size(const char *name) {
    for (size_t i = 0; name && i < sizeof structs / sizeof *structs; i++)
        if (strcmp(structs[i].name, name) == 0)
            return structs[i].size;
    return 0;
}

tess_status tess_struct_init(const char *name, void *object, size_t size, tess_error *error) {
    size_t known = tess_struct_size(name);
    if (!known)
        return error_set(error, TESS_INVALID_ARGUMENT, __func__, "name",
                         name ? "no struct of this library has that name" : "name is NULL");
    if (!object)
        return error_set(error, TESS_INVALID_ARGUMENT, __func__, "object", "object is NULL");
    if (size < sizeof size || size > known)
        return error_set(error, TESS_INVALID_ARGUMENT, __func__, "size",
                         "size is %zu, but %s has %zu bytes in this library", size, name, known);
    memset(object, 0, size);
    memcpy(object, &size, sizeof size);
    return TESS_OK;
}
