/*
 * Patterns of whole blocks from a caller's arrays: padded indices, a byte or a bit for each block.
 * Each against the blocks that it was made of, and against the same pattern by block lists.
 */
#include "support/naive.h"

#include <string.h>

#define SEED 20240711u

static uint64_t random_state;

static uint32_t random_next(void) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33);
}

/* ---- blocks, and what is made of them -------------------------------------------------------- */

/* Which blocks are listed: bytes [lists][rows][cols]. */
struct blocks {
    tess_pattern_shape shape;
    int64_t lists, rows, cols;
    uint8_t *bytes;
};

static int blocks_listed(const void *context, int64_t l, int64_t q, int64_t k) {
    const struct blocks *x = context;
    int64_t row = l * x->rows + q / x->shape.block_q;
    return x->bytes[row * x->cols + k / x->shape.block_kv] != 0;
}

/* n_q, n_kv, block_q, block_kv */
static const int64_t shapes[][4] = {
    {37, 50, 1, 1},   {5, 1500, 1, 1},    {8, 10, 1, 1},      {300, 70, 128, 1},  {256, 64, 128, 1},
    {90, 90, 192, 1}, {130, 200, 64, 64}, {10, 4096, 64, 64}, {10, 4200, 64, 64}, {61, 83, 5, 7},
    {50, 70, 1, 16},  {230, 90, 100, 3},  {20, 20, 99, 1000}, {1, 1, 64, 64},     {1, 129, 1, 1},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const struct { int64_t batch, heads; } lists[] = {{0, 0}, {1, 1}, {2, 1}, {1, 3}, {2, 3}};
enum { LISTS = sizeof lists / sizeof *lists };

/* Blocks of a hundred that are listed. */
static const uint32_t densities[] = {0, 2, 30, 100};
enum { DENSITIES = sizeof densities / sizeof *densities };

static struct blocks blocks_make(const int64_t size[4], int64_t batch, int64_t heads,
                                 uint32_t density) {
    struct blocks x = {.shape = tess_pattern_shape_init()};
    x.shape.n_q = size[0], x.shape.n_kv = size[1];
    x.shape.block_q = size[2], x.shape.block_kv = size[3];
    x.shape.batch = batch, x.shape.heads = heads;
    x.lists = (batch ? batch : 1) * (heads ? heads : 1);
    x.rows = (size[0] + size[2] - 1) / size[2], x.cols = (size[1] + size[3] - 1) / size[3];
    x.bytes = malloc((size_t)(x.lists * x.rows * x.cols));
    assert_non_null(x.bytes);
    for (int64_t i = 0; i < x.lists * x.rows * x.cols; i++)
        x.bytes[i] = (uint8_t)(random_next() % 100 < density ? 1 + random_next() % 255 : 0);
    return x;
}

/* A bit for each block; those past the last column are set. */
static uint64_t *bits_of(const struct blocks *x) {
    int64_t words = (x->cols + 63) / 64, rows = x->lists * x->rows;
    uint64_t *bits = calloc((size_t)(rows * words), sizeof *bits);
    assert_non_null(bits);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t c = 0; c < 64 * words; c++)
            if (c >= x->cols || x->bytes[row * x->cols + c])
                bits[row * words + c / 64] |= UINT64_C(1) << c % 64;
    return bits;
}

/* A pattern of the blocks by lists. */
static tess_pattern *pattern_of_lists(const struct blocks *x) {
    int64_t rows = x->lists * x->rows, n = 0;
    int64_t *ptr = malloc((size_t)(x->lists * (x->rows + 1)) * sizeof *ptr);
    int32_t *col = malloc((size_t)(rows * x->cols) * sizeof *col);
    tess_lists l = tess_lists_init();
    tess_pattern *p = NULL;
    assert_non_null(ptr);
    assert_non_null(col);
    for (int64_t row = 0; row < rows; row++) {
        int64_t *at = ptr + row / x->rows * (x->rows + 1) + row % x->rows;
        at[0] = n;
        for (int64_t c = 0; c < x->cols; c++)
            if (x->bytes[row * x->cols + c])
                col[n++] = (int32_t)c;
        at[1] = n;
    }
    l.n_q = x->shape.n_q, l.n_kv = x->shape.n_kv;
    l.block_q = x->shape.block_q, l.block_kv = x->shape.block_kv;
    l.batch = x->shape.batch, l.heads = x->shape.heads;
    l.n_tiles = n, l.row_ptr = ptr, l.col_idx = col;
    assert_int_equal(tess_pattern_from_lists(&p, &l, NULL), TESS_OK);
    free(ptr);
    free(col);
    return p;
}

