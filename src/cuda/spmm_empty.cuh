/* What the *_mma kernels of stage 3 leave to a second one: a row whose weights are all 0 is empty,
 * and 0 even where 0 * NaN was added up. */
#ifndef TESSERA_CUDA_SPMM_EMPTY_CUH
#define TESSERA_CUDA_SPMM_EMPTY_CUH

#include "device/grid.cuh"
#include "strip.cuh"

#define SPMM_EMPTY_WARPS 4

/* A warp looks at one row's outputs, and only where it finds NaN at its weights. */
template <class T>
static __global__ void __launch_bounds__(32 * SPMM_EMPTY_WARPS)
    spmm_empty(const __grid_constant__ struct cuda_params p) {
    const int64_t units = p.n_items * p.height, step = (int64_t)gridDim.x * SPMM_EMPTY_WARPS;
    for (int64_t number = (int64_t)blockIdx.x * SPMM_EMPTY_WARPS + threadIdx.x / 32; number < units;
         number += step) {
        const int64_t item = number / p.height, row = number - item * p.height;
        const struct strip s = strip_of(p, item);
        if (row >= s.rows)
            continue;
        const head_view<T> o = head_of<T>(p, p.o, s.b, s.h, p.d_v);
        T *out = o.data + (s.first + row) * o.stride;
        bool bad = false, weighty = false;
        for (int32_t dim = warp_lane(); dim < o.d; dim += 32)
            bad |= isnan(to_f32(out[dim]));
        if (!__any_sync(WARP_ALL, bad))
            continue;
        for (int64_t x = warp_lane(); x < s.width; x += 32)
            weighty |= s.values[row * s.width + x] != 0;
        if (__any_sync(WARP_ALL, weighty))
            continue;
        for (int32_t dim = warp_lane(); dim < o.d; dim += 32)
            from_f32(out + dim, 0.0f);
    }
}

/* What they are followed by, but for low block rows, whose kernels see to it themselves; `launched`
 * is how their own launch went. */
template <class T>
static cudaError_t spmm_empty_launch(cudaError_t launched, const struct cuda_params *p,
                                     cudaStream_t stream) {
    if (launched != cudaSuccess || p->height <= 8)
        return launched;
    return grid_launch(spmm_empty<T>, p->n_items * p->height, SPMM_EMPTY_WARPS,
                       32 * SPMM_EMPTY_WARPS, p, stream);
}

#endif
