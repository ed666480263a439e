/*
 * dQ on the CPU: query tiles over their packed lists, queries in the lanes. Of each superblock of
 * keys
 *
 *     S = qt . K    dP = dOt . V    P = 2^(S - base)    dS = P (left dP - delta)    dQt += dS . K
 *
 * as docs/design/backward.md has it. Parts of a split tile leave their sums in slots of the
 * workspace, which a second pass adds in the order of the parts. Each item's share of the gradient
 * of the slopes waits there as well, and is added in the order of the items.
 */
#include "backward/query_tile.h"

size_t CPU_NAME(gradient_rows_workspace)(const struct kernel_args *args) {
    struct carve c = {0};
    struct job job;
    job_take(&c, args, &job);
    return c.overflow ? SIZE_MAX : c.used;
}

/* ---- one superblock ---- */

/* dp = P (left dp - delta), P being of scores times `factor`. */
static void scores_gradient(const struct scratch *s, int64_t lane, int vectors, int32_t n,
                            float factor) {
    const vf by = v_set(factor);
    for (int v = 0; v < vectors; v++) {
        const int64_t at = lane + v * CPU_LANES;
        const vf base = v_load(s->base + at), left = v_load(s->left + at);
        const vf delta = v_load(s->delta + at);
        const float *st = s->st + v * CPU_LANES;
        float *dp = s->dp + v * CPU_LANES;
        for (int32_t j = 0; j < n; j++, st += vectors * CPU_LANES, dp += vectors * CPU_LANES)
            v_store(dp, gradient_weight(v_load(st), by, base) * (left * v_load(dp) - delta));
    }
}

/* Adds dS times distance, of queries that are not empty. */
static void slopes_add(const struct item *it, int64_t lane, int vectors, int32_t n,
                       const int32_t *number) {
    const struct modify *m = it->modify;
    for (int64_t r = lane; r < it->rows && r < lane + vectors * CPU_LANES; r++) {
        double sum = 0;
        for (int32_t j = 0; j < n; j++)
            sum += (double)it->s.dp[j * vectors * CPU_LANES + (r - lane)] *
                   ((double)m->distance[number ? number[j] : j] - (double)m->back[r]);
        if (it->s.base[r] != INFINITY)
            it->d_alibi[r % it->heads] += sum;
    }
}

/* dp of n keys becomes what is multiplied by keys; scores are still to be multiplied by `factor`,
 * which is 1 where they are modified. mask NULL: every lane lists them all; number: of
 * keys in the superblock, NULL: 0, 1, ... */
static void group_gradient(const struct item *it, int64_t lane, int vectors, int32_t n,
                           float factor, const uint64_t *mask, const int32_t *number) {
    const struct scratch *s = &it->s;
    const struct modify *m = it->modify;
    if (m && m->capped)
        gradient_slopes(m, s->st, (int64_t)n * vectors, s->slope);
    if (m && modify_scored(m))
        modify_scores(m, s->st, lane, vectors, n, number);
    if (m && m->drops)
        modify_weights(m, s->dp, lane, vectors, n, number);
    scores_gradient(s, lane, vectors, n, factor);
    if (mask)
        gradient_clear(s->dp, vectors, n, mask, 0);
    if (it->d_alibi)
        slopes_add(it, lane, vectors, n, number);
    if (m && m->capped)
        gradient_chain(s->dp, s->slope, (int64_t)n * vectors);
}

/* Adds n >= 1 keys to what the lanes of a group have; mask and number as in group_gradient. */
static void group_run(const struct item *it, int64_t lane, int vectors, const float **key,
                      const float **value, int32_t n, const uint64_t *mask, const int32_t *number) {
    const struct problem *p = it->args->problem;
    const struct scratch *s = &it->s;
    vf top[CPU_VECTORS] = {{0}};
    cpu_scores(s->qt + lane * p->d_qk, vectors, key, n, p->d_qk, s->st, top);
    cpu_scores(s->dot + lane * p->d_v, vectors, value, n, p->d_v, s->dp, top);
    if (it->shifted)
        cpu_multiply(s->st, vectors, n, s->factor + lane);
    group_gradient(it, lane, vectors, n, 1, mask, number);
    if (s->d_q.d)
        cpu_values(s->dp, vectors, key, n, p->d_qk, NULL, s->d_q.near + lane * p->d_qk);
}

