/* Which decode kernels reserved plans choose, and what these refuse. */
#include "work/runs.h"
#include "plan/reserve.h"
#include "support/decode_problem.h"
#include "support/plans.h"

static const struct kernel *kernel_named(const struct backend *backend, const char *name) {
    const struct kernel *kernel = backend->kernels;
    while (strcmp(kernel->name, name))
        assert_true(++kernel < backend->kernels + backend->n_kernels);
    return kernel;
}

#define SM90_DECODE "cuda_decode_bf16_sm90_d576_v512"

/* Kernels of filled lists are no plan's over lists of the host, and say what they do not compute. */
static void cuda_decode_refuses_by_name(void **state) {
    (void)state;
    cuda_table_needed();
    tess_pattern *pattern = pattern_make("dense", 64, 64, 1, 1);
    tess_problem problem = problem_make(64);
    tess_target target = cuda_target(90, 232448);
    tess_error error = tess_error_init();
    tess_plan *plan;
    problem.type = TESS_BF16, problem.kernel = "cuda_decode_bf16_d64";
    assert_int_equal(tess_plan_create(&plan, &problem, pattern, &target, &error), TESS_UNSUPPORTED);
    if (!strstr(error.message, "lists that tess_plan_fill writes alone"))
        fail_msg("'%s'", error.message);
    tess_pattern_free(pattern);

    const struct problem fits = {
        .type = TESS_BF16,
        .o_type = TESS_BF16,
        .d_qk = 128,
        .d_v = 128,
        .alignment = 16,
        .scale = 1,
        .caches = {.k_type = TESS_BF16, .v_type = TESS_BF16, .page_shift = CACHE_WHOLE}};
    struct problem bytes = fits, group = fits, token = fits, groups = fits, paged = fits;
    bytes.caches.v_type = TESS_E4M3, bytes.d_v = 120;
    group.caches.k_type = TESS_E4M3, group.caches.k_scale = TESS_SCALE_GROUP;
    group.caches.k_group = 64;
    token.type = token.o_type = token.caches.k_type = TESS_F16, token.caches.v_type = TESS_E5M2;
    token.caches.v_scale = TESS_SCALE_TOKEN;
    groups.caches.v_type = TESS_E4M3, groups.caches.v_scale = TESS_SCALE_GROUP;
    groups.caches.v_group = 128;
    paged.caches.page_shift = 4, paged.caches.k_type = TESS_E5M2;
    struct problem type = fits, rows = fits, dims = fits, piece = fits, wide = fits, height = fits;
    struct problem mixed = fits, rope = fits, scaled = fits, codes = fits;
    mixed.caches.k_type = TESS_F16;
    rope.rope_dims = 4, rope.caches.k_rope_type = TESS_BF16;
    scaled.rope_dims = 64, scaled.caches.k_rope_type = TESS_BF16;
    scaled.caches.k_type = TESS_E4M3, scaled.caches.k_scale = TESS_SCALE_TOKEN;
    codes.caches.k_type = codes.caches.v_type = TESS_E4M3;
    struct problem capped = codes, uneven = codes;
    capped.caches.v_in_k = uneven.caches.v_in_k = 1;
    capped.d_qk = 512, capped.modifiers.softcap = 5;
    type.type = TESS_F32, rows.alignment = 8, dims.d_qk = 136, piece.d_v = 124, wide.d_v = 136;
    height.tile_rows = 3;
    const struct {
        const struct problem *problem;
        const char *says;
        const char *kernel;
    } cases[] = {{&bytes, "16 bytes", NULL},
                 {&group, "scales are of 128 dims", NULL},
                 {&token, "bf16 alone", "cuda_decode_f16_d128"},
                 {&groups, "groups of dims", "cuda_decode_bf16_d128_r64"},
                 {&type, "bf16 only", NULL},
                 {&mixed, "bf16 or 8 bits", NULL},
                 {&rope, "multiples of 8", NULL},
                 {&scaled, "divide d_qk - rope_dims", NULL},
                 {&rows, "16 bytes", NULL},
                 {&dims, "128 dims", NULL},
                 {&piece, "16 bytes", NULL},
                 {&wide, "128 dims", NULL},
                 {&height, "1, 2, 4, 8 or 16 rows", NULL},
                 {&codes, "with V in K", SM90_DECODE},
                 {&capped, "without score modifiers", SM90_DECODE},
                 {&uneven, "8 bits of 512 dims", SM90_DECODE}};
    const struct backend *cuda = backend_get(TESS_CUDA);
    const struct kernel *const own = kernel_named(cuda, "cuda_decode_bf16_d128");
    assert_null(own->family->refuses(own, &fits, &target));
    assert_null(own->family->refuses(own, &groups, &target));
    assert_null(own->family->refuses(own, &paged, &target));
    rope.rope_dims = 64, rope.o_type = TESS_F32;
    assert_null(own->family->refuses(own, &rope, &target));
    rope.rope_dims = 4;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct kernel *kernel = cases[i].kernel ? kernel_named(cuda, cases[i].kernel) : own;
        const char *why = kernel->family->refuses(kernel, cases[i].problem, &target);
        if (!why || !strstr(why, cases[i].says))
            fail_msg("'%s' does not say '%s'", why ? why : "nothing", cases[i].says);
    }
}

