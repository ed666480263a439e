/* Taking a part out of a merged result: lanes of a warp share a row, a piece of up to 16 bytes each. Memory is all
 * that it waits for. */
#ifndef TESSERA_CUDA_UNMERGE_CUH
#define TESSERA_CUDA_UNMERGE_CUH

#include "forward/merge.cuh"
#include "plan/unmerge_rules.h"

#define UNMERGE_THREADS 256
#define UNMERGE_HEADS 65535 /* batches and heads of a grid at most */

/* N elements of a row at once: the address is aligned to as many, up to 16 bytes. */
template <class T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) unmerge_piece {
    T x[N];
};

/* LANES of a row, N elements each at a time. Rows past the last are those of lanes that only meet the others. */
template <class In, class Out, int N, int LANES>
static __global__ void __launch_bounds__(UNMERGE_THREADS)
    unmerge_rows(const __grid_constant__ struct merge_params p) {
    constexpr int ROWS = UNMERGE_THREADS / LANES;
    using in = unmerge_piece<In, N>;
    const int lane = (int)threadIdx.x % LANES;
    const int64_t pairs = p.rows / p.n; /* batches times heads */
    for (int64_t bh = blockIdx.y; bh < pairs; bh += gridDim.y) {
        const int64_t b = bh / p.heads, h = bh - b * p.heads;
        for (int64_t first = (int64_t)blockIdx.x * ROWS; first < p.n;
             first += (int64_t)gridDim.x * ROWS) {
            const int64_t n = first + threadIdx.x / LANES;
            const bool is = n < p.n;
            const int64_t row = is ? n : p.n - 1;
            const In *const whole = view_row<In>(p.o[0], b, h, row);
            const In *const kept = view_row<In>(p.o[1], b, h, row);
            Out *const rest = view_row<Out>(p.o_out, b, h, row);
            const struct unmerge_row shares = unmerge_row_of(*view_row<float>(p.lse[0], b, h, row),
                                                             *view_row<float>(p.lse[1], b, h, row));
            for (int d = lane * N; is && d < p.d_v; d += LANES * N) {
                const in x = *reinterpret_cast<const in *>(whole + d);
                const in y = *reinterpret_cast<const in *>(kept + d);
                unmerge_piece<Out, N> out;
#pragma unroll
                for (int i = 0; i < N; i++)
                    from_f32(&out.x[i], unmerge_value(&shares, to_f32(x.x[i]), to_f32(y.x[i])));
                *reinterpret_cast<unmerge_piece<Out, N> *>(rest + d) = out;
            }
            __syncwarp(); /* lse_out may stand where an lse does: all lanes have read it */
            if (is && lane == 0 && p.lse_out.data)
                *view_row<float>(p.lse_out, b, h, row) = shares.lse;
        }
    }
}

template <class In, class Out, int N, int LANES>
static cudaError_t unmerge_launch_lanes(const struct merge_params *p, cudaStream_t stream) {
    constexpr int ROWS = UNMERGE_THREADS / LANES;
    const int64_t blocks = (p->n + ROWS - 1) / ROWS, pairs = p->rows / p->n;
    void *arguments[] = {(void *)p};
    return cudaLaunchKernel((const void *)unmerge_rows<In, Out, N, LANES>,
                            dim3((unsigned)(blocks < MERGE_BLOCKS ? blocks : MERGE_BLOCKS),
                                 (unsigned)(pairs < UNMERGE_HEADS ? pairs : UNMERGE_HEADS)),
                            dim3(UNMERGE_THREADS), arguments, 0, stream);
}

/* Whether all rows are whole pieces of n elements, and aligned to them. */
static inline bool unmerge_pieces(const struct merge_params *p, int n, size_t in, size_t out) {
    const struct rows_view *const views[] = {&p->o[0], &p->o[1], &p->o_out};
    bool fit = p->d_v % n == 0;
    for (int i = 0; i < 3; i++) {
        const size_t bytes = (size_t)n * (i < 2 ? in : out);
        fit &= (uintptr_t)views[i]->data % (bytes < 16 ? bytes : 16) == 0;
        for (int j = 0; j < 3; j++)
            fit &= views[i]->stride[j] % n == 0;
    }
    return fit;
}

template <class In, class Out>
static cudaError_t unmerge_launch_types(const struct merge_params *p, cudaStream_t stream) {
    constexpr int N = 16 / (int)sizeof(In);
    return !unmerge_pieces(p, N, sizeof(In), sizeof(Out))
               ? unmerge_launch_lanes<In, Out, 1, 32>(p, stream)
           : p->d_v <= 8 * N  ? unmerge_launch_lanes<In, Out, N, 8>(p, stream)
           : p->d_v <= 16 * N ? unmerge_launch_lanes<In, Out, N, 16>(p, stream)
                              : unmerge_launch_lanes<In, Out, N, 32>(p, stream);
}

static inline cudaError_t unmerge_launch(const struct merge_params *p, tess_type in, tess_type out,
                                         cudaStream_t stream) {
    return merge_types(in, out, [&](auto from, auto to) {
        return unmerge_launch_types<decltype(from), decltype(to)>(p, stream);
    });
}

#endif
