/*
 * Fused attention on the CPU: online softmax over a query tile's packed list. A work item is one
 * tile, or one part of a tile whose list is split; parts leave their state in slots of the
 * workspace, which a second pass merges in the order of the parts.
 *
 * Scores are in base 2: scale * log2(e) is folded into the queries. Nothing stands in for -Inf:
 * where a row's maximum is -Inf, 0 is subtracted, so that its weights are exactly 0.
 */
#include "parallel.h"
#include "tile.h"

/* What a tile's rows have seen so far: per lane the maximum, the sum of weights, and the sum of
 * weighted values [groups][d_v][CPU_GROUP]. */
struct state {
    float *m, *ot;
    double *l;
};

/* One thread's scratch. */
struct scratch {
    struct state state;
    float *qt, *factor, *st, *low;
    float *k, *v; /* rows converted to f32 */
    float *row;   /* max(d_qk, d_v) floats */
};

struct job {
    const struct kernel_args *args;
    char *slots, *scratch;
    size_t slot_size, scratch_size;
};

/* ---- workspace:  | slot 0 | slot 1 | ... | scratch of thread 0 | of thread 1 | ... | ---- */

static void state_take(struct carve *c, const struct kernel_args *args, struct state *s) {
    size_t lanes = (size_t)cpu_lanes(args->lists->tile_rows);
    s->m = carve_take(c, lanes, sizeof *s->m);
    s->l = carve_take(c, lanes, sizeof *s->l);
    s->ot = carve_take_panel(c, lanes, (size_t)args->problem->d_v, sizeof(float));
}

static void scratch_take(struct carve *c, const struct kernel_args *args, struct scratch *s) {
    const struct problem *p = args->problem;
    size_t lanes = (size_t)cpu_lanes(args->lists->tile_rows);
    state_take(c, args, &s->state);
    s->qt = carve_take_panel(c, lanes, (size_t)p->d_qk, sizeof(float));
    s->factor = carve_take(c, lanes, sizeof(float));
    s->low = carve_take_panel(c, lanes, (size_t)p->d_v, sizeof(float));
    s->st = carve_take(c, CPU_KEYS * CPU_GROUP, sizeof(float));
    s->k = carve_take(c, cpu_gather_size(p->type, p->d_qk), sizeof(float));
    s->v = carve_take(c, cpu_gather_size(p->type, p->d_v), sizeof(float));
    s->row = carve_take(c, (size_t)(p->d_qk > p->d_v ? p->d_qk : p->d_v), sizeof(float));
}

static void job_take(struct carve *c, const struct kernel_args *args, struct job *job) {
    struct carve slot = {0}, one = {0};
    struct scratch scratch;
    struct state state;
    state_take(&slot, args, &state);
    scratch_take(&one, args, &scratch);
    c->overflow |= slot.overflow | one.overflow;
    job->args = args;
    job->slot_size = slot.used;
    job->scratch_size = one.used;
    job->slots = carve_take(c, (size_t)args->schedule->n_slots, slot.used);
    job->scratch = carve_take(c, (size_t)args->problem->threads, one.used);
}

size_t CPU_NAME(attention_workspace)(const struct kernel_args *args) {
    struct carve c = {0};
    struct job job;
    job_take(&c, args, &job);
    return c.overflow ? SIZE_MAX : c.used;
}

static struct state slot_state(const struct job *job, int64_t slot) {
    struct carve c = {.base = job->slots + (size_t)slot * job->slot_size};
    struct state s;
    state_take(&c, job->args, &s);
    return s;
}

static struct scratch thread_scratch(const struct job *job, int32_t thread) {
    struct carve c = {.base = job->scratch + (size_t)thread * job->scratch_size};
    struct scratch s;
    scratch_take(&c, job->args, &s);
    return s;
}

/* ---- the keys of a tile, superblock by superblock ---- */

enum { KIND_FULL = -1 }; /* before the masked kinds of lists.h */

struct walk {
    const struct lists *lists;
    int64_t tile; /* T */
    int kind;
    int64_t run, end; /* of this kind */
    int64_t at;       /* keys of the run that are behind */
    int64_t left;     /* keys still to come */
};

static int64_t run_count(const struct walk *w) {
    return w->kind == KIND_FULL ? w->lists->full[w->run].count : w->lists->masked[w->run].count;
}

