/*
 * A level that multiplies bf16 in pairs, -DLEVEL="name", against the oracle: avx512bf16 also where it
 * does not pay, and amx on processors without a matrix unit, which amx_emulated.h stands for. Exit
 * 77 where AVX-512 or its bf16 is missing. `tessera verify` holds what a machine chooses.
 */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/check/check.h"
#include "lab/fill/half.h"

#define KERNEL "cpu_attention_" LEVEL
#define KEYS "cpu_gradient_keys_" LEVEL
#define ROWS "cpu_gradient_rows_" LEVEL

static const char *const cases[] = {
    "h=2,hkv=1,n=300,d=64,pattern=dense", /* values packed before all else */
    "h=4,hkv=2,b=2,n=257,d=32,dv=80,pattern=causal,threads=3",
    "h=2,n=400,d=128,block=64x64,pattern=window(150,20),split=128,layout=bnhd",
    "h=1,n=290,d=64,block=64x32,pattern=dense,fill=positive",
    "h=1,n=290,d=64,block=32x32,pattern=dense,fill=subnormal",
    "h=2,n=300,d=64,pattern=dense,fill=nanv",
    "h=2,n=300,d=64,block=128x128,pattern=random(0.6,2),fill=nank",
    "h=2,n=300,d=32,dv=16,pattern=dense,fill=inf",
    "h=2,n=300,d=32,dv=16,pattern=dense,fill=huge",
    "h=2,n=130,d=96,dv=48,block=8x8,pattern=random(0.2,3),lists=kv", /* for each superblock */
    "h=8,hkv=2,n=130,d=64,block=16x16,pattern=random(0.3,3),lists=kv,tile=16", /* tiles of 4 heads */
    "h=1,n=140,d=32,dv=16,block=1x1,pattern=random(0.2,4),tile=64",
    "h=1,n=100,d=64,block=16x16,pattern=segments(30,1,9),scale=-0.5",
    "h=1,n=3,nkv=3000,d=64,dv=64,pattern=dense,fill=positive",
    "h=4,n=50,nkv=1500,d=64,pattern=dense,fill=sink", /* maxima move late */
    "h=2,n=70,nkv=1300,d=64,pattern=dense,scale=2",
    "h=2,n=70,nkv=1300,d=64,pattern=dense,softcap=20,alibi=1,sink=1,dropout=0.2",
    "h=8,hkv=1,n=7,nkv=700,d=64,pattern=window(300,9),softcap=20,alibi=1,sink=1,dropout=0.2",
    "h=2,n=70,nkv=333,d=96,dv=48,pattern=causal,dropout=0.5",
    "h=1,n=60,nkv=500,d=512,dv=16,pattern=dense,layout=padded",
    "h=2,hkv=1,n=300,d=64,pattern=dense,page=16",
    "h=8,hkv=2,n=130,d=64,block=16x16,pattern=random(0.3,3),lists=kv,page=1,layout=bnhd",
    "h=4,hkv=1,n=70,nkv=700,d=96,dv=48,pattern=window(300,9),vink=1,page=64,alibi=1",
    "h=2,hkv=1,n=150,d=96,dv=48,rope=32,pattern=dense,out32=1",
    "h=8,hkv=1,n=3,nkv=700,d=128,dv=64,rope=64,block=1x1,pattern=random(0.5,1),vink=1,page=64,seed="
    "1",
};

#define BACKWARD(words) words ",op=backward"
static const char *const gradient_cases[] = {
    BACKWARD("h=2,hkv=1,n=150,nkv=200,d=64,pattern=dense"),
    BACKWARD("h=4,hkv=2,b=2,n=130,d=32,dv=96,pattern=causal,threads=3,dlse=1"),
    BACKWARD("h=1,n=400,d=128,block=64x64,pattern=window(150,20),split=128,layout=bnhd"),
    BACKWARD("h=1,n=70,nkv=1300,d=64,pattern=dense"), /* sums are folded */
    BACKWARD("h=1,n=700,nkv=70,d=32,pattern=dense,fill=positive"),
    BACKWARD("h=2,n=130,d=96,dv=64,block=8x8,pattern=random(0.5,3),lists=kv,tile=64"),
    BACKWARD("h=8,hkv=2,n=130,d=64,block=16x16,pattern=random(0.6,3),lists=kv,tile=16"),
    BACKWARD("h=1,n=100,d=64,block=16x16,pattern=segments(30,1,9),scale=-0.5"),
    BACKWARD("h=1,n=40,nkv=100,d=512,dv=32,pattern=dense,layout=padded"),
    BACKWARD("h=1,n=150,d=64,pattern=dense,grads=k"),
    BACKWARD("h=1,n=150,d=64,pattern=causal,grads=v"),
    BACKWARD("h=2,n=150,d=64,pattern=dense,alibi=1,grads=a"),
    BACKWARD(
        "h=2,n=70,nkv=300,d=64,pattern=causal,softcap=20,alibi=1,sink=1,dropout=0.2,grads=qkvas"),
    BACKWARD("h=8,hkv=1,n=40,nkv=300,d=64,pattern=window(90,9),softcap=9,alibi=1,dropout=0.2"),
    BACKWARD("h=1,n=100,d=64,pattern=dense,fill=subnormal"), /* f32 takes these */
    BACKWARD("h=1,n=200,d=64,pattern=dense,fill=tiny"),
    BACKWARD("h=1,n=100,d=64,pattern=dense,fill=huge"),
    BACKWARD("h=1,n=100,d=64,pattern=dense,fill=large"),
    BACKWARD("h=1,n=100,d=64,pattern=dense,fill=inf"),
    BACKWARD("h=1,n=260,d=64,block=64x64,pattern=random(0.6,2),fill=nank"),
};

