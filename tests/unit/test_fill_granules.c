/*
 * Granules of filled block lists, and keys of columns, as Hopper's forward walks them: over drawn images the scores
 * that steps of 64 places count are, each once, those of what the pattern lists and a page holds, tile by tile and
 * part by part.
 *
 *     test_fill_granules [CASES] [FIRST SEED]     300 from seed 1 unless given
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/device_lists.h"

#include "cpu.h"
#include "work/granules.h"
#include "plan/reserve.h"

enum { GROUP = 64, WORK = 400000, PAGES = 1000 };

static int64_t cases = 300, first_seed = 1;

/* Counts of what the draws had. */
static int64_t parts, cuts, shorts, whole_steps, empty_granules, absent_granules, masked_granules,
    columns, bands_of_columns;

/* ---- windows ---- */

/* Row r lists column c. */
static int listed(uint32_t window, int32_t r, int32_t c) {
    return c >= (int32_t)(window & 255) && c < (int32_t)(window >> 8 & 255) &&
           (int8_t)(window >> 16 & 255) <= c - r && c - r <= (int8_t)(window >> 24);
}

/* A thread's bits are those of its columns, for each row that a tile may have. */
static void bits_of_threads(void **state) {
    (void)state;
    for (int bits = 4; bits <= 6; bits++)
        for (uint64_t draw = 0; draw < 300; draw++) {
            const int32_t at = (int32_t)lab_below(draw, 1, 0, 128 >> bits);
            const int32_t key = 1280 + (int32_t)lab_below(draw, 1, 1, 128);
            const int32_t count = 1 + (int32_t)lab_below(draw, 1, 2, 1408 - key);
            const int32_t lo = draw % 3 ? (int32_t)lab_below(draw, 1, 3, 600) - 300 : -(1 << 30);
            const int32_t hi = draw % 4 ? lo + (int32_t)lab_below(draw, 1, 4, 300) : 1 << 30;
            const struct fill_granule g = fill_granule_of(key, count, lo, hi, 128, at, bits);
            assert_int_equal(g.key, 1280 + (at << bits));
            for (int32_t r = 0; r < FILL_GRANULE_ROWS; r++) {
                uint32_t row[4];
                for (int32_t t = 0; t < 4; t++)
                    row[t] = fill_window_row(g.window, r, 2 * t);
                for (int32_t c = 0; c < 1 << bits; c++) {
                    const int64_t of_run = g.key + c - key;
                    const int is =
                        of_run >= 0 && of_run < count && lo <= of_run - r && of_run - r <= hi;
                    assert_int_equal(row[c % 8 / 2] >> (c / 8 * 2 + c % 2) & 1, is);
                    assert_int_equal(listed(g.window, r, c), is);
                }
                for (int32_t t = 0; t < 4; t++)
                    assert_int_equal(row[t] >> ((1 << bits) / 4), 0);
            }
        }
}

/* ---- images ---- */

static struct device_sizes sizes_draw(uint64_t seed) {
    struct device_sizes s = {.form = (tess_form)PICK(0, 0, 1, 2, TESS_MASK)};
    s.batch = PICK(1, 1, 2);
    s.heads_kv = PICK(2, 1, 2);
    s.heads_q = s.heads_kv * PICK(3, 1, 2, 6);
    s.list_batch = PICK(4, 0, 1) ? 1 : s.batch;
    s.list_heads = pick(seed, 5, (const int64_t[]){1, s.heads_kv, s.heads_q}, 3);
    s.n_q = PICK(6, 8, 33, 70, 150, 300);
    s.n_kv = PICK(7, 40, 300, 700, 2100, 5000);
    s.block_q = PICK(8, 8, 16, 64, 128, 192);
    s.block_kv = PICK(9, 16, 32, 64, 128);
    if (s.form != TESS_MASK && PICK(24, 0, 0, 1))
        s.n_q = PICK(25, 192, 200, 300), s.block_q = PICK(26, 64, 128, 192),
        s.block_kv = PICK(27, 1, 2, 4, 8);
    while (s.n_kv > 1 && s.batch * s.list_heads * s.n_q * s.n_kv > WORK)
        s.n_kv = (s.n_kv + 1) / 2;
    const int64_t rows = (s.n_q + s.block_q - 1) / s.block_q;
    const int64_t cols = (s.n_kv + s.block_kv - 1) / s.block_kv;
    s.capacity = s.form == TESS_INDICES || s.form == TESS_MASK
                     ? cols
                     : s.list_batch * s.list_heads * rows * cols;
    s.hostile = (int)PICK(10, 0, 0, 1);
    if (PICK(13, 0, 1, 1)) {
        s.cut_lo = PICK(14, INT64_MIN, -9, -70, -600);
        s.cut_hi = PICK(15, 0, 4, INT64_MAX, 90);
    }
    s.counts = s.form == TESS_INDICES && PICK(16, 0, 1);
    s.lengths = (int)PICK(17, 0, 1, 1);
    return s;
}

