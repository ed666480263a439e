/* From problem and pattern to plan: kernels, tile height, lists, schedule, workspace. */
#include "plan.h"

#include "status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tiles that are packed on trial for each tile height. */
#define PLAN_SAMPLES 64

/* Parts that CPU work is cut for, whatever the number of threads, so that results do not depend on
 * it. */
#define PLAN_CPU_WORKERS 64

static const tess_stage fused_stages[] = {TESS_STAGE_ATTENTION};
static const tess_stage staged_stages[] = {TESS_STAGE_SDDMM, TESS_STAGE_SOFTMAX, TESS_STAGE_SPMM};

int plan_stages(tess_pipeline pipeline, const tess_stage **stages) {
    *stages = pipeline == TESS_FUSED ? fused_stages : staged_stages;
    return pipeline == TESS_FUSED ? 1 : 3;
}

static tess_status no_memory(tess_error *error, const char *what) {
    return error_set(error, TESS_OUT_OF_MEMORY, "tess_plan_create", NULL, "out of memory for %s",
                     what);
}

/* ---- kernels ---- */

static const struct kernel *kernel_named(const struct backend *backend, const char *name) {
    for (int64_t k = 0; k < backend->n_kernels; k++)
        if (!strcmp(backend->kernels[k].name, name))
            return &backend->kernels[k];
    return NULL;
}

/* Whether the target's blocks have the shared memory that query tiles of `rows` rows take. */
static int height_fits(const tess_plan *plan, const struct kernel *kernel, int32_t rows) {
    return !kernel->shared || plan->target.shared_memory_per_block == 0 ||
           kernel->shared(rows) <= plan->target.shared_memory_per_block;
}

/* Whether query heads, `stack` at a time, share their list, keys and values. */
static int heads_share(const tess_plan *plan, int32_t stack) {
    const struct problem *p = &plan->problem;
    if (p->heads_q / p->heads_kv % stack)
        return 0;
    for (int64_t bh = 0; bh < p->batch * p->heads_q; bh++)
        if (plan->list_of[bh] != plan->list_of[bh / stack * stack])
            return 0;
    return 1;
}

/* How many query heads a tile has `rows` rows of; 0 where it would have to be made up of some that do
 * not share, or need not be. */
static int32_t height_stack(const tess_plan *plan, const struct kernel *kernel, int32_t rows) {
    if (rows >= kernel->stacked_rows)
        return 1;
    int32_t stack = kernel->stacked_rows / rows;
    if (kernel->stacked_whole)
        return plan->block_q % kernel->stacked_rows && heads_share(plan, stack) ? stack : 0;
    while (!heads_share(plan, stack))
        stack /= 2;
    return stack;
}

const char *plan_kernel_refuses(const tess_plan *plan, const struct kernel *kernel) {
    int fits = !kernel->tile_rows;
    for (const int32_t *rows = kernel->tile_rows; rows && *rows; rows++)
        fits |= height_fits(plan, kernel, *rows);
    return fits ? kernel->refuses(&plan->problem, &plan->target)
                : "its blocks take more shared memory than the target's have";
}

/* The first kernel of the stage that does not refuse problem and target, which need not be this
 * machine; *reason is why the last one that was looked at does. */
static const struct kernel *kernel_pick(const tess_plan *plan, tess_stage stage,
                                        const struct kernel *forced, const char **reason) {
    *reason = "this backend has no kernel for it";
    for (int64_t k = 0; k < plan->backend->n_kernels; k++) {
        const struct kernel *kernel = &plan->backend->kernels[k];
        if (kernel->stage != stage || (forced && forced->stage == stage && kernel != forced))
            continue;
        const char *why = plan_kernel_refuses(plan, kernel);
        if (!why)
            return kernel;
        *reason = why;
    }
    return NULL;
}

static int kernel_has_height(const struct kernel *kernel, int32_t rows) {
    for (const int32_t *r = kernel->tile_rows; *r; r++)
        if (*r == rows)
            return 1;
    return 0;
}

