/* Lists of a joint backward: dQ's from those of key tiles, and heads in chunks. */
#include "lists/spill.h"

#include "base/status.h"
#include "plan/assign.h"

#include <stdlib.h>

/* Cost of a step of a query tile, in sixteenths of one of a key tile: beside other work of a launch, or alone. */
#define SPILL_KEY_COST 16
#define SPILL_ROW_COST 3
#define SPILL_ROW_ALONE 5
/* Likewise in a pass of its own, which computes scores anew. */
#define SPILL_ROW_SEVEN 12
/* Loads of a joint pass over those of two passes, at most: dense ones have .68 and took .90 of the time, a tenth of the
 * blocks .71 and .96 (docs/notes/backward_sm90.md). */
#define SPILL_LOADS 0.8
/* Steps that an item costs beside its own, and one without any: it stores zeros. */
#define SPILL_ITEM_STEPS 2

/* Lists that are made, and what they are made from. */
struct making {
    struct spill *out;
    struct granules *g;
    const struct kernel_args *args;
    const struct lists *lists;
    int32_t halves;       /* units of 64 keys of a key tile, and of 64 queries of a query tile */
    int64_t sides, tiles; /* 64 queries, and query tiles, of a head */
    int64_t *step_ptr;    /* [list][query tile], + 1 */
    int64_t *place;       /* [sides] granule of the key tile at hand, + 1; 0: none */
    uint16_t *listed;     /* [masks of granules] rows of a slice that list some place */
};

static void *make_array(int64_t count, size_t size) {
    return calloc((size_t)count + 1, size);
}

/* ---- which keys of a unit are listed ---- */

/* Rows of a mask with some place: bits 4 j, + 1 of lane 4 g + t are row g's, the others row g + 8's. */
static uint16_t mask_rows(const uint32_t *words) {
    uint32_t rows = 0;
    for (int lane = 0; lane < 32; lane++) {
        rows |= (uint32_t)((words[lane] & UINT32_C(0x33333333)) != 0) << lane / 4;
        rows |= (uint32_t)((words[lane] & UINT32_C(0xcccccccc)) != 0) << (lane / 4 + 8);
    }
    return (uint16_t)rows;
}

/* Keys of half `half` of granule i of key tile T that some query of the granule lists. */
static uint64_t keys_listed(const struct making *m, int64_t T, int64_t i, int half) {
    const struct granules *g = m->g;
    const int64_t group = i - g->ptr[T] - g->group_whole[T];
    uint64_t keys = 0;
    if (group < 0)
        return UINT64_MAX;
    for (int s = 0; s < SPILL_SIDE / GRANULE_SLICE; s++) {
        const int64_t slice = half * (SPILL_SIDE / GRANULE_SLICE) + s;
        const uint32_t mask =
            g->records[slice * g->n_groups + g->group_ptr[T] + group] & ~MASK_SHORT;
        keys |= (uint64_t)m->listed[mask] << GRANULE_SLICE * s;
    }
    return keys;
}

/* ---- steps ---- */

/* Appends a step to query tile Q of all lists, or counts it. */
static void step_put(struct making *m, int64_t Q, const struct spill_step *step, uint64_t absent) {
    struct spill *out = m->out;
    if (!out->steps) {
        m->step_ptr[Q + 1]++;
        out->n_absent += absent != 0;
        return;
    }
    struct spill_step *to = &out->steps[m->step_ptr[Q]++];
    *to = *step;
    if (absent) {
        to->absent = (int32_t)out->n_absent;
        out->absent[out->n_absent++] = absent;
    }
}

/* Steps of query tile Q, whose first 64 queries are number `side`, over one half of key tile T. Units share a step
 * where the same keys are absent: what an absent key holds reaches no query. */
static void steps_of(struct making *m, int64_t T, int64_t Q, int64_t side, int32_t key, int half) {
    struct spill_step step = {key, {-1, -1}, -1};
    uint64_t absent = 0;
    for (int i = 0; i < m->halves && side + i < m->sides; i++) {
        const int64_t granule = m->place[side + i] - 1;
        const uint64_t listed = granule < 0 ? 0 : keys_listed(m, T, granule, half);
        if (!listed)
            continue;
        if (i > 0 && step.unit[0] >= 0 && absent != ~listed) {
            step_put(m, Q, &step, absent);
            step.unit[0] = -1;
        }
        step.unit[i] = (int32_t)(granule * m->halves + half);
        absent = ~listed;
    }
    if (step.unit[0] >= 0 || step.unit[1] >= 0)
        step_put(m, Q, &step, absent);
}

