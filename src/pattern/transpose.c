/* Transposition: tiles sorted by column, and each turned. A turned tile is of the same kind, and as simple
 * as can be where the tile was. */
#include "pattern/build.h"
#include "base/threads.h"

#include <stdlib.h>
#include <string.h>

/* The tiles of m in the order list, column, row: a counting sort. */
static void sort_by_column(const struct bcsr *m, int64_t *ptr, int64_t *entry, int32_t *row) {
    int64_t lists = m->batch * m->heads, wide = m->cols + 1;
    memset(ptr, 0, (size_t)(lists * wide) * sizeof *ptr);
    double seconds = 5e-9 * (double)m->n_tiles + 3e-9 * (double)(lists * (wide + m->rows));
#pragma omp parallel for num_threads(threads_limit(m->threads))                                    \
    schedule(dynamic, 1) if (lists > 1 && threads_pay(seconds))
    for (int64_t l = 0; l < lists; l++) {
        int64_t *next = ptr + l * wide, at = bcsr_row_begin(m, l, 0);
        for (int64_t e = at; e < bcsr_row_end(m, l, m->rows - 1); e++)
            next[m->col_idx[e] + 1]++;
        for (int64_t j = 0; j <= m->cols; j++)
            at = next[j] += at;
        /* next[j] moves from the first tile of column j to the first of column j + 1 ... */
        for (int64_t i = 0; i < m->rows; i++) {
            for (int64_t e = bcsr_row_begin(m, l, i); e < bcsr_row_end(m, l, i); e++) {
                int64_t place = next[m->col_idx[e]]++;
                entry[place] = e;
                row[place] = (int32_t)i;
            }
        }
        /* ... and back */
        for (int64_t j = m->cols; j > 0; j--)
            next[j] = next[j - 1];
        next[0] = bcsr_row_begin(m, l, 0);
    }
}

/* Kind of each tile of m: 0, number of its band + 1, or -1 - number of its bitmask. */
static void partial_tiles(const struct bcsr *m, int64_t *partial) {
    memset(partial, 0, (size_t)m->n_tiles * sizeof *partial);
    for (int64_t i = 0; i < m->n_bands; i++)
        partial[m->band_entry[i]] = i + 1;
    for (int64_t i = 0; i < m->n_bitmasks; i++)
        partial[m->bitmask_entry[i]] = -1 - i;
}

/* Bands of *to, and which of its tiles have bitmasks; from[i] is the number of bitmask i in m. */
static void kinds_turn(struct bcsr *to, const struct bcsr *m, const int64_t *entry,
                       const int64_t *partial, int64_t *from) {
    int64_t bands = 0, bitmasks = 0;
    for (int64_t e = 0; e < to->n_tiles; e++) {
        const int64_t number = partial[entry[e]];
        if (number > 0) {
            const int32_t *band = m->band + 2 * (number - 1);
            to->band_entry[bands] = e;
            to->band[2 * bands] = -band[1];
            to->band[2 * bands++ + 1] = -band[0];
        } else if (number < 0) {
            to->bitmask_entry[bitmasks] = e;
            from[bitmasks++] = -1 - number;
        }
    }
}

/* Bit i of word j becomes bit j of word i. As in "Hacker's Delight", Warren, section 7-3. */
static void words_turn(uint64_t word[64]) {
    uint64_t low = UINT32_MAX;
    for (int half = 32; half; half /= 2, low ^= low << half)
        for (int i = 0; i < 64; i = (i + half + 1) & ~half) {
            const uint64_t swap = (word[i] >> half ^ word[i + half]) & low;
            word[i] ^= swap << half;
            word[i + half] ^= swap;
        }
}

