/*
 * Runs of a filled tile: keys by their number, without a search, as kernels find them that begin in the middle
 * of a list. The file compiles as C11 and as CUDA C, as fill_rules.h does.
 */
#ifndef TESSERA_CUDA_RUNS_H
#define TESSERA_CUDA_RUNS_H

#include "lists/fill_rules.h"

/* n / d. With one batch, list, head or tile of a block row, the branches save a division of 100 clocks. */
FILL_RULE uint32_t fill_quotient(uint32_t n, uint32_t d) {
    return n < d ? 0 : d == 1 ? n : n / d;
}

#define DECODE_CHUNK 32 /* keys that decode weighs together */

/* Parts by schedule_part's rule, on multiples of DECODE_CHUNK keys. Below 65,536 keys products fit 32 bits. */
FILL_RULE void fill_part(int64_t keys, int32_t part, int32_t parts, int64_t *begin, int64_t *end) {
    if (parts > 1 && keys >> 16) {
        const int64_t chunks = (keys + DECODE_CHUNK - 1) / DECODE_CHUNK;
        *begin = chunks * part / parts * DECODE_CHUNK;
        *end = part + 1 == parts ? keys : chunks * (part + 1) / parts * DECODE_CHUNK;
        return;
    }
    const uint32_t chunks = ((uint32_t)keys + DECODE_CHUNK - 1) / DECODE_CHUNK;
    const uint32_t all = (uint32_t)parts, at = (uint32_t)part;
    *begin = parts == 1 ? 0 : chunks * at / all * DECODE_CHUNK;
    *end = part + 1 == parts ? keys : (int64_t)(chunks * (at + 1) / all * DECODE_CHUNK);
}

/* Full runs or bands of a tile, ascending. Ranges are few. Blocks between the first and the last have as
 * many keys: a cut goes through the ends alone. */
#define FILL_FEW_RUNS 8 /* FILL_RANGES * FILL_RANGE_BANDS */
struct fill_runs {
    const int32_t *at; /* keys and counts, `stride` words from run to run */
    int32_t stride;
    int32_t n, keys;     /* runs, and the keys of all */
    int32_t first, each; /* keys of the first, and of those behind it; each 0: any */
};

FILL_RULE int32_t fill_run_key(const struct fill_runs *r, int32_t run) {
    return r->at[(int64_t)run * r->stride];
}
FILL_RULE int32_t fill_run_count(const struct fill_runs *r, int32_t run) {
    return r->at[(int64_t)run * r->stride + 1];
}

/* n runs of a tile that lists `keys` keys in all its runs: as many as keys are runs of one. */
FILL_RULE struct fill_runs fill_runs_of(const int32_t *at, int32_t stride, int64_t n,
                                        int64_t keys) {
    struct fill_runs r;
    r.at = at, r.stride = stride, r.n = r.keys = (int32_t)n, r.first = r.each = 1;
    if (n == keys || n == 0)
        return r;
    r.first = fill_run_count(&r, 0);
    if (n > FILL_FEW_RUNS) {
        r.each = fill_run_count(&r, 1);
        r.keys = r.first + (r.n - 2) * r.each + fill_run_count(&r, r.n - 1);
        return r;
    }
    r.each = 0, r.keys = r.first;
    for (int32_t run = 1; run < r.n; run++)
        r.keys += fill_run_count(&r, run);
    return r;
}

/* The run of key *x, 0 ... keys - 1; leaves in *x the key's place within the run. */
FILL_RULE int32_t fill_run_find(const struct fill_runs *r, int32_t *x) {
    int32_t run = 1;
    if (*x < r->first)
        return 0;
    *x -= r->first;
    if (r->each) {
        const uint32_t after = r->each == 1 ? (uint32_t)*x : (uint32_t)*x / (uint32_t)r->each;
        *x -= (int32_t)after * r->each;
        return 1 + (int32_t)after;
    }
    for (int32_t count; *x >= (count = fill_run_count(r, run)); run++)
        *x -= count;
    return run;
}

#endif
