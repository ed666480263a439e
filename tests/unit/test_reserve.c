/*
 * Reserved plans of a backend whose images the host cannot read: which kernels and query tiles they take,
 * what fill and run are handed, and that neither looks at the image. The backend is the test's own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "plan/reserve.h"
#include "support/device_lists.h"

/* No memory is there: whoever follows it ends the test. */
#define IMAGE ((char *)(uintptr_t)0x100000)
#define INDICES ((const int32_t *)(uintptr_t)0x5000)
#define STREAM ((tess_stream)(uintptr_t)0x77)
enum { SCRATCH = 700, SHARED_OF_64 = 1000 };

static struct fill_job filled_by;
static struct kernel_args ran_with;
static struct lists ran_lists;
static struct filled_image ran_filled;
static int64_t sized_slots;

static const char *usable(void) {
    return NULL;
}

static const char *refuses_never(const struct kernel *kernel, const struct problem *problem,
                                 const tess_target *target) {
    (void)kernel, (void)problem, (void)target;
    return NULL;
}

static size_t workspace(const struct kernel_args *args) {
    assert_null(args->work.filled->header);
    assert_int_equal(args->work.filled->most_slots, args->work.schedule->n_slots);
    sized_slots = args->work.filled->most_slots;
    return 64 * (size_t)(1 + sized_slots);
}

static tess_status kernel_run(const struct kernel_args *args, tess_error *error) {
    (void)error;
    ran_with = *args, ran_lists = *args->work.lists, ran_filled = *args->work.filled;
    return TESS_OK;
}

static int64_t workers(const tess_target *target) {
    return target->multiprocessors;
}

static size_t scratch(const struct fill_shape *shape) {
    (void)shape;
    return SCRATCH;
}

static tess_status fill(const struct fill_job *job, tess_error *error) {
    (void)error;
    assert_ptr_equal(job->pattern->indices, INDICES);
    filled_by = *job;
    return TESS_OK;
}

/* ---- the backend ---- */

#define KERNEL(its_name, its_family, heights, bytes)                                               \
    {                                                                                              \
        .name = its_name, .stage = TESS_STAGE_ATTENTION, .cost = {.item = 1e-6, .key_dim = 1e-10}, \
        .family = &its_family, .rows = heights, .shared = bytes, .unusable = usable,               \
        .workspace = workspace, .run = kernel_run                                                  \
    }
static const struct family of_host = {.refuses = refuses_never, .lists = LISTS_PACKED};
static const struct family of_images = {
    .refuses = refuses_never, .lists = LISTS_PACKED | LISTS_FILLED, .packed_rows = 16};
static const struct family packed_alone = {.refuses = refuses_never,
                                           .lists = LISTS_PACKED | LISTS_FILLED,
                                           .packing = PACK_EXACT,
                                           .packed_rows = 16};
static const int32_t rows_of_host[] = {16, 64, 0}, rows_of_images[] = {1, 16, 64, 0},
                     rows_alone[] = {1, 0};
static const int64_t bytes_of_images[] = {10, 100, SHARED_OF_64};
static const struct kernel kernels[] = {
    KERNEL("of_host", of_host, rows_of_host, NULL),
    KERNEL("of_images", of_images, rows_of_images, bytes_of_images),
    KERNEL("packed_alone", packed_alone, rows_alone, NULL),
};
static int64_t n_kernels;

const struct backend *__real_backend_get(tess_backend backend);
const struct backend *__wrap_backend_get(tess_backend backend);

const struct backend *__wrap_backend_get(tess_backend backend) {
    static struct backend device;
    device = (struct backend){.name = "device",
                              .kernels = kernels,
                              .n_kernels = n_kernels,
                              .workers = workers,
                              .fill = {.scratch = scratch, .run = fill}};
    return backend == TESS_CUDA ? &device : __real_backend_get(backend);
}

static tess_problem problem_of(int64_t heads_q, int64_t n_q, int64_t n_kv) {
    tess_problem p = tess_problem_init();
    p.batch = 2, p.heads_q = heads_q, p.heads_kv = 1, p.n_q = n_q, p.n_kv = n_kv;
    p.d_qk = p.d_v = 64;
    return p;
}

static tess_device_pattern pattern_of(const tess_problem *p, int64_t block, int64_t heads) {
    tess_device_pattern d = tess_device_pattern_init();
    d.n_q = p->n_q, d.n_kv = p->n_kv, d.block_q = block, d.block_kv = 1;
    d.heads = heads, d.capacity = 300;
    return d;
}

static tess_target target_of(int32_t multiprocessors, int64_t shared) {
    tess_target t = tess_target_init();
    t.backend = TESS_CUDA, t.multiprocessors = multiprocessors, t.architecture = 90;
    t.shared_memory_per_block = shared;
    return t;
}

