/* Measurements of what Tessera is compared with. */
#ifndef BENCH_BASELINE_H
#define BENCH_BASELINE_H

#include "run/results.h"

/* The words of --baseline, numbered from 0; NULL past the last. */
const char *bench_baseline_word(int number);

/*
 * Measures the baselines that a case asks for and adds a row for each, `ours` being the row that
 * they are set beside, the last that was measured: of CUDA and the staged pipeline where these are
 * there. One that is not here or does not do the case, and a peer that is wrong, gets a row without
 * times whose note says why. A dense baseline's time does not depend on the pattern: where a row of
 * the same sizes, values and method is there, its times are taken.
 * Answers BENCH_DONE; BENCH_FAILED after one line on stderr when a dense baseline is wrong; or
 * BENCH_BAD.
 */
int bench_baselines(struct bench_rows *rows, struct bench_setting *s,
                    const struct bench_method *method, const struct bench_result *ours);

#endif
