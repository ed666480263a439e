/* SDDMM and SpMM by cuSPARSE's generic interface. Its types and numbers as NVIDIA documents them,
 * declared here because the library may be absent where this is built. */
#include <math.h>
#include <stdlib.h>

#include "baselines/library.h"
#include "baselines/peer.h"
#include "lab/device/device.h"

enum { INDEX_32 = 2, BASE_ZERO = 0, ORDER_COLUMNS = 1, ORDER_ROWS = 2, AS_IT_IS = 0 };
enum { DATA_F32 = 0, DEFAULT_ALGORITHM = 0 };
enum { CSR_ALGORITHM_2 = 6, ELL_ALGORITHM = 13, BSR_ALGORITHM = 14 };
static const int data_types[] = {[TESS_F32] = 0, [TESS_F16] = 2, [TESS_BF16] = 14};

typedef struct cusparseContext *handle;
typedef void *matrix; /* a descriptor */

/* The three functions of an operation have the same arguments but for the last. */
typedef int size_function(handle, int, int, const void *, matrix, matrix, const void *, matrix, int,
                          int, size_t *);
typedef int run_function(handle, int, int, const void *, matrix, matrix, const void *, matrix, int,
                         int, void *);

struct operation {
    size_function *size;
    run_function *prepare, *run;
};

static struct {
    int tried;
    const char *why; /* reason why cuSPARSE cannot be used */
    char words[BENCH_LIBRARY_WHY];
    handle handle;
    int (*create)(handle *);
    int (*set_stream)(handle, tess_stream);
    const char *(*error_text)(int);
    int (*create_csr)(matrix *, int64_t, int64_t, int64_t, void *, void *, void *, int, int, int,
                      int);
    int (*create_bsr)(matrix *, int64_t, int64_t, int64_t, int64_t, int64_t, void *, void *, void *,
                      int, int, int, int, int);
    int (*create_ell)(matrix *, int64_t, int64_t, int64_t, int64_t, void *, void *, int, int, int);
    int (*create_dense)(matrix *, int64_t, int64_t, int64_t, void *, int, int);
    int (*destroy_sparse)(matrix);
    int (*destroy_dense)(matrix);
    struct operation sddmm, spmm;
} cusparse;

/* The second of CSR's algorithms is the one that NVIDIA's manual recommends for row-major matrices,
 * as these are; the default need not be it. */
static const struct bench_peer_kind kinds[] = {
    {"cusparse_sddmm_csr", TESS_STAGE_SDDMM, BENCH_CSR, DEFAULT_ALGORITHM},
    {"cusparse_sddmm_bsr", TESS_STAGE_SDDMM, BENCH_BSR, DEFAULT_ALGORITHM},
    {"cusparse_spmm_csr", TESS_STAGE_SPMM, BENCH_CSR, DEFAULT_ALGORITHM},
    {"cusparse_spmm_csr_2", TESS_STAGE_SPMM, BENCH_CSR, CSR_ALGORITHM_2},
    {"cusparse_spmm_bsr", TESS_STAGE_SPMM, BENCH_BSR, BSR_ALGORITHM},
    {"cusparse_spmm_ell", TESS_STAGE_SPMM, BENCH_ELL, ELL_ALGORITHM},
};

const struct bench_peer_kind *bench_peer_kind(int number) {
    return number < (int)(sizeof kinds / sizeof *kinds) ? &kinds[number] : NULL;
}

static const char *load(void) {
    static const char *const names[] = {"libcusparse.so.12", "libcusparse.so", NULL};
    const struct bench_entry entries[] = {
        {"cusparseCreate", &cusparse.create},
        {"cusparseSetStream", &cusparse.set_stream},
        {"cusparseGetErrorString", &cusparse.error_text},
        {"cusparseCreateCsr", &cusparse.create_csr},
        {"cusparseCreateBsr", &cusparse.create_bsr},
        {"cusparseCreateBlockedEll", &cusparse.create_ell},
        {"cusparseCreateDnMat", &cusparse.create_dense},
        {"cusparseDestroySpMat", &cusparse.destroy_sparse},
        {"cusparseDestroyDnMat", &cusparse.destroy_dense},
        {"cusparseSDDMM_bufferSize", &cusparse.sddmm.size},
        {"cusparseSDDMM_preprocess", &cusparse.sddmm.prepare},
        {"cusparseSDDMM", &cusparse.sddmm.run},
        {"cusparseSpMM_bufferSize", &cusparse.spmm.size},
        {"cusparseSpMM_preprocess", &cusparse.spmm.prepare},
        {"cusparseSpMM", &cusparse.spmm.run},
    };
    const char *why =
        bench_library_load(names, entries, sizeof entries / sizeof *entries, cusparse.words);
    if (!why && cusparse.create(&cusparse.handle) != 0)
        why = "cusparseCreate failed";
    return why;
}

struct bench_peer {
    const struct operation *operation;
    int algorithm;
    float alpha, beta;
    matrix a, b, c;
    matrix sparse, dense[2]; /* descriptors among a, b, c, to be destroyed */
    void *offsets, *columns, *buffer;
};

static const char *worded(int status) {
    return status ? cusparse.error_text(status) : NULL;
}

static const char *place_lists(struct bench_peer *p, const struct bench_sparse *m) {
    const size_t offsets = (size_t)m->n_offsets * sizeof *m->offsets;
    const size_t columns = (size_t)m->n_columns * sizeof *m->columns;
    p->offsets = lab_device_alloc(TESS_CUDA, offsets);
    p->columns = lab_device_alloc(TESS_CUDA, columns);
    if (!p->offsets || !p->columns)
        return "out of memory for the matrix";
    const char *why = lab_device_to_device(TESS_CUDA, p->offsets, m->offsets, offsets);
    return why ? why : lab_device_to_device(TESS_CUDA, p->columns, m->columns, columns);
}

