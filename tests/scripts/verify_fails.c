/*
 * `tessera verify` with a fault planted, a helper of tests/scripts/tool.sh: linked with --wrap=lab_check,
 * so that staged runs of cases with seed=13 fail whatever they answered.
 */
#include <stdio.h>

#include "cli/commands.h"
#include "lab/check.h"

enum { UNLUCKY_SEED = 13 };

void __real_lab_check(struct lab_outcome *outcome, struct lab_work *work, tess_backend backend,
                      tess_pipeline pipeline, const char *kernel);
void __wrap_lab_check(struct lab_outcome *outcome, struct lab_work *work, tess_backend backend,
                      tess_pipeline pipeline, const char *kernel);

void __wrap_lab_check(struct lab_outcome *outcome, struct lab_work *work, tess_backend backend,
                      tess_pipeline pipeline, const char *kernel) {
    __real_lab_check(outcome, work, backend, pipeline, kernel);
    if (work->c.seed != UNLUCKY_SEED || pipeline != TESS_STAGED)
        return;
    outcome->verdict = LAB_FAILED;
    snprintf(outcome->message, sizeof outcome->message, "the planted fault");
}

int main(int argc, char **argv) {
    return verify_main(argc, argv);
}
