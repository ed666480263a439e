/*
 * Lists that live on the device, on the CPU: the rules, every form against the keys that its definition
 * lists, lengths, cuts, overflow and faults, the bits of host plans, threads, and what is refused.
 *
 *     test_fill [CASES]     generated cases against the oracle; 150 unless given
 */
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

#include "lab/fill.h"
#include "lab/half.h"
#include "lab/rng.h"
#include "support/device_lists.h"

#include "lists/fill_rules.h"
#include "lists/fill_walk.h"
#include "plan/reserve.h"

static int64_t cases = 150;

/* ---- tensors of a case ---- */

struct tensors {
    struct lab_tensor q, k, v, o, lse;
    struct lab_buffer workspace;
};

static void tensor_make(struct lab_tensor *t, tess_type type, int64_t batch, int64_t heads,
                        int64_t n, int64_t d) {
    const int64_t size[4] = {batch, heads, n, d};
    if (lab_tensor_make(t, type, size, LAB_BHND, 16) != 0)
        fail_msg("no memory");
}

static void tensor_draw(struct lab_tensor *t, uint64_t seed) {
    const int64_t *n = t->view.size;
    for (int64_t b = 0; b < n[0]; b++)
        for (int64_t h = 0; h < n[1]; h++)
            for (int64_t i = 0; i < n[2] * n[3]; i++)
                lab_put(t->view.data, t->view.type, lab_row(&t->view, b, h, i / n[3]) + i % n[3],
                        lab_normal(seed, (uint64_t)(b * n[1] + h), (uint64_t)i));
}

static void tensors_make(struct tensors *t, const tess_problem *p, uint64_t seed) {
    tensor_make(&t->q, p->type, p->batch, p->heads_q, p->n_q, p->d_qk);
    tensor_make(&t->k, p->type, p->batch, p->heads_kv, p->n_kv, p->d_qk);
    tensor_make(&t->v, p->type, p->batch, p->heads_kv, p->n_kv, p->d_v);
    tensor_make(&t->o, p->type, p->batch, p->heads_q, p->n_q, p->d_v);
    tensor_make(&t->lse, TESS_F32, p->batch, p->heads_q, p->n_q, 1);
    tensor_draw(&t->q, seed);
    tensor_draw(&t->k, seed + 1);
    tensor_draw(&t->v, seed + 2);
    t->workspace = (struct lab_buffer){0};
}

static void tensors_free(struct tensors *t) {
    lab_tensor_free(&t->q);
    lab_tensor_free(&t->k);
    lab_tensor_free(&t->v);
    lab_tensor_free(&t->o);
    lab_tensor_free(&t->lse);
    lab_buffer_free(&t->workspace);
}

/* The arguments of a run into poisoned outputs, with a workspace of the plan's size. */
static tess_arguments arguments_of(struct tensors *t, const tess_plan *plan, const void *image) {
    tess_arguments a = tess_arguments_init();
    lab_buffer_free(&t->workspace);
    t->workspace = setting_workspace(plan);
    lab_tensor_poison(&t->o);
    lab_tensor_poison(&t->lse);
    a.q = &t->q.view, a.k = &t->k.view, a.v = &t->v.view, a.o = &t->o.view, a.lse = &t->lse.view;
    a.workspace = t->workspace.data, a.workspace_size = tess_plan_workspace_size(plan);
    a.image = image, a.image_size = image ? tess_plan_image_size(plan) : 0;
    return a;
}

static void run(struct tensors *t, const tess_plan *plan, const tess_arguments *a) {
    tess_error error = tess_error_init();
    char why[LAB_WHY];
    if (tess_run(plan, a, &error, NULL))
        fail_msg("%s", error.message);
    if (lab_buffer_check(&t->workspace, "workspace", why) || lab_tensor_check(&t->o, "o", why) ||
        lab_tensor_check(&t->lse, "lse", why))
        fail_msg("%s", why);
}

static uint64_t bits_of(const struct tensors *t) {
    return lab_buffer_hash(&t->o.buffer) ^ 3 * lab_buffer_hash(&t->lse.buffer);
}

/* ---- the rules ---- */

