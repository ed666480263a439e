/* Plans of the backward: passes, lists in both orientations, schedules, refusals, words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/backward_stand_in.h"

/* A plan has the passes that its gradients need, and no others. */
static void passes_are_those_wanted(void **state) {
    enum {
        Q = TESS_GRADIENT_Q,
        K = TESS_GRADIENT_K,
        V = TESS_GRADIENT_V,
        ALIBI = TESS_GRADIENT_ALIBI,
        SINK = TESS_GRADIENT_SINK
    };
    static const struct {
        tess_pipeline pipeline;
        int64_t gradients;
        const char *stages;
    } cases[] = {
        {TESS_FUSED, 0, "delta gradient_keys gradient_rows "},
        {TESS_FUSED, Q | K | V, "delta gradient_keys gradient_rows "},
        {TESS_FUSED, Q, "delta gradient_rows "},
        {TESS_FUSED, K, "delta gradient_keys "},
        {TESS_FUSED, V, "delta gradient_keys "},
        {TESS_FUSED, ALIBI, "delta gradient_rows "},
        {TESS_FUSED, SINK, "delta "},
        {TESS_STAGED, 0,
         "delta sddmm sddmm softmax_backward spmm_transposed spmm spmm_transposed "},
        {TESS_STAGED, Q, "delta sddmm sddmm softmax_backward spmm "},
        {TESS_STAGED, K, "delta sddmm sddmm softmax_backward spmm_transposed "},
        {TESS_STAGED, V, "delta sddmm softmax_backward spmm_transposed "},
        {TESS_STAGED, ALIBI, "delta sddmm sddmm softmax_backward "},
        {TESS_STAGED, SINK, "delta "},
    };
    (void)state;
    tess_pattern *pattern = pattern_make("causal", 100, 16, 1, 1);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const tess_problem problem = backward_make(100, cases[c].pipeline, cases[c].gradients);
        tess_plan *plan = plan_created(&problem, pattern);
        char stages[256] = "";
        double seconds = 0;
        size_t largest = 0;
        for (const struct pass *p = plan->passes; p < plan->passes + plan->n_passes; p++) {
            strcat(strcat(stages, tess_stage_name(p->stage)), " ");
            seconds += p->seconds;
            assert_true(p->seconds > 0);
            largest = p->workspace > largest ? p->workspace : largest;
            assert_non_null(tess_plan_kernel(plan, p->stage));
        }
        assert_string_equal(stages, cases[c].stages);
        assert_true(plan->predicted_seconds == seconds);
        assert_true(tess_plan_workspace_size(plan) >= largest);
        tess_plan_free(plan);
    }
    tess_pattern_free(pattern);
}

/* ---- lists ---- */

/* Tiles of the transposed pattern that a staged plan keeps are the pattern's, each in its place. */
static void transposed_tiles_have_their_places(void **state) {
    static const struct {
        const char *spec;
        int64_t n[4]; /* n_q, n_kv, block_q, block_kv */
        int64_t heads;
    } cases[] = {
        {"causal", {100, 100, 16, 16}, 1},
        {"random(0.3,1)+window(5,0)", {61, 90, 8, 16}, 4},
        {"dilated(5,3)+global(2)", {40, 70, 16, 8}, 2},
        {"random(0.02,3)", {90, 61, 1, 1}, 2},
        {"random(0,1)", {64, 64, 16, 16}, 1}, /* nothing */
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        tess_pattern *pattern = make(cases[c].spec, cases[c].n, 1, cases[c].heads);
        tess_problem problem = backward_make(cases[c].n[0], TESS_STAGED, TESS_GRADIENT_K);
        problem.n_kv = cases[c].n[1];
        tess_plan *plan = plan_created(&problem, pattern);
        const struct bcsr *m = &plan->work.bcsr, *t = &plan->key_work.bcsr;
        const int64_t lists = m->batch * m->heads;
        int64_t met = 0;
        assert_int_equal(t->n_tiles, m->n_tiles);
        assert_int_equal(t->n_q, m->n_kv);
        assert_int_equal(t->block_q, m->block_kv);
        for (int64_t l = 0; l < lists; l++)
            for (int64_t row = 0; row < t->rows; row++)
                for (int64_t e = bcsr_row_begin(t, l, row); e < bcsr_row_end(t, l, row); e++) {
                    const int64_t at = plan->key_work.entries[e], column = t->col_idx[e];
                    struct tile turned, tile;
                    assert_in_range(at, bcsr_row_begin(m, l, column),
                                    bcsr_row_end(m, l, column) - 1);
                    assert_int_equal(m->col_idx[at], row);
                    tile_at(t, e, &turned);
                    tile_at(m, at, &tile);
                    for (int64_t r = 0; r < bcsr_row_height(t, row); r++)
                        for (int64_t k = 0; k < bcsr_row_height(m, column); k++)
                            assert_int_equal(tile_row_bits(t, &turned, r, k, 1),
                                             tile_row_bits(m, &tile, k, r, 1));
                    met++;
                }
        assert_int_equal(met, m->n_tiles);
        tess_plan_free(plan);
        tess_pattern_free(pattern);
    }
}