static void superblock(struct item *it, const struct cpu_keys *keys, const struct cpu_head *k,
                       const struct cpu_head *v) {
    const struct problem *p = it->args->problem;
    const struct scratch *s = &it->s;
    const int64_t lanes = cpu_lanes(it->rows);
    const float *k_row[CPU_ROWS], *v_row[CPU_ROWS], *group_k[CPU_ROWS], *group_v[CPU_ROWS];
    uint64_t mask[CPU_KEYS];
    int32_t number[CPU_KEYS];
    if (it->modify)
        modify_keys(it->modify, keys->key, keys->n);
    cpu_gather(k_row, k, keys->key, keys->n, p->d_qk, s->k);
    cpu_gather(v_row, v, keys->key, keys->n, p->d_v, s->v);
    sums_expect(&it->s.d_q, lanes, keys->n);
    for (int64_t lane = 0; lane < lanes; lane += CPU_GROUP) {
        const int vectors = (int)(cpu_width(lanes, lane) / CPU_LANES);
        if (!keys->masked) {
            group_run(it, lane, vectors, k_row, v_row, keys->n, NULL, NULL);
            continue;
        }
        const int32_t n = group_keys(keys, k_row, v_row, lane, group_k, group_v, mask, number);
        if (n)
            group_run(it, lane, vectors, group_k, group_v, n, mask, number);
    }
}

#if defined(__AVX512BF16__)
/* The same by the unit of bf16_pairs.h. Answers 0 where it may not have these keys. */
static int superblock_paired(struct item *it, struct cpu_keys *keys) {
    const struct problem *p = it->args->problem;
    const int64_t lanes = cpu_lanes(it->rows);
    const int vectors = (int)(lanes / CPU_LANES);
    const int scored = it->modify && modify_scored(it->modify);
    const float factor = (float)(p->scale * LOG2_E);
    struct paired *a = &it->s.paired;
    int32_t number[PAIRS_KEYS];
    if (it->modify)
        modify_keys(it->modify, keys->key, keys->n);
    if (!paired_load(a, (struct sums *[]){&it->s.d_q, NULL}, lanes, keys->key, keys->n))
        return 0;
    for (int32_t j = 0; j < keys->n; j += PAIRS_KEYS) {
        const int32_t n = (int32_t)min_i64(keys->n - j, PAIRS_KEYS);
        paired_scores(a, 0, vectors, keys->key, j, keys->n, it->s.st);
        paired_scores(a, 1, vectors, keys->key, j, keys->n, it->s.dp);
        if (scored)
            paired_scale(it->s.st, (int64_t)n * vectors, factor);
        for (int32_t i = 0; i < n; i++)
            number[i] = j + i;
        group_gradient(it, 0, vectors, n, scored ? 1 : factor, keys->masked ? keys->mask + j : NULL,
                       number);
        if (it->s.d_q.d)
            paired_weigh(a, 0, vectors, it->s.dp, j, n);
    }
    paired_append(a, keys->n);
    return 1;
}
#endif

/* ---- listed pairs alone ---- */

/* dp = P (left dP - delta) of the set at row r and n keys, 0 past them. */
static void listed_gradient(const struct scratch *s, int64_t r, int32_t rows, int32_t n) {
    const vf factor = cpu_few_spread(s->factor + r, rows), base = cpu_few_spread(s->base + r, rows);
    const vf left = cpu_few_spread(s->left + r, rows), delta = cpu_few_spread(s->delta + r, rows);
    const float *st = s->few.of.s;
    float *dp = s->few.dp;
    for (int64_t i = 0; i < cpu_round_up(n, CPU_FEW_STEP) * rows; i += CPU_LANES) {
        const vf p = gradient_weight(v_load(st + i), factor, base);
        const vf d_s = p * (left * v_load(dp + i) - delta);
        v_store(dp + i, v_select(few_within(i, rows, n), d_s, (vf){0}));
    }
}

