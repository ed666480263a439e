/*
 * Order of work on CUDA: fills and runs without waits, whose kernels begin early; refusals before the first
 * launch; uploads that a graph replays; and pages that share their rows. Without a device the test says so and is
 * skipped.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "lab/device/device.h"
#include "lab/fill/half.h"
#include "support/lanes.h"
#include "support/on_device.h"

/* ---- fills and runs ---- */

enum { STEPS = 64, LISTS = 2 };

/* A lane, another draw of its lists, and an o for each step. */
struct steps {
    struct lane *lane;
    struct lab_listed other;
    struct lab_mirror home;
    tess_device_pattern lists[LISTS];
    size_t size, apart; /* bytes of an o, and from one to the next */
    char *o;            /* on the device */
    char *right[LISTS], *got;
};

static void steps_make(struct steps *s, const char *text) {
    memset(s, 0, sizeof *s);
    s->lane = lane_make(text);
    assert_non_null(s->lane);
    assert_int_equal(lab_listed_make(&s->other, &s->lane->s.c, 1), 0);
    lab_mirror_make(&s->home, TESS_CUDA);
    s->lists[0] = s->lane->planned.lists;
    assert_int_equal(lab_listed_place(&s->other, &s->home, &s->lists[1]), 0);
    s->size = s->lane->s.o.buffer.size, s->apart = (s->size + 255) / 256 * 256;
    s->o = lab_device_alloc(TESS_CUDA, STEPS * s->apart);
    s->got = malloc(STEPS * s->apart);
    assert_true(s->o && s->got);
    for (int i = 0; i < LISTS; i++)
        assert_non_null(s->right[i] = malloc(s->size));
}

static void steps_free(struct steps *s) {
    for (int i = 0; i < LISTS; i++)
        free(s->right[i]);
    free(s->got);
    lab_device_free(TESS_CUDA, s->o);
    lab_mirror_free(&s->home);
    lab_listed_free(&s->other);
    lane_free(s->lane);
}

enum { IN_ONE_CALL, IN_TURNS, WAITING }; /* fill and run; WAITING: until each has ended */

/* Fills the image from one of the lists, and runs into o of a step. */
static void step(const struct steps *s, int i, int how) {
    const struct lab_planned *p = &s->lane->planned;
    const int waits = how == WAITING;
    tess_arguments a = s->lane->sight.arguments;
    tess_tensor o = *a.o;
    o.data = s->o + (size_t)i * s->apart;
    a.o = &o;
    if (how == IN_ONE_CALL || (how == IN_TURNS && i % 3 == 0)) {
        a.image = NULL;
        assert_int_equal(tess_plan_fill_run(p->plan, &s->lists[i % LISTS], p->place, p->image.size,
                                            NULL, &a, NULL, s->lane->stream),
                         TESS_OK);
        return;
    }
    assert_int_equal(tess_plan_fill(p->plan, &s->lists[i % LISTS], p->place, p->image.size, NULL,
                                    s->lane->stream),
                     TESS_OK);
    if (waits)
        assert_null(lab_device_synchronize(TESS_CUDA));
    assert_int_equal(tess_run(p->plan, &a, NULL, s->lane->stream), TESS_OK);
    if (waits)
        assert_null(lab_device_synchronize(TESS_CUDA));
}

static void clear(struct steps *s) {
    memset(s->got, 0xff, STEPS * s->apart);
    assert_null(lab_device_to_device(TESS_CUDA, s->o, s->got, STEPS * s->apart));
}

static void hold(struct steps *s, const char *how) {
    assert_null(lab_device_synchronize(TESS_CUDA));
    assert_null(lab_device_to_host(TESS_CUDA, s->got, s->o, STEPS * s->apart));
    for (int i = 0; i < STEPS; i++)
        if (memcmp(s->got + (size_t)i * s->apart, s->right[i % LISTS], s->size) != 0)
            fail_msg("%s, %s: step %d answers other bits than with waits", s->lane->text, how, i);
}

