/* Lists on the device that cases draw. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "lab/check/check.h"

/* A case's lists, drawn. */
static struct lab_listed listed_make(const char *text, uint64_t set) {
    struct lab_listed l;
    struct lab_case c;
    char why[LAB_WHY] = "";
    if (lab_case_parse(&c, text, why))
        fail_msg("%s", why);
    assert_int_equal(lab_listed_make(&l, &c, set), 0);
    return l;
}

/* Places of the entries that name a key, and in what order. */
static void listed_entries(void **state) {
    (void)state;
    static const struct {
        const char *letters;
        int first, mixed, falls, twice, wrong; /* marks that some row has; the others must not */
    } table[] = {{"", 0, 0, 0, 0, 0},           {",entries=f", 1, 0, 0, 0, 0},
                 {",entries=m", 0, 1, 0, 0, 0}, {",entries=u", 0, 0, 1, 0, 0},
                 {",entries=d", 0, 0, 1, 1, 0}, {",entries=w", 0, 1, 1, 1, 1}};
    for (size_t t = 0; t < sizeof table / sizeof *table; t++) {
        char text[120];
        int first = 0, mixed = 0, falls = 0, twice = 0, wrong = 0;
        snprintf(text, sizeof text, "h=2,n=9,nkv=300,d=8,topk=20,valid=0.6%s", table[t].letters);
        struct lab_listed l = listed_make(text, 1);
        for (int64_t row = 0; row < 18; row++) {
            const int32_t *x = l.pattern.indices + 20 * row;
            int named = 0;
            for (int i = 0; i < 20; i++) {
                named += x[i] != -1;
                wrong += x[i] < -1 || x[i] >= 300;
                mixed += i > 0 && i < 19 && x[i] == -1 && x[i + 1] != -1 && x[0] != -1;
                falls += i > 0 && x[i] != -1 && x[i] < x[i - 1];
                for (int j = 0; j < i; j++)
                    twice += x[i] != -1 && x[i] == x[j];
            }
            first += x[0] == -1;
            if (!strchr(table[t].letters, 'w'))
                assert_int_equal(named, 12);
        }
        lab_listed_free(&l);
        assert_int_equal(wrong > 0, table[t].wrong);
        if (table[t].wrong)
            continue;
        assert_int_equal(first == 18, table[t].first);
        assert_int_equal(mixed > 0, table[t].mixed);
        assert_int_equal(falls > 0, table[t].falls);
        assert_int_equal(twice > 0, table[t].twice);
    }
}

/* Room for the blocks of all rows, one fewer and one more; sets that differ; lengths that are none. */
static void listed_sizes(void **state) {
    (void)state;
    static const char *const forms[] = {"rows", "bits"};
    for (int f = 0; f < 2; f++) {
        char text[120];
        int64_t capacity[3];
        static const char *const letters[3] = {"", ",entries=o", ",entries=r"};
        for (int i = 0; i < 3; i++) {
            snprintf(text, sizeof text, "h=3,n=64,nkv=300,d=8,block=16x8,topk=7,form=%s%s",
                     forms[f], letters[i]);
            struct lab_listed l = listed_make(text, 0);
            capacity[i] = l.pattern.capacity;
            lab_listed_free(&l);
        }
        assert_int_equal(capacity[0], 3 * 4 * 7);
        assert_int_equal(capacity[1], capacity[0] - 1);
        assert_int_equal(capacity[2], capacity[0] + 1);
    }
    struct lab_listed a = listed_make("n=4,nkv=90,d=8,topk=20", 0);
    struct lab_listed b = listed_make("n=4,nkv=90,d=8,topk=20", 1);
    assert_true(lab_listed_hash(&a) != lab_listed_hash(&b));
    lab_listed_free(&a);
    lab_listed_free(&b);
    a = listed_make("b=200,h=1,n=1,nkv=90,d=8,topk=20,entries=lw", 0);
    int none = 0;
    for (int i = 0; i < 200; i++) {
        none += a.pattern.lengths[i] < 0 || a.pattern.lengths[i] > 90;
        assert_true(a.today[i] == 0 || a.today[i] == a.pattern.lengths[i]);
    }
    assert_true(none > 0 && none < 200);
    lab_listed_free(&a);
}

/* Too large for a mask: the same keys by block lists; and what has no such pattern. */
static void listed_large(void **state) {
    (void)state;
    struct lab_listed l = listed_make("h=1,n=8200,nkv=8200,d=8,topk=5,valid=0.6,entries=du", 0);
    tess_pattern *pattern;
    tess_error error = tess_error_init();
    assert_int_equal(lab_listed_pattern(&l, &pattern, &error), TESS_OK);
    for (int64_t i = 0; i < 8200; i += 37) {
        const int32_t *entries = &l.pattern.indices[5 * i];
        int64_t keys[5], count = 0, distinct = 0;
        assert_int_equal(tess_pattern_row(pattern, 0, 0, i, keys, 5, &count, NULL), TESS_OK);
        for (int64_t e = 0; e < 5; e++) {
            int64_t x = 0, before = 0;
            while (before < e && entries[before] != entries[e])
                before++;
            if (entries[e] < 0 || before < e)
                continue;
            while (x < count && keys[x] != entries[e])
                x++;
            assert_true(x < count);
            distinct++;
        }
        assert_int_equal(count, distinct);
        assert_true(count >= 1 && count <= 3);
    }
    tess_pattern_free(pattern);
    lab_listed_free(&l);
    l = listed_make("h=1,n=8200,nkv=8200,d=8,topk=5,cut=causal", 0);
    assert_int_equal(lab_listed_pattern(&l, &pattern, &error), TESS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "without ranges"));
    lab_listed_free(&l);
}

