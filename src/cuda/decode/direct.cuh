/*
 * Decode straight from padded indices: the kernel reads them itself, and no image. CTAs of a query tile deal the
 * entries of the tile's row by DECODE_CHUNK, and sum theirs (decode/sum.cuh); a tile of one CTA is stored, others'
 * parts are combined as those of a filled image (work/combine.cuh):
 *
 *   CTA 0   chunks 0, parts, 2 parts ...      m, l, O [16, DV] ──▶ slot 0  ──▶ combine
 *   CTA 1   chunks 1, parts + 1 ...           m, l, O [16, DV] ──▶ slot 1
 */
#ifndef TESSERA_CUDA_DECODE_DIRECT_CUH
#define TESSERA_CUDA_DECODE_DIRECT_CUH

#include "decode/launch.cuh"
#include "decode/store.cuh"
#include "decode/sum.cuh"
#include "work/image.cuh"

/* ---- lists ---- */

/* Keys of a tile's row, of which a CTA takes every parts-th chunk: of its entries, padding included, or of ranges. They
 * stand in shared memory, for registers are short. */
struct direct_entries {
    const int32_t *row;
    uint32_t n;           /* keys of entries to look at */
    uint32_t part, parts; /* the CTA's number among those of the tile */
    int32_t low, high;    /* the first and last key that the tile lists */
    int32_t bits;         /* log2 of the keys of an entry */
    int32_t ranges;       /* how many there are; 0: entries are indices */
    struct {
        uint32_t end;  /* keys up to its end */
        int32_t shift; /* a key less its number among the row's */
    } range[FILL_RANGES];
};
struct direct_list {
    const struct direct_entries *at;
};

/* Keys of chunks that this CTA takes. */
DEVICE uint32_t direct_most(const struct direct_entries &l) {
    const uint32_t chunks = (l.n + DECODE_CHUNK - 1) / DECODE_CHUNK;
    return fill_quotient(chunks + l.parts - 1 - l.part, l.parts) * DECODE_CHUNK;
}

/* Row `row` of all lists, as long as it may be; of ranges, with none yet. */
DEVICE struct direct_entries direct_entries_of(const struct decode_given &given, int64_t row,
                                               uint32_t part) {
    return {given.indices + row * given.capacity * (given.ranges ? 2 : 1),
            (uint32_t)given.capacity << given.bits,
            part,
            (uint32_t)given.parts,
            0,
            0,
            given.bits,
            0,
            {}};
}

/* Today's length of a batch. */
DEVICE int32_t direct_length(const struct decode_given &given, int32_t batch) {
    return given.lengths ? fill_length(given.lengths[batch], given.n_kv) : given.n_kv;
}

/* Cuts entries to today's count and length. */
DEVICE void direct_cut(struct direct_entries &l, const struct decode_given &given, int64_t row,
                       int64_t position, int32_t length) {
    if (given.counts)
        l.n = (uint32_t)fill_count(given.counts[row], (int32_t)given.capacity) << given.bits;
    l.low = (int32_t)fill_most(0, fill_least(position + given.lo, INT32_MAX));
    l.high = (int32_t)fill_most(-1, fill_least(position + given.hi, (int64_t)length - 1));
}

/* Reads the ranges of a row, whose keys then are those that the tile lists. By one thread: `l` is in shared memory. */
DEVICE void direct_take_ranges(struct direct_entries &l, int32_t length) {
    int32_t(*const range)[2] = reinterpret_cast<int32_t(*)[2]>(l.range);
    l.ranges = fill_ranges(l.row, (int32_t)l.n, length, range);
    l.n = 0;
    for (int32_t i = 0; i < l.ranges; i++) {
        const int32_t first = max(range[i][0], l.low), end = min(range[i][1], l.high + 1);
        const uint32_t before = l.n;
        l.n += (uint32_t)max(0, end - first);
        l.range[i] = {l.n, first - (int32_t)before};
    }
}

/* Number of the CTA's `at`-th key among those of the row. */
DEVICE uint32_t direct_number(const struct direct_entries &l, uint32_t at) {
    return (at / DECODE_CHUNK * l.parts + l.part) * DECODE_CHUNK + at % DECODE_CHUNK;
}

