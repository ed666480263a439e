/*
 * Rows in registers, as f32 whatever their type: register j of a lane is column first + 32 j + lane. Loads ask for no
 * alignment, and a ballot has 32 bits of the row:
 *
 *     column     first          first + 32      first + 64
 *     lane       0 1 ... 31     0 1 ... 31      ...
 *     register   0              1               2
 *
 * Scores are compared as numbers: NaN reaches no bound, -0 equals +0. Between two scores the search goes by their
 * places in the order of all numbers, which are keys as select_rules.h has them. Columns that are kept are NaN.
 */
#ifndef TESSERA_CUDA_SELECT_REGISTERS_CUH
#define TESSERA_CUDA_SELECT_REGISTERS_CUH

#include "select/row.cuh"

#include <float.h>

#define REGISTERS_LOW 0x00800000u /* key of the lowest finite number */

/* Columns are chosen whose scores are at least `above`, and the first `ties` of those that are at least `least`. */
struct registers_cut {
    float least, above;
    int32_t ties;
};

DEVICE uint32_t registers_key(float x) {
    const uint32_t word = __float_as_uint(x);
    return word ^ ((uint32_t)((int32_t)word >> 31) | 0x80000000u);
}
DEVICE float registers_number(uint32_t key) {
    return __uint_as_float(key ^ ((uint32_t)((int32_t)~key >> 31) | 0x80000000u));
}

/* Keys of a type's scores lie at least so far apart. */
template <class S> DEVICE uint32_t registers_apart(bool half) {
    return sizeof(S) == 4 ? 1u : half ? 1u << 13 : 1u << 16;
}

template <class S> DEVICE float registers_score(S stored, bool half) {
    if (sizeof(S) == 4)
        return __uint_as_float((uint32_t)stored);
    return half ? __half2float(__ushort_as_half((unsigned short)stored))
                : __uint_as_float((uint32_t)stored << 16);
}

template <class S, int KEYS>
DEVICE void registers_load(float (&x)[KEYS], const struct select_params &p, const select_at &at,
                           int32_t first) {
    const int32_t column = first + warp_lane();
    const S *const from = static_cast<const S *>(at.scores) + column;
#pragma unroll
    for (int j = 0; j < KEYS; j++)
        x[j] =
            32 * j < at.row.end - column ? registers_score(from[32 * j], p.type == TESS_F16) : NAN;
    if (first >= at.row.kept && first + 32 * KEYS <= at.row.tail)
        return;
#pragma unroll
    for (int j = 0; j < KEYS; j++)
        if (column + 32 * j < at.row.kept || column + 32 * j >= at.row.tail)
            x[j] = NAN;
}

/* A score of each of 32 stretches of columns first ... first + n - 1; -Inf where there is none. */
template <class S>
DEVICE float registers_sample(const struct select_params &p, const select_at &at, int32_t first,
                              int32_t n) {
    const int32_t column = first + n / 32 * warp_lane() + n / 64;
    const float x =
        column >= at.row.kept && column < at.row.tail
            ? registers_score(static_cast<const S *>(at.scores)[column], p.type == TESS_F16)
            : -INFINITY;
    return fmaxf(x, -INFINITY);
}

/* The numbers of all lanes, none of them NaN, in descending order: a bitonic sort. */
DEVICE float registers_sort(float x) {
    const int lane = warp_lane();
#pragma unroll
    for (int size = 2; size <= 32; size *= 2)
#pragma unroll
        for (int step = size / 2; step; step /= 2) {
            const float other = __shfl_xor_sync(WARP_ALL, x, step);
            x = (x > other) == (!(lane & size) == !(lane & step)) ? x : other;
        }
    return x;
}

/* About the root of x, which is no more than a guess needs. */
DEVICE float registers_root(float x) {
    return x * rsqrtf(x + 1e-12f);
}

/* Places of a sorted sample around that of a cut: `deviations` of its rank where so many samples are joined. */
struct registers_places {
    int32_t below, above;
};
DEVICE registers_places registers_around(float share, float deviations, int samples) {
    const float middle = 33 * share - 1;
    const float apart =
        deviations * registers_root(__fdividef(32 * share * (1 - share), (float)samples)) + 0.5f;
    return {min(max((int32_t)ceilf(middle + apart), 0), 31),
            min(max((int32_t)floorf(middle - apart), 0), 31)};
}

