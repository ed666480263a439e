/*
 * Second views of q and K, and o in f32, on the CPU: the bits of one view, tokens of one buffer, o rounded
 * once, and what is refused, on both backends.
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

#include "lab/fill/half.h"
#include "lab/run/run.h"
#include "support/device_run.h"
#include "support/plans.h"

/* A plan of a setting's case. */
static struct lab_planned planned_of(const struct lab_setting *s) {
    const tess_problem problem = lab_case_problem(&s->c, TESS_FUSED);
    tess_target target = tess_target_init();
    tess_error error = tess_error_init();
    struct lab_planned planned = {0};
    assert_int_equal(tess_target_query(&target, TESS_CPU, 0, NULL), TESS_OK);
    const tess_status status =
        lab_case_listed(&s->c)
            ? lab_planned_reserve(&planned, &problem, &s->listed, &target, &error)
            : lab_planned_make(&planned, &problem, s->pattern, &target, &error);
    if (status)
        fail_msg("%s", error.message);
    return planned;
}

/* Runs a setting's case over a cache. */
static void run_over(struct lab_setting *s, const struct lab_cache *cache) {
    struct lab_planned planned = planned_of(s);
    char why[LAB_WHY];
    const struct lab_run run = {.planned = &planned,
                                .q = &s->q,
                                .k = &s->k,
                                .v = &s->v,
                                .o = &s->o,
                                .lse = &s->lse,
                                .modifiers = &s->modifiers,
                                .cache = cache};
    if (lab_run_whole(&run, why))
        fail_msg("%s", why);
    lab_planned_free(&planned);
}

static uint64_t bits(const struct lab_setting *s) {
    return lab_buffer_hash(&s->o.buffer) ^ 3 * lab_buffer_hash(&s->lse.buffer);
}

/* Runs a case; the caller frees the setting. */
static void run_case(struct lab_setting *s, const char *words, const char *more) {
    char text[LAB_CASE_TEXT];
    snprintf(text, sizeof text, "backend=cpu,%s%s", words, more);
    setting_make(s, text);
    run_over(s, &s->cache);
}

/* ---- second views ---- */

static const char *const cases[] = {
    "h=4,hkv=2,b=2,n=33,nkv=190,d=96,dv=48,dtype=bf16,block=16x16,pattern=random(0.4,1)+window(9,"
    "3)",
    "h=4,hkv=2,n=100,nkv=190,d=96,dv=48,dtype=f16,pattern=causal,layout=padded",
    "h=16,hkv=1,n=2,nkv=600,d=96,dv=64,dtype=bf16,block=1x1,pattern=random(0.5,1),vink=1,page=16",
    "h=4,hkv=1,n=1,nkv=700,d=96,dtype=f16,pattern=dense,page=16,split=128",
    "h=4,hkv=2,n=5,nkv=300,d=96,dtype=bf16,topk=90,entries=clu,form=indices,page=64,alibi=1",
};

static void two_views_have_the_bits_of_one(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct lab_setting one, two;
        run_case(&one, cases[i], ",seed=2");
        run_case(&two, cases[i], ",seed=2,rope=32");
        assert_true(two.cache.q_rope.buffer.base && two.cache.k_rope.buffer.base);
        if (bits(&one) != bits(&two))
            fail_msg("%s", cases[i]);
        lab_setting_free(&one);
        lab_setting_free(&two);
    }
}

/* A run that is given no q_rope finds its dims in q. */
static void q_may_have_one_view(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct lab_setting s;
        run_case(&s, cases[i], ",seed=2,rope=32");
        const uint64_t of_two = bits(&s);
        struct lab_cache cache = s.cache;
        memset(&cache.q, 0, sizeof cache.q);
        memset(&cache.q_rope, 0, sizeof cache.q_rope);
        run_over(&s, &cache);
        assert_true(bits(&s) == of_two);
        lab_setting_free(&s);
    }
}

/* ---- tokens of one buffer ---- */

