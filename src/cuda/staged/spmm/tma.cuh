/*
 * Stage 3, SpMM, for 16-bit types on Hopper, TMA path (block_row_tma.cuh): a persistent,
 * warp-specialised kernel, where rows of P are whole pieces of 16 bytes. As many CTAs as are
 * resident take units of M rows of a block row and all dims. The next unit's keys are loaded during
 * the epilogue of this one. Where block rows are so few that CTAs would share one,
 * lower tiles are taken, or else mma.cuh. A step is
 *
 *   part [M, N] += P [M, KEYS] V [KEYS, N]      WGMMA; every CUDA_CHUNK keys   sum += part
 *
 * The producer warpgroup runs ahead: all of it copies P, by cp.async of 16 bytes, and one warp
 * loads V by TMA. Consumer warpgroups have 64 rows each; half of them idle where M is 32, since low
 * block rows wait for keys. The full barrier of a stage completes with its P and V, the empty
 * barrier when all consumers have used it.
 */
#ifndef TESSERA_CUDA_SPMM_TMA_CUH
#define TESSERA_CUDA_SPMM_TMA_CUH

#include "staged/grid.cuh"
#include "staged/block_row_tma.cuh"
#include "staged/spmm/scale.cuh"
#include "staged/spmm/mma_epilogue.cuh"

template <int M, int N> struct spmm_tma_shape {
    static constexpr int ROWS = 16, DIMS = N;                                   /* of a warp */
    static constexpr int CONSUMERS = M > 64 ? 2 : 1, THREADS = 128 * CONSUMERS; /* consumers */
    static constexpr int BLOCKS = 2 / CONSUMERS; /* CTAs of a multiprocessor */
    static constexpr int KEYS = 64, TMA_TILES = KEYS / STAGED_TMA_KEYS; /* of a step */
    static constexpr int PITCH =
        4 * KEYS + 32; /* bytes between rows of P: 4 rows' 8 keys each touch all banks */
    static constexpr int V_TMA_TILE =
        N / 64 * STAGED_TMA_KEYS * 128; /* panels one after the other */
    static constexpr int V_TILE = TMA_TILES * V_TMA_TILE, P_TILE = M * PITCH;
    static constexpr int ROOM = (STAGED_SHARED + 1024) / BLOCKS - 2048;
    static constexpr int STAGES = ROOM / (V_TILE + P_TILE) < 8 ? ROOM / (V_TILE + P_TILE) : 8;
    static constexpr int V = 0, P = STAGES * V_TILE, FULL = P + STAGES * P_TILE;
    static constexpr int EMPTY = FULL + 8 * STAGES, BYTES = EMPTY + 8 * STAGES;
    static constexpr int CONSUMER_REGISTERS = CONSUMERS > 1 ? 232 : 208,
                         PRODUCER_REGISTERS = 40; /* registers */
    /* A warp's accumulators: 16 x 8 tiles. */
    typedef float sums[1][N / 8][4];
};

/* A unit: M rows of a block row. */
struct spmm_tma_unit {
    struct block_row block_row;
    int64_t row; /* first row */
    int steps;   /* -1: no unit */
};

/* Units of one block row are neighbours. */
static __host__ __device__ __forceinline__ int64_t spmm_tma_units(const struct staged_params &p,
                                                                  int64_t m) {
    return p.n_items * ((p.height + m - 1) / m);
}

/* The CTA's unit of a round. Items are ordered longest first, so CTAs take units forward and
 * backward in alternate rounds. */
template <int M, class shape>
static __device__ __forceinline__ struct spmm_tma_unit
spmm_tma_unit_of(const struct staged_params &p, int round) {
    const uint32_t row_units = (uint32_t)((p.height + M - 1) / M);
    const uint32_t place = round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int64_t number = (int64_t)round * gridDim.x + place;
    struct spmm_tma_unit unit;
    unit.steps = -1;
    if (number >= spmm_tma_units(p, M))
        return unit;
    const uint32_t item = (uint32_t)number / row_units;
    unit.block_row = block_row_of(p, item);
    unit.row = (int64_t)((uint32_t)number - item * row_units) * M;
    unit.steps = unit.row < unit.block_row.rows
                     ? (int)((unit.block_row.width + shape::KEYS - 1) / shape::KEYS)
                     : 0;
    return unit;
}

