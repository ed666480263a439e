/* The lab itself: what it reads, what it computes, and that it sees planted errors. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "lab/check/check.h"
#include "lab/device/device.h"
#include "lab/fill/fill.h"
#include "lab/fill/half.h"
#include "lab/lists/source.h"
#include "lab/device/timer.h"

/* ---- case strings ---- */

static void case_defaults(void **state) {
    (void)state;
    struct lab_case c;
    char why[LAB_WHY] = "", text[LAB_CASE_TEXT];
    assert_int_equal(lab_case_parse(&c, "h=16,n=100,d=32", why), 0);
    assert_int_equal(c.hkv, 16);
    assert_int_equal(c.nkv, 100);
    assert_int_equal(c.dv, 32);
    assert_int_equal(c.backend, LAB_ANY);
    assert_int_equal(c.pipeline, LAB_ANY);
    lab_case_print(&c, text);
    assert_string_equal(text, "b=1,h=16,hkv=16,n=100,nkv=100,d=32,dv=32,dtype=f32,block=64x64,"
                              "pattern=dense,lists=q,seed=0");
}

static void case_round_trips(void **state) {
    (void)state;
    static const char *const texts[] = {
        "b=1,h=16,hkv=16,n=16384,nkv=16384,d=128,dv=128,dtype=bf16,block=128x128,"
        "pattern=random(0.1,1),backend=cuda,pipeline=fused,lists=q,seed=0",
        "b=2,h=8,hkv=2,n=5,nkv=7,d=3,dv=9,dtype=f16,block=192x1,"
        "pattern=(window(3,4)+global(2))&segments(1,2,3),backend=cpu,pipeline=staged,lists=kv,"
        "kernel=cpu_spmm_portable,seed=18446744073709551615,source=mask,layout=padded,align=2,"
        "fill=nanv,threads=3,tile=16,split=9223372036854775807,scale=-0.10000000000000001",
        "b=1,h=16,hkv=1,n=8,nkv=90,d=576,dv=512,dtype=bf16,block=1x1,topk=20,valid=0.25,"
        "entries=cdeflmopruw,cut=window,backend=cpu,pipeline=fused,lists=kv,seed=0,vink=1,base=add",
        "b=2,h=2,hkv=2,n=80,nkv=90,d=8,dv=8,dtype=f32,block=16x8,topk=2,valid=1,form=bits,lists=1,"
        "seed=3",
        "b=2,h=2,hkv=2,n=80,nkv=90,d=8,dv=8,dtype=f32,block=64x64,pattern=dense,lists=q,seed=3,"
        "q0=n,k0=bh,v0=bhn",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct lab_case c;
        char why[LAB_WHY] = "", text[LAB_CASE_TEXT];
        assert_int_equal(lab_case_parse(&c, texts[i], why), 0);
        lab_case_print(&c, text);
        assert_string_equal(text, texts[i]);
    }
}

static void case_order_is_free(void **state) {
    (void)state;
    struct lab_case a, b;
    char why[LAB_WHY];
    assert_int_equal(lab_case_parse(&a, "pattern=window(1,2),n=9,dv=3,d=5,hkv=1,h=4", why), 0);
    assert_int_equal(lab_case_parse(&b, "h=4,hkv=1,d=5,dv=3,n=9,pattern=window(1,2)", why), 0);
    assert_memory_equal(&a, &b, sizeof a);
    assert_string_equal(a.pattern, "window(1,2)");
}

