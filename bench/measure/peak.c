/*
 * Loops of independent multiply-adds, one for each level; copies. The loops' results are wanted by
 * the caller, and GCC is told to look into none of them, so that nothing is computed ahead.
 */
#include "measure/peak.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "lab/device/timer.h"

enum { CHAINS = 12, TRIES = 5 };
#define TRY_SECONDS 1e-3
static const size_t COPY_SIZE = (size_t)1 << 30;

#if defined(__clang__)
#define PEAK(flags) __attribute__((noinline, target(flags)))
#else
#define PEAK(flags) __attribute__((noipa, target(flags)))
#endif

/* Twelve chains: two multipliers with a latency of four cycles need eight. */
#define TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

#if defined(__x86_64__)
#define LOOP_OF(name, flags, vector, set, sum)                                                     \
    PEAK(flags) static float name(int64_t n) {                                                     \
        const vector x = set(0.999999f), y = set(1e-7f);                                           \
        vector total = x;                                                                          \
        TWELVE(BEGIN)                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                          \
            TWELVE(STEP)                                                                           \
        }                                                                                          \
        TWELVE(END)                                                                                \
        return sum(total);                                                                         \
    }

#define BEGIN(i) __m512 a##i = _mm512_set1_ps(i);
#define STEP(i) a##i = _mm512_fmadd_ps(a##i, x, y);
#define END(i) total = _mm512_add_ps(total, a##i);
LOOP_OF(loop_avx512, "avx512f", __m512, _mm512_set1_ps, _mm512_reduce_add_ps)
#undef BEGIN
#undef STEP
#undef END

/* Pairs of which one is zero, so that all stays finite. */
#define BEGIN(i) __m512 a##i = _mm512_set1_ps(i);
#define STEP(i) a##i = _mm512_dpbf16_ps(a##i, (__m512bh)_mm512_setzero_si512(), (__m512bh)y);
#define END(i) total = _mm512_add_ps(total, a##i);
LOOP_OF(loop_avx512bf16, "avx512f,avx512bf16", __m512, _mm512_set1_ps, _mm512_reduce_add_ps)
#undef BEGIN
#undef STEP
#undef END

#define BEGIN(i) __m256 a##i = _mm256_set1_ps(i);
#define STEP(i) a##i = _mm256_fmadd_ps(a##i, x, y);
#define END(i) total = _mm256_add_ps(total, a##i);
LOOP_OF(loop_avx2, "avx2,fma", __m256, _mm256_set1_ps, _mm256_cvtss_f32)
#undef BEGIN
#undef STEP
#undef END

/* SSE2 multiplies and adds in two instructions. */
#define BEGIN(i) __m128 a##i = _mm_set1_ps(i);
#define STEP(i) a##i = _mm_add_ps(_mm_mul_ps(a##i, x), y);
#define END(i) total = _mm_add_ps(total, a##i);
LOOP_OF(loop_portable, "sse2", __m128, _mm_set1_ps, _mm_cvtss_f32)
#undef BEGIN
#undef STEP
#undef END

/* Four tiles of sums over two pairs of operands, all zero. The process has been given the registers
 * by the plan whose kernel this is about. */
PEAK("amx-tile,amx-bf16") static float loop_amx(int64_t n) {
    /* constant: compilers do not know that all of it is read */
    static const _Alignas(64)
        uint8_t config[64] = {[0] = 1,   [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64,
                              [26] = 64, [28] = 64, [30] = 64, [48] = 16, [49] = 16, [50] = 16,
                              [51] = 16, [52] = 16, [53] = 16, [54] = 16, [55] = 16};
    _tile_loadconfig(config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int64_t i = 0; i < n; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return 0;
}
#endif

static const struct loop {
    const char *level;
    float (*run)(int64_t n);
    double flops; /* operations of a turn */
} loops[] = {
#if defined(__x86_64__)
    {"avx512", loop_avx512, CHAINS * 16 * 2.0},
    {"avx2", loop_avx2, CHAINS * 8 * 2.0},
    {"portable", loop_portable, CHAINS * 4 * 2.0},
    {"avx512bf16", loop_avx512bf16, CHAINS * 32 * 2.0},
    {"amx", loop_amx, 4 * 16 * 16 * 32 * 2.0},
#endif
    {NULL, NULL, 0}};

static double seconds(const struct loop *loop, int64_t n) {
    const double begin = lab_seconds();
    volatile float wanted = loop->run(n);
    (void)wanted;
    return lab_seconds() - begin;
}

/* All threads at once, each by its own clock: they do not leave a barrier together. */
static double rate(const struct loop *loop, int threads, int64_t n) {
    double flops = 0;
#pragma omp parallel num_threads(threads) reduction(+ : flops)
    {
#pragma omp barrier
        flops += (double)n * loop->flops / seconds(loop, n);
    }
    return flops;
}

static int team(int64_t threads) {
    return threads > 0 ? (int)threads : omp_get_max_threads();
}

double bench_peak_tflops(const char *level, int64_t threads) {
    const struct loop *loop = loops;
    while (loop->level && strcmp(loop->level, level))
        loop++;
    if (!loop->level)
        return NAN;
    int64_t n = 1000;
    double best = 0;
    while (seconds(loop, n) < TRY_SECONDS)
        n *= 2;
    for (int i = 0; i < TRIES; i++)
        best = fmax(best, rate(loop, team(threads), n));
    return best * 1e-12;
}

double bench_peak_copy_gbs(int64_t threads) {
    const size_t part = COPY_SIZE / (size_t)team(threads);
    char *from = malloc(COPY_SIZE), *to = malloc(COPY_SIZE);
    double best = NAN;
    for (int i = 0; i <= TRIES && from && to; i++) {
        double begin = 0;
#pragma omp parallel num_threads(team(threads))
        {
            const size_t at = part * (size_t)omp_get_thread_num();
            if (i == 0)
                memset(from + at, 1, part);
#pragma omp barrier
#pragma omp master
            begin = lab_seconds();
#pragma omp barrier
            memcpy(to + at, from + at, part);
        }
        if (i > 0) /* the first touches `to` */
            best = fmax(best, 2e-9 * (double)COPY_SIZE / (lab_seconds() - begin));
    }
    free(from);
    free(to);
    return best;
}