/* Adds how many of the numbers are at least `least`. */
template <int KEYS>
DEVICE void registers_count(uint32_t *n, const float (&x)[KEYS], float least, uint32_t each) {
#pragma unroll
    for (int j = 0; j < KEYS; j++)
        asm("{\n"
            ".reg .pred reaches;\n"
            "setp.ge.f32 reaches, %1, %2;\n"
            "@reaches add.u32 %0, %0, %3;\n"
            "}"
            : "+r"(*n)
            : "f"(x[j]), "f"(least), "r"(each));
}

/* Whether a row's cut is known without a search, and that cut. target: columns to choose that are not kept. */
DEVICE bool registers_known(const struct select_params &p, const struct select_row &row,
                            int32_t *target, registers_cut *cut) {
    *target = row.k - row.kept - (row.end - row.tail);
    if (p.shape.mode == TESS_SELECT_THRESHOLD)
        cut->least = select_score(select_stored(p.shape.bound, p.keys.bits), p.type);
    else if (*target <= 0)
        cut->least = NAN;
    else if (*target >= row.tail - row.kept)
        cut->least = -FLT_MAX;
    else
        return false;
    cut->above = cut->least, cut->ties = 0;
    return true;
}

/* ---- writing ---- */

/* Bits of columns first ... first + 31 that are kept. */
DEVICE uint32_t registers_kept(const struct select_row &row, int32_t first) {
    const auto below = [first](int32_t end) {
        return end - first >= 32 ? 0xffffffffu : end <= first ? 0 : (1u << (end - first)) - 1;
    };
    return below(row.kept) | (below(row.end) & ~below(row.tail));
}

/* Bits of a warp's columns: lane l has word 32 i + l, above the cut and equal to it; how many they are. */
template <int KEYS> struct registers_words {
    static constexpr int GROUPS = (KEYS + 31) / 32;
    uint32_t more[GROUPS], same[GROUPS];
    int32_t above, equal;
};

template <int KEYS>
DEVICE void registers_compare(registers_words<KEYS> *w, const float (&x)[KEYS], const select_at &at,
                              int32_t first, registers_cut cut) {
    const int lane = warp_lane();
#pragma unroll
    for (int i = 0; i < w->GROUPS; i++)
        w->more[i] = w->same[i] = 0;
#pragma unroll
    for (int j = 0; j < KEYS; j++) {
        const uint32_t word = __ballot_sync(WARP_ALL, x[j] >= cut.above);
        w->more[j / 32] = lane == j % 32 ? word : w->more[j / 32];
    }
    if (cut.ties)
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            const uint32_t word = __ballot_sync(WARP_ALL, x[j] >= cut.least);
            w->same[j / 32] = lane == j % 32 ? word : w->same[j / 32];
        }
    int32_t above = 0, equal = 0;
#pragma unroll
    for (int i = 0; i < w->GROUPS; i++) {
        w->same[i] &= ~w->more[i];
        if (32 * i + lane < KEYS && at.row.kept + at.row.end - at.row.tail > 0)
            w->more[i] |= registers_kept(at.row, first + 32 * (32 * i + lane));
        above += __popc(w->more[i]), equal += __popc(w->same[i]);
    }
    w->above = __reduce_add_sync(WARP_ALL, above);
    w->equal = cut.ties ? __reduce_add_sync(WARP_ALL, equal) : 0;
}

/* Writes a warp's columns; above, equal: columns of the row before them. */
template <int KEYS>
DEVICE void registers_write(const struct select_params &p, const select_at &at,
                            const registers_words<KEYS> &w, int32_t first, int32_t ties,
                            int32_t above, int32_t equal, uint16_t *stage) {
    select_progress done = {above + min(equal, ties), equal};
#pragma unroll 1
    for (int i = 0; i < w.GROUPS; i++)
        select_write<uint32_t>(p, at, &done, ties, first + 32 * (32 * i + warp_lane()),
                               i ? w.more[w.GROUPS - 1] : w.more[0],
                               i ? w.same[w.GROUPS - 1] : w.same[0], stage, KEYS - 32 * i);
}

#endif