/* Places of a row's padding. */
enum padding { PADDING_LAST, PADDING_FIRST, PADDING_ANYWHERE };

/*
 * Indices and counts of the blocks, some of which are named twice. What follows a row's count is no
 * index; nothing follows that of the last row, whose memory ends there.
 */
struct padded {
    int64_t capacity;
    int32_t *indices, *counts;
};

static int times_named(const struct blocks *x, int64_t row, int64_t c) {
    return x->bytes[row * x->cols + c] ? 1 + (c % 3 == 1) : 0;
}

static int64_t row_entries(const struct blocks *x, int64_t row) {
    int64_t n = 0;
    for (int64_t c = 0; c < x->cols; c++)
        n += times_named(x, row, c);
    return n;
}

/* Writes `count` entries, of which the row needs some: ascending in even rows, else falling. */
static void row_make(const struct blocks *x, int64_t row, enum padding padding, int32_t *out,
                     int64_t count) {
    int64_t at = padding == PADDING_FIRST ? count - row_entries(x, row) : 0;
    for (int64_t i = 0; i < count; i++)
        out[i] = -1;
    for (int64_t i = 0; i < x->cols; i++) {
        int64_t c = row % 2 ? x->cols - 1 - i : i;
        for (int times = times_named(x, row, c); times > 0; times--)
            out[at++] = (int32_t)c;
    }
    for (int64_t i = count - 1; padding == PADDING_ANYWHERE && i > 0; i--) {
        int64_t j = random_next() % (i + 1);
        int32_t swap = out[i];
        out[i] = out[j];
        out[j] = swap;
    }
}

/* Rows have padding of up to `spare` entries and more where others are longer. */
static struct padded padded_make(const struct blocks *x, enum padding padding, int64_t spare,
                                 int counted) {
    struct padded p = {.capacity = 1};
    int64_t rows = x->lists * x->rows;
    for (int64_t row = 0; row < rows; row++) {
        int64_t n = row_entries(x, row) + spare;
        p.capacity = n > p.capacity ? n : p.capacity;
    }
    p.counts = malloc((size_t)rows * sizeof *p.counts);
    p.indices = malloc((size_t)(rows * p.capacity) * sizeof *p.indices);
    assert_non_null(p.counts);
    assert_non_null(p.indices);
    for (int64_t row = 0; row < rows; row++) {
        int64_t n = row_entries(x, row), count = p.capacity;
        if (counted && row % 5) /* every fifth count is the capacity */
            count = n + random_next() % (spare + 1);
        int32_t *out = p.indices + row * p.capacity;
        row_make(x, row, padding, out, count);
        for (int64_t i = count; i < p.capacity; i++)
            out[i] = i % 2 ? INT32_MIN : INT32_MAX;
        p.counts[row] = (int32_t)count;
    }
    int64_t read = (rows - 1) * p.capacity + p.counts[rows - 1];
    int32_t *cut = malloc((size_t)(read ? read : 1) * sizeof *cut);
    assert_non_null(cut);
    memcpy(cut, p.indices, (size_t)read * sizeof *cut);
    free(p.indices);
    p.indices = cut;
    return p;
}

static void padded_free(struct padded *p) {
    free(p->indices);
    free(p->counts);
}

/* Holds a pattern, which it frees, to the blocks: array for array, and one list element by element.
 */
static void check(const struct blocks *x, const char *name, tess_status status, tess_pattern *p,
                  const tess_error *error) {
    struct naive naive = {blocks_listed, x, name};
    if (status != TESS_OK)
        fail_msg("%s: %s", name, error->message);
    tess_pattern *same = pattern_of_lists(x);
    if (x->lists == 1)
        naive_check(&naive, p);
    if (!naive_same(p, same))
        fail_msg("%s: not the pattern of the same block lists", name);
    tess_pattern_free(same);
    tess_pattern_free(p);
}

