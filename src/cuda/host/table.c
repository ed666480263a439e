/* The CUDA backend's table as data: instances.def has a row for each kernel, families what theirs
 * have in common. */
#include "host/table.h"

#include "host/backward.h"
#include "host/decode.h"
#include "host/staged.h"
#include "work/granules.h"
#include "work/runs.h"

#include <math.h>
#include <stdio.h>

/* ---- what kernels refuse ---- */

static const char *type_refused(tess_type takes, tess_type type) {
    static const char *const only[] = {[TESS_F32] = "it computes f32 only",
                                       [TESS_F16] = "it computes f16 only",
                                       [TESS_BF16] = "it computes bf16 only"};
    return takes == type ? NULL : only[takes];
}

static const char *architecture_refused(const tess_target *target) {
    return target->architecture < 80
               ? "the target's architecture is below 80 (compute capability 8.0)"
               : NULL;
}

/* What no kernel of attention computes; a backward reads o_rest before the stages. */
static const char *refused(const struct problem *problem, const tess_target *target) {
    if (problem->o_rest && problem->operation == TESS_ATTENTION)
        return "it does not write o_rest";
    return architecture_refused(target);
}

/* What kernels of the host's lists alone do not compute. */
static const char *plain_refused(const struct problem *problem) {
    if (!caches_plain(problem))
        return "it reads keys and values of q's type, row behind row: page_size, k_type and v_type "
               "must be 0, or the lists filled (tess_plan_reserve)";
    if (problem->o_type != problem->type)
        return "it writes o of q's type: o_f32 must be 0, or the lists filled (tess_plan_reserve)";
    if (problem->rope_dims)
        return "it reads q and k of one view: rope_dims must be 0, or the lists filled "
               "(tess_plan_reserve)";
    return NULL;
}

static const char *staged_refuses(const struct kernel *kernel, const struct problem *problem,
                                  const tess_target *target) {
    const struct staged_kernel *own = kernel->own;
    const struct staged_params sizes = staged_sizes(problem, target);
    const char *why = refused(problem, target);
    if (!why && own->type)
        why = type_refused(*own->type, problem->type);
    return why ? why : own->refuses(problem, &sizes);
}

static int has_height(const struct tiling *tiling, int32_t height) {
    const int32_t *rows = tiling->rows;
    while (*rows && *rows != height)
        rows++;
    return *rows || !height;
}

static const char *forward_refuses(const struct kernel *kernel, const struct problem *problem,
                                   const tess_target *target) {
    const struct forward_kernel *own = kernel->own;
    const char *why = refused(problem, target);
    if (!why && fabs(problem->scale) > 0x1p127) /* kernels hold scale * log2(e) */
        why = "it computes scales of up to 2^127";
    if (!why && problem->d_qk > own->d_qk)
        why = own->too_wide;
    if (!why && problem->d_v > own->d_v)
        why = own->v_too_wide;
    if (!why)
        why = type_refused(own->type, problem->type);
    if (!why)
        why = kernel->tiling->filled_alone ? decode_types_refused(own->product, problem)
                                           : plain_refused(problem);
    if (!why && own->family->heights && !has_height(kernel->tiling, problem->tile_rows))
        why = own->family->heights;
    if (!why && own->family->refuses)
        why = own->family->refuses(problem, target);
    return why;
}

static const char *gradient_refuses(const struct kernel *kernel, const struct problem *problem,
                                    const tess_target *target) {
    const struct forward_kernel *own = kernel->own;
    const int64_t d = problem->d_qk > problem->d_v ? problem->d_qk : problem->d_v;
    if (fabs(problem->scale) > 0x1p127) /* kernels hold scale * log2(e) */
        return "it computes scales of up to 2^127";
    if (fabs(problem->scale) < 0x1p-126) /* and multiply gradients by it, with all its digits */
        return "it computes scales of at least 2^-126";
    if (d > own->d_qk)
        return own->too_wide;
    const char *why = type_refused(own->type, problem->type);
    return why ? why : architecture_refused(target);
}

static const char *delta_refuses(const struct kernel *kernel, const struct problem *problem,
                                 const tess_target *target) {
    (void)kernel, (void)problem;
    return architecture_refused(target);
}

/* ---- CTAs and steps ---- */

