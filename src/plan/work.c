/* The tiles that passes walk, packed or copied, and the schedules over them. */
#include "plan/select.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

/* ---- what is scheduled ---- */

/* Tiles of the heads that a schedule counts: packed query heads; over keys, K/V heads. */
struct tiles {
    const int64_t *keys; /* [list][tile] that a tile lists */
    int64_t *sums;       /* over keys: these, of each head's group; else NULL */
    int64_t *list_of;    /* [heads] */
    int64_t heads, heads_per_group;
};

/* Heads whose rows fit half of the cache: over keys, the queries of a whole group. */
static int64_t heads_that_fit(const tess_plan *plan, const struct pass *pass, int64_t heads) {
    const struct problem *p = &plan->problem;
    const int64_t group = p->heads_q / p->heads_kv;
    const int64_t rows = pass->over_keys ? p->n_q * group : p->n_kv;
    const int64_t shared = pass->over_keys ? 1 : group; /* heads that read the same rows */
    const double head = (double)rows * (double)(p->d_qk + p->d_v) * (double)tess_type_size(p->type);
    const double fit = (double)plan->target.cache_size / 2 / head;
    if (plan->target.cache_size <= 0 || fit * (double)shared >= (double)heads)
        return heads;
    return (fit < 1 ? 1 : (int64_t)fit) * shared;
}

/* The queries that key tiles list in all heads of a group; NULL when memory ran out. */
static int64_t *group_sums(const tess_plan *plan, const int64_t *keys, int64_t n) {
    const int64_t groups = plan->problem.batch * plan->problem.heads_kv;
    const int64_t group = plan->problem.heads_q / plan->problem.heads_kv;
    int64_t *sums = calloc((size_t)(groups * n) + 1, sizeof *sums);
    for (int64_t bh = 0; sums && bh < groups * group; bh++)
        for (int64_t t = 0; t < n; t++)
            sums[bh / group * n + t] += keys[plan->list_of[bh] * n + t];
    return sums;
}

/* Tiles of a pass, n a list. Zero, or -1 when memory ran out; sums and list_of are freed in either case. */
static int tiles_make(struct tiles *out, const tess_plan *plan, const struct pass *pass,
                      const int64_t *keys, int64_t n) {
    const struct problem *p = &plan->problem;
    const int64_t query_heads = p->batch * p->heads_q;
    const int64_t tile_heads = pass->over_keys ? p->heads_q / p->heads_kv : pass->work->tile_heads;
    const int64_t heads = query_heads / tile_heads;
    *out = (struct tiles){
        .keys = keys,
        .list_of = malloc((size_t)heads * sizeof *out->list_of),
        .heads = heads,
        .heads_per_group = pass->over_keys ? heads_that_fit(plan, pass, heads)
                                           : heads_that_fit(plan, pass, query_heads) / tile_heads};
    if (pass->over_keys)
        out->keys = out->sums = group_sums(plan, keys, n);
    if (!out->list_of || !out->keys)
        return -1;
    for (int64_t i = 0; i < heads; i++)
        out->list_of[i] = pass->over_keys ? i : plan->list_of[i * tile_heads];
    return 0;
}

static tess_status schedule_tiles(const tess_plan *plan, const struct pass *pass,
                                  const int64_t *keys, int64_t n, struct schedule_rules *rules,
                                  tess_error *error) {
    struct tiles tiles;
    tess_status status = tiles_make(&tiles, plan, pass, keys, n)
                             ? plan_no_memory(error, "the list of packed heads")
                             : TESS_OK;
    rules->heads_per_group = tiles.heads_per_group;
    if (!status)
        status = schedule_make(&pass->work->schedule, tiles.keys, n, tiles.list_of, tiles.heads,
                               rules, error);
    free(tiles.sums);
    free(tiles.list_of);
    return status;
}

/* ---- fused ---- */

