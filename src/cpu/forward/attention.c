/*
 * Fused attention on the CPU: online softmax over a query tile's packed list. A work item is one tile, or
 * one part of a tile whose list is split. A part leaves its state in a slot of the workspace; a second
 * pass combines slots in the order of the parts.
 *
 * Scores are in base 2: scale * log2(e) is folded into the queries. Nothing stands in for -Inf:
 * where a row's maximum is -Inf, 0 is subtracted, so that its weights are exactly 0.
 */
#include "forward/base.h"

size_t CPU_NAME(attention_workspace)(const struct kernel_args *args) {
    struct carve c = {0};
    struct forward_job job;
    job_take(&c, args, &job);
    return c.overflow ? SIZE_MAX : c.used;
}

/* ---- one superblock ---- */

/* Adds n >= 1 keys to what the lanes of a group have seen. mask NULL: every lane lists them all;
 * factor NULL: all 1; number: of keys in the superblock, NULL: 0, 1, ... */
static void group_run(const struct forward_item *item, int64_t lane, int vectors, const float **key,
                      const float **value, tess_type type, int32_t n, const uint64_t *mask,
                      const int32_t *number) {
    const struct problem *p = item->args->problem;
    const struct forward_scratch *s = &item->s;
    const float *factor = item->shifted ? s->factor + lane : NULL;
    const int scored = item->modify && modify_scored(item->modify);
    float *m = s->near.m + lane, *l = s->near.l + lane;
    vf top[CPU_VECTORS], seen[CPU_VECTORS], base[CPU_VECTORS], alpha[CPU_VECTORS];
    vf sum[CPU_VECTORS];
    for (int v = 0; v < vectors; v++)
        top[v] = seen[v] = v_load(m + v * CPU_LANES);
    rows_scores(s->qt + lane * p->d_qk, vectors, key, type, n, p->d_qk, s->k, s->st, seen);
    if (factor)
        cpu_multiply(s->st, vectors, n, factor);
    if (scored)
        modify_scores(item->modify, s->st, lane, vectors, n, number);
    if (mask)
        st_mask(s->st, vectors, n, mask);
    if (factor || scored || mask)
        st_max(s->st, vectors, n, top);
    lanes_raise(m, vectors, factor || scored || mask ? top : seen, base, alpha);
    cpu_shapes[vectors - 1].weigh(s->st, n, base, value, sum);
    if (item->modify && item->modify->drops)
        modify_weights(item->modify, s->st, lane, vectors, n, number);
    for (int v = 0; v < vectors; v++)
        v_store(l + v * CPU_LANES, v_fma(alpha[v], v_load(l + v * CPU_LANES), sum[v]));
    rows_values(s->st, vectors, value, type, n, p->d_v, s->v, alpha, s->near.ot + lane * p->d_v);
}

#if defined(__AVX512BF16__)
/* Takes maxima: what is subtracted from scores now. Where some lane's moves, all that was added is
 * multiplied for it. */
static void pairs_raise(struct forward_item *item, int vectors, float factor, vf *top, vf *base) {
    const struct near *near = &item->s.near;
    vf alpha[CPU_VECTORS];
    uint32_t moves = 0;
    for (int i = 0; i < vectors; i++) {
        const vf m = v_load(near->m + i * CPU_LANES);
        top[i] = pairs_follow(top[i] * factor, m);
        base[i] = base_of(m);
        moves |= _mm512_cmp_ps_mask((__m512)top[i], (__m512)m, _CMP_NEQ_UQ);
    }
    if (!moves)
        return;
    item_flush(item);
    lanes_raise(near->m, vectors, top, base, alpha);
    for (int i = 0; i < vectors; i++)
        v_store(near->l + i * CPU_LANES, alpha[i] * v_load(near->l + i * CPU_LANES));
    pairs_rescale(vectors, item->args->problem->d_v, alpha, near->ot);
}

/* Applies what a run has of score modifiers to keys j ... j + n - 1 of a superblock. */
static void pairs_modify(const struct modify *m, float factor, float *st, int vectors, int32_t j,
                         int32_t n) {
    const vf by = v_set(factor);
    int32_t number[PAIRS_KEYS];
    for (int64_t i = 0; i < n * vectors * CPU_LANES; i += CPU_LANES)
        v_store(st + i, v_load(st + i) * by);
    for (int32_t i = 0; i < n; i++)
        number[i] = j + i;
    modify_scores(m, st, 0, vectors, n, number);
}