/* Whether the kernel takes the height that the problem asks for. */
static tess_status height_check(const tess_plan *plan, const struct kernel *kernel,
                                tess_error *error) {
    const int32_t rows = plan->problem.tile_rows;
    if (!rows)
        return TESS_OK;
    if (!kernel_has_height(kernel, rows))
        return error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "problem",
                         "kernel %s has no query tiles of %d rows", kernel->name, (int)rows);
    if (!height_fits(plan, kernel, rows))
        return error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "problem",
                         "query tiles of %d rows of kernel %s take %lld bytes of shared memory, "
                         "the target's blocks have %lld",
                         (int)rows, kernel->name, (long long)kernel->shared(rows),
                         (long long)plan->target.shared_memory_per_block);
    return TESS_OK;
}

static tess_status kernels_choose(tess_plan *plan, const char *name, tess_error *error) {
    const tess_stage *stages;
    int n = plan_stages(plan->problem.pipeline, &stages);
    const struct kernel *forced = name ? kernel_named(plan->backend, name) : NULL;
    if (name && !forced)
        return error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "problem",
                         "the %s backend has no kernel named %.64s: see tess_kernel_describe",
                         plan->backend->name, name);
    int used = !forced;
    for (int s = 0; s < n; s++) {
        const char *reason;
        used |= forced && forced->stage == stages[s];
        plan->kernels[stages[s]] = kernel_pick(plan, stages[s], forced, &reason);
        if (!plan->kernels[stages[s]])
            return error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "problem",
                             "no %s kernel of the %s backend computes this: %s",
                             tess_stage_name(stages[s]), plan->backend->name, reason);
    }
    if (!used)
        return error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "problem",
                         "kernel %.64s computes %s, which the chosen pipeline does not contain",
                         name, tess_stage_name(forced->stage));
    const struct kernel *attention = plan->kernels[TESS_STAGE_ATTENTION];
    return attention ? height_check(plan, attention, error) : TESS_OK;
}

/* ---- cost ---- */

/* One key of a query tile of `rows` rows. */
static double key_cost(const tess_plan *plan, const struct kernel *kernel, double dims,
                       double rows) {
    double fetch = kernel->cost.key_dim;
    if (plan->problem.type != TESS_F32)
        fetch += kernel->cost.convert_dim;
    return dims * (kernel->cost.key_row_dim * rows + fetch);
}

/* A kernel computes all rows of a tile for each key; or whole groups, and for masked keys only those
 * that list it. Answers how many fewer row-key pairs that is. */
static double rows_skipped(const struct kernel *kernel, const struct lists_sums *sums,
                           double rows) {
    double groups = ceil(rows / LISTS_GROUP);
    if (!kernel->cost.skips)
        return 0;
    return (sums->full_keys + sums->masked_keys) * rows -
           LISTS_GROUP * (sums->full_keys * groups + sums->masked_groups);
}

/* Dims of a key that attention computes, K's and V's. */
static double fused_dims(const tess_plan *plan, const struct kernel *kernel) {
    return (double)(kernel->padded_head ? 2 * kernel->padded_head
                                        : plan->problem.d_qk + plan->problem.d_v);
}

/* What a kernel that can compute listed pairs alone saves by it, for `pairs` of these lists. */
static double listed_saves(const tess_plan *plan, const struct kernel_cost *cost,
                           const struct lists_sums *sums, double pairs, double dims, double rows) {
    const double all = (sums->full_keys + sums->masked_keys) * rows;
    const double set = plan->block_q % 4 == 0 ? 4 : plan->block_q % 2 == 0 ? 2 : 1;
    if (cost->listed_row_dim == 0 || 2 * pairs > all)
        return 0;
    return dims *
           (all * cost->key_row_dim - pairs * (cost->listed_row_dim + cost->listed_key_dim / set));
}

/* A fused run over lists with these sums, each list read by `heads` heads, in tiles of `height`
 * rows of each of `stack` heads. */