/* CTAs that stay for several items, which are assigned among them. */
static int32_t forward_workers(const struct kernel *kernel, const tess_target *target,
                               int32_t rows) {
    const struct forward_kernel *own = kernel->own;
    const struct family *family = own->family;
    const int32_t resident = family->resident(own->d_qk, rows);
    if (family->cluster > 1)
        return target->multiprocessors < family->cluster
                   ? 1
                   : target->multiprocessors / family->cluster;
    int i = 0;
    while (kernel->tiling->rows[i] != rows)
        i++;
    /* A multiprocessor has a little more shared memory than one CTA can ask for, and keeps 1 KB of
     * each. */
    const int64_t shared = kernel->tiling->shared[i];
    const int64_t fit = (target->shared_memory_per_block + 1024) / (shared + 1024);
    const int64_t each = fit < 1 || fit > resident ? resident : fit;
    const int64_t all = target->multiprocessors * each;
    return all < 1 << 20 ? (int32_t)all : 1 << 20;
}

static int32_t resident_one(int32_t head, int32_t rows) {
    (void)head, (void)rows;
    return 1;
}
static int32_t resident_sm80(int32_t head, int32_t rows) {
    return ATTENTION_BLOCKS(head, rows);
}
static int32_t resident_sm80_f32(int32_t head, int32_t rows) {
    return ATTENTION_BLOCKS_F32(head, rows);
}
static int32_t resident_small_m(int32_t head, int32_t rows) {
    return ATTENTION_BLOCKS_SMALL_M(head, rows);
}
static int32_t resident_small_m_16bit(int32_t head, int32_t rows) {
    return ATTENTION_BLOCKS_SMALL_M_16BIT(head, rows);
}

/* Warps' rows of tall tiles are those for sparse masks: of other lists few granules have masks. */
static struct granule_step step_sm80(int32_t head, int32_t rows) {
    return (struct granule_step){ATTENTION_STEP(head, rows), ATTENTION_WARP(head, rows, 1)};
}
static struct granule_step step_sm80_f32(int32_t head, int32_t rows) {
    return (struct granule_step){ATTENTION_STEP_F32(rows), ATTENTION_WARP_F32(head, rows)};
}

/* warps: of a multiprocessor; warp: rows of a warp, or of `share` warps. */
static int32_t gradient_resident(int32_t warps, int32_t share, int32_t warp, int32_t rows) {
    return warps / share * warp / (rows < warp ? warp : rows);
}
#define GRADIENT_FAMILY(pass, type, keys, f16, size, its_granule)                                  \
    static int32_t resident_##pass##_##type(int32_t head, int32_t rows) {                          \
        const int32_t warp = GRADIENT_WARP(head, f16, rows);                                       \
        return gradient_resident(GRADIENT_WARPS(keys, head, size, warp, GRADIENT_LOW(rows)),       \
                                 GRADIENT_SHARE(head, size, warp), warp, rows);                    \
    }                                                                                              \
    static struct granule_step step_##pass##_##type(int32_t head, int32_t rows) {                  \
        return (struct granule_step){GRADIENT_STEP(head, size, GRADIENT_LOW(rows)),                \
                                     GRADIENT_WARP(head, f16, rows)};                              \
    }                                                                                              \
    static const struct family family_##pass##_##type = {.granule = its_granule,                   \
                                                         .step = step_##pass##_##type,             \
                                                         .resident = resident_##pass##_##type,     \
                                                         .cluster = 1};
GRADIENT_FAMILY(keys, bf16, 1, 0, 2, GRADIENT_GRANULE)
GRADIENT_FAMILY(keys, f16, 1, 1, 2, GRADIENT_GRANULE)
GRADIENT_FAMILY(keys, f32, 1, 0, 4, GRADIENT_GRANULE_F32)
GRADIENT_FAMILY(rows, bf16, 0, 0, 2, GRADIENT_GRANULE)
GRADIENT_FAMILY(rows, f16, 0, 1, 2, GRADIENT_GRANULE)
GRADIENT_FAMILY(rows, f32, 0, 0, 4, GRADIENT_GRANULE_F32)

/* ---- families of attention ---- */

#define HOPPER                                                                                     \
    .granule = GRANULE_MAX, .groups = 1, .tma = 1, .resident = resident_one,                       \
    .refuses = attention_sm90_refuses
