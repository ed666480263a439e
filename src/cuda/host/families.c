/* Families of CUDA kernels: refusals, CTAs, costs, and how heads are packed. Neither nvcc nor a device is asked. */
#include "host/families.h"

#include "host/backward.h"
#include "host/costs.h"
#include "host/decode.h"
#include "host/drained.h"
#include "host/mlp.h"
#include "host/staged.h"
#include "plan/cost.h"
#include "work/granules.h"
#include "work/runs.h"

#include <math.h>

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

/* Options that no kernel of attention has; a backward reads o_rest before the stages. */
static const char *refused(const struct problem *problem, const tess_target *target) {
    if (problem->o_rest && problem->operation == TESS_ATTENTION)
        return "it does not write o_rest";
    return architecture_refused(target);
}

/* Options that kernels of the host's lists alone do not have. */
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

static const char *forward_refuses(const struct kernel *kernel, const struct problem *problem,
                                   const tess_target *target) {
    const struct forward_kernel *own = kernel->own;
    const struct cuda_family *family = cuda_family_of(kernel);
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
        why = family->family.lists == LISTS_FILLED ? decode_types_refused(own->product, problem)
                                                   : plain_refused(problem);
    if (!why && family->heights && problem->tile_rows &&
        kernel_height(kernel, problem->tile_rows) < 0)
        why = family->heights;
    if (!why && family->refuses)
        why = family->refuses(problem, target);
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
    const struct cuda_family *family = cuda_family_of(kernel);
    const char *why = type_refused(own->type, problem->type);
    if (!why)
        why = architecture_refused(target);
    return why || !family->refuses ? why : family->refuses(problem, target);
}

static const char *delta_refuses(const struct kernel *kernel, const struct problem *problem,
                                 const tess_target *target) {
    (void)kernel, (void)problem;
    return architecture_refused(target);
}

/* Values and o are not looked at. */
static const char *sums_refuses(const struct kernel *kernel, const struct problem *problem,
                                const tess_target *target) {
    const struct caches *c = &problem->caches;
    if (problem->sum_rows && kernel_height(kernel, problem->sum_rows) < 0)
        return "its groups have 8, 16, 32, 64, 128, 192 or 256 queries (sum_rows)";
    if (c->k_type != problem->type || caches_paged(c) || problem->rope_dims)
        return "it reads keys of q's type and of one view, row behind row: k_type, page_size and "
               "rope_dims must be 0";
    if (fabs(problem->scale) > 0x1p127) /* kernels hold scale * log2(e) */
        return "it computes scales of up to 2^127";
    return architecture_refused(target);
}

static const char *mlp_family_refuses(const struct kernel *kernel, const struct problem *problem,
                                      const tess_target *target) {
    const tess_type *const type = kernel->own;
    const char *why = type_refused(*type, problem->type);
    if (!why)
        why = mlp_refuses(problem, target);
    return why ? why : architecture_refused(target);
}
static const char *mlp_sm90_family_refuses(const struct kernel *kernel,
                                           const struct problem *problem,
                                           const tess_target *target) {
    const char *why = mlp_family_refuses(kernel, problem, target);
    return why ? why : mlp_sm90_refuses(problem, target);
}

/* Whether all queries list all keys, of which there are as many as TMA copies at once. */
static int is_dense(const struct problem *problem) {
    const struct block_rows *b = &problem->block_rows;
    return b->count > 0 && problem->n_kv >= 2 * GRANULE_MAX && b->bands == 0 && b->bitmasks == 0 &&
           b->columns == b->count * ((problem->n_kv + b->block_kv - 1) / b->block_kv) * b->block_kv;
}

static const char *sums_beside(const struct problem *problem, const tess_target *target,
                               int32_t rows) {
    if (problem->sum_rows != rows)
        return "it writes column sums, of groups of as many queries as its tiles have (sum_rows)";
    if (!is_dense(problem) || problem->n_q < rows || modifiers_any(&problem->modifiers))
        return "it writes column sums of dense patterns of whole tiles of queries and keys, "
               "without score modifiers";
    return attention_sm90_refuses(problem, target);
}
static const char *sums128_refused(const struct problem *problem, const tess_target *target) {
    return sums_beside(problem, target, 128);
}
static const char *sums192_refused(const struct problem *problem, const tess_target *target) {
    return sums_beside(problem, target, 192);
}

