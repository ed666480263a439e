/* Lists of a joint backward on CUDA against the pattern itself: dQ has each listed unit once, and knows its keys. */
#include "support/plans.h"

#include "lists/prepare.h"
#include "lists/spill.h"

#include <stdlib.h>

enum { BATCH = 2, HEADS_Q = 6, HEADS_KV = 3, HEADS = BATCH * HEADS_Q, N = 4000, SIDES = 63 };

static tess_problem joint_of(void) {
    tess_problem p = problem_make(N);
    p.operation = TESS_ATTENTION_BACKWARD, p.type = TESS_BF16, p.d_qk = p.d_v = 128;
    p.batch = BATCH, p.heads_q = HEADS_Q, p.heads_kv = HEADS_KV;
    return p;
}

static tess_plan *plan_of(const tess_problem *problem, const tess_pattern *pattern) {
    tess_target target = cuda_target(90, 232448);
    tess_error error = tess_error_init();
    tess_plan *plan = NULL;
    target.memory_rate = 4800000000000;
    if (tess_plan_create(&plan, problem, pattern, &target, &error))
        fail_msg("%s", error.message);
    return plan;
}

/* A plan's joint pass, and keys of each 64 queries that some of these lists. */
struct joint {
    tess_plan *plan;
    const struct pass *pass;
    const struct granules *g;
    const struct spill *spill;
    int32_t halves;                   /* units of a side of a tile */
    uint64_t (*listed)[SIDES][SIDES]; /* [head][64 queries][64 keys] */
};

static void listed_find(struct joint *j, const tess_pattern *pattern) {
    int64_t *keys = malloc(N * sizeof *keys);
    j->listed = calloc(HEADS, sizeof *j->listed);
    for (int h = 0; h < HEADS; h++)
        if (h > 0 && j->plan->list_of[h] == j->plan->list_of[0])
            memcpy(j->listed[h], j->listed[0], sizeof *j->listed);
        else
            for (int64_t q = 0; q < N; q++) {
                int64_t n = 0;
                assert_int_equal(
                    tess_pattern_row(pattern, h / HEADS_Q, h % HEADS_Q, q, keys, N, &n, NULL),
                    TESS_OK);
                for (int64_t i = 0; i < n; i++)
                    j->listed[h][q / 64][keys[i] / 64] |= UINT64_C(1) << keys[i] % 64;
            }
    free(keys);
}

static int joint_make(struct joint *j, const tess_problem *problem, const char *spec,
                      int64_t block_q, int64_t block_kv) {
    tess_pattern *pattern = make(spec, (const int64_t[]){N, N, block_q, block_kv}, BATCH, HEADS_Q);
    *j = (struct joint){.plan = plan_of(problem, pattern)};
    if (j->plan->joint) {
        const struct kernel_args of_plan = plan_args(j->plan);
        j->pass = plan_pass(j->plan, TESS_STAGE_GRADIENT_KEYS);
        const struct kernel_args args = pass_args(&of_plan, j->pass);
        j->g = &args.work.prepared->granules;
        j->spill = prepared_spill(&args);
        j->halves = args.work.lists->tile_rows / SPILL_SIDE;
        listed_find(j, pattern);
    }
    tess_pattern_free(pattern);
    return j->plan->joint;
}

static void joint_free(struct joint *j) {
    free(j->listed);
    tess_plan_free(j->plan);
}

/* The key tile of granule i. */
static int64_t tile_of(const struct joint *j, int64_t i) {
    int64_t first = 0, end = j->g->tiles;
    while (end - first > 1) {
        const int64_t T = (first + end) / 2;
        *(j->g->ptr[T] <= i ? &first : &end) = T;
    }
    return first;
}

