/*
 * Stage 1, SDDMM, for 16-bit types on Hopper, TMA path (block_row_tma.cuh): a persistent,
 * warp-specialised kernel. One CTA on each multiprocessor goes through runs of chunks of CUDA_CHUNK
 * columns, across block rows, for M rows. Keys are the rows of a WGMMA, so that low block rows fill
 * it:
 *
 *   S^T [64 keys, M] = K [64, d] Q [M, d]^T        two for a chunk
 *
 * Roles of warps:
 *
 *   scheduler    finds chunks ahead and describes them in entries, a run each: look-ups are loads
 *                in sequence
 *   producer     two warps: a chunk's keys into a ring of stages, a block row's Q into one of two
 *                slots
 *   consumer     two warpgroups, every other chunk each: WGMMA, then the epilogue, in which a warp
 *                stores its 32 keys through shared memory as rows of 128 bytes
 *
 *   barrier       completed by     phase ends when           waited for by
 *   entry_full    scheduler        the chunk is described    producers, its consumer
 *   entry_empty   consumer         the entry has been read   scheduler of the next run there
 *   k_full        TMA              K is there                the chunk's consumer
 *   k_empty       consumer         it has its scores         producers
 *   q_full        TMA              Q is there                consumers
 *
 * There is no q_empty: producers wait for k_empty of the last chunks that used a slot.
 */
#ifndef TESSERA_CUDA_SDDMM_TMA_CUH
#define TESSERA_CUDA_SDDMM_TMA_CUH

#include "staged/grid.cuh"
#include "staged/sddmm/gather.cuh"
#include "staged/block_row_tma.cuh"

#define SDDMM_TMA_PRODUCERS 2 /* warps */
#define SDDMM_TMA_ENTRIES 32  /* chunks described at a time */
#define SDDMM_TMA_PITCH 36    /* floats between rows of scores: 8 keys of 4 rows touch all banks */
#define SDDMM_TMA_ROWS 16     /* rows of scores that a warp stores at a time */
#define SDDMM_TMA_CONSUMERS 8 /* consumer warps */

/* A chunk, as a scheduler describes it. */
struct sddmm_tma_entry {
    float *to;     /* first column of the first of the tile's rows */
    int64_t width; /* floats between rows */
    int32_t rows, columns;
    int32_t block_row; /* number of the block row, counted by the producer */
    int64_t item;
    int32_t batch, head, batch_kv, head_kv; /* in the maps of Q and of K */
    int32_t query;
    int32_t key[CHUNK_TMA_TILES];
};

/* PANELS: panels of 64 dims of Q and K. */
template <int M, int PANELS> struct sddmm_tma_shape {
    static constexpr int Q_PANEL = M * 128, Q_TILE = PANELS * Q_PANEL;
    static constexpr int K_PANEL = CUDA_CHUNK * 128, K_TILE = PANELS * K_PANEL;
    static constexpr int SCHEDULERS =
        M > 64 ? 2 : 3; /* warps; each takes every SCHEDULERS-th run */
    static constexpr int THREADS = 32 * (SDDMM_TMA_CONSUMERS + SCHEDULERS + SDDMM_TMA_PRODUCERS);
    static_assert(SCHEDULERS * SDDMM_RUN <= SDDMM_TMA_ENTRIES,
                  "no scout comes so far ahead that it could not tell phases of entries apart");
    static constexpr int SPACE = SDDMM_TMA_ROWS * SDDMM_TMA_PITCH * 4; /* bytes of a warp */
    static constexpr int BESIDE = 2 * Q_TILE + SDDMM_TMA_CONSUMERS * SPACE + 2048;
    static constexpr int ROOM = (STAGED_SHARED - BESIDE) / K_TILE;
    /* Even, so that a stage is always the same consumer's. In another's stage a consumer could not
     * tell a phase from the next but one. */
    static constexpr int STAGES = ROOM < 8 ? ROOM / 2 * 2 : 8;
    static constexpr int Q = 0, K = 2 * Q_TILE, SPACES = K + STAGES * K_TILE;
    static constexpr int ENTRIES = SPACES + SDDMM_TMA_CONSUMERS * SPACE;
    static constexpr int ENTRY_FULL =
        ENTRIES + SDDMM_TMA_ENTRIES * (int)sizeof(struct sddmm_tma_entry);
    static constexpr int ENTRY_EMPTY = ENTRY_FULL + 8 * SDDMM_TMA_ENTRIES;
    static constexpr int K_FULL = ENTRY_EMPTY + 8 * SDDMM_TMA_ENTRIES;
    static constexpr int K_EMPTY = K_FULL + 8 * STAGES, Q_FULL = K_EMPTY + 8 * STAGES;
    static constexpr int BYTES = Q_FULL + 2 * 8;
    static_assert(STAGES >= 4 && BYTES <= STAGED_SHARED, "what a block of Hopper can have");
};

