/* See selecting.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "lab/device/device.h"
#include "lab/fill/half.h"
#include "lab/fill/rng.h"
#include "support/selecting.h"

static int64_t rows_of(const struct choice *c) {
    return c->size[0] * c->size[1] * c->size[2];
}

static int64_t capacity_of(const struct choice *c) {
    return c->capacity ? c->capacity : c->size[3];
}

static int64_t words_of(const struct choice *c) {
    return (c->size[3] + 63) / 64;
}

static int64_t keys_of(const struct choice *c) {
    return c->size[3] * (c->selection.block_kv ? c->selection.block_kv : 1);
}

static int keep_bit(const struct selecting *s, int64_t row, int64_t column) {
    const uint64_t *words = (const uint64_t *)(const void *)s->keep.data;
    if (!words)
        return 0;
    words += row % s->choice.selection.keep_rows * words_of(&s->choice);
    return (int)(words[column / 64] >> column % 64 & 1);
}

/* ---- memory ---- */

static void *buffer_there(struct selecting *s, struct lab_buffer *buffer, int64_t n, size_t size) {
    assert_int_equal(lab_buffer_make(buffer, (size_t)n * size, size), 0);
    void *place = lab_mirror_add(&s->mirror, buffer);
    if (!place)
        fail_msg("%s", s->mirror.why);
    return place;
}

void selecting_make(struct selecting *s, tess_backend backend, const struct choice *choice) {
    const int64_t rows = rows_of(choice);
    *s = (struct selecting){.choice = *choice, .selection = choice->selection};
    lab_mirror_make(&s->mirror, backend);
    assert_int_equal(lab_tensor_make(&s->scores, choice->type, choice->size,
                                     choice->ragged ? LAB_PADDED : LAB_BHND,
                                     choice->ragged ? (int64_t)tess_type_size(choice->type) : 16),
                     0);
    assert_int_equal(lab_mirror_tensor(&s->mirror, &s->scores, &s->scores_there), 0);
    if (choice->selection.row_k)
        s->selection.row_k = buffer_there(s, &s->row_k, rows, sizeof(int32_t));
    if (choice->selection.lengths)
        s->selection.lengths = buffer_there(s, &s->lengths, choice->size[0], sizeof(int32_t));
    if (choice->selection.keep)
        s->selection.keep = buffer_there(
            s, &s->keep, choice->selection.keep_rows * words_of(choice), sizeof(uint64_t));
    s->selected = tess_selected_init();
    s->selected.capacity = choice->capacity;
    s->selected.indices = buffer_there(s, &s->indices, rows * capacity_of(choice), sizeof(int32_t));
    s->selected.counts = buffer_there(s, &s->counts, rows, sizeof(int32_t));
    s->selected.bits = buffer_there(s, &s->bits, rows * words_of(choice), sizeof(uint64_t));
    s->selected.overflows = buffer_there(s, &s->overflows, rows, sizeof(int64_t));
}

void selecting_free(struct selecting *s) {
    struct lab_buffer *const all[] = {&s->row_k,  &s->lengths, &s->keep,     &s->indices,
                                      &s->counts, &s->bits,    &s->overflows};
    lab_mirror_free(&s->mirror);
    lab_tensor_free(&s->scores);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        lab_buffer_free(all[i]);
}

static double score_drawn(const struct choice *c, uint64_t seed, uint64_t row, int64_t column) {
    const double normal = lab_normal(seed, row, (uint64_t)column);
    const double u = lab_uniform(seed, row, (uint64_t)(4 * c->size[3] + column));
    switch (c->scores) {
    case SCORES_EQUAL:
        return 1.5;
    case SCORES_TWO:
        return u < 0.5 ? -1 : 2;
    case SCORES_ZEROS:
        return u < 0.01 ? normal : u < 0.5 ? -0.0 : 0.0;
    case SCORES_RELU:
        return normal > 0 ? normal : 0;
    case SCORES_NAN:
        return u < 0.5 ? NAN : u < 0.8 ? -INFINITY : u < 0.81 ? INFINITY : normal;
    case SCORES_CLOSE:
        return 1000 + normal / 1000;
    case SCORES_RISING:
        return (double)column / (double)c->size[3];
    case SCORES_TINY:
        return normal * (c->type == TESS_F16 ? 1e-6 : 1e-40);
    default:
        return normal;
    }
}

