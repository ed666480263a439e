/* Contents of a check's tensors. Elements depend on the seed and their index alone. */
#include "lab/fill/fill.h"

#include "lab/fill/half.h"
#include "lab/fill/rng.h"

#include <stdlib.h>

enum { STREAM_Q = 1, STREAM_K, STREAM_V, STREAM_ROWS, STREAM_STREW };
enum { STREAM_D_O = 20, STREAM_D_LSE }; /* past those that STREAM_STREW begins */

static double clamp(double x, double limit) {
    return x > limit ? limit : x < -limit ? -limit : x;
}

/* Half of the elements become subnormal. V's first column stays normal, so that a row's size, to
 * which its error is held, is not itself a subnormal number. */
static double strew(double x, uint64_t seed, uint64_t stream, uint64_t index, int64_t d) {
    int keep = stream == STREAM_V && d == 0;
    if (keep || lab_uniform(seed, STREAM_STREW + stream, index) < 0.5)
        return x;
    return x * 0x1p-130;
}

/* Elements of Q and K: the first half of the dims adds to scores, the second takes it away again. */
static double cancelling(const struct lab_case *c, uint64_t stream, uint64_t index, int64_t d) {
    const int64_t half = c->d / 2;
    if (d >= 2 * half)
        return 0;
    const uint64_t like = d < half ? index : index - (uint64_t)half;
    const double x = 100 * fabs(lab_normal(c->seed, stream, like));
    return stream == STREAM_K && d >= half ? -x : x;
}

/* The dim of Q and K by which all scores are large, and what it holds. */
static int64_t offset_dim(const struct lab_case *c) {
    return lab_below(c->seed, STREAM_ROWS, 0, c->d);
}
static double offset(const struct lab_case *c, uint64_t stream) {
    const double scale = c->scale != 0 ? c->scale : 1 / sqrt((double)c->d);
    const double x = sqrt(50 / fabs(scale));
    return stream == STREAM_K && (c->seed % 2 == 0) == (scale > 0) ? -x : x;
}

/* Element `index` of a tensor, which is the d-th of its row; x is standard normal. */
static double value(const struct lab_case *c, uint64_t stream, uint64_t index, int64_t d,
                    double x) {
    int f16 = c->type == TESS_F16;
    /* Factor that leaves the o that a backward is given finite in f16: weights are at most 1 / (1 -
     * dropout). */
    const double room = lab_case_backward(c) ? 1 - c->dropout : 1;
    switch (c->fill) {
    case LAB_FILL_POSITIVE:
        return stream == STREAM_V ? 1.0606 + 0.01 * (double)d : fabs(x);
    case LAB_FILL_LARGE: /* q k / sqrt(d) has a deviation of 3000 */
        return stream == STREAM_V ? x : 54.77 * x;
    case LAB_FILL_HUGE:
        if (stream != STREAM_V)
            return x;
        return f16 ? clamp(2e4 * x, 6e4 * room) : clamp(3e29 * x, 1e30);
    case LAB_FILL_SUBNORMAL:
        if (!f16)
            return strew(x, c->seed, stream, index, d);
        if (stream == STREAM_K)
            return clamp(x * 0x1p-16, 0x1.ff8p-15);
        return stream == STREAM_Q ? clamp(4096 * x, 6e4) : x;
    case LAB_FILL_EXTREME:
        return stream == STREAM_V ? x : f16 ? clamp(2e4 * x, 6e4) : 1e16 * x;
    case LAB_FILL_SINK:
        if (stream == STREAM_V)
            return copysign(fmin(3e4 + 1e4 * fabs(x), 6e4) * room, x);
        if (d < c->d - 1)
            return stream == STREAM_Q ? 0.25 * x : x;
        return stream == STREAM_Q ? 4 : 0;
    case LAB_FILL_INF:
        return stream == STREAM_Q ? fabs(x) + 0.125 : x;
    case LAB_FILL_TINY:
        if (f16)
            return stream == STREAM_V ? x : x * (stream == STREAM_Q ? 0x1p12 : 0x1p-16);
        return x * (stream == STREAM_Q ? 0x1p118 : 0x1p-118);
    case LAB_FILL_CANCEL:
        return stream == STREAM_V ? x : cancelling(c, stream, index, d);
    case LAB_FILL_OFFSET:
        return stream == STREAM_V ? x : d == offset_dim(c) ? offset(c, stream) : 0.1 * x;
    case LAB_FILL_TOP:
        return stream != STREAM_V ? x : f16 ? 65504 : 1e30;
    case LAB_FILL_NORMAL:
    case LAB_FILL_NANK:
    case LAB_FILL_NANV:
        break;
    }
    return x;
}

