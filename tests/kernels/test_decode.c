/*
 * Decode on CUDA, over images that the host fills and copies to the device: drawn problems against the
 * oracle, V in K, repeats, digits of q, one captured graph of fill and run over lists that change, and an image that
 * nobody filled. Without a device the test says so and is skipped.
 *
 *     test_decode [CASES] [FIRST SEED]     400 from seed 1 unless given
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lab/device/device.h"
#include "lab/fill/fill.h"
#include "lab/fill/half.h"
#include "lab/memory/mirror.h"
#include "lab/fill/rng.h"
#include "support/caches.h"
#include "support/decode_problem.h"
#include "support/device_lists.h"

#include "cpu.h"
#include "plan/reserve.h"

enum { SKIPPED = 77, REPEATS = 3, REPLAYS = 6, HEADS = 256 };

static int64_t cases = 400, first_seed = 1;

/* Counts of what images had: parts of tiles, bands; how many runs fetched V with K, and whose kernel is
 * Hopper's; what caches had; q of f32, o of f32 beside another q, second views. */
static int64_t combines, bands, in_k, of_hopper, of_codes, of_blocks, paged, eight_bit, scaled,
    of_f32, to_f32, ropes;

/* ---- a problem, its plan and its memory ---- */

struct decoding {
    uint64_t seed;
    struct device_lists lists;
    tess_problem problem;
    tess_plan *plan;
    tess_target target;
    int v_in_k;      /* V is the first dims of K, and not declared to be */
    char blocks[64]; /* a kernel of Hopper's forward that takes it; empty: none */
    struct lab_tensor q, k, v, o, lse;
    struct lab_buffer workspace, slopes, sinks, word;
    struct lab_scoring scoring;
    struct lab_cache cache; /* stands in place of k and v, for runs and the oracle */
    struct lab_mirror mirror;
    tess_tensor at[5]; /* on the device: q, k, v, o, lse */
    tess_tensor views[LAB_CACHE_VIEWS];
    tess_arguments arguments;
    void *image; /* on the device */
    tess_stream stream;
};

static void tensor_make(struct lab_tensor *t, tess_type type, int64_t batch, int64_t heads,
                        int64_t n, int64_t d, uint64_t seed) {
    const int64_t size[4] = {batch, heads, n, d};
    if (lab_tensor_make(t, type, size, (enum lab_layout)lab_below(seed, 80, 1, 2), 16) != 0)
        fail_msg("no memory");
    for (int64_t row = 0; row < batch * heads * n; row++)
        for (int64_t i = 0; i < d; i++)
            lab_put(t->view.data, type,
                    lab_row(&t->view, row / n / heads, row / n % heads, row % n) + i,
                    lab_normal(seed, (uint64_t)row, (uint64_t)i));
}

static void problem_make(struct decoding *t) {
    const struct decode_problem drawn = decode_problem_draw(t->seed);
    const tess_problem *p = &drawn.problem;
    t->problem = drawn.problem, t->v_in_k = drawn.v_in_k;
    memcpy(t->blocks, drawn.blocks, sizeof t->blocks);
    device_lists_make(&t->lists, &drawn.sizes, t->seed);
    paged += p->page_size > 0, scaled += p->k_scale || p->v_scale, ropes += p->rope_dims > 0;
    eight_bit += tess_type_size(p->k_type) == 1 || tess_type_size(p->v_type) == 1;
    of_f32 += p->type == TESS_F32, to_f32 += p->type != TESS_F32 && p->o_f32;
}

/* To be called after a change of k or v. */
static void cache_store(struct decoding *t) {
    lab_cache_values(&t->cache, &t->k.view, &t->v.view);
    lab_cache_store(&t->cache, &t->q.view, &t->k.view, &t->v.view);
    t->scoring.cache = &t->cache.caching;
}

