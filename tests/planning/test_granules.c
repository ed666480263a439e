/*
 * Granules against the pattern itself: the items of a plan are expanded again. For every head and
 * query they must list exactly the keys that tess_pattern_row answers, each once. Sizes of granules,
 * splits and the number of workers change nothing.
 */
#include "support/words.h"

#include "lists/granules.h"

#define HEADS 4
#define HEADS_KV 2

/* Lists that a test packs, cuts and looks at; `tile_heads` heads to a tile, which share their lists. */
struct cut {
    int64_t tile_heads;
    tess_pattern *pattern;
    struct lists lists;
    struct schedule schedule;
    struct granules granules;
    int64_t list_of[HEADS];
};

static void cut_make_for(struct cut *c, struct granule_step step, const char *spec, int64_t n_q,
                         int64_t n_kv, int64_t block_q, int64_t block_kv, int32_t tile_rows,
                         int32_t workers, int64_t tile_heads) {
    const int groups = workers % 2 == 0 && !step.keys;
    tess_error error = tess_error_init();
    c->pattern = make(spec, (const int64_t[]){n_q, n_kv, block_q, block_kv}, 1, HEADS_KV);
    c->tile_heads = tile_heads;
    int64_t of_tile[HEADS];
    for (int h = 0; h < HEADS; h++)
        of_tile[h / tile_heads] = c->list_of[h] = bcsr_list(&c->pattern->lists, 0, h, HEADS);
    const struct schedule_rules rules = {
        .item_cost = 1, .key_cost = 1, .workers = 64, .min_part_keys = 128, .heads_per_group = 3};
    const struct granule_rules granule_rules = {.list_of = c->list_of,
                                                .heads_q = HEADS,
                                                .heads_kv = HEADS_KV,
                                                .tile_heads = tile_heads,
                                                .workers = workers,
                                                .size = workers % 3 ? GRANULE_MAX : GRANULE_MAX / 2,
                                                .groups = groups,
                                                .step = step};
    assert_int_equal(lists_pack(&c->lists, &c->pattern->lists, tile_rows, &error), TESS_OK);
    assert_int_equal(schedule_make(&c->schedule, c->lists.keys, c->lists.tiles, of_tile,
                                   HEADS / tile_heads, &rules, &error),
                     TESS_OK);
    assert_int_equal(granules_make(&c->granules, &c->lists, &c->schedule, &granule_rules, &error),
                     TESS_OK);
    const struct granules *g = &c->granules;
    const int64_t tiles = c->lists.n_lists * c->lists.tiles;
    assert_int_equal(
        granules_memory(g),
        (g->n_items + g->n_combines) * (int64_t)sizeof *g->items + g->n * (int64_t)sizeof *g->keys +
            g->n_masks * (int64_t)sizeof *g->masks + g->n_groups * (int64_t)sizeof *g->group_keys +
            g->n_records * (int64_t)sizeof *g->records + g->n_bits * (int64_t)sizeof *g->mask_bits +
            (groups ? 2 * (tiles + 1) * (int64_t)sizeof(int64_t) : 0) +
            (2 * (tiles + 1) + workers + 1) * (int64_t)sizeof(int64_t));
}

static void cut_make(struct cut *c, const char *spec, int64_t n_q, int64_t n_kv, int64_t block_q,
                     int64_t block_kv, int32_t tile_rows, int32_t workers, int64_t tile_heads) {
    cut_make_for(c, (struct granule_step){0, 0}, spec, n_q, n_kv, block_q, block_kv, tile_rows,
                 workers, tile_heads);
}

static void cut_free(struct cut *c) {
    granules_free(&c->granules);
    schedule_free(&c->schedule);
    lists_free(&c->lists);
    tess_pattern_free(c->pattern);
}

