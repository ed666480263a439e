/*
 * Decode on CUDA, over images that the host fills and copies to the device: drawn problems against the
 * oracle, V inside K, repeats, one captured graph over images that change, and an image that nobody
 * filled. Without a device the test says so and is skipped.
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

#include "lab/device.h"
#include "lab/fill.h"
#include "lab/half.h"
#include "lab/mirror.h"
#include "lab/rng.h"
#include "support/caches.h"
#include "support/device_lists.h"

#include "cpu.h"
#include "plan/reserve.h"

enum { SKIPPED = 77, REPEATS = 3, REPLAYS = 6, HEADS = 256, WORK = 40000000 };

static int64_t cases = 400, first_seed = 1;

/* What images had: parts of tiles, bands; how many runs fetched V with K, and whose kernel is Hopper's;
 * what caches had. */
static int64_t combines, bands, in_k, of_hopper, of_blocks, paged, eight_bit, scaled;

/* ---- a problem, its plan and its memory ---- */

struct decoding {
    uint64_t seed;
    struct device_lists lists;
    tess_problem problem;
    tess_plan *plan;
    int v_in_k;
    int blocks;    /* Hopper's forward takes it */
    char name[64]; /* of its kernel */
    struct lab_tensor q, k, v, o, lse;
    struct lab_buffer workspace, slopes, sinks, word;
    struct lab_scoring scoring;
    struct lab_cache cache; /* what runs and the oracle find in place of k and v */
    struct lab_mirror mirror;
    tess_tensor at[5]; /* on the device: q, k, v, o, lse */
    tess_tensor views[LAB_CACHE_VIEWS];
    tess_arguments arguments;
    void *image; /* on the device */
    tess_stream stream;
};

/* blocks: of lists that Hopper's forward takes too. */
static struct device_sizes sizes_draw(uint64_t seed, int64_t d, int blocks) {
    struct device_sizes s = {.form = (tess_form)PICK(0, 0, 0, 1, 2, 3)};
    s.batch = PICK(1, 1, 1, 2);
    s.heads_kv = PICK(2, 1, 1, 2);
    s.heads_q = s.heads_kv * PICK(3, 1, 2, 3, 4, 6, 8, 16, 16, 17, 24, 32, 64, 128);
    s.list_batch = PICK(4, 1, 0) ? 1 : s.batch;
    s.list_heads = pick(seed, 5, (const int64_t[]){1, s.heads_kv, s.heads_q}, 3);
    s.n_q = PICK(6, 1, 1, 1, 2, 5, 33, 70);
    s.n_kv = PICK(7, 1, 40, 300, 700, 2100, 5000);
    s.block_q = PICK(8, 1, 1, 2, 16, 64, 128);
    s.block_kv = s.form == TESS_RANGES ? 1 : PICK(9, 1, 1, 2, 16, 64, 128);
    if (blocks) {
        s.heads_q = s.heads_kv * PICK(50, 1, 2, 3, 8), s.list_heads = PICK(51, 1, s.heads_q);
        s.n_q = PICK(52, 8, 33, 70, 130), s.form = (tess_form)PICK(53, 0, 1, 2);
        s.block_q = PICK(54, 8, 16, 64, 128), s.block_kv = PICK(55, 16, 32, 64, 128);
    }
    while (s.n_kv > 1 && s.batch * s.heads_q * s.n_q * s.n_kv * d > WORK)
        s.n_kv = (s.n_kv + 1) / 2;
    const int64_t rows = (s.n_q + s.block_q - 1) / s.block_q;
    const int64_t cols = (s.n_kv + s.block_kv - 1) / s.block_kv;
    const int64_t all = s.list_batch * s.list_heads * rows * cols;
    s.hostile = (int)PICK(10, 0, 1);
    if (s.form == TESS_INDICES)
        s.capacity = PICK(11, 0, 1) ? cols : 1 + lab_below(seed, 78, 1001, 2 * cols);
    else if (s.form == TESS_RANGES)
        s.capacity = PICK(11, 1, 2, 3, 4);
    else
        s.capacity = all;
    if (PICK(13, 0, 0, 1)) {
        s.cut_lo = PICK(14, INT64_MIN, -9, -70, -600);
        s.cut_hi = PICK(15, 0, 4, INT64_MAX, 90);
    }
    s.counts = (s.form == TESS_INDICES || s.form == TESS_RANGES) && PICK(16, 0, 1);
    s.lengths = (int)PICK(17, 0, 1, 1);
    s.promises = 0;
    return s;
}

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

