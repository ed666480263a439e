/*
 * Fused attention in tiles of 8, 16 and 32 rows, on tensor cores: of f32, and of 16 bits where heads
 * have more dims than the other such kernels hold. Each of a tile's warps has as many of the head's dims:
 * it fetches them of each key, multiplies them by all rows, and waits for the others only to add up
 * scores and to exchange weights. The sides of products are those of attention_tile.cuh exchanged: 16
 * keys, then 16 dims, meet groups of 8 rows, so nothing of a product is padding, and what is split of
 * f32's K and V is split once for all groups. With g = lane / 4, t = lane % 4 and pieces of 16 bytes,
 * 4 dims of f32 or 8 of 16 bits, a lane has
 *
 *   scores  A: keys g, g + 8 and, of each batch, pieces 2t and 2t + 1 of their rows of K
 *           B: row g of a group and the same dims of Q; of f32 split when the tile began where shared
 *              memory has room, else when they are used
 *   values  A: of each batch piece g of rows of V, for keys 2t, 2t + 1, 2t + 8 and 2t + 9
 *           B: the weights of row g and these keys
 *   sums    rows 2t, 2t + 1 of each group: of keys g, g + 8 and of the dims of pieces g
 *
 * Shared memory, [warp][group] where a warp or group has its own:
 *   | Q [warp][group][half batches][32 lanes][4 words, or 8 split] | weights [group][8][20] |
 *   | scores of a warp's dims [warp][group][32 lanes][4] | sums put by | batches [warp] | items |
 */
#ifndef TESSERA_CUDA_ATTENTION_LOW_CUH
#define TESSERA_CUDA_ATTENTION_LOW_CUH

#include "forward/sm80_small_m/rows.cuh"

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

/* What half a batch adds to scores: of 16 bits to sum; of f32 what is of parts of which one or both
 * are low, times FRAGMENT_LOW. Tensor cores may keep this sum over all dims: what they truncate of it
 * is little beside what high parts err, which are added to s. */
template <class T>
static __device__ __forceinline__ void
attention_low_products(float (&)[4], float (&sum)[4], const struct fragment<T, 4> (&a)[2],
                       const struct fragment<T, 2> (&b)[2]) {
#pragma unroll
    for (int n = 0; n < 2; n++)
        mma_add(sum, a[n].word, b[n].word, T());
}
static __device__ __forceinline__ void
attention_low_products(float (&s)[4], float (&low)[4], const struct fragment<float, 4> (&a)[2],
                       const struct fragment<float, 2> (&b)[2]) {
    float high[4] = {};
#pragma unroll
    for (int n = 0; n < 2; n++) {
        fragment_mma_tf32(low, a[n].high, b[n].low);
        fragment_mma_tf32(low, a[n].low, b[n].high);
        fragment_mma_tf32(low, a[n].low, b[n].rest);
    }
#pragma unroll
    for (int n = 0; n < 2; n++)
        fragment_mma_tf32(high, a[n].high, b[n].high);
    attention_low_add(s, high);
}

/* s += what was summed apart */
template <int SUMS, class T>
static __device__ __forceinline__ void attention_low_add_sums(float (&s)[4],
                                                              float (&sum)[SUMS][4], T) {
    constexpr float UNIT = sizeof(T) == 4 ? 1 / FRAGMENT_LOW : 1;
#pragma unroll
    for (int e = 0; e < 4; e++)
        sum[0][e] *= UNIT;
    if (SUMS > 1)
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[0][e] = fmaf(sum[SUMS - 1][e], UNIT, sum[0][e]);
    attention_low_add(s, sum[0]);
}

