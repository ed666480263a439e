/*
 * A program that opens libtessera.so, uses a team of threads, closes it and goes on, many times.
 * Usage: dlclose LIBRARY. It does not link OpenMP, whose threads would then never be unmapped.
 */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tessera.h"

enum { ROUNDS = 30, N = 1024, D = 64 }; /* some milliseconds of one thread */

static float q[N * D], o[N * D];

/* ISO C has no cast from objects to functions. */
static void function_find(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
}

static int use(void *library) {
    tess_status (*from_spec)(tess_pattern **, const char *, const tess_pattern_shape *,
                             tess_error *);
    tess_status (*attention)(tess_backend, const tess_tensor *, const tess_tensor *,
                             const tess_tensor *, const tess_pattern *, const tess_tensor *,
                             const tess_tensor *, tess_error *);
    void (*free_pattern)(tess_pattern *);
    function_find(library, "tess_pattern_from_spec", &from_spec);
    function_find(library, "tess_attention", &attention);
    function_find(library, "tess_pattern_free", &free_pattern);
    tess_tensor tq = tess_tensor_bhnd(q, TESS_F32, 1, 1, N, D);
    tess_tensor to = tess_tensor_bhnd(o, TESS_F32, 1, 1, N, D);
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern = NULL;
    shape.n_q = N;
    int failed = from_spec(&pattern, "dense", &shape, NULL) ||
                 attention(TESS_CPU, &tq, &tq, &tq, pattern, &to, NULL, NULL);
    free_pattern(pattern);
    return failed;
}

int main(int argc, char **argv) {
    setenv("OMP_NUM_THREADS", "4", 1);
    setenv("OMP_WAIT_POLICY", "active", 1); /* threads are never out of OpenMP's code */
    for (int round = 0; round < ROUNDS; round++) {
        void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
        if (!library || use(library)) {
            printf("round %d: %s\n", round, library ? "a call failed" : "no library");
            return 1;
        }
        dlclose(library);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL); /* the others' turn */
    }
    printf("%d rounds\n", ROUNDS);
    return 0;
}