static void ends_of_ranges(void **state) {
    (void)state;
    assert_int_equal(fill_range_end(0, 9), 0);
    assert_int_equal(fill_range_end(9, 9), 9);
    assert_int_equal(fill_range_end(INT32_MAX, 9), 9);
    assert_int_equal(fill_range_end(-1, 9), 9);
    assert_int_equal(fill_range_end(-5, 9), 5);
    assert_int_equal(fill_range_end(-11, 9), 0);
    assert_int_equal(fill_range_end(INT32_MIN, INT32_MAX), 0);
    assert_int_equal(fill_range_end(-1, INT32_MAX), INT32_MAX);
    assert_int_equal(fill_blocks(INT32_MAX, 128), 1 << 24);
}

/* Every filler splits alike: the numbers themselves. */
static void splits_are_these(void **state) {
    (void)state;
    const struct fill_splits s = {100, 256, 4};
    assert_int_equal(fill_share(&s, 7999), 1000);
    assert_int_equal(fill_share(&s, 8000), 1001);
    assert_int_equal(fill_parts(&s, 0, 1000), 1);
    assert_int_equal(fill_parts(&s, 899, 1000), 1);
    assert_int_equal(fill_parts(&s, 900, 1000), 2);
    assert_int_equal(fill_parts(&s, 511, 10), 1);
    assert_int_equal(fill_parts(&s, 512, 10), 2);
    assert_int_equal(fill_parts(&s, 9000, 1000), 10);
}

/* Runs of a cut: each listed pair once, no key that no row lists, and full ones where all rows do. */
static void cuts_are_exact(void **state) {
    (void)state;
    for (int64_t x = 0; x < 200000; x++) {
        const int32_t rows = 1 + (int32_t)lab_below(1, 1, (uint64_t)x, 9);
        const int64_t lo = lab_below(1, 2, (uint64_t)x, 30) - 20;
        const int64_t hi = lo + lab_below(1, 3, (uint64_t)x, 25);
        const struct fill_cut cut = fill_cut_at(lo, hi, lab_below(1, 4, (uint64_t)x, 40) - 9, rows);
        const int32_t begin = (int32_t)lab_below(1, 5, (uint64_t)x, 30);
        const int32_t end = begin + (int32_t)lab_below(1, 6, (uint64_t)x, 20);
        struct fill_run runs[3];
        const int32_t n = fill_range_cut(&cut, begin, end, runs);
        int64_t pairs = 0, counted = 0;
        for (int32_t j = begin; j < end; j++) {
            int32_t in = 0, listing = 0;
            for (int32_t r = 0; r < rows; r++)
                listing += cut.low <= j - r && j - r <= cut.high;
            for (int32_t i = 0; i < n; i++) {
                if (j < runs[i].begin || j >= runs[i].end)
                    continue;
                in++;
                assert_true(listing > 0 && (!runs[i].full || listing == rows));
            }
            assert_int_equal(in, listing > 0);
            pairs += listing;
        }
        for (int32_t i = 0; i < n; i++)
            counted +=
                runs[i].begin < runs[i].end ? fill_pairs(&cut, runs[i].begin, runs[i].end) : 0;
        assert_int_equal(counted, pairs);
    }
}

/* Bounds that sizes rest on. */
static void splits_keep_their_bounds(void **state) {
    (void)state;
    for (uint64_t x = 0; x < 3000; x++) {
        const struct fill_splits s = {lab_below(2, 1, x, 5) * 50, 128 << lab_below(2, 2, x, 4),
                                      1 + lab_below(2, 3, x, 130)};
        const int64_t units = 1 + lab_below(2, 4, x, 40);
        int64_t total = 0, extra = 0, split = 0, slots = 0;
        for (int64_t u = 0; u < units; u++)
            total += s.item + lab_below(x, 5, (uint64_t)u, 1 << lab_below(x, 6, (uint64_t)u, 17));
        const int64_t share = fill_share(&s, total);
        for (int64_t u = 0; u < units; u++) {
            const int64_t keys =
                lab_below(x, 5, (uint64_t)u, 1 << lab_below(x, 6, (uint64_t)u, 17));
            const int32_t parts = fill_parts(&s, keys, share);
            assert_true(parts >= 1 && (parts == 1 || keys / parts >= s.part_keys));
            extra += parts - 1, split += parts > 1, slots += parts > 1 ? parts : 0;
        }
        assert_true(extra <= 2 * s.workers - 1 && split <= 2 * s.workers - 1);
        assert_int_equal(slots, extra + split);
    }
}

/* ---- cases against the oracle ---- */

