/*
 * The helper of tests/scripts/tool.sh.
 *   make_files DIR          writes the files that tool.sh feeds to the tool
 *   make_files A B LIMIT    compares two tensors (FILE or FILE:NAME) of one shape: exit status 0
 * when their types are equal and no elements differ by more than LIMIT
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/fill/half.h"
#include "io/npy.h"
#include "io/safetensors.h"
#include "io/tensor_file.h"

enum { B = 2, H = 4, HKV = 2, N = 50, D = 16, DV = 24, K = 5 };

static const char *folder;

static void stop(const char *what) {
    fprintf(stderr, "make_files: %s\n", what);
    exit(2);
}

static FILE *create(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file)
        stop(path);
    return file;
}

static void finish(FILE *file, bool written) {
    if (fclose(file) != 0 || !written)
        stop("a file cannot be written");
}

static void write_npy(const char *name, struct tensor tensor) {
    FILE *file = create(name);
    finish(file, tensor_measure(&tensor) && npy_write(file, &tensor));
}

/* A .npy file whose header is given word for word. */
static void write_header(const char *name, const char *header, size_t data) {
    FILE *file = create(name);
    size_t length = strlen(header) + 1;
    fwrite("\x93NUMPY\1", 1, 7, file);
    putc(0, file);
    putc((int)(length & 0xff), file);
    putc((int)(length >> 8), file);
    fprintf(file, "%s\n", header);
    while (data-- > 0)
        putc(0, file);
    finish(file, true);
}

/* Values that depend on the place alone, between -2 and 2, exact in all types. */
static double value(int64_t i, int which) {
    uint64_t x = (uint64_t)i * 3 + (uint64_t)which;
    x = (x + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x ^= x >> 29;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    return (double)(int64_t)(x >> 58) / 16.0 - 2.0;
}

static void *make_values(const struct tensor *tensor, int which) {
    int64_t count = (int64_t)(tensor->size / element_size(tensor->type));
    void *data = malloc(tensor->size);
    if (!data)
        stop("out of memory");
    for (int64_t i = 0; i < count; i++)
        if (tensor->type == ELEMENT_F64)
            ((double *)data)[i] = value(i, which);
        else
            lab_put(data,
                    tensor->type == ELEMENT_F32   ? TESS_F32
                    : tensor->type == ELEMENT_F16 ? TESS_F16
                                                  : TESS_BF16,
                    i, value(i, which));
    return data;
}

/* q, k and v of one type and rank: PREFIX-q.npy ... and PREFIX.safetensors. */
static void write_inputs(const char *prefix, enum element_type type, int rank, int64_t heads) {
    static const char *const names[] = {"q", "k", "v"};
    const int64_t shapes[3][4] = {{B, heads, N, D}, {B, HKV, N, D}, {B, HKV, N, DV}};
    struct named_tensor named[3];
    char name[64];
    for (int i = 0; i < 3; i++) {
        named[i] = (struct named_tensor){names[i], {.type = type, .rank = rank}};
        memcpy(named[i].tensor.shape, shapes[i] + 4 - rank, (size_t)rank * sizeof shapes[i][0]);
        tensor_measure(&named[i].tensor);
        named[i].tensor.data = make_values(&named[i].tensor, i);
        snprintf(name, sizeof name, "%s-%s.npy", prefix, names[i]);
        if (type != ELEMENT_BF16)
            write_npy(name, named[i].tensor);
    }
    snprintf(name, sizeof name, "%s.safetensors", prefix);
    FILE *file = create(name);
    finish(file, safetensors_write(file, named, 3, NULL));
    for (int i = 0; i < 3; i++)
        free((void *)(uintptr_t)named[i].tensor.data);
}

static void write_patterns(void) {
    static unsigned char mask[B][H][N][N];
    static int32_t topk[H][N][K];
    for (int h = 0; h < B * H; h++)
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++) /* causal, every head with its own holes */
                mask[h / H][h % H][i][j] = j <= i && (h == 0 || (i * 7 + j * 3) % (h + 2) != 0);
    for (int h = 0; h < H; h++)
        for (int i = 0; i < N; i++)
            for (int t = 0; t < K; t++) /* the last K keys, padded where there are fewer */
                topk[h][i][(t + i) % K] = i >= t ? i - t : -1;
    write_npy("mask2.npy", (struct tensor){ELEMENT_BOOL, 2, {N, N}, 0, mask});
    write_npy("mask3.npy", (struct tensor){ELEMENT_BOOL, 3, {HKV, N, N}, 0, mask});
    write_npy("mask4.npy", (struct tensor){ELEMENT_BOOL, 4, {B, H, N, N}, 0, mask});
    write_npy("mask-u8.npy", (struct tensor){ELEMENT_U8, 2, {N, N}, 0, mask});
    write_npy("mask-short.npy", (struct tensor){ELEMENT_BOOL, 2, {N, N - 1}, 0, mask});
    write_npy("mask-padding.npy", (struct tensor){ELEMENT_BOOL, 4, {B, 1, 1, N}, 0, mask});
    write_npy("mask-heads.npy", (struct tensor){ELEMENT_BOOL, 3, {3, N, N}, 0, mask});
    write_npy("topk2.npy", (struct tensor){ELEMENT_I32, 2, {N, K}, 0, topk});
    write_npy("topk3.npy", (struct tensor){ELEMENT_I32, 3, {H, N, K}, 0, topk});
    static int64_t wide[N][K]; /* topk2 in 64 bits */
    for (int i = 0; i < N; i++)
        for (int t = 0; t < K; t++)
            wide[i][t] = topk[0][i][t];
    write_npy("topk-i64.npy", (struct tensor){ELEMENT_I64, 2, {N, K}, 0, wide});
    wide[7][2] = (INT64_C(1) << 32) + 1; /* 1, were the upper half lost */
    write_npy("topk-i64-past.npy", (struct tensor){ELEMENT_I64, 2, {N, K}, 0, wide});
    write_npy("mask-i8.npy", (struct tensor){ELEMENT_I8, 2, {N, N}, 0, mask});
    write_npy("topk-u8.npy", (struct tensor){ELEMENT_U8, 2, {N, K}, 0, mask});
    static int32_t padded[N][N + K]; /* topk2 with more indices a query than there are keys */
    for (int i = 0; i < N; i++)
        for (int t = 0; t < N + K; t++)
            padded[i][t] = t < N ? -1 : topk[0][i][t - N];
    write_npy("topk-padded.npy", (struct tensor){ELEMENT_I32, 2, {N, N + K}, 0, padded});
    topk[0][7][2] = N;
    write_npy("topk-past.npy", (struct tensor){ELEMENT_I32, 2, {N, K}, 0, topk});
    topk[0][7][2] = -2;
    write_npy("topk-below.npy", (struct tensor){ELEMENT_I32, 2, {N, K}, 0, topk});
}