/* Steps that key tile `tile` of a list adds to query tiles. */
static void tile_turn(struct making *m, int64_t list, int64_t tile) {
    const struct granules *g = m->g;
    const int64_t T = list * m->lists->tiles + tile;
    const int32_t row = (int32_t)m->lists->tile_row[tile];
    const int64_t rows = m->lists->tile_row[tile + 1] - row;
    for (int64_t i = g->ptr[T]; i < g->ptr[T + 1]; i++)
        m->place[g->keys[i] / SPILL_SIDE] = i + 1;
    for (int64_t Q = 0; Q < m->tiles; Q++)
        for (int half = 0; half * SPILL_SIDE < rows; half++)
            steps_of(m, T, list * m->tiles + Q, Q * m->halves, row + half * SPILL_SIDE, half);
    for (int64_t i = g->ptr[T]; i < g->ptr[T + 1]; i++)
        m->place[g->keys[i] / SPILL_SIDE] = 0;
}

static void lists_turn(struct making *m) {
    for (int64_t list = 0; list < m->lists->n_lists; list++)
        for (int64_t tile = 0; tile < m->lists->tiles; tile++)
            tile_turn(m, list, tile);
}

/* Zero, or -1 when memory ran out. Afterwards step_ptr[Q] is where the steps of Q begin. */
static int steps_make(struct making *m) {
    struct spill *out = m->out;
    const int64_t n = m->lists->n_lists * m->tiles;
    lists_turn(m);
    for (int64_t Q = 0; Q < n; Q++)
        m->step_ptr[Q + 1] += m->step_ptr[Q];
    out->n_steps = m->step_ptr[n];
    out->steps = make_array(out->n_steps, sizeof *out->steps);
    out->absent = make_array(out->n_absent, sizeof *out->absent);
    if (!out->steps || !out->absent)
        return -1;
    out->n_absent = 0;
    lists_turn(m);
    for (int64_t Q = n; Q > 0; Q--)
        m->step_ptr[Q] = m->step_ptr[Q - 1];
    m->step_ptr[0] = 0;
    return 0;
}

/* ---- chunks and workers ---- */

/* Items of one kind before they are assigned: item i has pieces ptr[i] ... ptr[i + 1] - 1. */
struct dealt {
    int64_t n, *ptr, *cost;
    int32_t *group; /* number of the K/V head over all batches */
    int32_t *worker;
    const struct granule_item *pieces;
};

