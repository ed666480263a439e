/* Names, error details, and structs that are older or newer than the library. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "base/status.h"

static void names_are_complete(void **state) {
    (void)state;
    for (int i = 0; i <= TESS_CUDA_ERROR; i++) {
        assert_non_null(tess_status_name((tess_status)i));
        assert_non_null(tess_status_text((tess_status)i));
    }
    assert_string_equal(tess_status_name(TESS_WORKSPACE_TOO_SMALL), "TESS_WORKSPACE_TOO_SMALL");
    assert_null(tess_status_name((tess_status)(TESS_CUDA_ERROR + 1)));
    assert_null(tess_status_text((tess_status)-1));
    for (int i = 0; i <= TESS_FAULT_OVERFLOW; i++)
        assert_non_null(tess_list_fault_name((tess_list_fault)i));
    assert_null(tess_list_fault_name((tess_list_fault)(TESS_FAULT_OVERFLOW + 1)));
    assert_string_equal(tess_type_name(TESS_BF16), "bf16");
    assert_string_equal(tess_type_name(TESS_E4M3), "e4m3");
    assert_string_equal(tess_type_name(TESS_E5M2), "e5m2");
    assert_null(tess_type_name((tess_type)5));
    assert_int_equal(tess_type_size(TESS_F32), 4);
    assert_int_equal(tess_type_size(TESS_F16), 2);
    assert_int_equal(tess_type_size(TESS_E5M2), 1);
    assert_int_equal(tess_type_size((tess_type)99), 0);
    assert_string_equal(tess_backend_name(TESS_CUDA), "cuda");
    assert_null(tess_backend_name((tess_backend)2));
    assert_string_equal(tess_stage_name(TESS_STAGE_SPMM), "spmm");
    for (int i = 0; i <= TESS_STAGE_MLP_DOWN; i++)
        assert_non_null(tess_stage_name((tess_stage)i));
    assert_string_equal(tess_stage_name(TESS_STAGE_GRADIENT_KEYS), "gradient_keys");
    assert_null(tess_stage_name((tess_stage)(TESS_STAGE_MLP_DOWN + 1)));
}

static void version_is_the_headers(void **state) {
    (void)state;
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", TESS_VERSION_MAJOR, TESS_VERSION_MINOR,
             TESS_VERSION_PATCH);
    assert_string_equal(tess_version(), text);
}

static void error_has_every_detail(void **state) {
    (void)state;
    tess_error e = tess_error_init();
    assert_int_equal(error_set(&e, TESS_UNSUPPORTED, "f", "x", "no %d", 7), TESS_UNSUPPORTED);
    assert_int_equal(e.status, TESS_UNSUPPORTED);
    assert_int_equal(e.fault, TESS_FAULT_NONE);
    assert_string_equal(e.function, "f");
    assert_string_equal(e.argument, "x");
    assert_string_equal(e.message, "no 7");
    assert_true(e.batch == -1 && e.head == -1 && e.row == -1 && e.position == -1);

    assert_int_equal(error_set_list(&e, TESS_FAULT_UNSORTED, "g", "y", 1, 2, 3, 4, "bad"),
                     TESS_INVALID_LIST);
    assert_int_equal(e.fault, TESS_FAULT_UNSORTED);
    assert_true(e.batch == 1 && e.head == 2 && e.row == 3 && e.position == 4);
    assert_int_equal(e.struct_size, sizeof e);

    assert_int_equal(error_set_at(&e, TESS_INVALID_ARGUMENT, "s", "z", 12, "at"),
                     TESS_INVALID_ARGUMENT);
    assert_true(e.position == 12 && e.row == -1 && e.fault == TESS_FAULT_NONE);

    assert_int_equal(error_set_memory(&e, "h", 123), TESS_OUT_OF_MEMORY);
    assert_non_null(strstr(e.message, "123"));
    assert_int_equal(error_set(NULL, TESS_NO_CUDA, "f", NULL, "-"), TESS_NO_CUDA);
}

static void error_takes_long_messages_and_zeroed_structs(void **state) {
    (void)state;
    tess_error e = {.struct_size = 0};
    error_set(&e, TESS_INVALID_ARGUMENT, "f", NULL, "%0400d", 1);
    assert_int_equal(strlen(e.message), sizeof e.message - 1);
    assert_int_equal(e.struct_size, 0);
}

/* One line, whatever names a caller gave. */
static void messages_are_one_line(void **state) {
    (void)state;
    tess_error e = tess_error_init();
    error_set(&e, TESS_INVALID_ARGUMENT, "f", NULL, "no %s", "a\nb\r\t\x01\x7f\xc3\xa9");
    assert_string_equal(e.message, "no a?b????\xc3\xa9");
}

/* A caller compiled against an older, shorter struct keeps what lies behind it. */
static void short_error_is_not_overrun(void **state) {
    (void)state;
    tess_error e;
    memset(&e, 0x5a, sizeof e);
    e.struct_size = offsetof(tess_error, batch);
    error_set(&e, TESS_INVALID_ARGUMENT, "f", NULL, "message");
    assert_int_equal(e.status, TESS_INVALID_ARGUMENT);
    for (size_t i = offsetof(tess_error, batch); i < sizeof e; i++)
        assert_int_equal(((unsigned char *)&e)[i], 0x5a);
}

