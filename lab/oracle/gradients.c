/* The oracle's gradients. */
#include "lab/oracle/gradients.h"

#include "lab/fill/half.h"

#include <stdlib.h>

/* Scratch of one thread: of a row's keys, and rows of tensors. */
struct gradients_scratch {
    int64_t *keys;       /* [n_kv] */
    double *plain;       /* [n_kv] scaled scores */
    double *weights;     /* [n_kv] scores as modified, then P */
    double *size;        /* [n_kv] what a score's rounding grows with */
    double *walk;        /* [n_kv] lab_score_walk */
    double *k, *v;       /* [n_kv][d_qk], [n_kv][d_v]: the head's */
    double *k_norm;      /* [n_kv] squared; NaN where K or V of the key is not finite */
    double *q, *d_o, *o; /* [d_qk], [d_v], [d_v] */
    double *d_q, *mean;  /* [d_qk]; sum of P k */
};

struct work {
    const struct lab_gradients_of *in;
    struct lab_gradients *out;
    struct lab_scoring scoring;
    struct lab_sizes sizes;
    tess_pattern_info info;
    int64_t heads_kv, d_qk, d_v;
};

static int scratch_make(struct gradients_scratch *s, const struct work *w) {
    const size_t n = (size_t)w->sizes.n_kv, d = (size_t)w->d_qk, dv = (size_t)w->d_v;
    double **const arrays[] = {&s->plain, &s->weights, &s->size, &s->walk, &s->k_norm, &s->k,
                               &s->v,     &s->q,       &s->d_q,  &s->mean, &s->d_o,    &s->o};
    const size_t counts[] = {n, n, n, n, n, n * d, n * dv, d, d, d, dv, dv};
    int made = 1;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        made &= (*arrays[i] = malloc(counts[i] * sizeof(double))) != NULL;
    s->keys = malloc(n * sizeof *s->keys);
    return made && s->keys ? 0 : -1;
}

static void scratch_free(struct gradients_scratch *s) {
    void *const all[] = {s->keys, s->plain, s->weights, s->size, s->walk, s->k_norm, s->k,
                         s->v,    s->q,     s->d_q,     s->mean, s->d_o,  s->o};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static double dot(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t d = 0; d < n; d++)
        sum += x[d] * y[d];
    return sum;
}

/* sum x_d^2 y_d^2. */
static double dot_squares(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t d = 0; d < n; d++)
        sum += x[d] * x[d] * y[d] * y[d];
    return sum;
}

/* A row's scores in sum. */
struct softmax {
    int64_t n;          /* listed keys */
    int empty;          /* lists none, or all scores are -Inf */
    double left, taken; /* shares that the sink leaves and takes */
    double m;           /* M of the row */
};

/* The size of key e's score: what M is the largest of. */
static double score_size(const struct work *w, const struct gradients_scratch *s, int64_t e,
                         double q_norm, double score) {
    const double norms = 0.5 * fabs(w->scoring.scale) * q_norm * sqrt(s->k_norm[s->keys[e]]);
    double size = isfinite(norms) ? norms : 0;
    if (isfinite(s->plain[e]))
        size = fmax(size, fabs(s->plain[e]));
    return isfinite(score) ? fmax(size, fabs(score)) : size;
}

