/* Fused attention on Hopper: masks and softmax of a thread's scores, which are two rows, g and g + 8
 * of its warp's 16, by 32 columns: columns 8 j + 2 t and + 1 are s[4 j ...] (wgmma.cuh). */
#ifndef TESSERA_CUDA_SM90_SOFTMAX_CUH
#define TESSERA_CUDA_SM90_SOFTMAX_CUH

#include "device/mma.cuh"
#include "sm90/shape.cuh"

/* m follows a row's maximum only when it is left behind by more than this (Dao's lazy rescaling), so
 * that O is seldom multiplied. Weights are exp2(s - m) times 2^raise, which O and l share: f16 has
 * little room above 1, and less below. */
static __device__ __forceinline__ constexpr float sm90_lag(__nv_bfloat16) {
    return 7.0f;
}
static __device__ __forceinline__ constexpr float sm90_raise(__nv_bfloat16) {
    return 0.0f;
}
static __device__ __forceinline__ constexpr float sm90_lag(__half) {
    return 1.0f;
}
static __device__ __forceinline__ constexpr float sm90_raise(__half) {
    return 14.0f;
}

/* Scaled scores past this are subtracted from each other, not fused with the scaling: the largest
 * would not be 0 then, but the rounding of one product. */
#define SM90_FAR 0x1p20f

/* Two rows of a thread: maximum in base 2, what is subtracted from scaled scores, and sum of this
 * thread's columns. far: of any row of the warp. */
struct sm90_state {
    float m[2], base[2], l[2];
    bool far;
};

/* Nothing has been seen yet. */
static __device__ __forceinline__ void sm90_clear(struct sm90_state &state) {
    state.m[0] = state.m[1] = -INFINITY;
    state.base[0] = state.base[1] = 0;
    state.l[0] = state.l[1] = 0;
    state.far = false;
}

static __device__ __forceinline__ float sm90_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The largest of the four lanes that share a row; NaN is passed over. */
static __device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(WARP_ALL, x, 1));
    return fmaxf(x, __shfl_xor_sync(WARP_ALL, x, 2));
}
static __device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(WARP_ALL, x, 1);
    return x + __shfl_xor_sync(WARP_ALL, x, 2);
}

/* ---- masks ---- */

/* What this warp's 16 rows list of a step. Lane l knows of the places 64 i + 2 l and + 1: their row
 * masks in the halves of rows[i], and in bits 2 i and 2 i + 1 of `dead` whether the place lies past
 * the keys of its granule, where V may hold anything. some_dead: of any lane, in all warps alike. */
struct sm90_mask {
    uint32_t rows[2];
    uint32_t dead;
    bool some_dead;
};

/* Rows first ... last that lie within 0 ... 15. */
static __device__ __forceinline__ uint32_t sm90_row_range(int64_t first, int64_t last) {
    const int low = (int)max(first, (int64_t)0), high = (int)min(last, (int64_t)15);
    return first > 15 || last < 0 || low > high ? 0 : (2u << high) - (1u << low);
}

/* Looks up the masks of the places of step `step` of an item, for rows `row` ... `row` + 15: first all
 * that is known of their granules, then all row masks, so that each is waited for once. */
static __device__ __forceinline__ void sm90_look_up_mask(struct sm90_mask &mask,
                                                         const struct attention_params &p,
                                                         const struct granule_item &item,
                                                         int32_t step, int row) {
    const int64_t first = ((int64_t)step << SM90_BITS) + 2 * warp_lane_here();
    const int32_t size = 1 << p.granule_bits;
    union {
        int4 words;
        struct granule_mask mask;
    } of[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int64_t g = (first + 64 * (i / 2) + i % 2) >> p.granule_bits;
        of[i].mask.count = (int16_t)(g < item.count ? size : 0);
        of[i].mask.kind = GRANULE_ALL;
        if (g >= item.whole && g < item.count)
            of[i].words = __ldg(
                reinterpret_cast<const int4 *>(&p.image.masks[item.mask + g - item.whole]));
    }
    uint32_t rows[4];
    mask.dead = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const struct granule_mask m = of[i].mask;
        const int32_t offset = ((int32_t)first + i % 2) & (size - 1);
        const bool listed = offset < m.count;
        rows[i] = listed ? 0xffff : 0;
        mask.dead |= (uint32_t)(!listed && m.count > 0) << i;
        if (listed && m.kind == LIST_BAND)
            rows[i] = sm90_row_range((int64_t)offset - m.u.band.hi - row,
                                     (int64_t)offset - m.u.band.lo - row);
        if (listed && (m.kind == LIST_MEMBERS || m.kind == LIST_BITS))
            rows[i] = __ldg(reinterpret_cast<const uint32_t *>(p.image.words + m.u.word) +
                            (m.kind == LIST_BITS ? offset * (SM90_ROWS / 32) : 0) + row / 32) >>
                      row % 32;
    }
    mask.rows[0] = (rows[0] & 0xffff) | rows[1] << 16;
    mask.rows[1] = (rows[2] & 0xffff) | rows[3] << 16;
    mask.some_dead = __any_sync(WARP_ALL, mask.dead != 0);
}

