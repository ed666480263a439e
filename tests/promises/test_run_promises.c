/*
 * Promises of tess_run: it allocates nothing and prints nothing. It takes a workspace of exactly the
 * size told and refuses one byte less. Bits are the same for every number of threads and every repeat,
 * and threads share one plan. tess_merge and tess_select, too, allocate nothing; a merge prints nothing.
 */
#define _POSIX_C_SOURCE 200809L
#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <pthread.h>

#include "support/alloc.h"
#include "support/support.h"

static const char *const cases[] = {
    "h=4,hkv=2,n=700,d=32,pattern=longformer(128,16),block=64x64,seed=1",
    "h=2,n=333,nkv=801,d=17,dv=40,dtype=bf16,pattern=global(3)+random(0.2,5),block=16x48,seed=2",
    "b=2,h=3,hkv=1,n=257,d=64,dtype=f16,pattern=summary(20,9),block=8x8,layout=padded,seed=3",
    "h=1,n=1500,d=16,pattern=global(1)+window(3,0),block=64x64,seed=4",
};

/* The bits of o and lse. */
static uint64_t bits(const struct lab_setting *s) {
    return lab_buffer_hash(&s->o.buffer) ^ 3 * lab_buffer_hash(&s->lse.buffer);
}

static void workspace_is_exact(void **state) {
    (void)state;
    struct lab_setting s;
    tess_pipeline pipeline;
    FOR_EACH_CASE(&s, pipeline) {
        char why[LAB_WHY];
        tess_error error = tess_error_init();
        tess_plan *plan = setting_plan(&s, NULL, pipeline, 3);
        struct lab_buffer workspace = setting_workspace(plan);
        tess_arguments arguments = setting_arguments(&s, &workspace);
        assert_true(workspace.size > 0);
        uint64_t before = bits(&s);
        arguments.workspace_size--;
        assert_int_equal(tess_run(plan, &arguments, &error, NULL), TESS_WORKSPACE_TOO_SMALL);
        assert_int_equal(error.status, TESS_WORKSPACE_TOO_SMALL);
        assert_true(bits(&s) == before);
        arguments.workspace_size++;
        assert_int_equal(tess_run(plan, &arguments, &error, NULL), TESS_OK);
        assert_true(bits(&s) != before);
        if (lab_buffer_check(&workspace, "workspace", why) != 0)
            fail_msg("%s", why);
        lab_buffer_free(&workspace);
        tess_plan_free(plan);
    }
}

/* The last 64 bytes, which setting_workspace and lab_buffer_make fill with their canary. */
struct last_line {
    unsigned char bytes[64];
};

static struct last_line last_line(const struct lab_buffer *workspace) {
    struct last_line line;
    assert_true(workspace->size >= sizeof line.bytes);
    memcpy(line.bytes, workspace->data + workspace->size - sizeof line.bytes, sizeof line.bytes);
    return line;
}

static void assert_last_line_used(const struct lab_buffer *workspace,
                                  const struct last_line *before, const char *name) {
    struct last_line after = last_line(workspace);
    if (!memcmp(before->bytes, after.bytes, sizeof after.bytes))
        fail_msg("%s leaves the last 64 of %zu bytes of workspace untouched", name,
                 workspace->size);
}

/* One thread, so that it is sure to be the one whose scratch ends the workspace. */
static void workspace_is_used_to_the_end(void **state) {
    (void)state;
    static const struct {
        tess_stage stage;
        tess_status (*call)(const tess_plan *, const tess_arguments *, tess_error *, tess_stream);
    } stages[] = {{TESS_STAGE_SDDMM, tess_sddmm},
                  {TESS_STAGE_SOFTMAX, tess_softmax},
                  {TESS_STAGE_SPMM, tess_spmm}};
    struct lab_setting s;
    tess_pipeline pipeline;
    FOR_EACH_CASE(&s, pipeline) {
        tess_plan *plan = setting_plan(&s, NULL, pipeline, 1);
        struct lab_buffer workspace = setting_workspace(plan), scores;
        tess_arguments arguments = setting_arguments(&s, &workspace);
        struct last_line before = last_line(&workspace);
        assert_int_equal(tess_run(plan, &arguments, NULL, NULL), TESS_OK);
        assert_last_line_used(&workspace, &before, lab_pipeline_name((int)pipeline));
        lab_buffer_free(&workspace);

        size_t size = sizeof(float) * (size_t)tess_plan_scores_count(plan);
        assert_int_equal(lab_buffer_make(&scores, size, 64), 0);
        for (int i = 0; pipeline == TESS_STAGED && i < 3; i++) {
            size = tess_plan_stage_workspace_size(plan, stages[i].stage);
            assert_int_equal(lab_buffer_make(&workspace, size, 64), 0);
            arguments = setting_arguments(&s, &workspace);
            arguments.scores = (void *)scores.data;
            before = size ? last_line(&workspace) : before;
            assert_int_equal(stages[i].call(plan, &arguments, NULL, NULL), TESS_OK);
            if (size)
                assert_last_line_used(&workspace, &before, tess_stage_name(stages[i].stage));
            lab_buffer_free(&workspace);
        }
        lab_buffer_free(&scores);
        tess_plan_free(plan);
    }
}