static int64_t pick(uint64_t seed, uint64_t what, const int64_t *from, int64_t n) {
    return from[lab_below(seed, 77, what, n)];
}
#define PICK(what, ...)                                                                            \
    pick(seed, what, (const int64_t[]){__VA_ARGS__},                                               \
         sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

/* Holds o and lse against the oracle over the same keys as a host pattern. */
static void hold(const struct tensors *t, const tess_pattern *pattern,
                 const struct lab_scoring *scoring, uint64_t seed) {
    struct lab_oracle oracle;
    struct lab_report report;
    if (lab_oracle_run(&oracle, &t->q.view, &t->k.view, &t->v.view, pattern, scoring, NULL, 0))
        fail_msg("no memory");
    lab_compare(&report, &oracle, &t->o.view, &t->lse.view, 256);
    if (!report.ok)
        fail_msg("seed %llu: %s", (unsigned long long)seed, report.message);
    lab_oracle_free(&oracle);
}

/* Keys found by their number are those of a walk from run to run. */
static void keys_are_found(const int32_t *at, int32_t stride, int64_t n, int64_t all,
                           int64_t *total) {
    const struct fill_runs runs = fill_runs_of(at, stride, n, all);
    int32_t key = 0;
    for (int32_t run = 0; run < n; run++)
        for (int32_t c = 0; c < at[run * stride + 1]; c++) {
            int32_t x = key++;
            assert_int_equal(fill_run_find(&runs, &x), run);
            assert_int_equal(x, c);
        }
    assert_int_equal(runs.keys, key);
    *total += key;
}

static void tiles_are_walked(const tess_plan *plan, const void *image) {
    const struct fill_job job = reserve_job(plan, NULL, image);
    const struct fill_arrays *a = &job.arrays;
    const int64_t tiles = job.shape->batches * job.shape->heads * job.shape->tiles;
    for (int64_t T = 0; T < tiles; T++) {
        const int64_t band = LIST_MASKED_KINDS * T + LIST_BAND;
        int64_t total = 0;
        keys_are_found(&a->full[a->full_ptr[T]].key, 2, a->full_end[T] - a->full_ptr[T], a->keys[T],
                       &total);
        keys_are_found(&a->masked[a->masked_ptr[band]].key, 4,
                       a->masked_end[band] - a->masked_ptr[band], a->keys[T], &total);
        assert_int_equal(total, a->keys[T]);
    }
}

static void generated_case(uint64_t seed) {
    const struct device_sizes s = device_sizes_draw(seed);
    struct device_lists l;
    struct lab_buffer image;
    struct tensors t;
    float slopes[64], sinks[64];
    const uint64_t word = lab_random(seed, 5, 5);
    struct lab_scoring scoring = {0};
    device_lists_make(&l, &s, seed);
    tess_problem problem = device_problem(&s, PICK(20, 8, 16, 40, 64));
    problem.type = (tess_type)PICK(21, TESS_F32, TESS_F32, TESS_F16, TESS_BF16);
    problem.d_v = PICK(22, 8, 16, 24, 64);
    problem.part_keys = PICK(23, 0, 128);
    problem.threads = PICK(24, 1, 2, 3);
    problem.tile_rows = PICK(25, 0, 0, 0, 4, 16, 64);
    problem.softcap = (double)PICK(26, 0, 0, 5);
    problem.sink = PICK(27, 0, 0, 1);
    problem.alibi =
        s.batch == 1 && PICK(28, 0, 1); /* the oracle has one position for all batches */
    problem.dropout = PICK(29, 0, 0, 1) ? 0.25 : 0;
    for (int h = 0; h < 64; h++)
        slopes[h] = (float)(h % 3 - 1) * 0.05f, sinks[h] = (float)(h % 5) - 2;
    scoring.softcap = problem.softcap;
    scoring.alibi = problem.alibi ? slopes : NULL, scoring.sink = problem.sink ? sinks : NULL;
    scoring.dropped = problem.dropout > 0 ? 16384 : 0, scoring.seed = word;
    scoring.position = l.today[0] - s.n_kv;

    tensors_make(&t, &problem, seed);
    tess_pattern *pattern = device_lists_pattern(&l);
    if (lab_fill_poison(pattern, s.heads_q, &t.k.view, &t.v.view))
        fail_msg("no memory");
    tess_plan *plan = device_plan(&l, &problem, &image);
    device_fill(&l, plan, &image);
    tiles_are_walked(plan, device_image(&image));
    tess_arguments a = arguments_of(&t, plan, device_image(&image));
    a.alibi = scoring.alibi, a.sink = scoring.sink;
    a.seed = problem.dropout > 0 ? &word : NULL;
    run(&t, plan, &a);
    hold(&t, pattern, &scoring, seed);
    tess_pattern_free(pattern);
    tess_plan_free(plan);
    tensors_free(&t);
    lab_buffer_free(&image);
    device_lists_free(&l);
}

static void right_within_the_bounds(void **state) {
    (void)state;
    for (int64_t seed = 1; seed <= cases; seed++)
        generated_case((uint64_t)seed);
}

/* ---- capacities and padding ---- */

static const struct device_sizes small = {.form = TESS_INDICES,
                                          .batch = 1,
                                          .heads_q = 2,
                                          .heads_kv = 1,
                                          .list_batch = 1,
                                          .list_heads = 1,
                                          .n_q = 3,
                                          .n_kv = 40,
                                          .block_q = 1,
                                          .block_kv = 1,
                                          .capacity = 6};

/* Fills and runs what the arrays say now, and holds it against the oracle. */
static void lists_hold(struct device_lists *l) {
    const tess_problem problem = device_problem(&l->sizes, 16);
    struct lab_buffer image;
    struct tensors t;
    device_lists_expect(l);
    tensors_make(&t, &problem, 5);
    tess_pattern *pattern = device_lists_pattern(l);
    tess_plan *plan = device_plan(l, &problem, &image);
    device_fill(l, plan, &image);
    const tess_arguments a = arguments_of(&t, plan, device_image(&image));
    run(&t, plan, &a);
    hold(&t, pattern, NULL, 0);
    tess_pattern_free(pattern);
    tess_plan_free(plan);
    tensors_free(&t);
    lab_buffer_free(&image);
}

static void padding_anywhere(void **state) {
    static const int32_t rows[][6] = {
        {-1, 3, 39, 7, 0, 12},
        {3, 39, 7, 0, 12, -1},
        {3, -1, 39, -1, 7, -1},
        {-1, -1, -1, -1, -1, -1},
        {5, 5, 5, 5, 5, 5},
        {39, 38, 3, 2, 38, 39},
        {-2, 40, 4, INT32_MIN, INT32_MAX, 4},
        {0, 1, 2, 3, 4, 5},
    };
    struct device_lists l;
    (void)state;
    device_lists_make(&l, &small, 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int64_t row = 0; row < 3; row++)
            memcpy(l.indices.data + row * (int64_t)sizeof rows[i], rows[(i + (size_t)row) % 8],
                   sizeof rows[i]);
        lists_hold(&l);
    }
    device_lists_free(&l);
}

