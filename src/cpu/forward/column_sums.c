/*
 * Column sums on the CPU: for each group of queries and each key, the sum over the group's queries that list
 * the key of exp(score - reference). An item is a group of a head: its query tiles add to a row of sums in f64,
 * which is then written whole.
 */
#include "forward/group.h"
#include "tile/cache.h"
#include "tile/modify.h"
#include "tile/parallel.h"
#include "tile/walk.h"

#define SUMS_TERM_MOST 100.0f /* log2 of the largest term */

/* One thread's scratch. */
struct sums_scratch {
    float *qt, *factor, *base; /* base: reference of each lane, base 2 */
    float *st, *k, *row;       /* k: rows converted to f32 */
    float *part;               /* terms of a key, as vectors */
    double *sums;              /* [n_kv] */
};

struct sums_job {
    const struct kernel_args *args;
    int64_t groups; /* groups of a head */
    char *scratch;
    size_t scratch_size;
};

/* A tile under way. */
struct sums_tile {
    const struct kernel_args *args;
    const struct sums_scratch *s;
    int64_t rows;
    uint64_t live; /* rows with a reference */
    int shifted;
    const struct modify *modify; /* NULL: scores are not modified */
};

static void scratch_take(struct carve *c, const struct kernel_args *args, struct sums_scratch *s) {
    const struct problem *p = args->problem;
    const size_t lanes = (size_t)cpu_lanes(args->work.lists->tile_rows), d = (size_t)p->d_qk;
    s->qt = carve_take_panel(c, lanes, d, sizeof(float));
    s->factor = carve_take(c, lanes, sizeof(float));
    s->base = carve_take(c, lanes, sizeof(float));
    s->st = carve_take(c, CPU_ST_KEYS * CPU_GROUP, sizeof(float));
    s->k = carve_take_panel(c, cpu_in_place(p) ? 0 : CPU_KEYS, d, sizeof(float));
    s->row = carve_take_panel(c, CPU_LANES, d, sizeof(float));
    s->part = carve_take(c, CPU_LANES, sizeof(float));
    s->sums = carve_take(c, (size_t)p->n_kv, sizeof(double));
}

static void job_take(struct carve *c, const struct kernel_args *args, struct sums_job *job) {
    struct carve one = {0};
    struct sums_scratch scratch;
    scratch_take(&one, args, &scratch);
    c->overflow |= one.overflow;
    job->args = args;
    job->groups = (args->problem->n_q + args->problem->sum_rows - 1) / args->problem->sum_rows;
    job->scratch_size = one.used;
    job->scratch = carve_take(c, (size_t)args->problem->threads, one.used);
}

size_t CPU_NAME(column_sums_workspace)(const struct kernel_args *args) {
    struct carve c = {0};
    struct sums_job job;
    job_take(&c, args, &job);
    return c.overflow ? SIZE_MAX : c.used;
}

/* ---- a tile ---- */

/* Adds the terms of n keys of a group of lanes. mask NULL: every lane lists them all. */
static void terms_add(const struct sums_tile *t, int64_t lane, int vectors, const int32_t *key,
                      int32_t n, const uint64_t *mask) {
    const struct sums_scratch *s = t->s;
    const float *st = s->st;
    for (int32_t j = 0; j < n; j++) {
        const uint64_t rows = (mask ? mask[j] & t->live : t->live) >> lane;
        vf sum = {0};
        for (int v = 0; v < vectors; v++, st += CPU_LANES) {
            const vf x = v_load(st) - v_load(s->base + lane + v * CPU_LANES);
            const vf term = v_exp2(v_min(v_set(SUMS_TERM_MOST), x));
            sum += v_pick((uint32_t)(rows >> (v * CPU_LANES)), term, (vf){0});
        }
        v_store(s->part, sum);
        for (int far = CPU_LANES / 2; far > 0; far /= 2)
            for (int i = 0; i < far; i++)
                s->part[i] += s->part[i + far];
        s->sums[key[j]] += (double)s->part[0];
    }
}

static void superblock(const struct sums_tile *t, struct cpu_keys *keys, const struct cpu_head *k) {
    const int64_t lanes = cpu_lanes(t->rows), d = t->args->problem->d_qk;
    const float *k_row[CPU_ROWS];
    vf ignored[CPU_VECTORS] = {{0}};
    cpu_rows(k_row, k, keys->key, keys->n);
    cpu_convert_keys(k_row, k, keys->key, keys->n, d, t->s->k);
    for (int64_t lane = 0; lane < lanes; lane += CPU_GROUP) {
        const int vectors = (int)(cpu_width(lanes, lane) / CPU_LANES);
        cpu_scores(t->s->qt + lane * d, vectors, k_row, keys->n, d, t->s->st, ignored);
        if (t->shifted)
            cpu_multiply(t->s->st, vectors, keys->n, t->s->factor + lane);
        if (t->modify)
            modify_scores(t->modify, t->s->st, lane, vectors, keys->n, NULL);
        terms_add(t, lane, vectors, keys->key, keys->n, keys->masked ? keys->mask : NULL);
    }
}

