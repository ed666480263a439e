/*
 * Fused attention for f32 in tiles of 8 rows, on tensor cores. One warp computes a tile by itself;
 * what it has of K and V is its own, and it waits for no other. The products are those of
 * attention_tile_f32.cuh with their sides exchanged: 16 keys, then 16 dims, meet the 8 rows, and
 * nothing of a product is padding. With g = lane / 4 and t = lane % 4 a lane has
 *
 *   scores  A: keys g, g + 8 and, of each 32 dims, 8t ... 8t + 7: two pieces of a row of K
 *           B: row g and the same dims of Q, split when the tile began, or, where few warps would
 *              fit shared memory so, when they are used
 *   values  A: of each 32 dims 4g ... 4g + 3, a piece of a row of V, for keys 2t, 2t + 1, 2t + 8
 *              and 2t + 9
 *           B: the weights of row g and these keys
 *   sums    rows 2t, 2t + 1: of keys g, g + 8 and of dims 4g ... 4g + 3
 *
 * Shared memory:  | Q [D / 8][32 lanes][4 or 2] | weights [8][20] | sums put by | batches | items |
 */
#ifndef TESSERA_CUDA_ATTENTION_LOW_CUH
#define TESSERA_CUDA_ATTENTION_LOW_CUH

#include "attention_low_keys.cuh"
#include "attention_tile_f32.cuh"

#define LOW_ROWS 8
#define LOW_WEIGHTS 20 /* floats from row to row of weights: 16, and what keeps banks apart */

/* A lane's two rows and D / 4 dims of each, counted as others do: of 16 rows and half the dims. */
template <int D> using attention_low_state = struct attention_state<float, D / 2, 16>;

template <int D> struct attention_low_shape {
    static constexpr bool SPLIT = D <= 128;                        /* Q */
    static constexpr int WEIGHTS_AT = D / 8 * (SPLIT ? 512 : 256); /* behind it */
    static constexpr int FAR_AT = WEIGHTS_AT + LOW_ROWS * LOW_WEIGHTS * 4;
    static constexpr int RING_AT = FAR_AT + (D / 16 + 1) * 512;
    static constexpr int ITEMS_AT = RING_AT + attention_low_ahead<D>() * LOW_BATCH;
    static constexpr int BYTES = ITEMS_AT + ATTENTION_JOBS * (int)sizeof(struct granule_item);
};

/* ---- a tile's rows ---- */

/* This lane's operands of Q, where it alone looks for them: of row g two pieces of each 32 dims. */
template <int D>
static __device__ __forceinline__ void attention_low_load_q(uint32_t to,
                                                            const struct attention_params &p,
                                                            const struct granule_item &item) {
    const int lane = warp_lane_here(), row = lane / 4;
    const char *from = attention_head<float>(p.q, item.batch, item.head) + lane % 4 * 32 +
                       (item.row + row) * p.q.stride[2] * 4;
    uint4 piece[D / 16];
    to += (uint32_t)(16 * lane);
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
        const int at = c / 2 * 128 + c % 2 * 16;
        const int32_t bytes = 4 * p.d_qk - lane % 4 * 32 - at;
        piece[c] = {0, 0, 0, 0};
        if (row < item.rows && bytes > 0)
            piece[c] = p.copied ? attention_low_load_16(from + at)
                                : attention_load_16<float>(from + at, bytes, 1);
    }
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
        uint32_t x[4] = {piece[c].x, piece[c].y, piece[c].z, piece[c].w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = __float_as_uint(__uint_as_float(x[i]) * p.q_scale);
        const struct fragment<float, 2> b[2] = {fragment_of({x[0], x[1]}, 0.0f),
                                                fragment_of({x[2], x[3]}, 0.0f)};
        if (attention_low_shape<D>::SPLIT) {
            shared_store_16(to + (uint32_t)c * 1024,
                            {b[0].high[0], b[0].high[1], b[0].low[0], b[0].low[1]});
            shared_store_16(to + (uint32_t)c * 1024 + 512,
                            {b[1].high[0], b[1].high[1], b[1].low[0], b[1].low[1]});
        } else {
            shared_store_16(to + (uint32_t)c * 512, {x[0], x[1], x[2], x[3]});
        }
    }
}

