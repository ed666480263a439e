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

/* Entries of a tile's row that a CTA takes, by their number among its own. */
struct direct_list {
    const int32_t *row;
    uint32_t n, most; /* entries to look at, of all CTAs in keys; keys of this CTA's chunks */
    int32_t length;   /* keys there are today */
    uint32_t blocks;
    int32_t low, high, bits;
    uint32_t part, parts;
};

DEVICE struct direct_list direct_list_of(const struct decode_params &p,
                                         const struct decode_item &item, int32_t tile) {
    const struct decode_given &given = p.given;
    const int32_t heads = (int32_t)p.image.heads;
    const int32_t length =
        given.lengths ? fill_length(given.lengths[item.batch], given.n_kv) : given.n_kv;
    const int64_t head = heads == 1 ? 0 : item.head / (p.run.heads_q / heads);
    const int64_t row = ((given.shared ? 0 : (int64_t)item.batch * heads) + head) * p.tiles + tile;
    const int64_t position = (int64_t)item.row + length - p.run.n_q;
    const int32_t n = given.counts ? fill_count(given.counts[row], (int32_t)given.capacity)
                                   : (int32_t)given.capacity;
    struct direct_list l;
    l.row = given.indices + row * given.capacity;
    l.n = (uint32_t)n << given.bits;
    l.part = (uint32_t)cluster_rank(), l.parts = (uint32_t)cluster_size();
    const uint32_t chunks = (l.n + DECODE_CHUNK - 1) / DECODE_CHUNK;
    l.most = (chunks + l.parts - 1 - l.part) / l.parts * DECODE_CHUNK;
    l.length = length;
    l.blocks = ((uint32_t)length + (1u << given.bits) - 1) >> given.bits;
    l.low = (int32_t)fill_most(0, fill_least(position + given.lo, INT32_MAX));
    l.high = (int32_t)fill_most(-1, fill_least(position + given.hi, (int64_t)length - 1));
    l.bits = given.bits;
    return l;
}

