/* Plans of the fused backward on CUDA, which need no device: kernels, images, refusals, and the pieces
 * that items over keys are cut into. */
#include "support/plans.h"

#include "host/image.h"
#include "lists/prepare.h"

enum { BATCH = 2, HEADS_Q = 6, HEADS_KV = 2, N = 700 };

/* A problem of two passes over tiles: joint ones have a test of their own (test_spill.c). */
static tess_problem backward_of(tess_type type, int64_t d) {
    tess_problem p = problem_make(N);
    p.spill_size = 1;
    p.operation = TESS_ATTENTION_BACKWARD;
    p.type = type;
    p.batch = BATCH, p.heads_q = HEADS_Q, p.heads_kv = HEADS_KV;
    p.d_qk = p.d_v = d;
    return p;
}

static tess_plan *plan_on(const tess_problem *problem, const char *spec, int64_t block,
                          int32_t architecture) {
    const tess_target target = cuda_target(architecture, 232448);
    tess_pattern *pattern = pattern_make(spec, N, block, BATCH, HEADS_Q);
    tess_error error = tess_error_init();
    tess_plan *plan = NULL;
    if (tess_plan_create(&plan, problem, pattern, &target, &error) != TESS_OK)
        fail_msg("%s", error.message);
    tess_pattern_free(pattern);
    return plan;
}

static tess_plan *plan_of(const tess_problem *problem, const char *spec, int64_t block) {
    return plan_on(problem, spec, block, 90);
}

/* The header stands in the plan from its making on: no upload makes one. */
static void has_header(const struct part *part) {
    const struct image_header *h = (const struct image_header *)(const void *)part->header;
    assert_true(h->magic == IMAGE_MAGIC && h->arrays > 1 && h->arrays <= IMAGE_ARRAYS);
    assert_true(h->array[0].offset >= (int64_t)sizeof *h);
    for (int64_t i = 0; i < h->arrays; i++) {
        assert_true(h->array[i].offset <= (int64_t)part->size);
        assert_true(i == 0 || h->array[i].offset >= h->array[i - 1].offset);
        assert_true(h->array[i].count == h->array[i].capacity && h->array[i].count >= 0);
    }
}

/* Each pass over tiles finds its own part of the image. */
static void kernels_and_images(void **state) {
    (void)state;
    static const struct {
        tess_type type;
        int64_t d;
        const char *keys, *rows;
    } cases[] = {
        {TESS_BF16, 64, "cuda_gradient_keys_bf16_d64", "cuda_gradient_rows_bf16_d64"},
        {TESS_F16, 65, "cuda_gradient_keys_f16_d128", "cuda_gradient_rows_f16_d128"},
        {TESS_F32, 256, "cuda_gradient_keys_f32_d256", "cuda_gradient_rows_f32_d256"},
    };
    cuda_table_needed();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tess_problem problem = backward_of(cases[i].type, cases[i].d);
        tess_plan *plan = plan_of(&problem, "window(90,9)", 16);
        assert_string_equal(tess_plan_kernel(plan, TESS_STAGE_DELTA), "cuda_delta");
        assert_string_equal(tess_plan_kernel(plan, TESS_STAGE_GRADIENT_KEYS), cases[i].keys);
        assert_string_equal(tess_plan_kernel(plan, TESS_STAGE_GRADIENT_ROWS), cases[i].rows);
        size_t sum = 0;
        for (int p = 0; p < plan->n_passes; p++) {
            const struct part *part = plan->passes[p].part;
            assert_int_equal(part != NULL, plan->passes[p].kernel->rows != NULL);
            if (!part)
                continue;
            assert_ptr_equal(part->pass, &plan->passes[p]);
            assert_int_equal(part->at, sum);
            has_header(part);
            sum += part->size;
        }
        assert_int_equal(tess_plan_image_size(plan), sum);
        tess_plan_free(plan);
    }
}

/* A gradient that is not wanted has no pass, no lists and no slots. */
static void gradients_alone(void **state) {
    (void)state;
    cuda_table_needed();
    tess_problem problem = backward_of(TESS_BF16, 128);
    problem.gradients = TESS_GRADIENT_Q;
    tess_plan *plan = plan_of(&problem, "causal", 64);
    assert_null(plan_pass(plan, TESS_STAGE_GRADIENT_KEYS));
    assert_non_null(plan_pass(plan, TESS_STAGE_GRADIENT_ROWS));
    tess_plan_free(plan);
    problem.gradients = TESS_GRADIENT_V;
    plan = plan_of(&problem, "causal", 64);
    assert_null(plan_pass(plan, TESS_STAGE_GRADIENT_ROWS));
    assert_non_null(plan_pass(plan, TESS_STAGE_GRADIENT_KEYS));
    tess_plan_free(plan);
}

