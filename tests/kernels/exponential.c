/*
 * 2^x as AVX-512's and AVX2's kernels have it, from a table, with and without flushing: what
 * test_softmax.c holds of the portable one. Compiled for each level, with the ULP that it may be off;
 * exit status 77 where the processor lacks it.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "isa/vector.h"

#define SAMPLES 3000000

static double ulp_of(double x) {
    int exponent;
    frexp(x, &exponent);
    return ldexp(1, exponent - 24);
}

/* Evenly spread arguments, and a run of neighbours near 0. */
static float argument(int64_t i) {
    return i < SAMPLES / 3 * 2 ? (float)(-126.0 * (double)i / (SAMPLES / 3 * 2))
                               : -0x1p-13f - 0x1p-36f * (float)(i - SAMPLES / 3 * 2);
}

static vf flushed(vf x) {
    const unsigned before = v_flush_begin();
    float at[CPU_LANES];
    v_store_any(at, x); /* loaded and stored between the two, as kernels do */
    v_store_any(at, v_exp2_flushed(v_load_any(at), (vf){0}));
    v_flush_end(before);
    return v_load_any(at);
}

static __attribute__((noinline)) int accurate(void) {
    double worst = 0;
    int same = 1;
    for (int64_t i = 0; i < SAMPLES; i += CPU_LANES) {
        vf x;
        for (int lane = 0; lane < CPU_LANES; lane++)
            x[lane] = argument(i + lane);
        const vf y = v_exp2(x), z = flushed(x);
        same &= !memcmp(&y, &z, sizeof y);
        for (int lane = 0; lane < CPU_LANES; lane++) {
            const double exact = exp2((double)x[lane]);
            worst = fmax(worst, fabs((double)y[lane] - exact) / ulp_of(exact));
        }
    }
    printf("worst error of exp2: %.3f ulp; flushed the same: %d\n", worst, same);
    return worst <= ULP && same;
}

static __attribute__((noinline)) int special(void) {
    static const float x[] = {0,    -0.0f, -1,      -2,    -3,         -125,   -126,   -126.5f,
                              -127, -149,  -149.5f, -1000, -131072.5f, -1e30f, -3e38f, -INFINITY};
    static const float y[sizeof x / sizeof *x] = {1, 1, 0.5f, 0.25f, 0.125f, 0x1p-125f, 0x1p-126f};
    int right = 1;
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        const vf both[2] = {v_exp2(v_set(x[i])), flushed(v_set(x[i]))};
        for (int f = 0; f < 2; f++)
            if (both[f][0] != y[i]) {
                printf("2^%g is %g\n", (double)x[i], (double)both[f][0]);
                right = 0;
            }
    }
    return right && isnan(v_exp2(v_set(NAN))[0]) && isnan(flushed(v_set(-NAN))[0]);
}

int main(void) {
#if CPU_LANES == 16
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512dq"))
        return 77;
#else
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return 77;
#endif
    const int ok = accurate();
    return special() && ok ? 0 : 1;
}