/* Whether any key of the tile is listed by query i of the pattern's list `list`. */
static int key_tile_lists(const tess_pattern *pattern, int64_t list, int64_t first, int64_t end,
                          int64_t i) {
    int64_t keys[128], n;
    assert_int_equal(tess_pattern_row(pattern, list / pattern->lists.heads,
                                      list % pattern->lists.heads, i, keys, 128, &n, NULL),
                     TESS_OK);
    for (int64_t k = 0; k < n; k++)
        if (keys[k] >= first && keys[k] < end)
            return 1;
    return 0;
}

/* A key tile's items are its parts, each once; together they have the queries of all heads of a group,
 * and a tile that nobody lists has one as well. */
static void every_key_tile_has_its_items(void **state) {
    static const struct {
        const char *spec;
        int64_t heads, part; /* lists of a batch; queries of a part at least */
    } cases[] = {{"causal", 1, INT64_MAX},
                 {"window(3,0)&global(40)", 4, INT64_MAX}, /* keys that nobody lists */
                 {"random(0.4,1)", 2, 1},
                 {"global(1)", 1, 1}}; /* one long key tile */
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        tess_pattern *pattern = pattern_make(cases[c].spec, 100, 8, 2, cases[c].heads);
        tess_problem problem = backward_make(100, TESS_FUSED, 0);
        problem.part_keys = cases[c].part, problem.tile_rows = 16;
        tess_plan *plan = plan_created(&problem, pattern);
        const struct lists *l = &plan->key_work.lists;
        const struct schedule *s = &plan->key_work.schedule;
        const int64_t heads = problem.batch * problem.heads_kv, tiles = l->tiles;
        int32_t *parts = calloc((size_t)(heads * tiles), sizeof *parts);
        int64_t queries = 0, met = 0;
        tess_plan_info info = tess_plan_info_init();
        assert_int_equal(tess_plan_describe(plan, &info, NULL), TESS_OK);
        assert_int_equal(info.tile_keys, 16);
        assert_int_equal(plan->key_work.tile_heads, 1);
        for (int64_t list = 0; list < l->n_lists; list++)
            for (int64_t t = 0; t < tiles; t++)
                for (int64_t i = 0; i < 100; i++)
                    queries += key_tile_lists(pattern, list, l->tile_row[t], l->tile_row[t + 1], i);
        assert_int_equal(info.packed_queries, queries);
        for (int64_t n = 0; n < s->n_items; n++) {
            const struct work_item *item = &s->items[n];
            int64_t all = 0, begin, end;
            assert_in_range(item->batch_head, 0, heads - 1);
            for (int64_t h = 0; h < 2; h++)
                all += l->keys[plan->list_of[item->batch_head * 2 + h] * tiles + item->tile];
            schedule_part(all, item->part, item->parts, &begin, &end);
            met += end - begin;
            parts[item->batch_head * tiles + item->tile] += 1;
            assert_true(item->parts == 1 || (item->slot >= 0 && item->slot < s->n_slots));
        }
        for (int64_t n = 0; n < s->n_items; n++)
            assert_int_equal(parts[s->items[n].batch_head * tiles + s->items[n].tile],
                             s->items[n].parts);
        for (int64_t i = 0; i < heads * tiles; i++)
            assert_true(parts[i] > 0);
        assert_int_equal(met, queries * (problem.batch * problem.heads_q / l->n_lists));
        assert_int_equal(info.work_items, plan->work.schedule.n_items + s->n_items);
        assert_int_equal(info.split_tiles, plan->work.schedule.n_combines + s->n_combines);
        free(parts);
        tess_plan_free(plan);
        tess_pattern_free(pattern);
    }
}