static int costlier(const void *a, const void *b) {
    const struct assign_item *x = a, *y = b;
    if (x->cost != y->cost)
        return x->cost > y->cost ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

/* Assigns items of K/V heads begin ... end - 1, longest first. Answers the longest load, or -1 when memory ran out. */
static int64_t deal(const struct dealt *items, int64_t begin, int64_t end, int32_t workers,
                    struct assign_item *order) {
    struct assignment assignment;
    int64_t n = 0, most = -1;
    for (int64_t i = 0; i < items->n; i++)
        if (items->group[i] >= begin && items->group[i] < end)
            order[n++] = (struct assign_item){items->cost[i], i};
    qsort(order, (size_t)n, sizeof *order, costlier);
    if (!assign_begin(&assignment, workers)) {
        for (int64_t i = 0; i < n; i++)
            items->worker[order[i].number] = assign_next(&assignment, order[i].cost);
        most = assign_most(&assignment);
    }
    assign_free(&assignment);
    return most;
}

/* Loads of all launches where chunks have `heads` K/V heads each. -1 when memory ran out. */
static int64_t chunks_cost(const struct dealt *keys, const struct dealt *rows, int64_t heads,
                           int64_t all, int32_t workers, struct assign_item *order) {
    int64_t cost = 0;
    for (int64_t h = 0; h < all; h += heads) {
        const int64_t k = deal(keys, h, h + heads, workers, order);
        const int64_t r = deal(rows, h, h + heads, workers, order);
        if (k < 0 || r < 0)
            return -1;
        cost += SPILL_KEY_COST * k + (h + heads < all ? SPILL_ROW_COST : SPILL_ROW_ALONE) * r;
    }
    return cost;
}

/* Loads of two passes, without chunks. -1 when memory ran out. */
static int64_t passes_cost(const struct dealt *keys, const struct dealt *rows, int64_t all,
                           int32_t workers, struct assign_item *order) {
    const int64_t k = deal(keys, 0, all, workers, order), r = deal(rows, 0, all, workers, order);
    return k < 0 || r < 0 ? -1 : SPILL_KEY_COST * k + SPILL_ROW_SEVEN * r;
}

/* Puts pieces of each worker's items of all chunks side by side. */
static void pieces_place(struct granule_item *to, int64_t *worker_ptr, const struct dealt *items,
                         int64_t heads, int64_t chunks, int32_t workers) {
    for (int64_t i = 0; i < items->n; i++)
        worker_ptr[items->group[i] / heads * workers + items->worker[i] + 1] +=
            items->ptr[i + 1] - items->ptr[i];
    for (int64_t w = 0; w < chunks * workers; w++)
        worker_ptr[w + 1] += worker_ptr[w];
    for (int64_t i = 0; i < items->n; i++)
        for (int64_t k = items->ptr[i]; k < items->ptr[i + 1]; k++)
            to[worker_ptr[items->group[i] / heads * workers + items->worker[i]]++] =
                items->pieces[k];
    for (int64_t w = chunks * workers; w > 0; w--)
        worker_ptr[w] = worker_ptr[w - 1];
    worker_ptr[0] = 0;
}

static int dealt_make(struct dealt *d, const struct granule_item *pieces, int64_t n) {
    *d = (struct dealt){.pieces = pieces,
                        .ptr = make_array(n, sizeof *d->ptr),
                        .cost = make_array(n, sizeof *d->cost),
                        .group = make_array(n, sizeof *d->group),
                        .worker = make_array(n, sizeof *d->worker)};
    return d->ptr && d->cost && d->group && d->worker ? 0 : -1;
}
static void dealt_free(struct dealt *d) {
    free(d->ptr);
    free(d->cost);
    free(d->group);
    free(d->worker);
}

/* Adds pieces first ... end - 1 as an item. */
static void dealt_add(struct dealt *d, const struct problem *p, int64_t first, int64_t end) {
    int64_t steps = 0;
    for (int64_t k = first; k < end; k++)
        steps += d->pieces[k].count;
    d->ptr[d->n] = first, d->ptr[d->n + 1] = end;
    d->cost[d->n] = steps + SPILL_ITEM_STEPS;
    d->group[d->n++] = (int32_t)(d->pieces[first].batch * p->heads_kv + d->pieces[first].head_kv);
}

static void key_items(struct dealt *d, const struct making *m) {
    for (int64_t i = 0, first = 0; i < m->g->n_items; i++)
        if (m->g->items[i].parts & GRANULE_LAST) {
            dealt_add(d, m->args->problem, first, i + 1);
            first = i + 1;
        }
}

/* An item for each query tile of each head. */
static void row_items(struct dealt *d, const struct making *m, struct granule_item *to) {
    const struct problem *p = m->args->problem;
    const int64_t rows = m->halves * SPILL_SIDE;
    for (int64_t bh = 0, i = 0; bh < p->batch * p->heads_q; bh++)
        for (int64_t Q = 0; Q < m->tiles; Q++, i++) {
            const int64_t at = m->args->work.list_of[bh] * m->tiles + Q, head = bh % p->heads_q;
            to[i] = (struct granule_item){.first = m->step_ptr[at],
                                          .slot = -1,
                                          .count = (int32_t)(m->step_ptr[at + 1] - m->step_ptr[at]),
                                          .batch = (int32_t)(bh / p->heads_q),
                                          .head = (int32_t)head,
                                          .head_kv = (int32_t)(head / (p->heads_q / p->heads_kv)),
                                          .row = (int32_t)(Q * rows),
                                          .rows = (int32_t)min_i64(rows, p->n_q - Q * rows)};
            dealt_add(d, p, i, i + 1);
        }
}

/* Units of a query head. */
static int64_t head_units(const struct making *m, int64_t bh) {
    const int64_t T = m->args->work.list_of[bh] * m->lists->tiles;
    return (m->g->ptr[T + m->lists->tiles] - m->g->ptr[T]) * m->halves;
}

/* Units of the largest chunk of `heads` K/V heads. */
static int64_t chunk_units(const struct making *m, int64_t heads) {
    const struct problem *p = m->args->problem;
    const int64_t each = heads * (p->heads_q / p->heads_kv), all = p->batch * p->heads_q;
    int64_t most = 0;
    for (int64_t bh = 0; bh < all; bh += each) {
        int64_t units = 0;
        for (int64_t h = bh; h < min_i64(bh + each, all); h++)
            units += head_units(m, h);
        most = max_i64(most, units);
    }
    return most;
}

/* Buffers: chunk c has number c % 2. */
static int64_t buffers(int64_t chunks) {
    return chunks > 1 ? 2 : 1;
}

static void units_place(struct making *m, int64_t heads, int64_t units) {
    const struct problem *p = m->args->problem;
    const int64_t each = heads * (p->heads_q / p->heads_kv);
    int64_t at = 0;
    for (int64_t bh = 0; bh < p->batch * p->heads_q; bh++) {
        if (bh % each == 0)
            at = bh / each % 2 * units;
        const int64_t T = m->args->work.list_of[bh] * m->lists->tiles;
        m->out->unit_of[bh] = (int32_t)(at - m->g->ptr[T] * m->halves);
        at += head_units(m, bh);
    }
}

/* K/V heads of all batches. */
static int64_t heads_of(const struct making *m) {
    return m->args->problem->batch * m->args->problem->heads_kv;
}

/* Units that `most` bytes hold, and that have numbers of 32 bits. */
static int64_t units_room(int64_t most) {
    return min_i64(most / SPILL_UNIT, INT32_MAX / 2);
}

/* K/V heads of a chunk: as the longest loads of all launches are least. 0: two passes take less time, -1: no memory. */
static int64_t heads_choose(const struct making *m, const struct dealt *keys,
                            const struct dealt *rows, int64_t most) {
    const int64_t all = heads_of(m), room = units_room(most);
    struct assign_item *order = make_array(max_i64(keys->n, rows->n), sizeof *order);
    int64_t best = 0, least = INT64_MAX;
    for (int64_t chunks = all; order && chunks > 0; chunks = chunks > 1 ? (chunks + 1) / 2 : 0) {
        const int64_t heads = (all + chunks - 1) / chunks;
        if (chunk_units(m, heads) * buffers(chunks) > room)
            continue;
        const int64_t cost = chunks_cost(keys, rows, heads, all, m->out->workers, order);
        if (cost >= 0 && cost < least)
            best = heads, least = cost;
    }
    const int64_t passes =
        order && best > 0 ? passes_cost(keys, rows, all, m->out->workers, order) : -1;
    free(order);
    return passes < 0 ? -1 : (double)least > SPILL_LOADS * (double)passes ? 0 : best;
}

/* Deals items to the workers of all chunks of `heads` heads. Zero, or -1 when memory ran out. */
static int chunks_make(struct making *m, struct dealt *keys, struct dealt *rows, int64_t heads) {
    const struct problem *p = m->args->problem;
    const int64_t all = p->batch * p->heads_kv, chunks = (all + heads - 1) / heads;
    struct spill *out = m->out;
    struct assign_item *order = make_array(max_i64(keys->n, rows->n), sizeof *order);
    struct granule_item *items = make_array(m->g->n_items, sizeof *items);
    int64_t *worker_ptr = make_array(chunks * out->workers, sizeof *worker_ptr);
    out->worker_ptr = make_array(chunks * out->workers, sizeof *out->worker_ptr);
    out->items = make_array(rows->n, sizeof *out->items);
    out->unit_of = make_array(out->n_heads, sizeof *out->unit_of);
    if (!order || !items || !worker_ptr || !out->worker_ptr || !out->items || !out->unit_of ||
        chunks_cost(keys, rows, heads, all, out->workers, order) < 0) {
        free(order), free(items), free(worker_ptr);
        return -1;
    }
    pieces_place(items, worker_ptr, keys, heads, chunks, out->workers);
    pieces_place(out->items, out->worker_ptr, rows, heads, chunks, out->workers);
    free(m->g->items), free(m->g->worker_ptr), free(order);
    m->g->items = items, m->g->worker_ptr = worker_ptr;
    m->g->workers = (int32_t)(chunks * out->workers);
    out->chunks = (int32_t)chunks;
    const int64_t units = chunk_units(m, heads);
    out->units = units * buffers(chunks);
    units_place(m, heads, units);
    return 0;
}

/* ---- the whole ---- */

/* Whether granules are the queries of whole units, and so are keys of tiles: the last of each may have fewer. */
static int is_whole(const struct making *m) {
    const struct granules *g = m->g;
    const struct lists *lists = m->lists;
    int whole = g->size == SPILL_SIDE && (int64_t)g->n * m->halves < INT32_MAX;
    for (int64_t i = 0; i < g->n && whole; i++)
        whole = g->keys[i] % SPILL_SIDE == 0;
    for (int64_t t = 0; t + 1 < lists->tiles && whole; t++)
        whole = (lists->tile_row[t + 1] - lists->tile_row[t]) % SPILL_SIDE == 0;
    return whole;
}

/* Zero, or -1 when memory ran out. */
static int making_begin(struct making *m) {
    const struct granules *g = m->g;
    const int64_t masks = g->n_bits >> MASK_WORDS_BITS;
    m->step_ptr = make_array(m->lists->n_lists * m->tiles, sizeof *m->step_ptr);
    m->place = make_array(m->sides, sizeof *m->place);
    m->listed = make_array(max_i64(masks, MASK_ALL + 1), sizeof *m->listed);
    if (!m->step_ptr || !m->place || !m->listed)
        return -1;
    for (int64_t i = 0; i < masks; i++)
        m->listed[i] = mask_rows(g->mask_bits + (i << MASK_WORDS_BITS));
    m->listed[MASK_NONE] = 0, m->listed[MASK_ALL] = UINT16_MAX;
    return 0;
}

static tess_status no_memory(tess_error *error) {
    return error_set(error, TESS_OUT_OF_MEMORY, "tess_plan_create", NULL,
                     "out of memory for the lists of d_q");
}

static tess_status items_make(struct making *m, int64_t most, tess_error *error) {
    struct spill *out = m->out;
    struct granule_item *pieces = make_array(out->n_items, sizeof *pieces);
    struct dealt keys = {0}, rows = {0};
    tess_status status = TESS_OK;
    if (!pieces || dealt_make(&keys, m->g->items, m->g->n_items) ||
        dealt_make(&rows, pieces, out->n_items))
        status = no_memory(error);
    if (!status) {
        key_items(&keys, m);
        row_items(&rows, m, pieces);
        const int64_t heads = heads_choose(m, &keys, &rows, most);
        if (heads == 0)
            status = error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "pattern",
                               "chunks of heads are less even than whole passes");
        else if (heads < 0 || chunks_make(m, &keys, &rows, heads))
            status = no_memory(error);
    }
    dealt_free(&keys);
    dealt_free(&rows);
    free(pieces);
    return status;
}