static void case_refusals(void **state) {
    (void)state;
    static const struct {
        const char *text, *why; /* why: part of the message */
    } bad[] = {
        {"", "KEY=VALUE"},
        {"n", "KEY=VALUE"},
        {"n=1,", "KEY=VALUE"},
        {",n=1", "KEY=VALUE"},
        {"n=1,,d=2", "KEY=VALUE"},
        {"n=0", "n=0"},
        {"n=-5", "n=-5"},
        {"n=1.5", "n=1.5"},
        {"n= 5", "n= 5"},
        {"n=", "n="},
        {"n=2147483648", "2147483647"},
        {"n=99999999999999999999999", "2147483647"},
        {"m=3", "'m' is no key"},
        {"n=3,n=3", "twice"},
        {"dtype=f64", "f32, f16, bf16"},
        {"block=64", "QUERIESxKEYS"},
        {"block=64x", "QUERIESxKEYS"},
        {"block=0x4", "QUERIESxKEYS"},
        {"block=4x4x4", "QUERIESxKEYS"},
        {"lists=2", "q, kv, 1"},
        {"backend=tpu", "cpu, cuda"},
        {"pipeline=oracle", "fused, staged"},
        {"seed=18446744073709551616", "64 bits"},
        {"seed=-1", "64 bits"},
        {"h=6,hkv=4", "does not divide"},
        {"source=topk", "block=1x1"},
        {"align=3", "power of two"},
        {"align=2", "power of two"},
        {"scale=nan", "finite"},
        {"scale=1e999", "finite"},
        {"scale=2x", "finite"},
        {"pattern=", "value"},
        {"n=2147483647,nkv=1,b=2147483647,h=2147483647", "64 bits"},
        {"topk=0", "topk=0"},
        {"topk=3,pattern=causal", "pattern does not go"},
        {"topk=3,source=mask", "source does not go"},
        {"topk=3,valid=-1", "a share"},
        {"topk=3,pipeline=staged", "staged"},
        {"topk=3,op=backward", "backward"},
        {"topk=5,form=ranges", "at most 4"},
        {"topk=2,form=ranges,block=1x2", "QUERIESx1"},
        {"topk=2,entries=cx", "letters of"},
        {"topk=2,vink=1,d=8,dv=9", "at most d"},
        {"topk=2,vink=1,fill=nank", "fill"},
        {"topk=2147483647,n=2147483647,d=1,h=1000", "64 bits"},
        {"cut=causal", "goes with topk="},
        {"fill=nank,k0=b", "k0"},
        {"d=8,vink=1,v0=b", "v0"},
        {"q0=x", "letters of bhn"},
        {"base=sub", "none, merge, add"},
        {"base=add,pipeline=staged", "pipeline=fused"},
        {"base=merge,op=backward", "op=attention"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct lab_case c;
        char why[LAB_WHY] = "";
        assert_int_equal(lab_case_parse(&c, bad[i].text, why), -1);
        if (!strstr(why, bad[i].why))
            fail_msg("'%s' gave '%s', not '%s'", bad[i].text, why, bad[i].why);
        assert_null(strchr(why, '\n'));
    }
    char long_text[2000];
    struct lab_case c;
    char why[LAB_WHY];
    memset(long_text, 'x', sizeof long_text);
    memcpy(long_text, "pattern=", 8);
    long_text[sizeof long_text - 1] = '\0';
    assert_int_equal(lab_case_parse(&c, long_text, why), -1);
    long_text[500] = '\0';
    assert_int_equal(lab_case_parse(&c, long_text, why), -1);
}

static void case_problem_alignment(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t alignment;
    } table[] = {
        {"n=4,d=64", 16},         {"n=4,d=5", 4},
        {"n=4,d=6", 8},           {"n=4,d=6,dtype=f16", 4},
        {"n=4,d=5,dtype=f16", 2}, {"n=4,d=5,layout=padded", 16},
        {"n=4,d=64,align=4", 4},  {"n=4,d=64,align=64", 64},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct lab_case c;
        char why[LAB_WHY];
        assert_int_equal(lab_case_parse(&c, table[i].text, why), 0);
        assert_int_equal(lab_case_problem(&c, TESS_FUSED).alignment, table[i].alignment);
    }
}

/* ---- 16-bit floats ---- */

/* The value of a 16-bit float by the definition, for finite ones. */
static double defined_value(uint16_t bits, int mantissa_bits, int bias) {
    int exponent = (bits & 0x7fff) >> mantissa_bits;
    int mantissa = bits & ((1 << mantissa_bits) - 1);
    double x = exponent ? ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits)
                        : ldexp(mantissa, 1 - bias - mantissa_bits);
    return bits & 0x8000 ? -x : x;
}

