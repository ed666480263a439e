/*
 * Fused attention for f32 in tiles of 8, 16 and 32 rows, on tensor cores. Each of a tile's warps has
 * as many of the head's dims: it fetches them of each key, multiplies them by all rows, and waits
 * for the others only to add up scores and to exchange weights. The sides of products are those of
 * attention_tile_f32.cuh exchanged: 16 keys, then 16 dims, meet groups of 8 rows, so nothing of a
 * product is padding, and what is split of K and V is split once for all groups. With g = lane / 4 and
 * t = lane % 4 a lane has
 *
 *   scores  A: keys g, g + 8 and, of each 32 dims, 8t ... 8t + 7: two pieces of a row of K
 *           B: row g of a group and the same dims of Q, split when the tile began, or, where few warps
 *              would fit shared memory so, when they are used
 *   values  A: of each 32 dims 4g ... 4g + 3, a piece of a row of V, for keys 2t, 2t + 1, 2t + 8
 *              and 2t + 9
 *           B: the weights of row g and these keys
 *   sums    rows 2t, 2t + 1 of each group: of keys g, g + 8 and of dims 4g ... 4g + 3
 *
 * Shared memory, [warp][group] where a warp or group has its own:
 *   | Q [warp][group][dims / 16][32 lanes][4, or 8 split] | weights [group][8][20] |
 *   | scores of a warp's dims [warp][group][32 lanes][4] | sums put by | batches [warp] | items |
 */
#ifndef TESSERA_CUDA_ATTENTION_LOW_CUH
#define TESSERA_CUDA_ATTENTION_LOW_CUH

#include "attention_low_rows.cuh"

/* ---- a step ---- */

/* All of a tile's warps. */
template <int WARPS> static __device__ __forceinline__ void attention_low_meet(void) {
    if (WARPS == 1)
        __syncwarp();
    else
        __syncthreads();
}

/* sum += part, a product's rows side by side. */
static __device__ __forceinline__ void attention_low_add(float (&sum)[4], const float (&part)[4]) {
    sum[0] += part[0];
    sum[1] += part[2];
    sum[2] += part[1];
    sum[3] += part[3];
}

/* low += a b over 16 columns, of parts of which one or both are low, times FRAGMENT_LOW. Tensor cores
 * may keep this sum over all dims: what they truncate of it is little beside what high parts err. */
static __device__ __forceinline__ void
attention_low_products(float (&low)[4], const struct fragment<float, 4> (&a)[2],
                       const struct fragment<float, 2> (&b)[2]) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
        fragment_mma_tf32(low, a[n].high, b[n].low);
        fragment_mma_tf32(low, a[n].low, b[n].high);
        fragment_mma_tf32(low, a[n].low, b[n].rest);
    }
}

