/* Work items and combines, from the keys of each query tile; and the header. */
#ifndef TESSERA_CUDA_FILL_ITEMS_CUH
#define TESSERA_CUDA_FILL_ITEMS_CUH

#include "fill/places.cuh"

/* Keys of unit u. */
static __device__ __forceinline__ int64_t unit_keys(const struct fill_params *p, int64_t u) {
    const int64_t tiles = p->shape.tiles;
    const int64_t T = p->list_packs == 1 ? u : u / tiles / p->list_packs * tiles + u % tiles;
    return p->arrays.keys[T];
}

/* What a unit adds to places: parts more than one, and in the low half whether there are any. Sums stay
 * below twice the workers. */
static __device__ __forceinline__ uint64_t parts_added(int32_t parts) {
    return (uint64_t)(uint32_t)(parts - 1) << 32 | (uint64_t)(parts > 1);
}

/* A unit under way: its first item, its parts, and their first slot. */
struct unit_under_way {
    int64_t item, slot;
    int32_t packed, tile, parts;
};

static __device__ __forceinline__ void item_write(const struct fill_params *p,
                                                  const struct unit_under_way *unit, int32_t part) {
    struct work_item *item = &p->items[unit->item + part];
    item->batch_head = unit->packed;
    item->tile = unit->tile;
    item->part = part;
    item->parts = unit->parts;
    item->slot = unit->parts > 1 ? unit->slot + part : -1;
}

static __device__ __forceinline__ struct unit_under_way unit_from(const struct unit_under_way *unit,
                                                                  int32_t lane) {
    struct unit_under_way its;
    its.item = __shfl_sync(TEAM_LANES, unit->item, lane);
    its.slot = __shfl_sync(TEAM_LANES, unit->slot, lane);
    its.packed = __shfl_sync(TEAM_LANES, unit->packed, lane);
    its.tile = __shfl_sync(TEAM_LANES, unit->tile, lane);
    its.parts = __shfl_sync(TEAM_LANES, unit->parts, lane);
    return its;
}

/* Writes items of the units of a warp's lanes, those with parts being the first; `before` is the sum over
 * the units before a lane's. Where units are split, each lane takes every 32nd item and searches whose it
 * is. */
static __device__ __forceinline__ void units_write(const struct fill_params *p, int64_t u,
                                                   int32_t parts, uint64_t before) {
    const int64_t more = (int64_t)(before >> 32), split = (int64_t)(before & UINT32_MAX);
    const int32_t lane = (int32_t)threadIdx.x % 32;
    const int32_t units = __popc(__ballot_sync(TEAM_LANES, parts > 0));
    struct unit_under_way unit;
    unit.packed = (int32_t)(u / p->shape.tiles);
    unit.tile = (int32_t)(u - unit.packed * p->shape.tiles);
    unit.parts = parts, unit.item = u + more;
    unit.slot = more + split; /* as many as parts of split tiles */
    if (!__any_sync(TEAM_LANES, parts > 1)) {
        if (parts)
            item_write(p, &unit, 0);
        return;
    }
    if (parts > 1) {
        struct combine_item *combine = &p->combines[split];
        combine->batch_head = unit.packed;
        combine->tile = unit.tile;
        combine->parts = parts;
        combine->first_slot = unit.slot;
    }
    const int32_t first = (int32_t)(unit.item - __shfl_sync(TEAM_LANES, unit.item, 0));
    const int32_t items = __shfl_sync(TEAM_LANES, first + parts, units - 1);
    for (int32_t item = lane; item - lane < items; item += 32) {
        int32_t from = 0;
        for (int32_t step = 16; step; step /= 2)
            from += __shfl_sync(TEAM_LANES, first, from + step) <= item ? step : 0;
        const struct unit_under_way its = unit_from(&unit, from);
        const int32_t part = item - __shfl_sync(TEAM_LANES, first, from);
        if (item < items)
            item_write(p, &its, part);
    }
}

/* Adds up what all thread blocks over block rows have counted: a lane reads one number of every eighth. */
static __device__ __forceinline__ void tallies_add(const struct fill_params *p) {
    const uint64_t *of = (const uint64_t *)(const void *)p->tallies;
    const int32_t lane = (int32_t)threadIdx.x % 32;
    uint64_t sum = 0;
    for (int32_t i = (int32_t)threadIdx.x; i < TALLIES * p->blocks; i += (int32_t)blockDim.x)
        sum += of[i];
    for (int32_t step = 16; step >= TALLIES; step /= 2)
        sum += __shfl_xor_sync(TEAM_LANES, sum, step);
    if (lane < TALLIES)
        tally_add((enum tally)lane, sum);
}

