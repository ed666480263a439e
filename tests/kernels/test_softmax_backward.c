/*
 * The softmax backward alone: scores and gradients of probabilities set by hand, against the definition
 * in double, with softcap, ALiBi, sinks' shares and dropout. Empty rows, NaN and masked elements; the
 * gradients of slopes. Nothing is written past the rows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "lab/run/modifiers.h"
#include "lab/fill/rng.h"
#include "support/stages.h"

#define SEED 41
#define LOG2_E 1.4426950408889634074

enum { BASE, LEFT, DELTA, STATS };

struct stage {
    struct stages stages;
    struct lab_buffer scores, gradients, stats[STATS], slopes;
    struct lab_modifiers modifiers;
    struct lab_scoring scoring;
    double *s;    /* scores as modified, in double */
    float *x, *g; /* copies of weights and gradients as they were */
};

static float *floats(const struct lab_buffer *b) {
    return (float *)(void *)b->data;
}

static void buffer_make(struct lab_buffer *b, int64_t n) {
    assert_int_equal(0, lab_buffer_make(b, (size_t)n * sizeof(float), 64));
}

static struct lab_sizes sizes_of(const struct stage *s) {
    return (struct lab_sizes){s->stages.c.h, s->stages.c.n, s->stages.c.nkv};
}

/* A query's number over all heads. */
static int64_t query_of(const struct stage *s, const struct stages_element *e) {
    return (e->b * s->stages.c.h + e->h) * s->stages.c.n + e->i;
}

static double away_of(const struct stage *s, const struct stages_element *e) {
    const struct lab_sizes sizes = sizes_of(s);
    const struct lab_place at = {e->b, e->h, e->i};
    return lab_distance(&s->scoring, &sizes, &at, e->key);
}

/* Scores and gradients as SDDMM leaves them: -Inf where masked, in the gradients too. */
static void element_set(void *context, const struct stages_element *e) {
    struct stage *s = context;
    const struct lab_sizes sizes = sizes_of(s);
    const struct lab_place at = {e->b, e->h, e->i};
    s->x[e->place] = s->g[e->place] = -INFINITY;
    if (!e->listed)
        return;
    s->x[e->place] = (float)(2 * lab_normal(SEED, 0, (uint64_t)e->place));
    s->g[e->place] = (float)lab_normal(SEED, 1, (uint64_t)e->place);
    s->s[e->place] = lab_score(&s->scoring, &sizes, &at, e->key, (double)s->x[e->place]);
}

/* The largest score of each query, to begin with. */
static void base_raise(void *context, const struct stages_element *e) {
    struct stage *s = context;
    float *base = floats(&s->stats[BASE]) + query_of(s, e);
    if (e->listed)
        *base = fmaxf(*base, (float)s->s[e->place]);
}

static void stage_make(struct stage *s, const char *text) {
    memset(s, 0, sizeof *s);
    stages_make(&s->stages, text);
    const int64_t queries = s->stages.c.b * s->stages.c.h * s->stages.c.n, n = s->stages.count;
    assert_int_equal(0, lab_modifiers_make(&s->modifiers, &s->stages.c));
    s->scoring = lab_modifiers_scoring(&s->modifiers, &s->stages.c);
    buffer_make(&s->scores, n);
    buffer_make(&s->gradients, n);
    buffer_make(&s->slopes, s->stages.c.h);
    for (int i = 0; i < STATS; i++)
        buffer_make(&s->stats[i], queries);
    s->s = calloc((size_t)n + 1, sizeof *s->s);
    s->x = malloc(((size_t)n + 1) * sizeof *s->x);
    s->g = malloc(((size_t)n + 1) * sizeof *s->g);
    assert_true(s->s && s->x && s->g);
    memcpy(s->x, s->scores.data, s->scores.size); /* canaries in rows past the queries */
    memcpy(s->g, s->gradients.data, s->gradients.size);
    stages_each(&s->stages, element_set, s);
    float *base = floats(&s->stats[BASE]);
    for (int64_t i = 0; i < queries; i++) {
        base[i] = -INFINITY;
        floats(&s->stats[LEFT])[i] = (float)lab_uniform(SEED, 2, (uint64_t)i);
        floats(&s->stats[DELTA])[i] = (float)lab_normal(SEED, 3, (uint64_t)i);
    }
    stages_each(&s->stages, base_raise, s);
    for (int64_t i = 0; i < queries; i++) /* an lse of these keys and of others */
        base[i] = base[i] == -INFINITY
                      ? INFINITY
                      : (float)(LOG2_E * (double)base[i] + 3 * lab_uniform(SEED, 4, (uint64_t)i));
}

