/*
 * A level that multiplies bf16 in pairs, -DLEVEL="name", against the oracle: avx512bf16 also where it
 * does not pay, and amx on processors without a matrix unit, which amx_emulated.h stands for. Exit
 * 77 where AVX-512 or its bf16 is missing. `tessera verify` holds what a machine chooses.
 */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/check.h"
#include "lab/half.h"

#define KERNEL "cpu_attention_" LEVEL

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
    "h=8,hkv=2,n=130,d=64,block=16x16,pattern=random(0.3,3),lists=kv,tile=16", /* of 4 heads */
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

/* A case in which the unit is not fit for some values between others: those of keys 256 ... 383. */
static const char faint[] = "h=2,n=70,nkv=700,d=64,pattern=dense";

static int faint_make(struct lab_work *work, char why[LAB_WHY]) {
    const tess_tensor *v = &work->s.v.view;
    for (int64_t h = 0; h < v->size[1]; h++)
        for (int64_t i = 256; i < 384; i++)
            for (int64_t d = 0; d < v->size[3]; d++) {
                const int64_t at = lab_row(v, 0, h, i) + d;
                lab_put(v->data, v->type, at, 0x1p-60 * lab_get(v->data, v->type, at));
            }
    if (lab_work_answer(work)) {
        snprintf(why, LAB_WHY, "out of memory for the oracle");
        return -1;
    }
    return 0;
}

/* Whether the case fails, which is then told. */
static int fails(const char *words) {
    struct lab_case c;
    struct lab_work work = {0};
    struct lab_outcome outcome = {.verdict = LAB_FAILED};
    char why[LAB_WHY] = "", text[LAB_CASE_TEXT];
    snprintf(text, sizeof text, "%s,dtype=bf16,backend=cpu,pipeline=fused", words);
    if (lab_case_parse(&c, text, why) || lab_work_make(&work, &c, why) ||
        (words == faint && faint_make(&work, why)))
        snprintf(outcome.message, sizeof outcome.message, "%s", why);
    else
        lab_check(&outcome, &work, TESS_CPU, TESS_FUSED, KERNEL);
    if (outcome.verdict != LAB_PASSED)
        printf("FAILED %s%s: %s\n", text, words == faint ? " (faint)" : "", outcome.message);
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
    int failed = fails(faint);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        failed += fails(cases[i]);
    printf("%s: %d failures\n", KERNEL, failed);
    return failed != 0;
}
