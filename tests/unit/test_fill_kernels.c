/*
 * The CUDA backend's fill on the host. Its kernels, which are C, write the image that the host's filler
 * writes. Launches, and rules that only these kernels use, are held too.
 *
 *     test_fill_kernels [CASES]     drawn cases; 200 unless given
 */
#define _DEFAULT_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/emulated.h"

#include "fill/lists.cuh"
#include "fill/mask.cuh"
#include "fill/ranges.cuh"

#include "lab/fill/rng.h"
#include "support/filled.h"

#ifdef __SANITIZE_ADDRESS__
static uint64_t cases = 60; /* each takes ten times as long */
#else
static uint64_t cases = 200;
#endif

/* ---- kernels ---- */

#define RUN(name)                                                                                  \
    static void run_##name(const void *p) {                                                        \
        name(*(const struct fill_params *)p);                                                      \
    }
RUN(fill_claims)
RUN(fill_places)
RUN(fill_rows_tokens)
RUN(fill_rows_indices)
RUN(fill_rows_indices_cut)
RUN(fill_rows_bits)
RUN(fill_rows_bits_cut)
RUN(fill_range_tiles)
RUN(fill_mask_words)
RUN(fill_mask_lists)
RUN(fill_items)

static void emulated_fill(const struct fill_params *p, const tess_target *target, uint64_t seed) {
    static void (*const kernels[FILL_KERNELS])(const void *) = {run_fill_claims,
                                                                run_fill_places,
                                                                run_fill_rows_tokens,
                                                                run_fill_rows_indices,
                                                                run_fill_rows_indices_cut,
                                                                run_fill_rows_bits,
                                                                run_fill_rows_bits_cut,
                                                                run_fill_range_tiles,
                                                                run_fill_mask_words,
                                                                run_fill_mask_lists,
                                                                run_fill_items};
    struct fill_launch launches[FILL_MOST_LAUNCHES];
    const int32_t n = fill_launches(p, launches);
    for (int32_t i = 0; i < n; i++) {
        const struct fill_launch *l = &launches[i];
        assert_true((int64_t)l->shared <= target->shared_memory_per_block);
        /* Kernels of 1024 threads loop by the thread block's size. */
        const int few = l->kernel == FILL_PLACES || l->kernel == FILL_ITEMS;
        const int threads = few ? 32 << lab_below(seed, 9, 15, 2) : l->threads;
        emulated_run(kernels[l->kernel], p, l->blocks, threads, l->shared, seed + (uint64_t)i);
    }
}

/* Targets of few multiprocessors and little shared memory, so that teams and windows are of all sizes. */
static void kernels_fill(const tess_plan *plan, const struct device_lists *l, void *memory,
                         uint64_t seed) {
    tess_device_pattern pattern = l->listed.pattern;
    struct fill_job job = reserve_job(plan, plan->parts, &pattern, memory);
    struct lab_buffer scratch, aligned = {0};
    tess_target target = tess_target_init();
    target.multiprocessors = (int32_t)(1 + lab_below(seed, 9, 7, 132));
    target.shared_memory_per_block = 16384 << lab_below(seed, 9, 8, 3);
    assert_int_equal(lab_buffer_make(&scratch, cuda_fill_scratch(job.shape), 64), 0);
    memset(scratch.data, 0x5a, scratch.size);
    job.target = &target, job.scratch = scratch.data;
    if (pattern.form == TESS_INDICES && lab_below(seed, 9, 16, 2)) { /* pairs of indices */
        assert_int_equal(lab_buffer_make(&aligned, l->listed.indices.size, 64), 0);
        pattern.indices = memcpy(aligned.data, l->listed.indices.data, aligned.size);
    }
    struct fill_params p = fill_params_of(&job);
    if (lab_below(seed, 9, 9, 2)) { /* more thread blocks than would do, or fewer */
        p.place_chunk = 1 + lab_below(seed, 9, 10, 200);
        p.items_chunk = 1 + lab_below(seed, 9, 11, 100);
        p.blocks = (int32_t)(1 + lab_below(seed, 9, 12, p.blocks));
        if (p.threads > 64) /* threads have several counts each */
            p.threads = p.block = 64, p.thread_bits = 6;
        else if (p.words) /* windows */
            p.words = FILL_WINDOW * (int32_t)(1 + lab_below(seed, 9, 13, p.words / FILL_WINDOW));
        if (lab_below(seed, 9, 14, 2)) /* columns stand in the image */
            p.stage = 0;
    }
    emulated_fill(&p, &target, seed);
    lab_buffer_free(&aligned);
    lab_buffer_free(&scratch);
}

