/*
 * Packed lists against the pattern itself: every query tile, expanded again, must list exactly the
 * keys that tess_pattern_row answers for its rows.
 */
#include "support/words.h"

#include "support/child.h"
#include "lists/lists.h"

#include <math.h>

static tess_pattern *pattern_make(const char *spec, int64_t n_q, int64_t n_kv, int64_t block_q,
                                  int64_t block_kv, int64_t heads) {
    return make(spec, (const int64_t[]){n_q, n_kv, block_q, block_kv}, 1, heads);
}

/* One query tile, expanded: seen[r * n_kv + key]. */
struct expanded {
    unsigned char *seen;
    unsigned char *taken; /* [n_kv] keys that a run has named */
    int64_t n_kv, rows, keys;
    int64_t
        groups; /* groups of LISTS_GROUP rows, that list a masked key: over all keys and tiles */
};

static void key_take(struct expanded *x, int64_t key) {
    assert_true(key >= 0 && key < x->n_kv);
    assert_false(x->taken[key]); /* each key once */
    x->taken[key] = 1;
    x->keys++;
}

static void expand_masked(struct expanded *x, const struct lists *l, const struct list_masked *run,
                          int kind) {
    for (int64_t c = 0; c < run->count; c++) {
        int any = 0;
        int64_t group = -1;
        key_take(x, run->key + c);
        for (int64_t r = 0; r < l->tile_rows; r++) {
            int listed;
            if (kind == LIST_BAND) {
                listed = r < x->rows && run->u.band.lo <= c - r && c - r <= run->u.band.hi;
            } else {
                int64_t mask = run->u.word + (kind == LIST_BITS ? c * l->words : 0);
                assert_true(mask >= 0 && mask + l->words <= l->n_words);
                listed = (int)(l->words_of_rows[mask + r / 64] >> (r % 64) & 1);
            }
            assert_false(listed && r >= x->rows); /* no bits past the tile's end */
            any |= listed;
            x->groups += listed && r / LISTS_GROUP != group;
            group = listed ? r / LISTS_GROUP : group;
            if (listed)
                x->seen[r * x->n_kv + run->key + c] = 1;
        }
        assert_true(any); /* no key that no row lists */
    }
}

static void expand(struct expanded *x, const struct lists *l, int64_t T) {
    int64_t last = -1;
    memset(x->seen, 0, (size_t)(x->rows * x->n_kv));
    memset(x->taken, 0, (size_t)x->n_kv);
    x->keys = 0;
    for (int64_t i = l->full_ptr[T]; i < l->full_ptr[T + 1]; i++) {
        assert_true(l->full[i].key > last && l->full[i].count > 0);
        last = l->full[i].key + l->full[i].count; /* runs that touch would be one run */
        for (int64_t c = 0; c < l->full[i].count; c++) {
            key_take(x, l->full[i].key + c);
            for (int64_t r = 0; r < x->rows; r++)
                x->seen[r * x->n_kv + l->full[i].key + c] = 1;
        }
    }
    for (int kind = 0; kind < LIST_MASKED_KINDS; kind++) {
        last = -1;
        for (int64_t i = l->masked_ptr[3 * T + kind]; i < l->masked_ptr[3 * T + kind + 1]; i++) {
            assert_true(l->masked[i].key > last && l->masked[i].count > 0);
            last = l->masked[i].key + l->masked[i].count - 1;
            expand_masked(x, l, &l->masked[i], kind);
        }
    }
    assert_int_equal(x->keys, l->keys[T]);
}

