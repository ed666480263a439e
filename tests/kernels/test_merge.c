/* tess_merge on the CPU, and what it refuses on any backend. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <omp.h>

#include "support/merging.h"

static void joined(void **state) {
    (void)state;
    parts_join_to_the_whole(TESS_CPU);
}

static void right(void **state) {
    (void)state;
    merges_are_right(TESS_CPU);
}

static void equal_parts(void **state) {
    (void)state;
    equal_parts_are_one(TESS_CPU, 1);
    equal_parts_are_one(TESS_CPU, 65536);
}

static void rests(void **state) {
    (void)state;
    rests_are_right(TESS_CPU);
}

enum { B = 2, H = 3, N = 100, D = 20, PARTS = 3, ROWS = B * H * N };

/* Good arguments, which a test then spoils. */
struct setting {
    float o_data[PARTS][ROWS * D], lse_data[PARTS][ROWS], out_data[ROWS * D], lse_out_data[ROWS];
    tess_tensor o[PARTS], lse[PARTS], o_out, lse_out;
    const tess_tensor *o_at[PARTS], *lse_at[PARTS];
};

static struct setting *setting_new(void) {
    struct setting *s = calloc(1, sizeof *s);
    assert_non_null(s);
    for (int p = 0; p < PARTS; p++) {
        s->o[p] = tess_tensor_bhnd(s->o_data[p], TESS_F32, B, H, N, D);
        s->lse[p] = tess_tensor_bhnd(s->lse_data[p], TESS_F32, B, H, N, 1);
        s->o_at[p] = &s->o[p], s->lse_at[p] = &s->lse[p];
        for (int i = 0; i < ROWS * D; i++)
            s->o_data[p][i] = (float)(i % 31 * (p + 1));
        for (int i = 0; i < ROWS; i++)
            s->lse_data[p][i] = (float)(i % 7 * p) / 3;
    }
    s->o_out = tess_tensor_bhnd(s->out_data, TESS_F32, B, H, N, D);
    s->lse_out = tess_tensor_bhnd(s->lse_out_data, TESS_F32, B, H, N, 1);
    return s;
}

static tess_status call(const struct setting *s, tess_error *error) {
    return tess_merge(TESS_CPU, PARTS, s->o_at, s->lse_at, &s->o_out, &s->lse_out, error, NULL);
}

/* Refused, with these words about this argument; the outputs are as they were. */
static void expect(tess_status got, const struct setting *s, const tess_error *error,
                   tess_status status, const char *argument, const char *words) {
    assert_int_equal(got, status);
    assert_int_equal(error->status, status);
    assert_string_equal(error->function, "tess_merge");
    assert_string_equal(error->argument, argument);
    if (!strstr(error->message, words))
        fail_msg("'%s' does not say '%s'", error->message, words);
    for (int i = 0; i < ROWS * D; i++)
        assert_true(s->out_data[i] == 0);
    for (int i = 0; i < ROWS; i++)
        assert_true(s->lse_out_data[i] == 0);
}

static void expect_call(const struct setting *s, const char *argument, const char *words) {
    tess_error error = tess_error_init();
    expect(call(s, &error), s, &error, TESS_INVALID_ARGUMENT, argument, words);
}

