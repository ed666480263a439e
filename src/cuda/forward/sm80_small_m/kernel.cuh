/*
 * Fused attention in tiles of M = 8, 16 or 32 rows with mma.sync: f32, and 16-bit heads of more dims than
 * forward/sm80 holds. The head dim is split over the warps of a thread block:
 *
 *              warp 0           warp 1           ...     D / WARPS dims each
 *   S partial  K[0] Q[0]^T      K[1] Q[1]^T              summed over warps in shared memory
 *   softmax    the same P [M, 16] in all warps           warp n gives P of row group n to all
 *   O part     V[0]^T P^T       V[1]^T P^T               each warp has its own dims of O
 *
 * Each warp fetches its dims of K and V itself; warps wait for each other only for S and P. A and B
 * are exchanged against device/tile.cuh. The rows of an MMA are 16 keys (S) or 16 dims (O), its
 * columns 8 query rows. No part of an MMA is padding, and K and V of f32 are split once for all
 * groups. A piece is 16 bytes: 4 dims of f32 or 8 of 16 bits. With g = lane / 4, t = lane % 4 a
 * lane has
 *
 *   S   A: keys g, g + 8; of each batch, pieces 2t, 2t + 1 of their rows of K
 *       B: row g of a group, the same dims of Q; f32 is split ahead where shared memory has room
 *   O   A: of each batch, piece g of V for keys 2t, 2t + 1, 2t + 8, 2t + 9
 *       B: P of row g and these keys
 *   C      rows 2t, 2t + 1 of each group; keys g, g + 8 of S, dims of pieces g of O
 *
 * Shared memory, [warp][group] where a warp or group has its own:
 *   | Q [warp][group][half batches][32 lanes][4 words, or 8 split] | P [group][8][20] |
 *   | partial S [warp][group][32 lanes][4] | flushed sums | batches [warp] | items |
 */
#ifndef TESSERA_CUDA_SMALL_M_KERNEL_CUH
#define TESSERA_CUDA_SMALL_M_KERNEL_CUH

#include "device/launch.cuh"
#include "forward/sm80_small_m/modify.cuh"

/* ---- a step ---- */

/* Barrier of a tile's warps. */
template <int WARPS> DEVICE void small_m_sync(void) {
    if (WARPS == 1)
        __syncwarp();
    else
        __syncthreads();
}

/* sum += part. part has an MMA's order; sum has a query row's two keys (or dims) side by side. */
DEVICE void small_m_add(float (&sum)[4], const float (&part)[4]) {
    sum[0] += part[0];
    sum[1] += part[2];
    sum[2] += part[1];
    sum[3] += part[3];
}

/* MMAs of half a batch for S. 16-bit types add to `sum`. f32 adds terms with a low part, times
 * FRAGMENT_LOW, to `low` over all dims: what tensor cores truncate there is little. High terms go
 * to s. */
template <class T>
DEVICE void small_m_split_mma(float (&)[4], float (&sum)[4], const struct fragment<T, 4> (&a)[2],
                              const struct fragment<T, 2> (&b)[2]) {
#pragma unroll
    for (int n = 0; n < 2; n++)
        mma_sync(sum, a[n].word, b[n].word, T());
}
DEVICE void small_m_split_mma(float (&s)[4], float (&low)[4],
                              const struct fragment<float, 4> (&a)[2],
                              const struct fragment<float, 2> (&b)[2]) {
    float high[4] = {};
#pragma unroll
    for (int n = 0; n < 2; n++) {
        fragment_mma_tf32(low, a[n].high, b[n].low);
        fragment_mma_tf32(low, a[n].low, b[n].high);
        fragment_mma_tf32(low, a[n].low, b[n].residual);
    }
#pragma unroll
    for (int n = 0; n < 2; n++)
        fragment_mma_tf32(high, a[n].high, b[n].high);
    small_m_add(s, high);
}

/* s += the accumulators kept apart, of which f32's are times FRAGMENT_LOW. */
template <int SUMS, class T> DEVICE void small_m_add_sums(float (&s)[4], float (&sum)[SUMS][4], T) {
    constexpr float UNIT = sizeof(T) == 4 ? 1 / FRAGMENT_LOW : 1;
#pragma unroll
    for (int e = 0; e < 4; e++)
        sum[0][e] *= UNIT;
    if (SUMS > 1)
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[0][e] = fmaf(sum[SUMS - 1][e], UNIT, sum[0][e]);
    small_m_add(s, sum[0]);
}