/* Weights of n keys in pairs: 0 where they are dropped. */
static void pairs_drop(const struct modify *m, uint32_t *pt, int vectors, int32_t n) {
    for (int32_t j = 0; j < n; j += 2) {
        const uint64_t low = m->keep[j], high = j + 1 < n ? m->keep[j + 1] : 0;
        for (int64_t lane = 0; lane < vectors * CPU_LANES; lane++)
            *pt++ &= (uint32_t)(0 - (low >> lane & 1)) >> 16 | (uint32_t)(0 - (high >> lane & 1))
                                                                   << 16;
    }
}

/* st of keys j ... j + 31 of a superblock. */
static void pairs_scores(const struct pairs *a, int vectors, const struct cpu_head *k,
                         struct cpu_keys *keys, int32_t j, int64_t d, float *st) {
    int32_t number[PAIRS_KEYS];
    if (!k->rope) {
        unit_scores(a->qp, a->k, vectors, k, keys->key, j, keys->n, d, st);
        return;
    }
    const struct cpu_head joined =
        pairs_join(a, k, keys->key + j, least(keys->n - j, PAIRS_KEYS, PAIRS_KEYS), d, number);
    unit_scores(a->qp, a->k, vectors, &joined, number, 0, PAIRS_KEYS, d, st);
}

/* A walk by the unit of bf16_pairs.h. Answers 0 where it is not fit for these values. */
static int pairs_run(struct forward_item *item, struct cpu_keys *keys, const struct cpu_head *k,
                     const struct cpu_head *v) {
    const struct problem *p = item->args->problem;
    const struct forward_scratch *s = &item->s;
    struct pairs_values values;
    const int vectors = (int)(cpu_lanes(item->rows) / CPU_LANES);
    const int scored = item->modify && modify_scored(item->modify);
    const float factor = scored ? 1 : pairs_factor(p);
    vf top[CPU_VECTORS], base[CPU_VECTORS], sum[CPU_VECTORS];
    if (!(pairs_load_values(s->pairs.vt, &item->store, v, keys->key, keys->n, p->d_v,
                            pairs_of_values, &values) &
          PAIRS_FIT))
        return 0;
    for (int i = 0; i < vectors; i++)
        top[i] = v_set(-INFINITY);
    for (int32_t j = 0; j < keys->n; j += PAIRS_KEYS) { /* a matrix unit works on meanwhile */
        const int32_t n = keys->n - j < PAIRS_KEYS ? keys->n - j : PAIRS_KEYS;
        float *st = s->st + j * vectors * CPU_LANES;
        pairs_scores(&s->pairs, vectors, k, keys, j, p->d_qk, st);
        if (scored)
            pairs_modify(item->modify, pairs_factor(p), st, vectors, j, n);
        if (keys->masked)
            st_mask(st, vectors, n, keys->mask + j);
        st_max(st, vectors, n, top);
    }
    pairs_raise(item, vectors, factor, top, base);
    uint32_t *pt = pairs_next(&s->pairs, &item->batch, vectors);
    pairs_weigh(pt, s->st, keys->n, factor, base, vectors, sum);
    if (item->modify && item->modify->drops)
        pairs_drop(item->modify, pt, vectors, keys->n);
    for (int i = 0; i < vectors; i++) {
        float *l = s->near.l + i * CPU_LANES;
        v_store(l, v_load(l) + sum[i]);
    }
    pairs_append(&item->batch, &values, keys->n);
    if (values.packed) /* into scratch that the next superblock needs */
        item_flush(item);
    return 1;
}
#endif

static void superblock(struct forward_item *item, struct cpu_keys *keys, const struct cpu_head *k,
                       const struct cpu_head *v) {
    const struct problem *p = item->args->problem;
    const struct forward_scratch *s = &item->s;
    const int64_t lanes = cpu_lanes(item->rows);
    const float *k_row[CPU_ROWS], *v_row[CPU_ROWS], *group_k[CPU_ROWS], *group_v[CPU_ROWS];
    uint64_t mask[CPU_KEYS];
    int32_t number[CPU_KEYS];
    if (item->modify)
        modify_keys(item->modify, keys->key, keys->n);
#if defined(__AVX512BF16__)
    if (item->paired && pairs_run(item, keys, k, v))
        return;
#endif
    item_flush(item);
    const int alike = cpu_alike(p);
    const tess_type type = lanes > CPU_GROUP || !alike ? TESS_F32 : p->caches.k_type;
    cpu_rows(k_row, k, keys->key, keys->n);
    cpu_rows(v_row, v, keys->key, keys->n);
    cpu_prefetch_take(item->queue, item->left, v_row + keys->n);
    if (type != p->caches.k_type || !alike) { /* for all groups at once */
        cpu_convert_keys(k_row, k, keys->key, keys->n, p->d_qk, s->k);
        cpu_convert_keys(v_row, v, keys->key, keys->n, p->d_v, s->v);
    }
    for (int64_t lane = 0; lane < lanes; lane += CPU_GROUP) {
        const int vectors = (int)(cpu_width(lanes, lane) / CPU_LANES);
        if (!keys->masked) {
            group_run(item, lane, vectors, k_row, v_row, type, keys->n, NULL, NULL);
            continue;
        }
        int32_t n = group_keys(keys, k_row, v_row, lane, group_k, group_v, mask, number);
        if (n)
            group_run(item, lane, vectors, group_k, group_v, type, n, mask, number);
    }
}

