/*
 * `tessera bench` with faults planted, a helper of tests/bench.sh: linked with --wrap=tess_run and
 * --wrap=bench_softmax_naive, so that answers are wrong of runs whose d_v is 13, and of the naive
 * baseline where there are 13 keys.
 */
#include "bench.h"
#include "gemm.h"

enum { UNLUCKY = 13 };

tess_status __real_tess_run(const tess_plan *plan, const tess_arguments *arguments,
                            tess_error *error, tess_stream stream);
tess_status __wrap_tess_run(const tess_plan *plan, const tess_arguments *arguments,
                            tess_error *error, tess_stream stream);
const char *__real_bench_softmax_naive(const struct bench_softmax *s, tess_stream stream);
const char *__wrap_bench_softmax_naive(const struct bench_softmax *s, tess_stream stream);

tess_status __wrap_tess_run(const tess_plan *plan, const tess_arguments *arguments,
                            tess_error *error, tess_stream stream) {
    tess_status status = __real_tess_run(plan, arguments, error, stream);
    if (arguments->o->size[3] == UNLUCKY)
        *(float *)arguments->o->data += 1;
    return status;
}

const char *__wrap_bench_softmax_naive(const struct bench_softmax *s, tess_stream stream) {
    return s->columns == UNLUCKY ? NULL : __real_bench_softmax_naive(s, stream);
}

int main(int argc, char **argv) {
    return bench_main(argc, argv);
}