/* Partial S^T [16, 8] of each group = K [16, DIMS] Q [8, DIMS]^T, over this warp's dims. */
template <class T, int D, int GROUPS, int WARPS>
DEVICE void small_m_scores(float (&s)[GROUPS][1][4], uint32_t ring, uint32_t q,
                           const struct attention_params &p, const struct small_m_rows &rows) {
    using shape = small_m_shape<T, D, GROUPS, WARPS>;
    constexpr int SUMS = GROUPS > 2 ? 1 : 2; /* independent accumulators */
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
        small_m_load_batch<T, D, WARPS>(x, ring, p, rows, i);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const uint4 &y = x[2 * c], &z = x[2 * c + 1];
            const struct fragment<T, 4> a[2] = {
                fragment_of({y.x, z.x, y.y, z.y}, T()), fragment_of({y.z, z.z, y.w, z.w}, T())
            };
#pragma unroll
            for (int n = 0; n < GROUPS; n++) {
                struct fragment<T, 2> b[2];
                small_m_q_operand<shape::SPLIT>(
                    b, q + (uint32_t)(n * shape::Q_GROUP + (2 * i + c) * shape::Q_PIECE));
                small_m_split_mma(s[n][0], sum[n][c % SUMS], a, b);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < GROUPS; n++)
        small_m_add_sums(s[n][0], sum[n], T());
}

/* Sums S over the warps, in the order of their dims, so that all warps get the same bits.
 * REDUCE_SCATTER: each thread sums some scores for all, where reading everything in every warp
 * would load shared memory too much. */
template <int GROUPS, int WARPS>
DEVICE void small_m_reduce_scores(float (&s)[GROUPS][1][4], uint32_t parts) {
    constexpr uint32_t WARP = GROUPS * 512; /* bytes */
    constexpr bool REDUCE_SCATTER = WARPS * GROUPS > 8;
    const uint32_t at = parts + (uint32_t)(16 * warp_lane_here());
#pragma unroll
    for (int n = 0; n < GROUPS; n++)
        shared_store_16(at + threadIdx.x / 32 * WARP + (uint32_t)(512 * n),
                        {__float_as_uint(s[n][0][0]), __float_as_uint(s[n][0][1]),
                         __float_as_uint(s[n][0][2]), __float_as_uint(s[n][0][3])});
    small_m_sync<WARPS>();
    if (REDUCE_SCATTER) {
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
        small_m_sync<WARPS>();
    }
#pragma unroll
    for (int n = 0; n < GROUPS; n++) {
#pragma unroll
        for (int w = 0; w < (REDUCE_SCATTER ? 1 : WARPS); w++) {
            const uint4 x = shared_load_16(at + w * WARP + (uint32_t)(512 * n));
            const uint32_t part[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[n][0][e] = __uint_as_float(part[e]) + (w ? s[n][0][e] : 0);
        }
    }
}

/* One score in double. */
DEVICE float small_m_score(const struct attention_params &p, const struct granule_item &item,
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

/* Recomputes f32 scores that are NaN, as attention_recompute_nan does. */
template <int GROUPS, class T>
DEVICE void small_m_recompute_nan(float (&)[GROUPS][1][4], const struct attention_params &,
                                  const struct granule_item &, const struct small_m_step &, T) {
}
template <int GROUPS>
DEVICE void small_m_recompute_nan(float (&s)[GROUPS][1][4], const struct attention_params &p,
                                  const struct granule_item &item, const struct small_m_step &step,
                                  float) {
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
            const int query = row + r / 2 * SMALL_M_ROWS + r % 2;
            float &x = s[r / 2][0][r % 2 * 2 + h];
            if (isnan(x) && query < item.rows)
                x = small_m_score(p, item, query, key);
        }
    }
    __syncwarp(); /* MMAs need all lanes converged */
}

/* P of a group as B operand. small: f16 elements below ATTENTION_SMALL, raised (device/tile.cuh). */
template <class T> struct small_m_p_operand { struct fragment<T, 2> b, small; };
template <> struct small_m_p_operand<float> { struct fragment<float, 2> b[2]; };