#define FOR_EACH_BLOCKS(x)                                                                         \
    for (int s_ = 0; s_ < SHAPES; s_++)                                                            \
        for (int l_ = 0; l_ < LISTS; l_++)                                                         \
            for (int d_ = 0; d_ < DENSITIES && (x = blocks_make(shapes[s_], lists[l_].batch,       \
                                                                lists[l_].heads, densities[d_]),   \
                                               1);                                                 \
                 d_++, free((x).bytes))

static void test_counts(void **state) {
    (void)state;
    struct blocks x;
    FOR_EACH_BLOCKS(x) {
        tess_error error = tess_error_init();
        for (int padding = PADDING_LAST; padding <= PADDING_ANYWHERE; padding++) {
            for (int counted = 0; counted < 2; counted++) {
                struct padded l = padded_make(&x, (enum padding)padding, 3 * padding, counted);
                tess_pattern *p = NULL;
                tess_status status = tess_pattern_from_counts(
                    &p, l.indices, counted ? l.counts : NULL, l.capacity, &x.shape, &error);
                check(&x, counted ? "counts" : "no counts", status, p, &error);
                padded_free(&l);
            }
        }
    }
}

/* Counts of 0 and rows of padding alone list nothing. */
static void test_counts_of_nothing(void **state) {
    (void)state;
    enum { CAPACITY = 3, ROWS = 4 };
    const int32_t none[ROWS] = {0}, garbage[ROWS * CAPACITY] = {7, -9, 1, 0};
    int32_t padding[ROWS * CAPACITY];
    struct blocks x = blocks_make((int64_t[]){7, 9, 2, 3}, 1, 1, 0);
    tess_error error = tess_error_init();
    tess_pattern *p = NULL;
    for (int i = 0; i < ROWS * CAPACITY; i++)
        padding[i] = -1;
    tess_status status = tess_pattern_from_counts(&p, garbage, none, CAPACITY, &x.shape, &error);
    check(&x, "counts of 0", status, p, &error);
    status = tess_pattern_from_counts(&p, padding, NULL, CAPACITY, &x.shape, &error);
    check(&x, "padding", status, p, &error);
    free(x.bytes);
}

/* Top-k indices are padded lists of keys, without counts. */
static void test_topk(void **state) {
    (void)state;
    struct blocks x;
    FOR_EACH_BLOCKS(x) {
        if (x.shape.block_q != 1 || x.shape.block_kv != 1)
            continue;
        struct padded l = padded_make(&x, PADDING_ANYWHERE, 2, 0);
        tess_pattern_shape shape = x.shape;
        tess_error error = tess_error_init();
        tess_pattern *p = NULL;
        shape.block_q = 0, shape.block_kv = s_ % 2;
        tess_status status = tess_pattern_from_topk(&p, l.indices, l.capacity, &shape, &error);
        check(&x, "topk", status, p, &error);
        padded_free(&l);
    }
}

static void test_blocks(void **state) {
    (void)state;
    struct blocks x;
    FOR_EACH_BLOCKS(x) {
        tess_error error = tess_error_init();
        tess_pattern *p = NULL;
        tess_status status = tess_pattern_from_blocks(&p, x.bytes, &x.shape, &error);
        check(&x, "blocks", status, p, &error);
    }
}

static void test_bits(void **state) {
    (void)state;
    struct blocks x;
    FOR_EACH_BLOCKS(x) {
        uint64_t *bits = bits_of(&x);
        tess_error error = tess_error_init();
        tess_pattern *p = NULL;
        tess_status status = tess_pattern_from_bits(&p, bits, &x.shape, &error);
        check(&x, "bits", status, p, &error);
        free(bits);
    }
}

