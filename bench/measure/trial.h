/* One of cuSPARSE's stages, checked and timed. */
#ifndef BENCH_TRIAL_H
#define BENCH_TRIAL_H

#include "baselines/peer.h"
#include "measure/measure.h"

/* Measures one on the setting: checked first, then timed as the method says. Its times go into
 * *result, or a note why there are none: it is not here, does not do this, or is wrong. (Its bf16
 * SpMM on CSR may be past the bounds that ours is held to.) */
void bench_peer_measure(struct bench_result *result, const struct bench_peer_kind *kind,
                        struct bench_setting *s, const struct bench_method *method);

#endif
