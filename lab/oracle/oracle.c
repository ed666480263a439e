/* The oracle: attention in double precision, straight from the definition. */
#include "lab/oracle/oracle.h"

#include "lab/oracle/column_sums.h"

#include "lab/fill/half.h"

#include <math.h>
#include <stdlib.h>

struct inputs {
    const tess_tensor *q, *k, *v;
    const tess_pattern *pattern;
    int64_t lists_batch, lists_heads;
    struct lab_scoring scoring;
    struct lab_sizes sizes;
};

/* Scratch of one thread. */
struct oracle_scratch {
    int64_t *keys;   /* [n_kv] */
    double *weights; /* [n_kv] scores, then weights */
    double *size;    /* [n_kv] what a score's rounding grows with */
    double *walk;    /* [n_kv] lab_score_walk */
    double *q, *kv;  /* [d_qk], [max(d_qk, d_v)] */
    double *squares; /* [d_v] sum of p^2 v^2 */
};

static int scratch_make(struct oracle_scratch *s, const struct inputs *in) {
    size_t n = (size_t)in->sizes.n_kv, d = (size_t)in->q->size[3], dv = (size_t)in->v->size[3];
    s->keys = malloc(n * sizeof *s->keys);
    s->weights = malloc(n * sizeof *s->weights);
    s->size = malloc(n * sizeof *s->size);
    s->walk = malloc(n * sizeof *s->walk);
    s->q = malloc(d * sizeof *s->q);
    s->kv = malloc((d > dv ? d : dv) * sizeof *s->kv);
    s->squares = malloc(dv * sizeof *s->squares);
    return s->keys && s->weights && s->size && s->walk && s->q && s->kv && s->squares ? 0 : -1;
}

static void scratch_free(struct oracle_scratch *s) {
    free(s->keys);
    free(s->weights);
    free(s->size);
    free(s->walk);
    free(s->q);
    free(s->kv);
    free(s->squares);
}

static int all_finite(const double *x, int64_t count) {
    double sum = 0; /* x * 0 is 0, or NaN where x is not finite */
    for (int64_t d = 0; d < count; d++)
        sum += x[d] * 0;
    return sum == 0; /* -ffast-math would break this; it is never used */
}

/* Whether key j of a batch has a page; where its row lies. */
static int key_place(const struct inputs *in, int64_t b, int64_t j, int64_t at[2]) {
    const struct lab_caching *cache = in->scoring.cache;
    at[0] = b, at[1] = j;
    if (!cache || !cache->table)
        return 1;
    at[0] = cache->table[b * cache->stride + j / cache->size];
    at[1] = j % cache->size;
    return at[0] >= 0 && at[0] < cache->pages;
}

/* Row (b, h, j) of K or V, as stored, times its scales (NULL: none). */
static void load(double *out, const struct inputs *in, const tess_tensor *t,
                 const tess_tensor *scale, int64_t b, int64_t h, int64_t j) {
    int64_t at[2];
    key_place(in, b, j, at);
    lab_load_row(out, t, at[0], h, at[1]);
    for (int64_t d = 0; scale && d < t->size[3]; d++) {
        const int64_t index[4] = {at[0], h, at[1], d / in->scoring.cache->group};
        int64_t place = 0;
        for (int i = 0; i < 4; i++)
            place += scale->size[i] == 1 ? 0 : index[i] * scale->stride[i];
        out[d] *= lab_get(scale->data, scale->type, place);
    }
}

/* Row (b, h, j) of K, of both its views. */
static void load_key(double *out, const struct inputs *in, int64_t b, int64_t h, int64_t j) {
    const struct lab_caching *cache = in->scoring.cache;
    load(out, in, in->k, cache ? cache->k_scale : NULL, b, h, j);
    if (cache && cache->k_rope)
        load(out + in->k->size[3], in, cache->k_rope, NULL, b, h, j);
}