/* s = k q^T, of this warp's dims */
template <int D, int GROUPS, int WARPS>
static __device__ __forceinline__ void
attention_low_scores(float (&s)[GROUPS][1][4], uint32_t ring, uint32_t q,
                     const struct attention_params &p, const struct attention_low_rows &rows) {
    using shape = attention_low_shape<D, GROUPS, WARPS>;
    constexpr int LOWS = GROUPS > 2 ? 1 : 2; /* sums that do not wait for one another */
    float low[GROUPS][LOWS][4] = {};
    q += (uint32_t)(16 * warp_lane_here());
#pragma unroll
    for (int n = 0; n < GROUPS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][0][e] = 0;
#pragma unroll
    for (int i = 0; i < shape::DIMS / 32; i++) {
        uint4 x[4];
        attention_low_take<D, WARPS>(x, ring, p, rows, i);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const uint4 &y = x[2 * c], &z = x[2 * c + 1];
            const struct fragment<float, 4> a[2] = {fragment_of({y.x, z.x, y.y, z.y}, 0.0f),
                                                    fragment_of({y.z, z.z, y.w, z.w}, 0.0f)};
#pragma unroll
            for (int n = 0; n < GROUPS; n++) {
                struct fragment<float, 2> b[2];
                float high[4] = {};
                attention_low_q<shape::SPLIT>(
                    b, q + (uint32_t)(n * shape::Q_GROUP + (2 * i + c) * shape::Q_PIECE));
                attention_low_products(low[n][c % LOWS], a, b);
#pragma unroll
                for (int m = 0; m < 2; m++)
                    fragment_mma_tf32(high, a[m].high, b[m].high);
                attention_low_add(s[n][0], high);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < GROUPS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            low[n][0][e] *= 1 / FRAGMENT_LOW;
        if (LOWS > 1)
#pragma unroll
            for (int e = 0; e < 4; e++)
                low[n][0][e] = fmaf(low[n][LOWS - 1][e], 1 / FRAGMENT_LOW, low[n][0][e]);
        attention_low_add(s[n][0], low[n][0]);
    }
}

/* Scores of all dims, the same in all warps: parts are added in the order of the dims. */
template <int GROUPS, int WARPS>
static __device__ __forceinline__ void attention_low_add_parts(float (&s)[GROUPS][1][4],
                                                               uint32_t parts) {
    constexpr uint32_t WARP = GROUPS * 512; /* bytes */
    const uint32_t at = parts + (uint32_t)(16 * warp_lane_here());
#pragma unroll
    for (int n = 0; n < GROUPS; n++)
        shared_store_16(at + threadIdx.x / 32 * WARP + (uint32_t)(512 * n),
                        {__float_as_uint(s[n][0][0]), __float_as_uint(s[n][0][1]),
                         __float_as_uint(s[n][0][2]), __float_as_uint(s[n][0][3])});
    attention_low_meet<WARPS>();
#pragma unroll
    for (int n = 0; n < GROUPS; n++) {
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const uint4 x = shared_load_16(at + w * WARP + (uint32_t)(512 * n));
            const uint32_t part[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[n][0][e] = __uint_as_float(part[e]) + (w ? s[n][0][e] : 0);
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
template <int GROUPS>
static __device__ __forceinline__ void
attention_low_mend(float (&s)[GROUPS][1][4], const struct attention_params &p,
                   const struct granule_item &item, const struct attention_low_step &step) {
    const int lane = warp_lane_here(), row = lane % 4 * 2;
    if (attention_low_masked(p, item, step.at)) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t rows = __shfl_sync(WARP_ALL, step.listed, lane / 4 + 8 * h) >> row;
#pragma unroll
            for (int r = 0; r < 2 * GROUPS; r++)
                if (!(rows & 1u << (r / 2 * LOW_ROWS + r % 2)))
                    s[r / 2][0][r % 2 * 2 + h] = -INFINITY;
        }
    }
    bool bad = false;
#pragma unroll
    for (int r = 0; r < 2 * GROUPS; r++)
        bad |= isnan(s[r / 2][0][r % 2 * 2]) | isnan(s[r / 2][0][r % 2 * 2 + 1]);
    if (!__any_sync(WARP_ALL, bad))
        return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int32_t key = __shfl_sync(WARP_ALL, step.key, lane / 4 + 8 * h);
#pragma unroll
        for (int r = 0; r < 2 * GROUPS; r++) {
            const int of = row + r / 2 * LOW_ROWS + r % 2;
            float &x = s[r / 2][0][r % 2 * 2 + h];
            if (isnan(x) && of < item.rows)
                x = attention_low_score(p, item, of, key);
        }
    }
    __syncwarp(); /* tensor cores want all lanes together */
}

/* From weights where sums have them to where products want them; each warp those of one group, for
 * all. */
template <int GROUPS, int WARPS>
static __device__ __forceinline__ void
attention_low_weights(struct fragment<float, 2> (&b)[GROUPS][2], const float (&s)[GROUPS][1][4],
                      uint32_t weights) {
    constexpr uint32_t GROUP = LOW_ROWS * LOW_WEIGHTS * 4;
    const int lane = warp_lane_here(), g = lane / 4, t = lane % 4;
    const uint32_t warp = WARPS == 1 ? 0 : threadIdx.x / 32;
    if (WARPS == 1)
        __syncwarp(); /* all have read those before; several warps had when they added scores */
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float x = s[0][0][2 * r + h];
#pragma unroll
            for (int n = 1; n < GROUPS; n++)
                x = warp == n ? s[n][0][2 * r + h] : x;
            if (WARPS == GROUPS || warp < GROUPS)
                shared_store_4(weights + warp * GROUP +
                                   (uint32_t)((2 * t + r) * LOW_WEIGHTS * 4 + g / 2 * 16 +
                                              g % 2 * 4 + 8 * h),
                               __float_as_uint(x));
        }
    attention_low_meet<WARPS>();
#pragma unroll
    for (int n = 0; n < GROUPS; n++) {
        const uint4 x = shared_load_16(weights + n * GROUP +
                                       (uint32_t)(g * LOW_WEIGHTS * 4 + 16 * t));
        b[n][0] = fragment_of({x.x, x.y}, 0.0f);
        b[n][1] = fragment_of({x.z, x.w}, 0.0f);
    }
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
template <int D, int GROUPS, int WARPS>
static __device__ __forceinline__ void
attention_low_values(attention_low_state<D / WARPS, GROUPS> &state, uint32_t ring,
                     const struct fragment<float, 2> (&b)[GROUPS][2],
                     const struct attention_params &p, const struct attention_low_rows &rows) {
    constexpr int BATCHES = D / WARPS / 32;
#pragma unroll
    for (int c = 0; c < BATCHES; c++) {
        uint4 x[4];
        attention_low_take<D, WARPS>(x, ring, p, rows, BATCHES + c);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            struct fragment<float, 4> a[2];
            attention_low_v(a, x, h);
#pragma unroll
            for (int n = 0; n < GROUPS; n++) {
                float part[4] = {};
                attention_products<false>(part, a, b[n]);
                attention_low_add(state.o[n][2 * c + h], part);
            }
        }
    }
}