static tess_plan *reserved(const tess_problem *p, const tess_device_pattern *d,
                           const tess_target *t) {
    tess_error error = tess_error_init();
    tess_plan *plan;
    if (tess_plan_reserve(&plan, p, d, t, &error))
        fail_msg("%s", error.message);
    return plan;
}

static void refused(const tess_problem *p, const tess_device_pattern *d, const tess_target *t,
                    const char *words) {
    tess_error error = tess_error_init();
    tess_plan *plan;
    assert_int_equal(tess_plan_reserve(&plan, p, d, t, &error), TESS_UNSUPPORTED);
    assert_null(plan);
    assert_string_equal(error.function, "tess_plan_reserve");
    if (!strstr(error.message, words))
        fail_msg("'%s' does not say '%s'", error.message, words);
}

/* ---- what is chosen ---- */

static void kernels_that_walk_images(void **state) {
    (void)state;
    tess_problem p = problem_of(16, 5, 400);
    const tess_device_pattern d = pattern_of(&p, 1, 1);
    const tess_target t = target_of(132, 0);
    n_kernels = 1;
    refused(&p, &d, &t, "does not walk lists that tess_plan_fill writes");
    n_kernels = 2;
    p.kernel = "of_host";
    refused(&p, &d, &t, "does not walk lists that tess_plan_fill writes");
    p.kernel = NULL;
    tess_plan *plan = reserved(&p, &d, &t);
    assert_string_equal(plan->passes->kernel->name, "of_images");
    tess_plan_free(plan);
}

static void heights_of_tiles(void **state) {
    static const struct {
        int64_t n_q, block, lists, shared;
        int32_t asked, rows, heads;
    } cases[] = {
        {5, 1, 1, 0, 0, 1, 16},      /* one query of 16 heads */
        {5, 1, 16, 0, 0, 1, 1},      /* whose lists differ */
        {200, 64, 1, 0, 0, 64, 1},   /* a block row's height */
        {200, 192, 1, 0, 0, 64, 1},  /* all there are */
        {200, 64, 1, 999, 0, 16, 1}, /* the most that fit */
        {200, 64, 1, 0, 16, 16, 1},  /* the height asked for */
        {10, 64, 1, 0, 0, 16, 1},    /* rows that hold all queries */
    };
    (void)state;
    n_kernels = 2;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_problem p = problem_of(16, cases[i].n_q, 400);
        p.tile_rows = cases[i].asked;
        const tess_device_pattern d = pattern_of(&p, cases[i].block, cases[i].lists);
        const tess_target t = target_of(132, cases[i].shared);
        tess_plan *plan = reserved(&p, &d, &t);
        assert_int_equal(plan->parts->reserved->shape.tile_rows, cases[i].rows);
        assert_int_equal(plan->passes->work->tile_heads, cases[i].heads);
        tess_plan_free(plan);
    }
    tess_problem p = problem_of(16, 5, 400);
    tess_device_pattern d = pattern_of(&p, 1, 1);
    const tess_target t = target_of(132, 0);
    n_kernels = 3;
    p.kernel = "packed_alone";
    tess_plan_free(reserved(&p, &d, &t));
    d.heads = 16;
    refused(&p, &d, &t, "heads that share a list alone");
}

/* Splits follow the multiprocessors: so do bounds, and images are those of a plan for as many. */
static void workers_of_the_target(void **state) {
    (void)state;
    tess_problem p = problem_of(16, 5, 40000);
    tess_device_pattern d = pattern_of(&p, 1, 1);
    const tess_target many = target_of(132, 0), few = target_of(3, 0);
    d.capacity = 30000;
    n_kernels = 2;
    tess_plan *a = reserved(&p, &d, &many), *b = reserved(&p, &d, &few);
    assert_int_equal(a->parts->reserved->splits.workers, 132);
    assert_int_equal(b->parts->reserved->splits.workers, 3);
    assert_int_equal(b->parts->reserved->items, b->parts->reserved->units + 5);
    assert_true(a->parts->reserved->items > b->parts->reserved->items && a->image > b->image);
    assert_true(a->parts->reserved->layout != b->parts->reserved->layout);
    tess_plan_free(a);
    tess_plan_free(b);
}

/* Nobody waits for a fill on a device, so that it can refuse nothing. */
static void strict_is_of_the_host(void **state) {
    (void)state;
    tess_problem p = problem_of(16, 5, 400);
    const tess_device_pattern d = pattern_of(&p, 1, 1);
    const tess_target t = target_of(132, 0);
    n_kernels = 2, p.strict = 1;
    refused(&p, &d, &t, "strict is 1: a fill on CUDA");
}

/* ---- what is handed over ---- */

