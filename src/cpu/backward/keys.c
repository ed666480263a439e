/*
 * dK and dV on the CPU: key tiles over packed lists of queries, keys in the lanes. The list of an
 * item is that of all query heads that read its keys, head after head. Of each superblock of
 * queries
 *
 *     S = Q . kt    dP = dO . vt    P = 2^(S - base)    dS = P (left dP - delta)
 *     dVt += (left P) . dO          dKt += dS . Q
 *
 * as docs/design/backward.md has it. Empty queries are passed over. Parts of a split tile leave
 * their sums in slots of the workspace, which a second pass adds in the order of the parts. Where the
 * plan has strips, dQ comes of the same dS (key_rows.h).
 */
#include "backward/key_rows.h"
#include "backward/keys_listed.h"

size_t CPU_NAME(gradient_keys_workspace)(const struct kernel_args *args) {
    struct carve c = {0};
    struct key_job job;
    job_take(&c, args, &job);
    return c.overflow ? SIZE_MAX : c.used;
}

/* ---- one superblock ---- */

/* Softcap and ALiBi on scores of the keys at `lane`. */
static void scores_modify(const struct key_item *item, const struct part *part, int64_t lane,
                          int vectors) {
    const struct modify *m = item->modify;
    const struct key_scratch *s = &item->s;
    if (m->capped) {
        gradient_slopes(m, s->st, (int64_t)part->n * vectors, s->slope);
        modify_cap(m, s->st, (int64_t)part->n * vectors);
    }
    for (int v = 0; m->biased && v < vectors; v++) {
        const vf distance = v_load_any(item->distance + lane + v * CPU_LANES);
        float *st = s->st + v * CPU_LANES;
        for (int32_t j = 0; j < part->n; j++, st += vectors * CPU_LANES)
            v_store(st, v_fma(v_set(m->slope[0]), distance - part->back[j], v_load(st)));
    }
}

/* st = left P. */
static void weights_make(const struct key_scratch *s, const struct part *part, int vectors) {
    const vf by = v_set(part->by);
    float *st = s->st;
    for (int32_t j = 0; j < part->n; j++) {
        const vf base = v_set(part->base[j]), left = v_set(part->left[j]);
        for (int v = 0; v < vectors; v++, st += CPU_LANES)
            v_store(st, gradient_weight(v_load(st), by, base) * left);
    }
}

/* Weights, and dp = P (left dP - delta). */
static void scores_gradient(const struct key_scratch *s, const struct part *part, int vectors) {
    const vf by = v_set(part->by);
    float *st = s->st, *dp = s->dp;
    for (int32_t j = 0; j < part->n; j++) {
        const vf base = v_set(part->base[j]), left = v_set(part->left[j]),
                 delta = v_set(part->delta[j]);
        for (int v = 0; v < vectors; v++, st += CPU_LANES, dp += CPU_LANES) {
            const vf p = gradient_weight(v_load(st), by, base);
            v_store(dp, p * (left * v_load(dp) - delta));
            v_store(st, p * left);
        }
    }
}

/* to *= what scores lack of scaled queries. */
static void scores_shift(float *to, const struct part *part, int vectors) {
    for (int32_t j = 0; part->factor && j < part->n; j++)
        for (int v = 0; v < vectors; v++, to += CPU_LANES)
            v_store(to, v_load(to) * part->factor[j]);
}

/* st becomes what is multiplied by dO, dp the gradient of what the scores are sums of. */
static void group_gradient(const struct key_item *item, const struct part *part, int64_t lane,
                           int vectors) {
    const struct key_scratch *s = &item->s;
    const int drops = item->modify && item->modify->drops;
    if (item->modify)
        scores_modify(item, part, lane, vectors);
    if (item->d_s) {
        if (drops)
            gradient_clear(s->dp, vectors, part->n, part->keep, lane);
        scores_gradient(s, part, vectors);
        if (part->mask)
            gradient_clear(s->dp, vectors, part->n, part->mask, 0);
        if (item->modify && item->modify->capped)
            gradient_chain(s->dp, s->slope, (int64_t)part->n * vectors);
    } else {
        weights_make(s, part, vectors);
    }
    if (s->d_v.d && drops)
        gradient_clear(s->st, vectors, part->n, part->keep, lane);
    if (s->d_v.d && part->mask)
        gradient_clear(s->st, vectors, part->n, part->mask, 0);
}

