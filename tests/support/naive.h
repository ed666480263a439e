/*
 * A pattern against a predicate, element by element: the rows that tess_pattern_row answers, the
 * counts of tess_pattern_describe, and every tile of the lists, which must be of the simplest kind
 * that is exact. Fails the test at the first difference.
 */
#ifndef TESTS_NAIVE_H
#define TESTS_NAIVE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "tessera.h"

struct naive {
    /* Does query q of list l list key k? */
    int (*listed)(const void *context, int64_t l, int64_t q, int64_t k);
    const void *context;
    const char *name;
};

static inline void naive_tile(const struct naive *x, const tess_lists *m, int64_t l, int64_t i,
                              int64_t e, int64_t *band, int64_t *bitmask) {
    int64_t q0 = i * m->block_q, k0 = m->col_idx[e] * m->block_kv;
    int64_t rows = m->n_q - q0 < m->block_q ? m->n_q - q0 : m->block_q;
    int64_t cols = m->n_kv - k0 < m->block_kv ? m->n_kv - k0 : m->block_kv;
    int64_t lo = INT64_MAX, hi = INT64_MIN, count = 0, in_band = 0;
    assert_true(m->col_idx[e] >= 0 && rows > 0 && cols > 0);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++) {
            if (!x->listed(x->context, l, q0 + r, k0 + c))
                continue;
            count++;
            lo = c - r < lo ? c - r : lo;
            hi = c - r > hi ? c - r : hi;
        }
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            in_band += lo <= c - r && c - r <= hi;
    if (count == 0)
        fail_msg("%s: empty tile %lld of block row %lld", x->name, (long long)e, (long long)i);
    int is_band = *band < m->n_bands && m->band_entry[*band] == e;
    int is_mask = *bitmask < m->n_bitmasks && m->bitmask_entry[*bitmask] == e;
    int want_full = count == rows * cols, want_band = !want_full && count == in_band;
    if (is_band != want_band || is_mask != (!want_full && !want_band))
        fail_msg("%s: block row %lld, column %d: not the simplest kind", x->name, (long long)i,
                 m->col_idx[e]);
    if (is_band) {
        assert_int_equal(m->band[2 * *band], lo);
        assert_int_equal(m->band[2 * *band + 1], hi);
    }
    for (int64_t r = 0; is_mask && r < m->block_q; r++) {
        for (int64_t c = 0; c < m->block_kv; c++) {
            int64_t bit = (*bitmask * m->block_q + r) * m->block_kv + c;
            int want = r < rows && c < cols && x->listed(x->context, l, q0 + r, k0 + c);
            if ((int)(m->bits[bit / 64] >> (bit % 64) & 1) != want)
                fail_msg("%s: block row %lld, column %d: bit (%lld, %lld)", x->name, (long long)i,
                         m->col_idx[e], (long long)r, (long long)c);
        }
    }
    *band += is_band;
    *bitmask += is_mask;
}

static inline void naive_check(const struct naive *x, const tess_pattern *p) {
    tess_lists m = tess_lists_init();
    tess_pattern_info info = tess_pattern_info_init();
    tess_error error = tess_error_init();
    int64_t pairs = 0, empty = 0, band = 0, bitmask = 0, last = 0, n;
    assert_int_equal(tess_pattern_lists(p, &m, &error), TESS_OK);
    assert_int_equal(tess_pattern_describe(p, &info, &error), TESS_OK);
    int64_t rows = (m.n_q + m.block_q - 1) / m.block_q;
    int64_t *keys = malloc((size_t)m.n_kv * sizeof *keys);
    assert_non_null(keys);
    for (int64_t l = 0; l < m.batch * m.heads; l++) {
        for (int64_t q = 0; q < m.n_q; q++) {
            int64_t at = 0;
            assert_int_equal(
                tess_pattern_row(p, l / m.heads, l % m.heads, q, keys, m.n_kv, &n, &error),
                TESS_OK);
            for (int64_t k = 0; k < m.n_kv; k++) {
                int want = x->listed(x->context, l, q, k);
                if (want != (at < n && keys[at] == k))
                    fail_msg("%s: n %lldx%lld block %lldx%lld: query %lld, key %lld", x->name,
                             (long long)m.n_q, (long long)m.n_kv, (long long)m.block_q,
                             (long long)m.block_kv, (long long)q, (long long)k);
                at += want;
            }
            assert_int_equal(at, n);
            pairs += n;
            empty += n == 0;
        }
        const int64_t *ptr = m.row_ptr + l * (rows + 1);
        assert_int_equal(ptr[0], last);
        for (int64_t i = 0; i < rows; i++) {
            assert_true(ptr[i] <= ptr[i + 1]);
            for (int64_t e = ptr[i]; e < ptr[i + 1]; e++) {
                assert_true(e == ptr[i] || m.col_idx[e - 1] < m.col_idx[e]);
                naive_tile(x, &m, l, i, e, &band, &bitmask);
            }
        }
        last = ptr[rows];
    }
    free(keys);
    assert_int_equal(last, m.n_tiles);
    assert_int_equal(band, m.n_bands);
    assert_int_equal(bitmask, m.n_bitmasks);
    assert_int_equal(info.pairs, pairs);
    assert_int_equal(info.empty_rows, empty);
    assert_int_equal(info.full_tiles + info.band_tiles + info.bitmask_tiles, m.n_tiles);
    assert_int_equal(info.band_tiles, m.n_bands);
    assert_int_equal(info.bitmask_tiles, m.n_bitmasks);
}

/* Are the lists the same, array for array? */
static inline int naive_same(const tess_pattern *a, const tess_pattern *b) {
    tess_lists x = tess_lists_init(), y = tess_lists_init();
    assert_int_equal(tess_pattern_lists(a, &x, NULL), TESS_OK);
    assert_int_equal(tess_pattern_lists(b, &y, NULL), TESS_OK);
    if (x.n_q != y.n_q || x.n_kv != y.n_kv || x.block_q != y.block_q || x.block_kv != y.block_kv ||
        x.batch != y.batch || x.heads != y.heads || x.n_tiles != y.n_tiles ||
        x.n_bands != y.n_bands || x.n_bitmasks != y.n_bitmasks)
        return 0;
    size_t rows = (size_t)((x.n_q + x.block_q - 1) / x.block_q);
    size_t words = (size_t)((x.n_bitmasks * x.block_q * x.block_kv + 63) / 64);
    return !memcmp(x.row_ptr, y.row_ptr,
                   (size_t)(x.batch * x.heads) * (rows + 1) * sizeof *x.row_ptr) &&
           !memcmp(x.col_idx, y.col_idx, (size_t)x.n_tiles * sizeof *x.col_idx) &&
           !memcmp(x.band_entry, y.band_entry, (size_t)x.n_bands * sizeof *x.band_entry) &&
           !memcmp(x.band, y.band, 2 * (size_t)x.n_bands * sizeof *x.band) &&
           !memcmp(x.bitmask_entry, y.bitmask_entry,
                   (size_t)x.n_bitmasks * sizeof *x.bitmask_entry) &&
           !memcmp(x.bits, y.bits, words * sizeof *x.bits);
}

#endif
