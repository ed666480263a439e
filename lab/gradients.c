/* The oracle's gradients. */
#include "lab/gradients.h"

#include "lab/half.h"

#include <stdlib.h>

/* Scratch of one thread: of a row's keys, and rows of tensors. */
struct scratch {
    int64_t *keys;         /* [n_kv] */
    double *plain;         /* [n_kv] scaled scores */
    double *weights;       /* [n_kv] scores as modified, then P */
    double *k, *v;         /* [n_kv][d_qk], [n_kv][d_v]: the head's */
    double *q, *d_o, *d_q; /* [d_qk], [d_v], [d_qk] */
};

struct work {
    const struct lab_gradients_of *in;
    struct lab_gradients *out;
    struct lab_scoring scoring;
    struct lab_sizes sizes;
    tess_pattern_info info;
    int64_t heads_kv, d_qk, d_v;
};

static int scratch_make(struct scratch *s, const struct work *w) {
    const size_t n = (size_t)w->sizes.n_kv, d = (size_t)w->d_qk, dv = (size_t)w->d_v;
    s->keys = malloc(n * sizeof *s->keys);
    s->plain = malloc(n * sizeof *s->plain);
    s->weights = malloc(n * sizeof *s->weights);
    s->k = malloc(n * d * sizeof *s->k);
    s->v = malloc(n * dv * sizeof *s->v);
    s->q = malloc(d * sizeof *s->q);
    s->d_o = malloc(dv * sizeof *s->d_o);
    s->d_q = malloc(d * sizeof *s->d_q);
    return s->keys && s->plain && s->weights && s->k && s->v && s->q && s->d_o && s->d_q ? 0 : -1;
}

static void scratch_free(struct scratch *s) {
    void *const all[] = {s->keys, s->plain, s->weights, s->k, s->v, s->q, s->d_o, s->d_q};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static double dot(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t d = 0; d < n; d++)
        sum += x[d] * y[d];
    return sum;
}

/* P of a row's n keys, without its sink; answers the share that the sink leaves, 0 where the row is
 * empty. */
static double weigh(const struct work *w, const struct scratch *s, const struct lab_place *at,
                    int64_t n) {
    double top = -(double)INFINITY, sum = 0;
    for (int64_t e = 0; e < n; e++) {
        s->plain[e] = w->scoring.scale * dot(s->q, s->k + s->keys[e] * w->d_qk, w->d_qk);
        s->weights[e] = lab_score(&w->scoring, &w->sizes, at, s->keys[e], s->plain[e]);
        top = s->weights[e] > top ? s->weights[e] : top;
    }
    if (top == -(double)INFINITY)
        return 0;
    for (int64_t e = 0; e < n; e++)
        sum += s->weights[e] = exp(s->weights[e] - top);
    for (int64_t e = 0; e < n; e++)
        s->weights[e] /= sum;
    return w->scoring.sink ? sum / (sum + exp((double)w->scoring.sink[at->h] - top)) : 1;
}

/* One query: its dQ, and what it adds to dK, dV, slopes and sinks of its head. */
static void row(const struct work *w, const struct scratch *s, const struct lab_place *at,
                double *d_k, double *d_v, double *d_slope, double *d_sink) {
    const struct lab_gradients_of *in = w->in;
    const int64_t group = w->sizes.heads_q / w->info.heads;
    int64_t n;
    double d_lse = 0, delta = 0;
    tess_pattern_row(in->pattern, w->info.batch == 1 ? 0 : at->b, at->h / group, at->i, s->keys,
                     w->sizes.n_kv, &n, NULL);
    lab_load_row(s->q, in->q, at->b, at->h, at->i);
    lab_load_row(s->d_o, in->d_o, at->b, at->h, at->i);
    if (in->d_lse)
        lab_load_row(&d_lse, in->d_lse, at->b, at->h, at->i);
    for (int64_t d = 0; d < w->d_qk; d++)
        s->d_q[d] = 0;
    const double left = weigh(w, s, at, n);
    for (int64_t e = 0; e < n && left > 0; e++)
        if (!lab_drops(&w->scoring, &w->sizes, at, s->keys[e]))
            delta += left * s->weights[e] * lab_kept(&w->scoring) *
                     dot(s->d_o, s->v + s->keys[e] * w->d_v, w->d_v);
    for (int64_t e = 0; e < n && left > 0; e++) {
        const int64_t j = s->keys[e];
        const double z = lab_drops(&w->scoring, &w->sizes, at, j) ? 0 : lab_kept(&w->scoring);
        const double p = s->weights[e], d_p = z * dot(s->d_o, s->v + j * w->d_v, w->d_v);
        const double of_biased = left * p * (d_p - delta) + p * d_lse;
        const double t = w->scoring.softcap > 0 ? tanh(s->plain[e] / w->scoring.softcap) : 0;
        const double d_s = w->scoring.scale * of_biased * (1 - t * t);
        for (int64_t d = 0; d < w->d_qk; d++) {
            s->d_q[d] += d_s * s->k[j * w->d_qk + d];
            d_k[j * w->d_qk + d] += d_s * s->q[d];
        }
        for (int64_t d = 0; d < w->d_v; d++)
            d_v[j * w->d_v + d] += left * p * z * s->d_o[d];
        if (w->scoring.alibi)
            *d_slope += of_biased * lab_distance(&w->scoring, &w->sizes, at, j);
    }
    if (w->scoring.sink && left > 0)
        *d_sink -= (1 - left) * delta;
    double *d_q =
        w->out->d_q + ((at->b * w->sizes.heads_q + at->h) * w->sizes.n_q + at->i) * w->d_qk;
    for (int64_t d = 0; d < w->d_qk; d++)
        d_q[d] = s->d_q[d];
}

