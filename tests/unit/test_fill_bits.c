/* Lists that live on the device, on the CPU: lengths that grow; bits of runs, equal to the bits of host
 * plans, of each batch by itself, of any number of threads, and of counts that change. */
#define _DEFAULT_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lab/fill/half.h"
#include "support/device_run.h"

/* ---- a growing cache ---- */

/* Pages after the keys that there are cannot be read. */
struct guarded {
    char *base;
    size_t size;
    float *rows;
};
static struct guarded guarded_make(int64_t rows, int64_t d, int64_t readable) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t bytes = (size_t)(readable * d) * sizeof(float);
    const size_t head = (bytes + page - 1) / page * page;
    struct guarded g = {.size = head + (size_t)(rows * d) * sizeof(float) / page * page + page};
    g.base = mmap(NULL, g.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.base != MAP_FAILED);
    g.rows = (float *)(void *)(g.base + head - bytes);
    for (int64_t i = 0; i < readable * d; i++)
        g.rows[i] = (float)lab_normal(9, (uint64_t)d, (uint64_t)i);
    assert_int_equal(mprotect(g.base + head, g.size - head, PROT_NONE), 0);
    return g;
}

/* One plan for every length, and nothing past the length is read: in f32 and in bf16. */
static void a_plan_serves_every_length(void **state) {
    (void)state;
    struct device_sizes s = device_small;
    s.form = TESS_RANGES, s.n_q = 1, s.n_kv = 300, s.capacity = 2, s.heads_q = 4, s.lengths = 1;
    struct device_lists l;
    struct lab_buffer image;
    struct tensors t;
    static const int32_t global_and_window[4] = {0, 4, -33, -1};
    device_lists_make(&l, &s, 1);
    memcpy(l.listed.indices.data, global_and_window, sizeof global_and_window);
    for (int type = 0; type < 2; type++) {
        tess_problem problem = device_problem(&s, 32);
        problem.type = type ? TESS_BF16 : TESS_F32;
        tensors_make(&t, &problem, 3);
        tess_plan *plan = device_plan(&l, &problem, &image);
        for (int32_t length = 0; length <= 300; length += length < 40 ? 1 : 13) {
            const int64_t d = type ? 16 : 32; /* dims of a row, as floats hold it */
            struct guarded k = guarded_make(s.n_kv, d, length), v = guarded_make(s.n_kv, d, length);
            *(int32_t *)(void *)l.listed.lengths.data = length;
            for (int64_t i = 0; i < length * 32; i++) {
                const int64_t row = i / 32 % 7 == 3 ? 0 : i; /* some rows are alike */
                lab_put(k.rows, problem.type, i, lab_normal(4, 1, (uint64_t)row));
                lab_put(v.rows, problem.type, i, lab_normal(4, 2, (uint64_t)i));
            }
            device_lists_expect(&l);
            device_fill(&l, plan, &image);
            tess_arguments a = arguments_of(&t, plan, device_image(&image));
            tess_tensor tk = t.k.view, tv = t.v.view;
            tk.data = k.rows, tv.data = v.rows;
            a.k = &tk, a.v = &tv;
            run(&t, plan, &a);
            /* The oracle reads listed rows alone. */
            struct lab_oracle oracle;
            struct lab_report report;
            tess_pattern *pattern = device_lists_pattern(&l);
            assert_int_equal(lab_oracle_run(&oracle, &t.q.view, &tk, &tv, pattern, NULL, NULL, 0),
                             0);
            lab_compare(&report, &oracle, &t.o.view, &t.lse.view, 256);
            if (!report.ok)
                fail_msg("length %d: %s", (int)length, report.message);
            lab_oracle_free(&oracle);
            tess_pattern_free(pattern);
            munmap(k.base, k.size);
            munmap(v.base, v.size);
        }
        tess_plan_free(plan);
        lab_buffer_free(&image);
        tensors_free(&t);
    }
    device_lists_free(&l);
}