/* Tiles of lower or narrower blocks would be mostly padding. */
static const char *blocks_refused(const struct fill_shape *shape) {
    return min_i64(shape->block_q, shape->n_q) < 8 || shape->block_kv < FILL_GRANULE_LEAST
               ? "it walks filled lists of blocks of 8 queries and 16 keys or more"
               : NULL;
}

/* Tiles of fewer rows would be mostly padding, and parts of wider blocks are copied as one by TMA. A mask's rows
 * that list a key are not consecutive. */
static int columns_refuse(const struct fill_shape *shape, int64_t rows) {
    return shape->form == TESS_RANGES || shape->form == TESS_MASK ||
           min_i64(shape->block_q, shape->n_q) < rows || shape->block_q % rows ||
           shape->block_kv >= FILL_GRANULE_LEAST;
}
static const char *columns_refused(const struct fill_shape *shape) {
    return columns_refuse(shape, 64) ? "it walks filled lists of blocks of 64 queries, or a "
                                       "multiple, and 1 to 8 keys, of no mask"
                                     : NULL;
}
static const char *columns128_refused(const struct fill_shape *shape) {
    return columns_refuse(shape, 128) ? "it walks filled lists of blocks of 128 queries, or a "
                                        "multiple, and 1 to 8 keys, of no mask"
                                      : NULL;
}
static const char *columns192_refused(const struct fill_shape *shape) {
    return columns_refuse(shape, 192) ? "it walks filled lists of blocks of 192 queries, or a "
                                        "multiple, and 1 to 8 keys, of no mask"
                                      : NULL;
}

/* ---- CTAs and steps ---- */

static int32_t head_of(const struct kernel *kernel) {
    const struct forward_kernel *own = kernel->own;
    return own->d_qk;
}
static int32_t element_size(const struct kernel *kernel) {
    const struct forward_kernel *own = kernel->own;
    return (int32_t)tess_type_size(own->type);
}

/* CTAs that share a multiprocessor, each with items and lists of its own. */
static int32_t resident_sm90_r64(const struct kernel *kernel, int32_t rows) {
    (void)rows;
    return head_of(kernel) > 64 ? 2 : head_of(kernel) > 32 ? 3 : 4;
}
static int32_t resident_sm80(const struct kernel *kernel, int32_t rows) {
    const int32_t head = head_of(kernel);
    return element_size(kernel) == 4 ? ATTENTION_BLOCKS_F32(head, rows)
                                     : ATTENTION_BLOCKS(head, rows);
}
static int32_t resident_small_m(const struct kernel *kernel, int32_t rows) {
    const int32_t head = head_of(kernel);
    return element_size(kernel) == 4 ? ATTENTION_BLOCKS_SMALL_M(head, rows)
                                     : ATTENTION_BLOCKS_SMALL_M_16BIT(head, rows);
}

/* Warps' rows of tall tiles are those for sparse masks: of other lists few granules have masks. */
static struct granule_step step_sm80(const struct kernel *kernel, int32_t rows) {
    const int32_t head = head_of(kernel);
    return element_size(kernel) == 4
               ? (struct granule_step){ATTENTION_STEP_F32(rows), ATTENTION_WARP_F32(head, rows)}
               : (struct granule_step){ATTENTION_STEP(head, rows), ATTENTION_WARP(head, rows, 1)};
}

