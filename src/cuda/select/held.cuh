/*
 * Choosing columns of rows that a CTA's registers hold, each read once: its warps are a team, and have KEYS x 32 columns
 * each that lie together, so that one sum for each warp orders all.
 */
#ifndef TESSERA_CUDA_SELECT_HELD_CUH
#define TESSERA_CUDA_SELECT_HELD_CUH

#include "select/team.cuh"

/* Threads that a CTA has at most: registers of a multiprocessor, up to 80 of a thread with many scores. */
template <int KEYS> static constexpr int HELD_THREADS = KEYS <= 16 ? 1024 : 768;

template <class S, int KEYS>
static __global__ void __launch_bounds__(HELD_THREADS<KEYS>)
    select_held(const __grid_constant__ struct select_params p) {
    extern __shared__ uint4 select_memory[]; /* slots */
    __shared__ team_shared shared;
    __shared__ uint32_t chosen[2][TEAM_WARPS]; /* columns above the cut, and equal to it */
    const int warp = (int)threadIdx.x / 32;
    const int32_t first = warp * 32 * KEYS;
    const team t = {warp, (int)blockDim.x / 32, &shared,
                    reinterpret_cast<float *>(select_memory) + first};
    for (int64_t number = blockIdx.x; number < p.all; number += gridDim.x) {
        const select_at at = select_at_of(p, number, sizeof(S));
        float x[KEYS];
        registers_load<S>(x, p, at, first);
        registers_cut cut;
        int32_t target;
        if (!registers_known(p, at.row, &target, &cut))
            cut = team_cut<S>(p, at, t, x, first, target);
        const int2 own = registers_chosen(x, at, first, cut);
        if (warp_lane() == 0)
            chosen[0][warp] = (uint32_t)own.x, chosen[1][warp] = (uint32_t)own.y;
        __syncthreads();
        const bool counts = warp_lane() < t.warps;
        int32_t sum[2];
        int32_t above = warp_before(counts ? (int32_t)chosen[0][warp_lane()] : 0, &sum[0]);
        int32_t equal = warp_before(counts ? (int32_t)chosen[1][warp_lane()] : 0, &sum[1]);
        above = __shfl_sync(WARP_ALL, above, warp), equal = __shfl_sync(WARP_ALL, equal, warp);
        registers_write(p, at, x, first, cut, make_int2(above, equal), own.x);
        select_close(p, at, sum[0] + min(sum[1], cut.ties), (int32_t)threadIdx.x,
                     (int32_t)blockDim.x);
        __syncthreads(); /* all have read the sums */
    }
}

#endif