/* ---- the producer ---- */

/* Loads V of a step. */
template <class shape>
static __device__ __forceinline__ void
spmm_tma_load_v(uint32_t shared, const CUtensorMap *map, const struct staged_params &p,
                const struct block_row &block_row, int stage, int32_t key, int first) {
    const uint32_t full = shared + shape::FULL + 8 * stage;
    const uint32_t v = shared + shape::V + stage * shape::V_TILE;
    const int h = map_index(head_kv_of(p, block_row), p.v.stride[1]);
    const int b = map_index(block_row.b, p.v.stride[0]);
    if (warp_lane() == 0)
        barrier_arrive_expect_tx(full, shape::V_TILE);
#pragma unroll
    for (int j = 0; j < shape::TMA_TILES; j++) {
        const int32_t of = __shfl_sync(WARP_ALL, key, first + j);
        if (warp_lane() == 0)
            tma_load_panels(v + j * shape::V_TMA_TILE, map, full, 0, of, h, b, TMA_EVICT_LAST);
    }
    __syncwarp();
}

/* Fetches a unit, whose steps are numbered from `number` on. By all four warps; warp 0 also loads
 * V. */
template <int M, class shape>
static __device__ __forceinline__ void
spmm_tma_produce(uint32_t shared, const CUtensorMap *map, const struct staged_params &p,
                 const struct spmm_tma_unit &unit, int number, int warp) {
    constexpr int WINDOW = 32 / shape::TMA_TILES; /* steps whose keys are looked up at a time */
    constexpr int PIECES = shape::KEYS / 4, AT_ONCE = 128 / PIECES; /* rows */
    const int64_t width = unit.block_row.width;
    const int thread = 32 * warp + warp_lane(), first = thread / PIECES;
    const int column = thread % PIECES * 4;
    const int rows = (int)min(unit.block_row.rows - unit.row, (int64_t)M) - first;
    const float *from = unit.block_row.scores + (unit.row + first) * width + column;
    const uint32_t to = shared + shape::P + (uint32_t)(first * shape::PITCH + 4 * column);
    int32_t key = 0, next = 0;
    if (warp == 0)
        next = block_row_tma_key(p, unit.block_row.entry, 0, width);
#pragma unroll 1
    for (int step = 0; step < unit.steps; step++) {
        const int stage = staged_stage<shape::STAGES>(number + step);
        const int64_t x = (int64_t)step * shape::KEYS;
        barrier_wait(shared + shape::EMPTY + 8 * stage,
                     staged_parity<shape::STAGES>(number + step) ^ 1);
        if (warp == 0) {
            if (step % WINDOW == 0) {
                key = next;
                next = block_row_tma_key(p, unit.block_row.entry, x + 32 * STAGED_TMA_KEYS, width);
            }
            spmm_tma_load_v<shape>(shared, map, p, unit.block_row, stage, key,
                                   step % WINDOW * shape::TMA_TILES);
        }
        const bool there = x + column < width;
        const float *at = there ? from + x : unit.block_row.scores;
#pragma unroll
        for (int i = 0; i < M; i += AT_ONCE) {
            if (i < rows)
                cp_async_16(to + (uint32_t)(stage * shape::P_TILE + i * shape::PITCH), at, there);
            at += there ? AT_ONCE * width : 0;
        }
        barrier_arrive_cp_async(shared + shape::FULL + 8 * stage);
    }
}

/* ---- consumers ---- */

/* P of 16 keys as an A operand: the row at `from`, and the row 8 further. any[0], any[1]: OR of the
 * two rows' bits. */
