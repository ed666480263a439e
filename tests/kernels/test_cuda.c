/* What the CUDA backend promises, on a device. Without one the test says so and is skipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lab/check.h"
#include "lab/device.h"
#include "lab/half.h"
#include "lab/run.h"

enum { SKIPPED = 77, REPEATS = 500 };

static void work_make(struct lab_work *w, const char *text) {
    struct lab_case c;
    char why[LAB_WHY] = "";
    if (lab_case_parse(&c, text, why) || lab_work_make(w, &c, why))
        fail_msg("%s: %s", text, why);
}

static void planned_make(struct lab_planned *p, const struct lab_work *w, tess_pipeline pipeline) {
    tess_error error = tess_error_init();
    tess_target target = tess_target_init();
    tess_problem problem = lab_case_problem(&w->c, pipeline);
    assert_int_equal(tess_target_query(&target, TESS_CUDA, -1, &error), TESS_OK);
    if (lab_planned_make(p, &problem, w->pattern, &target, &error) != TESS_OK)
        fail_msg("the plan: %s", error.message);
}

/* Sizes past those of the sweep of `tessera verify`: many blocks, long rows, wide heads. */
static void checks(void **state) {
    (void)state;
    static const char *const texts[] = {
        "h=2,n=700,d=64,pattern=causal,block=64x64",
        "h=2,n=700,d=64,dtype=bf16,pattern=causal,block=64x64",
        "h=2,n=700,d=128,dtype=f16,pattern=window(200,31),block=128x128,layout=bnhd",
        "b=2,h=4,hkv=2,n=300,nkv=411,d=40,dv=72,dtype=bf16,pattern=random(0.3,1),block=8x16",
        "h=3,n=257,d=17,dv=5,dtype=f16,pattern=random(0.5,1),block=5x7,layout=padded,align=2",
        "h=2,n=500,d=32,pattern=dilated(9,7),block=1x1,source=topk,fill=nanv",
        "h=2,n=500,d=32,dtype=f16,pattern=random(0.1,1),block=192x1,fill=nank",
        "h=1,n=40,d=768,pattern=random(0.5,1),block=8x8",
        "h=1,n=20,d=1024,dtype=bf16,pattern=dense,block=16x16,fill=large",
        "h=2,n=700,nkv=1900,d=128,dtype=bf16,pattern=random(0.5,1),block=64x64,part=256,fill=nanv",
        "h=4,hkv=2,n=900,nkv=1000,d=64,dtype=f16,pattern=window(300,40),block=128x128,layout=bnhd",
        "h=1,n=4000,d=64,dtype=bf16,pattern=segments(2000,2000),block=64x64,fill=nanv",
        "h=3,n=1500,nkv=4000,d=128,dtype=bf16,pattern=random(0.2,1)+window(100,0),block=64x64",
        "h=1,n=3,nkv=65536,d=8,pattern=dense,block=1x64",
        "h=1,n=3,nkv=65536,d=8,dtype=bf16,pattern=dense,block=16x16",
        "h=1,n=100,nkv=3000,d=24,pattern=random(0.2,4),block=256x64,fill=inf",
        "h=2,n=600,d=16,dtype=f16,pattern=random_row(0.4,3),block=2x2,source=mask",
        "h=2,n=130,d=48,pattern=segments(50,30)&causal,block=48x80,source=lists,fill=huge",
        "b=70,h=1000,hkv=1,n=2,d=1,pattern=causal,block=2x1,lists=1",
        "h=2,n=300,d=64,dtype=f16,pattern=causal,block=64x64,fill=extreme",
        "h=2,n=300,d=64,dtype=bf16,pattern=causal,block=64x64,fill=extreme",
        "h=2,n=300,d=128,dtype=bf16,pattern=random(0.4,1),block=8x8,fill=extreme,part=128",
        "h=1,n=200,d=32,dtype=f16,pattern=dense,fill=large,scale=1e5",
        "h=1,n=200,d=32,dtype=f16,pattern=dense,block=64x64,fill=large,scale=600",
        "h=1,n=200,d=128,dtype=bf16,pattern=dense,block=128x128,fill=large,scale=-1e8",
        "h=2,n=300,d=64,dtype=f16,pattern=dense,block=64x64,fill=sink",
        "h=2,n=700,d=128,dtype=f16,pattern=random(0.5,1),block=8x8,fill=sink,part=128",
        "h=2,n=300,d=64,dtype=bf16,pattern=random(0.3,1),block=16x16,fill=sink",
        "h=1,n=300,d=64,dtype=bf16,pattern=random(0.4,1),block=16x16,fill=inf",
        "h=1,n=300,d=128,dtype=bf16,pattern=random(0.4,1),block=8x8,fill=nank",
        "h=1,n=300,d=64,dtype=bf16,pattern=window(60,9),block=32x32,fill=nanv",
        "h=1,n=70,nkv=1500,d=64,dtype=bf16,pattern=dense,block=64x64,fill=inf,part=128",
        "h=1,n=70,nkv=1500,d=64,dtype=f16,pattern=random(0.2,1),block=8x1,fill=inf,part=128",
        "h=1,n=200,d=200,dtype=bf16,pattern=causal,block=128x128,tile=8",
        "h=1,n=200,d=256,dtype=f16,pattern=causal,block=128x128,tile=16",
        "h=1,n=200,d=130,dv=256,dtype=bf16,pattern=causal,block=128x128,tile=32",
        "h=1,n=200,d=256,dv=8,dtype=bf16,pattern=causal,block=128x128,tile=64",
        "h=1,n=200,d=192,dv=128,dtype=f16,pattern=causal,block=128x128,tile=128",
        "h=2,n=90,d=96,dv=80,dtype=bf16,pattern=causal,block=32x32,scale=-0.3",
        "h=2,n=700,d=256,dtype=bf16,pattern=random(0.3,1)+window(80,0),block=128x128,part=256",
        "h=2,n=500,d=192,dv=128,dtype=f16,pattern=window(200,31),block=64x64,fill=nanv",
        "h=8,hkv=2,n=700,d=128,dtype=bf16,pattern=random(0.3,1),block=64x64,lists=kv,part=128",
        "h=4,hkv=1,n=600,d=64,dtype=f16,pattern=window(90,20),block=48x80,lists=1,fill=nanv",
        "h=6,hkv=3,n=500,d=64,dtype=bf16,pattern=random(0.2,1),block=64x1,lists=kv,layout=bnhd",
        "h=8,hkv=4,n=17,nkv=8,d=96,dtype=f16,pattern=blockdiag(6)+strided(2,4),block=33x5,"
        "fill=sink,scale=-0.5,seed=712573",
        "h=2,n=300,nkv=900,d=128,pattern=random(0.5,1),block=128x128,fill=large",
        "h=2,n=700,d=128,pattern=window(300,31),block=64x64,part=256,layout=padded",
        "h=2,n=300,d=100,dv=70,pattern=random(0.4,1),block=8x8,fill=extreme,align=4",
        "h=1,n=200,nkv=20000,d=64,pattern=dense,block=64x64,fill=positive",
        "h=1,n=70,nkv=1500,d=128,pattern=random(0.2,1),block=8x1,fill=inf,part=512",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
            struct lab_work w;
            struct lab_outcome outcome;
            work_make(&w, texts[i]);
            lab_check(&outcome, &w, TESS_CUDA, (tess_pipeline)pipeline, NULL);
            if (outcome.verdict != LAB_PASSED)
                fail_msg("%s: %s", texts[i], outcome.message);
            lab_work_free(&w);
        }
}

