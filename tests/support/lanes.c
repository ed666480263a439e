/* Lanes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lab/device/device.h"
#include "lab/fill/half.h"
#include "lab/fill/rng.h"
#include "support/lanes.h"
#include "support/support.h"

static void normal(struct lab_tensor *t, uint64_t seed) {
    const int64_t *n = t->view.size;
    for (int64_t row = 0; row < n[0] * n[1] * n[2]; row++)
        for (int64_t d = 0; d < n[3]; d++)
            lab_put(t->view.data, t->view.type,
                    lab_row(&t->view, row / n[2] / n[1], row / n[2] % n[1], row % n[2]) + d,
                    lab_normal(seed, (uint64_t)row, (uint64_t)d));
}

/* A backward's o and lse are any numbers: its gradients are as many as those of a forward's. */
static void inputs_make(struct lane *l) {
    if (!lab_case_backward(&l->s.c))
        return;
    normal(&l->s.o, 1);
    normal(&l->s.lse, 2);
}

struct lane *lane_make(const char *text) {
    const struct lab_case c = case_of(text);
    char why[LAB_WHY];
    tess_error error = tess_error_init();
    tess_target target = tess_target_init();
    struct lane *l = calloc(1, sizeof *l);
    assert_non_null(l);
    l->text = text;
    if (lab_setting_make(&l->s, &c, why))
        fail_msg("%s: %s", text, why);
    inputs_make(l);
    const tess_problem problem =
        lab_case_problem(&c, c.pipeline == LAB_ANY ? TESS_FUSED : (tess_pipeline)c.pipeline);
    assert_int_equal(tess_target_query(&target, TESS_CUDA, -1, &error), TESS_OK);
    const tess_status status =
        lab_case_listed(&c)
            ? lab_planned_reserve(&l->planned, &problem, &l->s.listed, &target, &error)
            : lab_planned_make(&l->planned, &problem, l->s.pattern, &target, &error);
    if (status == TESS_UNSUPPORTED && target.architecture != 90) {
        lane_free(l);
        return NULL;
    }
    if (status)
        fail_msg("%s: %s", text, error.message);
    assert_int_equal(lab_buffer_make(&l->workspace, tess_plan_workspace_size(l->planned.plan), 64),
                     0);
    const struct lab_run run = lab_setting_run(&l->s, &l->planned);
    if (lab_run_place(&l->sight, &run, &l->workspace))
        fail_msg("%s: %s", text, l->sight.mirror.why);
    assert_null(lab_device_stream_make(TESS_CUDA, &l->stream));
    return l;
}

void lane_free(struct lane *l) {
    if (l->stream)
        lab_device_stream_free(TESS_CUDA, l->stream);
    lab_mirror_free(&l->sight.mirror);
    lab_planned_free(&l->planned);
    lab_buffer_free(&l->workspace);
    lab_setting_free(&l->s);
    free(l);
}

const char *lane_run(const struct lane *l, tess_error *error) {
    const struct lab_planned *p = &l->planned;
    tess_arguments a = l->sight.arguments;
    if (p->listed)
        a.image = NULL;
    const tess_status status = p->listed
                                   ? tess_plan_fill_run(p->plan, &p->lists, p->place, p->image.size,
                                                        NULL, &a, error, l->stream)
                                   : tess_run(p->plan, &a, error, l->stream);
    return status ? error->message : NULL;
}

/* Calls `act` for each output. */
static void each_output(struct lane *l, void (*act)(struct lab_buffer *, uint64_t *),
                        uint64_t *sum) {
    struct lab_buffer *const forward[] = {&l->s.o.buffer, &l->s.lse.buffer};
    struct lab_buffer *const backward[] = {&l->s.wanted.d_q.buffer, &l->s.wanted.d_k.buffer,
                                           &l->s.wanted.d_v.buffer};
    const int is_backward = lab_case_backward(&l->s.c);
    for (int i = 0; i < (is_backward ? 3 : 2); i++)
        act(is_backward ? backward[i] : forward[i], sum);
}

static void clear(struct lab_buffer *buffer, uint64_t *sum) {
    (void)sum;
    lab_buffer_poison(buffer);
}

static void add(struct lab_buffer *buffer, uint64_t *sum) {
    *sum = 31 * *sum + lab_buffer_hash(buffer);
}

const char *lane_clear(struct lane *l) {
    each_output(l, clear, NULL);
    return lab_mirror_send(&l->sight.mirror);
}

uint64_t lane_bits(struct lane *l, const char **why) {
    uint64_t sum = 1;
    *why = lab_mirror_fetch(&l->sight.mirror);
    each_output(l, add, &sum);
    return *why ? 0 : sum;
}