/* Whether row r of its tile lists key c of a granule with this mask. */
static int listed(const struct lists *l, const struct granule_mask *mask, int64_t r, int64_t c) {
    if (mask->kind == GRANULE_ALL)
        return 1;
    if (mask->kind == LIST_BAND)
        return mask->u.band.lo <= c - r && c - r <= mask->u.band.hi;
    int64_t word = mask->u.word + (mask->kind == LIST_BITS ? c * l->words : 0);
    assert_true(word >= 0 && word + l->words <= l->n_words);
    return (int)(l->words_of_rows[word + r / 64] >> (r % 64) & 1);
}

/* Whether row r lists a place of mask group i, as lanes read its words (mask_groups.h). */
static int group_lists(const struct cut *c, int64_t i, int64_t r, int64_t place) {
    const struct granules *g = &c->granules;
    const uint32_t record = g->records[r / GRANULE_SLICE * g->n_groups + i];
    const int64_t mask = record & ~MASK_SHORT, slices = (c->lists.tile_rows + 15) / 16;
    assert_true((mask + 1) << MASK_WORDS_BITS <= g->n_bits);
    assert_int_equal(record & MASK_SHORT, g->records[slices * g->n_groups + i]);
    const uint32_t *words = g->mask_bits + (mask << MASK_WORDS_BITS) + r % 8 * 4 + place % 8 / 2;
    const int64_t bit = place / 8 * 4 + r / 8 % 2 * 2 + place % 2;
    if (c->lists.tile_rows == 8) /* rows of both heads of a pair */
        assert_int_equal(*words >> bit & 1, *words >> (bit ^ 2) & 1);
    if (mask == MASK_NONE || mask == MASK_ALL)
        assert_int_equal(*words, mask == MASK_ALL ? UINT32_MAX : 0);
    return (int)(*words >> bit & 1);
}

/* Whether row r lists the key at a place of an item. *holds: whether the place holds a key. */
static int lists_place(const struct cut *c, const struct granule_item *item, int64_t r,
                       int64_t place, int *holds) {
    const struct granules *g = &c->granules;
    const int64_t i = place / g->size, k = place % g->size;
    *holds = i < item->count;
    if (i >= item->count)
        return 0;
    if (!g->records) {
        const struct granule_mask *mask = &g->masks[item->mask + i - item->whole];
        *holds = i < item->whole || k < mask->count;
        return i < item->whole || (*holds && listed(&c->lists, mask, r, k));
    }
    const int64_t whole = item->whole * g->size / GRANULE_GROUP, number = place / GRANULE_GROUP;
    if (number < whole)
        return 1;
    const int64_t group = item->mask + number - whole;
    assert_true(group < g->n_groups);
    *holds = (int)(g->group_keys[group] >> place % GRANULE_GROUP & 1);
    if (!*holds && k > 0) /* the granule has fewer keys than its size */
        assert_true(g->records[group] & MASK_SHORT);
    const int lists = group_lists(c, group, r, place % GRANULE_GROUP);
    assert_true(*holds || !lists);
    return lists;
}

/* Adds what an item lists, for head `head` of its tile, to seen[head][query][key]. */
static void expand(const struct cut *c, const struct granule_item *item, int64_t head,
                   unsigned char *seen) {
    const struct granules *g = &c->granules;
    const int64_t n_q = c->pattern->lists.n_q, n_kv = c->pattern->lists.n_kv;
    assert_true(item->whole >= 0 && item->whole <= item->count);
    assert_int_equal(item->head_kv, head / (HEADS / HEADS_KV));
    for (int64_t place = 0; place < (int64_t)item->count * g->size; place++) {
        const int64_t key = g->keys[item->first + place / g->size] + place % g->size;
        int any = 0, holds = 0;
        for (int64_t r = 0; r < item->rows; r++) {
            if (!lists_place(c, item, r, place, &holds))
                continue;
            assert_true(key >= 0 && key < n_kv);
            unsigned char *at = &seen[(head * n_q + item->row + r) * n_kv + key];
            assert_int_equal(*at, 0); /* each key once */
            *at = 1;
            any = 1;
        }
        assert_int_equal(any, holds); /* no key that no row lists */
    }
}