/* Slopes as the ALiBi paper has them, and sinks; some that are refused. */
static void write_modifiers(void) {
    static const float slopes[] = {0x1p-2f, 0x1p-4f, 0x1p-6f, 0x1p-8f, 0x1p-1f, 0x1p-3f};
    static const double wide[] = {0x1p-2, 0x1p-4, 0x1p-6, 0x1p-8};
    static const uint16_t f16[] = {0x3400, 0x2c00, 0x2400, 0x1c00};  /* wide in f16 */
    static const uint16_t bf16[] = {0x3f80, 0xc000, 0xff80, 0x40a0}; /* 1, -2, -Inf, 5 */
    static const float none[] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    static const float infinite[] = {1, INFINITY, 1, 1}, nan[] = {1, 1, NAN, 1};
    static const int32_t whole[] = {1, 2, 3, 4};
    write_npy("slopes.npy", (struct tensor){ELEMENT_F32, 1, {H}, 0, slopes});
    write_npy("slopes6.npy", (struct tensor){ELEMENT_F32, 1, {6}, 0, slopes});
    write_npy("slopes-f64.npy", (struct tensor){ELEMENT_F64, 1, {H}, 0, wide});
    write_npy("slopes-i32.npy", (struct tensor){ELEMENT_I32, 1, {H}, 0, whole});
    write_npy("slopes-short.npy", (struct tensor){ELEMENT_F32, 1, {H - 1}, 0, slopes});
    write_npy("slopes-rank2.npy", (struct tensor){ELEMENT_F32, 2, {1, H}, 0, slopes});
    write_npy("slopes-infinite.npy", (struct tensor){ELEMENT_F32, 1, {H}, 0, infinite});
    write_npy("slopes-nan.npy", (struct tensor){ELEMENT_F32, 1, {H}, 0, nan});
    write_npy("sinks-none.npy", (struct tensor){ELEMENT_F32, 1, {H}, 0, none});
    struct named_tensor both[] = {
        {"slopes", {.type = ELEMENT_F16, .rank = 1, .shape = {H}, .data = f16}},
        {"sinks", {.type = ELEMENT_BF16, .rank = 1, .shape = {H}, .data = bf16}}};
    tensor_measure(&both[0].tensor);
    tensor_measure(&both[1].tensor);
    FILE *file = create("modifiers.safetensors");
    finish(file, safetensors_write(file, both, 2, NULL));
}