/* Moves to the first run that has keys ahead, through the kinds. */
static void walk_settle(struct walk *w) {
    while (w->left > 0 && w->run == w->end) {
        const int64_t *ptr = w->lists->masked_ptr + LIST_MASKED_KINDS * w->tile + ++w->kind;
        w->run = ptr[0];
        w->end = ptr[1];
    }
}

/* Skips `keys` of the keys that are left. */
static void walk_skip(struct walk *w, int64_t keys) {
    w->left -= keys;
    w->at += keys;
    while (w->run != w->end && w->at >= run_count(w)) {
        w->at -= run_count(w);
        w->run++;
        walk_settle(w);
    }
}

static struct walk walk_begin(const struct lists *lists, int64_t tile, int32_t part,
                              int32_t parts) {
    int64_t begin, end;
    schedule_part(lists->keys[tile], part, parts, &begin, &end);
    struct walk w = {.lists = lists,
                     .tile = tile,
                     .kind = KIND_FULL,
                     .run = lists->full_ptr[tile],
                     .end = lists->full_ptr[tile + 1],
                     .left = end};
    walk_settle(&w);
    walk_skip(&w, begin);
    return w;
}

/* Rows r with lo <= c - r <= hi. */
static uint64_t band_mask(int64_t c, int64_t lo, int64_t hi) {
    int64_t first = c - hi < 0 ? 0 : c - hi, last = c - lo > 63 ? 63 : c - lo;
    return first > last ? 0 : (UINT64_MAX << first) & (UINT64_MAX >> (63 - last));
}

static uint64_t key_mask(const struct walk *w, const struct list_masked *run, int64_t c) {
    if (w->kind == LIST_BAND)
        return band_mask(c, run->u.band.lo, run->u.band.hi);
    return w->lists->words_of_rows[run->u.word + (w->kind == LIST_BITS ? c : 0)];
}

/* The next superblock, all full or all masked; 0 at the end. */
static int walk_next(struct walk *w, struct cpu_keys *keys) {
    keys->n = 0;
    keys->masked = w->kind != KIND_FULL;
    while (w->left > 0 && keys->n < CPU_KEYS && keys->masked == (w->kind != KIND_FULL)) {
        int64_t take = run_count(w) - w->at;
        if (take > CPU_KEYS - keys->n)
            take = CPU_KEYS - keys->n;
        if (take > w->left)
            take = w->left;
        const struct list_masked *run = keys->masked ? &w->lists->masked[w->run] : NULL;
        int32_t key = (run ? run->key : w->lists->full[w->run].key) + (int32_t)w->at;
        for (int32_t i = 0; i < (int32_t)take; i++) {
            keys->key[keys->n + i] = key + i;
            if (run)
                keys->mask[keys->n + i] = key_mask(w, run, w->at + i);
        }
        keys->n += (int32_t)take;
        walk_skip(w, take);
    }
    return keys->n > 0;
}

/* ---- one superblock ---- */

/* Scores to weights for the lanes of one group. With masks (bit 0 is the group's first lane) the
 * scores of lanes that do not list the key are replaced by -Inf, whatever they are. */
static void weigh(float *st, int32_t n, const uint64_t *mask, float *m, double *l, vf *alpha) {
    vf top[CPU_VECTORS], base[CPU_VECTORS], sum[CPU_VECTORS];
    const vf none = v_set(-INFINITY);
    V_FOR(v, CPU_VECTORS) {
        top[v] = v_load(m + v * CPU_LANES);
        sum[v] = (vf){0};
    }
    for (int32_t j = 0; j < n; j++) {
        float *row = st + (int64_t)j * CPU_GROUP;
        V_FOR(v, CPU_VECTORS) {
            vf s = v_load(row + v * CPU_LANES);
            if (mask) {
                s = v_select(v_mask((uint32_t)(mask[j] >> (v * CPU_LANES))), s, none);
                v_store(row + v * CPU_LANES, s);
            }
            top[v] = v_max(s, top[v]);
        }
    }
    V_FOR(v, CPU_VECTORS) {
        base[v] = v_select((vi)(top[v] == none), (vf){0}, top[v]);
        alpha[v] = v_exp2(v_load(m + v * CPU_LANES) - base[v]);
        v_store(m + v * CPU_LANES, top[v]);
    }
    for (int32_t begin = 0; begin < n; begin += CPU_CHUNK) {
        vf part[CPU_VECTORS] = {{0}};
        for (int32_t j = begin; j < n && j < begin + CPU_CHUNK; j++) {
            float *row = st + (int64_t)j * CPU_GROUP;
            V_FOR(v, CPU_VECTORS) {
                vf p = v_exp2(v_load(row + v * CPU_LANES) - base[v]);
                v_store(row + v * CPU_LANES, p);
                part[v] += p;
            }
        }
        V_FOR(v, CPU_VECTORS) {
            sum[v] += part[v];
        }
    }
    for (int v = 0; v < CPU_VECTORS; v++)
        for (int i = 0; i < CPU_LANES; i++)
            l[v * CPU_LANES + i] = (double)alpha[v][i] * l[v * CPU_LANES + i] + (double)sum[v][i];
}

