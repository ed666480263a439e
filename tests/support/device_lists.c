/* Device patterns for tests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lab/rng.h"
#include "support/device_lists.h"

enum { STREAM_ENTRIES = 1, STREAM_COUNTS, STREAM_LENGTHS, STREAM_STYLE };

static int64_t rows_of(const struct device_sizes *s) {
    return (s->n_q + s->block_q - 1) / s->block_q;
}
static int64_t cols_of(const struct device_sizes *s) {
    return (s->n_kv + s->block_kv - 1) / s->block_kv;
}
static int64_t list_rows(const struct device_sizes *s) {
    return s->list_batch * s->list_heads * rows_of(s);
}

static void *array_make(struct lab_buffer *b, int64_t count, size_t size) {
    if (lab_buffer_make(b, (size_t)count * size + 8, 64) != 0)
        fail_msg("no memory");
    return b->data;
}

/* ---- drawing ---- */

const struct device_sizes device_small = {.form = TESS_INDICES,
                                          .batch = 1,
                                          .heads_q = 2,
                                          .heads_kv = 1,
                                          .list_batch = 1,
                                          .list_heads = 1,
                                          .n_q = 3,
                                          .n_kv = 40,
                                          .block_q = 1,
                                          .block_kv = 1,
                                          .capacity = 6};

const int32_t device_paddings[DEVICE_PADDINGS][DEVICE_PADDING] = {
    {-1, 3, 39, 7, 0, 12},
    {3, 39, 7, 0, 12, -1},
    {3, -1, 39, -1, 7, -1},
    {-1, -1, -1, -1, -1, -1},
    {5, 5, 5, 5, 5, 5},
    {39, 38, 3, 2, 38, 39},
    {-2, 40, 4, INT32_MIN, INT32_MAX, 4},
    {0, 1, 2, 3, 4, 5},
};

struct device_sizes device_sizes_draw(uint64_t seed) {
    struct device_sizes s = {.form = (tess_form)PICK(0, 0, 1, 2, 3)};
    s.batch = PICK(1, 1, 1, 2, 3);
    s.heads_kv = PICK(2, 1, 1, 2, 3);
    s.heads_q = s.heads_kv * PICK(3, 1, 2, 3, 4, 8, 16);
    s.list_batch = PICK(4, 1, 0) ? 1 : s.batch;
    s.list_heads = pick(seed, 5, (const int64_t[]){1, s.heads_kv, s.heads_q}, 3);
    s.n_q = PICK(6, 1, 1, 2, 5, 33, 64, 70, 130, 200);
    s.n_kv = PICK(7, 1, 7, 64, 100, 200, 260, 500);
    s.block_q = PICK(8, 1, 1, 8, 16, 32, 64, 128, 192);
    s.block_kv = s.form == TESS_RANGES ? 1 : PICK(9, 1, 1, 8, 16, 32, 64, 128);
    const int64_t rows = (s.n_q + s.block_q - 1) / s.block_q;
    const int64_t cols = (s.n_kv + s.block_kv - 1) / s.block_kv;
    const int64_t all = s.list_batch * s.list_heads * rows * cols;
    s.hostile = (int)PICK(10, 0, 1);
    if (s.form == TESS_INDICES)
        s.capacity = 1 + lab_below(seed, 78, 1, 2 * cols);
    else if (s.form == TESS_RANGES)
        s.capacity = PICK(11, 1, 2, 3, 4);
    else
        s.capacity =
            s.form == TESS_BLOCK_ROWS || PICK(12, 0, 1) ? 1 + lab_below(seed, 78, 2, all) : all;
    if (PICK(13, 0, 1)) {
        s.cut_lo = PICK(14, INT64_MIN, -9, -70, 0);
        s.cut_hi = PICK(15, 0, 4, INT64_MAX, 90);
    }
    s.counts = (s.form == TESS_INDICES || s.form == TESS_RANGES) && PICK(16, 0, 1);
    s.lengths = (int)PICK(17, 0, 1, 1);
    s.promises = s.form == TESS_INDICES ? PICK(18, 0, 0, TESS_PADDED_LAST, TESS_DISTINCT, 3, 7) : 0;
    return s;
}