static void stage_free(struct stage *s) {
    stages_free(&s->stages);
    lab_modifiers_free(&s->modifiers);
    lab_buffer_free(&s->scores);
    lab_buffer_free(&s->gradients);
    lab_buffer_free(&s->slopes);
    for (int i = 0; i < STATS; i++)
        lab_buffer_free(&s->stats[i]);
    free(s->s);
    free(s->x);
    free(s->g);
}

static int64_t slopes_of(const struct stage *s) {
    return s->stages.c.alibi ? TESS_GRADIENT_Q | TESS_GRADIENT_ALIBI : TESS_GRADIENT_Q;
}

/* wanted: of TESS_GRADIENT_...; of values alone, and there are no gradients of scores. */
static void stage_run(struct stage *s, const struct kernel *kernel, int32_t threads,
                      int64_t wanted) {
    char why[LAB_WHY];
    struct kernel_args args = stages_args(&s->stages);
    memcpy(s->scores.data, s->x, s->scores.size);
    memcpy(s->gradients.data, s->g, s->gradients.size);
    lab_buffer_poison(&s->slopes);
    const struct stage_operands operands = {
        .modifiers = {.alibi = s->scoring.alibi,
                      .sink = s->scoring.sink,
                      .seed = (const uint64_t *)(const void *)s->modifiers.seed.data},
        .scores = floats(&s->scores),
        .gradients = wanted == TESS_GRADIENT_V ? NULL : floats(&s->gradients),
        .stats = {floats(&s->stats[BASE]), floats(&s->stats[LEFT]), floats(&s->stats[DELTA])},
        .d_alibi = wanted & TESS_GRADIENT_ALIBI ? floats(&s->slopes) : NULL};
    args.operands = &operands;
    args.work.schedule = &s->stages.rows;
    s->stages.problem.gradients = wanted;
    stages_run(kernel, &args, threads);
    if (lab_buffer_check(&s->scores, "scores", why) ||
        lab_buffer_check(&s->gradients, "gradients", why) ||
        lab_buffer_check(&s->slopes, "d_alibi", why) || lab_modifiers_check(&s->modifiers, why))
        fail_msg("%s: %s", kernel->name, why);
}

/* ---- the definition ---- */

struct reference {
    const struct stage *s;
    const struct kernel *kernel;
    const char *text;
    double *slopes, *squares,
        *rounded;        /* sums of each head; what rounding of scores does to them */
    unsigned char *seen; /* elements of rows that exist */
};

static void element_check(void *context, const struct stages_element *e) {
    const struct reference *to = context;
    const struct stage *s = to->s;
    const struct lab_case *c = &s->stages.c;
    const struct lab_sizes sizes = sizes_of(s);
    const struct lab_place at = {e->b, e->h, e->i};
    const float weight = floats(&s->scores)[e->place], d_s = floats(&s->gradients)[e->place];
    to->seen[e->place] = 1;
    if (!e->listed) {
        if (!(weight == 0 && d_s == 0))
            fail_msg("%s: %s: masked: %g, %g", to->kernel->name, to->text, (double)weight,
                     (double)d_s);
        return;
    }
    const int64_t query = query_of(s, e);
    const double x = s->s[e->place], base = (double)floats(&s->stats[BASE])[query];
    const double left = (double)floats(&s->stats[LEFT])[query];
    const double delta = (double)floats(&s->stats[DELTA])[query];
    const double z = lab_drops(&s->scoring, &sizes, &at, e->key) ? 0 : lab_kept(&s->scoring);
    const double p = exp2(x * LOG2_E - base), scale = s->stages.problem.scale;
    const double in = c->softcap > 0 ? (double)s->x[e->place] / c->softcap : 0;
    const double steep = 1 / (cosh(in) * cosh(in));
    const double d_p = left * z * (double)s->g[e->place];
    const double biased = p * (d_p - delta), should = scale * steep * biased;
    /* a rounded score, base and their difference; tanh */
    const double unit = 0x1p-22 * (4 + fabs(x) + fabs(base) / LOG2_E) + 0x1p-20 * c->softcap;
    const double size = unit * p * (fabs(d_p) + fabs(delta));
    if (!(fabs((double)weight - left * z * p) <= unit * left * z * p))
        fail_msg("%s: %s: weight of (%d, %d) is %g, not %g", to->kernel->name, to->text, (int)e->i,
                 (int)e->key, (double)weight, left * z * p);
    if (!(fabs((double)d_s - should) <=
          scale * steep * (size + 0x1p-22 * (4 + 2 * fabs(in)) * fabs(biased)) + 0x1p-125))
        fail_msg("%s: %s: dS of (%d, %d) is %g, not %g", to->kernel->name, to->text, (int)e->i,
                 (int)e->key, (double)d_s, should);
    to->slopes[e->h] += biased * away_of(s, e);
    to->squares[e->h] += biased * away_of(s, e) * biased * away_of(s, e);
    to->rounded[e->h] += size * size * away_of(s, e) * away_of(s, e);
}

