/* See pooling.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "lab/device/device.h"
#include "lab/fill/half.h"
#include "lab/fill/rng.h"
#include "lab/memory/mirror.h"
#include "support/pooling.h"

enum { B = 2 };

/* A tensor on the host and in the backend's memory. */
struct placed {
    struct lab_tensor host;
    tess_tensor place;
};

static void placed_make(struct placed *p, struct lab_mirror *mirror, tess_type type,
                        const int64_t size[4], enum lab_layout layout, uint64_t seed) {
    assert_int_equal(lab_tensor_make(&p->host, type, size, layout, (int64_t)tess_type_size(type)),
                     0);
    const tess_tensor *t = &p->host.view;
    for (int64_t i = 0; seed && i < size[0] * size[1] * size[2] * size[3]; i++) {
        const int64_t row = i / size[3], n = row % size[2], h = row / size[2] % size[1];
        lab_put(t->data, type, lab_row(t, row / size[2] / size[1], h, n) + i % size[3],
                lab_normal(seed, 1, (uint64_t)i));
    }
    (void)mirror;
}

static void placed_send(struct placed *p, struct lab_mirror *mirror) {
    assert_int_equal(lab_mirror_tensor(mirror, &p->host, &p->place), 0);
}

static double at(const struct placed *p, int64_t b, int64_t h, int64_t n, int64_t d) {
    const tess_tensor *t = &p->host.view;
    return lab_get(t->data, t->type, lab_row(t, b, h, n) + d);
}

static void fetched(const struct lab_mirror *mirror, const struct placed *p) {
    char why[LAB_WHY];
    assert_null(lab_mirror_fetch(mirror));
    if (lab_tensor_check(&p->host, "output", why))
        fail_msg("%s", why);
}

/* Numbers of a batch each, in the backend's memory. */
static const int32_t *numbers_send(struct lab_buffer *buffer, struct lab_mirror *mirror,
                                   const int32_t *numbers) {
    assert_int_equal(lab_buffer_make(buffer, B * sizeof *numbers, sizeof *numbers), 0);
    memcpy(buffer->data, numbers, B * sizeof *numbers);
    const void *place = lab_mirror_add(mirror, buffer);
    assert_non_null(place);
    return place;
}

static double unit_of(tess_type type) {
    return type == TESS_F32 ? 0x1p-23 : type == TESS_F16 ? 0x1p-10 : 0x1p-7;
}

/* ---- pooling ---- */

/* A block's pooled dim, and what its numbers allow of rounding. */
static double pooled_of(const struct placed *x, tess_pool_mode mode, int64_t b, int64_t h,
                        int64_t first, int64_t end, int64_t d, int most, double *allowed) {
    double sum = 0, size = 0, bound = at(x, b, h, first, d);
    for (int64_t n = first; n < end; n++) {
        const double value = at(x, b, h, n, d);
        sum += mode == TESS_POOL_LSE ? exp(value) : value;
        size += fabs(value);
        bound = most ? fmax(bound, value) : fmin(bound, value);
    }
    *allowed = mode == TESS_POOL_MIN_MAX ? 0 : (size / (double)(end - first) + 8) * 0x1p-22;
    return mode == TESS_POOL_MEAN  ? sum / (double)(end - first)
           : mode == TESS_POOL_LSE ? log(sum)
                                   : bound;
}

/* Holds blocks that have rows, and that the others were left as they were. */
static void pooled_hold(const struct placed *x, const struct placed *pooled,
                        const struct lab_buffer *before, tess_pool_mode mode, int64_t block,
                        const int32_t *lengths, const int32_t *begins) {
    const tess_tensor *t = &pooled->host.view, *from = &x->host.view;
    const int64_t d = from->size[3];
    for (int64_t b = 0; b < t->size[0]; b++)
        for (int64_t h = 0; h < t->size[1]; h++)
            for (int64_t i = 0; i < t->size[2]; i++) {
                const int64_t first = i * block,
                              end = first + block < lengths[b] ? first + block : lengths[b];
                const size_t row = (size_t)lab_row(t, b, h, i) * tess_type_size(t->type);
                if (end <= first || end <= begins[b]) {
                    assert_memory_equal((const char *)t->data + row, before->data + row,
                                        (size_t)t->size[3] * tess_type_size(t->type));
                    continue;
                }
                for (int64_t e = 0; e < t->size[3]; e++) {
                    double allowed;
                    const double is = at(pooled, b, h, i, e);
                    const double exact =
                        pooled_of(x, mode, b, h, first, end, e % d, e >= d, &allowed);
                    if (!(fabs(is - exact) <= allowed + fabs(exact) * unit_of(t->type)))
                        fail_msg("mode %d, block %d, dim %d: %g, not %g", (int)mode, (int)i, (int)e,
                                 is, exact);
                }
            }
}

