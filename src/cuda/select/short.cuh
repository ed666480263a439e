/* Choosing columns of short rows: a warp takes a row, whose keys stay in registers, and finds the cut bit by bit. */
#ifndef TESSERA_CUDA_SELECT_SHORT_CUH
#define TESSERA_CUDA_SELECT_SHORT_CUH

#include "select/row.cuh"

#define SHORT_WARPS 4  /* rows of a CTA at a time */
#define SHORT_CHUNKS 4 /* at most in a row */

/* How many of a warp's keys are at least `least`. */
template <int KEYS> DEVICE int32_t short_count(const uint32_t (&key)[KEYS], uint32_t least) {
    int32_t n = 0;
#pragma unroll
    for (int i = 0; i < KEYS; i++)
        n += key[i] >= least;
    return __reduce_add_sync(WARP_ALL, n);
}

/* The highest key that `target` keys reach, sought between the counts at two keys: in turns where a line through them
 * meets the target, and in their middle. The search ends early where just as many do. */
template <int KEYS>
DEVICE select_cut short_cut(const uint32_t (&key)[KEYS], uint32_t low, int32_t target) {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < KEYS; i++)
        most = max(most, key[i]);
    most = __reduce_max_sync(WARP_ALL, most);
    uint32_t from = low, to = most; /* at least target keys reach `from`, fewer are above `to` */
    int32_t reach = short_count(key, low), above = 0;
    if (reach <= target)
        return {low - 1, 0}; /* no more can be chosen */
    for (bool line = true; from < to; line = !line) {
        const uint32_t width = to - from;
        const float share = (float)(reach - target) / (float)(reach - above);
        const uint32_t step = line ? min((uint32_t)((float)width * share), width - 1) : width / 2;
        const uint32_t least = from + step + 1;
        const int32_t n = short_count(key, least);
        if (n == target)
            return {least - 1, 0};
        if (n > target)
            from = least, reach = n;
        else
            to = least - 1, above = n;
    }
    return {from, target - above};
}

template <class S, int CHUNKS>
static __global__ void __launch_bounds__(32 * SHORT_WARPS)
    select_short(const __grid_constant__ struct select_params p) {
    __shared__ uint16_t stage[SHORT_WARPS][SELECT_STAGE<uint8_t>];
    const int bits = 8 * (int)sizeof(S);
    const int64_t step = (int64_t)gridDim.x * SHORT_WARPS;
    for (int64_t number = (int64_t)blockIdx.x * SHORT_WARPS + threadIdx.x / 32; number < p.all;
         number += step) {
        const select_at at = select_at_of(p, number, sizeof(S));
        uint32_t key[CHUNKS * SELECT_LANE];
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            const int32_t first = i * SELECT_CHUNK + warp_lane() * SELECT_LANE;
            const uint32_t kept = select_kept(at, first);
            select_piece<S> x;
            select_load(&x, at, p.whole, first);
            select_keys_make(&x, p.type == TESS_F16);
#pragma unroll
            for (int c = 0; c < SELECT_LANE; c++)
                key[i * SELECT_LANE + c] = kept >> c & 1 ? SELECT_KEPT(bits) : x.get(c);
        }
        select_cut cut = {p.shape.bound - 1, 0};
        if (p.shape.mode == TESS_SELECT_EXACT && at.row.k)
            cut = short_cut(key, p.keys.low, at.row.k);
        else if (p.shape.mode == TESS_SELECT_EXACT)
            cut = {SELECT_KEPT(bits), 0};
        select_progress done = {0, 0};
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            uint32_t above = 0, equal = 0;
#pragma unroll
            for (int c = 0; c < SELECT_LANE; c++) {
                above |= (uint32_t)(key[i * SELECT_LANE + c] > cut.key) << c;
                equal |= (uint32_t)(key[i * SELECT_LANE + c] == cut.key) << c;
            }
            select_write<uint8_t>(p, at, &done, cut.ties,
                                  i * SELECT_CHUNK + warp_lane() * SELECT_LANE, above,
                                  cut.ties ? equal : 0, stage[threadIdx.x / 32]);
        }
        select_close(p, at, done.chosen, warp_lane(), 32);
    }
}

#endif
