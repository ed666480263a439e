/* Taking a part out of a merged result: lanes of a warp share a row, a piece of up to 16 bytes each. Memory is all
 * that it waits for. */
#ifndef TESSERA_CUDA_UNMERGE_CUH
#define TESSERA_CUDA_UNMERGE_CUH

#include "forward/merge.cuh"
#include "plan/unmerge_rules.h"

#define UNMERGE_THREADS 128
#define UNMERGE_ROWS 4     /* rows of a thread at once: their loads are issued together */
#define UNMERGE_BLOCKS 4   /* multiprocessor's, at least: registers for the rows, none spilled */
#define UNMERGE_GRID 65535 /* heads, and batches, of a grid at most */

/* N elements of a row at once: the address is aligned to as many, up to 16 bytes. */
template <class T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) unmerge_piece {
    T x[N];
};

/* Pieces are read and written once, and are to leave the caches first. */
template <class piece> DEVICE void unmerge_load(piece *to, const void *from) {
    if constexpr (sizeof(piece) % 16 == 0) {
#pragma unroll
        for (int i = 0; i < (int)sizeof(piece) / 16; i++)
            reinterpret_cast<uint4 *>(to)[i] = __ldcs(static_cast<const uint4 *>(from) + i);
    } else {
        *to = *static_cast<const piece *>(from);
    }
}
template <class piece> DEVICE void unmerge_store(void *to, const piece *from) {
    if constexpr (sizeof(piece) % 16 == 0) {
#pragma unroll
        for (int i = 0; i < (int)sizeof(piece) / 16; i++)
            __stcs(static_cast<uint4 *>(to) + i, reinterpret_cast<const uint4 *>(from)[i]);
    } else {
        *static_cast<piece *>(to) = *from;
    }
}

/* Rows first ... first + UNMERGE_ROWS - 1 of a head, by LANES lanes, N elements each at a time. Lanes look at the
 * lse of one row each, and tell the others. Rows past the last are loaded as the last one. */
template <class In, class Out, int N, int LANES>
DEVICE void unmerge_rows_of(const struct merge_params &p, int64_t b, int64_t h, int64_t first) {
    using in = unmerge_piece<In, N>;
    const int lane = (int)threadIdx.x % LANES;
    const int64_t mine = fill_least(first + lane % UNMERGE_ROWS, p.n - 1);
    const float whole = *view_row<float>(p.lse[0], b, h, mine);
    const float kept = *view_row<float>(p.lse[1], b, h, mine);
    struct unmerge_row all[UNMERGE_ROWS] = {}, own = {};
    for (int at = 0; at < p.d_v; at += LANES * N) {
        const int d = at + lane * N;
        in x[UNMERGE_ROWS], y[UNMERGE_ROWS];
#pragma unroll
        for (int r = 0; r < UNMERGE_ROWS; r++) {
            const int64_t row = fill_least(first + r, p.n - 1);
            if (d < p.d_v) {
                unmerge_load(&x[r], view_row<In>(p.o[0], b, h, row) + d);
                unmerge_load(&y[r], view_row<In>(p.o[1], b, h, row) + d);
            }
        }
        if (at == 0) {
            own = unmerge_row_of(whole, kept);
#pragma unroll
            for (int r = 0; r < UNMERGE_ROWS; r++) {
                all[r].kept = __shfl_sync(WARP_ALL, own.kept, r, LANES);
                all[r].inverse = __shfl_sync(WARP_ALL, own.inverse, r, LANES);
            }
        }
#pragma unroll
        for (int r = 0; r < UNMERGE_ROWS; r++) {
            unmerge_piece<Out, N> out;
#pragma unroll
            for (int i = 0; i < N; i++)
                from_f32(&out.x[i], unmerge_value(&all[r], to_f32(x[r].x[i]), to_f32(y[r].x[i])));
            if (d < p.d_v && first + r < p.n)
                unmerge_store(view_row<Out>(p.o_out, b, h, first + r) + d, &out);
        }
    }
    __syncwarp(); /* lse_out may stand where an lse does: all lanes have read it */
    if (lane < UNMERGE_ROWS && first + lane < p.n && p.lse_out.data)
        *view_row<float>(p.lse_out, b, h, first + lane) = own.lse;
}

/* Blocks of a grid: rows, heads, batches. Nothing is divided to find a block's place. */
template <class In, class Out, int N, int LANES>
static __global__ void __launch_bounds__(UNMERGE_THREADS, UNMERGE_BLOCKS)
    unmerge_rows(const __grid_constant__ struct merge_params p) {
    constexpr int ROWS = UNMERGE_THREADS / LANES * UNMERGE_ROWS;
    for (int64_t b = blockIdx.z; b * p.heads * p.n < p.rows; b += gridDim.z)
        for (int64_t h = blockIdx.y; h < p.heads; h += gridDim.y)
            for (int64_t first = (int64_t)blockIdx.x * ROWS; first < p.n;
                 first += (int64_t)gridDim.x * ROWS)
                unmerge_rows_of<In, Out, N, LANES>(p, b, h,
                                                   first + threadIdx.x / LANES * UNMERGE_ROWS);
}

template <class In, class Out, int N, int LANES>
static cudaError_t unmerge_launch_lanes(const struct merge_params *p, cudaStream_t stream) {
    constexpr int ROWS = UNMERGE_THREADS / LANES * UNMERGE_ROWS;
    const int64_t blocks = (p->n + ROWS - 1) / ROWS, batches = p->rows / p->n / p->heads;
    void *arguments[] = {(void *)p};
    return cudaLaunchKernel((const void *)unmerge_rows<In, Out, N, LANES>,
                            dim3((unsigned)(blocks < MERGE_BLOCKS ? blocks : MERGE_BLOCKS),
                                 (unsigned)(p->heads < UNMERGE_GRID ? p->heads : UNMERGE_GRID),
                                 (unsigned)(batches < UNMERGE_GRID ? batches : UNMERGE_GRID)),
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