static void rows_poison(struct placed *x, const int32_t *lengths) {
    const tess_tensor *t = &x->host.view;
    for (int64_t b = 0; b < t->size[0]; b++)
        for (int64_t h = 0; h < t->size[1]; h++)
            for (int64_t n = lengths[b]; n < t->size[2]; n++)
                for (int64_t d = 0; d < t->size[3]; d++)
                    lab_put(t->data, t->type, lab_row(t, b, h, n) + d, (double)NAN);
}

/* A copy of a tensor's memory. */
static struct lab_buffer copy_of(const struct placed *p) {
    struct lab_buffer copy;
    assert_int_equal(lab_buffer_make(&copy, p->host.buffer.size, 16), 0);
    memcpy(copy.data, p->host.buffer.data, copy.size);
    return copy;
}

static void pool_of(tess_backend backend, tess_type type, tess_type to, tess_pool_mode mode,
                    int64_t n, int64_t d, int64_t block, enum lab_layout layout) {
    const int64_t size[4] = {B, 3, n, d};
    const int64_t size_to[4] = {B, 3, (n + block - 1) / block,
                                d * (1 + (mode == TESS_POOL_MIN_MAX))};
    const int32_t lengths[B] = {(int32_t)n, (int32_t)(n / 2)}, none[B] = {0};
    struct placed x, pooled;
    struct lab_mirror mirror;
    struct lab_buffer numbers;
    tess_error error = tess_error_init();
    tess_pooling p = tess_pooling_init();
    lab_mirror_make(&mirror, backend);
    placed_make(&x, &mirror, type, size, layout, 5);
    placed_make(&pooled, &mirror, to, size_to, LAB_BHND, 6);
    rows_poison(&x, lengths);
    placed_send(&x, &mirror);
    placed_send(&pooled, &mirror);
    struct lab_buffer before = copy_of(&pooled);
    p.mode = mode, p.block = block, p.lengths = numbers_send(&numbers, &mirror, lengths);
    if (tess_pool(backend, &p, &x.place, &pooled.place, &error, NULL))
        fail_msg("%s", error.message);
    fetched(&mirror, &pooled);
    pooled_hold(&x, &pooled, &before, mode, block, lengths, none);
    lab_mirror_free(&mirror);
    lab_tensor_free(&x.host);
    lab_tensor_free(&pooled.host);
    lab_buffer_free(&before);
    lab_buffer_free(&numbers);
}

void pools_are_right(tess_backend backend) {
    static const int64_t sizes[][3] = {
        {130, 64, 64}, {7, 5, 3}, {300, 128, 16}, {65, 40, 1}, {600, 40, 300}};
    for (int mode = TESS_POOL_MEAN; mode <= TESS_POOL_LSE; mode++)
        for (int type = TESS_F32; type <= TESS_BF16; type++)
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
                pool_of(backend, (tess_type)type, i % 2 ? (tess_type)type : TESS_F32,
                        (tess_pool_mode)mode, sizes[i][0], sizes[i][1], sizes[i][2],
                        i % 2 ? LAB_PADDED : LAB_BNHD);
    pool_of(backend, TESS_BF16, TESS_BF16, TESS_POOL_MEAN, 70, 1100, 64, LAB_BHND);
}