static void images_are_those_of_the_host(void **state) {
    (void)state;
    filled_cases(kernels_fill, cases);
}

static void limits_are_kept(void **state) {
    (void)state;
    filled_edges(kernels_fill);
}

/* Memory ends behind the entries that the last row's count says. */
static void entries_past_a_count_are_not_read(void **state) {
    struct device_sizes s = device_small;
    struct device_lists l;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), rows = (size_t)(s.list_heads * s.n_q);
    char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)state;
    assert_true(memory != MAP_FAILED && mprotect(memory + page, page, PROT_NONE) == 0);
    s.counts = 1;
    device_lists_make(&l, &s, 5);
    for (int32_t count = 0; count <= DEVICE_PADDING; count++) {
        const size_t size = (rows * DEVICE_PADDING - DEVICE_PADDING + (size_t)count) * 4;
        memcpy(memory + page - size, l.listed.indices.data, size);
        l.listed.pattern.indices = (const int32_t *)(void *)(memory + page - size);
        ((int32_t *)(void *)l.listed.counts.data)[rows - 1] = count;
        device_lists_expect(&l);
        filled_alike(&l, kernels_fill, (uint64_t)count);
    }
    device_lists_free(&l);
    munmap(memory, 2 * page);
}

/* Tiles 3 and 1 of a block row under a causal cut have bands and sums, 2 none: a barrier fewer lies between
 * those. */
static void sums_of_cut_tiles_take_turns(void **state) {
    struct device_sizes s = device_small;
    struct device_lists l;
    (void)state;
    s.list_heads = 1, s.n_q = s.block_q = 256, s.n_kv = 600, s.capacity = 300;
    s.cut_lo = INT64_MIN, s.cut_hi = 0;
    device_lists_make(&l, &s, 7);
    int32_t *const index = (int32_t *)(void *)l.listed.indices.data;
    for (int32_t i = 0, key = 300; i < s.capacity; i++, key++) {
        const int32_t row = key - 344; /* the query whose position the key is */
        index[i] = row > 255 ? -1 : key;
        if (row == 128)
            key += 64; /* none of tile 2's band */
    }
    device_lists_expect(&l);
    for (uint64_t seed = 0; seed < 1000; seed++) /* tiles have 64 rows; at 463 the sums have met */
        if (lab_below(seed, 9, 5, 3) == 0 && lab_below(seed, 9, 6, 7) == 6)
            filled_alike(&l, kernels_fill, seed);
    device_lists_free(&l);
}

/* ---- launches ---- */

static struct fill_params params_of(tess_form form, int64_t rows, int64_t cols, int64_t capacity) {
    const struct fill_shape shape = {.form = form,
                                     .n_q = 64 * rows,
                                     .n_kv = 64 * cols,
                                     .block_q = 64,
                                     .block_kv = 64,
                                     .batch = 1,
                                     .heads = 1,
                                     .batches = 1,
                                     .rows = rows,
                                     .cols = cols,
                                     .capacity = capacity,
                                     .tile_rows = 64,
                                     .row_tiles = 1,
                                     .tiles = rows};
    const struct fill_splits splits = {1, 128, 132, rows % 2, 0, 0};
    const tess_device_pattern pattern = tess_device_pattern_init();
    tess_target target = tess_target_init();
    target.multiprocessors = 132, target.shared_memory_per_block = 232448;
    const struct fill_job job = {.target = &target,
                                 .shape = &shape,
                                 .splits = &splits,
                                 .pattern = &pattern,
                                 .units = rows,
                                 .list_heads = 1,
                                 .list_packs = 1};
    return fill_params_of(&job);
}

