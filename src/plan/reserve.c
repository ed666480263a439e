/* Reserving a plan, the image of a filled one, and running it. */
#include "plan/reserve.h"

#include "plan/select.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

#define FILL_MAGIC UINT64_C(0x4c4c494653534554) /* "TESSFILL" */

/* What an image begins with. */
struct fill_header {
    uint64_t magic, layout;
    int64_t faults, overflows, keys, items, pairs; /* tess_fill_report */
    int64_t merges, slots;
    int64_t unit_keys; /* keys of the tiles of all heads, heads packed in one once */
};
_Static_assert(sizeof(struct fill_header) <= TESS_REPORT_SIZE, "TESS_REPORT_SIZE");

/* An image, placed:  | header | arrays of lists | items | merges | */
struct image {
    struct fill_header *header;
    struct fill_arrays arrays;
    struct work_item *items;
    struct merge_item *merges;
};

static void image_take(struct carve *c, const struct reserved *r, struct image *image) {
    image->header = carve_take(c, TESS_REPORT_SIZE, 1);
    fill_take(c, &r->shape, &image->arrays);
    image->items = carve_take(c, (size_t)r->items, sizeof *image->items);
    image->merges = carve_take(c, (size_t)r->merges, sizeof *image->merges);
}

static struct image image_at(const tess_plan *plan, const void *memory) {
    struct carve c = {.base = (char *)(uintptr_t)memory};
    struct image image;
    image_take(&c, plan->reserved, &image);
    return image;
}

/* ---- reserving ---- */

/* Cuts block rows into query tiles: as high as the kernel has them, of one block row each. */
static void shape_tiles(struct fill_shape *s, const struct kernel *kernel, int32_t asked) {
    const int64_t height = min_i64(s->block_q, s->n_q), last = s->n_q - (s->rows - 1) * s->block_q;
    const int32_t *rows = kernel->tiling->rows;
    while (rows[1] && *rows < height && *rows != asked)
        rows++;
    s->tile_rows = *rows;
    s->row_tiles = (height + *rows - 1) / *rows;
    s->tiles = (s->rows - 1) * s->row_tiles + (last + *rows - 1) / *rows;
}

/* The most parts that a tile is cut into, by its keys. */
static int64_t parts_most(const struct reserved *r) {
    const struct fill_shape *s = &r->shape;
    const int64_t blocks = s->form == TESS_RANGES ? s->cols : min_i64(s->capacity, s->cols);
    return max_i64(1, min_i64(blocks * s->block_kv, s->n_kv) / r->splits.part_keys);
}

/* Bounds that hold for all lists, see fill_parts. */
static void reserved_bounds(struct reserved *r) {
    const int64_t most = parts_most(r), workers = r->splits.workers;
    const int64_t cuts = most > 1 ? 2 * workers - 1 : 0;
    r->merges = min_i64(r->units, cuts);
    r->items = r->units + min_i64(r->merges * (most - 1), cuts);
    r->slots = r->items - r->units + r->merges;
}