void selecting_draw(struct selecting *s, uint64_t seed) {
    const struct choice *c = &s->choice;
    const int64_t *n = c->size;
    for (int64_t r = 0; r < rows_of(c); r++)
        for (int64_t j = 0; j < n[3]; j++)
            lab_put(s->scores.view.data, c->type,
                    lab_row(&s->scores.view, r / n[2] / n[1], r / n[2] % n[1], r % n[2]) + j,
                    score_drawn(c, seed, (uint64_t)r, j));
    for (int64_t r = 0; r < rows_of(c) && s->row_k.data; r++)
        ((int32_t *)(void *)s->row_k.data)[r] =
            (int32_t)(lab_below(seed, 1, (uint64_t)r, n[3] + 3) - 1);
    for (int64_t b = 0; b < n[0] && s->lengths.data; b++)
        ((int32_t *)(void *)s->lengths.data)[b] =
            (int32_t)(lab_below(seed, 2, (uint64_t)b, keys_of(c) + 4) - 1);
    for (int64_t w = 0; s->keep.data && w < (int64_t)(s->keep.size / sizeof(uint64_t)); w++)
        ((uint64_t *)(void *)s->keep.data)[w] = /* one of 16; those past the last column, too */
            lab_random(seed, 3, (uint64_t)w) & lab_random(seed, 4, (uint64_t)w) &
            lab_random(seed, 5, (uint64_t)w) & lab_random(seed, 6, (uint64_t)w);
    struct lab_buffer *const results[] = {&s->indices, &s->counts, &s->bits, &s->overflows};
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        lab_buffer_poison(results[i]);
    assert_null(lab_mirror_send(&s->mirror));
}

void selecting_run(const struct selecting *s, tess_stream stream) {
    tess_error error = tess_error_init();
    if (tess_select(s->mirror.backend, &s->selection, &s->scores_there, &s->selected, &error,
                    stream) != TESS_OK)
        fail_msg("%s: %s", error.argument, error.message);
}

/* ---- the oracle ---- */

struct column {
    double score;
    int64_t index;
    int kept;
};

static int column_order(const void *a, const void *b) {
    const struct column *x = a, *y = b;
    if (x->kept != y->kept)
        return y->kept - x->kept;
    if (!x->kept && x->score != y->score)
        return x->score < y->score ? 1 : -1;
    return x->index < y->index ? -1 : 1;
}

/* Columns that the row has today; -1: its length or k is bad. */
static int64_t columns_today(const struct selecting *s, int64_t row) {
    const struct choice *c = &s->choice;
    const tess_selection *is = &c->selection;
    const int64_t block_kv = is->block_kv ? is->block_kv : 1;
    const int64_t block_q = is->block_q ? is->block_q : 1, i = row % c->size[2];
    const int64_t n_q = is->n_q ? is->n_q : c->size[2] * block_q;
    const int64_t length =
        s->lengths.data
            ? ((const int32_t *)(const void *)s->lengths.data)[row / c->size[2] / c->size[1]]
        : is->n_kv ? is->n_kv
                   : keys_of(c);
    int64_t end = 0;
    if (length < 0 || length > keys_of(c) ||
        (s->row_k.data && ((const int32_t *)(const void *)s->row_k.data)[row] < 0))
        return -1;
    const int64_t last = (i + 1) * block_q < n_q ? (i + 1) * block_q - 1 : n_q - 1;
    while (end * block_kv < length && (!is->causal || end * block_kv <= last + length - n_q))
        end++;
    return end;
}

/* How many of the columns, in their order, hold a share p, within 2^-20 of what the row chose: else that of
 * the definition. */