/* ---- the whole ---- */

/* A step is computed while the next one's keys are looked up and its first batches come. */
template <int D, int GROUPS, int WARPS>
static __global__ void __launch_bounds__(32 * WARPS, ATTENTION_BLOCKS_LOW(D, LOW_ROWS * GROUPS))
    attention_low(const __grid_constant__ struct attention_params p) {
    using shape = attention_low_shape<D, GROUPS, WARPS>;
    static_assert(shape::DIMS % 32 == 0, "a warp's dims are whole batches");
    static_assert(shape::DIMS / 32 % attention_low_ahead<D, WARPS>() == 0,
                  "all of K is under way when the next keys are known");
    static_assert(WARPS >= GROUPS, "each group has a warp that stores its weights");
    extern __shared__ __align__(128) char memory[];
    const uint32_t shared = shared_address(memory), warp = WARPS == 1 ? 0 : threadIdx.x / 32;
    const uint32_t q = shared + warp * (GROUPS * shape::Q_GROUP);
    const uint32_t ring = shared + shape::RING_AT + warp * shape::RING_WARP;
    const int dim = attention_low_dim<D, WARPS>();
    auto *items = reinterpret_cast<struct granule_item *>(memory + shape::ITEMS_AT);
    const int64_t first = p.image.worker_ptr[blockIdx.x];
    const int32_t jobs = (int32_t)(p.image.worker_ptr[blockIdx.x + 1] - first);
    struct attention_low_step now = {0, 0, 0, 0};
    struct attention_low_rows rows;
    attention_low_state<shape::DIMS, GROUPS> state;
    if (!jobs)
        return;
    for (int job = 0; job < min(jobs, 3); job++)
        attention_fetch_job(items[job], p, first + job);
    copy_wait_all();
    attention_low_meet<WARPS>();
    attention_low_answer(now, p, items[0], attention_low_ask(p, items[0], now));
    attention_low_find(rows.k, p.k, items[0], now.key, dim);
    attention_low_begin<D, WARPS>(ring, p, rows);
#pragma unroll 1
    while (now.job < jobs) {
        const struct granule_item &item = items[now.job % ATTENTION_JOBS];
        struct attention_low_step next = attention_low_after(p, now, item.count);
        const bool more = next.job < jobs;
        if (more && next.at == 0) {
            /* All see the item, which was fetched two items ago, and are through with the one whose
             * place the next takes. */
            attention_low_meet<WARPS>();
            if (next.job + 2 < jobs)
                attention_fetch_job(items[(next.job + 2) % ATTENTION_JOBS], p,
                                    first + next.job + 2);
            attention_ask_q<float, D, 32 * WARPS>(p, items[next.job % ATTENTION_JOBS]);
        }
        const struct granule_item &coming = items[(more ? next : now).job % ATTENTION_JOBS];
        struct attention_low_asked asked;
        if (more)
            asked = attention_low_ask(p, coming, next);
        if (now.at == 0) {
            attention_low_load_q<D, GROUPS, WARPS>(q, p, item);
            attention_clear(state, shared + shape::FAR_AT);
        }
        attention_low_find(rows.v, p.v, item, now.key, dim);
        float s[GROUPS][1][4];
        if (item.count)
            attention_low_scores<D, GROUPS, WARPS>(s, ring, q, p, rows);
        if (more)
            attention_low_answer(next, p, coming, asked);
        attention_low_find(rows.k, p.k, coming, next.key, dim);
        if (item.count) {
            struct fragment<float, 2> weights[GROUPS][2];
            if (WARPS > 1)
                attention_low_add_parts<GROUPS, WARPS>(s, shared + shape::PARTS_AT);
            attention_low_mend<GROUPS>(s, p, item, now);
            attention_softmax<float, shape::DIMS / 2, 16 * GROUPS, 1, true>(s, state,
                                                                           p.score_scale);
            attention_low_weights<GROUPS, WARPS>(weights, s, shared + shape::WEIGHTS_AT);
            attention_low_values<D, GROUPS, WARPS>(state, ring, weights, p, rows);
            attention_count(state, LOW_KEYS);
        } else {
            copy_wait_all();
            attention_low_begin<D, WARPS>(ring, p, rows);
        }
        if (next.job != now.job)
            attention_low_finish<D, GROUPS, WARPS>(p, item, state);
        now = next;
    }
    copy_wait_all();
}

