/* Work items and combines, from the keys of each query tile; and the header. */
#ifndef TESSERA_CUDA_FILL_ITEMS_CUH
#define TESSERA_CUDA_FILL_ITEMS_CUH

#include "fill/places.cuh"

/* A unit's heads and tile of a list. */
struct unit_place {
    uint32_t packed, tile;
};
DEVICE struct unit_place unit_at(const struct fill_params *p, uint32_t u) {
    const uint32_t tiles = (uint32_t)p->shape.tiles, packed = fill_quotient(u, tiles);
    struct unit_place at;
    at.packed = packed, at.tile = u - packed * tiles;
    return at;
}

/* Place of a unit's keys. */
DEVICE const int64_t *unit_keys(const struct fill_params *p, uint32_t u) {
    const struct unit_place at = unit_at(p, u);
    const uint32_t list = fill_quotient(at.packed, (uint32_t)p->list_packs);
    return p->arrays.keys + (int64_t)list * (uint32_t)p->shape.tiles + at.tile;
}

/* A unit's addend to places: parts more than one, and in the low half whether there are any. Sums stay below
 * three times the workers. */
DEVICE uint64_t parts_added(int32_t parts) {
    return (uint64_t)(uint32_t)(parts - 1) << 32 | (uint64_t)(parts > 1);
}

/* Parts more than one of the units before one, of a sum. */
DEVICE uint32_t sum_more(uint64_t sum) {
    return (uint32_t)(sum >> 32);
}

DEVICE void combine_write(const struct fill_params *p, uint32_t u, int32_t parts, uint64_t before) {
    const struct unit_place at = unit_at(p, u);
    struct combine_item *combine = &p->combines[(uint32_t)before];
    combine->batch_head = (int32_t)at.packed;
    combine->tile = (int32_t)at.tile;
    combine->parts = parts;
    combine->first_slot =
        sum_more(before) + (uint32_t)before; /* parts of split tiles before this one */
}

/* Writes the items of units first ... first + n - 1: a thread takes an item, and searches whose it is. sums: over the
 * units before each of these; after: over all of them. */
DEVICE void items_of_units(const struct fill_params *p, const struct team *team, uint32_t first,
                           uint32_t n, const unsigned long long *sums, uint64_t after) {
    const uint32_t more = sum_more(sums[0]), items = n + sum_more(after) - more;
    const uint32_t steps = n <= 1 || items == n ? 0
                           : n <= FILL_FEW      ? FILL_FEW / 2
                                                : FILL_THREADS / 2;
    FILL_ROLLED
    for (uint32_t i = (uint32_t)team->thread; i < items; i += (uint32_t)team->threads) {
        uint32_t unit = items == n ? i : 0; /* the last whose first item is not behind this one */
        for (uint32_t step = steps; step; step /= 2)
            if (unit + step < n && unit + step + sum_more(sums[unit + step]) - more <= i)
                unit += step;
        const uint64_t sum = sums[unit], next = unit + 1 < n ? sums[unit + 1] : after;
        const struct unit_place at = unit_at(p, first + unit);
        const uint32_t part = i - (unit + sum_more(sum) - more);
        const uint32_t parts = 1 + sum_more(next) - sum_more(sum);
        struct work_item *item = &p->items[first + more + i];
        item->batch_head = (int32_t)at.packed;
        item->tile = (int32_t)at.tile;
        item->part = (int32_t)part;
        item->parts = (int32_t)parts;
        item->slot = parts > 1 ? (int64_t)sum_more(sum) + (uint32_t)sum + part : -1;
    }
}

/* Tallies of all thread blocks over block rows: a lane reads one number of every eighth. */
DEVICE uint64_t tallies_read(const struct fill_params *p) {
    uint64_t sum = 0;
    for (int32_t i = (int32_t)threadIdx.x; i < TALLIES * p->blocks; i += (int32_t)blockDim.x)
        sum += p->tallies[i];
    return sum;
}
DEVICE void tallies_add(uint64_t sum) {
    const int32_t lane = (int32_t)threadIdx.x % 32;
    for (int32_t step = 16; step >= TALLIES; step /= 2)
        sum += __shfl_xor_sync(TEAM_LANES, sum, step);
    if (lane < TALLIES)
        tally_add((enum tally)lane, sum);
}

