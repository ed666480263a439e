/* The fused backward: score modifiers, in the fragments of step.cuh. Softcap and ALiBi change scores
 * before P; dropout changes dP and what dV gets; softcap's derivative changes dS. */
#ifndef TESSERA_CUDA_GRADIENT_MODIFY_CUH
#define TESSERA_CUDA_GRADIENT_MODIFY_CUH

#include "backward/config.cuh"

/* Place of a block of pairs: rows g and g + 8, two columns. Keys are places of modify_place without
 * first_key. Elements are row by row, as fragments have them. */
struct gradient_block {
    int32_t key[2], query[2];
};

template <bool OVER_KEYS> DEVICE int32_t gradient_key(const struct gradient_block &block, int e) {
    return block.key[OVER_KEYS ? e / 2 : e % 2];
}
template <bool OVER_KEYS> DEVICE int32_t gradient_query(const struct gradient_block &block, int e) {
    return block.query[OVER_KEYS ? e % 2 : e / 2];
}

/* The block of the j-th group and of rows row, row + 8 of the tile. */
template <class C>
DEVICE struct gradient_block gradient_block_of(const struct gradient_params &p,
                                               const struct attention_place &place, int row,
                                               const struct attention_groups &groups, int j) {
    const struct granule_item &item = attention_item(place);
    const int column = 8 * attention_group<false>(groups, j) + warp_lane_here() % 4 * 2;
    struct gradient_block block;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int32_t of_row = item.row + row + 8 * i;
        const int32_t of_column = attention_column(p, item, place.granule, column + i);
        block.key[i] = modify_place(p.modify, C::OVER_KEYS ? of_row : of_column, p.n_kv);
        block.query[i] = C::OVER_KEYS ? of_column : of_row;
    }
    return block;
}

/* Bit e: the weight of element e is kept. Pairs that follow one another share a draw where they can: a
 * query and two keys, then the other query. Rolled: registers are short. */
template <bool OVER_KEYS>
DEVICE uint32_t gradient_kept(const struct modify_params &m, const struct granule_item &item,
                              const struct gradient_block &block) {
    const uint64_t seed = __ldg(m.seed);
    uint32_t kept = 0, words = 0, query = 0, key = 0;
#pragma unroll 1
    for (int n = 0; n < 4; n++) {
        const int a = n / 2, b = (n ^ n >> 1) & 1;
        const struct modify_query q =
            modify_query_of(m, item.batch, item.head, a ? block.query[1] : block.query[0]);
        const uint32_t j = m.first_key + (uint32_t)(b ? block.key[1] : block.key[0]);
        if (n == 0 || ((q.i ^ query) & ~8u) || ((j ^ key) & ~9u))
            words = modify_kept_words(modify_words<1>(q, j, seed), m.dropped);
        query = q.i, key = j;
        kept |= (words >> modify_word(q, j) & 1) << (OVER_KEYS ? 2 * b + a : 2 * a + b);
    }
    return kept;
}

/* tanh(t), and its derivative: 4 e / (1 + e)^2 with e = exp(-2 |t|), since 1 - tanh^2 has no digits left
 * where tanh is near 1. */
DEVICE float gradient_cap(float t, float &derivative) {
    const float e = attention_exp2(fabsf(t) * -2.88539008f);
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1 + e));
    derivative = 4 * e * inverse * inverse;
    return fabsf(t) > MODIFY_NEAR ? copysignf(fmaf(-2 * e, inverse, 1), t) : modify_tanh<false>(t);
}

/* Modifiers of a block: s from scores to what dV gets, dp to dS; kept, listed: bit e of element e. Answers the sum
 * of dS times distance before softcap's derivative, over the elements whose bits are in `counted`. */
template <bool OVER_KEYS>
DEVICE float gradient_modify(float (&s)[4], float (&dp)[4], const struct gradient_params &p,
                             const struct granule_item &item, const struct gradient_block &block,
                             const struct gradient_known (&known)[2], uint32_t kept,
                             uint32_t listed, uint32_t counted) {
    const struct modify_params &m = p.modify;
    const float unit = modify_unit(m, p.score_scale), after = modify_scale(m, p.score_scale);
    const float slope = m.alibi ? __ldg(m.alibi + item.head) * m.unit : 0;
    float sum = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const struct gradient_known &one = known[OVER_KEYS ? e % 2 : e / 2];
        const bool drawn = kept >> e & 1, some = listed >> e & 1;
        const float left = one.left * m.kept;
        float x = s[e], derivative = 1, distance = 0;
        if (m.cap != 0)
            x = gradient_cap(x * p.cap_scale, derivative);
        if (m.alibi) {
            distance = modify_distance(m, gradient_key<OVER_KEYS>(block, e),
                                       gradient_query<OVER_KEYS>(block, e));
            x = fmaf(slope, distance, x * unit);
        }
        x = fmaf(x, after, -one.base);
        const float weight = attention_exp2(x > 0 ? 0.0f : x);
        const float d_s = weight * (left * (drawn ? dp[e] : 0.0f) - one.delta);
        if (counted >> e & 1)
            sum += d_s * distance;
        dp[e] = some ? d_s * derivative : 0.0f;
        s[e] = some && drawn ? weight * left : 0.0f;
    }
    return sum;
}

/* ---- the gradient of the slopes ---- */

#define GRADIENT_SLOPE_THREADS 256

/* Adds the shares of a head's items up, those of its warps one after the other: always in one order. */
template <int THREADS>
static __global__ void __launch_bounds__(THREADS)
    gradient_slopes(const __grid_constant__ struct gradient_params p) {
    __shared__ double shares[THREADS];
    const int64_t items = p.image.worker_ptr[p.workers];
    double sum = 0;
    for (int64_t i = threadIdx.x; i < items; i += THREADS)
        if (p.image.items[i].head == (int32_t)blockIdx.x)
            for (int32_t w = 0; w < p.slope_warps; w++)
                sum += p.slopes[i * p.slope_warps + w];
    shares[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= 32)
        return;
    sum = 0;
    for (int at = (int)threadIdx.x; at < THREADS; at += 32)
        sum += shares[at];
    sum = warp_sum(sum);
    if (threadIdx.x == 0)
        p.d_alibi[blockIdx.x] = (float)sum;
}

static inline cudaError_t gradient_slopes_launch(const struct gradient_params *p,
                                                 cudaStream_t stream) {
    void *arguments[] = {(void *)p};
    if (!p->slopes)
        return cudaSuccess;
    return cudaLaunchKernel((const void *)gradient_slopes<GRADIENT_SLOPE_THREADS>,
                            dim3((unsigned)p->heads_q), dim3(GRADIENT_SLOPE_THREADS), arguments, 0,
                            stream);
}

#endif
