/* Products by cuBLAS. Its types and numbers as NVIDIA documents them, declared here because the
 * library may be absent where this is built. */
#include "baselines/gemm.h"
#include "baselines/library.h"

enum { NO_TRANSPOSE = 0, TRANSPOSE = 1, COMPUTE_F32 = 68, DEFAULT_ALGORITHM = -1 };
static const int data_types[] = {[TESS_F32] = 0, [TESS_F16] = 2, [TESS_BF16] = 14};

typedef struct cublasContext *handle;

static struct {
    int tried;
    const char *why; /* reason why cuBLAS cannot be used */
    char words[BENCH_LIBRARY_WHY];
    handle handle;
    int (*create)(handle *);
    int (*set_stream)(handle, tess_stream);
    int (*gemm)(handle, int, int, int, int, int, const void *, const void *, int, int, long long,
                const void *, int, int, long long, const void *, void *, int, int, long long, int,
                int, int);
} cublas;

static const char *load(void) {
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so", NULL};
    const struct bench_entry entries[] = {
        {"cublasCreate_v2", &cublas.create},
        {"cublasSetStream_v2", &cublas.set_stream},
        {"cublasGemmStridedBatchedEx", &cublas.gemm},
    };
    const char *why =
        bench_library_load(names, entries, sizeof entries / sizeof *entries, cublas.words);
    if (!why && cublas.create(&cublas.handle) != 0)
        why = "cublasCreate failed";
    return why;
}

const char *bench_gemm_cublas(const struct bench_gemm *g, tess_stream stream) {
    const float beta = 0;
    if (!cublas.tried) {
        cublas.tried = 1;
        cublas.why = load();
    }
    if (cublas.why)
        return cublas.why;
    if (cublas.set_stream(cublas.handle, stream) != 0)
        return "cublasSetStream failed";
    /* cuBLAS counts by columns, so it is given the transposed product: C' = B' A'. */
    int failed = cublas.gemm(
        cublas.handle, g->b_transposed ? TRANSPOSE : NO_TRANSPOSE, NO_TRANSPOSE, (int)g->columns,
        (int)g->rows, (int)g->depth, &g->alpha, g->b, data_types[g->type], (int)g->row_b, g->next_b,
        g->a, data_types[g->type], (int)g->row_a, g->next_a, &beta, g->c, data_types[g->type_c],
        (int)g->row_c, g->next_c, (int)g->count, COMPUTE_F32, DEFAULT_ALGORITHM);
    return failed ? "cublasGemmStridedBatchedEx failed" : NULL;
}