/* First faults over all thread blocks over block rows: looked for where a tally says that there is any. */
DEVICE void firsts_read(const struct fill_params *p) {
    if (tally_of(TALLY_FAULTS) || tally_of(TALLY_OVERFLOWS))
        for (int32_t i = (int32_t)threadIdx.x; i < p->blocks; i += (int32_t)blockDim.x)
            first_keep(p->firsts[i]);
    __syncthreads();
}

/* Today's lengths, by a warp; those that cannot be are faults. */
DEVICE void lengths_write(const struct fill_params *p) {
    const struct fill_shape *s = &p->shape;
    const int32_t most = (int32_t)s->n_kv;
    uint64_t first = FILL_NOWHERE;
    uint32_t faults = 0;
    FILL_ROLLED
    for (int32_t b = (int32_t)threadIdx.x % 32; b < s->batches; b += 32) {
        const int32_t given = p->lengths ? p->lengths[b] : most;
        const enum fill_wrong wrong = fill_length_wrong(given, most);
        p->arrays.lengths[b] = fill_length(given, most);
        if (wrong == FILL_RIGHT)
            continue;
        faults++;
        first = fill_earlier(first, fill_order(wrong, (uint64_t)(b * s->heads * s->rows),
                                               s->capacity, FILL_AT_LENGTH));
    }
    if (!__any_sync(TEAM_LANES, faults != 0))
        return;
    tally_warp(TALLY_FAULTS, faults);
    first_warp(first);
}

/* The header, from the tally and the sum over all units. */
DEVICE void header_write_to(struct fill_header *h, const struct fill_params *p,
                            const struct team *team, uint64_t added) {
    const uint32_t more = sum_more(added), split = (uint32_t)added;
    const int32_t spare = (int32_t)(sizeof *h / 8) + team->thread;
    if (spare < (int32_t)(TESS_REPORT_SIZE / 8))
        ((uint64_t *)(void *)h)[spare] = 0;
    if (team->thread + 1 < team->threads)
        return;
    h->magic = FILL_MAGIC;
    h->layout = p->layout;
    h->faults = (int64_t)tally_of(TALLY_FAULTS);
    h->overflows = (int64_t)tally_of(TALLY_OVERFLOWS);
    h->keys = (int64_t)tally_of(TALLY_KEYS);
    h->items = p->units + more;
    h->pairs = (int64_t)tally_of(TALLY_PAIRS) * p->list_heads;
    h->combines = split;
    h->slots = (int64_t)more + split;
    h->unit_keys = (int64_t)tally_of(TALLY_KEYS) * p->list_packs;
    h->first = fill_shared[FILL_FIRST];
}

/* The header and its copy. The last thread has no item to write, mostly. */
DEVICE void header_write(const struct fill_params *p, const struct team *team, uint64_t added) {
    header_write_to(p->header, p, team, added);
    if (p->report)
        header_write_to(p->report, p, team, added);
}

/* Whether each warp sums over all units by itself. */
DEVICE int units_few(const struct fill_params *p) {
    return gridDim.x == 1 && p->units <= FILL_FEW;
}

/* Items of units begin ... end - 1; answers the sum over all before `end`. keys: of the thread's first unit, its warp's
 * lanes having all where these are few; total: of all units. */
