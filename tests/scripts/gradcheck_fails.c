/*
 * `tessera gradcheck` with a fault planted, a helper of tests/scripts/tool.sh: linked with
 * --wrap=lab_run_whole, so that of cases with seed=13 the first row of dK has the wrong sign.
 */
#include "cli/commands.h"
#include "lab/run/run.h"

int __real_lab_run_whole(const struct lab_run *run, char why[LAB_WHY]);
int __wrap_lab_run_whole(const struct lab_run *run, char why[LAB_WHY]);

static int unlucky;

int __wrap_lab_run_whole(const struct lab_run *run, char why[LAB_WHY]) {
    const int failed = __real_lab_run_whole(run, why);
    if (!unlucky || failed || !run->wanted || !run->wanted->d_k.buffer.base)
        return failed;
    const tess_tensor *d_k = &run->wanted->d_k.view;
    for (int64_t d = 0; d < d_k->size[3]; d++)
        ((float *)(void *)run->wanted->d_k.buffer.data)[d] *= -1;
    return failed;
}

int main(int argc, char **argv) {
    unlucky = argc > 1 && strstr(argv[1], "seed=13") != NULL;
    return gradcheck_main(argc, argv);
}