/* Adds the queries to what the keys at `lane` have. */
static void group_run(const struct key_item *item, struct queries *queries, int64_t lane,
                      int vectors) {
    const struct problem *p = item->args->problem;
    const struct key_scratch *s = &item->s;
    const struct part part = queries_part(queries, 0, queries->n);
    vf top[CPU_VECTORS] = {{0}};
    cpu_scores(s->kt + lane * p->d_qk, vectors, queries->q, queries->n, p->d_qk, s->st, top);
    scores_shift(s->st, &part, vectors);
    if (item->d_s)
        cpu_scores(s->vt + lane * p->d_v, vectors, queries->d_o, queries->n, p->d_v, s->dp, top);
    group_gradient(item, &part, lane, vectors);
    if (item->strip)
        rows_take(item, queries, lane, vectors);
    scores_shift(s->dp, &part, vectors); /* dK's sums are over scaled queries */
    if (s->d_k.d)
        cpu_values(s->dp, vectors, queries->q, queries->n, p->d_qk, NULL,
                   s->d_k.near + lane * p->d_qk);
    if (s->d_v.d)
        cpu_values(s->st, vectors, queries->d_o, queries->n, p->d_v, NULL,
                   s->d_v.near + lane * p->d_v);
}

/* Distances of the tile's keys from the superblock's first query. */
static void keys_measure(struct key_item *item) {
    for (int64_t r = 0; item->modify && item->modify->biased && r < cpu_lanes(item->rows); r++)
        item->distance[r] =
            r < item->rows ? modify_distance(item->modify, (int32_t)(item->first + r)) : 0;
}

static void superblock(struct key_item *item, const struct cpu_keys *keys) {
    const int64_t lanes = cpu_lanes(item->rows);
    const int groups = lanes > CPU_GROUP; /* several: each may list others of the queries */
    struct queries *queries = item->s.queries;
    queries_list(item, keys, queries);
    if (queries->n == 0)
        return;
    queries_load(item, queries);
    keys_measure(item);
    sums_expect(&item->s.d_k, lanes, queries->n);
    sums_expect(&item->s.d_v, lanes, queries->n);
    if (item->strip && groups && queries->masked)
        memset(item->s.ds, 0, (size_t)(queries->n * lanes) * sizeof *item->s.ds);
    for (int64_t lane = 0; lane < lanes; lane += CPU_GROUP) {
        const int vectors = (int)(cpu_width(lanes, lane) / CPU_LANES);
        struct queries *met = queries;
        if (queries->masked && groups)
            queries_met(queries, lane, met = item->s.met);
        if (met->n)
            group_run(item, met, lane, vectors);
    }
    if (item->strip && groups)
        rows_add(item, queries, item->s.ds, lanes);
}

#if defined(__AVX512BF16__)
/* A superblock by the unit of bf16_pairs.h. Answers 0 where it may not have these queries. */
static int superblock_paired(struct key_item *item, const struct cpu_keys *keys) {
    const struct problem *p = item->args->problem;
    const struct key_scratch *s = &item->s;
    const int64_t lanes = cpu_lanes(item->rows);
    const int vectors = (int)(lanes / CPU_LANES);
    struct paired *a = &item->s.paired;
    struct queries *queries = s->queries;
    queries_list(item, keys, queries);
    if (queries->n == 0)
        return 1;
    keys_measure(item);
    if (!paired_load(a, (struct sums *[]){&item->s.d_k, &item->s.d_v}, lanes, queries->number,
                     queries->n))
        return 0;
    for (int32_t j = 0; j < queries->n; j += PAIRS_KEYS) {
        struct part part = queries_part(queries, j, (int32_t)min_i64(queries->n - j, PAIRS_KEYS));
        paired_scores(a, 0, vectors, queries->number, j, queries->n, s->st);
        if (s->d_k.d)
            paired_scores(a, 1, vectors, queries->number, j, queries->n, s->dp);
        part.by = (float)(p->scale * LOG2_E);
        if (item->modify && modify_scored(item->modify)) {
            paired_scale(s->st, (int64_t)part.n * vectors, part.by);
            part.by = 1;
        }
        group_gradient(item, &part, 0, vectors);
        if (s->d_k.d)
            paired_weigh(a, 0, vectors, s->dp, j, part.n);
        if (s->d_v.d)
            paired_weigh(a, 1, vectors, s->st, j, part.n);
    }
    paired_append(a, queries->n);
    return 1;
}
#endif

/* ---- items and combines ---- */

/* The queries of a superblock; answers 0 where the unit may not have them. */
static int superblock_take(struct key_item *item, const struct cpu_keys *keys) {
#if defined(__AVX512BF16__)
    if (item->paired)
        return superblock_paired(item, keys);
#endif
    superblock(item, keys);
    return 1;
}