static void fill_tensor(const struct lab_case *c, const tess_tensor *t, uint64_t stream) {
    int64_t rows = t->size[0] * t->size[1] * t->size[2];
#pragma omp parallel for schedule(static) if (rows * t->size[3] > 10000)
    for (int64_t r = 0; r < rows; r++) {
        int64_t i = r % t->size[2], h = r / t->size[2] % t->size[1],
                b = r / t->size[2] / t->size[1];
        for (int64_t d = 0; d < t->size[3]; d++) {
            uint64_t index = (uint64_t)(r * t->size[3] + d);
            double x = lab_normal(c->seed, stream, index);
            lab_put(t->data, t->type, lab_row(t, b, h, i) + d, value(c, stream, index, d, x));
        }
    }
}

static void fill_row(const tess_tensor *t, int64_t b, int64_t h, int64_t i, double x) {
    for (int64_t d = 0; d < t->size[3]; d++)
        lab_put(t->data, t->type, lab_row(t, b, h, i) + d, x);
}

/* Makes sinks of some keys, five or fewer: the last dim of a query is 4, that of other K 0. */
static void sink_rows(const struct lab_case *c, const tess_tensor *k, const tess_tensor *v) {
    const double scale = c->scale != 0 ? fabs(c->scale) : 1 / sqrt((double)c->d);
    const int64_t step = k->size[2] / 4 + 2;
    for (int64_t b = 0; b < k->size[0]; b++)
        for (int64_t h = 0; h < k->size[1]; h++) {
            uint64_t head = (uint64_t)(b * k->size[1] + h);
            for (int64_t i = lab_below(c->seed, STREAM_ROWS, head, step); i < k->size[2];
                 i += step) {
                lab_put(k->data, k->type, lab_row(k, b, h, i) + c->d - 1,
                        copysign(18 / (4 * scale), c->scale));
                fill_row(v, b, h, i, 0);
            }
        }
}

/* Poison of the r-th row of K or V, in one of its elements; 0 for nothing. */
static double row_poison(const struct lab_case *c, uint64_t r) {
    double u = lab_uniform(c->seed, STREAM_ROWS, 2 * r);
    if (c->fill == LAB_FILL_INF)
        return u < 0.25 ? -(double)INFINITY : u < 0.265 ? (double)INFINITY : 0;
    if (c->fill == LAB_FILL_NANK || c->fill == LAB_FILL_NANV)
        return u < 0.02   ? (double)NAN
               : u < 0.03 ? -(double)INFINITY
               : u < 0.04 ? (double)INFINITY
                          : 0;
    return 0;
}

void lab_fill(const struct lab_case *c, const tess_tensor *q, const tess_tensor *k,
              const tess_tensor *v) {
    fill_tensor(c, q, STREAM_Q);
    fill_tensor(c, k, STREAM_K);
    fill_tensor(c, v, STREAM_V);
    const tess_tensor *t = c->fill == LAB_FILL_NANV ? v : k;
    uint64_t r = 0;
    if (c->fill == LAB_FILL_SINK)
        sink_rows(c, k, v);
    for (int64_t b = 0; b < t->size[0]; b++)
        for (int64_t h = 0; h < t->size[1]; h++)
            for (int64_t i = 0; i < t->size[2]; i++, r++) {
                double x = row_poison(c, r);
                int64_t d = lab_below(c->seed, STREAM_ROWS, 2 * r + 1, t->size[3]);
                if (isnan(x) || isinf(x))
                    lab_put(t->data, t->type, lab_row(t, b, h, i) + d, x);
            }
}

