/*
 * A bracket for the cut of a long row, from a sample: pieces of 16 bytes at a fixed stride, one of each lane. Scores that lie
 * at one place of their pieces make a set of 32, which a warp sorts:
 *
 *     lane      0   1   2  ...  31     pieces of a warp lie all over the row
 *     sorted    ▇   ▆   ▅  ...   ▁     about p + 1 of 33 reach place p, so the cut's share of the row has a place
 *
 * The bracket's ends are means of the scores at places before and behind the cut's. All CTAs of a cluster draw the same
 * sample, each by itself.
 */
#ifndef TESSERA_CUDA_SELECT_SAMPLE_CUH
#define TESSERA_CUDA_SELECT_SAMPLE_CUH

#include "select/rows.cuh"

#define SAMPLE_SURE 10.0f /* chosen scores of a sample, of which one is surely there */
#define SAMPLE_MOST 1e30f /* size of a score up to which means count it */

struct sample_shared {
    float sums[4][SELECT_WARPS]; /* scores at four places, by warps */
    uint32_t most[SELECT_WARPS]; /* keys */
};

/* Keys between which the cut lies, most likely. lo is the lowest key where no more is known, hi the highest. */
struct sample_bracket {
    uint32_t lo, hi;
};

/* A place between those of sorted sets of 32: so far behind `first`. */
struct sample_place {
    int first;
    float part;
};
DEVICE sample_place sample_place_of(float x) {
    const int first = min(max((int)floorf(x), 0), 30);
    return {first, fminf(fmaxf(x - (float)first, 0), 1)};
}

/* Places around that of a cut which so large a share reaches, three deviations of the mean of so many sets. Means of sorted
 * scores lie between the shares of an even distribution and of a normal one, (p + 1) / 33 and (p + 5/8) / 32 1/4. */
struct sample_places {
    sample_place low, high;
    bool lowest, highest; /* whether they lie past the last place, and before the first */
};
DEVICE sample_places sample_around(float share, int sets) {
    const float even = 33 * share - 1, normal = 32.25f * share - 0.625f;
    const float wide = 3 * sqrtf(__fdividef(32 * share * (1 - share), (float)sets)) + 0.1f;
    const float low = fmaxf(even, normal) + wide, high = fminf(even, normal) - wide;
    return {sample_place_of(low), sample_place_of(high), low > 31, high < 0};
}

/* Words of one or two keys, each in descending order over the lanes: a bitonic sort. */
template <class S> DEVICE uint32_t sample_sort(uint32_t x) {
    const int lane = warp_lane();
#pragma unroll
    for (int size = 2; size <= 32; size *= 2)
#pragma unroll
        for (int step = size / 2; step; step /= 2) {
            const uint32_t other = __shfl_xor_sync(WARP_ALL, x, step);
            const uint32_t low = sizeof(S) == 4 ? min(x, other) : __vminu2(x, other);
            const uint32_t high = sizeof(S) == 4 ? max(x, other) : __vmaxu2(x, other);
            x = !(lane & size) == !(lane & step) ? high : low;
        }
    return x;
}

/* Sum of the scores of a word's one or two keys. */
template <class S> DEVICE float sample_sum(uint32_t keys, tess_type type) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4 / (int)sizeof(S); i++) {
        const uint32_t key = sizeof(S) == 4 ? keys : keys >> 16 * i & 0xffff;
        const float x = select_score(select_stored(key, 8 * (int)sizeof(S)), type);
        sum += fminf(fmaxf(x, -SAMPLE_MOST), SAMPLE_MOST);
    }
    return sum;
}

/* The key of a number, or of one beside it. */
template <class S> DEVICE uint32_t sample_key(float x, tess_type type) {
    if (type == TESS_F16)
        return select_word_keys<uint16_t>(__half_as_ushort(__float2half_rn(x)), true) & 0xffff;
    return select_word_keys<uint32_t>(__float_as_uint(x), false) >> (32 - 8 * sizeof(S));
}

/* A number between two. */
DEVICE float sample_between(float first, float second, float part) {
    return first + part * (second - first);
}

/* The mean of the numbers of lanes, of which the first `n` have one; each counts for `sets`. */
DEVICE float sample_mean(float x, int n, int sets) {
    x = warp_lane() < n ? x : 0;
#pragma unroll
    for (int step = 16; step; step /= 2)
        x += __shfl_xor_sync(WARP_ALL, x, step);
    return __fdividef(x, (float)(n * sets));
}

/* The bracket of a row of which `target` of `all` are to be chosen. Ends with no barrier. */
template <class S>
DEVICE sample_bracket sample_draw(const struct select_params &p, const select_at &at,
                                  sample_shared *s, float target) {
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = warp_lane();
    const int each = 16 / (int)sizeof(S);
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(at.scores) + 15) / 16 * 16;
    const int64_t left =
        reinterpret_cast<uintptr_t>(static_cast<const S *>(at.scores) + max(at.row.end, 0)) - begin;
    const uint32_t pieces = (uint32_t)max(left / 16, (int64_t)0);
    const uint64_t place =
        (uint64_t)(uint32_t)(lane * warps + warp) * pieces / (32 * (uint32_t)warps);
    const uint4 *const from = reinterpret_cast<const uint4 *>(begin) + place;
    const uint4 x = pieces ? *from : make_uint4(0, 0, 0, 0);
    const uint32_t given[4] = {x.x, x.y, x.z, x.w};
    const float share = fminf(__fdividef(target, (float)max(at.row.end, 1)), 1);
    const sample_places around = sample_around(share, warps * each);
    uint32_t most = 0;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t keys = sample_sort<S>(select_word_keys<S>(given[i], p.type == TESS_F16));
        sum += sample_sum<S>(keys, p.type);
        most = max(most, sizeof(S) == 4 ? keys : max(keys & 0xffff, keys >> 16));
    }
    const int places[4] = {around.low.first, around.low.first + 1, around.high.first,
                           around.high.first + 1};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float x_at = __shfl_sync(WARP_ALL, sum, places[i]);
        if (lane == 0)
            s->sums[i][warp] = x_at;
    }
    if (lane == 0)
        s->most[warp] = most;
    __syncthreads();
    const float least = sample_between(s->sums[0][lane], s->sums[1][lane], around.low.part);
    const float above = sample_between(s->sums[2][lane], s->sums[3][lane], around.high.part);
    sample_bracket b = {sample_key<S>(sample_mean(least, warps, each), p.type),
                        sample_key<S>(sample_mean(above, warps, each), p.type)};
    most = __reduce_max_sync(WARP_ALL, lane < warps ? s->most[lane] : 0);
    if (around.highest)
        b.hi = share * (float)(32 * each * warps) > SAMPLE_SURE ? most : p.keys.high;
    if (around.lowest)
        b.lo = p.keys.low;
    b.lo = min(max(b.lo, p.keys.low), p.keys.high);
    b.hi = min(max(b.hi, b.lo), p.keys.high);
    return b;
}

#endif