/* Positions [begin, end) of a head's list; answers as superblock_take. */
static int head_run(struct key_item *item, int64_t h, int64_t begin, int64_t end) {
    const struct kernel_args *args = item->args;
    const int64_t head = item->b * args->problem->heads_q + h, list = args->work.list_of[head];
    const struct lists *lists = args->work.lists;
    struct walk w = walk_range(lists, list * lists->tiles + item->tile, 1, begin, end);
    struct modify modify;
    struct cpu_keys keys;
    int taken = 1;
    item->h = h;
    if (item->listed) {
        listed_run(item, &w);
        return 1;
    }
#if defined(__AVX512BF16__)
    const struct cpu_head q = cpu_head(&attention_of(args)->q, args->problem->type, item->b, h);
    const struct cpu_head d_o = cpu_head(&gradient_of(args)->d_o, args->problem->type, item->b, h);
    paired_stream(&item->s.paired, item->stores->store, head, &q, &d_o);
#endif
    item->modify =
        modify_begin(&modify, args, MODIFY_SCORES | MODIFY_WEIGHTS, item->b, h, 1, 0, 1, LOG2_E)
            ? &modify
            : NULL;
    while (taken && walk_next(&w, &keys))
        taken = superblock_take(item, &keys);
    return taken;
}

/* Sums of the item's part of the lists of all heads that read its keys, from nothing; answers as
 * superblock_take. */
static int item_add(struct key_item *item, const struct work_item *work) {
    const struct kernel_args *args = item->args;
    const struct problem *p = args->problem;
    const struct lists *lists = args->work.lists;
    const int64_t group = p->heads_q / p->heads_kv, lanes = cpu_lanes(item->rows);
    const int64_t *list_of = args->work.list_of + item->b * p->heads_q + item->hk * group;
    int64_t all = 0, begin, end;
    sums_begin(&item->s.d_k, lanes);
    sums_begin(&item->s.d_v, lanes);
    for (int64_t h = 0; h < group; h++)
        all += lists->keys[list_of[h] * lists->tiles + item->tile];
    schedule_part(all, work->part, work->parts, &begin, &end);
    for (int64_t h = 0; h < group; h++) {
        const int64_t n = lists->keys[list_of[h] * lists->tiles + item->tile];
        if (begin < n && end > 0 &&
            !head_run(item, item->hk * group + h, max_i64(begin, 0), min_i64(end, n)))
            return 0;
        begin -= n, end -= n;
    }
#if defined(__AVX512BF16__)
    if (item->paired)
        paired_flush(&item->s.paired, (struct sums *[]){&item->s.d_k, &item->s.d_v}, lanes);
#endif
    sums_end(&item->s.d_k, lanes);
    sums_end(&item->s.d_v, lanes);
    return 1;
}

/* Sums over queries as they were scaled, for base 2, become gradients. */
static void item_store(struct key_item *item) {
    const struct kernel_args *args = item->args;
    struct key_scratch *s = &item->s;
    const struct gradient_operands *given = gradient_of(args);
    const struct view *to[] = {&given->d_k, &given->d_v};
    struct sums *sums[] = {&s->d_k, &s->d_v};
    for (int i = 0; i < 2; i++) {
        const double scale = i == 0 ? LN_2 : 1;
        if (sums[i]->d && item->listed)
            few_store(sums[i], to[i], item->b, item->hk, 1, item->first, item->rows, scale);
        else if (sums[i]->d)
            sums_store(sums[i], to[i], item->b, item->hk, 1, item->first, item->rows, scale,
                       s->row);
    }
}

static void item_load(struct key_item *item) {
    const struct kernel_args *args = item->args;
    const struct problem *p = args->problem;
    const struct key_scratch *s = &item->s;
    const struct cpu_head k = cpu_head(&attention_of(args)->k, p->type, item->b, item->hk);
    const struct cpu_head v = cpu_head(&attention_of(args)->v, p->type, item->b, item->hk);
    if (item->listed) {
        few_load(s->kt, &k, item->first, item->rows, p->d_qk);
        few_load(s->vt, &v, item->first, item->rows, p->d_v);
        memset(s->few.listed.seen, 0, CPU_TILE_ROWS * sizeof *s->few.listed.seen);
        return;
    }
    cpu_load_columns(s->kt, &k, item->first, item->rows, p->d_qk, s->row);
    if (item->d_s)
        cpu_load_columns(s->vt, &v, item->first, item->rows, p->d_v, s->row);
    if (item->strip)
        rows_begin(item);
}

