/*
 * Fused attention by multiply-adds in f32, for heads of more dims than the tensor-core kernels
 * hold. A thread block computes FMA_DIMS dims of O of one query tile, or of one KV split of it.
 * Each warp owns 8 rows. Q, K and V pass through shared memory in panels:
 *
 *   S [M, 64]  += Q panel [32, M]^T K panel [32, 64]      for each 32 dims of Q and K
 *   O [M, 128] += P [64, M]^T V panel [32, 128]           for each 32 of the 64 keys
 */
#ifndef TESSERA_CUDA_ATTENTION_FMA_CUH
#define TESSERA_CUDA_ATTENTION_FMA_CUH

#include "forward/gather.cuh"
#include "forward/combine.cuh"
#include "device/panel.cuh"

#define FMA_KEYS 64  /* of a step */
#define FMA_DIMS 128 /* dims of V, by one thread block */

template <int M> struct attention_fma_block {
    float q[PANEL_K][M + 4];
    float k[PANEL_K][FMA_KEYS + 1];
    float p[FMA_KEYS][M + 4];
    float v[PANEL_K][FMA_DIMS + 4];
    float compensation[M][FMA_DIMS]; /* compensation of O (Knuth's two-sum) */
    float m[M];                      /* row maxima, base 2 */
    float factor[M];                 /* by which earlier sums are multiplied */
    int32_t key[FMA_KEYS];
    struct attention_lists<FMA_KEYS, 1> lists;
};

/* Running output and sum of a warp's 8 rows. */
struct attention_fma_state {
    float o[PANEL_ROWS][FMA_DIMS / 32];
    double l[PANEL_ROWS]; /* of this lane's columns */
};

template <class T>
static __device__ __forceinline__ row_view<T>
attention_row(const char *head, const struct attention_params &p, const struct view &view,
              int64_t row, int32_t d) {
    return {reinterpret_cast<const T *>(head) + row * view.stride[2], d,
            p.alignment >= 4 * (int32_t)sizeof(T)};
}

/* Finds the keys of a step that begins with granule `begin`, and their row masks. */
template <int M>
static __device__ __forceinline__ void attention_fma_keys(struct attention_fma_block<M> &s,
                                                          const struct attention_params &p,
                                                          uint32_t begin, bool masked) {
    const struct granule_item &item = s.lists.jobs[0];
    __syncthreads();
    attention_fetch_granules<FMA_KEYS, 1, 4 * M>(s.lists, p, 0, item, begin);
    cp_async_wait_all();
    __syncthreads();
    for (int row = (int)threadIdx.x; row < FMA_KEYS; row += 4 * M)
        s.key[row] = attention_key(s.lists, p, 0, item, begin, row, masked, true);
    cp_async_wait_all();
    __syncthreads();
}

/* Loads dims d ... d + PANEL_K - 1 of Q [M] and K [FMA_KEYS]; 0 where there is none. */
template <class T, int M>
static __device__ __forceinline__ void
attention_fma_load(struct attention_fma_block<M> &s, const struct attention_params &p, int32_t d) {
    const struct granule_item &item = s.lists.jobs[0];
    const char *q = attention_head<T>(p.q, item.batch, item.head);
    const char *k = attention_head<T>(p.k, item.batch, item.head_kv);
#pragma unroll 2
    for (int i = (int)threadIdx.x; i < (M + FMA_KEYS) * (PANEL_K / 4); i += 4 * M) {
        const int row = i / (PANEL_K / 4), at = i % (PANEL_K / 4) * 4;
        float4 x = {0, 0, 0, 0};
        if (row < M) {
            if (row < item.rows)
                x = row_load4(attention_row<T>(q, p, p.q, item.row + row, p.d_qk), d + at);
            s.q[at][row] = x.x * p.q_scale;
            s.q[at + 1][row] = x.y * p.q_scale;
            s.q[at + 2][row] = x.z * p.q_scale;
            s.q[at + 3][row] = x.w * p.q_scale;
        } else {
            const int32_t key = s.key[row - M];
            if (key >= 0)
                x = row_load4(attention_row<T>(k, p, p.k, key, p.d_qk), d + at);
            s.k[at][row - M] = x.x;
            s.k[at + 1][row - M] = x.y;
            s.k[at + 2][row - M] = x.z;
            s.k[at + 3][row - M] = x.w;
        }
    }
}