/* Factor that keeps gradients within f16: V is large in some fills, and Q in others. */
static double gradient_size(const struct lab_case *c) {
    if (c->type != TESS_F16)
        return 1;
    switch (c->fill) {
    case LAB_FILL_HUGE:
    case LAB_FILL_SINK:
    case LAB_FILL_TOP:
        return 0x1p-12;
    case LAB_FILL_SUBNORMAL:
    case LAB_FILL_TINY:
        return 0x1p-4;
    default:
        return 1;
    }
}

static void fill_normal(const struct lab_case *c, const tess_tensor *t, uint64_t stream,
                        double size) {
    const int64_t rows = t->size[0] * t->size[1] * t->size[2];
    for (int64_t r = 0; r < rows; r++) {
        const int64_t i = r % t->size[2], h = r / t->size[2] % t->size[1];
        const int64_t at = lab_row(t, r / t->size[2] / t->size[1], h, i);
        for (int64_t d = 0; d < t->size[3]; d++)
            lab_put(t->data, t->type, at + d,
                    size * lab_normal(c->seed, stream, (uint64_t)(r * t->size[3] + d)));
    }
}

void lab_fill_gradients(const struct lab_case *c, const tess_tensor *d_o,
                        const tess_tensor *d_lse) {
    fill_normal(c, d_o, STREAM_D_O, gradient_size(c));
    if (d_lse)
        fill_normal(c, d_lse, STREAM_D_LSE, gradient_size(c));
}

int lab_fill_poison_queries(const tess_pattern *pattern, const tess_tensor *q) {
    tess_pattern_info info = tess_pattern_info_init();
    if (tess_pattern_describe(pattern, &info, NULL) != TESS_OK)
        return -1;
    for (int64_t b = 0; b < q->size[0]; b++)
        for (int64_t h = 0; h < q->size[1]; h++)
            for (int64_t i = 0; i < q->size[2]; i++) {
                int64_t count = 0;
                tess_pattern_row(pattern, info.batch == 1 ? 0 : b, h / (q->size[1] / info.heads), i,
                                 NULL, 0, &count, NULL);
                if (count == 0)
                    fill_row(q, b, h, i, (double)NAN);
            }
    return 0;
}

/* Marks the keys that any query of a list sees. */
static void mark_list(unsigned char *listed, int64_t *keys, const tess_pattern *pattern,
                      const tess_pattern_info *info, int64_t batch, int64_t head) {
    for (int64_t i = 0; i < info->n_q; i++) {
        int64_t count = 0;
        tess_pattern_row(pattern, batch, head, i, keys, info->n_kv, &count, NULL);
        for (int64_t x = 0; x < count; x++)
            listed[keys[x]] = 1;
    }
}

int lab_fill_poison(const tess_pattern *pattern, int64_t heads_q, const tess_tensor *k,
                    const tess_tensor *v) {
    tess_pattern_info info = tess_pattern_info_init();
    if (tess_pattern_describe(pattern, &info, NULL) != TESS_OK)
        return -1;
    int64_t heads_kv = k->size[1], group = heads_q / heads_kv, per_list = heads_q / info.heads;
    unsigned char *listed = malloc((size_t)info.n_kv);
    int64_t *keys = malloc(sizeof *keys * (size_t)info.n_kv);
    int made = listed && keys;
    for (int64_t b = 0; made && b < k->size[0]; b++)
        for (int64_t hk = 0; hk < heads_kv; hk++) {
            int64_t last = -1;
            memset(listed, 0, (size_t)info.n_kv);
            for (int64_t h = hk * group; h < (hk + 1) * group; h++)
                if (h / per_list != last) {
                    last = h / per_list;
                    mark_list(listed, keys, pattern, &info, info.batch == 1 ? 0 : b, last);
                }
            for (int64_t j = 0; j < info.n_kv; j++)
                if (!listed[j]) {
                    fill_row(k, b, hk, j, (double)NAN);
                    fill_row(v, b, hk, j, (double)NAN);
                }
        }
    free(listed);
    free(keys);
    return made ? 0 : -1;
}
