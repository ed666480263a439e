/* The fused backward: storing gradients, and adding those of split tiles up. */
#ifndef TESSERA_CUDA_GRADIENT_STORE_CUH
#define TESSERA_CUDA_GRADIENT_STORE_CUH

#include "backward/pair.cuh"
#include "backward/roles.cuh"

#define GRADIENT_COMBINE_THREADS 128
#define GRADIENT_COMBINE_ROWS (GRADIENT_COMBINE_THREADS / 32) /* rows of a thread block at a time */

/* Destination of a gradient's row: `d` elements, f32 or of the problem's type. */
struct gradient_row {
    void *data;
    int32_t d;
    float factor;
    bool wide, pairs; /* pairs: two elements are aligned */
};

/* Stores elements `dim` and dim + 1 of a row. */
template <class Out, bool PAIRS>
DEVICE void gradient_store_two(const struct gradient_row &to, int32_t dim, float x, float y) {
    struct alignas(2 * sizeof(Out)) {
        Out x, y;
    } two;
    Out *const row = static_cast<Out *>(to.data);
    from_f32(&two.x, x * to.factor);
    from_f32(&two.y, y * to.factor);
    if (PAIRS && dim + 1 < to.d) {
        *reinterpret_cast<decltype(two) *>(row + dim) = two;
        return;
    }
    if (dim < to.d)
        row[dim] = two.x;
    if (!PAIRS && dim + 1 < to.d)
        row[dim + 1] = two.y;
}

/* Row `row` of gradient i of a tile. */
DEVICE struct gradient_row gradient_row_of(const struct gradient_params &p, int i,
                                           const struct granule_item &item, int32_t head, int row,
                                           int size) {
    const struct rows_view &out = p.out[i];
    const int64_t at =
        item.batch * out.stride[0] + head * out.stride[1] + (item.row + row) * out.stride[2];
    return {static_cast<char *>(out.data) + at * (p.wide[i] ? (int)sizeof(float) : size), p.d[i],
            p.factor[i], p.wide[i], p.alignment >= 8};
}

/* Gradient i of a tile, or of a part in its slot. */
DEVICE float *gradient_slot(const struct gradient_params &p, int64_t slot, int i) {
    return p.slots + slot * p.slot_floats + (i ? (int64_t)p.tile_rows * p.slot_dims[0] : 0);
}

/* Stores rows of fragments: number r of this lane. */
template <class Out, bool PAIRS, class T, int D, int R>
DEVICE void gradient_store_row(const struct gradient_row &to, int r, int32_t first_dim,
                               const struct attention_state<T, D, R> &sums) {
#pragma unroll
    for (int d = 0; d < D / 8; d++)
        gradient_store_two<Out, PAIRS>(to, first_dim + 8 * d + warp_lane_here() % 4 * 2,
                                       sums.o[r / 2][d][r % 2 * 2],
                                       sums.o[r / 2][d][r % 2 * 2 + 1]);
}

/* Stores this warp's rows of gradient i. Rows of empty queries are 0, whatever their keys hold. */
template <class C>
DEVICE void gradient_store(const struct gradient_params &p, const typename C::lists &lists,
                           const struct granule_item &item, int i,
                           struct attention_state<typename C::T, C::SUMS, C::R> &sums) {
    using T = typename C::T;
    const int first = gradient_first_row<C>() + warp_lane_here() / 4;
    const int32_t first_dim = gradient_first_dim<C>(p);
    if (!p.out[i].data)
        return;
#pragma unroll
    for (int r = 0; r < C::R / 8; r++) {
        const int row = first + 8 * r;
        if (row >= item.rows)
            continue;
        struct gradient_row to = gradient_row_of(
            p, i, item, C::OVER_KEYS ? item.head_kv : item.head, row, (int)sizeof(T));
        if (item.slot >= 0)
            to = {gradient_slot(p, item.slot, i) + (int64_t)row * p.slot_dims[i], p.slot_dims[i], 1,
                  true, true};
        if (!C::OVER_KEYS && lists.known[row].base == INFINITY)
#pragma unroll
            for (int d = 0; d < C::SUMS / 8; d++)
                sums.o[r / 2][d][r % 2 * 2] = sums.o[r / 2][d][r % 2 * 2 + 1] = 0;
        if (to.wide && to.pairs)
            gradient_store_row<float, true>(to, r, first_dim, sums);
        else if (to.wide)
            gradient_store_row<float, false>(to, r, first_dim, sums);
        else if (to.pairs)
            gradient_store_row<T, true>(to, r, first_dim, sums);
        else
            gradient_store_row<T, false>(to, r, first_dim, sums);
    }
}