static void check_pattern(const tess_pattern *p, int32_t tile_rows) {
    const struct bcsr *m = &p->lists;
    tess_error error = tess_error_init();
    struct lists l;
    assert_int_equal(lists_pack(&l, m, tile_rows, &error), TESS_OK);
    assert_int_equal(l.tile_row[0], 0);
    assert_int_equal(l.tile_row[l.tiles], m->n_q);
    assert_true(lists_memory(&l) > 0);

    struct expanded x = {.n_kv = m->n_kv};
    x.seen = malloc((size_t)(tile_rows * m->n_kv));
    x.taken = malloc((size_t)m->n_kv);
    int64_t *row = malloc((size_t)m->n_kv * sizeof *row);
    double keys = 0;
    for (int64_t T = 0; T < l.n_lists * l.tiles; T++) {
        int64_t list = T / l.tiles, t = T % l.tiles, first = l.tile_row[t];
        x.rows = l.tile_row[t + 1] - first;
        assert_true(x.rows >= 1 && x.rows <= tile_rows);
        /* Part of one block row, or whole ones, or pieces that fill it. */
        if (m->block_q >= tile_rows)
            assert_int_equal(first / m->block_q, (first + x.rows - 1) / m->block_q);
        else if (m->block_q % 64 == 0 && tile_rows % 64 == 0)
            assert_true(first % 64 == 0 && (x.rows == tile_rows || t == l.tiles - 1));
        else
            assert_int_equal(first % m->block_q, 0);
        expand(&x, &l, T);
        keys += (double)x.keys;
        for (int64_t r = 0; r < x.rows; r++) {
            int64_t n, seen = 0;
            assert_int_equal(tess_pattern_row(p, list / m->heads, list % m->heads, first + r, row,
                                              m->n_kv, &n, &error),
                             TESS_OK);
            for (int64_t i = 0; i < n; i++)
                assert_true(x.seen[r * m->n_kv + row[i]]);
            for (int64_t key = 0; key < m->n_kv; key++)
                seen += x.seen[r * m->n_kv + key];
            assert_int_equal(seen, n);
        }
    }
    struct lists_sums sums, estimate;
    lists_sum(&sums, &l);
    assert_true(sums.full_keys + sums.masked_keys == keys);
    assert_true(sums.masked_groups == (double)x.groups);
    assert_int_equal(lists_estimate(&estimate, m, tile_rows, 1 << 20, &error), TESS_OK);
    assert_true(estimate.tiles == sums.tiles && estimate.full_keys == sums.full_keys &&
                estimate.masked_keys == sums.masked_keys &&
                estimate.masked_groups == sums.masked_groups);
    free(x.seen);
    free(x.taken);
    free(row);
    lists_free(&l);
}

static void every_tile_lists_what_its_rows_list(void **state) {
    (void)state;
    static const char *const specs[] = {"dense",
                                        "causal",
                                        "window(20,9)",
                                        "dilated(5,3)",
                                        "summary(7,16)",
                                        "global_grid(5)",
                                        "segments(30,1,0,44)",
                                        "random(0.2,3)",
                                        "random(0.05,4)+window(4,4)",
                                        "bigbird(16,5,2,1)",
                                        "random(0.5,5)&causal",
                                        "segments(0)"};
    static const int64_t blocks[][2] = {{1, 1},   {2, 2},  {8, 8},  {16, 16}, {64, 64},  {5, 7},
                                        {192, 1}, {64, 1}, {1, 16}, {48, 80}, {128, 128}};
    static const int64_t sizes[][2] = {{130, 130}, {100, 211}, {211, 100}, {1, 77}, {200, 1}};
    static const int32_t heights[] = {1, 8, 16, 64, 100, 128, 192, 256};
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++)
        for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
            for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++) {
                if (strstr(specs[s], "segments") && sizes[z][1] < 75)
                    continue;
                tess_pattern *p =
                    pattern_make(specs[s], sizes[z][0], sizes[z][1], blocks[b][0], blocks[b][1], 2);
                /* Two heights for each pattern, all of them in turn. */
                size_t turn = s + b + z;
                check_pattern(p, heights[turn % 8]);
                check_pattern(p, heights[(turn + 3) % 8]);
                tess_pattern_free(p);
            }
}