static void elements_check(struct stage *s, const struct kernel *kernel, const char *text) {
    const size_t heads = (size_t)s->stages.c.h;
    struct reference to = {s,
                           kernel,
                           text,
                           calloc(heads, sizeof(double)),
                           calloc(heads, sizeof(double)),
                           calloc(heads, sizeof(double)),
                           calloc((size_t)s->stages.count + 1, 1)};
    assert_true(to.slopes && to.squares && to.rounded && to.seen);
    stages_each(&s->stages, element_check, &to);
    for (int64_t i = 0; i < s->stages.count; i++) /* rows past the queries stay */
        if (!to.seen[i]) {
            assert_memory_equal(floats(&s->scores) + i, s->x + i, sizeof(float));
            assert_memory_equal(floats(&s->gradients) + i, s->g + i, sizeof(float));
        }
    for (int64_t h = 0; s->stages.c.alibi && h < s->stages.c.h; h++) {
        const double is = (double)floats(&s->slopes)[h];
        const double bound =
            0x1p-23 * fabs(to.slopes[h]) + 0x1p-22 * sqrt(to.squares[h]) + sqrt(to.rounded[h]);
        if (!(fabs(is - to.slopes[h]) <= bound))
            fail_msg("%s: %s: d_alibi[%d] is %g, not %g (%g)", kernel->name, text, (int)h, is,
                     to.slopes[h], bound);
    }
    free(to.slopes);
    free(to.squares);
    free(to.rounded);
    free(to.seen);
}

static const char *const cases[] = {
    "h=2,hkv=1,n=70,d=16,block=16x16,pattern=window(20,5)+global(2)",
    "h=1,n=200,nkv=140,block=128x32,pattern=causal,softcap=3",
    "b=2,h=3,n=50,block=3x5,pattern=random(0.4,3),alibi=1,dropout=0.3",
    "b=2,h=4,hkv=2,n=90,nkv=75,block=1x1,pattern=random(0.2,3),lists=q,dropout=0.5",
    "h=2,n=300,block=192x1,pattern=random(0.3,3),alibi=1,softcap=2",
    "h=6,hkv=2,n=77,nkv=333,block=8x200,pattern=random(0.6,3)&dilated(90,2),lists=kv,dropout=0.1",
    "h=1,n=2,nkv=9000,block=70x150,pattern=dense,alibi=1",
    "h=1,n=600,nkv=700,block=64x64,pattern=random(0.5,1)&causal,alibi=1,dropout=0.2,softcap=5",
    "h=1,n=60,block=16x16,pattern=segments(9,20),alibi=1",
    "h=1,n=500,nkv=400,block=2x2,pattern=random(0.1,4),softcap=1",
    "h=2,n=150,block=4x90,pattern=summary(5,7),dropout=0.9,scale=3",
    "h=2,n=90,block=16x16,pattern=random(0.5,2)&causal,alibi=1,softcap=0.125",
};

static void every_element_is_right(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        struct stage s;
        stage_make(&s, cases[n]);
        for (const struct kernel *kernel = NULL;
             (kernel = stages_kernel(TESS_STAGE_SOFTMAX_BACKWARD, kernel));) {
            stage_run(&s, kernel, 2, slopes_of(&s));
            elements_check(&s, kernel, cases[n]);
        }
        stage_free(&s);
    }
}

