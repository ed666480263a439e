/*
 * Promises of reserved plans about memory: every allocation of tess_plan_reserve may fail, and neither a
 * fill nor a run makes any, nor writes outside of workspace and image.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <omp.h>

#include "support/alloc.h"
#include "support/device_lists.h"

static const struct device_sizes shapes[] = {
    {TESS_INDICES, 2, 4, 2, 2, 2, 3, 900, 1, 1, 700, 0, 0, 0, 1, 1, 1},
    {TESS_BLOCK_ROWS, 1, 2, 2, 1, 1, 200, 300, 64, 32, 25, -90, 0, 0, 0, 1, 1},
    {TESS_BLOCK_BITS, 2, 2, 1, 1, 1, 130, 300, 128, 16, 20, INT64_MIN, 0, 0, 0, 1, 1},
    {TESS_RANGES, 3, 8, 2, 1, 1, 1, 900, 1, 1, 2, 0, 0, 0, 1, 1, 0},
};
#define SHAPES (sizeof shapes / sizeof *shapes)

/* Tensors of a problem in f32, none of which matter. */
static tess_tensor tensor(int64_t batch, int64_t heads, int64_t n, int64_t d) {
    void *data = calloc((size_t)(batch * heads * n * d), sizeof(float));
    assert_non_null(data);
    return tess_tensor_bhnd(data, TESS_F32, batch, heads, n, d);
}

static void reserving_survives_refusals(void **state) {
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        struct device_lists l;
        device_lists_make(&l, &shapes[i], i);
        const tess_problem problem = device_problem(&shapes[i], 16);
        for (int64_t n = 1, refused = 1; refused; n++) {
            tess_error error = tess_error_init();
            tess_plan *plan = (tess_plan *)&error;
            const int64_t before = alloc_live();
            alloc_refuse(n, (int)(n % 2));
            const tess_status status =
                tess_plan_reserve(&plan, &problem, &l.listed.pattern, NULL, &error);
            refused = alloc_refused();
            alloc_refuse(0, 0);
            assert_int_equal(status, refused ? TESS_OUT_OF_MEMORY : TESS_OK);
            assert_int_equal(error.status, status);
            if (refused)
                assert_null(plan);
            else
                assert_true(n > 3);
            tess_plan_free(plan);
            assert_int_equal(alloc_live(), before);
        }
        device_lists_free(&l);
    }
}

static void fills_and_runs_allocate_nothing(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads += 2)
        for (size_t i = 0; i < SHAPES; i++) {
            const struct device_sizes *s = &shapes[i];
            struct device_lists l;
            struct lab_buffer image;
            char why[LAB_WHY];
            tess_error error = tess_error_init();
            device_lists_make(&l, s, i);
            tess_problem problem = device_problem(s, 16);
            problem.threads = threads, problem.part_keys = 128;
            tess_plan *plan = device_plan(&l, &problem, &image);
            struct lab_buffer workspace = setting_workspace(plan);
            tess_tensor q = tensor(s->batch, s->heads_q, s->n_q, 16), o = q;
            tess_tensor k = tensor(s->batch, s->heads_kv, s->n_kv, 16);
            o.data = tensor(s->batch, s->heads_q, s->n_q, 16).data;
            tess_arguments a = tess_arguments_init();
            a.q = &q, a.k = &k, a.v = &k, a.o = &o;
            a.workspace = workspace.data, a.workspace_size = workspace.size;
            a.image = device_image(&image), a.image_size = tess_plan_image_size(plan);
            device_fill(&l, plan, &image); /* teams of threads are made here */
            assert_int_equal(tess_run(plan, &a, &error, NULL), TESS_OK);
            alloc_refuse(1, 1);
            const tess_status filled = tess_plan_fill(plan, &l.listed.pattern, device_image(&image),
                                                      a.image_size, &error, NULL);
            const tess_status ran = tess_run(plan, &a, &error, NULL);
            tess_arguments without = a;
            without.image = NULL;
            const tess_status both =
                tess_plan_fill_run(plan, &l.listed.pattern, device_image(&image), a.image_size,
                                   NULL, &without, &error, NULL);
            const int64_t calls = alloc_calls();
            alloc_refuse(0, 0);
            assert_int_equal(filled, TESS_OK);
            assert_int_equal(ran, TESS_OK);
            assert_int_equal(both, TESS_OK);
            assert_int_equal(calls, 0);
            if (lab_buffer_check(&workspace, "workspace", why))
                fail_msg("%s", why);
            a.workspace_size--;
            assert_int_equal(tess_run(plan, &a, &error, NULL), TESS_WORKSPACE_TOO_SMALL);
            tess_plan_free(plan);
            free(q.data);
            free(k.data);
            free(o.data);
            lab_buffer_free(&workspace);
            lab_buffer_free(&image);
            device_lists_free(&l);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reserving_survives_refusals),
        cmocka_unit_test(fills_and_runs_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