/* Today's lengths; those that cannot be are faults. */
static __device__ __forceinline__ void lengths_write(const struct fill_params *p) {
    int64_t faults = 0;
    for (int64_t b = threadIdx.x; b < p->shape.batches; b += blockDim.x)
        p->arrays.lengths[b] = p->lengths
                                   ? fill_length(p->lengths[b], (int32_t)p->shape.n_kv, &faults)
                                   : (int32_t)p->shape.n_kv;
    tally_warp(TALLY_FAULTS, (uint64_t)faults);
}

/* The header, from the tally and the sum over all units. */
static __device__ __forceinline__ void header_write(const struct fill_params *p, uint64_t added) {
    const int64_t more = (int64_t)(added >> 32), split = (int64_t)(added & UINT32_MAX);
    uint64_t *words = (uint64_t *)(void *)p->header;
    struct fill_header *h = p->header;
    for (int32_t i = (int32_t)threadIdx.x; i < (int32_t)(TESS_REPORT_SIZE / sizeof *words);
         i += (int32_t)blockDim.x)
        words[i] = 0;
    __syncthreads();
    if (threadIdx.x)
        return;
    h->magic = FILL_MAGIC;
    h->layout = p->layout;
    h->faults = (int64_t)tally_of(TALLY_FAULTS);
    h->overflows = (int64_t)tally_of(TALLY_OVERFLOWS);
    h->keys = (int64_t)tally_of(TALLY_KEYS);
    h->items = p->units + more;
    h->pairs = (int64_t)tally_of(TALLY_PAIRS) * p->list_heads;
    h->combines = split;
    h->slots = more + split;
    h->unit_keys = h->keys * p->list_packs;
}

/* Items of units begin ... end - 1, and where these are the last the header. keys_ahead: of the thread's
 * first unit. The tally is complete but for lengths. */
static __device__ __forceinline__ void items_write(const struct fill_params *p, int64_t begin,
                                                   int64_t end, int64_t keys_ahead) {
    const int last = end == p->units;
    uint64_t before = 0, all;
    const int64_t keys = (int64_t)tally_of(TALLY_KEYS) * p->list_packs;
    const int64_t share = fill_share(&p->splits, keys + p->units * p->splits.item);
    if (last)
        lengths_write(p);
    for (int64_t u = threadIdx.x; u < begin; u += blockDim.x)
        before += parts_added(fill_parts(&p->splits, unit_keys(p, u), share));
    if (begin)
        block_sums(before, fill_shared, &before);
    for (int64_t first = begin; first < end; first += blockDim.x) {
        const int64_t u = first + threadIdx.x;
        const int64_t its_keys = first == begin || u >= end ? keys_ahead : unit_keys(p, u);
        const int32_t parts = u < end ? fill_parts(&p->splits, its_keys, share) : 0;
        const uint64_t added = parts ? parts_added(parts) : 0;
        const uint64_t through = block_sums(added, fill_shared, &all);
        units_write(p, u, parts, before + through - added);
        before += all;
    }
    if (last)
        header_write(p, before);
}

/* A chunk of units. Each thread block sums what lies before its own by itself; the last knows all. */
static __global__ void __launch_bounds__(FILL_THREADS)
    fill_items(const __grid_constant__ struct fill_params p) {
    const int64_t begin = (int64_t)blockIdx.x * p.items_chunk;
    const int64_t end = fill_least(begin + p.items_chunk, p.units), u = begin + threadIdx.x;
    fill_fetch(&p);
    tally_begin();
    fill_wait();
    const int64_t keys = u < end ? unit_keys(&p, u) : 0;
    tallies_add(&p);
    __syncthreads();
    items_write(&p, begin, end, keys);
}

/* What a thread block over block rows ends with: its tally or, where it is the only one, items. */
static __device__ __forceinline__ void rows_end(const struct fill_params *p) {
    __syncthreads();
    if (gridDim.x == 1)
        items_write(p, 0, p->units, threadIdx.x < p->units ? unit_keys(p, threadIdx.x) : 0);
    else if (threadIdx.x < TALLIES)
        ((uint64_t *)&p->tallies[blockIdx.x])[threadIdx.x] = fill_shared[64 + threadIdx.x];
}

#endif
