/*
 * Which pipeline tess_attention runs: the cheaper one that has kernels and memory. The CPU backend with
 * other costs, refusals and memory stands in for itself, by --wrap=backend_get.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "plan/kernels.h"

const struct backend *__real_backend_get(tess_backend backend);
const struct backend *__wrap_backend_get(tess_backend backend);

enum { MOST_KERNELS = 32 };

/* What the stand-in does, and what it has seen. */
static struct {
    int fused_dear, fused_refuses, staged_refuses;
    int allocations_refused; /* the first ones of more than 1 MB */
    int fused_runs, staged_runs;
} stand_in;

static const struct backend *real;
static struct kernel kernels[MOST_KERNELS];

static tess_status run(const struct kernel_args *args, tess_error *error) {
    if (args->kernel->stage == TESS_STAGE_ATTENTION)
        stand_in.fused_runs++;
    else
        stand_in.staged_runs++;
    return real->kernels[args->kernel - kernels].run(args, error);
}

static const char *refuses(const struct kernel *kernel, const struct problem *problem,
                           const tess_target *target) {
    const int fused = kernel->stage == TESS_STAGE_ATTENTION;
    if (fused ? stand_in.fused_refuses : stand_in.staged_refuses)
        return "it does not today";
    const struct kernel *of = &real->kernels[kernel - kernels];
    return of->refuses(of, problem, target);
}

static void *allocate(size_t size) {
    if (size > 1 << 20 && stand_in.allocations_refused > 0) {
        stand_in.allocations_refused--;
        return NULL;
    }
    return real->allocate(size);
}

const struct backend *__wrap_backend_get(tess_backend backend) {
    static struct backend other;
    real = __real_backend_get(TESS_CPU);
    assert_true(backend == TESS_CPU && real->n_kernels <= MOST_KERNELS);
    for (int64_t k = 0; k < real->n_kernels; k++) {
        kernels[k] = real->kernels[k];
        kernels[k].run = run, kernels[k].refuses = refuses;
        if (stand_in.fused_dear && kernels[k].stage == TESS_STAGE_ATTENTION)
            kernels[k].cost.item = 1;
    }
    other = *real;
    other.kernels = kernels, other.allocate = allocate;
    return &other;
}

enum { HEADS = 2, N = 512, DIMS = 16 };

static void the_cheaper_that_can_runs(void **state) {
    static const struct {
        int fused_dear, fused_refuses, staged_refuses, allocations_refused;
        tess_status status;
        int fused_runs, staged_runs; /* three stages */
    } cases[] = {
        {0, 0, 0, 0, TESS_OK, 1, 0},
        {1, 0, 0, 0, TESS_OK, 0, 3},
        {0, 1, 0, 0, TESS_OK, 0, 3},
        {1, 0, 1, 0, TESS_OK, 1, 0},
        {1, 0, 0, 1, TESS_OK, 1, 0},            /* no room for the scores, 2 MB */
        {0, 1, 0, 1, TESS_OUT_OF_MEMORY, 0, 0}, /* and no other pipeline */
        {0, 1, 1, 0, TESS_UNSUPPORTED, 0, 0},
    };
    static float q[HEADS * N * DIMS], k[HEADS * N * DIMS], v[HEADS * N * DIMS];
    static float first[HEADS * N * DIMS], o[HEADS * N * DIMS];
    const tess_tensor tq = tess_tensor_bhnd(q, TESS_F32, 1, HEADS, N, DIMS);
    const tess_tensor tk = tess_tensor_bhnd(k, TESS_F32, 1, HEADS, N, DIMS);
    const tess_tensor tv = tess_tensor_bhnd(v, TESS_F32, 1, HEADS, N, DIMS);
    const tess_tensor to = tess_tensor_bhnd(o, TESS_F32, 1, HEADS, N, DIMS);
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    (void)state;
    shape.n_q = N;
    for (int x = 0; x < HEADS * N * DIMS; x++) {
        q[x] = (float)(x * 37 % 101) / 50 - 1;
        k[x] = (float)(x * 53 % 103) / 50 - 1;
        v[x] = (float)(x * 71 % 107) / 50 - 1;
    }
    assert_int_equal(TESS_OK, tess_pattern_from_spec(&pattern, "dense", &shape, NULL));
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        tess_error error, untouched;
        memset(&error, 0x5a, sizeof error);
        error.struct_size = sizeof error;
        untouched = error;
        memset(&stand_in, 0, sizeof stand_in);
        stand_in.fused_dear = cases[c].fused_dear;
        stand_in.fused_refuses = cases[c].fused_refuses;
        stand_in.staged_refuses = cases[c].staged_refuses;
        stand_in.allocations_refused = cases[c].allocations_refused;
        memset(o, 0xff, sizeof o);
        assert_int_equal(tess_attention(TESS_CPU, &tq, &tk, &tv, pattern, &to, NULL, &error),
                         cases[c].status);
        assert_int_equal(stand_in.fused_runs, cases[c].fused_runs);
        assert_int_equal(stand_in.staged_runs, cases[c].staged_runs);
        if (cases[c].status) {
            assert_string_equal(error.function, "tess_attention");
            continue;
        }
        assert_memory_equal(&error, &untouched, sizeof error);
        if (c == 0)
            memcpy(first, o, sizeof o);
        for (int x = 0; x < HEADS * N * DIMS; x++)
            assert_true(o[x] - first[x] < 1e-6F && first[x] - o[x] < 1e-6F);
    }
    tess_pattern_free(pattern);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_cheaper_that_can_runs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