/* ---- scheduler warps ---- */

/* Describes `count` chunks, from column x of a block row on, as chunks `number` and following. Each
 * lane finds a TMA tile's key; lane 0 writes. */
template <class shape>
static __device__ __forceinline__ void
sddmm_tma_describe(unsigned char *memory, uint32_t shared, const struct staged_params &p,
                   const struct block_row &block_row, int64_t item, int64_t row, int64_t x,
                   int number, int count) {
    const int32_t key = block_row_tma_key(p, block_row.entry, x, block_row.width);
    const int lane = warp_lane();
#pragma unroll 1
    for (int i = 0; i < count; i++, number++, x += CUDA_CHUNK) {
        const int at = staged_stage<SDDMM_TMA_ENTRIES>(number);
        struct sddmm_tma_entry &entry =
            reinterpret_cast<struct sddmm_tma_entry *>(memory + shape::ENTRIES)[at];
        barrier_wait(shared + shape::ENTRY_EMPTY + 8 * at,
                     staged_parity<SDDMM_TMA_ENTRIES>(number) ^ 1);
        int32_t keys[CHUNK_TMA_TILES];
#pragma unroll
        for (int j = 0; j < CHUNK_TMA_TILES; j++)
            keys[j] = __shfl_sync(WARP_ALL, key, CHUNK_TMA_TILES * i + j);
        if (lane == 0) {
            entry.to = block_row.scores + row * block_row.width + x;
            entry.width = block_row.width;
            entry.rows = (int32_t)(block_row.rows - row);
            entry.columns = (int32_t)min(block_row.width - x, (int64_t)CUDA_CHUNK);
            entry.item = item;
            entry.batch = map_index(block_row.b, p.q.stride[0]);
            entry.head = map_index(block_row.h, p.q.stride[1]);
            entry.batch_kv = map_index(block_row.b, p.k.stride[0]);
            entry.head_kv = map_index(head_kv_of(p, block_row), p.k.stride[1]);
            entry.query = (int32_t)(block_row.first + row);
#pragma unroll
            for (int j = 0; j < CHUNK_TMA_TILES; j++)
                entry.key[j] = keys[j];
            barrier_arrive(shared + shape::ENTRY_FULL + 8 * at);
        }
        __syncwarp();
    }
}

/* Scheduler `scheduler` of a CTA. The chunks of a run are numbered after those of the runs
 * before. */
template <class shape>
static __device__ __forceinline__ void
sddmm_tma_schedule(unsigned char *memory, uint32_t shared, const struct staged_params &p,
                   const struct sddmm_range &range, int scheduler) {
#pragma unroll 1
    for (int round = scheduler; round < range.rounds; round += shape::SCHEDULERS) {
        const int64_t run = range.first + round * range.stride;
        const int64_t chunk = run * range.each + min(run, range.longer);
        int left = range.each + (run < range.longer);
        int number = round * range.each + min(round, range.more);
        if (left == 0)
            break;
        int64_t item = warp_find(p.image.chunks, p.n_items, chunk);
        int64_t x = (chunk - p.image.chunks[item]) * CUDA_CHUNK;
        struct block_row block_row = block_row_of(p, item);
#pragma unroll 1
        while (left > 0) {
            const struct block_row next =
                block_row_of(p, min(item + 1, p.n_items - 1)); /* in flight */
#pragma unroll 1
            while (left > 0 && x < block_row.width) {
                const int64_t to_end = (block_row.width - x + CUDA_CHUNK - 1) / CUDA_CHUNK;
                const int count =
                    (int)min(min((int64_t)left, to_end), (int64_t)(32 / CHUNK_TMA_TILES));
                sddmm_tma_describe<shape>(memory, shared, p, block_row, item, range.row, x, number,
                                          count);
                number += count;
                left -= count;
                x += count * CUDA_CHUNK;
            }
            item++;
            block_row = next;
            x = 0;
        }
    }
}