/* Rows come by and by, and each call pools the blocks that have new ones. */
void pools_follow_a_growing_cache(tess_backend backend) {
    static const int32_t steps[][B] = {{0, 0}, {5, 0}, {16, 3}, {17, 40}, {40, 39}, {40, 41}};
    const int64_t size[4] = {B, 2, 41, 24}, size_to[4] = {B, 2, 6, 24};
    const int32_t *begins, *lengths;
    struct placed x, pooled;
    struct lab_mirror mirror;
    struct lab_buffer from, until;
    tess_error error = tess_error_init();
    tess_pooling p = tess_pooling_init();
    lab_mirror_make(&mirror, backend);
    placed_make(&x, &mirror, TESS_BF16, size, LAB_BHND, 7);
    placed_make(&pooled, &mirror, TESS_F32, size_to, LAB_BHND, 8);
    placed_send(&x, &mirror);
    placed_send(&pooled, &mirror);
    begins = numbers_send(&from, &mirror, steps[0]);
    lengths = numbers_send(&until, &mirror, steps[0]);
    p.block = 8, p.begins = begins, p.lengths = lengths;
    for (size_t i = 0; i + 1 < sizeof steps / sizeof *steps; i++) {
        struct lab_buffer before = copy_of(&pooled);
        memcpy(from.data, steps[i], sizeof steps[i]);
        memcpy(until.data, steps[i + 1], sizeof steps[i + 1]);
        assert_null(lab_mirror_send(&mirror));
        if (tess_pool(backend, &p, &x.place, &pooled.place, &error, NULL))
            fail_msg("%s", error.message);
        fetched(&mirror, &pooled);
        pooled_hold(&x, &pooled, &before, TESS_POOL_MEAN, 8, steps[i + 1], steps[i]);
        lab_buffer_free(&before);
    }
    lab_mirror_free(&mirror);
    lab_tensor_free(&x.host);
    lab_tensor_free(&pooled.host);
    lab_buffer_free(&from);
    lab_buffer_free(&until);
}

/* ---- scores ---- */

struct score_sizes {
    int64_t heads_q, heads_kv, heads, n_q, n_kv, d, block_q, block_kv;
    int bounds, causal, lengths;
};

/* A pair's score by its definition, and what rounding of sums allows. */
static double score_of(const struct placed *q, const struct placed *k, const struct score_sizes *s,
                       int64_t b, int64_t h, int64_t i, int64_t j, double *allowed) {
    const int64_t each = s->heads_q / s->heads;
    double sum = 0, size = 0;
    for (int64_t head = h * each; head < (h + 1) * each; head++)
        for (int64_t d = 0; d < s->d; d++) {
            const int64_t kv = head / (s->heads_q / s->heads_kv);
            const double x = at(q, b, head, i, d), least = x * at(k, b, kv, j, d);
            sum += s->bounds ? fmax(least, x * at(k, b, kv, j, d + s->d)) : least;
            size += fabs(least);
        }
    *allowed = (size + fabs(sum)) / sqrt((double)s->d) * 0x1p-19;
    return sum / sqrt((double)s->d);
}

static void scores_hold(const struct placed *q, const struct placed *k, const struct placed *scores,
                        const struct score_sizes *s, const int32_t *lengths) {
    const tess_tensor *t = &scores->host.view;
    for (int64_t x = 0; x < t->size[0] * t->size[1] * t->size[2] * t->size[3]; x++) {
        const int64_t j = x % t->size[3], i = x / t->size[3] % t->size[2],
                      h = x / t->size[3] / t->size[2] % t->size[1];
        const int64_t b = x / t->size[3] / t->size[2] / t->size[1];
        const int64_t end = (i + 1) * s->block_q < s->n_q ? (i + 1) * s->block_q : s->n_q;
        const int64_t last = end - 1 + lengths[b] - s->n_q, first = j * s->block_kv;
        const double is = at(scores, b, h, i, j);
        double allowed;
        if (first >= lengths[b] || (s->causal && first > last)) {
            assert_true(isinf(is) && is < 0);
            continue;
        }
        const double exact = score_of(q, k, s, b, h, i, j, &allowed);
        if (!(fabs(is - exact) <= allowed))
            fail_msg("batch %d, head %d, blocks %d and %d: %g, not %g", (int)b, (int)h, (int)i,
                     (int)j, is, exact);
    }
}