enum { NOPE = 512, ROPE = 64, GROUPS = 4, TOKEN = NOPE + 4 * GROUPS + 2 * ROPE, ROWS = 64 };

/* A view of one buffer of tokens, from byte `at` of each on, which gets what `from` holds. */
static tess_tensor token_view(char *tokens, const tess_tensor *from, int64_t at) {
    tess_tensor t = *from;
    const int64_t element = (int64_t)tess_type_size(t.type);
    t.data = tokens + at;
    t.stride[2] = TOKEN / element;
    t.stride[0] = t.stride[1] = ROWS * TOKEN / element;
    for (int64_t row = 0; row < t.size[0] * ROWS; row++)
        memcpy(tokens + row * TOKEN + at,
               (const char *)from->data + lab_row(from, row / ROWS, 0, row % ROWS) * element,
               (size_t)(t.size[3] * element));
    return t;
}

/* DeepSeek's: 512 of e4m3, a scale for each 128 of them, and 64 of bf16. */
static void a_token_of_656_bytes_is_one_buffer(void **state) {
    (void)state;
    struct lab_setting s;
    struct lab_buffer tokens;
    assert_int_equal(TOKEN, 656);
    run_case(&s,
             "h=16,hkv=1,n=2,nkv=300,d=576,dv=512,dtype=bf16,topk=150,entries=lu,vink=1,page=64,"
             "kvtype=e4m3,kvscale=group,rope=64",
             "");
    const uint64_t apart = bits(&s);
    const struct lab_cache *c = &s.cache;
    assert_int_equal(lab_buffer_make(&tokens, (size_t)(c->caching.pages * ROWS * TOKEN), 16), 0);
    char *data = (char *)tokens.data;
    const tess_tensor k = token_view(data, &c->k.view, 0);
    const tess_tensor k_scale = token_view(data, &c->k_scale.view, NOPE);
    const tess_tensor k_rope = token_view(data, &c->k_rope.view, NOPE + 4 * GROUPS);
    assert_true(k.type == TESS_E4M3 && k_rope.type == TESS_BF16);
    struct lab_planned planned = planned_of(&s);
    struct lab_buffer workspace = setting_workspace(planned.plan);
    tess_arguments a = setting_arguments(&s, &workspace);
    a.q = &c->q.view, a.q_rope = &c->q_rope.view, a.v = NULL;
    a.k = &k, a.k_scale = &k_scale, a.k_rope = &k_rope, a.page_table = c->caching.table;
    a.page_table_stride = c->table_stride;
    a.image = planned.place, a.image_size = planned.image.size;
    lab_tensor_poison(&s.o);
    lab_tensor_poison(&s.lse);
    assert_int_equal(tess_run(planned.plan, &a, NULL, NULL), TESS_OK);
    assert_true(bits(&s) == apart);
    lab_planned_free(&planned);
    lab_buffer_free(&workspace);
    lab_buffer_free(&tokens);
    lab_setting_free(&s);
}

/* ---- o in f32 ---- */