/* MLPs, which amx has alone: spans of dims and of columns, ragged ends, deltas, few rows. */
static const char *const mlp_cases[] = {
    "n=77,nkv=330,d=530,dv=264,block=64x1,pattern=random_row(0.6,1),op=mlp,bias=ho,cache=delta",
    "n=40,nkv=1100,d=24,dv=33,block=33x1,pattern=random_row(0.6,1),op=mlp,activation=silu",
    "n=9,nkv=40,d=72,dv=40,block=8x8,pattern=random(0.5,1),op=mlp,cache=store",
};
#define N_MLP_CASES (strcmp(LEVEL, "amx") == 0 ? sizeof mlp_cases / sizeof mlp_cases[0] : 0)

/* A case in which the unit is not fit for some values between others: those of keys 256 ... 383. */
static const char faint[] = "h=2,n=70,nkv=700,d=64,pattern=dense";
/* And gradients of which it would take a part for zero, though no element of dO is subnormal. */
static const char faint_gradients[] = BACKWARD("h=2,n=70,nkv=200,d=64,pattern=dense");

/* Elements of rows first ... end - 1 become `size`, with their signs. */
static int faint_make(struct lab_work *work, const tess_tensor *t, int64_t first, int64_t end,
                      double size, char why[LAB_WHY]) {
    for (int64_t h = 0; h < t->size[1]; h++)
        for (int64_t i = first; i < end; i++)
            for (int64_t d = 0; d < t->size[3]; d++) {
                const int64_t at = lab_row(t, 0, h, i) + d;
                lab_put(t->data, t->type, at, copysign(size, lab_get(t->data, t->type, at)));
            }
    if (lab_work_answer(work)) {
        snprintf(why, LAB_WHY, "out of memory for the oracle");
        return -1;
    }
    return 0;
}

static int make(struct lab_work *work, const struct lab_case *c, const char *words,
                char why[LAB_WHY]) {
    if (lab_work_make(work, c, why))
        return -1;
    if (words == faint)
        return faint_make(work, &work->s.v.view, 256, 384, 0x1p-60, why);
    if (words == faint_gradients)
        return faint_make(work, &work->s.given.d_o.view, 0, c->n, 0x1p-120, why);
    return 0;
}

/* Whether the level computed a case, of a backward all that there was to compute. */
static int is_of_level(const struct lab_outcome *o) {
    const char *const keys = o->kernels[TESS_STAGE_GRADIENT_KEYS];
    const char *const rows = o->kernels[TESS_STAGE_GRADIENT_ROWS];
    return (!keys || strcmp(keys, KEYS) == 0) && (!rows || strcmp(rows, ROWS) == 0);
}

/* Whether the case fails, which is then told. */
static int fails(const char *words, const char *kernel) {
    struct lab_case c;
    struct lab_work work = {0};
    struct lab_outcome outcome = {.verdict = LAB_FAILED};
    char why[LAB_WHY] = "", text[LAB_CASE_TEXT];
    snprintf(text, sizeof text, "%s,dtype=bf16,backend=cpu,pipeline=fused", words);
    if (lab_case_parse(&c, text, why) || make(&work, &c, words, why))
        snprintf(outcome.message, sizeof outcome.message, "%s", why);
    else
        lab_check(&outcome, &work, TESS_CPU, TESS_FUSED, kernel);
    if (outcome.verdict == LAB_PASSED && !is_of_level(&outcome)) {
        snprintf(outcome.message, sizeof outcome.message, "it took another level's kernels");
        outcome.verdict = LAB_FAILED;
    }
    if (outcome.verdict != LAB_PASSED)
        printf("FAILED %s%s: %s\n", text,
               words == faint || words == faint_gradients ? " (faint)" : "", outcome.message);
    lab_work_free(&work);
    return outcome.verdict != LAB_PASSED;
}

int main(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512bf16")) {
        printf("skipped: no AVX-512 with bf16\n");
        return 77;
    }
    setenv("TESSERA_ISA", LEVEL, 1);
    int failed = fails(faint, KERNEL) + fails(faint_gradients, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        failed += fails(cases[i], KERNEL);
    for (size_t i = 0; i < sizeof gradient_cases / sizeof gradient_cases[0]; i++)
        failed += fails(gradient_cases[i], NULL);
    for (size_t i = 0; i < N_MLP_CASES; i++)
        failed += fails(mlp_cases[i], "cpu_mlp_up_" LEVEL);
    printf("%s: %d failures\n", LEVEL, failed);
    return failed != 0;
}
