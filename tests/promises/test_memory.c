/*
 * Refused allocations of pattern constructors, planning and the one-call run: each one alone, and all from
 * each one on. The status is TESS_OUT_OF_MEMORY, nothing leaks, no output is touched, and the next try
 * succeeds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <omp.h>

#include "support/alloc.h"
#include "support/support.h"

#define N 150
#define TOP_K 5
#define BLOCKS 10 /* blocks of 16 queries or keys */

static struct lab_setting setting;
static struct lab_tensor d_q, d_k, d_v; /* gradients of the setting's tensors */
static tess_pattern *other;
static int64_t live_at_start; /* the CUDA runtime has some of its own */
static uint8_t mask[N * N];
static int32_t topk[N * TOP_K];
static int32_t columns[BLOCKS * TOP_K];
static uint64_t bits[BLOCKS];

/* One thing to try: makes it and, when that succeeded, frees it again. */
struct attempt {
    const char *name;
    tess_status (*run)(const void *argument, tess_error *error);
    const void *argument;
};

static tess_status done(tess_status status, tess_pattern *const *pattern) {
    if (status != TESS_OK)
        assert_null(*pattern);
    tess_pattern_free(*pattern);
    return status;
}

static tess_pattern_shape shape_of(int64_t block, int64_t heads) {
    tess_pattern_shape shape = tess_pattern_shape_init();
    shape.n_q = N;
    shape.block_q = shape.block_kv = block;
    shape.heads = heads;
    return shape;
}

static tess_status try_spec(const void *spec, tess_error *error) {
    tess_pattern *pattern = NULL;
    tess_pattern_shape shape = shape_of(16, 2);
    return done(tess_pattern_from_spec(&pattern, spec, &shape, error), &pattern);
}

/* Large enough for a look at its size first. */
static tess_status try_large(const void *spec, tess_error *error) {
    tess_pattern *pattern = NULL;
    tess_pattern_shape shape = shape_of(1, 1);
    shape.n_q = 16;
    shape.n_kv = INT64_C(1) << 20;
    return done(tess_pattern_from_spec(&pattern, spec, &shape, error), &pattern);
}

static tess_status try_mask(const void *argument, tess_error *error) {
    tess_pattern *pattern = NULL;
    tess_pattern_shape shape = shape_of(16, 1);
    return done(tess_pattern_from_mask(&pattern, argument, &shape, error), &pattern);
}

static tess_status try_topk(const void *argument, tess_error *error) {
    tess_pattern *pattern = NULL;
    tess_pattern_shape shape = shape_of(1, 1);
    return done(tess_pattern_from_topk(&pattern, argument, TOP_K, &shape, error), &pattern);
}

static tess_status try_counts(const void *argument, tess_error *error) {
    static const int32_t counts[BLOCKS] = {1, 2, 3, 4, 5, 0, 5, 4, 3, 2};
    tess_pattern *pattern = NULL;
    tess_pattern_shape shape = shape_of(16, 1);
    return done(tess_pattern_from_counts(&pattern, argument, counts, TOP_K, &shape, error),
                &pattern);
}

static tess_status try_blocks(const void *argument, tess_error *error) {
    tess_pattern *pattern = NULL;
    tess_pattern_shape shape = shape_of(16, 1);
    return done(tess_pattern_from_blocks(&pattern, argument, &shape, error), &pattern);
}

static tess_status try_bits(const void *argument, tess_error *error) {
    tess_pattern *pattern = NULL;
    tess_pattern_shape shape = shape_of(16, 1);
    return done(tess_pattern_from_bits(&pattern, argument, &shape, error), &pattern);
}

static tess_status try_lists(const void *argument, tess_error *error) {
    tess_pattern *pattern = NULL;
    tess_lists lists = tess_lists_init();
    assert_int_equal(tess_pattern_lists(argument, &lists, NULL), TESS_OK);
    return done(tess_pattern_from_lists(&pattern, &lists, error), &pattern);
}

static tess_status try_union(const void *argument, tess_error *error) {
    tess_pattern *pattern = NULL;
    return done(tess_pattern_union(&pattern, argument, other, error), &pattern);
}

static tess_status try_intersection(const void *argument, tess_error *error) {
    tess_pattern *pattern = NULL;
    return done(tess_pattern_intersection(&pattern, argument, other, error), &pattern);
}

static tess_status try_transpose(const void *argument, tess_error *error) {
    tess_pattern *pattern = NULL;
    return done(tess_pattern_transpose(&pattern, argument, error), &pattern);
}

static tess_status try_concat(const void *argument, tess_error *error) {
    tess_pattern *pattern = NULL;
    const tess_pattern *parts[] = {argument, other, argument};
    return done(tess_pattern_concat(&pattern, parts, 3, error), &pattern);
}

static tess_status try_select(const void *argument, tess_error *error) {
    tess_pattern *pattern = NULL;
    return done(tess_pattern_select(&pattern, argument, 5, N - 5, 7, N, error), &pattern);
}

