/*
 * Decode in one launch, sm_90: the kernel reads padded indices itself, and no image. A cluster takes a query tile; its
 * CTAs deal the entries of the tile's row by DECODE_CHUNK, sum theirs (decode/sum.cuh), and push
 * partial results to the owners of dims, which add the parts in their order:
 *
 *   CTA 0   chunks 0, parts, 2 parts ...      m, l, O [16, DV] ─┬─▶ CTA 0   dims 0 ... DV / parts - 1
 *   CTA 1   chunks 1, parts + 1 ...           m, l, O [16, DV] ─┼─▶ CTA 1   the next
 *   ...                                                         └─▶ ...
 *
 * No partial result goes through memory. An owner waits for bytes, never for a barrier of the cluster.
 */
#ifndef TESSERA_CUDA_DECODE_DIRECT_CUH
#define TESSERA_CUDA_DECODE_DIRECT_CUH

#include "decode/store.cuh"
#include "decode/sum.cuh"
#include "device/cluster.cuh"
#include "device/sm90/tma.cuh"
#include "work/image.cuh"
#include "work/launch.cuh"

/* ---- lists ---- */

/* Entries of a tile's row, of which a CTA takes every parts-th chunk. They stand in shared memory, for registers are
 * short. */
struct direct_entries {
    const int32_t *row;
    uint32_t n;        /* keys of entries to look at */
    int32_t low, high; /* the first and last key that the tile lists */
    int32_t bits;      /* log2 of the keys of an entry */
};
struct direct_list {
    const struct direct_entries *at;
};

/* Keys of chunks that this CTA takes. */
DEVICE uint32_t direct_most(const struct direct_entries &l) {
    const uint32_t chunks = (l.n + DECODE_CHUNK - 1) / DECODE_CHUNK;
    const uint32_t part = (uint32_t)cluster_rank(), parts = (uint32_t)cluster_size();
    return fill_quotient(chunks + parts - 1 - part, parts) * DECODE_CHUNK;
}

/* Today's length of a batch. */
DEVICE int32_t direct_length(const struct decode_given &given, int32_t batch) {
    return given.lengths ? fill_length(given.lengths[batch], given.n_kv) : given.n_kv;
}

DEVICE struct direct_entries direct_entries_of(const struct decode_params &p,
                                               const struct decode_item &item, int32_t tile,
                                               int32_t length) {
    const struct decode_given &given = p.given;
    const int32_t heads = (int32_t)p.image.heads;
    const int64_t head = heads == 1 ? 0 : item.head / (p.run.heads_q / heads);
    const int64_t row = ((given.shared ? 0 : (int64_t)item.batch * heads) + head) * p.tiles + tile;
    const int64_t position = (int64_t)item.row + length - p.run.n_q;
    const int32_t n = given.counts ? fill_count(given.counts[row], (int32_t)given.capacity)
                                   : (int32_t)given.capacity;
    return {given.indices + row * given.capacity, (uint32_t)n << given.bits,
            (int32_t)fill_most(0, fill_least(position + given.lo, INT32_MAX)),
            (int32_t)fill_most(-1, fill_least(position + given.hi, (int64_t)length - 1)),
            given.bits};
}

DEVICE struct decode_place decode_place_of(const struct decode_params &,
                                           const struct direct_list &list, uint32_t at,
                                           uint32_t end) {
    const struct direct_entries &l = *list.at;
    const uint32_t chunk = at / DECODE_CHUNK * (uint32_t)cluster_size() + (uint32_t)cluster_rank();
    const uint32_t x = chunk * DECODE_CHUNK + at % DECODE_CHUNK;
    if (at >= end || x >= l.n)
        return DECODE_NO_PLACE;
    const int32_t index = l.row[x >> l.bits];
    const int32_t key = (int32_t)((uint32_t)index << l.bits | (x & ((1u << l.bits) - 1)));
    return fill_listed(index, (l.high >> l.bits) + 1) && key >= l.low && key <= l.high
               ? decode_place{key, key, 0, 256}
               : DECODE_NO_PLACE;
}

/* Rows that list a key of a mask, which no such list has. */
DEVICE uint64_t decode_rows(const struct decode_params &, const struct direct_list &, int32_t) {
    return 0;
}