/* Takes keys whose page there is not out of row x. */
static void drop(struct lab_oracle *out, int64_t x, const struct inputs *in,
                 struct oracle_scratch *s) {
    int64_t n = 0, at[2];
    for (int64_t e = 0; e < out->keys[x]; e++)
        if (key_place(in, out->place[x].b, s->keys[e], at))
            s->keys[n++] = s->keys[e];
    out->keys[x] = n;
}

/* Scores of row x into s->weights. Answers their maximum, NaN when one is NaN or +Inf; sets whether
 * the row lists a bad K row. */
static double scores(struct lab_oracle *out, int64_t x, const struct inputs *in,
                     struct oracle_scratch *s, int64_t hk) {
    const struct lab_place *at = &out->place[x];
    int64_t d_qk = in->q->size[3];
    double top = -(double)INFINITY, q_square = 0;
    int bad = 0;
    for (int64_t d = 0; d < d_qk; d++)
        q_square += s->q[d] * s->q[d];
    for (int64_t e = 0; e < out->keys[x]; e++) {
        double walk, square = 0;
        load_key(s->kv, in, at->b, hk, s->keys[e]);
        for (int64_t d = 0; d < d_qk; d++)
            square += s->kv[d] * s->kv[d];
        const double plain = in->scoring.scale * lab_dot(s->q, s->kv, d_qk, &walk);
        s->walk[e] = lab_score_walk(&in->scoring, plain, walk);
        const double score = s->weights[e] =
            lab_score(&in->scoring, &in->sizes, at, s->keys[e], plain);
        s->size[e] = 0.5 * fabs(in->scoring.scale) * sqrt(q_square) * sqrt(square);
        if (!all_finite(s->kv, d_qk)) {
            out->lists_bad[x] |= LAB_BAD_K;
            s->size[e] = 0;
        }
        if (!isfinite(s->size[e]))
            s->size[e] = 0;
        if (isfinite(plain) && fabs(plain) > s->size[e])
            s->size[e] = fabs(plain);
        if (isfinite(score) && fabs(score) > s->size[e])
            s->size[e] = fabs(score);
        bad |= isnan(score) || score == (double)INFINITY;
        top = score > top ? score : top;
    }
    return bad ? (double)NAN : top;
}

static const tess_tensor *v_scale(const struct inputs *in) {
    return in->scoring.cache ? in->scoring.cache->v_scale : NULL;
}

/* X of row x: errors of scores change o by p (z v - o) each, and lse by p. sum, sum_sink: of weights,
 * without the sink and with it. */
static void drift(struct lab_oracle *out, int64_t x, const struct inputs *in,
                  struct oracle_scratch *s, int64_t hk, double sum, double sum_sink) {
    const struct lab_place *at = &out->place[x];
    double of_o = 0, of_lse = 0;
    for (int64_t e = 0; e < out->keys[x]; e++) {
        const double error = lab_score_error(s->walk[e], out->size[x]) * s->weights[e];
        if (!(error > 0))
            continue;
        const int drops = lab_drops(&in->scoring, &in->sizes, at, s->keys[e]);
        const double z = drops ? 0 : lab_kept(&in->scoring);
        load(s->kv, in, in->v, v_scale(in), at->b, hk, s->keys[e]);
        for (int64_t d = 0; d < out->d_v; d++) {
            const double term = error / sum_sink * (z * s->kv[d] - out->o[x * out->d_v + d]);
            of_o += isfinite(term) ? term * term : 0;
        }
        of_lse += error / sum * (error / sum);
    }
    out->drift[x] = sqrt(of_o);
    out->lse_drift[x] = sqrt(of_lse);
}

static double base_lse(const struct inputs *in, const struct lab_place *at) {
    const struct lab_basing *base = in->scoring.base;
    return base && base->how == TESS_BASE_MERGE
               ? lab_get(base->lse->data, TESS_F32, lab_row(base->lse, at->b, at->h, at->i))
               : -(double)INFINITY;
}

