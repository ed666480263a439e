/*
 * Fused attention with mma.sync, sm_80 and later: one query tile of M = R WARPS rows by one thread
 * block, over the granules that the tile lists. A warp owns R rows, from Q to O. All warps share K
 * and V, which are gathered into two stages of shared memory (double buffer):
 *
 *   S [R, KEYS] = Q [R, D] K [KEYS, D]^T    softmax: P [R, KEYS]    O [R, D] += P V [KEYS, D]
 *
 *   | Q [M][D] | K [2][KEYS][D] | V [2][KEYS][D] | flushed sums (f32) | granules of coming steps |
 */
#ifndef TESSERA_CUDA_ATTENTION_MMA_CUH
#define TESSERA_CUDA_ATTENTION_MMA_CUH

#include "device/architecture.cuh"
#include "forward/sm80/warp_step.cuh"

/* ---- a tile's rows: loading Q, storing O ---- */

/* Copies this warp's rows of Q. */
template <class T, int D, int R, int ROW>
static __device__ __forceinline__ void
attention_load_q(uint32_t to, const struct attention_params &p, const struct granule_item &item,
                 int first) {
    const char *q = attention_head<T>(p.q, item.batch, item.head);
    const struct attention_copy_mode mode = attention_copy_mode_of<T>(p, p.q, p.d_qk, p.q_scale);
    const int row = first + warp_lane_here();
    constexpr int LANES = attention_lanes<T, D>();
    __syncwarp(); /* all lanes have read the Q before */
    if (mode.copied)
        attention_copy_run<T, D, R, ROW>(
            to + attention_lane_to<LANES, ROW>(),
            q + attention_lane_from<LANES>(item.row + first, mode.step), mode, item.rows - first);
    else
        attention_copy_elements<T, R, ROW>(to, q, mode, {row < item.rows ? item.row + row : -1});
}

/* Stores the first `left` bytes, up to 8, of x. */
static __device__ __forceinline__ void attention_store_some(char *to, uint2 x, int32_t left) {
#pragma unroll 1
    for (int at = 0; at < min(left, 8); at += 2) {
        *reinterpret_cast<uint16_t *>(to + at) = (uint16_t)x.x;
        x = {__funnelshift_r(x.x, x.y, 16), x.y >> 16};
    }
}

/* Stores this warp's rows of O, rounded. Four lanes hold 16 columns of a row in two words each;
 * after an exchange with its neighbour a lane has 8 consecutive bytes. WHOLE: rows allow stores of
 * 8 bytes. */
template <bool WHOLE, class T, int D, int R>
static __device__ __forceinline__ void
attention_store_o(const struct attention_params &p, const struct granule_item &item, int first,
                  const struct attention_state<T, D, R> &state) {
    const int lane = warp_lane_here(), row = first + lane / 4, rows = item.rows;
    const bool odd = lane % 2;
    const int64_t step = p.o.stride[2] * (int64_t)sizeof(T);
    const int byte = lane % 2 * 16 + lane % 4 / 2 * 8; /* offset in 32 bytes of a row */
    char *to = attention_head<T>(p.o, item.batch, item.head) + (item.row + row) * step + byte;
#pragma unroll
    for (int r = 0; r < R / 8; r++, to += 8 * step) {
        const float below =
            modify_denominator(p.modify, item.head, state.m[r] - attention_raise(T()), state.l[r]);
        const float factor = below == 0 ? 0.0f : __fdividef(p.modify.kept, below);
#pragma unroll
        for (int d = 0; d < D / 8; d += 2) {
            uint32_t word[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float *x = state.o[r / 2][d + i] + r % 2 * 2;
                word[i] = mma_pack(mean_in_range(x[0] * factor, T()),
                                   mean_in_range(x[1] * factor, T()), T());
            }
            const uint32_t other = __shfl_xor_sync(WARP_ALL, odd ? word[0] : word[1], 1);
            const uint2 x = {odd ? other : word[0], odd ? word[1] : other};
            if (WHOLE && row + 8 * r < rows)
                *reinterpret_cast<uint2 *>(to + 16 * d) = x;
            if (!WHOLE && row + 8 * r < rows)
                attention_store_some(to + 16 * d, x, 2 * p.d_v - 16 * d - byte);
        }
    }
}

