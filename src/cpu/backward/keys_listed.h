/* dK and dV of key tiles of which listed pairs alone are computed: keys in sets, dims in the lanes. */
#ifndef TESSERA_CPU_KEYS_LISTED_H
#define TESSERA_CPU_KEYS_LISTED_H

#include "backward/key_tile.h"

/* Loads those of a superblock's n queries that are not empty, with their rows; answers how many. */
static int32_t listed_load(struct key_item *item, int32_t n) {
    const struct kernel_args *args = item->args;
    const struct problem *p = args->problem;
    const struct query_stats *stats = &gradient_of(args)->stats;
    const struct key_scratch *s = &item->s;
    const struct listed *found = &s->few.listed;
    struct side *side = &item->s.side;
    const struct cpu_head q = cpu_head(&attention_of(args)->q, p->type, item->b, item->h);
    const struct cpu_head d_o = cpu_head(&gradient_of(args)->d_o, p->type, item->b, item->h);
    const struct scaling by = scaling_of(p);
    int32_t some = 0;
    side->shifted = 0;
    for (int32_t j = 0; j < n; j++) {
        const int64_t at = stats_at(p, item->b, item->h, found->key[j]);
        found->mask[0][some] = found->mask[0][j];
        found->mask[1][some] = found->mask[1][j];
        side->number[some] = found->key[j];
        side->fact[BASE][some] = stats->base[at];
        side->fact[LEFT][some] = stats->left[at];
        side->fact[DELTA][some] = stats->delta[at];
        some += stats->base[at] != INFINITY;
    }
    for (int32_t j = some; j % CPU_FEW_STEP; j++) {
        found->mask[0][j] = found->mask[1][j] = 0;
        for (int i = 0; i < KNOWN; i++)
            side->fact[i][j] = 0;
    }
    for (int32_t j = 0; j < some; j++) {
        const int32_t i = side->number[j];
        found->key[j] = j;
        side->fact[FACTOR][j] =
            query_scale(s->q + j * p->d_qk, cpu_row(&q, 0, i), p->type, p->d_qk, &by);
        side->shifted |= side->fact[FACTOR][j] != 1;
        if (p->type != TESS_F32) {
            cpu_load_halves(s->d_o + j * p->d_v, cpu_row(&d_o, 0, i), p->type, p->d_v);
            side->number[j] = j;
        }
    }
    return some;
}

/* Facts of the n queries of a list, four by four for each row of the set. */
static void side_spread(struct side *side, const int32_t *list, int32_t n, int32_t rows) {
    for (int known = 0; known < (side->shifted ? KNOWN : FACTOR); known++) {
        float *out = side->spread[known];
        for (int32_t j = 0; j < n; j += 4, out += 4 * rows)
            for (int32_t r = 0; r < rows; r++)
                for (int x = 0; x < 4; x++)
                    out[4 * r + x] = side->fact[known][list[j + x]];
    }
}

/* Weights and gradients of a set of rows and n queries: st = left P and, where dK is wanted, dp = P (left
 * dP - delta); 0 past them. */
static void listed_gradient(const struct key_scratch *s, int32_t rows, int32_t n) {
    float *st = s->few.listed.s, *dp = s->few.dp;
    float *const *known = s->side.spread;
    const int shifted = s->side.shifted;
    for (int64_t i = 0; i < cpu_round_up(n, 4) * rows; i += CPU_LANES) {
        const vi within = few_within(i, rows, n);
        const vf left = v_load(known[LEFT] + i),
                 by = shifted ? v_load(known[FACTOR] + i) : v_set(1);
        const vf p = gradient_weight(v_load(st + i), by, v_load(known[BASE] + i));
        v_store(st + i, v_select(within, p * left, (vf){0}));
        if (!s->d_k.d)
            continue;
        const vf d_s = p * (left * v_load(dp + i) - v_load(known[DELTA] + i)) * by;
        v_store(dp + i, v_select(within, d_s, (vf){0}));
    }
}

/* Adds the n >= 1 queries of a list to what the set at row r has. */
static void listed_add(struct key_item *item, const struct cpu_few_shape *shape, int64_t r,
                       int32_t *list, int32_t n) {
    static const float one[4] = {1, 1, 1, 1};
    const struct problem *p = item->args->problem;
    struct key_scratch *s = &item->s;
    const struct few *few = &s->few;
    const struct cpu_head d_o = cpu_head(&gradient_of(item->args)->d_o, p->type, item->b, item->h);
    const struct cpu_few_rows queries = {s->q, p->d_qk};
    struct cpu_few_rows outputs = {s->d_o, p->d_v};
    if (p->type == TESS_F32)
        outputs = (struct cpu_few_rows){(const float *)(const void *)d_o.data,
                                        d_o.stride / (int64_t)sizeof(float)};
    shape->queries(s->kt + r * p->d_qk, p->d_qk, few->listed.q);
    cpu_few_scores(shape, few->listed.q, &queries, list, n, p->d_qk, few->listed.s);
    for (int32_t j = 0; j < cpu_round_up(n, CPU_FEW_STEP) + CPU_FEW_AHEAD; j++)
        s->side.list[j] = s->side.number[list[j]]; /* list as filled up, for dV alone too */
    if (s->d_k.d) {
        shape->queries(s->vt + r * p->d_v, p->d_v, few->x);
        cpu_few_scores(shape, few->x, &outputs, s->side.list, n, p->d_v, few->dp);
    }
    few_expect(few, (struct sums *[]){&s->d_k, &s->d_v}, 2,
               min_i64(cpu_near(p->d_qk), cpu_near(p->d_v)), r, shape->rows, n,
               cpu_lanes(item->rows));
    side_spread(&s->side, list, n, shape->rows);
    listed_gradient(s, shape->rows, n);
    if (s->d_k.d)
        cpu_few_values(shape, few->dp, &queries, list, n, p->d_qk, one, s->d_k.near + r * p->d_qk);
    if (s->d_v.d)
        cpu_few_values(shape, few->listed.s, &outputs, s->side.list, n, p->d_v, one,
                       s->d_v.near + r * p->d_v);
}

static void listed_run(struct key_item *item, struct walk *w) {
    const struct problem *p = item->args->problem;
    const struct listed *found = &item->s.few.listed;
    int64_t set;
    for (int32_t n; (n = listed_next(w, p, item->rows, found, &set)) > 0;) {
        n = listed_load(item, n);
        for (int64_t r = 0, step = set ? set : CPU_FEW_SET; n && r < item->rows; r += step) {
            const int32_t listed = set ? listed_list(found, n, r) : n;
            if (listed)
                listed_add(item, few_shape(set, r, item->rows), r, set ? found->list : found->key,
                           listed);
        }
    }
}

#endif