static double fused_cost(const tess_plan *plan, const struct kernel *kernel,
                         const struct lists_sums *sums, double heads, int32_t height,
                         int32_t stack) {
    const double dims = fused_dims(plan, kernel), rows = (double)height * stack;
    const double stacks = heads / stack;
    return stacks *
           (sums->tiles * kernel->cost.item +
            (sums->full_keys + sums->masked_keys) * key_cost(plan, kernel, dims, rows) +
            sums->masked_keys * rows * kernel->cost.masked_key -
            listed_saves(plan, &kernel->cost, sums, (double)plan->pairs / stacks, dims, rows) -
            dims * kernel->cost.key_row_dim * rows_skipped(kernel, sums, rows));
}

/* All stages over the block lists. */
static double staged_cost(const tess_plan *plan, double heads) {
    const struct bcsr *m = &plan->bcsr;
    double dims[PLAN_STAGES] = {[TESS_STAGE_SDDMM] = (double)plan->problem.d_qk,
                                [TESS_STAGE_SOFTMAX] = 1,
                                [TESS_STAGE_SPMM] = (double)plan->problem.d_v};
    double rows = (double)(m->batch * m->heads * m->rows);
    double keys = (double)m->n_tiles * (double)m->block_kv;
    double masked = (double)(m->n_bands + m->n_bitmasks) * (double)(m->block_q * m->block_kv);
    double seconds = 0;
    for (int s = 0; s < PLAN_STAGES; s++) {
        const struct kernel *kernel = plan->kernels[s];
        if (kernel)
            seconds += heads * (rows * kernel->cost.item +
                                keys * key_cost(plan, kernel, dims[s], (double)m->block_q) +
                                masked * kernel->cost.masked_key);
    }
    return seconds;
}

/* ---- lists ---- */

/* What lists of each height would be: estimated once, whichever kernels ask. */
struct estimates {
    const struct bcsr *m;
    int32_t rows[PLAN_HEIGHTS];
    struct lists_sums sums[PLAN_HEIGHTS];
};

/* NULL when memory ran out. */
static const struct lists_sums *estimate(struct estimates *e, int32_t rows, tess_error *error) {
    int i = 0;
    while (i < PLAN_HEIGHTS - 1 && e->rows[i] && e->rows[i] != rows)
        i++;
    if (e->rows[i] != rows && lists_estimate(&e->sums[i], e->m, rows, PLAN_SAMPLES, error))
        return NULL;
    e->rows[i] = rows;
    return &e->sums[i];
}

/* Weighs the heights that the kernel offers and that fit the target, or the one that the problem
 * asks for; what was weighed becomes the plan's when one of them takes less than *least, which it
 * then is, with its rows in *rows. */
static tess_status kernel_weigh(tess_plan *plan, const struct kernel *kernel, struct estimates *e,
                                double heads, double *least, int32_t *rows, tess_error *error) {
    struct plan_height weighed[PLAN_HEIGHTS] = {{0}};
    int n = 0, best = 0;
    for (const int32_t *r = kernel->tile_rows; *r && n < PLAN_HEIGHTS - 1; r++) {
        const int32_t stack = height_stack(plan, kernel, *r);
        if (!stack || !height_fits(plan, kernel, *r) ||
            (plan->problem.tile_rows && plan->problem.tile_rows != *r))
            continue;
        const struct lists_sums *sums = estimate(e, *r, error);
        if (!sums)
            return TESS_OUT_OF_MEMORY;
        weighed[n] = (struct plan_height){*r, fused_cost(plan, kernel, sums, heads, *r, stack)};
        if (weighed[n].seconds <= weighed[best].seconds)
            best = n;
        n++;
    }
    if (n && weighed[best].seconds < *least) {
        *least = weighed[best].seconds, *rows = weighed[best].rows;
        plan->kernels[TESS_STAGE_ATTENTION] = kernel;
        memcpy(plan->heights, weighed, sizeof weighed);
    }
    return TESS_OK;
}

