/* Bits of CUDA runs, on a device: of streams at once, of many runs, of rows far apart. Without a device
 * the test says so and is skipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lab/device/device.h"
#include "lab/fill/half.h"
#include "lab/run/run.h"
#include "support/on_device.h"

enum { REPEATS = 500, MANY_REPEATS = 1250 };

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
static void repeats(const struct lab_case *c, tess_pipeline pipeline, int times) {
    struct lab_work w;
    struct lab_planned p;
    struct lab_mirror inputs;
    struct lane lanes[2];
    tess_arguments a = tess_arguments_init();
    tess_tensor q, k, v;
    char why[LAB_WHY] = "";
    work_make(&w, c);
    planned_make(&p, &w, pipeline);
    const struct lab_run first = lab_setting_run(&w.s, &p);
    assert_int_equal(lab_run_whole(&first, why), 0);
    size_t size = w.s.o.buffer.size;
    unsigned char *wanted = malloc(size);
    assert_non_null(wanted);
    memcpy(wanted, w.s.o.buffer.data, size);

    lab_mirror_make(&inputs, TESS_CUDA);
    assert_int_equal(lab_mirror_tensor(&inputs, &w.s.q, &q), 0);
    assert_int_equal(lab_mirror_tensor(&inputs, &w.s.k, &k), 0);
    assert_int_equal(lab_mirror_tensor(&inputs, &w.s.v, &v), 0);
    assert_int_equal(lab_modifiers_place(&w.s.modifiers, &inputs, &a), 0);
    a.q = &q, a.k = &k, a.v = &v;
    a.image = p.place, a.image_size = p.image.size;
    lane_make(&lanes[0], &p, &w.s.o, &w.s.lse, &a, NULL);
    lane_make(&lanes[1], &p, &w.o2, &w.lse2, &a, STREAM_PER_THREAD);
    for (int i = 0; i < times; i++) {
        for (int l = 0; l < 2; l++)
            assert_int_equal(tess_run(p.plan, &lanes[l].arguments, NULL, lanes[l].stream), TESS_OK);
        for (int l = 0; l < 2; l++)
            assert_null(lab_mirror_fetch(&lanes[l].mirror));
        assert_memory_equal(w.s.o.buffer.data, wanted, size);
        assert_memory_equal(w.o2.buffer.data, wanted, size);
    }
    lane_free(&lanes[0]);
    lane_free(&lanes[1]);
    lab_mirror_free(&inputs);
    lab_planned_free(&p);
    lab_work_free(&w);
    free(wanted);
}

/* Answers how many runs there were. */
static int64_t repeat_cases(const char *path, int times) {
    struct lab_cases cases = cases_of(path);
    int64_t runs = 0;
    for (int64_t i = 0; i < cases.count; i++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++)
            if (lab_case_asks(&cases.at[i], TESS_CUDA, pipeline)) {
                repeats(&cases.at[i], (tess_pipeline)pipeline, times);
                runs += 2 * times;
            }
    lab_cases_free(&cases);
    return runs;
}

static void repeats_have_the_same_bits(void **state) {
    (void)state;
    assert_true(repeat_cases("tests/cases/cuda_repeats.txt", REPEATS) >= 2 * REPEATS);
}

static void ten_thousand_runs_have_the_same_bits(void **state) {
    (void)state;
    assert_true(repeat_cases("tests/cases/cuda_many_repeats.txt", MANY_REPEATS) >= 10000);
}

/* ---- the backward ---- */

static void gradients_of_case_repeat(const char *text, tess_pipeline pipeline) {
    struct lab_work w;
    struct lab_planned p;
    char why[LAB_WHY] = "";
    const struct lab_case c = case_of(text);
    work_make(&w, &c);
    planned_make(&p, &w, pipeline);
    struct lab_run run = lab_setting_run(&w.s, &p);
    assert_int_equal(lab_run_whole(&run, why), 0);
    run.wanted = &w.wanted2;
    for (int r = 0; r < REPEATS; r++)
        if (lab_run_whole(&run, why) || lab_wanted_same(&w.s.wanted, &w.wanted2, why))
            case_fails(&c, TESS_CUDA, pipeline, why);
    lab_planned_free(&p);
    lab_work_free(&w);
}

/* Runs of one plan, with parts, heads that share and modifiers, have the same bits. */
static void gradients_repeat(void **state) {
    (void)state;
    static const char *const texts[] = {
        "h=4,hkv=2,n=500,d=64,dtype=bf16,pattern=window(90,9),block=16x16,op=backward",
        "h=8,hkv=1,n=40,nkv=1900,d=128,dtype=f16,block=16x64,split=128,op=backward,sink=1,grads="
        "qkvs",
        "h=2,n=300,d=64,pattern=random(0.2,1),block=8x8,op=backward",
        "h=4,hkv=2,n=300,d=64,pattern=causal,block=16x16,alibi=1,softcap=9,dropout=0.2,op="
        "backward,grads=qkva",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++)
            gradients_of_case_repeat(texts[i], (tess_pipeline)pipeline);
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
static int rows_apart(const struct lab_case *c, tess_pipeline pipeline) {
    struct lab_work w;
    struct lab_planned p;
    char why[LAB_WHY] = "";
    work_make(&w, c);
    planned_make(&p, &w, pipeline);
    const struct lab_run run = lab_setting_run(&w.s, &p);
    assert_int_equal(lab_run_whole(&run, why), 0);

    tess_tensor q = apart_make(&w.s.q.view), k = apart_make(&w.s.k.view),
                v = apart_make(&w.s.v.view), o = apart_make(&w.s.o.view);
    const size_t size = tess_plan_workspace_size(p.plan);
    void *workspace = lab_device_alloc(TESS_CUDA, size + 1);
    const int room = q.data && k.data && v.data && o.data && workspace;
    if (room) {
        tess_arguments a = tess_arguments_init();
        a.q = &q, a.k = &k, a.v = &v, a.o = &o;
        a.workspace = workspace, a.workspace_size = size;
        a.image = p.place, a.image_size = p.image.size;
        apart_copy(&q, &w.s.q.view, 0);
        apart_copy(&k, &w.s.k.view, 0);
        apart_copy(&v, &w.s.v.view, 0);
        assert_int_equal(tess_run(p.plan, &a, NULL, NULL), TESS_OK);
        assert_null(lab_device_synchronize(TESS_CUDA));
        apart_copy(&o, &w.o2.view, 1);
        if (lab_tensor_same(&w.s.o.view, &w.o2.view, "o", why))
            case_fails(c, TESS_CUDA, pipeline, why);
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
    struct lab_cases cases = cases_of("tests/cases/cuda_rows_apart.txt");
    int64_t done = 0;
    for (int64_t i = 0; i < cases.count; i++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
            if (!lab_case_asks(&cases.at[i], TESS_CUDA, pipeline))
                continue;
            if (rows_apart(&cases.at[i], (tess_pipeline)pipeline))
                done++;
            else
                print_message("no room for case %lld\n", (long long)i + 1);
        }
    lab_cases_free(&cases);
    if (!done)
        skip();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_past_2_31),
        cmocka_unit_test(gradients_repeat),
        cmocka_unit_test(repeats_have_the_same_bits),
        cmocka_unit_test(ten_thousand_runs_have_the_same_bits),
    };
    const int absent = device_absent();
    if (absent)
        return absent;
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
