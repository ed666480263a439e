/*
 * The readers and writers of .npy and .safetensors files: what is written is read back, and every
 * kind of damage is refused in words. Block lists: test_lists_file.c.
 */
#define _POSIX_C_SOURCE 200809L
#include "files/bytes.h"

#include <unistd.h>

#include "io/npy.h"
#include "io/safetensors.h"
#include "io/tensor_file.h"

/* ---- helpers -----------------------------------------------------------------------------------
 */

/* A .npy file of a header text (its newline added) and n bytes of data that count up. */
static struct bytes npy_file(int version, const char *header, size_t n) {
    unsigned char buffer[1024] = "\x93NUMPY";
    size_t length = strlen(header) + 1, at = 6;
    buffer[at++] = (unsigned char)version;
    buffer[at++] = 0;
    buffer[at++] = (unsigned char)(length & 0xff);
    buffer[at++] = (unsigned char)(length >> 8);
    if (version >= 2)
        buffer[at++] = 0, buffer[at++] = 0;
    memcpy(buffer + at, header, length - 1);
    at += length;
    buffer[at - 1] = '\n';
    for (size_t i = 0; i < n; i++)
        buffer[at++] = (unsigned char)i;
    return bytes_of(buffer, at);
}

/* Frees the bytes. The reason must be one line that holds `words`. */
static void npy_refused(struct bytes b, const char *words) {
    struct tensor tensor;
    struct reason reason = {""};
    bool read = npy_parse(&tensor, b.data, b.size, &reason);
    free(b.data);
    if (read || !strstr(reason.text, words))
        fail_msg("wanted \"%s\", got \"%s\"", words, read ? "no refusal" : reason.text);
}

static void safetensors_refused(struct bytes b, const char *words) {
    struct safetensors file;
    struct reason reason = {""};
    bool read = safetensors_parse(&file, b.data, b.size, &reason);
    if (read)
        safetensors_free(&file);
    free(b.data);
    if (read || !strstr(reason.text, words))
        fail_msg("wanted \"%s\", got \"%s\"", words, read ? "no refusal" : reason.text);
}

static void same_tensor(const struct tensor *a, const struct tensor *b) {
    assert_int_equal(a->type, b->type);
    assert_int_equal(a->rank, b->rank);
    assert_int_equal(a->size, b->size);
    for (int i = 0; i < a->rank; i++)
        assert_int_equal(a->shape[i], b->shape[i]);
    if (a->size > 0)
        assert_memory_equal(a->data, b->data, a->size);
}

/* ---- .npy --------------------------------------------------------------------------------------
 */

#define GOOD "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   "

static void test_npy_reads(void **state) {
    (void)state;
    static const struct {
        int version;
        const char *header;
        size_t size;
        enum element_type type;
        int rank;
        int64_t shape[2];
    } good[] = {
        {1, GOOD, 24, ELEMENT_F32, 2, {2, 3}},
        {2, GOOD, 24, ELEMENT_F32, 2, {2, 3}},
        {1, "{'shape':(3,),'fortran_order':False,'descr':'<f2'}", 6, ELEMENT_F16, 1, {3}},
        {1,
         "{\"descr\": \"<f8\", \"fortran_order\": False, \"shape\": ()}",
         8,
         ELEMENT_F64,
         0,
         {0}},
        {1, "{'descr': '<i4', 'fortran_order': False, 'shape': (0, 7)}", 0, ELEMENT_I32, 2, {0, 7}},
        {1, "{'descr': '<i8', 'fortran_order': False, 'shape': (1,)}", 8, ELEMENT_I64, 1, {1}},
        {1, "{'descr': '|b1', 'fortran_order': False, 'shape': (5,)}", 5, ELEMENT_BOOL, 1, {5}},
        {1, "{'descr': '|u1', 'fortran_order': False, 'shape': (5,)}", 5, ELEMENT_U8, 1, {5}},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct bytes b = npy_file(good[i].version, good[i].header, good[i].size);
        struct tensor tensor;
        struct reason reason = {""};
        if (!npy_parse(&tensor, b.data, b.size, &reason))
            fail_msg("%s: %s", good[i].header, reason.text);
        assert_int_equal(tensor.type, good[i].type);
        assert_int_equal(tensor.rank, good[i].rank);
        assert_int_equal(tensor.size, good[i].size);
        for (int a = 0; a < tensor.rank; a++)
            assert_int_equal(tensor.shape[a], good[i].shape[a]);
        for (size_t e = 0; e < tensor.size; e++)
            assert_int_equal(((const unsigned char *)tensor.data)[e], e);
        free(b.data);
    }
}