/* Adds the n >= 1 keys of a list to what the set at row r has. */
static void listed_add(struct item *it, const struct cpu_few_shape *shape, int64_t r,
                       const struct cpu_few_rows *keys, const struct cpu_few_rows *values,
                       int32_t *list, int32_t n) {
    static const float one[4] = {1, 1, 1, 1};
    const struct problem *p = it->args->problem;
    const struct scratch *s = &it->s;
    const struct few *few = &s->few;
    shape->queries(s->qt + r * p->d_qk, p->d_qk, few->of.q);
    shape->queries(s->dot + r * p->d_v, p->d_v, few->x);
    cpu_few_scores(shape, few->of.q, keys, list, n, p->d_qk, few->of.s);
    cpu_few_scores(shape, few->x, values, list, n, p->d_v, few->dp);
    listed_gradient(s, r, shape->rows, n);
    few_expect(few, &(struct sums *){&it->s.d_q}, 1, cpu_near(p->d_qk), r, shape->rows, n,
               cpu_lanes(it->rows));
    cpu_few_values(shape, few->dp, keys, list, n, p->d_qk, one, s->d_q.near + r * p->d_qk);
}

static void listed_run(struct item *it, struct walk *w, const struct cpu_head *k,
                       const struct cpu_head *v) {
    const struct problem *p = it->args->problem;
    const struct listed *of = &it->s.few.of;
    int64_t set;
    memset(of->seen, 0, CPU_TILE_ROWS * sizeof *of->seen);
    for (int32_t n; (n = listed_next(w, p, it->rows, of, &set)) > 0;) {
        const struct cpu_few_rows keys =
            listed_rows(k, cpu_in_place(p), of->key, n, p->d_qk, it->s.k);
        const struct cpu_few_rows values =
            listed_rows(v, cpu_in_place(p), of->key, n, p->d_v, it->s.v);
        for (int32_t j = 0; p->type != TESS_F32 && j < n; j++)
            of->key[j] = j;
        for (int64_t r = 0, step = set ? set : CPU_FEW_SET; r < it->rows; r += step) {
            const int32_t listed = set ? listed_list(of, n, r) : n;
            if (listed)
                listed_add(it, few_shape(set, r, it->rows), r, &keys, &values,
                           set ? of->list : of->key, listed);
        }
    }
}

/* ---- items and combines ---- */

/* An empty query gets 0, whatever it lists. */
static void item_clear_empty(const struct item *it) {
    const struct kernel_args *args = it->args;
    const int64_t lanes = cpu_lanes(it->rows), d = it->s.d_q.d;
    for (int64_t r = 0; r < it->rows; r++) {
        const int64_t h = it->h + r % it->heads, q = it->first + r / it->heads;
        int64_t width = 1;
        if (gradient_of(args)->stats.base[stats_at(args->problem, it->b, h, q)] != INFINITY)
            continue;
        float *d_q = it->s.d_q.near + r * d;
        if (!it->listed)
            d_q = cpu_column(it->s.d_q.near, lanes, r, d, &width);
        for (int64_t i = 0; i < d; i++)
            d_q[i * width] = 0;
    }
}

static void item_store(struct item *it) {
    const struct view *to = &gradient_of(it->args)->d_q;
    const double scale = it->args->problem->scale;
    item_clear_empty(it);
    if (it->listed)
        few_store(&it->s.d_q, to, it->b, it->h, it->heads, it->first, it->rows, scale);
    else
        sums_store(&it->s.d_q, to, it->b, it->h, it->heads, it->first, it->rows, scale, it->s.row);
}

/* Nothing has been added. */
static void item_begin(struct item *it) {
    sums_begin(&it->s.d_q, cpu_lanes(it->rows));
    for (int64_t h = 0; it->d_alibi && h < it->heads; h++)
        it->d_alibi[h] = 0;
}

/* Adds all keys of the walk. */
static void item_add(struct item *it, struct walk w, const struct cpu_head *k,
                     const struct cpu_head *v) {
    struct cpu_keys keys;
    item_begin(it);
    item_load(it);
    if (it->listed)
        listed_run(it, &w, k, v);
    while (walk_next(&w, &keys))
        superblock(it, &keys, k, v);
    sums_end(&it->s.d_q, cpu_lanes(it->rows));
}