/* ---- items and combines ---- */

static float lse_of(float m, double l) {
    return l == 0 ? -INFINITY : (float)(((double)m + log2(l)) * LN_2);
}

/* Destination of the lse of an item's row r, if it is wanted. */
static float *item_lse(const struct forward_item *item, int64_t r) {
    const struct view *view = &attention_of(item->args)->lse;
    const struct cpu_lse lse = cpu_lse(view, item->b, item->h, item->first);
    return lse.data + r / item->heads * lse.stride + r % item->heads * view->stride[1];
}

static struct cpu_head item_rest(const struct forward_item *item) {
    return cpu_heads(&attention_of(item->args)->o_rest, item->args->problem->type, item->b, item->h,
                     item->heads);
}

/* Divides by the sums and writes the rows. */
static void tile_finish(const struct forward_item *item, const struct state *s, float *row) {
    const struct kernel_args *args = item->args;
    const struct attention_operands *given = attention_of(args);
    const int64_t d = args->problem->d_v, lanes = cpu_lanes(item->rows);
    for (int64_t lane = 0; lane < lanes; lane += CPU_LANES) {
        int64_t width;
        float *o = cpu_column(s->ot, lanes, lane, d, &width);
        const int64_t some = min_i64(item->rows - lane, CPU_LANES);
        float base[CPU_LANES];
        vf own = v_set(INFINITY);
        for (int64_t i = 0; i < some; i++) {
            const struct base_shares shares =
                base_join(item, lane + i, &s->m[lane + i], &s->l[lane + i]);
            own[i] = shares.own, base[i] = shares.base;
        }
        vi empty = (vi)(own == v_set(INFINITY));
        for (int64_t i = 0; i < d * width; i += width)
            v_store(o + i, v_select(empty, (vf){0}, v_load(o + i) * own));
        for (int64_t i = 0; i < some; i++)
            base_add(o + i, width, item, lane + i, base[i], row);
    }
    struct cpu_head o = cpu_heads(&given->o, given->o.type, item->b, item->h, item->heads);
    cpu_store_outputs(&o, item->first, item->rows, d, s->ot, row);
    if (given->o_rest.data) {
        struct cpu_head rest = item_rest(item);
        cpu_store_rest(&rest, &o, item->first, item->rows, d, s->ot, row);
    }
    for (int64_t r = 0; given->lse.data && r < item->rows; r++)
        *item_lse(item, r) = lse_of(s->m[r], s->l[r]);
}

static struct forward_item item_begin(const struct forward_job *job, const struct work_item *work,
                                      int32_t thread) {
    const struct kernel_args *args = job->args;
    const struct problem *p = args->problem;
    const int64_t head = work->batch_head * args->work.tile_heads;
    struct forward_item item = {.args = args,
                                .s = thread_scratch(job, thread),
                                .b = head / p->heads_q,
                                .h = head % p->heads_q,
                                .heads = args->work.tile_heads,
                                .tile =
                                    args->work.list_of[head] * args->work.lists->tiles + work->tile,
                                .first = args->work.lists->tile_row[work->tile]};
    const int64_t queries = args->work.lists->tile_row[work->tile + 1] - item.first;
    item.rows = queries * item.heads;
    struct cpu_head q = cpu_heads(&attention_of(args)->q, p->type, item.b, item.h, item.heads);
    const struct cpu_head q_rope =
        cpu_heads(&attention_of(args)->q_rope, p->type, item.b, item.h, item.heads);
    q.rope = p->rope_dims ? &q_rope : NULL;
    q.rope_dims = p->rope_dims;
    item.listed = listed_pays(p, args->work.lists, item.tile, queries, item.heads);
#if defined(__AVX512BF16__)
    const int64_t h_kv = item.h / (p->heads_q / p->heads_kv);
    item.paired = pairs_load_lanes(item.s.pairs.qp, &q, item.first, item.rows, p->d_qk,
                                   p->scale < 0, pairs_queries, item.s.row);
    item.listed &= !item.paired;
    item.store = pairs_store_of(&job->store, item.b * p->heads_kv + h_kv);
#endif
    item.out = work->parts > 1 ? slot_state(job, work->slot) : item.s.state;
    if (item.listed)
        cpu_load_query_rows(item.s.qt, item.s.factor, &q, item.first, item.rows, p->d_qk,
                            p->scale * LOG2_E);
    else
        item.shifted = cpu_load_queries(item.s.qt, item.s.factor, &q, item.first, item.rows,
                                        p->d_qk, p->scale * LOG2_E, item.s.row);
    near_clear(&item.s.near, cpu_lanes(item.rows), p->d_v);
    return item;
}

