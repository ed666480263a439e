/*
 * How long one query takes: pattern, plan and run over 64 to 2048 keys of one head of 64 dims, with a
 * pause before each, as a server has. Usage: latency [ROUNDS]. tests/scripts/busy.sh runs it beside others.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tessera.h"

enum { D = 64, MOST = 2048, ROUNDS = 1000, PAUSE_NS = 2000000 };

static float q[D], k[MOST * D], o[D];

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Nonzero when a call failed. */
static int one_query(int64_t keys) {
    const tess_tensor tq = tess_tensor_bhnd(q, TESS_F32, 1, 1, 1, D);
    const tess_tensor tk = tess_tensor_bhnd(k, TESS_F32, 1, 1, keys, D);
    const tess_tensor to = tess_tensor_bhnd(o, TESS_F32, 1, 1, 1, D);
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern = NULL;
    shape.n_q = 1, shape.n_kv = keys;
    const int failed = tess_pattern_from_spec(&pattern, "dense", &shape, NULL) ||
                       tess_attention(TESS_CPU, &tq, &tk, &tk, pattern, &to, NULL, NULL);
    tess_pattern_free(pattern);
    return failed;
}

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : ROUNDS;
    double *took = rounds > 0 ? malloc((size_t)rounds * sizeof *took) : NULL;
    if (!took)
        return 2;
    for (int64_t keys = 64; keys <= MOST; keys *= 2) {
        for (int i = 0; i < rounds; i++) {
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
            const double start = seconds();
            if (one_query(keys))
                return 1;
            took[i] = 1e3 * (seconds() - start);
        }
        qsort(took, (size_t)rounds, sizeof *took, ascending);
        printf("%4lld keys: median %.3f ms, 99th percentile %.3f ms\n", (long long)keys,
               took[rounds / 2], took[rounds * 99 / 100]);
    }
    free(took);
    return 0;
}
