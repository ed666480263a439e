/*
 * The oracle's gradients, held by others: complex-step differentiation of the definition, central
 * differences of the oracle's forward pass, and identities that hold at any size.
 */
#include <complex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "lab/check/compare.h"
#include "lab/fill/rng.h"
#include "support/support.h"

/* ---- the definition in complex numbers ---- */

enum { B = 2, H = 4, H_KV = 2, N = 6, N_KV = 9, D = 3, D_V = 5 };

/* Everything that a loss depends on. */
struct inputs {
    double complex q[B][H][N][D], k[B][H_KV][N_KV][D], v[B][H_KV][N_KV][D_V];
    double complex slope[H], sink[H];
};
#define INPUTS (sizeof(struct inputs) / sizeof(double complex))

struct loss {
    const tess_pattern *pattern;
    struct lab_scoring scoring;
    double d_o[B][H][N][D_V], d_lse[B][H][N];
};

static const struct lab_sizes sizes = {H, N, N_KV};

/* sum dO . o + dlse . lse of one row. */
static double complex row_loss(const struct loss *l, const struct inputs *x,
                               const struct lab_place *at) {
    const struct lab_scoring *s = &l->scoring;
    const int64_t hk = at->h / (H / H_KV);
    int64_t keys[N_KV], n;
    double complex score[N_KV], sum = 0, loss = 0, o[D_V] = {0};
    double top = -(double)INFINITY;
    tess_pattern_row(l->pattern, 0, 0, at->i, keys, N_KV, &n, NULL);
    for (int64_t e = 0; e < n; e++) {
        score[e] = 0;
        for (int d = 0; d < D; d++)
            score[e] += s->scale * x->q[at->b][at->h][at->i][d] * x->k[at->b][hk][keys[e]][d];
        if (s->softcap > 0)
            score[e] = s->softcap * ctanh(score[e] / s->softcap);
        if (s->alibi)
            score[e] += x->slope[at->h] * lab_distance(s, &sizes, at, keys[e]);
        top = creal(score[e]) > top ? creal(score[e]) : top;
    }
    if (n == 0)
        return 0;
    for (int64_t e = 0; e < n; e++)
        sum += score[e] = cexp(score[e] - top);
    const double complex all = s->sink ? sum + cexp(x->sink[at->h] - top) : sum;
    for (int64_t e = 0; e < n; e++)
        for (int d = 0; d < D_V; d++)
            if (!lab_drops(s, &sizes, at, keys[e]))
                o[d] += lab_kept(s) * score[e] / all * x->v[at->b][hk][keys[e]][d];
    for (int d = 0; d < D_V; d++)
        loss += l->d_o[at->b][at->h][at->i][d] * o[d];
    return loss + l->d_lse[at->b][at->h][at->i] * (top + clog(sum));
}

static double complex loss_of(const struct loss *l, const struct inputs *x) {
    double complex loss = 0;
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t i = 0; i < N; i++)
                loss += row_loss(l, x, &(struct lab_place){b, h, i});
    return loss;
}

/* ---- both, side by side ---- */

struct problem_at_hand {
    struct loss loss;
    struct inputs inputs;
    float q[B][H][N][D], k[B][H_KV][N_KV][D], v[B][H_KV][N_KV][D_V];
    float slope[H], sink[H], d_o[B][H][N][D_V], d_lse[B][H][N];
    tess_tensor tq, tk, tv, tdo, tdlse;
    struct lab_gradients gradients;
};

/* Numbers of f32, so that both see the same. */
static void draw(float *to, double complex *exact, size_t n, uint64_t stream) {
    for (size_t i = 0; i < n; i++) {
        to[i] = (float)lab_normal(11, stream, i);
        if (exact)
            exact[i] = (double)to[i];
    }
}

#define COUNT(array) (sizeof(array) / sizeof(float))

