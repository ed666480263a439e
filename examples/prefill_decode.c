/*
 * A language model's two phases over one KV cache: the prompt in chunks, then token by token. Query i
 * of a run stands at key position i + n_kv - n_q, so a run of the last queries over the cache so far
 * says all that a phase needs. The cache holds NaN past its end: keys that are not listed are never
 * read. To build it:
 *
 *     cc prefill_decode.c $(pkg-config --cflags --libs tessera) -lm
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tessera.h>

enum { HEADS = 8, HEADS_KV = 2, DIM = 64, N = 640, PROMPT = 512, CHUNK = 200 };
#define SPEC "(window(255,0)+global(4))&causal" /* a window of 256 keys, and sinks */

/* Tensors as projections write them, [token][head][dim]; what is computed at once, and in two phases. */
static float q[N][HEADS][DIM], k[N][HEADS_KV][DIM], v[N][HEADS_KV][DIM];
static float whole[N][HEADS][DIM], o[N][HEADS][DIM];
/* The cache, [head][token][dim], with room for all tokens. */
static float cache_k[HEADS_KV][N][DIM], cache_v[HEADS_KV][N][DIM];

static void require(tess_status status, const tess_error *error) {
    if (status) {
        fprintf(stderr, "%s: %s\n", tess_status_name(status), error->message);
        exit(EXIT_FAILURE);
    }
}

static void fill(float *x, size_t count, unsigned seed) {
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

static double microseconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* The first n tokens of the cache: smaller sizes over the strides of the whole. */
static tess_tensor cached(void *data, int64_t n) {
    tess_tensor t = tess_tensor_bhnd(data, TESS_F32, 1, HEADS_KV, N, DIM);
    t.size[2] = n;
    return t;
}

static void append(int begin, int end) {
    for (int h = 0; h < HEADS_KV; h++)
        for (int i = begin; i < end; i++) {
            memcpy(cache_k[h][i], k[i][h], sizeof k[i][h]);
            memcpy(cache_v[h][i], v[i][h], sizeof v[i][h]);
        }
}

/* The prompt, CHUNK tokens at a time: a chunk's rows are those of the whole prompt's pattern. */
static void prefill(void) {
    tess_error error = tess_error_init();
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *prompt, *rows;
    shape.n_q = PROMPT;
    require(tess_pattern_from_spec(&prompt, SPEC, &shape, &error), &error);
    for (int begin = 0, end; begin < PROMPT; begin = end) {
        end = begin + CHUNK < PROMPT ? begin + CHUNK : PROMPT;
        append(begin, end);
        tess_tensor tq = tess_tensor_bnhd(q[begin], TESS_F32, 1, end - begin, HEADS, DIM);
        tess_tensor to = tess_tensor_bnhd(o[begin], TESS_F32, 1, end - begin, HEADS, DIM);
        tess_tensor tk = cached(cache_k, end), tv = cached(cache_v, end);
        require(tess_pattern_select(&rows, prompt, begin, end, 0, end, &error), &error);
        require(tess_attention(TESS_CPU, &tq, &tk, &tv, rows, &to, NULL, &error), &error);
        tess_pattern_free(rows);
    }
    tess_pattern_free(prompt);
}

/* Plans by the length of the cache: small, immutable, good for every layer and every sequence. */
static tess_plan *plans[N + 1];

static tess_plan *plan_of(int n) {
    tess_error error = tess_error_init();
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_problem problem = tess_problem_init();
    tess_pattern *row;
    if (plans[n])
        return plans[n];
    shape.n_q = 1, shape.n_kv = n;
    problem.batch = 1, problem.heads_q = HEADS, problem.heads_kv = HEADS_KV;
    problem.n_q = 1, problem.n_kv = n, problem.d_qk = problem.d_v = DIM;
    problem.threads = 1; /* a token is too little work to share */
    require(tess_pattern_from_spec(&row, SPEC, &shape, &error), &error);
    require(tess_plan_create(&plans[n], &problem, row, NULL, &error), &error);
    tess_pattern_free(row);
    return plans[n];
}

/* One token: the cache has n of them, of which the last is the query's own. */
static void decode(int n, double *planned, double *ran) {
    static _Alignas(64) char workspace[1 << 20];
    tess_error error = tess_error_init();
    tess_tensor tq = tess_tensor_bnhd(q[n - 1], TESS_F32, 1, 1, HEADS, DIM);
    tess_tensor to = tess_tensor_bnhd(o[n - 1], TESS_F32, 1, 1, HEADS, DIM);
    tess_tensor tk = cached(cache_k, n), tv = cached(cache_v, n);
    tess_arguments arguments = tess_arguments_init();
    double begin = microseconds();
    tess_plan *plan = plan_of(n);
    double middle = microseconds();
    arguments.q = &tq, arguments.k = &tk, arguments.v = &tv, arguments.o = &to;
    arguments.workspace = workspace, arguments.workspace_size = sizeof workspace;
    require(tess_run(plan, &arguments, &error, NULL), &error);
    *planned += middle - begin;
    *ran += microseconds() - middle;
}

int main(void) {
    fill(q[0][0], sizeof q / sizeof(float), 1);
    fill(k[0][0], sizeof k / sizeof(float), 2);
    fill(v[0][0], sizeof v / sizeof(float), 3);

    /* Answer of both phases: all tokens at once. */
    tess_error error = tess_error_init();
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    tess_tensor tq = tess_tensor_bnhd(q, TESS_F32, 1, N, HEADS, DIM);
    tess_tensor tk = tess_tensor_bnhd(k, TESS_F32, 1, N, HEADS_KV, DIM);
    tess_tensor tv = tess_tensor_bnhd(v, TESS_F32, 1, N, HEADS_KV, DIM);
    tess_tensor to = tess_tensor_bnhd(whole, TESS_F32, 1, N, HEADS, DIM);
    shape.n_q = N;
    require(tess_pattern_from_spec(&pattern, SPEC, &shape, &error), &error);
    require(tess_attention(TESS_CPU, &tq, &tk, &tv, pattern, &to, NULL, &error), &error);
    tess_pattern_free(pattern);

    int right = 0;
    for (int sequence = 0; sequence < 2; sequence++) {
        memset(cache_k, 0xff, sizeof cache_k); /* NaN */
        memset(cache_v, 0xff, sizeof cache_v);
        memset(o, 0xff, sizeof o);
        double planned = 0, ran = 0;
        prefill();
        for (int n = PROMPT + 1; n <= N; n++) {
            append(n - 1, n);
            decode(n, &planned, &ran);
        }
        printf("sequence %d: %d tokens in chunks of %d, then %d by themselves: plan %.1f us, run "
               "%.1f us a token\n",
               sequence, PROMPT, CHUNK, N - PROMPT, planned / (N - PROMPT), ran / (N - PROMPT));
        const float *a = whole[0][0], *b = o[0][0];
        for (size_t i = 0; i < sizeof o / sizeof(float); i++)
            right += fabsf(a[i] - b[i]) < 1e-5f;
    }
    for (int n = 0; n <= N; n++)
        tess_plan_free(plans[n]);
    int all = 2 * (int)(sizeof o / sizeof(float));
    printf("%d of %d outputs are those of all tokens at once\n", right, all);
    return right == all ? EXIT_SUCCESS : EXIT_FAILURE;
}
