/*
 * One check: a case run through the public API on one backend, pipeline and kernel, between
 * canaries and into poisoned memory, held against the oracle.
 */
#ifndef LAB_CHECK_H
#define LAB_CHECK_H

#include "lab/check/compare.h"
#include "lab/run/setting.h"

/* A case, with all that its runs share. */
struct lab_work {
    struct lab_setting s;
    tess_pattern *spec; /* the oracle's: rows of s.pattern, made from the case's words */
    struct lab_tensor o2, lse2;
    struct lab_tensor k_clean, v_clean; /* fills nank and nanv: K and V without NaN and Inf */
    struct lab_oracle oracle;
    struct lab_mlp_answer mlp;   /* in the place of the oracle's, of an MLP */
    struct lab_column_sums sums; /* zeros unless the case has them */
    struct lab_wanted wanted2;   /* backward */
    struct lab_gradients gradients;
};

/* Answers 0, or -1 with the reason (a spec that is refused, no memory). lab_work_free releases
 * *work whichever it was. */
int lab_work_make(struct lab_work *work, const struct lab_case *c, char why[LAB_WHY]);
void lab_work_free(struct lab_work *work);

/* The oracle's answer to what q, k, v and the case hold now. 0, or -1: no memory. */
int lab_work_answer(struct lab_work *work);

enum { LAB_STAGES = TESS_STAGE_MLP_DOWN + 1 };

enum lab_verdict { LAB_PASSED, LAB_FAILED, LAB_REFUSED };

struct lab_outcome {
    enum lab_verdict verdict;
    double worst;                    /* largest error / bound */
    const char *kernels[LAB_STAGES]; /* by tess_stage: the kernels that ran, NULL where none */
    char message[LAB_WHY];           /* why it failed or was refused */
};

/*
 * Runs the work and holds the answer. Passed means:
 *
 *   right       within the bounds, also without an lse; no canary touched, no input and no image changed
 *   repeatable  the same bits with another number of threads and, staged, stage by stage; on CUDA, on
 *               another stream and replayed as a graph
 *   local       rows far from any NaN have the same bits as without NaN
 *   summed      column sums, where the case has them, are right and repeatable
 *   filled      a fill's report tells the pairs, faults and overflows that the lists have
 *   mlp         o and the cached activations are right, columns that are not listed stay, and a delta after them
 *               is exactly zero
 *   backward    every gradient that the case wants is right, also one alone (dQ then with the same bits),
 *               and delta where the case gives delta
 *
 * Refused means that the named kernel does not do this problem.
 */
void lab_check(struct lab_outcome *outcome, struct lab_work *work, tess_backend backend,
               tess_pipeline pipeline, const char *kernel);

/* A check of a case whose inputs have memory of one head alone, and strides of 0 for the rest: q, k and
 * v by themselves, then all three. Ends with the first that does not pass. */
void lab_check_shared(struct lab_outcome *outcome, const struct lab_case *c, tess_backend backend,
                      tess_pipeline pipeline);

/* o of an MLP, and the cache that a run left, against the oracle's. */
void lab_compare_mlp(struct lab_report *report, const struct lab_setting *setting,
                     const struct lab_mlp_answer *answer, const tess_tensor *o);

/* Gradients that are held: TESS_GRADIENT_..., and the reaches of query and key tiles
 * (lab_compare). */
struct lab_held {
    int64_t which;
    int64_t query_reach, key_reach;
};

/*
 * Gradients that a run left against the oracle's: those that `which` and the case name. 0, or -1 and the
 * first that is not.
 */
int lab_gradients_accurate(struct lab_report *report, const struct lab_setting *setting,
                           const struct lab_wanted *wanted, const struct lab_gradients *oracle,
                           const struct lab_held *held);

#endif