static void halves(double (*to)(uint16_t), uint16_t (*from)(double), int mantissa_bits, int bias,
                   uint16_t infinity) {
    for (uint32_t bits = 0; bits < 65536; bits++) {
        double x = to((uint16_t)bits);
        uint16_t magnitude = bits & 0x7fff;
        if (magnitude > infinity) {
            assert_true(isnan(x));
            assert_true((from(x) & 0x7fff) > infinity);
            continue;
        }
        assert_int_equal(from(x), bits);
        assert_int_equal(signbit(x) != 0, bits >> 15);
        if (magnitude == infinity) {
            assert_true(isinf(x));
            continue;
        }
        assert_true(x == defined_value((uint16_t)bits, mantissa_bits, bias));
        /* Half way to the next one up in magnitude, and a little to either side. The next of the
         * largest is the one that would follow if exponents went on. */
        double next =
            magnitude + 1 == infinity ? copysign(ldexp(1, bias + 1), x) : to((uint16_t)(bits + 1));
        double middle = (x + next) / 2;
        assert_int_equal(from(middle), bits & 1 ? bits + 1 : bits);
        assert_int_equal(from(nextafter(middle, 0)), bits);
        assert_int_equal(from(nextafter(middle, 2 * next)), bits + 1);
    }
    assert_int_equal(from(1e300), infinity);
    assert_int_equal(from(-1e-300), 0x8000);
}

static void half_f16(void **state) {
    (void)state;
    halves(lab_f16_to_double, lab_double_to_f16, 10, 15, 0x7c00);
}

static void half_bf16(void **state) {
    (void)state;
    halves(lab_bf16_to_double, lab_double_to_bf16, 7, 127, 0x7f80);
}

/* ---- guards ---- */

static void guard_sees_one_byte(void **state) {
    (void)state;
    char why[LAB_WHY];
    for (size_t alignment = 2; alignment <= 64; alignment *= 2) {
        struct lab_buffer b;
        assert_int_equal(lab_buffer_make(&b, 37, alignment), 0);
        assert_int_equal((uintptr_t)b.data % alignment, 0);
        if (alignment < 64)
            assert_int_not_equal((uintptr_t)b.data % (2 * alignment), 0);
        memset(b.data, 1, b.size);
        assert_int_equal(lab_buffer_check(&b, "x", why), 0);
        for (int after = 0; after < 2; after++) {
            unsigned char *byte = after ? b.data + 37 : b.data - 1;
            *byte ^= 1;
            assert_int_equal(lab_buffer_check(&b, "x", why), -1);
            assert_non_null(strstr(why, after ? "byte 37 " : "byte -1 "));
            *byte ^= 1;
        }
        lab_buffer_free(&b);
    }
}

static void guard_sees_gaps(void **state) {
    (void)state;
    const int64_t size[4] = {2, 3, 4, 5};
    char why[LAB_WHY];
    struct lab_tensor t;
    assert_int_equal(lab_tensor_make(&t, TESS_F16, size, LAB_PADDED, 16), 0);
    int64_t inside = 0, outside = 0;
    for (size_t i = 0; i < t.buffer.size; i++) {
        t.buffer.data[i] ^= 1;
        *(lab_tensor_check(&t, "t", why) ? &outside : &inside) += 1;
        t.buffer.data[i] ^= 1;
    }
    assert_int_equal(inside, 2 * 2 * 3 * 4 * 5);
    assert_int_equal(outside, (int64_t)t.buffer.size - inside);
    assert_true(outside > 0);
    assert_true(isnan(lab_get(t.view.data, TESS_F16, 0)));
    lab_tensor_free(&t);
}

static void guard_canary_is_nan(void **state) {
    (void)state;
    struct lab_buffer b;
    assert_int_equal(lab_buffer_make(&b, 16, 16), 0);
    for (int type = TESS_F32; type <= TESS_BF16; type++)
        assert_true(isnan(lab_get(b.data, (tess_type)type, 1)));
    lab_buffer_free(&b);
}

/* ---- checks of the library ---- */

