/* Reserving a plan, the image of a filled one, and running it. */
#include "plan/reserve.h"

#include "plan/select.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(struct fill_header) <= TESS_REPORT_SIZE, "TESS_REPORT_SIZE");

/* Places an image:  | header | arrays of lists | items | combines | scratch | */
static void image_take(struct carve *c, const tess_plan *plan, struct fill_job *image) {
    const struct reserved *r = plan->reserved;
    size_t (*scratch)(const struct fill_shape *) = plan->backend->fill.scratch;
    image->header = carve_take(c, TESS_REPORT_SIZE, 1);
    fill_take(c, &r->shape, &image->arrays);
    image->items = carve_take(c, (size_t)r->items, sizeof *image->items);
    image->combines = carve_take(c, (size_t)r->combines, sizeof *image->combines);
    image->scratch = carve_take(c, scratch ? scratch(&r->shape) : 0, 1);
}

struct fill_job reserve_job(const tess_plan *plan, const tess_device_pattern *pattern,
                            const void *memory) {
    const struct reserved *r = plan->reserved;
    const int64_t list_heads = plan->problem.heads_q / r->shape.heads;
    struct carve c = {.base = (char *)(uintptr_t)memory};
    struct fill_job job = {.function = "tess_plan_fill",
                           .target = &plan->target,
                           .shape = &r->shape,
                           .splits = &r->splits,
                           .pattern = pattern,
                           .layout = r->layout,
                           .units = r->units,
                           .list_heads = list_heads,
                           .list_packs = list_heads / plan->work.tile_heads,
                           .strict = plan->problem.strict};
    image_take(&c, plan, &job);
    return job;
}

/* ---- reserving ---- */

/* Cuts block rows into query tiles of so many rows. */
static void shape_tiles(struct fill_shape *s, int32_t rows) {
    const int64_t last = s->n_q - (s->rows - 1) * s->block_q;
    s->tile_rows = rows;
    s->row_tiles = (min_i64(s->block_q, s->n_q) + rows - 1) / rows;
    s->tiles = (s->rows - 1) * s->row_tiles + (last + rows - 1) / rows;
}

/* The most keys that a tile lists. */
static int64_t keys_most(const struct fill_shape *s) {
    const int64_t blocks = s->form == TESS_RANGES ? s->cols : min_i64(s->capacity, s->cols);
    return min_i64(blocks * s->block_kv, s->n_kv);
}

/* Bounds that hold for all lists, see fill_parts. */
static void reserved_bounds(struct reserved *r) {
    const int64_t most = fill_parts_most(&r->splits, keys_most(&r->shape));
    const int64_t workers = r->splits.workers, rounds = r->splits.last_parts > 1 ? 3 : 2;
    const int64_t cuts = most > 1 ? rounds * workers - 1 : 0;
    r->combines = min_i64(r->units, cuts);
    r->items = r->units + min_i64(r->combines * (most - 1), cuts);
    r->slots = r->items - r->units + r->combines;
}

