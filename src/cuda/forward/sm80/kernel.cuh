/*
 * Fused attention with mma.sync, sm_80 and later. One thread block computes a query tile of M = R WARPS rows,
 * over the granules that the tile lists. A warp owns R rows, from Q to O. All warps share K and V, which are
 * gathered into two stages of shared memory (double buffer):
 *
 *   S [R, KEYS] = Q [R, D] K [KEYS, D]^T    softmax: P [R, KEYS]    O [R, D] += P V [KEYS, D]
 *
 *   | Q [M][D] | K [2][KEYS][D] | V [2][KEYS][D] | flushed sums (f32) | masks of coming steps |
 */
#ifndef TESSERA_CUDA_ATTENTION_MMA_CUH
#define TESSERA_CUDA_ATTENTION_MMA_CUH

#include "device/architecture.cuh"
#include "device/launch.cuh"
#include "forward/sm80/steps.cuh"
#include "work/base.cuh"

/* ---- a tile's rows: loading Q, storing O ---- */

/* Copies this warp's rows of Q. */
template <class T, int D, int R, int ROW>
DEVICE void attention_load_q(uint32_t to, const struct attention_params &p,
                             const struct granule_item &item, int first) {
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
DEVICE void attention_store_some(char *to, uint2 x, int32_t left) {
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
DEVICE void attention_store_o(const struct attention_params &p, const struct granule_item &item,
                              int first, const struct attention_state<T, D, R> &state) {
    const int lane = warp_lane_here(), row = first + lane / 4, rows = item.rows;
    const bool odd = lane % 2;
    const int64_t step = p.o.stride[2] * (int64_t)sizeof(T);
    const int byte = lane % 2 * 16 + lane % 4 / 2 * 8; /* offset in 32 bytes of a row */
    char *to = attention_head<T>(p.o, item.batch, item.head) + (item.row + row) * step + byte;
#pragma unroll
    for (int r = 0; r < R / 8; r++, to += 8 * step) {
        const float below =
            modify_denominator(p.modify, item.head, state.m[r] - attention_raise(T()), state.l[r]);
        const float factor = p.base.o.data ? 1.0f
                             : below == 0  ? 0.0f
                                           : __fdividef(p.modify.kept, below);
#pragma unroll
        for (int d = 0; d < D / 8; d += 2) {
            uint32_t word[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float *x = state.o[r / 2][d + i] + r % 2 * 2;
                word[i] = mma_pack(mean_in_range(x[0] * factor, p.modify.mean_below, T()),
                                   mean_in_range(x[1] * factor, p.modify.mean_below, T()), T());
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

/* Stores of f32. WHOLE: rows allow stores of two elements. */
template <bool WHOLE, int D, int R>
DEVICE void attention_store_o(const struct attention_params &p, const struct granule_item &item,
                              int first, const struct attention_state<float, D, R> &state) {
    const int lane = warp_lane_here();
    float *const o =
        reinterpret_cast<float *>(attention_head<float>(p.o, item.batch, item.head)) + lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < R / 8; r++) {
        const float below = modify_denominator(p.modify, item.head, state.m[r], state.l[r]);
        const float factor = p.base.o.data ? 1.0f : below == 0 ? 0.0f : p.modify.kept / below;
        const int row = first + lane / 4 + 8 * r;
        float *const to = o + (item.row + row) * p.o.stride[2];
        if (row >= item.rows)
            continue;
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            const float *x = state.o[r / 2][d] + r % 2 * 2;
            const float2 two = {x[0] * factor, x[1] * factor};
            const int left = p.d_v - (8 * d + lane % 4 * 2);
            if (WHOLE) {
                *reinterpret_cast<float2 *>(to + 8 * d) = two;
                continue;
            }
            if (left > 0)
                to[8 * d] = two.x;
            if (left > 1)
                to[8 * d + 1] = two.y;
        }
    }
}

/* Stores this warp's rows of a partial result. */
template <class T, int D, int R>
DEVICE void attention_store_partial(const struct attention_params &p,
                                    const struct granule_item &item, int first,
                                    const struct attention_state<T, D, R> &state, float lower) {
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

/* Stores this warp's lse. Each of four lanes that share rows stores one row or none. */
template <class T, int D, int R>
DEVICE void attention_store_lses(const struct attention_params &p, const struct granule_item &item,
                                 int first, const struct attention_state<T, D, R> &state) {
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
DEVICE void attention_empty(struct attention_state<T, D, R> &state) {
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

/* Joins the base to O, which then is what is stored; m and l become those of both. */
template <class T, int D, int R>
DEVICE void attention_join_base(const struct attention_params &p, const struct granule_item &item,
                                int first, struct attention_state<T, D, R> &state) {
    const int lane = warp_lane_here();
#pragma unroll
    for (int r = 0; r < R / 8; r++) {
        const int row = first + lane / 4 + 8 * r;
        if (row >= item.rows)
            continue;
        float m = state.m[r], l = state.l[r] * attention_lower<T>();
        struct base_shares shares = base_join(p, item.batch, item.head, item.row + row, m, l);
        state.m[r] = m, state.l[r] = l / attention_lower<T>();
        shares.own *= attention_lower<T>();
        const T *const from = base_row<T>(p, item.batch, item.head, item.row + row);
#pragma unroll
        for (int d = 0; d < D / 8; d++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int dim = 8 * d + lane % 4 * 2 + e;
                float &x = state.o[r / 2][d][r % 2 * 2 + e];
                if (dim < p.d_v)
                    x = base_add(shares, x, from + dim);
            }
    }
}

template <class T, int D, int R>
DEVICE void attention_finish(const struct attention_params &p, const struct granule_item &item,
                             int first, struct attention_state<T, D, R> &state) {
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
    if (p.base.o.data)
        attention_join_base<T, D, R>(p, item, first, state);
    attention_store_lses(p, item, first, state);
    if (!p.base.o.data)
        attention_empty(state);
    if (p.d_v == D && p.alignment >= 16)
        attention_store_o<true>(p, item, first, state);
    else
        attention_store_o<false>(p, item, first, state);
}

/* ---- the kernel ---- */

/*
 * Three steps are in flight, and run on from item to item:
 *
 *   round        n               n + 1           n + 2
 *   step i       looked up       gathered        computed
 *   step i + 1                   looked up       gathered      ...
 *
 * An item without keys is one step in which nothing is listed. Masks and items' first steps are one branch of a
 * round: most rounds have neither.
 */
template <class T, int D, int R, int WARPS, int KEYS, int BLOCKS, bool MODIFIED>
static __global__ void __launch_bounds__(32 * WARPS,
                                         BLOCKS < ARCHITECTURE_CTAS ? BLOCKS : ARCHITECTURE_CTAS)
    attention_mma(const __grid_constant__ struct attention_params p) {
    using shape = attention_shape<T, D, R, WARPS, KEYS>;
    using steps = attention_steps<T, D, R, WARPS, KEYS>;
    constexpr bool KEPT = steps::KEPT && !MODIFIED;
    /* 16-bit kernels, whose high tiles have the most sums, find steps and granules anew as well. */
    constexpr bool ANEW = !KEPT && sizeof(T) == 2;
    extern __shared__ __align__(128) char memory[];
    const uint32_t shared = shared_address(memory);
    auto &lists = *reinterpret_cast<typename steps::lists *>(memory + shape::LISTS);
    const int first = (int)threadIdx.x / 32 * R; /* row of the tile */
    const uint32_t rows = shared + (uint32_t)(first * shape::ROW);
    const int32_t jobs =
        (int32_t)(p.image.worker_ptr[blockIdx.x + 1] - p.image.worker_ptr[blockIdx.x]);
    struct attention_cursor compute = {0, -1, STEP_MASKED}, fill = compute,
                            look = {0, 0, p.copied ? STEP_FIRST : STEP_FIRST | STEP_ELEMENTS};
    struct attention_granules granules = {};
    struct attention_state<T, D, R> state;
    struct attention_lanes lanes = attention_lanes_of<shape::ROW>(T());
    struct attention_copier copier = steps::copier(p, warp_lane());
    int32_t key[steps::PLACES]; /* first keys of granules, of the step to gather next */
    int offset = (steps::first() + warp_lane()) & ((1 << p.granule_bits) - 1); /* in a granule */
    if (KEPT) { /* else the compiler finds it anew in each step */
        asm volatile("" : "+r"(lanes.q), "+r"(lanes.k), "+r"(lanes.v), "+r"(offset));
        asm volatile("" : "+r"(copier.to), "+r"(copier.sub), "+r"(copier.byte));
        asm volatile("" : "+r"(copier.step[0]), "+r"(copier.step[1]));
        asm volatile("" : "+r"(copier.bytes[0]), "+r"(copier.bytes[1]));
    }
    if (jobs)
        attention_fetch_job(lists.jobs[0], p, p.image.worker_ptr[blockIdx.x]);
#pragma unroll 1
    for (int stage = 0; compute.job < jobs; stage ^= 1) {
        cp_async_wait_all();
        if (WARPS == 1)
            __syncwarp();
        else
            __syncthreads();
        if (ANEW) {
            compute.is = steps::is(lists, p, compute, jobs);
            fill.is = steps::is(lists, p, fill, jobs);
            look.is = steps::is(lists, p, look, jobs);
        }
        const uint32_t words = shared_address(lists.words[stage]);
        struct attention_rows_list listed = {!(compute.is & STEP_MASKED), 0, 0};
        const bool copied = !(fill.is & (STEP_MASKED | STEP_ELEMENTS));
        int32_t key_now[steps::PLACES];
#pragma unroll
        for (int i = 0; i < steps::PLACES; i++)
            key_now[i] = key[i] + offset;
        if (ANEW || (compute.is | fill.is | look.is)) {
            if (compute.is & STEP_MASKED && compute.job >= 0)
                listed.some = attention_listed<R, KEYS, 8 * shape::WORDS, true>(
                    listed.whole, listed.part, words + (uint32_t)(first / 32 * 4), first % 32);
            if (KEPT && fill.is & STEP_FIRST)
                steps::take_heads(copier, lists, fill.job);
            if (!copied && fill.job >= 0 && fill.job < jobs)
                steps::fill(lists, shared, p, stage ^ 1, fill, key_now);
            if (ANEW || look.is & STEP_FIRST)
                granules = steps::granules(lists, p, look.job, jobs);
            if (look.is & STEP_FIRST) {
                steps::begin(lists, p, look.job, jobs);
                look.is = steps::is(lists, p, look, jobs);
            }
            if (look.is & STEP_MASKED && look.job < jobs)
                steps::fetch_masks(lists, p, stage, look);
        }
        const auto copy = [&](int part) {
            struct attention_copier now = copier;
            if (!KEPT) {
                now = steps::copier(p, warp_lane());
                steps::take_heads(now, lists, fill.job);
            }
            steps::copy(now, shared + (uint32_t)((stage ^ 1) * shape::PANEL), key_now, copied,
                        part);
        };
        if (!shape::INTERLEAVED) {
#pragma unroll
            for (int part = 0; part < shape::PARTS; part++)
                copy(part);
        }
        steps::look(key, p, look.at, granules);
        const uint32_t panel = shared + (uint32_t)(stage * shape::PANEL);
        attention_step<T, D, R, WARPS, KEYS, MODIFIED>(
            state, rows, panel + shape::K, panel + shape::V, words, listed, p,
            {lists.jobs, compute.job, (uint32_t)compute.at}, lanes, copy);
        if (fill.job != compute.job) {
            if (fill.job < jobs) /* copied while O is stored */
                attention_load_q<T, D, R, shape::ROW>(
                    rows, p, lists.jobs[fill.job & (ATTENTION_JOBS - 1)], first);
            if (compute.job >= 0)
                attention_finish<T, D, R>(p, lists.jobs[compute.job & (ATTENTION_JOBS - 1)], first,
                                          state);
            attention_clear(state, shared + shape::FLUSHED);
        }
        compute = fill;
        fill = look;
        look = steps::next(p, look, granules, jobs);
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
    const cudaError_t code = launch_shared<shape::BYTES>((const void *)kernel);
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
    return code ? code : cuda_attention_combine(p, attention_type(T()), stream);
}

#endif
