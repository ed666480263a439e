/*
 * Choosing columns on the CPU, row by row: the key above which all are chosen is found digit by digit, then
 * columns are written in their order. Rows are read from memory in each pass, and nothing is kept of them.
 */
#include "cpu.h"
#include "tile/parallel.h"

#include <string.h>

struct reader {
    const struct select_shape *shape;
    const void *scores;
    const uint64_t *keep; /* bits of columns that are kept, or NULL */
    struct select_row row;
    struct select_keys keys;
    tess_type type;
    float most; /* TOP_P: the row's largest score */
};

static uint32_t stored_at(const struct reader *r, int64_t column) {
    return r->type == TESS_F32 ? ((const uint32_t *)r->scores)[column]
                               : ((const uint16_t *)r->scores)[column];
}

static int is_kept(const struct reader *r, int64_t column) {
    return column < r->row.kept || column >= r->row.tail ||
           (r->keep && r->keep[column / 64] >> column % 64 & 1);
}

/* The key by a column's score alone. */
static uint32_t scored_key(const struct reader *r, int64_t column) {
    return select_key(stored_at(r, column), r->keys.bits, r->keys.low, r->keys.high);
}

static uint32_t key_at(const struct reader *r, int64_t column) {
    return is_kept(r, column) ? SELECT_KEPT(r->keys.bits) : scored_key(r, column);
}

/* A column's part of the mass that is to be reached: 1, or its weight. */
static uint64_t mass_at(const struct reader *r, int64_t column) {
    if (r->shape->mode == TESS_SELECT_EXACT)
        return 1;
    const uint32_t key = scored_key(r, column);
    return key ? select_weight(select_score(select_stored(key, r->keys.bits), r->type), r->most)
               : 0;
}

/* Columns of a row are chosen above `key`, and the first `ties` of those equal to it. */
struct cut {
    uint32_t key;
    int64_t ties;
};

/* The cut at which the mass of what is chosen reaches `target`, which is at least 1. */
static struct cut cut_find(const struct reader *r, uint64_t target) {
    uint64_t mass[SELECT_DIGITS];
    uint32_t key = 0;
    for (int32_t known = r->keys.bits, shift; known; known = shift) {
        shift = select_shift(known);
        const int32_t digits = 1 << (known - shift);
        memset(mass, 0, sizeof mass);
        for (int64_t c = 0; c < r->row.end; c++) {
            const uint32_t at = key_at(r, c);
            if (at && (uint64_t)(at ^ key) >> known == 0)
                mass[at >> shift & (uint32_t)(digits - 1)] += mass_at(r, c);
        }
        int32_t digit = digits - 1;
        for (; digit > 0 && mass[digit] < target; digit--)
            target -= mass[digit];
        if (mass[digit] < target) /* no more is there: all are chosen */
            return (struct cut){0, 0};
        key |= (uint32_t)digit << shift;
        if (!shift && r->shape->mode == TESS_SELECT_EXACT)
            return (struct cut){key, (int64_t)target};
    }
    if (key == SELECT_KEPT(r->keys.bits))
        return (struct cut){key, r->row.end};
    const uint64_t weight =
        select_weight(select_score(select_stored(key, r->keys.bits), r->type), r->most);
    return (struct cut){key, (int64_t)((target + weight - 1) / weight)};
}

/* TOP_P: the share of the mass of all columns, once the largest score is known. */
static uint64_t share_of(struct reader *r) {
    uint64_t sum = 0;
    uint32_t most = 0;
    for (int64_t c = 0; c < r->row.end; c++) {
        const uint32_t key = scored_key(r, c);
        most = key > most ? key : most;
    }
    r->most = select_score(select_stored(most, r->keys.bits), r->type);
    for (int64_t c = 0; c < r->row.end; c++)
        sum += mass_at(r, c);
    return select_mass(sum, r->shape->share);
}

static struct cut row_cut(struct reader *r) {
    const struct cut kept = {SELECT_KEPT(r->keys.bits), r->row.end}; /* and nothing else */
    if (r->shape->mode == TESS_SELECT_THRESHOLD)
        return (struct cut){r->shape->bound, r->row.end};
    const uint64_t target = r->shape->mode == TESS_SELECT_EXACT ? (uint64_t)r->row.k : share_of(r);
    if (target)
        return cut_find(r, target);
    return r->shape->mode == TESS_SELECT_EXACT ? (struct cut){kept.key, 0} : kept;
}

/* Writes what the cut chooses of the row, number `number` of all lists. */
static void row_write(const struct select_args *args, const struct reader *r, struct cut cut,
                      int64_t number) {
    const struct select_shape *s = &args->shape;
    int32_t *indices = args->to.indices ? args->to.indices + number * s->capacity : NULL;
    uint64_t *bits = args->to.bits ? args->to.bits + number * s->words : NULL;
    int64_t chosen = 0;
    if (bits)
        memset(bits, 0, (size_t)s->words * sizeof *bits);
    for (int64_t c = 0; c < r->row.end; c++) {
        const uint32_t key = key_at(r, c);
        if (key < cut.key || !key || (key == cut.key && cut.ties-- <= 0))
            continue;
        if (chosen < s->capacity && indices)
            indices[chosen] = (int32_t)c;
        if (chosen < s->capacity && bits)
            bits[c / 64] |= UINT64_C(1) << c % 64;
        chosen++;
    }
    const int64_t count = chosen < s->capacity ? chosen : s->capacity;
    for (int64_t i = count; i < s->capacity && indices; i++)
        indices[i] = -1;
    if (args->to.counts)
        args->to.counts[number] = (int32_t)count;
    if (args->to.overflows)
        args->to.overflows[number] = r->row.end < 0 ? -1 : chosen - count;
}

static void row_select(const void *context, int64_t number, int32_t thread) {
    const struct select_args *args = context;
    const struct select_shape *s = &args->shape;
    const int64_t n = number % s->rows, h = number / s->rows % s->heads,
                  b = number / s->rows / s->heads;
    const int64_t length = args->lengths ? args->lengths[b] : s->n_kv;
    const int64_t first = b * args->stride[0] + h * args->stride[1] + n * args->stride[2];
    struct reader r = {.shape = s,
                       .scores =
                           (const char *)args->scores + first * (int64_t)tess_type_size(args->type),
                       .keep = args->keep ? args->keep + number % s->keep_rows * s->words : NULL,
                       .row = select_row_of(s, n, length, args->row_k ? args->row_k[number] : s->k),
                       .keys = select_keys_of(args->type),
                       .type = args->type};
    (void)thread;
    row_write(args, &r, row_cut(&r), number);
}

tess_status cpu_select(const struct select_args *args, tess_error *error) {
    const struct select_shape *s = &args->shape;
    const int64_t rows = s->batch * s->heads * s->rows;
    (void)error;
    cpu_share(threads_limit(0), (double)rows * (double)s->n * 8e-9, rows, row_select, args);
    return TESS_OK;
}