/* Kernels of filled lists are weighed: by heads that share a list, dims and architecture. */
static void cuda_decode_kernels_are_weighed(void **state) {
    (void)state;
    cuda_table_needed();
    static const struct {
        int64_t heads, queries, d, d_v;
        int32_t architecture, shared;
        const char *name, *kernel; /* name: as asked */
        tess_type stored;          /* type of K and V, q being f32; TESS_F32: of all bf16 */
    } cases[] = {
        {16, 4, 576, 512, 90, 232448, NULL, "cuda_decode_bf16_d576_v512", TESS_F32},
        {64, 4, 576, 512, 90, 232448, NULL, SM90_DECODE, TESS_F32},
        {128, 2, 576, 512, 90, 232448, NULL, SM90_DECODE, TESS_F32},
        /* two tiles of 64 rows would leave most multiprocessors idle */
        {128, 1, 576, 512, 90, 232448, NULL, "cuda_decode_bf16_d576_v512", TESS_F32},
        {128, 4, 576, 512, 90, 230000, NULL, "cuda_decode_bf16_d576_v512_r64", TESS_F32},
        {128, 4, 576, 512, 100, 232448, NULL, "cuda_decode_bf16_d576_v512_r64", TESS_F32},
        {128, 4, 128, 128, 90, 232448, NULL, "cuda_decode_bf16_d128_r64", TESS_F32},
        {16, 4, 128, 64, 90, 232448, SM90_DECODE, SM90_DECODE, TESS_F32},
        {8, 4, 128, 128, 90, 232448, NULL, "cuda_decode_f32_f16_d128", TESS_F16},
        {4, 4, 128, 128, 90, 232448, NULL, "cuda_decode_f32_bf16_d128", TESS_BF16},
        {16, 4, 128, 128, 90, 232448, NULL, "cuda_decode_f32_bf16_d128_r16", TESS_BF16},
        {8, 4, 64, 64, 90, 232448, NULL, "cuda_decode_f32_f16_d64", TESS_E4M3},
        {128, 4, 576, 512, 90, 232448, NULL, "cuda_decode_f32_f16_d576_v512_r32", TESS_F16},
        {8, 4, 128, 128, 90, 232448, "cuda_decode_f32_bf16_d256", "cuda_decode_f32_bf16_d256",
         TESS_E5M2},
        {128, 4, 576, 512, 80, 232448, SM90_DECODE, NULL, TESS_F32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tess_target target = cuda_target(cases[i].architecture, cases[i].shared);
        tess_problem problem = tess_problem_init();
        tess_device_pattern pattern = tess_device_pattern_init();
        tess_error error = tess_error_init();
        tess_plan *plan;
        problem.batch = problem.heads_kv = 1, problem.heads_q = cases[i].heads;
        problem.n_q = pattern.n_q = cases[i].queries;
        problem.n_kv = 4096, problem.d_qk = cases[i].d, problem.d_v = cases[i].d_v;
        problem.type = cases[i].stored ? TESS_F32 : TESS_BF16;
        problem.k_type = problem.v_type = cases[i].stored;
        problem.alignment = 16, problem.kernel = cases[i].name;
        pattern.n_kv = 4096, pattern.block_q = pattern.block_kv = 1;
        pattern.capacity = 2048;
        assert_int_equal(tess_plan_reserve(&plan, &problem, &pattern, &target, &error),
                         cases[i].kernel ? TESS_OK : TESS_UNSUPPORTED);
        if (cases[i].kernel)
            assert_string_equal(plan->passes->kernel->name, cases[i].kernel);
        else
            assert_non_null(strstr(error.message, "architecture is not 90"));
        tess_plan_free(plan);
    }
}

/* Low tiles have short parts where the caller names none, and room for no more of them than lists may take. */
static void cuda_decode_parts_are_short(void **state) {
    (void)state;
    cuda_table_needed();
    static const struct {
        int64_t heads, keys, asked, least, items; /* items: of one query, at most */
        const char *kernel;
    } cases[] = {
        {16, 2048, 0, DECODE_CHUNK, 32, NULL},           {16, 287, 0, DECODE_CHUNK, 8, NULL},
        {16, 8192, 0, DECODE_CHUNK, 64, NULL},           {16, 2048, 256, 256, 8, NULL},
        {128, 2048, 0, SCHEDULE_CHUNK, 32, SM90_DECODE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tess_target target = cuda_target(90, 232448);
        tess_problem problem = tess_problem_init();
        tess_device_pattern pattern = tess_device_pattern_init();
        tess_error error = tess_error_init();
        tess_plan *plan;
        problem.batch = problem.heads_kv = problem.n_q = 1, problem.heads_q = cases[i].heads;
        problem.n_kv = 8192, problem.d_qk = 576, problem.d_v = 512, problem.type = TESS_BF16;
        problem.alignment = 16, problem.part_keys = cases[i].asked;
        problem.kernel = cases[i].kernel;
        pattern.n_q = 1, pattern.n_kv = 8192, pattern.block_q = pattern.block_kv = 1;
        pattern.capacity = cases[i].keys;
        assert_int_equal(tess_plan_reserve(&plan, &problem, &pattern, &target, &error), TESS_OK);
        assert_int_equal(plan->parts->reserved->splits.part_keys, cases[i].least);
        assert_int_equal(plan->parts->reserved->items, cases[i].items);
        tess_plan_free(plan);
    }
}

/* Lists of large blocks and of high columns go to Hopper's forward, others to decode; who asks for it by name is told
 * why not. */
#define BLOCKS "cuda_decode_bf16_sm90_blocks_"
#define COLUMNS "cuda_decode_bf16_sm90_columns_"
static void cuda_block_lists_go_to_the_forward(void **state) {
    (void)state;
    cuda_table_needed();
    static const struct {
        int64_t block_q, block_kv, n_q, d, page, heads;
        int32_t architecture;
        tess_form form;
        const char *name, *says; /* says: the kernel, or why it is refused */
    } cases[] = {
        {64, 64, 4096, 64, 0, 4, 90, TESS_INDICES, NULL, BLOCKS "d64"},
        {64, 64, 4096, 96, 0, 4, 90, TESS_INDICES, NULL, BLOCKS "d128"},
        {128, 128, 4096, 64, 0, 4, 90, TESS_BLOCK_BITS, NULL, BLOCKS "d64"},
        {128, 32, 4096, 128, 0, 4, 90, TESS_BLOCK_ROWS, NULL, BLOCKS "d128_r128"},
        {16, 16, 4096, 128, 16, 4, 90, TESS_INDICES, NULL, BLOCKS "d128"},
        {64, 64, 4096, 64, 0, 4, 80, TESS_INDICES, NULL, "cuda_decode_bf16_d64_r64"},
        {64, 64, 4096, 192, 0, 4, 90, TESS_INDICES, NULL, "cuda_decode_bf16_d256_r64"},
        {1, 64, 4096, 64, 0, 16, 90, TESS_INDICES, NULL, "cuda_decode_bf16_d64"},
        {64, 64, 4, 64, 0, 16, 90, TESS_INDICES, NULL, "cuda_decode_bf16_d64_r64"},
        {64, 8, 4096, 64, 0, 4, 90, TESS_INDICES, NULL, COLUMNS "d64"},
        {64, 1, 4096, 128, 0, 4, 90, TESS_BLOCK_BITS, NULL, COLUMNS "d128"},
        {128, 4, 4096, 128, 0, 4, 90, TESS_BLOCK_ROWS, NULL, COLUMNS "d128_r128"},
        {192, 1, 4096, 128, 0, 4, 90, TESS_BLOCK_BITS, NULL, COLUMNS "d128_r192"},
        {384, 2, 4096, 64, 0, 4, 90, TESS_INDICES, NULL, COLUMNS "d64_r192"},
        {192, 1, 4096, 128, 0, 4, 80, TESS_INDICES, NULL, "cuda_decode_bf16_d128_r64"},
        {192, 1, 4096, 128, 64, 4, 90, TESS_INDICES, NULL, "cuda_decode_bf16_d128_r64"},
        {32, 1, 4096, 128, 0, 4, 90, TESS_INDICES, NULL, "cuda_decode_bf16_d128_r64"},
        {192, 1, 63, 128, 0, 4, 90, TESS_INDICES, NULL, "cuda_decode_bf16_d128_r64"},
        {192, 1, 4096, 128, 0, 4, 90, TESS_RANGES, COLUMNS "d128_r192", "192 queries"},
        {256, 1, 4096, 128, 0, 4, 90, TESS_INDICES, COLUMNS "d128_r192", "192 queries"},
        {64, 16, 4096, 128, 0, 4, 90, TESS_INDICES, COLUMNS "d128", "64 queries"},
        {64, 1, 4096, 128, 64, 4, 90, TESS_INDICES, COLUMNS "d128", "page_size must be 0"},
        {64, 64, 4096, 64, 8, 4, 90, TESS_INDICES, NULL, "cuda_decode_bf16_d64_r64"},
        {64, 1, 4096, 64, 0, 4, 90, TESS_RANGES, BLOCKS "d64", "8 queries and 16 keys or more"},
        {4, 64, 4096, 64, 0, 4, 90, TESS_INDICES, BLOCKS "d64", "8 queries and 16 keys or more"},
        {64, 64, 4096, 64, 4, 4, 90, TESS_INDICES, BLOCKS "d64", "pages have 16 keys or more"},
        {64, 64, 4096, 64, 0, 4, 100, TESS_INDICES, BLOCKS "d64", "architecture is not 90"},
        {64, 64, 4096, 128, 0, 4, 90, TESS_INDICES, BLOCKS "d64", "at most 64 dims"},
        {64, 64, 4096, 64, 0, 4, 90, TESS_INDICES, BLOCKS "d128_r128", BLOCKS "d128_r128"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tess_target target = cuda_target(cases[i].architecture, 232448);
        tess_problem problem = tess_problem_init();
        tess_device_pattern pattern = tess_device_pattern_init();
        tess_error error = tess_error_init();
        tess_plan *plan;
        problem.batch = 1, problem.heads_q = cases[i].heads, problem.heads_kv = 1;
        problem.n_q = cases[i].n_q, problem.n_kv = 4096, problem.d_qk = problem.d_v = cases[i].d;
        problem.type = TESS_BF16, problem.alignment = 16, problem.page_size = cases[i].page;
        problem.kernel = cases[i].name;
        pattern.form = cases[i].form, pattern.n_q = cases[i].n_q, pattern.n_kv = 4096;
        pattern.block_q = cases[i].block_q, pattern.block_kv = cases[i].block_kv;
        const tess_status status = tess_plan_reserve(&plan, &problem, &pattern, &target, &error);
        const char *is = status ? error.message : plan->passes->kernel->name;
        if (status ? !strstr(is, cases[i].says) : strcmp(is, cases[i].says) != 0)
            fail_msg("case %zu: '%s', not '%s'", i, is, cases[i].says);
        tess_plan_free(plan);
    }
}

/* Reasons told where no kernel computes a problem are the nearest kernel's: by type first, then by head
 * sizes; kernels that take other head sizes are named. */
static void cuda_refusals_are_of_the_nearest_kernel(void **state) {
    (void)state;
    cuda_table_needed();
    static const char *const multiples = "d_qk, d_v and rope_dims have to be multiples of 8";
    static const char *const create = "; tess_plan_create takes any dims";
    static const char *const staged = "; TESS_STAGED takes any dims";
    static const struct {
        tess_type type, stored; /* stored: of K and V, TESS_F32: as q */
        int64_t d, d_v;
        int32_t architecture, reserved;
        const char *const *way; /* NULL: none is named */
        const char *says;
    } cases[] = {
        {TESS_BF16, 0, 36, 36, 90, 1, &create, NULL},
        {TESS_F16, 0, 36, 36, 80, 1, &create, NULL},
        {TESS_F16, TESS_E4M3, 36, 36, 80, 1, NULL, NULL},
        {TESS_BF16, 0, 576, 576, 90, 1, &create, "its values have at most 512 dims"},
        {TESS_F16, 0, 64, 520, 80, 1, &create, "its values have at most 512 dims"},
        {TESS_BF16, 0, 640, 64, 100, 1, &create, "its heads have at most 576 dims"},
        {TESS_F32, TESS_F16, 640, 640, 90, 1, NULL, "its heads have at most 576 dims"},
        {TESS_F32, 0, 64, 64, 90, 1, NULL, "it reads keys and values of bf16 or 8 bits"},
        {TESS_BF16, 0, 1100, 64, 90, 0, &staged, "its heads have at most 1024 dims"},
        {TESS_F16, 0, 64, 1100, 80, 0, &staged, "its values have at most 1024 dims"},
        {TESS_F32, 0, 1100, 1100, 80, 0, &staged, "its heads have at most 1024 dims"},
    };
    tess_pattern *pattern = pattern_make("dense", 64, 64, 1, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tess_target target = cuda_target(cases[i].architecture, 232448);
        tess_problem problem = problem_make(64);
        tess_device_pattern lists = tess_device_pattern_init();
        tess_error error = tess_error_init();
        tess_plan *plan;
        problem.d_qk = cases[i].d, problem.d_v = cases[i].d_v, problem.type = cases[i].type;
        problem.k_type = problem.v_type = cases[i].stored;
        lists.n_q = lists.n_kv = 64, lists.block_q = lists.block_kv = 1, lists.capacity = 8;
        assert_int_equal(TESS_UNSUPPORTED,
                         cases[i].reserved
                             ? tess_plan_reserve(&plan, &problem, &lists, &target, &error)
                             : tess_plan_create(&plan, &problem, pattern, &target, &error));
        const char *says = cases[i].says ? cases[i].says : multiples;
        const char *way = strstr(error.message, " any dims"),
                   *wanted = cases[i].way ? *cases[i].way : NULL;
        if (!strstr(error.message, says) || !way != !wanted ||
            (wanted && !strstr(error.message, wanted)))
            fail_msg("case %zu: '%s' does not say '%s'", i, error.message, says);
    }
    tess_pattern_free(pattern);
}

/* 8 bits, q and o of f32, and second views are decode's. */
static void cuda_blocks_refuse_by_name(void **state) {
    (void)state;
    const struct backend *cuda = backend_get(TESS_CUDA);
    const struct kernel *kernel = kernel_named(cuda, BLOCKS "d128");
    const tess_target target = cuda_target(90, 232448);
    const struct problem fits = {
        .type = TESS_BF16,
        .o_type = TESS_BF16,
        .d_qk = 128,
        .d_v = 64,
        .alignment = 16,
        .scale = 1,
        .caches = {.k_type = TESS_BF16, .v_type = TESS_BF16, .page_shift = CACHE_WHOLE}};
    struct problem bytes = fits, keys = fits, scale = fits, height = fits, q = fits, o = fits;
    struct problem rope = fits, pages = fits;
    bytes.caches.v_type = TESS_E4M3, keys.caches.k_type = TESS_F16;
    scale.scale = 0x1p-9, height.tile_rows = 128;
    q.type = q.o_type = TESS_F32, o.o_type = TESS_F32;
    rope.rope_dims = 64, rope.caches.k_rope_type = TESS_BF16, pages.caches.page_shift = 3;
    const struct {
        const struct problem *problem;
        const char *says;
    } cases[] = {{&bytes, "q's type"},
                 {&keys, "keys and values of bf16"},
                 {&scale, "2^-8 ... 2^8"},
                 {&height, "8, 16, 32 or 64 rows"},
                 {&q, "bf16 only"},
                 {&o, "o of q's type"},
                 {&rope, "q and k of one view"},
                 {&pages, "16 keys or more"}};
    assert_null(kernel->family->refuses(kernel, &fits, &target));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *why = kernel->family->refuses(kernel, cases[i].problem, &target);
        if (!why || !strstr(why, cases[i].says))
            fail_msg("'%s' does not say '%s'", why ? why : "nothing", cases[i].says);
    }
}

/* Draws of test_decode are computed on every architecture, also where V in K is declared; on Hopper by the
 * kernel of block lists that is drawn with it. */
static void cuda_decode_takes_what_tests_draw(void **state) {
    (void)state;
    int of_blocks = 0;
    cuda_table_needed();
    for (uint64_t seed = 1; seed <= 400; seed++) {
        const struct decode_problem drawn = decode_problem_draw(seed);
        const tess_target target = cuda_target(seed % 2 ? 90 : 80, seed % 2 ? 232448 : 166912);
        struct device_lists lists;
        device_lists_make(&lists, &drawn.sizes, seed);
        for (int in_k = 0; in_k <= drawn.v_in_k; in_k++) {
            tess_problem problem = drawn.problem;
            tess_error error = tess_error_init();
            tess_plan *plan;
            if (in_k)
                problem.v_in_k = 1, problem.v_type = TESS_F32;
            const tess_device_pattern declared = lab_listed_declared(&lists.listed);
            if (tess_plan_reserve(&plan, &problem, &declared, &target, &error))
                fail_msg("seed %llu: %s", (unsigned long long)seed, error.message);
            const char *const name = plan->passes->kernel->name;
            if (!strstr(name, "cuda_decode_") || !strstr(name, "_f32_") != !!problem.type)
                fail_msg("seed %llu: %s", (unsigned long long)seed, name);
            tess_plan_free(plan);
            problem.kernel = drawn.blocks;
            if (target.architecture != 90 || !*drawn.blocks)
                continue;
            of_blocks++;
            if (tess_plan_reserve(&plan, &problem, &declared, &target, &error))
                fail_msg("seed %llu: %s", (unsigned long long)seed, error.message);
            tess_plan_free(plan);
        }
        device_lists_free(&lists);
    }
    assert_true(of_blocks > 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuda_decode_takes_what_tests_draw),
        cmocka_unit_test(cuda_decode_refuses_by_name),
        cmocka_unit_test(cuda_decode_kernels_are_weighed),
        cmocka_unit_test(cuda_decode_parts_are_short),
        cmocka_unit_test(cuda_block_lists_go_to_the_forward),
        cmocka_unit_test(cuda_refusals_are_of_the_nearest_kernel),
        cmocka_unit_test(cuda_blocks_refuse_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
