/* The CUDA backend's table as data: instances.def has a row for each kernel, families what theirs
 * have in common. */
#include "host/table.h"

#include "host/backward.h"
#include "host/column_sums.h"
#include "host/costs.h"
#include "host/decode.h"
#include "host/families.h"
#include "host/mlp.h"
#include "host/staged.h"

#include <math.h>
#include <stdio.h>

/* ---- the table ---- */

/* Tiles of decode: up to so many rows, of any number of heads. */
static const int32_t decode_rows_4[] = {1, 2, 4, 0};
static const int32_t decode_rows_8[] = {1, 2, 4, 8, 0};
static const int32_t decode_rows_16[] = {1, 2, 4, 8, 16, 0};
static const int32_t decode_rows_32[] = {1, 2, 4, 8, 16, 32, 0};
static const int32_t decode_rows_64[] = {1, 2, 4, 8, 16, 32, 64, 0};
static const int32_t decode_rows_blocks[] = {8, 16, 32, 64, 0};
static const int32_t decode_rows_blocks128[] = {128, 0};
static const int32_t decode_rows_columns[] = {64, 0};
static const int32_t decode_rows_columns192[] = {192, 0};
#define decode_rows_columns128 decode_rows_blocks128
#define decode_rows_16f decode_rows_16
static const int32_t column_sums_rows[] = {8, 16, 32, 64, 128, 192, COLUMN_SUMS_ROWS, 0};
#define decode_rows_sm90 decode_rows_64

static const tess_type type_f32 = TESS_F32, type_f16 = TESS_F16, type_bf16 = TESS_BF16;

/* Measured costs, which both types of 16 bits share. */
#define CUDA_COSTS(kernel, ...) static const struct step_cost costs_##kernel[] = {__VA_ARGS__, {0}};
#include "costs.def"

#define costs_bf16_sm90_d128_sums costs_bf16_sm90_d128
#define costs_bf16_sm90_d128_r192_sums costs_bf16_sm90_d128_r192

#define LIST(...) __VA_ARGS__
/* A kernel of heads of up to so many dims. */
#define OF_WIDTHS(its_type, its_product, head, head_v, shared)                                     \
    &(const struct forward_kernel) {                                                               \
        .type = its_type, .product = its_product, .d_qk = head, .d_v = head_v,                     \
        .too_wide = "its heads have at most " #head " dims",                                       \
        .v_too_wide = "its values have at most " #head_v " dims", .v_in_k = shared                 \
    }
#define FORWARD_ROW(its_type, its_name, costs, its_family, head, head_v, arguments, heights,       \
                    bytes)                                                                         \
    {                                                                                              \
        .name = "cuda_attention_" its_name, .stage = TESS_STAGE_ATTENTION,                         \
        .family = &family_##its_family.family, .steps = costs,                                     \
        .rows = (const int32_t[]){LIST heights, 0}, .shared = (const int64_t[]){LIST bytes},       \
        .own = OF_WIDTHS(its_type, its_type, head, head_v, 0), .unusable = cuda_unusable,          \
        .workspace = attention_workspace, .refuses_run = forward_refuses_run, .run = forward_run   \
    }