static void modifiers_make(struct decoding *t) {
    const int64_t heads = t->problem.heads_q;
    assert_int_equal(lab_buffer_make(&t->slopes, HEADS * sizeof(float), 64), 0);
    assert_int_equal(lab_buffer_make(&t->sinks, HEADS * sizeof(float), 64), 0);
    assert_int_equal(lab_buffer_make(&t->word, sizeof(uint64_t), 64), 0);
    float *slopes = (float *)t->slopes.data, *sinks = (float *)t->sinks.data;
    assert_true(heads <= HEADS);
    for (int h = 0; h < HEADS; h++)
        slopes[h] = (float)(h % 3 - 1) * 0.05f, sinks[h] = (float)(h % 5) - 2;
    const uint64_t word = lab_random(t->seed, 5, 5);
    memcpy(t->word.data, &word, sizeof word);
    t->scoring = (struct lab_scoring){.scale = t->problem.scale,
                                      .softcap = t->problem.softcap,
                                      .alibi = t->problem.alibi ? slopes : NULL,
                                      .sink = t->problem.sink ? sinks : NULL,
                                      .dropped = t->problem.dropout > 0 ? 16384 : 0,
                                      .seed = word,
                                      .position = t->lists.today[0] - t->problem.n_kv,
                                      .cache = &t->cache.caching};
}

static void arguments_make(struct decoding *t) {
    const struct lab_tensor *const tensors[] = {lab_cache_q(&t->cache, &t->q),
                                                lab_cache_k(&t->cache, &t->k),
                                                lab_cache_v(&t->cache, &t->v), &t->o, &t->lse};
    tess_arguments *a = &t->arguments;
    lab_mirror_make(&t->mirror, TESS_CUDA);
    for (int i = 0; i < 5; i++)
        assert_int_equal(lab_mirror_tensor(&t->mirror, tensors[i], &t->at[i]), 0);
    *a = tess_arguments_init();
    assert_int_equal(lab_cache_place(&t->cache, &t->mirror, t->views, a), 0);
    a->v = t->problem.v_in_k ? NULL : &t->at[2];
    a->q = &t->at[0], a->k = &t->at[1], a->o = &t->at[3], a->lse = &t->at[4];
    a->workspace = lab_mirror_add(&t->mirror, &t->workspace);
    a->workspace_size = tess_plan_workspace_size(t->plan);
    a->image = t->image, a->image_size = tess_plan_image_size(t->plan);
    const float *slopes = lab_mirror_add(&t->mirror, &t->slopes);
    const float *sinks = lab_mirror_add(&t->mirror, &t->sinks);
    const uint64_t *word = lab_mirror_add(&t->mirror, &t->word);
    a->alibi = t->problem.alibi ? slopes : NULL;
    a->sink = t->problem.sink ? sinks : NULL;
    a->seed = t->problem.dropout > 0 ? word : NULL;
}

/* Whether Hopper's decode reads K and V: of 16 bits, or of 8 with V in K. */
static int hopper_reads(const tess_problem *p) {
    const int plain = p->softcap == 0 && !p->alibi && p->dropout == 0;
    return (!p->k_type && !p->v_type) ||
           (tess_type_size(p->k_type) == 1 && p->v_in_k && plain && p->d_qk - p->rope_dims == 512);
}

/* On Hopper a part of the problems asks for its kernel by name. For few multiprocessors CTAs
 * that stay have several items each. */
static void kernel_draw(struct decoding *t, tess_target *target) {
    const uint64_t seed = t->seed;
    if (PICK(32, 0, 1))
        target->multiprocessors = 1 + (int32_t)lab_below(seed, 33, 2, 9);
    if (target->architecture == 90 && t->blocks[0] && PICK(70, 0, 1, 1))
        t->problem.kernel = t->blocks;
    else if (target->architecture == 90 && t->problem.type && hopper_reads(&t->problem) &&
             PICK(31, 0, 0, 1))
        t->problem.kernel = t->problem.type == TESS_F16 ? "cuda_decode_f16_sm90_d576_v512"
                                                        : "cuda_decode_bf16_sm90_d576_v512";
}

/* A plan for the problem as it is. */
static tess_plan *reserved(const struct decoding *t) {
    tess_error error = tess_error_init();
    const tess_device_pattern declared = lab_listed_declared(&t->lists.listed);
    tess_plan *plan;
    if (tess_plan_reserve(&plan, &t->problem, &declared, &t->target, &error))
        fail_msg("seed %llu: %s", (unsigned long long)t->seed, error.message);
    return plan;
}