/* An image, and how often each row of a tile's lists counts each key. */
struct walk {
    const struct device_lists *lists;
    const struct fill_job *job;
    int32_t width, bits, each, tile_heads;
    int32_t shift, columns;
    int32_t *table;   /* [batch][columns], PAGES pages; NULL: not paged */
    uint8_t *counted; /* [tile_rows][n_kv] of a tile of packed heads */
};

/* Whether a key of list `list` has a page. */
static int has_page(const struct walk *w, int64_t list, int64_t key) {
    const int64_t batch = list / w->job->shape->heads;
    return !w->table ||
           fill_page(w->table + batch * w->columns, (int32_t)key, w->shift, PAGES) >= 0;
}

/* Granule `at` of a tile, as the kernel's producer finds it. */
static struct fill_granule granule_at(const struct walk *w, int64_t T, int32_t full, int32_t at) {
    const struct fill_arrays *a = &w->job->arrays;
    const int32_t n = at < full ? at : at - full, within = n & ((1 << w->each) - 1);
    struct fill_granule g;
    if (at < full) {
        const struct list_run *run = &a->full[a->full_ptr[T] + (n >> w->each)];
        g = fill_granule_of(run->key, run->count, -FILL_NO_LIMIT, FILL_NO_LIMIT, w->width, within,
                            w->bits);
    } else {
        const struct list_masked *run = &a->masked[a->full_ptr[T] + (n >> w->each)];
        const int bits = w->job->shape->form == TESS_MASK;
        g = fill_granule_of(run->key, run->count, bits ? -FILL_NO_LIMIT : run->u.band.lo,
                            bits ? FILL_NO_LIMIT : run->u.band.hi, w->width, within, w->bits);
    }
    if (w->job->shape->form == TESS_MASK && at >= full) {
        const int some = g.window && fill_granule_listed(a->listed, a->full_ptr[T] + (n >> w->each),
                                                         within, w->each, w->bits);
        g.window = some ? FILL_WINDOW_BITS : 0;
        masked_granules += some;
    }
    if (g.window && !has_page(w, T / w->job->shape->tiles, g.key))
        g.window = 0, absent_granules++;
    return g;
}

/* The first granules of an item that need no window: of `whole` those before the first without a page. */
static int32_t whole_before(const struct walk *w, int64_t T, int32_t begin, int32_t whole) {
    const struct list_run *runs = w->job->arrays.full + w->job->arrays.full_ptr[T];
    for (int32_t at = 0; at < whole; at++) {
        const int32_t n = begin + at, within = n & ((1 << w->each) - 1);
        if (!has_page(w, T / w->job->shape->tiles, runs[n >> w->each].key + (within << w->bits)))
            return at;
    }
    return whole;
}

/* Pages of each batch, of which some are not there. */
static void pages_draw(struct walk *w, int64_t page, uint64_t seed) {
    const int64_t batches = w->job->shape->batches;
    w->columns = (int32_t)((w->job->shape->n_kv + page - 1) / page);
    w->shift = __builtin_ctzll((unsigned long long)page);
    w->table = malloc((size_t)(batches * w->columns) * sizeof *w->table);
    assert_non_null(w->table);
    for (int64_t i = 0; i < batches * w->columns; i++) {
        const int64_t draw = lab_below(seed, 2, (uint64_t)i, 30);
        w->table[i] = (int32_t)(draw == 0   ? -1
                                : draw == 1 ? PAGES
                                : draw == 2 ? INT32_MIN + i
                                            : (7 * i + draw) % PAGES);
    }
}

static struct fill_granules granules_of(const struct walk *w, int64_t T) {
    const struct fill_arrays *a = &w->job->arrays;
    const int64_t n = a->full_end[T] - a->full_ptr[T],
                  masked = LIST_MASKED_KINDS * T +
                           (w->job->shape->form == TESS_MASK ? LIST_BITS : LIST_BAND);
    const struct list_run *runs = a->full + a->full_ptr[T];
    return fill_granules_of(n, a->masked_end[masked] - a->masked_ptr[masked], n ? runs->count : 0,
                            n ? runs[n - 1].count : 0, w->width, w->each);
}

/* Columns of a granule of bits that row r lists, as fill_window_row has them. */
static uint32_t masked_row(const struct walk *w, int64_t T, int32_t key, int32_t r, int32_t t2) {
    const struct fill_shape *s = w->job->shape;
    uint32_t bits = 0;
    for (int32_t i = 0; i < 1 << (w->bits - 2); i++) {
        const int64_t word = fill_word(s, T, key + 8 * (i / 2) + t2 + i % 2) + r / 64;
        bits |= (uint32_t)(w->job->arrays.words[word] >> r % 64 & 1) << i;
    }
    return bits;
}