static void runs_allocate_nothing(void **state) {
    (void)state;
    struct lab_setting s;
    tess_pipeline pipeline;
    FOR_EACH_CASE(&s, pipeline) {
        tess_plan *plan = setting_plan(&s, NULL, pipeline, 2);
        struct lab_buffer workspace = setting_workspace(plan), scores;
        tess_arguments whole = setting_arguments(&s, &workspace), staged = whole, refused = whole;
        assert_int_equal(
            lab_buffer_make(&scores, sizeof(float) * (size_t)tess_plan_scores_count(plan), 64), 0);
        staged.scores = (void *)scores.data;
        refused.workspace = NULL;
        assert_true(alloc_calls() > 0);

        alloc_refuse(1, 1);
        tess_status status[4] = {tess_run(plan, &whole, NULL, NULL)};
        if (pipeline == TESS_STAGED) {
            status[1] = tess_sddmm(plan, &staged, NULL, NULL);
            status[2] = tess_softmax(plan, &staged, NULL, NULL);
            status[3] = tess_spmm(plan, &staged, NULL, NULL);
        }
        int64_t calls = alloc_calls();
        alloc_refuse(0, 0);
        assert_int_equal(calls, 0);
        for (int i = 0; i < 4; i++)
            assert_int_equal(status[i], TESS_OK);

        alloc_refuse(1, 1);
        status[0] = tess_run(plan, &refused, NULL, NULL);
        calls = alloc_calls();
        alloc_refuse(0, 0);
        assert_int_not_equal(status[0], TESS_OK);
        assert_int_equal(calls, 0);
        lab_buffer_free(&scores);
        lab_buffer_free(&workspace);
        tess_plan_free(plan);
    }
}

static void merges_allocate_nothing(void **state) {
    (void)state;
    struct lab_setting s, out;
    tess_pipeline pipeline;
    FOR_EACH_CASE(&s, pipeline) {
        setting_run(&s, NULL, pipeline, 2);
        setting_make(&out, cases[i_]);
        const tess_tensor *const o[] = {&s.o.view, &s.o.view};
        const tess_tensor *const lse[] = {&s.lse.view, &s.lse.view};
        alloc_refuse(1, 1);
        const tess_status done =
            tess_merge(TESS_CPU, 2, o, lse, &out.o.view, &out.lse.view, NULL, NULL);
        const tess_status refused =
            tess_merge(TESS_CPU, 0, o, lse, &out.o.view, &out.lse.view, NULL, NULL);
        const int64_t calls = alloc_calls();
        alloc_refuse(0, 0);
        assert_int_equal(calls, 0);
        assert_int_equal(done, TESS_OK);
        assert_int_equal(refused, TESS_INVALID_ARGUMENT);
        lab_setting_free(&out);
    }
}

static void choices_allocate_nothing(void **state) {
    (void)state;
    static const float scores[6][500];
    static int32_t indices[6][40];
    const tess_tensor t = tess_tensor_bhnd(scores, TESS_F32, 1, 2, 3, 500);
    tess_selection selection = tess_selection_init();
    tess_selected selected = tess_selected_init();
    selection.k = selected.capacity = 40, selected.indices = indices[0];
    alloc_refuse(1, 1);
    const tess_status done = tess_select(TESS_CPU, &selection, &t, &selected, NULL, NULL);
    const tess_status refused = tess_select(TESS_CPU, NULL, &t, &selected, NULL, NULL);
    const int64_t calls = alloc_calls();
    alloc_refuse(0, 0);
    assert_int_equal(calls, 0);
    assert_int_equal(done, TESS_OK);
    assert_int_equal(refused, TESS_INVALID_ARGUMENT);
}

/* Kernels may flush subnormal numbers for themselves, on the caller's thread too: not beyond a run. */
static void runs_leave_subnormals(void **state) {
    (void)state;
    volatile float least = FLT_MIN;
    struct lab_setting s;
    tess_pipeline pipeline;
    assert_true(least * 0.5f > 0);
    FOR_EACH_CASE(&s, pipeline) {
        setting_run(&s, NULL, pipeline, 1);
        assert_true(least * 0.5f > 0);
    }
}

