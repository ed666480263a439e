/*
 * Activations, vector by vector. Each is x times a share of one that an exponential of a negative number gives, so
 * small ones keep their digits.
 */
#ifndef TESSERA_CPU_ACTIVATION_H
#define TESSERA_CPU_ACTIVATION_H

#include "isa/lanes.h"
#include "tessera.h"

/* x / (1 + 2^-y). */
V_INLINE vf activation_share(vf x, vf y) {
    const vf one = v_set(1), e = v_exp2(-v_abs(y));
    return x * v_select((vi)(y < (vf){0}), e, one) / (one + e);
}

/* y is 2 log2(e) sqrt(2 / pi) (x + 0.044715 x^3). */
V_INLINE vf activation_gelu_tanh(vf x) {
    const vf square = x * x;
    return activation_share(x, x * v_fma(square, v_set(0.102943240f), v_set(2.30220818f)));
}

/* Phi(-z), z = |x|: t 2^(p(t) - z^2 log2(e) / 2) / 2 with t = 1 / (1 + z / sqrt(8)). p, a Chebyshev fit to the
 * logarithm of erfc, errs by 1e-7. */
V_INLINE vf activation_gelu(vf x) {
    static const float p[] = {0.246517316f, -1.18611491f,  2.14747453f,  -1.63775313f,
                              0.402321607f, -0.268756866f, 0.139630064f, 0.539700627f,
                              1.44272923f,  -1.82574821f};
    const vf z = v_abs(x), one = v_set(1), t = one / v_fma(z, v_set(0.353553391f), one);
    const vf square = z * z;
    vf exponent = v_set(p[0]);
    for (size_t i = 1; i < sizeof p / sizeof *p; i++)
        exponent = v_fma(exponent, t, v_set(p[i]));
    const vf tail = v_set(0.5f) * t * v_exp2(v_fma(square, v_set(-0.721347520f), exponent));
    return x * v_select((vi)(x < (vf){0}), tail, one - tail);
}

V_INLINE vf activation_of(tess_activation activation, vf x) {
    switch (activation) {
    case TESS_GELU:
        return activation_gelu(x);
    case TESS_GELU_TANH:
        return activation_gelu_tanh(x);
    case TESS_SILU:
        return activation_share(x, x * v_set(1.44269504f));
    case TESS_RELU: /* NaN stays */
        return v_select((vi)(x < (vf){0}), (vf){0}, x);
    case TESS_IDENTITY:
        break;
    }
    return x;
}

/* x[i] = activation(x[i] + bias) for whole vectors. */
V_INLINE void activation_row(tess_activation activation, float *x, int64_t n, float bias) {
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_store(x + i, activation_of(activation, v_load(x + i) + v_set(bias)));
}

static inline void activation_apply(tess_activation activation, float *x, int64_t n, float bias) {
#define ACTIVATION(which)                                                                          \
    case which:                                                                                    \
        activation_row(which, x, n, bias);                                                         \
        break;
    switch (activation) {
        ACTIVATION(TESS_GELU)
        ACTIVATION(TESS_GELU_TANH)
        ACTIVATION(TESS_SILU)
        ACTIVATION(TESS_RELU)
        ACTIVATION(TESS_IDENTITY)
    }
#undef ACTIVATION
}

#endif