/* Batches of different lengths give the bits that each gives by itself: positions, draws and all. */
static void batches_are_apart(void **state) {
    (void)state;
    struct device_sizes s = device_small;
    s.form = TESS_RANGES, s.batch = 3, s.n_q = 2, s.n_kv = 200, s.capacity = 1, s.lengths = 1;
    s.cut_lo = -90, s.cut_hi = 0;
    struct device_lists l, one;
    struct lab_buffer image, image_one;
    struct tensors t, t_one;
    float slopes[2] = {0.25f, -0.125f};
    const uint64_t word = 99;
    device_lists_make(&l, &s, 1);
    static const int32_t lengths[] = {150, 0, 37}, all[] = {0, -1, 0, -1};
    memcpy(l.listed.lengths.data, lengths, sizeof lengths);
    memcpy(l.listed.indices.data, all, sizeof all);
    device_lists_expect(&l);
    tess_problem problem = device_problem(&s, 16);
    problem.alibi = 1, problem.dropout = 0.5;
    tensors_make(&t, &problem, 3);
    tess_plan *plan = device_plan(&l, &problem, &image);
    device_fill(&l, plan, &image);
    tess_arguments a = arguments_of(&t, plan, device_image(&image));
    a.alibi = slopes, a.seed = &word;
    run(&t, plan, &a);
    s.batch = 1;
    device_lists_make(&one, &s, 1);
    memcpy(one.listed.indices.data, all, sizeof all);
    for (int64_t b = 0; b < 3; b++) {
        *(int32_t *)(void *)one.listed.lengths.data = lengths[b];
        device_lists_expect(&one);
        tess_problem alone = problem;
        alone.batch = 1, alone.batch_offset = b;
        tensors_make(&t_one, &alone, 3);
        tess_plan *plan_one = device_plan(&one, &alone, &image_one);
        device_fill(&one, plan_one, &image_one);
        a = arguments_of(&t_one, plan_one, device_image(&image_one));
        a.alibi = slopes, a.seed = &word;
        tess_tensor views[3] = {t.q.view, t.k.view, t.v.view};
        for (int i = 0; i < 3; i++) {
            views[i].data = (float *)views[i].data + b * views[i].stride[0];
            views[i].size[0] = 1;
        }
        a.q = &views[0], a.k = &views[1], a.v = &views[2];
        run(&t_one, plan_one, &a);
        for (int64_t h = 0; h < 2; h++)
            for (int64_t i = 0; i < 2; i++)
                assert_memory_equal((float *)t.o.view.data + lab_row(&t.o.view, b, h, i),
                                    (float *)t_one.o.view.data + lab_row(&t_one.o.view, 0, h, i),
                                    64);
        tess_plan_free(plan_one);
        lab_buffer_free(&image_one);
        tensors_free(&t_one);
    }
    tess_plan_free(plan);
    lab_buffer_free(&image);
    tensors_free(&t);
    device_lists_free(&one);
    device_lists_free(&l);
}

/* ---- bits ---- */