template <class T, class shape>
static __device__ __forceinline__ void spmm_tma_operand(uint32_t (&to)[4], uint32_t *any,
                                                        const unsigned char *from, float scale, T) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 x =
            *reinterpret_cast<const float2 *>(from + i % 2 * 8 * shape::PITCH + i / 2 * 32);
        to[i] = mma_pack(x.x * scale, x.y * scale, T());
        any[i % 2] |= to[i];
    }
}

/* part (+)= P V of a step of `keys` keys. idle: a warp of rows past M, whose P is 0. */
template <class T, class shape>
static __device__ __forceinline__ void
spmm_tma_multiply(float (&part)[shape::DIMS / 2], uint32_t *any, const unsigned char *prob,
                  uint32_t v, int keys, bool idle, bool fresh, float scale) {
    uint32_t a[shape::KEYS / 16][4];
#pragma unroll
    for (int k = 0; k < shape::KEYS / 16; k++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[k][i] = 0;
        if (!idle && 16 * k < keys)
            spmm_tma_operand<T, shape>(a[k], any, prob + 64 * k, scale, T());
        wgmma_fence();
        wgmma_rs(
            part, a[k],
            wgmma_mn_major(v + k / 2 * shape::V_TMA_TILE + k % 2 * 16 * 128, STAGED_TMA_KEYS * 128),
            k > 0 || !fresh, T());
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence_operand(part);
}

/* Computes a unit, whose steps are numbered from `number` on. */
template <class T, int M, class shape>
static __device__ __forceinline__ void
spmm_tma_consume(unsigned char *memory, uint32_t shared, const struct staged_params &p,
                 const struct spmm_tma_unit &unit, int number) {
    constexpr int FOLD = CUDA_CHUNK / shape::KEYS; /* steps */
    const int row = sm90_uniform((int)threadIdx.x / 32) * 16;
    const int lane = warp_lane();
    const uint32_t at = shape::P + (uint32_t)((row + lane / 4) * shape::PITCH + lane % 4 * 8);
    typename shape::sums sum = {};
    float part[shape::DIMS / 2];
    float(&flat)[shape::DIMS / 2] = reinterpret_cast<float(&)[shape::DIMS / 2]>(sum);
    uint32_t any[2] = {};
#pragma unroll 1
    for (int step = 0; step < unit.steps; step++) {
        const int stage = staged_stage<shape::STAGES>(number + step);
        const int64_t left = unit.block_row.width - (int64_t)step * shape::KEYS;
        barrier_wait(shared + shape::FULL + 8 * stage, staged_parity<shape::STAGES>(number + step));
        spmm_tma_multiply<T, shape>(
            part, any, memory + at + stage * shape::P_TILE,
            panel16_wgmma_address(memory + shape::V) + stage * shape::V_TILE,
            (int)min(left, (int64_t)shape::KEYS), row >= M, step % FOLD == 0, spmm_scale(p, T()));
        barrier_arrive(shared + shape::EMPTY + 8 * stage); /* every lane has read P */
        if (step % FOLD == FOLD - 1 || step == unit.steps - 1)
#pragma unroll
            for (int i = 0; i < shape::DIMS / 2; i++)
                flat[i] += part[i];
    }
    const head_view<T> o = head_of<T>(p, p.o, unit.block_row.b, unit.block_row.h, p.d_v);
    if (row < M)
        spmm_mma_store<T, shape>(sum, any, unit.block_row, o, unit.row + row, 0, p);
}

/* ---- the kernel ---- */

/* Each role goes through the CTA's units by itself. The producer runs ahead by the ring's stages,
 * into the next unit too. */
template <class T, int M, class shape>
static __global__ void __launch_bounds__(128 + shape::THREADS, shape::BLOCKS)
    spmm_tma(const __grid_constant__ struct staged_params p,
             const __grid_constant__ CUtensorMap map) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t shared = shared_address(memory);
    if (threadIdx.x == 0) {
        tma_prefetch_map(&map);
        for (int i = 0; i < shape::STAGES; i++) {
            barrier_init(shared + shape::FULL + 8 * i, 1 + 128);
            barrier_init(shared + shape::EMPTY + 8 * i, shape::THREADS);
        }
        barrier_init_fence();
    }
    __syncthreads();
    const int warp = sm90_uniform((int)threadIdx.x / 32) - shape::THREADS / 32;
    int number = 0;
    if (warp < 0) {
        registers_claim<shape::CONSUMER_REGISTERS>();
#pragma unroll 1
        for (int round = 0;; round++) {
            const struct spmm_tma_unit unit = spmm_tma_unit_of<M, shape>(p, round);
            if (unit.steps < 0)
                break;
            spmm_tma_consume<T, M, shape>(memory, shared, p, unit, number);
            number += unit.steps;
        }
    } else {
        registers_release<shape::PRODUCER_REGISTERS>();
#pragma unroll 1
        for (int round = 0;; round++) {
            const struct spmm_tma_unit unit = spmm_tma_unit_of<M, shape>(p, round);
            if (unit.steps < 0)
                break;
            spmm_tma_produce<M, shape>(shared, &map, p, unit, number, warp);
            number += unit.steps;
        }
    }
}