/* P of a row's keys, without its sink. */
static struct softmax weigh(const struct work *w, const struct gradients_scratch *s,
                            const struct lab_place *at, int64_t n) {
    struct softmax row = {.n = n, .left = 1};
    const double q_norm = sqrt(dot(s->q, s->q, w->d_qk));
    double top = -(double)INFINITY, sum = 0;
    for (int64_t e = 0; e < n; e++) {
        double walk;
        s->plain[e] = w->scoring.scale * lab_dot(s->q, s->k + s->keys[e] * w->d_qk, w->d_qk, &walk);
        s->walk[e] = lab_score_walk(&w->scoring, s->plain[e], walk);
        s->weights[e] = lab_score(&w->scoring, &w->sizes, at, s->keys[e], s->plain[e]);
        s->size[e] = score_size(w, s, e, q_norm, s->weights[e]);
        top = s->weights[e] > top || isnan(s->weights[e]) ? s->weights[e] : top;
    }
    if (top == -(double)INFINITY) {
        row.empty = 1;
        return row;
    }
    for (int64_t e = 0; e < n; e++)
        sum += s->weights[e] = exp(s->weights[e] - top);
    for (int64_t e = 0; e < n; e++) {
        s->weights[e] /= sum;
        if (s->size[e] > row.m && (!w->scoring.alibi || s->weights[e] >= exp(-32)))
            row.m = s->size[e];
    }
    if (w->scoring.sink) {
        const double sink = exp((double)w->scoring.sink[at->h] - top);
        row.left = isinf(sink) ? 0 : sum / (sum + sink);
        row.taken = isinf(sink) ? 1 : sink / (sum + sink);
    }
    return row;
}

/* Adds squares and counts of one pair to the sizes of a row. error: of its weight, beside M. */
static void size_add(struct lab_gradient_size *s, double a, double b, double w, double error,
                     double least, double of_o, double m) {
    s->a += a * a;
    s->b += b * b;
    s->w += w * w;
    s->x += error * error * a * a;
    s->least += least;
    s->of_o += of_o;
    s->m = m > s->m ? m : s->m;
    s->terms++;
}

/* The size of weights that f32 cannot hold, and of the sums' smallest products. */
#define LEAST_WEIGHT 0x1p-126
#define LEAST_NUMBER 0x1p-149
/* Loss of dS, whatever its size, when it becomes an operand of a product: bf16, or TF32. The staged
 * pipeline multiplies it by the scale before, the fused one after. */
static const double least_operand[] = {
    [TESS_F32] = 0x1p-137, [TESS_F16] = 0x1p-137, [TESS_BF16] = 0x1p-134};

/* Gradients of a head, to which each row adds. */
struct sums {
    double *d_k, *d_v, *d_slope, *d_sink; /* [n_kv][d_qk], [n_kv][d_v], one, one */
    struct lab_gradient_size *of_q, *of_k, *of_v, *of_slope, *of_sink;
};

/* Sizes of row i that all its pairs share. */
struct rounding {
    double t;               /* t_i: of what rounding o does to dO . o */
    double q_norm, do_norm; /* norms of the row */
    double do_sum;          /* sum of |dO_d| */
    double distance;        /* sum of P (j - p_i) */
};