/* A host plan of the same keys in the same tiles: without a cut its order of keys is the same. */
static void bits_of_host_plans(void **state) {
    static const struct device_sizes shapes[] = {
        {TESS_INDICES, 2, 8, 2, 2, 2, 1, 600, 1, 1, 200, 0, 0, 0, 0, 1, 1},
        {TESS_INDICES, 1, 16, 1, 1, 1, 1, 900, 1, 1, 700, 0, 0, 0, 1, 0, 0},
        {TESS_BLOCK_BITS, 1, 2, 2, 1, 2, 150, 400, 64, 64, 42, 0, 0, 0, 0, 0, 0},
        {TESS_INDICES, 1, 2, 1, 1, 1, 200, 300, 128, 32, 6, 0, 0, 0, 0, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int type = TESS_F32; type <= TESS_BF16; type++) {
            struct device_lists l;
            struct lab_buffer image;
            struct tensors t;
            tess_plan *host;
            tess_error error = tess_error_init();
            device_lists_make(&l, &shapes[i], 7 + i);
            tess_problem problem = device_problem(&shapes[i], 32);
            problem.type = (tess_type)type;
            problem.part_keys = INT64_MAX;
            problem.tile_rows = shapes[i].block_q == 1 ? 1 : 64;
            tensors_make(&t, &problem, 3);
            tess_pattern *pattern = device_lists_pattern(&l);
            assert_int_equal(tess_plan_create(&host, &problem, pattern, NULL, &error), TESS_OK);
            tess_plan *plan = device_plan(&l, &problem, &image);
            device_fill(&l, plan, &image);
            tess_arguments a = arguments_of(&t, host, NULL);
            run(&t, host, &a);
            const uint64_t expected = bits_of(&t);
            a = arguments_of(&t, plan, device_image(&image));
            run(&t, plan, &a);
            assert_true(bits_of(&t) == expected);
            tess_plan_free(host);
            tess_plan_free(plan);
            tess_pattern_free(pattern);
            tensors_free(&t);
            lab_buffer_free(&image);
            device_lists_free(&l);
        }
}

/* The image and the outputs are the same for any number of threads, and filled anew. */
static void bits_for_any_threads(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct device_sizes s = device_sizes_draw(seed * 31);
        struct device_lists l;
        struct lab_buffer image[3];
        struct tensors t;
        uint64_t bits[3];
        device_lists_make(&l, &s, seed);
        tess_problem problem = device_problem(&s, 16);
        problem.part_keys = 128;
        tensors_make(&t, &problem, 3);
        for (int i = 0; i < 3; i++) {
            problem.threads = 1 + 2 * i;
            tess_plan *plan = device_plan(&l, &problem, &image[i]);
            device_fill(&l, plan, &image[i]);
            const tess_arguments a = arguments_of(&t, plan, device_image(&image[i]));
            run(&t, plan, &a);
            bits[i] = bits_of(&t);
            assert_true(bits[i] == bits[0]);
            assert_memory_equal(device_image(&image[i]), device_image(&image[0]),
                                tess_plan_image_size(plan));
            tess_plan_free(plan);
        }
        for (int i = 0; i < 3; i++)
            lab_buffer_free(&image[i]);
        tensors_free(&t);
        device_lists_free(&l);
    }
}

/* One image, counts that change between runs: none, all, none, some. */
static void counts_change_between_runs(void **state) {
    struct device_sizes s = device_small;
    struct device_lists l;
    struct lab_buffer image;
    struct tensors t;
    (void)state;
    s.counts = 1, s.n_kv = 900, s.capacity = 800, s.n_q = 2;
    device_lists_make(&l, &s, 6);
    for (int32_t i = 0; i < 1600; i++)
        ((int32_t *)(void *)l.listed.indices.data)[i] = i * 7 % 900;
    tess_problem problem = device_problem(&s, 16);
    problem.part_keys = 128;
    tensors_make(&t, &problem, 3);
    tess_plan *plan = device_plan(&l, &problem, &image);
    static const int32_t counts[][2] = {{0, 0}, {800, 800}, {0, 0}, {3, 799}, {800, 1}, {0, 0}};
    uint64_t empty = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        tess_fill_report report = tess_fill_report_init();
        memcpy(l.listed.counts.data, counts[i], sizeof counts[i]);
        device_lists_expect(&l);
        device_fill(&l, plan, &image);
        tess_pattern *pattern = device_lists_pattern(&l);
        const tess_arguments a = arguments_of(&t, plan, device_image(&image));
        run(&t, plan, &a);
        hold(&t, pattern, NULL, i);
        tess_pattern_free(pattern);
        assert_int_equal(tess_plan_report(plan, device_image(&image), &report, NULL), TESS_OK);
        if (counts[i][0] + counts[i][1] == 0) { /* splits follow real counts */
            assert_int_equal(report.items, 2);
            empty = empty ? empty : bits_of(&t);
            assert_true(bits_of(&t) == empty);
        } else {
            assert_true(report.items > 2);
        }
    }
    tess_plan_free(plan);
    tensors_free(&t);
    lab_buffer_free(&image);
    device_lists_free(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_serves_every_length), cmocka_unit_test(batches_are_apart),
        cmocka_unit_test(bits_of_host_plans),         cmocka_unit_test(bits_for_any_threads),
        cmocka_unit_test(counts_change_between_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