/* Lists longer than 65536 blocks are sorted by more digits. */
static void far_keys_are_sorted(void **state) {
    struct device_sizes s = small;
    struct device_lists l;
    (void)state;
    s.n_kv = 70001, s.capacity = 300, s.n_q = 1;
    device_lists_make(&l, &s, 3);
    for (int64_t i = 0; i < 300; i++)
        ((int32_t *)(void *)l.indices.data)[i] =
            (int32_t)(i % 100 + (i / 100 == 1 ? 65536 : 0)); /* equal but for the high digits */
    lists_hold(&l);
    device_lists_free(&l);
}

static void counts_at_the_capacity(void **state) {
    struct device_sizes s = small;
    struct device_lists l;
    (void)state;
    s.counts = 1;
    device_lists_make(&l, &s, 2);
    int32_t *counts = (int32_t *)(void *)l.counts.data;
    for (int32_t x = -1; x <= 8; x++) {
        counts[0] = x, counts[1] = 6 - x, counts[2] = x == 0 ? INT32_MIN : INT32_MAX;
        lists_hold(&l);
    }
    assert_true(l.faults > 0 && l.overflows > 0);
    device_lists_free(&l);
}

/* Bits and rows of as many blocks as fit, one fewer and one more. */
static void blocks_at_the_capacity(void **state) {
    static const tess_form forms[] = {TESS_BLOCK_BITS, TESS_BLOCK_ROWS};
    (void)state;
    for (int form = 0; form < 2; form++)
        for (int64_t more = -1; more <= 1; more++) {
            struct device_sizes s = small;
            struct device_lists l;
            s.form = forms[form], s.batch = 2, s.list_batch = 1, s.capacity = 9;
            device_lists_make(&l, &s, 4);
            if (form == 0)
                for (int64_t row = 0; row < 3; row++)
                    ((uint64_t *)(void *)l.bits.data)[row] =
                        row < 2 ? UINT64_C(0x8000000041) : UINT64_C(0xff) >> (5 - more);
            else
                for (int64_t row = 0; row <= 3; row++)
                    ((int64_t *)(void *)l.row_ptr.data)[row] = 3 * row + (row == 3 ? more : 0);
            lists_hold(&l);
            assert_int_equal(l.overflows, more == 1 ? 2 : 0); /* for each of two batches */
            device_lists_free(&l);
        }
}

