/* Strips of key tiles, and which plans of the backward have them. */
#include "support/plans.h"

#include <stdio.h>
#include <stdlib.h>

enum { QKV = TESS_GRADIENT_Q | TESS_GRADIENT_K | TESS_GRADIENT_V };

static tess_problem backward_make(int64_t n, int64_t gradients) {
    tess_problem p = problem_make(n);
    p.operation = TESS_ATTENTION_BACKWARD, p.gradients = gradients, p.d_qk = p.d_v = 64;
    return p;
}

/* ---- cutting ---- */

/* Lists of a pattern's key tiles, of 16 keys. */
static void key_lists(struct lists *out, const char *spec, int64_t n, int64_t heads) {
    tess_pattern *pattern = pattern_make(spec, n, 16, 1, heads), *transposed;
    assert_int_equal(tess_pattern_transpose(&transposed, pattern, NULL), TESS_OK);
    assert_int_equal(lists_pack(out, &transposed->lists, 16, NULL), TESS_OK);
    tess_pattern_free(transposed);
    tess_pattern_free(pattern);
}

static void tile_lies_in(const struct lists *l, int64_t tile, const struct strip *s) {
    for (int64_t r = l->full_ptr[tile]; r < l->full_end[tile]; r++)
        assert_true(l->full[r].key >= s->query &&
                    l->full[r].key + l->full[r].count <= s->query_end);
    for (int64_t k = LIST_MASKED_KINDS * tile; k < LIST_MASKED_KINDS * (tile + 1); k++)
        for (int64_t r = l->masked_ptr[k]; r < l->masked_end[k]; r++)
            assert_true(l->masked[r].key >= s->query &&
                        l->masked[r].key + l->masked[r].count <= s->query_end);
}

/* Strips of a head are its tiles in order, each once; they have room for whatever their tiles list, and no
 * row of sums is another's. */
static void strips_cover_key_tiles_once(void **state) {
    static const char *const specs[] = {"dense",         "causal",    "window(40,9)",
                                        "random(0.1,1)", "global(3)", "random(0,1)"};
    enum { HEADS = 6, GROUP = 2 };
    (void)state;
    for (size_t c = 0; c < sizeof specs / sizeof *specs; c++) {
        int64_t list_of[HEADS * GROUP] = {0, 1, 2, 0, 1, 2, 0, 0, 1, 1, 2, 2};
        struct lists l;
        struct strips s;
        int64_t at = 0, longest = 0;
        key_lists(&l, specs[c], 700, 3);
        for (int h = 0; h < HEADS * GROUP; h++)
            list_of[h] %= l.n_lists; /* heads without draws share one */
        assert_int_equal(strips_make(&s, &l, list_of, HEADS, GROUP, 10, INT64_MAX, NULL), TESS_OK);
        unsigned char *ordered = calloc((size_t)s.n, 1);
        assert_true(s.n >= HEADS && s.n <= HEADS * STRIPS_OF_HEAD);
        for (int64_t head = 0; head < HEADS; head++) {
            int32_t tile = 0;
            for (int64_t i = s.head[head]; i < s.head[head + 1]; i++) {
                const struct strip *strip = &s.strip[i];
                assert_int_equal(strip->batch_head, head);
                assert_int_equal(strip->first, tile);
                assert_true(strip->end > tile);
                tile = strip->end;
                longest = strip->end - strip->first > longest ? strip->end - strip->first : longest;
                for (int32_t t = strip->first; t < strip->end; t++)
                    for (int64_t h = head * GROUP; h < (head + 1) * GROUP; h++)
                        tile_lies_in(&l, list_of[h] * l.tiles + t, strip);
                assert_int_equal(strip->at, at);
                assert_int_equal(at % STRIPS_QUERIES, 0);
                at += GROUP * (strip->query_end - strip->query);
            }
            assert_int_equal(tile, l.tiles);
        }
        assert_int_equal(s.head[HEADS], s.n);
        assert_int_equal(at, s.rows);
        assert_int_equal(longest, s.tiles);
        for (int64_t i = 0; i < s.n; i++)
            assert_int_equal(ordered[s.order[i]]++, 0);
        free(ordered);
        strips_free(&s);
        lists_free(&l);
    }
}

static int64_t cost_of(const struct lists *l, const struct strip *s) {
    int64_t cost = 0;
    for (int32_t t = s->first; t < s->end; t++)
        cost += l->keys[t];
    return cost;
}

/* No strip of causal lists has more than a share and a half of its head's work, and the longest is first. */
static void strips_are_of_like_cost(void **state) {
    static const int64_t list_of[1] = {0};
    struct lists l;
    struct strips s;
    int64_t all = 0;
    (void)state;
    key_lists(&l, "causal", 4096, 1);
    assert_int_equal(strips_make(&s, &l, list_of, 1, 1, 10, INT64_MAX, NULL), TESS_OK);
    assert_int_equal(s.n, STRIPS_OF_HEAD);
    for (int64_t i = 0; i < s.n; i++)
        all += cost_of(&l, &s.strip[i]);
    for (int64_t i = 0; i < s.n; i++) {
        assert_true(2 * cost_of(&l, &s.strip[i]) * s.n <= 3 * all);
        assert_true(i == 0 || cost_of(&l, &s.strip[s.order[i]]) <=
                                  cost_of(&l, &s.strip[s.order[i - 1]]) + 10 * l.tiles);
    }
    strips_free(&s);
    lists_free(&l);
}