/* ---- producer warps ---- */

/* One lane of producer warp `producer`, which loads every SDDMM_TMA_PRODUCERS-th TMA tile of K.
 * Producer 0 also loads Q, and counts block rows. */
template <int M, int PANELS>
static __device__ __forceinline__ void
sddmm_tma_produce(unsigned char *memory, uint32_t shared, const CUtensorMap *map_q,
                  const CUtensorMap *map_k, int count, int producer) {
    typedef sddmm_tma_shape<M, PANELS> shape;
    constexpr int EACH = PANELS * CHUNK_TMA_TILES / SDDMM_TMA_PRODUCERS;
    int64_t item = -1;
    int block_row = -1, before = -1; /* last chunk of the block row before */
#pragma unroll 1
    for (int number = 0; number < count; number++) {
        const int at = staged_stage<SDDMM_TMA_ENTRIES>(number);
        const int stage = staged_stage<shape::STAGES>(number);
        struct sddmm_tma_entry &entry =
            reinterpret_cast<struct sddmm_tma_entry *>(memory + shape::ENTRIES)[at];
        barrier_wait(shared + shape::ENTRY_FULL + 8 * at, staged_parity<SDDMM_TMA_ENTRIES>(number));
        barrier_wait(shared + shape::K_EMPTY + 8 * stage, staged_parity<shape::STAGES>(number) ^ 1);
        const int h = entry.head_kv, b = entry.batch_kv;
        if (producer == 0 && entry.item != item) {
            item = entry.item;
            block_row++;
            /* Consumers run at their own pace: both must have finished with the slot. */
            for (int done = before - 1; done <= before; done++)
                if (done > number - shape::STAGES && done >= 0)
                    barrier_wait(shared + shape::K_EMPTY + 8 * staged_stage<shape::STAGES>(done),
                                 staged_parity<shape::STAGES>(done));
            before = number - 1;
            const uint32_t full = shared + shape::Q_FULL + 8 * (block_row & 1);
            barrier_arrive_expect_tx(full, shape::Q_TILE);
            tma_load_panels(shared + shape::Q + (block_row & 1) * shape::Q_TILE, map_q, full, 0,
                            entry.query, entry.head, entry.batch, TMA_EVICT_FIRST);
        }
        const int tiles = entry.columns / STAGED_TMA_KEYS;
        const uint32_t full = shared + shape::K_FULL + 8 * stage;
        const uint32_t k = shared + shape::K + stage * shape::K_TILE;
        if (producer == 0)
            entry.block_row = block_row;
        const int mine = PANELS == SDDMM_TMA_PRODUCERS
                             ? tiles
                             : (tiles + SDDMM_TMA_PRODUCERS - 1 - producer) / SDDMM_TMA_PRODUCERS;
        int32_t key[EACH]; /* before it arrives: then the entry may be released */
#pragma unroll
        for (int i = 0; i < EACH; i++)
            key[i] = entry.key[(i * SDDMM_TMA_PRODUCERS + producer) / PANELS];
        barrier_arrive_expect_tx(full, mine * STAGED_TMA_KEYS * 128);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int n = i * SDDMM_TMA_PRODUCERS + producer, j = n / PANELS, panel = n % PANELS;
            if (j < tiles)
                tma_load_panels(k + panel * shape::K_PANEL + j * STAGED_TMA_KEYS * 128, map_k, full,
                                panel, key[i], h, b, TMA_EVICT_LAST);
        }
    }
}

/* ---- consumer warpgroups ---- */

/* S^T of 2 x 64 keys. Groups of 8 keys of a chunk alternate between the two, so that a warp's 2 x
 * 16 keys are 32 consecutive ones. */
template <class T, int M, int PANELS>
static __device__ __forceinline__ void sddmm_tma_multiply(float (&s)[2][M / 2], uint32_t k,
                                                          uint32_t q) {
    typedef sddmm_tma_shape<M, PANELS> shape;
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < PANELS; i++)
#pragma unroll
        for (int d = 0; d < 4; d++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                wgmma_ss(s[half],
                         wgmma_k_major(k + i * shape::K_PANEL + half * 1024 + d * 32, 2048),
                         wgmma_k_major(q + i * shape::Q_PANEL + d * 32), i + d > 0, T());
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence_operand(s[0]);
    wgmma_fence_operand(s[1]);
}