static void item_fold(struct forward_item *item, int last) {
    const int64_t d = item->args->problem->d_v, lanes = cpu_lanes(item->rows);
    const struct state *state = &item->s.state;
    item_flush(item);
    near_fold(last ? &item->out : state, state, item->s.low, &item->s.near, lanes, d,
              item->folded++, last);
}

/* An item that was never folded. */
static void item_finish(struct forward_item *item) {
    item_flush(item);
    struct state seen = {item->s.near.m, item->s.near.ot, item->s.state.l};
    for (int64_t r = 0; r < cpu_lanes(item->rows); r++)
        seen.l[r] = (double)item->s.near.l[r];
    tile_finish(item, &seen, item->s.row);
}

/* Rows of o and lse as they stand, from sums in f32 or double. */
static void listed_finish(const struct forward_item *item, const struct listed_tile *t) {
    const struct kernel_args *args = item->args;
    const struct attention_operands *given = attention_of(args);
    const int64_t d = args->problem->d_v;
    struct cpu_head o = cpu_heads(&given->o, given->o.type, item->b, item->h, item->heads);
    struct cpu_head rest = item_rest(item);
    for (int64_t r = 0; r < item->rows; r++) {
        double l = t->folded ? t->state.l[r] : (double)t->near.l[r];
        float m = (t->folded ? t->state.m : t->near.m)[r];
        const struct base_shares shares = base_join(item, r, &m, &l);
        const vf factor = v_set(shares.own);
        const vi empty = (vi)(factor == v_set(INFINITY));
        float *row = (t->folded ? t->state.ot : t->near.ot) + r * d;
        for (int64_t i = 0; i < d; i += CPU_LANES) {
            vf x = v_load(row + i);
            if (t->folded)
                x += v_load(t->low + r * d + i);
            v_store(row + i, v_select(empty, (vf){0}, x * factor));
        }
        base_add(row, 1, item, r, shares.base, item->s.row);
        cpu_row_from_f32(cpu_row(&o, item->first, r), row, o.type, d);
        if (given->o_rest.data)
            cpu_row_rest(cpu_row(&rest, item->first, r), cpu_row(&o, item->first, r), o.type, row,
                         d);
        if (given->lse.data)
            *item_lse(item, r) = lse_of(m, l);
    }
}

static void listed_compute(const struct forward_item *item, struct walk *w,
                           const struct cpu_head *k, const struct cpu_head *v, int32_t parts) {
    const struct forward_scratch *s = &item->s;
    struct listed_tile t = {.p = item->args->problem,
                            .s = &s->listed,
                            .near = s->near,
                            .state = item->out,
                            .low = s->low,
                            .q = s->qt,
                            .factor = s->factor,
                            .modify = item->modify,
                            .rows = item->rows};
    int64_t set;
    memset(t.s->seen, 0, CPU_TILE_ROWS * sizeof *t.s->seen);
    for (int32_t n; (n = listed_next(w, t.p, t.rows, t.s, &set)) > 0;)
        listed_superblock(&t, n, set, k, v, s->k, s->v);
    if (parts > 1) {
        listed_leave(&t);
        return;
    }
    if (t.folded)
        listed_fold(&t, 0, t.rows);
    listed_finish(item, &t);
}

