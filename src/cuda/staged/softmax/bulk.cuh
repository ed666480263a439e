/*
 * Stage 2, softmax, on Hopper, for many rows of up to 4 SOFTMAX_BULK_HELD keys and about the same
 * width. Neighbouring rows are one range of memory: a bulk copy loads them to shared memory,
 * another stores them. Rows of their own would be parts of sectors, which L2 serves one by one
 * (docs/notes/staged.md, "Softmax").
 *
 * A warp has a ring of SOFTMAX_BULK_STAGES tiles of 32 / LANES rows to itself:
 *
 *   load tile i + SOFTMAX_BULK_AHEAD | compute tile i in registers, LANES a row | store tile i
 *
 * The ends of a tile that are not whole pieces of 16 bytes are copied by single lanes. Tiles whose
 * rows are wider than most, or are not neighbours, are not staged: a warp computes their rows in
 * global memory, one by one.
 */
#ifndef TESSERA_CUDA_SOFTMAX_BULK_CUH
#define TESSERA_CUDA_SOFTMAX_BULK_CUH

#include "staged/grid.cuh"
#include "device/sm90/tma.cuh"
#include "staged/softmax/group.cuh"
#include "staged/softmax/place.cuh"

#define SOFTMAX_BULK_STAGES 3
#define SOFTMAX_BULK_AHEAD 2
#define SOFTMAX_BULK_TILE 1024 /* most elements of a tile */

/* The ring of a warp. A tile has the same offset from a multiple of 16 bytes as in global
 * memory. */
struct softmax_bulk_ring {
    float tile[SOFTMAX_BULK_STAGES][SOFTMAX_BULK_TILE + 8];
    uint64_t full[SOFTMAX_BULK_STAGES];
    uint64_t unused;
};

/* A tile in flight, as a lane sees it. */
struct softmax_bulk_tile {
    float *data;      /* first element; the others follow */
    int count;        /* elements; 0: not staged */
    int start, width; /* of the lane's row, in the tile; width -1: nothing to compute */
    int32_t batch_head, query;
};

/* Elements before the whole pieces of a tile, and the number of whole pieces. */
static __device__ __forceinline__ int softmax_bulk_head(const struct softmax_bulk_tile &tile) {
    return min((int)(-(uintptr_t)tile.data / sizeof(float) % 4), tile.count);
}
static __device__ __forceinline__ int softmax_bulk_pieces(const struct softmax_bulk_tile &tile) {
    return (tile.count - softmax_bulk_head(tile)) / 4;
}

/* The element that lane `lane` copies by itself; -1: none. At most three precede the whole pieces
 * and three follow. */
static __device__ __forceinline__ int softmax_bulk_edge(const struct softmax_bulk_tile &tile,
                                                        int lane) {
    const int head = softmax_bulk_head(tile), after = head + 4 * softmax_bulk_pieces(tile);
    if (lane < head)
        return lane;
    return lane >= 3 && lane < 6 && after + lane - 3 < tile.count ? after + lane - 3 : -1;
}

/* Index of a tile's element 0 in its stage. */
static __device__ __forceinline__ int softmax_bulk_shift(const struct softmax_bulk_tile &tile) {
    return (int)((uintptr_t)tile.data / sizeof(float) % 4);
}

/* ---- rows that are not staged ---- */

/* x * factor; where the factor is NaN, NaN unless x is 0. */
static __device__ __forceinline__ float softmax_bulk_scaled(float prob, float factor) {
    return isnan(factor) ? softmax_nan(prob) : prob * factor;
}

/* Softmax of a row in global memory, by a warp. Seldom called, so not inlined. */
static __device__ __noinline__ void softmax_bulk_unstaged(const struct staged_params &p,
                                                          float *data, int width,
                                                          int32_t batch_head, int32_t query) {
    const int lane = warp_lane();
    float top = -INFINITY;
    double sum = 0;
    for (int e = lane; e < width; e += 32)
        top = fmaxf(top, data[e]);
    top = warp_max(top);
    const float base = softmax_base(top);
    for (int e = lane; e < width; e += 32)
        sum += softmax_exp(data[e], base);
    sum = warp_sum(sum);
    const float factor = sum == 0 ? 0.0f : (float)(1 / sum);
    for (int e = lane; e < width; e += 32)
        data[e] = softmax_bulk_scaled(softmax_exp(data[e], base), factor);
    if (lane == 0 && p.lse.data)
        *softmax_lse_at(p, batch_head, query) = softmax_lse(top, sum);
}