static int64_t share_count(const struct column *column, int64_t n, int64_t kept, double p,
                           int64_t chose) {
    double most = -INFINITY, sum = 0, mass = 0;
    for (int64_t i = 0; i < n; i++)
        most = column[i].score > most ? column[i].score : most;
#define WEIGHT(i)                                                                                  \
    (column[i].score == most       ? 1.0                                                           \
     : column[i].score > -INFINITY ? exp(column[i].score - most)                                   \
                                   : 0.0)
    for (int64_t i = 0; i < n; i++)
        sum += WEIGHT(i);
    if (!(most > -INFINITY))
        return kept;
    int64_t least = 0;
    for (; least < n && mass < p * sum; least++) {
        mass += WEIGHT(least);
        if (least + 1 == chose && fabs(mass - p * sum) <= 0x1p-20 * sum)
            return chose > kept ? chose : kept;
    }
    for (int64_t i = least; i < chose && mass <= (p + 0x1p-20) * sum; i++)
        if (i + 1 == chose)
            return chose;
#undef WEIGHT
    return least > kept ? least : kept;
}

/* Marks of the columns that the row chooses; answers how many, or -1 of a bad row. */
static int64_t row_choose(const struct selecting *s, int64_t row, int64_t chose, char *marks) {
    const struct choice *c = &s->choice;
    const tess_selection *is = &c->selection;
    const int64_t *size = c->size, end = columns_today(s, row);
    const int64_t at =
        lab_row(&s->scores.view, row / size[2] / size[1], row / size[2] % size[1], row % size[2]);
    struct column *column = calloc((size_t)size[3], sizeof *column);
    int64_t n = 0, count = 0, kept = 0;
    assert_non_null(column);
    memset(marks, 0, (size_t)size[3]);
    for (int64_t j = 0; j < end; j++) {
        const double score = lab_get(s->scores.view.data, c->type, at + j);
        const int keep = j < is->keep_first || j >= end - is->keep_last || keep_bit(s, row, j);
        if (!keep && !(score > -INFINITY))
            continue;
        column[n++] = (struct column){score > -INFINITY ? score : -INFINITY, j, keep};
        kept += keep;
    }
    qsort(column, (size_t)n, sizeof *column, column_order);
    if (is->mode == TESS_SELECT_EXACT)
        count = s->row_k.data ? ((const int32_t *)(const void *)s->row_k.data)[row] : is->k;
    else if (is->mode == TESS_SELECT_TOP_P)
        count = share_count(column, n, kept, (double)is->p, chose);
    else
        for (count = kept; count < n && column[count].score >= (double)is->threshold;)
            count++;
    count = count < n ? count : n;
    for (int64_t i = 0; i < count; i++)
        marks[column[i].index] = 1;
    free(column);
    return end < 0 ? -1 : count;
}

static int differs(char why[LAB_WHY], int64_t row, const char *what, int64_t got, int64_t want) {
    snprintf(why, LAB_WHY, "row %lld: %s is %lld, should be %lld", (long long)row, what,
             (long long)got, (long long)want);
    return -1;
}

static int row_compare(const struct selecting *s, int64_t row, char *marks, char why[LAB_WHY]) {
    const int64_t n = s->choice.size[3], capacity = capacity_of(&s->choice),
                  words = words_of(&s->choice);
    const int32_t *indices = (const int32_t *)(const void *)s->indices.data + row * capacity;
    const uint64_t *bits = (const uint64_t *)(const void *)s->bits.data + row * words;
    const int64_t got = ((const int32_t *)(const void *)s->counts.data)[row];
    const int64_t over = ((const int64_t *)(const void *)s->overflows.data)[row];
    const int64_t chosen = row_choose(s, row, got + (over > 0 ? over : 0), marks);
    const int64_t count = chosen < 0 ? 0 : chosen < capacity ? chosen : capacity;
    const int64_t past = chosen < 0 ? -1 : chosen - count;
    int64_t place = 0;
    if (got != count)
        return differs(why, row, "counts", got, count);
    if (over != past)
        return differs(why, row, "overflows", over, past);
    for (int64_t j = 0; j < 64 * words; j++) {
        const int want = j < n && marks[j] && place < capacity;
        if ((int)(bits[j / 64] >> j % 64 & 1) != want)
            return differs(why, row, "a bit", j, -1);
        if (want && indices[place++] != j)
            return differs(why, row, "an index", indices[place - 1], j);
    }
    for (; place < capacity; place++)
        if (indices[place] != -1)
            return differs(why, row, "padding", indices[place], -1);
    return 0;
}

