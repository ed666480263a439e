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
    struct job job;
    job_take(&c, args, &job);
    return c.overflow ? SIZE_MAX : c.used;
}

/* ---- one superblock ---- */

/* Softcap and ALiBi on scores of the keys at `lane`. */
static void scores_modify(const struct item *it, const struct part *of, int64_t lane, int vectors) {
    const struct modify *m = it->modify;
    const struct scratch *s = &it->s;
    if (m->capped) {
        gradient_slopes(m, s->st, (int64_t)of->n * vectors, s->slope);
        modify_cap(m, s->st, (int64_t)of->n * vectors);
    }
    for (int v = 0; m->biased && v < vectors; v++) {
        const vf distance = v_load_any(it->distance + lane + v * CPU_LANES);
        float *st = s->st + v * CPU_LANES;
        for (int32_t j = 0; j < of->n; j++, st += vectors * CPU_LANES)
            v_store(st, v_fma(v_set(m->slope[0]), distance - of->back[j], v_load(st)));
    }
}

/* st = left P. */
static void weights_make(const struct scratch *s, const struct part *of, int vectors) {
    const vf by = v_set(of->by);
    float *st = s->st;
    for (int32_t j = 0; j < of->n; j++) {
        const vf base = v_set(of->base[j]), left = v_set(of->left[j]);
        for (int v = 0; v < vectors; v++, st += CPU_LANES)
            v_store(st, gradient_weight(v_load(st), by, base) * left);
    }
}

/* The same, and dp = P (left dP - delta). */
static void scores_gradient(const struct scratch *s, const struct part *of, int vectors) {
    const vf by = v_set(of->by);
    float *st = s->st, *dp = s->dp;
    for (int32_t j = 0; j < of->n; j++) {
        const vf base = v_set(of->base[j]), left = v_set(of->left[j]), delta = v_set(of->delta[j]);
        for (int v = 0; v < vectors; v++, st += CPU_LANES, dp += CPU_LANES) {
            const vf p = gradient_weight(v_load(st), by, base);
            v_store(dp, p * (left * v_load(dp) - delta));
            v_store(st, p * left);
        }
    }
}

/* to *= what scores lack of scaled queries. */
static void scores_shift(float *to, const struct part *of, int vectors) {
    for (int32_t j = 0; of->factor && j < of->n; j++)
        for (int v = 0; v < vectors; v++, to += CPU_LANES)
            v_store(to, v_load(to) * of->factor[j]);
}

/* st becomes what is multiplied by dO, dp the gradient of what the scores are sums of. */
static void group_gradient(const struct item *it, const struct part *of, int64_t lane,
                           int vectors) {
    const struct scratch *s = &it->s;
    const int drops = it->modify && it->modify->drops;
    if (it->modify)
        scores_modify(it, of, lane, vectors);
    if (it->d_s) {
        if (drops)
            gradient_clear(s->dp, vectors, of->n, of->keep, lane);
        scores_gradient(s, of, vectors);
        if (of->mask)
            gradient_clear(s->dp, vectors, of->n, of->mask, 0);
        if (it->modify && it->modify->capped)
            gradient_chain(s->dp, s->slope, (int64_t)of->n * vectors);
    } else {
        weights_make(s, of, vectors);
    }
    if (s->d_v.d && drops)
        gradient_clear(s->st, vectors, of->n, of->keep, lane);
    if (s->d_v.d && of->mask)
        gradient_clear(s->st, vectors, of->n, of->mask, 0);
}

/* Adds the queries to what the keys at `lane` have. */
static void group_run(const struct item *it, struct queries *of, int64_t lane, int vectors) {
    const struct problem *p = it->args->problem;
    const struct scratch *s = &it->s;
    const struct part part = queries_part(of, 0, of->n);
    vf top[CPU_VECTORS] = {{0}};
    cpu_scores(s->kt + lane * p->d_qk, vectors, of->q, of->n, p->d_qk, s->st, top);
    scores_shift(s->st, &part, vectors);
    if (it->d_s)
        cpu_scores(s->vt + lane * p->d_v, vectors, of->d_o, of->n, p->d_v, s->dp, top);
    group_gradient(it, &part, lane, vectors);
    if (it->strip)
        rows_take(it, of, lane, vectors);
    scores_shift(s->dp, &part, vectors); /* dK's sums are over scaled queries */
    if (s->d_k.d)
        cpu_values(s->dp, vectors, of->q, of->n, p->d_qk, NULL, s->d_k.near + lane * p->d_qk);
    if (s->d_v.d)
        cpu_values(s->st, vectors, of->d_o, of->n, p->d_v, NULL, s->d_v.near + lane * p->d_v);
}

