/*
 * The CUDA backend's table: kernels, the plan's image, devices. The runtime is linked statically,
 * so one library serves machines with and without a driver: without one every call says so.
 */
#include "attention.h"
#include "launch.h"
#include "status.h"

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

/* ---- what kernels are handed ---- */

/* Columns of all strips: the values of each head fill block_q rows of its strips. */
static int64_t columns_of(const struct kernel_args *args) {
    const struct bcsr *m = args->bcsr;
    const int64_t last = args->problem->batch * args->problem->heads_q - 1;
    const int64_t list = args->list_of[last];
    const int64_t tiles = bcsr_row_begin(m, list, m->rows) - bcsr_row_begin(m, list, 0);
    return args->values_offset[last] / m->block_q + tiles * m->block_kv;
}

static int64_t mean_width_of(const struct kernel_args *args) {
    return columns_of(args) / (args->schedule->n_items > 0 ? args->schedule->n_items : 1);
}

/* Chunks of a strip of mean width. */
static int32_t chunks_of_strip(const struct kernel_args *args) {
    const int64_t chunks = (mean_width_of(args) + CUDA_CHUNK - 1) / CUDA_CHUNK;
    return chunks > 0 ? (int32_t)chunks : 1;
}

/* Columns of the first item's strip: items stand longest first within a group of heads. */
static int64_t widest_of(const struct kernel_args *args) {
    const struct bcsr *m = args->bcsr;
    if (args->schedule->n_items == 0)
        return 0;
    const struct work_item *first = args->schedule->items;
    const int64_t list = args->list_of[first->batch_head];
    return (bcsr_row_end(m, list, first->tile) - bcsr_row_begin(m, list, first->tile)) *
           m->block_kv;
}

int cuda_scale_power(double scale, tess_type type) {
    int exponent;
    frexp(scale, &exponent);
    return type == TESS_F16 || exponent >= -8 ? 0 : exponent < -141 ? -133 : exponent + 8;
}

/* Strips are narrower than 2^32 columns, so for wider blocks any wider number does. */
static struct cuda_divisor divisor_of(int64_t number) {
    const uint32_t n = number < UINT32_MAX ? (uint32_t)number : UINT32_MAX;
    uint32_t log2 = 0;
    while (log2 < 32 && (uint64_t)1 << log2 < n)
        log2++;
    return (struct cuda_divisor){
        .factor = (uint32_t)(((((uint64_t)1 << log2) - n) << 32) / n + 1),
        .halve = log2 > 0,
        .shift = log2 > 0 ? log2 - 1 : 0,
    };
}

static struct cuda_params params_of(const struct kernel_args *args, char *image) {
    const struct problem *p = args->problem;
    const struct bcsr *m = args->bcsr;
    struct carve carve = {.base = image};
    const double q_scale = ldexp(1, cuda_scale_power(p->scale, p->type));
    const int64_t widest = widest_of(args);
    const int even = widest <= 2 * mean_width_of(args) + 32; /* as widths drawn for each are */
    return (struct cuda_params){
        .image = cuda_image(&carve, args),
        .q = args->q,
        .k = args->k,
        .v = args->v,
        .o = args->o,
        .lse = args->lse,
        .values = args->values,
        .n_items = args->schedule->n_items,
        .n_bands = m->n_bands,
        .n_bitmasks = m->n_bitmasks,
        .n_q = p->n_q,
        .n_kv = p->n_kv,
        .block_q = m->block_q,
        .block_kv = m->block_kv,
        .by_block_kv = divisor_of(m->block_kv),
        .by_heads_q = divisor_of(p->heads_q),
        .by_heads_per_kv = divisor_of(p->heads_q / p->heads_kv),
        .rows = m->rows,
        .height = m->block_q < p->n_q ? m->block_q : p->n_q,
        .columns = columns_of(args),
        .batch = p->batch,
        .heads_q = (int32_t)p->heads_q,
        .heads_per_kv = (int32_t)(p->heads_q / p->heads_kv),
        .d_qk = (int32_t)p->d_qk,
        .d_v = (int32_t)p->d_v,
        .alignment = (int32_t)(p->alignment < 16 ? p->alignment : 16),
        .shared = args->target->shared_memory_per_block,
        .multiprocessors = args->target->multiprocessors,
        .architecture = args->target->architecture,
        .q_scale = (float)q_scale,
        .score_scale = (float)(p->scale / q_scale),
        .strip_chunks = chunks_of_strip(args),
        .even = even,
        .in_order = even && m->block_kv % 8 != 0,
        .widest = widest,
    };
}