/* Rows of a warp of the backward, or of several that share them. */
static int32_t gradient_warp(const struct kernel *kernel, int32_t rows) {
    const struct forward_kernel *own = kernel->own;
    return GRADIENT_WARP(own->d_qk, own->type == TESS_F16, rows);
}
static int32_t gradient_resident(const struct kernel *kernel, int32_t rows) {
    const int32_t head = head_of(kernel), size = element_size(kernel);
    const int32_t warp = gradient_warp(kernel, rows), share = GRADIENT_SHARE(head, size, warp);
    const int keys = kernel->stage == TESS_STAGE_GRADIENT_KEYS;
    const int32_t warps = GRADIENT_WARPS(keys, head, size, warp, GRADIENT_LOW(rows));
    return warps / share * warp / (rows < warp ? warp : rows);
}
static int32_t gradient_sm90_resident(const struct kernel *kernel, int32_t rows) {
    return GRADIENT_SM90_RESIDENT(head_of(kernel), rows);
}
static struct granule_step gradient_step(const struct kernel *kernel, int32_t rows) {
    return (struct granule_step){
        GRADIENT_STEP(head_of(kernel), element_size(kernel), GRADIENT_LOW(rows)),
        gradient_warp(kernel, rows)};
}

/* CTAs that stay for several items, which are assigned among them. */
static int32_t forward_workers(const struct kernel *kernel, const tess_target *target,
                               int32_t rows) {
    const struct cuda_family *family = cuda_family_of(kernel);
    const int32_t resident = family->resident ? family->resident(kernel, rows) : 1;
    if (family->cluster > 1)
        return target->multiprocessors < family->cluster
                   ? 1
                   : target->multiprocessors / family->cluster;
    /* A multiprocessor has a little more shared memory than one CTA can ask for, and keeps 1 KB of
     * each. */
    const int64_t shared = kernel->shared[kernel_height(kernel, rows)];
    const int64_t fit = (target->shared_memory_per_block + 1024) / (shared + 1024);
    const int64_t each = fit < 1 || fit > resident ? resident : fit;
    const int64_t all = target->multiprocessors * each;
    return all < 1 << 20 ? (int32_t)all : 1 << 20;
}

/* ---- costs ---- */

/* Parts of a gradient's dims have scores computed anew for each. Over keys scores are computed once for both
 * gradients, unless these have kernels of their own. */
static double gradient_dims(const struct trial *trial) {
    const int64_t d = head_of(trial->kernel), gradients = trial->problem->gradients;
    const int64_t cuts = GRADIENT_CUTS(d, element_size(trial->kernel));
    const int64_t k = gradients & TESS_GRADIENT_K ? 2 * cuts * d + d : 0;
    const int64_t v = gradients & TESS_GRADIENT_V ? cuts * d + d : 0;
    if (trial->kernel->stage == TESS_STAGE_GRADIENT_ROWS)
        return (double)(2 * cuts * d + d);
    return (double)(k + v - (k && v && d <= 128 ? d : 0));
}

static double modified_score(const struct problem *problem) {
    const struct modifiers *m = &problem->modifiers;
    return MODIFIED_SCORE * ((m->softcap != 0) + (m->alibi != 0)) +
           DROPPED_SCORE * (m->dropped != 0);
}

/* Seconds that count masked keys twice: three consumers wait for the masks of each (docs/notes/planning.md). */
static double unions_avoided(const struct trial *t) {
    const double masked = t->sums->masked_keys / (t->sums->full_keys + t->sums->masked_keys);
    return (1 + (masked > 0 ? masked : 0)) * drained_seconds(t);
}

/* Whether a CTA of a filled plan has a multiprocessor for itself. */
static int whole_shares(const struct kernel *kernel) {
    return head_of(kernel) > 128 || kernel->rows[0] >= 128;
}

/* Keys of a list that are so few that CTAs of decode/direct.cuh may leave multiprocessors idle: a fill takes longer. */
#define DIRECT_FEW_KEYS 1024
#define DIRECT_LEAST_KEYS (2 * DECODE_CHUNK) /* a CTA's */

