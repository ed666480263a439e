/* Columns of rows as bytes, bits and indices, on the CPU: a row's words of bits, from which all else follows. */
#include "cpu.h"
#include "tile/parallel.h"

#include <string.h>

#define COLUMNS_WORDS 64 /* words that are made at a time */

/* Words first ... first + n - 1 of a row, from what is given. */
static void words_make(const struct columns_args *args, int64_t row, int64_t first, int64_t n,
                       uint64_t *words) {
    const tess_columns *from = &args->from;
    const int64_t begin = 64 * first, end = fill_least(from->columns, begin + 64 * n);
    memset(words, 0, (size_t)n * sizeof *words);
    if (from->bits) {
        memcpy(words, from->bits + row * args->words + first, (size_t)n * sizeof *words);
        if ((end - begin) % 64)
            words[n - 1] &= ~(UINT64_MAX << (end - begin) % 64);
    } else if (from->bytes) {
        const uint8_t *bytes = from->bytes + row * from->columns;
        for (int64_t c = begin; c < end; c++)
            words[(c - begin) / 64] |= (uint64_t)(bytes[c] != 0) << c % 64;
    } else {
        const int64_t given = from->counts ? from->counts[row] : from->capacity;
        const int64_t count = fill_most(0, fill_least(given, from->capacity));
        for (int64_t i = 0; i < count; i++) {
            const int64_t c = from->indices[row * from->capacity + i];
            if (c >= begin && c < end)
                words[(c - begin) / 64] |= UINT64_C(1) << c % 64;
        }
    }
}

/* Writes what words say; answers the columns of the row so far. */
static int64_t words_write(const struct columns_args *args, int64_t row, int64_t first, int64_t n,
                           const uint64_t *words, int64_t taken) {
    const tess_columns *to = &args->to;
    const int64_t begin = 64 * first, end = fill_least(args->from.columns, begin + 64 * n);
    if (to->bits)
        memcpy(to->bits + row * args->words + first, words, (size_t)n * sizeof *words);
    for (int64_t c = begin; to->bytes && c < end; c++)
        to->bytes[row * args->from.columns + c] = words[(c - begin) / 64] >> c % 64 & 1;
    for (int64_t w = 0; (to->indices || to->counts) && w < n; w++)
        for (uint64_t word = words[w]; word; word &= word - 1, taken++)
            if (to->indices && taken < to->capacity)
                to->indices[row * to->capacity + taken] =
                    (int32_t)(begin + 64 * w + __builtin_ctzll(word));
    return taken;
}

static void row_convert(const void *context, int64_t row, int32_t thread) {
    const struct columns_args *args = context;
    const tess_columns *to = &args->to;
    uint64_t words[COLUMNS_WORDS];
    int64_t taken = 0;
    (void)thread;
    for (int64_t first = 0; first < args->words; first += COLUMNS_WORDS) {
        const int64_t n = fill_least(COLUMNS_WORDS, args->words - first);
        words_make(args, row, first, n, words);
        taken = words_write(args, row, first, n, words, taken);
    }
    for (int64_t i = taken; to->indices && i < to->capacity; i++)
        to->indices[row * to->capacity + i] = -1;
    if (to->counts)
        to->counts[row] = (int32_t)taken;
}

tess_status cpu_columns(const struct columns_args *args, tess_error *error) {
    const tess_columns *from = &args->from;
    (void)error;
    cpu_share(threads_limit(0), 0.5e-9 * (double)from->rows * (double)from->columns, from->rows,
              row_convert, args);
    return TESS_OK;
}
