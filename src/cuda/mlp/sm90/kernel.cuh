/* The MLP on Hopper: the kernels and their launch. config.cuh describes them. */
#ifndef TESSERA_CUDA_MLP_SM90_KERNEL_CUH
#define TESSERA_CUDA_MLP_SM90_KERNEL_CUH

#include "device/launch.cuh"
#include "device/sm90/tensor_map.cuh"
#include "mlp/sm90/consumer.cuh"
#include "mlp/sm90/producer.cuh"
#include "work/launch.cuh"

template <class shape> DEVICE void mlp_sm90_barriers(uint32_t shared) {
    for (int i = 0; i < shape::STAGES; i++) {
        barrier_init(shared + shape::FULL + 8 * i, 128 + 1); /* copies, and TMA's bytes */
        barrier_init(shared + shape::EMPTY + 8 * i, shape::CONSUMERS);
    }
    for (int i = 0; i < MLP_SLOTS; i++) {
        barrier_init(shared + shape::TILE_FULL + 8 * i, 1);
        barrier_init(shared + shape::TILE_EMPTY + 8 * i, shape::THREADS / 32);
    }
    barrier_init_fence();
}

template <class T, class shape>
static __global__ void __launch_bounds__(shape::THREADS, 1)
    mlp_sm90(const __grid_constant__ struct mlp_params p,
             const __grid_constant__ struct mlp_sm90_maps maps, const int32_t width) {
    extern __shared__ __align__(1024) char memory[];
    const uint32_t shared = (uint32_t)sm90_uniform((int)shared_address(memory));
    if (threadIdx.x == 0) {
        mlp_sm90_barriers<shape>(shared);
        tma_prefetch_map(&maps.a);
    }
    __syncthreads();
    early_wait();
    early_next();
    const int role = sm90_uniform((int)threadIdx.x / 128);
    if (role > 0) {
        registers_claim<shape::CONSUMER_REGISTERS>();
        mlp_sm90_consume<shape, T>(memory, shared, p, role - 1);
    } else {
        registers_release<shape::PRODUCER_REGISTERS>();
        mlp_sm90_produce<shape, T>(memory, shared, p, maps, width);
    }
    if (shape::DOWN && p.filled && filled_foreign(p.lists))
        filled_store_nan(p.lists, (int)threadIdx.x, shape::THREADS);
}

/* Tiles of all lists, at most. */
static inline int64_t mlp_sm90_blocks(const struct mlp_params *p) {
    return p->filled ? p->lists.image.units : p->lists.run.n_items;
}

/* The width of DOWN's tiles. */
template <class shape> static inline int32_t mlp_sm90_width_down(const struct mlp_params *p) {
    const int64_t tiles = mlp_sm90_blocks(p);
    int64_t least = INT64_MAX;
    int32_t best = shape::WIDTH;
    for (int i = MLP_WIDTHS - 1; i >= 0; i--) {
        const int32_t width = mlp_width(i);
        const int64_t parts = (p->lists.run.d_v + width - 1) / width;
        const int64_t cost = mlp_width_cost(tiles * parts, width, p->lists.multiprocessors);
        if (width <= shape::WIDTH && cost < least)
            least = cost, best = width;
    }
    return best;
}

/* Maps of what a kernel loads by TMA; false where there are none. */
template <class T, class shape>
static inline bool mlp_sm90_maps_make(struct mlp_sm90_maps *maps, const struct mlp_params *p) {
    const struct attention_params *run = &p->lists.run;
    const sm90_encode encode = sm90_encode_find();
    const struct rows_view &weights = shape::DOWN ? run->v : run->k;
    maps->shared_weights = weights.stride[0] == 0;
    const int64_t batches = maps->shared_weights ? 1 : run->batch;
    const int64_t b[4] = {batches, 1, run->n_kv, shape::DOWN ? run->d_v : run->d_qk};
    const int64_t x[4] = {run->batch, 1, run->n_q, run->d_qk};
    const int64_t h[4] = {1, 1, mlp_sm90_blocks(p) * p->value_stride, shape::ROWS};
    struct rows_view values = {p->values, {0, 0, shape::ROWS}};
    const CUtensorMapDataType type = sm90_map_type(T());
    return encode &&
           (shape::DOWN ? h[2] == 0 || sm90_map_make(&maps->a, encode, type, values, h, 64)
                        : sm90_map_make(&maps->a, encode, type, run->q, x, shape::ROWS)) &&
           (!p->dense || sm90_map_make(&maps->b, encode, type, weights, b, 64));
}