#if defined(__AVX512BF16__)
/* item_add by the unit of bf16_pairs.h. Answers 0 where f32 has to be taken. */
static int item_add_paired(struct key_item *item, const struct work_item *work) {
    const struct kernel_args *args = item->args;
    const struct problem *p = args->problem;
    const struct cpu_head k = cpu_head(&attention_of(args)->k, p->type, item->b, item->hk);
    const struct cpu_head v = cpu_head(&attention_of(args)->v, p->type, item->b, item->hk);
    struct paired *a = &item->s.paired;
    struct sums *const sums[] = {&item->s.d_k, &item->s.d_v};
    const int64_t group = p->heads_q / p->heads_kv;
    const int64_t *list_of = args->work.list_of + item->b * p->heads_q + item->hk * group;
    int all = 0;
    for (int64_t h = 0; h < group && !all; h++)
        all = paired_listed(args->work.lists, list_of[h] * args->work.lists->tiles + item->tile);
    item->paired =
        all && !item->listed && paired_begin(a, &k, &v, item->first, item->rows, item->s.row);
    if (item->paired && item_add(item, work) &&
        !paired_faint(a, sums, item->rows, gradient_kept(p))) {
        /* queries were not scaled: item_store and other parts have sums over scaled ones */
        paired_scale(sums[0]->near, cpu_lanes(item->rows) * sums[0]->d / CPU_LANES,
                     (float)(p->scale * LOG2_E));
        return 1;
    }
    item->paired = 0;
    return 0;
}
#endif

static void item_run(const void *context, int64_t number, int32_t thread) {
    const struct key_job *job = context;
    const struct work_item *work = &job->args->work.schedule->items[number];
    struct key_item item = item_of(job, work->batch_head, work->tile, thread);
    const struct key_scratch *s = &item.s;
    const int64_t lanes = cpu_lanes(item.rows);
    int done = 0;
#if defined(__AVX512BF16__)
    unit_begin();
    item.stores = &job->stores;
    done = item_add_paired(&item, work);
    unit_end();
#endif
    if (!done) {
        item_load(&item);
        item_add(&item, work);
    }
    if (work->parts == 1) {
        item_store(&item);
        return;
    }
    float *slot = slot_of(job, work->slot);
    memcpy(slot, s->d_k.near, (size_t)(lanes * s->d_k.d) * sizeof *slot);
    memcpy(slot + lanes * s->d_k.d, s->d_v.near, (size_t)(lanes * s->d_v.d) * sizeof *slot);
}

static void combine_run(const void *context, int64_t number, int32_t thread) {
    const struct key_job *job = context;
    const struct kernel_args *args = job->args;
    const struct combine_item *combine = &args->work.schedule->combines[number];
    struct key_item item = item_of(job, combine->batch_head, combine->tile, thread);
    const int64_t lanes = cpu_lanes(item.rows);
    sums_begin(&item.s.d_k, lanes);
    sums_begin(&item.s.d_v, lanes);
    for (int32_t part = 0; part < combine->parts; part++) {
        const float *slot = slot_of(job, combine->first_slot + part);
        sums_fold(&item.s.d_k, lanes, slot);
        sums_fold(&item.s.d_v, lanes, slot + lanes * item.s.d_k.d);
    }
    sums_end(&item.s.d_k, lanes);
    sums_end(&item.s.d_v, lanes);
    item_store(&item);
}

/* The key tiles of a strip, in their order. */
static void strip_run(const void *context, int64_t number, int32_t thread) {
    static const struct work_item whole = {.parts = 1};
    const struct key_job *job = context;
    const struct strips *strips = job->args->work.strips;
    const struct strip *strip = &strips->strip[strips->order[number]];
    rows_forget(job, strip);
    for (int64_t tile = strip->first; tile < strip->end; tile++) {
        struct key_item item = item_of(job, strip->batch_head, tile, thread);
        item.strip = strip;
        item.sums = job->sums;
        item.d_s = 1;
        item.listed = 0;
        item_load(&item);
        item_add(&item, &whole);
        item_store(&item);
    }
}

tess_status CPU_NAME(gradient_keys)(const struct kernel_args *args, tess_error *error) {
    (void)error;
    struct carve c = {.base = args->workspace};
    struct key_job job;
    job_take(&c, args, &job);
#if defined(__AVX512BF16__)
    paired_stores_make(&job.stores);
#endif
    if (args->work.strips) {
        cpu_for_each(args, args->work.strips->n, strip_run, &job);
        cpu_for_each(args, rows_chunks(args), rows_run, &job);
        return TESS_OK;
    }
    cpu_for_each(args, args->work.schedule->n_items, item_run, &job);
    cpu_for_each(args, args->work.schedule->n_combines, combine_run, &job);
    return TESS_OK;
}