static void score_case(tess_backend backend, tess_type type, const struct score_sizes *s,
                       enum lab_layout layout) {
    const int64_t rows = (s->n_q + s->block_q - 1) / s->block_q;
    const int64_t columns = (s->n_kv + s->block_kv - 1) / s->block_kv;
    const int64_t size_q[4] = {B, s->heads_q, rows, s->d};
    const int64_t size_k[4] = {B, s->heads_kv, columns, s->d * (1 + s->bounds)};
    const int64_t size[4] = {B, s->heads, rows, columns};
    const int32_t lengths[B] = {(int32_t)s->n_kv, (int32_t)(s->lengths ? s->n_kv / 3 : s->n_kv)};
    int32_t blocks[B];
    struct placed q, k, scores;
    struct lab_mirror mirror;
    struct lab_buffer numbers;
    tess_error error = tess_error_init();
    tess_scoring p = tess_scoring_init();
    lab_mirror_make(&mirror, backend);
    placed_make(&q, &mirror, type, size_q, layout, 11);
    placed_make(&k, &mirror, type, size_k, layout, 12);
    placed_make(&scores, &mirror, TESS_F32, size, LAB_PADDED, 0);
    for (int b = 0; b < B; b++)
        blocks[b] = (int32_t)((lengths[b] + s->block_kv - 1) / s->block_kv);
    rows_poison(&k, blocks);
    placed_send(&q, &mirror);
    placed_send(&k, &mirror);
    placed_send(&scores, &mirror);
    const int32_t *place = numbers_send(&numbers, &mirror, lengths);
    p.bounds = s->bounds, p.causal = s->causal, p.block_q = s->block_q, p.block_kv = s->block_kv;
    p.n_q = s->n_q, p.n_kv = s->n_kv, p.lengths = s->lengths ? place : NULL;
    if (tess_pool_score(backend, &p, &q.place, &k.place, &scores.place, &error, NULL))
        fail_msg("%s", error.message);
    fetched(&mirror, &scores);
    scores_hold(&q, &k, &scores, s, lengths);
    lab_mirror_free(&mirror);
    lab_tensor_free(&q.host);
    lab_tensor_free(&k.host);
    lab_tensor_free(&scores.host);
    lab_buffer_free(&numbers);
}

