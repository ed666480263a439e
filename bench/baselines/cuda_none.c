/* Builds without CUDA: no kernels. */
#include "baselines/gemm.h"
#include "baselines/read.h"

static const char none[] = "no CUDA in this build";

const char *bench_gemm_tiled(const struct bench_gemm *g, tess_stream stream) {
    (void)g, (void)stream;
    return none;
}

const char *bench_gemm_small_tiles(const struct bench_gemm *g, tess_stream stream) {
    (void)g, (void)stream;
    return none;
}

const char *bench_softmax_device(const struct bench_softmax *s, tess_stream stream) {
    (void)s, (void)stream;
    return none;
}

const char *bench_read_cached(void *zeros, size_t size, int passes, tess_stream stream) {
    (void)zeros, (void)size, (void)passes, (void)stream;
    return none;
}
