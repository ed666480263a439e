/*
 * The CPU's passes of the backward against the oracle's gradients; what unlisted rows may reach, and
 * sameness over threads and over what else is wanted.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "lab/check/compare.h"
#include "lab/fill/rng.h"
#include "support/gradient_passes.h"

/* ---- against the oracle ---- */

/* dQ by strips reaches none but the queries that list a row. */
static void run_is_right(const struct run *r) {
    const struct setting *s = &r->s;
    const tess_tensor alibi = tess_tensor_bhnd(r->d_alibi, TESS_F32, 1, s->heads_q, 1, 1);
    const tess_tensor sink = tess_tensor_bhnd(r->d_sink, TESS_F32, 1, s->heads_q, 1, 1);
    const struct {
        const char *name;
        int wanted;
        const struct lab_gradient *gradient;
        const tess_tensor *got;
        int64_t reach;
    } all[] = {{"dQ", 1, &r->expected.q, &r->d_q.view, r->joint ? 1 : s->tile_rows},
               {"dK", 1, &r->expected.k, &r->d_k.view, s->tile_keys},
               {"dV", 1, &r->expected.v, &r->d_v.view, s->tile_keys},
               {"d_alibi", s->alibi, &r->expected.alibi, &alibi, 1},
               {"d_sink", s->sink, &r->expected.sink, &sink, 1}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const struct lab_gradient_rule rule = {.type = s->type,
                                               .o_type =
                                                   s->o_f32 || s->by_delta ? TESS_F32 : s->type,
                                               .o_exact = s->o_f32 || s->rest || s->by_delta,
                                               .o_rest = s->rest,
                                               .reach = all[i].reach};
        struct lab_report report = {.ok = 1};
        if (all[i].wanted)
            lab_compare_gradient(&report, all[i].name, all[i].gradient, all[i].got, &rule);
        if (!report.ok)
            fail_msg("%s: %s, n %d x %d, d %d, %d, blocks %d x %d, type %d, joint %d",
                     report.message, s->spec, (int)s->n_q, (int)s->n_kv, (int)s->d_qk, (int)s->d_v,
                     (int)s->block_q, (int)s->block_kv, (int)s->type, r->joint);
    }
}

/* In both forms, where the level has both. */
static void setting_is_right(const struct setting *setting) {
    struct run r;
    run_make(&r, setting);
    run_passes(&r, 2, ALL);
    run_is_right(&r);
    r.joint = run_may_join(&r);
    if (r.joint) {
        memset(r.d_q.view.data, 0xff, r.d_q.bytes);
        run_passes(&r, 2, ALL);
        run_is_right(&r);
    }
    run_free(&r);
}

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void head_sizes(void **state) {
    static const int64_t dims[][2] = {{1, 1},   {3, 3},    {16, 16},   {33, 20},
                                      {64, 64}, {128, 64}, {200, 200}, {16, 1}};
    (void)state;
    for (size_t i = 0; i < COUNT(dims); i++)
        for (tess_type type = TESS_F32; type <= TESS_BF16; type++)
            setting_is_right(&(struct setting){.n_q = 150,
                                               .n_kv = 170,
                                               .d_qk = dims[i][0],
                                               .d_v = dims[i][1],
                                               .spec = "causal",
                                               .block_q = 16,
                                               .o_f32 = i % 2 == 0,
                                               .type = type,
                                               .out = i % 4 < 2 ? type : TESS_F32});
    setting_is_right(&(struct setting){
        .n_q = 40, .n_kv = 70, .d_qk = 1100, .d_v = 1025, .spec = "random(0.3,1)"});
}