static void check(const struct cut *c) {
    const struct granules *g = &c->granules;
    const int64_t n_q = c->pattern->lists.n_q, n_kv = c->pattern->lists.n_kv;
    unsigned char *seen = calloc((size_t)(HEADS * n_q * n_kv), 1);
    int64_t *row = malloc((size_t)n_kv * sizeof *row);
    assert_non_null(seen);
    assert_non_null(row);
    assert_int_equal(g->worker_ptr[0], 0);
    assert_int_equal(g->worker_ptr[g->workers], g->n_items);
    for (int64_t i = 0; i < c->tile_heads * g->n_items; i++)
        expand(c, &g->items[i / c->tile_heads],
               g->items[i / c->tile_heads].head + i % c->tile_heads, seen);
    for (int64_t h = 0; h < HEADS; h++)
        for (int64_t i = 0; i < n_q; i++) {
            int64_t n, found = 0;
            assert_int_equal(tess_pattern_row(c->pattern, 0, c->list_of[h], i, row, n_kv, &n, NULL),
                             TESS_OK);
            for (int64_t k = 0; k < n_kv; k++)
                found += seen[(h * n_q + i) * n_kv + k];
            assert_int_equal(found, n);
            for (int64_t k = 0; k < n; k++)
                assert_true(seen[(h * n_q + i) * n_kv + row[k]]);
        }
    free(seen);
    free(row);
}

static void items_list_the_pattern(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int64_t block_q, block_kv;
    } patterns[] = {
        {"dense", 64, 64},           {"causal", 64, 64},         {"window(70,3)", 128, 128},
        {"random(0.3,1)", 8, 8},     {"random(0.3,2)", 5, 7},    {"random(0.2,3)", 1, 1},
        {"random(0.2,4)", 192, 1},   {"global_grid(9)", 16, 16}, {"bigbird(16,4,2,5)", 32, 32},
        {"longformer(20,3)", 4, 64}, {"random(0,6)", 16, 16},
    };
    static const int32_t rows[] = {8, 16, 32, 64, 128, 192};
    static const int32_t workers[] = {1, 4, 7, 6};
    static const struct granule_step steps[] = {{0, 0}, {32, 16}, {64, 16}, {128, 32}};
    for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            struct cut c;
            for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
                cut_make_for(&c, steps[s], patterns[p].spec, 300, 305, patterns[p].block_q,
                             patterns[p].block_kv, rows[r], workers[(p + r + s) % 4], 1 + p % 2);
                check(&c);
                cut_free(&c);
            }
            for (int even = 4; even <= 6; even += 2) { /* mask groups, of granules of 64 and 32 */
                cut_make(&c, patterns[p].spec, 300, 305, patterns[p].block_q, patterns[p].block_kv,
                         rows[r], even, 1 + p % 2);
                assert_non_null(c.granules.records);
                check(&c);
                cut_free(&c);
            }
        }
}

#define WARPS 8

/* Groups of 8 places of an item that some row of a warp lists: those of each warp, and the most of
 * a warp in each step, summed. */
static int64_t groups_count(const struct cut *c, const struct granule_item *item,
                            struct granule_step step, int64_t (*of_warp)[WARPS]) {
    const int64_t places = (int64_t)item->count * c->granules.size;
    int64_t most = 0;
    for (int64_t begin = 0; begin < places; begin += step.keys) {
        int64_t of_step = 0;
        for (int32_t w = 0; w < c->lists.tile_rows / step.rows; w++) {
            int64_t groups = 0;
            for (int64_t at = begin; at < begin + step.keys && at < places; at += 8) {
                int some = 0, holds;
                for (int64_t i = 0; i < 8 * step.rows; i++)
                    some |= lists_place(c, item, w * step.rows + i / 8, at + i % 8, &holds);
                groups += some;
            }
            of_step = groups > of_step ? groups : of_step;
            (*of_warp)[w] += groups;
        }
        most += of_step;
    }
    return most;
}