/* Distances of the tile's keys from the superblock's first query. */
static void keys_measure(struct item *it) {
    for (int64_t r = 0; it->modify && it->modify->biased && r < cpu_lanes(it->rows); r++)
        it->distance[r] = r < it->rows ? modify_distance(it->modify, (int32_t)(it->first + r)) : 0;
}

static void superblock(struct item *it, const struct cpu_keys *keys) {
    const int64_t lanes = cpu_lanes(it->rows);
    const int groups = lanes > CPU_GROUP; /* several: each may list others of the queries */
    struct queries *of = it->s.queries;
    queries_list(it, keys, of);
    if (of->n == 0)
        return;
    queries_load(it, of);
    keys_measure(it);
    sums_expect(&it->s.d_k, lanes, of->n);
    sums_expect(&it->s.d_v, lanes, of->n);
    if (it->strip && groups && of->masked)
        memset(it->s.ds, 0, (size_t)(of->n * lanes) * sizeof *it->s.ds);
    for (int64_t lane = 0; lane < lanes; lane += CPU_GROUP) {
        const int vectors = (int)(cpu_width(lanes, lane) / CPU_LANES);
        struct queries *met = of;
        if (of->masked && groups)
            queries_met(of, lane, met = it->s.met);
        if (met->n)
            group_run(it, met, lane, vectors);
    }
    if (it->strip && groups)
        rows_add(it, of, it->s.ds, lanes);
}

#if defined(__AVX512BF16__)
/* The same by the unit of bf16_pairs.h. Answers 0 where it may not have these queries. */
static int superblock_paired(struct item *it, const struct cpu_keys *keys) {
    const struct problem *p = it->args->problem;
    const struct scratch *s = &it->s;
    const int64_t lanes = cpu_lanes(it->rows);
    const int vectors = (int)(lanes / CPU_LANES);
    struct paired *a = &it->s.paired;
    struct queries *of = s->queries;
    queries_list(it, keys, of);
    if (of->n == 0)
        return 1;
    keys_measure(it);
    if (!paired_load(a, (struct sums *[]){&it->s.d_k, &it->s.d_v}, lanes, of->number, of->n))
        return 0;
    for (int32_t j = 0; j < of->n; j += PAIRS_KEYS) {
        struct part part = queries_part(of, j, (int32_t)min_i64(of->n - j, PAIRS_KEYS));
        paired_scores(a, 0, vectors, of->number, j, of->n, s->st);
        if (s->d_k.d)
            paired_scores(a, 1, vectors, of->number, j, of->n, s->dp);
        part.by = (float)(p->scale * LOG2_E);
        if (it->modify && modify_scored(it->modify)) {
            paired_scale(s->st, (int64_t)part.n * vectors, part.by);
            part.by = 1;
        }
        group_gradient(it, &part, 0, vectors);
        if (s->d_k.d)
            paired_weigh(a, 0, vectors, s->dp, j, part.n);
        if (s->d_v.d)
            paired_weigh(a, 1, vectors, s->st, j, part.n);
    }
    paired_append(a, of->n);
    return 1;
}
#endif

/* ---- items and combines ---- */

/* The queries of a superblock; answers 0 where the unit may not have them. */
static int superblock_take(struct item *it, const struct cpu_keys *keys) {
#if defined(__AVX512BF16__)
    if (it->paired)
        return superblock_paired(it, keys);
#endif
    superblock(it, keys);
    return 1;
}