/* Pages, 8 bits and scales, as the kernels have them: rows of whole 16 bytes, groups of 128 dims, and
 * of f16 no scales of values by token. */
static void caches_draw(struct decoding *t) {
    tess_problem *p = &t->problem;
    const uint64_t seed = t->seed;
    const int whole = p->d_qk % 16 == 0 && p->d_v % 16 == 0, by_token = p->type == TESS_BF16;
    const int groups = p->d_qk % 128 == 0 && p->d_v % 128 == 0 && by_token;
    if (PICK(40, 0, 1, 1)) {
        p->page_size = PICK(41, 0, 1, 2, 16, 64, 256, 4096);
        p->v_in_k = t->v_in_k && PICK(42, 0, 1);
    }
    if (whole && !t->blocks && PICK(43, 0, 1)) {
        p->k_type = (tess_type)PICK(44, 0, TESS_E4M3, TESS_E4M3, TESS_E5M2);
        if (!p->v_in_k)
            p->v_type = (tess_type)PICK(45, 0, p->k_type, p->k_type, TESS_E4M3, TESS_E5M2);
    }
    if (p->k_type)
        p->k_scale = (tess_scaling)PICK(46, 0, 1, 2, by_token || !p->v_in_k ? 3 : 2,
                                        groups ? TESS_SCALE_GROUP : 1);
    if (p->v_type)
        p->v_scale =
            (tess_scaling)PICK(47, 0, 1, 2, by_token ? 3 : 2, groups ? TESS_SCALE_GROUP : 1);
    t->v_in_k &= !p->page_size && !p->k_type && !p->v_type && !p->v_in_k;
    paged += p->page_size > 0, eight_bit += p->k_type || p->v_type;
    scaled += p->k_scale || p->v_scale;
}

static void problem_draw(struct decoding *t) {
    const uint64_t seed = t->seed;
    const int blocks = (int)PICK(49, 0, 0, 0, 1);
    const int64_t d = blocks ? PICK(56, 32, 64, 64, 96, 128)
                             : PICK(20, 32, 64, 72, 96, 128, 192, 256, 320, 512, 576);
    const struct device_sizes s = sizes_draw(seed, d, blocks);
    device_lists_make(&t->lists, &s, seed);
    t->problem = device_problem(&s, d);
    t->problem.type = PICK(21, 0, 1) ? TESS_F16 : TESS_BF16;
    t->problem.d_v = PICK(22, 0, 0, 8, 64) ? pick(seed, 23, (const int64_t[]){8, 64, 128}, 3) : d;
    if (t->problem.d_v > 512)
        t->problem.d_v = 512;
    t->problem.alignment = 16;
    t->problem.part_keys = PICK(24, 0, 0, 128, 256);
    t->problem.scale = PICK(25, 0, 0, 1) ? 1e-3 : 0;
    t->problem.softcap = (double)PICK(26, 0, 0, 0, 5);
    t->problem.sink = PICK(27, 0, 0, 1);
    t->problem.alibi = s.batch == 1 && PICK(28, 0, 0, 1); /* the oracle has one position for all */
    t->problem.dropout = PICK(29, 0, 0, 0, 1) ? 0.25 : 0;
    t->v_in_k = t->problem.d_v <= d && PICK(30, 0, 1);
    t->blocks = blocks && t->problem.scale == 0;
    caches_draw(t);
    t->blocks &= t->problem.page_size == 0 || t->problem.page_size >= 16;
}

