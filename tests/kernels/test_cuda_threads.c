/*
 * Host threads and plans beside one another on CUDA: nothing that one launch sets reaches another. Every family runs
 * in a thread of its own; a captured graph is made after other plans ran; a process whose first run is recorded;
 * two devices in turns. Without a device the test says so and is skipped.
 *
 *     test_cuda_threads [--first CASE]     a process that records its first run, and prints what it answers
 */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "lab/device/device.h"
#include "support/lanes.h"
#include "support/on_device.h"

/* Plans of one family differ in what a launch might set for them. Cases that name a kernel of Hopper are left out
 * elsewhere. */
static const char *const cases[] = {
    "h=4,n=512,d=64,dtype=bf16,block=128x128,op=backward,tile=128",
    "h=4,n=512,d=64,dtype=bf16,block=128x128,op=backward,tile=64",
    "h=4,n=512,d=64,dtype=bf16,block=128x128,op=backward,tile=128",
    "h=4,n=512,d=64,dtype=bf16,block=128x128,op=backward,tile=64",
    "h=2,n=256,d=128,dtype=f32,block=64x64,op=backward,tile=64",
    "h=2,n=256,d=128,dtype=f32,block=64x64,op=backward,tile=16",
    "h=4,n=512,d=64,dtype=bf16,block=64x64,op=backward,pipeline=staged",
    "h=4,n=512,d=64,dtype=bf16,block=64x64,pattern=random(0.5,1)",
    "h=4,n=512,d=64,dtype=bf16,block=128x128,pattern=random(0.5,1),kernel=cuda_attention_bf16_sm90_"
    "d64",
    "h=4,n=512,d=64,dtype=bf16,block=64x64,pattern=random(0.5,1),kernel=cuda_attention_bf16_d64,"
    "tile=64",
    "h=4,n=512,d=64,dtype=bf16,block=64x64,pattern=random(0.5,1),kernel=cuda_attention_bf16_d64,"
    "tile=16",
    "h=4,n=256,d=64,dtype=f32,block=8x8,pattern=random(0.5,1),kernel=cuda_attention_f32_small_m_"
    "d64",
    "h=2,n=128,d=512,dtype=bf16,block=8x8,pattern=random(0.5,1),kernel=cuda_attention_bf16_small_m_"
    "d512,tile=8",
    "h=2,n=128,d=512,dtype=bf16,block=16x8,pattern=random(0.5,1),kernel=cuda_attention_bf16_small_"
    "m_d512,tile=16",
    "h=4,n=512,d=64,dtype=bf16,block=64x64,pattern=random(0.5,1),pipeline=staged",
    "h=4,n=512,d=64,dtype=bf16,block=16x16,pattern=random(0.5,1),pipeline=staged",
    "h=4,n=512,d=64,dtype=f32,block=16x16,pattern=random(0.5,1),pipeline=staged",
    "h=8,hkv=1,n=1,nkv=4096,d=128,dtype=bf16,topk=256",
    "h=8,hkv=1,n=1,nkv=4096,d=128,dtype=bf16,topk=256,kvtype=e4m3,kvscale=token",
    "h=8,hkv=1,n=2,nkv=60000,d=64,dtype=bf16,topk=256",
    "h=4,n=384,d=128,dtype=bf16,block=192x1,topk=200,form=bits",
    "h=8,hkv=1,n=2,nkv=30000,d=64,dtype=bf16,topk=2048,entries=u",
    "h=4,n=256,nkv=1024,d=64,dtype=bf16,block=64x64,topk=8",
    "h=2,n=256,nkv=1024,d=64,dtype=bf16,block=128x64,topk=8,form=bits",
    "n=392,nkv=1032,d=264,dv=136,dtype=bf16,block=128x1,topk=300,op=mlp,bias=ho,cache=store",
    "n=392,nkv=1032,d=264,dv=136,dtype=bf16,block=192x1,pattern=random_row(0.3,1),op=mlp,bias=ho",
};
enum { CASES = sizeof cases / sizeof *cases, ROUNDS = 6, RUNS = 24 };

static const char *program; /* this one */

/* Answer of a lane by itself. */
static uint64_t alone(struct lane *lane) {
    tess_error error = tess_error_init();
    const char *why = lane_clear(lane);
    if (!why)
        why = lane_run(lane, &error);
    const uint64_t bits = why ? 0 : lane_bits(lane, &why);
    if (why)
        fail_msg("%s: %s", lane->text, why);
    return bits;
}