static void make(struct problem_at_hand *p, const char *spec, const struct lab_scoring *scoring) {
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    memset(p, 0, sizeof *p);
    shape.n_q = N, shape.n_kv = N_KV, shape.block_q = 2, shape.block_kv = 3;
    assert_int_equal(TESS_OK, tess_pattern_from_spec(&pattern, spec, &shape, NULL));
    p->loss.pattern = pattern;
    p->loss.scoring = *scoring;
    draw(&p->q[0][0][0][0], &p->inputs.q[0][0][0][0], COUNT(p->q), 1);
    draw(&p->k[0][0][0][0], &p->inputs.k[0][0][0][0], COUNT(p->k), 2);
    draw(&p->v[0][0][0][0], &p->inputs.v[0][0][0][0], COUNT(p->v), 3);
    draw(p->slope, p->inputs.slope, H, 4);
    draw(p->sink, p->inputs.sink, H, 5);
    draw(&p->d_o[0][0][0][0], NULL, COUNT(p->d_o), 6);
    draw(&p->d_lse[0][0][0], NULL, COUNT(p->d_lse), 7);
    for (size_t i = 0; i < COUNT(p->d_o); i++)
        (&p->loss.d_o[0][0][0][0])[i] = (double)(&p->d_o[0][0][0][0])[i];
    for (size_t i = 0; i < COUNT(p->d_lse); i++)
        (&p->loss.d_lse[0][0][0])[i] = (double)(&p->d_lse[0][0][0])[i];
    if (scoring->alibi)
        p->loss.scoring.alibi = p->slope;
    if (scoring->sink)
        p->loss.scoring.sink = p->sink;
    p->tq = tess_tensor_bhnd(p->q, TESS_F32, B, H, N, D);
    p->tk = tess_tensor_bhnd(p->k, TESS_F32, B, H_KV, N_KV, D);
    p->tv = tess_tensor_bhnd(p->v, TESS_F32, B, H_KV, N_KV, D_V);
    p->tdo = tess_tensor_bhnd(p->d_o, TESS_F32, B, H, N, D_V);
    p->tdlse = tess_tensor_bhnd(p->d_lse, TESS_F32, B, H, N, 1);
    const struct lab_gradients_of in = {.q = &p->tq,
                                        .k = &p->tk,
                                        .v = &p->tv,
                                        .d_o = &p->tdo,
                                        .d_lse = &p->tdlse,
                                        .pattern = pattern,
                                        .scoring = &p->loss.scoring};
    assert_int_equal(0, lab_gradients_run(&p->gradients, &in));
}

static void unmake(struct problem_at_hand *p) {
    lab_gradients_free(&p->gradients);
    tess_pattern_free((tess_pattern *)(uintptr_t)p->loss.pattern);
}

/* The oracle's derivative by input x, in the order of struct inputs. */
static double by_oracle(const struct lab_gradients *g, size_t x) {
    const double *const parts[] = {g->q.value, g->k.value, g->v.value, g->alibi.value,
                                   g->sink.value};
    const size_t counts[] = {B * H * N * D, B * H_KV * N_KV * D, B * H_KV * N_KV * D_V, H, H};
    int part = 0;
    for (; x >= counts[part]; part++)
        x -= counts[part];
    return parts[part][x];
}

static const float present[1]; /* stands for arrays that make() draws */
static const struct lab_scoring scorings[] = {
    {.scale = 0.7},
    {.scale = -0.4},
    {.scale = 0.7, .softcap = 1.3},
    {.scale = 0.7, .alibi = present},
    {.scale = 0.7, .alibi = present, .position = 5, .first_key = 2},
    {.scale = 0.7, .sink = present},
    {.scale = 0.7, .dropped = 20000, .seed = 9},
    {.scale = 0.7,
     .softcap = 1.3,
     .alibi = present,
     .sink = present,
     .dropped = 20000,
     .seed = 3,
     .first_head = 7,
     .heads = 9,
     .first_query = 13,
     .first_key = 30},
};
static const char *const specs[] = {"dense", "window(2,3)", "segments(5,3)"};

static void complex_steps_agree(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof scorings / sizeof *scorings; c++)
        for (size_t a = 0; a < sizeof specs / sizeof *specs; a++) {
            static struct problem_at_hand p;
            make(&p, specs[a], &scorings[c]);
            double largest = 0, worst = 0;
            for (size_t x = 0; x < INPUTS; x++) {
                struct inputs moved = p.inputs;
                ((double complex *)(void *)&moved)[x] += 1e-100 * I;
                const double step = cimag(loss_of(&p.loss, &moved)) / 1e-100;
                largest = fmax(largest, fabs(step));
                worst = fmax(worst, fabs(step - by_oracle(&p.gradients, x)));
            }
            assert_true(largest > 0.1);
            if (!(worst <= 1e-13 * largest))
                fail_msg("scoring %d, %s: %g of %g", (int)c, specs[a], worst, largest);
            unmake(&p);
        }
}