/* o of 16 bits is o of f32, rounded once, whatever the tiles and parts. */
static void o_is_rounded_once(void **state) {
    static const char *const texts[] = {
        "h=4,hkv=2,b=2,n=130,d=64,pattern=causal,layout=padded",
        "h=4,hkv=1,n=3,nkv=3000,d=64,pattern=dense,split=128",
        "h=2,n=200,d=64,block=1x1,pattern=random(0.05,3),tile=64",
        "h=2,n=99,d=48,dv=17,block=16x16,pattern=random(0.3,3)+segments(9,20),sink=1,dropout=0.2",
        "h=16,hkv=1,n=2,nkv=900,d=96,dv=64,topk=500,entries=u,vink=1,kvtype=e4m3,kvscale=token",
        "h=4,hkv=1,n=1,nkv=2000,d=64,topk=2000,split=128,softcap=20",
    };
    static const char *const types[] = {",dtype=f16", ",dtype=bf16"};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof texts / sizeof *texts; i++) {
        struct lab_setting narrow, wide;
        char more[64];
        int64_t rounded = 0;
        snprintf(more, sizeof more, "%s,out32=1", types[i % 2]);
        run_case(&narrow, texts[i / 2], types[i % 2]);
        run_case(&wide, texts[i / 2], more);
        assert_int_equal(wide.o.view.type, TESS_F32);
        assert_true(lab_buffer_hash(&narrow.lse.buffer) == lab_buffer_hash(&wide.lse.buffer));
        const tess_tensor *a = &narrow.o.view, *b = &wide.o.view;
        for (int64_t x = 0; x < a->size[0] * a->size[1] * a->size[2]; x++) {
            const int64_t h = x / a->size[2],
                          at = lab_row(a, h / a->size[1], h % a->size[1], x % a->size[2]),
                          from = lab_row(b, h / a->size[1], h % a->size[1], x % a->size[2]);
            for (int64_t d = 0; d < a->size[3]; d++) {
                uint16_t once;
                const double o = lab_get(b->data, TESS_F32, from + d);
                lab_put(&once, a->type, 0, o);
                if (memcmp(&once, (const uint16_t *)a->data + at + d, sizeof once))
                    fail_msg("%s%s: %a is not %a rounded", texts[i / 2], types[i % 2],
                             lab_get(a->data, a->type, at + d), o);
                rounded += lab_get(&once, a->type, 0) < o || lab_get(&once, a->type, 0) > o;
            }
        }
        assert_true(rounded > 0);
        lab_setting_free(&narrow);
        lab_setting_free(&wide);
    }
}

/* The one call takes o of either type, as its backward does: o of 16 bits is o of f32, rounded. */
static void the_one_call_takes_o_of_f32(void **state) {
    enum { HEADS = 2, N = 50, DIMS = 16, ALL = HEADS * N * DIMS };
    static uint16_t q[ALL], narrow[ALL];
    static float wide[ALL];
    (void)state;
    for (tess_type type = TESS_F16; type <= TESS_BF16; type++) {
        const tess_tensor tq = tess_tensor_bhnd(q, type, 1, HEADS, N, DIMS);
        const tess_tensor to = tess_tensor_bhnd(narrow, type, 1, HEADS, N, DIMS);
        const tess_tensor tw = tess_tensor_bhnd(wide, TESS_F32, 1, HEADS, N, DIMS);
        tess_pattern_shape shape = tess_pattern_shape_init();
        tess_error error = tess_error_init();
        tess_pattern *pattern;
        int rounded = 0;
        shape.n_q = N;
        for (int x = 0; x < ALL; x++)
            lab_put(q, type, x, lab_normal(5, 0, (uint64_t)x));
        assert_int_equal(tess_pattern_from_spec(&pattern, "causal", &shape, NULL), TESS_OK);
        if (tess_attention(TESS_CPU, &tq, &tq, &tq, pattern, &to, NULL, &error) ||
            tess_attention(TESS_CPU, &tq, &tq, &tq, pattern, &tw, NULL, &error))
            fail_msg("%s", error.message);
        for (int x = 0; x < ALL; x++) {
            uint16_t once;
            lab_put(&once, type, 0, (double)wide[x]);
            assert_int_equal(once, narrow[x]);
            rounded += lab_get(narrow, type, x) < (double)wide[x] ||
                       lab_get(narrow, type, x) > (double)wide[x];
        }
        assert_true(rounded > ALL / 2);
        tess_pattern_free(pattern);
    }
}

/* ---- what is refused ---- */

static tess_problem plain(void) {
    tess_problem p = tess_problem_init();
    p.type = TESS_F16;
    p.batch = 1, p.heads_q = 4, p.heads_kv = 2, p.n_q = 8, p.n_kv = 64, p.d_qk = 192, p.d_v = 128;
    return p;
}