/* Whether rows of W1 are within 2^36 bytes, as the producer addresses them, and places of all values are 32-bit
 * coordinates. */
static inline bool mlp_sm90_rows_addressed(const struct mlp_params *p) {
    const struct attention_params *run = &p->lists.run;
    return run->k.stride[2] >= 0 && run->n_kv * run->k.stride[2] / 8 < UINT32_MAX &&
           mlp_sm90_blocks(p) * p->value_stride <= INT32_MAX;
}

template <class T, class shape>
static cudaError_t mlp_sm90_launch_shape(const struct mlp_params *p, cudaStream_t stream) {
    const void *kernel = (const void *)mlp_sm90<T, shape>;
    struct mlp_sm90_maps maps = {};
    int32_t width = shape::DOWN ? mlp_sm90_width_down<shape>(p) : 0;
    void *arguments[] = {(void *)p, (void *)&maps, (void *)&width};
    if (mlp_sm90_blocks(p) == 0)
        return cudaSuccess;
    if (!mlp_sm90_maps_make<T, shape>(&maps, p))
        return cudaErrorInvalidValue; /* refused before */
    cudaError_t code = launch_shared<shape::BYTES>(kernel);
    if (!code)
        code = launch_early(kernel, dim3((unsigned)p->lists.multiprocessors), shape::THREADS,
                            shape::BYTES, arguments, stream);
    return code;
}

template <class T, bool DOWN>
static cudaError_t mlp_sm90_launch(const struct mlp_params *p, cudaStream_t stream) {
    const int32_t rows = p->lists.run.tile_rows;
    return rows == 64    ? mlp_sm90_launch_shape<T, mlp_sm90_shape<DOWN, 1>>(p, stream)
           : rows == 128 ? mlp_sm90_launch_shape<T, mlp_sm90_shape<DOWN, 2>>(p, stream)
                         : mlp_sm90_launch_shape<T, mlp_sm90_shape<DOWN, 3>>(p, stream);
}

/* Bytes of shared memory of a CTA. */
static inline int64_t mlp_sm90_shared(int32_t rows) {
    return rows == 64    ? mlp_sm90_shape<false, 1>::BYTES
           : rows == 128 ? mlp_sm90_shape<false, 2>::BYTES
                         : mlp_sm90_shape<false, 3>::BYTES;
}

/* NULL, or why a run's tensors have no tensor maps. */
template <class T>
static inline const char *mlp_sm90_refused(const struct mlp_params *p, bool down) {
    struct mlp_sm90_maps maps;
    if (!sm90_encode_find())
        return SM90_NO_ENCODE;
    const bool made = down ? mlp_sm90_maps_make<T, mlp_sm90_shape<true, 1>>(&maps, p)
                           : mlp_sm90_maps_make<T, mlp_sm90_shape<false, 1>>(&maps, p);
    return made && mlp_sm90_rows_addressed(p) ? NULL : SM90_NO_MAP;
}
static inline const char *mlp_sm90_refuses_run(const struct mlp_params *p, tess_type type,
                                               bool down) {
    return type == TESS_F16 ? mlp_sm90_refused<__half>(p, down)
                            : mlp_sm90_refused<__nv_bfloat16>(p, down);
}

#endif
