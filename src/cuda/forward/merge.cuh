/* Merging partial results: a warp for each row. */
#ifndef TESSERA_CUDA_MERGE_CUH
#define TESSERA_CUDA_MERGE_CUH

#include "host/merge.h"
#include "device/convert.cuh"
#include "device/warp.cuh"
#include "work/views.cuh"

#include <cuda_runtime.h>

#define MERGE_WARPS 4          /* rows of a block at a time */
#define MERGE_BLOCKS (1 << 16) /* CTAs of a grid at most */

/* An empty part has no weight, and its o is not read. */
template <class In, class Out>
static __global__ void __launch_bounds__(32 * MERGE_WARPS)
    merge_rows(const __grid_constant__ struct merge_params p) {
    const int64_t step = (int64_t)gridDim.x * MERGE_WARPS;
    for (int64_t row = (int64_t)blockIdx.x * MERGE_WARPS + threadIdx.x / 32; row < p.rows;
         row += step) {
        const int64_t b = row / p.n / p.heads, h = row / p.n % p.heads, n = row % p.n;
        float m = -INFINITY, l = 0;
        for (int part = 0; part < p.parts; part++)
            m = fmaxf(m, *view_row<float>(p.lse[part], b, h, n));
        for (int part = 0; part < p.parts; part++) {
            const float lse = *view_row<float>(p.lse[part], b, h, n);
            l += lse == -INFINITY ? 0.0f : expf(lse - m);
        }
        Out *out = view_row<Out>(p.o_out, b, h, n);
        for (int d = warp_lane(); d < p.d_v; d += 32) {
            float sum = 0;
            for (int part = 0; part < p.parts; part++) {
                const float lse = *view_row<float>(p.lse[part], b, h, n);
                if (lse != -INFINITY)
                    sum += expf(lse - m) * to_f32(view_row<In>(p.o[part], b, h, n)[d]);
            }
            from_f32(&out[d], l == 0 ? 0.0f : sum / l);
        }
        __syncwarp(); /* lse_out may stand where an lse does: all lanes have read it */
        if (warp_lane() == 0 && p.lse_out.data)
            *view_row<float>(p.lse_out, b, h, n) = l == 0 ? -INFINITY : m + logf(l);
    }
}

template <class In, class Out>
static cudaError_t merge_launch_types(const struct merge_params *p, cudaStream_t stream) {
    const int64_t blocks = (p->rows + MERGE_WARPS - 1) / MERGE_WARPS;
    void *arguments[] = {(void *)p};
    return cudaLaunchKernel((const void *)merge_rows<In, Out>,
                            dim3((unsigned)(blocks < MERGE_BLOCKS ? blocks : MERGE_BLOCKS)),
                            dim3(32 * MERGE_WARPS), arguments, 0, stream);
}

/* Calls take(In(), Out()) for the types of the parts' o and of o_out. */
template <class In, class takes>
static inline cudaError_t merge_types_from(tess_type out, const takes &take) {
    return out == TESS_F32   ? take(In(), float())
           : out == TESS_F16 ? take(In(), __half())
                             : take(In(), __nv_bfloat16());
}
template <class takes>
static inline cudaError_t merge_types(tess_type in, tess_type out, const takes &take) {
    return in == TESS_F32   ? merge_types_from<float>(out, take)
           : in == TESS_F16 ? merge_types_from<__half>(out, take)
                            : merge_types_from<__nv_bfloat16>(out, take);
}

static inline cudaError_t merge_launch(const struct merge_params *p, tess_type in, tess_type out,
                                       cudaStream_t stream) {
    return merge_types(in, out, [&](auto from, auto to) {
        return merge_launch_types<decltype(from), decltype(to)>(p, stream);
    });
}

#endif