/* All queries that read one key/value head. slopes and sinks: of the batch's heads. */
static void head(const struct work *w, const struct scratch *s, int64_t b, int64_t hk,
                 double *slopes, double *sinks) {
    const int64_t n = w->sizes.n_kv, group = w->sizes.heads_q / w->heads_kv;
    double *d_k = w->out->d_k + (b * w->heads_kv + hk) * n * w->d_qk;
    double *d_v = w->out->d_v + (b * w->heads_kv + hk) * n * w->d_v;
    for (int64_t j = 0; j < n; j++) {
        lab_load_row(s->k + j * w->d_qk, w->in->k, b, hk, j);
        lab_load_row(s->v + j * w->d_v, w->in->v, b, hk, j);
    }
    for (int64_t h = hk * group; h < (hk + 1) * group; h++)
        for (int64_t i = 0; i < w->sizes.n_q; i++)
            row(w, s, &(struct lab_place){b, h, i}, d_k, d_v, &slopes[h], &sinks[h]);
}

static int make(struct lab_gradients *out, const struct work *w) {
    const size_t b = (size_t)w->in->q->size[0], h = (size_t)w->sizes.heads_q;
    const size_t q = b * h * (size_t)w->sizes.n_q;
    const size_t k = b * (size_t)w->heads_kv * (size_t)w->sizes.n_kv;
    memset(out, 0, sizeof *out);
    out->d_q = calloc(q * (size_t)w->d_qk, sizeof *out->d_q);
    out->d_k = calloc(k * (size_t)w->d_qk, sizeof *out->d_k);
    out->d_v = calloc(k * (size_t)w->d_v, sizeof *out->d_v);
    out->d_slopes = calloc(b * h, sizeof *out->d_slopes); /* of each batch, then of all */
    out->d_sinks = calloc(b * h, sizeof *out->d_sinks);
    return out->d_q && out->d_k && out->d_v && out->d_slopes && out->d_sinks ? 0 : -1;
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
    const int64_t batch = in->q->size[0], heads = w.sizes.heads_q;
    int failed = make(out, &w) || tess_pattern_describe(in->pattern, &w.info, NULL) != TESS_OK;
    if (!(w.scoring.scale < 0 || w.scoring.scale > 0))
        w.scoring.scale = 1 / sqrt((double)w.d_qk);
    if (failed)
        return -1;
#pragma omp parallel if (batch * w.heads_kv > 1)
    {
        struct scratch s;
        const int lacking = scratch_make(&s, &w);
        if (lacking)
#pragma omp atomic write
            failed = 1;
#pragma omp for schedule(dynamic, 1)
        for (int64_t x = 0; x < batch * w.heads_kv; x++)
            if (!lacking)
                head(&w, &s, x / w.heads_kv, x % w.heads_kv, out->d_slopes + x / w.heads_kv * heads,
                     out->d_sinks + x / w.heads_kv * heads);
        scratch_free(&s);
    }
    for (int64_t x = heads; x < batch * heads; x++) {
        out->d_slopes[x % heads] += out->d_slopes[x];
        out->d_sinks[x % heads] += out->d_sinks[x];
    }
    return failed ? -1 : 0;
}

void lab_gradients_free(struct lab_gradients *g) {
    double *const all[] = {g->d_q, g->d_k, g->d_v, g->d_slopes, g->d_sinks};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    memset(g, 0, sizeof *g);
}