/* ---- loading ---- */

/* Begins to load the tile of the rows at `place`, one row for each LANES lanes. */
template <int LANES>
static __device__ __forceinline__ struct softmax_bulk_tile
softmax_bulk_fetch(const struct staged_params &p, const struct softmax_place &place, float *stage,
                   uint32_t full) {
    const int lane = warp_lane();
    const int64_t query = place.block_row * p.block_q + place.r;
    const bool inside = place.item < p.n_items;
    const int width = inside ? place.tiles * (int)p.block_kv : 0;
    const int64_t begin = place.scores + (int64_t)place.r * width;
    const int64_t first = __shfl_sync(WARP_ALL, begin, 0);
    const int64_t after = __shfl_down_sync(WARP_ALL, begin, LANES);
    const bool follows = __shfl_down_sync(WARP_ALL, inside, LANES) && lane + LANES < 32;
    const int64_t end = begin + width - first;
    const bool fits = !inside || (width <= SOFTMAX_BULK_HELD * LANES && end >= 0 &&
                                  end <= SOFTMAX_BULK_TILE && (!follows || after == begin + width));
    struct softmax_bulk_tile tile;
    tile.data = p.scores + first;
    tile.count = 0;
    tile.start = (int)(begin - first);
    tile.width = -1;
    tile.batch_head = place.batch_head;
    tile.query = (int32_t)query;
    if (__all_sync(WARP_ALL, fits)) {
        tile.count = (int)__reduce_max_sync(WARP_ALL, inside ? (unsigned)end : 0u);
        tile.width = inside ? width : -1;
    } else {
        for (int from = 0; from < 32; from += LANES) {
            float *data = p.scores + __shfl_sync(WARP_ALL, begin, from);
            const int count = __shfl_sync(WARP_ALL, width, from);
            const int32_t batch_head = __shfl_sync(WARP_ALL, place.batch_head, from);
            const int32_t row = __shfl_sync(WARP_ALL, (int32_t)query, from);
            if (__shfl_sync(WARP_ALL, inside, from))
                softmax_bulk_unstaged(p, data, count, batch_head, row);
        }
    }
    const int head = softmax_bulk_head(tile), edge = softmax_bulk_edge(tile, lane);
    const uint32_t to = shared_address(stage + softmax_bulk_shift(tile));
    if (lane == 0) {
        const uint32_t bytes = 16 * softmax_bulk_pieces(tile);
        barrier_arrive_expect_tx(full, bytes);
        if (bytes > 0)
            bulk_load(to + 4 * head, tile.data + head, bytes, full);
    }
    if (edge >= 0)
        cp_async_4(to + 4 * edge, tile.data + edge, true);
    barrier_arrive_cp_async(full);
    return tile;
}

/* ---- computing ---- */

/* Softmax of a tile. Lane t of a row has elements t, t + LANES, ... Rows begin at different
 * elements where that avoids bank conflicts. */
template <int LANES>
static __device__ __forceinline__ void softmax_bulk_compute(const struct staged_params &p,
                                                            const struct softmax_bulk_tile &tile,
                                                            float *stage) {
    constexpr int HELD = SOFTMAX_BULK_HELD;
    const int lane = warp_lane(), t = lane % LANES;
    const int turn = tile.width / LANES % 2 ? 0 : lane / LANES;
    const int mine = (tile.width - t + LANES - 1) / LANES; /* elements */
    float *row = stage + softmax_bulk_shift(tile) + tile.start + t;
    float x[HELD], top = -INFINITY, part[4] = {};
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const int e = (i + turn) % HELD;
        x[i] = e < mine ? row[e * LANES] : -INFINITY;
        top = fmaxf(top, x[i]);
    }
    top = softmax_max_lanes<LANES>(top);
    const float base = softmax_base(top);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        x[i] = softmax_exp(x[i], base);
        part[i % 4] += x[i];
    }
    const double sum = softmax_sum_lanes<LANES>((part[0] + part[1]) + (part[2] + part[3]));
    float factor = sum == 0 ? 0.0f : (float)(1 / sum);
    if (isnan(factor)) {
#pragma unroll
        for (int i = 0; i < HELD; i++)
            x[i] = softmax_nan(x[i]);
        factor = 1;
    }
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const int e = (i + turn) % HELD;
        if (e < mine)
            row[e * LANES] = x[i] * factor;
    }
    if (t == 0 && tile.width >= 0 && p.lse.data)
        *softmax_lse_at(p, tile.batch_head, tile.query) = softmax_lse(top, sum);
}