DEVICE struct decode_place decode_place_of(const struct decode_params &,
                                           const struct direct_list &l, uint32_t at, uint32_t end) {
    const uint32_t x = (at / DECODE_CHUNK * l.parts + l.part) * DECODE_CHUNK + at % DECODE_CHUNK;
    if (at >= end || x >= l.n)
        return DECODE_NO_PLACE;
    const int32_t index = l.row[x >> l.bits];
    const int32_t key = (int32_t)((uint32_t)index << l.bits | (x & ((1u << l.bits) - 1)));
    return fill_listed(index, (int32_t)l.blocks) && key >= l.low && key <= l.high
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
#pragma unroll 4
    for (uint32_t at = threadIdx.x; at < max(l.most, (uint32_t)n); at += THREADS) {
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

/* ---- partial results ---- */

/*
 * Room behind a shape's own for what the parts push:
 *
 *   | O [parts][16][DV / parts, padded by 16 bytes] f32 | m, l of rows g and g + 8: [parts][8] x 4 f32 | barrier |
 */
template <class shape> struct direct_room {
    static constexpr int PAD = 4,
                         MOST = LAUNCH_CLUSTER_MOST; /* floats behind a row; CTAs of a cluster */
    static constexpr int O = shape::BYTES;
    static constexpr int SUMS = O + 4 * 16 * (shape::DV + PAD * MOST);
    static constexpr int FULL = SUMS + 16 * 8 * MOST;
    static constexpr int BYTES = FULL + 8;
    static_assert(O % 16 == 0 && shape::M == 16 && !shape::SPLIT, "rows of one group");
};

/* Sends this warp's dims of all rows to their owners; warps of the first dims send m and l to all. */
template <class shape>
DEVICE void direct_push(uint32_t shared,
                        const struct attention_state<typename shape::T, shape::DIMS_O, 16> &state) {
    using room = direct_room<shape>;
    const float lower = attention_lower<typename shape::T>();
    const int parts = cluster_size(), part = cluster_rank(), lane = warp_lane();
    const int own = shape::DV / parts, bits = __ffs(own) - 1;
    const int first = decode_column<shape>() * shape::DIMS_O, row = lane / 4 + lane % 2 * 8;
#pragma unroll
    for (int d = 0; d < shape::DIMS_O / 8; d++) {
        const float *const c = state.o[0][d];
        float x[4] = {c[0], c[1], c[2], c[3]};
        /* Lanes of a pair exchange: even ones have four dims of row g then, odd ones of row g + 8. */
        const float a = __shfl_xor_sync(WARP_ALL, lane % 2 ? x[0] : x[2], 1);
        const float b = __shfl_xor_sync(WARP_ALL, lane % 2 ? x[1] : x[3], 1);
        if (lane % 2)
            x[0] = a, x[1] = b;
        else
            x[2] = a, x[3] = b;
        const int dim = first + 8 * d + lane % 4 / 2 * 4, owner = dim >> bits;
        const int at = (part * 16 + row) * (own + room::PAD) + (dim & (own - 1));
        store_remote(cluster_address(shared + (uint32_t)(room::O + 4 * at), owner),
                     {x[0] * lower, x[1] * lower, x[2] * lower, x[3] * lower},
                     cluster_address(shared + room::FULL, owner));
    }
    if (first == 0)
        for (int owner = lane % 4; owner < parts; owner += 4)
            store_remote(cluster_address(
                             shared + (uint32_t)(room::SUMS + 16 * (part * 8 + lane / 4)), owner),
                         {state.m[0], state.l[0] * lower, state.m[1], state.l[1] * lower},
                         cluster_address(shared + room::FULL, owner));
}

/* O and lse of the dims that this CTA owns, from all parts. */
template <class shape>
DEVICE void direct_combine(const char *memory, const struct decode_params &p,
                           const struct decode_item &item) {
    using room = direct_room<shape>;
    using T = typename shape::T;
    const int parts = cluster_size(), own = shape::DV / parts, pairs = own / 2;
    const float *const o = reinterpret_cast<const float *>(memory + room::O);
    const float2 *const sums = reinterpret_cast<const float2 *>(memory + room::SUMS);
    for (int i = (int)threadIdx.x; i < 16 * pairs; i += shape::THREADS) {
        const int r = i / pairs, d = i % pairs * 2, dim = cluster_rank() * own + d;
        const struct decode_row row = decode_row_of(p, item, r);
        if (!row.is || dim >= p.run.d_v)
            continue;
        float m = -INFINITY, l = 0;
        float2 sum = {0, 0};
        for (int part = 0; part < parts; part++)
            m = fmaxf(m, sums[(part * 8 + r % 8) * 2 + r / 8].x);
        const float base = attention_base(m);
#pragma unroll 4
        for (int part = 0; part < parts; part++) {
            const float2 of_part = sums[(part * 8 + r % 8) * 2 + r / 8];
            const float2 x =
                *reinterpret_cast<const float2 *>(o + (part * 16 + r) * (own + room::PAD) + d);
            const float w = exp2f(of_part.x - base);
            l += w * of_part.y;
            sum.x += w * x.x, sum.y += w * x.y;
        }
        const float below = modify_denominator(p.run.modify, row.of_head, m, l);
        const float factor = l == 0 ? 0.0f : __fdividef(p.run.modify.kept, below);
        decode_store_pair<T, false>(p, decode_o_at(p, item, row) + dim,
                                    l == 0 ? float2{0, 0} : float2{sum.x * factor, sum.y * factor});
        if (dim == 0)
            attention_store_lse(p.run, item.batch, row.of_head, item.row + row.query, m, l);
    }
}

/* ---- the kernel ---- */

template <class shape, bool MODIFIED>
static __global__ void __launch_bounds__(shape::THREADS, 1)
    decode_direct(const __grid_constant__ struct decode_params p) {
#if ARCHITECTURE_CLUSTERS
    using room = direct_room<shape>;
    extern __shared__ __align__(128) char memory[];
    const uint32_t shared = shared_address(memory), full = shared + room::FULL;
    const uint32_t parts = (uint32_t)cluster_size(), unit = blockIdx.x / parts;
    const uint32_t pack = fill_quotient(unit, (uint32_t)p.tiles);
    const int32_t tile = (int32_t)(unit - pack * (uint32_t)p.tiles);
    struct attention_state<typename shape::T, shape::DIMS_O, 16> state;
    early_fetch(p, memory);
    if (threadIdx.x == 0) {
        barrier_init(full, 1);
        barrier_init_fence();
        barrier_arrive_expect_tx(full, 4 * 16 * shape::DV + 16 * 8 * parts);
    }
    cluster_arrive();
    early_wait(); /* indices, q, K and V may be of a kernel in front */
    early_next();
    struct decode_item item = {filled_tile_at(p, (int32_t)pack, tile, NULL), 0, (int32_t)parts, 0,
                               0};
    const struct direct_list list = direct_list_of(p, item, tile);
    item.first = list.length - p.run.n_q;
    item.end = list.most;
    decode_sum<shape, MODIFIED>(state, memory, p, item, list);
    cluster_arrived(); /* barriers of all CTAs stand */
    direct_push<shape>(shared, state);
    barrier_wait_cluster(full, 0);
    direct_combine<shape>(memory, p, item);
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
    constexpr int BYTES = direct_room<shape>::BYTES;
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
        return direct_launch<shape, MODIFIED>;
    else
        return nullptr;
}

#endif