/* Tiles of one query, whose CTAs find room at once, or fill whole rounds but for a quarter of the last. */
static int64_t decode_direct(const struct kernel *kernel, const tess_target *target,
                             const struct fill_shape *shape, int64_t units) {
    const struct forward_kernel *own = kernel->own;
    const int64_t shared = kernel->shared[0] + DECODE_DIRECT_ROOM(own->d_qk);
    const int64_t keys =
        shape->form == TESS_RANGES ? shape->n_kv : shape->capacity * shape->block_kv;
    const int64_t least = (keys + DIRECT_LEAST_KEYS - 1) / DIRECT_LEAST_KEYS;
    const int64_t room = target->multiprocessors * (whole_shares(kernel) ? 1 : 2);
    const int64_t parts = max_i64(1, min_i64(least, room / max_i64(1, units)));
    const int64_t rounds = (units * parts + room - 1) / room;
    return target->architecture >= 90 &&
                   (shape->form == TESS_INDICES || shape->form == TESS_RANGES) &&
                   min_i64(shape->block_q, shape->n_q) == 1 &&
                   shape->block_kv <= KERNEL_TILE_KEYS &&
                   (!target->shared_memory_per_block ||
                    shared <= target->shared_memory_per_block) &&
                   (keys <= DIRECT_FEW_KEYS || rounds == 1 || 4 * units >= 3 * rounds * room)
               ? parts
               : 0;
}

/* ---- families ---- */

const struct family family_staged = {.refuses = staged_refuses, .seconds = cost_tiles};
const struct family family_delta = {.refuses = delta_refuses, .seconds = cost_rows};

/* Fused kernels over lists that are packed with the plan. */
#define PACKED(answers)                                                                            \
    .refuses = forward_refuses, .seconds = answers, .modified = modified_score,                    \
    .workers = forward_workers, .prepare = &prepare_lists, .lists = LISTS_PACKED

/* Hopper's: how heads are packed, and to how many rows. */
#define HOPPER_PARTS .part_keys = 512, .parts_rate = PARTS_RATE, .combine = COMBINE
#define HOPPER(answers, how, most)                                                                 \
    .family = {PACKED(answers), HOPPER_PARTS, .packing = how, .packed_rows = most, .weighed = 1},  \
    .granule = GRANULE_MAX, .groups = 1, .tma = 1, .waves = 1, .refuses = attention_sm90_refuses
const struct cuda_family family_sm90 = {HOPPER(drained_seconds, PACK_EXACT, 128),
                                        .heights = "its query tiles have 32, 64 or 128 rows"};
const struct cuda_family family_sm90_r192 = {HOPPER(unions_avoided, PACK_EXACT, 0),
                                             .heights = "its query tiles have 192 rows"};
/* Column sums beside o: the plan takes them where they do not refuse. */
#define HOPPER_SUMS(its_refusal)                                                                   \
    .family = {PACKED(drained_seconds), HOPPER_PARTS, .packing = PACK_EXACT, .sums = 1,            \
               .whole_groups = 1},                                                                 \
    .granule = GRANULE_MAX, .groups = 1, .tma = 1, .waves = 1, .refuses = its_refusal
const struct cuda_family family_sm90_sums = {HOPPER_SUMS(sums128_refused),
                                             .heights = "its query tiles have 128 rows"};
const struct cuda_family family_sm90_r192_sums = {HOPPER_SUMS(sums192_refused),
                                                  .heights = "its query tiles have 192 rows"};
const struct cuda_family family_sm90_r64 = {HOPPER(drained_seconds, PACK_FULL, 64),
                                            .heights = "its query tiles have 8, 16, 32 or 64 rows",
                                            .resident = resident_sm90_r64};
const struct cuda_family family_sm90_wide = {HOPPER(drained_seconds, PACK_EXACT, 64),
                                             .heights = "its query tiles have 32 or 64 rows"};
const struct cuda_family family_sm90_pair = {HOPPER(drained_seconds, PACK_EXACT, 64),
                                             .heights = "its query tiles have 32 or 64 rows",
                                             .cluster = 2};

/* The last family of a type is not weighed: it takes what is left. */
const struct cuda_family family_sm80 = {.family = {PACKED(drained_seconds), .skips = 1},
                                        .granule = ATTENTION_GRANULE,
                                        .waves = 1,
                                        .step = step_sm80,
                                        .resident = resident_sm80};
