/* A work item of fused attention under way, and what it stands on: its thread's scratch, slots for
 * parts of split tiles, and stores of bf16 pairs. */
#ifndef TESSERA_CPU_ITEM_H
#define TESSERA_CPU_ITEM_H

#if defined(__AMX_BF16__)
#include "isa/amx.h"
#elif defined(__AVX512BF16__)
#include "isa/dpbf16.h"
#endif
#if defined(__AVX512BF16__)
#include "forward/bf16_weights.h"
#endif
#include "forward/group.h"
#include "forward/listed.h"
#include "tile/modify.h"
#include "tile/parallel.h"
#include "forward/prefetch.h"

/* One thread's scratch. */
struct forward_scratch {
    struct near near;
    struct state state;
    float *low;
    float *qt, *factor, *st;
    float *k, *v; /* rows converted to f32 */
    float *row;   /* CPU_LANES rows of max(d_qk, d_v) floats */
    struct listed listed;
#if defined(__AVX512BF16__)
    struct pairs pairs;
#endif
};

struct forward_job {
    const struct kernel_args *args;
    char *slots, *scratch;
    size_t slot_size, scratch_size;
#if defined(__AVX512BF16__)
    struct pairs_store store;
#endif
};

/* ---- workspace:  | slot 0 | slot 1 | ... | scratch of thread 0 | of thread 1 | ... | ---- */

/* Rows of a tile, of all its heads. */
static size_t tile_lanes(const struct kernel_args *args) {
    return (size_t)cpu_lanes(args->work.tile_heads * args->work.lists->tile_rows);
}

static void state_take(struct carve *c, const struct kernel_args *args, struct state *s) {
    const size_t lanes = tile_lanes(args);
    s->m = carve_take(c, lanes, sizeof *s->m);
    s->l = carve_take(c, lanes, sizeof *s->l);
    s->ot = carve_take_panel(c, lanes, (size_t)args->problem->d_v, sizeof(float));
}

static void scratch_take(struct carve *c, const struct kernel_args *args,
                         struct forward_scratch *s) {
    const struct problem *p = args->problem;
    const size_t lanes = tile_lanes(args), d_qk = (size_t)p->d_qk, d_v = (size_t)p->d_v;
    state_take(c, args, &s->state);
    s->near.m = carve_take(c, lanes, sizeof(float));
    s->near.l = carve_take(c, lanes, sizeof(float));
    s->near.ot = carve_take_panel(c, lanes, d_v, sizeof(float));
    s->low = carve_take_panel(c, lanes, d_v, sizeof(float));
    s->qt = carve_take_panel(c, lanes, d_qk, sizeof(float));
    s->st = carve_take(c, CPU_ST_KEYS * CPU_GROUP, sizeof(float));
    listed_take(c, p, &s->listed);
    const int32_t some = cpu_listed_fits(p) ? listed_keys(p) : 0;
    const int32_t keys = some > CPU_KEYS ? some : CPU_KEYS;
    const size_t converted = cpu_in_place(p) ? 0 : (size_t)keys;
    s->k = carve_take_panel(c, converted, (size_t)p->d_qk, sizeof(float));
    s->v = carve_take_panel(c, converted, (size_t)p->d_v, sizeof(float));
    s->row = carve_take_panel(c, CPU_LANES, d_qk > d_v ? d_qk : d_v, sizeof(float));
    s->factor = carve_take(c, lanes, sizeof(float)); /* last: every tile fills it */
#if defined(__AVX512BF16__)
    pairs_take(c, p, lanes, &s->pairs);
#endif
}

static void job_take(struct carve *c, const struct kernel_args *args, struct forward_job *job) {
    struct carve slot = {0}, one = {0};
    struct forward_scratch scratch;
    struct state state;
    job->args = args;
    state_take(&slot, args, &state);
    scratch_take(&one, args, &scratch);
    c->overflow |= slot.overflow | one.overflow;
    job->slot_size = slot.used;
    job->scratch_size = one.used;
    job->slots = carve_take(c, (size_t)args->work.schedule->n_slots, slot.used);
    job->scratch = carve_take(c, (size_t)args->problem->threads, one.used);
#if defined(__AVX512BF16__)
    pairs_store_take(c, args, args->problem->heads_kv, args->problem->n_kv, args->problem->d_v,
                     &job->store);
#endif
}

static struct state slot_state(const struct forward_job *job, int64_t slot) {
    struct carve c = {.base = job->slots + (size_t)slot * job->slot_size};
    struct state s;
    state_take(&c, job->args, &s);
    return s;
}

static struct forward_scratch thread_scratch(const struct forward_job *job, int32_t thread) {
    struct carve c = {.base = job->scratch + (size_t)thread * job->scratch_size};
    struct forward_scratch s;
    scratch_take(&c, job->args, &s);
    return s;
}

/* An item under way. */
struct forward_item {
    const struct kernel_args *args;
    struct forward_scratch s;
    struct state out;      /* state of its rows, at last */
    int64_t b, h, heads;   /* rows of heads h ... h + heads - 1, see cpu_row */
    int64_t tile;          /* number T, see lists.h */
    int64_t first, rows;   /* the first query; rows of all heads together */
    int listed;            /* only listed pairs are computed */
    struct modify *modify; /* NULL where the problem modifies nothing */
    int64_t left;          /* superblocks after this one, if all that may are whole */
    struct cpu_prefetch *queue;
    int shifted, folded; /* some factor is not 1; how often what was near moved to the state */
#if defined(__AVX512BF16__)
    int paired; /* scores and outputs are from the unit of bf16_pairs.h, where values are not tiny */
    struct pairs_store store;
    struct pairs_batch batch;
#endif
};

/* Adds what near has still to be given, before anything else is done to it. */
static void item_flush(struct forward_item *item) {
#if defined(__AVX512BF16__)
    if (item->batch.n)
        unit_add_values(item->s.pairs.pt, &item->batch, (int)(cpu_lanes(item->rows) / CPU_LANES),
                        item->args->problem->d_v, item->s.near.ot);
    item->batch.n = 0;
#else
    (void)item;
#endif
}

#endif