static void fills_and_runs_need_no_waits(void **state) {
    static const char *const cases[] = {
        "h=8,hkv=1,n=1,nkv=4096,d=128,dtype=bf16,topk=256",
        "h=8,hkv=1,n=2,nkv=3000,d=64,dtype=f16,topk=2000",
        "h=4,n=64,nkv=2048,d=64,dtype=bf16,block=64x64,topk=16,page=64",
        "h=16,hkv=1,n=1,nkv=3000,d=576,dv=512,dtype=bf16,topk=512,vink=1",
        "h=4,n=384,nkv=2000,d=128,dtype=bf16,block=192x1,topk=700,form=bits",
        "n=776,nkv=1032,d=136,dv=136,dtype=bf16,block=128x1,topk=800,op=mlp,bias=ho,cache=store",
        "n=392,nkv=520,d=72,dv=72,dtype=f16,block=64x1,topk=3,form=ranges,entries=u,op=mlp,bias=h",
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct steps s;
        void *graph;
        steps_make(&s, cases[c]);
        clear(&s);
        for (int i = 0; i < LISTS; i++) {
            step(&s, i, WAITING);
            assert_null(
                lab_device_to_host(TESS_CUDA, s.right[i], s.o + (size_t)i * s.apart, s.size));
        }
        assert_true(memcmp(s.right[0], s.right[1], s.size) != 0);
        clear(&s);
        for (int i = 0; i < STEPS; i++)
            step(&s, i, IN_TURNS);
        hold(&s, "in a stream");
        clear(&s);
        for (int i = 0; i < STEPS; i++)
            step(&s, i, IN_ONE_CALL);
        hold(&s, "in one call each");
        clear(&s);
        assert_null(lab_device_graph_begin(TESS_CUDA, s.lane->stream));
        for (int i = 0; i < STEPS; i++)
            step(&s, i, IN_TURNS);
        assert_null(lab_device_graph_end(TESS_CUDA, s.lane->stream, &graph));
        for (int replay = 0; replay < 3; replay++)
            assert_null(lab_device_graph_launch(TESS_CUDA, graph, s.lane->stream));
        hold(&s, "in a graph");
        lab_device_graph_free(TESS_CUDA, graph);
        steps_free(&s);
    }
}

/* ---- refusals ---- */

/* A copy of an argument's view whose rows have a stride of 0. */
static tess_tensor rows_shared(const tess_tensor *view) {
    tess_tensor t = *view;
    t.stride[2] = 0;
    return t;
}

/* A kernel by TMA alone, whose maps have strides below 2^40 bytes. Outputs keep their poison. */
static void a_refused_run_has_written_nothing(void **state) {
    static const char text[] = "h=2,n=128,d=128,dtype=bf16,block=128x64,topk=2,kernel=cuda_decode_"
                               "bf16_sm90_blocks_d128_r128";
    (void)state;
    for (int x = 0; x < 3; x++) { /* q, k, v */
        struct lane *lane = lane_make(text);
        tess_error error = tess_error_init();
        const char *why;
        if (!lane) {
            print_message("no kernel by TMA here: skipped\n");
            skip();
        }
        tess_arguments *const a = &lane->sight.arguments;
        const tess_tensor **const operands[] = {&a->q, &a->k, &a->v};
        const tess_tensor *const whole = *operands[x];
        tess_tensor far = *whole;
        far.stride[2] = INT64_C(1) << 40;
        assert_null(lane_clear(lane));
        const uint64_t poison = lane_bits(lane, &why);
        *operands[x] = &far;
        if (tess_run(lane->planned.plan, a, &error, lane->stream) != TESS_UNSUPPORTED)
            fail_msg("%s: rows of operand %d were not refused: %s", text, x, error.message);
        assert_non_null(strstr(error.message, "TMA"));
        assert_true(lane_bits(lane, &why) == poison);
        *operands[x] = whole; /* nothing of the refusal stays */
        assert_null(lane_run(lane, &error));
        assert_true(lane_bits(lane, &why) != poison);
        assert_null(why);
        lane_free(lane);
    }
}

/* The one call takes the pipeline that reads such tensors. */
static void one_calls_take_shared_rows(void **state) {
    (void)state;
    for (int x = 0; x < 3; x++) {
        struct lane *lane =
            lane_make("h=2,n=256,d=64,dtype=bf16,block=64x64,pattern=random(0.5,1)");
        tess_error error = tess_error_init();
        const tess_arguments *a = &lane->sight.arguments;
        const tess_tensor *in[] = {a->q, a->k, a->v};
        const tess_tensor shared = rows_shared(in[x]);
        const char *why;
        in[x] = &shared;
        assert_null(lane_clear(lane));
        const uint64_t poison = lane_bits(lane, &why);
        if (tess_attention(TESS_CUDA, in[0], in[1], in[2], lane->s.pattern, a->o, a->lse, &error))
            fail_msg("%s", error.message);
        assert_true(lane_bits(lane, &why) != poison);
        lane_free(lane);
    }
}