tess_status spill_make(struct spill *out, struct granules *granules, const struct kernel_args *args,
                       int64_t most, tess_error *error) {
    const struct problem *p = args->problem;
    const struct lists *lists = args->work.lists;
    const int32_t halves = lists->tile_rows / SPILL_SIDE;
    const int64_t sides = (p->n_q + SPILL_SIDE - 1) / SPILL_SIDE;
    struct making m = {.out = out,
                       .g = granules,
                       .args = args,
                       .lists = lists,
                       .halves = halves,
                       .sides = sides,
                       .tiles = (sides + halves - 1) / halves};
    *out = (struct spill){.workers = granules->workers,
                          .n_heads = p->batch * p->heads_q,
                          .n_items = p->batch * p->heads_q * m.tiles};
    if (!is_whole(&m))
        return error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "pattern",
                         "runs of queries and tiles of keys are not of whole units of %d",
                         SPILL_SIDE);
    const int64_t units = chunk_units(&m, 1) * buffers(heads_of(&m));
    if (units > units_room(most))
        return error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "problem",
                         "gradients of scores of a key head's queries take %lld bytes, of %lld: "
                         "raise spill_size",
                         (long long)(units * SPILL_UNIT), (long long)most);
    tess_status status = making_begin(&m) || steps_make(&m) ? no_memory(error) : TESS_OK;
    if (!status)
        status = items_make(&m, most, error);
    free(m.step_ptr);
    free(m.place);
    free(m.listed);
    return status;
}

void spill_free(struct spill *s) {
    free(s->steps);
    free(s->absent);
    free(s->items);
    free(s->worker_ptr);
    free(s->unit_of);
    *s = (struct spill){0};
}

size_t spill_memory(const struct spill *s) {
    return (size_t)s->n_steps * sizeof *s->steps + (size_t)s->n_absent * sizeof *s->absent +
           (size_t)s->n_items * sizeof *s->items + (size_t)s->n_heads * sizeof *s->unit_of +
           ((size_t)s->chunks * (size_t)s->workers + 1) * sizeof *s->worker_ptr;
}