/* An entry of INDICES or BLOCK_ROWS. */
static int32_t index_draw(const struct device_sizes *s, uint64_t seed, uint64_t i) {
    static const int32_t wrong[] = {-2, INT32_MIN, INT32_MAX, -77};
    const int64_t what = lab_below(seed, STREAM_STYLE, i, 16);
    if (what < 3)
        return -1;
    if (s->hostile && what == 3)
        return wrong[lab_below(seed, STREAM_STYLE, i + 7, 4)];
    if (s->hostile && what == 4)
        return (int32_t)cols_of(s);
    return (int32_t)lab_below(seed, STREAM_ENTRIES, i, cols_of(s));
}

static int ascending(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Makes promises true of n entries. */
static void promises_keep(const struct device_sizes *s, int32_t *x, int64_t n) {
    int64_t kept = 0;
    if (s->promises & TESS_ASCENDING) {
        qsort(x, (size_t)n, sizeof *x, ascending); /* padding and faults first */
        for (int64_t i = 0; i < n; i++)
            x[i] = i && x[i] <= x[i - 1] ? -1 : x[i];
    }
    for (int64_t i = 0; i < n && s->promises & TESS_DISTINCT; i++)
        for (int64_t j = 0; j < i; j++)
            x[i] = x[i] == x[j] ? -1 : x[i];
    if (!(s->promises & TESS_PADDED_LAST))
        return;
    for (int64_t i = 0; i < n; i++)
        if (x[i] != -1)
            x[kept++] = x[i];
    while (kept < n)
        x[kept++] = -1;
}

static void indices_draw(struct device_lists *l, uint64_t seed) {
    const struct device_sizes *s = &l->sizes;
    const int64_t n = list_rows(s) * s->capacity;
    int32_t *x = array_make(&l->indices, n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = index_draw(s, seed, (uint64_t)i);
    for (int64_t row = 0; row < list_rows(s); row++) {
        int32_t *of_row = x + row * s->capacity;
        const int64_t style = lab_below(seed, STREAM_STYLE, (uint64_t)(n + row), 6);
        for (int64_t i = 0; i < s->capacity && style < 3; i++) /* all padding, or no entry is */
            of_row[i] = style == 0
                            ? -1
                            : (int32_t)lab_below(seed, STREAM_ENTRIES,
                                                 (uint64_t)(row * s->capacity + i), cols_of(s));
        promises_keep(s, of_row, s->capacity);
    }
    l->pattern.indices = x;
}

static void ranges_draw(struct device_lists *l, uint64_t seed) {
    const struct device_sizes *s = &l->sizes;
    const int64_t n = list_rows(s) * s->capacity * 2;
    int32_t *x = array_make(&l->indices, n, sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        const int64_t what = lab_below(seed, STREAM_STYLE, (uint64_t)i, 8);
        const int32_t key = (int32_t)lab_below(seed, STREAM_ENTRIES, (uint64_t)i, s->n_kv + 2);
        x[i] = what < 3 ? key : what < 6 ? -1 - key : what == 6 ? -1 : i % 2 ? INT32_MAX : 0;
        if (s->hostile && what == 0)
            x[i] = INT32_MIN;
    }
    l->pattern.indices = x;
}

static void counts_draw(struct device_lists *l, uint64_t seed) {
    const struct device_sizes *s = &l->sizes;
    int32_t *x = array_make(&l->counts, list_rows(s), sizeof *x);
    for (int64_t i = 0; i < list_rows(s); i++) {
        const int64_t low = s->hostile ? -1 : 0, high = s->capacity + (s->hostile ? 1 : 0);
        x[i] = (int32_t)(low + lab_below(seed, STREAM_COUNTS, (uint64_t)i, high - low + 1));
    }
    l->pattern.counts = x;
}

static void rows_draw(struct device_lists *l, uint64_t seed) {
    const struct device_sizes *s = &l->sizes;
    const int64_t rows = rows_of(s), lists = s->list_batch * s->list_heads;
    int64_t *ptr = array_make(&l->row_ptr, lists * (rows + 1), sizeof *ptr), at = 0;
    int32_t *x = array_make(&l->indices, s->capacity, sizeof *x);
    for (int64_t i = 0; i < s->capacity; i++)
        x[i] = index_draw(s, seed, (uint64_t)i);
    for (int64_t i = 0; i < lists * (rows + 1); i++) {
        const int64_t what = lab_below(seed, STREAM_COUNTS, (uint64_t)i, 24);
        ptr[i] = at;
        if (s->hostile && what == 0)
            ptr[i] = at + 3 * cols_of(s); /* may fall after it, or not fit */
        if (s->hostile && what == 1)
            ptr[i] = i % 2 ? INT64_MIN : -1;
        if (i % (rows + 1) < rows)
            at += lab_below(seed, STREAM_LENGTHS, (uint64_t)i, cols_of(s) + 1);
        at = at > s->capacity && !s->hostile ? s->capacity : at;
    }
    l->pattern.row_ptr = ptr;
    l->pattern.indices = x;
}

static void bits_draw(struct device_lists *l, uint64_t seed) {
    const struct device_sizes *s = &l->sizes;
    const int64_t words = list_rows(s) * ((cols_of(s) + 63) / 64);
    uint64_t *x = array_make(&l->bits, words, sizeof *x);
    for (int64_t i = 0; i < words; i++) {
        x[i] = lab_random(seed, STREAM_ENTRIES, (uint64_t)i);
        for (int64_t half = lab_below(seed, STREAM_STYLE, (uint64_t)i, 4); half > 0; half--)
            x[i] &= lab_random(seed, STREAM_STYLE, (uint64_t)(i * 5 + half));
    }
    l->pattern.bits = x;
}

static void lengths_draw(struct device_lists *l, uint64_t seed) {
    const struct device_sizes *s = &l->sizes;
    int32_t *x = array_make(&l->lengths, s->batch, sizeof *x);
    for (int64_t b = 0; b < s->batch; b++) {
        const int64_t what = lab_below(seed, STREAM_LENGTHS, (uint64_t)(1000 + b), 8);
        x[b] = (int32_t)lab_below(seed, STREAM_LENGTHS, (uint64_t)(2000 + b), s->n_kv + 1);
        x[b] = what == 0 ? 0 : what == 1 ? (int32_t)s->n_kv : x[b];
        if (s->hostile && what == 2)
            x[b] = -1;
        if (s->hostile && what == 3)
            x[b] = (int32_t)s->n_kv + 1;
    }
    l->pattern.lengths = x;
}

/* ---- what is listed ---- */

/* Blocks (RANGES: keys) of a row, as bytes; the prefix that rows before it claim is in *claimed. */
static void row_expect(struct device_lists *l, int64_t row, int32_t length, int64_t *claimed,
                       uint8_t *listed) {
    const struct device_sizes *s = &l->sizes;
    const tess_device_pattern *p = &l->pattern;
    const int64_t cols = cols_of(s), blocks = (length + s->block_kv - 1) / s->block_kv;
    int64_t begin = row * s->capacity, n = s->capacity;
    memset(listed, 0, (size_t)(s->form == TESS_RANGES ? s->n_kv : cols));
    if (s->form == TESS_BLOCK_BITS) {
        int64_t own = 0;
        for (int64_t c = 0; c < cols; c++)
            own += (int64_t)(p->bits[row * ((cols + 63) / 64) + c / 64] >> c % 64 & 1);
        *claimed += own;
        l->overflows += own && *claimed > s->capacity;
        for (int64_t c = 0; c < blocks && *claimed <= s->capacity; c++)
            listed[c] = p->bits[row * ((cols + 63) / 64) + c / 64] >> c % 64 & 1;
        return;
    }
    if (s->form == TESS_BLOCK_ROWS) {
        const int64_t *ptr = p->row_ptr + row / rows_of(s) * (rows_of(s) + 1) + row % rows_of(s);
        if (ptr[0] < 0 || ptr[1] < ptr[0]) {
            l->faults++;
            return;
        }
        if (ptr[1] > s->capacity) {
            l->overflows++;
            return;
        }
        begin = ptr[0], n = ptr[1] - ptr[0];
        *claimed += n;
        if (*claimed > s->capacity) {
            l->overflows += n > 0;
            return;
        }
    } else if (p->counts) {
        n = p->counts[row];
        l->faults += n < 0;
        l->overflows += n > s->capacity;
        if (n < 0 || n > s->capacity)
            return;
    }
    for (int64_t i = begin; i < begin + n; i++) {
        if (s->form == TESS_RANGES) {
            int64_t from = p->indices[2 * i], to = p->indices[2 * i + 1];
            from += from < 0 ? length + 1 : 0;
            to += to < 0 ? length + 1 : 0;
            for (int64_t j = 0; j < length; j++)
                listed[j] |= from <= j && j < to;
            continue;
        }
        const int32_t c = p->indices[i];
        if (c == -1 && p->promises & TESS_PADDED_LAST)
            break;
        if (c >= 0 && c < blocks)
            listed[c] = 1;
        else
            l->faults += c != -1;
    }
}

static void head_expect(struct device_lists *l, int64_t b, int64_t h, uint8_t *listed,
                        int64_t *claimed) {
    const struct device_sizes *s = &l->sizes;
    const int64_t list = (s->list_batch == 1 ? 0 : b) * s->list_heads + h;
    const int64_t width = s->form == TESS_RANGES ? 1 : s->block_kv;
    for (int64_t row = 0; row < rows_of(s); row++) {
        row_expect(l, list * rows_of(s) + row, l->today[b], claimed, listed);
        for (int64_t i = row * s->block_q; i < (row + 1) * s->block_q && i < s->n_q; i++) {
            const int64_t p = i + l->today[b] - s->n_q;
            uint8_t *mask = l->mask + ((b * s->list_heads + h) * s->n_q + i) * s->n_kv;
            for (int64_t j = 0; j < s->n_kv; j++) {
                const int in =
                    (!s->cut_lo && !s->cut_hi) || ((s->cut_lo == INT64_MIN || s->cut_lo <= j - p) &&
                                                   (s->cut_hi == INT64_MAX || j - p <= s->cut_hi));
                mask[j] = j < l->today[b] && listed[j / width] && in;
                l->pairs += mask[j] * (s->heads_q / s->list_heads);
            }
        }
    }
}

void device_lists_expect(struct device_lists *l) {
    const struct device_sizes *s = &l->sizes;
    uint8_t *listed = malloc((size_t)s->n_kv + 64);
    int64_t claimed = 0;
    assert_non_null(listed);
    l->faults = l->overflows = l->pairs = 0;
    for (int64_t b = 0; b < s->batch; b++) {
        const int64_t length = l->pattern.lengths ? l->pattern.lengths[b] : s->n_kv;
        const int wrong = length < 0 || length > s->n_kv;
        l->faults += wrong;
        l->today[b] = wrong ? 0 : (int32_t)length;
    }
    for (int64_t b = 0; b < s->batch; b++) {
        if (s->list_batch == 1)
            claimed = 0;
        for (int64_t h = 0; h < s->list_heads; h++)
            head_expect(l, b, h, listed, &claimed);
    }
    free(listed);
}

void device_lists_make(struct device_lists *l, const struct device_sizes *sizes, uint64_t seed) {
    *l = (struct device_lists){.sizes = *sizes, .pattern = tess_device_pattern_init()};
    const struct device_sizes *s = &l->sizes;
    tess_device_pattern *p = &l->pattern;
    p->form = s->form;
    p->n_q = s->n_q, p->n_kv = s->n_kv;
    p->block_q = s->block_q, p->block_kv = s->form == TESS_RANGES ? 0 : s->block_kv;
    p->batch = s->list_batch, p->heads = s->list_heads;
    p->capacity = s->capacity, p->promises = s->promises;
    p->cut_lo = s->cut_lo, p->cut_hi = s->cut_hi;
    if (s->form == TESS_INDICES)
        indices_draw(l, seed);
    else if (s->form == TESS_BLOCK_ROWS)
        rows_draw(l, seed);
    else if (s->form == TESS_BLOCK_BITS)
        bits_draw(l, seed);
    else
        ranges_draw(l, seed);
    if (s->counts)
        counts_draw(l, seed);
    if (s->lengths)
        lengths_draw(l, seed);
    l->today = malloc((size_t)s->batch * sizeof *l->today);
    l->mask = malloc((size_t)(s->batch * s->list_heads * s->n_q * s->n_kv));
    if (!l->today || !l->mask)
        fail_msg("no memory");
    device_lists_expect(l);
}

void device_lists_free(struct device_lists *l) {
    lab_buffer_free(&l->indices);
    lab_buffer_free(&l->counts);
    lab_buffer_free(&l->row_ptr);
    lab_buffer_free(&l->bits);
    lab_buffer_free(&l->lengths);
    free(l->mask);
    free(l->today);
}

/* ---- plans ---- */

tess_pattern *device_lists_pattern(const struct device_lists *l) {
    const struct device_sizes *s = &l->sizes;
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_error error = tess_error_init();
    tess_pattern *pattern;
    shape.n_q = s->n_q, shape.n_kv = s->n_kv;
    shape.block_q = s->block_q, shape.block_kv = s->block_kv;
    shape.batch = s->batch, shape.heads = s->list_heads;
    if (tess_pattern_from_mask(&pattern, l->mask, &shape, &error))
        fail_msg("%s", error.message);
    return pattern;
}

tess_problem device_problem(const struct device_sizes *s, int64_t d) {
    tess_problem p = tess_problem_init();
    p.batch = s->batch, p.heads_q = s->heads_q, p.heads_kv = s->heads_kv;
    p.n_q = s->n_q, p.n_kv = s->n_kv, p.d_qk = p.d_v = d;
    return p;
}

tess_plan *device_plan(const struct device_lists *l, const tess_problem *problem,
                       struct lab_buffer *image) {
    tess_error error = tess_error_init();
    tess_device_pattern declared = l->pattern; /* without arrays */
    tess_plan *plan;
    declared.indices = NULL, declared.counts = NULL, declared.row_ptr = NULL;
    declared.bits = NULL, declared.lengths = NULL;
    if (tess_plan_reserve(&plan, problem, &declared, NULL, &error))
        fail_msg("%s", error.message);
    if (lab_buffer_make(image, tess_plan_image_size(plan), 256) != 0)
        fail_msg("no memory");
    memset(image->data, 0xaa, image->size);
    return plan;
}

void device_fill(const struct device_lists *l, const tess_plan *plan, struct lab_buffer *image) {
    tess_error error = tess_error_init();
    tess_fill_report report = tess_fill_report_init();
    char why[LAB_WHY];
    void *memory = device_image(image);
    if (tess_plan_fill(plan, &l->pattern, memory, tess_plan_image_size(plan), &error, NULL))
        fail_msg("%s", error.message);
    assert_int_equal(tess_plan_report(plan, memory, &report, &error), TESS_OK);
    assert_int_equal(report.faults, l->faults);
    assert_int_equal(report.overflows, l->overflows);
    assert_int_equal(report.pairs, l->pairs);
    if (lab_buffer_check(image, "image", why))
        fail_msg("%s", why);
    const unsigned char *behind = (unsigned char *)memory + tess_plan_image_size(plan);
    for (const unsigned char *x = image->data; x < image->data + image->size; x++)
        if ((x < (unsigned char *)memory || x >= behind) && *x != 0xaa)
            fail_msg("byte %d outside the image was written", (int)(x - image->data));
}