/* s = k q^T, of this warp's dims */
template <class T, int D, int GROUPS, int WARPS>
static __device__ __forceinline__ void
attention_low_scores(float (&s)[GROUPS][1][4], uint32_t ring, uint32_t q,
                     const struct attention_params &p, const struct attention_low_rows &rows) {
    using shape = attention_low_shape<T, D, GROUPS, WARPS>;
    constexpr int SUMS = GROUPS > 2 ? 1 : 2; /* that do not wait for one another */
    float sum[GROUPS][SUMS][4] = {};
    q += (uint32_t)(16 * warp_lane_here());
#pragma unroll
    for (int n = 0; n < GROUPS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][0][e] = 0;
#pragma unroll
    for (int i = 0; i < shape::BATCHES; i++) {
        uint4 x[4];
        attention_low_take<T, D, WARPS>(x, ring, p, rows, i);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const uint4 &y = x[2 * c], &z = x[2 * c + 1];
            const struct fragment<T, 4> a[2] = {fragment_of({y.x, z.x, y.y, z.y}, T()),
                                                fragment_of({y.z, z.z, y.w, z.w}, T())};
#pragma unroll
            for (int n = 0; n < GROUPS; n++) {
                struct fragment<T, 2> b[2];
                attention_low_q<shape::SPLIT>(
                    b, q + (uint32_t)(n * shape::Q_GROUP + (2 * i + c) * shape::Q_PIECE));
                attention_low_products(s[n][0], sum[n][c % SUMS], a, b);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < GROUPS; n++)
        attention_low_add_sums(s[n][0], sum[n], T());
}

/* Scores of all dims, the same in all warps: parts are added in the order of the dims. Where all
 * warps reading all parts would keep shared memory busy, each thread adds up some scores for all. */
template <int GROUPS, int WARPS>
static __device__ __forceinline__ void attention_low_add_parts(float (&s)[GROUPS][1][4],
                                                               uint32_t parts) {
    constexpr uint32_t WARP = GROUPS * 512; /* bytes */
    constexpr bool DEALT = WARPS * GROUPS > 8;
    const uint32_t at = parts + (uint32_t)(16 * warp_lane_here());
#pragma unroll
    for (int n = 0; n < GROUPS; n++)
        shared_store_16(at + threadIdx.x / 32 * WARP + (uint32_t)(512 * n),
                        {__float_as_uint(s[n][0][0]), __float_as_uint(s[n][0][1]),
                         __float_as_uint(s[n][0][2]), __float_as_uint(s[n][0][3])});
    attention_low_meet<WARPS>();
    if (DEALT) {
#pragma unroll
        for (uint32_t i = 0; i < WARP; i += 128 * WARPS) {
            const uint32_t one = i + 4 * threadIdx.x;
            if (WARP % (128 * WARPS) == 0 || one < WARP) {
                float sum = __uint_as_float(shared_load_4(parts + one));
#pragma unroll
                for (int w = 1; w < WARPS; w++)
                    sum += __uint_as_float(shared_load_4(parts + one + w * WARP));
                shared_store_4(parts + one, __float_as_uint(sum));
            }
        }
        attention_low_meet<WARPS>();
    }
#pragma unroll
    for (int n = 0; n < GROUPS; n++) {
#pragma unroll
        for (int w = 0; w < (DEALT ? 1 : WARPS); w++) {
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

/* Scores of rows that do not list the key become -Inf. */
template <int GROUPS>
static __device__ __forceinline__ void
attention_low_mask(float (&s)[GROUPS][1][4], const struct attention_params &p,
                   const struct granule_item &item, const struct attention_low_step &step) {
    const int lane = warp_lane_here(), row = lane % 4 * 2;
    if (!attention_low_masked(p, item, step.at))
        return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t rows = __shfl_sync(WARP_ALL, step.listed, lane / 4 + 8 * h) >> row;
#pragma unroll
        for (int r = 0; r < 2 * GROUPS; r++)
            if (!(rows & 1u << (r / 2 * LOW_ROWS + r % 2)))
                s[r / 2][0][r % 2 * 2 + h] = -INFINITY;
    }
}

/* Those of f32 that came out NaN are computed again, as attention_mend_scores does. */
template <int GROUPS, class T>
static __device__ __forceinline__ void
attention_low_mend(float (&)[GROUPS][1][4], const struct attention_params &,
                   const struct granule_item &, const struct attention_low_step &, T) {
}
template <int GROUPS>
static __device__ __forceinline__ void
attention_low_mend(float (&s)[GROUPS][1][4], const struct attention_params &p,
                   const struct granule_item &item, const struct attention_low_step &step, float) {
    const int lane = warp_lane_here(), row = lane % 4 * 2;
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

/* A lane's weights of a group, as an operand; of f16 those that are too small for it apart, raised
 * (attention_tile.cuh). */
template <class T> struct attention_low_operand {
    struct fragment<T, 2> b, small;
};
template <> struct attention_low_operand<float> {
    struct fragment<float, 2> b[2];
};

template <class T>
static __device__ __forceinline__ void attention_low_pack(struct attention_low_operand<T> &to,
                                                          const float (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float a = x[2 * i], b = x[2 * i + 1];
        const bool a_small = attention_has_small(T()) && a < ATTENTION_SMALL;
        const bool b_small = attention_has_small(T()) && b < ATTENTION_SMALL;
        to.b.word[i] = mma_pack(a_small ? 0 : a, b_small ? 0 : b, T());
        to.small.word[i] = mma_pack(a_small ? a * ATTENTION_SMALL_RAISE : 0,
                                    b_small ? b * ATTENTION_SMALL_RAISE : 0, T());
    }
}
static __device__ __forceinline__ void
attention_low_pack(struct attention_low_operand<float> &to, const float (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 2; i++)
        to.b[i] = fragment_of({__float_as_uint(x[2 * i]), __float_as_uint(x[2 * i + 1])}, 0.0f);
}

/* From weights where sums have them to where products want them; each warp those of one group, for
 * all. */
template <class T, int GROUPS, int WARPS>
static __device__ __forceinline__ void
attention_low_weights(struct attention_low_operand<T> (&to)[GROUPS],
                      const float (&s)[GROUPS][1][4], uint32_t weights) {
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
        attention_low_pack(to[n], {__uint_as_float(x.x), __uint_as_float(x.y),
                                   __uint_as_float(x.z), __uint_as_float(x.w)});
    }
}

/* Dims 2w and 2w + 1 of this lane's pieces, of four keys, as an operand. */
static __device__ __forceinline__ void attention_low_v(struct fragment<float, 4> (&a)[2],
                                                       const uint4 (&x)[4], int w) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const uint4 &first = x[2 * n], &second = x[2 * n + 1];
        if (w)
            a[n] = fragment_of({first.z, first.w, second.z, second.w}, 0.0f);
        else
            a[n] = fragment_of({first.x, first.y, second.x, second.y}, 0.0f);
    }
}
template <class T>
static __device__ __forceinline__ void attention_low_v(struct fragment<T, 4> (&a)[1],
                                                       const uint4 (&x)[4], int w) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const uint4 &first = x[2 * n], &second = x[2 * n + 1];
        const uint32_t y = w < 2 ? w ? first.y : first.x : w == 2 ? first.z : first.w;
        const uint32_t z = w < 2 ? w ? second.y : second.x : w == 2 ? second.z : second.w;
        /* Volatile as products are: each just before its own, or registers run short. */
        asm volatile("prmt.b32 %0, %1, %2, 0x5410;" : "=r"(a[0].word[2 * n]) : "r"(y), "r"(z));
        asm volatile("prmt.b32 %0, %1, %2, 0x7632;" : "=r"(a[0].word[2 * n + 1]) : "r"(y), "r"(z));
    }
}