/* Tiles of 192 rows hold pieces of blocks of 128, 320 ... */
static void pieces_of_block_rows_fill_tiles(void **state) {
    (void)state;
    static const char *const specs[] = {"causal",
                                        "window(150,40)",
                                        "dilated(9,17)",
                                        "segments(200,90,211)",
                                        "random(0.4,5)&causal",
                                        "random(0.3,1)"};
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++)
        for (int64_t block_kv = 1; block_kv <= 128; block_kv *= 128) {
            tess_pattern *p = pattern_make(specs[s], 501, 501, 128, block_kv, 2);
            check_pattern(p, 192);
            check_pattern(p, 256);
            tess_pattern_free(p);
        }
}

/* A list that every row lists whole is one run, whatever the blocks. */
static void dense_is_one_run(void **state) {
    (void)state;
    for (int64_t block = 1; block <= 64; block *= 4) {
        tess_pattern *p = pattern_make("dense", 500, 300, block, block, 1);
        struct lists l;
        assert_int_equal(lists_pack(&l, &p->lists, 32, NULL), TESS_OK);
        assert_int_equal(l.n_full, l.tiles);
        assert_int_equal(l.n_masked, 0);
        assert_int_equal(l.full[0].count, 300);
        lists_free(&l);
        tess_pattern_free(p);
    }
}

/* Diagonals stay bands, in unions of block rows too: no masks in memory. */
static void causal_needs_no_masks(void **state) {
    (void)state;
    for (int64_t block = 64; block <= 128; block *= 2) {
        tess_pattern *p = pattern_make("causal", 1000, 1000, block, block, 1);
        struct lists l;
        for (int32_t rows = 8; rows <= 256; rows = rows == 128   ? 192
                                                   : rows == 192 ? 256
                                                                 : 2 * rows) {
            assert_int_equal(lists_pack(&l, &p->lists, rows, NULL), TESS_OK);
            assert_int_equal(l.n_words, 0);
            lists_free(&l);
        }
        tess_pattern_free(p);
    }
}

/* Unions of neighbouring block rows carry one mask a block, not one a key. */
static void members_share_a_mask(void **state) {
    (void)state;
    tess_pattern *p = pattern_make("random(0.2,1)", 512, 512, 8, 8, 1);
    struct lists l;
    assert_int_equal(lists_pack(&l, &p->lists, 64, NULL), TESS_OK);
    for (int64_t T = 0; T < l.tiles; T++) {
        assert_int_equal(l.masked_ptr[3 * T + LIST_BAND + 1], l.masked_ptr[3 * T]);
        assert_int_equal(l.masked_ptr[3 * T + 3], l.masked_ptr[3 * T + LIST_BITS]);
    }
    struct lists_sums sums;
    lists_sum(&sums, &l);
    assert_true(l.n_words > 0 && (double)l.n_words * 8 <= sums.masked_keys);
    lists_free(&l);
    tess_pattern_free(p);
}

/* A sample predicts the whole of an even pattern. */
static void estimate_is_close(void **state) {
    (void)state;
    tess_pattern *p = pattern_make("random(0.1,7)", 4096, 4096, 16, 16, 1);
    for (int32_t rows = 16; rows <= 64; rows *= 2) {
        struct lists_sums sums, estimate;
        struct lists l;
        assert_int_equal(lists_pack(&l, &p->lists, rows, NULL), TESS_OK);
        lists_sum(&sums, &l);
        assert_int_equal(lists_estimate(&estimate, &p->lists, rows, 64, NULL), TESS_OK);
        double exact = sums.full_keys + sums.masked_keys;
        double guess = estimate.full_keys + estimate.masked_keys;
        assert_true(guess > 0.9 * exact && guess < 1.1 * exact);
        lists_free(&l);
    }
    tess_pattern_free(p);
}

