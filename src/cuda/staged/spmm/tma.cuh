/*
 * Stage 3 for 16-bit types on Hopper, where boxes fetch values (strip_tma.cuh) and weights are whole
 * rows of 16 bytes. As many blocks as the device holds take units of M rows of a strip and all dims
 * in turns, so that the next unit's keys are under way while one's sums go out: blocks of 32 keys
 * and 128 dims took 387 us one by one where they take 352 (H200, h=16,n=16384,random(0.05,1),
 * cold). Where strips are so few that blocks of a cluster should share one, lower tiles are taken,
 * or else spmm_mma.cuh. A step is
 *
 *   part[M, N] += weight[M, KEYS] v[KEYS, N]      and every CUDA_CHUNK keys   sum += part
 *
 * One warpgroup fetches, ahead: all of it weights, 16 bytes at a time, and one warp values, by
 * boxes. Others compute 64 rows each, of which half are idle where M is 32: low block rows wait for
 * keys, not for products. A stage's `full` ends when its weights and values stand, `empty` when all
 * that compute have used it.
 */
#ifndef TESSERA_CUDA_SM90_SPMM_BOXES_CUH
#define TESSERA_CUDA_SM90_SPMM_BOXES_CUH

#include "staged/strip_tma.cuh"
#include "staged/spmm/mma_epilogue.cuh"

template <int M, int N> struct spmm_box_shape {
    static constexpr int ROWS = 16, DIMS = N; /* of a warp */
    static constexpr int GROUPS = M > 64 ? 2 : 1, THREADS = 128 * GROUPS; /* that compute */
    static constexpr int BLOCKS = 2 / GROUPS; /* of a multiprocessor */
    static constexpr int KEYS = 64, BOXES = KEYS / STRIP_BOX; /* of a step */
    static constexpr int PITCH = 4 * KEYS + 32; /* bytes: 4 rows' 8 keys each meet all banks */
    static constexpr int V_BOX = N / 64 * STRIP_BOX * 128; /* a panel after the other */
    static constexpr int V_TILE = BOXES * V_BOX, W_TILE = M * PITCH;
    static constexpr int ROOM = (STRIP_SHARED + 1024) / BLOCKS - 2048;
    static constexpr int STAGES = ROOM / (V_TILE + W_TILE) < 8 ? ROOM / (V_TILE + W_TILE) : 8;
    static constexpr int V = 0, W = STAGES * V_TILE, FULL = W + STAGES * W_TILE;
    static constexpr int EMPTY = FULL + 8 * STAGES, BYTES = EMPTY + 8 * STAGES;
    static constexpr int CLAIM = GROUPS > 1 ? 232 : 208, LEAVE = 40; /* registers */
    /* A warp's sums: 16 x 8 tiles. */
    typedef float sums[1][N / 8][4];
};

/* M rows of a strip. */
struct spmm_box_unit {
    struct strip strip;
    int64_t row; /* first row */
    int steps;   /* -1: there is no such unit */
};

/* Units of one strip stand together. */
static __host__ __device__ __forceinline__ int64_t spmm_box_units(const struct staged_params &p,
                                                                  int64_t m) {
    return p.n_items * ((p.height + m - 1) / m);
}

/* The block's unit of a round. Items stand longest first, so that blocks take units there and back
 * in turns. */
template <int M, class shape>
static __device__ __forceinline__ struct spmm_box_unit
spmm_box_unit_of(const struct staged_params &p, int round) {
    const uint32_t row_units = (uint32_t)((p.height + M - 1) / M);
    const uint32_t place = round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int64_t number = (int64_t)round * gridDim.x + place;
    struct spmm_box_unit unit;
    unit.steps = -1;
    if (number >= spmm_box_units(p, M))
        return unit;
    const uint32_t item = (uint32_t)number / row_units;
    unit.strip = strip_of(p, item);
    unit.row = (int64_t)((uint32_t)number - item * row_units) * M;
    unit.steps = unit.row < unit.strip.rows
                     ? (int)((unit.strip.width + shape::KEYS - 1) / shape::KEYS)
                     : 0;
    return unit;
}

/* ---- fetching ---- */

/* A step's values. */
template <class shape>
static __device__ __forceinline__ void spmm_box_values(uint32_t shared, const CUtensorMap *map,
                                                       const struct staged_params &p,
                                                       const struct strip &strip, int stage,
                                                       int32_t key, int first) {
    const uint32_t full = shared + shape::FULL + 8 * stage;
    const uint32_t v = shared + shape::V + stage * shape::V_TILE;
    const int h = head_kv_of(p, strip);
    if (warp_lane() == 0)
        barrier_arrive_expect(full, shape::V_TILE);
#pragma unroll
    for (int j = 0; j < shape::BOXES; j++) {
        const int32_t of = __shfl_sync(WARP_ALL, key, first + j);
        if (warp_lane() == 0)
            box_load_panels(v + j * shape::V_BOX, map, full, 0, of, h, strip.b, BOX_AGAIN);
    }
    __syncwarp();
}

/* A unit, whose steps are numbered from `number` on, by all four warps, of which the first is also
 * that of values. */