/* Stores a warp's 32 keys of a chunk, M rows, by way of `space`; -Inf from key `there` on. */
template <int M>
static __device__ __forceinline__ void sddmm_tma_epilogue(const float (&s)[2][M / 2], float *space,
                                                          float *to, int64_t width, int rows,
                                                          int there, float scale) {
    const int lane = warp_lane_here(), g = lane / 4, t = lane % 4;
    const int row = lane / 8, key = lane % 8 * 4;
    to += row * width + key;
#pragma unroll
    for (int first = 0; first < M; first += SDDMM_TMA_ROWS) {
#pragma unroll
        for (int j = 0; j < SDDMM_TMA_ROWS / 8; j++)
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    space[(8 * j + 2 * t + e % 2) * SDDMM_TMA_PITCH + 16 * (e / 2) + 8 * half + g] =
                        s[half][first / 2 + 4 * j + e] * scale;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < SDDMM_TMA_ROWS; i += 4, to += 4 * width) {
            float4 x = *reinterpret_cast<const float4 *>(&space[(i + row) * SDDMM_TMA_PITCH + key]);
            if (there < STAGED_TMA_KEYS) {
                x.x = key < there ? x.x : -INFINITY;
                x.y = key + 1 < there ? x.y : -INFINITY;
                x.z = key + 2 < there ? x.z : -INFINITY;
                x.w = key + 3 < there ? x.w : -INFINITY;
            }
            if (first + i + row < rows)
                __stcs(reinterpret_cast<float4 *>(to), x);
        }
        __syncwarp();
    }
}

template <class T, int M, int PANELS>
static __device__ __forceinline__ void sddmm_tma_consume(unsigned char *memory, uint32_t shared,
                                                         const struct staged_params &p, int count) {
    typedef sddmm_tma_shape<M, PANELS> shape;
    const int warp = sm90_uniform((int)threadIdx.x / 32), of_group = warp % 4;
    float *space = reinterpret_cast<float *>(memory + shape::SPACES + warp * shape::SPACE);
    const float scale = sddmm_scale(p, T());
#pragma unroll 1
    for (int number = warp / 4; number < count; number += 2) {
        const int at = staged_stage<SDDMM_TMA_ENTRIES>(number);
        const int stage = staged_stage<shape::STAGES>(number);
        const struct sddmm_tma_entry &entry =
            reinterpret_cast<const struct sddmm_tma_entry *>(memory + shape::ENTRIES)[at];
        barrier_wait(shared + shape::ENTRY_FULL + 8 * at, staged_parity<SDDMM_TMA_ENTRIES>(number));
        barrier_wait(shared + shape::K_FULL + 8 * stage, staged_parity<shape::STAGES>(number));
        const int block_row = entry.block_row, slot = block_row & 1; /* there since K is */
        barrier_wait(shared + shape::Q_FULL + 8 * slot, (uint32_t)(block_row / 2 & 1));
        float s[2][M / 2];
        sddmm_tma_multiply<T, M, PANELS>(s, shared + shape::K + stage * shape::K_TILE,
                                         shared + shape::Q + slot * shape::Q_TILE);
        if (warp_lane() == 0)
            barrier_arrive(shared + shape::K_EMPTY + 8 * stage);
        float *to = entry.to + of_group * STAGED_TMA_KEYS;
        const int64_t width = entry.width;
        const int rows = entry.rows, left = entry.columns - of_group * STAGED_TMA_KEYS;
        const int there = (int)p.n_kv - entry.key[of_group];
        barrier_arrive(shared + shape::ENTRY_EMPTY + 8 * at); /* every lane has read the entry */
        if (left > 0)
            sddmm_tma_epilogue<M>(s, space, to, width, rows, there, scale);
    }
}

/* ---- the kernel ---- */