/* ---- threads ---- */

struct worker {
    struct lane *lane;
    uint64_t bits;
    pthread_barrier_t *begin;
    pthread_t thread;
    char why[256]; /* empty: right */
};

/* An answer joined with itself, in its place. */
static const char *merge(const struct lane *lane, tess_error *error) {
    const tess_arguments *a = &lane->sight.arguments;
    const tess_tensor *const o[] = {a->o, a->o}, *const lse[] = {a->lse, a->lse};
    if (lab_case_backward(&lane->s.c) || lab_case_mlp(&lane->s.c) || lane->s.c.n < 64)
        return NULL;
    return tess_merge(TESS_CUDA, 2, o, lse, a->o, a->lse, error, lane->stream) ? error->message
                                                                               : NULL;
}

static void *work(void *given) {
    struct worker *w = given;
    tess_error error = tess_error_init();
    for (int round = 0; round < ROUNDS; round++) {
        const char *why = lane_clear(w->lane);
        pthread_barrier_wait(w->begin);
        for (int i = 0; i < RUNS && !why; i++) {
            why = lane_run(w->lane, &error);
            if (!why)
                why = merge(w->lane, &error);
        }
        pthread_barrier_wait(w->begin); /* copies of others would wait in the midst */
        const uint64_t bits = why ? 0 : lane_bits(w->lane, &why);
        if (!w->why[0] && (why || bits != w->bits))
            snprintf(w->why, sizeof w->why, "%.100s: %.150s", w->lane->text,
                     why ? why : "other bits than alone");
        pthread_barrier_wait(w->begin);
    }
    return NULL;
}

static void threads_do_not_break_one_another(void **state) {
    (void)state;
    static struct worker workers[CASES];
    pthread_barrier_t begin;
    int n = 0;
    for (int i = 0; i < CASES; i++) {
        struct lane *lane = lane_make(cases[i]);
        tess_error error = tess_error_init();
        if (!lane)
            continue;
        alone(lane);
        assert_null(merge(lane, &error));
        const char *why;
        workers[n++] = (struct worker){
            .lane = lane, .bits = lane_bits(lane, &why), .begin = &begin, .why = ""};
        assert_null(why);
    }
    assert_true(n > 16);
    assert_int_equal(pthread_barrier_init(&begin, NULL, (unsigned)n), 0);
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    for (int i = 0; i < n; i++)
        pthread_join(workers[i].thread, NULL);
    pthread_barrier_destroy(&begin);
    int wrong = 0;
    for (int i = 0; i < n; i++) {
        if (workers[i].why[0])
            print_error("%s\n", workers[i].why), wrong++;
        lane_free(workers[i].lane);
    }
    assert_int_equal(wrong, 0);
}

/* ---- graphs ---- */

/* Plan A is recorded; all others run; then A's graph is made, replayed, and once more after others. */
static void other_plans_do_not_reach_a_recorded_one(void **state) {
    (void)state;
    static struct lane *lanes[CASES];
    static uint64_t bits[CASES];
    void *recorded[CASES] = {NULL}, *graph;
    tess_error error = tess_error_init();
    for (int i = 0; i < CASES; i++) {
        lanes[i] = lane_make(cases[i]);
        bits[i] = lanes[i] ? alone(lanes[i]) : 0;
    }
    for (int i = 0; i < CASES; i++)
        if (lanes[i]) {
            assert_null(lab_device_graph_begin(TESS_CUDA, lanes[i]->stream));
            assert_null(lane_run(lanes[i], &error));
            assert_null(lab_device_graph_stop(TESS_CUDA, lanes[i]->stream, &recorded[i]));
        }
    for (int i = 0; i < CASES; i++) {
        if (!lanes[i])
            continue;
        for (int other = 0; other < CASES; other++)
            if (lanes[other])
                assert_null(lane_run(lanes[other], &error));
        assert_null(lab_device_graph_ready(TESS_CUDA, recorded[i], &graph));
        for (int replay = 0; replay < 2; replay++) {
            const char *why;
            for (int other = 0; other < CASES && replay; other++)
                if (lanes[other])
                    assert_null(lane_run(lanes[other], &error));
            assert_null(lab_device_synchronize(TESS_CUDA));
            assert_null(lane_clear(lanes[i]));
            assert_null(lab_device_graph_launch(TESS_CUDA, graph, lanes[i]->stream));
            if (lane_bits(lanes[i], &why) != bits[i])
                fail_msg("%s, replay %d: %s", cases[i], replay,
                         why ? why : "other bits than alone");
        }
        lab_device_graph_free(TESS_CUDA, graph);
    }
    for (int i = 0; i < CASES; i++)
        if (lanes[i])
            lane_free(lanes[i]);
}

