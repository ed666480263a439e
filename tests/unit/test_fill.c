/*
 * Lists that live on the device, on the CPU: the rules, every form against the keys that its definition
 * lists, capacities, overflow and faults.
 *
 *     test_fill [CASES]     generated cases against the oracle; 150 unless given
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lab/fill/fill.h"
#include "support/device_run.h"

#include "lists/fill_rules.h"
#include "work/runs.h"
#include "plan/reserve.h"

static int64_t cases = 150;

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
    const struct fill_splits s = {100, 256, 4, 0, 0, 0}, whole = {100, 256, 4, 1, 0, 0};
    const struct fill_splits decode = {100, 32, 132, 1, 0, 0};
    static const int64_t of_decode[][2] = {{63, 1},    {64, 2},    {287, 8},   {1023, 31},
                                           {1087, 32}, {2048, 32}, {4095, 32}, {4223, 32},
                                           {4224, 33}, {8192, 64}};
    assert_int_equal(fill_share(&s, 7999), 1000);
    assert_int_equal(fill_share(&s, 8000), 1001);
    assert_int_equal(fill_parts(&s, 0, 1000), 1);
    assert_int_equal(fill_parts(&s, 899, 1000), 1);
    assert_int_equal(fill_parts(&s, 900, 1000), 2);
    assert_int_equal(fill_parts(&s, 511, 10), 1);
    assert_int_equal(fill_parts(&s, 512, 10), 2);
    assert_int_equal(fill_parts(&s, 9000, 1000), 10);
    assert_int_equal(fill_share(&whole, 3), 1);
    assert_int_equal(fill_share(&whole, 8000), 2000);
    assert_int_equal(fill_parts(&whole, 1900, 2000), 1);
    assert_int_equal(fill_parts(&whole, 3899, 2000), 1);
    assert_int_equal(fill_parts(&whole, 3900, 2000), 2);
    assert_int_equal(fill_parts(&whole, 1023, 10), 3);
    for (size_t i = 0; i < sizeof of_decode / sizeof *of_decode; i++)
        assert_int_equal(fill_parts(&decode, of_decode[i][0], 1), of_decode[i][1]);
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
    int64_t rounds = 0;
    (void)state;
    for (uint64_t x = 0; x < 3000; x++) {
        struct fill_splits s = {lab_below(2, 1, x, 5) * 50,
                                32 << lab_below(2, 2, x, 6),
                                1 + lab_below(2, 3, x, 130),
                                lab_below(2, 7, x, 2),
                                0,
                                0};
        const int64_t units = 1 + lab_below(2, 4, x, 40);
        if (lab_below(2, 9, x, 2))
            fill_last_round(&s, units);
        int64_t total = 0, extra = 0, split = 0, slots = 0;
        for (int64_t u = 0; u < units; u++)
            total += s.item + lab_below(x, 5, (uint64_t)u, 1 << lab_below(x, 6, (uint64_t)u, 17));
        const int64_t share = fill_share(&s, total);
        for (int64_t u = 0; u < units; u++) {
            const int64_t keys =
                lab_below(x, 5, (uint64_t)u, 1 << lab_below(x, 6, (uint64_t)u, 17));
            const int32_t parts = fill_unit_parts(&s, u, keys, share);
            rounds += parts > fill_parts(&s, keys, share);
            assert_true(parts >= 1 && (parts == 1 || keys / parts >= s.part_keys));
            assert_true(parts <= 32 || keys / parts >= 128);
            assert_true(parts <= fill_parts_most(&s, keys + lab_below(x, 8, (uint64_t)u, 99)));
            assert_true(!s.whole || parts == 1 || (s.item + keys) / parts >= share ||
                        (u >= s.last && parts <= s.last_parts && keys / parts >= FILL_LAST_KEYS));
            extra += parts - 1, split += parts > 1, slots += parts > 1 ? parts : 0;
        }
        const int64_t most = (s.last_parts > 1 ? 3 : 2) * s.workers - 1;
        assert_true(extra <= most && split <= most);
        assert_int_equal(slots, extra + split);
    }
    assert_true(rounds > 0);
}

/* Units behind the last whole round have parts for all workers. */
static void last_rounds_are_split(void **state) {
    struct fill_splits s = {.item = 100, .part_keys = 128, .workers = 132, .whole = 1};
    (void)state;
    fill_last_round(&s, 4104);
    assert_true(s.last == 4092 && s.last_parts == 11);
    assert_int_equal(fill_unit_parts(&s, 4091, 8192, 100000), 1);
    assert_int_equal(fill_unit_parts(&s, 4092, 8192, 100000), 11);
    assert_int_equal(fill_unit_parts(&s, 4092, 2304, 100000), 9);
    assert_int_equal(fill_unit_parts(&s, 4092, 511, 100000), 1);
    assert_int_equal(fill_unit_parts(&s, 4092, 8192, 400), 20);
    fill_last_round(&s, 131); /* shares split these */
    assert_int_equal(s.last_parts, 0);
    fill_last_round(&s, 264);
    assert_int_equal(s.last_parts, 0);
    s.whole = 0;
    fill_last_round(&s, 4104);
    assert_int_equal(s.last_parts, 0);
}