/* Begins to store a tile. */
static __device__ __forceinline__ void softmax_bulk_store(const struct softmax_bulk_tile &tile,
                                                          const float *stage) {
    const int lane = warp_lane(), head = softmax_bulk_head(tile);
    const int pieces = softmax_bulk_pieces(tile), edge = softmax_bulk_edge(tile, lane);
    const float *from = stage + softmax_bulk_shift(tile);
    proxy_fence();
    __syncwarp();
    if (edge >= 0)
        tile.data[edge] = from[edge];
    if (lane == 0) {
        if (pieces > 0)
            bulk_store(tile.data + head, shared_address(from + head), 16 * pieces);
        bulk_store_commit();
    }
}

/* ---- the kernel ---- */

template <int LANES>
static __global__ void __launch_bounds__(32 * SOFTMAX_BULK_WARPS, 1)
    softmax_bulk(const __grid_constant__ struct staged_params p) {
    constexpr int ROWS = 32 / LANES, STAGES = SOFTMAX_BULK_STAGES, AHEAD = SOFTMAX_BULK_AHEAD;
    static_assert(STAGES == AHEAD + 1 && AHEAD == 2, "two tiles are known, one is computed");
    extern __shared__ __align__(16) unsigned char memory[];
    const int warp = (int)threadIdx.x / 32, lane = warp_lane();
    struct softmax_bulk_ring &ring = reinterpret_cast<struct softmax_bulk_ring *>(memory)[warp];
    const uint32_t full = shared_address(ring.full);
    if (lane == 0) {
        for (int i = 0; i < STAGES; i++)
            barrier_init(full + 8 * i, 1 + 32);
        barrier_init_fence();
    }
    __syncwarp();
    const int64_t rows = p.n_items * p.height, warps = (int64_t)gridDim.x * SOFTMAX_BULK_WARPS;
    const int64_t begin = ((int64_t)blockIdx.x * SOFTMAX_BULK_WARPS + warp) * ROWS;
    const int times = (int)((rows - begin + warps * ROWS - 1) / (warps * ROWS));
    const int64_t row = begin + lane / LANES, step = warps * ROWS;
    const struct softmax_stride stride = {(int32_t)(step / p.height), (int32_t)(step % p.height)};
    struct softmax_place place = {row / p.height, (int32_t)(row % p.height)};
    struct softmax_bulk_tile now = {}, next = {};
    softmax_look_up(place, p, true);
#pragma unroll 1
    for (int i = -AHEAD; i < times; i++) {
        if (i >= 0) {
            float *stage = ring.tile[i % STAGES];
            barrier_wait(full + 8 * (i % STAGES), i / STAGES & 1);
            softmax_bulk_compute<LANES>(p, now, stage);
            softmax_bulk_store(now, stage);
        }
        now = next;
        if (i + AHEAD < times) {
            const int free = (i + AHEAD) % STAGES;
            if (lane == 0)
                bulk_store_wait<1>(); /* of the tile before in that stage */
            __syncwarp();
            next = softmax_bulk_fetch<LANES>(p, place, ring.tile[free], full + 8 * free);
            softmax_advance(place, stride, p, true);
        }
    }
    if (lane == 0)
        bulk_store_wait<0>();
}

/* ---- launching ---- */

template <int LANES>
static cudaError_t softmax_bulk_launch_lanes(const struct staged_params *p, cudaStream_t stream) {
    constexpr int BYTES = SOFTMAX_BULK_WARPS * (int)sizeof(struct softmax_bulk_ring);
    static_assert(BYTES <= 227 * 1024, "what a block of Hopper can have");
    return grid_launch_units<BYTES>(softmax_bulk<LANES>, p->multiprocessors,
                                    32 * SOFTMAX_BULK_WARPS, p, stream);
}

static inline cudaError_t softmax_bulk_launch(const struct staged_params *p, cudaStream_t stream) {
    static const struct grid_instance instances[] = {
        {1, 0, softmax_bulk_launch_lanes<1>},
        {2, 0, softmax_bulk_launch_lanes<2>},
        {4, 0, softmax_bulk_launch_lanes<4>},
    };
    return grid_launch_instance(instances, 3, softmax_bulk_lanes(p), p, stream);
}

#endif
