/* tess_plan_fill_run on the CPU: the bits of a fill and a run, and what it refuses before either. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "support/device_run.h"

/* Lists of a seed, a plan over them, its image and tensors. */
struct step {
    struct device_lists lists;
    tess_problem problem;
    tess_plan *plan;
    struct lab_buffer image;
    struct tensors t;
    tess_arguments arguments; /* arguments of tess_plan_fill_run: without an image */
};

static void step_make(struct step *s, const struct device_sizes *sizes, uint64_t seed) {
    device_lists_make(&s->lists, sizes, seed);
    s->problem = device_problem(sizes, 16);
    s->plan = device_plan(&s->lists, &s->problem, &s->image);
    tensors_make(&s->t, &s->problem, seed);
    s->arguments = arguments_of(&s->t, s->plan, NULL);
}

static void step_free(struct step *s) {
    tensors_free(&s->t);
    tess_plan_free(s->plan);
    lab_buffer_free(&s->image);
    device_lists_free(&s->lists);
}

static tess_status in_one_call(const struct step *s, void *report, tess_error *error) {
    return tess_plan_fill_run(s->plan, &s->lists.listed.pattern, device_image(&s->image),
                              tess_plan_image_size(s->plan), report, &s->arguments, error, NULL);
}

/* Bits of o and lse by a fill and a run. */
static uint64_t in_two_calls(struct step *s) {
    device_fill(&s->lists, s->plan, &s->image);
    s->arguments = arguments_of(&s->t, s->plan, device_image(&s->image));
    run(&s->t, s->plan, &s->arguments);
    s->arguments.image = NULL;
    return bits_of(&s->t);
}

static void the_bits_of_a_fill_and_a_run(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        const struct device_sizes sizes = device_sizes_draw(seed);
        struct step s;
        int64_t report[TESS_REPORT_SIZE / sizeof(int64_t)];
        tess_error error = tess_error_init();
        tess_fill_report told = tess_fill_report_init(), expected = told;
        step_make(&s, &sizes, seed);
        for (uint64_t turn = 0; turn < 2; turn++) { /* a list after another, in the same image */
            const uint64_t right = in_two_calls(&s);
            memset(s.image.data, 0xaa, s.image.size);
            lab_tensor_poison(&s.t.o), lab_tensor_poison(&s.t.lse);
            memset(report, 0xaa, sizeof report);
            if (in_one_call(&s, report, &error))
                fail_msg("seed %d: %s", (int)seed, error.message);
            assert_true(bits_of(&s.t) == right);
            assert_memory_equal(report, device_image(&s.image), sizeof report);
            assert_int_equal(tess_plan_report(s.plan, report, &told, &error), TESS_OK);
            assert_int_equal(tess_plan_report(s.plan, device_image(&s.image), &expected, &error),
                             TESS_OK);
            assert_memory_equal(&told, &expected, sizeof told);
            lab_tensor_poison(&s.t.o), lab_tensor_poison(&s.t.lse);
            assert_int_equal(in_one_call(&s, NULL, &error), TESS_OK);
            assert_true(bits_of(&s.t) == right);
            device_lists_free(&s.lists);
            device_lists_make(&s.lists, &sizes, seed + 1000);
        }
        step_free(&s);
    }
}

