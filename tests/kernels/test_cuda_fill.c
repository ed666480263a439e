/*
 * Fills on a device write the images that the host writes, byte for byte in what is defined; a captured
 * graph does so for every list that it is replayed with. Without a device the test says so and is
 * skipped.
 *
 *     test_cuda_fill [CASES]     drawn cases; 600 unless given
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lab/device/device.h"
#include "lab/fill/rng.h"
#include "support/filled.h"

enum { SKIPPED = 77 };
static uint64_t cases = 600;
static tess_target device;

static void done(const char *why) {
    if (why)
        fail_msg("%s", why);
}

/* A copy of a buffer on the device; NULL of none. */
static void *copied(const struct lab_buffer *b) {
    if (!b->data)
        return NULL;
    void *memory = lab_device_alloc(TESS_CUDA, b->size);
    assert_non_null(memory);
    done(lab_device_to_device(TESS_CUDA, memory, b->data, b->size));
    return memory;
}

/* Memory that a fill on the device needs: the pattern with arrays there, image and scratch. */
struct on_device {
    tess_device_pattern pattern;
    void *indices, *counts, *row_ptr, *bits, *lengths, *mask, *image, *scratch;
    struct fill_job job;
};

static void device_make(struct on_device *d, const tess_plan *plan, const struct device_lists *l) {
    const size_t scratch = backend_get(TESS_CUDA)->fill.scratch(&plan->parts->reserved->shape);
    const size_t size = tess_plan_image_size(plan);
    char *poison = malloc(size > scratch ? size : scratch);
    *d = (struct on_device){.pattern = l->listed.pattern};
    d->pattern.indices = d->indices = copied(&l->listed.indices);
    d->pattern.counts = d->counts = copied(&l->listed.counts);
    d->pattern.row_ptr = d->row_ptr = copied(&l->listed.row_ptr);
    d->pattern.bits = d->bits = copied(&l->listed.bits);
    d->pattern.lengths = d->lengths = copied(&l->listed.lengths);
    d->pattern.mask = d->mask = copied(&l->listed.mask);
    d->image = lab_device_alloc(TESS_CUDA, size);
    d->scratch = lab_device_alloc(TESS_CUDA, scratch);
    assert_true(poison && d->image && d->scratch);
    memset(poison, 0xaa, size > scratch ? size : scratch);
    done(lab_device_to_device(TESS_CUDA, d->image, poison, size));
    done(lab_device_to_device(TESS_CUDA, d->scratch, poison, scratch));
    free(poison);
    d->job = reserve_job(plan, plan->parts, &d->pattern, d->image);
    d->job.target = &device, d->job.scratch = d->scratch;
}