template <int D, int GROUPS>
static cudaError_t attention_low_launch_rows(const struct attention_params *p,
                                             cudaStream_t stream) {
    constexpr int WARPS = ATTENTION_WARPS_LOW(D, LOW_ROWS * GROUPS);
    constexpr int BYTES = attention_low_shape<D, GROUPS, WARPS>::BYTES;
    cudaError_t code = cudaFuncSetAttribute((const void *)attention_low<D, GROUPS, WARPS>,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    if (!code)
        code = attention_launch(attention_low<D, GROUPS, WARPS>, (unsigned)p->workers, 32 * WARPS,
                                BYTES, p, stream);
    return code ? code : attention_merge_launch<float>(p, stream);
}

/* The table's heights, low_rows_D in kernels_cuda.c. */
template <int D>
static cudaError_t attention_low_launch(const struct attention_params *p, cudaStream_t stream) {
    constexpr int HIGHEST = attention_low_groups<D>(32), SECOND = attention_low_groups<D>(16);
    return p->tile_rows > 16  ? attention_low_launch_rows<D, HIGHEST>(p, stream)
           : p->tile_rows > 8 ? attention_low_launch_rows<D, SECOND>(p, stream)
                              : attention_low_launch_rows<D, 1>(p, stream);
}

template <int D, int GROUPS> static int64_t attention_low_bytes(void) {
    return attention_low_shape<D, GROUPS, ATTENTION_WARPS_LOW(D, LOW_ROWS * GROUPS)>::BYTES;
}

template <int D> static int64_t attention_low_shared(int32_t rows) {
    constexpr int HIGHEST = attention_low_groups<D>(32), SECOND = attention_low_groups<D>(16);
    return rows > 16  ? attention_low_bytes<D, HIGHEST>()
           : rows > 8 ? attention_low_bytes<D, SECOND>()
                      : attention_low_bytes<D, 1>();
}

#endif
