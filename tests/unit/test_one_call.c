/*
 * Which pipeline the one call runs, forward and backward: the cheaper one that has kernels and memory. The CPU backend with
 * other costs, refusals and memory stands in for itself, by --wrap=backend_get.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "plan/kernels.h"

const struct backend *__real_backend_get(tess_backend backend);
const struct backend *__wrap_backend_get(tess_backend backend);

enum { MOST_KERNELS = 64 };

/* State of the stand-in: what it does, and what it has seen. */
static struct {
    int fused_dear, fused_refuses, staged_refuses;
    int fused_run_refused, staged_run_refused; /* by the last kernel that is asked before a run */
    int allocations_refused;                   /* the first ones of more than 1 MB */
    int fused_runs, staged_runs;
} stand_in;

static const struct backend *real;
static struct kernel kernels[MOST_KERNELS];
static struct family families[MOST_KERNELS];

static int is_fused(tess_stage stage) {
    return stage == TESS_STAGE_ATTENTION || stage == TESS_STAGE_GRADIENT_KEYS ||
           stage == TESS_STAGE_GRADIENT_ROWS;
}

static tess_status run(const struct kernel_args *args, tess_error *error) {
    if (is_fused(args->kernel->stage))
        stand_in.fused_runs++;
    else if (args->kernel->stage != TESS_STAGE_DELTA) /* which both have */
        stand_in.staged_runs++;
    return real->kernels[args->kernel - kernels].run(args, error);
}

static const char *refuses(const struct kernel *kernel, const struct problem *problem,
                           const tess_target *target) {
    const int both = kernel->stage == TESS_STAGE_DELTA;
    if (!both && (is_fused(kernel->stage) ? stand_in.fused_refuses : stand_in.staged_refuses))
        return "it does not today";
    const struct kernel *original = &real->kernels[kernel - kernels];
    return original->family->refuses(original, problem, target);
}

/* The staged pipeline's last pass, of either operation, or the fused one's. */
static const char *refuses_run(const struct kernel_args *args) {
    const tess_stage stage = args->kernel->stage;
    const int last = stage == TESS_STAGE_SPMM || stage == TESS_STAGE_SPMM_TRANSPOSED;
    return (is_fused(stage) && stand_in.fused_run_refused) || (last && stand_in.staged_run_refused)
               ? "it takes no such tensors"
               : NULL;
}

static void *allocate(size_t size) {
    if (size > 1 << 20 && stand_in.allocations_refused > 0) {
        stand_in.allocations_refused--;
        return NULL;
    }
    return real->device.allocate(size);
}