/* Loads the reference of rows first ...; answers the rows that have one. */
static uint64_t base_load(const struct kernel_args *args, float *base, int64_t b, int64_t h,
                          int64_t first, int64_t rows) {
    const struct cpu_lse lse = cpu_lse(&attention_of(args)->lse_reference, b, h, first);
    uint64_t live = 0;
    for (int64_t r = 0; r < cpu_lanes(rows); r++) {
        const float reference = r < rows ? lse.data[r * lse.stride] : -INFINITY;
        const int is = reference != -INFINITY;
        base[r] = is ? (float)((double)reference * LOG2_E) : 0;
        live |= (uint64_t)is << r;
    }
    return live;
}

static void tile_add(const struct kernel_args *args, const struct sums_scratch *s, int64_t b,
                     int64_t h, int64_t tile) {
    const struct problem *p = args->problem;
    const struct lists *lists = args->work.lists;
    const int64_t first = lists->tile_row[tile], rows = lists->tile_row[tile + 1] - first;
    const int64_t T = args->work.list_of[b * p->heads_q + h] * lists->tiles + tile;
    struct cpu_head q = cpu_head(&attention_of(args)->q, p->type, b, h), k_rope;
    const struct cpu_head q_rope = cpu_head(&attention_of(args)->q_rope, p->type, b, h);
    const struct cpu_head k = cpu_cache_k(args, b, h / (p->heads_q / p->heads_kv), &k_rope);
    q.rope = p->rope_dims ? &q_rope : NULL;
    q.rope_dims = p->rope_dims;
    struct sums_tile t = {.args = args, .s = s, .rows = rows};
    struct modify modify;
    if (modify_begin(&modify, args, MODIFY_SCORES, b, h, 1, first, rows, LOG2_E))
        t.modify = &modify;
    t.live = base_load(args, s->base, b, h, first, rows);
    t.shifted =
        cpu_load_queries(s->qt, s->factor, &q, first, rows, p->d_qk, p->scale * LOG2_E, s->row);
    struct cpu_keys keys;
    struct walk w = walk_begin(lists, T, 1, 0, 1);
    w.paged = k.table ? &k : NULL;
    while (walk_next(&w, &keys)) {
        if (t.modify)
            modify_keys(&modify, keys.key, keys.n);
        superblock(&t, &keys, &k);
    }
}

/* ---- groups ---- */

/* First tile that begins at query `first` or later. */
static int64_t tile_from(const struct lists *lists, int64_t first) {
    int64_t low = 0, high = lists->tiles;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (lists->tile_row[middle] < first)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void sums_store(const struct kernel_args *args, const double *sums, int64_t b, int64_t h,
                       int64_t group) {
    const struct problem *p = args->problem;
    const struct cpu_head out = cpu_head(&attention_of(args)->column_sums, p->sum_type, b, h);
    char *row = cpu_row(&out, group, 0);
    const int64_t size = (int64_t)tess_type_size(p->sum_type);
    float some[64];
    for (int64_t j = 0; j < p->n_kv; j += 64) {
        const int64_t n = min_i64(64, p->n_kv - j);
        for (int64_t i = 0; i < n; i++)
            some[i] = (float)sums[j + i];
        cpu_row_from_f32(row + j * size, some, p->sum_type, n);
    }
}

static void group_run(const void *context, int64_t number, int32_t thread) {
    const struct sums_job *job = context;
    const struct kernel_args *args = job->args;
    const struct problem *p = args->problem;
    const struct lists *lists = args->work.lists;
    const int64_t head = number / job->groups, group = number % job->groups;
    const int64_t b = head / p->heads_q, h = head % p->heads_q;
    const int64_t end = min_i64(p->n_q, (group + 1) * p->sum_rows);
    struct carve c = {.base = job->scratch + (size_t)thread * job->scratch_size};
    struct sums_scratch s;
    scratch_take(&c, args, &s);
    memset(s.sums, 0, (size_t)p->n_kv * sizeof *s.sums);
    for (int64_t t = tile_from(lists, group * p->sum_rows);
         t < lists->tiles && lists->tile_row[t] < end; t++)
        tile_add(args, &s, b, h, t);
    sums_store(args, s.sums, b, h, group);
}

tess_status CPU_NAME(column_sums)(const struct kernel_args *args, tess_error *error) {
    (void)error;
    struct carve c = {.base = args->workspace};
    struct sums_job job;
    job_take(&c, args, &job);
    cpu_for_each(args, args->problem->batch * args->problem->heads_q * job.groups, group_run, &job);
    return TESS_OK;
}