/* Scores of rows that do not list the key become -Inf, whatever they are. */
static __device__ __forceinline__ void sm90_apply_mask(float (&s)[64],
                                                       const struct sm90_mask &mask) {
    const int lane = warp_lane_here();
    const uint32_t row = 1u << lane / 4;
#pragma unroll
    for (int j = 0; j < 16; j++) {
        const uint32_t rows = __shfl_sync(WARP_ALL, mask.rows[j / 8], 4 * (j % 8) + lane % 4);
#pragma unroll
        for (int e = 0; e < 4; e++) /* row g, columns 2t and 2t + 1; then row g + 8 */
            if (!(rows & row << (16 * (e % 2) + 8 * (e / 2))))
                s[4 * j + e] = -INFINITY;
    }
}

/* ---- softmax ---- */

/* Maxima move to `top` where they are left behind; factor is what that makes of earlier sums. */
template <class T>
static __device__ __forceinline__ void sm90_move(struct sm90_state &state, float (&factor)[2],
                                                 const float (&top)[2]) {
    bool far = false;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float before = state.m[h];
        state.m[h] = top[h] > before + sm90_lag(T()) ? top[h] : before;
        const float now = attention_base(state.m[h]);
        factor[h] = state.m[h] == before ? 1 : sm90_exp2(before - now);
        state.base[h] = now - sm90_raise(T());
        state.l[h] *= factor[h];
        far |= fabsf(now) > SM90_FAR;
    }
    state.far = __any_sync(WARP_ALL, far);
}

/* Scores to weights, not rounded; maxima and sums move on. Answers whether a maximum of the warp has
 * moved: only then is factor set, by which earlier products are to be multiplied. */
template <class T>
static __device__ __forceinline__ bool sm90_softmax(float (&s)[64], struct sm90_state &state,
                                                    float (&factor)[2], float scale) {
    float top[2], base[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float a = s[2 * h], b = s[2 * h + 1];
#pragma unroll
        for (int j = 1; j < 16; j++) {
            a = fmaxf(a, s[4 * j + 2 * h]);
            b = fmaxf(b, s[4 * j + 2 * h + 1]);
        }
        top[h] = __fmul_rn(quad_max(fmaxf(a, b)), scale);
    }
    const bool moved = __any_sync(WARP_ALL, top[0] > state.m[0] + sm90_lag(T()) ||
                                                top[1] > state.m[1] + sm90_lag(T()));
    base[0] = state.base[0];
    base[1] = state.base[1];
    if (moved || state.far) {
        if (moved)
            sm90_move<T>(state, factor, top);
        base[0] = state.base[0];
        base[1] = state.base[1];
        if (state.far) {
#pragma unroll
            for (int i = 0; i < 64; i++)
                s[i] = __fsub_rn(__fmul_rn(s[i], scale), attention_base(state.m[i / 2 % 2]));
            base[0] = base[1] = -sm90_raise(T());
            scale = 1;
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float a = 0, b = 0;
#pragma unroll
        for (int j = 0; j < 16; j++) {
            float &x = s[4 * j + 2 * h], &y = s[4 * j + 2 * h + 1];
            x = sm90_exp2(fmaf(x, scale, -base[h]));
            y = sm90_exp2(fmaf(y, scale, -base[h]));
            a += x;
            b += y;
        }
        state.l[h] += a + b;
    }
    return moved;
}

/* Weights as an operand, rounded in pairs. */
template <class T>
static __device__ __forceinline__ void sm90_round(uint32_t (&weights)[32], const float (&s)[64]) {
#pragma unroll
    for (int i = 0; i < 32; i++)
        weights[i] = mma_pack(s[2 * i], s[2 * i + 1], T());
}

/* What was summed before a maximum moved. */
template <int N>
static __device__ __forceinline__ void sm90_rescale(float (&o)[N], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        o[i] *= factor[i / 2 % 2];
}

#endif