/* Schedule of a pass whose lists are packed, and what its family prepares of both. */
static tess_status fused_schedule(const tess_plan *plan, const struct pass *pass,
                                  const struct trial *trial, tess_error *error) {
    const struct kernel *kernel = pass->kernel;
    const struct family *family = kernel->family;
    struct work *work = pass->work;
    const int32_t assigned =
        family->workers ? family->workers(kernel, &plan->target, trial->rows) : 1;
    const int64_t workers = plan->backend->workers(&plan->target);
    /* Two CTAs may share an item, or several a multiprocessor. Where nothing weighs what combining costs,
     * the latter count as one. */
    const int each = assigned > 1 && (assigned < workers || family->combine > 0);
    struct schedule_rules rules = {.item_cost = cost_item(trial),
                                   .key_cost = cost_key(trial),
                                   .workers = each ? assigned : workers,
                                   .min_part_keys = cost_part_keys(trial),
                                   .combine_cost = family->combine,
                                   .part_cost = cost_part(trial),
                                   .may_stay_whole = !plan->problem.parts_asked};
    tess_status status =
        schedule_tiles(plan, pass, work->lists.keys, work->lists.tiles, &rules, error);
    if (!status && family->prepare) {
        const struct kernel_args of_plan = plan_args(plan), args = pass_args(&of_plan, pass);
        work->prepare = family->prepare;
        status = work->prepare->make(&work->prepared, &args, error);
    }
    return status;
}

tess_status sums_check(const struct pass *pass, const struct lists *lists, const char *function,
                       tess_error *error) {
    const int64_t group = pass->problem.sum_rows, n_q = pass->problem.n_q;
    const int whole = pass->kernel->family->whole_groups;
    if (pass->stage != TESS_STAGE_COLUMN_SUMS && !pass->kernel->family->sums)
        return TESS_OK;
    for (int64_t t = 0; t < lists->tiles; t++) {
        const int64_t first = lists->tile_row[t], end = lists->tile_row[t + 1];
        const int64_t begin = first / group * group, last = min_i64(begin + group, n_q);
        if (end > last || (whole && (first > begin || end < last)))
            return error_set(
                error, TESS_UNSUPPORTED, function, "problem",
                "column sums of groups of %lld queries: queries %lld ... %lld are one "
                "query tile of the pattern: %s",
                (long long)group, (long long)first, (long long)end - 1,
                whole ? "kernel has tiles of whole groups, so sum_rows has to divide block_q"
                      : "sum_rows has to divide block_q, or be a multiple");
    }
    return TESS_OK;
}

/* The work of a pass over m, the pattern or the transposed one. Lists and strips of a joint pass have been
 * made. */
static tess_status fused_make(tess_plan *plan, struct pass *pass, const struct premises *p,
                              const struct bcsr *m, tess_error *error) {
    struct work *work = pass->work;
    struct trial trial = select_trial(p, pass, pass->kernel);
    struct lists_sums sums;
    tess_status status = TESS_OK;
    work->tile_heads = trial.tile_heads;
    const int spills = joint_spills(pass), strips = pass->joint && !spills;
    if (!strips)
        status = lists_pack(&work->lists, m, trial.rows, error);
    if (!status)
        status = sums_check(pass, &work->lists, "tess_plan_create", error);
    if (!status && !strips)
        status = fused_schedule(plan, pass, &trial, error);
    if (status)
        return status;
    lists_sum(&sums, &work->lists);
    trial.sums = &sums;
    const double uneven = work->prepared && !spills ? work->prepare->unevenness(work->prepared) : 1;
    pass->seconds = cost_launch(&trial) +
                    (work->schedule.n_combines ? pass->kernel->family->combine : 0) +
                    (spills ? pass->kernel->family->seconds(&trial) : cost_lists(&trial) * uneven) +
                    (strips ? joint_seconds(&plan->problem, &work->strips) : 0);
    return TESS_OK;
}

/* ---- staged ---- */

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

/* Places each head's scores. Zero, or -1 when the sum does not fit. */
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

/* Schedule of all passes over a work whose tiles are copied: an item for each block row. */
static tess_status staged_schedule(const tess_plan *plan, const struct pass *pass,
                                   tess_error *error) {
    const struct bcsr *m = &pass->work->bcsr;
    const int64_t lists = m->batch * m->heads;
    int64_t *keys = malloc(((size_t)(lists * m->rows) + 1) * sizeof *keys);
    if (!keys)
        return plan_no_memory(error, "the block lists");
    for (int64_t l = 0; l < lists; l++)
        for (int64_t i = 0; i < m->rows; i++)
            keys[l * m->rows + i] = (bcsr_row_end(m, l, i) - bcsr_row_begin(m, l, i)) * m->block_kv;
    struct schedule_rules rules = {
        .item_cost = 1, .key_cost = 1, .workers = 1, .min_part_keys = INT64_MAX};
    pass->work->tile_heads = 1;
    tess_status status = schedule_tiles(plan, pass, keys, m->rows, &rules, error);
    free(keys);
    return status;
}