/* One step: places of up to 64 / size granules from `at` on, up to `past`. A consumer's thread has two rows
 * and the columns 8 j + 2 t, + 1. */
static void step_count(const struct walk *w, int64_t T, int32_t full, int32_t at, int32_t past,
                       int unmasked) {
    const int64_t n_kv = w->job->shape->n_kv;
    const int32_t tile_rows = w->job->shape->tile_rows, size = 1 << w->bits;
    struct fill_granule step[GROUP / FILL_GRANULE_LEAST] = {{0, 0}};
    for (int32_t i = 0; i < GROUP >> w->bits && at + i < past; i++) {
        step[i] = granule_at(w, T, full, at + i);
        assert_int_equal(step[i].key % size, 0);
        empty_granules += !step[i].window, shorts += fill_window_short(step[i].window, w->bits);
        if (unmasked)
            assert_int_equal(step[i].window, (uint32_t)size << 8 | 0x7f800000);
    }
    for (int32_t r = 0; r < tile_rows; r++)
        for (int32_t t2 = 0; t2 < 8; t2 += 2) {
            uint32_t bits = 0;
            for (int32_t i = 0; i < GROUP >> w->bits; i++)
                bits |=
                    (step[i].window == FILL_WINDOW_BITS ? masked_row(w, T, step[i].key, r, t2)
                                                        : fill_window_row(step[i].window, r, t2))
                    << (i << (w->bits - 2));
            for (int32_t bit = 0; bit < 16; bit++) {
                const int32_t place = bit / 2 * 8 + t2 + bit % 2;
                const int64_t key = step[place >> w->bits].key + place % size;
                if (!(bits >> bit & 1))
                    continue;
                assert_true(key < n_kv);
                w->counted[r * n_kv + key]++;
            }
        }
    whole_steps += unmasked;
}

/* One step of columns: places at ... at + GROUP - 1 of an item whose granules begin at `begin`. */
static void columns_count(const struct walk *w, int64_t T, const struct fill_granules *g,
                          int32_t begin, int32_t at, int32_t past, int unmasked) {
    const struct fill_arrays *a = &w->job->arrays;
    const int32_t rows = w->job->shape->tile_rows;
    for (int32_t place = at; place < at + GROUP && place < past; place++) {
        const int32_t n = begin + (place >> w->bits), c = place & (w->width - 1);
        const struct list_run *run = &a->full[a->full_ptr[T] + n];
        const struct list_masked *band = &a->masked[a->full_ptr[T] + n - g->full];
        const struct fill_column column =
            n < g->full ? fill_column_of(run->key, run->count, -FILL_NO_LIMIT, FILL_NO_LIMIT,
                                         w->width, c, rows)
                        : fill_column_of(band->key, band->count, band->u.band.lo, band->u.band.hi,
                                         w->width, c, rows);
        assert_true(!unmasked || (column.key >= 0 && column.count == rows));
        assert_true(column.first >= 0 && column.first + column.count <= rows);
        for (int32_t r = column.first; r < column.first + column.count; r++)
            w->counted[r * w->job->shape->n_kv + column.key]++;
        bands_of_columns += n >= g->full && column.count > 0 && column.count < rows;
    }
    columns++;
}

static void item_count(const struct walk *w, const struct work_item *item) {
    const struct fill_job *job = w->job;
    const int64_t T = item->batch_head / job->list_packs * job->shape->tiles + item->tile;
    const struct fill_granules g = granules_of(w, T);
    const int32_t n = g.full + g.bands;
    const int32_t begin = fill_granules_before(n, item->part, item->parts, w->bits);
    const int32_t past = fill_granules_before(n, item->part + 1, item->parts, w->bits);
    const int32_t whole = whole_before(w, T, begin, fill_between(g.whole - begin, 0, past - begin));
    assert_true(item->parts == 1 || past > begin);
    assert_int_equal((begin << w->bits) % SCHEDULE_CHUNK, 0);
    for (int32_t at = 0; w->bits < 4 && at < (past - begin) << w->bits; at += GROUP)
        columns_count(w, T, &g, begin, at, (past - begin) << w->bits,
                      at + GROUP <= whole << w->bits);
    for (int32_t at = begin; w->bits >= 4 && at < past; at += GROUP >> w->bits)
        step_count(w, T, g.full, at, past, (at - begin + (GROUP >> w->bits)) <= whole);
    parts += item->parts > 1;
}