static void check_runs(void **state) {
    (void)state;
    static const char *const texts[] = {
        "h=2,hkv=1,n=70,d=24,dv=5,pattern=window(9,3),block=8x8,layout=padded,threads=2",
        "h=2,n=50,nkv=90,d=7,dtype=f16,pattern=random(0.3,1),block=5x7,source=mask,fill=nank",
        "h=1,n=33,d=9,dtype=bf16,pattern=dilated(3,4),block=1x1,source=topk,fill=nanv",
        "b=2,h=2,n=40,d=8,pattern=random_row(0.5,2),block=16x16,source=lists,fill=inf,lists=kv",
        "b=2,h=2,n=50,nkv=40,d=8,pattern=random(0.4,2),block=32x1,source=counts,fill=nanv",
        "h=2,hkv=1,n=50,nkv=90,d=8,pattern=dense,block=7x9,source=blocks,lists=kv",
        "b=2,h=2,n=33,nkv=700,d=8,pattern=random_row(0.2,2),block=4x8,source=bits,fill=nank",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
            struct lab_case c;
            struct lab_work w;
            struct lab_outcome outcome;
            char why[LAB_WHY];
            assert_int_equal(lab_case_parse(&c, texts[i], why), 0);
            assert_int_equal(lab_work_make(&w, &c, why), 0);
            lab_check(&outcome, &w, TESS_CPU, (tess_pipeline)pipeline, NULL);
            if (outcome.verdict != LAB_PASSED)
                fail_msg("%s: %s", texts[i], outcome.message);
            assert_non_null(outcome.kernels[pipeline == TESS_FUSED ? 0 : 1]);
            lab_check(&outcome, &w, TESS_CPU, (tess_pipeline)pipeline, "no_such_kernel");
            assert_int_equal(outcome.verdict, LAB_FAILED);
            lab_check(&outcome, &w, TESS_CPU, (tess_pipeline)pipeline,
                      pipeline == TESS_FUSED ? "cpu_sddmm_portable" : "cpu_attention_portable");
            assert_int_equal(outcome.verdict, LAB_REFUSED);
            lab_work_free(&w);
        }
}

/* The check holds the library to the oracle of the case's spec: another pattern must fail. */
static void check_sees_wrong_pattern(void **state) {
    (void)state;
    struct lab_case c, other;
    struct lab_work w;
    struct lab_outcome outcome;
    char why[LAB_WHY];
    assert_int_equal(lab_case_parse(&c, "h=1,n=64,d=8,pattern=window(9,3)", why), 0);
    assert_int_equal(lab_work_make(&w, &c, why), 0);
    other = c;
    snprintf(other.pattern, sizeof other.pattern, "window(9,2)");
    tess_pattern_free(w.s.pattern);
    assert_int_equal(lab_case_pattern(&other, &w.s.pattern, NULL), TESS_OK);
    lab_check(&outcome, &w, TESS_CPU, TESS_FUSED, NULL);
    assert_int_equal(outcome.verdict, LAB_FAILED);
    lab_work_free(&w);
}

/* By strides of 0 pages, heads and rows lie in one place, and hold one thing wherever they are looked up. */
static void what_shares_a_place_holds_one_thing(void **state) {
    (void)state;
    struct lab_setting s;
    struct lab_case c;
    char why[LAB_WHY] = "";
    assert_int_equal(
        lab_case_parse(&c, "b=2,h=2,n=3,nkv=40,d=8,topk=5,page=16,q0=n,k0=b,v0=hn", why), 0);
    assert_int_equal(lab_setting_make(&s, &c, why), 0);
    const tess_tensor *q = &s.q.view, *k = &s.cache.k.view, *v = &s.cache.v.view;
    assert_true(q->stride[0] > 0 && q->stride[1] > 0 && q->stride[2] == 0);
    assert_true(k->stride[0] == 0 && k->stride[1] > 0 && k->stride[2] > 0);
    assert_true(v->stride[0] > 0 && v->stride[1] == 0 && v->stride[2] == 0);
    for (int64_t j = 0; j < 40; j++)
        for (int64_t d = 0; d < 8; d++) {
            const double x = lab_get(s.k.view.data, TESS_F32, lab_row(&s.k.view, 1, 1, j) + d);
            assert_true(x == lab_get(k->data, TESS_F32, lab_row(k, 2, 1, j % 16) + d));
            assert_true(x ==
                        lab_get(s.k.view.data, TESS_F32, lab_row(&s.k.view, 0, 1, j % 16) + d));
            assert_true(lab_get(s.v.view.data, TESS_F32, lab_row(&s.v.view, 1, 1, j) + d) ==
                        lab_get(s.v.view.data, TESS_F32, lab_row(&s.v.view, 1, 0, j - j % 16) + d));
        }
    assert_int_equal(lab_tensor_check(&s.q, "q", why) | lab_tensor_check(&s.cache.v, "v", why), 0);
    lab_setting_free(&s);
}