static void fill_and_run_leave_the_image_alone(void **state) {
    (void)state;
    tess_problem p = problem_of(16, 5, 400);
    tess_device_pattern d = pattern_of(&p, 1, 1);
    const tess_target t = target_of(132, 0);
    tess_error error = tess_error_init();
    n_kernels = 2;
    tess_plan *plan = reserved(&p, &d, &t);
    const size_t size = tess_plan_image_size(plan);
    d.indices = INDICES;
    if (tess_plan_fill(plan, &d, IMAGE, size, &error, STREAM))
        fail_msg("%s", error.message);
    assert_ptr_equal(filled_by.header, IMAGE);
    assert_ptr_equal(filled_by.stream, STREAM);
    assert_int_equal(filled_by.units, 10);
    assert_int_equal(filled_by.list_heads, 16);
    assert_int_equal(filled_by.list_packs, 1);
    assert_true((char *)filled_by.scratch > IMAGE &&
                (char *)filled_by.scratch + SCRATCH <= IMAGE + size);

    tess_arguments a = tess_arguments_init();
    enum { QUERIES = 2 * 16 * 5 * 64, KEYS = 2 * 400 * 64 };
    float *data = aligned_alloc(64, (2 * QUERIES + KEYS) * sizeof *data);
    char *room = aligned_alloc(64, tess_plan_workspace_size(plan));
    assert_true(data && room);
    const tess_tensor q = tess_tensor_bhnd(data, TESS_F32, 2, 16, 5, 64);
    const tess_tensor k = tess_tensor_bhnd(data + QUERIES, TESS_F32, 2, 1, 400, 64);
    const tess_tensor o = tess_tensor_bhnd(data + QUERIES + KEYS, TESS_F32, 2, 16, 5, 64);
    a.q = &q, a.k = a.v = &k, a.o = &o;
    a.image = IMAGE, a.image_size = size;
    a.workspace = room, a.workspace_size = tess_plan_workspace_size(plan);
    if (tess_run(plan, &a, &error, STREAM))
        fail_msg("%s", error.message);
    assert_null(ran_with.work.schedule);
    assert_ptr_equal(ran_with.work.lengths, filled_by.arrays.lengths);
    assert_ptr_equal(ran_with.image, IMAGE);
    assert_null(ran_lists.tile_row);
    assert_int_equal(ran_lists.tiles, 5);
    assert_ptr_equal(ran_lists.full, filled_by.arrays.full);
    assert_ptr_equal(ran_lists.full_end, filled_by.arrays.full_end);
    assert_ptr_equal(ran_lists.masked_ptr, filled_by.arrays.masked_ptr);
    assert_ptr_equal(ran_filled.header, IMAGE);
    assert_ptr_equal(ran_filled.items, filled_by.items);
    assert_ptr_equal(ran_filled.combines, filled_by.combines);
    assert_int_equal(ran_filled.layout, filled_by.layout);
    assert_int_equal(ran_filled.units, 10);
    assert_int_equal(ran_filled.block_q, 1);
    assert_int_equal(ran_filled.row_tiles, 1);
    assert_int_equal(ran_filled.block_kv, 1);
    assert_int_equal(ran_filled.heads, 1);
    assert_int_equal(ran_filled.most_slots, sized_slots);
    free(data);
    free(room);
    tess_plan_free(plan);
}

/* The report is read from a copy of the image's beginning. */
static void report_of_a_copy(void **state) {
    (void)state;
    tess_problem p = problem_of(16, 5, 400);
    const tess_device_pattern d = pattern_of(&p, 1, 1);
    const tess_target t = target_of(132, 0);
    tess_fill_report report = tess_fill_report_init();
    tess_error error = tess_error_init();
    _Alignas(64) char copy[TESS_REPORT_SIZE] = {0};
    n_kernels = 2;
    tess_plan *plan = reserved(&p, &d, &t);
    const struct fill_header header = {.magic = FILL_MAGIC,
                                       .layout = plan->parts->reserved->layout,
                                       .faults = 1,
                                       .overflows = 2,
                                       .keys = 3,
                                       .items = 4,
                                       .pairs = 5,
                                       .first =
                                           fill_order(FILL_NEGATIVE, 8, 300, FILL_AT_ENTRY(6))};
    assert_int_equal(tess_plan_report(plan, copy, &report, &error), TESS_INVALID_ARGUMENT);
    memcpy(copy, &header, sizeof header);
    assert_int_equal(tess_plan_report(plan, copy, &report, &error), TESS_OK);
    assert_int_equal(report.faults, 1);
    assert_int_equal(report.overflows, 2);
    assert_int_equal(report.keys, 3);
    assert_int_equal(report.items, 4);
    assert_int_equal(report.pairs, 5);
    assert_int_equal(report.first_fault, TESS_FAULT_NEGATIVE);
    assert_true(report.batch == 1 && report.head == 0 && report.row == 3 && report.position == 6);
    tess_plan_free(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_that_walk_images),
        cmocka_unit_test(heights_of_tiles),
        cmocka_unit_test(workers_of_the_target),
        cmocka_unit_test(strict_is_of_the_host),
        cmocka_unit_test(fill_and_run_leave_the_image_alone),
        cmocka_unit_test(report_of_a_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
