/*
 * tess_select on a device, against a sort: rows for each kind of launch, replays of a graph whose scores change, two host
 * threads. Without a device the test says so and is skipped.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <pthread.h>

#include "lab/device/device.h"
#include "support/selecting.h"

enum { SKIPPED = 77, REPLAYS = 6 };

static void done(const char *why) {
    if (why)
        fail_msg("%s", why);
}

static void choices_are_those_of_a_sort(void **state) {
    (void)state;
    choices_are_right(TESS_CUDA, 3, 64);
    choices_are_right(TESS_CUDA, 2, 777);
    choices_are_right(TESS_CUDA, 2, 5000);  /* registers of a CTA */
    choices_are_right(TESS_CUDA, 2, 20001); /* rows that are not aligned: a cluster for each */
}

static void edges(void **state) {
    (void)state;
    edges_are_right(TESS_CUDA);
}

static void lists(void **state) {
    (void)state;
    choices_are_lists(TESS_CUDA);
}

/* Rows past the shared memory of a cluster; scores that the bracket of a sample does not find, or that find no room; as
 * many rows as there are CTAs for each size. */
static const uint64_t drawn_bits; /* its address says: drawn */
static const struct choice launches[] = {
    {.size = {1, 1, 2, 1 << 20},
     .selection = {sizeof(tess_selection), .k = 2048},
     .capacity = 2048},
    {.type = TESS_BF16,
     .size = {1, 1, 1, 500001},
     .selection = {sizeof(tess_selection), TESS_SELECT_TOP_P, .p = 0.5f}},
    {.size = {1, 1, 2, 200000},
     .scores = SCORES_RISING,
     .selection = {sizeof(tess_selection), .k = 9000},
     .capacity = 9000},
    {.type = TESS_F16,
     .size = {1, 1, 3, 150000},
     .scores = SCORES_RELU,
     .selection = {sizeof(tess_selection), .k = 40000, .keep_first = 70}},
    {.type = TESS_BF16,
     .size = {1, 5, 60, 20000},
     .selection = {sizeof(tess_selection), .k = 1500, .keep_last = 7},
     .capacity = 1500},
    {.type = TESS_BF16,
     .size = {1, 5, 60, 20000},
     .selection = {sizeof(tess_selection), .k = 1500, .keep = &drawn_bits, .keep_rows = 60},
     .capacity = 1500},
    {.size = {1, 5, 60, 20000},
     .selection = {sizeof(tess_selection), TESS_SELECT_THRESHOLD, .threshold = 0.5f},
     .capacity = 3000},
    {.size = {1, 1, 30, 12288},
     .scores = SCORES_TWO,
     .selection = {sizeof(tess_selection), .k = 3686},
     .capacity = 3686},
    {.size = {2, 8, 50, 4096},
     .selection = {sizeof(tess_selection), .k = 1000, .keep_first = 3},
     .capacity = 1000},
    {.size = {2, 8, 50, 4096},
     .selection = {sizeof(tess_selection), .k = 400, .keep = &drawn_bits, .keep_rows = 50},
     .capacity = 400},
    {.type = TESS_BF16,
     .size = {1, 8, 100, 5000},
     .selection = {sizeof(tess_selection), .k = 300, .keep_last = 70},
     .capacity = 300},
    {.type = TESS_F16,
     .size = {1, 1, 600, 5000},
     .scores = SCORES_RELU,
     .selection = {sizeof(tess_selection), .k = 3000},
     .capacity = 3000},
    {.type = TESS_F16,
     .size = {1, 1, 600, 5000},
     .scores = SCORES_ZEROS,
     .selection = {sizeof(tess_selection), .k = 40}},
    {.size = {1, 1, 600, 5000},
     .scores = SCORES_RISING,
     .selection = {sizeof(tess_selection), .k = 700},
     .capacity = 700},
    {.size = {1, 1, 600, 5000},
     .scores = SCORES_NAN,
     .selection = {sizeof(tess_selection), .k = 2000},
     .capacity = 2000},
    {.type = TESS_BF16,
     .size = {1, 1, 600, 5000},
     .selection = {sizeof(tess_selection), TESS_SELECT_THRESHOLD, .threshold = 0.5f},
     .capacity = 1500},
};

static void every_launch_chooses_right(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++)
        choice_is_right(TESS_CUDA, &launches[i], i);
}