void scores_are_right(tess_backend backend) {
    static const struct score_sizes sizes[] = {
        {2, 2, 2, 1000, 1000, 64, 16, 16, 0, 1, 0}, {4, 2, 2, 500, 700, 128, 64, 16, 0, 1, 1},
        {4, 1, 4, 9, 90, 40, 1, 1, 0, 0, 1},        {3, 3, 3, 70, 70, 17, 8, 8, 0, 0, 0},
        {2, 1, 1, 30, 300, 64, 1, 16, 1, 1, 1},     {6, 2, 2, 40, 20, 8, 4, 4, 0, 1, 1},
        {1, 1, 1, 1250, 560, 200, 8, 8, 0, 1, 0}};
    for (int type = TESS_F32; type <= TESS_BF16; type++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            score_case(backend, (tess_type)type, &sizes[i], i % 2 ? LAB_PADDED : LAB_BNHD);
}

/* ---- columns ---- */

/* Every form of some columns, on the host and on the backend. */
struct forms {
    struct lab_buffer bytes, bits, indices, counts;
    tess_columns place;
};

static void *buffer_send(struct lab_buffer *b, struct lab_mirror *mirror, int64_t count,
                         size_t size) {
    assert_int_equal(lab_buffer_make(b, (size_t)count * size, size), 0);
    void *place = lab_mirror_add(mirror, b);
    assert_non_null(place);
    return place;
}

static void forms_make(struct forms *f, struct lab_mirror *mirror, int64_t rows, int64_t columns,
                       int64_t capacity) {
    f->place = tess_columns_init();
    f->place.rows = rows, f->place.columns = columns, f->place.capacity = capacity;
    f->place.bytes = buffer_send(&f->bytes, mirror, rows * columns, 1);
    f->place.bits =
        buffer_send(&f->bits, mirror, rows * ((columns + 63) / 64), sizeof *f->place.bits);
    f->place.indices = buffer_send(&f->indices, mirror, rows * capacity, sizeof(int32_t));
    f->place.counts = buffer_send(&f->counts, mirror, rows, sizeof(int32_t));
}

static void forms_free(struct forms *f) {
    lab_buffer_free(&f->bytes);
    lab_buffer_free(&f->bits);
    lab_buffer_free(&f->indices);
    lab_buffer_free(&f->counts);
}

/* Holds all forms against which columns are listed. */
static void forms_hold(const struct forms *f, const uint8_t *listed) {
    const tess_columns *c = &f->place;
    const int32_t *indices = (const int32_t *)(const void *)f->indices.data;
    const uint64_t *bits = (const uint64_t *)(const void *)f->bits.data;
    char why[LAB_WHY];
    const int64_t words = (c->columns + 63) / 64;
    for (int64_t row = 0; row < c->rows; row++) {
        int64_t n = 0;
        for (int64_t x = 0; x < 64 * words; x++) {
            const int is = x < c->columns && listed[row * c->columns + x];
            if ((int)(bits[row * words + x / 64] >> x % 64 & 1) != is)
                fail_msg("row %d: bit %d", (int)row, (int)x);
            if (x < c->columns && f->bytes.data[row * c->columns + x] != is)
                fail_msg("row %d: byte %d", (int)row, (int)x);
            if (is && n++ < c->capacity)
                assert_int_equal(indices[row * c->capacity + n - 1], x);
        }
        for (int64_t i = n; i < c->capacity; i++)
            assert_int_equal(indices[row * c->capacity + i], -1);
        assert_int_equal(((const int32_t *)(const void *)f->counts.data)[row], n);
    }
    if (lab_buffer_check(&f->bytes, "bytes", why) || lab_buffer_check(&f->bits, "bits", why) ||
        lab_buffer_check(&f->indices, "indices", why) ||
        lab_buffer_check(&f->counts, "counts", why))
        fail_msg("%s", why);
}

/* Writes one form of the columns, with what lists nothing beside them. Which: 0 bytes, 1 bits, 2 indices. */
static void form_write(struct forms *f, const uint8_t *listed, int which, uint64_t seed) {
    const tess_columns *c = &f->place;
    uint64_t *bits = (uint64_t *)(void *)f->bits.data;
    int32_t *indices = (int32_t *)(void *)f->indices.data;
    const int64_t words = (c->columns + 63) / 64;
    for (int64_t row = 0; row < c->rows; row++) {
        int64_t n = 0;
        for (int64_t w = 0; which == 1 && w < words; w++)
            bits[row * words + w] =
                w + 1 == words && c->columns % 64 ? UINT64_MAX << c->columns % 64 : 0;
        for (int64_t x = 0; x < c->columns; x++) {
            const int is = listed[row * c->columns + x];
            if (which == 0)
                f->bytes.data[row * c->columns + x] =
                    is ? (uint8_t)(1 + lab_below(seed, 9, (uint64_t)x, 255)) : 0;
            else if (which == 1)
                bits[row * words + x / 64] |= (uint64_t)is << x % 64;
            else if (is)
                indices[row * c->capacity + n++] = (int32_t)x;
        }
        if (which != 2)
            continue;
        ((int32_t *)(void *)f->counts.data)[row] = (int32_t)(row % 3 ? c->capacity + 5 : n);
        for (int64_t i = n; i < c->capacity; i++) /* past a count, or padding and a column twice */
            indices[row * c->capacity + i] = row % 3 == 0 ? (int32_t)(i % c->columns)
                                             : n && i % 2 ? indices[row * c->capacity]
                                             : i % 3      ? -1
                                                          : (int32_t)c->columns;
    }
}

static void convert_case(tess_backend backend, int64_t rows, int64_t columns, int64_t capacity,
                         int64_t share) {
    uint8_t *listed = malloc((size_t)(rows * columns));
    assert_non_null(listed);
    for (int64_t i = 0; i < rows * columns; i++)
        listed[i] = i / columns % 5 == 4 ? 0 : lab_below(3, 1, (uint64_t)i, 100) < share;
    for (int which = 0; which < 3; which++) {
        struct forms from, to;
        struct lab_mirror mirror;
        tess_error error = tess_error_init();
        lab_mirror_make(&mirror, backend);
        forms_make(&from, &mirror, rows, columns, which == 2 ? columns : 1);
        forms_make(&to, &mirror, rows, columns, capacity);
        form_write(&from, listed, which, 4);
        assert_null(lab_mirror_send(&mirror));
        tess_columns given = from.place;
        given.bytes = which == 0 ? given.bytes : NULL, given.bits = which == 1 ? given.bits : NULL;
        if (which != 2)
            given.indices = given.counts = NULL;
        if (tess_columns_convert(backend, &given, &to.place, &error, NULL))
            fail_msg("%s", error.message);
        assert_null(lab_mirror_fetch(&mirror));
        forms_hold(&to, listed);
        tess_columns bits = to.place; /* bits alone, which chunks of columns write by themselves */
        bits.bytes = NULL, bits.indices = bits.counts = NULL;
        lab_buffer_poison(&to.bits);
        assert_null(lab_mirror_send(&mirror));
        if (tess_columns_convert(backend, &given, &bits, &error, NULL))
            fail_msg("%s", error.message);
        assert_null(lab_mirror_fetch(&mirror));
        forms_hold(&to, listed);
        lab_mirror_free(&mirror);
        forms_free(&from);
        forms_free(&to);
    }
    free(listed);
}

void columns_are_right(tess_backend backend) {
    static const int64_t sizes[][4] = {{3, 1, 1, 50},     {7, 63, 63, 30},  {6, 64, 20, 60},
                                       {5, 65, 65, 100},  {9, 1000, 40, 7}, {4, 192, 192, 50},
                                       {2, 20000, 900, 3}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        convert_case(backend, sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3]);
}