/* Places of an item that some row of a warp lists. */
static int64_t places_count(const struct cut *c, const struct granule_item *item, int32_t first,
                            int32_t rows) {
    int64_t places = 0;
    for (int64_t place = 0; place < (int64_t)item->count * c->granules.size; place++) {
        int some = 0, holds;
        for (int32_t r = first; r < first + rows; r++)
            some |= lists_place(c, item, r, place, &holds);
        places += some;
    }
    return places;
}

/* Steps with masks keep all warps busy: the sum of steps is hardly more than the work of the busiest warp,
 * at a window's two edges (a warp of 32 rows lists 5 of 8 granules of 32 keys) and for small blocks.
 * Granules of single keys fill groups by the rows that list the keys. */
static void steps_are_balanced(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int64_t block;
        struct granule_step step;
        double over; /* all steps, in groups, over those of the warp with the most */
        double fill; /* groups over those that hold nothing but what their warp lists */
    } cases[] = {{"window(511,0)", 128, {64, 32}, 1, 1},
                 {"random(0.1,1)", 64, {64, 32}, 1.1, 1},
                 {"random(0.1,1)", 8, {128, 16}, 1.1, 1},
                 {"random(0.01,1)", 1, {128, 16}, 1.2, 1.35}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cut c;
        const struct granule_step step = cases[i].step;
        int64_t of_warp[WARPS] = {0}, longest = 0;
        cut_make_for(&c, step, cases[i].spec, 8192, 8192, cases[i].block, cases[i].block, 128, 3,
                     1);
        const struct granule_item *item = &c.granules.items[0];
        assert_int_equal(item->parts, 1);
        const int64_t most = groups_count(&c, item, step, &of_warp);
        for (int32_t w = 0; w < 128 / step.rows; w++) {
            const int64_t places = places_count(&c, item, w * step.rows, step.rows);
            assert_true((double)of_warp[w] <= cases[i].fill * (double)(places + 7) / 8);
            longest = of_warp[w] > longest ? of_warp[w] : longest;
        }
        assert_true((double)most <= cases[i].over * (double)longest);
        cut_free(&c);
    }
}

/* Equal bands are one mask: the edges of a window are two bands in all tiles but the first and
 * last. So are equal masks of 8 x 8 bits, of unions of blocks of 8, and of rows with all 64
 * places. */
static void equal_masks_share_words(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int64_t block_q, block_kv, masks; /* at most */
    } cases[] = {{"window(512,0)", 64, 64, 40},
                 {"causal", 64, 64, 16},
                 {"random(0.3,1)", 8, 8, 2 + (1 << 16)},
                 {"random(0.05,1)", 16, 16, 2 + (1 << 8)},
                 {"random(0.01,1)", 4, 64, 2 + (1 << 4)}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cut c;
        cut_make(&c, cases[i].spec, 8192, 8192, cases[i].block_q, cases[i].block_kv, 64, 2, 1);
        const struct granules *g = &c.granules;
        assert_true(g->n_groups > 100);
        assert_true(g->n_bits >> MASK_WORDS_BITS <= cases[i].masks);
        cut_free(&c);
    }
}