/* Score modifiers change no portable kernel; slopes take a share for each warp of an item from the workspace. */
static void modifiers_are_planned(void **state) {
    (void)state;
    static const tess_type types[] = {TESS_F32, TESS_F16, TESS_BF16};
    cuda_table_needed();
    for (size_t i = 0; i < 3 * 3; i++) {
        tess_problem problem = backward_of(types[i % 3], 64 << i / 3);
        problem.gradients = TESS_GRADIENT_Q | TESS_GRADIENT_K | TESS_GRADIENT_V;
        tess_plan *plain = plan_on(&problem, "causal", 64, 80);
        problem.softcap = 30, problem.alibi = 1, problem.sink = 1, problem.dropout = 0.1;
        tess_plan *plan = plan_on(&problem, "causal", 64, 80);
        problem.gradients |= TESS_GRADIENT_ALIBI;
        tess_plan *slopes = plan_on(&problem, "causal", 64, 80);
        const struct pass *rows = plan_pass(slopes, TESS_STAGE_GRADIENT_ROWS);
        assert_ptr_equal(plan_pass(plan, TESS_STAGE_GRADIENT_KEYS)->kernel,
                         plan_pass(plain, TESS_STAGE_GRADIENT_KEYS)->kernel);
        assert_ptr_equal(plan_pass(plan, TESS_STAGE_GRADIENT_ROWS)->kernel, rows->kernel);
        const size_t warps = (size_t)(rows->work->lists.tile_rows + 15) / 16;
        const size_t shares = sizeof(double) * warps * (size_t)rows->work->schedule.n_items;
        assert_int_equal(rows->workspace - plan_pass(plan, TESS_STAGE_GRADIENT_ROWS)->workspace,
                         (shares + 63) / 64 * 64);
        tess_plan_free(slopes);
        tess_plan_free(plan);
        tess_plan_free(plain);
    }
}

/* Products of both portable passes, in heads of dims: past 128 dims each gradient computes its scores, and f32
 * computes them for each half of a gradient. */
static void costs_count_every_product(void **state) {
    (void)state;
    enum { Q = TESS_GRADIENT_Q, K = TESS_GRADIENT_K, V = TESS_GRADIENT_V };
    static const struct {
        tess_type type;
        int64_t d, gradients;
        tess_stage stage;
        int products;
    } cases[] = {
        {TESS_BF16, 128, K | V, TESS_STAGE_GRADIENT_KEYS, 4},
        {TESS_BF16, 128, V, TESS_STAGE_GRADIENT_KEYS, 2},
        {TESS_BF16, 128, Q, TESS_STAGE_GRADIENT_ROWS, 3},
        {TESS_F16, 256, K | V, TESS_STAGE_GRADIENT_KEYS, 5},
        {TESS_F16, 256, K, TESS_STAGE_GRADIENT_KEYS, 3},
        {TESS_F16, 256, V, TESS_STAGE_GRADIENT_KEYS, 2},
        {TESS_F16, 256, Q, TESS_STAGE_GRADIENT_ROWS, 3},
        {TESS_F32, 128, K | V, TESS_STAGE_GRADIENT_KEYS, 4},
        {TESS_F32, 256, K | V, TESS_STAGE_GRADIENT_KEYS, 8},
        {TESS_F32, 256, K, TESS_STAGE_GRADIENT_KEYS, 5},
        {TESS_F32, 256, V, TESS_STAGE_GRADIENT_KEYS, 3},
        {TESS_F32, 256, Q, TESS_STAGE_GRADIENT_ROWS, 5},
    };
    cuda_table_needed();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_problem problem = backward_of(cases[i].type, cases[i].d);
        problem.gradients = cases[i].gradients;
        tess_plan *plan = plan_on(&problem, "causal", 64, 80);
        const struct pass *pass = plan_pass(plan, cases[i].stage);
        const struct premises premises = plan_premises(plan);
        const struct trial trial = select_trial(&premises, pass, pass->kernel);
        assert_true(cost_dims(&trial) == (double)(cases[i].products * cases[i].d));
        tess_plan_free(plan);
    }
}

