/* The backward: statistics of each query (struct query_stats), from dO and o or from a given delta, and the
 * gradient of the sinks. A warp takes a query. */
#ifndef TESSERA_CUDA_GRADIENT_DELTA_CUH
#define TESSERA_CUDA_GRADIENT_DELTA_CUH

#include "device/convert.cuh"
#include "device/warp.cuh"
#include "host/backward.h"

#include <cuda_runtime.h>

#define DELTA_WARPS 4
#define DELTA_BLOCKS (1 << 30) /* CTAs of a grid at most */
#define DELTA_LOG2_E 1.4426950408889634

/* A query: its head h of all batches, and its number. */
struct delta_query {
    int64_t b, h, i;
};

template <class T> DEVICE T *delta_row(const struct rows_view &view, const struct delta_query &q) {
    return static_cast<T *>(view.data) + q.b * view.stride[0] + q.h * view.stride[1] +
           q.i * view.stride[2];
}

DEVICE double delta_number(const struct rows_view &view, const struct delta_query &q) {
    return view.data ? (double)*delta_row<float>(view, q) : 0;
}

/* This lane's part of the product of two rows, in double. */
template <class X, class Y>
DEVICE double delta_dot(const X *x, const Y *y, int32_t d, bool x_vector, bool y_vector) {
    const row_view<X> of_x = {x, d, x_vector};
    const row_view<Y> of_y = {y, d, y_vector};
    double sum = 0;
    for (int32_t at = 4 * warp_lane(); at < d; at += 128) {
        const float4 a = row_load4(of_x, at), b = row_load4(of_y, at);
        sum += (double)a.x * b.x + (double)a.y * b.y + ((double)a.z * b.z + (double)a.w * b.w);
    }
    return sum;
}

/* dO . o, in all lanes. */
template <class T, class O>
DEVICE double delta_product(const struct delta_params &p, const struct delta_query &q) {
    if (p.delta.data && p.stats.delta)
        return delta_number(p.delta, q) + delta_number(p.d_lse, q);
    const T *d_o = delta_row<T>(p.d_o, q);
    double sum = delta_dot(d_o, delta_row<O>(p.o, q), p.d_v, p.vector, p.o_vector);
    if (p.o_rest.data)
        sum += delta_dot(d_o, delta_row<T>(p.o_rest, q), p.d_v, p.vector, p.vector);
    return warp_sum(sum);
}

/* Fills what is known of a query; answers its share of the sink's gradient. */
template <class T, class O>
DEVICE double delta_run(const struct delta_params &p, const struct delta_query &q) {
    const int64_t at = (q.b * p.heads_q + q.h) * p.n_q + q.i;
    const double lse = delta_number(p.lse, q);
    double left = 1, taken = 0, product = 0, delta = 0;
    const bool empty = isinf(lse);
    if (!empty) {
        product = delta_product<T, O>(p, q);
        if (p.sink) {
            const double more = (double)p.sink[q.h] - lse;
            left = 1 / (1 + exp(more));
            taken = 1 / (1 + exp(-more));
        }
        delta = left * product - delta_number(p.d_lse, q);
    }
    if (warp_lane() == 0) {
        p.stats.base[at] = empty ? INFINITY : (float)(lse * DELTA_LOG2_E);
        p.stats.left[at] = (float)left;
        p.stats.delta[at] = (float)delta;
    }
    return empty ? 0 : -taken * product;
}

template <class T, class O>
static __global__ void __launch_bounds__(32 * DELTA_WARPS)
    delta_rows(const __grid_constant__ struct delta_params p) {
    __shared__ double shares[DELTA_WARPS];
    const int warp = (int)threadIdx.x / 32;
    for (int64_t chunk = blockIdx.x; chunk < p.heads * p.chunks; chunk += gridDim.x) {
        const int64_t head = chunk / p.chunks, first = chunk % p.chunks * DELTA_ROWS;
        double share = 0;
        for (int64_t i = first + warp; i < p.n_q && i < first + DELTA_ROWS; i += DELTA_WARPS) {
            const struct delta_query q = {head / p.heads_q, head % p.heads_q, i};
            if (p.stats.delta) {
                share += delta_run<T, O>(p, q);
            } else {
                const double delta = delta_product<T, O>(p, q) - delta_number(p.d_lse, q);
                if (warp_lane() == 0)
                    *delta_row<float>(p.delta, q) = (float)delta;
            }
        }
        if (!p.sums)
            continue;
        if (warp_lane() == 0)
            shares[warp] = share;
        __syncthreads();
        if (threadIdx.x == 0) {
            double sum = 0;
            for (int w = 0; w < DELTA_WARPS; w++)
                sum += shares[w];
            p.sums[chunk] = sum;
        }
        __syncthreads();
    }
}

/* The gradient of a sink: a warp adds the shares of a head, always in one order. */
static __global__ void __launch_bounds__(32)
    delta_sinks(const __grid_constant__ struct delta_params p) {
    const int64_t h = blockIdx.x, batches = p.heads / p.heads_q;
    double sum = 0;
    for (int64_t b = 0; b < batches; b++)
        for (int64_t c = warp_lane(); c < p.chunks; c += 32)
            sum += p.sums[(b * p.heads_q + h) * p.chunks + c];
    sum = warp_sum(sum);
    if (warp_lane() == 0)
        p.d_sink[h] = (float)sum;
}

template <class T, class O>
static cudaError_t delta_launch_types(const struct delta_params *p, cudaStream_t stream) {
    const int64_t chunks = p->heads * p->chunks;
    void *arguments[] = {(void *)p};
    const cudaError_t code =
        cudaLaunchKernel((const void *)delta_rows<T, O>,
                         dim3((unsigned)(chunks < DELTA_BLOCKS ? chunks : DELTA_BLOCKS)),
                         dim3(32 * DELTA_WARPS), arguments, 0, stream);
    if (code || !p->sums)
        return code;
    return cudaLaunchKernel((const void *)delta_sinks, dim3((unsigned)p->heads_q), dim3(32),
                            arguments, 0, stream);
}

template <class T>
static cudaError_t delta_launch_of(const struct delta_params *p, cudaStream_t stream) {
    return p->o_type == TESS_F32 ? delta_launch_types<T, float>(p, stream)
                                 : delta_launch_types<T, T>(p, stream);
}

static inline cudaError_t delta_launch(const struct delta_params *p, cudaStream_t stream) {
    return p->type == TESS_F32   ? delta_launch_of<float>(p, stream)
           : p->type == TESS_F16 ? delta_launch_of<__half>(p, stream)
                                 : delta_launch_of<__nv_bfloat16>(p, stream);
}

#endif
