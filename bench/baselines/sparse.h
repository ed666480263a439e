/* Patterns in the formats of cuSPARSE. */
#ifndef BENCH_SPARSE_H
#define BENCH_SPARSE_H

#include "tessera.h"

/* CSR of single elements; BSR with the elements of a tile together; ELL: as many tiles in each
 * block row, the last of which may be none. */
enum bench_format { BENCH_CSR, BENCH_BSR, BENCH_ELL };

/* A pattern of full tiles as such a matrix, on the host. */
struct bench_sparse {
    enum bench_format format;
    tess_lists lists; /* borrowed from the pattern */
    int64_t rows;     /* block rows */
    int64_t width;    /* ELL: tiles of a block row, padding included */
    int64_t n_values; /* padding included */
    int64_t n_offsets, n_columns;
    int32_t *offsets, *columns;
};

/* Answers NULL, or why not; needs its free in either case. */
const char *bench_sparse_make(struct bench_sparse *m, const tess_pattern *pattern,
                              enum bench_format format);
void bench_sparse_free(struct bench_sparse *m);

/* Place of element (r, c) of tile `entry` of block row `row` among the values. */
int64_t bench_sparse_place(const struct bench_sparse *m, int64_t row, int64_t entry, int64_t r,
                           int64_t c);

#endif