/* Entry of the CTA's `at`-th key; -1 from `end` on. */
DEVICE int32_t direct_entry(const struct direct_entries &l, uint32_t at, uint32_t end) {
    const uint32_t x = direct_number(l, at);
    if (at >= end || x >= l.n)
        return -1;
    if (l.ranges == 0)
        return l.row[x >> l.bits];
    int32_t shift = l.range[0].shift;
#pragma unroll
    for (int i = 1; i < FILL_RANGES; i++)
        if (i < l.ranges && x >= l.range[i - 1].end)
            shift = l.range[i].shift;
    return (int32_t)x + shift;
}

DEVICE struct decode_place direct_place(const struct direct_entries &l, uint32_t at,
                                        int32_t entry) {
    const uint32_t within = direct_number(l, at) & ((1u << l.bits) - 1);
    const int32_t key = (int32_t)((uint32_t)entry << l.bits | within);
    return fill_listed(entry, (l.high >> l.bits) + 1) && key >= l.low && key <= l.high
               ? decode_place{key, key, 0, 256}
               : DECODE_NO_PLACE;
}

DEVICE struct decode_place decode_place_of(const struct decode_params &,
                                           const struct direct_list &list, uint32_t at,
                                           uint32_t end) {
    return direct_place(*list.at, at, direct_entry(*list.at, at, end));
}

/* Rows that list a key of a mask, which no such list has. */
DEVICE uint64_t decode_rows(const struct decode_params &, const struct direct_list &, int32_t) {
    return 0;
}

/* Looks at all that a CTA has: chunks behind its last key are neither copied nor weighed. */
template <int THREADS, class copies>
DEVICE uint32_t decode_look_up(struct decode_place *places, int n, const struct decode_params &p,
                               const struct decode_item &item, const struct direct_list &l,
                               float *scratch, const copies &meanwhile) {
    uint32_t *const ends = reinterpret_cast<uint32_t *>(scratch);
    uint32_t end = 0, at = threadIdx.x;
    int32_t entry = direct_entry(*l.at, at, item.end);
    meanwhile();
#pragma unroll 1
    while (at < max(item.end, (uint32_t)n)) {
        const struct decode_place place = decode_paged(p, item, direct_place(*l.at, at, entry));
        if (at < (uint32_t)n)
            places[at] = place;
        if (place.key >= 0)
            end = at + 1;
        at += THREADS;
        entry = direct_entry(*l.at, at, item.end);
    }
    end = __reduce_max_sync(WARP_ALL, end);
    if (warp_lane() == 0)
        ends[threadIdx.x / 32] = end;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < THREADS / 32; w++)
        end = max(end, ends[w]);
    return end;
}

/* ---- the kernel ---- */

/*
 * A shape with room for Q alone, so that all stages are in flight at once:
 *
 *   | the shape's own | Q [16][D] | entries |
 */
template <class base> struct direct_shape : base {
    static constexpr bool Q_APART = true;
    static constexpr int Q = (base::BYTES + 127) / 128 * 128;
    static constexpr int ENTRIES = Q + base::M * base::ROW;
    static constexpr int BYTES = ENTRIES + (int)sizeof(struct direct_entries);
    static_assert(BYTES - base::BYTES <= DECODE_DIRECT_ROOM(base::D), "as plans know");
    static_assert(base::M == 16 && !base::SPLIT, "rows of one group");
    static_assert(4 * base::WARPS * 16 * (base::DIMS_O + 8) <= base::S, "O where stages were");
};

/* This CTA's tile, all of whose rows are of one query. `row`: of all lists. */
DEVICE struct decode_item direct_item(const struct decode_params &p, int64_t *row) {
    const uint32_t unit = fill_quotient(blockIdx.x, (uint32_t)p.given.parts);
    const uint32_t pack = fill_quotient(unit, (uint32_t)p.tiles);
    const int32_t tile = (int32_t)(unit - pack * (uint32_t)p.tiles);
    const struct decode_item item = {filled_tile_at(p, (int32_t)pack, tile), 0, 0, 0, 0};
    *row = item.T - (p.given.shared ? (int64_t)item.batch * p.image.heads * p.tiles : 0);
    return item;
}

