/*
 * Fused attention for 16-bit types on tensor cores: SDDMM, online softmax and SpMM of one query
 * tile by one block of threads, over the granules that the tile lists. A warp owns R rows of the
 * tile, from Q to O; all warps share the keys, gathered step by step into two stages of shared
 * memory, one being computed while the other fills:
 *
 *   | Q [M][D] | K [2][KEYS][D] | V [2][KEYS][D] | what is known of coming steps |
 */
#ifndef TESSERA_CUDA_ATTENTION_MMA_CUH
#define TESSERA_CUDA_ATTENTION_MMA_CUH

#include "attention_tile.cuh"

/* ---- a tile's rows: from global memory, and back ---- */

/* This warp's rows of Q. */
template <class T, int D, int R, int ROW>
static __device__ __forceinline__ void attention_load_q(uint32_t to,
                                                        const struct attention_params &p,
                                                        const struct granule_item &item,
                                                        int first) {
    const int row = first + warp_lane();
    const int32_t key[1] = {row < item.rows ? item.row + row : -1};
    __syncwarp(); /* all lanes have read what stood there */
    attention_gather<T, D, R, ROW>(to, attention_head<T>(p.q, item.batch, item.head),
                                   attention_manner_of<T>(p, p.q, p.d_qk, p.q_scale), key);
}

/* This warp's rows of O, rounded, through its own rows of Q's place. */
template <class T, int D, int R, int ROW>
static __device__ __forceinline__ void
attention_store_o(uint32_t through, const struct attention_params &p,
                  const struct granule_item &item, int first,
                  const struct attention_state<D, R> &state) {
    const int lane = warp_lane();
    char *o = attention_head<T>(p.o, item.batch, item.head);
    __syncwarp(); /* all lanes have read their part of Q */
#pragma unroll
    for (int r = 0; r < R / 8; r++) {
        const float factor = state.l[r] == 0 ? 0.0f : 1 / state.l[r];
        const uint32_t row = through + (uint32_t)((lane / 4 + 8 * r) * ROW);
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            const float *x = state.o[r / 2][d] + r % 2 * 2;
            const bool empty = state.l[r] == 0;
            shared_store_4(row + panel_piece(lane / 4, d) + (uint32_t)(lane % 4 * 4),
                           empty ? 0 : mma_pack(x[0] * factor, x[1] * factor, T()));
        }
    }
    __syncwarp();
    constexpr int PIECES = D / 8;
#pragma unroll 1
    for (int i = lane; i < R * PIECES; i += 32) {
        const int row = i / PIECES, piece = i % PIECES, left = p.d_v * 2 - 16 * piece;
        if (first + row >= item.rows || left <= 0)
            continue;
        const uint4 x = shared_load_16(through + (uint32_t)(row * ROW) + panel_piece(row, piece));
        char *to = o + (item.row + first + row) * p.o.stride[2] * 2 + 16 * piece;
        if (left >= 16 && p.alignment >= 16) {
            *reinterpret_cast<uint4 *>(to) = x;
        } else {
            const uint32_t word[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (2 * e < left)
                    reinterpret_cast<uint16_t *>(to)[e] = (uint16_t)(word[e / 2] >> 16 * (e % 2));
        }
    }
    __syncwarp();
}

/* This warp's rows of a partial result. */
template <int D, int R>
static __device__ __forceinline__ void
attention_store_part(const struct attention_params &p, const struct granule_item &item, int first,
                     const struct attention_state<D, R> &state, float raise) {
    const struct attention_slot slot = attention_slot_of(p, item.slot);
    const int lane = warp_lane();
#pragma unroll
    for (int r = 0; r < R / 8; r++) {
        const int row = first + lane / 4 + 8 * r;
        if (row >= item.rows)
            continue;
        if (lane % 4 == 0) {
            slot.m[row] = state.m[r] - raise;
            slot.l[row] = state.l[r];
        }
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            const int dim = 8 * d + lane % 4 * 2;
            if (dim < p.slot_dims)
                *reinterpret_cast<float2 *>(&slot.o[(int64_t)row * p.slot_dims + dim]) = {
                    state.o[r / 2][d][r % 2 * 2], state.o[r / 2][d][r % 2 * 2 + 1]};
        }
    }
}