struct asked_plan {
    tess_pipeline pipeline;
    tess_operation operation;
};
static tess_status try_plan(const void *argument, tess_error *error) {
    const struct asked_plan *asked = argument;
    tess_problem problem = lab_case_problem(&setting.c, asked->pipeline);
    problem.operation = asked->operation;
    tess_plan *plan = NULL;
    tess_status status = tess_plan_create(&plan, &problem, setting.pattern, NULL, error);
    if (status != TESS_OK)
        assert_null(plan);
    tess_plan_free(plan);
    return status;
}

/* Values do not matter: q stands for the gradient of o. */
static tess_status try_backward(const void *argument, tess_error *error) {
    (void)argument;
    struct lab_tensor *const gradients[] = {&d_q, &d_k, &d_v};
    uint64_t before = 0, after = 0;
    for (int i = 0; i < 3; i++) {
        lab_tensor_poison(gradients[i]);
        before ^= lab_buffer_hash(&gradients[i]->buffer) << i;
    }
    const tess_status status =
        tess_attention_backward(TESS_CPU, &setting.q.view, &setting.k.view, &setting.v.view,
                                setting.pattern, &setting.o.view, &setting.lse.view,
                                &setting.q.view, &d_q.view, &d_k.view, &d_v.view, error);
    for (int i = 0; i < 3; i++)
        after ^= lab_buffer_hash(&gradients[i]->buffer) << i;
    assert_int_equal(before != after, status == TESS_OK);
    return status;
}

/* A plan for a GPU, which need not be there. */
struct cuda_plan {
    const char *kernel;
    tess_type type;
    int32_t rows;
    tess_operation operation;
};
static tess_status try_cuda_plan(const void *argument, tess_error *error) {
    const struct cuda_plan *asked = argument;
    tess_problem problem = lab_case_problem(&setting.c, TESS_FUSED);
    tess_target target = tess_target_init();
    tess_plan *plan = NULL;
    target.backend = TESS_CUDA, target.architecture = 90, target.multiprocessors = 132;
    problem.kernel = asked->kernel, problem.type = asked->type, problem.tile_rows = asked->rows;
    problem.operation = asked->operation;
    tess_status status = tess_plan_create(&plan, &problem, setting.pattern, &target, error);
    if (status != TESS_OK)
        assert_null(plan);
    tess_plan_free(plan);
    return status;
}

static int build_has_cuda(void) {
    for (int64_t k = 0; k < tess_kernel_count(); k++) {
        tess_kernel_info info = tess_kernel_info_init();
        assert_int_equal(tess_kernel_describe(k, &info, NULL), TESS_OK);
        if (info.backend == TESS_CUDA)
            return 1;
    }
    return 0;
}

static tess_status try_attention(const void *argument, tess_error *error) {
    (void)argument;
    lab_tensor_poison(&setting.o);
    lab_tensor_poison(&setting.lse);
    uint64_t o = lab_buffer_hash(&setting.o.buffer), lse = lab_buffer_hash(&setting.lse.buffer);
    tess_status status = tess_attention(TESS_CPU, &setting.q.view, &setting.k.view, &setting.v.view,
                                        setting.pattern, &setting.o.view, &setting.lse.view, error);
    int touched =
        o != lab_buffer_hash(&setting.o.buffer) || lse != lab_buffer_hash(&setting.lse.buffer);
    assert_int_equal(touched, status == TESS_OK);
    return status;
}

static void refuse_each(const struct attempt *a, int onward) {
    for (int64_t n = 1;; n++) {
        tess_error error = tess_error_init();
        int64_t before = alloc_live();
        alloc_refuse(n, onward);
        tess_status status = a->run(a->argument, &error);
        int64_t refused = alloc_refused();
        alloc_refuse(0, 0);
        if (alloc_live() != before)
            fail_msg("%s leaks %lld blocks when call %lld is refused", a->name,
                     (long long)(alloc_live() - before), (long long)n);
        if (refused == 0) {
            if (status != TESS_OK)
                fail_msg("%s: %s", a->name, error.message);
            if (n == 1)
                fail_msg("%s allocates nothing: nothing was tested", a->name);
            print_message("%-24s each of %lld allocations refused, %s\n", a->name, (long long)n - 1,
                          onward ? "and all after it" : "it alone");
            return;
        }
        if (status != TESS_OUT_OF_MEMORY || error.status != TESS_OUT_OF_MEMORY)
            fail_msg("%s answers %s when call %lld is refused", a->name, tess_status_name(status),
                     (long long)n);
        assert_int_equal(a->run(a->argument, NULL), TESS_OK);
    }
}

static void refuse_all(const struct attempt attempts[], size_t n) {
    const int threads[] = {1, 3};
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        omp_set_num_threads(threads[t]);
        for (size_t i = 0; i < n; i++) {
            refuse_each(&attempts[i], 0);
            refuse_each(&attempts[i], 1);
        }
    }
}