/* Any number of threads makes the same pattern, and names the same fault: the first. */
static void test_threads(void **state) {
    (void)state;
    struct blocks x = blocks_make((int64_t[]){3000, 900, 3, 2}, 1, 2, 20);
    struct padded l = padded_make(&x, PADDING_ANYWHERE, 4, 1);
    uint64_t *bits = bits_of(&x);
    for (int64_t threads = 1; threads <= 8; threads += 3) {
        tess_error error = tess_error_init();
        tess_pattern *p = NULL;
        x.shape.threads = threads;
        tess_status status =
            tess_pattern_from_counts(&p, l.indices, l.counts, l.capacity, &x.shape, &error);
        check(&x, "counts", status, p, &error);
        status = tess_pattern_from_blocks(&p, x.bytes, &x.shape, &error);
        check(&x, "blocks", status, p, &error);
        status = tess_pattern_from_bits(&p, bits, &x.shape, &error);
        check(&x, "bits", status, p, &error);
        const int32_t right[] = {l.indices[700 * l.capacity], l.indices[1900 * l.capacity]};
        l.indices[700 * l.capacity] = l.indices[1900 * l.capacity] = -2;
        assert_int_equal(
            tess_pattern_from_counts(&p, l.indices, l.counts, l.capacity, &x.shape, &error),
            TESS_INVALID_LIST);
        assert_int_equal(error.head, 0);
        assert_int_equal(error.row, 700);
        l.indices[700 * l.capacity] = right[0], l.indices[1900 * l.capacity] = right[1];
    }
    padded_free(&l);
    free(bits);
    free(x.bytes);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static tess_pattern_shape shape_of(int64_t n_q, int64_t n_kv, int64_t block_q, int64_t block_kv,
                                   int64_t batch, int64_t heads) {
    tess_pattern_shape s = tess_pattern_shape_init();
    s.n_q = n_q, s.n_kv = n_kv, s.block_q = block_q, s.block_kv = block_kv;
    s.batch = batch, s.heads = heads;
    return s;
}

static void assert_fault(const tess_error *error, const char *argument, tess_list_fault fault,
                         int64_t list, int64_t row, int64_t position) {
    assert_int_equal(error->status, TESS_INVALID_LIST);
    assert_string_equal(error->argument, argument);
    assert_int_equal(error->fault, fault);
    assert_int_equal(error->batch, list / 2);
    assert_int_equal(error->head, list % 2);
    assert_int_equal(error->row, row);
    assert_int_equal(error->position, position);
}

enum { FAULT_ROWS = 3, FAULT_CAPACITY = 4, FAULT_LISTS = 4 };

/* Wrong indices, of 10 columns: through from_counts and from_topk, at the same places. */
static void test_index_faults(void **state) {
    (void)state;
    const struct {
        int64_t place;
        int32_t value;
        tess_list_fault fault;
    } wrong[] = {{0, 10, TESS_FAULT_OUT_OF_RANGE},
                 {17, -2, TESS_FAULT_NEGATIVE},
                 {47, INT32_MAX, TESS_FAULT_OUT_OF_RANGE},
                 {30, INT32_MIN, TESS_FAULT_NEGATIVE}};
    int32_t indices[FAULT_LISTS * FAULT_ROWS * FAULT_CAPACITY] = {0};
    tess_pattern_shape blocks = shape_of(50, 70, 20, 7, 2, 2);
    tess_pattern_shape keys = shape_of(FAULT_ROWS, 10, 1, 1, 2, 2);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int64_t at = wrong[i].place, row = at / FAULT_CAPACITY;
        tess_error error = tess_error_init();
        tess_pattern *p = (tess_pattern *)&keys;
        indices[at] = wrong[i].value;
        tess_pattern_from_counts(&p, indices, NULL, FAULT_CAPACITY, &blocks, &error);
        assert_null(p);
        assert_string_equal(error.function, "tess_pattern_from_counts");
        assert_fault(&error, "indices", wrong[i].fault, row / FAULT_ROWS, row % FAULT_ROWS,
                     at % FAULT_CAPACITY);
        error = tess_error_init();
        tess_pattern_from_topk(&p, indices, FAULT_CAPACITY, &keys, &error);
        assert_string_equal(error.function, "tess_pattern_from_topk");
        assert_fault(&error, "indices", wrong[i].fault, row / FAULT_ROWS, row % FAULT_ROWS,
                     at % FAULT_CAPACITY);
        indices[at] = 0;
    }
}

static void test_count_faults(void **state) {
    (void)state;
    const struct {
        int64_t row;
        int32_t value;
        tess_list_fault fault;
    } wrong[] = {{0, -1, TESS_FAULT_NEGATIVE},
                 {4, FAULT_CAPACITY + 1, TESS_FAULT_OVERFLOW},
                 {7, INT32_MIN, TESS_FAULT_NEGATIVE},
                 {11, INT32_MAX, TESS_FAULT_OVERFLOW}};
    int32_t indices[FAULT_LISTS * FAULT_ROWS * FAULT_CAPACITY] = {0};
    int32_t counts[FAULT_LISTS * FAULT_ROWS] = {0};
    tess_pattern_shape shape = shape_of(50, 70, 20, 7, 2, 2);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tess_error error = tess_error_init();
        tess_pattern *p = (tess_pattern *)&shape;
        counts[wrong[i].row] = wrong[i].value;
        tess_pattern_from_counts(&p, indices, counts, FAULT_CAPACITY, &shape, &error);
        counts[wrong[i].row] = 0;
        assert_null(p);
        assert_fault(&error, "counts", wrong[i].fault, wrong[i].row / FAULT_ROWS,
                     wrong[i].row % FAULT_ROWS, -1);
    }
}