static void patterns(void **state) {
    static const char *const specs[] = {"dense",
                                        "causal",
                                        "window(20,5)",
                                        "random(0.2,3)",
                                        "each(40,70; causal)",
                                        "segments(30,50)",
                                        "dilated(9,3)+global(2)",
                                        "random(0.5,2)&window(30,30)"};
    static const int64_t blocks[][2] = {{1, 1},  {2, 2},   {4, 4},    {8, 8},   {3, 5},
                                        {16, 1}, {32, 64}, {128, 64}, {64, 128}};
    (void)state;
    for (size_t i = 0; i < COUNT(specs); i++)
        for (size_t b = 0; b < COUNT(blocks); b++)
            for (int fit = 0; fit < 2; fit++) /* for tiles that compute listed pairs alone */
                setting_is_right(&(struct setting){.n_q = 190,
                                                   .n_kv = 205,
                                                   .d_qk = fit ? 32 : 24,
                                                   .d_v = 16,
                                                   .heads_q = 2,
                                                   .lists = 2,
                                                   .spec = specs[i],
                                                   .block_q = blocks[b][0],
                                                   .block_kv = blocks[b][1],
                                                   .poison = 1,
                                                   .type = (tess_type)((i + b) % 3),
                                                   .o_f32 = i % 3 == 0,
                                                   .part_keys = i % 2 ? 128 : 0});
}

/* Dims that levels with bf16 in pairs take, runs that lie side by side and others, tiles of one to
 * four vectors, heads packed in a tile, and parts. */
static void bf16_in_pairs(void **state) {
    static const char *const specs[] = {"dense", "causal", "window(90,20)", "random(0.6,3)"};
    static const int64_t dims[][2] = {{32, 32}, {64, 96}, {128, 64}};
    static const int32_t tiles[][2] = {{64, 64}, {32, 48}, {16, 16}};
    (void)state;
    for (size_t i = 0; i < COUNT(specs); i++)
        for (size_t d = 0; d < COUNT(dims); d++)
            setting_is_right(&(struct setting){.batch = 2,
                                               .heads_q = 4,
                                               .heads_kv = 2,
                                               .tile_heads = d == 1 ? 2 : 1,
                                               .n_q = 150,
                                               .n_kv = 277,
                                               .d_qk = dims[d][0],
                                               .d_v = dims[d][1],
                                               .spec = specs[i],
                                               .block_q = d == 2 ? 16 : 64,
                                               .tile_rows = tiles[d][0] / (d == 1 ? 2 : 1),
                                               .tile_keys = tiles[d][1],
                                               .apart = i % 2 == 0,
                                               .poison = 1,
                                               .type = TESS_BF16,
                                               .out = d == 1 ? TESS_F32 : TESS_BF16,
                                               .o_f32 = d == 0,
                                               .part_keys = i == 0 ? 128 : 0});
}

/* Few pairs of each tile, over lists so long that sums are folded. */
static void listed_pairs_alone(void **state) {
    static const int64_t blocks[] = {1, 2, 4};
    (void)state;
    for (size_t b = 0; b < COUNT(blocks); b++)
        for (int64_t parts = 0; parts <= 512; parts += 512)
            setting_is_right(&(struct setting){.heads_q = 2,
                                               .heads_kv = 1,
                                               .n_q = 900,
                                               .n_kv = 1100,
                                               .d_qk = b == 1 ? 64 : 16,
                                               .d_v = b == 2 ? 80 : 16,
                                               .spec = "random(0.3,4)",
                                               .block_q = blocks[b],
                                               .type = (tess_type)(((int64_t)b + parts / 512) % 3),
                                               .o_f32 = 1,
                                               .sink = 1,
                                               .d_lse = 1,
                                               .part_keys = parts});
}

static void heads_and_tiles(void **state) {
    static const int64_t heads[][4] = {{4, 2, 1, 2}, {8, 2, 2, 4}, {8, 1, 8, 1}, {4, 4, 4, 1}};
    static const int32_t tiles[][2] = {{16, 64}, {8, 8}, {1, 1}, {16, 33}, {4, 16}};
    (void)state;
    for (size_t h = 0; h < COUNT(heads); h++)
        for (size_t t = 0; t < COUNT(tiles); t++)
            for (int apart = 0; apart < 2; apart++)
                setting_is_right(&(struct setting){.batch = 2,
                                                   .heads_q = heads[h][0],
                                                   .heads_kv = heads[h][1],
                                                   .lists = heads[h][2],
                                                   .tile_heads = heads[h][3],
                                                   .n_q = 60,
                                                   .n_kv = 45,
                                                   .d_qk = apart ? 20 : 32,
                                                   .spec = "random(0.4,7)&window(40,40)",
                                                   .block_q = 4,
                                                   .tile_rows = tiles[t][0],
                                                   .tile_keys = tiles[t][1],
                                                   .apart = apart,
                                                   .poison = 1,
                                                   .type = (tess_type)(t % 3),
                                                   .out = (tess_type)(t % 3),
                                                   .part_keys = 128});
}