/* The longest tile is found where all are looked at, and nearly where few of each of many lists are. */
static void longest_tile_is_found(void **state) {
    (void)state;
    for (int64_t lists = 1; lists <= 64; lists *= 8) {
        tess_pattern *p = pattern_make("causal", 4096, 4096, 64, 64, lists);
        struct lists_sums sums, all, some;
        struct lists l;
        assert_int_equal(lists_pack(&l, &p->lists, 64, NULL), TESS_OK);
        lists_sum(&sums, &l);
        assert_int_equal(lists_estimate(&all, &p->lists, 64, 64 * lists, NULL), TESS_OK);
        assert_int_equal(lists_estimate(&some, &p->lists, 64, 64, NULL), TESS_OK);
        assert_true(sums.most_keys == 4096 && all.most_keys == 4096);
        assert_true(some.most_keys > 0.95 * 4096);
        assert_true(fabs(some.full_keys / sums.full_keys - 1) < 0.05);
        lists_free(&l);
        tess_pattern_free(p);
    }
}

/* A window whose limits shift by a key here and there. Block rows of a tile then continue one band, or
 * break it at the lower limit, at the upper limit, or at both. */
static void bands_that_almost_agree(void **state) {
    (void)state;
    enum { SIDE = 16, BLOCKS = 12 };
    for (uint32_t seed = 1; seed <= 200; seed++) {
        int64_t row_ptr[BLOCKS + 1] = {0}, entry[BLOCKS * BLOCKS];
        int32_t col[BLOCKS * BLOCKS], band[2 * BLOCKS * BLOCKS];
        uint32_t random = seed;
        int64_t n = 0;
        for (int32_t i = 0; i < BLOCKS; i++) {
            for (int32_t j = 0; j < BLOCKS; j++) {
                int32_t shift[2];
                for (int k = 0; k < 2; k++) {
                    random = random * 1664525 + 1013904223;
                    shift[k] = random >> 24 < 32 ? (int32_t)(random >> 16 & 2) - 1 : 0;
                }
                const int32_t lo = -20 + (i - j) * SIDE + shift[0];
                const int32_t hi = 9 + (i - j) * SIDE + shift[1];
                if (hi < 1 - SIDE || lo > SIDE - 1)
                    continue;
                band[2 * n] = lo, band[2 * n + 1] = hi;
                entry[n] = n;
                col[n++] = j;
            }
            row_ptr[i + 1] = n;
        }
        tess_lists lists = tess_lists_init();
        lists.n_q = lists.n_kv = SIDE * BLOCKS;
        lists.block_q = lists.block_kv = SIDE;
        lists.batch = lists.heads = 1;
        lists.n_tiles = lists.n_bands = n;
        lists.row_ptr = row_ptr, lists.col_idx = col;
        lists.band_entry = entry, lists.band = band;
        tess_pattern *p = NULL;
        tess_error error = tess_error_init();
        if (tess_pattern_from_lists(&p, &lists, &error))
            fail_msg("%s", error.message);
        check_pattern(p, 32);
        check_pattern(p, 64);
        tess_pattern_free(p);
    }
}

/* A look at 64 tiles takes no memory for the 2^31 there are. */
static int estimate_huge(void) {
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *p = NULL;
    struct lists_sums sums;
    shape.n_q = shape.block_q = shape.block_kv = INT32_MAX;
    shape.threads = 1; /* a team would not survive fork() */
    int failed = tess_pattern_from_spec(&p, "dense", &shape, NULL) ||
                 lists_estimate(&sums, &p->lists, 1, 64, NULL) ||
                 sums.full_keys != (double)INT32_MAX * (double)INT32_MAX;
    tess_pattern_free(p);
    return failed;
}

static void estimate_takes_no_memory(void **state) {
    (void)state;
    assert_true(limited_holds(estimate_huge, 64 << 20));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tile_lists_what_its_rows_list),
        cmocka_unit_test(pieces_of_block_rows_fill_tiles),
        cmocka_unit_test(dense_is_one_run),
        cmocka_unit_test(causal_needs_no_masks),
        cmocka_unit_test(bands_that_almost_agree),
        cmocka_unit_test(members_share_a_mask),
        cmocka_unit_test(estimate_is_close),
        cmocka_unit_test(longest_tile_is_found),
        cmocka_unit_test(estimate_takes_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