const struct cuda_family family_sm80_f32 = {.family = {PACKED(drained_seconds), .skips = 1},
                                            .granule = ATTENTION_GRANULE_F32,
                                            .step = step_sm80,
                                            .resident = resident_sm80};
#define SMALL_M                                                                                    \
    .family = {PACKED(drained_seconds), .weighed = 1}, .granule = ATTENTION_GRANULE_SMALL_M,       \
    .resident = resident_small_m
const struct cuda_family family_small_m = {
    SMALL_M, .heights = "its query tiles have 8 rows (of more than 64 dims 16 as well, of 193 to "
                        "256 dims 32)"};
const struct cuda_family family_small_m_16bit = {
    SMALL_M, .heights = "its query tiles have 8 or 16 rows (of up to 512 and of more than 768 dims "
                        "32 as well)"};

/* The backward's, of both passes. */
#define GRADIENT                                                                                   \
    .family = {.refuses = gradient_refuses,                                                        \
               .seconds = drained_seconds,                                                         \
               .dims = gradient_dims,                                                              \
               .workers = forward_workers,                                                         \
               .prepare = &prepare_lists,                                                          \
               .skips = 1,                                                                         \
               .lists = LISTS_PACKED},                                                             \
    .step = gradient_step, .resident = gradient_resident
const struct cuda_family family_gradient_16bit = {GRADIENT, .granule = GRADIENT_GRANULE};
const struct cuda_family family_gradient_f32 = {GRADIENT, .granule = GRADIENT_GRANULE_F32};
/* Hopper's, which compute all sums of a pass, whatever is wanted: the forward's costs, for more products. */
#define GRADIENT_SM90(its_products, its_joint_rows, its_refusal)                                   \
    {                                                                                              \
        .family = {.refuses = gradient_refuses,                                                    \
                   .seconds = gradient_sm90_seconds,                                               \
                   .products = its_products,                                                       \
                   .joint_rows = its_joint_rows,                                                   \
                   .modified = modified_score,                                                     \
                   .workers = forward_workers,                                                     \
                   .prepare = &prepare_lists,                                                      \
                   .lists = LISTS_PACKED,                                                          \
                   .weighed = 1},                                                                  \
        .granule = GRANULE_MAX, .granule_least = GRANULE_MAX, .groups = 1, .tma = 1,               \
        .resident = gradient_sm90_resident, .refuses = its_refusal                                 \
    }
const struct cuda_family family_gradient_sm90_keys =
    GRADIENT_SM90(4, SPILL_SIDE, gradient_sm90_refuses);
const struct cuda_family family_gradient_sm90_rows = GRADIENT_SM90(3, 0, gradient_sm90_refuses);
const struct cuda_family family_gradient_wide_keys = GRADIENT_SM90(4, 0, gradient_wide_refuses);
const struct cuda_family family_gradient_wide_rows = GRADIENT_SM90(3, 0, gradient_wide_refuses);

static double sums_dims(const struct trial *trial) {
    return (double)trial->problem->d_qk;
}
static int32_t one_worker(const struct kernel *kernel, const tess_target *target, int32_t rows) {
    (void)kernel, (void)target, (void)rows;
    return 1;
}
const struct cuda_family family_column_sums = {.family = {.refuses = sums_refuses,
                                                          .seconds = cost_lists,
                                                          .dims = sums_dims,
                                                          .workers = one_worker,
                                                          .prepare = &prepare_lists,
                                                          .lists = LISTS_PACKED | LISTS_FILLED,
                                                          .whole_groups = 1},
                                               .granule = GRANULE_MAX};

/* The MLP's products: a tile is an item, and granules are of one column. */
#define MLP_UP(refused)                                                                            \
    .family = {.refuses = refused,                                                                 \
               .seconds = cost_lists,                                                              \
               .workers = one_worker,                                                              \
               .prepare = &prepare_lists,                                                          \
               .lists = LISTS_PACKED | LISTS_FILLED},                                              \
    .granule = 1