/* One pair: listed key e of the row, whose dP is d_p and whose weight is multiplied by z. */
static void pair(const struct work *w, const struct gradients_scratch *s,
                 const struct lab_place *at, const struct softmax *row, const struct sums *to,
                 struct rounding *r, int64_t e, double d_lse, double delta) {
    const int64_t j = s->keys[e];
    const double *k = s->k + j * w->d_qk, *v = s->v + j * w->d_v;
    const double z = lab_drops(&w->scoring, &w->sizes, at, j) ? 0 : lab_kept(&w->scoring);
    const double p = s->weights[e], left = row->left, d_p = z * dot(s->d_o, v, w->d_v);
    const double bracket = left * (d_p - delta) + d_lse, of_biased = p * bracket;
    /* 1 / cosh^2 is 1 - tanh^2 with all its digits */
    const double grown = w->scoring.softcap > 0 ? cosh(s->plain[e] / w->scoring.softcap) : 1;
    const double factor = w->scoring.scale / (grown * grown), d_s = factor * of_biased;
    const double cancels = left * z * sqrt(dot_squares(s->d_o, v, w->d_v));
    const double k_norm = sqrt(s->k_norm[j]),
                 distance = lab_distance(&w->scoring, &w->sizes, at, j);
    const double least = LEAST_WEIGHT * (fabs(bracket) + cancels) + LEAST_NUMBER;
    const double scale = fabs(w->scoring.scale), m = fmax(row->m, s->size[e]);
    const double of_query = lab_score_error(s->walk[e], row->m),
                 of_key = lab_score_error(s->walk[e], m);
    const double least_score = scale * least + fmax(scale, 1) * least_operand[w->in->q->type];
    /* Effect of an error of 1 in o's elements on dS, before the factor and after. */
    const double of_o = p * left * r->do_sum, of_score = fabs(factor) * of_o;
    for (int64_t d = 0; d < w->d_qk; d++) {
        s->d_q[d] += d_s * k[d];
        s->mean[d] += factor * p * k[d];
        to->d_k[j * w->d_qk + d] += d_s * s->q[d];
    }
    for (int64_t d = 0; d < w->d_v; d++)
        to->d_v[j * w->d_v + d] += left * p * z * s->d_o[d];
    size_add(to->of_q, d_s * k_norm, 0, factor * p * cancels * k_norm, of_query,
             least_score * k_norm, of_score * k_norm, row->m);
    size_add(&to->of_k[j], d_s * r->q_norm, factor * p * left * r->t * r->q_norm,
             factor * p * cancels * r->q_norm, of_key, least_score * r->q_norm,
             of_score * r->q_norm, m);
    size_add(&to->of_v[j], left * p * z * r->do_norm, 0, 0, of_key, LEAST_WEIGHT * z * r->do_norm,
             0, m);
    if (!w->scoring.alibi)
        return;
    *to->d_slope += of_biased * distance;
    r->distance += p * distance;
    size_add(to->of_slope, of_biased * distance, 0, p * cancels * distance, of_key,
             least * fabs(distance), of_o * fabs(distance), m);
}

/* o_i, without what the sink takes. */
static void output(const struct work *w, const struct gradients_scratch *s,
                   const struct lab_place *at, int64_t n) {
    for (int64_t d = 0; d < w->d_v; d++)
        s->o[d] = 0;
    for (int64_t e = 0; e < n; e++)
        if (!lab_drops(&w->scoring, &w->sizes, at, s->keys[e]))
            for (int64_t d = 0; d < w->d_v; d++)
                s->o[d] += s->weights[e] * lab_kept(&w->scoring) * s->v[s->keys[e] * w->d_v + d];
}

/* NaN or Inf among x. */
static int not_finite(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t d = 0; d < n; d++)
        sum += x[d] * 0;
    return isnan(sum);
}

/* Marks the row and the keys that it lists, where it or one of them holds NaN or Inf. */
static void mark(const struct gradients_scratch *s, const struct sums *to, int64_t n, int bad) {
    for (int64_t e = 0; e < n && !bad; e++)
        bad = isnan(s->k_norm[s->keys[e]]);
    to->of_q->bad = bad ? LAB_MAY_BE_NAN : 0;
    for (int64_t e = 0; e < n && bad; e++)
        to->of_k[s->keys[e]].bad = to->of_v[s->keys[e]].bad = LAB_MAY_BE_NAN;
    if (bad)
        to->of_slope->bad = to->of_sink->bad = LAB_MAY_BE_NAN;
}

/* Whether the o that runs are given, which has what the sink left, is past its type. */
static int o_overflows(const struct work *w, const struct gradients_scratch *s, double left) {
    float x;
    for (int64_t d = 0; d < w->d_v; d++) {
        lab_put(&x, w->in->o_type, 0, left * s->o[d]);
        if (isinf(lab_get(&x, w->in->o_type, 0)) && isfinite(s->o[d]))
            return 1;
    }
    return 0;
}