static void item_compute(const struct forward_job *job, int64_t number, int32_t thread) {
    const struct kernel_args *args = job->args;
    const struct problem *p = args->problem;
    const struct work_item *work = &args->work.schedule->items[number];
    struct forward_item item = item_begin(job, work, thread);
    struct modify modify;
    if (modify_begin(&modify, args, MODIFY_SCORES | MODIFY_WEIGHTS, item.b, item.h, item.heads,
                     item.first, item.rows, LOG2_E))
        item.modify = &modify;
    const int64_t h_kv = item.h / (p->heads_q / p->heads_kv);
    struct cpu_head k_rope;
    const struct cpu_head k = cpu_cache_k(args, item.b, h_kv, &k_rope);
    const struct cpu_head v = cpu_cache_v(args, item.b, h_kv);
    struct cpu_keys keys;
    struct walk w = walk_begin(args->work.lists, item.tile, item.heads, work->part, work->parts);
    w.paged = k.table ? &k : NULL;
    if (item.listed) {
        listed_compute(&item, &w, &k, &v, work->parts);
        return;
    }
    const struct view *to = &attention_of(args)->o;
    const struct cpu_head o = cpu_heads(to, to->type, item.b, item.h, item.heads);
    struct cpu_prefetch queue;
    item.queue = &queue;
    cpu_prefetch_fill(&queue, args, number, &o, item.first, item.rows);
    if (w.left >= CPU_NEAR && cpu_near(p->d_v) == CPU_NEAR)
        w.most = CPU_KEYS;
    for (int64_t done = 0; walk_next(&w, &keys); done++) {
        if (done && done % (cpu_near(p->d_v) / w.most) == 0)
            item_fold(&item, 0);
        item.left = (w.left + w.most - 1) / w.most;
        superblock(&item, &keys, &k, &v);
    }
    if (work->parts == 1 && !item.folded) {
        item_finish(&item);
        return;
    }
    item_fold(&item, 1);
    if (work->parts == 1)
        tile_finish(&item, &item.out, item.s.row);
}

#if defined(__AVX512BF16__)
#define STORE_GROUPS 8 /* at a time */

static void store_run(const void *context, int64_t number, int32_t thread) {
    const struct forward_job *job = context;
    const struct problem *p = job->args->problem;
    const int64_t groups = job->store.groups;
    const int64_t pieces = (groups + STORE_GROUPS - 1) / STORE_GROUPS;
    const int64_t head = number / pieces, first = number % pieces * STORE_GROUPS;
    struct cpu_head v =
        cpu_head(&attention_of(job->args)->v, p->type, head / p->heads_kv, head % p->heads_kv);
    struct pairs_store store = pairs_store_of(&job->store, head);
    (void)thread;
    pairs_store_fill(&store, &v, first,
                     groups - first < STORE_GROUPS ? groups - first : STORE_GROUPS, p->d_v,
                     pairs_of_values);
}
#endif

static void item_run(const void *context, int64_t number, int32_t thread) {
#if defined(__AVX512BF16__)
    unit_begin();
    item_compute(context, number, thread);
    unit_end();
#else
    item_compute(context, number, thread);
#endif
}

static void combine_run(const void *context, int64_t number, int32_t thread) {
    const struct forward_job *job = context;
    const struct kernel_args *args = job->args;
    const struct problem *p = args->problem;
    const struct combine_item *combine = &args->work.schedule->combines[number];
    const int64_t head = combine->batch_head * args->work.tile_heads;
    struct forward_scratch s = thread_scratch(job, thread);
    struct forward_item item = {.args = args,
                                .b = head / p->heads_q,
                                .h = head % p->heads_q,
                                .heads = args->work.tile_heads,
                                .first = args->work.lists->tile_row[combine->tile]};
    item.rows = (args->work.lists->tile_row[combine->tile + 1] - item.first) * item.heads;
    const struct state sum = slot_state(job, combine->first_slot);
    for (int32_t part = 1; part < combine->parts; part++) {
        const struct state state = slot_state(job, combine->first_slot + part);
        state_merge(&sum, &sum, s.low, &state, cpu_lanes(item.rows), p->d_v, part,
                    part + 1 == combine->parts);
    }
    tile_finish(&item, &sum, s.row);
}

tess_status CPU_NAME(attention)(const struct kernel_args *args, tess_error *error) {
    (void)error;
    struct carve c = {.base = args->workspace};
    struct forward_job job;
    job_take(&c, args, &job);
#if defined(__AVX512BF16__)
    cpu_for_each(args,
                 args->problem->batch * args->problem->heads_kv *
                     ((job.store.groups + STORE_GROUPS - 1) / STORE_GROUPS),
                 store_run, &job);
#endif
    cpu_for_each(args, args->work.schedule->n_items, item_run, &job);
    cpu_for_each(args, args->work.schedule->n_combines, combine_run, &job);
    return TESS_OK;
}