#define CUDA_FORWARD_f32(name, ...)                                                                \
    FORWARD_ROW(TESS_F32, "f32_" #name, costs_f32_##name, __VA_ARGS__)
#define CUDA_FORWARD_16bit(name, ...)                                                              \
    FORWARD_ROW(TESS_BF16, "bf16_" #name, costs_bf16_##name, __VA_ARGS__),                         \
        FORWARD_ROW(TESS_F16, "f16_" #name, costs_bf16_##name, __VA_ARGS__)
#define CUDA_FORWARD(types, ...) CUDA_FORWARD_##types(__VA_ARGS__),
#define DECODE_ROW(its_type, its_product, its_name, products, head, head_v, high, v_in_k, bytes,   \
                   costs, measured)                                                                \
    {                                                                                              \
        .name = "cuda_decode_" its_name, .stage = TESS_STAGE_ATTENTION,                            \
        .family = &family_decode_##high.family, .cost = {DECODE_##costs(products, head)},          \
        .steps = measured, .rows = decode_rows_##high,                                             \
        .shared = (const int64_t[]){bytes, bytes, bytes, bytes, bytes, bytes, bytes},              \
        .own = OF_WIDTHS(its_type, its_product, head, head_v, v_in_k), .unusable = cuda_unusable,  \
        .workspace = attention_workspace, .refuses_run = decode_refuses_run, .run = decode_run     \
    }
#define CUDA_DECODE_16bit(name, ...)                                                               \
    DECODE_ROW(TESS_BF16, TESS_BF16, "bf16_" #name, 1, __VA_ARGS__),                               \
        DECODE_ROW(TESS_F16, TESS_F16, "f16_" #name, 1, __VA_ARGS__)
#define CUDA_DECODE_f32_f16(name, ...)                                                             \
    DECODE_ROW(TESS_F32, TESS_F16, "f32_f16_" #name, 2, __VA_ARGS__)
#define CUDA_DECODE_f32_bf16(name, ...)                                                            \
    DECODE_ROW(TESS_F32, TESS_BF16, "f32_bf16_" #name, 4, __VA_ARGS__)
#define CUDA_DECODE(types, ...) CUDA_DECODE_##types(__VA_ARGS__),
#define STAGED_ROW(takes, type_name, stem, variant, its_stage, costs)                              \
    {                                                                                              \
        .name = "cuda_" #stem "_" type_name "_" #variant, .stage = TESS_STAGE_##its_stage,         \
        .family = &family_staged, .cost = {STAGED_##costs},                                        \
        .own =                                                                                     \
            &(const struct staged_kernel){.type = takes, .refuses = stem##_##variant##_refuses},   \
        .unusable = cuda_unusable, .workspace = staged_workspace, .run = staged_run                \
    }
#define CUDA_STAGED_any(...) STAGED_ROW(NULL, "f32", __VA_ARGS__)
#define CUDA_STAGED_f32(...) STAGED_ROW(&type_f32, "f32", __VA_ARGS__)
#define CUDA_STAGED_16bit(...)                                                                     \
    STAGED_ROW(&type_bf16, "bf16", __VA_ARGS__), STAGED_ROW(&type_f16, "f16", __VA_ARGS__)
#define CUDA_STAGED(types, ...) CUDA_STAGED_##types(__VA_ARGS__),

#define TYPE_OF_f32 TESS_F32
#define TYPE_OF_f16 TESS_F16
#define TYPE_OF_bf16 TESS_BF16
#define STAGE_keys TESS_STAGE_GRADIENT_KEYS
#define STAGE_rows TESS_STAGE_GRADIENT_ROWS
#define GRADIENT_FAMILY_sm90(pass) family_gradient_sm90_##pass
#define GRADIENT_FAMILY_wide(pass) family_gradient_wide_##pass
#define GRADIENT_FAMILY_16bit(pass) family_gradient_16bit
#define GRADIENT_FAMILY_f32(pass) family_gradient_f32
#define GRADIENT_COSTS_sm90(its_type, its_name) .steps = costs_bf16_##its_name
#define GRADIENT_COSTS_wide GRADIENT_COSTS_sm90
#define GRADIENT_COSTS_16bit(its_type, its_name)                                                   \
    .cost = {GRADIENT_COST_##its_type, .item = GRADIENT_ITEM, .launch = LAUNCH}
#define GRADIENT_COSTS_f32 GRADIENT_COSTS_16bit
#define CUDA_BACKWARD(its_type, its_name, pass, its_family, head, heights, bytes)                  \
    {.name = "cuda_gradient_" #pass "_" #its_type "_" #its_name,                                   \
     .stage = STAGE_##pass,                                                                        \
     .family = &GRADIENT_FAMILY_##its_family(pass).family,                                         \
     GRADIENT_COSTS_##its_family(its_type, its_name),                                              \
     .rows = (const int32_t[]){LIST heights, 0},                                                   \
     .shared = (const int64_t[]){LIST bytes},                                                      \
     .own = OF_WIDTHS(TYPE_OF_##its_type, TYPE_OF_##its_type, head, head, 0),                      \
     .unusable = cuda_unusable,                                                                    \
     .workspace = gradient_workspace,                                                              \
     .run = gradient_run},
#define CUDA_DELTA()                                                                               \
    {.name = "cuda_delta",                                                                         \
     .stage = TESS_STAGE_DELTA,                                                                    \
     .family = &family_delta,                                                                      \
     .cost = {DELTA_COST},                                                                         \
     .unusable = cuda_unusable,                                                                    \
     .workspace = delta_workspace,                                                                 \
     .run = delta_run},

#define CUDA_SUMS(...)                                                                             \
    {.name = "cuda_column_sums",                                                                   \
     .stage = TESS_STAGE_COLUMN_SUMS,                                                              \
     .family = &family_column_sums.family,                                                         \
     .cost = {COLUMN_SUMS_COST},                                                                   \
     .rows = column_sums_rows,                                                                     \
     .unusable = cuda_unusable,                                                                    \
     .workspace = column_sums_workspace,                                                           \
     .run = column_sums_run},

#define MLP_ROW(its_name, its_stage, its_family, its_type, ...)                                    \
    {                                                                                              \
        .name = "cuda_mlp_" its_name, .stage = its_stage, .family = &its_family.family,            \
        .cost = {MLP_COST}, .own = &its_type, .unusable = cuda_unusable,                           \
        .workspace = mlp_workspace, .refuses_run = mlp_refuses_run, .run = mlp_run, __VA_ARGS__    \
    }
#define MLP_HEIGHTS(heights, bytes)                                                                \
    .rows = (const int32_t[]){LIST heights, 0}, .shared = (const int64_t[]) {                      \
        LIST bytes                                                                                 \
    }
#define CUDA_MLP_UP(name, its_family, heights, bytes)                                              \
    MLP_ROW("up_bf16_" #name, TESS_STAGE_MLP_UP, family_##its_family##_up, type_bf16,              \
            MLP_HEIGHTS(heights, bytes)),                                                          \
        MLP_ROW("up_f16_" #name, TESS_STAGE_MLP_UP, family_##its_family##_up, type_f16,            \
                MLP_HEIGHTS(heights, bytes)),
#define CUDA_MLP_DOWN(name, its_family)                                                            \
    MLP_ROW("down_bf16_" #name, TESS_STAGE_MLP_DOWN, family_##its_family##_down, type_bf16, ),     \
        MLP_ROW("down_f16_" #name, TESS_STAGE_MLP_DOWN, family_##its_family##_down, type_f16, ),

const struct kernel cuda_table[CUDA_ROWS] = {
#include "instances.def"
};

/* ---- images ---- */

size_t cuda_image_size(const struct kernel_args *args) {
    return args->problem->pipeline != TESS_FUSED ? staged_image_size(args)
           : prepared_spill(args)                ? gradient_image_size(args)
                                                 : attention_image_size(args);
}

size_t cuda_image_parts(struct device_part parts[IMAGE_ARRAYS], const struct kernel_args *args,
                        char *image) {
    return args->problem->pipeline != TESS_FUSED ? staged_image_parts(parts, args, image)
           : prepared_spill(args)                ? gradient_image_parts(parts, args, image)
                                                 : attention_image_parts(parts, args, image);
}

/* Offsets are those from an image that is nowhere yet. */
void cuda_image_header(const struct kernel_args *args, void *header) {
    _Static_assert(sizeof(struct image_header) <= IMAGE_HEADER_MOST, "plans have room for it");
    struct image_header *const h = header;
    struct device_part parts[IMAGE_ARRAYS];
    char *const nowhere = (char *)(uintptr_t)IMAGE_ALIGNMENT;
    const size_t count = cuda_image_parts(parts, args, nowhere);
    *h = (struct image_header){.magic = IMAGE_MAGIC, .arrays = (int64_t)count};
    for (size_t i = 0; i < count; i++)
        h->array[i] = (struct image_array){
            .offset = parts[i].to ? (char *)parts[i].to - nowhere : 0,
            .capacity = parts[i].count,
            .count = parts[i].count,
        };
}

/* ---- what a launch is, beside its kernel ---- */

/* Strides are not known when a plan is made: a run may have to take the second of two paths. */
static int say_operands(const struct kernel_args *args, char *room, size_t size) {
    static const char *const by[] = {
        [OPERANDS_TMA] = "by TMA, or by cp.async where strides need it",
        [OPERANDS_CP_ASYNC] = "by cp.async, or one by one where strides need it",
        [OPERANDS_ELEMENTS] = "one by one, as rows are not aligned pieces of 16 bytes"};
    const struct forward_kernel *own = args->kernel->own;
    const struct cuda_family *family = cuda_family_of(args->kernel);
    const struct prepared *prepared = args->work.prepared;
    const int gathers = family->tma && prepared->path == OPERANDS_CP_ASYNC;
    const int32_t rows = args->work.lists->tile_rows;
    const int32_t warp =
        family == &family_sm80 ? ATTENTION_WARP(own->d_qk, rows, prepared->thin) : 0;
    const int length =
        snprintf(room, size, "granules of %d keys, copied %s", (int)prepared->granules.size,
                 gathers ? "by cp.async" : by[prepared->path]);
    const size_t at = (size_t)length < size ? (size_t)length : size;
    const struct spill *spill = prepared_spill(args);
    if (spill)
        return length +
               snprintf(room + at, size - at,
                        "; gradients of scores of %d chunks of heads, %lld bytes at a time",
                        (int)spill->chunks, (long long)spill->units * SPILL_UNIT);
    return warp ? length + snprintf(room + at, size - at, "; %d rows a warp", (int)warp) : length;
}

int cuda_detail(const struct kernel_args *args, char *room, size_t size) {
    if (args->kernel->family->lists == LISTS_FILLED)
        return decode_detail(args, room, size);
    if (args->work.prepared && args->kernel->rows && args->kernel->stage != TESS_STAGE_MLP_UP)
        return say_operands(args, room, size);
    if (args->kernel->stage == TESS_STAGE_SDDMM && modify_scores(&args->problem->modifiers))
        return snprintf(room, size, "then cuda_sddmm_modify, for softcap and ALiBi");
    return 0;
}

int cuda_scale_power(double scale, tess_type type) {
    int exponent;
    frexp(scale, &exponent);
    return type == TESS_F16 || exponent >= -8 ? 0 : exponent < -141 ? -133 : exponent + 8;
}

int64_t cuda_memory_rate(int32_t architecture) {
    static const struct {
        int32_t architecture;
        double rate; /* bytes a second */
    } memories[] = {{80, 2.04e12}, {86, 1.01e12}, {87, .2e12},  {89, 1.01e12},
                    {90, 4.9e12},  {120, 1.8e12}, {121, .28e12}};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        if (memories[i].architecture == architecture)
            return (int64_t)memories[i].rate;
    return (int64_t)8e12;
}
