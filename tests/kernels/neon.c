/*
 * A few cases on every CPU kernel of this build against the oracle: what tests/kernels/neon.sh runs on the
 * processor that it emulates. `tessera verify` holds the levels of the machine at hand.
 */
#include <stdio.h>
#include <string.h>

#include "lab/check/check.h"

static const char *const attention_cases[] = {
    "h=2,hkv=1,n=150,d=64,pattern=dense",
    "h=3,hkv=3,n=131,nkv=70,d=33,dv=1,pattern=causal,dtype=f16",
    "h=2,n=97,d=16,dv=70,pattern=window(20,3),dtype=bf16,layout=bnhd",
    "h=2,n=100,d=16,block=8x8,pattern=random(0.2,3),lists=kv,layout=padded",
    "h=1,n=60,d=32,block=1x1,pattern=random(0.2,4)",
    "h=1,n=60,d=32,block=2x2,pattern=random(0.2,4),tile=2",
    "h=1,n=100,d=24,block=16x16,pattern=segments(30,1,9),fill=huge",
    "h=1,n=60,d=24,block=4x4,pattern=summary(5,7),fill=subnormal",
    "h=1,n=60,d=24,block=8x16,pattern=window(9,9),fill=nanv",
    "h=1,n=3,nkv=5,d=1000,dv=64,pattern=dense,fill=positive",
    "h=1,n=3,nkv=5000,d=1,dv=64,pattern=dense,fill=positive",
    NULL,
};
static const char *const mlp_cases[] = {
    "n=70,nkv=130,d=33,dv=40,block=64x1,pattern=random_row(0.3,1),bias=ho",
    "n=70,nkv=130,d=33,dv=40,dtype=f16,block=16x8,pattern=random(0.3,1),activation=silu,cache="
    "delta",
    "n=40,nkv=72,d=24,dv=17,dtype=bf16,block=64x1,pattern=dense,activation=gelu_tanh,cache=store",
    NULL,
};

/* Operations and pipelines that have a pass of each stage, and their cases. */
static const struct {
    const char *operation;
    tess_pipeline pipeline;
    const char *const *cases;
} runs[] = {
    [TESS_STAGE_ATTENTION] = {"attention", TESS_FUSED, attention_cases},
    [TESS_STAGE_SDDMM] = {"attention", TESS_STAGED, attention_cases},
    [TESS_STAGE_SOFTMAX] = {"attention", TESS_STAGED, attention_cases},
    [TESS_STAGE_SPMM] = {"attention", TESS_STAGED, attention_cases},
    [TESS_STAGE_DELTA] = {"backward", TESS_FUSED, attention_cases},
    [TESS_STAGE_GRADIENT_KEYS] = {"backward", TESS_FUSED, attention_cases},
    [TESS_STAGE_GRADIENT_ROWS] = {"backward", TESS_FUSED, attention_cases},
    [TESS_STAGE_SOFTMAX_BACKWARD] = {"backward", TESS_STAGED, attention_cases},
    [TESS_STAGE_SPMM_TRANSPOSED] = {"backward", TESS_STAGED, attention_cases},
    [TESS_STAGE_COLUMN_SUMS] = {"attention,sums=64", TESS_FUSED, attention_cases},
    [TESS_STAGE_MLP_UP] = {"mlp", TESS_FUSED, mlp_cases},
    [TESS_STAGE_MLP_DOWN] = {"mlp", TESS_FUSED, mlp_cases},
};

enum { KERNELS_MAX = 64 };
static tess_kernel_info kernels[KERNELS_MAX];
static int n_kernels;
static int cases_met[KERNELS_MAX]; /* which a kernel ran in, named or beside the one that was */

static void kernels_find(void) {
    for (int64_t k = 0; k < tess_kernel_count() && n_kernels < KERNELS_MAX; k++) {
        tess_kernel_info kernel = tess_kernel_info_init();
        if (tess_kernel_describe(k, &kernel, NULL) == TESS_OK && kernel.backend == TESS_CPU &&
            !kernel.unusable)
            kernels[n_kernels++] = kernel;
    }
}

static void kernels_meet(const struct lab_outcome *outcome) {
    for (int k = 0; k < n_kernels; k++) {
        const char *ran = outcome->kernels[kernels[k].stage];
        cases_met[k] += ran && strcmp(ran, kernels[k].name) == 0;
    }
}

/* Answers how many runs failed; none where the kernel has been met in all of its cases. */
static int kernel_check(int k) {
    const tess_kernel_info *kernel = &kernels[k];
    int failed = 0, cases = 0;
    while (runs[kernel->stage].cases[cases])
        cases++;
    if (cases_met[k] == cases)
        return 0;
    for (const char *const *text = runs[kernel->stage].cases; *text; text++) {
        struct lab_case c;
        struct lab_work work = {0};
        struct lab_outcome outcome = {.verdict = LAB_FAILED};
        char why[LAB_WHY] = "";
        char line[LAB_CASE_TEXT];
        snprintf(line, sizeof line, "op=%s,%s", runs[kernel->stage].operation, *text);
        if (lab_case_parse(&c, line, why) || lab_work_make(&work, &c, why))
            snprintf(outcome.message, sizeof outcome.message, "%s", why);
        else
            lab_check(&outcome, &work, TESS_CPU, runs[kernel->stage].pipeline, kernel->name);
        if (outcome.verdict != LAB_PASSED) {
            printf("FAILED %s: %s: %s\n", kernel->name, *text, outcome.message);
            failed++;
        }
        kernels_meet(&outcome);
        lab_work_free(&work);
    }
    return failed;
}

int main(void) {
    int failed = 0;
    kernels_find();
    for (int k = 0; k < n_kernels; k++)
        failed += kernel_check(k);
    printf("level %s: %d kernels, %d failures\n", tess_cpu_isa(), n_kernels, failed);
    return failed || strcmp(tess_cpu_isa(), "neon") != 0;
}