/* Those of piece c. */
template <int D>
static __device__ __forceinline__ void attention_low_q(struct fragment<float, 2> (&b)[2],
                                                       uint32_t from, int c) {
    constexpr bool SPLIT = attention_low_shape<D>::SPLIT;
    const uint4 x = shared_load_16(from + (uint32_t)c * (SPLIT ? 1024 : 512));
    if (SPLIT) {
        const uint4 y = shared_load_16(from + (uint32_t)c * 1024 + 512);
        b[0] = {{x.x, x.y}, {x.z, x.w}};
        b[1] = {{y.x, y.y}, {y.z, y.w}};
    } else {
        b[0] = fragment_of({x.x, x.y}, 0.0f);
        b[1] = fragment_of({x.z, x.w}, 0.0f);
    }
}

/* Where this lane's 4 dims of a row go, in O or in a slot. */
template <int D>
static __device__ __forceinline__ float4
attention_low_dims(const attention_low_state<D> &state, int r, int c,
                   float factor) {
    const float *x = state.o[0][2 * c] + 2 * r, *y = state.o[0][2 * c + 1] + 2 * r;
    return {x[0] * factor, x[1] * factor, y[0] * factor, y[1] * factor};
}

template <int D>
static __device__ __forceinline__ void
attention_low_store_part(const struct attention_params &p, const struct granule_item &item,
                         const attention_low_state<D> &state) {
    const struct attention_slot slot = attention_slot_of(p, item.slot);
    const int lane = warp_lane_here();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = lane % 4 * 2 + r;
        if (row >= item.rows)
            continue;
        if (lane < 4) {
            slot.m[row] = state.m[r];
            slot.l[row] = state.l[r];
        }
#pragma unroll
        for (int c = 0; c < D / 32; c++) {
            const int dim = 32 * c + lane / 4 * 4;
            if (dim < p.slot_dims)
                *reinterpret_cast<float4 *>(&slot.o[(int64_t)row * p.slot_dims + dim]) =
                    attention_low_dims<D>(state, r, c, 1);
        }
    }
}

template <int D>
static __device__ __forceinline__ void
attention_low_store(const struct attention_params &p, const struct granule_item &item,
                    const attention_low_state<D> &state) {
    const int lane = warp_lane_here();
    const bool whole = p.d_v == D && p.alignment >= 16;
    float *const o = reinterpret_cast<float *>(attention_head<float>(p.o, item.batch, item.head));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = lane % 4 * 2 + r;
        /* Rows that list nothing are 0, whatever 0 times the values that others list has left. */
        const bool some = state.l[r] != 0;
        const float factor = some ? 1 / state.l[r] : 0;
        float *const to = o + (item.row + row) * p.o.stride[2] + lane / 4 * 4;
        if (row >= item.rows)
            continue;
        if (lane < 4)
            attention_store_lse(p, item.batch, item.head, item.row + row, state.m[r], state.l[r]);
#pragma unroll
        for (int c = 0; c < D / 32; c++) {
            float4 x = {0, 0, 0, 0};
            if (some)
                x = attention_low_dims<D>(state, r, c, factor);
            if (whole) {
                *reinterpret_cast<float4 *>(to + 32 * c) = x;
                continue;
            }
            const int left = p.d_v - (32 * c + lane / 4 * 4);
            const float all[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (i < left)
                    to[32 * c + i] = all[i];
        }
    }
}

template <int D>
static __device__ __forceinline__ void
attention_low_finish(const struct attention_params &p, const struct granule_item &item,
                     attention_low_state<D> &state) {
    attention_total(state);
#pragma unroll
    for (int r = 0; r < 2; r++)
        for (int step = 4; step < 32; step *= 2)
            state.l[r] += __shfl_xor_sync(WARP_ALL, state.l[r], step);
    if (item.parts > 1)
        attention_low_store_part<D>(p, item, state);
    else
        attention_low_store<D>(p, item, state);
}

/* ---- a step ---- */

/* sum += a b, rows of a side by side. */
template <bool ALL>
static __device__ __forceinline__ void
attention_low_multiply(float (&sum)[4], const struct fragment<float, 4> (&a)[2],
                       const struct fragment<float, 2> (&b)[2]) {
    float part[4] = {};
    attention_products<ALL>(part, a, b);
    sum[0] += part[0];
    sum[1] += part[2];
    sum[2] += part[1];
    sum[3] += part[3];
}

