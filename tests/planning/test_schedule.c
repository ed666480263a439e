/* The schedule covers all work once, longest first, balanced, and the same for any threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <omp.h>
#include <stdlib.h>

#include "plan/assign.h"
#include "plan/schedule.h"

#define TILES 300
#define LISTS 3
#define HEADS 7

static const struct schedule_rules rules = {
    .item_cost = 50, .key_cost = 1, .workers = 64, .min_part_keys = 256, .heads_per_group = 3};
static const int64_t list_of[HEADS] = {0, 1, 2, 0, 1, 2, 0};

/* Power-law rows: a few long, most short, some empty. */
static void keys_make(int64_t *keys) {
    for (int64_t T = 0; T < LISTS * TILES; T++)
        keys[T] = (T * 7919) % TILES % 11 ? 20000 / (1 + (T * 7919) % TILES) : 0;
}

static void parts_cover_keys_once(void **state) {
    (void)state;
    for (int64_t keys = 0; keys < 3000; keys += 37)
        for (int32_t parts = 1; parts <= 1 + keys / SCHEDULE_CHUNK; parts++) {
            int64_t at = 0;
            for (int32_t part = 0; part < parts; part++) {
                int64_t begin, end;
                schedule_part(keys, part, parts, &begin, &end);
                assert_int_equal(begin, at);
                assert_true(end > begin || keys == 0);
                assert_true(part + 1 == parts || end % SCHEDULE_CHUNK == 0);
                at = end;
            }
            assert_int_equal(at, keys);
        }
}

static void work_is_covered_once(void **state) {
    (void)state;
    int64_t keys[LISTS * TILES];
    struct schedule s;
    keys_make(keys);
    assert_int_equal(schedule_make(&s, keys, TILES, list_of, HEADS, &rules, NULL), TESS_OK);
    assert_true(s.n_combines > 0);

    int32_t(*done)[TILES] = calloc(HEADS, sizeof *done); /* parts seen */
    int32_t(*parts)[TILES] = calloc(HEADS, sizeof *parts);
    unsigned char *slot = calloc((size_t)s.n_slots, 1);
    for (int64_t i = 0; i < s.n_items; i++) {
        const struct work_item *w = &s.items[i];
        assert_true(w->batch_head >= 0 && w->batch_head < HEADS);
        assert_true(w->tile >= 0 && w->tile < TILES);
        assert_true(w->part >= 0 && w->part < w->parts);
        done[w->batch_head][w->tile]++;
        parts[w->batch_head][w->tile] = w->parts;
        if (w->parts == 1) {
            assert_int_equal(w->slot, -1);
        } else {
            int64_t n = keys[list_of[w->batch_head] * TILES + w->tile];
            int64_t begin, end;
            schedule_part(n, w->part, w->parts, &begin, &end);
            /* Boundaries are rounded to chunks. */
            assert_true(end - begin > rules.min_part_keys - SCHEDULE_CHUNK);
            assert_true(w->slot >= 0 && w->slot < s.n_slots && !slot[w->slot]);
            slot[w->slot] = 1;
        }
        /* Longest first within a group of heads, to the precision of the sort. */
        if (i && w->batch_head / 3 == w[-1].batch_head / 3) {
            double cost[2];
            for (int j = 0; j < 2; j++)
                cost[j] = 50 + (double)(keys[list_of[w[-j].batch_head] * TILES + w[-j].tile] /
                                        w[-j].parts);
            assert_true(cost[0] <= cost[1] + 2 * 20050.0 / 1023);
        } else if (i) {
            assert_true(w->batch_head / 3 == w[-1].batch_head / 3 + 1);
        }
    }
    int64_t combines = 0, slots = 0;
    for (int64_t bh = 0; bh < HEADS; bh++)
        for (int64_t t = 0; t < TILES; t++) {
            assert_int_equal(done[bh][t], parts[bh][t]);
            assert_true(done[bh][t] >= 1);
            combines += parts[bh][t] > 1;
        }
    assert_int_equal(combines, s.n_combines);
    for (int64_t i = 0; i < s.n_combines; i++) {
        assert_int_equal(s.combines[i].parts, parts[s.combines[i].batch_head][s.combines[i].tile]);
        assert_int_equal(s.combines[i].first_slot, slots);
        slots += s.combines[i].parts;
    }
    assert_int_equal(slots, s.n_slots);
    free(done);
    free(parts);
    free(slot);
    schedule_free(&s);
}

static void never_split_when_told(void **state) {
    (void)state;
    int64_t keys[LISTS * TILES];
    struct schedule_rules whole = rules;
    struct schedule s;
    whole.min_part_keys = INT64_MAX;
    keys_make(keys);
    assert_int_equal(schedule_make(&s, keys, TILES, list_of, HEADS, &whole, NULL), TESS_OK);
    assert_int_equal(s.n_items, HEADS * TILES);
    assert_int_equal(s.n_slots, 0);
    schedule_free(&s);
}