/* The longest key tile of each group comes first, and its length is that of all heads: the first head of
 * one group sees the keys from its queries on, the second of the other those up to them. */
static void groups_are_summed(void **state) {
    enum { BLOCKS = 6 };
    uint8_t blocks[4][BLOCKS][BLOCKS] = {0};
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern = NULL;
    (void)state;
    for (int i = 0; i < BLOCKS; i++)
        for (int j = i; j < BLOCKS; j++)
            blocks[0][i][j] = blocks[3][j][i] = 1;
    shape.n_q = 16 * BLOCKS, shape.block_q = shape.block_kv = 16, shape.heads = 4;
    assert_int_equal(tess_pattern_from_blocks(&pattern, &blocks[0][0][0], &shape, NULL), TESS_OK);
    for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++) {
        tess_problem problem = backward_make(16 * BLOCKS, (tess_pipeline)pipeline, TESS_GRADIENT_K);
        problem.tile_rows = pipeline == TESS_FUSED ? 16 : 0;
        tess_plan *plan = plan_created(&problem, pattern);
        const struct schedule *s = &plan->key_work.schedule;
        assert_int_equal(s->n_items, 2 * 2 * BLOCKS);
        for (int64_t i = 0; i < 4; i++)
            assert_int_equal(s->items[i].tile, s->items[i].batch_head % 2 ? 0 : BLOCKS - 1);
        tess_plan_free(plan);
    }
    tess_pattern_free(pattern);
}

/* ---- refusals ---- */

static void problems_are_refused(void **state) {
    (void)state;
    tess_pattern *pattern = pattern_make("causal", 64, 16, 1, 1);
    const tess_problem good = backward_make(64, TESS_FUSED, 0);
    static const tess_status invalid = TESS_INVALID_ARGUMENT;
    tess_problem p = good;
    p.operation = (tess_operation)3;
    refuse(p, pattern, invalid,
           "operation is not TESS_ATTENTION, TESS_ATTENTION_BACKWARD or TESS_MLP");
    p = good, p.gradients = 32;
    refuse(p, pattern, invalid, "gradients has bits beside those of TESS_GRADIENT_...");
    p = good, p.gradients = -1;
    refuse(p, pattern, invalid, "gradients has bits");
    p = good, p.gradients = TESS_GRADIENT_ALIBI;
    refuse(p, pattern, invalid, "the gradient of ALiBi's slopes is asked for, and alibi is 0");
    p = good, p.gradients = TESS_GRADIENT_SINK | TESS_GRADIENT_Q;
    refuse(p, pattern, invalid, "the gradient of the sinks is asked for, and sink is 0");
    p = good, p.spill_size = -1;
    refuse(p, pattern, invalid, "spill_size is negative");
    p = good, p.o_rest = 2;
    refuse(p, pattern, invalid, "o_rest is not 0 or 1");
    p = problem_make(64), p.gradients = TESS_GRADIENT_Q;
    refuse(p, pattern, invalid, "operation is not TESS_ATTENTION_BACKWARD");
    p = problem_make(64), p.spill_size = 1;
    refuse(p, pattern, invalid, "operation is not TESS_ATTENTION_BACKWARD");
    p = good, p.tile_rows = 48;
    refuse(p, pattern, TESS_UNSUPPORTED, "no key tiles of 48 rows");
    p = good, p.tile_rows = 48, p.gradients = TESS_GRADIENT_Q;
    refuse(p, pattern, TESS_UNSUPPORTED, "no query tiles of 48 rows");
    p = good, p.kernel = "softmax_backward";
    refuse(p, pattern, TESS_UNSUPPORTED, "which the chosen pipeline does not contain");
    p = good, p.gradients = TESS_GRADIENT_K, p.kernel = "gradient_rows";
    refuse(p, pattern, TESS_UNSUPPORTED, "which the chosen pipeline does not contain");
    tess_pattern_free(pattern);
}

/* ---- words ---- */

static void printed(const tess_plan *plan, char *text, size_t size) {
    assert_true(tess_plan_print(plan, text, size) < size);
}