DEVICE uint64_t items_write(const struct fill_params *p, const struct team *team, uint32_t begin,
                            uint32_t end, int64_t keys, int64_t total) {
    const struct team summing =
        team_first(units_few(p) ? 32 : team->threads); /* threads that sum */
    const int64_t share = fill_share(&p->splits, total + p->units * p->splits.item);
    unsigned long long *sums =
        fill_shared + FILL_SUMS + (threadIdx.x - (uint32_t)summing.thread); /* its own */
    uint64_t before = 0, all;
    FILL_ROLLED
    for (uint32_t u = threadIdx.x; u < begin; u += (uint32_t)team->threads)
        before += parts_added(fill_unit_parts(&p->splits, u, *unit_keys(p, u), share));
    if (begin)
        thread_sums(&summing, before, &before);
    FILL_ROLLED
    for (uint32_t first = begin; first < end; first += (uint32_t)summing.threads) {
        const uint32_t u = first + (uint32_t)summing.thread;
        if (first > begin && u < end)
            keys = *unit_keys(p, u);
        const int32_t parts = u < end ? fill_unit_parts(&p->splits, u, keys, share) : 0;
        const uint64_t added = parts ? parts_added(parts) : 0;
        const uint64_t its = before + thread_sums(&summing, added, &all) - added;
        before += all;
        sums[summing.thread] = its;
        if (parts > 1 && summing.thread == (int32_t)threadIdx.x)
            combine_write(p, u, parts, its);
        team_wait(&summing);
        items_of_units(p, team, first, (uint32_t)fill_least(end - first, summing.threads), sums,
                       before);
        team_wait(&summing); /* the sums have been read */
    }
    return before;
}

/* A chunk of units. Each thread block sums what lies before its own by itself; the last knows all. A warp
 * knows all of few units, and waits for no other. */
static __global__ void __launch_bounds__(FILL_THREADS)
    fill_items(const __grid_constant__ struct fill_params p) {
    const int64_t chunk = blockIdx.x * p.items_chunk;
    const uint32_t begin = (uint32_t)chunk,
                   end = (uint32_t)fill_least(chunk + p.items_chunk, p.units);
    const struct team team = team_first((int32_t)blockDim.x);
    const int few = units_few(&p);
    const uint32_t u = begin + threadIdx.x % (few ? 32 : blockDim.x);
    fill_fetch(&p);
    tally_begin();
    const int64_t *const listed = unit_keys(&p, u < end ? u : begin);
    fill_wait();
    const int64_t keys = u < end ? *listed : 0;
    const uint64_t tallies = tallies_read(&p);
    int64_t total = few ? (int64_t)warp_sum((uint64_t)keys) : 0;
    if (!few) {
        tallies_add(tallies);
        __syncthreads();
        total = (int64_t)tally_of(TALLY_KEYS) * p.list_packs;
    }
    const uint64_t added = items_write(&p, &team, begin, end, keys, total);
    if (few) {
        tallies_add(tallies);
        __syncthreads();
    }
    if (end == p.units) {
        firsts_read(&p);
        header_write(&p, &team, added);
    }
}

/* End of a thread block over block rows: its tally or, where it is the only one, items; of few units by a
 * warp. The last warp has no tiles to tell of, mostly. */
DEVICE void rows_end(const struct fill_params *p) {
    const int few = units_few(p);
    const struct team team = team_first(few ? 32 : (int32_t)blockDim.x);
    if (blockIdx.x == 0 && threadIdx.x + 32 >= blockDim.x)
        lengths_write(p);
    __syncthreads();
    if (gridDim.x > 1) {
        if (threadIdx.x < TALLIES)
            p->tallies[TALLIES * blockIdx.x + threadIdx.x] = fill_shared[FILL_TALLY + threadIdx.x];
        else if (threadIdx.x == TALLIES)
            p->firsts[blockIdx.x] = fill_shared[FILL_FIRST];
        return;
    }
    if (few && threadIdx.x >= 32)
        return;
    int64_t keys = 0;
    if (threadIdx.x < p->units)
        keys = few && p->list_packs == 1 ? (int64_t)fill_shared[FILL_SUMS - FILL_FEW + threadIdx.x]
                                         : *unit_keys(p, threadIdx.x);
    const uint64_t added = items_write(p, &team, 0, (uint32_t)p->units, keys,
                                       (int64_t)tally_of(TALLY_KEYS) * p->list_packs);
    header_write(p, &team, added);
}

#endif