/* Warps pass over most groups where few rows share a key: over those of which they list nothing. */
static void warps_pass_over_groups(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int64_t block_q, block_kv;
        int32_t rows;
        double none, all; /* shares of the records, at least */
    } cases[] = {{"random(0.02,1)", 8, 8, 64, .65, 0},
                 {"random(0.01,1)", 1, 64, 64, .65, 0},
                 {"random(0.5,1)", 16, 16, 64, .45, .45},
                 {"random(0.5,1)", 32, 32, 64, .45, .45},
                 {"random(0.3,1)", 64, 64, 192, .5, .4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cut c;
        cut_make(&c, cases[i].spec, 8192, 8192, cases[i].block_q, cases[i].block_kv, cases[i].rows,
                 2, 1);
        const struct granules *g = &c.granules;
        const int64_t records = cases[i].rows / GRANULE_SLICE * g->n_groups;
        int64_t number[2] = {0};
        for (int64_t r = 0; r < records; r++)
            if ((g->records[r] & ~MASK_SHORT) <= MASK_ALL)
                number[g->records[r] & 1]++;
        assert_true((double)number[MASK_NONE] >= cases[i].none * (double)records);
        assert_true((double)number[MASK_ALL] >= cases[i].all * (double)records);
        cut_free(&c);
    }
}

/* Tiles of fewer rows may have a band of tiles with all rows. Its words are right for all rows, though
 * the tile of fewer has it first. Such tiles follow one another in no spec: here the first tile of a
 * window loses 29 rows after packing. */
static void tiles_of_fewer_rows_share_words(void **state) {
    (void)state;
    enum { ROWS = 128, LOST = 29, N = 2048, LISTED = 65 };
    struct cut c;
    int64_t row[N], n, seen = 0;
    cut_make(&c, "window(64,0)", N, N, ROWS, 64, ROWS, 4, 1);
    const struct granule_rules rules = {.list_of = c.list_of,
                                        .heads_q = HEADS,
                                        .heads_kv = HEADS_KV,
                                        .tile_heads = 1,
                                        .workers = 4,
                                        .size = GRANULE_MAX,
                                        .groups = 1};
    granules_free(&c.granules);
    for (int64_t t = 1; t <= c.lists.tiles; t++)
        c.lists.tile_row[t] -= LOST;
    assert_int_equal(granules_make(&c.granules, &c.lists, &c.schedule, &rules, NULL), TESS_OK);
    assert_int_equal(c.granules.size, GRANULE_MAX);
    for (int64_t i = 0; i < c.granules.n_items; i++) {
        const struct granule_item *item = &c.granules.items[i];
        for (int64_t r = 0; r < ROWS && item->row == c.lists.tile_row[1]; r++) {
            assert_int_equal(tess_pattern_row(c.pattern, 0, 0, ROWS + r, row, N, &n, NULL),
                             TESS_OK);
            for (int64_t place = 0; place < (int64_t)item->count * GRANULE_MAX; place++) {
                const int64_t key =
                    c.granules.keys[item->first + place / GRANULE_MAX] + place % GRANULE_MAX;
                int holds;
                const int lists = lists_place(&c, item, r, place, &holds);
                assert_int_equal(lists, key >= row[0] && key <= row[n - 1]);
                seen += lists;
            }
        }
    }
    assert_int_equal(seen, HEADS * ROWS * LISTED);
    cut_free(&c);
}

/* One number for 64 keys of whole blocks, one for each single column. */
static void sizes_follow_the_runs(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int64_t block_kv, n_kv;
        int32_t size;
    } cases[] = {{"dense", 64, 2048, 64},         {"causal", 128, 2048, 64},
                 {"random(0.3,1)", 16, 2048, 16}, {"random(0.3,1)", 8, 2048, 8},
                 {"random(0.05,1)", 1, 2048, 1},  {"window(127,0)", 64, 2048, 64},
                 {"random(0.5,1)", 32, 2040, 32}, /* keys end within a block */
                 {"random(0.5,1)", 350, 2100, 32}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cut c;
        cut_make(&c, cases[i].spec, 2048, cases[i].n_kv, 64, cases[i].block_kv, 64, 1, 1);
        assert_int_equal(c.granules.size, cases[i].size);
        cut_free(&c);
    }
}

/* The parts of a split tile take its slots in their order, those of each head of a packed tile, and its
 * combines name them all. */