/* To be called after a change of k or v. */
static void cache_store(struct decoding *t) {
    lab_cache_values(&t->cache, &t->k.view, &t->v.view);
    lab_cache_store(&t->cache, &t->q.view, &t->k.view, &t->v.view);
    t->scoring.cache = &t->cache.of;
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
                                      .cache = &t->cache.of};
}

static void arguments_make(struct decoding *t) {
    const struct lab_tensor *const tensors[] = {&t->q, lab_cache_k(&t->cache, &t->k),
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

/* On Hopper a part of the problems of 16 bits asks for its kernel by name. For few multiprocessors CTAs
 * that stay have several items each. */
static void kernel_draw(struct decoding *t, tess_target *target) {
    const uint64_t seed = t->seed;
    if (PICK(32, 0, 1))
        target->multiprocessors = 1 + (int32_t)lab_below(seed, 33, 2, 9);
    if (target->architecture == 90 && t->blocks)
        snprintf(t->name, sizeof t->name, "cuda_decode_%s_sm90_blocks_%s%s",
                 t->problem.type == TESS_F16 ? "f16" : "bf16",
                 t->problem.d_qk > 64 || t->problem.d_v > 64 || PICK(57, 0, 0, 1) ? "d128" : "d64",
                 PICK(58, 0, 0, 1) ? "_r128" : "");
    if (t->name[0] && PICK(59, 0, 1, 1))
        t->problem.kernel = t->name;
    else if (target->architecture == 90 && !t->problem.k_type && !t->problem.v_type &&
             PICK(31, 0, 0, 1))
        t->problem.kernel = t->problem.type == TESS_F16 ? "cuda_decode_f16_sm90_d576_v512"
                                                        : "cuda_decode_bf16_sm90_d576_v512";
}

static void decoding_make(struct decoding *t, uint64_t seed) {
    tess_error error = tess_error_init();
    tess_target target = tess_target_init();
    memset(t, 0, sizeof *t);
    t->seed = seed;
    problem_draw(t);
    const tess_problem *p = &t->problem;
    const tess_device_pattern declared = lab_listed_declared(&t->lists.listed);
    assert_int_equal(tess_target_query(&target, TESS_CUDA, -1, &error), TESS_OK);
    kernel_draw(t, &target);
    if (tess_plan_reserve(&t->plan, p, &declared, &target, &error))
        fail_msg("seed %llu: %s", (unsigned long long)seed, error.message);
    tensor_make(&t->q, p->type, p->batch, p->heads_q, p->n_q, p->d_qk, seed);
    struct lab_cache_shape cache = cache_shape(p, seed);
    cache.layout = PICK(48, LAB_BHND, LAB_BNHD);
    tensor_make(&t->k, cache.k_type, p->batch, p->heads_kv, p->n_kv, p->d_qk, seed + 1);
    tensor_make(&t->v, cache.v_type, p->batch, p->heads_kv, p->n_kv, p->d_v, seed + 2);
    if (lab_cache_make(&t->cache, &cache))
        fail_msg("no memory");
    tensor_make(&t->o, p->type, p->batch, p->heads_q, p->n_q, p->d_v, seed + 3);
    tensor_make(&t->lse, TESS_F32, p->batch, p->heads_q, p->n_q, 1, seed + 4);
    const size_t size = tess_plan_workspace_size(t->plan);
    assert_int_equal(lab_buffer_make(&t->workspace, size, 64), 0);
    memset(t->workspace.data, 0xff, size); /* NaN */
    if (t->v_in_k)                         /* the same numbers in a tensor of its own */
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
    const struct fill_job job = reserve_job(t->plan, &given, host);
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
    of_hopper += strstr(t.plan->passes->kernel->name, "_sm90_d") != NULL;
    of_blocks += strstr(t.plan->passes->kernel->name, "_sm90_blocks_") != NULL;
    for (int i = 0; i < REPEATS; i++) {
        run(&t);
        if (bits_of(&t) != bits)
            fail_msg("seed %llu: other bits in repeat %d", (unsigned long long)seed, i);
    }
    if (t.v_in_k) { /* fetched once, the same bits */
        tess_tensor v = t.at[1];
        v.size[3] = t.problem.d_v;
        t.arguments.v = &v;
        run(&t);
        in_k++;
        if (bits_of(&t) != bits)
            fail_msg("seed %llu: other bits with V in K", (unsigned long long)seed);
    }
    tess_pattern_free(pattern);
    decoding_free(&t);
}

static void right_within_the_bounds(void **state) {
    (void)state;
    for (int64_t i = 0; i < cases; i++)
        generated_case((uint64_t)(first_seed + i));
    if (cases >= 100)
        assert_true(combines > 0 && bands > 0 && in_k > 0 && paged > 0 && eight_bit > 0 &&
                    scaled > 0);
    tess_target target = tess_target_init();
    assert_int_equal(tess_target_query(&target, TESS_CUDA, -1, NULL), TESS_OK);
    assert_true(cases < 100 || target.architecture != 90 || (of_hopper > 0 && of_blocks > 0));
    print_message(
        "%lld combines, %lld bands, %lld runs with V in K, %lld of Hopper's kernel, %lld of "
        "its forward's; %lld paged, %lld of 8 bits, %lld with scales\n",
        (long long)combines, (long long)bands, (long long)in_k, (long long)of_hopper,
        (long long)of_blocks, (long long)paged, (long long)eight_bit, (long long)scaled);
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

/* One capture serves lists, lengths and page tables that change; the last ones list nothing. */
static void graphs_follow_images(void **state) {
    (void)state;
    for (uint64_t seed = 1000; seed < 1012; seed++) {
        struct decoding t;
        void *graph;
        decoding_make(&t, seed);
        arguments_make(&t);
        image_fill(&t);
        assert_null(lab_device_graph_begin(TESS_CUDA, t.stream));
        assert_int_equal(tess_run(t.plan, &t.arguments, NULL, t.stream), TESS_OK);
        assert_null(lab_device_graph_end(TESS_CUDA, t.stream, &graph));
        for (uint64_t replay = 0; replay < REPLAYS; replay++) {
            const struct device_sizes sizes = t.lists.sizes;
            device_lists_free(&t.lists);
            device_lists_make(&t.lists, &sizes, seed + 100 * replay);
            if (t.lists.listed.pattern.lengths && replay + 1 == REPLAYS) {
                memset(t.lists.listed.lengths.data, 0, t.lists.listed.lengths.size);
                device_lists_expect(&t.lists);
            }
            t.scoring.position = t.lists.today[0] - t.problem.n_kv;
            pages_move(&t);
            tess_pattern *pattern = device_lists_pattern(&t.lists);
            image_fill(&t);
            inputs_send(&t);
            assert_null(lab_device_graph_launch(TESS_CUDA, graph, t.stream));
            outputs_fetch(&t);
            hold(&t, pattern);
            tess_pattern_free(pattern);
        }
        lab_device_graph_free(TESS_CUDA, graph);
        decoding_free(&t);
    }
}

/* A run over an image that this plan has not filled writes nothing. */
static void images_of_others_are_left(void **state) {
    (void)state;
    struct decoding t;
    decoding_make(&t, 7);
    arguments_make(&t);
    const size_t size = tess_plan_image_size(t.plan);
    void *noise = malloc(size);
    assert_non_null(noise);
    memset(noise, 0x11, size);
    assert_null(lab_device_to_device(TESS_CUDA, t.image, noise, size));
    lab_tensor_poison(&t.o);
    lab_tensor_poison(&t.lse);
    const uint64_t bits = bits_of(&t);
    run(&t);
    assert_true(bits_of(&t) == bits);
    free(noise);
    decoding_free(&t);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_within_the_bounds),
        cmocka_unit_test(graphs_follow_images),
        cmocka_unit_test(images_of_others_are_left),
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