static tess_status staged_tiles(tess_plan *plan, const struct bcsr *m, tess_error *error) {
    const int64_t batch_heads = plan->problem.batch * plan->problem.heads_q;
    plan->scores_offset = calloc((size_t)batch_heads, sizeof *plan->scores_offset);
    if (!plan->scores_offset || bcsr_copy(&plan->work.bcsr, m))
        return plan_no_memory(error, "the block lists");
    if (scores_place(plan))
        return error_set(error, TESS_INVALID_ARGUMENT, "tess_plan_create", "pattern",
                         "the BCSR scores of %lld tiles of %lld x %lld do not fit 64 bits",
                         (long long)m->n_tiles, (long long)m->block_q, (long long)m->block_kv);
    return TESS_OK;
}

/* ---- the whole ---- */

/* The transposed pattern, where a pass needs it. */
static tess_status transposed_make(tess_plan *plan, tess_pattern **transposed,
                                   const struct candidate *c, const struct premises *p,
                                   tess_error *error) {
    int needed = joint_possible(p);
    for (int i = 0; i < c->n_passes; i++)
        needed |= c->passes[i].over_keys;
    return needed ? pattern_transpose(transposed,
                                      p->problem->pipeline == TESS_STAGED ? &plan->key_work.entries
                                                                          : NULL,
                                      p->m, "tess_plan_create", "pattern", error)
                  : TESS_OK;
}

static int work_scheduled(const struct work *work) {
    return work->schedule.items != NULL;
}

/* Tiles and works of a candidate's passes. */
static tess_status candidate_make(tess_plan *plan, struct candidate *c, const struct premises *p,
                                  struct estimates *of_m, struct estimates *of_transposed,
                                  tess_error *error) {
    const struct bcsr *transposed = of_transposed->m;
    tess_status status = select_tiles(c, p, of_m, of_transposed, error);
    plan->predicted_seconds = 0;
    if (!status)
        plan_keep(plan, c);
    for (struct pass *pass = plan->passes; pass < plan->passes + plan->n_passes && !status;
         pass++) {
        if (pass->kernel->rows)
            status = fused_make(plan, pass, p, pass->over_keys ? transposed : p->m, error);
        else if (p->problem->pipeline == TESS_STAGED && !work_scheduled(pass->work))
            status = staged_schedule(plan, pass, error);
        plan->predicted_seconds += pass->seconds;
    }
    return status;
}

static tess_status passes_make(tess_plan *plan, struct candidate *c, const struct premises *p,
                               const struct bcsr *transposed, tess_error *error) {
    struct estimates of_m = {.m = p->m}, of_transposed = {.m = transposed};
    struct candidate seven = *c;
    tess_status status = TESS_OK;
    if (joint_possible(p))
        status = joint_decide(c, &plan->key_work, p, &of_m, &of_transposed, error);
    if (!status)
        status = candidate_make(plan, c, p, &of_m, &of_transposed, error);
    if (status != TESS_UNSUPPORTED || !c->joint)
        return status;
    work_free(&plan->key_work);
    plan->key_work = (struct work){0};
    return candidate_make(plan, &seven, p, &of_m, &of_transposed, error);
}

tess_status works_make(tess_plan *plan, struct candidate *candidate, const struct premises *p,
                       tess_error *error) {
    tess_pattern *transposed = NULL;
    const int staged = p->problem->pipeline == TESS_STAGED;
    tess_status status = transposed_make(plan, &transposed, candidate, p, error);
    if (!status && staged)
        status = staged_tiles(plan, p->m, error);
    if (!status && staged && transposed) {
        plan->key_work.bcsr = transposed->lists;
        transposed->lists = (struct bcsr){0};
    }
    if (!status)
        status = passes_make(plan, candidate, p, transposed ? &transposed->lists : NULL, error);
    tess_pattern_free(transposed);
    return status;
}

void work_free(struct work *work) {
    bcsr_free(&work->bcsr);
    free(work->entries);
    lists_free(&work->lists);
    schedule_free(&work->schedule);
    strips_free(&work->strips);
    if (work->prepared)
        work->prepare->free(work->prepared);
}

size_t work_memory(const struct work *work) {
    return (work_packed(work) ? lists_memory(&work->lists) : 0) +
           (work_copied(work) ? bcsr_memory(&work->bcsr) : 0) +
           (work->entries ? (size_t)work->bcsr.n_tiles * sizeof *work->entries : 0) +
           (work->prepared ? work->prepare->memory(work->prepared) : 0) +
           schedule_memory(&work->schedule) + strips_memory(&work->strips);
}