const struct backend *__wrap_backend_get(tess_backend backend) {
    static struct backend other;
    real = __real_backend_get(TESS_CPU);
    assert_true(backend == TESS_CPU && real->n_kernels <= MOST_KERNELS);
    for (int64_t k = 0; k < real->n_kernels; k++) {
        kernels[k] = real->kernels[k];
        families[k] = *kernels[k].family;
        families[k].refuses = refuses;
        kernels[k].family = &families[k];
        kernels[k].run = run, kernels[k].refuses_run = refuses_run;
        if (stand_in.fused_dear && is_fused(kernels[k].stage))
            kernels[k].cost.item = 1;
    }
    other = *real;
    other.kernels = kernels, other.device.allocate = allocate;
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

/* A pipeline that takes the tensors is found before anything runs; then the other pipeline has its turn. */
static void the_other_runs_where_one_refuses_the_tensors(void **state) {
    static const struct {
        int fused_dear, fused_refused, staged_refused;
        tess_status status;
        int fused_runs, staged_runs, backward_fused_runs, backward_staged_runs;
    } cases[] = {
        {0, 0, 1, TESS_OK, 1, 0, 1, 0},          {0, 1, 0, TESS_OK, 0, 3, 0, 6},
        {1, 0, 1, TESS_OK, 1, 0, 1, 0},          {1, 1, 0, TESS_OK, 0, 3, 0, 6},
        {0, 1, 1, TESS_UNSUPPORTED, 0, 0, 0, 0}, {1, 1, 1, TESS_UNSUPPORTED, 0, 0, 0, 0},
    };
    enum { KEYS = 64 };
    static float x[HEADS * KEYS * DIMS], out[4][HEADS * KEYS * DIMS], lse[HEADS * KEYS];
    const tess_tensor in = tess_tensor_bhnd(x, TESS_F32, 1, HEADS, KEYS, DIMS);
    const tess_tensor of_lse = tess_tensor_bhnd(lse, TESS_F32, 1, HEADS, KEYS, 1);
    tess_tensor o[4];
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    (void)state;
    shape.n_q = KEYS;
    for (int t = 0; t < 4; t++)
        o[t] = tess_tensor_bhnd(out[t], TESS_F32, 1, HEADS, KEYS, DIMS);
    for (int i = 0; i < HEADS * KEYS * DIMS; i++)
        x[i] = (float)(i * 37 % 101) / 50 - 1;
    assert_int_equal(TESS_OK, tess_pattern_from_spec(&pattern, "dense", &shape, NULL));
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        memset(&stand_in, 0, sizeof stand_in);
        stand_in.fused_dear = cases[c].fused_dear;
        stand_in.fused_run_refused = cases[c].fused_refused;
        stand_in.staged_run_refused = cases[c].staged_refused;
        memset(out, 0xff, sizeof out);
        memset(lse, 0xff, sizeof lse);
        assert_int_equal(tess_attention(TESS_CPU, &in, &in, &in, pattern, &o[0], &of_lse, NULL),
                         cases[c].status);
        assert_int_equal(stand_in.fused_runs, cases[c].fused_runs);
        assert_int_equal(stand_in.staged_runs, cases[c].staged_runs);
        for (int i = 0; i < HEADS * KEYS * DIMS; i++)
            assert_true(isnan(out[0][i]) == (cases[c].status != TESS_OK));
        for (int i = 0; i < HEADS * KEYS; i++)
            assert_true(isnan(lse[i]) == (cases[c].status != TESS_OK));
        stand_in.fused_runs = stand_in.staged_runs = 0;
        assert_int_equal(tess_attention_backward(TESS_CPU, &in, &in, &in, pattern, &in, &of_lse,
                                                 &in, &o[1], &o[2], &o[3], NULL),
                         cases[c].status);
        assert_int_equal(stand_in.fused_runs, cases[c].backward_fused_runs);
        assert_int_equal(stand_in.staged_runs, cases[c].backward_staged_runs);
        for (int i = 0; i < HEADS * KEYS * DIMS && cases[c].status; i++)
            assert_true(isnan(out[1][i]) && isnan(out[2][i]) && isnan(out[3][i]));
    }
    tess_pattern_free(pattern);
}

/* ---- the backward ---- */

/* Contents of a backward's tensors, and its gradients by the definition, in double. */
static struct {
    float q[HEADS][N][DIMS], k[HEADS][N][DIMS], v[HEADS][N][DIMS], d_o[HEADS][N][DIMS];
    float o[HEADS][N][DIMS], lse[HEADS][N];
    float d_q[HEADS][N][DIMS], d_k[HEADS][N][DIMS], d_v[HEADS][N][DIMS];
    double right_q[HEADS][N][DIMS], right_k[HEADS][N][DIMS], right_v[HEADS][N][DIMS];
} b;

static double dot(const float *x, const float *y) {
    double sum = 0;
    for (int d = 0; d < DIMS; d++)
        sum += (double)x[d] * (double)y[d];
    return sum;
}

/* Checks query i, which sees keys 0 ... i. */
static void query_right(int h, int i) {
    const double scale = 1 / sqrt(DIMS);
    double p[N], sum = 0, delta = 0;
    for (int j = 0; j <= i; j++)
        sum += p[j] = exp(scale * dot(b.q[h][i], b.k[h][j]));
    for (int j = 0; j <= i; j++)
        delta += (p[j] /= sum) * dot(b.d_o[h][i], b.v[h][j]);
    for (int j = 0; j <= i; j++) {
        const double ds = scale * p[j] * (dot(b.d_o[h][i], b.v[h][j]) - delta);
        for (int d = 0; d < DIMS; d++) {
            b.right_q[h][i][d] += ds * (double)b.k[h][j][d];
            b.right_k[h][j][d] += ds * (double)b.q[h][i][d];
            b.right_v[h][j][d] += p[j] * (double)b.d_o[h][i][d];
        }
    }
}