static void threads_change_nothing(void **state) {
    (void)state;
    int64_t keys[LISTS * TILES];
    struct schedule first, s;
    keys_make(keys);
    int before = omp_get_max_threads();
    omp_set_num_threads(1);
    assert_int_equal(schedule_make(&first, keys, TILES, list_of, HEADS, &rules, NULL), TESS_OK);
    for (int threads = 2; threads <= 8; threads++) {
        omp_set_num_threads(threads);
        assert_int_equal(schedule_make(&s, keys, TILES, list_of, HEADS, &rules, NULL), TESS_OK);
        assert_int_equal(s.n_items, first.n_items);
        assert_memory_equal(s.items, first.items, (size_t)s.n_items * sizeof *s.items);
        assert_memory_equal(s.combines, first.combines, (size_t)s.n_combines * sizeof *s.combines);
        schedule_free(&s);
    }
    omp_set_num_threads(before);
    schedule_free(&first);
}

/* Takes items in order on 64 simulated workers; answers work over workers times the makespan. */
static double simulate(const struct schedule *s, const int64_t *keys) {
    double busy[64] = {0}, total = 0, makespan = 0;
    for (int64_t i = 0; i < s->n_items; i++) {
        int64_t begin, end;
        int w = 0;
        schedule_part(keys[s->items[i].tile], s->items[i].part, s->items[i].parts, &begin, &end);
        double cost = 50 + (double)(end - begin);
        for (int j = 1; j < 64; j++)
            w = busy[j] < busy[w] ? j : w;
        busy[w] += cost;
        total += cost;
        makespan = fmax(makespan, busy[w]);
    }
    return total / (64 * makespan);
}

/* One row has nearly all the work: without splits one worker would do it alone. */
static void power_law_rows_are_balanced(void **state) {
    (void)state;
    enum { ROWS = 2048 };
    static int64_t keys[ROWS];
    static const int64_t one_list[1] = {0};
    struct schedule_rules r = {
        .item_cost = 50, .key_cost = 1, .workers = 64, .min_part_keys = 1024, .heads_per_group = 1};
    struct schedule s;
    for (int64_t t = 0; t < ROWS; t++)
        keys[t] = (int64_t)(1000000 / pow((double)(1 + t * 997 % ROWS), 1.1));
    assert_int_equal(schedule_make(&s, keys, ROWS, one_list, 1, &r, NULL), TESS_OK);
    double efficiency = simulate(&s, keys);
    print_message("simulated efficiency on 64 workers: %.3f\n", efficiency);
    assert_true(efficiency >= 0.95);
    schedule_free(&s);

    r.min_part_keys = INT64_MAX;
    assert_int_equal(schedule_make(&s, keys, ROWS, one_list, 1, &r, NULL), TESS_OK);
    assert_true(simulate(&s, keys) < 0.5);
    schedule_free(&s);
}

/* The makespan of items that are assigned as kernels have them, and what it would be at best. */
static int64_t makespan(const struct schedule *s, const int64_t *keys, int64_t item,
                        int32_t workers, int64_t *share) {
    struct assign_item *order = calloc((size_t)s->n_items, sizeof *order);
    struct assignment assigned;
    *share = 0;
    for (int64_t i = 0; i < s->n_items; i++) {
        int64_t begin, end;
        schedule_part(keys[s->items[i].tile], s->items[i].part, s->items[i].parts, &begin, &end);
        order[i] = (struct assign_item){end - begin + item, i};
        *share += order[i].cost;
    }
    *share /= workers;
    assert_int_equal(assign_begin(&assigned, workers), 0);
    assign_sort(order, s->n_items, workers);
    for (int64_t i = 0; i < s->n_items; i++)
        assign_next(&assigned, order[i].cost);
    const int64_t most = assign_most(&assigned);
    assign_free(&assigned);
    free(order);
    return most;
}

/* 16 heads of 128 equal tiles on 132 workers: 15.5 to each, so that half of them would wait for the
 * others' 16th. Split, all end together; but not where that saves less than it costs. */
static void last_waves_are_split(void **state) {
    (void)state;
    enum { TILES_HERE = 128, HEADS_HERE = 16, WORKERS = 132 };
    static const int64_t one_list[HEADS_HERE] = {0};
    static int64_t keys[TILES_HERE];
    struct schedule_rules r = {.item_cost = 128,
                               .key_cost = 1,
                               .workers = WORKERS,
                               .min_part_keys = 1024,
                               .heads_per_group = 4};
    struct schedule s;
    int64_t share, whole;
    for (int t = 0; t < TILES_HERE; t++)
        keys[t] = 16384;
    assert_int_equal(schedule_make(&s, keys, TILES_HERE, one_list, HEADS_HERE, &r, NULL), TESS_OK);
    assert_int_equal(s.n_combines, 0);
    whole = makespan(&s, keys, 128, WORKERS, &share);
    assert_int_equal(whole, 16 * (16384 + 128));
    schedule_free(&s);

    r.combine_cost = WORKERS * 1000.0;
    assert_int_equal(schedule_make(&s, keys, TILES_HERE, one_list, HEADS_HERE, &r, NULL), TESS_OK);
    const int64_t split = makespan(&s, keys, 128, WORKERS, &share);
    assert_in_range(s.n_combines, 1, TILES_HERE * HEADS_HERE % WORKERS);
    assert_true(split <= share + 1024 + 128);
    assert_true(split + 1000 < whole);
    schedule_free(&s);

    r.part_cost = (double)(whole - split); /* parts alone cost what they save */
    assert_int_equal(schedule_make(&s, keys, TILES_HERE, one_list, HEADS_HERE, &r, NULL), TESS_OK);
    assert_int_equal(s.n_combines, 0);
    schedule_free(&s);

    r.part_cost = 0;
    r.combine_cost = WORKERS * (double)(whole - split);
    assert_int_equal(schedule_make(&s, keys, TILES_HERE, one_list, HEADS_HERE, &r, NULL), TESS_OK);
    assert_int_equal(s.n_combines, 0);
    schedule_free(&s);
}