/* Stores what an item has, the job-th of this thread block. */
template <class C>
DEVICE void gradient_finish(const struct gradient_params &p, const typename C::lists &lists,
                            const struct granule_item &item, int32_t job,
                            struct gradient_sums<C> &sums) {
    if (C::MODIFIED && !C::OVER_KEYS && p.slopes) {
        const double share = warp_sum(sums.slope);
        const int64_t number = p.image.worker_ptr[blockIdx.x] + job;
        if (warp_lane_here() == 0)
            p.slopes[number * p.slope_warps + threadIdx.x / 32] = share;
    }
    if (C::SHARE > 1)
        gradient_store<C>(p, lists, item, C::OVER_KEYS ? gradient_side<C>() : 0, sums.first);
    else if (C::WANTED & GRADIENT_FIRST)
        gradient_store<C>(p, lists, item, 0, sums.first);
    if (C::SHARE == 1 && (C::WANTED & GRADIENT_SECOND))
        gradient_store<C>(p, lists, item, 1, sums.second);
}

/* Adds the parts of split tiles up, in their order. A warp takes a row. */
template <class T, bool OVER_KEYS>
static __global__ void __launch_bounds__(GRADIENT_COMBINE_THREADS)
    gradient_combine(const __grid_constant__ struct gradient_params p) {
    for (int64_t m = blockIdx.x; m < p.n_combines; m += gridDim.x) {
        const struct granule_item &combine = p.image.combines[m];
        for (int row = (int)(blockIdx.y * GRADIENT_COMBINE_ROWS + threadIdx.x / 32);
             row < combine.rows; row += (int)gridDim.y * GRADIENT_COMBINE_ROWS)
            for (int i = 0; i < 2; i++) {
                if (!p.out[i].data)
                    continue;
                const struct gradient_row to = gradient_row_of(
                    p, i, combine, OVER_KEYS ? combine.head_kv : combine.head, row, (int)sizeof(T));
                for (int32_t dim = 2 * warp_lane(); dim < to.d; dim += 64) {
                    float2 sum = {0, 0};
                    for (int part = 0; part < combine.parts; part++) {
                        const float2 x = *reinterpret_cast<const float2 *>(
                            gradient_slot(p, combine.slot + part, i) +
                            (int64_t)row * p.slot_dims[i] + dim);
                        sum.x += x.x, sum.y += x.y;
                    }
                    if (to.wide)
                        gradient_store_two<float, false>(to, dim, sum.x, sum.y);
                    else
                        gradient_store_two<T, false>(to, dim, sum.x, sum.y);
                }
            }
    }
}

template <class T, bool OVER_KEYS>
static cudaError_t gradient_combine_launch(const struct gradient_params *p, cudaStream_t stream) {
    const unsigned high =
        (unsigned)(p->tile_rows + GRADIENT_COMBINE_ROWS - 1) / GRADIENT_COMBINE_ROWS;
    void *arguments[] = {(void *)p};
    if (p->n_combines == 0)
        return cudaSuccess;
    return cudaLaunchKernel((const void *)gradient_combine<T, OVER_KEYS>,
                            dim3(attention_blocks(p->n_combines), high),
                            dim3(GRADIENT_COMBINE_THREADS), arguments, 0, stream);
}

#endif