/* One query: its dQ, and what it adds to dK, dV, slopes and sinks of its head. */
static void row(const struct work *w, const struct gradients_scratch *s, const struct lab_place *at,
                const struct sums *to) {
    const struct lab_gradients_of *in = w->in;
    const int64_t x = (at->b * w->sizes.heads_q + at->h) * w->sizes.n_q + at->i;
    int64_t n;
    double d_lse = 0;
    tess_pattern_row(in->pattern, w->info.batch == 1 ? 0 : at->b,
                     at->h / (w->sizes.heads_q / w->info.heads), at->i, s->keys, w->sizes.n_kv, &n,
                     NULL);
    lab_load_row(s->q, in->q, at->b, at->h, at->i);
    lab_load_row(s->d_o, in->d_o, at->b, at->h, at->i);
    if (in->d_lse)
        lab_load_row(&d_lse, in->d_lse, at->b, at->h, at->i);
    const struct softmax softmax = weigh(w, s, at, n);
    if (!softmax.empty)
        output(w, s, at, n);
    const int bad = not_finite(s->q, w->d_qk) || not_finite(s->d_o, w->d_v) || isnan(d_lse * 0) ||
                    (!softmax.empty && o_overflows(w, s, softmax.left));
    if (n > 0)
        mark(s, to, n, bad);
    if (softmax.empty) {
        to->of_q->empty = 1;
        return;
    }
    for (int64_t d = 0; d < w->d_qk; d++)
        s->d_q[d] = s->mean[d] = 0;
    const double delta = softmax.left * dot(s->d_o, s->o, w->d_v);
    struct rounding r = {.t = softmax.left * sqrt(dot_squares(s->d_o, s->o, w->d_v)),
                         .q_norm = sqrt(dot(s->q, s->q, w->d_qk)),
                         .do_norm = sqrt(dot(s->d_o, s->d_o, w->d_v))};
    for (int64_t d = 0; d < w->d_v; d++)
        r.do_sum += fabs(s->d_o[d]);
    for (int64_t e = 0; e < n; e++)
        pair(w, s, at, &softmax, to, &r, e, d_lse, delta);
    if (isnan(s->weights[0]))
        to->of_q->bad = LAB_IS_NAN;
    memcpy(w->out->q.value + x * w->d_qk, s->d_q, (size_t)w->d_qk * sizeof *s->d_q);
    const double t = softmax.left * r.t;
    to->of_q->b = t * t * dot(s->mean, s->mean, w->d_qk);
    to->of_slope->b += t * t * r.distance * r.distance;
    if (w->scoring.sink) {
        *to->d_sink -= softmax.taken * delta;
        size_add(to->of_sink, softmax.taken * delta, softmax.taken * r.t, softmax.taken * d_lse, 0,
                 LEAST_NUMBER, softmax.taken * r.do_sum, softmax.m);
    }
}

/* All queries that read one key/value head. slopes and sinks: of the batch's heads. */
static void head(const struct work *w, const struct gradients_scratch *s, int64_t b, int64_t hk) {
    const int64_t n = w->sizes.n_kv, group = w->sizes.heads_q / w->heads_kv;
    const int64_t key = (b * w->heads_kv + hk) * n;
    struct lab_gradients *out = w->out;
    for (int64_t j = 0; j < n; j++) {
        double *k = s->k + j * w->d_qk, *v = s->v + j * w->d_v;
        lab_load_row(k, w->in->k, b, hk, j);
        lab_load_row(v, w->in->v, b, hk, j);
        s->k_norm[j] =
            not_finite(k, w->d_qk) || not_finite(v, w->d_v) ? (double)NAN : dot(k, k, w->d_qk);
    }
    for (int64_t h = hk * group; h < (hk + 1) * group; h++) {
        const int64_t x = b * w->sizes.heads_q + h;
        struct sums to = {.d_k = out->k.value + key * w->d_qk,
                          .d_v = out->v.value + key * w->d_v,
                          .d_slope = &out->alibi.value[x],
                          .d_sink = &out->sink.value[x],
                          .of_k = out->k.size + key,
                          .of_v = out->v.size + key,
                          .of_slope = &out->alibi.size[x],
                          .of_sink = &out->sink.size[x]};
        for (int64_t i = 0; i < w->sizes.n_q; i++) {
            to.of_q = out->q.size + x * w->sizes.n_q + i;
            row(w, s, &(struct lab_place){b, h, i}, &to);
        }
    }
}