template <class T, int M, int PANELS>
static __global__ void __launch_bounds__(sddmm_tma_shape<M, PANELS>::THREADS, 1)
    sddmm_tma(const __grid_constant__ struct staged_params p,
              const __grid_constant__ CUtensorMap map_q,
              const __grid_constant__ CUtensorMap map_k) {
    typedef sddmm_tma_shape<M, PANELS> shape;
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t shared = shared_address(memory);
    const int warp = sm90_uniform((int)threadIdx.x / 32);
    if (threadIdx.x == 0) {
        tma_prefetch_map(&map_q);
        tma_prefetch_map(&map_k);
        for (int i = 0; i < SDDMM_TMA_ENTRIES; i++) {
            barrier_init(shared + shape::ENTRY_FULL + 8 * i, 1);
            barrier_init(shared + shape::ENTRY_EMPTY + 8 * i, 32 * SDDMM_TMA_CONSUMERS / 2);
        }
        for (int i = 0; i < shape::STAGES; i++) {
            barrier_init(shared + shape::K_FULL + 8 * i, SDDMM_TMA_PRODUCERS);
            barrier_init(shared + shape::K_EMPTY + 8 * i, SDDMM_TMA_CONSUMERS / 2);
        }
        for (int i = 0; i < 2; i++)
            barrier_init(shared + shape::Q_FULL + 8 * i, 1);
        barrier_init_fence();
    }
    __syncthreads();
    const struct sddmm_range range = sddmm_range_of<M>(p);
    const int scheduler = warp - SDDMM_TMA_CONSUMERS, producer = scheduler - shape::SCHEDULERS;
    if (warp < SDDMM_TMA_CONSUMERS)
        sddmm_tma_consume<T, M, PANELS>(memory, shared, p, range.count);
    else if (producer < 0)
        sddmm_tma_schedule<shape>(memory, shared, p, range, scheduler);
    else if (warp_lane() == 0)
        sddmm_tma_produce<M, PANELS>(memory, shared, &map_q, &map_k, range.count, producer);
}

/* NULL, or why a tensor has no map. Tiles have M rows. */
template <class T>
static const char *sddmm_tma_maps(CUtensorMap *map_q, CUtensorMap *map_k,
                                  const struct staged_params *p, int M) {
    const char *why =
        block_rows_map(map_q, p, p->q, p->heads_q, p->n_q, p->d_qk, M, p->d_qk > 64 ? 2 : 1, T());
    return why ? why
               : block_rows_map(map_k, p, p->k, p->heads_q / p->heads_per_kv, p->n_kv, p->d_qk,
                                STAGED_TMA_KEYS, 1, T());
}

/* Which heights tiles have makes no difference. */
template <class T> static const char *sddmm_tma_refuses_run(const struct staged_params *p) {
    CUtensorMap map_q, map_k;
    return sddmm_tma_maps<T>(&map_q, &map_k, p, 128);
}

template <class T, int M, int PANELS>
static cudaError_t sddmm_tma_launch_tile(const struct staged_params *p, cudaStream_t stream) {
    typedef sddmm_tma_shape<M, PANELS> shape;
    CUtensorMap map_q, map_k;
    if (sddmm_tma_maps<T>(&map_q, &map_k, p, M))
        return cudaErrorInvalidValue;
    const int64_t row_units = (p->height + M - 1) / M, chunks = chunks_at_most(*p);
    const int64_t held = p->multiprocessors / row_units < 1 ? 1 : p->multiprocessors / row_units;
    const int64_t blocks = (held < chunks ? held : chunks) * row_units;
    if (blocks == 0)
        return cudaSuccess;
    if (blocks > INT32_MAX)
        return cudaErrorInvalidConfiguration;
    void (*kernel)(const struct staged_params, const CUtensorMap, const CUtensorMap) =
        sddmm_tma<T, M, PANELS>;
    const cudaError_t code = launch_shared<shape::BYTES>((const void *)kernel);
    void *arguments[] = {(void *)p, &map_q, &map_k};
    return code ? code
                : cudaLaunchKernel((const void *)kernel, dim3((unsigned)blocks),
                                   dim3(shape::THREADS), arguments, shape::BYTES, stream);
}

template <class T>
static cudaError_t sddmm_tma_launch(const struct staged_params *p, cudaStream_t stream) {
    static const struct grid_instance instances[2][3] = {
        {{32, 0, sddmm_tma_launch_tile<T, 32, 1>},
         {64, 0, sddmm_tma_launch_tile<T, 64, 1>},
         {128, 0, sddmm_tma_launch_tile<T, 128, 1>}},
        {{32, 0, sddmm_tma_launch_tile<T, 32, 2>},
         {64, 0, sddmm_tma_launch_tile<T, 64, 2>},
         {128, 0, sddmm_tma_launch_tile<T, 128, 2>}},
    };
    return grid_launch_instance(instances[p->d_qk > 64], 3, p->height, p, stream);
}

#endif