/* Loads V [PANEL_K, FMA_DIMS]: keys from number `from` of the step on, dims from `dim` on. */
template <class T, int M>
static __device__ __forceinline__ void attention_fma_load_v(struct attention_fma_block<M> &s,
                                                            const struct attention_params &p,
                                                            int from, int32_t dim) {
    const struct granule_item &item = s.lists.jobs[0];
    const char *v = attention_head<T>(p.v, item.batch, item.head_kv);
#pragma unroll 2
    for (int i = (int)threadIdx.x; i < PANEL_K * (FMA_DIMS / 4); i += 4 * M) {
        const int k = i / (FMA_DIMS / 4), at = i % (FMA_DIMS / 4) * 4;
        const int32_t key = s.key[from + k];
        float4 x = {0, 0, 0, 0};
        if (key >= 0)
            x = row_load4(attention_row<T>(v, p, p.v, key, p.d_v), dim + at);
        *reinterpret_cast<float4 *>(&s.v[k][at]) = x;
    }
}

/* S to P for columns lane and lane + 32. listed: a bit for each of the warp's 8 rows. */
template <int M>
static __device__ __forceinline__ void
attention_fma_softmax(struct attention_fma_block<M> &s, struct attention_fma_state &state,
                      float (&sum)[PANEL_ROWS][2], const uint32_t (&listed)[2], float scale) {
    const int first = (int)threadIdx.x / 32 * PANEL_ROWS, lane = warp_lane();
#pragma unroll
    for (int i = 0; i < PANEL_ROWS; i++) {
#pragma unroll
        for (int j = 0; j < 2; j++)
            sum[i][j] = listed[j] >> i & 1 ? sum[i][j] * scale : -INFINITY;
        const float before = s.m[first + i];
        const float top = fmaxf(before, warp_max(fmaxf(sum[i][0], sum[i][1])));
        const float base = attention_base(top);
        const float factor = exp2f(before - base);
        __syncwarp(); /* all have read s.m */
        if (lane == 0) {
            s.m[first + i] = top;
            s.factor[first + i] = factor;
        }
        state.l[i] *= factor;
        sum[i][0] = exp2f(sum[i][0] - base);
        sum[i][1] = exp2f(sum[i][1] - base);
        state.l[i] += sum[i][0] + sum[i][1];
    }
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int i = 0; i < PANEL_ROWS; i += 4)
            *reinterpret_cast<float4 *>(&s.p[lane + 32 * j][first + i]) = {
                sum[i][j], sum[i + 1][j], sum[i + 2][j], sum[i + 3][j]};
}

/* O = factor O + part. The rounding error of the addition goes to the compensation (Knuth's
 * two-sum). */
template <int M>
static __device__ __forceinline__ void
attention_fma_add(struct attention_fma_block<M> &s, struct attention_fma_state &state,
                  const float (&part)[PANEL_ROWS][FMA_DIMS / 32]) {
    const int first = (int)threadIdx.x / 32 * PANEL_ROWS, lane = warp_lane();
#pragma unroll
    for (int i = 0; i < PANEL_ROWS; i++) {
        const float factor = s.factor[first + i];
#pragma unroll
        for (int j = 0; j < FMA_DIMS / 32; j++) {
            const float a = state.o[i][j] * factor, b = part[i][j];
            const float sum = a + b, from_b = sum - a;
            float &compensation = s.compensation[first + i][lane + 32 * j];
            compensation = compensation * factor + ((a - (sum - from_b)) + (b - from_b));
            state.o[i][j] = sum;
        }
    }
}

/* Which of this warp's rows list columns lane and lane + 32, a bit each. */
template <int M>
static __device__ __forceinline__ void
attention_fma_listed(uint32_t (&listed)[2], const struct attention_fma_block<M> &s, bool masked) {
    const int first = (int)threadIdx.x / 32 * PANEL_ROWS;
#pragma unroll
    for (int j = 0; j < 2; j++)
        listed[j] =
            masked ? (uint32_t)(s.lists.words[0][warp_lane() + 32 * j][0] >> first) & 255 : 255;
}

template <class T, int M>
static __device__ __forceinline__ void
attention_fma_step(struct attention_fma_block<M> &s, const struct attention_params &p,
                   struct attention_fma_state &state, uint32_t begin, int32_t dim) {
    const int first = (int)threadIdx.x / 32 * PANEL_ROWS, lane = warp_lane();
    const bool masked = begin + (FMA_KEYS >> p.granule_bits) > (uint32_t)s.lists.jobs[0].whole;
    float sum[PANEL_ROWS][2] = {};
    uint32_t listed[2];
    attention_fma_keys(s, p, begin, masked);
    attention_fma_listed(listed, s, masked);
    const bool any = __any_sync(WARP_ALL, (listed[0] | listed[1]) != 0);
    for (int32_t d = 0; d < p.d_qk; d += PANEL_K) {
        __syncthreads();
        attention_fma_load<T>(s, p, d);
        __syncthreads();
        float part[PANEL_ROWS][2] = {};
        if (any) {
            panel_multiply<2, M + 4, FMA_KEYS + 1>(part, &s.q[0][first], &s.k[0][lane]);
            panel_add(sum, part);
        }
    }
    if (any)
        attention_fma_softmax(s, state, sum, listed, p.score_scale);
    float part[PANEL_ROWS][FMA_DIMS / 32] = {};
    for (int from = 0; from < FMA_KEYS; from += PANEL_K) {
        __syncthreads();
        attention_fma_load_v<T>(s, p, from, dim);
        __syncthreads();
        if (any)
            panel_multiply<FMA_DIMS / 32, M + 4, FMA_DIMS + 4>(part, &s.p[from][first],
                                                               &s.v[0][lane]);
    }
    if (any)
        attention_fma_add(s, state, part);
}