/* Stores this warp's rows of a partial result. */
template <class T, int D, int R>
static __device__ __forceinline__ void
attention_store_partial(const struct attention_params &p, const struct granule_item &item,
                        int first, const struct attention_state<T, D, R> &state, float lower) {
    const struct attention_slot slot = attention_slot_of(p, item.slot);
    const int lane = warp_lane_here();
#pragma unroll
    for (int r = 0; r < R / 8; r++) {
        const int row = first + lane / 4 + 8 * r;
        if (row >= item.rows)
            continue;
        if (lane % 4 == 0) {
            slot.m[row] = state.m[r];
            slot.l[row] = state.l[r] * lower;
        }
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            const int dim = 8 * d + lane % 4 * 2;
            if (dim < p.slot_dims)
                *reinterpret_cast<float2 *>(&slot.o[(int64_t)row * p.slot_dims + dim]) = {
                    state.o[r / 2][d][r % 2 * 2] * lower, state.o[r / 2][d][r % 2 * 2 + 1] * lower};
        }
    }
}

/* Stores this warp's lse. Of four lanes that share rows, each stores one row or none. */
template <class T, int D, int R>
static __device__ __forceinline__ void
attention_store_lses(const struct attention_params &p, const struct granule_item &item, int first,
                     const struct attention_state<T, D, R> &state) {
    const int lane = warp_lane_here(), row = first + lane / 4 + lane % 4 * 8;
    float m = state.m[0], l = state.l[0];
#pragma unroll
    for (int r = 1; r < R / 8; r++) {
        m = lane % 4 == r ? state.m[r] : m;
        l = lane % 4 == r ? state.l[r] : l;
    }
    if (lane % 4 < R / 8 && row < item.rows)
        attention_store_lse(p, item.batch, item.head, item.row + row, m, l * attention_lower<T>());
}

/* Sets O of rows that list nothing to 0: their sums of 0 x V may be NaN. */
template <class T, int D, int R>
static __device__ __forceinline__ void attention_empty(struct attention_state<T, D, R> &state) {
    bool some = false;
#pragma unroll
    for (int r = 0; r < R / 8; r++)
        some |= state.l[r] == 0;
    if (!__any_sync(WARP_ALL, some))
        return;
#pragma unroll
    for (int r = 0; r < R / 8; r++)
#pragma unroll
        for (int d = 0; d < D / 8; d++)
#pragma unroll
            for (int e = r % 2 * 2; e < r % 2 * 2 + 2; e++)
                state.o[r / 2][d][e] = state.l[r] == 0 ? 0.0f : state.o[r / 2][d][e];
}

template <class T, int D, int R>
static __device__ __forceinline__ void attention_finish(const struct attention_params &p,
                                                        const struct granule_item &item, int first,
                                                        struct attention_state<T, D, R> &state) {
    attention_total(state);
#pragma unroll
    for (int r = 0; r < R / 8; r++) {
        state.l[r] += __shfl_xor_sync(WARP_ALL, state.l[r], 1);
        state.l[r] += __shfl_xor_sync(WARP_ALL, state.l[r], 2);
    }
    if (item.parts > 1) {
        attention_store_partial<T, D, R>(p, item, first, state, attention_lower<T>());
        return;
    }
    attention_store_lses(p, item, first, state);
    attention_empty(state);
    if (p.d_v == D && p.alignment >= 16)
        attention_store_o<true>(p, item, first, state);
    else
        attention_store_o<false>(p, item, first, state);
}

/* ---- the kernel ---- */

/* A step of a thread block's work: of its job-th item, from granule `at` on. */
struct attention_cursor {
    uint32_t at;
    int32_t job;
};