/* ---- the forward oracle ---- */

static double forward_loss(const struct problem_at_hand *p) {
    struct lab_oracle o;
    double loss = 0;
    assert_int_equal(
        0, lab_oracle_run(&o, &p->tq, &p->tk, &p->tv, p->loss.pattern, &p->loss.scoring, NULL, 0));
    for (int64_t x = 0; x < o.rows; x++) {
        for (int d = 0; d < D_V; d++)
            loss += (double)(&p->d_o[0][0][0][0])[x * D_V + d] * o.o[x * D_V + d];
        if (o.keys[x])
            loss += (double)(&p->d_lse[0][0][0])[x] * o.lse[x];
    }
    lab_oracle_free(&o);
    return loss;
}

static void central_differences_agree(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof scorings / sizeof *scorings; c++) {
        static struct problem_at_hand p;
        make(&p, "window(2,3)", &scorings[c]);
        float *const inputs[] = {&p.q[0][0][0][0], &p.k[0][0][0][0], &p.v[0][0][0][0]};
        const double *const by[] = {p.gradients.q.value, p.gradients.k.value, p.gradients.v.value};
        const size_t counts[] = {COUNT(p.q), COUNT(p.k), COUNT(p.v)};
        for (int t = 0; t < 3; t++)
            for (size_t x = 0; x < counts[t]; x += 7) {
                const float was = inputs[t][x];
                inputs[t][x] = was + 0x1p-9F;
                const double up = (double)inputs[t][x], above = forward_loss(&p);
                inputs[t][x] = was - 0x1p-9F;
                const double down = (double)inputs[t][x], below = forward_loss(&p);
                inputs[t][x] = was;
                assert_true(fabs((above - below) / (up - down) - by[t][x]) < 1e-4);
            }
        unmake(&p);
    }
}

/* ---- identities ---- */

/* Identities of plain attention: sum_j dV = sum_i dO of rows that list a key; sum q dQ = sum k dK. */
static void identities_hold(void **state) {
    (void)state;
    static struct problem_at_hand p;
    make(&p, "segments(5,3)", &(struct lab_scoring){0});
    for (int64_t b = 0; b < B; b++)
        for (int64_t hk = 0; hk < H_KV; hk++) {
            double of_q = 0, of_k = 0, d_v[D_V] = {0}, d_o[D_V] = {0};
            for (int64_t h = hk * (H / H_KV); h < (hk + 1) * (H / H_KV); h++)
                for (int64_t i = 0; i < N; i++) {
                    int64_t n;
                    tess_pattern_row(p.loss.pattern, 0, 0, i, NULL, 0, &n, NULL);
                    for (int d = 0; d < D; d++)
                        of_q += (double)p.q[b][h][i][d] *
                                p.gradients.q.value[((b * H + h) * N + i) * D + d];
                    for (int d = 0; d < D_V && n > 0; d++)
                        d_o[d] += (double)p.d_o[b][h][i][d];
                }
            for (int64_t j = 0; j < N_KV; j++) {
                for (int d = 0; d < D; d++)
                    of_k += (double)p.k[b][hk][j][d] *
                            p.gradients.k.value[((b * H_KV + hk) * N_KV + j) * D + d];
                for (int d = 0; d < D_V; d++)
                    d_v[d] += p.gradients.v.value[((b * H_KV + hk) * N_KV + j) * D_V + d];
            }
            assert_true(fabs(of_q - of_k) < 1e-13);
            for (int d = 0; d < D_V; d++)
                assert_true(fabs(d_v[d] - d_o[d]) < 1e-13);
        }
    unmake(&p);
}

/* ---- the library's ---- */

static void cases_of_the_backward_are_right(void **state) {
    (void)state;
    cases_are_right("tests/cases/backward.txt", TESS_CPU);
}

/* ---- what is compared ---- */

