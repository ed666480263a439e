/*
 * How many threads calls start, counted by Linux: none for small work, no more than the caller
 * allows, and never so many that OpenMP ends the process. Each check is a child of its own, in which
 * nothing has used OpenMP before.
 */
#define _DEFAULT_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera.h"

enum { OFFERED = 8, SECONDS = 60 };

static int threads_counted(void) {
    DIR *folder = opendir("/proc/self/task");
    int n = 0;
    for (struct dirent *entry; (entry = readdir(folder));)
        n += entry->d_name[0] != '.';
    closedir(folder);
    return n;
}

/* In a child: leaves it with a line on stderr. */
static void need(int sound, const char *what) {
    if (!sound) {
        fprintf(stderr, "failed: %s\n", what);
        _exit(1);
    }
}

/* Whether the check, in a child that OpenMP offers OFFERED threads, ends well and in time. */
static int holds(void (*check)(int64_t number), int64_t number) {
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(SECONDS);
        omp_set_num_threads(OFFERED);
        check(number);
        need(omp_get_max_threads() == OFFERED, "the caller's own number of threads changed");
        _exit(0);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

struct sizes {
    int64_t heads, n_q, n_kv, d, block, threads;
    tess_pipeline pipeline;
};

/* Pattern, set operations, plan and run. */
static void compute(const struct sizes *s, const char *spec) {
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_problem problem = tess_problem_init();
    tess_arguments arguments = tess_arguments_init();
    tess_pattern *pattern, *both, *turned, *again;
    tess_plan *plan;
    shape.n_q = s->n_q, shape.n_kv = s->n_kv, shape.threads = s->threads;
    shape.block_q = shape.block_kv = s->block;
    need(!tess_pattern_from_spec(&pattern, spec, &shape, NULL), "pattern");
    need(!tess_pattern_union(&both, pattern, pattern, NULL), "union");
    need(!tess_pattern_transpose(&turned, both, NULL), "transposition");
    tess_lists lists = tess_lists_init();
    need(!tess_pattern_lists(turned, &lists, NULL), "lists");
    need(!tess_pattern_from_lists(&again, &lists, NULL), "pattern from lists");

    float *q = calloc((size_t)(s->heads * s->n_q * s->d), sizeof *q);
    float *k = calloc((size_t)(s->heads * s->n_kv * s->d), sizeof *k);
    float *o = calloc((size_t)(s->heads * s->n_q * s->d), sizeof *o);
    const tess_tensor tq = tess_tensor_bhnd(q, TESS_F32, 1, s->heads, s->n_q, s->d);
    const tess_tensor tk = tess_tensor_bhnd(k, TESS_F32, 1, s->heads, s->n_kv, s->d);
    const tess_tensor to = tess_tensor_bhnd(o, TESS_F32, 1, s->heads, s->n_q, s->d);
    need(!tess_problem_from_tensors(&problem, &tq, &tk, &tk, &to, NULL), "problem");
    problem.threads = s->threads, problem.pipeline = s->pipeline;
    need(!tess_plan_create(&plan, &problem, both, NULL, NULL), "plan");
    arguments.q = &tq, arguments.k = arguments.v = &tk, arguments.o = &to;
    arguments.workspace_size = tess_plan_workspace_size(plan);
    arguments.workspace = aligned_alloc(64, (arguments.workspace_size + 63) / 64 * 64);
    need(!tess_run(plan, &arguments, NULL, NULL), "run");
    tess_plan_free(plan);
    tess_pattern_free(pattern), tess_pattern_free(both);
    tess_pattern_free(turned), tess_pattern_free(again);
    free(q), free(k), free(o), free(arguments.workspace);
}

static void one_query(int64_t keys) {
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        compute(&(struct sizes){1, 1, keys, 64, 64, 0, (tess_pipeline)pipeline}, "dense");
        compute(&(struct sizes){8, 1, keys, 64, 64, 0, (tess_pipeline)pipeline},
                "window(255,0)+global(16)");
    }
    need(threads_counted() == 1, "one query started threads");
}

static void small_work_starts_no_thread(void **state) {
    (void)state;
    for (int64_t keys = 64; keys <= 2048; keys *= 2)
        assert_true(holds(one_query, keys));
}

/* Patterns, plans and runs of milliseconds each, by themselves. */
static void large_work(int64_t threads) {
    const int expected = threads ? (int)threads : OFFERED;
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern, *turned;
    shape.n_q = 16384, shape.block_q = shape.block_kv = 16, shape.threads = threads;
    need(!tess_pattern_from_spec(&pattern, "causal", &shape, NULL), "pattern");
    need(threads_counted() == expected, "threads of a pattern");
    need(!tess_pattern_transpose(&turned, pattern, NULL), "transposition");
    need(threads_counted() == expected, "threads of a transposition");
    tess_problem problem = tess_problem_init();
    tess_plan *plan;
    problem.batch = problem.heads_q = problem.heads_kv = 1;
    problem.n_q = problem.n_kv = 16384, problem.d_qk = problem.d_v = 16;
    problem.threads = threads;
    need(!tess_plan_create(&plan, &problem, pattern, NULL, NULL), "plan");
    need(threads_counted() == expected, "threads of a plan");
    compute(&(struct sizes){1, 1024, 1024, 64, 64, threads, TESS_FUSED}, "dense");
    compute(&(struct sizes){1, 1024, 1024, 64, 64, threads, TESS_STAGED}, "dense");
    need(threads_counted() == expected, "threads of a run");
}