static void test_npy_refuses(void **state) {
    (void)state;
#define HEADER(descr, order, shape)                                                                \
    "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape "}"
    static const struct {
        const char *header;
        size_t size;
        const char *words;
    } bad[] = {
        {GOOD, 23, "truncated"},
        {GOOD, 0, "truncated"},
        {GOOD, 25, "past the end"},
        {HEADER("'>f4'", "False", "(2, 3)"), 24, "big endian"},
        {HEADER("'<f4'", "True", "(2, 3)"), 24, "Fortran order"},
        {HEADER("'<f4'", "Maybe", "(2, 3)"), 24, "fortran_order"},
        {HEADER("'<c8'", "False", "(2, 3)"), 48, "<c8 is not read"},
        {HEADER("'|O'", "False", "(1,)"), 8, "|O is not read"},
        {HEADER("[('a', '<f4')]", "False", "(1,)"), 4, "not one plain type"},
        {HEADER("'<f4'", "False", "(-2, 3)"), 24, "negative"},
        {HEADER("'<f4'", "False", "(2.0, 3)"), 24, "not a tuple of numbers"},
        {HEADER("'<f4'", "False", "(2 3)"), 24, "not a tuple of numbers"},
        {HEADER("'<f4'", "False", "(6)"), 24, "not a tuple"},
        {HEADER("'<f4'", "False", "[2, 3]"), 24, "not a tuple"},
        {HEADER("'<f4'", "False", "(2,, 3)"), 24, "not a tuple"},
        {HEADER("'<f4'", "False", "(2, 3"), 24, "not a tuple"},
        {HEADER("'<f4'", "False", "(9223372036854775807, 2)"), 24, "overflows"},
        {HEADER("'<f4'", "False", "(9223372036854775808,)"), 24, "64 bits"},
        {HEADER("'<f4'", "False", "(4294967296, 4294967296)"), 0, "overflows"},
        {HEADER("'<f4'", "False", "(0, 4294967296, 4294967296)"), 0, "overflows"},
        {HEADER("'<f8'", "False", "(2305843009213693952,)"), 0, "overflows"},
        {HEADER("'<f4'", "False", "(1,1,1,1,1,1,1,1,1)"), 4, "axes"},
        {"{'descr': '<f4', 'shape': (1,)}", 4, "lacks fortran_order"},
        {"{'descr': '<f4', 'fortran_order': False}", 4, "lacks shape"},
        {"{'fortran_order': False, 'shape': (1,)}", 4, "lacks descr"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", 4, "twice"},
        {"{'descr': '<f4', 'x': 1, 'fortran_order': False, 'shape': (1,)}", 4, "unknown"},
        {"{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}", 4, "dictionary"},
        {"{'descr': '<f4, 'fortran_order': False, 'shape': (1,)}", 4, "<f4, "},
        {"['descr']", 4, "not a dictionary"},
        {"", 4, "not a dictionary"},
        {GOOD "x", 24, "newline"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        npy_refused(npy_file(1, bad[i].header, bad[i].size), bad[i].words);
    npy_refused(npy_file(3, GOOD, 24), "version 3.0");
    npy_refused(npy_file(0, GOOD, 24), "version 0.0");
    npy_refused(bytes_of("", 0), "not a .npy");
    npy_refused(bytes_of("\x93NUMPX\1\0", 8), "not a .npy");

    struct bytes huge = npy_file(2, GOOD, 24); /* a header of almost 4 GiB */
    memset(huge.data + 8, 0xff, 4);
    npy_refused(huge, "truncated");
}

/* Every proper prefix of a file is refused. */
static void test_npy_prefixes(void **state) {
    (void)state;
    for (int version = 1; version <= 2; version++) {
        struct bytes whole = npy_file(version, GOOD, 24);
        for (size_t size = 0; size < whole.size; size++) {
            struct bytes part = bytes_of(whole.data, size);
            struct tensor tensor;
            struct reason reason;
            bool read = npy_parse(&tensor, part.data, part.size, &reason);
            free(part.data);
            assert_false(read);
        }
        free(whole.data);
    }
}

static void test_npy_round_trip(void **state) {
    (void)state;
    unsigned char data[2 * 3 * 8];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(7 * i);
    static const struct tensor shapes[] = {{.rank = 0},
                                           {.rank = 1, .shape = {6}},
                                           {.rank = 2, .shape = {2, 3}},
                                           {.rank = 3, .shape = {2, 0, 3}},
                                           {.rank = 4, .shape = {1, 2, 1, 3}}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int type = 0; type < ELEMENT_TYPES; type++) {
            struct tensor in = shapes[s], out;
            struct reason reason = {""};
            in.type = (enum element_type)type;
            in.data = data;
            assert_true(tensor_measure(&in));
            FILE *file = tmpfile();
            assert_non_null(file);
            bool written = npy_write(file, &in);
            assert_int_equal(written, type != ELEMENT_BF16);
            struct bytes b = slurp(file);
            if (written) {
                assert_int_equal((b.size - in.size) % 64, 0);
                if (!npy_parse(&out, b.data, b.size, &reason))
                    fail_msg("%s: %s", element_name(in.type), reason.text);
                same_tensor(&in, &out);
            }
            free(b.data);
        }
}

/* ---- .safetensors ------------------------------------------------------------------------------
 */

static void test_safetensors_reads(void **state) {
    (void)state;
    struct bytes b = safetensors_file(
        "{" ENTRY("b", "F16", "[2,3]", "[4,16]") "," ENTRY("a", "I32", "[]", "[0,4]") "," ENTRY(
            "none", "BF16", "[0,5]", "[4,4]") ",\"__metadata__\":{\"k\":\"v\"}}  ",
        16);
    struct safetensors file;
    struct reason reason = {""};
    if (!safetensors_parse(&file, b.data, b.size, &reason))
        fail_msg("%s", reason.text);
    assert_int_equal(file.count, 3);
    const struct tensor *t = safetensors_find(&file, "b");
    assert_non_null(t);
    assert_int_equal(t->type, ELEMENT_F16);
    assert_int_equal(t->rank, 2);
    assert_int_equal(t->size, 12);
    assert_int_equal(*(const unsigned char *)t->data, 4);
    t = safetensors_find(&file, "none");
    assert_non_null(t);
    assert_int_equal(t->size, 0);
    assert_null(safetensors_find(&file, "__metadata__"));
    assert_null(safetensors_find(&file, "c"));
    assert_string_equal(safetensors_metadata(&file, "k"), "v");
    assert_null(safetensors_metadata(&file, "absent"));
    safetensors_free(&file);
    free(b.data);
}

static void test_safetensors_refuses(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t size;
        const char *words;
    } bad[] = {
        {"{" ENTRY("a", "F32", "[2]", "[0,8]") "}", 7, "outside"},
        {"{" ENTRY("a", "F32", "[2]", "[0,8]") "}", 9, "belong to no tensor"},
        {"{" ENTRY("a", "F32", "[2]", "[4,12]") "}", 12, "belong to no tensor"},
        {"{" ENTRY("a", "F32", "[2]", "[0,8]") "," ENTRY("b", "F32", "[2]", "[4,12]") "}", 12,
         "overlap"},
        {"{" ENTRY("a", "F32", "[2]", "[0,8]") "," ENTRY("b", "F32", "[2]", "[0,8]") "}", 8,
         "overlap"},
        {"{" ENTRY("a", "U8", "[8]", "[0,8]") "," ENTRY("b", "U8", "[0]", "[4,4]") "}", 8,
         "overlap"},
        {"{" ENTRY("a", "F32", "[3]", "[0,8]") "}", 8, "its shape takes 12"},
        {"{" ENTRY("a", "F32", "[2]", "[8,0]") "}", 8, "outside"},
        {"{" ENTRY("a", "F32", "[2]", "[-8,0]") "}", 8, "outside"},
        {"{" ENTRY("a", "F32", "[2]", "[0,9223372036854775807]") "}", 8, "outside"},
        {"{" ENTRY("a", "F32", "[2]", "[0,99999999999999999999]") "}", 8, "JSON"},
        {"{" ENTRY("a", "F32", "[2]", "[0]") "}", 8, "two numbers"},
        {"{" ENTRY("a", "F32", "[2]", "[0,8.0]") "}", 8, "two numbers"},
        {"{" ENTRY("a", "F32", "[2]", "0") "}", 8, "two numbers"},
        {"{" ENTRY("a", "F32", "[-2]", "[0,8]") "}", 8, "axis"},
        {"{" ENTRY("a", "F32", "[2.0]", "[0,8]") "}", 8, "axis"},
        {"{" ENTRY("a", "F32", "2", "[0,8]") "}", 8, "not an array"},
        {"{" ENTRY("a", "F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", 8, "axes"},
        {"{" ENTRY("a", "F32", "[4294967296,4294967296]", "[0,8]") "}", 8, "overflows"},
        {"{" ENTRY("a", "F32", "[0,4294967296,4294967296]", "[0,0]") "}", 0, "overflows"},
        {"{" ENTRY("a", "F8_E4M3", "[8]", "[0,8]") "}", 8, "F8_E4M3"},
        {"{" ENTRY("a", "f32", "[2]", "[0,8]") "}", 8, "f32"},
        {"{" ENTRY("a", "F32", "[2]", "[0,8]") "," ENTRY("a", "F32", "[2]", "[0,8]") "}", 8,
         "duplicate"},
        {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "not an object of"},
        {"{\"a\":{\"dtype\":1,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "no dtype"},
        {"{\"a\":[1,2,3]}", 8, "not an object of"},
        {"{\"__metadata__\":3}", 0, "__metadata__"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__"},
        {"[1,2]", 0, "not JSON"},
        {"{\"a\":", 0, "JSON"},
        {"{} trailing", 0, "JSON"},
        {"", 8, "not JSON"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        safetensors_refused(safetensors_file(bad[i].header, bad[i].size), bad[i].words);
    safetensors_refused(bytes_of("\1\0\0", 3), "not a .safetensors");
    safetensors_refused(bytes_of("\x10\0\0\0\0\0\0\0{}", 10), "truncated");
    safetensors_refused(bytes_of("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10), "100 MB");
    safetensors_refused(bytes_of("\x01\xe1\xf5\x05\0\0\0\0{}", 10), "100 MB");
}

static void test_safetensors_prefixes(void **state) {
    (void)state;
    struct bytes whole = safetensors_file("{" ENTRY("a", "F32", "[2]", "[0,8]") "}", 8);
    for (size_t size = 0; size < whole.size; size++) {
        struct bytes part = bytes_of(whole.data, size);
        struct safetensors file;
        struct reason reason;
        bool read = safetensors_parse(&file, part.data, part.size, &reason);
        free(part.data);
        assert_false(read);
    }
    free(whole.data);
}

static void test_safetensors_round_trip(void **state) {
    (void)state;
    unsigned char data[6 * 8];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(11 * i);
    struct named_tensor in[ELEMENT_TYPES];
    char names[ELEMENT_TYPES][16];
    for (int i = 0; i < ELEMENT_TYPES; i++) {
        snprintf(names[i], sizeof names[i], "t\"%d", i);
        in[i] = (struct named_tensor){
            names[i], {.type = (enum element_type)i, .rank = 2, .shape = {i % 3, 2}, .data = data}};
        assert_true(tensor_measure(&in[i].tensor));
    }
    json_t *metadata = json_pack("{s:s}", "seed", "7");
    FILE *stream = tmpfile();
    assert_non_null(stream);
    assert_true(safetensors_write(stream, in, ELEMENT_TYPES, metadata));
    json_decref(metadata);
    struct bytes b = slurp(stream);
    struct safetensors file;
    struct reason reason = {""};
    if (!safetensors_parse(&file, b.data, b.size, &reason))
        fail_msg("%s", reason.text);
    assert_int_equal(file.count, ELEMENT_TYPES);
    for (int i = 0; i < ELEMENT_TYPES; i++) {
        const struct tensor *out = safetensors_find(&file, names[i]);
        assert_non_null(out);
        same_tensor(&in[i].tensor, out);
    }
    assert_string_equal(safetensors_metadata(&file, "seed"), "7");
    safetensors_free(&file);
    free(b.data);
}

/* ---- files by name -----------------------------------------------------------------------------
 */

static void test_names(void **state) {
    (void)state;
    static const struct {
        const char *text, *path, *tensor;
    } good[] = {
        {"a.npy", "a.npy", NULL},
        {"d:/a:b.npy", "d:/a:b.npy", NULL},
        {"a.safetensors", "a.safetensors", NULL},
        {"x:y.safetensors", "x:y.safetensors", NULL},
        {"a.safetensors:q", "a.safetensors", "q"},
        {"a.safetensors:w.npy", "a.safetensors", "w.npy"},
    };
    struct file_name name;
    struct reason reason;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(file_name_parse(&name, good[i].text, &reason));
        assert_string_equal(name.path, good[i].path);
        assert_int_equal(name.format,
                         strstr(good[i].path, ".npy") ? FORMAT_NPY : FORMAT_SAFETENSORS);
        if (good[i].tensor)
            assert_string_equal(name.tensor, good[i].tensor);
        else
            assert_null(name.tensor);
    }
    static const char *const bad[] = {"", "a", "a.txt", ".npy", "a.npy:q", "a.safetensors:"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(file_name_parse(&name, bad[i], &reason));
    char longest[5000];
    memset(longest, 'a', sizeof longest);
    memcpy(longest + sizeof longest - 5, ".npy", 5);
    assert_false(file_name_parse(&name, longest, &reason));
}

/* Tensors that no alignment was made for are copied; the choice of a tensor is checked. */
static void test_tensor_file(void **state) {
    (void)state;
    char path[] = "/tmp/tessera-test-XXXXXX", renamed[64], named[80];
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    struct bytes b = safetensors_file(
        "{" ENTRY("a", "U8", "[1]", "[0,1]") "," ENTRY("b", "F64", "[1]", "[1,9]") "}", 9);
    assert_int_equal(write(descriptor, b.data, b.size), (ssize_t)b.size);
    close(descriptor);
    snprintf(renamed, sizeof renamed, "%s.safetensors", path);
    assert_int_equal(rename(path, renamed), 0);
    struct tensor_file file;
    struct reason reason;
    snprintf(named, sizeof named, "%s:b", renamed);
    assert_true(tensor_file_open(&file, named, &reason));
    assert_int_equal((uintptr_t)file.tensor.data % 8, 0);
    assert_memory_equal(file.tensor.data, "\1\2\3\4\5\6\7\10", 8);
    tensor_file_close(&file);
    assert_false(tensor_file_open(&file, renamed, &reason));
    assert_non_null(strstr(reason.text, "2 tensors"));
    snprintf(named, sizeof named, "%s:c", renamed);
    assert_false(tensor_file_open(&file, named, &reason));
    assert_non_null(strstr(reason.text, "named c"));
    remove(renamed);
    assert_false(tensor_file_open(&file, named, &reason));
    assert_non_null(strstr(reason.text, "No such file"));
    assert_false(tensor_file_open(&file, "/tmp/./x.npy/../y.npy", &reason));
    free(b.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_npy_reads),
        cmocka_unit_test(test_npy_refuses),
        cmocka_unit_test(test_npy_prefixes),
        cmocka_unit_test(test_npy_round_trip),
        cmocka_unit_test(test_safetensors_reads),
        cmocka_unit_test(test_safetensors_refuses),
        cmocka_unit_test(test_safetensors_prefixes),
        cmocka_unit_test(test_safetensors_round_trip),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_tensor_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