static void threads_do_not_change_bits(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
        for (const struct kernel *kernel = NULL;
             (kernel = stages_kernel(TESS_STAGE_SOFTMAX_BACKWARD, kernel));) {
            uint64_t hash[3][3];
            struct stage s;
            stage_make(&s, cases[n]);
            for (int i = 0; i < 3; i++) { /* at last without slopes */
                stage_run(&s, kernel, 1 + 4 * (i == 1), i < 2 ? slopes_of(&s) : TESS_GRADIENT_K);
                hash[i][0] = lab_buffer_hash(&s.scores);
                hash[i][1] = lab_buffer_hash(&s.gradients);
                hash[i][2] = lab_buffer_hash(&s.slopes);
            }
            assert_memory_equal(hash[0], hash[1], sizeof hash[0]);
            assert_memory_equal(hash[0], hash[2], 2 * sizeof hash[0][0]);
            lab_buffer_poison(&s.gradients); /* a buffer of the slopes' size and more */
            if (s.stages.c.alibi)
                assert_memory_equal(s.slopes.data, s.gradients.data, s.slopes.size);
            stage_free(&s);
        }
}

/* Weights are the same where no gradients of scores are wanted. */
static void weights_alone_are_the_same(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
        for (const struct kernel *kernel = NULL;
             (kernel = stages_kernel(TESS_STAGE_SOFTMAX_BACKWARD, kernel));) {
            struct stage s;
            stage_make(&s, cases[n]);
            stage_run(&s, kernel, 2, TESS_GRADIENT_Q);
            const uint64_t both = lab_buffer_hash(&s.scores);
            stage_run(&s, kernel, 2, TESS_GRADIENT_V);
            assert_true(both == lab_buffer_hash(&s.scores));
            assert_memory_equal(s.g, s.gradients.data, s.gradients.size);
            stage_free(&s);
        }
}

/* Rows of 21 keys in blocks of 24: the last elements are masked. */
static void rows_are_special(const char *text) {
    enum { N = 24, LAST = 20 };
    for (const struct kernel *kernel = NULL;
         (kernel = stages_kernel(TESS_STAGE_SOFTMAX_BACKWARD, kernel));) {
        struct stage s;
        stage_make(&s, text);
        assert_int_equal(s.stages.count, 6 * N);
        float *base = floats(&s.stats[BASE]), *delta = floats(&s.stats[DELTA]);
        base[0] = INFINITY; /* empty, whatever else the row has */
        delta[0] = NAN;
        s.g[0 * N + 3] = NAN;
        base[1] = NAN;
        s.x[2 * N + 4] = NAN;
        delta[3] = INFINITY;
        for (int j = 0; j < N; j++) /* all scores -Inf */
            s.x[4 * N + j] = -INFINITY;
        base[4] = INFINITY;
        s.x[5 * N + 6] = -INFINITY;
        stage_run(&s, kernel, 1, slopes_of(&s));
        for (int j = 0; j < N; j++) {
            const float *w = floats(&s.scores) + j, *g = floats(&s.gradients) + j;
            assert_true(w[0] == 0 && g[0] == 0);
            assert_true(j > LAST ? w[N] == 0 && g[N] == 0 : isnan(w[N]) && isnan(g[N]));
            assert_true(j == 4 ? isnan(w[2 * N]) && isnan(g[2 * N])
                               : isfinite(w[2 * N]) && isfinite(g[2 * N]));
            assert_true(j > LAST ? g[3 * N] == 0 : !isfinite(g[3 * N]) && isfinite(w[3 * N]));
            assert_true(w[4 * N] == 0 && g[4 * N] == 0);
            assert_true(isfinite(w[5 * N]) && isfinite(g[5 * N]));
            assert_true(j <= LAST || (w[5 * N] == 0 && g[5 * N] == 0));
        }
        /* A score of -Inf is -softcap, no more. */
        assert_true((floats(&s.scores)[5 * N + 6] > 0) == (s.stages.c.softcap > 0));
        assert_true(floats(&s.gradients)[5 * N + 6] == 0);
        stage_free(&s);
    }
}

static void special_rows(void **state) {
    (void)state;
    rows_are_special("h=1,n=6,nkv=21,block=6x24,pattern=dense");
    rows_are_special("h=1,n=6,nkv=21,block=6x24,pattern=dense,softcap=4");
    rows_are_special("h=1,n=6,nkv=21,block=6x24,pattern=dense,softcap=4,alibi=1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_is_right),
        cmocka_unit_test(threads_do_not_change_bits),
        cmocka_unit_test(weights_alone_are_the_same),
        cmocka_unit_test(special_rows),
    };
    printf("seed %d\n", SEED);
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