static void limits_are_kept(void **state) {
    (void)state;
    const int64_t limits[] = {1, 2, 3, 0};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        assert_true(holds(large_work, limits[i]));
}

/* Entries past the counts are not read, and no work. */
static void few_of_many_entries(int64_t threads) {
    const int64_t rows = 16, capacity = INT64_C(1) << 20;
    const int32_t counts[16] = {1, 0, 2};
    int32_t *indices = calloc((size_t)(rows * capacity), sizeof *indices);
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    shape.n_q = 1024, shape.threads = threads;
    need(indices && !tess_pattern_from_counts(&pattern, indices, counts, capacity, &shape, NULL),
         "pattern");
    need(threads_counted() == 1, "entries past the counts started threads");
}

/* Arrays so large that reading them is shared, though they list little. */
static void large_counts(int64_t threads) {
    const int64_t rows = 1024;
    int32_t *indices = calloc((size_t)(rows * rows), sizeof *indices);
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    shape.n_q = 64 * rows, shape.threads = threads;
    need(indices && !tess_pattern_from_counts(&pattern, indices, NULL, rows, &shape, NULL),
         "pattern");
    need(threads_counted() == (threads ? threads : OFFERED), "threads of counts");
}

static void large_blocks(int64_t threads) {
    const int64_t rows = 2048;
    uint8_t *blocks = calloc((size_t)(rows * rows), sizeof *blocks);
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    shape.n_q = 64 * rows, shape.threads = threads;
    need(blocks && !tess_pattern_from_blocks(&pattern, blocks, &shape, NULL), "pattern");
    need(threads_counted() == (threads ? threads : OFFERED), "threads of blocks");
}

static void arrays_are_shared_where_it_pays(void **state) {
    (void)state;
    const int64_t limits[] = {1, 2, 3, 0};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        assert_true(holds(few_of_many_entries, limits[i]));
        assert_true(holds(large_counts, limits[i]));
        assert_true(holds(large_blocks, limits[i]));
    }
}

/* A plan alone, whose pattern was built by as many threads as there are: the limit is the plan's. */
static void plan_alone(int64_t threads) {
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    tess_plan *plan;
    tess_problem problem = tess_problem_init();
    shape.n_q = 16384, shape.block_q = shape.block_kv = 16, shape.threads = 1;
    need(!tess_pattern_from_spec(&pattern, "causal", &shape, NULL), "pattern");
    problem.batch = problem.heads_q = problem.heads_kv = 1;
    problem.n_q = problem.n_kv = 16384, problem.d_qk = problem.d_v = 16;
    problem.threads = threads;
    need(!tess_plan_create(&plan, &problem, pattern, NULL, NULL), "plan");
    need(threads_counted() == threads, "threads of a plan");
}

static void plans_have_a_limit_of_their_own(void **state) {
    (void)state;
    assert_true(holds(plan_alone, 1));
    assert_true(holds(plan_alone, 2));
}

static void *run_many(void *threads) {
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        compute(&(struct sizes){1, 50, 3000, 64, 16, *(int64_t *)threads, (tess_pipeline)pipeline},
                "dense");
        compute(&(struct sizes){1, 4096, 4096, 8, 4, *(int64_t *)threads, (tess_pipeline)pipeline},
                "window(9,9)");
    }
    return NULL;
}

static void many(int64_t threads) {
    run_many(&threads);
    pthread_attr_t little;
    pthread_t caller;
    pthread_attr_init(&little);
    need(!pthread_attr_setstacksize(&little, 64 << 10) &&
             !pthread_create(&caller, &little, run_many, &threads),
         "a thread with a stack of 64 KiB");
    pthread_join(caller, NULL);
}

/* 0 means as many as OpenMP offers, which may be as absurd. */
static void many_offered(int64_t threads) {
    omp_set_num_threads((int)threads);
    many(0);
    need(omp_get_max_threads() == threads, "the caller's own number of threads changed");
    omp_set_num_threads(OFFERED);
}

static void no_legal_limit_kills(void **state) {
    (void)state;
    const int64_t limits[] = {500, 30000, 65536};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        assert_true(holds(many, limits[i]));
        assert_true(holds(many_offered, limits[i]));
    }
}

/* A child of a process that used a team has none of its threads: calls that want one hang in
 * libgomp, those with threads = 1 work. */
static void after_fork(int64_t threads) {
    compute(&(struct sizes){1, 1024, 1024, 64, 64, 0, TESS_FUSED}, "dense");
    need(threads_counted() > 1, "the parent used no team");
    need(holds(large_work, threads), "a child of fork()");
}

static void fork_leaves_one_thread(void **state) {
    (void)state;
    assert_true(holds(after_fork, 1));
}

static void limits_are_checked(void **state) {
    (void)state;
    tess_error error = tess_error_init();
    tess_pattern *pattern;
    tess_pattern_shape shape = tess_pattern_shape_init();
    const int64_t wrong[] = {-1, 65537, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        shape.n_q = 4, shape.threads = wrong[i];
        assert_int_equal(tess_pattern_from_spec(&pattern, "dense", &shape, &error),
                         TESS_INVALID_ARGUMENT);
        assert_string_equal(error.argument, "shape");
        assert_non_null(strstr(error.message, "threads"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_work_starts_no_thread),
        cmocka_unit_test(limits_are_kept),
        cmocka_unit_test(arrays_are_shared_where_it_pays),
        cmocka_unit_test(plans_have_a_limit_of_their_own),
        cmocka_unit_test(no_legal_limit_kills),
        cmocka_unit_test(fork_leaves_one_thread),
        cmocka_unit_test(limits_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