/* Rows that say the same place twice, which a planner cannot trust, fill no more than there is. */
static void rows_that_overlap(void **state) {
    struct device_sizes s = small;
    struct device_lists l;
    (void)state;
    s.form = TESS_BLOCK_ROWS, s.list_heads = 2, s.heads_kv = 2, s.capacity = 9;
    device_lists_make(&l, &s, 4);
    static const int64_t ptr[] = {0, 9, 5, 9, 0, 9, 9, 9};
    memcpy(l.row_ptr.data, ptr, sizeof ptr);
    lists_hold(&l);
    assert_true(l.overflows == 2 && l.faults == 1);
    device_lists_free(&l);
}

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
    struct device_sizes s = small;
    s.form = TESS_RANGES, s.n_q = 1, s.n_kv = 300, s.capacity = 2, s.heads_q = 4, s.lengths = 1;
    struct device_lists l;
    struct lab_buffer image;
    struct tensors t;
    static const int32_t global_and_window[4] = {0, 4, -33, -1};
    device_lists_make(&l, &s, 1);
    memcpy(l.indices.data, global_and_window, sizeof global_and_window);
    for (int type = 0; type < 2; type++) {
        tess_problem problem = device_problem(&s, 32);
        problem.type = type ? TESS_BF16 : TESS_F32;
        tensors_make(&t, &problem, 3);
        tess_plan *plan = device_plan(&l, &problem, &image);
        for (int32_t length = 0; length <= 300; length += length < 40 ? 1 : 13) {
            const int64_t d = type ? 16 : 32; /* of floats that hold a row */
            struct guarded k = guarded_make(s.n_kv, d, length), v = guarded_make(s.n_kv, d, length);
            *(int32_t *)(void *)l.lengths.data = length;
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
    struct device_sizes s = small;
    s.form = TESS_RANGES, s.batch = 3, s.n_q = 2, s.n_kv = 200, s.capacity = 1, s.lengths = 1;
    s.cut_lo = -90, s.cut_hi = 0;
    struct device_lists l, one;
    struct lab_buffer image, image_one;
    struct tensors t, t_one;
    float slopes[2] = {0.25f, -0.125f};
    const uint64_t word = 99;
    device_lists_make(&l, &s, 1);
    static const int32_t lengths[] = {150, 0, 37}, all[] = {0, -1, 0, -1};
    memcpy(l.lengths.data, lengths, sizeof lengths);
    memcpy(l.indices.data, all, sizeof all);
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
    memcpy(one.indices.data, all, sizeof all);
    for (int64_t b = 0; b < 3; b++) {
        *(int32_t *)(void *)one.lengths.data = lengths[b];
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
    struct device_sizes s = small;
    struct device_lists l;
    struct lab_buffer image;
    struct tensors t;
    (void)state;
    s.counts = 1, s.n_kv = 900, s.capacity = 800, s.n_q = 2;
    device_lists_make(&l, &s, 6);
    for (int32_t i = 0; i < 1600; i++)
        ((int32_t *)(void *)l.indices.data)[i] = i * 7 % 900;
    tess_problem problem = device_problem(&s, 16);
    problem.part_keys = 128;
    tensors_make(&t, &problem, 3);
    tess_plan *plan = device_plan(&l, &problem, &image);
    static const int32_t counts[][2] = {{0, 0}, {800, 800}, {0, 0}, {3, 799}, {800, 1}, {0, 0}};
    uint64_t empty = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        tess_fill_report report = tess_fill_report_init();
        memcpy(l.counts.data, counts[i], sizeof counts[i]);
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

/* ---- refusals ---- */

static void reserve_refuses(const tess_problem *problem, const tess_device_pattern *pattern,
                            const tess_target *target, tess_status status, const char *argument,
                            const char *words) {
    tess_error error = tess_error_init();
    tess_plan *plan = (tess_plan *)&error;
    assert_int_equal(tess_plan_reserve(&plan, problem, pattern, target, &error), status);
    assert_null(plan);
    assert_string_equal(error.function, "tess_plan_reserve");
    if (argument)
        assert_string_equal(error.argument, argument);
    if (!strstr(error.message, words))
        fail_msg("'%s' does not say '%s'", error.message, words);
}

/* Whether the library was built with CUDA, on whatever machine. */
static int has_cuda(void) {
    tess_kernel_info kernel = tess_kernel_info_init();
    int found = 0;
    for (int64_t i = 0; tess_kernel_describe(i, &kernel, NULL) == TESS_OK; i++)
        found |= kernel.backend == TESS_CUDA;
    return found;
}

static void reserve_refuses_by_name(void **state) {
    (void)state;
    tess_problem p = device_problem(&small, 16);
    tess_device_pattern d = tess_device_pattern_init();
    d.n_q = 3, d.n_kv = 40, d.block_q = d.block_kv = 1, d.capacity = 6;
    tess_plan *plan;
    assert_int_equal(tess_plan_reserve(&plan, &p, &d, NULL, NULL), TESS_OK);
    tess_plan_free(plan);
    assert_int_equal(tess_plan_reserve(NULL, &p, &d, NULL, NULL), TESS_INVALID_ARGUMENT);
    reserve_refuses(NULL, &d, NULL, TESS_INVALID_ARGUMENT, "problem", "problem is NULL");
    reserve_refuses(&p, NULL, NULL, TESS_INVALID_ARGUMENT, "pattern", "NULL");
    const struct {
        size_t field;
        int64_t value;
        tess_status status;
        const char *words;
    } wrong[] = {
        {offsetof(tess_device_pattern, struct_size), 0, TESS_INVALID_ARGUMENT, "struct_size"},
        {offsetof(tess_device_pattern, n_q), 4, TESS_INVALID_ARGUMENT, "3 queries"},
        {offsetof(tess_device_pattern, n_kv), 41, TESS_INVALID_ARGUMENT, "40 keys"},
        {offsetof(tess_device_pattern, batch), 3, TESS_INVALID_ARGUMENT, "batches"},
        {offsetof(tess_device_pattern, heads), 5, TESS_INVALID_ARGUMENT, "heads"},
        {offsetof(tess_device_pattern, block_q), 3, TESS_UNSUPPORTED, "block_q is 3"},
        {offsetof(tess_device_pattern, block_q), 96, TESS_UNSUPPORTED, "block_q is 96"},
        {offsetof(tess_device_pattern, block_q), -64, TESS_UNSUPPORTED, "block_q is -64"},
        {offsetof(tess_device_pattern, block_kv), 48, TESS_UNSUPPORTED, "block_kv is 48"},
        {offsetof(tess_device_pattern, block_kv), 256, TESS_UNSUPPORTED, "block_kv is 256"},
        {offsetof(tess_device_pattern, block_kv), -1, TESS_UNSUPPORTED, "block_kv is -1"},
        {offsetof(tess_device_pattern, capacity), -1, TESS_INVALID_ARGUMENT, "capacity"},
        {offsetof(tess_device_pattern, capacity), INT64_C(1) << 31, TESS_INVALID_ARGUMENT,
         "2^31 - 1"},
        {offsetof(tess_device_pattern, cut_lo), 1, TESS_INVALID_ARGUMENT, "cut_lo"},
        {offsetof(tess_device_pattern, promises), 8, TESS_INVALID_ARGUMENT, "promises"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tess_device_pattern bad = d;
        memcpy((char *)&bad + wrong[i].field, &wrong[i].value, sizeof wrong[i].value);
        reserve_refuses(&p, &bad, NULL, wrong[i].status, "pattern", wrong[i].words);
    }
    tess_device_pattern bad = d;
    bad.form = (tess_form)4;
    reserve_refuses(&p, &bad, NULL, TESS_INVALID_ARGUMENT, "pattern", "form");
    bad = d, bad.form = TESS_RANGES, bad.capacity = 5;
    reserve_refuses(&p, &bad, NULL, TESS_INVALID_ARGUMENT, "pattern", "at most 4 ranges");
    bad.capacity = 4, bad.block_kv = 16;
    reserve_refuses(&p, &bad, NULL, TESS_UNSUPPORTED, "pattern", "ranges are of keys");
    tess_problem staged = p;
    staged.pipeline = TESS_STAGED;
    reserve_refuses(&staged, &d, NULL, TESS_UNSUPPORTED, "problem", "staged");
    tess_problem backward = p;
    backward.operation = TESS_ATTENTION_BACKWARD, backward.gradients = TESS_GRADIENT_Q;
    reserve_refuses(&backward, &d, NULL, TESS_UNSUPPORTED, "problem", "backward");
    const size_t of_slices[] = {offsetof(tess_problem, query_offset),
                                offsetof(tess_problem, key_offset),
                                offsetof(tess_problem, key_positions)};
    for (size_t i = 0; i < sizeof of_slices / sizeof *of_slices; i++) {
        tess_problem slice = p;
        slice.whole_n_q = p.n_q + 1, slice.whole_n_kv = p.n_kv + 1; /* p_0 stays */
        *(int64_t *)(void *)((char *)&slice + of_slices[i]) = 1;
        reserve_refuses(&slice, &d, NULL, TESS_UNSUPPORTED, "problem", "today's lengths");
    }
    tess_problem longer = p;
    longer.whole_n_kv = p.n_kv + 1;
    reserve_refuses(&longer, &d, NULL, TESS_UNSUPPORTED, "problem", "today's lengths");
    tess_problem named = p;
    named.kernel = "cpu_spmm_portable";
    reserve_refuses(&named, &d, NULL, TESS_UNSUPPORTED, "problem", "cpu_spmm_portable");
    tess_target target = tess_target_init();
    target.backend = TESS_CUDA, target.multiprocessors = 132, target.architecture = 90;
    if (!has_cuda())
        reserve_refuses(&p, &d, &target, TESS_NO_CUDA, "target", "CUDA");
    /* What no image holds: more entries than addresses. */
    p.n_q = 1 << 30, p.d_qk = p.d_v = 1;
    d.n_q = 1 << 30, d.capacity = INT32_MAX;
    reserve_refuses(&p, &d, NULL, TESS_INVALID_ARGUMENT, "pattern", "2^48");
}

static void fill_refuses(const tess_plan *plan, const tess_device_pattern *pattern, void *image,
                         size_t size, tess_status status, const char *words) {
    tess_error error = tess_error_init();
    assert_int_equal(tess_plan_fill(plan, pattern, image, size, &error, NULL), status);
    assert_string_equal(error.function, "tess_plan_fill");
    if (!strstr(error.message, words))
        fail_msg("'%s' does not say '%s'", error.message, words);
}

static void fill_and_run_refuse_by_name(void **state) {
    (void)state;
    struct device_sizes s = small;
    struct device_lists l;
    struct lab_buffer image;
    struct tensors t;
    tess_error error = tess_error_init();
    device_lists_make(&l, &s, 1);
    const tess_problem problem = device_problem(&s, 16);
    tensors_make(&t, &problem, 3);
    tess_plan *plan = device_plan(&l, &problem, &image), *host;
    tess_pattern *pattern = device_lists_pattern(&l);
    assert_int_equal(tess_plan_create(&host, &problem, pattern, NULL, &error), TESS_OK);
    char *memory = device_image(&image);
    const size_t size = tess_plan_image_size(plan);
    assert_true(size > 0 && tess_plan_image_size(host) == 0);

    fill_refuses(NULL, &l.pattern, memory, size, TESS_INVALID_ARGUMENT, "plan is NULL");
    fill_refuses(host, &l.pattern, memory, size, TESS_INVALID_ARGUMENT, "tess_plan_reserve");
    fill_refuses(plan, NULL, memory, size, TESS_INVALID_ARGUMENT, "NULL");
    fill_refuses(plan, &l.pattern, NULL, size, TESS_INVALID_ARGUMENT, "image");
    fill_refuses(plan, &l.pattern, memory + 64, size, TESS_INVALID_ARGUMENT, "image");
    fill_refuses(plan, &l.pattern, memory, size - 1, TESS_WORKSPACE_TOO_SMALL, "must have");
    tess_device_pattern bad = l.pattern;
    bad.capacity = 5;
    fill_refuses(plan, &bad, memory, size, TESS_INVALID_ARGUMENT, "capacity is 5");
    bad = l.pattern, bad.block_kv = 2;
    fill_refuses(plan, &bad, memory, size, TESS_INVALID_ARGUMENT, "block_kv is 2");
    bad = l.pattern, bad.cut_hi = 7;
    fill_refuses(plan, &bad, memory, size, TESS_INVALID_ARGUMENT, "cut_hi is 7");
    bad = l.pattern, bad.form = TESS_BLOCK_ROWS;
    fill_refuses(plan, &bad, memory, size, TESS_INVALID_ARGUMENT, "form");
    bad = l.pattern, bad.indices = NULL;
    fill_refuses(plan, &bad, memory, size, TESS_INVALID_ARGUMENT, "indices is NULL");
    bad = l.pattern, bad.bits = (const uint64_t *)(const void *)memory;
    fill_refuses(plan, &bad, memory, size, TESS_INVALID_ARGUMENT, "bits is given");
    bad = l.pattern, bad.lengths = (const int32_t *)(const void *)(memory + 2);
    fill_refuses(plan, &bad, memory, size, TESS_INVALID_ARGUMENT, "lengths is not aligned");
    for (size_t i = 0; i < size; i++)
        assert_int_equal((unsigned char)memory[i], 0xaa);

    /* Nothing was filled. */
    tess_fill_report report = tess_fill_report_init();
    assert_int_equal(tess_plan_report(plan, memory, &report, &error), TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_plan_report(NULL, memory, &report, &error), TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_plan_report(host, memory, &report, &error), TESS_INVALID_ARGUMENT);
    tess_arguments a = arguments_of(&t, plan, memory);
    assert_int_equal(tess_run(plan, &a, &error, NULL), TESS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "tess_plan_fill"));
    a.image = NULL;
    assert_int_equal(tess_run(plan, &a, &error, NULL), TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_plan_upload(plan, memory, size, &error, NULL), TESS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "tess_plan_fill"));

    device_fill(&l, plan, &image);
    assert_int_equal(tess_plan_report(plan, memory, NULL, &error), TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_plan_report(plan, memory + 4, &report, &error), TESS_INVALID_ARGUMENT);
    a.image = memory;
    a.image_size--;
    assert_int_equal(tess_run(plan, &a, &error, NULL), TESS_WORKSPACE_TOO_SMALL);
    /* An image of another plan. */
    struct lab_buffer other_image;
    l.pattern.capacity = 5, l.sizes.capacity = 5;
    tess_plan *other = device_plan(&l, &problem, &other_image);
    a = arguments_of(&t, other, memory);
    assert_int_equal(tess_run(other, &a, &error, NULL), TESS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "has not filled"));
    lab_buffer_free(&other_image);
    tess_plan_free(other);
    tess_plan_free(plan);
    tess_plan_free(host);
    tess_pattern_free(pattern);
    tensors_free(&t);
    lab_buffer_free(&image);
    device_lists_free(&l);
}

/* Zeros of a pattern mean their defaults; what a plan says of itself. */
static void defaults_and_words(void **state) {
    (void)state;
    struct device_sizes s = small;
    tess_problem problem = device_problem(&s, 16);
    tess_device_pattern p = tess_device_pattern_init();
    tess_plan *plan;
    char text[2000];
    p.n_q = 3, p.n_kv = 40;
    for (int form = TESS_INDICES; form <= TESS_RANGES; form++) {
        tess_plan_info info = tess_plan_info_init();
        p.form = (tess_form)form;
        assert_int_equal(tess_plan_reserve(&plan, &problem, &p, NULL, NULL), TESS_OK);
        assert_int_equal(tess_plan_describe(plan, &info, NULL), TESS_OK);
        assert_int_equal(info.query_tiles, 1);
        assert_int_equal(info.packed_keys, 0);
        assert_true(tess_plan_print(plan, text, sizeof text) < sizeof text);
        assert_non_null(strstr(text, form == TESS_RANGES ? "64 x 1 blocks" : "64 x 64 blocks"));
        assert_non_null(strstr(text, form == TESS_RANGES ? "capacity 4" : "capacity 1"));
        tess_plan_free(plan);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_of_ranges),
        cmocka_unit_test(cuts_are_exact),
        cmocka_unit_test(splits_are_these),
        cmocka_unit_test(splits_keep_their_bounds),
        cmocka_unit_test(right_within_the_bounds),
        cmocka_unit_test(padding_anywhere),
        cmocka_unit_test(far_keys_are_sorted),
        cmocka_unit_test(counts_at_the_capacity),
        cmocka_unit_test(blocks_at_the_capacity),
        cmocka_unit_test(rows_that_overlap),
        cmocka_unit_test(a_plan_serves_every_length),
        cmocka_unit_test(batches_are_apart),
        cmocka_unit_test(bits_of_host_plans),
        cmocka_unit_test(bits_for_any_threads),
        cmocka_unit_test(counts_change_between_runs),
        cmocka_unit_test(reserve_refuses_by_name),
        cmocka_unit_test(fill_and_run_refuse_by_name),
        cmocka_unit_test(defaults_and_words),
    };
    cases = argc > 1 ? atoll(argv[1]) : cases;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
