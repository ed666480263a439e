/* From problem and pattern to plan: passes, lists, schedule, what the backend prepares, memory. */
#include "plan/operation.h"
#include "plan/reserve.h"
#include "plan/select.h"

#include "base/status.h"

#include <math.h>
#include <stdlib.h>

tess_status plan_no_memory(tess_error *error, const char *what) {
    return error_set(error, TESS_OUT_OF_MEMORY, "tess_plan_create", NULL, "out of memory for %s",
                     what);
}

void *plan_carve(const tess_plan *plan, struct carve *carve, void *operands) {
    size_t largest = 0;
    for (const struct pass *pass = plan->passes; pass < plan->passes + plan->n_passes; pass++)
        largest = pass->workspace > largest ? pass->workspace : largest;
    operation_get(plan->problem.operation)->carve(plan, carve, operands);
    return carve_take(carve, largest, 1);
}

struct part *part_add(tess_plan *plan, struct pass *pass) {
    struct part *part = &plan->parts[plan->n_parts++];
    *part = (struct part){.pass = pass, .at = plan->image};
    pass->part = part;
    return part;
}

int part_close(tess_plan *plan, struct part *part, size_t size) {
    part->size = size;
    return size == SIZE_MAX || __builtin_add_overflow(plan->image, size, &plan->image) ? -1 : 0;
}

/* Places a part of the image for each fused pass over tiles, or one for all passes of the stages. Zero, or -1
 * where the sum does not fit. */
static int images_place(tess_plan *plan) {
    const struct kernel_args of_plan = plan_args(plan);
    const struct image_services *image = &plan->backend->image;
    const int staged = plan->problem.pipeline == TESS_STAGED;
    if (!image->size)
        return 0;
    for (struct pass *pass = plan->passes; pass < plan->passes + plan->n_passes; pass++) {
        const struct kernel_args args = pass_args(&of_plan, pass);
        if (staged && plan->n_parts)
            pass->part = plan->parts;
        if (kernel_follows(pass->kernel))
            pass->part = pass[-1].part;
        if (pass->part || (!staged && !pass->kernel->rows))
            continue;
        struct part *part = part_add(plan, pass);
        if (part_close(plan, part, image->size(&args)))
            return -1;
        if (image->header)
            image->header(&args, part->header);
    }
    return 0;
}

static tess_status workspace_size(tess_plan *plan, tess_error *error) {
    const struct kernel_args of_plan = plan_args(plan);
    struct carve whole = {0};
    for (struct pass *pass = plan->passes; pass < plan->passes + plan->n_passes; pass++) {
        const struct kernel_args args = pass_args(&of_plan, pass);
        pass->workspace = pass->kernel->workspace(&args);
    }
    plan_carve(plan, &whole, NULL);
    if (whole.overflow)
        return error_set(error, TESS_INVALID_ARGUMENT, "tess_plan_create", "problem",
                         "the workspace of this problem does not fit the address space");
    plan->workspace = whole.used;
    if (images_place(plan))
        return error_set(error, TESS_INVALID_ARGUMENT, "tess_plan_create", "pattern",
                         "the image of this plan does not fit the address space");
    return TESS_OK;
}

/* Sums saturate: scores that many do not fit, which works_make tells. */
static struct block_rows block_rows_of(const tess_plan *plan, const struct bcsr *m) {
    const int64_t heads = plan->problem.batch * plan->problem.heads_q;
    struct block_rows shape = {.count = heads * m->rows,
                               .block_q = m->block_q,
                               .block_kv = m->block_kv,
                               .bands = m->n_bands,
                               .bitmasks = m->n_bitmasks};
    int64_t tiles = 0, most = 0;
    for (int64_t bh = 0; bh < heads; bh++)
        tiles +=
            bcsr_row_begin(m, plan->list_of[bh], m->rows) - bcsr_row_begin(m, plan->list_of[bh], 0);
    for (int64_t l = 0; l < plan->n_lists; l++)
        for (int64_t i = 0; i < m->rows; i++) {
            const int64_t n = bcsr_row_end(m, l, i) - bcsr_row_begin(m, l, i);
            most = n > most ? n : most;
        }
    shape.widest = most * m->block_kv;
    if (__builtin_mul_overflow(tiles, m->block_kv, &shape.columns))
        shape.columns = INT64_MAX;
    return shape;
}