/* Positions [begin, end) of a head's list; answers as superblock_take. */
static int head_run(struct item *it, int64_t h, int64_t begin, int64_t end) {
    const struct kernel_args *args = it->args;
    const int64_t head = it->b * args->problem->heads_q + h, list = args->work.list_of[head];
    const struct lists *lists = args->work.lists;
    struct walk w = walk_range(lists, list * lists->tiles + it->tile, 1, begin, end);
    struct modify modify;
    struct cpu_keys keys;
    int taken = 1;
    it->h = h;
    if (it->listed) {
        listed_run(it, &w);
        return 1;
    }
#if defined(__AVX512BF16__)
    const struct cpu_head q = cpu_head(&attention_of(args)->q, args->problem->type, it->b, h);
    const struct cpu_head d_o = cpu_head(&gradient_of(args)->d_o, args->problem->type, it->b, h);
    paired_stream(&it->s.paired, it->stores->store, head, &q, &d_o);
#endif
    it->modify =
        modify_begin(&modify, args, MODIFY_SCORES | MODIFY_WEIGHTS, it->b, h, 1, 0, 1, LOG2_E)
            ? &modify
            : NULL;
    while (taken && walk_next(&w, &keys))
        taken = superblock_take(it, &keys);
    return taken;
}

/* Sums of the item's part of the lists of all heads that read its keys, from nothing; answers as
 * superblock_take. */
static int item_add(struct item *it, const struct work_item *work) {
    const struct kernel_args *args = it->args;
    const struct problem *p = args->problem;
    const struct lists *lists = args->work.lists;
    const int64_t group = p->heads_q / p->heads_kv, lanes = cpu_lanes(it->rows);
    const int64_t *list_of = args->work.list_of + it->b * p->heads_q + it->hk * group;
    int64_t all = 0, begin, end;
    sums_begin(&it->s.d_k, lanes);
    sums_begin(&it->s.d_v, lanes);
    for (int64_t h = 0; h < group; h++)
        all += lists->keys[list_of[h] * lists->tiles + it->tile];
    schedule_part(all, work->part, work->parts, &begin, &end);
    for (int64_t h = 0; h < group; h++) {
        const int64_t n = lists->keys[list_of[h] * lists->tiles + it->tile];
        if (begin < n && end > 0 &&
            !head_run(it, it->hk * group + h, max_i64(begin, 0), min_i64(end, n)))
            return 0;
        begin -= n, end -= n;
    }
#if defined(__AVX512BF16__)
    if (it->paired)
        paired_flush(&it->s.paired, (struct sums *[]){&it->s.d_k, &it->s.d_v}, lanes);
#endif
    sums_end(&it->s.d_k, lanes);
    sums_end(&it->s.d_v, lanes);
    return 1;
}

/* Sums over queries as they were scaled, for base 2, become gradients. */
static void item_store(struct item *it) {
    const struct kernel_args *args = it->args;
    struct scratch *s = &it->s;
    const struct gradient_operands *given = gradient_of(args);
    const struct view *of[] = {&given->d_k, &given->d_v};
    struct sums *sums[] = {&s->d_k, &s->d_v};
    for (int i = 0; i < 2; i++) {
        const double scale = i == 0 ? LN_2 : 1;
        if (sums[i]->d && it->listed)
            few_store(sums[i], of[i], it->b, it->hk, 1, it->first, it->rows, scale);
        else if (sums[i]->d)
            sums_store(sums[i], of[i], it->b, it->hk, 1, it->first, it->rows, scale, s->row);
    }
}

static void item_load(struct item *it) {
    const struct kernel_args *args = it->args;
    const struct problem *p = args->problem;
    const struct scratch *s = &it->s;
    const struct cpu_head k = cpu_head(&attention_of(args)->k, p->type, it->b, it->hk);
    const struct cpu_head v = cpu_head(&attention_of(args)->v, p->type, it->b, it->hk);
    if (it->listed) {
        few_load(s->kt, &k, it->first, it->rows, p->d_qk);
        few_load(s->vt, &v, it->first, it->rows, p->d_v);
        memset(s->few.of.seen, 0, CPU_TILE_ROWS * sizeof *s->few.of.seen);
        return;
    }
    cpu_load_columns(s->kt, &k, it->first, it->rows, p->d_qk, s->row);
    if (it->d_s)
        cpu_load_columns(s->vt, &v, it->first, it->rows, p->d_v, s->row);
    if (it->strip)
        rows_begin(it);
}