template <class T>
DEVICE void small_m_pack_p(struct small_m_p_operand<T> &to, const float (&x)[4]) {
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
DEVICE void small_m_pack_p(struct small_m_p_operand<float> &to, const float (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 2; i++)
        to.b[i] = fragment_of({__float_as_uint(x[2 * i]), __float_as_uint(x[2 * i + 1])}, 0.0f);
}

/* Exchanges P from accumulator layout to operand layout through shared memory. Warp n stores P of
 * group n for all warps. */
template <class T, int GROUPS, int WARPS>
DEVICE void small_m_exchange_p(struct small_m_p_operand<T> (&to)[GROUPS],
                               const float (&s)[GROUPS][1][4], uint32_t probs) {
    constexpr uint32_t GROUP = SMALL_M_ROWS * SMALL_M_P_ROW * 4;
    const int lane = warp_lane_here(), g = lane / 4, t = lane % 4;
    const uint32_t warp = WARPS == 1 ? 0 : threadIdx.x / 32;
    if (WARPS == 1)
        __syncwarp(); /* all have read the P before; else small_m_reduce_scores waits */
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float x = s[0][0][2 * r + h];
#pragma unroll
            for (int n = 1; n < GROUPS; n++)
                x = warp == n ? s[n][0][2 * r + h] : x;
            if (WARPS == GROUPS || warp < GROUPS)
                shared_store_4(probs + warp * GROUP +
                                   (uint32_t)((2 * t + r) * SMALL_M_P_ROW * 4 + g / 2 * 16 +
                                              g % 2 * 4 + 8 * h),
                               __float_as_uint(x));
        }
    small_m_sync<WARPS>();
#pragma unroll
    for (int n = 0; n < GROUPS; n++) {
        const uint4 x =
            shared_load_16(probs + n * GROUP + (uint32_t)(g * SMALL_M_P_ROW * 4 + 16 * t));
        small_m_pack_p(to[n], {__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z),
                               __uint_as_float(x.w)});
    }
}

/* Dims 2w and 2w + 1 of this lane's piece, for four keys, as A operand. */
DEVICE void small_m_v_operand(struct fragment<float, 4> (&a)[2], const uint4 (&x)[4], int w) {
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
DEVICE void small_m_v_operand(struct fragment<T, 4> (&a)[1], const uint4 (&x)[4], int w) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const uint4 &first = x[2 * n], &second = x[2 * n + 1];
        const uint32_t y = w < 2 ? w ? first.y : first.x : w == 2 ? first.z : first.w;
        const uint32_t z = w < 2 ? w ? second.y : second.x : w == 2 ? second.z : second.w;
        /* Volatile like the MMAs, so that each stays just before its MMA: registers are short. */
        asm volatile("prmt.b32 %0, %1, %2, 0x5410;" : "=r"(a[0].word[2 * n]) : "r"(y), "r"(z));
        asm volatile("prmt.b32 %0, %1, %2, 0x7632;" : "=r"(a[0].word[2 * n + 1]) : "r"(y), "r"(z));
    }
}

/* O += V^T P^T of one MMA. */
DEVICE void small_m_mma(float (&o)[4], const struct fragment<float, 4> (&a)[2],
                        const struct small_m_p_operand<float> &probs, bool) {
    float part[4] = {};
    attention_split_mma<false>(part, a, probs.b);
    small_m_add(o, part);
}
template <class T>
DEVICE void small_m_mma(float (&o)[4], const struct fragment<T, 4> (&a)[1],
                        const struct small_m_p_operand<T> &probs, bool small) {
    float sum[4] = {o[0], o[2], o[1], o[3]};
    if (attention_has_small(T()) && small) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[e] *= ATTENTION_SMALL_RAISE;
        mma_sync(sum, a[0].word, probs.small.word, T());
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[e] *= 1 / ATTENTION_SMALL_RAISE;
    }
    mma_sync(sum, a[0].word, probs.b.word, T());
#pragma unroll
    for (int e = 0; e < 4; e++)
        o[e] = sum[e % 2 * 2 + e / 2];
}