static void write_bad(void) {
    static const int64_t row_ptr[] = {0, 2, 1, 2, 2, 2};
    static const int32_t col_idx[] = {0, 1};
    struct named_tensor lists[] = {
        {"row_ptr", {.type = ELEMENT_I64, .rank = 2, .shape = {1, 6}, .data = row_ptr}},
        {"col_idx", {.type = ELEMENT_I32, .rank = 1, .shape = {2}, .data = col_idx}}};
    tensor_measure(&lists[0].tensor);
    tensor_measure(&lists[1].tensor);
    FILE *file = create("lists-falling.safetensors");
    finish(file, safetensors_write(file, lists, 2, NULL));
    write_header("overflow.npy",
                 "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", 16);
    write_header("huge.npy",
                 "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000)}", 16);
    write_header("big-endian.npy", "{'descr': '>f4', 'fortran_order': False, 'shape': (2, 2)}", 16);
    write_header("fortran.npy", "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2)}", 16);
    write_header("negative.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 2)}", 16);
    write_header("oversized.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2)}", 17);
    write_header("one-axis.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (4,)}", 16);
    write_header("integers.npy", "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 2)}", 16);
    write_header("nothing.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4)}", 0);
}

static double element(const struct tensor *tensor, int64_t i) {
    switch (tensor->type) {
    case ELEMENT_F32:
        return lab_get(tensor->data, TESS_F32, i);
    case ELEMENT_F16:
        return lab_get(tensor->data, TESS_F16, i);
    case ELEMENT_BF16:
        return lab_get(tensor->data, TESS_BF16, i);
    default:
        return NAN;
    }
}

static int compare(const char *a, const char *b, double limit) {
    struct tensor_file x, y;
    struct reason reason;
    if (!tensor_file_open(&x, a, &reason) || !tensor_file_open(&y, b, &reason))
        stop(reason.text);
    bool same = x.tensor.type == y.tensor.type && x.tensor.rank == y.tensor.rank &&
                x.tensor.size > 0 && x.tensor.size == y.tensor.size;
    for (int i = 0; same && i < x.tensor.rank; i++)
        same = x.tensor.shape[i] == y.tensor.shape[i];
    double worst = 0;
    int64_t count = same ? (int64_t)(x.tensor.size / element_size(x.tensor.type)) : 0;
    for (int64_t i = 0; i < count; i++) {
        double p = element(&x.tensor, i), q = element(&y.tensor, i);
        double apart = isinf(p) && p == q ? 0 : fabs(p - q);
        worst = apart <= worst ? worst : isnan(apart) ? INFINITY : apart;
    }
    if (!same || worst > limit)
        fprintf(stderr, "%s and %s differ: %s, by %g, allowed %g\n", a, b,
                same ? "values" : "type or shape", worst, limit);
    tensor_file_close(&x);
    tensor_file_close(&y);
    return !same || worst > limit;
}

int main(int argc, char **argv) {
    if (argc == 4)
        return compare(argv[1], argv[2], strtod(argv[3], NULL));
    if (argc != 2)
        stop("usage: make_files DIR | make_files A B LIMIT");
    folder = argv[1];
    write_inputs("f32", ELEMENT_F32, 4, H);
    write_inputs("f16", ELEMENT_F16, 4, H);
    write_inputs("bf16", ELEMENT_BF16, 4, H);
    write_inputs("f64", ELEMENT_F64, 4, H);
    write_inputs("rank3", ELEMENT_F32, 3, H);
    write_inputs("rank2", ELEMENT_F16, 2, H);
    write_inputs("heads6", ELEMENT_F32, 3, 6);
    write_patterns();
    write_modifiers();
    write_bad();
    return 0;
}