static void modifiers(void **state) {
    static const struct setting settings[] = {
        {.softcap = 2},
        {.softcap = 0.3},
        {.alibi = 1},
        {.alibi = 1, .positions = 1},
        {.sink = 1},
        {.dropped = 20000},
        {.dropped = 20000, .positions = 1},
        {.d_lse = 1},
        {.d_lse = 1, .by_delta = 1},
        {.sink = 1, .d_lse = 1, .by_delta = 1},
        {.rest = 1},
        {.scale = -0.4},
        {.softcap = 1.5, .alibi = 1, .sink = 1, .dropped = 9000, .d_lse = 1},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(settings); i++)
        for (int wide = 0; wide < 2; wide++)
            for (tess_type type = TESS_F32; type <= TESS_BF16; type++) {
                struct setting s = settings[i];
                s.batch = 2, s.heads_q = 4, s.heads_kv = 2, s.tile_heads = 2, s.tile_rows = 16;
                s.n_q = 90, s.n_kv = 120, s.d_qk = 32, s.d_v = 20, s.type = type;
                s.spec = wide ? "causal" : "random(0.3,5)";
                s.block_q = wide ? 32 : 2;
                s.o_f32 = !s.rest;
                s.part_keys = 128;
                setting_is_right(&s);
            }
}

static void long_lists_and_splits(void **state) {
    (void)state;
    for (int64_t parts = 0; parts <= 256; parts += 128)
        setting_is_right(&(struct setting){.n_q = 1300,
                                           .n_kv = 1200,
                                           .d_qk = parts ? 64 : 20,
                                           .spec = parts ? "dense" : "causal",
                                           .block_q = 64,
                                           .part_keys = parts});
}

static void outputs_in_f32(void **state) {
    (void)state;
    for (tess_type type = TESS_F32; type <= TESS_BF16; type++)
        setting_is_right(&(struct setting){
            .n_q = 70, .d_qk = 40, .spec = "causal", .type = type, .o_f32 = 1, .out = TESS_F32});
    setting_is_right(&(struct setting){.n_q = 70, .d_qk = 40, .type = TESS_BF16, .out = TESS_BF16});
    setting_is_right(&(struct setting){.n_q = 70, .d_qk = 40, .type = TESS_F16, .out = TESS_F16});
}

/* Scaled queries that leave the range in which they are kept as they are. */
static void extreme_queries(void **state) {
    static const double sizes[] = {0x1p-60, 0x1p-40, 0x1p106};
    (void)state;
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (int sparse = 0; sparse < 2; sparse++)
            setting_is_right(&(struct setting){.n_q = 70,
                                               .d_qk = 32,
                                               .size = sizes[i],
                                               .size_k = 0.5 / sizes[i],
                                               .scale = 0.5,
                                               .spec = sparse ? "random(0.3,4)" : "causal",
                                               .block_q = sparse ? 1 : 8});
}

/* A strip of several key tiles keeps what rounding cuts off of its sums: with all weights 1/N, and 2^32 in
 * its first tile and -2^32 in its third, the ones of the two other tiles are left. */