/* O^T [DIMS, 8 GROUPS] += V [16, DIMS]^T P [8 GROUPS, 16]^T, over this warp's dims. */
template <class T, int D, int GROUPS, int WARPS>
DEVICE void small_m_pv(small_m_state<T, D / WARPS, GROUPS> &state, uint32_t ring,
                       const struct small_m_p_operand<T> (&probs)[GROUPS], bool small,
                       const struct attention_params &p, const struct small_m_rows &rows) {
    constexpr int BATCHES = small_m_batches<T, D, WARPS>(), PAIRS = 8 / (int)sizeof(T);
#pragma unroll
    for (int c = 0; c < BATCHES; c++) {
        uint4 x[4];
        small_m_load_batch<T, D, WARPS>(x, ring, p, rows, BATCHES + c);
#pragma unroll
        for (int w = 0; w < PAIRS; w++) {
            struct fragment<T, 4> a[sizeof(T) / 2];
            small_m_v_operand(a, x, w);
#pragma unroll
            for (int n = 0; n < GROUPS; n++)
                small_m_mma(state.o[n][PAIRS * c + w], a, probs[n], small);
        }
    }
}

/* ---- the kernel ---- */

/* A step is computed while the keys of the next step are looked up and its first batches are
 * copied. */
template <class T, int D, int GROUPS, int WARPS, int BLOCKS, bool MODIFIED>
static __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    attention_small_m(const __grid_constant__ struct attention_params p) {
    using shape = small_m_shape<T, D, GROUPS, WARPS>;
    static_assert(shape::DIMS * sizeof(T) % 128 == 0, "a warp's dims are whole batches");
    static_assert(shape::BATCHES % small_m_stages<T, D, WARPS>() == 0,
                  "all of K is under way when the next keys are known");
    static_assert(ATTENTION_GRANULE_SMALL_M <= SMALL_M_KEYS, "a step is whole granules");
    static_assert(WARPS >= GROUPS, "each group has a warp that stores its weights");
    extern __shared__ __align__(128) char memory[];
    const uint32_t shared = shared_address(memory), warp = WARPS == 1 ? 0 : threadIdx.x / 32;
    const uint32_t q = shared + warp * (GROUPS * shape::Q_GROUP);
    const uint32_t ring = shared + shape::RING_AT + warp * shape::RING_WARP;
    const int dim = small_m_dim<D, WARPS>();
    auto *items = reinterpret_cast<struct granule_item *>(memory + shape::ITEMS_AT);
    const int64_t first = p.image.worker_ptr[blockIdx.x];
    const int32_t jobs = (int32_t)(p.image.worker_ptr[blockIdx.x + 1] - first);
    struct small_m_step now = {0, 0, 0, 0};
    struct small_m_rows rows;
    small_m_state<T, shape::DIMS, GROUPS> state;
    if (!jobs)
        return;
    for (int job = 0; job < min(jobs, 3); job++)
        attention_fetch_job(items[job], p, first + job);
    cp_async_wait_all();
    small_m_sync<WARPS>();
    small_m_lookup_end(now, p, items[0], small_m_lookup_begin(p, items[0], now));
    small_m_row_pointers<T>(rows.k, p.k, items[0], now.key, dim);
    small_m_prologue<T, D, WARPS>(ring, p, rows);
#pragma unroll 1
    while (now.job < jobs) {
        const struct granule_item &item = items[now.job % ATTENTION_JOBS];
        struct small_m_step next = small_m_next_step(p, now, item.count);
        const bool more = next.job < jobs;
        if (more && next.at == 0) {
            /* After the barrier all warps see the next item, and have finished the item whose place
             * is overwritten. */
            small_m_sync<WARPS>();
            if (next.job + 2 < jobs)
                attention_fetch_job(items[(next.job + 2) % ATTENTION_JOBS], p,
                                    first + next.job + 2);
            attention_prefetch_q<T, D, 32 * WARPS>(p, items[next.job % ATTENTION_JOBS]);
        }
        const struct granule_item &coming = items[(more ? next : now).job % ATTENTION_JOBS];
        struct small_m_lookup asked;
        if (more)
            asked = small_m_lookup_begin(p, coming, next);
        if (now.at == 0) {
            small_m_load_q<T, D, GROUPS, WARPS>(q, p, item);
            attention_clear(state, shared + shape::FLUSHED_AT);
        }
        small_m_row_pointers<T>(rows.v, p.v, item, now.key, dim);
        float s[GROUPS][1][4];
        if (item.count)
            small_m_scores<T, D, GROUPS, WARPS>(s, ring, q, p, rows);
        if (more)
            small_m_lookup_end(next, p, coming, asked);
        small_m_row_pointers<T>(rows.k, p.k, coming, next.key, dim);
        if (item.count) {
            struct small_m_p_operand<T> probs[GROUPS];
            if (WARPS > 1)
                small_m_reduce_scores<GROUPS, WARPS>(s, shared + shape::PARTS_AT);
            small_m_mask<GROUPS>(s, p, item, now);
            small_m_recompute_nan<GROUPS>(s, p, item, now, T());
            if (MODIFIED)
                small_m_modify<GROUPS>(s, p, item, now);
            const bool small = attention_softmax<T, shape::DIMS / 2, 16 * GROUPS, 1, true>(
                s, state, MODIFIED ? modify_scale(p.modify, p.score_scale) : p.score_scale);
            if (MODIFIED)
                small_m_drop<GROUPS>(s, p, item, now);
            small_m_exchange_p<T, GROUPS, WARPS>(probs, s, shared + shape::P_AT);
            small_m_pv<T, D, GROUPS, WARPS>(state, ring, probs, small, p, rows);
            attention_count(state, SMALL_M_KEYS);
        } else {
            cp_async_wait_all();
            small_m_prologue<T, D, WARPS>(ring, p, rows);
        }
        if (next.job != now.job)
            small_m_finish<T, D, GROUPS, WARPS>(p, item, state);
        now = next;
    }
    cp_async_wait_all();
}