static void combines_name_their_parts(void **state) {
    (void)state;
    for (int64_t tile_heads = 1; tile_heads <= 2; tile_heads++) {
        struct cut c;
        cut_make(&c, "global(8)+window(16,16)", 2000, 2000, 64, 64, 64, 11, tile_heads);
        const struct granules *g = &c.granules;
        unsigned char *slot = calloc((size_t)(c.schedule.n_slots * tile_heads), 1);
        assert_true(g->n_combines > 0);
        for (int64_t m = 0; m < g->n_combines; m++)
            for (int64_t i = 0; i < g->n_items; i++) {
                const struct granule_item *item = &g->items[i], *combine = &g->combines[m];
                const int64_t at = item->slot + (combine->head - item->head) * item->parts;
                if (item->head != combine->head / tile_heads * tile_heads ||
                    item->row != combine->row)
                    continue;
                assert_int_equal(item->parts, combine->parts);
                assert_int_equal(item->rows, combine->rows);
                assert_true(at >= combine->slot && at < combine->slot + combine->parts);
                assert_false(slot[at]);
                slot[at] = 1;
            }
        for (int64_t s = 0; s < c.schedule.n_slots * tile_heads; s++)
            assert_true(slot[s]);
        free(slot);
        cut_free(&c);
    }
}

/* All workers end within one of the shortest items, and have as many items without keys. */
static void items_are_dealt_evenly(void **state) {
    (void)state;
    enum { WORKERS = 47 };
    struct cut c;
    cut_make(&c, "random(0.05,3)", 4000, 4000, 64, 64, 64, WORKERS, 1);
    const struct granules *g = &c.granules;
    int64_t longest = 0, least = INT64_MAX, shortest = INT64_MAX, all = 0;
    int64_t most_empty = 0, least_empty = INT64_MAX;
    for (int w = 0; w < WORKERS; w++) {
        int64_t keys = 0, empty = 0;
        for (int64_t i = g->worker_ptr[w]; i < g->worker_ptr[w + 1]; i++) {
            const int64_t cost = 128 + (int64_t)g->items[i].count * g->size;
            keys += g->items[i].count ? cost : 0;
            empty += g->items[i].count == 0;
            shortest = g->items[i].count && cost < shortest ? cost : shortest;
        }
        all += keys;
        longest = keys > longest ? keys : longest;
        least = keys < least ? keys : least;
        most_empty = empty > most_empty ? empty : most_empty;
        least_empty = empty < least_empty ? empty : least_empty;
    }
    assert_true(most_empty > 0 && most_empty - least_empty <= 1);
    assert_true(longest - least <= shortest);
    assert_true(granules_unevenness(g) == (double)longest * WORKERS / (double)all);
    cut_free(&c);
}

/* Fewer items than workers: a launch has as many CTAs as there are items, so all are of the first ones. */
static void few_items_have_the_first_workers(void **state) {
    (void)state;
    enum { WORKERS = 396 };
    struct cut c;
    cut_make(&c, "random(0.1,3)", 640, 640, 64, 64, 64, WORKERS, 1);
    const struct granules *g = &c.granules;
    int64_t empty = 0;
    for (int64_t i = 0; i < g->n_items; i++)
        empty += g->items[i].count == 0;
    assert_true(empty > 0 && empty < g->n_items && g->n_items < WORKERS);
    assert_int_equal(g->worker_ptr[g->n_items], g->n_items);
    cut_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_list_the_pattern),
        cmocka_unit_test(equal_masks_share_words),
        cmocka_unit_test(warps_pass_over_groups),
        cmocka_unit_test(tiles_of_fewer_rows_share_words),
        cmocka_unit_test(sizes_follow_the_runs),
        cmocka_unit_test(combines_name_their_parts),
        cmocka_unit_test(items_are_dealt_evenly),
        cmocka_unit_test(steps_are_balanced),
        cmocka_unit_test(few_items_have_the_first_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