static void decoding_make(struct decoding *t, uint64_t seed) {
    tess_error error = tess_error_init();
    memset(t, 0, sizeof *t);
    t->seed = seed;
    problem_make(t);
    const tess_problem *p = &t->problem;
    t->target = tess_target_init();
    assert_int_equal(tess_target_query(&t->target, TESS_CUDA, -1, &error), TESS_OK);
    kernel_draw(t, &t->target);
    t->plan = reserved(t);
    tensor_make(&t->q, p->type, p->batch, p->heads_q, p->n_q, p->d_qk, seed);
    struct lab_cache_shape cache = cache_shape(p, seed);
    cache.layout = PICK(48, LAB_BHND, LAB_BNHD);
    tensor_make(&t->k, lab_cache_k_type(&cache), p->batch, p->heads_kv, p->n_kv, p->d_qk, seed + 1);
    tensor_make(&t->v, cache.v_type, p->batch, p->heads_kv, p->n_kv, p->d_v, seed + 2);
    if (lab_cache_make(&t->cache, &cache))
        fail_msg("no memory");
    tensor_make(&t->o, p->o_f32 ? TESS_F32 : p->type, p->batch, p->heads_q, p->n_q, p->d_v,
                seed + 3);
    tensor_make(&t->lse, TESS_F32, p->batch, p->heads_q, p->n_q, 1, seed + 4);
    const size_t size = tess_plan_workspace_size(t->plan);
    assert_int_equal(lab_buffer_make(&t->workspace, size, 64), 0);
    memset(t->workspace.data, 0xff, size); /* NaN */
    if (t->v_in_k)                         /* its numbers in a tensor of its own */
        lab_cache_values(&(struct lab_cache){.v_in_k = 1}, &t->k.view, &t->v.view);
    cache_store(t);
    modifiers_make(t);
    t->image = lab_device_alloc(TESS_CUDA, tess_plan_image_size(t->plan));
    assert_non_null(t->image);
    assert_null(lab_device_stream_make(TESS_CUDA, &t->stream));
}

static void decoding_free(struct decoding *t) {
    lab_mirror_free(&t->mirror);
    lab_device_stream_free(TESS_CUDA, t->stream);
    lab_device_free(TESS_CUDA, t->image);
    tess_plan_free(t->plan);
    struct lab_tensor *const tensors[] = {&t->q, &t->k, &t->v, &t->o, &t->lse};
    for (int i = 0; i < 5; i++)
        lab_tensor_free(tensors[i]);
    struct lab_buffer *const buffers[] = {&t->workspace, &t->slopes, &t->sinks, &t->word};
    for (int i = 0; i < 4; i++)
        lab_buffer_free(buffers[i]);
    lab_cache_free(&t->cache);
    device_lists_free(&t->lists);
}

/* ---- images and runs ---- */

/* Fills an image on the host, which has the splits of the device's plan, and copies it. */
static void image_fill(struct decoding *t) {
    const size_t size = (tess_plan_image_size(t->plan) + 255) / 256 * 256;
    tess_error error = tess_error_init();
    tess_device_pattern given;
    void *host = aligned_alloc(256, size);
    assert_non_null(host);
    memset(host, 0xaa, size);
    assert_int_equal(check_filling(&given, &t->lists.listed.pattern, t->plan, "test", &error),
                     TESS_OK);
    const struct fill_job job = reserve_job(t->plan, t->plan->parts, &given, host);
    assert_int_equal(cpu_fill(&job, &error), TESS_OK);
    combines += job.header->combines;
    for (int64_t T = 0; T < job.shape->batches * job.shape->heads * job.shape->tiles; T++)
        bands += job.arrays.masked_end[3 * T] - job.arrays.masked_ptr[3 * T];
    assert_null(lab_device_to_device(TESS_CUDA, t->image, host, tess_plan_image_size(t->plan)));
    free(host);
}

/* Unlisted keys hold NaN, outputs and workspace poison, here and on the device. */
static void inputs_send(struct decoding *t) {
    lab_tensor_poison(&t->o);
    lab_tensor_poison(&t->lse);
    assert_null(lab_mirror_send(&t->mirror));
}