/* Two waves of equal tiles that leave few workers idle: combining halves costs more than it saves. A
 * tile that is longer than a worker's share is split all the same. */
static void tiles_of_few_waves_stay_whole(void **state) {
    (void)state;
    enum { FEW = 256 };
    static const int64_t one_list[1] = {0};
    int64_t keys[FEW];
    struct schedule_rules r = {.item_cost = 128,
                               .key_cost = 1,
                               .workers = 132,
                               .min_part_keys = 256,
                               .heads_per_group = 1,
                               .combine_cost = 132 * 400.0,
                               .may_stay_whole = 1};
    struct schedule s;
    for (int t = 0; t < FEW; t++)
        keys[t] = 2048;
    assert_int_equal(schedule_make(&s, keys, FEW, one_list, 1, &r, NULL), TESS_OK);
    assert_int_equal(s.n_combines, 0);
    assert_int_equal(s.n_items, FEW);
    schedule_free(&s);

    r.may_stay_whole = 0;
    assert_int_equal(schedule_make(&s, keys, FEW, one_list, 1, &r, NULL), TESS_OK);
    assert_int_equal(s.n_combines, FEW);
    schedule_free(&s);

    r.may_stay_whole = 1;
    keys[7] = 200 * 2048;
    assert_int_equal(schedule_make(&s, keys, FEW, one_list, 1, &r, NULL), TESS_OK);
    assert_int_equal(s.n_combines > 0, 1);
    schedule_free(&s);
}

/* Few equal tiles have as many parts as all workers can take at once: of 6 parts, 24 tiles of 132 workers
 * would keep some workers for two. */
static void few_tiles_have_parts_for_all(void **state) {
    (void)state;
    enum { MOST = 44, WORKERS = 132 };
    static const int64_t one_list[1] = {0};
    static const struct {
        int64_t tiles, keys, parts;
    } cases[] = {{24, 3072, 5}, {24, 4096, 5}, {33, 2048, 4}, {44, 2048, 3}};
    const struct schedule_rules r = {.item_cost = 150,
                                     .key_cost = 1,
                                     .workers = WORKERS,
                                     .min_part_keys = 512,
                                     .heads_per_group = 1,
                                     .part_cost = 300,
                                     .combine_cost = WORKERS * 250.0,
                                     .may_stay_whole = 1};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t keys[MOST];
        struct schedule s;
        for (int t = 0; t < MOST; t++)
            keys[t] = cases[i].keys;
        assert_int_equal(schedule_make(&s, keys, cases[i].tiles, one_list, 1, &r, NULL), TESS_OK);
        assert_int_equal(s.n_combines, cases[i].tiles);
        assert_int_equal(s.n_items, cases[i].tiles * cases[i].parts);
        schedule_free(&s);
    }
}

/* In order, each to whoever is free first: nobody ends later than the others by more than an item.
 */
static void work_is_dealt_evenly(void **state) {
    (void)state;
    enum { ITEMS = 1000, WORKERS = 37 };
    int64_t load[WORKERS] = {0}, most = 0;
    struct assignment assignment;
    assert_int_equal(assign_begin(&assignment, WORKERS), 0);
    for (int64_t i = 0; i < ITEMS; i++) {
        const int64_t cost = 1 + i * 7919 % 500, least = assign_least(&assignment);
        const int32_t worker = assign_next(&assignment, cost);
        assert_int_equal(load[worker], least);
        for (int w = 0; w < WORKERS; w++)
            assert_true(least < load[w] || (least == load[w] && worker <= w));
        load[worker] += cost;
        most = load[worker] > most ? load[worker] : most;
        assert_int_equal(assign_most(&assignment), most);
    }
    assign_free(&assignment);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_cover_keys_once),
        cmocka_unit_test(work_is_covered_once),
        cmocka_unit_test(never_split_when_told),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(power_law_rows_are_balanced),
        cmocka_unit_test(last_waves_are_split),
        cmocka_unit_test(tiles_of_few_waves_stay_whole),
        cmocka_unit_test(few_tiles_have_parts_for_all),
        cmocka_unit_test(work_is_dealt_evenly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
