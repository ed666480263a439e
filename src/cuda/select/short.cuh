/* Choosing columns of short rows: a warp takes a row, whose keys stay in registers, and finds the cut bit by bit. */
#ifndef TESSERA_CUDA_SELECT_SHORT_CUH
#define TESSERA_CUDA_SELECT_SHORT_CUH

#include "select/row.cuh"

#define SHORT_WARPS 4  /* rows of a CTA at a time */
#define SHORT_CHUNKS 4 /* at most in a row */

/* How many of a warp's keys are at least `least`. */
template <int KEYS>
static __device__ __forceinline__ int32_t short_count(const uint32_t (&key)[KEYS], uint32_t least) {
    int32_t n = 0;
#pragma unroll
    for (int i = 0; i < KEYS; i++)
        n += key[i] >= least;
    return __reduce_add_sync(WARP_ALL, n);
}

/* The highest key that `target` keys reach; where just as many do, the search ends early. */
template <int KEYS>
static __device__ __forceinline__ select_cut short_cut(const uint32_t (&key)[KEYS], int bits,
                                                       uint32_t low, int32_t target) {
    uint32_t cut = 0;
    for (int bit = bits - 1; bit >= 0; bit--) {
        const uint32_t least = cut | 1u << bit;
        const int32_t n = short_count(key, least);
        if (n == target && least >= low)
            return {least - 1, 0};
        cut = n >= target ? least : cut;
    }
    if (cut < low) /* fewer can be chosen */
        return {low - 1, 0};
    return {cut, cut == UINT32_MAX ? target : target - short_count(key, cut + 1)};
}

template <class S, int CHUNKS>
static __global__ void __launch_bounds__(32 * SHORT_WARPS)
    select_short(const __grid_constant__ struct select_params p) {
    const int bits = 8 * (int)sizeof(S);
    const int64_t step = (int64_t)gridDim.x * SHORT_WARPS;
    for (int64_t number = (int64_t)blockIdx.x * SHORT_WARPS + threadIdx.x / 32; number < p.all;
         number += step) {
        const select_at at = select_at_of(p, number, sizeof(S));
        uint32_t key[CHUNKS * SELECT_LANE];
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            const int32_t first = i * SELECT_CHUNK + warp_lane() * SELECT_LANE;
            const uint32_t kept = select_kept_bits(at.row, first);
            select_piece<S> x;
            select_load(&x, at, p.whole, first);
            select_keys_make(&x, p.type == TESS_F16);
#pragma unroll
            for (int c = 0; c < SELECT_LANE; c++)
                key[i * SELECT_LANE + c] = kept >> c & 1 ? SELECT_KEPT(bits) : x.get(c);
        }
        select_cut cut = {p.shape.bound - 1, 0};
        if (p.shape.mode == TESS_SELECT_EXACT && at.row.k)
            cut = short_cut(key, bits, p.keys.low, at.row.k);
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
                                  cut.ties ? equal : 0);
        }
        select_close(p, at, done.chosen, warp_lane(), 32);
    }
}

#endif