/* Parts of decode: each key once, none without keys, and cut where groups of keys end; of lists long and short. */
static void parts_cover_keys_once(void **state) {
    (void)state;
    static const int64_t firsts[] = {0, 65536 - 200, INT64_C(1) << 30};
    for (int i = 0; i < 3; i++)
        for (int64_t keys = firsts[i]; keys < firsts[i] + 400; keys += 13)
            for (int32_t parts = 1; parts <= 1 + fill_least(keys, 3000) / DECODE_CHUNK; parts++) {
                int64_t at = 0;
                for (int32_t part = 0; part < parts; part++) {
                    int64_t begin, end;
                    fill_part(keys, part, parts, &begin, &end);
                    assert_int_equal(begin, at);
                    assert_true(end > begin || keys == 0);
                    assert_true(part + 1 == parts || end % DECODE_CHUNK == 0);
                    at = end;
                }
                assert_int_equal(at, keys);
            }
}

/* ---- cases against the oracle ---- */

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
    const struct fill_job job = reserve_job(plan, plan->parts, NULL, image);
    const struct fill_arrays *a = &job.arrays;
    const int64_t tiles = job.shape->batches * job.shape->heads * job.shape->tiles;
    for (int64_t T = 0; T < tiles; T++) {
        const int64_t masked =
            LIST_MASKED_KINDS * T + (job.shape->form == TESS_MASK ? LIST_BITS : LIST_BAND);
        int64_t total = 0;
        keys_are_found(&a->full[a->full_ptr[T]].key, 2, a->full_end[T] - a->full_ptr[T], a->keys[T],
                       &total);
        keys_are_found(&a->masked[a->masked_ptr[masked]].key, 4,
                       a->masked_end[masked] - a->masked_ptr[masked], a->keys[T], &total);
        assert_int_equal(total, a->keys[T]);
    }
}

/* Element (r, key) of tile T: of a full run, or of a run of bits whose row has the bit. */
static int element(const struct fill_job *job, int64_t T, int64_t r, int64_t key) {
    const struct fill_arrays *a = &job->arrays;
    const int64_t bits = LIST_MASKED_KINDS * T + LIST_BITS;
    int found = 0;
    for (int64_t i = a->full_ptr[T]; i < a->full_end[T]; i++)
        found += key >= a->full[i].key && key < a->full[i].key + a->full[i].count;
    for (int64_t i = a->masked_ptr[bits]; i < a->masked_end[bits]; i++) {
        const struct list_masked *run = &a->masked[i];
        const int64_t c = key - run->key, word = run->u.word + c * fill_words(job->shape) + r / 64;
        found += c >= 0 && c < run->count && (a->words[word] >> r % 64 & 1);
    }
    return found;
}