/* Arrays written by hand: faults and overflows that a report must tell, and keys. 3 block rows of 4 columns,
 * 2 batches that share them. */
static void listed_report(void **state) {
    (void)state;
    static const int32_t indices[] = {0, 3, -2, 4, /* two faults */
                                      1, 1, -1, 2, /* none */
                                      9, 9, 9,  9};
    static const struct {
        int32_t counts[3], lengths[2];
        int64_t faults, overflows, cells;
        tess_list_fault first;
        int64_t place[4]; /* batch, head, row, position */
    } table[] = {
        {{4, 4, 4}, {4, 4}, 12, 0, 8, TESS_FAULT_NEGATIVE, {0, 0, 0, 2}},
        {{2, 5, 0}, {4, 4}, 0, 2, 4, TESS_FAULT_OVERFLOW, {0, 0, 1, -1}},
        {{-1, 4, 0}, {4, 4}, 2, 0, 4, TESS_FAULT_NEGATIVE, {0, 0, 0, -1}},
        /* past the lengths 3 and 0; and a length itself, which comes before its batch's entries */
        {{2, 4, 0}, {3, 5}, 7, 0, 3, TESS_FAULT_OUT_OF_RANGE, {0, 0, 0, 1}},
        {{2, 4, 0}, {4, 5}, 6, 0, 4, TESS_FAULT_OUT_OF_RANGE, {1, -1, -1, -1}}};
    struct lab_listed l = listed_make("b=2,h=1,n=3,nkv=4,d=8,topk=4,entries=cl,lists=1", 0);
    memcpy(l.indices.data, indices, sizeof indices);
    for (size_t t = 0; t < sizeof table / sizeof *table; t++) {
        tess_fill_report report;
        int64_t cells = 0;
        uint8_t mask[2 * 3 * 4];
        memcpy(l.counts.data, table[t].counts, sizeof table[t].counts);
        memcpy(l.lengths.data, table[t].lengths, sizeof table[t].lengths);
        assert_int_equal(lab_listed_report(&l, &report), 0);
        assert_int_equal(lab_listed_mask(&l, 2, mask), 0);
        for (size_t i = 0; i < sizeof mask; i++)
            cells += mask[i];
        assert_int_equal(report.faults, table[t].faults);
        assert_int_equal(report.overflows, table[t].overflows);
        assert_int_equal(report.first_fault, table[t].first);
        const int64_t place[] = {report.batch, report.head, report.row, report.position};
        assert_memory_equal(place, table[t].place, sizeof place);
        assert_int_equal(cells, table[t].cells);
    }
    lab_listed_free(&l);
    l = listed_make("b=2,h=1,n=3,nkv=4,d=8,topk=4,block=1x1,form=bits,lists=1", 0);
    memset(l.bits.data, 0xff, l.bits.size);
    for (int64_t capacity = 7; capacity <= 12; capacity++) { /* 4 blocks a row, twice */
        tess_fill_report report;
        l.pattern.capacity = capacity;
        assert_int_equal(lab_listed_report(&l, &report), 0);
        assert_int_equal(report.faults, 0);
        assert_int_equal(report.overflows, 2 * (capacity < 8 ? 2 : capacity < 12));
    }
    lab_listed_free(&l);
}

/* The library's report, with `more` of one number (linked with --wrap=tess_plan_report). */
static struct { int64_t faults, overflows, row; } more;
tess_status __real_tess_plan_report(const tess_plan *plan, const void *image,
                                    tess_fill_report *report, tess_error *error);
tess_status __wrap_tess_plan_report(const tess_plan *plan, const void *image,
                                    tess_fill_report *report, tess_error *error);
tess_status __wrap_tess_plan_report(const tess_plan *plan, const void *image,
                                    tess_fill_report *report, tess_error *error) {
    const tess_status status = __real_tess_plan_report(plan, image, report, error);
    report->faults += more.faults, report->overflows += more.overflows, report->row += more.row;
    return status;
}