struct premises plan_premises(const tess_plan *plan) {
    return (struct premises){.problem = &plan->problem,
                             .target = &plan->target,
                             .backend = plan->backend,
                             .filled = plan->filled,
                             .block_q = plan->block_q,
                             .block_kv = plan->block_kv,
                             .n_lists = plan->n_lists,
                             .pairs = plan->pairs,
                             .list_of = plan->list_of};
}

void plan_keep(tess_plan *plan, const struct candidate *c) {
    plan->n_passes = c->n_passes, plan->joint = c->joint;
    for (int i = 0; i < c->n_passes; i++) {
        plan->passes[i] = c->passes[i];
        plan->passes[i].work = c->passes[i].over_keys                         ? &plan->key_work
                               : c->passes[i].stage == TESS_STAGE_COLUMN_SUMS ? &plan->sum_work
                                                                              : &plan->work;
        if (c->passes[i].tiles.rows)
            plan->passes[i].work->heights = plan->passes[i].tiles.heights;
    }
}

tess_status plan_make(tess_plan **out, const struct problem *problem, const char *kernel,
                      const tess_pattern *pattern, const tess_target *target,
                      const struct backend *backend, tess_error *error) {
    const struct bcsr *m = &pattern->lists;
    int64_t batch_heads = problem->batch * problem->heads_q;
    tess_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return plan_no_memory(error, "the plan");
    plan->problem = *problem;
    plan->target = *target;
    plan->backend = backend;
    plan->block_q = m->block_q;
    plan->block_kv = m->block_kv;
    plan->n_lists = m->batch * m->heads;
    plan->n_tiles = m->n_tiles;
    plan->list_of = malloc((size_t)batch_heads * sizeof *plan->list_of);

    tess_status status = plan->list_of ? TESS_OK : plan_no_memory(error, "the list of each head");
    if (!status) {
        for (int64_t bh = 0; bh < batch_heads; bh++)
            plan->list_of[bh] =
                bcsr_list(m, bh / problem->heads_q, bh % problem->heads_q, problem->heads_q);
        if (__builtin_mul_overflow(pattern->pairs, batch_heads / plan->n_lists, &plan->pairs))
            status = error_set(error, TESS_INVALID_ARGUMENT, "tess_plan_create", "pattern",
                               "the listed query-key pairs of all heads do not fit 64 bits");
    }
    struct premises premises = plan_premises(plan);
    struct candidate candidate;
    premises.kernel = kernel, premises.m = m;
    if (!status) {
        plan->problem.block_rows = block_rows_of(plan, m);
        status = select_kernels(&candidate, &premises, 0, error);
    }
    if (!status)
        status = works_make(plan, &candidate, &premises, error);
    if (!status)
        status = bytes_count(plan, m, error);
    if (!status)
        status = workspace_size(plan, error);
    if (status) {
        tess_plan_free(plan);
        return status;
    }
    *out = plan;
    return TESS_OK;
}

double plan_seconds(const tess_plan *plan, double seconds, double bytes) {
    const double rate = (double)plan->target.memory_rate;
    return rate > 0 ? fmax(seconds, bytes / rate) : seconds;
}

double plan_staged_seconds(const tess_plan *plan, const tess_pattern *pattern) {
    struct problem staged = plan->problem;
    struct premises premises = plan_premises(plan);
    struct candidate candidate;
    staged.pipeline = TESS_STAGED;
    staged.tile_rows = 0;
    premises.problem = &staged, premises.m = &pattern->lists;
    return select_kernels(&candidate, &premises, 0, NULL) ||
                   select_tiles(&candidate, &premises, NULL, NULL, NULL)
               ? INFINITY
               : candidate.seconds;
}

void tess_plan_free(tess_plan *plan) {
    if (!plan)
        return;
    work_free(&plan->work);
    work_free(&plan->key_work);
    work_free(&plan->sum_work);
    for (int i = 0; i < plan->n_parts; i++)
        reserved_free(plan->parts[i].reserved);
    free(plan->list_of);
    free(plan->scores_offset);
    free(plan->filled);
    free(plan);
}