/* A mask's lists pair by pair, against what tess_pattern_from_mask is handed: the elements listed today. */
static void masks_are_exact(const struct device_lists *l, const tess_plan *plan,
                            const void *image) {
    const struct fill_job job = reserve_job(plan, plan->parts, NULL, image);
    const struct fill_shape *s = job.shape;
    for (int64_t T = 0; T < s->batches * s->heads * s->tiles && s->form == TESS_MASK; T++) {
        const int64_t list = T / s->tiles, first = fill_tile_row(s, T % s->tiles);
        for (int64_t i = first; i < fill_tile_row(s, T % s->tiles + 1); i++)
            for (int64_t key = 0; key < s->n_kv; key++)
                if (element(&job, T, i - first, key) !=
                    l->mask[(list * s->n_q + i) * s->n_kv + key])
                    fail_msg("list %d: query %d lists key %d %d times", (int)list, (int)i, (int)key,
                             element(&job, T, i - first, key));
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
    problem.o_f32 = PICK(40, 0, 0, 1);
    cache_draw(&problem, seed);
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
    tensors_store(&t);
    tess_plan *plan = device_plan(&l, &problem, &image);
    device_fill(&l, plan, &image);
    tiles_are_walked(plan, device_image(&image));
    masks_are_exact(&l, plan, device_image(&image));
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
    struct device_lists l;
    (void)state;
    device_lists_make(&l, &device_small, 1);
    for (size_t i = 0; i < DEVICE_PADDINGS; i++) {
        for (int64_t row = 0; row < 3; row++)
            memcpy(l.listed.indices.data + row * (int64_t)sizeof *device_paddings,
                   device_paddings[(i + (size_t)row) % DEVICE_PADDINGS], sizeof *device_paddings);
        lists_hold(&l);
    }
    device_lists_free(&l);
}

/* Lists longer than 65536 blocks are sorted by more digits. */
static void far_keys_are_sorted(void **state) {
    struct device_sizes s = device_small;
    struct device_lists l;
    (void)state;
    s.n_kv = 70001, s.capacity = 300, s.n_q = 1;
    device_lists_make(&l, &s, 3);
    for (int64_t i = 0; i < 300; i++)
        ((int32_t *)(void *)l.listed.indices.data)[i] =
            (int32_t)(i % 100 + (i / 100 == 1 ? 65536 : 0)); /* equal but for the high digits */
    lists_hold(&l);
    device_lists_free(&l);
}

static void counts_at_the_capacity(void **state) {
    struct device_sizes s = device_small;
    struct device_lists l;
    (void)state;
    s.counts = 1;
    device_lists_make(&l, &s, 2);
    int32_t *counts = (int32_t *)(void *)l.listed.counts.data;
    for (int32_t x = -1; x <= 8; x++) {
        counts[0] = x, counts[1] = 6 - x, counts[2] = x == 0 ? INT32_MIN : INT32_MAX;
        lists_hold(&l);
    }
    assert_true(l.report.faults > 0 && l.report.overflows > 0);
    device_lists_free(&l);
}

/* Bits and rows of as many blocks as fit, one fewer and one more. */
static void blocks_at_the_capacity(void **state) {
    static const tess_form forms[] = {TESS_BLOCK_BITS, TESS_BLOCK_ROWS};
    (void)state;
    for (int form = 0; form < 2; form++)
        for (int64_t more = -1; more <= 1; more++) {
            struct device_sizes s = device_small;
            struct device_lists l;
            s.form = forms[form], s.batch = 2, s.list_batch = 1, s.capacity = 9;
            device_lists_make(&l, &s, 4);
            if (form == 0)
                for (int64_t row = 0; row < 3; row++)
                    ((uint64_t *)(void *)l.listed.bits.data)[row] =
                        row < 2 ? UINT64_C(0x8000000041) : UINT64_C(0xff) >> (5 - more);
            else
                for (int64_t row = 0; row <= 3; row++)
                    ((int64_t *)(void *)l.listed.row_ptr.data)[row] =
                        3 * row + (row == 3 ? more : 0);
            lists_hold(&l);
            assert_int_equal(l.report.overflows, more == 1 ? 2 : 0); /* for each of two batches */
            device_lists_free(&l);
        }
}

/* Rows that say the same place twice, which a planner cannot trust, fill no more than there is. */
static void rows_that_overlap(void **state) {
    struct device_sizes s = device_small;
    struct device_lists l;
    (void)state;
    s.form = TESS_BLOCK_ROWS, s.list_heads = 2, s.heads_kv = 2, s.capacity = 9;
    device_lists_make(&l, &s, 4);
    static const int64_t ptr[] = {0, 9, 5, 9, 0, 9, 9, 9};
    memcpy(l.listed.row_ptr.data, ptr, sizeof ptr);
    lists_hold(&l);
    assert_true(l.report.overflows == 2 && l.report.faults == 1);
    device_lists_free(&l);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_of_ranges),         cmocka_unit_test(cuts_are_exact),
        cmocka_unit_test(splits_are_these),       cmocka_unit_test(splits_keep_their_bounds),
        cmocka_unit_test(last_rounds_are_split),  cmocka_unit_test(right_within_the_bounds),
        cmocka_unit_test(padding_anywhere),       cmocka_unit_test(far_keys_are_sorted),
        cmocka_unit_test(counts_at_the_capacity), cmocka_unit_test(blocks_at_the_capacity),
        cmocka_unit_test(rows_that_overlap),      cmocka_unit_test(parts_cover_keys_once),
    };
    cases = argc > 1 ? atoll(argv[1]) : cases;
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