static void problems_are_refused_by_name(void **state) {
    (void)state;
    const struct {
        const char *words; /* NULL: taken */
        int64_t rope, v_in_k, group, o_f32, o_rest;
        tess_type type, k, k_rope;
        tess_scaling k_scale;
    } wrong[] = {
        {"rope_dims is not in", .rope = -1},
        {"rope_dims is not in", .rope = INT64_MIN},
        {"rope_dims is not in", .rope = 192},
        {"k_rope_type is given", .k_rope = TESS_F16},
        {"k_rope_type is not", .rope = 64, .k_rope = TESS_E4M3},
        {"k_rope_type is not", .rope = 64, .k_rope = (tess_type)9},
        {"k_rope_type goes with", .rope = 64, .k_rope = TESS_BF16},
        {"above d_qk - rope_dims", .rope = 65, .v_in_k = 1},
        {"does not divide", .rope = 32, .k = TESS_E4M3, .k_scale = TESS_SCALE_GROUP},
        {"o_f32 is not", .o_f32 = 2},
        {"o_f32 is not", .o_f32 = -1},
        {"rounding takes nothing", .o_f32 = 1, .o_rest = 1},
        {NULL, .rope = 64, .v_in_k = 1, .k = TESS_E4M3, .k_scale = TESS_SCALE_GROUP, .o_f32 = 1},
        {NULL, .rope = 191, .k_rope = TESS_F16},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tess_problem p = plain();
        p.rope_dims = wrong[i].rope, p.v_in_k = wrong[i].v_in_k, p.scale_group = wrong[i].group;
        p.o_f32 = wrong[i].o_f32, p.o_rest = wrong[i].o_rest;
        p.k_type = wrong[i].k, p.k_rope_type = wrong[i].k_rope, p.k_scale = wrong[i].k_scale;
        plan_refuses(&p, NULL, wrong[i].words ? TESS_INVALID_ARGUMENT : TESS_OK,
                     wrong[i].words ? wrong[i].words : "");
    }
    tess_problem p = plain();
    p.type = TESS_F32, p.rope_dims = 64, p.k_type = TESS_F16, p.k_rope_type = TESS_BF16;
    plan_refuses(&p, NULL, TESS_OK, "");
}

/* The fused pipeline alone has them; the backward takes o of either type without a word. */
static void other_pipelines_refuse_views(void **state) {
    (void)state;
    for (int which = 0; which < 2; which++) {
        static const char *const words[] = {"rope_dims", "o_f32"};
        tess_problem p = plain();
        p.rope_dims = which == 0 ? 64 : 0, p.o_f32 = which == 1;
        p.pipeline = TESS_STAGED;
        plan_refuses(&p, NULL, TESS_UNSUPPORTED, words[which]);
        plan_refuses(&p, NULL, TESS_UNSUPPORTED, "staged");
        p.operation = TESS_ATTENTION_BACKWARD;
        plan_refuses(&p, NULL, which ? TESS_OK : TESS_UNSUPPORTED, which ? "" : "backward");
    }
}

static void cuda_refuses_views_of_host_lists(void **state) {
    (void)state;
    const tess_target target = cuda_target(90, 232448);
    tess_problem p = plain();
    p.rope_dims = 64;
    plan_refuses(&p, &target, TESS_UNSUPPORTED, "rope_dims must be 0");
    p.rope_dims = 0, p.o_f32 = 1;
    plan_refuses(&p, &target, TESS_UNSUPPORTED, "o_f32 must be 0");
}

static void run_refuses(const struct tensors *t, const tess_plan *plan, const tess_arguments *a,
                        const char *argument) {
    tess_error error = tess_error_init();
    const uint64_t before = bits_of(t);
    assert_int_equal(tess_run(plan, a, &error, NULL), TESS_INVALID_ARGUMENT);
    assert_string_equal(error.argument, argument);
    assert_true(bits_of(t) == before);
}