/* Row x of o times `own`, and that of the base times `share`. */
static void base_add(struct lab_oracle *out, int64_t x, const struct inputs *in,
                     struct oracle_scratch *s, double own, double share) {
    const struct lab_place *at = &out->place[x];
    double *o = out->o + x * out->d_v;
    lab_load_row(s->kv, in->scoring.base->o, at->b, at->h, at->i);
    for (int64_t d = 0; d < out->d_v; d++) {
        const double term = share * s->kv[d];
        o[d] = own * o[d] + term;
        s->squares[d] = own * own * s->squares[d] + (isfinite(term) ? term * term : 0);
    }
}

static void row(struct lab_oracle *out, int64_t x, const struct inputs *in,
                struct oracle_scratch *s) {
    const struct lab_place *at = &out->place[x];
    int64_t d_v = out->d_v, heads = in->q->size[1];
    int64_t hk = at->h / (heads / in->k->size[1]), head = at->h / (heads / in->lists_heads);
    double *o = out->o + x * d_v, sum = 0, spread = 0, most = 0;
    tess_pattern_row(in->pattern, in->lists_batch == 1 ? 0 : at->b, head, at->i, s->keys,
                     in->sizes.n_kv, &out->keys[x], NULL);
    drop(out, x, in, s);
    lab_load_row(s->q, in->q, at->b, at->h, at->i);
    double top = scores(out, x, in, s, hk);
    const double base = base_lse(in, at);

    for (int64_t d = 0; d < d_v; d++)
        o[d] = s->squares[d] = 0;
    const int empty = top == -(double)INFINITY;
    top = base > top ? base : top;
    const int nothing = top == -(double)INFINITY;
    for (int64_t e = 0; e < out->keys[x]; e++)
        sum += s->weights[e] = empty ? 0 : exp(s->weights[e] - top);
    const double merged = nothing ? 0 : exp(base - top);
    sum += merged;
    out->lse[x] = nothing ? -(double)INFINITY : top + log(sum);
    out->size[x] = isfinite(base) ? fabs(base) : 0;
    for (int64_t e = 0; e < out->keys[x]; e++)
        if (s->size[e] > out->size[x] && (!in->scoring.alibi || s->weights[e] >= sum * exp(-32)))
            out->size[x] = s->size[e];
    const double listed = sum;
    if (in->scoring.sink && !nothing)
        sum += exp((double)in->scoring.sink[at->h] - top);
    for (int64_t e = 0; e < out->keys[x]; e++) {
        const double p = empty ? 0 : s->weights[e] / sum * lab_kept(&in->scoring);
        const int drops = lab_drops(&in->scoring, &in->sizes, at, s->keys[e]);
        load(s->kv, in, in->v, v_scale(in), at->b, hk, s->keys[e]);
        if (!all_finite(s->kv, d_v))
            out->lists_bad[x] |=
                (unsigned char)(LAB_BAD_V | (drops || !(p > 1e-30) ? 0 : LAB_MET_V));
        for (int64_t d = 0; d < d_v && !empty; d++) {
            double term = p * s->kv[d];
            most = fmax(most, isfinite(s->kv[d]) ? fabs(s->kv[d]) : 0);
            if (!drops || isnan(p))
                o[d] += term;
            if (isfinite(term))
                s->squares[d] += term * term;
        }
    }
    if (merged > 0)
        base_add(out, x, in, s, 1, merged / sum);
    if (in->scoring.sink && (double)in->scoring.sink[at->h] - out->lse[x] > 60)
        out->faint[x] = 0x1p-86 * most;
    if (!empty)
        drift(out, x, in, s, hk, listed, sum);
    if (in->scoring.base && in->scoring.base->how == TESS_BASE_ADD) {
        base_add(out, x, in, s, in->scoring.base->beta, 1);
        out->drift[x] *= fabs(in->scoring.base->beta);
    }
    for (int64_t d = 0; d < d_v; d++)
        spread += s->squares[d];
    out->spread[x] = sqrt(spread);
}