static void test_padded_arguments(void **state) {
    (void)state;
    int32_t index = 0, count = 1;
    tess_error error = tess_error_init();
    tess_pattern_shape shape = shape_of(1, 1, 1, 1, 1, 1);
    tess_pattern *p = (tess_pattern *)&shape;
    assert_int_equal(tess_pattern_from_counts(&p, NULL, &count, 1, &shape, &error),
                     TESS_INVALID_LIST);
    assert_null(p);
    assert_int_equal(error.fault, TESS_FAULT_NULL);
    assert_string_equal(error.argument, "indices");
    assert_int_equal(tess_pattern_from_topk(&p, NULL, 1, &shape, &error), TESS_INVALID_LIST);
    assert_int_equal(error.fault, TESS_FAULT_NULL);
    const int64_t capacities[] = {0, -1, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < sizeof capacities / sizeof *capacities; i++) {
        assert_int_equal(
            tess_pattern_from_counts(&p, &index, &count, capacities[i], &shape, &error),
            TESS_INVALID_ARGUMENT);
        assert_string_equal(error.argument, "capacity");
        assert_int_equal(tess_pattern_from_topk(&p, &index, capacities[i], &shape, &error),
                         TESS_INVALID_ARGUMENT);
        assert_string_equal(error.argument, "k");
    }
    assert_int_equal(tess_pattern_from_counts(NULL, &index, &count, 1, &shape, &error),
                     TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "pattern");
    assert_int_equal(tess_pattern_from_counts(&p, &index, &count, 1, NULL, &error),
                     TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "shape");
    assert_int_equal(tess_pattern_from_topk(NULL, &index, 1, &shape, &error),
                     TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_pattern_from_topk(&p, &index, 1, NULL, &error), TESS_INVALID_ARGUMENT);
    shape.block_kv = 2;
    assert_int_equal(tess_pattern_from_topk(&p, &index, 1, &shape, &error), TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "shape");
    shape = shape_of(INT32_MAX, INT32_MAX, 1, 1, 16, 16); /* 2^64 bytes */
    assert_int_equal(tess_pattern_from_counts(&p, &index, &count, INT64_C(1) << 23, &shape, &error),
                     TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "capacity");
}

static void test_block_arguments(void **state) {
    (void)state;
    uint8_t byte = 1;
    uint64_t word = 1;
    tess_error error = tess_error_init();
    tess_pattern_shape shape = shape_of(1, 1, 1, 1, 1, 1);
    tess_pattern *p = (tess_pattern *)&shape;
    assert_int_equal(tess_pattern_from_blocks(&p, NULL, &shape, &error), TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "blocks");
    assert_null(p);
    p = (tess_pattern *)&shape;
    assert_int_equal(tess_pattern_from_bits(&p, NULL, &shape, &error), TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "bits");
    assert_null(p);
    assert_int_equal(tess_pattern_from_blocks(NULL, &byte, &shape, &error), TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_pattern_from_bits(NULL, &word, &shape, &error), TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_pattern_from_blocks(&p, &byte, NULL, &error), TESS_INVALID_ARGUMENT);
    assert_int_equal(tess_pattern_from_bits(&p, &word, NULL, &error), TESS_INVALID_ARGUMENT);
    shape = shape_of(INT32_MAX, INT32_MAX, 1, 1, 8, 8); /* 2^68 blocks */
    assert_int_equal(tess_pattern_from_blocks(&p, &byte, &shape, &error), TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, "shape");
    assert_int_equal(tess_pattern_from_bits(&p, &word, &shape, &error), TESS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "do not fit"));
}

int main(void) {
    random_state = SEED;
    print_message("seed %u\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_counts_of_nothing),
        cmocka_unit_test(test_topk),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_index_faults),
        cmocka_unit_test(test_count_faults),
        cmocka_unit_test(test_padded_arguments),
        cmocka_unit_test(test_block_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