static void near_right(const float *x, const double *right) {
    double worst = 0, most = 0;
    for (int i = 0; i < HEADS * N * DIMS; i++) {
        assert_true(isfinite(x[i])); /* written */
        worst = fmax(worst, fabs((double)x[i] - right[i]));
        most = fmax(most, fabs(right[i]));
    }
    assert_true(worst < 2e-6 * most);
}

static void the_cheaper_backward_runs(void **state) {
    static const struct {
        int fused_dear, fused_refuses, staged_refuses, allocations_refused;
        int d_q, d_k, d_v; /* wanted */
        tess_status status;
        int fused_runs, staged_runs;
    } cases[] = {
        {0, 0, 0, 0, 1, 1, 1, TESS_OK, 1, 0},          {0, 0, 0, 0, 1, 0, 0, TESS_OK, 1, 0},
        {0, 0, 0, 0, 0, 1, 0, TESS_OK, 1, 0},          {1, 0, 0, 0, 1, 1, 1, TESS_OK, 0, 6},
        {1, 0, 0, 0, 0, 0, 1, TESS_OK, 0, 3}, /* weights alone */
        {0, 1, 0, 0, 1, 0, 0, TESS_OK, 0, 4},          {1, 0, 1, 0, 1, 1, 1, TESS_OK, 1, 0},
        {1, 0, 0, 1, 1, 1, 1, TESS_OK, 1, 0}, /* no room for scores and their gradients */
        {0, 1, 1, 0, 1, 1, 1, TESS_UNSUPPORTED, 0, 0},
    };
    const tess_tensor q = tess_tensor_bhnd(b.q, TESS_F32, 1, HEADS, N, DIMS);
    const tess_tensor k = tess_tensor_bhnd(b.k, TESS_F32, 1, HEADS, N, DIMS);
    const tess_tensor v = tess_tensor_bhnd(b.v, TESS_F32, 1, HEADS, N, DIMS);
    const tess_tensor o = tess_tensor_bhnd(b.o, TESS_F32, 1, HEADS, N, DIMS);
    const tess_tensor lse = tess_tensor_bhnd(b.lse, TESS_F32, 1, HEADS, N, 1);
    const tess_tensor d_o = tess_tensor_bhnd(b.d_o, TESS_F32, 1, HEADS, N, DIMS);
    const tess_tensor d_q = tess_tensor_bhnd(b.d_q, TESS_F32, 1, HEADS, N, DIMS);
    const tess_tensor d_k = tess_tensor_bhnd(b.d_k, TESS_F32, 1, HEADS, N, DIMS);
    const tess_tensor d_v = tess_tensor_bhnd(b.d_v, TESS_F32, 1, HEADS, N, DIMS);
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    (void)state;
    shape.n_q = N;
    memset(&b, 0, sizeof b);
    for (int x = 0; x < HEADS * N * DIMS; x++) {
        (&b.q[0][0][0])[x] = (float)(x * 37 % 101) / 50 - 1;
        (&b.k[0][0][0])[x] = (float)(x * 53 % 103) / 50 - 1;
        (&b.v[0][0][0])[x] = (float)(x * 71 % 107) / 50 - 1;
        (&b.d_o[0][0][0])[x] = (float)(x * 29 % 97) / 50 - 1;
    }
    for (int x = 0; x < HEADS * N; x++)
        query_right(x / N, x % N);
    memset(&stand_in, 0, sizeof stand_in);
    assert_int_equal(TESS_OK, tess_pattern_from_spec(&pattern, "causal", &shape, NULL));
    assert_int_equal(TESS_OK, tess_attention(TESS_CPU, &q, &k, &v, pattern, &o, &lse, NULL));
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        tess_error error = tess_error_init();
        memset(&stand_in, 0, sizeof stand_in);
        stand_in.fused_dear = cases[c].fused_dear;
        stand_in.fused_refuses = cases[c].fused_refuses;
        stand_in.staged_refuses = cases[c].staged_refuses;
        stand_in.allocations_refused = cases[c].allocations_refused;
        memset(b.d_q, 0xff, sizeof b.d_q);
        memset(b.d_k, 0xff, sizeof b.d_k);
        memset(b.d_v, 0xff, sizeof b.d_v);
        assert_int_equal(tess_attention_backward(TESS_CPU, &q, &k, &v, pattern, &o, &lse, &d_o,
                                                 cases[c].d_q ? &d_q : NULL,
                                                 cases[c].d_k ? &d_k : NULL,
                                                 cases[c].d_v ? &d_v : NULL, &error),
                         cases[c].status);
        assert_int_equal(stand_in.fused_runs, cases[c].fused_runs);
        assert_int_equal(stand_in.staged_runs, cases[c].staged_runs);
        if (cases[c].status) {
            assert_string_equal(error.function, "tess_attention_backward");
            assert_string_equal(error.argument, "backend");
            continue;
        }
        if (cases[c].d_q)
            near_right(&b.d_q[0][0][0], &b.right_q[0][0][0]);
        if (cases[c].d_k)
            near_right(&b.d_k[0][0][0], &b.right_k[0][0][0]);
        if (cases[c].d_v)
            near_right(&b.d_v[0][0][0], &b.right_v[0][0][0]);
    }
    tess_pattern_free(pattern);
}