/* The keys that some lane of group g lists, with the group's own masks; answers how many. */
static int32_t group_keys(const struct cpu_keys *keys, const float **k, const float **v, int64_t g,
                          const float **group_k, const float **group_v, uint64_t *mask) {
    const uint64_t lanes = UINT64_MAX >> (64 - CPU_GROUP);
    int32_t n = 0;
    for (int32_t j = 0; j < keys->n; j++) {
        mask[n] = keys->mask[j] >> (g * CPU_GROUP) & lanes;
        group_k[n] = k[j];
        group_v[n] = v[j];
        n += mask[n] != 0;
    }
    return n;
}

static void superblock(const struct kernel_args *args, const struct cpu_keys *keys,
                       const struct cpu_head *k, const struct cpu_head *v, int64_t groups,
                       int shifted, const struct scratch *s, const struct state *state) {
    const int64_t d_qk = args->problem->d_qk, d_v = args->problem->d_v;
    const float *k_row[CPU_KEYS], *v_row[CPU_KEYS], *group_k[CPU_KEYS], *group_v[CPU_KEYS];
    uint64_t mask[CPU_KEYS];
    vf alpha[CPU_VECTORS];
    cpu_gather(k_row, k, keys->key, keys->n, d_qk, s->k);
    cpu_gather(v_row, v, keys->key, keys->n, d_v, s->v);
    for (int64_t g = 0; g < groups; g++) {
        int64_t lane = g * CPU_GROUP;
        int32_t n = keys->n;
        if (keys->masked) {
            n = group_keys(keys, k_row, v_row, g, group_k, group_v, mask);
            if (n == 0)
                continue;
        }
        const float **kr = keys->masked ? group_k : k_row, **vr = keys->masked ? group_v : v_row;
        cpu_scores(s->qt + lane * d_qk, shifted ? s->factor + lane : NULL, kr, n, d_qk, s->st);
        weigh(s->st, n, keys->masked ? mask : NULL, state->m + lane, state->l + lane, alpha);
        cpu_values(s->st, vr, n, d_v, alpha, state->ot + lane * d_v, s->low + lane * d_v);
    }
}

/* ---- items and merges ---- */

static void state_clear(const struct state *s, int64_t lanes, int64_t d_v) {
    for (int64_t i = 0; i < lanes; i++)
        s->m[i] = -INFINITY;
    memset(s->l, 0, (size_t)lanes * sizeof *s->l);
    memset(s->ot, 0, (size_t)(lanes * d_v) * sizeof *s->ot);
}

/* Divides by the sums and writes rows first ... first + rows - 1 of head (b, h). */
static void tile_finish(const struct kernel_args *args, int64_t b, int64_t h, int64_t first,
                        int64_t rows, const struct state *s, float *row) {
    const int64_t d = args->problem->d_v;
    for (int64_t lane = 0; lane < rows; lane += CPU_LANES) {
        float *ot = s->ot + lane / CPU_GROUP * CPU_GROUP * d + lane % CPU_GROUP;
        vf l;
        for (int i = 0; i < CPU_LANES; i++)
            l[i] = (float)s->l[lane + i];
        for (int64_t i = 0; i < d; i++) {
            vf o = v_load(ot + i * CPU_GROUP) / l;
            v_store(ot + i * CPU_GROUP, v_select((vi)(l == (vf){0}), (vf){0}, o));
        }
    }
    struct cpu_head o = cpu_head(&args->o, args->problem->type, b, h);
    cpu_store_outputs(&o, first, rows, d, s->ot, row);
    struct cpu_lse lse = cpu_lse(&args->lse, b, h, first);
    for (int64_t r = 0; lse.data && r < rows; r++)
        lse.data[r * lse.stride] =
            s->l[r] == 0 ? -INFINITY : (float)(((double)s->m[r] + log2(s->l[r])) * LN_2);
}