/* ---- launching ---- */

/* NULL, or why V has no map. */
template <class T>
static const char *spmm_tma_map(CUtensorMap *map, const struct staged_params *p) {
    return block_rows_map(map, p, p->v, p->heads_q / p->heads_per_kv, p->n_kv, p->d_v,
                          STAGED_TMA_KEYS, p->d_v > 64 ? 2 : 1, T());
}

template <class T> static const char *spmm_tma_refuses_run(const struct staged_params *p) {
    CUtensorMap map;
    return spmm_tma_map<T>(&map, p);
}

template <class T, int M, int N>
static cudaError_t spmm_tma_launch_tile(const struct staged_params *p, cudaStream_t stream) {
    typedef spmm_tma_shape<M, N> shape;
    static_assert(shape::BLOCKS == STAGED_SPMM_TMA_BLOCKS(M), "what tiles are chosen by");
    CUtensorMap map;
    const int64_t units = spmm_tma_units(*p, M);
    const int64_t held = (int64_t)p->multiprocessors * shape::BLOCKS;
    if (spmm_tma_map<T>(&map, p))
        return cudaErrorInvalidValue;
    if (units == 0)
        return cudaSuccess;
    if (units > INT32_MAX)
        return cudaErrorInvalidConfiguration;
    void (*kernel)(const struct staged_params, const CUtensorMap) = spmm_tma<T, M, shape>;
    const cudaError_t code = launch_shared<shape::BYTES>((const void *)kernel);
    void *arguments[] = {(void *)p, &map};
    const int64_t blocks = units < held ? units : held;
    return code ? code
                : cudaLaunchKernel((const void *)kernel, dim3((unsigned)blocks),
                                   dim3(128 + shape::THREADS), arguments, shape::BYTES, stream);
}

/* As high a tile as block rows fill, or a lower one (staged_spmm_tma_rows). */
template <class T>
static cudaError_t spmm_tma_launch(const struct staged_params *p, cudaStream_t stream) {
    static const struct grid_instance instances[2][3] = {
        {{32, 0, spmm_tma_launch_tile<T, 32, 64>},
         {64, 0, spmm_tma_launch_tile<T, 64, 64>},
         {128, 0, spmm_tma_launch_tile<T, 128, 64>}},
        {{32, 0, spmm_tma_launch_tile<T, 32, 128>},
         {64, 0, spmm_tma_launch_tile<T, 64, 128>},
         {128, 0, spmm_tma_launch_tile<T, 128, 128>}},
    };
    return grid_launch_instance(instances[p->d_v > 64], 3, staged_spmm_tma_rows(p), p, stream);
}

#endif