/* s = k q^T */
template <int D>
static __device__ __forceinline__ void
attention_low_scores(float (&s)[1][1][4], uint32_t ring, uint32_t q,
                     const struct attention_params &p, const struct attention_low_rows &rows) {
    q += (uint32_t)(16 * warp_lane_here());
#pragma unroll
    for (int e = 0; e < 4; e++)
        s[0][0][e] = 0;
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        uint4 x[4];
        attention_low_take<D>(x, ring, p, rows, i);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const uint4 &y = x[2 * c], &z = x[2 * c + 1];
            const struct fragment<float, 4> a[2] = {fragment_of({y.x, z.x, y.y, z.y}, 0.0f),
                                                    fragment_of({y.z, z.z, y.w, z.w}, 0.0f)};
            struct fragment<float, 2> b[2];
            attention_low_q<D>(b, q, 2 * i + c);
            attention_low_multiply<true>(s[0][0], a, b);
        }
    }
}

/* One score, in double. */
static __device__ __forceinline__ float attention_low_score(const struct attention_params &p,
                                                            const struct granule_item &item,
                                                            int row, int32_t key) {
    const float *q = reinterpret_cast<float *>(attention_head<float>(p.q, item.batch, item.head)) +
                     (item.row + row) * p.q.stride[2];
    const float *k =
        reinterpret_cast<float *>(attention_head<float>(p.k, item.batch, item.head_kv)) +
        key * p.k.stride[2];
    double sum = 0;
#pragma unroll 1
    for (int d = 0; d < p.d_qk; d++)
        sum += (double)(q[d] * p.q_scale) * k[d];
    return (float)sum;
}

/* Scores of rows that do not list the key become -Inf; others that came out NaN are computed again,
 * as attention_mend_scores does. */
static __device__ __forceinline__ void
attention_low_mend(float (&s)[1][1][4], const struct attention_params &p,
                   const struct granule_item &item, const struct attention_low_step &step) {
    const int lane = warp_lane_here(), t = lane % 4;
    if (attention_low_masked(p, item, step.at)) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t rows = __shfl_sync(WARP_ALL, step.listed, lane / 4 + 8 * h) >> 2 * t;
#pragma unroll
            for (int r = 0; r < 2; r++)
                if (!(rows & 1u << r))
                    s[0][0][2 * r + h] = -INFINITY;
        }
    }
    bool bad = false;
#pragma unroll
    for (int r = 0; r < 2; r++)
        bad |= isnan(s[0][0][2 * r]) | isnan(s[0][0][2 * r + 1]);
    if (!__any_sync(WARP_ALL, bad))
        return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int32_t key = __shfl_sync(WARP_ALL, step.key, lane / 4 + 8 * h);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float &x = s[0][0][2 * r + h];
            if (isnan(x) && 2 * t + r < item.rows)
                x = attention_low_score(p, item, 2 * t + r, key);
        }
    }
    __syncwarp(); /* tensor cores want all lanes together */
}

/* From weights where sums have them to where products want them. */
static __device__ __forceinline__ void attention_low_weights(struct fragment<float, 2> (&b)[2],
                                                             const float (&s)[1][1][4],
                                                             uint32_t weights) {
    const int lane = warp_lane_here(), g = lane / 4, t = lane % 4;
    __syncwarp(); /* all have read those before */
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            shared_store_4(weights + (uint32_t)((2 * t + r) * LOW_WEIGHTS * 4 + g / 2 * 16 +
                                                g % 2 * 4 + 8 * h),
                           __float_as_uint(s[0][0][2 * r + h]));
    __syncwarp();
    const uint4 x = shared_load_16(weights + (uint32_t)(g * LOW_WEIGHTS * 4 + 16 * t));
    b[0] = fragment_of({x.x, x.y}, 0.0f);
    b[1] = fragment_of({x.z, x.w}, 0.0f);
}

/* Dims 4g + 2h and 4g + 2h + 1 of four keys, as an operand. */
static __device__ __forceinline__ void attention_low_v(struct fragment<float, 4> (&a)[2],
                                                       const uint4 (&x)[4], int h) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const uint4 &first = x[2 * n], &second = x[2 * n + 1];
        if (h)
            a[n] = fragment_of({first.z, first.w, second.z, second.w}, 0.0f);
        else
            a[n] = fragment_of({first.x, first.y, second.x, second.y}, 0.0f);
    }
}