static void outputs_fetch(struct decoding *t) {
    char why[LAB_WHY];
    const char *failed = lab_mirror_fetch(&t->mirror);
    if (failed)
        fail_msg("seed %llu: %s", (unsigned long long)t->seed, failed);
    if (lab_buffer_check(&t->workspace, "workspace", why) || lab_tensor_check(&t->o, "o", why) ||
        lab_tensor_check(&t->lse, "lse", why))
        fail_msg("seed %llu: %s", (unsigned long long)t->seed, why);
}

static void run(struct decoding *t) {
    tess_error error = tess_error_init();
    inputs_send(t);
    if (tess_run(t->plan, &t->arguments, &error, t->stream))
        fail_msg("seed %llu: %s", (unsigned long long)t->seed, error.message);
    outputs_fetch(t);
}

static uint64_t bits_of(const struct decoding *t) {
    return lab_buffer_hash(&t->o.buffer) ^ 3 * lab_buffer_hash(&t->lse.buffer);
}

/* Holds o and lse against the oracle over the same keys as a pattern of the host. */
static void hold(const struct decoding *t, const tess_pattern *pattern) {
    struct lab_oracle oracle;
    struct lab_report report;
    const tess_tensor *k = &lab_cache_k(&t->cache, &t->k)->view;
    const tess_tensor *v = &lab_cache_v(&t->cache, &t->v)->view;
    if (lab_oracle_run(&oracle, &t->q.view, k, v, pattern, &t->scoring, NULL, 0))
        fail_msg("no memory");
    lab_rounds(&oracle, t->plan);
    lab_compare(&report, &oracle, &t->o.view, &t->lse.view, 256);
    if (!report.ok)
        fail_msg(
            "seed %llu, d %lld/%lld, %lld heads over %lld, form %d, pages of %lld, types %d %d, "
            "scales %d %d, %s: %s",
            (unsigned long long)t->seed, (long long)t->problem.d_qk, (long long)t->problem.d_v,
            (long long)t->problem.heads_q, (long long)t->problem.heads_kv,
            (int)t->lists.listed.pattern.form, (long long)t->problem.page_size,
            (int)t->problem.k_type, (int)t->problem.v_type, (int)t->problem.k_scale,
            (int)t->problem.v_scale, t->plan->passes->kernel->name, report.message);
    lab_oracle_free(&oracle);
}

static void poison(struct decoding *t, const tess_pattern *pattern) {
    assert_int_equal(lab_fill_poison(pattern, t->problem.heads_q, &t->k.view, &t->v.view), 0);
    cache_store(t);
}

/* ---- tests ---- */

/* V in K, which is declared now: it is fetched once, and no bit depends on it. */
static void declare_v_in_k(struct decoding *t, uint64_t bits) {
    tess_plan *const apart = t->plan;
    t->problem.v_in_k = 1, t->problem.v_type = TESS_F32;
    t->plan = reserved(t);
    assert_true(tess_plan_image_size(t->plan) == tess_plan_image_size(apart));
    assert_true(tess_plan_workspace_size(t->plan) == tess_plan_workspace_size(apart));
    tess_plan_free(apart);
    t->arguments.v = NULL;
    image_fill(t);
    run(t);
    in_k++;
    if (bits_of(t) != bits)
        fail_msg("seed %llu: other bits with V in K", (unsigned long long)t->seed);
}

static void generated_case(uint64_t seed) {
    struct decoding t;
    decoding_make(&t, seed);
    tess_pattern *pattern = device_lists_pattern(&t.lists);
    poison(&t, pattern);
    arguments_make(&t);
    image_fill(&t);
    run(&t);
    hold(&t, pattern);
    const uint64_t bits = bits_of(&t);
    const int hopper = strstr(t.plan->passes->kernel->name, "_sm90_d") != NULL;
    of_hopper += hopper, of_codes += hopper && tess_type_size(t.problem.k_type) == 1;
    of_blocks += strstr(t.plan->passes->kernel->name, "_sm90_blocks_") != NULL;
    for (int i = 0; i < REPEATS; i++) {
        run(&t);
        if (bits_of(&t) != bits)
            fail_msg("seed %llu: other bits in repeat %d", (unsigned long long)seed, i);
    }
    if (t.v_in_k)
        declare_v_in_k(&t, bits);
    tess_pattern_free(pattern);
    decoding_free(&t);
}