/* Holds the counts of a tile to what its queries list. */
static void tile_hold(const struct walk *w, const struct work_item *item, uint64_t seed) {
    const struct fill_shape *s = w->job->shape;
    const struct device_sizes *sizes = &w->lists->sizes;
    const int64_t list = item->batch_head / w->job->list_packs;
    const int64_t row = fill_tile_row(s, item->tile), rows = fill_tile_row(s, item->tile + 1) - row;
    const uint8_t *mask = w->lists->mask + (list * sizes->n_q + row) * s->n_kv;
    for (int64_t i = 0; i < rows * s->n_kv; i++)
        if (w->counted[i] != (mask[i] && has_page(w, list, i % s->n_kv)))
            fail_msg("seed %llu: tile %d of list %lld, row %lld, key %lld: %d times, listed %d",
                     (unsigned long long)seed, item->tile, (long long)list,
                     (long long)(i / s->n_kv), (long long)(i % s->n_kv), w->counted[i], mask[i]);
}

static tess_plan *plan_of(const struct device_lists *l, uint64_t seed) {
    static const char *const names[] = {"cuda_decode_bf16_sm90_blocks_d64",
                                        "cuda_decode_bf16_sm90_blocks_d128",
                                        "cuda_decode_bf16_sm90_blocks_d128_r128"};
    static const char *const of_columns[] = {"cuda_decode_bf16_sm90_columns_d64",
                                             "cuda_decode_bf16_sm90_columns_d128_r128",
                                             "cuda_decode_bf16_sm90_columns_d128_r192"};
    tess_problem problem = device_problem(&l->sizes, 64);
    tess_target target = tess_target_init();
    const tess_device_pattern declared = lab_listed_declared(&l->listed);
    tess_error error = tess_error_init();
    tess_plan *plan;
    target.backend = TESS_CUDA, target.architecture = 90;
    target.multiprocessors = (int32_t)PICK(20, 1, 4, 132);
    problem.type = TESS_BF16, problem.alignment = 16, problem.kernel = names[PICK(21, 0, 1, 2)];
    if (l->sizes.block_kv < FILL_GRANULE_LEAST)
        problem.kernel = of_columns[l->sizes.block_q / 64 - 1];
    if (tess_plan_reserve(&plan, &problem, &declared, &target, &error))
        fail_msg("seed %llu: %s", (unsigned long long)seed, error.message);
    return plan;
}

static void generated_case(uint64_t seed) {
    const struct device_sizes sizes = sizes_draw(seed);
    struct device_lists l;
    tess_error error = tess_error_init();
    tess_device_pattern given;
    device_lists_make(&l, &sizes, seed);
    tess_plan *plan = plan_of(&l, seed);
    const size_t size = (tess_plan_image_size(plan) + 255) / 256 * 256;
    void *image = aligned_alloc(256, size);
    assert_non_null(image);
    memset(image, 0xaa, size);
    assert_int_equal(check_filling(&given, &l.listed.pattern, plan, "test", &error), TESS_OK);
    const struct fill_job job = reserve_job(plan, plan->parts, &given, image);
    assert_int_equal(cpu_fill(&job, &error), TESS_OK);
    const struct fill_shape *s = job.shape;
    struct walk w = {.lists = &l, .job = &job, .width = (int32_t)s->block_kv};
    const int64_t page = PICK(22, 16, 64, 4096);
    if (s->block_kv >= FILL_GRANULE_LEAST && PICK(23, 0, 1))
        pages_draw(&w, page, seed);
    w.bits = fill_granule_bits(s->block_kv, w.table ? page : FILL_GRANULE_MOST);
    w.each = __builtin_ctz((unsigned)w.width) - w.bits;
    w.counted = malloc((size_t)(s->tile_rows * s->n_kv));
    assert_non_null(w.counted);
    for (int64_t i = 0; i < job.header->items; i++) {
        const struct work_item *item = &job.items[i];
        if (item->part == 0)
            memset(w.counted, 0, (size_t)(s->tile_rows * s->n_kv));
        item_count(&w, item);
        if (item->part + 1 == item->parts)
            tile_hold(&w, item, seed);
    }
    cuts += s->cut;
    free(w.counted);
    free(w.table);
    free(image);
    tess_plan_free(plan);
    device_lists_free(&l);
}

static void images_list_the_same(void **state) {
    (void)state;
    for (int64_t i = 0; i < cases; i++)
        generated_case((uint64_t)(first_seed + i));
    if (cases >= 100)
        assert_true(parts && cuts && masked_granules && shorts && whole_steps && empty_granules &&
                    absent_granules && columns && bands_of_columns);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_of_threads),
        cmocka_unit_test(images_list_the_same),
    };
    if (argc > 1)
        cases = strtoll(argv[1], NULL, 10);
    if (argc > 2)
        first_seed = strtoll(argv[2], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