static void runs_are_refused_by_name(void **state) {
    (void)state;
    tess_problem p = device_problem(&device_small, 32);
    p.type = TESS_F16, p.page_size = 4, p.k_type = TESS_E4M3, p.rope_dims = 8, p.o_f32 = 1;
    p.alignment = 8;
    struct device_lists l;
    struct lab_buffer image;
    struct tensors t;
    device_lists_make(&l, &device_small, 1);
    tensors_make(&t, &p, 2);
    tess_plan *plan = device_plan(&l, &p, &image);
    device_fill(&l, plan, &image);
    const tess_arguments good = arguments_of(&t, plan, device_image(&image));
    tess_arguments a = good;
    a.k_rope = NULL;
    run_refuses(&t, plan, &a, "k_rope");
    a.k_rope = good.q_rope;
    run_refuses(&t, plan, &a, "k_rope");
    a = good, a.q_rope = NULL; /* then q has all dims */
    run_refuses(&t, plan, &a, "q");
    a = good, a.q = &t.q.view; /* and has not, where it is given */
    run_refuses(&t, plan, &a, "q");
    tess_tensor other = *good.k_rope;
    other.type = TESS_BF16;
    a = good, a.k_rope = &other;
    run_refuses(&t, plan, &a, "k_rope");
    other = *good.k_rope, other.size[0]++; /* pages are K's */
    run_refuses(&t, plan, &a, "k_rope");
    other = *good.o, other.type = TESS_F16;
    a = good, a.o = &other;
    run_refuses(&t, plan, &a, "o");
    other = *good.o, other.data = good.k_rope->data;
    run_refuses(&t, plan, &a, "o");
    assert_int_equal(tess_run(plan, &good, NULL, NULL), TESS_OK);
    tess_plan_free(plan);
    lab_buffer_free(&image);

    const tess_problem bare = device_problem(&device_small, 32); /* declares no views */
    struct tensors u;
    tensors_make(&u, &bare, 2);
    plan = device_plan(&l, &bare, &image);
    device_fill(&l, plan, &image);
    const tess_arguments plainly = arguments_of(&u, plan, device_image(&image));
    a = plainly, a.q_rope = good.q_rope;
    run_refuses(&u, plan, &a, "q_rope");
    a = plainly, a.k_rope = good.k_rope;
    run_refuses(&u, plan, &a, "k_rope");
    assert_int_equal(tess_run(plan, &plainly, NULL, NULL), TESS_OK);
    tess_plan_free(plan);
    lab_buffer_free(&image);
    tensors_free(&u);
    tensors_free(&t);
    device_lists_free(&l);
}

static void problems_take_the_type_of_o(void **state) {
    (void)state;
    uint16_t q[64] = {0};
    float o[64] = {0};
    const tess_tensor tq = tess_tensor_bhnd(q, TESS_BF16, 1, 1, 4, 16);
    const tess_tensor to = tess_tensor_bhnd(o, TESS_F32, 1, 1, 4, 16);
    tess_problem p = tess_problem_init();
    assert_int_equal(tess_problem_from_tensors(&p, &tq, &tq, &tq, &to, NULL), TESS_OK);
    assert_int_equal(p.o_f32, 1);
    assert_int_equal(tess_problem_from_tensors(&p, &tq, &tq, &tq, &tq, NULL), TESS_OK);
    assert_int_equal(p.o_f32, 0);
    assert_int_equal(tess_problem_from_tensors(&p, &to, &to, &to, &to, NULL), TESS_OK);
    assert_int_equal(p.o_f32, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_views_have_the_bits_of_one),
        cmocka_unit_test(q_may_have_one_view),
        cmocka_unit_test(a_token_of_656_bytes_is_one_buffer),
        cmocka_unit_test(o_is_rounded_once),
        cmocka_unit_test(the_one_call_takes_o_of_f32),
        cmocka_unit_test(problems_are_refused_by_name),
        cmocka_unit_test(other_pipelines_refuse_views),
        cmocka_unit_test(cuda_refuses_views_of_host_lists),
        cmocka_unit_test(runs_are_refused_by_name),
        cmocka_unit_test(problems_take_the_type_of_o),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