/* Takes a step's units of an item away from what is listed: units of the item's queries, of the step's keys. */
static void step_holds(struct joint *j, const struct granule_item *item,
                       const struct spill_step *step) {
    const struct lists *lists = &j->pass->work->lists;
    const int64_t head = item->batch * HEADS_Q + item->head;
    const uint64_t inside = N - step->key < 64 ? (UINT64_C(1) << (N - step->key)) - 1 : UINT64_MAX;
    int units = 0;
    for (int c = 0; c < j->halves; c++) {
        if (step->unit[c] < 0)
            continue;
        const int64_t i = step->unit[c] / j->halves, T = tile_of(j, i);
        uint64_t *listed = &j->listed[head][item->row / 64 + c][step->key / 64];
        assert_int_equal(T / lists->tiles, j->plan->list_of[head]);
        assert_int_equal(lists->tile_row[T % lists->tiles] + 64 * (step->unit[c] % j->halves),
                         step->key);
        assert_int_equal(j->g->keys[i], item->row + 64 * c);
        assert_true(*listed != 0);
        const uint64_t absent = step->absent < 0 ? 0 : j->spill->absent[step->absent];
        assert_true((~absent & inside) == *listed);
        *listed = 0, units++;
        const int64_t place = j->spill->unit_of[head] + step->unit[c];
        assert_true(place >= 0 && place < j->spill->units);
    }
    assert_true(units > 0);
}

/* Tiles without keys are dealt out as others are: a worker has at most twice its share of them, and a few. */
static void empty_items_are_dealt(const int64_t *worker_ptr, const struct granule_item *items,
                                  int64_t begin, int64_t end) {
    int64_t all = 0, most = 0;
    for (int64_t w = begin; w < end; w++) {
        int64_t empty = 0;
        for (int64_t i = worker_ptr[w]; i < worker_ptr[w + 1]; i++)
            empty += items[i].count == 0;
        all += empty, most = max_i64(most, empty);
    }
    assert_true(most <= 2 * all / (end - begin) + 4);
}

/* Items of a chunk are of as many K/V heads as others, and all of its workers. */
static void items_hold(struct joint *j) {
    const struct spill *s = j->spill;
    const int64_t heads = (BATCH * HEADS_KV + s->chunks - 1) / s->chunks;
    for (int64_t w = 0; w < (int64_t)s->chunks * s->workers; w++) {
        for (int64_t i = s->worker_ptr[w]; i < s->worker_ptr[w + 1]; i++) {
            const struct granule_item *item = &s->items[i];
            assert_int_equal((item->batch * HEADS_KV + item->head_kv) / heads, w / s->workers);
            for (int32_t k = 0; k < item->count; k++)
                step_holds(j, item, &s->steps[item->first + k]);
        }
        for (int64_t i = j->g->worker_ptr[w]; i < j->g->worker_ptr[w + 1]; i++)
            assert_int_equal((j->g->items[i].batch * HEADS_KV + j->g->items[i].head_kv) / heads,
                             w / s->workers);
    }
    for (int64_t w = 0; w < (int64_t)s->chunks * s->workers; w += s->workers) {
        empty_items_are_dealt(s->worker_ptr, s->items, w, w + s->workers);
        empty_items_are_dealt(j->g->worker_ptr, j->g->items, w, w + s->workers);
    }
    assert_int_equal(s->worker_ptr[(int64_t)s->chunks * s->workers], s->n_items);
    assert_int_equal(j->g->worker_ptr[(int64_t)s->chunks * s->workers], j->g->n_items);
    assert_int_equal(s->n_items, HEADS * ((SIDES + j->halves - 1) / j->halves));
    for (int h = 0; h < HEADS; h++)
        for (int q = 0; q < SIDES; q++)
            for (int k = 0; k < SIDES; k++)
                assert_true(j->listed[h][q][k] == 0);
}