/* A number of the shape and all else that places depend on (FNV-1a). */
static uint64_t layout_number(const struct reserved *r, int64_t tile_heads) {
    const struct fill_shape *s = &r->shape;
    const int64_t words[] = {s->form,          s->n_q,
                             s->n_kv,          s->block_q,
                             s->block_kv,      s->batch,
                             s->heads,         s->batches,
                             s->capacity,      s->cut,
                             s->tile_rows,     s->row_tiles,
                             s->tiles,         r->units,
                             r->items,         r->merges,
                             r->slots,         s->cut_lo,
                             s->cut_hi,        tile_heads,
                             r->splits.item,   r->splits.part_keys,
                             r->splits.workers};
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        hash = (hash ^ (uint64_t)words[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* What the kernel that was chosen makes of the shape. */
static void reserved_make(struct reserved *r, const tess_plan *plan) {
    const struct kernel *kernel = plan->passes->kernel;
    const struct work *work = &plan->work;
    const double rows = (double)(r->shape.tile_rows * work->tile_heads);
    r->item_seconds = kernel->cost.item;
    r->key_seconds =
        select_key_cost(plan, plan->passes, kernel, select_dims(plan->passes, kernel), rows);
    r->splits = (struct fill_splits){.item = 1 + (int64_t)(r->item_seconds / r->key_seconds),
                                     .part_keys = plan->problem.part_keys,
                                     .workers = PLAN_CPU_WORKERS};
    r->units = plan->problem.batch * plan->problem.heads_q / work->tile_heads * r->shape.tiles;
    reserved_bounds(r);
    r->layout = layout_number(r, work->tile_heads);
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

static tess_status sizes_reserve(tess_plan *plan, tess_error *error) {
    const struct kernel_args of_plan = plan_args(plan);
    const struct kernel_args args = pass_args(&of_plan, plan->passes);
    struct carve workspace = {0}, carve = {0};
    struct plan_room room;
    struct image image;
    plan->passes->workspace = plan->passes->kernel->workspace(&args);
    plan_carve(plan, &workspace, &room);
    image_take(&carve, plan->reserved, &image);
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
    if (plan) {
        *plan = (tess_plan){.problem = *problem,
                            .target = *target,
                            .backend = backend,
                            .block_q = shape->block_q,
                            .block_kv = shape->block_kv,
                            .n_lists = shape->batches * shape->heads,
                            .list_of = malloc((size_t)batch_heads * sizeof *plan->list_of),
                            .reserved = calloc(1, sizeof *plan->reserved)};
        passes_begin(plan);
    }
    if (!plan || !plan->list_of || !plan->reserved) {
        tess_plan_free(plan);
        return error_set(error, TESS_OUT_OF_MEMORY, "tess_plan_reserve", NULL,
                         "out of memory for the plan");
    }
    plan->reserved->shape = *shape;
    heads_place(plan);
    tess_status status = select_kernels(plan, kernel, error);
    if (!status) {
        shape_tiles(&plan->reserved->shape, plan->passes->kernel, problem->tile_rows);
        plan->work.tile_heads = select_tile_heads(plan, plan->passes, plan->passes->kernel,
                                                  plan->reserved->shape.tile_rows);
        reserved_make(plan->reserved, plan);
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

/* ---- filling ---- */

/* Keys of unit u: query tile u % tiles of packed heads u / tiles. */
static int64_t unit_keys(const tess_plan *plan, const struct fill_arrays *a, int64_t u) {
    const int64_t tiles = plan->reserved->shape.tiles;
    return a->keys[plan->list_of[u / tiles * plan->work.tile_heads] * tiles + u % tiles];
}

/* Items in the order of their units, so that places follow from sums of parts alone. */
static void items_fill(const tess_plan *plan, const struct image *image) {
    const struct reserved *r = plan->reserved;
    const int64_t tiles = r->shape.tiles;
    int64_t total = 0, items = 0, merges = 0, slots = 0;
    for (int64_t u = 0; u < r->units; u++)
        total += unit_keys(plan, &image->arrays, u);
    const int64_t share = fill_share(&r->splits, total + r->units * r->splits.item);
    for (int64_t u = 0; u < r->units; u++) {
        const int32_t parts = fill_parts(&r->splits, unit_keys(plan, &image->arrays, u), share);
        const int32_t packed = (int32_t)(u / tiles), tile = (int32_t)(u % tiles);
        for (int32_t part = 0; part < parts; part++)
            image->items[items++] =
                (struct work_item){packed, tile, part, parts, parts > 1 ? slots + part : -1};
        if (parts > 1) {
            image->merges[merges++] = (struct merge_item){packed, tile, parts, slots};
            slots += parts;
        }
    }
    image->header->items = items, image->header->merges = merges, image->header->slots = slots;
    image->header->unit_keys = total;
}

void reserve_fill(const tess_plan *plan, const tess_device_pattern *pattern, void *memory) {
    const struct image image = image_at(plan, memory);
    const int64_t heads = plan->problem.heads_q / plan->reserved->shape.heads;
    struct fill_counts counts;
    fill_lists(&plan->reserved->shape, pattern, &image.arrays, &counts);
    memset(image.header, 0, TESS_REPORT_SIZE);
    *image.header = (struct fill_header){.magic = FILL_MAGIC,
                                         .layout = plan->reserved->layout,
                                         .faults = counts.faults,
                                         .overflows = counts.overflows,
                                         .keys = counts.keys,
                                         .pairs = counts.pairs * heads};
    items_fill(plan, &image);
}

/* ---- running ---- */

/* The header of an image that this plan has filled, or NULL. */
static const struct fill_header *header_of(const tess_plan *plan, const void *image) {
    const struct fill_header *header = image;
    return header->magic == FILL_MAGIC && header->layout == plan->reserved->layout ? header : NULL;
}

tess_status reserve_run(const tess_plan *plan, const struct kernel_args *run, tess_error *error) {
    const struct reserved *r = plan->reserved;
    struct kernel_args args = pass_args(run, plan->passes);
    const struct fill_header *header = header_of(plan, args.image);
    if (!header)
        return error_set(error, TESS_INVALID_ARGUMENT, args.function, "image",
                         "this plan has not filled the image: call tess_plan_fill before the run");
    const struct image image = image_at(plan, args.image);
    const struct lists lists = fill_view(&r->shape, &image.arrays, plan->work.lists.tile_row);
    const struct schedule schedule = {.n_items = header->items,
                                      .n_merges = header->merges,
                                      .n_slots = header->slots,
                                      .items = image.items,
                                      .merges = image.merges};
    args.lists = &lists;
    args.schedule = &schedule;
    args.lengths = image.arrays.lengths;
    args.seconds =
        r->item_seconds * (double)header->items + r->key_seconds * (double)header->unit_keys;
    return args.kernel->run(&args, error);
}

int reserve_report(const tess_plan *plan, const void *image, tess_fill_report *report) {
    const struct fill_header *header = header_of(plan, image);
    if (!header)
        return -1;
    report->faults = header->faults;
    report->overflows = header->overflows;
    report->keys = header->keys;
    report->items = header->items;
    report->pairs = header->pairs;
    return 0;
}