/* o += a times the weights. */
static __device__ __forceinline__ void
attention_low_multiply(float (&o)[4], const struct fragment<float, 4> (&a)[2],
                       const struct attention_low_operand<float> &weights, bool) {
    float part[4] = {};
    attention_products<false>(part, a, weights.b);
    attention_low_add(o, part);
}
template <class T>
static __device__ __forceinline__ void
attention_low_multiply(float (&o)[4], const struct fragment<T, 4> (&a)[1],
                       const struct attention_low_operand<T> &weights, bool small) {
    float sum[4] = {o[0], o[2], o[1], o[3]};
    if (attention_has_small(T()) && small) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[e] *= ATTENTION_SMALL_RAISE;
        mma_add(sum, a[0].word, weights.small.word, T());
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[e] *= 1 / ATTENTION_SMALL_RAISE;
    }
    mma_add(sum, a[0].word, weights.b.word, T());
#pragma unroll
    for (int e = 0; e < 4; e++)
        o[e] = sum[e % 2 * 2 + e / 2];
}

/* o += v^T p^T */
template <class T, int D, int GROUPS, int WARPS>
static __device__ __forceinline__ void
attention_low_values(attention_low_state<T, D / WARPS, GROUPS> &state, uint32_t ring,
                     const struct attention_low_operand<T> (&weights)[GROUPS], bool small,
                     const struct attention_params &p, const struct attention_low_rows &rows) {
    constexpr int BATCHES = attention_low_batches<T, D, WARPS>(), PAIRS = 8 / (int)sizeof(T);
#pragma unroll
    for (int c = 0; c < BATCHES; c++) {
        uint4 x[4];
        attention_low_take<T, D, WARPS>(x, ring, p, rows, BATCHES + c);
#pragma unroll
        for (int w = 0; w < PAIRS; w++) {
            struct fragment<T, 4> a[sizeof(T) / 2];
            attention_low_v(a, x, w);
#pragma unroll
            for (int n = 0; n < GROUPS; n++)
                attention_low_multiply(state.o[n][PAIRS * c + w], a, weights[n], small);
        }
    }
}