static int describe_sparse(struct bench_peer *p, const struct bench_sparse *m, void *values,
                           tess_type type) {
    const int64_t n = m->lists.n_q, nkv = m->lists.n_kv, block = m->lists.block_q;
    switch (m->format) {
    case BENCH_CSR:
        return cusparse.create_csr(&p->sparse, n, nkv, m->n_values, p->offsets, p->columns, values,
                                   INDEX_32, INDEX_32, BASE_ZERO, data_types[type]);
    case BENCH_BSR:
        return cusparse.create_bsr(&p->sparse, m->rows, nkv / block, m->n_columns, block, block,
                                   p->offsets, p->columns, values, INDEX_32, INDEX_32, BASE_ZERO,
                                   data_types[type], ORDER_ROWS);
    case BENCH_ELL:
        break;
    }
    return cusparse.create_ell(&p->sparse, n, nkv, block, m->width * block, p->columns, values,
                               INDEX_32, BASE_ZERO, data_types[type]);
}

/* SDDMM: values = alpha Q K' where the matrix has them. K' is K read by columns. */
static int describe_sddmm(struct bench_peer *p, const struct lab_case *c,
                          const tess_arguments *at) {
    const int type = data_types[c->type];
    int status =
        cusparse.create_dense(&p->dense[0], c->n, c->d, c->d, at->q->data, type, ORDER_ROWS);
    if (!status)
        status = cusparse.create_dense(&p->dense[1], c->d, c->nkv, c->d, at->k->data, type,
                                       ORDER_COLUMNS);
    p->alpha = (float)(c->scale < 0 || c->scale > 0 ? c->scale : 1 / sqrt((double)c->d));
    p->a = p->dense[0], p->b = p->dense[1], p->c = p->sparse;
    p->operation = &cusparse.sddmm;
    return status;
}

/* SpMM: O = values V. */
static int describe_spmm(struct bench_peer *p, const struct lab_case *c, const tess_arguments *at,
                         tess_type type_c) {
    int status = cusparse.create_dense(&p->dense[0], c->nkv, c->dv, c->dv, at->v->data,
                                       data_types[c->type], ORDER_ROWS);
    if (!status)
        status = cusparse.create_dense(&p->dense[1], c->n, c->dv, c->dv, at->o->data,
                                       data_types[type_c], ORDER_ROWS);
    p->alpha = 1;
    p->a = p->sparse, p->b = p->dense[0], p->c = p->dense[1];
    p->operation = &cusparse.spmm;
    return status;
}

/* On the default stream: the one of an earlier run may be gone. */
static const char *prepare(struct bench_peer *p) {
    size_t size = 0;
    int status = cusparse.set_stream(cusparse.handle, NULL);
    if (!status)
        status = p->operation->size(cusparse.handle, AS_IT_IS, AS_IT_IS, &p->alpha, p->a, p->b,
                                    &p->beta, p->c, DATA_F32, p->algorithm, &size);
    if (status)
        return worded(status);
    p->buffer = lab_device_alloc(TESS_CUDA, size);
    if (!p->buffer)
        return "out of memory for its buffer";
    status = p->operation->prepare(cusparse.handle, AS_IT_IS, AS_IT_IS, &p->alpha, p->a, p->b,
                                   &p->beta, p->c, DATA_F32, p->algorithm, p->buffer);
    return status ? worded(status) : lab_device_synchronize(TESS_CUDA);
}

const char *bench_peer_make(struct bench_peer **peer, const struct bench_peer_kind *kind,
                            const struct bench_sparse *m, const struct lab_case *c,
                            const tess_arguments *at, void *values, tess_type type_c) {
    struct bench_peer *p = *peer = calloc(1, sizeof *p);
    if (!p)
        return "out of memory";
    if (!cusparse.tried) {
        cusparse.tried = 1;
        cusparse.why = load();
    }
    const char *why = cusparse.why;
    if (!why)
        why = place_lists(p, m);
    if (why)
        return why;
    const int sddmm = kind->stage == TESS_STAGE_SDDMM;
    p->algorithm = kind->algorithm;
    int status = describe_sparse(p, m, values, sddmm ? type_c : c->type);
    if (!status)
        status = sddmm ? describe_sddmm(p, c, at) : describe_spmm(p, c, at, type_c);
    return status ? worded(status) : prepare(p);
}

void bench_peer_free(struct bench_peer *p) {
    if (!p)
        return;
    if (p->sparse)
        cusparse.destroy_sparse(p->sparse);
    for (int i = 0; i < 2; i++)
        if (p->dense[i])
            cusparse.destroy_dense(p->dense[i]);
    lab_device_free(TESS_CUDA, p->offsets);
    lab_device_free(TESS_CUDA, p->columns);
    lab_device_free(TESS_CUDA, p->buffer);
    free(p);
}

const char *bench_peer_run(void *peer, tess_stream stream) {
    struct bench_peer *p = peer;
    int status = cusparse.set_stream(cusparse.handle, stream);
    if (!status)
        status = p->operation->run(cusparse.handle, AS_IT_IS, AS_IT_IS, &p->alpha, p->a, p->b,
                                   &p->beta, p->c, DATA_F32, p->algorithm, p->buffer);
    return worded(status);
}
