/*
 * Fused attention on the CPU: online softmax over a query tile's packed list. A work item is one tile, or
 * one part of a tile whose list is split. A part leaves its state in a slot of the workspace; a second
 * pass combines slots in the order of the parts.
 *
 * Scores are in base 2: scale * log2(e) is folded into the queries. Nothing stands in for -Inf:
 * where a row's maximum is -Inf, 0 is subtracted, so that its weights are exactly 0.
 */
#include "forward/item.h"

size_t CPU_NAME(attention_workspace)(const struct kernel_args *args) {
    struct carve c = {0};
    struct job job;
    job_take(&c, args, &job);
    return c.overflow ? SIZE_MAX : c.used;
}

/* ---- one superblock ---- */

/* Adds n >= 1 keys to what the lanes of a group have seen. mask NULL: every lane lists them all;
 * factor NULL: all 1; number: of keys in the superblock, NULL: 0, 1, ... */
static void group_run(const struct item *it, int64_t lane, int vectors, const float **key,
                      const float **value, tess_type type, int32_t n, const uint64_t *mask,
                      const int32_t *number) {
    const struct problem *p = it->args->problem;
    const struct scratch *s = &it->s;
    const float *factor = it->shifted ? s->factor + lane : NULL;
    const int scored = it->modify && modify_scored(it->modify);
    float *m = s->near.m + lane, *l = s->near.l + lane;
    vf top[CPU_VECTORS], seen[CPU_VECTORS], base[CPU_VECTORS], alpha[CPU_VECTORS];
    vf sum[CPU_VECTORS];
    for (int v = 0; v < vectors; v++)
        top[v] = seen[v] = v_load(m + v * CPU_LANES);
    rows_scores(s->qt + lane * p->d_qk, vectors, key, type, n, p->d_qk, s->k, s->st, seen);
    if (factor)
        cpu_multiply(s->st, vectors, n, factor);
    if (scored)
        modify_scores(it->modify, s->st, lane, vectors, n, number);
    if (mask)
        st_mask(s->st, vectors, n, mask);
    if (factor || scored || mask)
        st_max(s->st, vectors, n, top);
    lanes_raise(m, vectors, factor || scored || mask ? top : seen, base, alpha);
    cpu_shapes[vectors - 1].weigh(s->st, n, base, value, sum);
    if (it->modify && it->modify->drops)
        modify_weights(it->modify, s->st, lane, vectors, n, number);
    for (int v = 0; v < vectors; v++)
        v_store(l + v * CPU_LANES, v_fma(alpha[v], v_load(l + v * CPU_LANES), sum[v]));
    rows_values(s->st, vectors, value, type, n, p->d_v, s->v, alpha, s->near.ot + lane * p->d_v);
}

#if defined(__AVX512BF16__)
/* Takes maxima: what is subtracted from scores now. Where some lane's moves, all that was added is
 * multiplied for it. */