/* Bitmask `number` of *to, 64 x 64 elements at a time. */
static void bits_turn(struct bcsr *to, const struct bcsr *m, const int64_t *entry, int64_t number,
                      int64_t from) {
    const int64_t e = to->bitmask_entry[number];
    const int64_t rows = bcsr_row_height(m, to->col_idx[e]);
    const int64_t cols = bcsr_col_width(m, m->col_idx[entry[e]]);
    for (int64_t r = 0; r < rows; r += 64)
        for (int64_t c = 0; c < cols; c += 64) {
            const int height = (int)min_i64(64, rows - r), width = (int)min_i64(64, cols - c);
            uint64_t word[64] = {0};
            for (int i = 0; i < height; i++)
                word[i] = bits_get(m->bits, (from * m->block_q + r + i) * m->block_kv + c, width);
            words_turn(word);
            for (int i = 0; i < width; i++)
                bits_put(to->bits, (number * to->block_q + c + i) * to->block_kv + r, word[i],
                         height);
        }
}

/* Fills *to, whose arrays are there. 0, or -1: no memory. */
static int tiles_turn(struct bcsr *to, const struct bcsr *m, int64_t *entry) {
    int64_t *partial = malloc((size_t)m->n_tiles * sizeof *partial + 1);
    int64_t *from = malloc((size_t)m->n_bitmasks * sizeof *from + 1);
    const int made = partial && from;
    if (made) {
        sort_by_column(m, to->row_ptr, entry, to->col_idx);
        partial_tiles(m, partial);
        kinds_turn(to, m, entry, partial, from);
        /* Masks that do not end on a word share one with their neighbour: then one thread alone. */
        const int apart = m->block_q * m->block_kv % 64 == 0;
        const double seconds = 10e-9 * (double)bcsr_words(m);
#pragma omp parallel for schedule(static) if (apart && threads_pay(seconds))
        for (int64_t i = 0; i < to->n_bitmasks; i++)
            bits_turn(to, m, entry, i, from[i]);
    }
    free(partial);
    free(from);
    return made ? 0 : -1;
}

tess_status pattern_transpose(tess_pattern **pattern, int64_t **entries, const struct bcsr *m,
                              const char *function, const char *argument, tess_error *error) {
    tess_pattern_shape shape = tess_pattern_shape_init();
    shape.n_q = m->n_kv, shape.n_kv = m->n_q;
    shape.block_q = m->block_kv, shape.block_kv = m->block_q;
    shape.batch = m->batch, shape.heads = m->heads;
    shape.threads = m->threads;
    struct bcsr sizes;
    tess_status status = build_sizes(&sizes, &shape, function, argument, error);
    if (status != TESS_OK)
        return status;
    const int32_t threads = threads_set(threads_limit(m->threads));
    int64_t *entry = malloc((size_t)m->n_tiles * sizeof *entry + 1);
    tess_pattern *p = calloc(1, sizeof *p);
    status = TESS_OUT_OF_MEMORY;
    if (entry && p) {
        p->lists = sizes;
        p->lists.n_tiles = m->n_tiles;
        p->lists.n_bands = m->n_bands;
        p->lists.n_bitmasks = m->n_bitmasks;
        p->lists.row_ptr =
            malloc((size_t)(m->batch * m->heads * (m->cols + 1)) * sizeof *p->lists.row_ptr);
        if (p->lists.row_ptr && !build_arrays(&p->lists) && !tiles_turn(&p->lists, m, entry))
            status = pattern_count(p);
    }
    threads_set(threads);
    if (status == TESS_OK) {
        *pattern = p;
        if (entries) {
            *entries = entry;
            entry = NULL;
        }
    } else {
        tess_pattern_free(p);
        status = error_set_memory(error, function, (size_t)m->n_tiles * sizeof *entry);
    }
    free(entry);
    return status;
}

tess_status tess_pattern_transpose(tess_pattern **pattern, const tess_pattern *a,
                                   tess_error *error) {
    static const char function[] = "tess_pattern_transpose";
    if (!pattern)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "pattern", "pattern is NULL");
    *pattern = NULL;
    if (!a)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "a", "a is NULL");
    return pattern_transpose(pattern, NULL, &a->lists, function, "a", error);
}