/* Stores a part's O by rows of whole lines, by way of shared memory at `room`, which no warp reads any more; m and l. */
template <class shape>
DEVICE void
direct_store_part(char *room, const struct decode_params &p,
                  const struct attention_state<typename shape::T, shape::DIMS_O, 16> &state) {
    constexpr int DIMS = shape::DIMS_O, PITCH = DIMS + 8, LANES = DIMS / 4; /* a row's */
    const float lower = attention_lower<typename shape::T>();
    const int lane = warp_lane(), first = decode_column<shape>() * DIMS;
    float *const mine = reinterpret_cast<float *>(room) + (int)threadIdx.x / 32 * 16 * PITCH;
    const int64_t slot = (int64_t)blockIdx.x * p.run.tile_heads;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = lane / 4 + 8 * r;
        if (first == 0 && lane % 4 == 0 && row < p.run.tile_heads) {
            const struct attention_slot at = attention_slot_of(p.run, slot + row);
            *at.m = state.m[r], *at.l = state.l[r] * lower;
        }
#pragma unroll
        for (int d = 0; d < DIMS / 8; d++)
            *reinterpret_cast<float2 *>(&mine[row * PITCH + 8 * d + lane % 4 * 2]) = {
                state.o[0][d][2 * r] * lower, state.o[0][d][2 * r + 1] * lower};
    }
    __syncwarp();
    const int dim = lane % LANES * 4;
    float *to = attention_slot_of(p.run, slot + lane / LANES).o + first + dim;
#pragma unroll 2
    for (int row = lane / LANES; row < p.run.tile_heads; row += 32 / LANES) {
        if (first + dim < p.run.slot_dims)
            *reinterpret_cast<float4 *>(to) =
                *reinterpret_cast<const float4 *>(&mine[row * PITCH + dim]);
        to += 32 / LANES * p.run.slot_floats;
    }
}

template <class shape, bool MODIFIED>
static __global__ void __launch_bounds__(shape::THREADS, (decode_blocks<shape, MODIFIED>()))
    decode_direct(const __grid_constant__ struct decode_params p) {
#if ARCHITECTURE_CLUSTERS
    extern __shared__ __align__(128) char memory[];
    struct attention_state<typename shape::T, shape::DIMS_O, 16> state;
    early_fetch(p, memory);
    {
        int64_t row;
        const uint32_t part = blockIdx.x % (uint32_t)p.given.parts;
        struct decode_item item = direct_item(p, &row);
        struct direct_entries entries = direct_entries_of(p.given, row, part);
        if (p.given.lengths || p.given.counts || p.given.ranges)
            early_wait(); /* a kernel in front may write what is read here */
        const int32_t length = direct_length(p.given, item.batch);
        item.first = length - p.run.n_q;
        direct_cut(entries, p.given, row, (int64_t)item.row + item.first, length);
        struct direct_entries *const at =
            reinterpret_cast<struct direct_entries *>(memory + shape::ENTRIES);
        if (threadIdx.x == 0) {
            *at = entries;
            if (p.given.ranges)
                direct_take_ranges(*at, length);
        }
        __syncthreads();
        item.end = direct_most(*at);
        early_wait(); /* and lists, q, K and V */
        early_next();
        decode_sum<shape, MODIFIED>(state, memory, p, item, direct_list{at});
    }
    if (p.given.parts == 1) {
        int64_t row;
        decode_store<shape>(p, direct_item(p, &row), state);
    } else {
        __syncthreads(); /* all have read the ring */
        direct_store_part<shape>(memory, p, state);
    }
#endif
}

/* Shapes whose tiles have one group of rows have one: others are never given lists (decode_direct). */
template <class base, bool MODIFIED>
static constexpr struct decode_variant direct_variant_of(void) {
    if constexpr (base::M == 16 && !base::SPLIT) {
        using shape = struct direct_shape<base>;
        return {decode_direct<shape, MODIFIED>, shape::THREADS, shape::BYTES, shape::BYTES,
                launch_shared<shape::BYTES>};
    } else {
        return {};
    }
}

#endif
