/* Patterns from words, for tests: what cannot be built fails the test. */
#ifndef TESTS_WORDS_H
#define TESTS_WORDS_H

#include "support/naive.h"

/* shape: n_q, n_kv, block_q, block_kv */
static inline tess_pattern *make(const char *spec, const int64_t shape[4], int64_t batch,
                                 int64_t heads) {
    tess_pattern *p = NULL;
    tess_error error = tess_error_init();
    tess_pattern_shape s = tess_pattern_shape_init();
    s.n_q = shape[0], s.n_kv = shape[1], s.block_q = shape[2], s.block_kv = shape[3];
    s.batch = batch, s.heads = heads;
    if (tess_pattern_from_spec(&p, spec, &s, &error) != TESS_OK)
        fail_msg("%s: %s", spec, error.message);
    return p;
}

static inline tess_lists lists_of(const tess_pattern *p) {
    tess_lists m = tess_lists_init();
    assert_int_equal(tess_pattern_lists(p, &m, NULL), TESS_OK);
    return m;
}

#endif
