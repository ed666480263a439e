/* Patterns in cuSPARSE's formats. */
#include "baselines/sparse.h"

#include <stdlib.h>
#include <string.h>

int64_t bench_sparse_place(const struct bench_sparse *m, int64_t row, int64_t entry, int64_t r,
                           int64_t c) {
    const int64_t r0 = m->lists.row_ptr[row], r1 = m->lists.row_ptr[row + 1];
    const int64_t bq = m->lists.block_q, bk = m->lists.block_kv;
    switch (m->format) {
    case BENCH_CSR:
        return bk * (r0 * bq + r * (r1 - r0) + (entry - r0)) + c;
    case BENCH_BSR:
        return (entry * bq + r) * bk + c;
    case BENCH_ELL:
        break;
    }
    return (row * bq + r) * m->width * bk + (entry - r0) * bk + c;
}

static void fill_csr(struct bench_sparse *m) {
    const tess_lists *l = &m->lists;
    for (int64_t row = 0; row < m->rows; row++)
        for (int64_t r = 0; r < l->block_q; r++) {
            m->offsets[row * l->block_q + r] =
                (int32_t)bench_sparse_place(m, row, l->row_ptr[row], r, 0);
            for (int64_t e = l->row_ptr[row]; e < l->row_ptr[row + 1]; e++)
                for (int64_t c = 0; c < l->block_kv; c++)
                    m->columns[bench_sparse_place(m, row, e, r, c)] =
                        (int32_t)(l->col_idx[e] * l->block_kv + c);
        }
    m->offsets[m->n_offsets - 1] = (int32_t)m->n_values;
}

static void fill_bsr(struct bench_sparse *m) {
    for (int64_t row = 0; row <= m->rows; row++)
        m->offsets[row] = (int32_t)m->lists.row_ptr[row];
    for (int64_t e = 0; e < m->n_columns; e++)
        m->columns[e] = m->lists.col_idx[e];
}

static void fill_ell(struct bench_sparse *m) {
    for (int64_t row = 0; row < m->rows; row++)
        for (int64_t x = 0; x < m->width; x++) {
            const int64_t e = m->lists.row_ptr[row] + x;
            m->columns[row * m->width + x] =
                e < m->lists.row_ptr[row + 1] ? m->lists.col_idx[e] : -1;
        }
}

static int64_t widest(const struct bench_sparse *m) {
    int64_t most = 1;
    for (int64_t row = 0; row < m->rows; row++) {
        const int64_t tiles = m->lists.row_ptr[row + 1] - m->lists.row_ptr[row];
        most = tiles > most ? tiles : most;
    }
    return most;
}

const char *bench_sparse_make(struct bench_sparse *m, const tess_pattern *pattern,
                              enum bench_format format) {
    tess_lists lists = tess_lists_init();
    memset(m, 0, sizeof *m);
    if (tess_pattern_lists(pattern, &lists, NULL) != TESS_OK)
        return "the pattern has no lists";
    if (lists.batch * lists.heads != 1)
        return "one head only";
    if (lists.n_bands || lists.n_bitmasks || lists.n_q % lists.block_q ||
        lists.n_kv % lists.block_kv)
        return "whole and full tiles only";
    if (format != BENCH_CSR && lists.block_q != lists.block_kv)
        return "square tiles only";
    m->format = format;
    m->lists = lists;
    m->rows = lists.n_q / lists.block_q;
    m->width = widest(m);
    const int64_t element = lists.block_q * lists.block_kv;
    m->n_values = (format == BENCH_ELL ? m->rows * m->width : lists.n_tiles) * element;
    if (m->n_values > INT32_MAX)
        return "more than 2^31 - 1 values";
    m->n_offsets = format == BENCH_CSR ? lists.n_q + 1 : format == BENCH_BSR ? m->rows + 1 : 0;
    m->n_columns = format == BENCH_CSR ? m->n_values : m->n_values / element;
    m->offsets = malloc((size_t)(m->n_offsets + 1) * sizeof *m->offsets);
    m->columns = malloc((size_t)(m->n_columns + 1) * sizeof *m->columns);
    if (!m->offsets || !m->columns)
        return "out of memory";
    if (format == BENCH_CSR)
        fill_csr(m);
    else if (format == BENCH_BSR)
        fill_bsr(m);
    else
        fill_ell(m);
    return NULL;
}

void bench_sparse_free(struct bench_sparse *m) {
    free(m->offsets);
    free(m->columns);
    memset(m, 0, sizeof *m);
}