static void item_run(const void *context, int64_t number, int32_t thread) {
    const struct job *job = context;
    const struct kernel_args *args = job->args;
    const struct problem *p = args->problem;
    const struct work_item *item = &args->schedule->items[number];
    const int64_t b = item->batch_head / p->heads_q, h = item->batch_head % p->heads_q;
    const int64_t first = args->lists->tile_row[item->tile];
    const int64_t rows = args->lists->tile_row[item->tile + 1] - first;
    const int64_t lanes = cpu_lanes(rows), h_kv = h / (p->heads_q / p->heads_kv);

    struct scratch s = thread_scratch(job, thread);
    struct state state = item->parts > 1 ? slot_state(job, item->slot) : s.state;
    struct cpu_head q = cpu_head(&args->q, p->type, b, h);
    struct cpu_head k = cpu_head(&args->k, p->type, b, h_kv);
    struct cpu_head v = cpu_head(&args->v, p->type, b, h_kv);
    int shifted =
        cpu_load_queries(s.qt, s.factor, &q, first, rows, p->d_qk, p->scale * LOG2_E, s.row);
    state_clear(&state, lanes, p->d_v);
    memset(s.low, 0, (size_t)(lanes * p->d_v) * sizeof *s.low);

    struct cpu_keys keys;
    struct walk w =
        walk_begin(args->lists, args->list_of[item->batch_head] * args->lists->tiles + item->tile,
                   item->part, item->parts);
    while (walk_next(&w, &keys))
        superblock(args, &keys, &k, &v, lanes / CPU_GROUP, shifted, &s, &state);
    cpu_values_fold(state.ot, s.low, lanes * p->d_v);
    if (item->parts == 1)
        tile_finish(args, b, h, first, rows, &state, s.row);
}

/* to = to and part together. */
static void state_merge(const struct state *to, const struct state *part, int64_t lanes,
                        int64_t d) {
    for (int64_t lane = 0; lane < lanes; lane += CPU_LANES) {
        vf m = v_load(to->m + lane), m_part = v_load(part->m + lane), top = v_max(m_part, m);
        vf base = v_select((vi)(top == v_set(-INFINITY)), (vf){0}, top);
        vf a = v_exp2(m - base), a_part = v_exp2(m_part - base);
        v_store(to->m + lane, top);
        for (int i = 0; i < CPU_LANES; i++)
            to->l[lane + i] =
                (double)a[i] * to->l[lane + i] + (double)a_part[i] * part->l[lane + i];
        int64_t at = lane / CPU_GROUP * CPU_GROUP * d + lane % CPU_GROUP;
        for (int64_t i = 0; i < d; i++, at += CPU_GROUP)
            v_store(to->ot + at, v_load(to->ot + at) * a + v_load(part->ot + at) * a_part);
    }
}

static void merge_run(const void *context, int64_t number, int32_t thread) {
    const struct job *job = context;
    const struct kernel_args *args = job->args;
    const struct problem *p = args->problem;
    const struct merge_item *merge = &args->schedule->merges[number];
    const int64_t first = args->lists->tile_row[merge->tile];
    const int64_t rows = args->lists->tile_row[merge->tile + 1] - first;
    struct scratch s = thread_scratch(job, thread);
    state_clear(&s.state, cpu_lanes(rows), p->d_v);
    for (int32_t part = 0; part < merge->parts; part++) {
        struct state state = slot_state(job, merge->first_slot + part);
        state_merge(&s.state, &state, cpu_lanes(rows), p->d_v);
    }
    tile_finish(args, merge->batch_head / p->heads_q, merge->batch_head % p->heads_q, first, rows,
                &s.state, s.row);
}

tess_status CPU_NAME(attention)(const struct kernel_args *args, tess_error *error) {
    (void)error;
    struct carve c = {.base = args->workspace};
    struct job job;
    job_take(&c, args, &job);
    cpu_for_each(args->problem->threads, args->schedule->n_items, item_run, &job);
    cpu_for_each(args->problem->threads, args->schedule->n_merges, merge_run, &job);
    return TESS_OK;
}