/* The cheapest height of the kernel that was picked; where it is to be weighed against those after
 * it and no name forces it, the cheapest of them all. */
static tess_status height_choose(tess_plan *plan, const struct bcsr *m, double heads, int forced,
                                 int32_t *rows, tess_error *error) {
    const struct backend *backend = plan->backend;
    const struct kernel *first = plan->kernels[TESS_STAGE_ATTENTION];
    struct estimates e = {.m = m};
    double least = INFINITY;
    for (const struct kernel *k = first; k < backend->kernels + backend->n_kernels; k++) {
        if (k->stage != TESS_STAGE_ATTENTION || plan_kernel_refuses(plan, k))
            continue;
        tess_status status = kernel_weigh(plan, k, &e, heads, &least, rows, error);
        if (status)
            return status;
        if (forced || !k->weighed)
            break;
    }
    if (*rows)
        return TESS_OK;
    return error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "problem",
                     "kernel %s has query tiles of %lld rows for heads that share a list alone",
                     first->name, (long long)plan->problem.tile_rows);
}

static int64_t heads_per_group(const tess_plan *plan) {
    const struct problem *p = &plan->problem;
    int64_t all = p->batch * p->heads_q;
    double head = (double)p->n_kv * (double)(p->d_qk + p->d_v) * (double)tess_type_size(p->type);
    /* Half of the cache for K and V. Query heads of one key/value head stay together. */
    double fit = (double)plan->target.cache_size / 2 / head;
    if (plan->target.cache_size <= 0 || fit * (double)(p->heads_q / p->heads_kv) >= (double)all)
        return all;
    return (fit < 1 ? 1 : (int64_t)fit) * (p->heads_q / p->heads_kv);
}

/* Schedule and granules of a plan whose lists are packed. */
static tess_status fused_schedule(tess_plan *plan, int32_t rows, tess_error *error) {
    const struct kernel *kernel = plan->kernels[TESS_STAGE_ATTENTION];
    const int64_t stack = plan->stack;
    const int64_t stacks = plan->problem.batch * plan->problem.heads_q / stack;
    int64_t *list_of = malloc((size_t)stacks * sizeof *list_of);
    if (!list_of)
        return no_memory(error, "the list of each stack of heads");
    for (int64_t i = 0; i < stacks; i++)
        list_of[i] = plan->list_of[i * stack];
    struct schedule_rules rules = {
        .item_cost = kernel->cost.item,
        .key_cost = key_cost(plan, kernel, fused_dims(plan, kernel), (double)(rows * stack)),
        .workers =
            plan->target.backend == TESS_CUDA ? plan->target.multiprocessors : PLAN_CPU_WORKERS,
        .min_part_keys = plan->problem.part_keys,
        .heads_per_group = heads_per_group(plan) / stack};
    tess_status status = schedule_make(&plan->schedule, plan->lists.keys, plan->lists.tiles,
                                       list_of, stacks, &rules, error);
    const struct granule_rules granule_rules = {
        .list_of = list_of,
        .heads_q = plan->problem.heads_q,
        .heads_kv = plan->problem.heads_kv,
        .stack = stack,
        .workers = kernel->workers ? kernel->workers(&plan->target, rows) : 1,
        .size = kernel->granule ? kernel->granule : GRANULE_MAX};
    if (!status && plan->backend->image_size)
        status =
            granules_make(&plan->granules, &plan->lists, &plan->schedule, &granule_rules, error);
    free(list_of);
    return status;
}

static tess_status fused_make(tess_plan *plan, const struct bcsr *m, double heads, int forced,
                              tess_error *error) {
    int32_t rows = 0;
    tess_status status = height_choose(plan, m, heads, forced, &rows, error);
    if (!status)
        status = lists_pack(&plan->lists, m, rows, error);
    if (status)
        return status;
    const struct kernel *kernel = plan->kernels[TESS_STAGE_ATTENTION];
    struct lists_sums sums;
    lists_sum(&sums, &plan->lists);
    plan->stack = height_stack(plan, kernel, rows);
    plan->predicted_seconds = fused_cost(plan, kernel, &sums, heads, rows, plan->stack);
    return fused_schedule(plan, rows, error);
}