static int make(struct lab_oracle *out, int64_t rows, int64_t d_v) {
    size_t n = rows ? (size_t)rows : 1, bytes;
    memset(out, 0, sizeof *out);
    out->rows = rows;
    out->d_v = d_v;
    if (__builtin_mul_overflow(n, (size_t)d_v * sizeof *out->o, &bytes))
        return -1;
    out->place = calloc(n, sizeof *out->place);
    out->o = malloc(bytes);
    out->lse = calloc(n, sizeof *out->lse);
    out->size = calloc(n, sizeof *out->size);
    out->spread = calloc(n, sizeof *out->spread);
    out->drift = calloc(n, sizeof *out->drift);
    out->lse_drift = calloc(n, sizeof *out->lse_drift);
    out->faint = calloc(n, sizeof *out->faint);
    out->keys = calloc(n, sizeof *out->keys);
    out->lists_bad = calloc(n, sizeof *out->lists_bad);
    return out->place && out->o && out->lse && out->size && out->spread && out->drift &&
                   out->lse_drift && out->faint && out->keys && out->lists_bad
               ? 0
               : -1;
}

int lab_oracle_run(struct lab_oracle *out, const tess_tensor *q, const tess_tensor *k,
                   const tess_tensor *v, const tess_pattern *pattern,
                   const struct lab_scoring *scoring, const struct lab_place *places,
                   int64_t n_places) {
    tess_pattern_info info = tess_pattern_info_init();
    int64_t heads = q->size[1], n_q = q->size[2];
    int failed = make(out, places ? n_places : q->size[0] * heads * n_q, v->size[3]);
    out->drops = scoring && scoring->dropped;
    const tess_tensor *const scale = scoring && scoring->cache ? scoring->cache->v_scale : NULL;
    out->scales = scale && (scale->size[2] > 1 || scale->size[3] > 1);
    out->is_mean =
        !out->drops && !scale && !(scoring && scoring->base && scoring->base->how == TESS_BASE_ADD);
    out->type = q->type;
    if (failed || tess_pattern_describe(pattern, &info, NULL) != TESS_OK)
        return -1;
    for (int64_t x = 0; x < out->rows; x++)
        out->place[x] =
            places ? places[x] : (struct lab_place){x / n_q / heads, x / n_q % heads, x % n_q};
    struct inputs in = {.q = q,
                        .k = k,
                        .v = v,
                        .pattern = pattern,
                        .lists_batch = info.batch,
                        .lists_heads = info.heads,
                        .scoring = scoring ? *scoring : (struct lab_scoring){0},
                        .sizes = {heads, n_q, info.n_kv}};
    if (!(in.scoring.scale < 0 || in.scoring.scale > 0))
        in.scoring.scale = 1 / sqrt((double)q->size[3]);
#pragma omp parallel if (out->rows > 64)
    {
        struct oracle_scratch s;
        int lacking = scratch_make(&s, &in);
        if (lacking)
#pragma omp atomic write
            failed = 1;
#pragma omp for schedule(dynamic, 16)
        for (int64_t x = 0; x < out->rows; x++)
            if (!lacking)
                row(out, x, &in, &s);
        scratch_free(&s);
    }
    return failed ? -1 : 0;
}

void lab_oracle_free(struct lab_oracle *oracle) {
    free(oracle->place);
    free(oracle->o);
    free(oracle->lse);
    free(oracle->size);
    free(oracle->spread);
    free(oracle->drift);
    free(oracle->lse_drift);
    free(oracle->faint);
    free(oracle->keys);
    free(oracle->lists_bad);
    memset(oracle, 0, sizeof *oracle);
}

static int same_head(const struct lab_place *a, const struct lab_place *b, int64_t reach) {
    return a->b == b->b && a->h == b->h && llabs(a->i - b->i) < reach;
}

int lab_oracle_near(const struct lab_oracle *oracle, int64_t x, int64_t reach, int bad) {
    const struct lab_place *at = &oracle->place[x];
    for (int64_t y = x; y >= 0 && same_head(&oracle->place[y], at, reach); y--)
        if (oracle->lists_bad[y] & bad)
            return 1;
    for (int64_t y = x; y < oracle->rows && same_head(&oracle->place[y], at, reach); y++)
        if (oracle->lists_bad[y] & bad)
            return 1;
    return 0;
}