static void arguments_are_checked(void **state) {
    (void)state;
    struct setting *s = setting_new();
    tess_error error = tess_error_init();
    const tess_tensor *const *const o = s->o_at, *const *const lse = s->lse_at;
#define EXPECT(status, argument, words, ...)                                                       \
    expect(tess_merge(__VA_ARGS__, &error, NULL), s, &error, status, argument, words)
    EXPECT(TESS_INVALID_ARGUMENT, "backend", "backend is not", (tess_backend)7, PARTS, o, lse,
           &s->o_out, NULL);
    if (!tess_device_count(TESS_CUDA)) {
        tess_target target = tess_target_init();
        const tess_status absent = tess_target_query(&target, TESS_CUDA, -1, &error);
        if (!strcmp(error.message, "this library was built without CUDA"))
            EXPECT(absent, "backend", "without CUDA", TESS_CUDA, PARTS, o, lse, &s->o_out, NULL);
    }
    EXPECT(TESS_INVALID_ARGUMENT, "parts", "parts is 0", TESS_CPU, 0, o, lse, &s->o_out, NULL);
    EXPECT(TESS_INVALID_ARGUMENT, "parts", "not in 1 ... 65536", TESS_CPU, 65537, o, lse, &s->o_out,
           NULL);
    EXPECT(TESS_INVALID_ARGUMENT, "o", "o is NULL", TESS_CPU, PARTS, NULL, lse, &s->o_out, NULL);
    EXPECT(TESS_INVALID_ARGUMENT, "lse", "lse is NULL", TESS_CPU, PARTS, o, NULL, &s->o_out, NULL);
    EXPECT(TESS_INVALID_ARGUMENT, "o_out", "NULL", TESS_CPU, PARTS, o, lse, NULL, NULL);
#undef EXPECT
    assert_int_equal(tess_merge(TESS_CPU, PARTS, o, lse, &s->o_out, NULL, NULL, NULL), TESS_OK);
    free(s);
}

static void tensors_are_checked(void **state) {
    (void)state;
    struct setting *s = setting_new();
    const struct {
        tess_tensor *tensor;
        const char *name, *begins;
    } all[] = {{&s->o[1], "o", "part 1: o: "},
               {&s->lse[2], "lse", "part 2: lse: "},
               {&s->o_out, "o_out", "o_out: "},
               {&s->lse_out, "lse_out", "lse_out: "}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        tess_tensor *t = all[i].tensor;
        const tess_tensor good = *t;
        t->struct_size = 0;
        expect_call(s, all[i].name, all[i].begins);
        expect_call(s, all[i].name, "struct_size");
        *t = good, t->data = NULL;
        expect_call(s, all[i].name, "data is NULL");
        *t = good, t->type = (tess_type)9;
        expect_call(s, all[i].name, "type");
        *t = good, t->data = (char *)good.data + 2;
        expect_call(s, all[i].name, "aligned");
        *t = good, t->stride[2] = -1;
        expect_call(s, all[i].name, "negative");
        *t = good, t->stride[1] = INT64_MAX / 2;
        expect_call(s, all[i].name, "64 bits");
        *t = good, t->stride[1] = 0; /* which inputs may have */
        if (i >= 2)
            expect_call(s, all[i].name, "overlap");
        for (int j = 0; j < 4 && t != &s->o_out; j++) { /* which says what the others are */
            *t = good, t->size[j]++;
            expect_call(s, all[i].name,
                        (const char *const[]){"batches", "heads", "rows", "dims"}[j]);
        }
        *t = good;
    }
    s->o_out.size[0]++;
    expect_call(s, "lse_out", "lse_out has 2 batches, should have 3");
    s->o_out.size[0]--, s->o_out.size[3]--;
    expect_call(s, "o", "part 0: o has 20 dims, should have 19");
    s->o_out.size[3] = 65537;
    expect_call(s, "o_out", "not 1 ... 65536");
    s->o_out.size[3] = 0;
    expect_call(s, "o_out", "o_out has 0 dims");
    s->o_out.size[3] = D;
    s->o[2].type = TESS_BF16;
    expect_call(s, "o", "part 2: o has type bf16, should be f32");
    s->o[2].type = TESS_F32;
    s->o_at[0] = NULL;
    expect_call(s, "o", "part 0");
    s->o_at[0] = &s->o[0], s->lse_at[2] = NULL;
    expect_call(s, "lse", "part 2: lse is NULL");
    free(s);
}

