/*
 * Times that a process waits for once: first_call CASE [cpu|cuda] times two runs of a case, from the host
 * and back, in a process that has a context of its device. The first loads the kernels. The library is the
 * one that the loader finds; tests/scripts/first_call.sh compares two.
 */
#include <stdio.h>
#include <string.h>

#include "lab/device/device.h"
#include "lab/run/setting.h"
#include "lab/device/timer.h"

/* Milliseconds of a run; negative where it failed. */
static double one(struct lab_setting *s, const struct lab_planned *planned, char why[LAB_WHY]) {
    const struct lab_run run = lab_setting_run(s, planned);
    const double start = lab_seconds();
    return lab_run_whole(&run, why) ? -1 : 1e3 * (lab_seconds() - start);
}

int main(int argc, char **argv) {
    const tess_backend backend = argc > 2 && !strcmp(argv[2], "cuda") ? TESS_CUDA : TESS_CPU;
    struct lab_case c = lab_case_default();
    struct lab_setting s;
    struct lab_planned planned = {0};
    tess_error error = tess_error_init();
    tess_target target = tess_target_init();
    char why[LAB_WHY] = "usage: first_call CASE [cpu|cuda]";
    if (argc < 2 || lab_case_parse(&c, argv[1], why)) {
        fprintf(stderr, "%s\n", why);
        return 2;
    }
    const tess_problem problem = lab_case_problem(&c, TESS_FUSED);
    int failed = lab_setting_make(&s, &c, why);
    if (!failed && (tess_target_query(&target, backend, 0, &error) ||
                    (c.topk ? lab_planned_reserve(&planned, &problem, &s.listed, &target, &error)
                            : lab_planned_make(&planned, &problem, s.pattern, &target, &error)))) {
        snprintf(why, sizeof why, "%s", error.message);
        failed = 1;
    }
    const double first = failed ? -1 : one(&s, &planned, why);
    const double second = first < 0 ? -1 : one(&s, &planned, why);
    if (second < 0)
        fprintf(stderr, "%s\n", why);
    else
        printf("first %.2f ms, second %.2f ms\n", first, second);
    lab_planned_free(&planned);
    lab_setting_free(&s);
    return second < 0;
}
