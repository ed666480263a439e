/* Online softmax of a thread's N scores, in the accumulator-fragment layout of WGMMA (wgmma.cuh). A thread
 * has N / 2 columns of two rows, g and g + 8 of its warp's 16. s[4 j], s[4 j + 1] are columns 8 j + 2 t, + 1
 * of row g. */
#ifndef TESSERA_CUDA_SM90_SOFTMAX_CUH
#define TESSERA_CUDA_SM90_SOFTMAX_CUH

#include "device/mma.cuh"
#include "device/softmax.cuh"
#include "device/warp.cuh"

/* Lag of this tile's maxima (device/softmax.cuh). */
DEVICE constexpr float sm90_lag(__nv_bfloat16) {
    return 7.0f;
}
DEVICE constexpr float sm90_lag(__half) {
    return 1.0f;
}

/* State of a thread's two rows, base 2: maximum, what is subtracted from scaled scores, and sum
 * over this thread's columns. far: some row of the warp is beyond ATTENTION_FAR. */
struct sm90_state {
    float m[2], base[2], l[2];
    bool far;
};

/* State before the first key. */
DEVICE void sm90_clear(struct sm90_state &state) {
    state.m[0] = state.m[1] = -INFINITY;
    state.base[0] = state.base[1] = 0;
    state.l[0] = state.l[1] = 0;
    state.far = false;
}

/* The largest x of the four lanes that share a row; NaN is ignored. */
DEVICE float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(WARP_ALL, x, 1));
    return fmaxf(x, __shfl_xor_sync(WARP_ALL, x, 2));
}
DEVICE float quad_sum(float x) {
    x += __shfl_xor_sync(WARP_ALL, x, 1);
    return x + __shfl_xor_sync(WARP_ALL, x, 2);
}

/* Moves maxima to `top` where they lag behind; factor is what earlier sums must be multiplied
 * by. */
template <class T>
DEVICE void sm90_update_max(struct sm90_state &state, float (&factor)[2], const float (&top)[2]) {
    bool far = false;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float before = state.m[h];
        /* The difference is exact; a sum with the lag would be rounded. */
        state.m[h] = top[h] - before > sm90_lag(T()) ? top[h] : before;
        const float now = attention_base(state.m[h]);
        factor[h] = state.m[h] == before ? 1 : attention_exp2(before - now);
        state.base[h] = now - attention_raise(T());
        state.l[h] *= factor[h];
        far |= fabsf(now) > ATTENTION_FAR;
    }
    state.far = __any_sync(WARP_ALL, far);
}

/* Maxima follow the scores S. Answers whether a maximum of the warp moved: only then is `factor` set, and earlier sums
 * must be multiplied by it. P is exp2(scale S - base) from here on. */
template <class T, int N>
DEVICE bool sm90_follow_max(float (&s)[N], struct sm90_state &state, float (&factor)[2],
                            float &scale, float (&base)[2]) {
    float top[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float a = s[2 * h], b = s[2 * h + 1];
#pragma unroll
        for (int j = 1; j < N / 4; j++) {
            a = fmaxf(a, s[4 * j + 2 * h]);
            b = fmaxf(b, s[4 * j + 2 * h + 1]);
        }
        top[h] = __fmul_rn(quad_max(fmaxf(a, b)), scale);
    }
    const bool moved = __any_sync(WARP_ALL, top[0] - state.m[0] > sm90_lag(T()) ||
                                                top[1] - state.m[1] > sm90_lag(T()));
    base[0] = state.base[0];
    base[1] = state.base[1];
    if (moved || state.far) {
        if (moved)
            sm90_update_max<T>(state, factor, top);
        base[0] = state.base[0];
        base[1] = state.base[1];
        if (state.far) { /* decided row by row: the bits of a row do not depend on other rows */
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float m = attention_base(state.m[h]);
                const bool far = fabsf(m) > ATTENTION_FAR;
                const float before = far ? scale : 1, within = far ? 1 : scale;
                const float less = far ? m : base[h], more = far ? attention_raise(T()) : 0;
#pragma unroll
                for (int j = 0; j < N / 2; j++) {
                    float &x = s[4 * (j / 2) + 2 * h + j % 2];
                    x = __fadd_rn(fmaf(__fmul_rn(x, before), within, -less), more);
                }
                base[h] = 0;
            }
            scale = 1;
        }
    }
    return moved;
}

/* S to P in f32; maxima and sums follow. Answers as sm90_follow_max. */
template <class T, int N>
DEVICE bool sm90_softmax(float (&s)[N], struct sm90_state &state, float (&factor)[2], float scale) {
    float base[2];
    const bool moved = sm90_follow_max<T>(s, state, factor, scale, base);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float a = 0, b = 0;
#pragma unroll
        for (int j = 0; j < N / 4; j++) {
            float &x = s[4 * j + 2 * h], &y = s[4 * j + 2 * h + 1];
            x = attention_exp2(fmaf(x, scale, -base[h]));
            y = attention_exp2(fmaf(y, scale, -base[h]));
            a += x;
            b += y;
        }
        state.l[h] += a + b;
    }
    return moved;
}

/* Rounds P to the storage type, in pairs: the A operand of P V. */
template <class T, int N> DEVICE void sm90_round(uint32_t (&probs)[N / 2], const float (&s)[N]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        probs[i] = mma_pack(s[2 * i], s[2 * i + 1], T());
}

/* Rescales O after a maximum moved. */
template <int N> DEVICE void sm90_rescale(float (&o)[N], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        o[i] *= factor[i / 2 % 2];
}

#endif
