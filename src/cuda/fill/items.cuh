/* Work items and combines, from the keys of each query tile; and the header. */
#ifndef TESSERA_CUDA_FILL_ITEMS_CUH
#define TESSERA_CUDA_FILL_ITEMS_CUH

#include "fill/rows.cuh"

/* Parts of unit u. */
static __device__ __forceinline__ int32_t unit_parts(const struct fill_params *p, int64_t u,
                                                     int64_t share) {
    const int64_t tiles = p->shape.tiles;
    const int64_t T = p->list_packs == 1 ? u : u / tiles / p->list_packs * tiles + u % tiles;
    return fill_parts(&p->splits, p->arrays.keys[T], share);
}

/* What a unit adds to places: parts more than one, and in the low half whether there are any. Sums stay
 * below twice the workers. */
static __device__ __forceinline__ uint64_t parts_added(int32_t parts) {
    return (uint64_t)(uint32_t)(parts - 1) << 32 | (uint64_t)(parts > 1);
}

/* Writes an item of each part of unit u; `before` is the sum over the units before it. */
static __device__ __forceinline__ void unit_write(const struct fill_params *p, int64_t u,
                                                  int32_t parts, uint64_t before, int32_t first,
                                                  int32_t step) {
    const int64_t more = (int64_t)(before >> 32), split = (int64_t)(before & UINT32_MAX);
    const int64_t slot = more + split; /* as many as parts of split tiles */
    const int32_t packed = (int32_t)(u / p->shape.tiles), tile = (int32_t)(u % p->shape.tiles);
    for (int32_t part = first; part < parts; part += step) {
        struct work_item *item = &p->items[u + more + part];
        item->batch_head = packed;
        item->tile = tile;
        item->part = part;
        item->parts = parts;
        item->slot = parts > 1 ? slot + part : -1;
    }
    if (parts > 1 && first == 0) {
        struct combine_item *combine = &p->combines[split];
        combine->batch_head = packed;
        combine->tile = tile;
        combine->parts = parts;
        combine->first_slot = slot;
    }
}

/* Units of a warp's lanes: each lane's own where it is one part; the warp writes split ones. */
static __device__ __forceinline__ void units_write(const struct fill_params *p, int64_t u,
                                                   int32_t parts, uint64_t before) {
    const int32_t lane = (int32_t)threadIdx.x % 32;
    if (parts == 1)
        unit_write(p, u, 1, before, 0, 1);
    for (uint32_t split = __ballot_sync(TEAM_LANES, parts > 1); split; split &= split - 1) {
        const int32_t from = __ffs((int)split) - 1;
        const int32_t its_parts = __shfl_sync(TEAM_LANES, parts, from);
        const uint64_t its_before = __shfl_sync(TEAM_LANES, before, from);
        unit_write(p, u + from - lane, its_parts, its_before, lane, 32);
    }
}

/* Adds up what all thread blocks over block rows have counted; each thread reads some. */
static __device__ __forceinline__ void tallies_add(const struct fill_params *p) {
    uint64_t of[TALLIES] = {0, 0, 0, 0};
    for (int32_t i = (int32_t)threadIdx.x; i < p->blocks; i += (int32_t)blockDim.x) {
        const struct fill_counts *tally = &p->tallies[i];
        of[TALLY_FAULTS] += (uint64_t)tally->faults;
        of[TALLY_OVERFLOWS] += (uint64_t)tally->overflows;
        of[TALLY_KEYS] += (uint64_t)tally->keys;
        of[TALLY_PAIRS] += (uint64_t)tally->pairs;
    }
    for (int32_t i = 0; i < TALLIES; i++)
        tally_warp((enum tally)i, of[i]);
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

/* A chunk of units. Each thread block sums what lies before its own by itself; the last knows all. */
static __global__ void __launch_bounds__(FILL_THREADS)
    fill_items(const __grid_constant__ struct fill_params p) {
    const int64_t begin = (int64_t)blockIdx.x * p.items_chunk;
    const int64_t end = fill_least(begin + p.items_chunk, p.units);
    const int last = blockIdx.x + 1 == gridDim.x;
    uint64_t before = 0, all;
    tally_begin();
    fill_wait();
    tallies_add(&p);
    if (last)
        lengths_write(&p);
    __syncthreads();
    const int64_t keys = (int64_t)tally_of(TALLY_KEYS) * p.list_packs;
    const int64_t share = fill_share(&p.splits, keys + p.units * p.splits.item);
    for (int64_t u = threadIdx.x; u < begin; u += blockDim.x)
        before += parts_added(unit_parts(&p, u, share));
    if (begin)
        block_sums(before, fill_shared, &before);
    for (int64_t first = begin; first < end; first += blockDim.x) {
        const int64_t u = first + threadIdx.x;
        const int32_t parts = u < end ? unit_parts(&p, u, share) : 0;
        const uint64_t added = parts ? parts_added(parts) : 0;
        const uint64_t through = block_sums(added, fill_shared, &all);
        units_write(&p, u, parts, before + through - added);
        before += all;
    }
    if (last)
        header_write(&p, before);
}

#endif