#define MLP_DOWN(refused) .family = {.refuses = refused, .lists = LISTS_PACKED | LISTS_FILLED}
const struct cuda_family family_mlp_up = {MLP_UP(mlp_family_refuses)};
const struct cuda_family family_mlp_down = {MLP_DOWN(mlp_family_refuses)};
const struct cuda_family family_mlp_sm90_up = {MLP_UP(mlp_sm90_family_refuses), .maps = MAPS_ALONE};
const struct cuda_family family_mlp_sm90_down = {MLP_DOWN(mlp_sm90_family_refuses),
                                                 .maps = MAPS_ALONE};

/* Decode: tiles of up to so many rows, of any number of heads. */
#define DECODE(most, keys, ...)                                                                    \
    .family = {.refuses = forward_refuses,                                                         \
               .seconds = cost_lists,                                                              \
               .lists = LISTS_FILLED,                                                              \
               .packing = PACK_ANY,                                                                \
               .packed_rows = most,                                                                \
               .part_keys = keys,                                                                  \
               .whole_shares = whole_shares,                                                       \
               .combine = COMBINE,                                                                 \
               __VA_ARGS__}
#define DECODE_LOW(most) DECODE(most, DECODE_CHUNK, .weighed = 1)
#define DECODE_HIGH(most) DECODE(most, SCHEDULE_CHUNK, .weighed = 0)
/* Blocks have heads padded as the forward's are. */
#define DECODE_BLOCKS(most)                                                                        \
    DECODE(most, SCHEDULE_CHUNK, .weighed = 1, .modified = modified_score,                         \
           .refuses_filled = blocks_refused)
const struct cuda_family family_decode_4 = {DECODE_LOW(4), .refuses = decode_refuses,
                                            .heights = "its query tiles have 1, 2 or 4 rows"};
const struct cuda_family family_decode_8 = {DECODE_LOW(8), .refuses = decode_refuses,
                                            .heights = "its query tiles have 1, 2, 4 or 8 rows"};
const struct cuda_family family_decode_16 = {
    DECODE(16, DECODE_CHUNK, .weighed = 1, .direct = decode_direct), .refuses = decode_refuses,
    .heights = "its query tiles have 1, 2, 4, 8 or 16 rows"};
const struct cuda_family family_decode_16f = {DECODE_HIGH(16), .refuses = decode_64_refuses,
                                              .heights =
                                                  "its query tiles have 1, 2, 4, 8 or 16 rows"};
const struct cuda_family family_decode_32 = {DECODE_HIGH(32), .refuses = decode_64_refuses,
                                             .heights = "its query tiles have 1, 2, 4 ... 32 rows"};
const struct cuda_family family_decode_64 = {DECODE_HIGH(64), .refuses = decode_64_refuses,
                                             .heights = "its query tiles have 1, 2, 4 ... 64 rows"};
const struct cuda_family family_decode_sm90 = {
    DECODE(64, SCHEDULE_CHUNK, .weighed = 1), .refuses = decode_sm90_refuses,
    .heights = "its query tiles have 1, 2, 4 ... 64 rows"};
const struct cuda_family family_decode_blocks = {
    DECODE_BLOCKS(64), .refuses = decode_blocks_refuses, .maps = MAPS_OR_DECODE,
    .heights = "its query tiles have 8, 16, 32 or 64 rows"};
const struct cuda_family family_decode_blocks128 = {
    DECODE_BLOCKS(0), .refuses = decode_blocks_refuses, .maps = MAPS_ALONE,
    .heights = "its query tiles have 128 rows"};
#define DECODE_COLUMNS(refused)                                                                    \
    DECODE(0, SCHEDULE_CHUNK, .weighed = 1, .modified = modified_score,                            \
           .refuses_filled = refused),                                                             \
        .refuses = decode_columns_refuses
const struct cuda_family family_decode_columns = {DECODE_COLUMNS(columns_refused),
                                                  .heights = "its query tiles have 64 rows"};
const struct cuda_family family_decode_columns128 = {DECODE_COLUMNS(columns128_refused),
                                                     .heights = "its query tiles have 128 rows"};
const struct cuda_family family_decode_columns192 = {DECODE_COLUMNS(columns192_refused),
                                                     .heights = "its query tiles have 192 rows"};
