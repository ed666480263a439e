/*
 * `tessera bench` with faults planted, a helper of tests/scripts/bench.sh. Linked with --wrap=tess_run,
 * --wrap=tess_spmm and --wrap=bench_softmax_naive:
 *
 *     wrong answers      runs whose d_v is 13; the naive baseline of 13 keys
 *     nothing written    staged runs whose d_v is 15; an SpMM by itself whose d_v is 17
 */
#include "run/bench.h"
#include "baselines/gemm.h"

enum { UNLUCKY = 13, IDLE_RUN = 15, IDLE_SPMM = 17 };

tess_status __real_tess_run(const tess_plan *plan, const tess_arguments *arguments,
                            tess_error *error, tess_stream stream);
tess_status __wrap_tess_run(const tess_plan *plan, const tess_arguments *arguments,
                            tess_error *error, tess_stream stream);
tess_status __real_tess_spmm(const tess_plan *plan, const tess_arguments *arguments,
                             tess_error *error, tess_stream stream);
tess_status __wrap_tess_spmm(const tess_plan *plan, const tess_arguments *arguments,
                             tess_error *error, tess_stream stream);
const char *__real_bench_softmax_naive(const struct bench_softmax *s, tess_stream stream);
const char *__wrap_bench_softmax_naive(const struct bench_softmax *s, tess_stream stream);

tess_status __wrap_tess_run(const tess_plan *plan, const tess_arguments *arguments,
                            tess_error *error, tess_stream stream) {
    if (arguments->o->size[3] == IDLE_RUN && tess_plan_scores_count(plan) > 0)
        return TESS_OK;
    tess_status status = __real_tess_run(plan, arguments, error, stream);
    if (arguments->o->size[3] == UNLUCKY)
        *(float *)arguments->o->data += 1;
    return status;
}

tess_status __wrap_tess_spmm(const tess_plan *plan, const tess_arguments *arguments,
                             tess_error *error, tess_stream stream) {
    return arguments->o->size[3] == IDLE_SPMM ? TESS_OK
                                              : __real_tess_spmm(plan, arguments, error, stream);
}

const char *__wrap_bench_softmax_naive(const struct bench_softmax *s, tess_stream stream) {
    return s->columns == UNLUCKY ? NULL : __real_bench_softmax_naive(s, stream);
}

int main(int argc, char **argv) {
    return bench_main(argc, argv);
}