/* o += v^T p^T */
template <int D>
static __device__ __forceinline__ void
attention_low_values(attention_low_state<D> &state, uint32_t ring,
                     const struct fragment<float, 2> (&b)[2],
                     const struct attention_params &p, const struct attention_low_rows &rows) {
#pragma unroll
    for (int c = 0; c < D / 32; c++) {
        uint4 x[4];
        attention_low_take<D>(x, ring, p, rows, D / 32 + c);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            struct fragment<float, 4> a[2];
            attention_low_v(a, x, h);
            attention_low_multiply<false>(state.o[0][2 * c + h], a, b);
        }
    }
}

/* ---- the whole ---- */

/* A step is computed while the next one's keys are looked up and its first batches come. */
template <int D>
static __global__ void __launch_bounds__(32, ATTENTION_BLOCKS_LOW(D))
    attention_low(const __grid_constant__ struct attention_params p) {
    using shape = attention_low_shape<D>;
    static_assert(D / 32 % attention_low_ahead<D>() == 0,
                  "all of K is under way when the next keys are known");
    extern __shared__ __align__(128) char memory[];
    const uint32_t shared = shared_address(memory), ring = shared + shape::RING_AT;
    auto *items = reinterpret_cast<struct granule_item *>(memory + shape::ITEMS_AT);
    const int64_t first = p.image.worker_ptr[blockIdx.x];
    const int32_t jobs = (int32_t)(p.image.worker_ptr[blockIdx.x + 1] - first);
    struct attention_low_step now = {0, 0, 0, 0};
    struct attention_low_rows rows;
    attention_low_state<D> state;
    if (!jobs)
        return;
    for (int job = 0; job < min(jobs, 3); job++)
        attention_fetch_job(items[job], p, first + job);
    copy_wait_all();
    __syncwarp();
    attention_low_answer(now, p, items[0], attention_low_ask(p, items[0], now));
    attention_low_find(rows.k, p.k, items[0], now.key);
    attention_low_begin<D>(ring, p, rows);
#pragma unroll 1
    while (now.job < jobs) {
        const struct granule_item &item = items[now.job % ATTENTION_JOBS];
        struct attention_low_step next = attention_low_after(p, now, item.count);
        const bool more = next.job < jobs;
        if (more && next.at == 0) {
            __syncwarp(); /* the item was fetched two items ago */
            if (next.job + 2 < jobs)
                attention_fetch_job(items[(next.job + 2) % ATTENTION_JOBS], p,
                                    first + next.job + 2);
            attention_ask_q<float, D, 32>(p, items[next.job % ATTENTION_JOBS]);
        }
        const struct granule_item &coming = items[(more ? next : now).job % ATTENTION_JOBS];
        struct attention_low_asked asked;
        if (more)
            asked = attention_low_ask(p, coming, next);
        if (now.at == 0) {
            attention_low_load_q<D>(shared, p, item);
            attention_clear(state, shared + shape::FAR_AT);
        }
        attention_low_find(rows.v, p.v, item, now.key);
        float s[1][1][4];
        if (item.count)
            attention_low_scores<D>(s, ring, shared, p, rows);
        if (more)
            attention_low_answer(next, p, coming, asked);
        attention_low_find(rows.k, p.k, coming, next.key);
        if (item.count) {
            struct fragment<float, 2> weights[2];
            attention_low_mend(s, p, item, now);
            attention_softmax<float, D / 2, 16, 1, true>(s, state, p.score_scale);
            attention_low_weights(weights, s, shared + shape::WEIGHTS_AT);
            attention_low_values<D>(state, ring, weights, p, rows);
            attention_count(state, LOW_KEYS);
        } else {
            copy_wait_all();
            attention_low_begin<D>(ring, p, rows);
        }
        if (next.job != now.job)
            attention_low_finish<D>(p, item, state);
        now = next;
    }
    copy_wait_all();
}

template <int D>
static cudaError_t attention_low_launch(const struct attention_params *p, cudaStream_t stream) {
    constexpr int BYTES = attention_low_shape<D>::BYTES;
    cudaError_t code = cudaFuncSetAttribute((const void *)attention_low<D>,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    if (!code)
        code = attention_launch(attention_low<D>, (unsigned)p->workers, 32, BYTES, p, stream);
    return code ? code : attention_merge_launch<float>(p, stream);
}

#endif