/* One query over keys whose scores are all about -50, by one dim. */
enum { WIDE_KEYS = 128, WIDE = 128 };

struct one_dim_outweighs {
    float q[WIDE], k[WIDE_KEYS][WIDE], v[WIDE_KEYS][WIDE], d_o[WIDE];
    float d_k[WIDE_KEYS][WIDE], d_v[WIDE_KEYS][WIDE];
};

/* f32 in the order of dims and keys: the gradients as anyone would compute them. */
static void plain_gradients(struct one_dim_outweighs *p) {
    static float weight[WIDE_KEYS], d_p[WIDE_KEYS];
    const float scale = 1 / sqrtf(WIDE);
    float top = -INFINITY, sum = 0, delta = 0;
    for (int j = 0; j < WIDE_KEYS; j++) {
        weight[j] = d_p[j] = 0;
        for (int d = 0; d < WIDE; d++) {
            weight[j] += p->q[d] * p->k[j][d];
            d_p[j] += p->d_o[d] * p->v[j][d];
        }
        weight[j] *= scale;
        top = fmaxf(top, weight[j]);
    }
    for (int j = 0; j < WIDE_KEYS; j++)
        sum += weight[j] = expf(weight[j] - top);
    for (int j = 0; j < WIDE_KEYS; j++)
        delta += (weight[j] /= sum) * d_p[j];
    for (int j = 0; j < WIDE_KEYS; j++)
        for (int d = 0; d < WIDE; d++) {
            p->d_v[j][d] = weight[j] * p->d_o[d];
            p->d_k[j][d] = scale * weight[j] * (d_p[j] - delta) * p->q[d];
        }
}

/* Partial sums of a dot product round, each by its own size: scores of one large product err by more than
 * their own last digit. */
static void plain_f32_is_within_the_bounds_where_one_dim_outweighs_the_others(void **state) {
    (void)state;
    static struct one_dim_outweighs p;
    double worst = 0;
    tess_pattern_shape shape = tess_pattern_shape_init();
    tess_pattern *pattern;
    shape.n_q = 1, shape.n_kv = WIDE_KEYS;
    assert_int_equal(TESS_OK, tess_pattern_from_spec(&pattern, "dense", &shape, NULL));
    const tess_tensor q = tess_tensor_bhnd(p.q, TESS_F32, 1, 1, 1, WIDE),
                      d_o = tess_tensor_bhnd(p.d_o, TESS_F32, 1, 1, 1, WIDE),
                      k = tess_tensor_bhnd(p.k, TESS_F32, 1, 1, WIDE_KEYS, WIDE),
                      v = tess_tensor_bhnd(p.v, TESS_F32, 1, 1, WIDE_KEYS, WIDE),
                      d_k = tess_tensor_bhnd(p.d_k, TESS_F32, 1, 1, WIDE_KEYS, WIDE),
                      d_v = tess_tensor_bhnd(p.d_v, TESS_F32, 1, 1, WIDE_KEYS, WIDE);
    for (uint64_t seed = 0; seed < 8; seed++) {
        struct lab_gradients gradients;
        struct lab_report report;
        draw(p.q, NULL, WIDE, 4 * seed + 10);
        draw(p.d_o, NULL, WIDE, 4 * seed + 11);
        draw(&p.k[0][0], NULL, COUNT(p.k), 4 * seed + 12);
        draw(&p.v[0][0], NULL, COUNT(p.v), 4 * seed + 13);
        for (size_t x = 0; x < COUNT(p.k); x++)
            (&p.k[0][0])[x] = x % WIDE == 0 ? -50 : 0.1F * (&p.k[0][0])[x];
        for (int d = 0; d < WIDE; d++)
            p.q[d] = d == 0 ? sqrtf(WIDE) : 0.1F * p.q[d];
        plain_gradients(&p);
        const struct lab_gradients_of in = {
            .q = &q, .k = &k, .v = &v, .d_o = &d_o, .pattern = pattern};
        const struct lab_gradient_rule rule = {TESS_F32, TESS_F32, 1, 0, 256};
        assert_int_equal(0, lab_gradients_run(&gradients, &in));
        lab_compare_gradient(&report, "dV", &gradients.v, &d_v, &rule);
        worst = fmax(worst, report.worst);
        if (report.ok) {
            lab_compare_gradient(&report, "dK", &gradients.k, &d_k, &rule);
            worst = fmax(worst, report.worst);
        }
        lab_gradients_free(&gradients);
        if (!report.ok)
            fail_msg("%s", report.message);
    }
    assert_true(worst > 0.5); /* nor are the bounds wider than it takes */
    tess_pattern_free(pattern);
}