int selecting_compare(const struct selecting *s, char why[LAB_WHY]) {
    const struct {
        const char *name;
        const struct lab_buffer *buffer;
    } results[] = {{"indices", &s->indices},
                   {"counts", &s->counts},
                   {"bits", &s->bits},
                   {"overflows", &s->overflows}};
    char *marks = malloc((size_t)s->choice.size[3]);
    int wrong = 0;
    assert_non_null(marks);
    for (size_t i = 0; i < sizeof results / sizeof *results && !wrong; i++)
        wrong = lab_buffer_check(results[i].buffer, results[i].name, why);
    for (int64_t row = 0; row < rows_of(&s->choice) && !wrong; row++)
        wrong = row_compare(s, row, marks, why);
    free(marks);
    return wrong;
}

int selecting_check(struct selecting *s, char why[LAB_WHY]) {
    assert_null(lab_mirror_fetch(&s->mirror));
    return selecting_compare(s, why);
}

uint64_t selecting_hash(const struct selecting *s) {
    return lab_buffer_hash(&s->indices) ^ lab_mix(lab_buffer_hash(&s->counts)) ^
           lab_mix(lab_buffer_hash(&s->bits)) ^ lab_mix(lab_buffer_hash(&s->overflows));
}

/* ---- tests ---- */

void choice_is_right(tess_backend backend, const struct choice *choice, uint64_t seed) {
    struct selecting s;
    char why[LAB_WHY];
    selecting_make(&s, backend, choice);
    selecting_draw(&s, seed);
    selecting_run(&s, NULL);
    if (selecting_check(&s, why))
        fail_msg("%s, %lld x %lld, scores %d, mode %d, k %lld: %s", tess_type_name(choice->type),
                 (long long)rows_of(choice), (long long)choice->size[3], choice->scores,
                 choice->selection.mode, (long long)choice->selection.k, why);
    selecting_free(&s);
}

static tess_selection exact(int64_t k) {
    tess_selection s = tess_selection_init();
    s.k = k;
    return s;
}

static tess_selection threshold(float x) {
    tess_selection s = tess_selection_init();
    s.mode = TESS_SELECT_THRESHOLD, s.threshold = x;
    return s;
}

static tess_selection top_p(float p) {
    tess_selection s = tess_selection_init();
    s.mode = TESS_SELECT_TOP_P, s.p = p;
    return s;
}

void choices_are_right(tess_backend backend, int64_t rows, int64_t n) {
    const tess_selection selections[] = {exact(n / 3 + 1), threshold(-0.0f), threshold(0.3f),
                                         top_p(0.9f), top_p(1)};
    for (int type = TESS_F32; type <= TESS_BF16; type++)
        for (int scores = 0; scores < SCORES_KINDS; scores++)
            for (size_t i = 0; i < sizeof selections / sizeof *selections; i++) {
                const struct choice c = {.type = (tess_type)type,
                                         .size = {1, 1, rows, n},
                                         .scores = (enum scores)scores,
                                         .selection = selections[i],
                                         .capacity = i % 2 ? n / 2 + 1 : n,
                                         .ragged = (type + scores) % 2};
                choice_is_right(backend, &c, (uint64_t)n);
            }
}

/* Columns that bits keep, of one row for all, or of rows of a list or of all: more and fewer than k. */
static void kept_are_right(tess_backend backend, const struct choice *choice, int i) {
    static const uint64_t drawn; /* its address says: drawn */
    struct choice c = *choice;
    const int64_t keep_rows[] = {1, c.size[2], rows_of(&c)};
    c.selection.keep = &drawn, c.selection.keep_rows = keep_rows[i % 3];
    choice_is_right(backend, &c, (uint64_t)i);
    c.selection = exact(i % 2 ? 5 : 40), c.capacity = 0;
    c.selection.keep = &drawn, c.selection.keep_rows = keep_rows[i % 3];
    c.selection.keep_first = i % 4, c.selection.keep_last = i % 4 ? 0 : 4;
    c.selection.causal = i % 2, c.selection.block_kv = 2, c.selection.n_kv = 2 * c.size[3] - 1;
    choice_is_right(backend, &c, (uint64_t)i);
}