/* Units of the chunk that is written and of the chunk before, which is read, are others. */
static void units_do_not_meet(const struct joint *j) {
    const struct lists *lists = &j->pass->work->lists;
    const int64_t each = (BATCH * HEADS_KV + j->spill->chunks - 1) / j->spill->chunks * 2;
    for (int a = 0; a < HEADS; a++)
        for (int b = 0; b < a; b++) {
            int64_t begin[2], end[2];
            for (int i = 0; i < 2; i++) {
                const int head = i ? b : a;
                const int64_t T = j->plan->list_of[head] * lists->tiles;
                begin[i] = j->spill->unit_of[head] + j->g->ptr[T] * j->halves;
                end[i] = j->spill->unit_of[head] + j->g->ptr[T + lists->tiles] * j->halves;
            }
            if (a / each - b / each < 2)
                assert_true(end[0] <= begin[1] || end[1] <= begin[0]);
        }
}

static void dq_reads_each_listed_unit_once(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int64_t block_q, block_kv;
    } cases[] = {{"causal", 128, 128},
                 {"random(0.4,7)", 128, 128},
                 {"random(0.4,1)", 64, 64},
                 {"random(0.5,3)", 192, 64},
                 {"random(0.02,1)", 128, 128}};
    cuda_table_needed();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tess_problem problem = joint_of();
        struct joint j;
        if (!joint_make(&j, &problem, cases[i].spec, cases[i].block_q, cases[i].block_kv))
            fail_msg("%s is not joint", cases[i].spec);
        units_do_not_meet(&j);
        items_hold(&j);
        joint_free(&j);
    }
}

/* spill_size bounds the units, which are in the workspace; where they do not fit, dQ has its own pass. */
static void spill_size_bounds_the_units(void **state) {
    (void)state;
    cuda_table_needed();
    tess_problem problem = joint_of();
    struct joint j;
    const int64_t group = INT64_C(2) * 64 * 64 * SPILL_UNIT;
    problem.spill_size = 2 * 3 * group; /* two buffers for half of the groups */
    assert_true(joint_make(&j, &problem, "dense", 128, 128));
    assert_true(j.spill->chunks > 1 && j.spill->units * SPILL_UNIT <= problem.spill_size);
    assert_true((int64_t)j.pass->workspace >= j.spill->units * SPILL_UNIT);
    joint_free(&j);
    problem.spill_size = group;
    assert_false(joint_make(&j, &problem, "dense", 128, 128));
    assert_non_null(plan_pass(j.plan, TESS_STAGE_GRADIENT_ROWS));
    joint_free(&j);
    problem.spill_size = 0; /* runs of queries begin within units */
    assert_false(joint_make(&j, &problem, "window(1000,500)", 128, 128));
    joint_free(&j);
}

/* Whether a causal backward of 16 heads is joint. */
static int causal_joins(int64_t n, int64_t gradients) {
    tess_problem problem = problem_make(n);
    tess_pattern *pattern = make("causal", (const int64_t[]){n, n, 128, 128}, 1, 16);
    problem.operation = TESS_ATTENTION_BACKWARD, problem.type = TESS_BF16;
    problem.d_qk = problem.d_v = 128, problem.heads_q = problem.heads_kv = 16;
    problem.gradients = gradients;
    tess_plan *plan = plan_of(&problem, pattern);
    const int joint = plan->joint;
    tess_plan_free(plan);
    tess_pattern_free(pattern);
    return joint;
}

/* A head of 17408 queries is a chunk, whose longest tile is most of a launch. dQ alone has three products. */
static void passes_of_their_own_stay_where_they_are_faster(void **state) {
    (void)state;
    cuda_table_needed();
    assert_true(causal_joins(16384, 0));
    assert_false(causal_joins(17408, 0));
    assert_false(causal_joins(16384, TESS_GRADIENT_Q));
    assert_true(causal_joins(16384, TESS_GRADIENT_Q | TESS_GRADIENT_V));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dq_reads_each_listed_unit_once),
        cmocka_unit_test(spill_size_bounds_the_units),
        cmocka_unit_test(passes_of_their_own_stay_where_they_are_faster),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