template <class T, int D, int R, int ROW>
static __device__ __forceinline__ void
attention_finish(uint32_t through, const struct attention_params &p,
                 const struct granule_item &item, int first, struct attention_state<D, R> &state) {
#pragma unroll
    for (int r = 0; r < R / 8; r++) {
        state.l[r] += __shfl_xor_sync(WARP_ALL, state.l[r], 1);
        state.l[r] += __shfl_xor_sync(WARP_ALL, state.l[r], 2);
    }
    if (item.parts > 1) {
        attention_store_part<D, R>(p, item, first, state, attention_raise(T()));
        return;
    }
#pragma unroll
    for (int r = 0; r < R / 8; r++) {
        const int row = first + warp_lane() / 4 + 8 * r;
        if (warp_lane() % 4 == 0 && row < item.rows)
            attention_store_lse(p, item.batch, item.head, item.row + row,
                                state.m[r] - attention_raise(T()), state.l[r]);
    }
    attention_store_o<T, D, R, ROW>(through, p, item, first, state);
}

/* ---- the whole ---- */

/* A step of a block's work: of its job-th item, from place `at` on. */
struct attention_cursor {
    uint32_t at;
    int32_t job;
    bool masked; /* a granule of the step has a mask */
};

/* Asks for an item's rows of Q, so that they are in the L2 cache when a warp has room for them. */
template <class T, int THREADS>
static __device__ __forceinline__ void attention_ask_q(const struct attention_params &p,
                                                       const struct granule_item &item) {
    const char *q = attention_head<T>(p.q, item.batch, item.head);
    for (int row = (int)threadIdx.x; row < item.rows; row += THREADS)
        for (int32_t at = 0; at < p.d_qk * (int)sizeof(T); at += 128)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(
                q + (item.row + row) * p.q.stride[2] * (int64_t)sizeof(T) + at));
}

/* Looks up the granules of a step, for the gather of the next round. At an item's first step it
 * also looks up where the heads begin, asks for the queries, and fetches the item after it. */
template <class T, int KEYS, int WORDS, int THREADS>
static __device__ __forceinline__ void
attention_look_up(struct attention_lists<KEYS, WORDS> &lists, const struct attention_params &p,
                  int slot, const struct attention_cursor &step, int32_t jobs) {
    const int job = step.job & (ATTENTION_JOBS - 1), next = (step.job + 1) & (ATTENTION_JOBS - 1);
    const struct granule_item &item = lists.jobs[job];
    attention_look<KEYS, WORDS, THREADS>(lists, p, slot, item, step.at);
    if (step.at != 0)
        return;
    if (step.job + 1 < jobs)
        attention_fetch_job(lists, p, next, p.image.worker_ptr[blockIdx.x] + step.job + 1);
    attention_ask_q<T, THREADS>(p, item);
    if (threadIdx.x == 0) {
        lists.k[job] = attention_head<T>(p.k, item.batch, item.head_kv);
        lists.v[job] = attention_head<T>(p.v, item.batch, item.head_kv);
    }
}

/* Gathers this warp's rows of a step into a stage. */
template <class T, int D, int R, int WARPS, int KEYS>
static __device__ __forceinline__ void
attention_fill(uint32_t shared, int stage, const struct attention_params &p,
               attention_lists<KEYS, attention_shape<D, R, WARPS, KEYS>::WORDS> &lists,
               const struct attention_cursor &step) {
    using shape = attention_shape<D, R, WARPS, KEYS>;
    constexpr int ROWS = KEYS / WARPS;
    static_assert(ROWS % 8 == 0, "a warp's rows begin where pieces are not exchanged");
    const int job = step.job & (ATTENTION_JOBS - 1);
    const struct granule_item &item = lists.jobs[job];
    const int first = (int)threadIdx.x / 32 * ROWS;
    const uint32_t rows = shared + (uint32_t)(stage * shape::PANEL + first * shape::ROW);
    int32_t key[(ROWS + 31) / 32];
#pragma unroll
    for (int i = 0; i < (ROWS + 31) / 32; i++)
        if (ROWS >= 32 || warp_lane() < ROWS)
            key[i] = attention_key(lists, p, stage, item, step.at, first + 32 * i + warp_lane(),
                                   step.masked);
    attention_gather<T, D, ROWS, shape::ROW>(rows + shape::K, lists.k[job],
                                             attention_manner_of<T>(p, p.k, p.d_qk, 1), key);
    attention_gather<T, D, ROWS, shape::ROW>(rows + shape::V, lists.v[job],
                                             attention_manner_of<T>(p, p.v, p.d_v, 1), key);
}

template <int D, int R>
static __device__ __forceinline__ void attention_clear(struct attention_state<D, R> &state) {
    state = {};
#pragma unroll
    for (int r = 0; r < R / 8; r++)
        state.m[r] = -INFINITY;
}

/*
 * Three steps are under way at a time: one is computed, the keys of the next are gathered, and the
 * granules of the one after that are looked up. They run on from item to item; an item without keys
 * is a step in which nothing is listed.
 */