/* ---- column sums ---- */

/* Adds the terms of query `at` to its group's sums and bounds; answers whether nothing is promised. one: an oracle
 * of one row, whose place it is. */
static int terms_add(double *value, double *bound, struct lab_oracle *one, const struct inputs *in,
                     struct oracle_scratch *s, double reference) {
    const struct lab_place *at = one->place;
    const int64_t heads = in->q->size[1], hk = at->h / (heads / in->k->size[1]);
    tess_pattern_row(in->pattern, in->lists_batch == 1 ? 0 : at->b,
                     at->h / (heads / in->lists_heads), at->i, s->keys, in->sizes.n_kv, one->keys,
                     NULL);
    drop(one, 0, in, s);
    lab_load_row(s->q, in->q, at->b, at->h, at->i);
    const double top = scores(one, 0, in, s, hk);
    double size = fabs(reference);
    if (isnan(top) || top - reference > 100 * log(2.0))
        return 1;
    for (int64_t e = 0; e < *one->keys; e++)
        size = fmax(size, s->size[e]);
    for (int64_t e = 0; e < *one->keys && isfinite(reference); e++) {
        const double term = exp(s->weights[e] - reference);
        const double relative = 2 * 0x1p-22 * (4 + size) + lab_score_error(s->walk[e], size);
        value[s->keys[e]] += term;
        bound[s->keys[e]] += relative * term + 0x1p-120 * exp(top - reference) + 0x1p-149;
    }
    return 0;
}

int lab_column_sums_run(struct lab_column_sums *out, const struct lab_sums_of *given) {
    tess_pattern_info info = tess_pattern_info_init();
    const tess_tensor *q = given->q;
    const int64_t heads = q->size[1], n_q = q->size[2],
                  groups = (n_q + given->rows - 1) / given->rows;
    const int64_t all = q->size[0] * heads * groups;
    const int unknown = tess_pattern_describe(given->pattern, &info, NULL) != TESS_OK;
    const size_t count = (size_t)(all * info.n_kv);
    *out = (struct lab_column_sums){groups, calloc(count, sizeof(double)),
                                    calloc(count, sizeof(double)), calloc((size_t)all, 1)};
    struct inputs in = {.q = q,
                        .k = given->k,
                        .v = given->k,
                        .pattern = given->pattern,
                        .lists_batch = info.batch,
                        .lists_heads = info.heads,
                        .scoring = *given->scoring,
                        .sizes = {heads, n_q, info.n_kv}};
    if (!(in.scoring.scale < 0 || in.scoring.scale > 0))
        in.scoring.scale = 1 / sqrt((double)q->size[3]);
    int failed = unknown || !out->value || !out->bound || !out->loose;
#pragma omp parallel if (!failed && all > 8)
    {
        struct oracle_scratch s;
        struct lab_oracle one;
        const int lacking = scratch_make(&s, &in) | make(&one, 1, 1);
        if (lacking)
#pragma omp atomic write
            failed = 1;
#pragma omp for schedule(dynamic, 1)
        for (int64_t x = 0; x < all; x++)
            for (int64_t i = x % groups * given->rows;
                 !lacking && !unknown && i < n_q && i < (x % groups + 1) * given->rows; i++) {
                const int64_t b = x / groups / heads, h = x / groups % heads;
                *one.place = (struct lab_place){b, h, i};
                out->loose[x] |= (unsigned char)terms_add(
                    out->value + x * info.n_kv, out->bound + x * info.n_kv, &one, &in, &s,
                    lab_get(given->reference->data, TESS_F32, lab_row(given->reference, b, h, i)));
            }
        lab_oracle_free(&one);
        scratch_free(&s);
    }
    return failed ? -1 : 0;
}

void lab_column_sums_free(struct lab_column_sums *sums) {
    free(sums->value);
    free(sums->bound);
    free(sums->loose);
    memset(sums, 0, sizeof *sums);
}