/* Looks at all that a CTA has: chunks behind its last key are neither copied nor weighed. */
template <int THREADS>
DEVICE uint32_t decode_look_up(struct decode_place *places, int n, const struct decode_params &p,
                               const struct decode_item &item, const struct direct_list &l,
                               float *scratch) {
    uint32_t *const ends = reinterpret_cast<uint32_t *>(scratch);
    uint32_t end = 0;
#pragma unroll 1
    for (uint32_t at = threadIdx.x; at < max(item.end, (uint32_t)n); at += THREADS) {
        const struct decode_place place = decode_find(p, item, l, at);
        if (at < (uint32_t)n)
            places[at] = place;
        if (place.key >= 0)
            end = at + 1;
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

/* ---- shared memory ---- */

/*
 * A shape with room for Q alone, so that all stages are in flight at once, and for what other CTAs send:
 *
 *   | the shape's own | Q [16][D] | O [parts][16][DV / parts, padded] f32 | m, l of rows g, g + 8: [parts][8] x 4 f32 |
 *   | barriers | entries |
 */
template <class base> struct direct_shape : base {
    static constexpr bool Q_APART = true;
    static constexpr int PAD = 4,
                         MOST = LAUNCH_CLUSTER_MOST; /* floats behind a row; CTAs of a cluster */
    static constexpr int Q = (base::BYTES + 127) / 128 * 128;
    static constexpr int O = Q + base::M * base::ROW;
    static constexpr int SUMS = O + 4 * 16 * (base::DV + PAD * MOST);
    static constexpr int TOLD = SUMS + 16 * 8 * MOST; /* barrier of m and l */
    static constexpr int FULL = TOLD + 8;             /* barrier of O */
    static constexpr int ENTRIES = FULL + 8;
    static constexpr int BYTES = ENTRIES + (int)sizeof(struct direct_entries);
    static_assert(BYTES - base::BYTES <= DECODE_DIRECT_ROOM(base::D, base::DV), "as plans know");
    static_assert(base::M == 16 && !base::SPLIT, "rows of one group");
    static_assert(4 * 16 * (MOST + 2) <= 4 * base::M * base::S_PITCH, "weights where S was");
};

/* ---- partial results ---- */

/* Dims that a CTA owns: parts are a power of two. */
template <class shape> DEVICE int direct_own(int parts) {
    return shape::DV >> (__ffs(parts) - 1);
}

/* Floats that an owner has of a part: DV / parts dims of 16 rows. */
template <class shape> DEVICE int direct_share(int parts) {
    return 16 * (direct_own<shape>(parts) + shape::PAD);
}

/* Sends m and l to all owners, from warps of the first dims, and this warp's O to the owners of its dims, where a row
 * has weights: all warps of a CTA have the same m. */
template <class shape>
DEVICE void direct_push(uint32_t shared,
                        const struct attention_state<typename shape::T, shape::DIMS_O, 16> &state) {
    const float lower = attention_lower<typename shape::T>();
    const int parts = cluster_size(), part = cluster_rank(), lane = warp_lane();
    const int own = direct_own<shape>(parts), bits = __ffs(own) - 1;
    const int first = decode_column<shape>() * shape::DIMS_O, row = lane / 4 + lane % 2 * 8;
    if (first == 0)
        for (int owner = lane % 4; owner < parts; owner += 4)
            store_remote(cluster_address(
                             shared + (uint32_t)(shape::SUMS + 16 * (part * 8 + lane / 4)), owner),
                         {state.m[0], state.l[0] * lower, state.m[1], state.l[1] * lower},
                         cluster_address(shared + shape::TOLD, owner));
    if (!__any_sync(WARP_ALL, fmaxf(state.m[0], state.m[1]) > -INFINITY))
        return;
#pragma unroll
    for (int d = 0; d < shape::DIMS_O / 8; d++) {
        const float *const c = state.o[0][d];
        float x[4] = {c[0], c[1], c[2], c[3]};
        /* Lanes of a pair exchange: even ones have four dims of row g then, odd ones of row g + 8. */
        const float low = __shfl_xor_sync(WARP_ALL, lane % 2 ? x[0] : x[2], 1);
        const float high = __shfl_xor_sync(WARP_ALL, lane % 2 ? x[1] : x[3], 1);
        if (lane % 2)
            x[0] = low, x[1] = high;
        else
            x[2] = low, x[3] = high;
        const int dim = first + 8 * d + lane % 4 / 2 * 4, owner = dim >> bits;
        const int at =
            part * direct_share<shape>(parts) + row * (own + shape::PAD) + (dim & (own - 1));
        store_remote(cluster_address(shared + (uint32_t)(shape::O + 4 * at), owner),
                     {x[0] * lower, x[1] * lower, x[2] * lower, x[3] * lower},
                     cluster_address(shared + shape::FULL, owner));
    }
}

/* Weights of parts, 2^(m_part - m), of each row, once m and l of all parts are there; lse; and waits for O of those
 * that send any (direct_push). weights: [parts][16], then the shares of O and of a base of each row. */
template <class shape>
DEVICE void direct_weigh(char *memory, uint32_t shared, const struct decode_params &p,
                         const struct decode_item &item) {
    const int parts = cluster_size(), row = (int)threadIdx.x % 16;
    const float2 *const sums = reinterpret_cast<const float2 *>(memory + shape::SUMS);
    float *const weights = reinterpret_cast<float *>(memory + shape::S);
    barrier_wait_cluster(shared + shape::TOLD, 0);
    const auto told = [&](int part) { return sums[(part * 8 + row % 8) * 2 + row / 8]; };
    float m = -INFINITY;
#pragma unroll 4
    for (int part = 0; part < parts; part++)
        m = fmaxf(m, told(part).x);
    const float base = attention_base(m);
    for (int part = (int)threadIdx.x / 16; part < parts; part += shape::THREADS / 16)
        weights[part * 16 + row] = exp2f(told(part).x - base);
    if (threadIdx.x < 32) {
        float l = 0;
        int sent = 0;
#pragma unroll 4
        for (int part = 0; part < parts; part++) {
            const float2 of_part = told(part);
            l += exp2f(of_part.x - base) * of_part.y;
            sent += __any_sync(WARP_ALL, of_part.x > -INFINITY);
        }
        const struct decode_row at = decode_row_of(p, item, row);
        if (threadIdx.x < 16 && at.is) {
            const int32_t query = item.row + at.query;
            const float below = modify_denominator(p.run.modify, at.of_head, m, l);
            struct base_shares shares = {l != 0 ? __fdividef(p.run.modify.kept, below) : 0, 0};
            if (p.run.base.o.data)
                shares = base_join(p.run, item.batch, at.of_head, query, m, l);
            weights[parts * 16 + row] = shares.own;
            weights[parts * 16 + 16 + row] = shares.base;
            if (cluster_rank() == 0)
                attention_store_lse(p.run, item.batch, at.of_head, query, m, l);
        }
        if (threadIdx.x == 0)
            barrier_arrive_expect_tx(shared + shape::FULL,
                                     (uint32_t)(sent * 4 * 16 * direct_own<shape>(parts)));
    }
    __syncthreads();
    barrier_wait_cluster(shared + shape::FULL, 0);
}

/* O of the dims that this CTA owns, from all parts in their order. */
template <class shape>
DEVICE void direct_combine(const char *memory, const struct decode_params &p,
                           const struct decode_item &item) {
    using T = typename shape::T;
    const int parts = cluster_size(), own = direct_own<shape>(parts), pairs = own / 2;
    const int share = direct_share<shape>(parts), bits = __ffs(pairs) - 1;
    const float *const o = reinterpret_cast<const float *>(memory + shape::O);
    const float *const weights = reinterpret_cast<const float *>(memory + shape::S);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < 16 * pairs; i += shape::THREADS) {
        const int r = i >> bits, d = (i & (pairs - 1)) * 2, dim = cluster_rank() * own + d;
        const struct decode_row row = decode_row_of(p, item, r);
        if (!row.is || dim >= p.run.d_v)
            continue;
        const float *const from = o + r * (own + shape::PAD) + d;
        float2 sum = {0, 0};
#pragma unroll 4
        for (int part = 0; part < parts; part++) {
            const float w = weights[part * 16 + r];
            const float2 x = *reinterpret_cast<const float2 *>(from + part * share);
            /* A part whose weight is 0 may have sent nothing. */
            sum.x += w > 0 ? w * x.x : 0, sum.y += w > 0 ? w * x.y : 0;
        }
        const float own_share = weights[parts * 16 + r], base = weights[parts * 16 + 16 + r];
        const int32_t query = item.row + row.query;
        sum = own_share == 0 ? float2{0, 0} : float2{sum.x * own_share, sum.y * own_share};
        if (base != 0) {
            const float2 x = decode_load_pair<T>(
                decode_row_at(p.run.base.o, item.batch, row.of_head, query, dim, p.o_f32), 0,
                p.o_f32);
            sum = {fmaf(base, x.x, sum.x), fmaf(base, x.y, sum.y)};
        }
        decode_store_pair<T>(p.run,
                             decode_row_at(p.run.o, item.batch, row.of_head, query, dim, p.o_f32),
                             0, p.o_f32, sum);
    }
}

/* ---- the kernel ---- */

/* This CTA's item, computed anew at each call: no register holds it while keys are summed. */
DEVICE struct decode_item direct_item_here(const struct decode_params &p, int32_t *tile) {
    const uint32_t parts = (uint32_t)cluster_size();
    uint32_t block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    const uint32_t unit = fill_quotient(block, parts);
    const uint32_t pack = fill_quotient(unit, (uint32_t)p.tiles);
    *tile = (int32_t)(unit - pack * (uint32_t)p.tiles);
    return {filled_tile_at(p, (int32_t)pack, *tile), 0, (int32_t)parts, 0, 0};
}

/* The owner's part, after sums: apart, so that it takes no register from them. */
template <class shape>
static __device__ __noinline__ void direct_gather(char *memory, const struct decode_params &p) {
    int32_t tile;
    const struct decode_item item = direct_item_here(p, &tile);
    direct_weigh<shape>(memory, shared_address(memory), p, item);
    direct_combine<shape>(memory, p, item);
}

template <class shape, bool MODIFIED>
static __global__ void __launch_bounds__(shape::THREADS, 1)
    decode_direct(const __grid_constant__ struct decode_params p) {
#if ARCHITECTURE_CLUSTERS
    extern __shared__ __align__(128) char memory[];
    const uint32_t shared = shared_address(memory);
    struct attention_state<typename shape::T, shape::DIMS_O, 16> state;
    int32_t tile;
    early_fetch(p, memory);
    if (threadIdx.x == 0) {
        barrier_init(shared + shape::TOLD, 1);
        barrier_init(shared + shape::FULL, 1);
        barrier_init_fence();
        barrier_arrive_expect_tx(shared + shape::TOLD, 16 * 8 * (uint32_t)cluster_size());
    }
    cluster_arrive();
    {
        early_wait(); /* lists, q, K and V may be of a kernel in front */
        early_next();
        struct decode_item item = direct_item_here(p, &tile);
        const int32_t length = direct_length(p.given, item.batch);
        struct direct_entries *const at =
            reinterpret_cast<struct direct_entries *>(memory + shape::ENTRIES);
        const struct direct_entries entries = direct_entries_of(p, item, tile, length);
        item.first = length - p.run.n_q;
        item.end = direct_most(entries);
        if (threadIdx.x == 0)
            *at = entries;
        __syncthreads();
        decode_sum<shape, MODIFIED>(state, memory, p, item, direct_list{at});
    }
    __syncthreads();   /* all have read the ring and the scores */
    cluster_arrived(); /* barriers of all CTAs stand */
    direct_push<shape>(shared, state);
    direct_gather<shape>(memory, p);
#endif
}

/* CTAs of a cluster: as many as find room at once for all tiles, and have chunks. A device holds fewer clusters than
 * its multiprocessors say, since each lies within a GPC. */
static inline int direct_parts(const struct decode_params &p, int most) {
    const int64_t tiles = p.image.units;
    const int64_t chunks = ((p.given.capacity << p.given.bits) + DECODE_CHUNK - 1) / DECODE_CHUNK;
    int parts = most;
    while (parts > 1 && (parts > chunks || tiles > p.multiprocessors / parts - 1))
        parts /= 2;
    return parts;
}

template <class shape, bool MODIFIED>
static cudaError_t direct_launch(const struct decode_params *p, cudaStream_t stream) {
    const void *const kernel = (const void *)decode_direct<shape, MODIFIED>;
    constexpr int BYTES = shape::BYTES;
    static std::atomic<uint64_t> answers{0};
    int most = 1;
    cudaError_t code = launch_shared<BYTES>(kernel);
    if (!code)
        code = launch_cluster_most(&most, answers, kernel, shape::THREADS, BYTES);
    if (code)
        return code;
    const int parts = direct_parts(*p, most);
    void *arguments[] = {(void *)p};
    return launch_early(kernel, dim3((unsigned)(p->image.units * parts)), shape::THREADS, BYTES,
                        arguments, stream, parts);
}

/* Launches of a shape's tiles, where they have one group of rows: others are never given lists (decode_direct). */
using direct_function = cudaError_t (*)(const struct decode_params *, cudaStream_t);
template <class shape, bool MODIFIED> static constexpr direct_function direct_function_of(void) {
    if constexpr (shape::M == 16 && !shape::SPLIT)
        return direct_launch<direct_shape<shape>, MODIFIED>;
    else
        return nullptr;
}

#endif
