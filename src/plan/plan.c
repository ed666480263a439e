/* From problem and pattern to plan: passes, lists, schedule, what the backend prepares, memory. */
#include "plan/plan.h"

#include "plan/select.h"
#include "base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The passes of each pipeline. */
static const struct {
    int n;
    tess_stage stages[PLAN_PASSES];
} pipelines[] = {
    [TESS_FUSED] = {1, {TESS_STAGE_ATTENTION}},
    [TESS_STAGED] = {3, {TESS_STAGE_SDDMM, TESS_STAGE_SOFTMAX, TESS_STAGE_SPMM}},
};

static void passes_begin(tess_plan *plan) {
    plan->n_passes = pipelines[plan->problem.pipeline].n;
    for (int i = 0; i < plan->n_passes; i++)
        plan->passes[i] = (struct pass){.stage = pipelines[plan->problem.pipeline].stages[i],
                                        .work = &plan->work};
}

const struct pass *plan_pass(const tess_plan *plan, tess_stage stage) {
    for (int i = 0; plan && i < plan->n_passes; i++)
        if (plan->passes[i].stage == stage)
            return &plan->passes[i];
    return NULL;
}

static tess_status no_memory(tess_error *error, const char *what) {
    return error_set(error, TESS_OUT_OF_MEMORY, "tess_plan_create", NULL, "out of memory for %s",
                     what);
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

/* Schedule of a pass whose lists are packed, and what its backend prepares of both. */
static tess_status fused_schedule(const tess_plan *plan, const struct pass *pass,
                                  tess_error *error) {
    const struct kernel *kernel = pass->kernel;
    struct work *work = pass->work;
    const int32_t rows = work->lists.tile_rows;
    const int64_t stack = work->stack;
    const int64_t stacks = plan->problem.batch * plan->problem.heads_q / stack;
    int64_t *list_of = malloc((size_t)stacks * sizeof *list_of);
    if (!list_of)
        return no_memory(error, "the list of each stack of heads");
    for (int64_t i = 0; i < stacks; i++)
        list_of[i] = plan->list_of[i * stack];
    const int32_t assigned =
        kernel->tiling->workers ? kernel->tiling->workers(kernel, &plan->target, rows) : 1;
    const int64_t hands =
        plan->target.backend == TESS_CUDA ? plan->target.multiprocessors : PLAN_CPU_WORKERS;
    struct schedule_rules rules = {
        .item_cost = kernel->cost.item,
        .key_cost =
            select_key_cost(plan, kernel, select_dims(plan, kernel), (double)(rows * stack)),
        .workers = assigned > 1 && assigned < hands ? assigned : hands, /* two may share an item */
        .min_part_keys = plan->problem.part_keys,
        .heads_per_group = heads_per_group(plan) / stack,
        .merge_cost = kernel->cost.merge};
    tess_status status = schedule_make(&work->schedule, work->lists.keys, work->lists.tiles,
                                       list_of, stacks, &rules, error);
    free(list_of);
    if (!status && plan->backend->prepare) {
        struct kernel_args args = plan_args(plan);
        pass_args(&args, pass);
        status = plan->backend->prepare(&work->prepared, &args, error);
    }
    return status;
}

static tess_status fused_make(tess_plan *plan, const struct bcsr *m, double heads, int forced,
                              tess_error *error) {
    struct pass *pass = &plan->passes[0];
    struct work *work = pass->work;
    int32_t rows = 0;
    tess_status status = select_height(plan, pass, m, heads, forced, &rows, error);
    if (!status)
        status = lists_pack(&work->lists, m, rows, error);
    if (status)
        return status;
    const struct kernel *kernel = pass->kernel;
    struct lists_sums sums;
    lists_sum(&sums, &work->lists);
    work->stack = select_stack(plan, kernel, rows);
    status = fused_schedule(plan, pass, error);
    if (status)
        return status;
    const double uneven = work->prepared ? plan->backend->unevenness(work->prepared) : 1;
    plan->predicted_seconds =
        kernel->cost.launch + (work->schedule.n_merges ? kernel->cost.merge : 0) +
        select_fused_cost(plan, kernel, &sums, heads, rows, work->stack) * uneven;
    return TESS_OK;
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

/* Where each head's scores begin. Zero, or -1 when the sum does not fit. */
static int scores_place(tess_plan *plan) {
    const struct bcsr *m = &plan->work.bcsr;
    int64_t sum = 0;
    for (int64_t bh = 0; bh < plan->problem.batch * plan->problem.heads_q; bh++) {
        int64_t list = plan->list_of[bh], count;
        int64_t tiles = bcsr_row_begin(m, list, m->rows) - bcsr_row_begin(m, list, 0);
        plan->scores_offset[bh] = sum;
        if (__builtin_mul_overflow(tiles, m->block_q, &count) ||
            __builtin_mul_overflow(count, m->block_kv, &count) ||
            __builtin_add_overflow(sum, count, &sum) || sum > INT64_MAX / 8)
            return -1;
    }
    plan->scores_count = sum;
    return 0;
}

static tess_status staged_make(tess_plan *plan, const struct bcsr *m, double heads,
                               tess_error *error) {
    int64_t batch_heads = plan->problem.batch * plan->problem.heads_q;
    plan->scores_offset = calloc((size_t)batch_heads, sizeof *plan->scores_offset);
    int64_t rows = m->batch * m->heads * m->rows;
    int64_t *keys = malloc(((size_t)rows + 1) * sizeof *keys);
    if (!plan->scores_offset || !keys || bcsr_copy(&plan->work.bcsr, m)) {
        free(keys);
        return no_memory(error, "the block lists");
    }
    tess_status status = TESS_OK;
    if (scores_place(plan))
        status = error_set(error, TESS_INVALID_ARGUMENT, "tess_plan_create", "pattern",
                           "the BCSR scores of %lld tiles of %lld x %lld do not fit 64 bits",
                           (long long)m->n_tiles, (long long)m->block_q, (long long)m->block_kv);
    if (!status) {
        for (int64_t l = 0; l < m->batch * m->heads; l++)
            for (int64_t i = 0; i < m->rows; i++)
                keys[l * m->rows + i] =
                    (bcsr_row_end(m, l, i) - bcsr_row_begin(m, l, i)) * m->block_kv;
        plan->predicted_seconds = select_staged_cost(plan, heads);
        struct schedule_rules rules = {.item_cost = 1,
                                       .key_cost = 1,
                                       .workers = 1,
                                       .min_part_keys = INT64_MAX,
                                       .heads_per_group = heads_per_group(plan)};
        status = schedule_make(&plan->work.schedule, keys, m->rows, plan->list_of, batch_heads,
                               &rules, error);
    }
    free(keys);
    return status;
}

/* ---- the whole ---- */

struct kernel_args plan_args(const tess_plan *plan) {
    return (struct kernel_args){.problem = &plan->problem,
                                .target = &plan->target,
                                .list_of = plan->list_of,
                                .scores_offset = plan->scores_offset,
                                .seconds = plan->predicted_seconds};
}

void pass_args(struct kernel_args *args, const struct pass *pass) {
    args->kernel = pass->kernel;
    args->bcsr = &pass->work->bcsr;
    args->lists = &pass->work->lists;
    args->prepared = pass->work->prepared;
    args->schedule = &pass->work->schedule;
    args->stack = pass->work->stack;
}

void plan_carve(const tess_plan *plan, struct carve *carve, float **scores, void **of_pass) {
    size_t largest = 0;
    for (int i = 0; i < plan->n_passes; i++)
        if (plan->passes[i].workspace > largest)
            largest = plan->passes[i].workspace;
    *scores = carve_take(carve, (size_t)plan->scores_count, sizeof(float));
    *of_pass = carve_take(carve, largest, 1);
}

static tess_status workspace_size(tess_plan *plan, tess_error *error) {
    struct kernel_args args = plan_args(plan);
    struct carve whole = {0};
    float *scores;
    void *of_pass;
    for (struct pass *pass = plan->passes; pass < plan->passes + plan->n_passes; pass++) {
        pass_args(&args, pass);
        pass->workspace = pass->kernel->workspace(&args);
    }
    plan_carve(plan, &whole, &scores, &of_pass);
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
    passes_begin(plan);
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
        status = select_kernels(plan, kernel, error);
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

double plan_staged_seconds(const tess_plan *plan, const tess_pattern *pattern) {
    tess_plan staged = *plan;
    const double heads =
        (double)(plan->problem.batch * plan->problem.heads_q) / (double)plan->n_lists;
    staged.work = (struct work){.bcsr = pattern->lists}; /* only looked at */
    staged.problem.pipeline = TESS_STAGED;
    staged.problem.tile_rows = 0;
    passes_begin(&staged);
    return select_kernels(&staged, NULL, NULL) ? INFINITY : select_staged_cost(&staged, heads);
}

void tess_plan_free(tess_plan *plan) {
    if (!plan)
        return;
    bcsr_free(&plan->work.bcsr);
    lists_free(&plan->work.lists);
    schedule_free(&plan->work.schedule);
    if (plan->work.prepared)
        plan->backend->prepared_free(plan->work.prepared);
    free(plan->list_of);
    free(plan->scores_offset);
    free(plan->reserved);
    free(plan);
}