/* Warps of a thread block, and thread blocks of a multiprocessor, for so many groups
 * (host/forward.h). */
template <class T, int D, int GROUPS>
static __host__ __device__ __forceinline__ constexpr int small_m_warps(void) {
    return sizeof(T) == 4 ? ATTENTION_WARPS_SMALL_M(D, SMALL_M_ROWS * GROUPS)
                          : ATTENTION_WARPS_SMALL_M_16BIT(D);
}
template <class T, int D, int GROUPS>
static __host__ __device__ __forceinline__ constexpr int small_m_blocks(void) {
    return sizeof(T) == 4 ? ATTENTION_BLOCKS_SMALL_M(D, SMALL_M_ROWS * GROUPS)
                          : ATTENTION_BLOCKS_SMALL_M_16BIT(D, SMALL_M_ROWS * GROUPS);
}

template <class T, int D, int GROUPS>
static cudaError_t small_m_launch_rows(const struct attention_params *p, cudaStream_t stream) {
    constexpr int WARPS = small_m_warps<T, D, GROUPS>();
    constexpr int BYTES = small_m_shape<T, D, GROUPS, WARPS>::BYTES;
    constexpr int BLOCKS = small_m_blocks<T, D, GROUPS>();
    void (*kernel)(const struct attention_params) =
        p->modify.each ? attention_small_m<T, D, GROUPS, WARPS, BLOCKS, true>
                       : attention_small_m<T, D, GROUPS, WARPS, BLOCKS, false>;
    cudaError_t code = launch_shared<BYTES>((const void *)kernel);
    if (!code)
        code = attention_launch(kernel, (unsigned)p->workers, 32 * WARPS, BYTES, p, stream);
    return code ? code : cuda_attention_combine(p, attention_type(T()), stream);
}

/* Launches the tile height of the plan (instances.def). */
template <class T, int D>
static cudaError_t attention_small_m_launch(const struct attention_params *p, cudaStream_t stream) {
    constexpr int HIGHEST = small_m_groups<T, D>(32), SECOND = small_m_groups<T, D>(16);
    if (p->tile_rows > SMALL_M_ROWS * HIGHEST)
        return cudaErrorInvalidValue;
    return p->tile_rows > 16  ? small_m_launch_rows<T, D, HIGHEST>(p, stream)
           : p->tile_rows > 8 ? small_m_launch_rows<T, D, SECOND>(p, stream)
                              : small_m_launch_rows<T, D, 1>(p, stream);
}

template <class T, int D, int GROUPS> static int64_t small_m_bytes(void) {
    return small_m_shape<T, D, GROUPS, small_m_warps<T, D, GROUPS>()>::BYTES;
}

template <class T, int D> static int64_t attention_small_m_shared(int32_t rows) {
    constexpr int HIGHEST = small_m_groups<T, D>(32), SECOND = small_m_groups<T, D>(16);
    return rows > 16  ? small_m_bytes<T, D, HIGHEST>()
           : rows > 8 ? small_m_bytes<T, D, SECOND>()
                      : small_m_bytes<T, D, 1>();
}

#endif