/* Bounds are met by the oracle's own numbers, and by no others: what is off by the bound is found, in a
 * row, in the whole, and where a number is not finite. */
static void comparisons_can_fail(void **state) {
    (void)state;
    static struct problem_at_hand p;
    static float got[B][H_KV][N_KV][D];
    make(&p, "window(2,3)", &(struct lab_scoring){.scale = 0.7});
    const tess_tensor view = tess_tensor_bhnd(got, TESS_F32, B, H_KV, N_KV, D);
    const struct lab_gradient_rule rule = {TESS_F32, TESS_F32, 1, 0, 256};
    struct lab_report report;
    for (size_t x = 0; x < COUNT(got); x++)
        (&got[0][0][0][0])[x] = (float)p.gradients.k.value[x];
    lab_compare_gradient(&report, "dK", &p.gradients.k, &view, &rule);
    assert_true(report.ok && report.worst < 0.5);
    const double bound = lab_gradient_bound(&p.gradients.k, 4, &rule);
    assert_true(bound > 0 && bound < 1e-4);
    got[0][0][4][1] += (float)(1.5 * bound);
    lab_compare_gradient(&report, "dK", &p.gradients.k, &view, &rule);
    assert_true(!report.ok && report.worst > 1);
    assert_non_null(strstr(report.message, "dK of batch 0, head 0, key 4"));
    got[0][0][4][1] = NAN;
    lab_compare_gradient(&report, "dK", &p.gradients.k, &view, &rule);
    assert_false(report.ok);
    p.gradients.k.size[6].bad = LAB_MAY_BE_NAN; /* in the same tile, which NaN may then reach */
    lab_compare_gradient(&report, "dK", &p.gradients.k, &view, &rule);
    assert_true(report.ok);
    const struct lab_gradient_rule small = {TESS_F32, TESS_F32, 1, 0, 2};
    lab_compare_gradient(&report, "dK", &p.gradients.k, &view, &small);
    assert_false(report.ok);
    p.gradients.k.size[4].bad = LAB_IS_NAN;
    got[0][0][4][1] = 1;
    lab_compare_gradient(&report, "dK", &p.gradients.k, &view, &rule);
    assert_false(report.ok);
    unmake(&p);
}

static void comparisons_of_delta_can_fail(void **state) {
    (void)state;
    float o[2][4] = {{1, 2, 3, 4}, {1, 1, 1, 1}}, d_o[2][4] = {{1, 1, 1, 1}, {NAN, 0, 0, 0}};
    float d_lse[2] = {3, 0}, delta[2] = {7, 99};
    const tess_tensor to = tess_tensor_bhnd(o, TESS_F32, 1, 1, 2, 4);
    const tess_tensor tdo = tess_tensor_bhnd(d_o, TESS_F32, 1, 1, 2, 4);
    const tess_tensor tdlse = tess_tensor_bhnd(d_lse, TESS_F32, 1, 1, 2, 1);
    const tess_tensor tdelta = tess_tensor_bhnd(delta, TESS_F32, 1, 1, 2, 1);
    struct lab_report report;
    lab_compare_delta(&report, &tdo, &to, NULL, &tdlse, &tdelta);
    assert_true(report.ok);
    delta[0] = 7.00001F;
    lab_compare_delta(&report, &tdo, &to, NULL, &tdlse, &tdelta);
    assert_false(report.ok);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(complex_steps_agree),
        cmocka_unit_test(central_differences_agree),
        cmocka_unit_test(identities_hold),
        cmocka_unit_test(cases_of_the_backward_are_right),
        cmocka_unit_test(plain_f32_is_within_the_bounds_where_one_dim_outweighs_the_others),
        cmocka_unit_test(comparisons_can_fail),
        cmocka_unit_test(comparisons_of_delta_can_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