static const struct family family_sm90 = {HOPPER, .cluster = 1,
                                          .heights = "its query tiles have 32, 64 or 128 rows"};
static const struct family family_sm90_r192 = {HOPPER, .cluster = 1,
                                               .heights = "its query tiles have 192 rows"};
/* CTAs that share a multiprocessor, each with items and lists of its own. */
static int32_t resident_sm90_r64(int32_t head, int32_t rows) {
    (void)rows;
    return head > 64 ? 2 : head > 32 ? 3 : 4;
}
static const struct family family_sm90_r64 = {.granule = GRANULE_MAX,
                                              .groups = 1,
                                              .tma = 1,
                                              .resident = resident_sm90_r64,
                                              .cluster = 1,
                                              .refuses = attention_sm90_refuses,
                                              .heights =
                                                  "its query tiles have 8, 16, 32 or 64 rows"};
static const struct family family_sm90_wide = {HOPPER, .cluster = 1,
                                               .heights = "its query tiles have 32 or 64 rows"};
static const struct family family_sm90_pair = {HOPPER, .cluster = 2,
                                               .heights = "its query tiles have 32 or 64 rows"};
static const struct family family_sm80 = {
    .granule = ATTENTION_GRANULE, .step = step_sm80, .resident = resident_sm80, .cluster = 1};
static const struct family family_sm80_f32 = {.granule = ATTENTION_GRANULE_F32,
                                              .step = step_sm80_f32,
                                              .resident = resident_sm80_f32,
                                              .cluster = 1};
static const struct family family_small_m = {
    .granule = ATTENTION_GRANULE_SMALL_M,
    .resident = resident_small_m,
    .cluster = 1,
    .heights =
        "its query tiles have 8 rows (of more than 64 dims 16 as well, of 193 to 256 dims 32)"};
static const struct family family_small_m_16bit = {
    .granule = ATTENTION_GRANULE_SMALL_M,
    .resident = resident_small_m_16bit,
    .cluster = 1,
    .heights =
        "its query tiles have 8 or 16 rows (of up to 512 and of more than 768 dims 32 as well)"};

/* ---- decode ---- */

static const int32_t decode_rows_4[] = {1, 2, 4, 0};
static const int32_t decode_rows_8[] = {1, 2, 4, 8, 0};
static const int32_t decode_rows_16[] = {1, 2, 4, 8, 16, 0};
static const int32_t decode_rows_32[] = {1, 2, 4, 8, 16, 32, 0};
static const int32_t decode_rows_64[] = {1, 2, 4, 8, 16, 32, 64, 0};
static const int32_t decode_rows_blocks[] = {8, 16, 32, 64, 0};
static const int32_t decode_rows_blocks128[] = {128, 0};
#define decode_rows_16f decode_rows_16
#define decode_rows_sm90 decode_rows_64
static const struct family family_decode_4 = {
    .cluster = 1, .refuses = decode_refuses, .heights = "its query tiles have 1, 2 or 4 rows"};
static const struct family family_decode_8 = {
    .cluster = 1, .refuses = decode_refuses, .heights = "its query tiles have 1, 2, 4 or 8 rows"};
static const struct family family_decode_32 = {.cluster = 1,
                                               .refuses = decode_64_refuses,
                                               .heights =
                                                   "its query tiles have 1, 2, 4 ... 32 rows"};
static const struct family family_decode_16 = {.cluster = 1,
                                               .refuses = decode_refuses,
                                               .heights =
                                                   "its query tiles have 1, 2, 4, 8 or 16 rows"};
static const struct family family_decode_16f = {.cluster = 1,
                                                .refuses = decode_64_refuses,
                                                .heights =
                                                    "its query tiles have 1, 2, 4, 8 or 16 rows"};
static const struct family family_decode_64 = {.cluster = 1,
                                               .refuses = decode_64_refuses,
                                               .heights =
                                                   "its query tiles have 1, 2, 4 ... 64 rows"};

static const struct family family_decode_sm90 = {.cluster = 1,
                                                 .refuses = decode_sm90_refuses,
                                                 .heights =
                                                     "its query tiles have 1, 2, 4 ... 64 rows"};