/* ---- the whole ---- */

static int gradient_make(struct lab_gradient *g, int64_t rows, int64_t dim) {
    g->rows = rows, g->dim = dim;
    g->value = calloc((size_t)rows * (size_t)dim, sizeof *g->value);
    g->size = calloc((size_t)rows, sizeof *g->size);
    return g->value && g->size ? 0 : -1;
}

static int make(struct lab_gradients *out, const struct work *w) {
    const int64_t b = w->in->q->size[0], h = b * w->sizes.heads_q;
    const int64_t queries = h * w->sizes.n_q, keys = b * w->heads_kv * w->sizes.n_kv;
    memset(out, 0, sizeof *out);
    const int lacking = gradient_make(&out->q, queries, w->d_qk) |
                        gradient_make(&out->k, keys, w->d_qk) |
                        gradient_make(&out->v, keys, w->d_v) |
                        gradient_make(&out->alibi, h, 1) | /* each batch's, then all batches' */
                        gradient_make(&out->sink, h, 1);
    return lacking ? -1 : 0;
}

/* Adds up what the batches have for each head. */
static void fold(struct lab_gradient *g, int64_t heads) {
    for (int64_t x = heads; x < g->rows; x++) {
        struct lab_gradient_size *to = &g->size[x % heads];
        const struct lab_gradient_size *from = &g->size[x];
        g->value[x % heads] += g->value[x];
        to->a += from->a, to->b += from->b, to->w += from->w, to->x += from->x;
        to->least += from->least, to->of_o += from->of_o;
        to->m = fmax(to->m, from->m), to->terms += from->terms, to->bad = to->bad || from->bad;
    }
    g->rows = heads;
}

/* Sums of squares become norms. */
static void roots(struct lab_gradient *g) {
    for (int64_t x = 0; x < g->rows; x++) {
        struct lab_gradient_size *s = &g->size[x];
        s->a = sqrt(s->a), s->b = sqrt(s->b), s->w = sqrt(s->w), s->x = sqrt(s->x);
    }
}

int lab_gradients_run(struct lab_gradients *out, const struct lab_gradients_of *in) {
    struct work w = {.in = in,
                     .out = out,
                     .scoring = in->scoring ? *in->scoring : (struct lab_scoring){0},
                     .sizes = {in->q->size[1], in->q->size[2], in->k->size[2]},
                     .info = tess_pattern_info_init(),
                     .heads_kv = in->k->size[1],
                     .d_qk = in->q->size[3],
                     .d_v = in->v->size[3]};
    const int64_t batch = in->q->size[0];
    int failed = make(out, &w) || tess_pattern_describe(in->pattern, &w.info, NULL) != TESS_OK;
    if (!(w.scoring.scale < 0 || w.scoring.scale > 0))
        w.scoring.scale = 1 / sqrt((double)w.d_qk);
    if (failed)
        return -1;
#pragma omp parallel if (batch * w.heads_kv > 1)
    {
        struct gradients_scratch s;
        const int lacking = scratch_make(&s, &w);
        if (lacking)
#pragma omp atomic write
            failed = 1;
#pragma omp for schedule(dynamic, 1)
        for (int64_t x = 0; x < batch * w.heads_kv; x++)
            if (!lacking)
                head(&w, &s, x / w.heads_kv, x % w.heads_kv);
        scratch_free(&s);
    }
    fold(&out->alibi, w.sizes.heads_q);
    fold(&out->sink, w.sizes.heads_q);
    struct lab_gradient *const all[] = {&out->q, &out->k, &out->v, &out->alibi, &out->sink};
    for (size_t g = 0; g < sizeof all / sizeof *all; g++)
        roots(all[g]);
    return failed ? -1 : 0;
}

void lab_gradients_free(struct lab_gradients *g) {
    struct lab_gradient *const all[] = {&g->q, &g->k, &g->v, &g->alibi, &g->sink};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]->value);
        free(all[i]->size);
    }
    memset(g, 0, sizeof *g);
}