static void strips_keep_what_is_cut_off(void **state) {
    enum { N = 8192, TILE = 64, D = 16 };
    struct run r;
    (void)state;
    run_make(&r, &(struct setting){
                     .n_q = 1, .n_kv = N, .d_qk = D, .block_q = TILE, .scale = 1, .d_lse = 1});
    r.joint = run_may_join(&r);
    assert_int_equal(r.strips.tiles, N / TILE / STRIPS_OF_HEAD);
    const struct tensor *const zeros[] = {&r.q, &r.o, &r.d_o};
    for (size_t i = 0; i < COUNT(zeros); i++)
        row_set(zeros[i], 0, 0, 0, 0);
    row_set(&r.lse, 0, 0, 0, log(N));
    row_set(&r.d_lse, 0, 0, 0, 1);
    for (int64_t j = 0; j < N; j++) {
        row_set(&r.v, 0, 0, j, 0);
        row_set(&r.k, 0, 0, j, j == 0 ? 0x1p32 : j == 2 * TILE ? -0x1p32 : 1);
    }
    run_passes(&r, 1, ALL);
    for (int d = 0; d < D && r.joint; d++)
        assert_true(fabs(((float *)r.d_q.view.data)[d] * N - (N - 2 * TILE)) < 1);
    run_free(&r);
}

/* ---- bits ---- */

static uint64_t bits_of(const struct tensor *t) {
    uint64_t hash = 1;
    for (size_t i = 0; i < t->bytes; i++)
        hash = lab_mix(hash + ((unsigned char *)t->view.data)[i]);
    return hash;
}

static const struct setting for_bits = {.heads_q = 4,
                                        .heads_kv = 2,
                                        .n_q = 300,
                                        .n_kv = 700,
                                        .d_qk = 24,
                                        .spec = "random(0.5,3)",
                                        .part_keys = 128,
                                        .alibi = 1,
                                        .sink = 1,
                                        .dropped = 3000};

static void threads_change_no_bit_of(const struct setting *setting, int joint) {
    struct run r;
    run_make(&r, setting);
    r.joint = joint;
    run_passes(&r, 1, ALL);
    assert_true(r.strips.n >= 8);
    assert_true(r.rows.n_combines > 0 && r.keys.n_combines > 0);
    const uint64_t q = bits_of(&r.d_q), k = bits_of(&r.d_k), v = bits_of(&r.d_v);
    float alibi[4], sink[4];
    memcpy(alibi, r.d_alibi, sizeof alibi);
    memcpy(sink, r.d_sink, sizeof sink);
    for (int32_t threads = 2; threads <= THREADS; threads++) {
        run_passes(&r, threads, ALL);
        assert_true(q == bits_of(&r.d_q) && k == bits_of(&r.d_k) && v == bits_of(&r.d_v));
        assert_memory_equal(alibi, r.d_alibi, sizeof alibi);
        assert_memory_equal(sink, r.d_sink, sizeof sink);
    }
    run_free(&r);
}

static void threads_change_no_bit(void **state) {
    struct setting pairs = for_bits;
    (void)state;
    pairs.d_qk = 64, pairs.block_q = 32, pairs.type = TESS_BF16;
    threads_change_no_bit_of(&for_bits, 0);
    threads_change_no_bit_of(&for_bits, 1);
    threads_change_no_bit_of(&pairs, 0);
}

static void what_else_changes_no_bit_of(const struct setting *setting, int joint) {
    struct run r;
    run_make(&r, setting);
    r.joint = joint;
    run_passes(&r, 2, ALL);
    const struct tensor *const gradients[] = {&r.d_q, &r.d_k, &r.d_v};
    const uint64_t bits[] = {bits_of(gradients[0]), bits_of(gradients[1]), bits_of(gradients[2])};
    const float alibi = r.d_alibi[1];
    for (int wanted = 0; wanted < ALL; wanted++) {
        uint64_t poisoned = 0;
        r.d_alibi[1] = 0;
        for (int g = 0; g < 3; g++) {
            memset(gradients[g]->view.data, 0xff, gradients[g]->bytes);
            poisoned = wanted >> g & 1 ? poisoned : bits_of(gradients[g]);
        }
        run_passes(&r, 2, wanted);
        assert_true(r.d_alibi[1] == alibi);
        for (int g = 0; g < 3; g++)
            if (joint && g && !(wanted & TESS_GRADIENT_Q))
                continue; /* without dQ, dK and dV come of parts */
            else if (wanted >> g & 1)
                assert_true(bits_of(gradients[g]) == bits[g]);
            else
                assert_int_not_equal(bits_of(gradients[g]), bits[g]);
        (void)poisoned;
    }
    run_free(&r);
}

