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
    struct query_job job;
    job_take(&c, args, &job);
    return c.overflow ? SIZE_MAX : c.used;
}

/* ---- one superblock ---- */

/* dp = P (left dp - delta), P being of scores times `factor`. */
static void scores_gradient(const struct query_scratch *s, int64_t lane, int vectors, int32_t n,
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
static void slopes_add(const struct query_item *item, int64_t lane, int vectors, int32_t n,
                       const int32_t *number) {
    const struct modify *m = item->modify;
    for (int64_t r = lane; r < item->rows && r < lane + vectors * CPU_LANES; r++) {
        double sum = 0;
        for (int32_t j = 0; j < n; j++)
            sum += (double)item->s.dp[j * vectors * CPU_LANES + (r - lane)] *
                   ((double)m->distance[number ? number[j] : j] - (double)m->back[r]);
        if (item->s.base[r] != INFINITY)
            item->d_alibi[r % item->heads] += sum;
    }
}

/* dp of n keys becomes what is multiplied by keys; scores are still to be multiplied by `factor`,
 * which is 1 where they are modified. mask NULL: every lane lists them all; number: of
 * keys in the superblock, NULL: 0, 1, ... */
static void group_gradient(const struct query_item *item, int64_t lane, int vectors, int32_t n,
                           float factor, const uint64_t *mask, const int32_t *number) {
    const struct query_scratch *s = &item->s;
    const struct modify *m = item->modify;
    if (m && m->capped)
        gradient_slopes(m, s->st, (int64_t)n * vectors, s->slope);
    if (m && modify_scored(m))
        modify_scores(m, s->st, lane, vectors, n, number);
    if (m && m->drops)
        modify_weights(m, s->dp, lane, vectors, n, number);
    scores_gradient(s, lane, vectors, n, factor);
    if (mask)
        gradient_clear(s->dp, vectors, n, mask, 0);
    if (item->d_alibi)
        slopes_add(item, lane, vectors, n, number);
    if (m && m->capped)
        gradient_chain(s->dp, s->slope, (int64_t)n * vectors);
}

/* Adds n >= 1 keys to what the lanes of a group have; mask and number as in group_gradient. */
static void group_run(const struct query_item *item, int64_t lane, int vectors, const float **key,
                      const float **value, int32_t n, const uint64_t *mask, const int32_t *number) {
    const struct problem *p = item->args->problem;
    const struct query_scratch *s = &item->s;
    vf top[CPU_VECTORS] = {{0}};
    cpu_scores(s->qt + lane * p->d_qk, vectors, key, n, p->d_qk, s->st, top);
    cpu_scores(s->dot + lane * p->d_v, vectors, value, n, p->d_v, s->dp, top);
    if (item->shifted)
        cpu_multiply(s->st, vectors, n, s->factor + lane);
    group_gradient(item, lane, vectors, n, 1, mask, number);
    if (s->d_q.d)
        cpu_values(s->dp, vectors, key, n, p->d_qk, NULL, s->d_q.near + lane * p->d_qk);
}

static void superblock(struct query_item *item, const struct cpu_keys *keys,
                       const struct cpu_head *k, const struct cpu_head *v) {
    const struct problem *p = item->args->problem;
    const struct query_scratch *s = &item->s;
    const int64_t lanes = cpu_lanes(item->rows);
    const float *k_row[CPU_ROWS], *v_row[CPU_ROWS], *group_k[CPU_ROWS], *group_v[CPU_ROWS];
    uint64_t mask[CPU_KEYS];
    int32_t number[CPU_KEYS];
    if (item->modify)
        modify_keys(item->modify, keys->key, keys->n);
    cpu_gather(k_row, k, keys->key, keys->n, p->d_qk, s->k);
    cpu_gather(v_row, v, keys->key, keys->n, p->d_v, s->v);
    sums_expect(&item->s.d_q, lanes, keys->n);
    for (int64_t lane = 0; lane < lanes; lane += CPU_GROUP) {
        const int vectors = (int)(cpu_width(lanes, lane) / CPU_LANES);
        if (!keys->masked) {
            group_run(item, lane, vectors, k_row, v_row, keys->n, NULL, NULL);
            continue;
        }
        const int32_t n = group_keys(keys, k_row, v_row, lane, group_k, group_v, mask, number);
        if (n)
            group_run(item, lane, vectors, group_k, group_v, n, mask, number);
    }
}

#if defined(__AVX512BF16__)
/* A superblock by the unit of bf16_pairs.h. Answers 0 where it may not have these keys. */
static int superblock_paired(struct query_item *item, struct cpu_keys *keys) {
    const struct problem *p = item->args->problem;
    const int64_t lanes = cpu_lanes(item->rows);
    const int vectors = (int)(lanes / CPU_LANES);
    const int scored = item->modify && modify_scored(item->modify);
    const float factor = (float)(p->scale * LOG2_E);
    struct paired *a = &item->s.paired;
    int32_t number[PAIRS_KEYS];
    if (item->modify)
        modify_keys(item->modify, keys->key, keys->n);
    if (!paired_load(a, (struct sums *[]){&item->s.d_q, NULL}, lanes, keys->key, keys->n))
        return 0;
    for (int32_t j = 0; j < keys->n; j += PAIRS_KEYS) {
        const int32_t n = (int32_t)min_i64(keys->n - j, PAIRS_KEYS);
        paired_scores(a, 0, vectors, keys->key, j, keys->n, item->s.st);
        paired_scores(a, 1, vectors, keys->key, j, keys->n, item->s.dp);
        if (scored)
            paired_scale(item->s.st, (int64_t)n * vectors, factor);
        for (int32_t i = 0; i < n; i++)
            number[i] = j + i;
        group_gradient(item, 0, vectors, n, scored ? 1 : factor,
                       keys->masked ? keys->mask + j : NULL, number);
        if (item->s.d_q.d)
            paired_weigh(a, 0, vectors, item->s.dp, j, n);
    }
    paired_append(a, keys->n);
    return 1;
}
#endif

/* ---- listed pairs alone ---- */

/* dp = P (left dP - delta) of the set at row r and n keys, 0 past them. */
static void listed_gradient(const struct query_scratch *s, int64_t r, int32_t rows, int32_t n) {
    const vf factor = cpu_few_spread(s->factor + r, rows), base = cpu_few_spread(s->base + r, rows);
    const vf left = cpu_few_spread(s->left + r, rows), delta = cpu_few_spread(s->delta + r, rows);
    const float *st = s->few.listed.s;
    float *dp = s->few.dp;
    for (int64_t i = 0; i < cpu_round_up(n, CPU_FEW_STEP) * rows; i += CPU_LANES) {
        const vf p = gradient_weight(v_load(st + i), factor, base);
        const vf d_s = p * (left * v_load(dp + i) - delta);
        v_store(dp + i, v_select(few_within(i, rows, n), d_s, (vf){0}));
    }
}

/* Adds the n >= 1 keys of a list to what the set at row r has. */
static void listed_add(struct query_item *item, const struct cpu_few_shape *shape, int64_t r,
                       const struct cpu_few_rows *keys, const struct cpu_few_rows *values,
                       int32_t *list, int32_t n) {
    static const float one[4] = {1, 1, 1, 1};
    const struct problem *p = item->args->problem;
    const struct query_scratch *s = &item->s;
    const struct few *few = &s->few;
    shape->queries(s->qt + r * p->d_qk, p->d_qk, few->listed.q);
    shape->queries(s->dot + r * p->d_v, p->d_v, few->x);
    cpu_few_scores(shape, few->listed.q, keys, list, n, p->d_qk, few->listed.s);
    cpu_few_scores(shape, few->x, values, list, n, p->d_v, few->dp);
    listed_gradient(s, r, shape->rows, n);
    few_expect(few, &(struct sums *){&item->s.d_q}, 1, cpu_near(p->d_qk), r, shape->rows, n,
               cpu_lanes(item->rows));
    cpu_few_values(shape, few->dp, keys, list, n, p->d_qk, one, s->d_q.near + r * p->d_qk);
}

static void listed_run(struct query_item *item, struct walk *w, const struct cpu_head *k,
                       const struct cpu_head *v) {
    const struct problem *p = item->args->problem;
    const struct listed *found = &item->s.few.listed;
    int64_t set;
    memset(found->seen, 0, CPU_TILE_ROWS * sizeof *found->seen);
    for (int32_t n; (n = listed_next(w, p, item->rows, found, &set)) > 0;) {
        const struct cpu_few_rows keys =
            listed_rows(k, cpu_in_place(p), found->key, n, p->d_qk, item->s.k);
        const struct cpu_few_rows values =
            listed_rows(v, cpu_in_place(p), found->key, n, p->d_v, item->s.v);
        for (int32_t j = 0; p->type != TESS_F32 && j < n; j++)
            found->key[j] = j;
        for (int64_t r = 0, step = set ? set : CPU_FEW_SET; r < item->rows; r += step) {
            const int32_t listed = set ? listed_list(found, n, r) : n;
            if (listed)
                listed_add(item, few_shape(set, r, item->rows), r, &keys, &values,
                           set ? found->list : found->key, listed);
        }
    }
}

/* ---- items and combines ---- */

/* An empty query gets 0, whatever it lists. */
static void item_clear_empty(const struct query_item *item) {
    const struct kernel_args *args = item->args;
    const int64_t lanes = cpu_lanes(item->rows), d = item->s.d_q.d;
    for (int64_t r = 0; r < item->rows; r++) {
        const int64_t h = item->h + r % item->heads, q = item->first + r / item->heads;
        int64_t width = 1;
        if (gradient_of(args)->stats.base[stats_at(args->problem, item->b, h, q)] != INFINITY)
            continue;
        float *d_q = item->s.d_q.near + r * d;
        if (!item->listed)
            d_q = cpu_column(item->s.d_q.near, lanes, r, d, &width);
        for (int64_t i = 0; i < d; i++)
            d_q[i * width] = 0;
    }
}

static void item_store(struct query_item *item) {
    const struct view *to = &gradient_of(item->args)->d_q;
    const double scale = item->args->problem->scale;
    item_clear_empty(item);
    if (item->listed)
        few_store(&item->s.d_q, to, item->b, item->h, item->heads, item->first, item->rows, scale);
    else
        sums_store(&item->s.d_q, to, item->b, item->h, item->heads, item->first, item->rows, scale,
                   item->s.row);
}

/* Nothing has been added. */
static void item_begin(struct query_item *item) {
    sums_begin(&item->s.d_q, cpu_lanes(item->rows));
    for (int64_t h = 0; item->d_alibi && h < item->heads; h++)
        item->d_alibi[h] = 0;
}

/* Adds all keys of the walk. */
static void item_add(struct query_item *item, struct walk w, const struct cpu_head *k,
                     const struct cpu_head *v) {
    struct cpu_keys keys;
    item_begin(item);
    item_load(item);
    if (item->listed)
        listed_run(item, &w, k, v);
    while (walk_next(&w, &keys))
        superblock(item, &keys, k, v);
    sums_end(&item->s.d_q, cpu_lanes(item->rows));
}

#if defined(__AVX512BF16__)
/* An item by the unit of bf16_pairs.h. Answers 0 where f32 has to be taken. */
static int item_add_paired(struct query_item *item, const struct query_job *job, struct walk w,
                           const struct cpu_head *k, const struct cpu_head *v) {
    const struct kernel_args *args = item->args;
    const struct problem *p = args->problem;
    const struct cpu_head q =
        cpu_heads(&attention_of(args)->q, p->type, item->b, item->h, item->heads);
    const struct cpu_head d_o =
        cpu_heads(&gradient_of(args)->d_o, p->type, item->b, item->h, item->heads);
    const int64_t h_kv = item->h / (p->heads_q / p->heads_kv), lanes = cpu_lanes(item->rows);
    struct paired *a = &item->s.paired;
    struct sums *const sums[] = {&item->s.d_q, NULL};
    struct cpu_keys keys;
    if (item->listed || !paired_listed(args->work.lists, item->list) ||
        !paired_begin(a, &q, &d_o, item->first, item->rows, item->s.row))
        return 0;
    item_begin(item);
    paired_stream(a, job->stores.store, item->b * p->heads_kv + h_kv, k, v);
    while (walk_next(&w, &keys))
        if (!superblock_paired(item, &keys))
            return 0;
    paired_flush(a, sums, lanes);
    sums_end(&item->s.d_q, lanes);
    return !paired_faint(a, sums, item->rows, gradient_kept(p));
}
#endif

static void item_run(const void *context, int64_t number, int32_t thread) {
    const struct query_job *job = context;
    const struct kernel_args *args = job->args;
    const struct problem *p = args->problem;
    const struct work_item *work = &args->work.schedule->items[number];
    struct query_item item = item_of(job, work->batch_head, work->tile, thread);
    const int64_t h_kv = item.h / (p->heads_q / p->heads_kv);
    const struct cpu_head k = cpu_head(&attention_of(args)->k, p->type, item.b, h_kv);
    const struct cpu_head v = cpu_head(&attention_of(args)->v, p->type, item.b, h_kv);
    struct modify modify;
    item_load_stats(&item);
    if (modify_begin(&modify, args, MODIFY_SCORES | MODIFY_WEIGHTS, item.b, item.h, item.heads,
                     item.first, item.rows, LOG2_E))
        item.modify = &modify;
    if (p->gradients & TESS_GRADIENT_ALIBI)
        item.d_alibi = job->d_alibi + number * args->work.tile_heads;
    const struct walk w =
        walk_begin(args->work.lists, item.list, item.heads, work->part, work->parts);
#if defined(__AVX512BF16__)
    unit_begin();
    if (!item_add_paired(&item, job, w, &k, &v))
        item_add(&item, w, &k, &v);
    unit_end();
#else
    item_add(&item, w, &k, &v);
#endif
    if (!item.s.d_q.d)
        return;
    if (work->parts == 1)
        item_store(&item);
    else
        memcpy(slot_of(job, work->slot), item.s.d_q.near,
               (size_t)(cpu_lanes(item.rows) * item.s.d_q.d) * sizeof(float));
}

static void combine_run(const void *context, int64_t number, int32_t thread) {
    const struct query_job *job = context;
    const struct combine_item *combine = &job->args->work.schedule->combines[number];
    struct query_item item = item_of(job, combine->batch_head, combine->tile, thread);
    item_begin(&item);
    for (int32_t part = 0; part < combine->parts; part++)
        sums_fold(&item.s.d_q, cpu_lanes(item.rows), slot_of(job, combine->first_slot + part));
    sums_end(&item.s.d_q, cpu_lanes(item.rows));
    item_store(&item);
}

static void slopes_gather(const struct query_job *job) {
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
    struct query_job job;
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