/* Refusals come before anything is written, whichever of the two is refused. */
static void it_refuses_before_it_writes(void **state) {
    (void)state;
    struct step s;
    tess_error error = tess_error_init();
    int64_t report[1 + TESS_REPORT_SIZE / sizeof(int64_t)], untouched[sizeof report / 8];
    step_make(&s, &device_small, 1);
    const struct step right = s;
    void *const image = device_image(&s.image);
    const size_t size = tess_plan_image_size(s.plan);
    const uint64_t bits = bits_of(&s.t), of_image = lab_buffer_hash(&s.image);
    memset(report, 0x55, sizeof report);
    memcpy(untouched, report, sizeof report);
    tess_tensor wide = s.t.o.view;
    wide.size[3]++;
    enum { IMAGE, O, LISTS, WORKSPACE, REPORT, IMAGE_SIZE, WITHOUT, ALL };
    static const char *const names[ALL] = {"arguments", "o",     "pattern",  "workspace",
                                           "report",    "image", "arguments"};
    for (int what = 0; what < ALL; what++) {
        s.arguments = right.arguments;
        if (what == IMAGE)
            s.arguments.image = image;
        if (what == O)
            s.arguments.o = &wide;
        if (what == WORKSPACE)
            s.arguments.workspace = (char *)s.arguments.workspace + 1;
        s.lists.listed.pattern = right.lists.listed.pattern;
        s.lists.listed.pattern.capacity += what == LISTS;
        const tess_status status =
            tess_plan_fill_run(s.plan, &s.lists.listed.pattern, image, size - (what == IMAGE_SIZE),
                               (char *)report + (what == REPORT ? 4 : 0),
                               what == WITHOUT ? NULL : &s.arguments, &error, NULL);
        assert_int_equal(status,
                         what == IMAGE_SIZE ? TESS_WORKSPACE_TOO_SMALL : TESS_INVALID_ARGUMENT);
        assert_string_equal(error.function, "tess_plan_fill_run");
        assert_string_equal(error.argument, names[what]);
        assert_true(bits_of(&s.t) == bits && lab_buffer_hash(&s.image) == of_image);
        assert_memory_equal(report, untouched, sizeof report);
    }
    s.arguments = right.arguments, s.lists.listed.pattern = right.lists.listed.pattern;
    tess_pattern *pattern = device_lists_pattern(&s.lists);
    tess_plan *host;
    assert_int_equal(tess_plan_create(&host, &s.problem, pattern, NULL, &error), TESS_OK);
    assert_int_equal(tess_plan_fill_run(host, &s.lists.listed.pattern, image, size, NULL,
                                        &s.arguments, &error, NULL),
                     TESS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "tess_plan_reserve"));
    assert_int_equal(tess_plan_fill_run(s.plan, &s.lists.listed.pattern, NULL, 0, NULL,
                                        &s.arguments, &error, NULL),
                     TESS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "reads lists from an image"));
    tess_plan_free(host);
    tess_pattern_free(pattern);
    step_free(&s);
}

/* A strict plan's fault ends the call before the run; image and report tell of no fill. */
static void a_fault_of_a_strict_plan_runs_nothing(void **state) {
    (void)state;
    struct step s;
    tess_error error = tess_error_init();
    tess_fill_report told = tess_fill_report_init();
    int64_t report[TESS_REPORT_SIZE / sizeof(int64_t)];
    step_make(&s, &device_small, 1);
    s.problem.strict = 1;
    tess_plan_free(s.plan);
    lab_buffer_free(&s.image);
    s.plan = device_plan(&s.lists, &s.problem, &s.image);
    const uint64_t bits = bits_of(&s.t);
    ((int32_t *)(void *)s.lists.listed.indices.data)[0] = -2;
    assert_int_equal(in_one_call(&s, report, &error), TESS_INVALID_LIST);
    assert_string_equal(error.function, "tess_plan_fill_run");
    assert_int_equal(error.fault, TESS_FAULT_NEGATIVE);
    assert_true(bits_of(&s.t) == bits);
    assert_int_equal(tess_plan_report(s.plan, report, &told, &error), TESS_INVALID_ARGUMENT);
    ((int32_t *)(void *)s.lists.listed.indices.data)[0] = -1;
    assert_int_equal(in_one_call(&s, report, &error), TESS_OK);
    assert_int_equal(tess_plan_report(s.plan, report, &told, &error), TESS_OK);
    step_free(&s);
}

static void plans_say_whose_bits_it_has(void **state) {
    (void)state;
    struct step s;
    tess_plan_info info = tess_plan_info_init();
    char text[4000];
    step_make(&s, &device_small, 1);
    tess_pattern *pattern = device_lists_pattern(&s.lists);
    tess_plan *host;
    assert_int_equal(tess_plan_create(&host, &s.problem, pattern, NULL, NULL), TESS_OK);
    for (int reserved = 0; reserved < 2; reserved++) {
        const tess_plan *plan = reserved ? s.plan : host;
        assert_int_equal(tess_plan_describe(plan, &info, NULL), TESS_OK);
        assert_int_equal(info.fill_run_exact, reserved);
        assert_true(tess_plan_print(plan, text, sizeof text) < sizeof text);
        assert_int_equal(strstr(text, "fill_run  the bits of fill and run\n") != NULL, reserved);
    }
    tess_plan_free(host);
    tess_pattern_free(pattern);
    step_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_of_a_fill_and_a_run),
        cmocka_unit_test(it_refuses_before_it_writes),
        cmocka_unit_test(a_fault_of_a_strict_plan_runs_nothing),
        cmocka_unit_test(plans_say_whose_bits_it_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