/* Columns of both backends are the same, of TOP_P too. */
static void both_backends_choose_the_same(void **state) {
    (void)state;
    for (int i = 0; i < 12; i++) {
        struct choice c = {.type = (tess_type)(i % 3),
                           .size = {2, 2, 7, 3001},
                           .scores = (enum scores)(i % SCORES_KINDS),
                           .selection = {sizeof(tess_selection), TESS_SELECT_TOP_P,
                                         .p = 0.1f * (float)(i % 10 + 1)}};
        struct selecting host, device;
        char why[LAB_WHY];
        selecting_make(&host, TESS_CPU, &c);
        selecting_make(&device, TESS_CUDA, &c);
        selecting_draw(&host, 9), selecting_draw(&device, 9);
        selecting_run(&host, NULL), selecting_run(&device, NULL);
        if (selecting_check(&device, why))
            fail_msg("%s", why);
        assert_true(selecting_hash(&host) == selecting_hash(&device));
        selecting_free(&host), selecting_free(&device);
    }
}

/* A graph of one choice. */
struct replay {
    struct selecting s;
    tess_stream stream;
    void *graph;
    uint64_t seed;
    pthread_t thread;
    int wrong;
    char why[LAB_WHY];
};

static const struct choice replayed[] = {
    {.size = {3, 1, 4, 20000}, .selection = {sizeof(tess_selection), .k = 500}, .capacity = 500},
    {.type = TESS_F16,
     .size = {3, 1, 200, 4500},
     .selection = {sizeof(tess_selection), .k = 500, .causal = 1, .keep_last = 1}},
};
enum { REPLAYED = sizeof replayed / sizeof *replayed };

static void replay_make(struct replay *r, size_t number) {
    static const int32_t drawn;
    struct choice choice = replayed[number];
    choice.selection.lengths = &drawn;
    r->seed = 10 * number, r->wrong = 0;
    selecting_make(&r->s, TESS_CUDA, &choice);
    done(lab_device_stream_make(TESS_CUDA, &r->stream));
    done(lab_device_graph_begin(TESS_CUDA, r->stream));
    selecting_run(&r->s, r->stream);
    done(lab_device_graph_end(TESS_CUDA, r->stream, &r->graph));
}

static void replay_free(struct replay *r) {
    lab_device_graph_free(TESS_CUDA, r->graph);
    lab_device_stream_free(TESS_CUDA, r->stream);
    selecting_free(&r->s);
}

/* Replays, each twice, with scores and lengths that change. */
static void *replay(void *context) {
    struct replay *r = context;
    for (uint64_t i = 0; i < REPLAYS && !r->wrong; i++) {
        r->s.choice.scores = (enum scores)((r->seed + i) % SCORES_KINDS);
        selecting_draw(&r->s, r->seed + i);
        for (int again = 0; again < 2; again++)
            done(lab_device_graph_launch(TESS_CUDA, r->graph, r->stream));
        r->wrong = selecting_check(&r->s, r->why);
    }
    return NULL;
}

static void one_graph_serves_all_scores(void **state) {
    (void)state;
    for (size_t i = 0; i < REPLAYED; i++) {
        struct replay r;
        replay_make(&r, i);
        replay(&r);
        done(r.wrong ? r.why : NULL);
        replay_free(&r);
    }
}

static void host_threads_do_not_meet(void **state) {
    (void)state;
    static struct replay r[REPLAYED];
    for (size_t i = 0; i < REPLAYED; i++)
        replay_make(&r[i], i);
    for (size_t i = 0; i < REPLAYED; i++)
        assert_int_equal(pthread_create(&r[i].thread, NULL, replay, &r[i]), 0);
    for (size_t i = 0; i < REPLAYED; i++)
        pthread_join(r[i].thread, NULL);
    for (size_t i = 0; i < REPLAYED; i++) {
        done(r[i].wrong ? r[i].why : NULL);
        replay_free(&r[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_are_those_of_a_sort),
        cmocka_unit_test(edges),
        cmocka_unit_test(lists),
        cmocka_unit_test(every_launch_chooses_right),
        cmocka_unit_test(both_backends_choose_the_same),
        cmocka_unit_test(one_graph_serves_all_scores),
        cmocka_unit_test(host_threads_do_not_meet),
    };
    if (!lab_device_available(TESS_CUDA)) {
        puts("skipped: no CUDA device");
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