static void what_else_is_wanted_changes_no_bit(void **state) {
    struct setting pairs = for_bits;
    (void)state;
    pairs.d_qk = 64, pairs.block_q = 32, pairs.type = TESS_BF16;
    what_else_changes_no_bit_of(&for_bits, 0);
    what_else_changes_no_bit_of(&for_bits, 1);
    what_else_changes_no_bit_of(&pairs, 0);
}

/* A query that counts as empty, whatever it lists, gives and gets nothing. */
static void infinite_lse_is_empty(void **state) {
    struct run r;
    (void)state;
    run_make(&r, &(struct setting){.n_q = 30, .d_qk = 8, .spec = "window(5,5)"});
    for (int64_t i = 3; i < 30; i += 13) {
        row_set(&r.lse, 0, 0, i, i % 2 ? INFINITY : -INFINITY);
        row_set(&r.q, 0, 0, i, NAN);
        row_set(&r.d_o, 0, 0, i, NAN);
        row_set(&r.o, 0, 0, i, NAN);
    }
    run_passes(&r, 1, ALL);
    for (int64_t i = 0; i < 30; i++)
        for (int d = 0; d < 8; d++) {
            const float d_q = ((float *)r.d_q.view.data)[i * 8 + d];
            assert_true(i % 13 == 3 ? d_q == 0 : isfinite(d_q));
            assert_true(isfinite(((float *)r.d_k.view.data)[i * 8 + d]));
            assert_true(isfinite(((float *)r.d_v.view.data)[i * 8 + d]));
        }
    run_free(&r);
}

/* NaN in a row that a tile lists reaches the tiles that meet it, and no others. */
static void numbers_stay_in_their_tiles(void **state) {
    enum { N = 64, D = 8, TILE = 16 };
    struct run r;
    (void)state;
    run_make(&r,
             &(struct setting){
                 .n_q = N, .d_qk = D, .spec = "window(3,3)", .tile_rows = TILE, .tile_keys = TILE});
    run_passes(&r, 1, ALL);
    const uint64_t before = bits_of(&r.d_q);
    float *const d_q = r.d_q.view.data, *const d_k = r.d_k.view.data, *const d_v = r.d_v.view.data;
    float q[N * D], k[N * D], v[N * D];
    memcpy(q, d_q, sizeof q), memcpy(k, d_k, sizeof k), memcpy(v, d_v, sizeof v);
    row_set(&r.d_o, 0, 0, 40, NAN);
    row_set(&r.v, 0, 0, 5, NAN);
    run_passes(&r, 1, ALL);
    assert_true(before != bits_of(&r.d_q));
    for (int i = 0; i < N * D; i++) {
        const int row = i / D, tile = row / TILE;
        if (row > 8 && row != 40)
            assert_true(tile == 0 || tile == 2 || d_q[i] == q[i]);
        assert_true(tile == 0 || tile == 2 || (d_k[i] == k[i] && d_v[i] == v[i]));
    }
    run_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_sizes),
        cmocka_unit_test(patterns),
        cmocka_unit_test(bf16_in_pairs),
        cmocka_unit_test(listed_pairs_alone),
        cmocka_unit_test(heads_and_tiles),
        cmocka_unit_test(modifiers),
        cmocka_unit_test(long_lists_and_splits),
        cmocka_unit_test(outputs_in_f32),
        cmocka_unit_test(extreme_queries),
        cmocka_unit_test(strips_keep_what_is_cut_off),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(what_else_is_wanted_changes_no_bit),
        cmocka_unit_test(infinite_lse_is_empty),
        cmocka_unit_test(numbers_stay_in_their_tiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