/* Errors of the one call name its own arguments. */
static void the_backward_names_its_arguments(void **state) {
    enum { Q, K, V, O, LSE, D_O, D_Q, D_K, D_V, TENSORS };
    static const char *const names[] = {"q", "k", "v", "o", "lse", "d_o", "d_q", "d_k", "d_v"};
    float *const data[] = {&b.q[0][0][0],   &b.k[0][0][0],   &b.v[0][0][0],
                           &b.o[0][0][0],   &b.lse[0][0],    &b.d_o[0][0][0],
                           &b.d_q[0][0][0], &b.d_k[0][0][0], &b.d_v[0][0][0]};
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    (void)state;
    memset(&stand_in, 0, sizeof stand_in);
    shape.n_q = N;
    assert_int_equal(TESS_OK, tess_pattern_from_spec(&pattern, "causal", &shape, NULL));
    /* Each tensor is NULL, then has a head too many; -1: no gradient is wanted. */
    for (int wrong = -1; wrong < 2 * TENSORS; wrong++) {
        tess_tensor t[TENSORS];
        const tess_tensor *at[TENSORS];
        tess_error error = tess_error_init();
        for (int i = 0; i < TENSORS; i++) {
            const int64_t dims = i == LSE ? 1 : DIMS;
            const int64_t heads = wrong == TENSORS + i ? HEADS + 1 : HEADS;
            t[i] = tess_tensor_bhnd(data[i], TESS_F32, 1, heads, N, dims);
            at[i] = wrong == i || (wrong < 0 && i >= D_Q) ? NULL : &t[i];
        }
        const tess_status status =
            tess_attention_backward(TESS_CPU, at[Q], at[K], at[V], pattern, at[O], at[LSE], at[D_O],
                                    at[D_Q], at[D_K], at[D_V], &error);
        if (wrong >= D_Q && wrong < TENSORS) { /* one of several */
            assert_int_equal(status, TESS_OK);
            continue;
        }
        assert_int_equal(status, TESS_INVALID_ARGUMENT);
        assert_string_equal(error.function, "tess_attention_backward");
        assert_string_equal(error.argument, wrong < 0              ? "d_q"
                                            : wrong == TENSORS + Q ? "k"
                                                                   : names[wrong % TENSORS]);
    }
    tess_pattern_free(pattern);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cheaper_that_can_runs),
        cmocka_unit_test(the_other_runs_where_one_refuses_the_tensors),
        cmocka_unit_test(the_cheaper_backward_runs),
        cmocka_unit_test(the_backward_names_its_arguments)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
