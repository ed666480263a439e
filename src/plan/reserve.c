/* Reserving a plan, and the parts of its image: filling them, and what runs find in them. */
#include "plan/reserve.h"

#include "plan/select.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(struct fill_header) <= TESS_REPORT_SIZE, "TESS_REPORT_SIZE");

/* Places a part:  | header | arrays of lists | items | combines | scratch | */
static void part_take(struct carve *c, const tess_plan *plan, const struct reserved *r,
                      struct fill_job *to) {
    size_t (*scratch)(const struct fill_shape *) = plan->backend->fill.scratch;
    to->header = carve_take(c, TESS_REPORT_SIZE, 1);
    fill_take(c, &r->shape, &to->arrays);
    to->items = carve_take(c, (size_t)r->items, sizeof *to->items);
    to->combines = carve_take(c, (size_t)r->combines, sizeof *to->combines);
    to->scratch = carve_take(c, scratch ? scratch(&r->shape) : 0, 1);
}

struct fill_job reserve_job(const tess_plan *plan, const struct part *part,
                            const tess_device_pattern *pattern, const void *image) {
    const struct reserved *r = part->reserved;
    const int64_t list_heads = plan->problem.heads_q / r->shape.heads;
    struct carve c = {.base = (char *)(uintptr_t)image + part->at};
    struct fill_job job = {.target = &plan->target,
                           .shape = &r->shape,
                           .splits = &r->splits,
                           .pattern = pattern,
                           .layout = r->layout,
                           .units = r->units,
                           .list_heads = list_heads,
                           .list_packs = list_heads / r->work.tile_heads,
                           .strict = plan->problem.strict};
    part_take(&c, plan, r, &job);
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

int64_t reserve_keys_most(const struct fill_shape *s) {
    const int64_t blocks = s->form == TESS_RANGES ? s->cols : min_i64(s->capacity, s->cols);
    return min_i64(blocks * s->block_kv, s->n_kv);
}

/* Bounds that hold for all lists, see fill_parts. */
static void reserved_bounds(struct reserved *r) {
    const int64_t most = fill_parts_most(&r->splits, reserve_keys_most(&r->shape));
    const int64_t workers = r->splits.workers, rounds = r->splits.last_parts > 1 ? 3 : 2;
    const int64_t cuts = most > 1 ? rounds * workers - 1 : 0;
    r->combines = min_i64(r->units, cuts);
    r->items = r->units + min_i64(r->combines * (most - 1), cuts);
    r->slots = r->items - r->units + r->combines;
}

/* A number of the shape and all else that places depend on (FNV-1a). */
static uint64_t layout_number(const struct reserved *r) {
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
                             s->cut_hi,         r->work.tile_heads,
                             r->splits.item,    r->splits.part_keys,
                             r->splits.workers, r->splits.whole};
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        hash = (hash ^ (uint64_t)words[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* Derives from the shape what a pass's kernel needs. */
static void reserved_derive(struct reserved *r, const tess_plan *plan, const struct pass *pass) {
    const struct premises premises = plan_premises(plan);
    const struct kernel *kernel = pass->kernel;
    const struct trial trial = select_trial(&premises, pass, kernel);
    r->shape = *plan->filled;
    r->work.tile_heads = pass->tiles.tile_heads;
    shape_tiles(&r->shape, pass->tiles.rows);
    r->launch_seconds = cost_launch(&trial);
    r->item_seconds = cost_item(&trial);
    r->key_seconds = cost_key(&trial);
    r->splits = (struct fill_splits){
        .item = 1 + min_i64((int64_t)(r->item_seconds / r->key_seconds), INT32_MAX - 1),
        .part_keys = cost_part_keys(&trial),
        .workers = plan->backend->workers(&plan->target),
        .whole = kernel->family->whole_shares && kernel->family->whole_shares(kernel)};
    r->units =
        plan->problem.batch * plan->problem.heads_q / pass->tiles.tile_heads * r->shape.tiles;
    fill_last_round(&r->splits, r->units);
    reserved_bounds(r);
    r->layout = layout_number(r);
    r->direct = kernel->family->direct &&
                kernel->family->direct(kernel, &plan->target, &r->shape, r->units);
}

/* Lists and schedule as kernels size their workspace by. */
static tess_status work_reserve(struct reserved *r, tess_error *error) {
    const struct fill_arrays none = {0};
    int64_t *tile_row = malloc(((size_t)r->shape.tiles + 1) * sizeof *tile_row);
    if (!tile_row)
        return error_set(error, TESS_OUT_OF_MEMORY, "tess_plan_reserve", NULL,
                         "out of memory for %lld query tiles", (long long)r->shape.tiles);
    for (int64_t t = 0; t <= r->shape.tiles; t++)
        tile_row[t] = fill_tile_row(&r->shape, t);
    r->work.lists = fill_view(&r->shape, &none, tile_row);
    r->work.schedule = (struct schedule){.n_slots = r->slots};
    return TESS_OK;
}

/* The filled image, placed; NULL: sizes alone. */
static struct filled_image filled_image(const struct reserved *r, const struct fill_job *placed) {
    return (struct filled_image){.header = placed ? placed->header : NULL,
                                 .items = placed ? placed->items : NULL,
                                 .combines = placed ? placed->combines : NULL,
                                 .layout = r->layout,
                                 .most_items = r->items,
                                 .most_combines = r->combines,
                                 .most_slots = r->slots,
                                 .units = r->units,
                                 .block_q = r->shape.block_q,
                                 .row_tiles = r->shape.row_tiles,
                                 .block_kv = r->shape.block_kv,
                                 .heads = r->shape.heads,
                                 .mask = r->shape.form == TESS_MASK,
                                 .listed = placed ? placed->arrays.listed : NULL,
                                 .tile_words = fill_word(&r->shape, 1, 0)};
}

/* Adds a pass's lists to the image. */
static tess_status pass_reserve(tess_plan *plan, struct pass *pass, tess_error *error) {
    struct part *part = part_add(plan, pass);
    struct reserved *r = part->reserved = calloc(1, sizeof *r);
    if (!r)
        return error_set(error, TESS_OUT_OF_MEMORY, "tess_plan_reserve", NULL,
                         "out of memory for the plan");
    pass->work = &r->work;
    reserved_derive(r, plan, pass);
    if (r->units > INT32_MAX)
        return error_set(error, TESS_INVALID_ARGUMENT, "tess_plan_reserve", "pattern",
                         "there are %lld query tiles over all heads: they may be 2^31 - 1",
                         (long long)r->units);
    tess_status status = work_reserve(r, error);
    if (!status)
        status = sums_check(pass, &r->work.lists, "tess_plan_reserve", error);
    if (status)
        return status;
    struct carve carve = {0};
    struct fill_job places;
    part_take(&carve, plan, r, &places);
    return part_close(plan, part, carve.overflow ? SIZE_MAX : carve.used)
               ? error_set(error, TESS_INVALID_ARGUMENT, "tess_plan_reserve", "pattern",
                           "the image of this capacity does not fit the address space")
               : TESS_OK;
}

/* Bytes that a pass's kernel needs while it runs. */
static size_t pass_workspace(const tess_plan *plan, const struct pass *pass) {
    const struct kernel_args of_plan = plan_args(plan);
    struct kernel_args args = pass_args(&of_plan, pass);
    struct filled_image filled;
    if (pass->part) {
        filled = filled_image(pass->part->reserved, NULL);
        args.work.filled = &filled;
    }
    return pass->kernel->workspace(&args);
}

/* Adds the parts of all passes over lists, and sizes the workspace. */
static tess_status passes_reserve(tess_plan *plan, tess_error *error) {
    struct carve workspace = {0};
    tess_status status = TESS_OK;
    for (struct pass *pass = plan->passes; pass < plan->passes + plan->n_passes && !status;
         pass++) {
        if (pass->kernel->rows)
            status = pass_reserve(plan, pass, error);
        else if (kernel_follows(pass->kernel))
            pass->part = pass[-1].part, pass->work = pass[-1].work;
        if (!status)
            pass->workspace = pass_workspace(plan, pass);
    }
    if (status)
        return status;
    plan_carve(plan, &workspace, NULL);
    plan->workspace = workspace.used;
    return workspace.overflow
               ? error_set(error, TESS_INVALID_ARGUMENT, "tess_plan_reserve", "pattern",
                           "the workspace of this capacity does not fit the address space")
               : TESS_OK;
}

/* The list that each head reads: those of a head in each batch. */
static void heads_place(tess_plan *plan) {
    const struct problem *p = &plan->problem;
    const int64_t heads = plan->filled->heads;
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
                            .filled = malloc(sizeof *plan->filled)};
    if (!plan || !plan->list_of || !plan->filled) {
        tess_plan_free(plan);
        return error_set(error, TESS_OUT_OF_MEMORY, "tess_plan_reserve", NULL,
                         "out of memory for the plan");
    }
    *plan->filled = *shape;
    heads_place(plan);
    struct premises premises = plan_premises(plan);
    struct candidate candidate;
    premises.kernel = kernel, premises.keys = (double)reserve_keys_most(shape);
    tess_status status = select_kernels(&candidate, &premises, 0, error);
    if (!status)
        status = select_tiles(&candidate, &premises, NULL, NULL, error);
    if (!status) {
        plan_keep(plan, &candidate);
        status = passes_reserve(plan, error);
    }
    if (status) {
        tess_plan_free(plan);
        return status;
    }
    *out = plan;
    return TESS_OK;
}

void reserved_free(struct reserved *reserved) {
    if (reserved)
        work_free(&reserved->work);
    free(reserved);
}

size_t reserve_memory(const tess_plan *plan) {
    size_t size = plan->filled ? sizeof *plan->filled : 0;
    for (int i = 0; i < plan->n_parts && plan->filled; i++)
        size += sizeof *plan->parts[i].reserved + work_memory(&plan->parts[i].reserved->work);
    return size;
}

/* ---- predicting ---- */

int64_t reserve_keys(const tess_plan *plan, const struct reserved *r) {
    return plan->n_lists * r->shape.tiles * reserve_keys_most(&r->shape);
}

double reserve_bytes(const tess_plan *plan, int64_t keys) {
    const struct problem *p = &plan->problem;
    const struct reserved *r = plan->parts->reserved;
    const double tiles = (double)plan->n_lists * (double)r->shape.tiles;
    const double listed = (double)(keys < 0 ? reserve_keys(plan, r) : keys) / tiles; /* by a tile */
    return bytes_moved(p, (double)(p->batch * p->heads_kv) * listed,
                       (double)(p->batch * p->heads_q * p->n_q));
}

/* Seconds of the kernel that walks a part. */
static double part_seconds(const tess_plan *plan, const struct part *part, int64_t keys) {
    const struct reserved *r = part->reserved;
    const double packs = (double)r->units / ((double)plan->n_lists * (double)r->shape.tiles);
    const double listed = (double)(keys < 0 ? reserve_keys(plan, r) : keys);
    return r->launch_seconds + r->item_seconds * (double)r->units + r->key_seconds * packs * listed;
}

double reserve_seconds(const tess_plan *plan, int64_t keys) {
    double seconds = 0;
    for (const struct pass *pass = plan->passes; pass < plan->passes + plan->n_passes; pass++)
        seconds += pass->part && pass->part->pass == pass ? part_seconds(plan, pass->part, keys)
                                                          : pass->seconds;
    return plan_seconds(plan, seconds, reserve_bytes(plan, keys));
}

/* ---- filling ---- */

tess_status reserve_fill(const tess_plan *plan, const struct filling *filling, const char *function,
                         const void *image, tess_stream stream, tess_error *error) {
    tess_status status = TESS_OK;
    for (int i = 0; i < plan->n_parts && !status; i++) {
        struct fill_job job = reserve_job(plan, &plan->parts[i], filling->pattern, image);
        job.function = function, job.stream = stream;
        job.report = i ? NULL : filling->report;
        status = plan->backend->fill.run(&job, error);
    }
    return status;
}

/* ---- running ---- */

int reserve_direct(const tess_plan *plan) {
    int direct = plan->filled != NULL;
    for (int i = 0; i < plan->n_parts && direct; i++)
        direct = plan->parts[i].reserved->direct;
    return direct;
}

void reserve_bind(struct kernel_args *args, struct filled_work *work, const tess_plan *plan,
                  const struct part *part, const void *image) {
    const struct reserved *r = part->reserved;
    const struct fill_job placed = reserve_job(plan, part, NULL, image);
    const int on_host = plan->backend->on_host;
    if (args->work.given) {
        work->image = filled_image(r, NULL);
        args->work.filled = &work->image;
        args->work.lists = &r->work.lists;
        return;
    }
    work->image = filled_image(r, &placed);
    work->lists = fill_view(&r->shape, &placed.arrays, on_host ? r->work.lists.tile_row : NULL);
    args->work.filled = &work->image;
    args->work.lists = &work->lists;
    args->work.lengths = placed.arrays.lengths;
    args->work.schedule = on_host ? &work->schedule : NULL;
}

tess_status reserve_read(struct kernel_args *args, struct filled_work *work, const tess_plan *plan,
                         const struct part *part, const void *image, tess_error *error) {
    const struct reserved *r = part->reserved;
    const struct fill_job placed = reserve_job(plan, part, NULL, image);
    const struct fill_header *header = placed.header;
    if (!plan->backend->on_host)
        return TESS_OK;
    if (!fill_is_of(header, r->layout))
        return error_set(error, TESS_INVALID_ARGUMENT, args->function, "image",
                         "this plan has not filled the image: call tess_plan_fill before the run");
    work->schedule = (struct schedule){.n_items = header->items,
                                       .n_combines = header->combines,
                                       .n_slots = header->slots,
                                       .items = placed.items,
                                       .combines = placed.combines};
    args->work.seconds =
        r->item_seconds * (double)header->items + r->key_seconds * (double)header->unit_keys;
    return TESS_OK;
}

int reserve_report(const tess_plan *plan, const void *image, tess_fill_report *report) {
    const struct reserved *r = plan->parts->reserved;
    const struct fill_header *header = image;
    if (!fill_is_of(header, r->layout))
        return -1;
    report->faults = header->faults;
    report->overflows = header->overflows;
    report->keys = header->keys;
    report->items = header->items;
    report->pairs = header->pairs;
    if (header->first != FILL_NOWHERE) {
        const struct fill_place at = fill_place_of(&r->shape, header->first);
        report->first_fault = fill_list_fault(at.wrong);
        report->batch = at.batch, report->head = at.head;
        report->row = at.row, report->position = at.position;
    } else {
        report->batch = report->head = report->row = report->position = -1;
    }
    return 0;
}