static void work_refuses_bad_spec(void **state) {
    (void)state;
    struct lab_case c;
    struct lab_work w;
    char why[LAB_WHY] = "";
    assert_int_equal(lab_case_parse(&c, "pattern=windoe(1,2)", why), 0);
    assert_int_equal(lab_work_make(&w, &c, why), -1);
    assert_true(strlen(why) > 0);
    lab_work_free(&w);
    assert_int_equal(lab_case_parse(&c, "n=100,pattern=causal,source=blocks", why), 0);
    assert_int_equal(lab_work_make(&w, &c, why), -1);
    assert_non_null(strstr(why, "whole blocks"));
    lab_work_free(&w);
}

/* ---- time, devices ---- */

static void device(void **state) {
    (void)state;
    char host[8] = "abcdefg", back[8] = "";
    assert_true(lab_device_available(TESS_CPU));
    void *memory = lab_device_alloc(TESS_CPU, 8);
    assert_non_null(memory);
    assert_int_equal((uintptr_t)memory % 64, 0);
    assert_null(lab_device_to_device(TESS_CPU, memory, host, 8));
    assert_null(lab_device_to_host(TESS_CPU, back, memory, 8));
    assert_null(lab_device_synchronize(TESS_CPU));
    assert_string_equal(back, host);
    lab_device_free(TESS_CPU, memory);
    if (!lab_device_available(TESS_CUDA)) {
        assert_null(lab_device_alloc(TESS_CUDA, 8));
        assert_string_equal(lab_device_synchronize(TESS_CUDA), "no device");
        assert_string_equal(lab_device_lacks(TESS_CUDA, TESS_ATTENTION, TESS_STAGED), "no device");
    }
    for (int operation = TESS_ATTENTION; operation <= TESS_ATTENTION_BACKWARD; operation++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++)
            assert_null(
                lab_device_lacks(TESS_CPU, (tess_operation)operation, (tess_pipeline)pipeline));
}

/* Seconds by the system's clock, which the timers must agree with. */
static double clock_seconds(void) {
    struct timespec now;
    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &now), 0);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Both timers see at least a sleep of 5 ms, and at most what passes on the clock around them. */
static void timers_see_a_sleep(void **state) {
    (void)state;
    const double slept = 5e-3, rounding = 1e-6; /* seconds */
    struct lab_device_timer timer;
    double ms = -1;
    assert_null(lab_device_timer_make(&timer, TESS_CPU));
    const double begin = clock_seconds(), before = lab_seconds();
    assert_null(lab_device_timer_start(&timer, NULL));
    assert_int_equal(nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL), 0);
    assert_null(lab_device_timer_stop(&timer, NULL, &ms));
    const double seconds = lab_seconds() - before, all = clock_seconds() - begin;
    lab_device_timer_free(&timer);
    assert_true(ms >= 1e3 * (slept - rounding) && ms <= 1e3 * (all + rounding));
    assert_true(seconds >= slept - rounding && seconds <= all + rounding);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_defaults),
        cmocka_unit_test(case_round_trips),
        cmocka_unit_test(case_order_is_free),
        cmocka_unit_test(case_refusals),
        cmocka_unit_test(case_problem_alignment),
        cmocka_unit_test(half_f16),
        cmocka_unit_test(half_bf16),
        cmocka_unit_test(guard_sees_one_byte),
        cmocka_unit_test(guard_sees_gaps),
        cmocka_unit_test(guard_canary_is_nan),
        cmocka_unit_test(check_runs),
        cmocka_unit_test(check_sees_wrong_pattern),
        cmocka_unit_test(what_shares_a_place_holds_one_thing),
        cmocka_unit_test(work_refuses_bad_spec),
        cmocka_unit_test(device),
        cmocka_unit_test(timers_see_a_sleep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