template <int M, class shape>
static __device__ __forceinline__ void
spmm_box_fetch(uint32_t shared, const CUtensorMap *map, const struct staged_params &p,
               const struct spmm_box_unit &unit, int number, int warp) {
    constexpr int WINDOW = 32 / shape::BOXES; /* steps whose keys are looked up at a time */
    constexpr int PIECES = shape::KEYS / 4, AT_ONCE = 128 / PIECES; /* rows */
    const int64_t width = unit.strip.width;
    const int thread = 32 * warp + warp_lane(), first = thread / PIECES;
    const int column = thread % PIECES * 4;
    const int rows = (int)min(unit.strip.rows - unit.row, (int64_t)M) - first;
    const float *from = unit.strip.scores + (unit.row + first) * width + column;
    const uint32_t to = shared + shape::W + (uint32_t)(first * shape::PITCH + 4 * column);
    int32_t key = 0, next = 0;
    if (warp == 0)
        next = strip_box_key(p, unit.strip.entry, 0, width);
#pragma unroll 1
    for (int step = 0; step < unit.steps; step++) {
        const int stage = strip_stage<shape::STAGES>(number + step);
        const int64_t x = (int64_t)step * shape::KEYS;
        barrier_wait(shared + shape::EMPTY + 8 * stage,
                     strip_parity<shape::STAGES>(number + step) ^ 1);
        if (warp == 0) {
            if (step % WINDOW == 0) {
                key = next;
                next = strip_box_key(p, unit.strip.entry, x + 32 * STRIP_BOX, width);
            }
            spmm_box_values<shape>(shared, map, p, unit.strip, stage, key,
                                   step % WINDOW * shape::BOXES);
        }
        const bool there = x + column < width;
        const float *at = there ? from + x : unit.strip.scores;
#pragma unroll
        for (int i = 0; i < M; i += AT_ONCE) {
            if (i < rows)
                copy_16(to + (uint32_t)(stage * shape::W_TILE + i * shape::PITCH), at, there);
            at += there ? AT_ONCE * width : 0;
        }
        barrier_arrive_copied(shared + shape::FULL + 8 * stage);
    }
}

/* ---- computing ---- */

/* Weights of 16 keys as an operand, the first of whose rows stands at `from` and the other 8 rows
 * on; any[0 ... 1] gets the bits of all weights of each. */
template <class T, class shape>
static __device__ __forceinline__ void spmm_box_operand(uint32_t (&to)[4], uint32_t *any,
                                                        const unsigned char *from, T) {
    constexpr float scale = spmm_scale(T());
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 x =
            *reinterpret_cast<const float2 *>(from + i % 2 * 8 * shape::PITCH + i / 2 * 32);
        to[i] = mma_pack(x.x * scale, x.y * scale, T());
        any[i % 2] |= to[i];
    }
}

/* part (+)= weight v of a step of which `keys` are there; a warp of rows past M has none. */
template <class T, class shape>
static __device__ __forceinline__ void
spmm_box_multiply(float (&part)[shape::DIMS / 2], uint32_t *any, const unsigned char *weight,
                  uint32_t v, int keys, bool idle, bool fresh) {
    uint32_t a[shape::KEYS / 16][4];
#pragma unroll
    for (int k = 0; k < shape::KEYS / 16; k++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[k][i] = 0;
        if (!idle && 16 * k < keys)
            spmm_box_operand<T, shape>(a[k], any, weight + 64 * k, T());
        product_fence();
        product_columns_of(part, a[k], product_columns(v + k / 2 * shape::V_BOX + k % 2 * 16 * 128,
                                           STRIP_BOX * 128),
                           k > 0 || !fresh, T());
    }
    product_group();
    product_wait<0>();
    product_pin(part);
}

/* A unit, whose steps are numbered from `number` on. */
template <class T, int M, class shape>
static __device__ __forceinline__ void
spmm_box_compute(unsigned char *memory, uint32_t shared, const struct staged_params &p,
                 const struct spmm_box_unit &unit, int number) {
    constexpr int FOLD = CUDA_CHUNK / shape::KEYS; /* steps */
    const int row = sm90_uniform((int)threadIdx.x / 32) * 16;
    const int lane = warp_lane();
    const uint32_t at = shape::W + (uint32_t)((row + lane / 4) * shape::PITCH + lane % 4 * 8);
    typename shape::sums sum = {};
    float part[shape::DIMS / 2];
    float(&flat)[shape::DIMS / 2] = reinterpret_cast<float(&)[shape::DIMS / 2]>(sum);
    uint32_t any[2] = {};
#pragma unroll 1
    for (int step = 0; step < unit.steps; step++) {
        const int stage = strip_stage<shape::STAGES>(number + step);
        const int64_t left = unit.strip.width - (int64_t)step * shape::KEYS;
        barrier_wait(shared + shape::FULL + 8 * stage, strip_parity<shape::STAGES>(number + step));
        spmm_box_multiply<T, shape>(part, any, memory + at + stage * shape::W_TILE,
                                    panel16_described(memory + shape::V) + stage * shape::V_TILE,
                                    (int)min(left, (int64_t)shape::KEYS), row >= M,
                                    step % FOLD == 0);
        barrier_arrive(shared + shape::EMPTY + 8 * stage); /* every lane has read weights */
        if (step % FOLD == FOLD - 1 || step == unit.steps - 1)
#pragma unroll
            for (int i = 0; i < shape::DIMS / 2; i++)
                flat[i] += part[i];
    }
    const head_view<T> o = head_of<T>(p, p.o, unit.strip.b, unit.strip.h, p.d_v);
    if (row < M)
        spmm_mma_store<T, shape>(sum, any, unit.strip, o, unit.row + row, 0);
}