/* Whether a granule of a step has a mask. */
template <int KEYS>
static __device__ __forceinline__ bool attention_masked(const struct attention_params &p,
                                                        const struct granule_item &item,
                                                        const struct attention_cursor &step) {
    return step.at + (KEYS >> p.granule_bits) > (uint32_t)item.whole;
}

/* Looks up the granules of a step, one round before they are gathered. At an item's first step also
 * finds the heads of K and V, prefetches Q and copies the next item. */
template <class T, int D, int KEYS, int WORDS, int THREADS>
static __device__ __forceinline__ void
attention_fetch_step(struct attention_lists<KEYS, WORDS> &lists, const struct attention_params &p,
                     int slot, const struct attention_cursor &step, int32_t jobs) {
    const int job = step.job & (ATTENTION_JOBS - 1), next = (step.job + 1) & (ATTENTION_JOBS - 1);
    const struct granule_item &item = lists.jobs[job];
    attention_fetch_granules<KEYS, WORDS, THREADS>(lists, p, slot, item, step.at);
    if (step.at != 0)
        return;
    if (step.job + 1 < jobs)
        attention_fetch_job(lists.jobs[next], p, p.image.worker_ptr[blockIdx.x] + step.job + 1);
    attention_prefetch_q<T, D, THREADS>(p, item);
    if (threadIdx.x == 0) {
        lists.heads[job][0] = attention_head<T>(p.k, item.batch, item.head_kv);
        lists.heads[job][1] = attention_head<T>(p.v, item.batch, item.head_kv);
    }
}

/* Keys of this warp's places of a step, from place `first` on. keep: their row masks too. */
template <int ROWS, int KEYS, int WORDS>
static __device__ __forceinline__ void
attention_keys(int32_t (&key)[(ROWS + 31) / 32], struct attention_lists<KEYS, WORDS> &lists,
               const struct attention_params &p, int stage, const struct granule_item &item,
               uint32_t begin, int first, bool masked, bool keep) {
#pragma unroll
    for (int i = 0; i < (ROWS + 31) / 32; i++) {
        const int row = 32 * i + warp_lane_here();
        key[i] = -1;
        if (row < ROWS)
            key[i] = attention_key(lists, p, stage, item, begin, first + row, masked, keep, WORDS);
    }
    __syncwarp();
}

/* Gathers this warp's rows of a step into a stage. Where the rows are consecutive, the copy is
 * deferred and issued in parts between the MMAs of another step (warp_step.cuh). A warp takes at
 * least 8 rows: with more warps than that allows, half of them gather K and half V. */
template <class T, int D, int R, int WARPS, int KEYS>
static __device__ __forceinline__ struct attention_deferred
attention_fill(uint32_t shared, int stage, const struct attention_params &p,
               attention_lists<KEYS, attention_shape<T, D, R, WARPS, KEYS>::WORDS> &lists,
               const struct attention_cursor &step) {
    using shape = attention_shape<T, D, R, WARPS, KEYS>;
    constexpr int ROWS = shape::ROWS_KV;
    static_assert(ROWS % 8 == 0, "a warp's rows begin where pieces are not exchanged");
    static_assert(KEYS % attention_granule<T>() == 0, "steps are whole granules");
    const int job = step.job & (ATTENTION_JOBS - 1), warp = (int)threadIdx.x / 32;
    const bool of_k = !shape::APART || warp < WARPS / 2, of_v = !shape::APART || !of_k;
    const int first = warp * ROWS % KEYS, size = 1 << p.granule_bits;
    const uint32_t to = shared + (uint32_t)(stage * shape::PANEL + first * shape::ROW);
    const struct attention_copy_mode of_keys = attention_copy_mode_of<T>(p, p.k, p.d_qk, 1);
    const struct attention_copy_mode of_values = attention_copy_mode_of<T>(p, p.v, p.d_v, 1);
    const struct granule_item &item = lists.jobs[job];
    const int32_t run = lists.keys[stage][first >> p.granule_bits] + (first & (size - 1));
    const bool masked = attention_masked<KEYS>(p, item, step);
    if (p.copied && ROWS <= size && !masked)
        return {run, to + attention_lane_to<attention_lanes<T, D>(), shape::ROW>(),
                lists.heads[job]};
    int32_t key[(ROWS + 31) / 32];
    attention_keys<ROWS>(key, lists, p, stage, item, step.at, first, masked, of_k);
    if (of_k)
        attention_gather<T, D, ROWS, shape::ROW>(to + shape::K, lists.heads[job][0], of_keys, key);
    if (of_v)
        attention_gather<T, D, ROWS, shape::ROW>(to + shape::V, lists.heads[job][1], of_values,
                                                 key);
    return {-1, 0, NULL};
}