static void device_free(const struct on_device *d) {
    void *const all[] = {d->indices, d->counts, d->row_ptr, d->bits,
                         d->lengths, d->mask,   d->image,   d->scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        lab_device_free(TESS_CUDA, all[i]);
}

static void device_filler(const tess_plan *plan, const struct device_lists *l, void *memory,
                          uint64_t seed) {
    tess_error error = tess_error_init();
    struct on_device d;
    (void)seed;
    device_make(&d, plan, l);
    if (backend_get(TESS_CUDA)->fill.run(&d.job, &error))
        fail_msg("%s", error.message);
    done(lab_device_synchronize(TESS_CUDA));
    done(lab_device_to_host(TESS_CUDA, memory, d.image, tess_plan_image_size(plan)));
    device_free(&d);
}

static void images_are_those_of_the_host(void **state) {
    (void)state;
    filled_cases(device_filler, cases);
}

static void limits_are_kept(void **state) {
    (void)state;
    filled_edges(device_filler);
}

/* ---- graphs ---- */

static const struct device_sizes shapes[] = {
    {.form = TESS_INDICES, /* one thread block, one launch */
     .batch = 1,
     .heads_q = 16,
     .heads_kv = 1,
     .list_batch = 1,
     .list_heads = 1,
     .n_q = 1,
     .n_kv = 541568,
     .block_q = 1,
     .block_kv = 1,
     .capacity = 2048,
     .counts = 1,
     .lengths = 1},
    {.form = TESS_INDICES,
     .batch = 1,
     .heads_q = 16,
     .heads_kv = 1,
     .list_batch = 1,
     .list_heads = 1,
     .n_q = 64,
     .n_kv = 131072,
     .block_q = 1,
     .block_kv = 1,
     .capacity = 2048,
     .counts = 1},
    {.form = TESS_INDICES,
     .batch = 2,
     .heads_q = 4,
     .heads_kv = 2,
     .list_batch = 2,
     .list_heads = 2,
     .n_q = 1000,
     .n_kv = 4096,
     .block_q = 64,
     .block_kv = 64,
     .capacity = 40,
     .counts = 1,
     .cut_lo = INT64_MIN},
    {.form = TESS_RANGES,
     .batch = 1,
     .heads_q = 4,
     .heads_kv = 2,
     .list_batch = 1,
     .list_heads = 4,
     .n_q = 900,
     .n_kv = 4096,
     .block_q = 64,
     .block_kv = 1,
     .capacity = 3,
     .counts = 1,
     .cut_lo = -700},
};
#define SHAPES (sizeof shapes / sizeof *shapes)

/* Counts of replay `step`: none, all, none, then drawn. */
static void counts_set(struct device_lists *l, uint64_t step) {
    const struct device_sizes *s = &l->sizes;
    const int64_t rows = s->list_batch * s->list_heads * ((s->n_q + s->block_q - 1) / s->block_q);
    int32_t *counts = (int32_t *)(void *)l->listed.counts.data;
    for (int64_t row = 0; row < rows; row++)
        counts[row] = step == 1  ? (int32_t)s->capacity
                      : step < 3 ? 0
                                 : (int32_t)lab_below(step, 3, (uint64_t)row, s->capacity + 1);
}

static void replays_of(const struct device_sizes *s, uint64_t seed) {
    struct device_lists l;
    struct lab_buffer image;
    struct on_device d;
    tess_error error = tess_error_init();
    tess_stream stream;
    void *graph;
    device_lists_make(&l, s, seed);
    const tess_problem problem = device_problem(s, 16);
    tess_plan *plan = device_plan(&l, &problem, &image);
    const size_t size = tess_plan_image_size(plan);
    char *memory = aligned_alloc(256, (size + 255) / 256 * 256);
    assert_non_null(memory);
    device_make(&d, plan, &l);
    done(lab_device_stream_make(TESS_CUDA, &stream));
    d.job.stream = stream;
    done(lab_device_graph_begin(TESS_CUDA, stream));
    if (backend_get(TESS_CUDA)->fill.run(&d.job, &error))
        fail_msg("%s", error.message);
    done(lab_device_graph_end(TESS_CUDA, stream, &graph));
    for (uint64_t step = 0; step < 12; step++) {
        counts_set(&l, step);
        device_lists_expect(&l);
        device_fill(&l, plan, &image);
        done(lab_device_to_device(TESS_CUDA, d.counts, l.listed.counts.data, l.listed.counts.size));
        done(lab_device_graph_launch(TESS_CUDA, graph, stream));
        done(lab_device_synchronize(TESS_CUDA));
        done(lab_device_to_host(TESS_CUDA, memory, d.image, size));
        const struct fill_job host = reserve_job(plan, plan->parts, NULL, device_image(&image));
        const struct fill_job other = reserve_job(plan, plan->parts, NULL, memory);
        filled_same(&host, &other, step);
    }
    lab_device_graph_free(TESS_CUDA, graph);
    lab_device_stream_free(TESS_CUDA, stream);
    device_free(&d);
    free(memory);
    tess_plan_free(plan);
    lab_buffer_free(&image);
    device_lists_free(&l);
}

static void one_graph_serves_all_counts(void **state) {
    (void)state;
    for (size_t i = 0; i < SHAPES; i++)
        replays_of(&shapes[i], 40 + i);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_are_kept),
        cmocka_unit_test(images_are_those_of_the_host),
        cmocka_unit_test(one_graph_serves_all_counts),
    };
    cases = argc > 1 ? strtoull(argv[1], NULL, 10) : cases;
    device = tess_target_init();
    if (!lab_device_available(TESS_CUDA)) {
        puts("skipped: no CUDA device");
        return SKIPPED;
    }
    if (tess_target_query(&device, TESS_CUDA, -1, NULL))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
