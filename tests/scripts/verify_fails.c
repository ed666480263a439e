/*
 * `tessera verify` with faults planted, a helper of tests/scripts/tool.sh. Linked with --wrap=lab_check:
 * staged runs of cases with seed=13 fail. Linked with --wrap=lab_seconds: after a case with seed=14 each
 * look at the clock is 10 s later than the one before.
 */
#include <stdio.h>

#include "cli/commands.h"
#include "lab/check/check.h"
#include "lab/device/timer.h"

enum { UNLUCKY_SEED = 13, SLOW_SEED = 14, SLOW_SECONDS = 10 };

static int slow, looks;

double __real_lab_seconds(void);
double __wrap_lab_seconds(void);

double __wrap_lab_seconds(void) {
    looks += slow;
    return __real_lab_seconds() + SLOW_SECONDS * looks;
}

void __real_lab_check(struct lab_outcome *outcome, struct lab_work *work, tess_backend backend,
                      tess_pipeline pipeline, const char *kernel);
void __wrap_lab_check(struct lab_outcome *outcome, struct lab_work *work, tess_backend backend,
                      tess_pipeline pipeline, const char *kernel);

void __wrap_lab_check(struct lab_outcome *outcome, struct lab_work *work, tess_backend backend,
                      tess_pipeline pipeline, const char *kernel) {
    __real_lab_check(outcome, work, backend, pipeline, kernel);
    slow |= work->s.c.seed == SLOW_SEED;
    if (work->s.c.seed != UNLUCKY_SEED || pipeline != TESS_STAGED)
        return;
    outcome->verdict = LAB_FAILED;
    snprintf(outcome->message, sizeof outcome->message, "the planted fault");
}

int main(int argc, char **argv) {
    return verify_main(argc, argv);
}