/* Copies `count` elements; NULL when memory ran out. */
static void *array_copy(const void *from, int64_t count, size_t size) {
    void *to = malloc(((size_t)count + 1) * size);
    return to && count ? memcpy(to, from, (size_t)count * size) : to;
}

/* Zero, or -1 when memory ran out; bcsr_free in either case. */
static int bcsr_copy(struct bcsr *to, const struct bcsr *m) {
    *to = *m;
    to->row_ptr = array_copy(m->row_ptr, m->batch * m->heads * (m->rows + 1), sizeof *m->row_ptr);
    to->col_idx = array_copy(m->col_idx, m->n_tiles, sizeof *m->col_idx);
    to->band_entry = array_copy(m->band_entry, m->n_bands, sizeof *m->band_entry);
    to->band = array_copy(m->band, 2 * m->n_bands, sizeof *m->band);
    to->bitmask_entry = array_copy(m->bitmask_entry, m->n_bitmasks, sizeof *m->bitmask_entry);
    to->bits = array_copy(m->bits, bcsr_words(m), sizeof *m->bits);
    return to->row_ptr && to->col_idx && to->band_entry && to->band && to->bitmask_entry && to->bits
               ? 0
               : -1;
}

/* Where each head's values begin. Zero, or -1 when the sum does not fit. */
static int values_place(tess_plan *plan) {
    const struct bcsr *m = &plan->bcsr;
    int64_t sum = 0;
    for (int64_t bh = 0; bh < plan->problem.batch * plan->problem.heads_q; bh++) {
        int64_t list = plan->list_of[bh], count;
        int64_t tiles = bcsr_row_begin(m, list, m->rows) - bcsr_row_begin(m, list, 0);
        plan->values_offset[bh] = sum;
        if (__builtin_mul_overflow(tiles, m->block_q, &count) ||
            __builtin_mul_overflow(count, m->block_kv, &count) ||
            __builtin_add_overflow(sum, count, &sum) || sum > INT64_MAX / 8)
            return -1;
    }
    plan->values_count = sum;
    return 0;
}

static tess_status staged_make(tess_plan *plan, const struct bcsr *m, double heads,
                               tess_error *error) {
    int64_t batch_heads = plan->problem.batch * plan->problem.heads_q;
    plan->values_offset = calloc((size_t)batch_heads, sizeof *plan->values_offset);
    int64_t rows = m->batch * m->heads * m->rows;
    int64_t *keys = malloc(((size_t)rows + 1) * sizeof *keys);
    if (!plan->values_offset || !keys || bcsr_copy(&plan->bcsr, m)) {
        free(keys);
        return no_memory(error, "the block lists");
    }
    tess_status status = TESS_OK;
    if (values_place(plan))
        status = error_set(error, TESS_INVALID_ARGUMENT, "tess_plan_create", "pattern",
                           "the BCSR values of %lld tiles of %lld x %lld do not fit 64 bits",
                           (long long)m->n_tiles, (long long)m->block_q, (long long)m->block_kv);
    if (!status) {
        for (int64_t l = 0; l < m->batch * m->heads; l++)
            for (int64_t i = 0; i < m->rows; i++)
                keys[l * m->rows + i] =
                    (bcsr_row_end(m, l, i) - bcsr_row_begin(m, l, i)) * m->block_kv;
        plan->predicted_seconds = staged_cost(plan, heads);
        struct schedule_rules rules = {.item_cost = 1,
                                       .key_cost = 1,
                                       .workers = 1,
                                       .min_part_keys = INT64_MAX,
                                       .heads_per_group = heads_per_group(plan)};
        status = schedule_make(&plan->schedule, keys, m->rows, plan->list_of, batch_heads, &rules,
                               error);
    }
    free(keys);
    return status;
}