static const struct family family_decode_blocks = {.cluster = 1,
                                                   .refuses = decode_blocks_refuses,
                                                   .heights =
                                                       "its query tiles have 8, 16, 32 or 64 rows",
                                                   .maps = MAPS_OR_DECODE};
static const struct family family_decode_blocks128 = {.cluster = 1,
                                                      .refuses = decode_blocks_refuses,
                                                      .heights = "its query tiles have 128 rows",
                                                      .maps = MAPS_ALONE};

/* ---- packing and weighing ---- */

/* Heads that share their list are packed to tiles of so many rows (GQA packing). */
#define PACKED_sm90 128
#define PACKED_sm90_r192 0
#define PACKED_sm90_r64 64
#define PACKED_sm90_wide 64
#define PACKED_sm90_pair 64
#define PACKED_sm80 0
#define PACKED_sm80_f32 0
#define PACKED_small_m 0
#define PACKED_small_m_16bit 0

/* Whether a packed tile has exactly so many rows (gqa_exact), not at most. */
#define WHOLE_sm90 1
#define WHOLE_sm90_r192 1
#define WHOLE_sm90_r64 0
#define WHOLE_sm90_wide 1
#define WHOLE_sm90_pair 1
#define WHOLE_sm80 1
#define WHOLE_sm80_f32 1
#define WHOLE_small_m 1
#define WHOLE_small_m_16bit 1

/* Whether the plan weighs a kernel against the next: the last of a type takes what is left. */
#define WEIGHED_sm90 1
#define WEIGHED_sm90_r192 1
#define WEIGHED_sm90_r64 1
#define WEIGHED_sm90_wide 1
#define WEIGHED_sm90_pair 1
#define WEIGHED_sm80 0
#define WEIGHED_sm80_f32 0
#define WEIGHED_small_m 1
#define WEIGHED_small_m_16bit 1

/* Keys of a part at least; 0: the plan's default. Hopper's kernels weigh what combining costs. */
#define PART_sm90 512
#define PART_sm90_r192 512
#define PART_sm90_r64 512
#define PART_sm90_wide 512
#define PART_sm90_pair 512
#define PART_sm80 0
#define PART_sm80_f32 0
#define PART_small_m 0
#define PART_small_m_16bit 0

/* Whether a short last wave counts for less (docs/notes/planning.md, "Short waves"). */
#define WAVES_sm90 1
#define WAVES_sm90_r192 1
#define WAVES_sm90_r64 1
#define WAVES_sm90_wide 1
#define WAVES_sm90_pair 1
#define WAVES_sm80 1
#define WAVES_sm80_f32 0
#define WAVES_small_m 0
#define WAVES_small_m_16bit 0

/* ---- the table ---- */

static const tess_type type_f32 = TESS_F32, type_f16 = TESS_F16, type_bf16 = TESS_BF16;

#define LIST(...) __VA_ARGS__
/* What a kernel of heads of up to so many dims has. */
#define OF_WIDTHS(its_type, its_product, head, head_v, shared, its_family)                         \
    &(const struct forward_kernel) {                                                               \
        .type = its_type, .product = its_product, .d_qk = head, .d_v = head_v,                     \
        .too_wide = "its heads have at most " #head " dims",                                       \
        .v_too_wide = "its values have at most " #head_v " dims", .v_in_k = shared,                \
        .family = &its_family                                                                      \
    }