static void right_within_the_bounds(void **state) {
    (void)state;
    for (int64_t i = 0; i < cases; i++)
        generated_case((uint64_t)(first_seed + i));
    if (cases >= 100)
        assert_true(combines > 0 && bands > 0 && in_k > 0 && paged > 0 && eight_bit > 0 &&
                    scaled > 0 && of_f32 > 0 && to_f32 > 0 && ropes > 0);
    tess_target target = tess_target_init();
    assert_int_equal(tess_target_query(&target, TESS_CUDA, -1, NULL), TESS_OK);
    assert_true(cases < 100 || target.architecture != 90 || (of_hopper > 0 && of_blocks > 0));
    assert_true(cases < 400 || target.architecture != 90 || of_codes > 0);
    print_message("%lld combines, %lld bands, %lld runs with V in K, %lld of Hopper's kernel, %lld "
                  "of these of "
                  "8 bits, %lld of its forward's; %lld paged, %lld of 8 bits, %lld with scales; "
                  "%lld of q of f32, %lld to o "
                  "of f32, %lld of second views\n",
                  (long long)combines, (long long)bands, (long long)in_k, (long long)of_hopper,
                  (long long)of_codes, (long long)of_blocks, (long long)paged, (long long)eight_bit,
                  (long long)scaled, (long long)of_f32, (long long)to_f32, (long long)ropes);
}

/* Half the dims of each row, and the others. */
static void rows_put(const struct lab_tensor *t, double first, double second) {
    const int64_t *size = t->view.size, d = size[3];
    for (int64_t row = 0; row < size[0] * size[1] * size[2]; row++)
        for (int64_t i = 0; i < d; i++)
            lab_put(
                t->view.data, t->view.type,
                lab_row(&t->view, row / size[2] / size[1], row / size[2] % size[1], row % size[2]) +
                    i,
                i < d / 2 ? first : second);
}

/* A score is what the 19th digit of q makes of products that else cancel: without it lse errs by nearly eight
 * times its bound. */
static void q_of_f32_has_its_digits(void **state) {
    (void)state;
    int64_t of_type[3] = {0};
    for (uint64_t seed = 1; seed <= 250; seed++) {
        const struct decode_problem drawn = decode_problem_draw(seed);
        const tess_problem *p = &drawn.problem;
        struct decoding t;
        if (p->type || p->scale != 0 || tess_type_size(p->k_type) == 1 ||
            tess_type_size(p->v_type) == 1)
            continue;
        decoding_make(&t, seed);
        rows_put(&t.q, 1 + 0x1p-9 + 0x1p-18, -1 - 0x1p-9);
        rows_put(&t.k, 0x1p15, 0x1p15);
        tess_pattern *pattern = device_lists_pattern(&t.lists);
        poison(&t, pattern);
        arguments_make(&t);
        image_fill(&t);
        run(&t);
        hold(&t, pattern);
        of_type[p->k_type]++;
        tess_pattern_free(pattern);
        decoding_free(&t);
    }
    assert_true(of_type[TESS_F16] > 0 && of_type[TESS_BF16] > 0);
}

/* Pages change places, what lies in them too. */
static void pages_move(struct decoding *t) {
    int32_t *table = (int32_t *)(void *)t->cache.table.data;
    const size_t n = t->cache.table.size / sizeof *table;
    for (size_t i = 0; i + 1 < n; i++) {
        const int32_t place = table[i];
        table[i] = table[i + 1], table[i + 1] = place;
    }
    cache_store(t);
}

