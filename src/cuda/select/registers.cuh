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
    if (first + 32 * KEYS <= at.row.end)
#pragma unroll
        for (int j = 0; j < KEYS; j++)
            x[j] = registers_score(from[32 * j], p.type == TESS_F16);
    else
#pragma unroll
        for (int j = 0; j < KEYS; j++)
            x[j] = 32 * j < at.row.end - column ? registers_score(from[32 * j], p.type == TESS_F16)
                                                : NAN;
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

/* The lowest and the highest key of a lane's numbers. */
template <int KEYS>
DEVICE void registers_bounds(const float (&x)[KEYS], uint32_t *least, uint32_t *most) {
    float low = INFINITY, high = -INFINITY;
#pragma unroll
    for (int j = 0; j < KEYS; j++)
        low = fminf(low, x[j]), high = fmaxf(high, x[j]);
    *least = registers_key(low), *most = registers_key(high);
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

/* Whether some of a warp's columns are kept. */
template <int KEYS> DEVICE bool registers_keep(const struct select_row &row, int32_t first) {
    return first < row.kept || first + 32 * KEYS > row.tail;
}

/* How many of a warp's columns are above the cut, and equal to it. */
template <int KEYS>
DEVICE int2 registers_chosen(const float (&x)[KEYS], const select_at &at, int32_t first,
                             registers_cut cut) {
    const int32_t column = first + 32 * warp_lane();
    uint32_t above = 0, least = 0;
    registers_count(&above, x, cut.above, 1);
    if (cut.ties)
        registers_count(&least, x, cut.least, 1);
    const int32_t equal = cut.ties ? (int32_t)(least - above) : 0;
    if (registers_keep<KEYS>(at.row, first) && warp_lane() < KEYS)
        above += (uint32_t)__popc(registers_kept(at.row, column));
    return make_int2(__reduce_add_sync(WARP_ALL, (int32_t)above),
                     cut.ties ? __reduce_add_sync(WARP_ALL, equal) : 0);
}

/* Writes a warp's columns; before: columns of the row before them, above the cut and equal to it. PLAIN: none is kept, there
 * are no ties, all find room, and no bits are asked for. */
template <bool PLAIN, int KEYS>
DEVICE void registers_put(const struct select_params &p, const select_at &at,
                          const float (&x)[KEYS], int32_t first, registers_cut cut, int2 before) {
    const int lane = warp_lane();
    const uint32_t own = 1u << lane, lower = own - 1;
    const int32_t capacity = (int32_t)p.shape.capacity, listed = p.indices ? capacity : 0;
    int32_t *const indices = p.indices + at.number * capacity;
    uint32_t *const bits = reinterpret_cast<uint32_t *>(p.bits + at.number * p.shape.words);
    int32_t ties = before.y, chosen = before.x + min(ties, cut.ties);
    uint32_t words = 0;
#pragma unroll
    for (int j = 0; j < KEYS; j++) {
        bool more = x[j] >= cut.above;
        uint32_t word = __ballot_sync(WARP_ALL, more);
        if (!PLAIN) {
            const uint32_t equal = __ballot_sync(WARP_ALL, x[j] >= cut.least) & ~word;
            more |= (equal & own) && ties + __popc(equal & lower) < cut.ties;
            ties += __popc(equal);
            more |= registers_kept(at.row, first + 32 * j) & own;
            word = __ballot_sync(WARP_ALL, more);
        }
        const int32_t to = chosen + __popc(word & lower);
        if (more && (PLAIN || to < listed))
            indices[to] = first + 32 * j + lane;
        chosen += __popc(word);
        if (!PLAIN && p.bits) {
            const uint32_t fits = __ballot_sync(WARP_ALL, to < capacity);
            words = lane == j % 32 ? word & fits : words;
            const int32_t place = first / 32 + j / 32 * 32 + lane;
            if ((j % 32 == 31 || j + 1 == KEYS) && lane <= j % 32 && place < 2 * p.shape.words)
                bits[place] = words;
        }
    }
}
template <int KEYS>
DEVICE void registers_write(const struct select_params &p, const select_at &at,
                            const float (&x)[KEYS], int32_t first, registers_cut cut, int2 before,
                            int32_t own) {
    const bool fits = before.x + own <= p.shape.capacity;
    if (p.indices && !p.bits && !cut.ties && fits && !registers_keep<KEYS>(at.row, first))
        registers_put<true>(p, at, x, first, cut, before);
    else
        registers_put<false>(p, at, x, first, cut, before);
}

#endif