static void begins_with(const char *name, const char *begin) {
    if (strncmp(name, begin, strlen(begin)) != 0)
        fail_msg("%s is not %s...", name, begin);
}

/* Hopper's kernels take bf16 in blocks of 64 and more, up to 128 dims, without modifiers. */
static void hopper_has_kernels(void **state) {
    (void)state;
    static const struct {
        tess_type type;
        int64_t d, block;
        double softcap;
        const char *keys, *rows;
    } cases[] = {
        {TESS_BF16, 128, 128, 0, "cuda_gradient_keys_bf16_sm90_d128",
         "cuda_gradient_rows_bf16_sm90_d128"},
        {TESS_BF16, 64, 64, 0, "cuda_gradient_keys_bf16_sm90_d64",
         "cuda_gradient_rows_bf16_sm90_d64"},
        {TESS_BF16, 128, 32, 0, "cuda_gradient_keys_bf16_d128", "cuda_gradient_rows_bf16_d128"},
        {TESS_BF16, 128, 128, 30, "cuda_gradient_keys_bf16_sm90_d128",
         "cuda_gradient_rows_bf16_sm90_d128"},
        {TESS_BF16, 136, 128, 0, "cuda_gradient_keys_bf16_sm90_d192",
         "cuda_gradient_rows_bf16_sm90_d192"},
        {TESS_BF16, 256, 64, 0, "cuda_gradient_keys_bf16_sm90_d256",
         "cuda_gradient_rows_bf16_sm90_d256"},
        {TESS_BF16, 256, 64, 30, "cuda_gradient_keys_bf16_d256", "cuda_gradient_rows_bf16_d256"},
        {TESS_F16, 128, 128, 0, "cuda_gradient_keys_f16_sm90_d128",
         "cuda_gradient_rows_f16_sm90_d128"},
    };
    cuda_table_needed();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_problem problem = backward_of(cases[i].type, cases[i].d);
        problem.softcap = cases[i].softcap;
        tess_plan *plan = plan_of(&problem, "causal", cases[i].block);
        begins_with(tess_plan_kernel(plan, TESS_STAGE_GRADIENT_KEYS), cases[i].keys);
        begins_with(tess_plan_kernel(plan, TESS_STAGE_GRADIENT_ROWS), cases[i].rows);
        tess_plan_free(plan);
    }
}

/* A height that the first kernel lacks chooses the one that has it. */
static void an_asked_height_chooses_its_kernel(void **state) {
    (void)state;
    cuda_table_needed();
    tess_problem problem = backward_of(TESS_BF16, 64);
    problem.tile_rows = 64;
    tess_plan *plan = plan_of(&problem, "causal", 128);
    assert_string_equal(tess_plan_kernel(plan, TESS_STAGE_GRADIENT_KEYS),
                        "cuda_gradient_keys_bf16_sm90_d64_r64");
    tess_plan_free(plan);
}

static void refused_by_name(void **state) {
    (void)state;
    static const struct {
        int64_t d;
        double scale;
        int64_t tile_rows, gradients;
        const char *words;
    } cases[] = {
        {257, 0, 0, 0, "its heads have at most 256 dims"},
        {64, 0x1.8p127, 0, 0, "it computes scales of up to 2^127"},
        {64, -0x1.8p127, 0, 0, "it computes scales of up to 2^127"},
        {64, 0x1p-127, 0, 0, "it computes scales of at least 2^-126"},
        {64, 0, 256, 0, "has no key tiles of 256 rows"},
        {64, 0, 256, TESS_GRADIENT_Q, "has no query tiles of 256 rows"},
    };
    cuda_table_needed();
    tess_pattern *pattern = pattern_make("causal", N, 16, BATCH, HEADS_Q);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tess_target target = cuda_target(90, 232448);
        tess_problem problem = backward_of(TESS_BF16, cases[i].d);
        tess_error error = tess_error_init();
        tess_plan *plan = NULL;
        problem.scale = cases[i].scale, problem.tile_rows = (int32_t)cases[i].tile_rows;
        problem.gradients = cases[i].gradients;
        assert_int_equal(tess_plan_create(&plan, &problem, pattern, &target, &error),
                         TESS_UNSUPPORTED);
        if (!strstr(error.message, cases[i].words))
            fail_msg("%s", error.message);
    }
    tess_pattern_free(pattern);
}

/* ---- pieces ---- */