/* Drawn faults and overflows are those of the fill's report, and planted ones are seen. */
static void check_holds_reports(void **state) {
    (void)state;
    static const char *const cases[] = {
        "b=2,h=2,n=9,nkv=90,d=8,topk=20,entries=clow",
        "h=2,n=64,nkv=90,d=8,block=16x8,topk=7,form=rows,entries=cow",
        "h=2,n=64,nkv=90,d=8,block=16x8,topk=7,form=bits,entries=ow"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct lab_outcome outcome;
        struct lab_work work;
        struct lab_case c;
        char why[LAB_WHY] = "";
        static const char *const words[] = {"faults", "overflows", "row"};
        tess_fill_report report;
        assert_int_equal(lab_case_parse(&c, cases[i], why), 0);
        assert_int_equal(lab_work_make(&work, &c, why), 0);
        assert_int_equal(lab_listed_report(&work.s.listed, &report), 0);
        assert_true(report.overflows > 0 && (report.faults > 0 || c.form == TESS_BLOCK_BITS));
        lab_check(&outcome, &work, TESS_CPU, TESS_FUSED, NULL);
        if (outcome.verdict != LAB_PASSED)
            fail_msg("%s: %s", cases[i], outcome.message);
        for (int which = 0; which < 3; which++) {
            more.faults = which == 0, more.overflows = which == 1, more.row = which == 2;
            lab_check(&outcome, &work, TESS_CPU, TESS_FUSED, NULL);
            more.faults = more.overflows = more.row = 0;
            assert_int_equal(outcome.verdict, LAB_FAILED);
            assert_non_null(strstr(outcome.message, words[which]));
        }
        lab_work_free(&work);
    }
}

/* Planted: a fill of fewer entries than the pattern lists is seen. */
static void check_sees_other_lists(void **state) {
    (void)state;
    struct lab_outcome outcome;
    struct lab_work work;
    struct lab_case c;
    char why[LAB_WHY] = "";
    assert_int_equal(lab_case_parse(&c, "h=2,n=5,nkv=90,d=8,topk=20,entries=c", why), 0);
    assert_int_equal(lab_work_make(&work, &c, why), 0);
    lab_check(&outcome, &work, TESS_CPU, TESS_FUSED, NULL);
    assert_int_equal(outcome.verdict, LAB_PASSED);
    int32_t *counts = (int32_t *)(void *)work.s.listed.counts.data;
    int row = 0;
    while (counts[row] < 2)
        row++;
    counts[row]--;
    lab_check(&outcome, &work, TESS_CPU, TESS_FUSED, NULL);
    assert_int_equal(outcome.verdict, LAB_FAILED);
    assert_non_null(strstr(outcome.message, "pairs"));
    /* another key, and as many: NaN is where no list is */
    counts[row]++;
    int32_t *index = (int32_t *)(void *)work.s.listed.indices.data + 20 * row;
    index[0] = index[0] ? 0 : 1;
    lab_check(&outcome, &work, TESS_CPU, TESS_FUSED, NULL);
    assert_int_equal(outcome.verdict, LAB_FAILED);
    lab_work_free(&work);
}

/* A choice of tess_select is the one of a sort; another is found. */
static void chosen_lists_are_held_against_a_sort(void **state) {
    (void)state;
    static const char *const cases[] = {
        "h=2,n=130,nkv=500,d=8,block=64x16,select=topk(5)+last(1)&causal",
        "h=2,n=130,nkv=500,d=8,block=64x16,select=threshold(0.5)+first(2),form=bits"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct lab_listed l = listed_make(cases[i], 1);
        struct lab_buffer *const chosen = l.chosen.bits.base ? &l.chosen.bits : &l.chosen.indices;
        struct lab_mirror mirror;
        tess_device_pattern placed;
        char why[LAB_WHY] = "";
        lab_mirror_make(&mirror, TESS_CPU);
        assert_int_equal(lab_listed_place(&l, &mirror, &placed), 0);
        assert_int_equal(lab_listed_check(&l, why), -1); /* nothing is chosen yet */
        assert_int_equal(lab_listed_choose(&l, &mirror, NULL, NULL), TESS_OK);
        if (lab_listed_check(&l, why))
            fail_msg("%s", why);
        chosen->data[4] ^= 1;
        assert_int_equal(lab_listed_check(&l, why), -1);
        assert_non_null(strstr(why, "tess_select: byte 4"));
        lab_mirror_free(&mirror);
        lab_listed_free(&l);
    }
}

static void masks_of_patterns_list_what_these_do(void **state) {
    (void)state;
    struct lab_listed l =
        listed_make("h=2,n=70,nkv=90,d=8,block=16x16,pattern=window(9,3),form=mask", 0);
    for (int64_t x = 0; x < 2 * 70; x++)
        for (int64_t j = 0; j < 90; j++) {
            const int64_t p = x % 70 + 90 - 70;
            assert_int_equal(l.pattern.mask[x * 90 + j] != 0, j >= p - 9 && j <= p + 3);
        }
    assert_int_equal(l.pattern.capacity, 3);
    lab_listed_free(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(listed_entries),
        cmocka_unit_test(listed_sizes),
        cmocka_unit_test(listed_large),
        cmocka_unit_test(listed_report),
        cmocka_unit_test(check_holds_reports),
        cmocka_unit_test(check_sees_other_lists),
        cmocka_unit_test(chosen_lists_are_held_against_a_sort),
        cmocka_unit_test(masks_of_patterns_list_what_these_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