static void pairs_raise(struct item *it, int vectors, float factor, vf *top, vf *base) {
    const struct near *near = &it->s.near;
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
    item_flush(it);
    lanes_raise(near->m, vectors, top, base, alpha);
    for (int i = 0; i < vectors; i++)
        v_store(near->l + i * CPU_LANES, alpha[i] * v_load(near->l + i * CPU_LANES));
    pairs_rescale(vectors, it->args->problem->d_v, alpha, near->ot);
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

/* The same by the unit of bf16_pairs.h. Answers 0 where it is not fit for these values. */
static int pairs_run(struct item *it, struct cpu_keys *keys, const struct cpu_head *k,
                     const struct cpu_head *v) {
    const struct problem *p = it->args->problem;
    const struct scratch *s = &it->s;
    struct pairs_values values;
    const int vectors = (int)(cpu_lanes(it->rows) / CPU_LANES);
    const int scored = it->modify && modify_scored(it->modify);
    const float factor = scored ? 1 : pairs_factor(p);
    vf top[CPU_VECTORS], base[CPU_VECTORS], sum[CPU_VECTORS];
    if (!(pairs_load_values(s->pairs.vt, &it->store, v, keys->key, keys->n, p->d_v, pairs_of_values,
                            &values) &
          PAIRS_FIT))
        return 0;
    for (int i = 0; i < vectors; i++)
        top[i] = v_set(-INFINITY);
    for (int32_t j = 0; j < keys->n; j += PAIRS_KEYS) { /* a matrix unit works on meanwhile */
        const int32_t n = keys->n - j < PAIRS_KEYS ? keys->n - j : PAIRS_KEYS;
        float *st = s->st + j * vectors * CPU_LANES;
        pairs_scores(&s->pairs, vectors, k, keys, j, p->d_qk, st);
        if (scored)
            pairs_modify(it->modify, pairs_factor(p), st, vectors, j, n);
        if (keys->masked)
            st_mask(st, vectors, n, keys->mask + j);
        st_max(st, vectors, n, top);
    }
    pairs_raise(it, vectors, factor, top, base);
    uint32_t *pt = pairs_next(&s->pairs, &it->batch, vectors);
    pairs_weigh(pt, s->st, keys->n, factor, base, vectors, sum);
    if (it->modify && it->modify->drops)
        pairs_drop(it->modify, pt, vectors, keys->n);
    for (int i = 0; i < vectors; i++) {
        float *l = s->near.l + i * CPU_LANES;
        v_store(l, v_load(l) + sum[i]);
    }
    pairs_append(&it->batch, &values, keys->n);
    if (values.packed) /* into scratch that the next superblock needs */
        item_flush(it);
    return 1;
}
#endif

static void superblock(struct item *it, struct cpu_keys *keys, const struct cpu_head *k,
                       const struct cpu_head *v) {
    const struct problem *p = it->args->problem;
    const struct scratch *s = &it->s;
    const int64_t lanes = cpu_lanes(it->rows);
    const float *k_row[CPU_ROWS], *v_row[CPU_ROWS], *group_k[CPU_ROWS], *group_v[CPU_ROWS];
    uint64_t mask[CPU_KEYS];
    int32_t number[CPU_KEYS];
    if (it->modify)
        modify_keys(it->modify, keys->key, keys->n);
#if defined(__AVX512BF16__)
    if (it->paired && pairs_run(it, keys, k, v))
        return;
#endif
    item_flush(it);
    const int alike = cpu_alike(p);
    const tess_type type = lanes > CPU_GROUP || !alike ? TESS_F32 : p->caches.k_type;
    cpu_rows(k_row, k, keys->key, keys->n);
    cpu_rows(v_row, v, keys->key, keys->n);
    cpu_prefetch_take(it->queue, it->left, v_row + keys->n);
    if (type != p->caches.k_type || !alike) { /* for all groups at once */
        cpu_convert_keys(k_row, k, keys->key, keys->n, p->d_qk, s->k);
        cpu_convert_keys(v_row, v, keys->key, keys->n, p->d_v, s->v);
    }
    for (int64_t lane = 0; lane < lanes; lane += CPU_GROUP) {
        const int vectors = (int)(cpu_width(lanes, lane) / CPU_LANES);
        if (!keys->masked) {
            group_run(it, lane, vectors, k_row, v_row, type, keys->n, NULL, NULL);
            continue;
        }
        int32_t n = group_keys(keys, k_row, v_row, lane, group_k, group_v, mask, number);
        if (n)
            group_run(it, lane, vectors, group_k, group_v, type, n, mask, number);
    }
}

/* ---- items and combines ---- */

static float lse_of(float m, double l) {
    return l == 0 ? -INFINITY : (float)(((double)m + log2(l)) * LN_2);
}

/* Where the lse of an item's row r goes, if it is wanted. */
static float *item_lse(const struct item *it, int64_t r) {
    const struct view *view = &attention_of(it->args)->lse;
    const struct cpu_lse lse = cpu_lse(view, it->b, it->h, it->first);
    return lse.data + r / it->heads * lse.stride + r % it->heads * view->stride[1];
}

/* What row r's sums of weighted values are multiplied by: +Inf where it is empty. */
static float item_factor(const struct item *it, int64_t r, float m, double l) {
    return modify_factor(it->args, it->h + r % it->heads, (double)m, l);
}

static struct cpu_head item_rest(const struct item *it) {
    return cpu_heads(&attention_of(it->args)->o_rest, it->args->problem->type, it->b, it->h,
                     it->heads);
}

/* Divides by the sums and writes the rows. */
static void tile_finish(const struct item *it, const struct state *s, float *row) {
    const struct kernel_args *args = it->args;
    const struct attention_operands *given = attention_of(args);
    const int64_t d = args->problem->d_v, lanes = cpu_lanes(it->rows);
    for (int64_t lane = 0; lane < lanes; lane += CPU_LANES) {
        int64_t width;
        float *o = cpu_column(s->ot, lanes, lane, d, &width);
        vf l;
        for (int i = 0; i < CPU_LANES; i++)
            l[i] = item_factor(it, lane + i, s->m[lane + i], s->l[lane + i]);
        vi empty = (vi)(l == v_set(INFINITY));
        for (int64_t i = 0; i < d * width; i += width)
            v_store(o + i, v_select(empty, (vf){0}, v_load(o + i) * l));
    }
    struct cpu_head o = cpu_heads(&given->o, given->o.type, it->b, it->h, it->heads);
    cpu_store_outputs(&o, it->first, it->rows, d, s->ot, row);
    if (given->o_rest.data) {
        struct cpu_head rest = item_rest(it);
        cpu_store_rest(&rest, &o, it->first, it->rows, d, s->ot, row);
    }
    for (int64_t r = 0; given->lse.data && r < it->rows; r++)
        *item_lse(it, r) = lse_of(s->m[r], s->l[r]);
}

static struct item item_begin(const struct job *job, const struct work_item *work, int32_t thread) {
    const struct kernel_args *args = job->args;
    const struct problem *p = args->problem;
    const int64_t head = work->batch_head * args->work.tile_heads;
    struct item it = {.args = args,
                      .s = thread_scratch(job, thread),
                      .b = head / p->heads_q,
                      .h = head % p->heads_q,
                      .heads = args->work.tile_heads,
                      .tile = args->work.list_of[head] * args->work.lists->tiles + work->tile,
                      .first = args->work.lists->tile_row[work->tile]};
    const int64_t queries = args->work.lists->tile_row[work->tile + 1] - it.first;
    it.rows = queries * it.heads;
    struct cpu_head q = cpu_heads(&attention_of(args)->q, p->type, it.b, it.h, it.heads);
    const struct cpu_head q_rope =
        cpu_heads(&attention_of(args)->q_rope, p->type, it.b, it.h, it.heads);
    q.rope = p->rope_dims ? &q_rope : NULL;
    q.rope_dims = p->rope_dims;
    it.listed = listed_pays(p, args->work.lists, it.tile, queries, it.heads);
#if defined(__AVX512BF16__)
    const int64_t h_kv = it.h / (p->heads_q / p->heads_kv);
    it.paired = pairs_load_lanes(it.s.pairs.qp, &q, it.first, it.rows, p->d_qk, p->scale < 0,
                                 pairs_queries, it.s.row);
    it.listed &= !it.paired;
    it.store = pairs_store_of(&job->store, it.b * p->heads_kv + h_kv);
#endif
    it.out = work->parts > 1 ? slot_state(job, work->slot) : it.s.state;
    if (it.listed)
        cpu_load_query_rows(it.s.qt, it.s.factor, &q, it.first, it.rows, p->d_qk,
                            p->scale * LOG2_E);
    else
        it.shifted = cpu_load_queries(it.s.qt, it.s.factor, &q, it.first, it.rows, p->d_qk,
                                      p->scale * LOG2_E, it.s.row);
    near_clear(&it.s.near, cpu_lanes(it.rows), p->d_v);
    return it;
}

static void item_fold(struct item *it, int last) {
    const int64_t d = it->args->problem->d_v, lanes = cpu_lanes(it->rows);
    const struct state *state = &it->s.state;
    item_flush(it);
    near_fold(last ? &it->out : state, state, it->s.low, &it->s.near, lanes, d, it->folded++, last);
}

/* An item that was never folded. */
static void item_finish(struct item *it) {
    item_flush(it);
    struct state seen = {it->s.near.m, it->s.near.ot, it->s.state.l};
    for (int64_t r = 0; r < cpu_lanes(it->rows); r++)
        seen.l[r] = (double)it->s.near.l[r];
    tile_finish(it, &seen, it->s.row);
}

/* Rows of o and lse as they stand, from sums in f32 or double. */
static void listed_finish(const struct item *it, const struct listed_tile *t) {
    const struct kernel_args *args = it->args;
    const struct attention_operands *given = attention_of(args);
    const int64_t d = args->problem->d_v;
    struct cpu_head o = cpu_heads(&given->o, given->o.type, it->b, it->h, it->heads);
    struct cpu_head rest = item_rest(it);
    for (int64_t r = 0; r < it->rows; r++) {
        const double l = t->folded ? t->state.l[r] : (double)t->near.l[r];
        const float m = (t->folded ? t->state.m : t->near.m)[r];
        const vf factor = v_set(item_factor(it, r, m, l));
        const vi empty = (vi)(factor == v_set(INFINITY));
        float *row = (t->folded ? t->state.ot : t->near.ot) + r * d;
        for (int64_t i = 0; i < d; i += CPU_LANES) {
            vf x = v_load(row + i);
            if (t->folded)
                x += v_load(t->low + r * d + i);
            v_store(row + i, v_select(empty, (vf){0}, x * factor));
        }
        cpu_row_from_f32(cpu_row(&o, it->first, r), row, o.type, d);
        if (given->o_rest.data)
            cpu_row_rest(cpu_row(&rest, it->first, r), cpu_row(&o, it->first, r), o.type, row, d);
        if (given->lse.data)
            *item_lse(it, r) = lse_of(m, l);
    }
}

static void listed_compute(const struct item *it, struct walk *w, const struct cpu_head *k,
                           const struct cpu_head *v, int32_t parts) {
    const struct scratch *s = &it->s;
    struct listed_tile t = {.p = it->args->problem,
                            .s = &s->listed,
                            .near = s->near,
                            .state = it->out,
                            .low = s->low,
                            .q = s->qt,
                            .factor = s->factor,
                            .modify = it->modify,
                            .rows = it->rows};
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
    listed_finish(it, &t);
}

static void item_compute(const struct job *job, int64_t number, int32_t thread) {
    const struct kernel_args *args = job->args;
    const struct problem *p = args->problem;
    const struct work_item *work = &args->work.schedule->items[number];
    struct item it = item_begin(job, work, thread);
    struct modify modify;
    if (modify_begin(&modify, args, MODIFY_SCORES | MODIFY_WEIGHTS, it.b, it.h, it.heads, it.first,
                     it.rows, LOG2_E))
        it.modify = &modify;
    const int64_t h_kv = it.h / (p->heads_q / p->heads_kv);
    struct cpu_head k_rope;
    const struct cpu_head k = cpu_cache_k(args, it.b, h_kv, &k_rope);
    const struct cpu_head v = cpu_cache_v(args, it.b, h_kv);
    struct cpu_keys keys;
    struct walk w = walk_begin(args->work.lists, it.tile, it.heads, work->part, work->parts);
    w.paged = k.table ? &k : NULL;
    if (it.listed) {
        listed_compute(&it, &w, &k, &v, work->parts);
        return;
    }
    const struct view *to = &attention_of(args)->o;
    const struct cpu_head o = cpu_heads(to, to->type, it.b, it.h, it.heads);
    struct cpu_prefetch queue;
    it.queue = &queue;
    cpu_prefetch_fill(&queue, args, number, &o, it.first, it.rows);
    if (w.left >= CPU_NEAR && cpu_near(p->d_v) == CPU_NEAR)
        w.most = CPU_KEYS;
    for (int64_t done = 0; walk_next(&w, &keys); done++) {
        if (done && done % (cpu_near(p->d_v) / w.most) == 0)
            item_fold(&it, 0);
        it.left = (w.left + w.most - 1) / w.most;
        superblock(&it, &keys, &k, &v);
    }
    if (work->parts == 1 && !it.folded) {
        item_finish(&it);
        return;
    }
    item_fold(&it, 1);
    if (work->parts == 1)
        tile_finish(&it, &it.out, it.s.row);
}

#if defined(__AVX512BF16__)
#define STORE_GROUPS 8 /* at a time */

static void store_run(const void *context, int64_t number, int32_t thread) {
    const struct job *job = context;
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
    const struct job *job = context;
    const struct kernel_args *args = job->args;
    const struct problem *p = args->problem;
    const struct combine_item *combine = &args->work.schedule->combines[number];
    const int64_t head = combine->batch_head * args->work.tile_heads;
    struct scratch s = thread_scratch(job, thread);
    struct item it = {.args = args,
                      .b = head / p->heads_q,
                      .h = head % p->heads_q,
                      .heads = args->work.tile_heads,
                      .first = args->work.lists->tile_row[combine->tile]};
    it.rows = (args->work.lists->tile_row[combine->tile + 1] - it.first) * it.heads;
    const struct state sum = slot_state(job, combine->first_slot);
    for (int32_t part = 1; part < combine->parts; part++) {
        const struct state state = slot_state(job, combine->first_slot + part);
        state_merge(&sum, &sum, s.low, &state, cpu_lanes(it.rows), p->d_v, part,
                    part + 1 == combine->parts);
    }
    tile_finish(&it, &sum, s.row);
}

tess_status CPU_NAME(attention)(const struct kernel_args *args, tess_error *error) {
    (void)error;
    struct carve c = {.base = args->workspace};
    struct job job;
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