/*
 * Three steps are in flight, and run on from item to item:
 *
 *   round        n               n + 1           n + 2
 *   step i       looked up       gathered        computed
 *   step i + 1                   looked up       gathered      ...
 *
 * An item without keys is one step in which nothing is listed.
 */
template <class T, int D, int R, int WARPS, int KEYS, int BLOCKS, bool MODIFIED>
static __global__ void __launch_bounds__(32 * WARPS,
                                         BLOCKS < ARCHITECTURE_CTAS ? BLOCKS : ARCHITECTURE_CTAS)
    attention_mma(const __grid_constant__ struct attention_params p) {
    using shape = attention_shape<T, D, R, WARPS, KEYS>;
    extern __shared__ __align__(128) char memory[];
    const uint32_t shared = shared_address(memory);
    auto &lists = *reinterpret_cast<attention_lists<KEYS, shape::WORDS> *>(memory + shape::LISTS);
    const int first = (int)threadIdx.x / 32 * R; /* row of the tile */
    const uint32_t rows = shared + (uint32_t)(first * shape::ROW);
    const int32_t jobs =
        (int32_t)(p.image.worker_ptr[blockIdx.x + 1] - p.image.worker_ptr[blockIdx.x]);
    struct attention_cursor compute = {0, -1}, fill = {0, -1}, look = {0, 0};
    struct attention_state<T, D, R> state;
    if (jobs)
        attention_fetch_job(lists.jobs[0], p, p.image.worker_ptr[blockIdx.x]);
#pragma unroll 1
    for (int stage = 0; compute.job < jobs; stage ^= 1) {
        cp_async_wait_all();
        __syncthreads();
        struct attention_deferred deferred = {-1, 0, NULL};
        if ((uint32_t)fill.job < (uint32_t)jobs)
            deferred = attention_fill<T, D, R, WARPS, KEYS>(shared, stage ^ 1, p, lists, fill);
        if (!shape::INTERLEAVED || compute.job < 0)
            attention_deferred_all<T, D, R, WARPS, KEYS>(p, deferred);
        const uint32_t span = KEYS >> p.granule_bits;
        uint32_t count = 0; /* granules of the item that is looked up */
        if (look.job < jobs) {
            const struct granule_item &looked = lists.jobs[look.job & (ATTENTION_JOBS - 1)];
            attention_fetch_step<T, D, KEYS, shape::WORDS, shape::THREADS>(lists, p, stage, look,
                                                                           jobs);
            count = (uint32_t)looked.count;
        }
        if (compute.job >= 0) {
            if (compute.at == 0)
                attention_clear(state, shared + shape::FLUSHED);
            const struct granule_item &item = lists.jobs[compute.job & (ATTENTION_JOBS - 1)];
            const uint32_t panel = shared + (uint32_t)(stage * shape::PANEL);
            attention_step<T, D, R, WARPS, KEYS, MODIFIED>(
                state, rows, panel + shape::K, panel + shape::V,
                attention_masked<KEYS>(p, item, compute) ? shared_address(lists.words[stage]) : 0,
                p, {lists.jobs, compute.job, compute.at}, deferred);
        }
        if (fill.job != compute.job) {
            if (fill.job < jobs) /* copied while O is stored */
                attention_load_q<T, D, R, shape::ROW>(
                    rows, p, lists.jobs[fill.job & (ATTENTION_JOBS - 1)], first);
            if (compute.job >= 0)
                attention_finish<T, D, R>(p, lists.jobs[compute.job & (ATTENTION_JOBS - 1)], first,
                                          state);
        }
        compute = fill;
        fill = look;
        look.at += span;
        if (look.at >= count)
            look = {0, min(look.job + 1, jobs)};
    }
}