/* ---- uploads ---- */

/* A recorded upload reads the plan when it is replayed, and nothing of the call that recorded it. */
static void uploads_can_be_replayed(void **state) {
    static const char *const cases[] = {
        "h=1,n=64,nkv=16384,d=64,dtype=bf16,block=64x64", /* split: the header says how many combines */
        "h=2,n=256,d=64,dtype=bf16,block=64x64,pipeline=staged",
        "h=2,n=256,d=64,dtype=bf16,block=64x64,op=backward",
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct lane *lane = lane_make(cases[c]);
        const struct lab_planned *p = &lane->planned;
        tess_error error = tess_error_init();
        const char *why;
        void *graph, *noise = malloc(p->image.size);
        assert_non_null(noise);
        memset(noise, 0, p->image.size);
        assert_null(lane_clear(lane));
        assert_null(lane_run(lane, &error));
        const uint64_t bits = lane_bits(lane, &why);
        assert_null(lab_device_graph_begin(TESS_CUDA, lane->stream));
        const tess_status status =
            tess_plan_upload(p->plan, p->place, p->image.size, &error, lane->stream);
        assert_null(lab_device_graph_end(TESS_CUDA, lane->stream, &graph));
        assert_int_equal(status, TESS_OK);
        assert_null(lab_device_to_device(TESS_CUDA, p->place, noise, p->image.size));
        assert_null(lane_clear(lane));
        assert_null(lab_device_graph_launch(TESS_CUDA, graph, lane->stream));
        assert_null(lane_run(lane, &error));
        if (lane_bits(lane, &why) != bits)
            fail_msg("%s: other bits after a replayed upload", cases[c]);
        lab_device_graph_free(TESS_CUDA, graph);
        free(noise);
        lane_free(lane);
    }
}

/* ---- pages ---- */

/* Pages of a broadcast cache are one: Hopper's kernel by TMA answers what the portable one does. */
static void pages_can_share_rows(void **state) {
    static const char *const kernels[] = {"cuda_decode_bf16_d64_r64",
                                          "cuda_decode_bf16_sm90_blocks_d64"};
    (void)state;
    for (int x = 0; x < 3; x++) { /* K's pages, V's, both */
        double o[2][64 * 64], most = 0, worst = 0;
        for (int kernel = 0; kernel < 2; kernel++) {
            char text[256];
            tess_error error = tess_error_init();
            const char *why;
            snprintf(text, sizeof text,
                     "h=1,n=64,nkv=128,d=64,dtype=bf16,block=64x64,topk=2,page=64,kernel=%s",
                     kernels[kernel]);
            struct lane *lane = lane_make(text);
            if (!lane) {
                print_message("no kernel by TMA here: skipped\n");
                skip();
            }
            tess_arguments *const a = &lane->sight.arguments;
            tess_tensor k = *a->k, v = *a->v;
            k.stride[0] = x == 1 ? k.stride[0] : 0;
            v.stride[0] = x == 0 ? v.stride[0] : 0;
            a->k = &k, a->v = &v;
            int32_t *const table = (int32_t *)(void *)lane->s.cache.table.data;
            assert_true(k.size[0] >= 2);
            table[0] = 0, table[1] = 1;
            assert_null(lane_clear(lane));
            assert_null(lane_run(lane, &error));
            lane_bits(lane, &why);
            for (int i = 0; i < 64 * 64; i++)
                o[kernel][i] = lab_get(lane->s.o.view.data, TESS_BF16, i);
            lane_free(lane);
        }
        for (int i = 0; i < 64 * 64; i++) {
            assert_true(isfinite(o[0][i]));
            most = fmax(most, fabs(o[0][i])), worst = fmax(worst, fabs(o[0][i] - o[1][i]));
        }
        if (!(worst <= 0x1p-6 * most))
            fail_msg("relative difference %g", worst / most);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fills_and_runs_need_no_waits),
        cmocka_unit_test(a_refused_run_has_written_nothing),
        cmocka_unit_test(one_calls_take_shared_rows),
        cmocka_unit_test(uploads_can_be_replayed),
        cmocka_unit_test(pages_can_share_rows),
    };
    const int absent = device_absent();
    return absent ? absent : cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