/* ---- the whole ---- */

/* A step is computed while the next one's keys are looked up and its first batches come. */
template <class T, int D, int GROUPS, int WARPS, int BLOCKS>
static __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    attention_low(const __grid_constant__ struct attention_params p) {
    using shape = attention_low_shape<T, D, GROUPS, WARPS>;
    static_assert(shape::DIMS * sizeof(T) % 128 == 0, "a warp's dims are whole batches");
    static_assert(shape::BATCHES % attention_low_ahead<T, D, WARPS>() == 0,
                  "all of K is under way when the next keys are known");
    static_assert(ATTENTION_GRANULE_LOW <= LOW_KEYS, "a step is whole granules");
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
    attention_low_state<T, shape::DIMS, GROUPS> state;
    if (!jobs)
        return;
    for (int job = 0; job < min(jobs, 3); job++)
        attention_fetch_job(items[job], p, first + job);
    copy_wait_all();
    attention_low_meet<WARPS>();
    attention_low_answer(now, p, items[0], attention_low_ask(p, items[0], now));
    attention_low_find<T>(rows.k, p.k, items[0], now.key, dim);
    attention_low_begin<T, D, WARPS>(ring, p, rows);
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
            attention_ask_q<T, D, 32 * WARPS>(p, items[next.job % ATTENTION_JOBS]);
        }
        const struct granule_item &coming = items[(more ? next : now).job % ATTENTION_JOBS];
        struct attention_low_asked asked;
        if (more)
            asked = attention_low_ask(p, coming, next);
        if (now.at == 0) {
            attention_low_load_q<T, D, GROUPS, WARPS>(q, p, item);
            attention_clear(state, shared + shape::FAR_AT);
        }
        attention_low_find<T>(rows.v, p.v, item, now.key, dim);
        float s[GROUPS][1][4];
        if (item.count)
            attention_low_scores<T, D, GROUPS, WARPS>(s, ring, q, p, rows);
        if (more)
            attention_low_answer(next, p, coming, asked);
        attention_low_find<T>(rows.k, p.k, coming, next.key, dim);
        if (item.count) {
            struct attention_low_operand<T> weights[GROUPS];
            if (WARPS > 1)
                attention_low_add_parts<GROUPS, WARPS>(s, shared + shape::PARTS_AT);
            attention_low_mask<GROUPS>(s, p, item, now);
            attention_low_mend<GROUPS>(s, p, item, now, T());
            const bool small = attention_softmax<T, shape::DIMS / 2, 16 * GROUPS, 1, true>(
                s, state, p.score_scale);
            attention_low_weights<T, GROUPS, WARPS>(weights, s, shared + shape::WEIGHTS_AT);
            attention_low_values<T, D, GROUPS, WARPS>(state, ring, weights, small, p, rows);
            attention_count(state, LOW_KEYS);
        } else {
            copy_wait_all();
            attention_low_begin<T, D, WARPS>(ring, p, rows);
        }
        if (next.job != now.job)
            attention_low_finish<T, D, GROUPS, WARPS>(p, item, state);
        now = next;
    }
    copy_wait_all();
}