/* Counts of replay `step`, where they are given: none, all, none, then as drawn. Lengths of the last one: none. */
static void lists_limit(struct device_lists *l, uint64_t step) {
    int32_t *counts = (int32_t *)(void *)l->listed.counts.data;
    for (size_t row = 0; row < l->listed.counts.size / sizeof *counts && step < 3; row++)
        counts[row] = step == 1 ? (int32_t)l->sizes.capacity : 0;
    if (l->sizes.lengths && step + 1 == REPLAYS)
        memset(l->listed.lengths.data, 0, l->listed.lengths.size);
    device_lists_expect(l);
}

/* One capture of a fill and run with its report serves lists, counts, lengths and page tables that change. */
static void graphs_follow_lists(void **state) {
    (void)state;
    int64_t counted = 0;
    for (uint64_t seed = 1000; seed < 1012; seed++) {
        struct decoding t;
        tess_device_pattern given;
        tess_fill_report report = tess_fill_report_init();
        _Alignas(8) char host[TESS_REPORT_SIZE];
        void *graph, *kept = lab_device_alloc(TESS_CUDA, sizeof host);
        decoding_make(&t, seed);
        arguments_make(&t);
        assert_int_equal(lab_listed_place(&t.lists.listed, &t.mirror, &given), 0);
        assert_null(lab_device_graph_begin(TESS_CUDA, t.stream));
        t.arguments.image = NULL;
        assert_int_equal(tess_plan_fill_run(t.plan, &given, t.image, tess_plan_image_size(t.plan),
                                            kept, &t.arguments, NULL, t.stream),
                         TESS_OK);
        assert_null(lab_device_graph_end(TESS_CUDA, t.stream, &graph));
        counted += t.lists.sizes.counts;
        for (uint64_t replay = 0; replay < REPLAYS; replay++) {
            const struct device_sizes sizes = t.lists.sizes;
            device_lists_free(&t.lists);
            device_lists_make(&t.lists, &sizes, seed + 100 * replay);
            lists_limit(&t.lists, replay);
            t.scoring.position = t.lists.today[0] - t.problem.n_kv;
            pages_move(&t);
            tess_pattern *pattern = device_lists_pattern(&t.lists);
            inputs_send(&t);
            assert_null(lab_device_graph_launch(TESS_CUDA, graph, t.stream));
            outputs_fetch(&t);
            hold(&t, pattern);
            assert_null(lab_device_to_host(TESS_CUDA, host, kept, sizeof host));
            assert_int_equal(tess_plan_report(t.plan, host, &report, NULL), TESS_OK);
            assert_int_equal(report.pairs, t.lists.report.pairs);
            tess_pattern_free(pattern);
        }
        lab_device_graph_free(TESS_CUDA, graph);
        lab_device_free(TESS_CUDA, kept);
        decoding_free(&t);
    }
    assert_true(counted > 0);
}

/* A run over an image that no fill made, or one of another plan, answers NaN, and writes nothing else. */
static void images_of_others_give_nan(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed < 60; seed++) {
        struct decoding t;
        struct fill_header header;
        decoding_make(&t, seed);
        arguments_make(&t);
        image_fill(&t);
        assert_null(lab_device_to_host(TESS_CUDA, &header, t.image, sizeof header));
        for (int other = 0; other < 2; other++) {
            uint64_t *const spoilt = other ? &header.layout : &header.magic;
            *spoilt ^= 1;
            assert_null(lab_device_to_device(TESS_CUDA, t.image, &header, sizeof header));
            *spoilt ^= 1;
            tensor_clear(&t.o), tensor_clear(&t.lse);
            assert_null(lab_mirror_send(&t.mirror));
            assert_int_equal(tess_run(t.plan, &t.arguments, NULL, t.stream), TESS_OK);
            outputs_fetch(&t);
            assert_true(tensor_is_nan(&t.o) && tensor_is_nan(&t.lse));
        }
        decoding_free(&t);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_within_the_bounds),
        cmocka_unit_test(q_of_f32_has_its_digits),
        cmocka_unit_test(graphs_follow_lists),
        cmocka_unit_test(images_of_others_give_nan),
    };
    if (argc > 1)
        cases = strtoll(argv[1], NULL, 10);
    if (argc > 2)
        first_seed = strtoll(argv[2], NULL, 10);
    if (!lab_device_available(TESS_CUDA)) {
        printf("decode: no device, skipped\n");
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