/* ---- a process ---- */

/* The process's first run of the library's kernels stands in a capture; the image alone is there before. */
static int first_recorded(const char *text) {
    tess_error error = tess_error_init();
    const char *why;
    void *graph;
    struct lane *lane = lane_make(text);
    if (!lane)
        return EXIT_FAILURE;
    why = lane_clear(lane);
    if (!why)
        why = lab_device_graph_begin(TESS_CUDA, lane->stream);
    if (!why) {
        why = lane_run(lane, &error);
        const char *ended = lab_device_graph_end(TESS_CUDA, lane->stream, &graph);
        why = why ? why : ended;
    }
    if (!why)
        why = lab_device_graph_launch(TESS_CUDA, graph, lane->stream);
    const uint64_t bits = why ? 0 : lane_bits(lane, &why);
    if (why) {
        fprintf(stderr, "%s: %s\n", text, why);
        return EXIT_FAILURE;
    }
    printf("%llx\n", (unsigned long long)bits);
    return EXIT_SUCCESS;
}

static void a_first_run_can_be_recorded(void **state) {
    static const int some[] = {0, 5, 6, 7, 8, 10, 11, 12, 15, 16, 17, 21, 24};
    (void)state;
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        const char *text = cases[some[i]];
        char command[1024];
        unsigned long long bits = 0;
        struct lane *lane = lane_make(text);
        if (!lane)
            continue;
        const uint64_t wanted = alone(lane);
        lane_free(lane);
        snprintf(command, sizeof command, "'%s' --first '%s'", program, text);
        FILE *child = popen(command, "r"); /* NOLINT: the command is this program's own */
        assert_non_null(child);
        assert_int_equal(fscanf(child, "%llx", &bits), 1);
        assert_int_equal(pclose(child), 0);
        if (bits != wanted)
            fail_msg("%s: other bits in a process that records its first run", text);
    }
}

/* ---- two devices ---- */

static void two_devices_take_turns(void **state) {
    (void)state;
    enum { DEVICES = 2, TURNS = 4 };
    tess_error error = tess_error_init();
    if (tess_device_count(TESS_CUDA) < DEVICES) {
        print_message("one device: turns of two are skipped\n");
        skip();
    }
    for (int i = 0; i < CASES; i++) {
        struct lane *lanes[DEVICES];
        uint64_t bits[DEVICES] = {0};
        for (int d = 0; d < DEVICES; d++) {
            assert_null(lab_device_use(TESS_CUDA, d));
            lanes[d] = lane_make(cases[i]);
            bits[d] = lanes[d] ? alone(lanes[d]) : 0;
        }
        for (int turn = 0; turn < TURNS * DEVICES; turn++) {
            const int d = turn % DEVICES;
            const char *why;
            if (!lanes[d])
                continue;
            assert_null(lab_device_use(TESS_CUDA, d));
            assert_null(lane_clear(lanes[d]));
            assert_null(lane_run(lanes[d], &error));
            if (lane_bits(lanes[d], &why) != bits[d])
                fail_msg("%s, device %d: %s", cases[i], d, why ? why : "other bits than alone");
        }
        for (int d = 0; d < DEVICES; d++) {
            assert_null(lab_device_use(TESS_CUDA, d));
            if (lanes[d])
                lane_free(lanes[d]);
        }
    }
    assert_null(lab_device_use(TESS_CUDA, 0));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_do_not_break_one_another),
        cmocka_unit_test(other_plans_do_not_reach_a_recorded_one),
        cmocka_unit_test(a_first_run_can_be_recorded),
        cmocka_unit_test(two_devices_take_turns),
    };
    program = argv[0];
    if (argc > 2 && !strcmp(argv[1], "--first"))
        return first_recorded(argv[2]);
    const int absent = device_absent();
    return absent ? absent : cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
