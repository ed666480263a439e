/* The reader and writer of block-list files: what is written is read back, and every kind of damage
 * is refused in words. */
#include "files/bytes.h"
#include "io/lists_file.h"

static void test_lists_round_trip(void **state) {
    (void)state;
    static const char *const specs[] = {"dense", "causal", "window(3,5)", "dilated(3,3)+global(2)",
                                        "random(0.4,1)&causal"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        tess_pattern_shape shape = tess_pattern_shape_init();
        shape.n_q = 37, shape.n_kv = 41, shape.block_q = 5, shape.block_kv = 7, shape.heads = 3;
        tess_pattern *pattern, *again;
        assert_int_equal(tess_pattern_from_spec(&pattern, specs[i], &shape, NULL), TESS_OK);
        tess_lists in = tess_lists_init(), out = tess_lists_init();
        assert_int_equal(tess_pattern_lists(pattern, &in, NULL), TESS_OK);
        FILE *stream = tmpfile();
        assert_non_null(stream);
        assert_true(lists_file_write(stream, &in));
        struct bytes b = slurp(stream);
        struct lists_file file;
        struct reason reason = {""};
        tess_pattern_shape given = tess_pattern_shape_init();
        struct pattern_sizes sizes = {0};
        if (!lists_file_parse(&file, b.data, b.size, &given, &sizes, &reason))
            fail_msg("%s: %s", specs[i], reason.text);
        assert_int_equal(tess_pattern_from_lists(&again, &file.lists, NULL), TESS_OK);
        assert_int_equal(tess_pattern_lists(again, &out, NULL), TESS_OK);
        assert_int_equal(in.n_tiles, out.n_tiles);
        assert_int_equal(in.n_bands, out.n_bands);
        assert_int_equal(in.n_bitmasks, out.n_bitmasks);
        assert_int_equal(in.heads, out.heads);
        assert_memory_equal(in.row_ptr, out.row_ptr,
                            (size_t)(in.batch * in.heads * 9) * sizeof(int64_t));
        assert_memory_equal(in.col_idx, out.col_idx, (size_t)in.n_tiles * sizeof(int32_t));
        lists_file_close(&file);
        tess_pattern_free(again);
        tess_pattern_free(pattern);
        free(b.data);
    }
}

static void lists_refused(const char *header, size_t size, const struct pattern_sizes *sizes,
                          const char *words) {
    struct bytes b = safetensors_file(header, size);
    struct lists_file file;
    struct reason reason = {""};
    tess_pattern_shape given = tess_pattern_shape_init();
    given.n_q = sizes->n_q;
    bool read = lists_file_parse(&file, b.data, b.size, &given, sizes, &reason);
    if (read)
        lists_file_close(&file);
    free(b.data);
    if (read || !strstr(reason.text, words))
        fail_msg("wanted \"%s\", got \"%s\"", words, read ? "no refusal" : reason.text);
}

static void test_lists_refused(void **state) {
    (void)state;
#define COLUMNS ENTRY("col_idx", "I32", "[1]", "[16,20]")
#define ONE_ROW ENTRY("row_ptr", "I64", "[1,2]", "[0,16]")
    const struct pattern_sizes one = {1, 1, 1, 64, 64}, many = {2, 4, 2, 64, 64}, none = {0};
    lists_refused("{" ENTRY("row_ptr", "I64", "[1,2]", "[0,16]") "}", 16, &one,
                  "col_idx is missing");
    lists_refused("{" ENTRY("col_idx", "I32", "[1]", "[0,4]") "}", 4, &one, "row_ptr is missing");
    lists_refused("{" ENTRY("row_ptr", "I64", "[2]", "[0,16]") "," COLUMNS "}", 20, &one, "2 are");
    lists_refused("{" ENTRY("row_ptr", "F64", "[1,2]", "[0,16]") "," COLUMNS "}", 20, &one, "f64");
    lists_refused("{" ENTRY("row_ptr", "I64", "[2,1]", "[0,16]") "," COLUMNS "}", 20, &one,
                  "[lists,2]");
    lists_refused("{" ONE_ROW "," COLUMNS "," ENTRY("x", "U8", "[0]", "[20,20]") "}", 20, &one,
                  "does not belong");
    lists_refused("{" ONE_ROW "," COLUMNS "}", 20, &none, "n_q");
    lists_refused("{" ONE_ROW "," COLUMNS ",\"__metadata__\":{\"n_q\":\"65\"}}", 20, &one,
                  "n_q = 65");
    lists_refused("{" ONE_ROW "," COLUMNS ",\"__metadata__\":{\"n_q\":\"-1\"}}", 20, &one,
                  "not a number");
    lists_refused("{" ONE_ROW "," COLUMNS ",\"__metadata__\":{\"batch\":\"2\",\"heads\":\"1\"}}",
                  20, &one, "2 batches of 1");
    lists_refused("{" ONE_ROW "," COLUMNS "," ENTRY("band_entry", "I64", "[1]", "[20,28]") "}", 28,
                  &one, "band_entry without band");
    lists_refused("{" ONE_ROW "," COLUMNS
                  "," ENTRY("band_entry", "I64", "[1]", "[20,28]") "," ENTRY("band", "I32", "[2,1]",
                                                                             "[28,36]") "}",
                  36, &one, "[1,2] is needed");
    lists_refused("{" ONE_ROW "," COLUMNS
                  "," ENTRY("bitmask_entry", "I64", "[1]",
                            "[20,28]") "," ENTRY("bits", "U64", "[1]", "[28,36]") "}",
                  36, &one, "need 64");
    lists_refused("{" ENTRY("row_ptr", "I64", "[4,2]", "[0,64]") "," ENTRY("col_idx", "I32", "[0]",
                                                                           "[64,64]") "}",
                  64, &many, "per head or per batch");
    lists_refused("{" ENTRY("row_ptr", "I64", "[3,2]", "[0,48]") "," ENTRY("col_idx", "I32", "[0]",
                                                                           "[48,48]") "}",
                  48, &many, "3 lists");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists_round_trip),
        cmocka_unit_test(test_lists_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
