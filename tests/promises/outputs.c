/*
 * A hash of what each case of a file gives, for comparing libraries: outputs FILE [cpu|cuda]. The
 * library is the one that the loader finds, of this version or an older one, whose structs are
 * shorter. tests/scripts/outputs.sh compares two.
 */
#include <stdio.h>
#include <string.h>

#include "lab/files/cases.h"
#include "lab/run/run.h"
#include "lab/run/setting.h"

/* lab/run/run.c names its address, and older libraries lack it. Nothing here calls it. */
tess_status tess_delta(const tess_plan *plan, const tess_arguments *arguments, tess_error *error,
                       tess_stream stream) {
    (void)plan, (void)arguments, (void)error, (void)stream;
    return TESS_UNSUPPORTED;
}

/* Prints "HASH PIPELINE CASE", or "- PIPELINE CASE" and why there is none: o and lse. */
static int one(const struct lab_case *c, tess_backend backend, tess_pipeline pipeline) {
    char text[LAB_CASE_TEXT], why[LAB_WHY] = "";
    struct lab_setting s;
    struct lab_planned planned = {0};
    tess_error error = tess_error_init();
    tess_target target = tess_target_init();
    const tess_problem problem = lab_case_problem(c, pipeline);
    const char *name = pipeline == TESS_FUSED ? "fused" : "staged";
    lab_case_print(c, text);
    int failed = lab_setting_make(&s, c, why);
    if (!failed && (tess_target_query(&target, backend, 0, &error) ||
                    lab_planned_make(&planned, &problem, s.pattern, &target, &error))) {
        snprintf(why, sizeof why, "%s", error.message);
        failed = 1;
    }
    const struct lab_run run = lab_setting_run(&s, &planned);
    if (!failed)
        failed = lab_run_whole(&run, why);
    if (failed)
        printf("- %s %s: %s\n", name, text, why);
    else
        printf("%016llx%016llx %s %s\n", (unsigned long long)lab_buffer_hash(&s.o.buffer),
               (unsigned long long)lab_buffer_hash(&s.lse.buffer), name, text);
    lab_planned_free(&planned);
    lab_setting_free(&s);
    return failed;
}

int main(int argc, char **argv) {
    struct lab_cases cases = {0};
    char why[LAB_WHY];
    const tess_backend backend = argc > 2 && !strcmp(argv[2], "cuda") ? TESS_CUDA : TESS_CPU;
    int failed = 0;
    if (argc < 2 || lab_cases_read(&cases, argv[1], why)) {
        fprintf(stderr, "usage: outputs FILE [cpu|cuda]%s%s\n", argc < 2 ? "" : ": ",
                argc < 2 ? "" : why);
        lab_cases_free(&cases);
        return 2;
    }
    for (int64_t i = 0; i < cases.count; i++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED; pipeline++)
            if (lab_case_asks(&cases.at[i], backend, pipeline))
                failed += one(&cases.at[i], backend, (tess_pipeline)pipeline);
    lab_cases_free(&cases);
    return failed ? 1 : 0;
}