template <int D, int ROWS, class T> static constexpr int attention_blocks_of(T) {
    return ATTENTION_BLOCKS(D, ROWS);
}
template <int D, int ROWS> static constexpr int attention_blocks_of(float) {
    return ATTENTION_BLOCKS_F32(D, ROWS);
}

template <int D, int ROWS, class T> static constexpr int attention_step_of(T) {
    return ATTENTION_STEP(D, ROWS);
}
template <int D, int ROWS> static constexpr int attention_step_of(float) {
    return ATTENTION_STEP_F32(ROWS);
}
template <int D, int ROWS, bool THIN, class T> static constexpr int attention_warp_of(T) {
    return ATTENTION_WARP(D, ROWS, THIN);
}
template <int D, int ROWS, bool THIN> static constexpr int attention_warp_of(float) {
    return ATTENTION_WARP_F32(D, ROWS);
}

template <class T, int D, int R, int WARPS, int KEYS>
static cudaError_t attention_mma_launch_one(const struct attention_params *p, cudaStream_t stream) {
    using shape = attention_shape<T, D, R, WARPS, KEYS>;
    constexpr int BLOCKS = attention_blocks_of<D, R * WARPS>(T());
    void (*kernel)(const struct attention_params) =
        p->modify.each ? attention_mma<T, D, R, WARPS, KEYS, BLOCKS, true>
                       : attention_mma<T, D, R, WARPS, KEYS, BLOCKS, false>;
    cudaError_t code = cudaFuncSetAttribute(
        (const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape::BYTES);
    return code ? code
                : attention_launch(kernel, (unsigned)p->workers, shape::THREADS, shape::BYTES, p,
                                   stream);
}

/* An instance for tiles of up to `rows` rows. */
struct attention_tile {
    int32_t rows;
    bool thin;      /* for lists most of whose granules have a mask */
    int64_t shared; /* bytes of shared memory of a thread block */
    cudaError_t (*launch)(const struct attention_params *p, cudaStream_t stream);
};

template <class T, int D, int ROWS, bool THIN>
static constexpr struct attention_tile attention_tile_of(void) {
    constexpr int R = attention_warp_of<D, ROWS, THIN>(T());
    constexpr int WARPS = ROWS / R, KEYS = attention_step_of<D, ROWS>(T());
    return {ROWS, THIN, attention_shape<T, D, R, WARPS, KEYS>::BYTES,
            attention_mma_launch_one<T, D, R, WARPS, KEYS>};
}

template <class T, int D> static struct attention_tile attention_tile_for(int32_t rows, bool thin) {
    constexpr struct attention_tile tiles[] = {
        attention_tile_of<T, D, 16, false>(),  attention_tile_of<T, D, 32, false>(),
        attention_tile_of<T, D, 64, false>(),  attention_tile_of<T, D, 128, true>(),
        attention_tile_of<T, D, 128, false>(),
    };
    int i = 0;
    while (tiles[i].rows < rows || (tiles[i].thin && !thin))
        i++;
    return tiles[i];
}

template <class T, int D> static int64_t attention_mma_shared(int32_t rows) {
    return attention_tile_for<T, D>(rows, false).shared;
}

template <class T, int D>
static cudaError_t attention_mma_launch(const struct attention_params *p, cudaStream_t stream) {
    cudaError_t code = attention_tile_for<T, D>(p->tile_rows, p->thin).launch(p, stream);
    return code ? code : attention_combine_launch<T>(p, stream);
}

#endif