template <class T, int D, int R, int WARPS, int KEYS, int BLOCKS>
static __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    attention_mma(const __grid_constant__ struct attention_params p) {
    using shape = attention_shape<D, R, WARPS, KEYS>;
    extern __shared__ __align__(128) char memory[];
    const uint32_t shared = shared_address(memory);
    auto &lists = *reinterpret_cast<attention_lists<KEYS, shape::WORDS> *>(memory + shape::LISTS);
    const int first = (int)threadIdx.x / 32 * R; /* row of the tile */
    const uint32_t rows = shared + (uint32_t)(first * shape::ROW);
    const int32_t jobs =
        (int32_t)(p.image.worker_ptr[blockIdx.x + 1] - p.image.worker_ptr[blockIdx.x]);
    struct attention_cursor compute = {0, -1, false}, fill = {0, -1, false}, look = {0, 0, false};
    struct attention_state<D, R> state;
    if (jobs)
        attention_fetch_job(lists, p, 0, p.image.worker_ptr[blockIdx.x]);
    attention_clear(state);
#pragma unroll 1
    for (int stage = 0; compute.job < jobs; stage ^= 1) {
        ring_wait();
        __syncthreads();
        if ((uint32_t)fill.job < (uint32_t)jobs)
            attention_fill<T, D, R, WARPS, KEYS>(shared, stage ^ 1, p, lists, fill);
        uint32_t places = 0; /* of the item that is looked up */
        if (look.job < jobs) {
            const struct granule_item &looked = lists.jobs[look.job & (ATTENTION_JOBS - 1)];
            attention_look_up<T, KEYS, shape::WORDS, shape::THREADS>(lists, p, stage, look, jobs);
            look.masked = look.at + KEYS > (uint32_t)looked.whole << p.granule_bits;
            places = (uint32_t)looked.count << p.granule_bits;
        }
        if (compute.job >= 0) {
            const uint32_t panel = shared + (uint32_t)(stage * shape::PANEL);
            attention_step<T, D, R, WARPS, KEYS>(
                state, rows, panel + shape::K, panel + shape::V,
                compute.masked ? shared_address(lists.words[stage]) : 0, p.score_scale);
            if (fill.job != compute.job) {
                attention_finish<T, D, R, shape::ROW>(
                    rows, p, lists.jobs[compute.job & (ATTENTION_JOBS - 1)], first, state);
                attention_clear(state);
            }
        }
        if (fill.job != compute.job && fill.job < jobs)
            attention_load_q<T, D, R, shape::ROW>(
                rows, p, lists.jobs[fill.job & (ATTENTION_JOBS - 1)], first);
        compute = fill;
        fill = look;
        look.at += KEYS;
        if (look.at >= places)
            look = {0, min(look.job + 1, jobs), false};
    }
}

template <class T, int D, int R, int WARPS, int KEYS>
static cudaError_t attention_mma_launch_tile(const struct attention_params *p,
                                             cudaStream_t stream) {
    using shape = attention_shape<D, R, WARPS, KEYS>;
    void (*kernel)(const struct attention_params) =
        attention_mma<T, D, R, WARPS, KEYS, ATTENTION_BLOCKS(D, R * WARPS)>;
    cudaError_t code =
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             shape::BYTES);
    return code ? code
                : attention_launch(kernel, (unsigned)p->workers, shape::THREADS, shape::BYTES, p,
                                   stream);
}

/* The tile's height decides: tall tiles take 32 rows to a warp, which halves what passes from
 * shared memory for each product; for D > 128 their sums would not fit the registers. */
template <class T, int D>
static cudaError_t attention_mma_launch(const struct attention_params *p, cudaStream_t stream) {
    constexpr int R = D > 128 ? 16 : 32, THIN_R = D > 64 ? R : 16, TALL_KEYS = D > 64 ? 64 : 128;
    cudaError_t code;
    if (p->tile_rows <= 16)
        code = attention_mma_launch_tile<T, D, 16, 1, 64>(p, stream);
    else if (p->tile_rows == 32)
        code = attention_mma_launch_tile<T, D, 16, 2, 64>(p, stream);
    else if (p->tile_rows == 64)
        code = attention_mma_launch_tile<T, D, 16, 4, 64>(p, stream);
    else if (p->thin)
        code = attention_mma_launch_tile<T, D, THIN_R, 128 / THIN_R, TALL_KEYS>(p, stream);
    else
        code = attention_mma_launch_tile<T, D, R, 128 / R, TALL_KEYS>(p, stream);
    return code ? code : attention_merge_launch<T>(p, stream);
}

#endif
