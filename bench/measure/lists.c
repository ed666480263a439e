/* Sets of lists on the device. */
#include "measure/lists.h"

#include "lab/device/device.h"

static const char no_memory[] = "out of memory for the lists";

const char *bench_lists_refuses(const struct lab_case *c, const struct bench_method *method) {
    if (!lab_case_listed(c))
        return method->timing == BENCH_ROTATE ? "--rotate goes with topk=" : NULL;
    return method->stages || method->layer || method->baselines
               ? "topk= is measured whole and alone: take --stages, --layer and --baseline away"
               : NULL;
}

tess_status bench_lists_reserve(tess_plan **plan, const struct lab_setting *s,
                                const tess_problem *problem, const tess_target *target,
                                tess_error *error) {
    const tess_device_pattern declared = lab_listed_declared(&s->listed);
    return tess_plan_reserve(plan, problem, &declared, target, error);
}

/* One set, its arrays on the backend, and its image. */
static const char *set_make(struct bench_lists *l, const struct lab_setting *s, int64_t set) {
    lab_mirror_make(&l->arrays[set], l->backend);
    if (set && lab_listed_make(&l->drawn[set], &s->c, (uint64_t)set))
        return no_memory;
    l->lists[set] = set ? &l->drawn[set] : &s->listed;
    if (lab_listed_place(l->lists[set], &l->arrays[set], &l->at[set]))
        return l->arrays[set].why;
    if (set)
        l->image[set] = lab_device_alloc(l->backend, l->image_size);
    /* blocks of another draw may be more or fewer */
    l->at[set].capacity = s->listed.pattern.capacity;
    return l->image[set] ? NULL : no_memory;
}

/* Whether plan and lists let a step do without an image. */
static int step_direct(const tess_plan *plan, const tess_device_pattern *lists) {
    tess_plan_info info = tess_plan_info_init();
    return tess_plan_describe(plan, &info, NULL) == TESS_OK && info.fill_run_direct &&
           (lists->form == TESS_RANGES || lists->promises & TESS_DISTINCT);
}

const char *bench_lists_make(struct bench_lists *l, const struct lab_setting *s,
                             const tess_plan *plan, tess_backend backend, int64_t sets, void *image,
                             tess_error *error) {
    const char *why = NULL;
    *l = (struct bench_lists){.plan = plan, .backend = backend, .sets = sets};
    l->image_size = tess_plan_image_size(plan);
    l->image[0] = image;
    for (int64_t set = 0; set < sets && !why; set++)
        why = set_make(l, s, set);
    l->direct = !why && step_direct(plan, &l->at[0]);
    for (l->turn = 0; l->turn < sets && !why; l->turn++) {
        why = bench_lists_choose(l, error, NULL);
        why = why ? why : bench_lists_fill(l, error, NULL);
    }
    l->turn = 0;
    return why ? why : lab_device_synchronize(backend);
}

void bench_lists_free(struct bench_lists *l) {
    for (int64_t set = 0; set < l->sets; set++) {
        lab_mirror_free(&l->arrays[set]);
        if (set)
            lab_device_free(l->backend, l->image[set]);
        lab_listed_free(&l->drawn[set]);
    }
}

const char *bench_lists_choose(const struct bench_lists *l, tess_error *error, tess_stream stream) {
    return lab_listed_choose(l->lists[l->turn], &l->arrays[l->turn], error, stream) == TESS_OK
               ? NULL
               : error->message;
}

const char *bench_lists_fill(const struct bench_lists *l, tess_error *error, tess_stream stream) {
    return tess_plan_fill(l->plan, &l->at[l->turn], l->image[l->turn], l->image_size, error,
                          stream) == TESS_OK
               ? NULL
               : error->message;
}

const char *bench_lists_step(const struct bench_lists *l, const tess_arguments *arguments,
                             tess_error *error, tess_stream stream) {
    tess_arguments a = *arguments;
    a.image = NULL;
    const char *why = bench_lists_choose(l, error, stream);
    if (why)
        return why;
    return tess_plan_fill_run(l->plan, &l->at[l->turn], l->direct ? NULL : l->image[l->turn],
                              l->direct ? 0 : l->image_size, NULL, &a, error, stream) == TESS_OK
               ? NULL
               : error->message;
}

const char *bench_lists_report(const struct bench_lists *l, tess_fill_report *report,
                               tess_error *error) {
    int64_t head[TESS_REPORT_SIZE / sizeof(int64_t)];
    const char *why = lab_device_to_host(l->backend, head, l->image[0], sizeof head);
    if (why)
        return why;
    return tess_plan_report(l->plan, head, report, error) == TESS_OK ? NULL : error->message;
}