static void launches_are_few(void **state) {
    (void)state;
    struct fill_launch launches[FILL_MOST_LAUNCHES];
    struct fill_params p = params_of(TESS_INDICES, 64, 131072, 2048); /* a step of decoding */
    assert_int_equal(fill_launches(&p, launches), 2);
    assert_int_equal(launches[0].kernel, FILL_INDICES);
    assert_int_equal(launches[0].blocks, 64);
    assert_int_equal(launches[0].threads, FILL_ROW_THREADS);
    const size_t bitmap = 131072 / 8 + 131072 / 128 + 131072 / 32;
    assert_int_equal(launches[0].shared, bitmap + 2048 * 4 + FILL_SUMS * 8);
    assert_int_equal(launches[1].kernel, FILL_ITEMS);
    assert_int_equal(launches[1].blocks, 1);
    assert_int_equal(launches[1].threads, 256);
    p = params_of(TESS_INDICES, 64, 1 << 30, 2048); /* windows */
    fill_launches(&p, launches);
    assert_true(launches[0].shared <= FILL_MOST_SHARED);
    p = params_of(TESS_INDICES, 4096, 541568, 2048); /* two thread blocks a multiprocessor */
    assert_int_equal(fill_launches(&p, launches), 2);
    assert_int_equal(launches[0].blocks, 2 * 132);
    assert_int_equal(launches[0].threads, FILL_ROW_THREADS);
    assert_int_equal(launches[1].threads, FILL_THREADS);
    p = params_of(TESS_INDICES, 1, 541568, 2048);
    assert_int_equal(fill_launches(&p, launches), 1);
    assert_int_equal(p.stage, 2048);
    p = params_of(TESS_BLOCK_ROWS, 3072, 256, 79000); /* 16384 tokens, 12 heads: a warp each */
    assert_int_equal(fill_launches(&p, launches), 3);
    assert_int_equal(launches[1].threads, 32 * FILL_WARPS);
    assert_int_equal(launches[1].blocks, 768);
    p = params_of(TESS_BLOCK_BITS, 12288, 1024, 1260000);
    assert_int_equal(fill_launches(&p, launches), 4);
    assert_int_equal(launches[2].blocks, 8 * 132);
    assert_int_equal(launches[2].shared, FILL_SUMS * 8 + FILL_WARPS * 1024 * 2);
    p = params_of(TESS_RANGES, 500, 256, 4);
    assert_int_equal(fill_launches(&p, launches), 2);
    assert_int_equal(launches[0].blocks, 4);
    const struct backend *cuda = backend_get(TESS_CUDA);
    tess_target target = tess_target_init();
    target.multiprocessors = 78;
    assert_int_equal(cuda->workers(&target), 78);
    assert_int_equal(cuda->fill.scratch(&p.shape), FILL_MOST_BLOCKS * sizeof(struct fill_counts));
    assert_int_equal(cuda->on_host, 0);
}

/* ---- rules ---- */

/* Columns that are live and full, against the run of each column. */
static void columns_of_a_cut(void **state) {
    (void)state;
    for (uint64_t x = 0; x < 200000; x++) {
        const int32_t rows = 1 + (int32_t)lab_below(1, 1, x, 9);
        const int64_t lo = lab_below(1, 2, x, 60) - 40, hi = lo + lab_below(1, 3, x, 40);
        const struct fill_cut cut = fill_cut_at(lo, hi, lab_below(1, 4, x, 60) - 20, rows);
        const int32_t length = (int32_t)lab_below(1, 5, x, 70);
        const int32_t width = 1 << lab_below(1, 6, x, 5);
        const struct fill_columns c = fill_columns_cut(&cut, width, length);
        for (int32_t column = 0; column < fill_blocks(length, width); column++) {
            const int32_t begin = column * width;
            const int32_t end = begin + width < length ? begin + width : length;
            const struct fill_run run = fill_run_cut(&cut, begin, end);
            const uint32_t bit = 1u << (column % 32), first = (uint32_t)column / 32 * 32;
            const int live = (fill_bits_between(c.live, c.live_end, first) & bit) != 0;
            const int full = (fill_bits_between(c.full, c.full_end, first) & bit) != 0;
            assert_int_equal(live, run.begin < run.end);
            assert_int_equal(full, run.begin < run.end && run.full);
        }
    }
}

static void bits_of_columns(void **state) {
    (void)state;
    assert_int_equal(fill_bits_between(0, 0, 0), 0);
    assert_int_equal(fill_bits_between(0, 1, 0), 1);
    assert_int_equal(fill_bits_between(0, INT32_MAX, 0), UINT32_MAX);
    assert_int_equal(fill_bits_between(33, 35, 32), 6);
    assert_int_equal(fill_bits_between(31, 40, 0), UINT32_C(1) << 31);
    assert_int_equal(fill_bits_between(64, 96, 32), 0);
    assert_int_equal(fill_bits_between(0, 32, 32), 0);
    assert_int_equal(fill_bits_between(INT32_MAX - 1, INT32_MAX, UINT32_C(0x7fffffe0)), UINT32_C(1)
                                                                                            << 30);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_of_columns),
        cmocka_unit_test(columns_of_a_cut),
        cmocka_unit_test(launches_are_few),
        cmocka_unit_test(limits_are_kept),
        cmocka_unit_test(entries_past_a_count_are_not_read),
        cmocka_unit_test(sums_of_cut_tiles_take_turns),
        cmocka_unit_test(images_are_those_of_the_host),
    };
    cases = argc > 1 ? strtoull(argv[1], NULL, 10) : cases;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