/* ---- the whole ---- */

struct kernel_args plan_args(const tess_plan *plan) {
    return (struct kernel_args){.problem = &plan->problem,
                                .target = &plan->target,
                                .bcsr = &plan->bcsr,
                                .lists = &plan->lists,
                                .granules = &plan->granules,
                                .schedule = &plan->schedule,
                                .stack = plan->stack,
                                .list_of = plan->list_of,
                                .values_offset = plan->values_offset};
}

void plan_carve(const tess_plan *plan, struct carve *carve, float **values, void **stage) {
    size_t largest = 0;
    for (int s = 0; s < PLAN_STAGES; s++)
        largest = plan->stage_workspace[s] > largest ? plan->stage_workspace[s] : largest;
    *values = carve_take(carve, (size_t)plan->values_count, sizeof(float));
    *stage = carve_take(carve, largest, 1);
}

static tess_status workspace_size(tess_plan *plan, tess_error *error) {
    struct kernel_args args = plan_args(plan);
    struct carve whole = {0};
    float *values;
    void *stage;
    for (int s = 0; s < PLAN_STAGES; s++)
        plan->stage_workspace[s] = plan->kernels[s] ? plan->kernels[s]->workspace(&args) : 0;
    plan_carve(plan, &whole, &values, &stage);
    if (whole.overflow)
        return error_set(error, TESS_INVALID_ARGUMENT, "tess_plan_create", "problem",
                         "the workspace of this problem does not fit the address space");
    plan->workspace = whole.used;
    plan->image = plan->backend->image_size ? plan->backend->image_size(&args) : 0;
    if (plan->image == SIZE_MAX)
        return error_set(error, TESS_INVALID_ARGUMENT, "tess_plan_create", "pattern",
                         "the image of this plan does not fit the address space");
    return TESS_OK;
}

tess_status plan_make(tess_plan **out, const struct problem *problem, const char *kernel,
                      const tess_pattern *pattern, const tess_target *target,
                      const struct backend *backend, tess_error *error) {
    const struct bcsr *m = &pattern->lists;
    int64_t batch_heads = problem->batch * problem->heads_q;
    tess_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return no_memory(error, "the plan");
    plan->problem = *problem;
    plan->target = *target;
    plan->backend = backend;
    plan->block_q = m->block_q;
    plan->block_kv = m->block_kv;
    plan->n_lists = m->batch * m->heads;
    plan->n_tiles = m->n_tiles;
    plan->list_of = malloc((size_t)batch_heads * sizeof *plan->list_of);

    double heads = (double)batch_heads / (double)plan->n_lists;
    tess_status status = plan->list_of ? TESS_OK : no_memory(error, "the list of each head");
    if (!status) {
        for (int64_t bh = 0; bh < batch_heads; bh++)
            plan->list_of[bh] =
                bcsr_list(m, bh / problem->heads_q, bh % problem->heads_q, problem->heads_q);
        if (__builtin_mul_overflow(pattern->pairs, batch_heads / plan->n_lists, &plan->pairs))
            status = error_set(error, TESS_INVALID_ARGUMENT, "tess_plan_create", "pattern",
                               "the listed query-key pairs of all heads do not fit 64 bits");
    }
    if (!status)
        status = kernels_choose(plan, kernel, error);
    if (!status)
        status = problem->pipeline == TESS_FUSED ? fused_make(plan, m, heads, kernel != NULL, error)
                                                 : staged_make(plan, m, heads, error);
    if (!status)
        status = workspace_size(plan, error);
    if (status) {
        tess_plan_free(plan);
        return status;
    }
    *out = plan;
    return TESS_OK;
}

void tess_plan_free(tess_plan *plan) {
    if (!plan)
        return;
    bcsr_free(&plan->bcsr);
    lists_free(&plan->lists);
    granules_free(&plan->granules);
    schedule_free(&plan->schedule);
    free(plan->list_of);
    free(plan->values_offset);
    free(plan);
}