/* Only the product of scale, query and key has to be in range. Each is what all dims of the one query
 * and of the first of two keys hold; the other key is 0. */
static void extreme_scales(void **state) {
    (void)state;
    static const struct {
        tess_type type;
        double scale, q, k;
    } cases[] = {{TESS_F32, 1e30, 1e10, 1e-35},
                 {TESS_F32, 1e30, 1e10, 0},
                 {TESS_F32, 1e-30, 1e20, 1e12},
                 {TESS_F32, 1e-42, 0.5, 2e38},
                 {TESS_F32, 1e-42, 1e38, 1e33},
                 {TESS_F32, 1, 1e-40, 1e38},
                 {TESS_F32, -1e20, 1e19, 1e-38},
                 {TESS_BF16, 1e30, 1e10, 1e-35},
                 {TESS_BF16, 1e-30, 1e20, 1e12},
                 {TESS_BF16, 1e-42, 0.5, 2e38},
                 {TESS_BF16, 1e-42, 1e38, 1e33},
                 {TESS_BF16, -1e20, 1e19, 1e-38},
                 {TESS_BF16, 0x1p-7, 0x1.84p-124, 0x1p127},
                 {TESS_BF16, 0x1p-12, 0x1.84p-118, 0x1p127},
                 {TESS_F16, 1e30, 6e-8, 6e-8},
                 {TESS_F16, 1e-42, 6e4, 6e4},
                 {TESS_F16, 0x1p-12, 0x1.b34p-8, 6e4},
                 {TESS_F16, -0x1p-12, 0x1.b34p-8, 6e4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
            struct lab_work w;
            struct lab_outcome outcome;
            struct lab_case c;
            char why[LAB_WHY];
            assert_int_equal(lab_case_parse(&c, "h=1,n=1,nkv=2,d=4,dv=1,pattern=dense", why), 0);
            c.type = cases[i].type, c.scale = cases[i].scale;
            assert_int_equal(lab_work_make(&w, &c, why), 0);
            for (int64_t d = 0; d < 4; d++) {
                lab_put(w.q.view.data, w.c.type, d, cases[i].q);
                lab_put(w.k.view.data, w.c.type, d, cases[i].k);
                lab_put(w.k.view.data, w.c.type, 4 + d, 0);
            }
            assert_int_equal(lab_work_answer(&w), 0);
            lab_check(&outcome, &w, TESS_CUDA, (tess_pipeline)pipeline, NULL);
            if (outcome.verdict != LAB_PASSED)
                fail_msg("%s, scale %g, q %g, k %g: %s", tess_type_name(cases[i].type),
                         cases[i].scale, cases[i].q, cases[i].k, outcome.message);
            lab_work_free(&w);
        }
}

/* Later scores exceed a row's maximum by 2 in base 2, where neighbouring numbers are 2 apart. The
 * maximum and the lag that is allowed, added up, round to the later score: taken for one that may
 * stay behind, its weight would be more than f16 can hold. */
static void ties_of_maxima(void **state) {
    (void)state;
    static const tess_type types[] = {TESS_F32, TESS_F16, TESS_BF16};
    enum { QUERIES = 4, KEYS = 256, D = 8 };
    static const double keys[2][D] = {{4096, 2}, {4096, 4}}; /* of the first half, of the other */
    for (size_t i = 0; i < 2 * sizeof types / sizeof *types; i++) {
        const tess_pipeline pipeline = i % 2 ? TESS_STAGED : TESS_FUSED;
        struct lab_work w;
        struct lab_outcome outcome;
        struct lab_case c;
        char why[LAB_WHY];
        assert_int_equal(lab_case_parse(&c, "h=1,n=4,nkv=256,d=8,pattern=dense", why), 0);
        c.type = types[i / 2], c.scale = 0.69314718055994531; /* so that scores are q k in base 2 */
        assert_int_equal(lab_work_make(&w, &c, why), 0);
        for (int64_t n = 0; n < KEYS; n++)
            for (int64_t d = 0; d < D; d++)
                lab_put(w.k.view.data, w.c.type, n * D + d, keys[n >= KEYS / 2][d]);
        for (int64_t n = 0; n < QUERIES; n++)
            for (int64_t d = 0; d < D; d++)
                lab_put(w.q.view.data, w.c.type, n * D + d, d == 0 ? 4096 : d == 1);
        assert_int_equal(lab_work_answer(&w), 0);
        lab_check(&outcome, &w, TESS_CUDA, pipeline, NULL);
        if (outcome.verdict != LAB_PASSED)
            fail_msg("%s: %s", tess_type_name(types[i / 2]), outcome.message);
        lab_work_free(&w);
    }
}

/* Inputs that all heads and batches share, by strides of 0, which Hopper's boxes do not take. */
static void shared_inputs(void **state) {
    (void)state;
    static const char *const texts[] = {
        "b=2,h=3,n=300,nkv=500,d=64,dtype=bf16,pattern=random(0.5,1),block=64x64",
        "b=2,h=3,n=300,nkv=500,d=128,dtype=f16,pattern=random(0.5,1),block=128x128,part=128",
        "b=2,h=4,hkv=2,n=200,nkv=500,d=128,dtype=bf16,pattern=random(0.5,1),block=64x64,lists=kv",
        "b=2,h=2,n=300,nkv=500,d=256,dtype=bf16,pattern=window(90,20),block=64x64",
        "b=2,h=2,n=200,nkv=500,d=520,dtype=bf16,pattern=window(90,20),block=64x64",
        "h=3,n=200,nkv=500,d=512,dtype=f16,pattern=random(0.5,1),block=16x16",
        "h=3,n=500,d=64,dtype=bf16,pattern=random(0.5,1),block=192x64",
        "h=3,n=300,d=64,dtype=bf16,pattern=random(0.4,1),block=128x1",
        "h=3,n=300,d=64,dtype=bf16,pattern=random(0.4,1),block=32x32",
        "b=2,h=3,n=300,d=64,pattern=random(0.4,1),block=8x8",
        "b=2,h=3,n=300,nkv=500,d=32,dv=16,dtype=bf16,pattern=random(0.5,1),block=64x64",
        "h=3,n=300,nkv=500,d=8,dv=32,dtype=f16,pattern=random(0.4,1),block=128x1",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
            struct lab_outcome outcome;
            lab_check_shared(&outcome, texts[i], TESS_CUDA, (tess_pipeline)pipeline);
            if (outcome.verdict != LAB_PASSED)
                fail_msg("%s: %s", texts[i], outcome.message);
        }
}

/* ---- tensors of more than 2^31 elements ---- */

#define ROW_ELEMENTS ((int64_t)1 << 19 | 64) /* from row to row */

/* On the device, of the shape and type of a tensor, rows far apart. data NULL: no room. */
static tess_tensor apart_make(const tess_tensor *from) {
    tess_tensor t = *from;
    t.stride[2] = ROW_ELEMENTS;
    t.stride[1] = t.size[2] * t.stride[2];
    t.stride[0] = t.size[1] * t.stride[1];
    assert_true(t.size[0] * t.stride[0] > INT64_C(1) << 31);
    t.data =
        lab_device_alloc(TESS_CUDA, (size_t)(t.size[0] * t.stride[0]) * tess_type_size(t.type));
    return t;
}

/* Row by row, to the device or back. */
static void apart_copy(const tess_tensor *apart, const tess_tensor *host, int back) {
    const int64_t element = (int64_t)tess_type_size(host->type);
    const size_t size = (size_t)(host->size[3] * element);
    for (int64_t b = 0; b < host->size[0]; b++)
        for (int64_t h = 0; h < host->size[1]; h++)
            for (int64_t i = 0; i < host->size[2]; i++) {
                char *far = (char *)apart->data + lab_row(apart, b, h, i) * element;
                char *near = (char *)host->data + lab_row(host, b, h, i) * element;
                assert_null(back ? lab_device_to_host(TESS_CUDA, near, far, size)
                                 : lab_device_to_device(TESS_CUDA, far, near, size));
            }
}

/* The bits must be those of the same rows side by side. 0 where the device has no room. */
static int rows_apart(const char *text, tess_pipeline pipeline) {
    struct lab_work w;
    struct lab_planned p;
    char why[LAB_WHY] = "";
    work_make(&w, text);
    planned_make(&p, &w, pipeline);
    const struct lab_run run = {&p, &w.q, &w.k, &w.v, &w.o, &w.lse, LAB_PLAIN};
    assert_int_equal(lab_run_whole(&run, why), 0);

    tess_tensor q = apart_make(&w.q.view), k = apart_make(&w.k.view), v = apart_make(&w.v.view),
                o = apart_make(&w.o.view);
    const size_t size = tess_plan_workspace_size(p.plan);
    void *workspace = lab_device_alloc(TESS_CUDA, size + 1);
    const int room = q.data && k.data && v.data && o.data && workspace;
    if (room) {
        tess_arguments a = tess_arguments_init();
        a.q = &q, a.k = &k, a.v = &v, a.o = &o;
        a.workspace = workspace, a.workspace_size = size;
        a.image = p.place, a.image_size = p.image.size;
        apart_copy(&q, &w.q.view, 0);
        apart_copy(&k, &w.k.view, 0);
        apart_copy(&v, &w.v.view, 0);
        assert_int_equal(tess_run(p.plan, &a, NULL, NULL), TESS_OK);
        assert_null(lab_device_synchronize(TESS_CUDA));
        apart_copy(&o, &w.o2.view, 1);
        if (lab_tensor_same(&w.o.view, &w.o2.view, "o", why))
            fail_msg("%s, rows apart: %s", text, why);
    }
    void *const all[] = {q.data, k.data, v.data, o.data, workspace};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        lab_device_free(TESS_CUDA, all[i]);
    lab_planned_free(&p);
    lab_work_free(&w);
    return room;
}

static void tensors_past_2_31(void **state) {
    (void)state;
    int done = 0;
    static const char *const texts[] = {
        "h=2,n=2100,d=64,dtype=bf16,block=64x64,pattern=window(100,20)",
        "h=2,n=2100,d=64,dtype=bf16,block=8x8,pattern=random(0.1,1)",
        "h=2,n=2100,d=64,dtype=bf16,block=64x64,pattern=window(100,20),"
        "kernel=cuda_attention_bf16_d64",
        "h=2,n=2100,d=128,dtype=f16,block=64x1,pattern=random(0.1,1),"
        "kernel=cuda_attention_f16_d128",
        "h=2,n=2100,d=64,block=64x64,pattern=window(100,20)",
        "h=2,n=2100,d=64,block=64x64,pattern=window(100,20),kernel=cuda_attention_f32",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
            if (pipeline == TESS_STAGED && strstr(texts[i], "kernel="))
                continue;
            if (rows_apart(texts[i], (tess_pipeline)pipeline))
                done++;
            else
                print_message("no room for it: %s\n", texts[i]);
        }
    if (!done)
        skip();
}

/* Outputs and workspace of one stream. */
struct lane {
    struct lab_mirror mirror;
    tess_stream stream;
    tess_arguments arguments;
    tess_tensor o, lse;
    struct lab_buffer workspace;
};

/* cudaStreamPerThread: the default stream of the thread that names it. */
#define STREAM_PER_THREAD ((tess_stream)0x2)

/* stream NULL: one of its own. */
static void lane_make(struct lane *lane, const struct lab_planned *p, const struct lab_tensor *o,
                      const struct lab_tensor *lse, const tess_arguments *inputs,
                      tess_stream stream) {
    size_t size = tess_plan_workspace_size(p->plan);
    lane->arguments = *inputs;
    lab_mirror_make(&lane->mirror, TESS_CUDA);
    assert_int_equal(lab_buffer_make(&lane->workspace, size, 64), 0);
    assert_int_equal(lab_mirror_tensor(&lane->mirror, o, &lane->o), 0);
    assert_int_equal(lab_mirror_tensor(&lane->mirror, lse, &lane->lse), 0);
    lane->arguments.o = &lane->o, lane->arguments.lse = &lane->lse;
    lane->arguments.workspace = lab_mirror_add(&lane->mirror, &lane->workspace);
    lane->arguments.workspace_size = size;
    assert_non_null(lane->arguments.workspace);
    lane->stream = stream;
    if (!stream)
        assert_null(lab_device_stream_make(TESS_CUDA, &lane->stream));
}

static void lane_free(struct lane *lane) {
    if (lane->stream != STREAM_PER_THREAD)
        lab_device_stream_free(TESS_CUDA, lane->stream);
    lab_mirror_free(&lane->mirror);
    lab_buffer_free(&lane->workspace);
}

/* Two streams, one the thread's default, run one plan at once, `times` each: always the same bits. */
static void repeats(const char *text, tess_pipeline pipeline, int times) {
    struct lab_work w;
    struct lab_planned p;
    struct lab_run first = {.planned = &p};
    struct lab_mirror inputs;
    struct lane lanes[2];
    tess_arguments a = tess_arguments_init();
    tess_tensor q, k, v;
    char why[LAB_WHY] = "";
    work_make(&w, text);
    planned_make(&p, &w, pipeline);
    first.q = &w.q, first.k = &w.k, first.v = &w.v, first.o = &w.o, first.lse = &w.lse;
    assert_int_equal(lab_run_whole(&first, why), 0);
    size_t size = w.o.buffer.size;
    unsigned char *wanted = malloc(size);
    assert_non_null(wanted);
    memcpy(wanted, w.o.buffer.data, size);

    lab_mirror_make(&inputs, TESS_CUDA);
    assert_int_equal(lab_mirror_tensor(&inputs, &w.q, &q), 0);
    assert_int_equal(lab_mirror_tensor(&inputs, &w.k, &k), 0);
    assert_int_equal(lab_mirror_tensor(&inputs, &w.v, &v), 0);
    a.q = &q, a.k = &k, a.v = &v;
    a.image = p.place, a.image_size = p.image.size;
    lane_make(&lanes[0], &p, &w.o, &w.lse, &a, NULL);
    lane_make(&lanes[1], &p, &w.o2, &w.lse2, &a, STREAM_PER_THREAD);
    for (int i = 0; i < times; i++) {
        for (int l = 0; l < 2; l++)
            assert_int_equal(tess_run(p.plan, &lanes[l].arguments, NULL, lanes[l].stream), TESS_OK);
        for (int l = 0; l < 2; l++)
            assert_null(lab_mirror_fetch(&lanes[l].mirror));
        assert_memory_equal(w.o.buffer.data, wanted, size);
        assert_memory_equal(w.o2.buffer.data, wanted, size);
    }
    lane_free(&lanes[0]);
    lane_free(&lanes[1]);
    lab_mirror_free(&inputs);
    lab_planned_free(&p);
    lab_work_free(&w);
    free(wanted);
}

static void repeats_have_the_same_bits(void **state) {
    (void)state;
    static const char *const texts[] = {
        "h=4,n=1000,d=40,pattern=bigbird(64,8,2,1),block=16x16",
        "h=4,n=1000,d=64,dtype=bf16,pattern=random(0.2,1),block=64x64",
        "h=4,n=1000,d=64,dtype=f16,pattern=random(0.02,1),block=1x1",
        "h=4,n=1000,d=128,dtype=f16,pattern=causal,block=128x128",
        "h=4,n=1000,d=128,dtype=bf16,pattern=random(0.5,1),block=128x1,part=128",
        "h=4,n=1000,d=128,dtype=bf16,pattern=global(8)+window(64,64),block=8x8,part=128",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++)
            repeats(texts[i], (tess_pipeline)pipeline, REPEATS);
}

/* 10,000 runs of short plans with every kind of step, each under way beside another: whole ones, bands
 * and members, copies, stacked heads, and parts that are merged. */
static void ten_thousand_runs_have_the_same_bits(void **state) {
    (void)state;
    static const char *const texts[] = {
        "h=2,n=520,d=128,dtype=bf16,pattern=window(130,0),block=64x64,part=128",
        "h=2,n=520,d=64,dtype=f16,pattern=random(0.5,1)&causal,block=64x64",
        "h=4,hkv=1,n=200,d=128,dtype=bf16,pattern=random(0.5,1),block=64x64,lists=1",
        "h=2,n=300,d=256,dtype=bf16,pattern=random(0.6,1),block=128x1",
    };
    const int kinds = (int)(sizeof texts / sizeof *texts);
    for (int i = 0; i < kinds; i++)
        repeats(texts[i], TESS_FUSED, 10000 / 2 / kinds);
}

/* What is refused before anything is launched; the outputs keep their poison. */
static void refusals(void **state) {
    (void)state;
    struct lab_work w;
    struct lab_planned p;
    tess_error error = tess_error_init();
    work_make(&w, "h=1,n=100,d=16,block=8x8,pattern=causal");
    planned_make(&p, &w, TESS_STAGED);
    assert_non_null(p.place);
    void *room = lab_device_alloc(TESS_CUDA, tess_plan_workspace_size(p.plan));
    assert_non_null(room);
    tess_arguments a = tess_arguments_init();
    a.q = &w.q.view, a.k = &w.k.view, a.v = &w.v.view, a.o = &w.o.view;
    a.workspace = room, a.workspace_size = tess_plan_workspace_size(p.plan);
    const struct {
        void *image;
        size_t size;
        tess_status status;
    } bad[] = {
        {NULL, p.image.size, TESS_INVALID_ARGUMENT},
        {(char *)p.place + 16, p.image.size, TESS_INVALID_ARGUMENT},
        {p.place, p.image.size - 1, TESS_WORKSPACE_TOO_SMALL},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        a.image = bad[i].image, a.image_size = bad[i].size;
        assert_int_equal(tess_run(p.plan, &a, &error, NULL), bad[i].status);
        assert_string_equal(error.argument, "image");
        assert_int_equal(tess_plan_upload(p.plan, bad[i].image, bad[i].size, &error, NULL),
                         bad[i].status);
    }
    assert_null(lab_device_synchronize(TESS_CUDA));
    assert_null(lab_mirror_fetch(&p.home));
    assert_true(lab_buffer_hash(&p.image) == p.hash);
    lab_device_free(TESS_CUDA, room);
    lab_planned_free(&p);
    lab_work_free(&w);
}

/* tess_attention on device memory. */
static void one_call(void **state) {
    (void)state;
    struct lab_work w;
    struct lab_mirror m;
    struct lab_report report;
    tess_tensor q, k, v, o, lse;
    tess_error error = tess_error_init();
    work_make(&w, "h=2,n=100,d=16,block=8x8,pattern=causal");
    lab_mirror_make(&m, TESS_CUDA);
    assert_int_equal(lab_mirror_tensor(&m, &w.q, &q) | lab_mirror_tensor(&m, &w.k, &k), 0);
    assert_int_equal(lab_mirror_tensor(&m, &w.v, &v) | lab_mirror_tensor(&m, &w.o, &o), 0);
    assert_int_equal(lab_mirror_tensor(&m, &w.lse, &lse), 0);
    tess_status status = tess_attention(TESS_CUDA, &q, &k, &v, w.pattern, &o, &lse, &error);
    assert_int_equal(status, TESS_OK);
    assert_null(lab_mirror_fetch(&m));
    lab_compare(&report, &w.oracle, &w.o.view, &w.lse.view, 256);
    assert_true(report.ok);
    lab_mirror_free(&m);
    lab_work_free(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals),
        cmocka_unit_test(one_call),
        cmocka_unit_test(checks),
        cmocka_unit_test(extreme_scales),
        cmocka_unit_test(ties_of_maxima),
        cmocka_unit_test(shared_inputs),
        cmocka_unit_test(tensors_past_2_31),
        cmocka_unit_test(repeats_have_the_same_bits),
        cmocka_unit_test(ten_thousand_runs_have_the_same_bits),
    };
    if (!lab_device_available(TESS_CUDA)) {
        printf("cuda: no device, skipped\n");
        return SKIPPED;
    }
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        const char *lacks = lab_device_lacks(TESS_CUDA, (tess_pipeline)pipeline);
        if (lacks) {
            printf("cuda: a device, but %s\n", lacks);
            return EXIT_FAILURE;
        }
    }
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