void edges_are_right(tess_backend backend) {
    static const int32_t drawn; /* its address says: drawn */
    for (int i = 0; i < 4 * SCORES_KINDS; i++) {
        struct choice c = {.type = (tess_type)(i % 3),
                           .size = {2, 3, 5, 100 + 37 * (i % 2)},
                           .scores = (enum scores)(i / 4)};
        const int64_t n = c.size[3];
        for (int64_t k = n - 1; k <= n; k++) { /* a row has fewer columns than k, too */
            c.selection = exact(k);
            choice_is_right(backend, &c, (uint64_t)i);
        }
        c.selection = exact(n / 2), c.capacity = n / 2;
        c.selection.keep_first = i % 4, c.selection.keep_last = i % 4 ? 7 : n;
        choice_is_right(backend, &c, (uint64_t)i);
        c.selection.lengths = &drawn, c.selection.block_kv = 1 + i % 3;
        choice_is_right(backend, &c, (uint64_t)i);
        c.selection.causal = 1, c.selection.block_q = 16, c.selection.n_q = 70;
        choice_is_right(backend, &c, (uint64_t)i);
        c.selection.k = 0, c.selection.row_k = &drawn, c.capacity = i % 2 ? 9 : 0;
        choice_is_right(backend, &c, (uint64_t)i);
        c.selection = i % 2 ? top_p(0.5f) : threshold(0.5f), c.selection.lengths = &drawn;
        c.selection.keep_first = 2, c.selection.keep_last = 3, c.capacity = 20;
        choice_is_right(backend, &c, (uint64_t)i);
        kept_are_right(backend, &c, i);
    }
}

static void filled(struct selecting *s, const tess_device_pattern *pattern) {
    const tess_backend backend = s->mirror.backend;
    tess_error error = tess_error_init();
    tess_problem problem = tess_problem_init();
    tess_target target = tess_target_init();
    tess_plan *plan = NULL;
    int64_t keys = 0;
    problem.batch = s->choice.size[0], problem.heads_q = s->choice.size[1];
    problem.heads_kv = problem.heads_q;
    problem.n_q = pattern->n_q, problem.n_kv = pattern->n_kv, problem.d_qk = problem.d_v = 64;
    problem.type = TESS_F16;
    assert_int_equal(tess_target_query(&target, backend, -1, &error), TESS_OK);
    if (tess_plan_reserve(&plan, &problem, pattern, &target, &error) != TESS_OK)
        fail_msg("%s", error.message);
    const size_t size = tess_plan_image_size(plan);
    void *image = lab_device_alloc(backend, size), *copy = malloc(size);
    assert_true(image && copy);
    if (tess_plan_fill(plan, pattern, image, size, &error, NULL) != TESS_OK)
        fail_msg("%s", error.message);
    assert_null(lab_mirror_fetch(&s->mirror));
    assert_null(lab_device_to_host(backend, copy, image, size));
    tess_fill_report report = tess_fill_report_init();
    assert_int_equal(tess_plan_report(plan, copy, &report, &error), TESS_OK);
    for (int64_t row = 0; row < rows_of(&s->choice); row++)
        keys += ((const int32_t *)(const void *)s->counts.data)[row] * pattern->block_kv;
    assert_int_equal(report.faults, 0);
    assert_int_equal(report.overflows, 0);
    assert_int_equal(report.keys, keys);
    free(copy);
    lab_device_free(backend, image);
    tess_plan_free(plan);
}

void choices_are_lists(tess_backend backend) {
    struct choice c = {.type = TESS_F32, .size = {2, 2, 4, 96}, .capacity = 20};
    struct selecting s;
    c.selection = exact(20);
    selecting_make(&s, backend, &c);
    selecting_draw(&s, 1);
    selecting_run(&s, NULL);
    tess_device_pattern p = tess_device_pattern_blocks(s.selected.indices, s.selected.counts, 2, 2,
                                                       4 * 64, 96 * 64, 64, 64, 20);
    p.promises = TESS_DISTINCT | TESS_ASCENDING | TESS_PADDED_LAST;
    filled(&s, &p);
    p.form = TESS_BLOCK_BITS, p.promises = 0;
    p.indices = p.counts = NULL, p.bits = s.selected.bits;
    p.capacity = 2 * 2 * 4 * 20;
    filled(&s, &p);
    selecting_free(&s);
}