/* ---- the kernel ---- */

/* Each role goes through the block's units by itself: those that fetch are ahead by what the ring
 * holds, also of the next unit. */
template <class T, int M, class shape>
static __global__ void __launch_bounds__(128 + shape::THREADS, shape::BLOCKS)
    spmm_boxes(const __grid_constant__ struct staged_params p,
               const __grid_constant__ CUtensorMap map) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t shared = shared_address(memory);
    if (threadIdx.x == 0) {
        box_prefetch_map(&map);
        for (int i = 0; i < shape::STAGES; i++) {
            barrier_make(shared + shape::FULL + 8 * i, 1 + 128);
            barrier_make(shared + shape::EMPTY + 8 * i, shape::THREADS);
        }
        barrier_made();
    }
    __syncthreads();
    const int warp = sm90_uniform((int)threadIdx.x / 32) - shape::THREADS / 32;
    int number = 0;
    if (warp < 0) {
        registers_claim<shape::CLAIM>();
#pragma unroll 1
        for (int round = 0;; round++) {
            const struct spmm_box_unit unit = spmm_box_unit_of<M, shape>(p, round);
            if (unit.steps < 0)
                break;
            spmm_box_compute<T, M, shape>(memory, shared, p, unit, number);
            number += unit.steps;
        }
    } else {
        registers_release<shape::LEAVE>();
#pragma unroll 1
        for (int round = 0;; round++) {
            const struct spmm_box_unit unit = spmm_box_unit_of<M, shape>(p, round);
            if (unit.steps < 0)
                break;
            spmm_box_fetch<M, shape>(shared, &map, p, unit, number, warp);
            number += unit.steps;
        }
    }
}

/* ---- launching ---- */

template <class T, int M, int N>
static cudaError_t spmm_boxes_launch_tile(const struct staged_params *p, cudaStream_t stream) {
    typedef spmm_box_shape<M, N> shape;
    CUtensorMap map;
    const int64_t units = spmm_box_units(*p, M);
    const int64_t held = (int64_t)p->multiprocessors * shape::BLOCKS;
    if (!strips_map(&map, p, p->v, p->heads_q / p->heads_per_kv, p->n_kv, p->d_v, STRIP_BOX,
                    N / 64, T()))
        return cudaErrorNotSupported;
    if (units == 0)
        return cudaSuccess;
    if (units > INT32_MAX)
        return cudaErrorInvalidConfiguration;
    void (*kernel)(const struct staged_params, const CUtensorMap) = spmm_boxes<T, M, shape>;
    cudaError_t code = cudaFuncSetAttribute(
        (const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape::BYTES);
    void *arguments[] = {(void *)p, &map};
    const int64_t blocks = units < held ? units : held;
    return code ? code
                : cudaLaunchKernel((const void *)kernel, dim3((unsigned)blocks),
                                   dim3(128 + shape::THREADS), arguments, shape::BYTES, stream);
}

/* A tile of M rows, and the blocks of a multiprocessor that compute such. */
struct spmm_boxes_tile {
    int64_t height;
    int blocks;
    cudaError_t (*launch)(const struct staged_params *p, cudaStream_t stream);
};

#define SPMM_BOXES_TILE(m, n)                                                                      \
    { m, spmm_box_shape<m, n>::BLOCKS, spmm_boxes_launch_tile<T, m, n> }

/* As high a tile as block rows fill, or a lower one where strips are so few that blocks would share
 * them: values are fetched again then, but no sums have to be added up.
 * cudaErrorNotSupported: nothing is launched, for boxes cannot fetch this. */
template <class T>
static cudaError_t spmm_boxes_launch(const struct staged_params *p, cudaStream_t stream) {
    static const struct spmm_boxes_tile tiles[2][3] = {
        {SPMM_BOXES_TILE(32, 64), SPMM_BOXES_TILE(64, 64), SPMM_BOXES_TILE(128, 64)},
        {SPMM_BOXES_TILE(32, 128), SPMM_BOXES_TILE(64, 128), SPMM_BOXES_TILE(128, 128)},
    };
    if (!strips_boxed(p) || p->height <= 16 || p->d_v > 128)
        return cudaErrorNotSupported;
    const struct spmm_boxes_tile *of = tiles[p->d_v > 64];
    int i = p->height <= 32 ? 0 : p->height <= 64 ? 1 : 2;
    while (i >= 0 && spmm_mma_cluster(p, spmm_box_units(*p, of[i].height), of[i].blocks) > 1)
        i--;
    return i < 0 ? cudaErrorNotSupported : of[i].launch(p, stream);
}

#endif