/* ---- the plan's image ---- */

static size_t cuda_image_size(const struct kernel_args *args) {
    struct carve carve = {0};
    if (args->problem->pipeline == TESS_FUSED)
        return attention_image_size(args);
    cuda_image(&carve, args);
    return carve.overflow ? SIZE_MAX : carve.used;
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

static tess_status cuda_image_upload(const struct kernel_args *args, void *image,
                                     tess_error *error) {
    if (args->problem->pipeline == TESS_FUSED)
        return attention_image_upload(args, image, error);
    const struct bcsr *m = args->bcsr;
    const struct cuda_params p = params_of(args, image);
    const struct cuda_image *to = &p.image;
    const int64_t heads = args->problem->batch * args->problem->heads_q;
    const struct cuda_part parts[] = {
        {to->row_ptr, m->row_ptr, m->batch * m->heads * (m->rows + 1), sizeof *to->row_ptr},
        {to->col_idx, m->col_idx, m->n_tiles, sizeof *to->col_idx},
        {to->band_entry, m->band_entry, m->n_bands, sizeof *to->band_entry},
        {to->band, m->band, m->n_bands, 2 * sizeof *to->band},
        {to->bitmask_entry, m->bitmask_entry, m->n_bitmasks, sizeof *to->bitmask_entry},
        {to->bits, m->bits, cuda_image_words(m), sizeof *to->bits},
        {to->items, args->schedule->items, args->schedule->n_items, sizeof *to->items},
        {to->list_of, args->list_of, heads, sizeof *to->list_of},
        {to->values_offset, args->values_offset, heads, sizeof *to->values_offset},
    };
    tess_status status =
        cuda_parts_upload(parts, sizeof parts / sizeof *parts, args->stream, error);
    if (status)
        return status;
    cudaError_t code = to->partial
                           ? cudaMemsetAsync(to->partial, 0,
                                             (size_t)m->n_tiles * sizeof *to->partial, args->stream)
                           : cudaSuccess;
    if (code != cudaSuccess)
        return cuda_failed(error, code, "tess_plan_upload", "image", "cudaMemsetAsync");
    code = cuda_image_derive(&p, args->stream);
    return code == cudaSuccess
               ? TESS_OK
               : cuda_failed(error, code, "tess_plan_upload", "image", "cuda_image_derive");
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
        const struct cuda_params p = params_of(args, (char *)(uintptr_t)args->image);              \
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

/* Rows of a query tile of fused kernels; of attention_low.cuh by heads' dims. */
static const int32_t sm90_rows[] = {32, 64, 128, 0}, sm90_r192_rows[] = {192, 0};
static const int32_t mma_rows[] = {8, 16, 32, 64, 128, 0}, mma_f32_rows[] = {16, 32, 64, 128, 0};
static const int32_t low_rows_64[] = {8, 0}, low_rows_128[] = {8, 16, 0};
static const int32_t low_rows_192[] = {8, 16, 0}, low_rows_256[] = {8, 16, 32, 0};
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
static const char *sm90_tiles_refuse(const struct problem *problem, const tess_target *target) {
    return has_rows(problem, sm90_rows) ? sm90_refuses(problem, target)
                                        : "its query tiles have 32, 64 or 128 rows";
}
static const char *sm90_r192_refuses(const struct problem *problem, const tess_target *target) {
    return has_rows(problem, sm90_r192_rows) ? sm90_refuses(problem, target)
                                             : "its query tiles have 192 rows";
}
static const char *sm90_v128_refuses(const struct problem *problem, const tess_target *target) {
    return problem->d_v > 128 ? "its values have at most 128 dims"
                              : sm90_tiles_refuse(problem, target);
}
#define REFUSES_sm90(problem, target, head) sm90_tiles_refuse(problem, target)
#define REFUSES_sm90_v128(problem, target, head) sm90_v128_refuses(problem, target)
#define REFUSES_sm90_r192(problem, target, head) sm90_r192_refuses(problem, target)
#define REFUSES_mma(problem, target, head) NULL
#define REFUSES_mma_f32(problem, target, head) NULL
#define REFUSES_low(problem, target, head)                                                         \
    has_rows(problem, low_rows_##head)                                                             \
        ? NULL                                                                                     \
        : "its query tiles have 8 rows (past 64 dims 16 as well, past 192 dims 32)"
#define REFUSES_fma(problem, target, head) NULL

/* Hopper's are the fastest but for the thinnest of patterns. */
#define WEIGHED_sm90 1
#define WEIGHED_sm90_v128 1
#define WEIGHED_sm90_r192 1
#define WEIGHED_mma 0
#define WEIGHED_mma_f32 0
#define WEIGHED_low 1
#define WEIGHED_fma 0

/* Dims that a key has, of K and V together, by two. */
#define PADDED_sm90(head) head
#define PADDED_sm90_v128(head) (((head) + 128) / 2)
#define PADDED_sm90_r192(head) head
#define PADDED_mma(head) head
#define PADDED_mma_f32(head) head
#define PADDED_low(head) head
#define PADDED_fma(head) 0

#define WORKERS_sm90(head, shared) blocks_of_all(target, 1, shared)
#define WORKERS_sm90_v128(head, shared) WORKERS_sm90(head, shared)
#define WORKERS_sm90_r192(head, shared) WORKERS_sm90(head, shared)
#define WORKERS_mma(head, shared) blocks_of_all(target, ATTENTION_BLOCKS(head, rows), shared)
#define WORKERS_mma_f32(head, shared)                                                              \
    blocks_of_all(target, ATTENTION_BLOCKS_F32(head, rows), shared)
#define WORKERS_low(head, shared) blocks_of_all(target, ATTENTION_BLOCKS_LOW(head, rows), shared)
#define WORKERS_fma(head, shared) 1
/* Of tall tiles of up to 64 dims as thin lists have them: of others few granules have masks. */
#define STEP_sm90(head, rows) 0, 0
#define STEP_sm90_v128(head, rows) 0, 0
#define STEP_sm90_r192(head, rows) 0, 0
#define STEP_mma(head, rows) ATTENTION_STEP(head, rows), ATTENTION_WARP(head, rows, 1)
#define STEP_mma_f32(head, rows) ATTENTION_STEP_F32(rows), ATTENTION_WARP_F32(head, rows)
#define STEP_low(head, rows) 0, 0
#define STEP_fma(head, rows) 0, 0
#define HALVES_sm90 1
#define HALVES_sm90_v128 1
#define HALVES_sm90_r192 1
#define HALVES_mma 0
#define HALVES_mma_f32 0
#define HALVES_low 0
#define HALVES_fma 0
/* As sm90_shape's HALVED. */
#define TURNS_sm90(head) ((head) <= 128)
#define TURNS_sm90_v128(head) 1
#define TURNS_sm90_r192(head) 0
#define TURNS_mma(head) 0
#define TURNS_mma_f32(head) 0
#define TURNS_low(head) 0
#define TURNS_fma(head) 0
#define GRANULE_sm90 GRANULE_MAX
#define GRANULE_sm90_v128 GRANULE_MAX
#define GRANULE_sm90_r192 GRANULE_MAX
#define GRANULE_mma ATTENTION_GRANULE
#define GRANULE_mma_f32 ATTENTION_GRANULE_F32
#define GRANULE_low ATTENTION_GRANULE_F32
#define GRANULE_fma GRANULE_MAX

#include "instances.def"
#undef CUDA_KERNEL
#undef CUDA_ATTENTION

/* Those rows, and the ones that heads are stacked to (kernels.h). */
#define ROWS_sm90(head) sm90_rows
#define ROWS_sm90_v128(head) sm90_rows
#define ROWS_sm90_r192(head) sm90_r192_rows
#define ROWS_mma(head) mma_rows
#define ROWS_mma_f32(head) mma_f32_rows
#define ROWS_low(head) low_rows_##head
#define ROWS_fma(head) fma_rows
#define STACKED_sm90 128
#define STACKED_sm90_v128 128
#define STACKED_sm90_r192 0
#define STACKED_mma 0
#define STACKED_mma_f32 0
#define STACKED_low 0
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
     .step = name_##_step,                                                                         \
     .shared = cuda_##name_##_shared,                                                              \
     .granule = GRANULE_##way,                                                                     \
     .halves = HALVES_##way,                                                                       \
     .turns = TURNS_##way(head),                                                                   \
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
        .image_size = cuda_image_size,
        .image_upload = cuda_image_upload,
        .allocate = cuda_allocate,
        .release = cuda_release,
        .synchronize = cuda_synchronize,
    };
    return &backend;
}