#if defined(__AVX512BF16__)
/* The same by the unit of bf16_pairs.h. Answers 0 where f32 has to be taken. */
static int item_add_paired(struct item *it, const struct job *job, struct walk w,
                           const struct cpu_head *k, const struct cpu_head *v) {
    const struct kernel_args *args = it->args;
    const struct problem *p = args->problem;
    const struct cpu_head q = cpu_heads(&attention_of(args)->q, p->type, it->b, it->h, it->heads);
    const struct cpu_head d_o =
        cpu_heads(&gradient_of(args)->d_o, p->type, it->b, it->h, it->heads);
    const int64_t h_kv = it->h / (p->heads_q / p->heads_kv), lanes = cpu_lanes(it->rows);
    struct paired *a = &it->s.paired;
    struct sums *const sums[] = {&it->s.d_q, NULL};
    struct cpu_keys keys;
    if (it->listed || !paired_listed(args->work.lists, it->list) ||
        !paired_begin(a, &q, &d_o, it->first, it->rows, it->s.row))
        return 0;
    item_begin(it);
    paired_stream(a, job->stores.store, it->b * p->heads_kv + h_kv, k, v);
    while (walk_next(&w, &keys))
        if (!superblock_paired(it, &keys))
            return 0;
    paired_flush(a, sums, lanes);
    sums_end(&it->s.d_q, lanes);
    return !paired_faint(a, sums, it->rows, gradient_kept(p));
}
#endif

static void item_run(const void *context, int64_t number, int32_t thread) {
    const struct job *job = context;
    const struct kernel_args *args = job->args;
    const struct problem *p = args->problem;
    const struct work_item *work = &args->work.schedule->items[number];
    struct item it = item_of(job, work->batch_head, work->tile, thread);
    const int64_t h_kv = it.h / (p->heads_q / p->heads_kv);
    const struct cpu_head k = cpu_head(&attention_of(args)->k, p->type, it.b, h_kv);
    const struct cpu_head v = cpu_head(&attention_of(args)->v, p->type, it.b, h_kv);
    struct modify modify;
    item_load_stats(&it);
    if (modify_begin(&modify, args, MODIFY_SCORES | MODIFY_WEIGHTS, it.b, it.h, it.heads, it.first,
                     it.rows, LOG2_E))
        it.modify = &modify;
    if (p->gradients & TESS_GRADIENT_ALIBI)
        it.d_alibi = job->d_alibi + number * args->work.tile_heads;
    const struct walk w = walk_begin(args->work.lists, it.list, it.heads, work->part, work->parts);
#if defined(__AVX512BF16__)
    unit_begin();
    if (!item_add_paired(&it, job, w, &k, &v))
        item_add(&it, w, &k, &v);
    unit_end();
#else
    item_add(&it, w, &k, &v);
#endif
    if (!it.s.d_q.d)
        return;
    if (work->parts == 1)
        item_store(&it);
    else
        memcpy(slot_of(job, work->slot), it.s.d_q.near,
               (size_t)(cpu_lanes(it.rows) * it.s.d_q.d) * sizeof(float));
}

static void combine_run(const void *context, int64_t number, int32_t thread) {
    const struct job *job = context;
    const struct combine_item *combine = &job->args->work.schedule->combines[number];
    struct item it = item_of(job, combine->batch_head, combine->tile, thread);
    item_begin(&it);
    for (int32_t part = 0; part < combine->parts; part++)
        sums_fold(&it.s.d_q, cpu_lanes(it.rows), slot_of(job, combine->first_slot + part));
    sums_end(&it.s.d_q, cpu_lanes(it.rows));
    item_store(&it);
}

static void slopes_gather(const struct job *job) {
    const struct kernel_args *args = job->args;
    const int64_t heads = args->problem->heads_q;
    const int64_t packed = args->work.tile_heads;
    const struct schedule *schedule = args->work.schedule;
    for (int64_t h = 0; h < heads; h++) {
        double sum = 0;
        for (int64_t i = 0; i < schedule->n_items; i++) {
            const int64_t first = schedule->items[i].batch_head * packed % heads;
            if (first == h / packed * packed)
                sum += job->d_alibi[i * packed + (h - first)];
        }
        gradient_of(args)->d_alibi[h] = (float)sum;
    }
}

tess_status CPU_NAME(gradient_rows)(const struct kernel_args *args, tess_error *error) {
    (void)error;
    struct carve c = {.base = args->workspace};
    struct job job;
    job_take(&c, args, &job);
#if defined(__AVX512BF16__)
    paired_stores_make(&job.stores);
#endif
    cpu_for_each(args, args->work.schedule->n_items, item_run, &job);
    if (args->problem->gradients & TESS_GRADIENT_Q)
        cpu_for_each(args, args->work.schedule->n_combines, combine_run, &job);
    if (args->problem->gradients & TESS_GRADIENT_ALIBI)
        slopes_gather(&job);
    return TESS_OK;
}