#if defined(__AVX512BF16__)
/* item_add by the unit of bf16_pairs.h. Answers 0 where f32 has to be taken. */
static int item_add_paired(struct item *it, const struct work_item *work) {
    const struct kernel_args *args = it->args;
    const struct problem *p = args->problem;
    const struct cpu_head k = cpu_head(&attention_of(args)->k, p->type, it->b, it->hk);
    const struct cpu_head v = cpu_head(&attention_of(args)->v, p->type, it->b, it->hk);
    struct paired *a = &it->s.paired;
    struct sums *const sums[] = {&it->s.d_k, &it->s.d_v};
    const int64_t group = p->heads_q / p->heads_kv;
    const int64_t *list_of = args->work.list_of + it->b * p->heads_q + it->hk * group;
    int all = 0;
    for (int64_t h = 0; h < group && !all; h++)
        all = paired_listed(args->work.lists, list_of[h] * args->work.lists->tiles + it->tile);
    it->paired = all && !it->listed && paired_begin(a, &k, &v, it->first, it->rows, it->s.row);
    if (it->paired && item_add(it, work) && !paired_faint(a, sums, it->rows, gradient_kept(p))) {
        /* queries were not scaled: item_store and other parts have sums over scaled ones */
        paired_scale(sums[0]->near, cpu_lanes(it->rows) * sums[0]->d / CPU_LANES,
                     (float)(p->scale * LOG2_E));
        return 1;
    }
    it->paired = 0;
    return 0;
}
#endif

static void item_run(const void *context, int64_t number, int32_t thread) {
    const struct job *job = context;
    const struct work_item *work = &job->args->work.schedule->items[number];
    struct item it = item_of(job, work->batch_head, work->tile, thread);
    const struct scratch *s = &it.s;
    const int64_t lanes = cpu_lanes(it.rows);
    int done = 0;
#if defined(__AVX512BF16__)
    unit_begin();
    it.stores = &job->stores;
    done = item_add_paired(&it, work);
    unit_end();
#endif
    if (!done) {
        item_load(&it);
        item_add(&it, work);
    }
    if (work->parts == 1) {
        item_store(&it);
        return;
    }
    float *slot = slot_of(job, work->slot);
    memcpy(slot, s->d_k.near, (size_t)(lanes * s->d_k.d) * sizeof *slot);
    memcpy(slot + lanes * s->d_k.d, s->d_v.near, (size_t)(lanes * s->d_v.d) * sizeof *slot);
}

static void combine_run(const void *context, int64_t number, int32_t thread) {
    const struct job *job = context;
    const struct kernel_args *args = job->args;
    const struct combine_item *combine = &args->work.schedule->combines[number];
    struct item it = item_of(job, combine->batch_head, combine->tile, thread);
    const int64_t lanes = cpu_lanes(it.rows);
    sums_begin(&it.s.d_k, lanes);
    sums_begin(&it.s.d_v, lanes);
    for (int32_t part = 0; part < combine->parts; part++) {
        const float *slot = slot_of(job, combine->first_slot + part);
        sums_fold(&it.s.d_k, lanes, slot);
        sums_fold(&it.s.d_v, lanes, slot + lanes * it.s.d_k.d);
    }
    sums_end(&it.s.d_k, lanes);
    sums_end(&it.s.d_v, lanes);
    item_store(&it);
}

/* The key tiles of a strip, in their order. */
static void strip_run(const void *context, int64_t number, int32_t thread) {
    static const struct work_item whole = {.parts = 1};
    const struct job *job = context;
    const struct strips *strips = job->args->work.strips;
    const struct strip *strip = &strips->of[strips->order[number]];
    rows_forget(job, strip);
    for (int64_t tile = strip->first; tile < strip->end; tile++) {
        struct item it = item_of(job, strip->batch_head, tile, thread);
        it.strip = strip;
        it.sums = job->sums;
        it.d_s = 1;
        it.listed = 0;
        item_load(&it);
        item_add(&it, &whole);
        item_store(&it);
    }
}

tess_status CPU_NAME(gradient_keys)(const struct kernel_args *args, tess_error *error) {
    (void)error;
    struct carve c = {.base = args->workspace};
    struct job job;
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