/* Fewer strips where there is less room for sums, and none where one for each head is too much. */
static void room_is_kept(void **state) {
    static const int64_t list_of[2] = {0, 0};
    struct lists l;
    int64_t last = 2 * STRIPS_OF_HEAD;
    (void)state;
    key_lists(&l, "dense", 512, 1);
    for (int64_t most = 512 * last; most >= 1024; most /= 2) {
        struct strips s;
        assert_int_equal(strips_make(&s, &l, list_of, 2, 1, 1, most, NULL), TESS_OK);
        assert_true(s.n >= 2 && s.n <= last && s.rows <= most);
        last = s.n;
        strips_free(&s);
    }
    assert_int_equal(last, 2);
    struct strips none;
    assert_int_equal(strips_make(&none, &l, list_of, 2, 1, 1, 1023, NULL), TESS_OK);
    assert_int_equal(none.n, 0);
    strips_free(&none);
    lists_free(&l);
}

/* ---- plans ---- */

static void strip_is(const struct strip *a, const struct strip *b) {
    assert_int_equal(a->batch_head, b->batch_head);
    assert_int_equal(a->first, b->first);
    assert_int_equal(a->end, b->end);
    assert_int_equal(a->query, b->query);
    assert_int_equal(a->query_end, b->query_end);
    assert_int_equal(a->at, b->at);
}

/* Which gradients are wanted beside dQ decides neither the form nor how keys are cut. */
static void form_depends_on_no_other_gradient(void **state) {
    static const struct {
        const char *spec;
        int64_t block;
        int joint;
    } cases[] = {
        {"dense", 64, 1}, {"causal", 64, 1}, {"window(100,0)", 64, 1}, {"random(0.05,1)", 1, 0}};
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        tess_pattern *pattern = pattern_make(cases[c].spec, 1000, cases[c].block, 1, 1);
        tess_problem problem = backward_make(1000, QKV);
        tess_plan *all = plan_created(&problem, pattern);
        assert_int_equal(all->joint, cases[c].joint);
        for (int64_t other = 0; other < 16; other++) {
            problem.alibi = problem.sink = 1;
            problem.gradients = TESS_GRADIENT_Q | other << 1;
            tess_plan *plan = plan_created(&problem, pattern);
            const struct strips *a = &all->key_work.strips, *b = &plan->key_work.strips;
            assert_int_equal(plan->joint, all->joint);
            assert_int_equal(plan_pass(plan, TESS_STAGE_GRADIENT_ROWS) != NULL,
                             !plan->joint || (problem.gradients & TESS_GRADIENT_ALIBI));
            if (plan->joint) {
                assert_int_equal(plan->key_work.lists.tile_rows, all->key_work.lists.tile_rows);
                assert_int_equal(a->n, b->n);
                for (int64_t x = 0; x < a->n; x++)
                    strip_is(&a->strip[x], &b->strip[x]);
                assert_int_equal(plan_pass(plan, TESS_STAGE_GRADIENT_KEYS)->joint, 1);
            }
            tess_plan_free(plan);
        }
        problem.gradients = TESS_GRADIENT_K | TESS_GRADIENT_V;
        tess_plan *keys = plan_created(&problem, pattern);
        assert_int_equal(keys->joint, 0);
        tess_plan_free(keys);
        tess_plan_free(all);
        tess_pattern_free(pattern);
    }
}

/* spill_size bounds the sums; parts that a problem names, and a kernel of the pass over queries, keep dQ there. */
static void dq_keeps_its_pass(void **state) {
    (void)state;
    tess_pattern *pattern = pattern_make("dense", 1000, 64, 1, 1);
    tess_problem problem = backward_make(1000, QKV);
    tess_plan *plan = plan_created(&problem, pattern);
    const int64_t n = plan->key_work.strips.n;
    char text[4096], name[64];
    assert_true(plan->joint && n > 8);
    assert_true(tess_plan_print(plan, text, sizeof text) < sizeof text);
    assert_non_null(strstr(text, ", d_q too, in strips of key tiles\n"));
    assert_non_null(strstr(text, " rows of sums for d_q\n"));
    tess_plan_free(plan);

    problem.spill_size = INT64_C(2) * 4 * 1024 * 64 * 8; /* one row of each query */
    plan = plan_created(&problem, pattern);
    assert_true(plan->joint && plan->key_work.strips.n < n);
    tess_plan_free(plan);
    problem.spill_size = 1;
    plan = plan_created(&problem, pattern);
    assert_true(!plan->joint && plan_pass(plan, TESS_STAGE_GRADIENT_ROWS));
    snprintf(name, sizeof name, "%s", tess_plan_kernel(plan, TESS_STAGE_GRADIENT_ROWS));
    tess_plan_free(plan);

    problem.spill_size = 0, problem.part_keys = 128;
    plan = plan_created(&problem, pattern);
    assert_true(!plan->joint);
    tess_plan_free(plan);
    problem.part_keys = 0, problem.kernel = name;
    plan = plan_created(&problem, pattern);
    assert_true(!plan->joint);
    tess_plan_free(plan);
    tess_pattern_free(pattern);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strips_cover_key_tiles_once),
        cmocka_unit_test(strips_are_of_like_cost),
        cmocka_unit_test(room_is_kept),
        cmocka_unit_test(form_depends_on_no_other_gradient),
        cmocka_unit_test(dq_keeps_its_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