/* Warps and blocks of a tile of so many groups (host/forward.h). */
template <class T, int D, int GROUPS>
static __host__ __device__ __forceinline__ constexpr int attention_low_warps(void) {
    return sizeof(T) == 4 ? ATTENTION_WARPS_LOW(D, LOW_ROWS * GROUPS) : ATTENTION_WARPS_LOW_16BIT(D);
}
template <class T, int D, int GROUPS>
static __host__ __device__ __forceinline__ constexpr int attention_low_blocks(void) {
    return sizeof(T) == 4 ? ATTENTION_BLOCKS_LOW(D, LOW_ROWS * GROUPS)
                          : ATTENTION_BLOCKS_LOW_16BIT(D, LOW_ROWS * GROUPS);
}

template <class T, int D, int GROUPS>
static cudaError_t attention_low_launch_rows(const struct attention_params *p,
                                             cudaStream_t stream) {
    constexpr int WARPS = attention_low_warps<T, D, GROUPS>();
    constexpr int BYTES = attention_low_shape<T, D, GROUPS, WARPS>::BYTES;
    void (*kernel)(const struct attention_params) =
        attention_low<T, D, GROUPS, WARPS, attention_low_blocks<T, D, GROUPS>()>;
    cudaError_t code = cudaFuncSetAttribute((const void *)kernel,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    if (!code)
        code = attention_launch(kernel, (unsigned)p->workers, 32 * WARPS, BYTES, p, stream);
    return code ? code : attention_merge_launch<T>(p, stream);
}

/* The heights of the table (instances.def). */
template <class T, int D>
static cudaError_t attention_low_launch(const struct attention_params *p, cudaStream_t stream) {
    constexpr int HIGHEST = attention_low_groups<T, D>(32), SECOND = attention_low_groups<T, D>(16);
    if (p->tile_rows > LOW_ROWS * HIGHEST)
        return cudaErrorInvalidValue;
    return p->tile_rows > 16  ? attention_low_launch_rows<T, D, HIGHEST>(p, stream)
           : p->tile_rows > 8 ? attention_low_launch_rows<T, D, SECOND>(p, stream)
                              : attention_low_launch_rows<T, D, 1>(p, stream);
}

template <class T, int D, int GROUPS> static int64_t attention_low_bytes(void) {
    return attention_low_shape<T, D, GROUPS, attention_low_warps<T, D, GROUPS>()>::BYTES;
}

template <class T, int D> static int64_t attention_low_shared(int32_t rows) {
    constexpr int HIGHEST = attention_low_groups<T, D>(32), SECOND = attention_low_groups<T, D>(16);
    return rows > 16  ? attention_low_bytes<T, D, HIGHEST>()
           : rows > 8 ? attention_low_bytes<T, D, SECOND>()
                      : attention_low_bytes<T, D, 1>();
}

#endif