/* Marks the granules of a piece as met; each belongs to one piece of its head. */
static void piece_met(unsigned char *met, const struct granules *g,
                      const struct granule_item *piece) {
    unsigned char *of_head = met + (piece->batch * HEADS_Q + piece->head) * g->n;
    for (int64_t i = piece->first; i < piece->first + piece->count; i++) {
        assert_true(i < g->n);
        assert_false(of_head[i]);
        of_head[i] = 1;
    }
    assert_true(piece->whole <= piece->count);
    assert_int_equal(piece->head_kv, piece->head / (HEADS_Q / HEADS_KV));
}

/* Steps of mask groups: pieces begin at whole chunks of their heads' lists. */
static void begins_a_chunk(const tess_plan *plan, const struct work *work,
                           const struct granule_item *piece) {
    const struct granules *g = &work->prepared->granules;
    int64_t t = 0;
    while (work->lists.tile_row[t] != piece->row)
        t++;
    const int64_t list = plan->list_of[piece->batch * HEADS_Q + piece->head];
    const int64_t first = piece->first - g->ptr[list * work->lists.tiles + t];
    assert_true(!g->records || first * g->size % SCHEDULE_CHUNK == 0);
}

/* The pieces of a worker: items one after the other, heads of a group ascending in each. */
static int64_t worker_walk(unsigned char *met, const struct granules *g, int32_t worker) {
    int64_t items = 0;
    for (int64_t i = g->worker_ptr[worker]; i < g->worker_ptr[worker + 1]; i++) {
        const struct granule_item *piece = &g->items[i];
        const int begins = i == g->worker_ptr[worker] || g->items[i - 1].parts & GRANULE_LAST;
        assert_int_equal((piece->parts & GRANULE_FIRST) != 0, begins);
        if (!begins) {
            const struct granule_item *before = piece - 1;
            assert_true(before->head < piece->head && before->count > 0 && piece->count > 0);
            assert_int_equal(before->head_kv, piece->head_kv);
            assert_int_equal(before->batch, piece->batch);
            assert_int_equal(before->row, piece->row);
            assert_int_equal(before->slot, piece->slot);
        }
        items += begins;
        piece_met(met, g, piece);
    }
    const int64_t end = g->worker_ptr[worker + 1];
    assert_true(end == g->worker_ptr[worker] || g->items[end - 1].parts & GRANULE_LAST);
    return items;
}

static void pieces_are_the_groups_lists(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int64_t block, part_keys;
    } cases[] = {{"window(90,9)", 16, 0}, {"random(0.1,1)", 1, 128},
                 {"causal", 64, 128},     {"random(0.02,2)&causal", 8, 0},
                 {"random(0,1)", 32, 0},  {"global(40)+window(9,9)", 5, 128},
                 {"causal", 128, 128}};
    cuda_table_needed();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_problem problem = backward_of(i % 2 ? TESS_F32 : TESS_BF16, 64);
        problem.part_keys = cases[i].part_keys;
        tess_plan *plan = plan_of(&problem, cases[i].spec, cases[i].block);
        const struct work *work = plan_pass(plan, TESS_STAGE_GRADIENT_KEYS)->work;
        const struct granules *g = &work->prepared->granules;
        unsigned char *met = calloc((size_t)(BATCH * HEADS_Q * g->n) + 1, 1);
        int64_t items = 0, all = 0;
        for (int32_t w = 0; w < g->workers; w++)
            items += worker_walk(met, g, w);
        for (int64_t k = 0; k < g->n_items; k++)
            begins_a_chunk(plan, work, &g->items[k]);
        assert_int_equal(items, work->schedule.n_items);
        assert_int_equal(g->n_items, g->worker_ptr[g->workers]);
        for (int64_t bh = 0; bh < BATCH * HEADS_Q; bh++) {
            const int64_t T = plan->list_of[bh] * work->lists.tiles;
            for (int64_t k = g->ptr[T]; k < g->ptr[T + work->lists.tiles]; k++, all++)
                assert_true(met[bh * g->n + k]);
        }
        for (int64_t k = 0; k < BATCH * HEADS_Q * g->n; k++)
            all -= met[k];
        assert_int_equal(all, 0);
        free(met);
        tess_plan_free(plan);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_and_images),
        cmocka_unit_test(gradients_alone),
        cmocka_unit_test(modifiers_are_planned),
        cmocka_unit_test(costs_count_every_product),
        cmocka_unit_test(hopper_has_kernels),
        cmocka_unit_test(an_asked_height_chooses_its_kernel),
        cmocka_unit_test(refused_by_name),
        cmocka_unit_test(pieces_are_the_groups_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