struct grown {
    tess_pattern_shape known;
    int64_t later;
};

static void structs_grow(void **state) {
    (void)state;
    tess_pattern_shape out;
    struct grown given = {.known = tess_pattern_shape_init(), .later = 0};
    given.known.n_q = 5;
    given.known.struct_size = sizeof given;
    const size_t first = SHAPE_FIRST_SIZE; /* the size in version 0.1 */
    assert_null(struct_take(&out, sizeof out, first, &given));
    assert_int_equal(out.n_q, 5);
    given.later = 1;
    assert_non_null(struct_take(&out, sizeof out, first, &given));

    given.known.heads = 9, given.known.threads = 7;
    given.known.struct_size = first; /* an older caller, whose memory ends here */
    assert_null(struct_take(&out, sizeof out, first, &given));
    assert_int_equal(out.threads, 0);
    assert_int_equal(out.heads, 9);
    assert_int_equal(out.n_q, 5);
    out.threads = 8;
    assert_null(struct_give(&given, &out, sizeof out, first));
    assert_int_equal(given.known.threads, 7);

    const size_t unset[] = {0, 4, first - 1, first - 8, SIZE_MAX, 1 << 20};
    for (size_t i = 0; i < sizeof unset / sizeof *unset; i++) {
        given.known.struct_size = unset[i];
        assert_non_null(struct_take(&out, sizeof out, first, &given));
        assert_non_null(struct_give(&given, &out, sizeof out, first));
    }
}

/* Structs by name, for other languages, are as this header has them. */
static void structs_by_name(void **state) {
    (void)state;
#define STRUCT(name)                                                                               \
    {                                                                                              \
        name by_header = name##_init(), by_name;                                                   \
        memset(&by_name, 0x5a, sizeof by_name);                                                    \
        assert_int_equal(tess_struct_size(#name), sizeof(name));                                   \
        assert_int_equal(tess_struct_init(#name, &by_name, sizeof by_name, NULL), TESS_OK);        \
        assert_memory_equal(&by_name, &by_header, sizeof by_name);                                 \
    }
    STRUCT(tess_error)
    STRUCT(tess_tensor)
    STRUCT(tess_pattern_shape)
    STRUCT(tess_lists)
    STRUCT(tess_pattern_info)
    STRUCT(tess_problem)
    STRUCT(tess_target)
    STRUCT(tess_arguments)
    STRUCT(tess_plan_info)
    STRUCT(tess_kernel_info)
    STRUCT(tess_device_info)
    STRUCT(tess_device_pattern)
    STRUCT(tess_fill_report)
    STRUCT(tess_selection)
    STRUCT(tess_selected)
    STRUCT(tess_pooling)
    STRUCT(tess_scoring)
    STRUCT(tess_columns)
#undef STRUCT
    const struct {
        const char *name;
        int object;
        size_t size;
        const char *argument;
    } wrong[] = {{NULL, 1, 64, "name"},
                 {"tess_pattern", 1, 64, "name"},
                 {"tess_plan_infos", 1, 64, "name"},
                 {"", 1, 64, "name"},
                 {"tess_problem", 0, 64, "object"},
                 {"tess_problem", 1, 0, "size"},
                 {"tess_problem", 1, sizeof(size_t) - 1, "size"},
                 {"tess_problem", 1, sizeof(tess_problem) + 8, "size"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        unsigned char object[sizeof(tess_problem) + 8], before[sizeof object];
        tess_error error = tess_error_init();
        memset(object, 0x5a, sizeof object);
        memcpy(before, object, sizeof object);
        assert_int_equal(
            tess_struct_init(wrong[i].name, wrong[i].object ? object : NULL, wrong[i].size, &error),
            TESS_INVALID_ARGUMENT);
        assert_string_equal(error.argument, wrong[i].argument);
        assert_memory_equal(object, before, sizeof object);
    }
    assert_int_equal(tess_struct_size(NULL), 0);
    assert_int_equal(tess_struct_size("tess_plan"), 0);
    /* an earlier version's, which had fewer fields: no byte past it is written */
    tess_problem early;
    memset(&early, 0x5a, sizeof early);
    assert_int_equal(
        tess_struct_init("tess_problem", &early, offsetof(tess_problem, tile_rows), NULL), TESS_OK);
    assert_int_equal(early.struct_size, offsetof(tess_problem, tile_rows));
    assert_null(early.kernel);
    assert_int_equal(early.tile_rows, 0x5a5a5a5a5a5a5a5a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_complete),
        cmocka_unit_test(version_is_the_headers),
        cmocka_unit_test(error_has_every_detail),
        cmocka_unit_test(error_takes_long_messages_and_zeroed_structs),
        cmocka_unit_test(messages_are_one_line),
        cmocka_unit_test(short_error_is_not_overrun),
        cmocka_unit_test(structs_grow),
        cmocka_unit_test(structs_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
