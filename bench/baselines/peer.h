/* cuSPARSE's SDDMM and SpMM, stages like ours. */
#ifndef BENCH_PEER_H
#define BENCH_PEER_H

#include "baselines/sparse.h"
#include "lab/case/case.h"

struct bench_peer_kind {
    const char *kernel;
    tess_stage stage;
    enum bench_format format;
    int algorithm; /* a number of cuSPARSE's */
};

/* The kinds, numbered from 0; NULL past the last. */
const struct bench_peer_kind *bench_peer_kind(int number);

/* One of them ready to run on tensors of a device. */
struct bench_peer;

/* type_c: of what it writes, the scores or o. Answers NULL, or why not: absent, not supported.
 * bench_peer_free takes *peer in either case. */
const char *bench_peer_make(struct bench_peer **peer, const struct bench_peer_kind *kind,
                            const struct bench_sparse *m, const struct lab_case *c,
                            const tess_arguments *at, void *values, tess_type type_c);
void bench_peer_free(struct bench_peer *peer);

/* A struct bench_peer as work to be timed. */
const char *bench_peer_run(void *peer, tess_stream stream);

#endif
