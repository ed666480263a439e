/* Inputs of cuSPARSE, and checks of its answers. */
#ifndef BENCH_PEER_CHECK_H
#define BENCH_PEER_CHECK_H

#include "baselines/peer.h"
#include "lab/run/setting.h"

/* The weights that its SpMM multiplies: from 0 to 1, as the type has them; 0 where no tile is. */
void bench_peer_weights(void *values, tess_type type, const struct bench_sparse *m, uint64_t seed);

/* Sampled rows of a peer's output against double precision from the same inputs: the scores that the
 * peer's SDDMM left in `values`, or the setting's o from P in `values`. type: of the output; of P, the
 * case's. Answers 0, or -1 and why. */
int bench_peer_check(const struct bench_peer_kind *kind, const struct bench_sparse *m,
                     const struct lab_setting *s, const void *values, const void *o, tess_type type,
                     char why[LAB_WHY]);

#endif