/* A plan says what it computes, by which passes, and both of its lists. */
static void plans_are_printed(void **state) {
    static const char *const fused[] = {"fused backward of attention on cpu\n",
                                        "  gradients q k v\n",
                                        "  kernel    delta: delta\n",
                                        "  kernel    gradient_keys: gradient_keys\n",
                                        "  kernel    gradient_rows: gradient_rows\n",
                                        "  tile      ",
                                        " query tiles, ",
                                        " packed keys: ",
                                        "  key tile  ",
                                        " key tiles, ",
                                        " packed queries: ",
                                        ", over keys\n",
                                        "% of the computed pairs"};
    static const char *const staged[] = {
        "staged backward of attention on cpu\n", "  gradients alibi\n",
        "  kernel    sddmm: sddmm, scores of q and k\n",
        "  kernel    sddmm: sddmm, gradients of d_o and v\n", " floats between the stages\n"};
    char text[4096];
    (void)state;
    tess_pattern *pattern = pattern_make("causal", 100, 16, 1, 1);
    tess_problem problem = backward_make(100, TESS_FUSED, 0);
    tess_plan *plan = plan_created(&problem, pattern);
    printed(plan, text, sizeof text);
    for (size_t i = 0; i < sizeof fused / sizeof *fused; i++)
        if (!strstr(text, fused[i]))
            fail_msg("'%s' is not in\n%s", fused[i], text);
    tess_plan_free(plan);
    problem = backward_make(100, TESS_STAGED, TESS_GRADIENT_ALIBI);
    plan = plan_created(&problem, pattern);
    printed(plan, text, sizeof text);
    for (size_t i = 0; i < sizeof staged / sizeof *staged; i++)
        if (!strstr(text, staged[i]))
            fail_msg("'%s' is not in\n%s", staged[i], text);
    assert_null(strstr(text, "key tile"));
    tess_plan_free(plan);
    tess_pattern_free(pattern);
}

/* A name forces the kernel of its stage, and no other. */
static void names_force_their_stage(void **state) {
    (void)state;
    tess_pattern *pattern = pattern_make("causal", 100, 16, 1, 1);
    tess_problem problem = backward_make(100, TESS_FUSED, 0);
    problem.kernel = "gradient_keys";
    tess_plan *plan = plan_created(&problem, pattern);
    assert_string_equal(tess_plan_kernel(plan, TESS_STAGE_GRADIENT_KEYS), "gradient_keys");
    assert_string_equal(tess_plan_kernel(plan, TESS_STAGE_GRADIENT_ROWS), "gradient_rows");
    assert_string_equal(tess_plan_kernel(plan, TESS_STAGE_DELTA), "delta");
    assert_null(tess_plan_kernel(plan, TESS_STAGE_ATTENTION));
    assert_int_equal(tess_plan_scores_count(plan), 0);
    tess_plan_free(plan);
    tess_pattern_free(pattern);
}

/* Callers of version 0.1 know neither the backward's fields nor those of a plan's key tiles. */
static void old_structs_are_accepted(void **state) {
    (void)state;
    tess_pattern *pattern = pattern_make("causal", 100, 16, 1, 1);
    tess_problem problem = problem_make(100);
    tess_plan_info info = tess_plan_info_init();
    problem.struct_size = offsetof(tess_problem, operation);
    problem.operation = (tess_operation)77, problem.o_rest = 77; /* not looked at */
    tess_plan *plan = plan_created(&problem, pattern);
    info.struct_size = offsetof(tess_plan_info, tile_keys), info.tile_keys = 77;
    assert_int_equal(tess_plan_describe(plan, &info, NULL), TESS_OK);
    assert_true(info.work_items > 0 && info.tile_keys == 77);
    info.struct_size--;
    assert_int_equal(tess_plan_describe(plan, &info, NULL), TESS_INVALID_ARGUMENT);
    tess_plan_free(plan);
    tess_pattern_free(pattern);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_are_those_wanted),
        cmocka_unit_test(transposed_tiles_have_their_places),
        cmocka_unit_test(every_key_tile_has_its_items),
        cmocka_unit_test(groups_are_summed),
        cmocka_unit_test(problems_are_refused),
        cmocka_unit_test(plans_are_printed),
        cmocka_unit_test(names_force_their_stage),
        cmocka_unit_test(old_structs_are_accepted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