static void runs_print_nothing(void **state) {
    (void)state;
    FILE *caught = tmpfile();
    assert_non_null(caught);
    struct lab_setting s;
    tess_pipeline pipeline;
    FOR_EACH_CASE(&s, pipeline) {
        fflush(stdout);
        fflush(stderr);
        int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
        dup2(fileno(caught), STDOUT_FILENO);
        dup2(fileno(caught), STDERR_FILENO);
        setting_run(&s, NULL, pipeline, 2);
        tess_plan *refused = NULL;
        tess_plan_create(&refused, NULL, NULL, NULL, NULL);
        tess_merge(TESS_CPU, 0, NULL, NULL, NULL, NULL, NULL, NULL);
        fflush(stdout);
        fflush(stderr);
        dup2(out, STDOUT_FILENO);
        dup2(err, STDERR_FILENO);
        close(out);
        close(err);
    }
    assert_int_equal(lseek(fileno(caught), 0, SEEK_END), 0);
    fclose(caught);
}

static void same_bits_for_any_threads(void **state) {
    (void)state;
    const int64_t threads[] = {1, 2, 3, 8};
    struct lab_setting s;
    tess_pipeline pipeline;
    FOR_EACH_CASE(&s, pipeline) {
        uint64_t first = 0;
        for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
            setting_run(&s, NULL, pipeline, threads[t]);
            if (t == 0)
                first = bits(&s);
            else if (bits(&s) != first)
                fail_msg("%s, %s: %d threads give other bits", cases[i_],
                         lab_pipeline_name((int)pipeline), (int)threads[t]);
        }
    }
}

static void same_bits_for_100_repeats(void **state) {
    (void)state;
    struct lab_setting s;
    tess_pipeline pipeline;
    FOR_EACH_CASE(&s, pipeline) {
        tess_plan *plan = setting_plan(&s, NULL, pipeline, 3);
        struct lab_buffer workspace = setting_workspace(plan);
        tess_arguments arguments = setting_arguments(&s, &workspace);
        uint64_t first = 0;
        for (int i = 0; i < 101; i++) {
            lab_tensor_poison(&s.o);
            lab_tensor_poison(&s.lse);
            assert_int_equal(tess_run(plan, &arguments, NULL, NULL), TESS_OK);
            if (i == 0)
                first = bits(&s);
            assert_true(bits(&s) == first);
        }
        lab_buffer_free(&workspace);
        tess_plan_free(plan);
    }
}

/* One caller's own outputs and workspace beside the shared plan and inputs. */
struct caller {
    const tess_plan *plan;
    tess_arguments arguments;
    struct lab_setting own;
    struct lab_buffer workspace;
    tess_status status;
};

static void *call(void *argument) {
    struct caller *c = argument;
    for (int i = 0; i < 5 && c->status == TESS_OK; i++)
        c->status = tess_run(c->plan, &c->arguments, NULL, NULL);
    return NULL;
}

static void threads_share_a_plan(void **state) {
    (void)state;
    struct lab_setting s;
    tess_pipeline pipeline;
    FOR_EACH_CASE(&s, pipeline) {
        setting_run(&s, NULL, pipeline, 2);
        uint64_t expected = bits(&s);
        tess_plan *plan = setting_plan(&s, NULL, pipeline, 2);
        struct caller callers[4];
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) {
            struct caller *c = &callers[i];
            *c = (struct caller){.plan = plan};
            setting_make(&c->own, cases[i_]);
            c->workspace = setting_workspace(plan);
            c->arguments = setting_arguments(&s, &c->workspace);
            c->arguments.o = &c->own.o.view;
            c->arguments.lse = &c->own.lse.view;
            assert_int_equal(pthread_create(&threads[i], NULL, call, c), 0);
        }
        for (int i = 0; i < 4; i++) {
            struct caller *c = &callers[i];
            assert_int_equal(pthread_join(threads[i], NULL), 0);
            assert_int_equal(c->status, TESS_OK);
            assert_true(bits(&c->own) == expected);
            lab_buffer_free(&c->workspace);
            lab_setting_free(&c->own);
        }
        tess_plan_free(plan);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workspace_is_exact),        cmocka_unit_test(workspace_is_used_to_the_end),
        cmocka_unit_test(runs_allocate_nothing),     cmocka_unit_test(merges_allocate_nothing),
        cmocka_unit_test(choices_allocate_nothing),  cmocka_unit_test(runs_print_nothing),
        cmocka_unit_test(runs_leave_subnormals),     cmocka_unit_test(same_bits_for_any_threads),
        cmocka_unit_test(same_bits_for_100_repeats), cmocka_unit_test(threads_share_a_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