/* An output may be the rows of a part, and nothing less. */
static void places_are_checked(void **state) {
    (void)state;
    struct setting *s = setting_new();
    const tess_tensor o_out = s->o_out, lse_out = s->lse_out;
    s->lse_out.data = s->out_data;
    expect_call(s, "lse_out", "begins where o_out does");
    s->lse_out = lse_out;
    s->o_out.data = s->lse_data[1];
    expect_call(s, "o_out", "part 1: o_out begins where its lse does");
    s->o_out = o_out, s->o_out.data = s->o_data[2], s->o_out.stride[0] *= 2;
    expect_call(s, "o_out", "part 2: o_out begins where its o does");
    s->o_out = o_out, s->o_out.data = s->o_data[2], s->o_out.type = TESS_F16;
    expect_call(s, "o_out", "part 2: o_out begins where its o does");
    s->o_out = o_out, s->lse_out.data = s->o_data[0];
    expect_call(s, "lse_out", "part 0: lse_out begins where its o does");
    s->lse_out = tess_tensor_bnhd(s->lse_data[0], TESS_F32, B, N, H, 1);
    expect_call(s, "lse_out", "part 0: lse_out begins where its lse does");
    s->lse_out = lse_out, s->lse_out.data = s->lse_data[0], s->o_out.data = s->o_data[1];
    assert_int_equal(call(s, NULL), TESS_OK);
    free(s);
}

/* Its arguments have names of their own. */
static void arguments_of_a_rest_are_checked(void **state) {
    (void)state;
    struct setting *s = setting_new();
    const tess_tensor *given[6] = {&s->o[0],   &s->lse[0], &s->o[1],
                                   &s->lse[1], &s->o_out,  &s->lse_out};
    static const char *const names[6] = {"o_whole",  "lse_whole", "o_kept",
                                         "lse_kept", "o_rest",    "lse_rest"};
    for (int i = 0; i < 6; i++) {
        tess_error error = tess_error_init();
        const tess_tensor *const good = given[i];
        tess_tensor bad = *good;
        bad.data = (char *)good->data + 2;
        given[i] = &bad;
        assert_int_equal(tess_unmerge(TESS_CPU, given[0], given[1], given[2], given[3], given[4],
                                      given[5], &error, NULL),
                         TESS_INVALID_ARGUMENT);
        assert_string_equal(error.function, "tess_unmerge");
        assert_string_equal(error.argument, names[i]);
        assert_non_null(strstr(error.message, "aligned"));
        given[i] = good;
    }
    tess_error error = tess_error_init();
    tess_tensor over = s->o[1];
    over.stride[0] *= 2;
    assert_int_equal(tess_unmerge(TESS_CPU, &s->o[0], &s->lse[0], &s->o[1], &s->lse[1], &over, NULL,
                                  &error, NULL),
                     TESS_INVALID_ARGUMENT);
    assert_string_equal(error.message, "o_rest begins where o_kept does, and is not the same rows");
    free(s);
}

static void bits_do_not_depend_on_threads(void **state) {
    (void)state;
    struct setting *s = setting_new(), *first = setting_new();
    const int before = omp_get_max_threads();
    assert_int_equal(call(first, NULL), TESS_OK);
    for (int threads = 1; threads <= 5; threads++) {
        omp_set_num_threads(threads);
        assert_int_equal(call(s, NULL), TESS_OK);
        assert_memory_equal(s->out_data, first->out_data, sizeof s->out_data);
        assert_memory_equal(s->lse_out_data, first->lse_out_data, sizeof s->lse_out_data);
        memset(s->out_data, 1, sizeof s->out_data);
    }
    omp_set_num_threads(before);
    free(first);
    free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joined),
        cmocka_unit_test(right),
        cmocka_unit_test(equal_parts),
        cmocka_unit_test(rests),
        cmocka_unit_test(arguments_of_a_rest_are_checked),
        cmocka_unit_test(arguments_are_checked),
        cmocka_unit_test(tensors_are_checked),
        cmocka_unit_test(places_are_checked),
        cmocka_unit_test(bits_do_not_depend_on_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