/* Stores this warp's rows of O and lse, or of a partial result. */
template <class T, int M>
static __device__ __forceinline__ void
attention_fma_finish(const struct attention_fma_block<M> &s, const struct attention_params &p,
                     const struct attention_fma_state &state, int32_t dim) {
    const struct granule_item &item = s.lists.jobs[0];
    const int first = (int)threadIdx.x / 32 * PANEL_ROWS, lane = warp_lane();
    T *o = reinterpret_cast<T *>(attention_head<T>(p.o, item.batch, item.head));
#pragma unroll
    for (int i = 0; i < PANEL_ROWS; i++) {
        const int row = first + i;
        const float l = (float)warp_sum(state.l[i]);
        if (row >= item.rows)
            continue;
        if (dim == 0 && lane == 0 && item.parts > 1) {
            const struct attention_slot slot = attention_slot_of(p, item.slot);
            slot.m[row] = s.m[row];
            slot.l[row] = l;
        } else if (dim == 0 && lane == 0) {
            attention_store_lse(p, item.batch, item.head, item.row + row, s.m[row], l);
        }
#pragma unroll
        for (int j = 0; j < FMA_DIMS / 32; j++) {
            const int at = dim + lane + 32 * j;
            const float x = state.o[i][j] + s.compensation[row][lane + 32 * j];
            if (at >= p.d_v)
                continue;
            if (item.parts > 1)
                attention_slot_of(p, item.slot).o[(int64_t)row * p.slot_dims + at] = x;
            else
                from_f32(&o[(item.row + row) * p.o.stride[2] + at],
                         l == 0 ? 0.0f : mean_in_range(x / l, T()));
        }
    }
}

template <class T, int M>
static __global__ void __launch_bounds__(4 * M, 512 / (4 * M))
    attention_fma(const __grid_constant__ struct attention_params p) {
    extern __shared__ __align__(16) char memory[];
    auto &s = *reinterpret_cast<struct attention_fma_block<M> *>(memory);
    const int32_t dim = (int32_t)blockIdx.y * FMA_DIMS;
    for (int64_t i = blockIdx.x; i < p.n_items; i += gridDim.x) {
        __syncthreads();
        attention_fetch_job(s.lists.jobs[0], p, i);
        cp_async_wait_all();
        __syncthreads();
        const struct granule_item &item = s.lists.jobs[0];
        struct attention_fma_state state = {};
#pragma unroll
        for (int r = 0; r < PANEL_ROWS; r++) {
            const int row = (int)threadIdx.x / 32 * PANEL_ROWS + r;
            s.m[row] = -INFINITY;
            for (int j = 0; j < FMA_DIMS / 32; j++)
                s.compensation[row][warp_lane() + 32 * j] = 0;
        }
#pragma unroll 1
        for (uint32_t at = 0; at < (uint32_t)item.count; at += FMA_KEYS >> p.granule_bits)
            attention_fma_step<T>(s, p, state, at, dim);
        attention_fma_finish<T>(s, p, state, dim);
    }
}

template <class T, int M>
static cudaError_t attention_fma_launch_tile(const struct attention_params *p,
                                             cudaStream_t stream) {
    const int shared = (int)sizeof(struct attention_fma_block<M>);
    void (*kernel)(const struct attention_params) = attention_fma<T, M>;
    cudaError_t code = cudaFuncSetAttribute((const void *)kernel,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    return code
               ? code
               : attention_launch(
                     kernel, dim3(attention_blocks(p->n_items), (p->d_v + FMA_DIMS - 1) / FMA_DIMS),
                     4 * M, shared, p, stream);
}

static inline int64_t attention_fma_shared(int32_t rows) {
    return rows <= 16 ? sizeof(struct attention_fma_block<16>)
                      : sizeof(struct attention_fma_block<64>);
}

template <class T>
static cudaError_t attention_fma_launch(const struct attention_params *p, cudaStream_t stream) {
    cudaError_t code = p->tile_rows <= 16 ? attention_fma_launch_tile<T, 16>(p, stream)
                                          : attention_fma_launch_tile<T, 64>(p, stream);
    return code ? code : attention_combine_launch<T>(p, stream);
}

#endif