static void every_allocation(void **state) {
    (void)state;
    static const struct asked_plan fused = {TESS_FUSED, TESS_ATTENTION};
    static const struct asked_plan staged = {TESS_STAGED, TESS_ATTENTION};
    static const struct asked_plan fused_backward = {TESS_FUSED, TESS_ATTENTION_BACKWARD};
    static const struct asked_plan staged_backward = {TESS_STAGED, TESS_ATTENTION_BACKWARD};
    const struct attempt attempts[] = {
        {"window", try_spec, "window(20,7)"},
        {"bigbird", try_spec, "bigbird(32,3,2,1)"},
        {"summary & (causal + ...)", try_spec, "summary(9,7)&(causal+global_grid(5))"},
        {"segments + dilated", try_spec, "segments(50,30)+dilated(4,9)"},
        {"random", try_spec, "random(0.3,4)"},
        {"random_row", try_spec, "random_row(0.3,4)"},
        {"shared_random", try_spec, "shared_random(0.3,0.5,4)"},
        {"large", try_large, "window(9,0)+random_row(0.00001,4)"},
        {"mask", try_mask, mask},
        {"topk", try_topk, topk},
        {"counts", try_counts, columns},
        {"blocks", try_blocks, mask},
        {"bits", try_bits, bits},
        {"lists", try_lists, setting.pattern},
        {"union", try_union, setting.pattern},
        {"intersection", try_intersection, setting.pattern},
        {"each", try_spec, "each(50,30,70; segments(20,10)+dilated(4,9)+bigbird(9,2,2,1))"},
        {"transpose", try_transpose, setting.pattern},
        {"concat", try_concat, setting.pattern},
        {"select", try_select, setting.pattern},
        {"plan, fused", try_plan, &fused},
        {"plan, staged", try_plan, &staged},
        {"plan, fused backward", try_plan, &fused_backward},
        {"plan, staged backward", try_plan, &staged_backward},
        {"tess_attention", try_attention, NULL},
        {"tess_attention_backward", try_backward, NULL},
    };
    refuse_all(attempts, sizeof attempts / sizeof *attempts);
}

static void every_allocation_of_cuda_plans(void **state) {
    (void)state;
    static const struct cuda_plan balanced = {"cuda_attention_f32_d64", TESS_F32, 64,
                                              TESS_ATTENTION};
    static const struct cuda_plan grouped = {"cuda_attention_bf16_sm90_d64", TESS_BF16, 128,
                                             TESS_ATTENTION};
    static const struct cuda_plan backward = {NULL, TESS_BF16, 0, TESS_ATTENTION_BACKWARD};
    const struct attempt attempts[] = {
        {"plan, balanced steps", try_cuda_plan, &balanced},
        {"plan, mask groups", try_cuda_plan, &grouped},
        {"plan, CUDA backward", try_cuda_plan, &backward},
    };
    assert_true(build_has_cuda()); /* cuda_planning.c stands in where nothing of CUDA was built */
    refuse_all(attempts, sizeof attempts / sizeof *attempts);
}

static int make(void **state) {
    (void)state;
    live_at_start = alloc_live();
    setting_make(&setting, "h=2,hkv=1,n=150,d=8,block=16x16,threads=2,"
                           "pattern=global(20)+dilated(5,3)+random(0.1,3)");
    tess_pattern_shape shape = shape_of(16, 1);
    const int64_t rows[] = {1, 2, N, 8}, keys[] = {1, 1, N, 8};
    assert_int_equal(lab_tensor_make(&d_q, TESS_F32, rows, setting.c.layout, 16), 0);
    assert_int_equal(lab_tensor_make(&d_k, TESS_F32, keys, setting.c.layout, 16), 0);
    assert_int_equal(lab_tensor_make(&d_v, TESS_F32, keys, setting.c.layout, 16), 0);
    for (int i = 0; i < N * N; i++)
        mask[i] = i % 7 == 0 || i % 299 < 40;
    for (int i = 0; i < N * TOP_K; i++)
        topk[i] = i * 37 % (N + 1) - 1;
    for (int i = 0; i < BLOCKS * TOP_K; i++)
        columns[i] = i * 7 % (BLOCKS + 1) - 1;
    for (int i = 0; i < BLOCKS; i++)
        bits[i] = UINT64_C(0x9e3779b97f4a7c15) >> i;
    return tess_pattern_from_spec(&other, "summary(30,5)", &shape, NULL) == TESS_OK ? 0 : -1;
}

static int unmake(void **state) {
    (void)state;
    tess_pattern_free(other);
    lab_tensor_free(&d_q);
    lab_tensor_free(&d_k);
    lab_tensor_free(&d_v);
    lab_setting_free(&setting);
    return alloc_live() == live_at_start ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation),
        cmocka_unit_test(every_allocation_of_cuda_plans),
    };
    return cmocka_run_group_tests(tests, make, unmake) != 0;
}
