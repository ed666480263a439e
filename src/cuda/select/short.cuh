/* Choosing columns of short rows: a warp takes a row, whose scores stay in registers. */
#ifndef TESSERA_CUDA_SELECT_SHORT_CUH
#define TESSERA_CUDA_SELECT_SHORT_CUH

#include "select/team.cuh"

#define SHORT_WARPS 4   /* rows of a CTA at a time */
#define SHORT_KEYS 8    /* columns of a lane come by so many */
#define SHORT_MOST 1024 /* columns */

template <class S, int KEYS>
static __global__ void __launch_bounds__(32 * SHORT_WARPS)
    select_short(const __grid_constant__ struct select_params p) {
    __shared__ team_shared shared[SHORT_WARPS];
    __shared__ float slots[SHORT_WARPS][32 * KEYS];
    const int warp = (int)threadIdx.x / 32;
    const team t = {0, 1, &shared[warp], slots[warp]};
    const int64_t step = (int64_t)gridDim.x * SHORT_WARPS;
    for (int64_t number = (int64_t)blockIdx.x * SHORT_WARPS + warp; number < p.all;
         number += step) {
        const select_at at = select_at_of(p, number, sizeof(S));
        float x[KEYS];
        registers_load<S>(x, p, at, 0);
        registers_cut cut;
        int32_t target;
        if (!registers_known(p, at.row, &target, &cut))
            cut = team_cut<S>(p, at, t, x, 0, target);
        const int2 sum = registers_chosen(x, at, 0, cut);
        registers_write(p, at, x, 0, cut, make_int2(0, 0), sum.x);
        select_close(p, at, sum.x + min(sum.y, cut.ties), warp_lane(), 32);
        __syncwarp();
    }
}

#endif