#define FORWARD_ROW(its_type, its_name, its_family, head, head_v, arguments, heights, bytes, ...)  \
    {                                                                                              \
        .name = "cuda_attention_" its_name, .stage = TESS_STAGE_ATTENTION, .cost = {__VA_ARGS__},  \
        .tiling = &(const struct tiling){.rows = (const int32_t[]){LIST heights, 0},               \
                                         .shared = (const int64_t[]){LIST bytes},                  \
                                         .gqa_rows = PACKED_##its_family,                          \
                                         .gqa_exact = WHOLE_##its_family,                          \
                                         .padded_head = ((head) + (head_v)) / 2,                   \
                                         .weighed = WEIGHED_##its_family,                          \
                                         .part_keys = PART_##its_family,                           \
                                         .waves = WAVES_##its_family,                              \
                                         .workers = forward_workers},                              \
        .own = OF_WIDTHS(its_type, its_type, head, head_v, 0, family_##its_family),                \
        .unusable = cuda_unusable, .refuses = forward_refuses, .workspace = attention_workspace,   \
        .run = forward_run                                                                         \
    }
#define CUDA_FORWARD_f32(name, ...) FORWARD_ROW(TESS_F32, "f32_" #name, __VA_ARGS__)
#define CUDA_FORWARD_16bit(name, ...)                                                              \
    FORWARD_ROW(TESS_BF16, "bf16_" #name, __VA_ARGS__),                                            \
        FORWARD_ROW(TESS_F16, "f16_" #name, __VA_ARGS__)
#define CUDA_FORWARD(types, ...) CUDA_FORWARD_##types(__VA_ARGS__),
#define DECODE_SHARES 128 /* dims up to which two CTAs or more share a multiprocessor */
#define DECODE_OF(head, its_rows, keys)                                                            \
    .gqa_rows = its_rows, .whole_shares = (head) > DECODE_SHARES, .part_keys = keys
#define TILING_DECODE_4(head) DECODE_OF(head, 4, DECODE_CHUNK), .weighed = 1
#define TILING_DECODE_8(head) DECODE_OF(head, 8, DECODE_CHUNK), .weighed = 1
#define TILING_DECODE_16(head) DECODE_OF(head, 16, DECODE_CHUNK), .weighed = 1
#define TILING_DECODE_16f(head) DECODE_OF(head, 16, SCHEDULE_CHUNK)
#define TILING_DECODE_32(head) DECODE_OF(head, 32, SCHEDULE_CHUNK)
#define TILING_DECODE_sm90(head) DECODE_OF(head, 64, SCHEDULE_CHUNK), .weighed = 1
#define TILING_DECODE_64(head) DECODE_OF(head, 64, SCHEDULE_CHUNK)
/* Of lower or narrower blocks tiles would be mostly padding. */
#define TILING_BLOCKS(head)                                                                        \
    .padded_head = (head), .filled_block = {8, FILL_GRANULE_LEAST}, .weighed = 1,                  \
    .part_keys = SCHEDULE_CHUNK
#define TILING_DECODE_blocks(head) .gqa_rows = 64, TILING_BLOCKS(head)
#define TILING_DECODE_blocks128(head) .whole_shares = 1, TILING_BLOCKS(head)
#define DECODE_ROW(its_type, its_product, its_name, head, head_v, high, v_in_k, bytes, ...)        \
    {                                                                                              \
        .name = "cuda_decode_" its_name, .stage = TESS_STAGE_ATTENTION, .cost = {__VA_ARGS__},     \
        .tiling = &(const struct tiling){.rows = decode_rows_##high,                               \
                                         .shared = (const int64_t[]){bytes, bytes, bytes, bytes,   \
                                                                     bytes, bytes, bytes},         \
                                         TILING_DECODE_##high(head),                               \
                                         .gqa_any = 1,                                             \
                                         .filled = 1,                                              \
                                         .filled_alone = 1},                                       \
        .own = OF_WIDTHS(its_type, its_product, head, head_v, v_in_k, family_decode_##high),       \
        .unusable = cuda_unusable, .refuses = forward_refuses, .workspace = attention_workspace,   \
        .refuses_run = decode_refuses_run, .run = decode_run                                       \
    }
#define CUDA_DECODE_16bit(name, ...)                                                               \
    DECODE_ROW(TESS_BF16, TESS_BF16, "bf16_" #name, __VA_ARGS__),                                  \
        DECODE_ROW(TESS_F16, TESS_F16, "f16_" #name, __VA_ARGS__)
#define CUDA_DECODE_f32_f16(name, ...) DECODE_ROW(TESS_F32, TESS_F16, "f32_f16_" #name, __VA_ARGS__)
#define CUDA_DECODE_f32_bf16(name, ...)                                                            \
    DECODE_ROW(TESS_F32, TESS_BF16, "f32_bf16_" #name, __VA_ARGS__)
#define CUDA_DECODE(types, ...) CUDA_DECODE_##types(__VA_ARGS__),
#define STAGED_ROW(takes, type_name, stem, variant, its_stage, ...)                                \
    {                                                                                              \
        .name = "cuda_" #stem "_" type_name "_" #variant, .stage = TESS_STAGE_##its_stage,         \
        .cost = {__VA_ARGS__},                                                                     \
        .own =                                                                                     \
            &(const struct staged_kernel){.type = takes, .refuses = stem##_##variant##_refuses},   \
        .unusable = cuda_unusable, .refuses = staged_refuses, .workspace = staged_workspace,       \
        .run = staged_run                                                                          \
    }
#define CUDA_STAGED_any(...) STAGED_ROW(NULL, "f32", __VA_ARGS__)
#define CUDA_STAGED_f32(...) STAGED_ROW(&type_f32, "f32", __VA_ARGS__)
#define CUDA_STAGED_16bit(...)                                                                     \
    STAGED_ROW(&type_bf16, "bf16", __VA_ARGS__), STAGED_ROW(&type_f16, "f16", __VA_ARGS__)
#define CUDA_STAGED(types, ...) CUDA_STAGED_##types(__VA_ARGS__),

#define TYPE_OF_f32 TESS_F32
#define TYPE_OF_f16 TESS_F16
#define TYPE_OF_bf16 TESS_BF16
#define SIZE_OF_f32 4
#define SIZE_OF_f16 2
#define SIZE_OF_bf16 2
#define STAGE_keys TESS_STAGE_GRADIENT_KEYS
#define STAGE_rows TESS_STAGE_GRADIENT_ROWS
#define CUDA_BACKWARD(its_type, its_name, pass, head, heights, bytes, ...)                         \
    {.name = "cuda_gradient_" #pass "_" #its_type "_" #its_name,                                   \
     .stage = STAGE_##pass,                                                                        \
     .cost = {__VA_ARGS__},                                                                        \
     .tiling = &(const struct tiling){.rows = (const int32_t[]){LIST heights, 0},                  \
                                      .shared = (const int64_t[]){LIST bytes},                     \
                                      .gqa_exact = 1,                                              \
                                      .padded_head = head,                                         \
                                      .apart = (head) > 128,                                       \
                                      .cuts = GRADIENT_CUTS(head, SIZE_OF_##its_type),             \
                                      .workers = forward_workers},                                 \
     .own = OF_WIDTHS(TYPE_OF_##its_type, TYPE_OF_##its_type, head, head, 0,                       \
                      family_##pass##_##its_type),                                                 \
     .unusable = cuda_unusable,                                                                    \
     .refuses = gradient_refuses,                                                                  \
     .workspace = gradient_workspace,                                                              \
     .run = gradient_run},
#define CUDA_DELTA(...)                                                                            \
    {.name = "cuda_delta",                                                                         \
     .stage = TESS_STAGE_DELTA,                                                                    \
     .cost = {__VA_ARGS__},                                                                        \
     .unusable = cuda_unusable,                                                                    \
     .refuses = delta_refuses,                                                                     \
     .workspace = delta_workspace,                                                                 \
     .run = delta_run},

const struct kernel cuda_table[CUDA_ROWS] = {
#include "instances.def"
};

/* ---- images ---- */

size_t cuda_image_size(const struct kernel_args *args) {
    return args->problem->pipeline == TESS_FUSED ? attention_image_size(args)
                                                 : staged_image_size(args);
}

size_t cuda_image_parts(struct device_part parts[IMAGE_ARRAYS], const struct kernel_args *args,
                        char *image) {
    return args->problem->pipeline == TESS_FUSED ? attention_image_parts(parts, args, image)
                                                 : staged_image_parts(parts, args, image);
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
    const int gathers = own->family->tma && args->work.prepared->path == OPERANDS_CP_ASYNC;
    const struct prepared *prepared = args->work.prepared;
    const int32_t rows = args->work.lists->tile_rows;
    const int32_t warp =
        own->family == &family_sm80 ? ATTENTION_WARP(own->d_qk, rows, prepared->thin) : 0;
    const int length =
        snprintf(room, size, "granules of %d keys, copied %s", (int)prepared->granules.size,
                 gathers ? "by cp.async" : by[prepared->path]);
    const size_t at = (size_t)length < size ? (size_t)length : size;
    return warp ? length + snprintf(room + at, size - at, "; %d rows a warp", (int)warp) : length;
}

int cuda_detail(const struct kernel_args *args, char *room, size_t size) {
    if (args->kernel->tiling && args->kernel->tiling->filled_alone)
        return decode_detail(args, room, size);
    if (args->work.prepared && args->kernel->tiling)
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