/* A number of the shape and all else that places depend on (FNV-1a). */
static uint64_t layout_number(const struct reserved *r, int64_t tile_heads) {
    const struct fill_shape *s = &r->shape;
    const int64_t words[] = {s->form,           s->n_q,
                             s->n_kv,           s->block_q,
                             s->block_kv,       s->batch,
                             s->heads,          s->batches,
                             s->capacity,       s->cut,
                             s->tile_rows,      s->row_tiles,
                             s->tiles,          r->units,
                             r->items,          r->combines,
                             r->slots,          s->cut_lo,
                             s->cut_hi,         tile_heads,
                             r->splits.item,    r->splits.part_keys,
                             r->splits.workers, r->splits.whole};
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        hash = (hash ^ (uint64_t)words[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* Derives from the shape what the chosen kernel needs. */
static void reserved_make(tess_plan *plan) {
    const struct premises premises = plan_premises(plan);
    const struct pass *pass = plan->passes;
    const struct kernel *kernel = pass->kernel;
    const struct trial trial = select_trial(&premises, pass, kernel);
    struct reserved *r = plan->reserved;
    plan->work.tile_heads = pass->tiles.tile_heads;
    shape_tiles(&r->shape, pass->tiles.rows);
    r->item_seconds = kernel->cost.item;
    r->key_seconds = cost_key(&trial);
    r->splits = (struct fill_splits){
        .item = 1 + min_i64((int64_t)(r->item_seconds / r->key_seconds), INT32_MAX - 1),
        .part_keys = cost_part_keys(&trial),
        .workers = plan->backend->fill.workers(&plan->target),
        .whole = kernel->family->whole_shares && kernel->family->whole_shares(kernel)};
    r->units =
        plan->problem.batch * plan->problem.heads_q / pass->tiles.tile_heads * r->shape.tiles;
    fill_last_round(&r->splits, r->units);
    reserved_bounds(r);
    r->layout = layout_number(r, pass->tiles.tile_heads);
}

/* Lists and schedule as kernels size their workspace by: of the capacity, and nothing in them. */
static tess_status work_reserve(tess_plan *plan, tess_error *error) {
    const struct reserved *r = plan->reserved;
    const struct fill_arrays none = {0};
    int64_t *tile_row = malloc(((size_t)r->shape.tiles + 1) * sizeof *tile_row);
    if (!tile_row)
        return error_set(error, TESS_OUT_OF_MEMORY, "tess_plan_reserve", NULL,
                         "out of memory for %lld query tiles", (long long)r->shape.tiles);
    for (int64_t t = 0; t <= r->shape.tiles; t++)
        tile_row[t] = fill_tile_row(&r->shape, t);
    plan->work.lists = fill_view(&r->shape, &none, tile_row);
    plan->work.schedule = (struct schedule){.n_slots = r->slots};
    return TESS_OK;
}

/* The filled image, placed; NULL: sizes alone. */
static struct filled_image filled_image(const tess_plan *plan, const struct fill_job *image) {
    const struct reserved *r = plan->reserved;
    return (struct filled_image){.header = image ? image->header : NULL,
                                 .items = image ? image->items : NULL,
                                 .combines = image ? image->combines : NULL,
                                 .layout = r->layout,
                                 .most_items = r->items,
                                 .most_combines = r->combines,
                                 .most_slots = r->slots,
                                 .units = r->units,
                                 .block_q = r->shape.block_q,
                                 .row_tiles = r->shape.row_tiles,
                                 .block_kv = r->shape.block_kv,
                                 .heads = r->shape.heads};
}

static tess_status sizes_reserve(tess_plan *plan, tess_error *error) {
    const struct kernel_args of_plan = plan_args(plan);
    const struct filled_image filled = filled_image(plan, NULL);
    struct kernel_args args = pass_args(&of_plan, plan->passes);
    struct carve workspace = {0}, carve = {0};
    struct fill_job image;
    args.work.filled = &filled;
    plan->passes->workspace = plan->passes->kernel->workspace(&args);
    plan_carve(plan, &workspace, NULL);
    image_take(&carve, plan, &image);
    if (plan->reserved->units > INT32_MAX)
        return error_set(error, TESS_INVALID_ARGUMENT, "tess_plan_reserve", "pattern",
                         "there are %lld query tiles over all heads: they may be 2^31 - 1",
                         (long long)plan->reserved->units);
    if (workspace.overflow || carve.overflow)
        return error_set(error, TESS_INVALID_ARGUMENT, "tess_plan_reserve", "pattern",
                         "workspace or image of this capacity do not fit the address space");
    plan->workspace = workspace.used;
    plan->image = carve.used;
    return TESS_OK;
}

/* The list that each head reads: those of a head in each batch. */
static void heads_place(tess_plan *plan) {
    const struct problem *p = &plan->problem;
    const int64_t heads = plan->reserved->shape.heads;
    for (int64_t bh = 0; bh < p->batch * p->heads_q; bh++)
        plan->list_of[bh] = bh / p->heads_q * heads + bh % p->heads_q / (p->heads_q / heads);
}

tess_status reserve_make(tess_plan **out, const struct problem *problem, const char *kernel,
                         const struct fill_shape *shape, const tess_target *target,
                         const struct backend *backend, tess_error *error) {
    const int64_t batch_heads = problem->batch * problem->heads_q;
    tess_plan *plan = calloc(1, sizeof *plan);
    if (plan)
        *plan = (tess_plan){.problem = *problem,
                            .target = *target,
                            .backend = backend,
                            .block_q = shape->block_q,
                            .block_kv = shape->block_kv,
                            .n_lists = shape->batches * shape->heads,
                            .list_of = malloc((size_t)batch_heads * sizeof *plan->list_of),
                            .reserved = calloc(1, sizeof *plan->reserved)};
    if (!plan || !plan->list_of || !plan->reserved) {
        tess_plan_free(plan);
        return error_set(error, TESS_OUT_OF_MEMORY, "tess_plan_reserve", NULL,
                         "out of memory for the plan");
    }
    plan->reserved->shape = *shape;
    heads_place(plan);
    struct premises premises = plan_premises(plan);
    struct candidate candidate;
    premises.kernel = kernel, premises.keys = (double)keys_most(shape);
    tess_status status = select_kernels(&candidate, &premises, 0, error);
    if (!status)
        status = select_tiles(&candidate, &premises, NULL, NULL, error);
    if (!status) {
        plan_keep(plan, &candidate);
        reserved_make(plan);
        status = work_reserve(plan, error);
    }
    if (!status)
        status = sizes_reserve(plan, error);
    if (status) {
        tess_plan_free(plan);
        return status;
    }
    *out = plan;
    return TESS_OK;
}

/* ---- predicting ---- */

int64_t reserve_keys(const tess_plan *plan) {
    const struct fill_shape *s = &plan->reserved->shape;
    return plan->n_lists * s->tiles * keys_most(s);
}

double reserve_bytes(const tess_plan *plan, int64_t keys) {
    const struct problem *p = &plan->problem;
    const double tiles = (double)plan->n_lists * (double)plan->reserved->shape.tiles;
    const double listed = (double)(keys < 0 ? reserve_keys(plan) : keys) / tiles; /* by a tile */
    return bytes_moved(p, (double)(p->batch * p->heads_kv) * listed,
                       (double)(p->batch * p->heads_q * p->n_q));
}

double reserve_seconds(const tess_plan *plan, int64_t keys) {
    const struct reserved *r = plan->reserved;
    const struct kernel_cost *cost = &plan->passes->kernel->cost;
    const double packs = (double)r->units / ((double)plan->n_lists * (double)r->shape.tiles);
    const double listed = (double)(keys < 0 ? reserve_keys(plan) : keys);
    return plan_seconds(
        plan, cost->launch + r->item_seconds * (double)r->units + r->key_seconds * packs * listed,
        reserve_bytes(plan, keys));
}

/* ---- filling ---- */

tess_status reserve_fill(const tess_plan *plan, const tess_device_pattern *pattern, void *image,
                         tess_stream stream, tess_error *error) {
    struct fill_job job = reserve_job(plan, pattern, image);
    job.stream = stream;
    return plan->backend->fill.run(&job, error);
}

/* ---- running ---- */

/* Runs over an image of the host, which is read here. */
static tess_status run_on_host(const tess_plan *plan, struct kernel_args *args,
                               const struct fill_job *image, tess_error *error) {
    const struct reserved *r = plan->reserved;
    const struct fill_header *header = image->header;
    if (!fill_is_of(header, r->layout))
        return error_set(error, TESS_INVALID_ARGUMENT, args->function, "image",
                         "this plan has not filled the image: call tess_plan_fill before the run");
    const struct schedule schedule = {.n_items = header->items,
                                      .n_combines = header->combines,
                                      .n_slots = header->slots,
                                      .items = image->items,
                                      .combines = image->combines};
    args->work.schedule = &schedule;
    args->work.seconds =
        r->item_seconds * (double)header->items + r->key_seconds * (double)header->unit_keys;
    return args->kernel->run(args, error);
}

tess_status reserve_run(const tess_plan *plan, const tess_device_pattern *pattern, void *report,
                        const struct kernel_args *run, tess_error *error) {
    const struct fill_services *fill = &plan->backend->fill;
    struct kernel_args args = pass_args(run, plan->passes);
    struct fill_job image = reserve_job(plan, pattern, args.image);
    const struct filled_image filled = filled_image(plan, &image);
    const struct lists lists = fill_view(&plan->reserved->shape, &image.arrays,
                                         fill->on_host ? plan->work.lists.tile_row : NULL);
    args.work.filled = &filled;
    args.work.lists = &lists;
    args.work.lengths = image.arrays.lengths;
    args.work.schedule = NULL;
    image.function = args.function, image.report = report, image.stream = args.stream;
    tess_status status = kernel_ask(&args, error);
    if (!status && pattern)
        status = fill->run(&image, error);
    if (status)
        return status;
    return fill->on_host ? run_on_host(plan, &args, &image, error) : args.kernel->run(&args, error);
}

int reserve_report(const tess_plan *plan, const void *image, tess_fill_report *report) {
    const struct fill_header *header = image;
    if (!fill_is_of(header, plan->reserved->layout))
        return -1;
    report->faults = header->faults;
    report->overflows = header->overflows;
    report->keys = header->keys;
    report->items = header->items;
    report->pairs = header->pairs;
    if (header->first != FILL_NOWHERE) {
        const struct fill_place at = fill_place_of(&plan->reserved->shape, header->first);
        report->first_fault = fill_list_fault(at.wrong);
        report->batch = at.batch, report->head = at.head;
        report->row = at.row, report->position = at.position;
    } else {
        report->batch = report->head = report->row = report->position = -1;
    }
    return 0;
}
