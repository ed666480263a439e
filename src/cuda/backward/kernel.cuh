/*
 * The fused backward with mma.sync: one tile by one thread block, over the granules that it lists; and
 * its launch. Over keys an item is several pieces, one for each query head that reads its keys: sums
 * run on from the first to the last.
 *
 * Three steps are in flight, and run on from piece to piece:
 *
 *   round        n               n + 1           n + 2
 *   step i       looked up       gathered        computed
 *   step i + 1                   looked up       gathered      ...
 *
 * An item without keys is one step in which nothing is listed: it writes zeros.
 */
#ifndef TESSERA_CUDA_GRADIENT_KERNEL_CUH
#define TESSERA_CUDA_GRADIENT_KERNEL_CUH

#include "backward/gather.cuh"
#include "backward/store.cuh"
#include "device/launch.cuh"

/* Waits for the stage of round n. Answers whether some of its queries were empty, which are then zeros and
 * listed nowhere. */
template <class C> DEVICE bool gradient_wait(uint32_t shared, typename C::lists &lists, int n) {
    cp_async_wait_all();
    if (!C::OVER_KEYS) {
        __syncthreads();
        return false;
    }
    if (!__syncthreads_or(gradient_some_empty<C>(lists, n & 1)))
        return false;
    gradient_clear_empty<C>(shared, lists, n & 1, lists.steps[(n + 2) & 3].is & STEP_MASKED);
    __syncthreads();
    return true;
}

/* Gathers the step after that of round n. */
template <class C>
DEVICE void gradient_gather(uint32_t shared, typename C::lists &lists,
                            const struct gradient_params &p, int n) {
    const struct gradient_cursor &fill = lists.steps[(n + 3) & 3];
    if (fill.is & STEP_SOME)
        gradient_fill<C>(shared, n & 1 ^ 1, p, lists, fill);
}

/* Whether this warp gathers in the midst of its computation. One of a scheduler's two warps gathers then, so
 * that one has products while the other has none. */
template <class C> DEVICE bool gradient_gathers_late(void) {
    return C::SHARE > 1 && !C::ROLES && threadIdx.x >= 128;
}

/* Round n before its computation: gathers a step, looks another up. */
template <class C>
DEVICE void gradient_round(uint32_t shared, typename C::lists &lists,
                           const struct gradient_params &p, int n) {
    struct gradient_cursor &look = lists.steps[n & 3];
    if (!gradient_gathers_late<C>() || !(lists.steps[(n + 2) & 3].is & STEP_SOME))
        gradient_gather<C>(shared, lists, p, n);
    if (look.job < lists.n_jobs)
        gradient_fetch_step<C>(lists, p, n & 1, look, lists.n_jobs);
    if (threadIdx.x == blockDim.x - 1)
        gradient_plan_step<C>(look, lists.steps[(n + 1) & 3], lists, p);
}

/* Shared memory holds the addresses of the pieces too: registers are for sums. */
template <class C>
static __global__ void __launch_bounds__(C::THREADS, C::BLOCKS)
    gradient_tiles(const __grid_constant__ struct gradient_params p) {
    extern __shared__ __align__(128) char memory[];
    const uint32_t shared = shared_address(memory);
    auto &lists = *reinterpret_cast<typename C::lists *>(memory + C::LISTS);
    const int64_t job = p.image.worker_ptr[blockIdx.x];
    const int32_t jobs = (int32_t)(p.image.worker_ptr[blockIdx.x + 1] - job);
    struct gradient_sums<C> sums;
    if (threadIdx.x < 4)
        lists.steps[threadIdx.x] = {0, threadIdx.x == 0 ? 0 : -1};
    if (threadIdx.x == 0)
        lists.n_jobs = jobs;
    if (jobs)
        attention_fetch_job(lists.jobs[0], p, job);
#pragma unroll 1
    for (int n = 0;; n++) {
        const bool empty = gradient_wait<C>(shared, lists, n);
        const struct gradient_cursor &compute = lists.steps[(n + 2) & 3];
        const struct gradient_cursor &coming = lists.steps[(n + 3) & 3];
        if (compute.is & STEP_END)
            break;
        gradient_round<C>(shared, lists, p, n);
        const uint32_t is = compute.is;
        if (is & STEP_FIRST) {
            asm volatile("" ::: "memory"); /* a branch, not a selection for each register */
            sums = {};
        }
        if (is & STEP_SOME) {
            const bool masked = empty || (is & STEP_MASKED);
            if constexpr (C::ROLES)
                gradient_step_roles<C>(sums.first, shared, n & 1, masked, p);
            else if constexpr (C::SHARE > 1)
                gradient_step_pair<C>(sums.first, shared, n & 1, masked, p, [&] {
                    if (gradient_gathers_late<C>())
                        gradient_gather<C>(shared, lists, p, n);
                });
            else
                gradient_step<C>(sums, shared, n & 1, masked, p,
                                 {lists.jobs, compute.job, compute.at});
        }
        if (compute.is & STEP_LAST)
            gradient_finish<C>(p, lists, lists.jobs[compute.job & (ATTENTION_JOBS - 1)],
                               compute.job, sums);
        if (coming.is & STEP_FIRST)
            gradient_load_rows<C>(shared, lists, p, lists.jobs[coming.job & (ATTENTION_JOBS - 1)]);
    }
}

/* ---- launches ---- */

template <class C>
static cudaError_t gradient_launch_tiles(const struct gradient_params *p, cudaStream_t stream) {
    void (*kernel)(const struct gradient_params) = gradient_tiles<C>;
    const int rows = p->tile_rows < C::R ? C::R : p->tile_rows, bytes = C::bytes(p->tile_rows);
    struct gradient_params part = *p;
    void *arguments[] = {&part};
    cudaError_t code = launch_shared<C::bytes(GRADIENT_ROWS_MAX)>((const void *)kernel);
    const int dims = p->out[0].data || p->out[1].data ? C::D : C::CUT; /* slopes need no more */
    const dim3 threads((unsigned)(rows / C::R * C::SHARE * 32));
    for (part.first_dim = 0; part.first_dim < dims && !code; part.first_dim += C::CUT) {
        code = cudaLaunchKernel((const void *)kernel, dim3((unsigned)p->workers), threads,
                                arguments, (size_t)bytes, stream);
        part.slopes = NULL;
    }
    return code;
}

/* With modifiers warps have 16 rows, whatever the tiles: registers hold no more. */
template <class T, int D, bool MODIFIED> static constexpr int gradient_warp_rows(int32_t rows) {
    return MODIFIED ? 16 : GRADIENT_WARP(D, type_is_f16(T()), rows);
}

/* Kernels of one gradient each, for the widest heads with two: registers hold one. */
template <class T, int D, int R, bool OVER_KEYS, bool MODIFIED, bool LOW>
static cudaError_t gradient_launch_rows(const struct gradient_params *p, cudaStream_t stream) {
    using first = gradient_shape<T, D, R, OVER_KEYS, GRADIENT_FIRST, MODIFIED, LOW>;
    if constexpr (!OVER_KEYS) {
        return gradient_launch_tiles<first>(p, stream);
    } else if constexpr (D <= 128) {
        using both = gradient_shape<T, D, R, true, GRADIENT_BOTH, MODIFIED, LOW>;
        return gradient_launch_tiles<both>(p, stream);
    } else {
        using second = gradient_shape<T, D, R, true, GRADIENT_SECOND, MODIFIED, LOW>;
        cudaError_t code = p->out[0].data ? gradient_launch_tiles<first>(p, stream) : cudaSuccess;
        return code || !p->out[1].data ? code : gradient_launch_tiles<second>(p, stream);
    }
}

/* Whether low tiles have kernels of their own: else their steps and warps are those of others. */
template <class T, int D, bool MODIFIED> static constexpr bool gradient_low(int32_t rows) {
    return GRADIENT_LOW(rows) &&
           (GRADIENT_STEP(D, (int)sizeof(T), 1) != GRADIENT_STEP(D, (int)sizeof(T), 0) ||
            gradient_warp_rows<T, D, MODIFIED>(1) !=
                gradient_warp_rows<T, D, MODIFIED>(GRADIENT_ROWS_MAX));
}

template <class T, int D, bool OVER_KEYS, bool MODIFIED>
static cudaError_t gradient_launch_height(const struct gradient_params *p, cudaStream_t stream) {
    constexpr int HIGH = gradient_warp_rows<T, D, MODIFIED>(GRADIENT_ROWS_MAX);
    constexpr bool LOW = gradient_low<T, D, MODIFIED>(1);
    return gradient_low<T, D, MODIFIED>(p->tile_rows)
               ? gradient_launch_rows<T, D, 16, OVER_KEYS, MODIFIED, LOW>(p, stream)
               : gradient_launch_rows<T, D, HIGH, OVER_KEYS, MODIFIED, false>(p, stream);
}

template <class T, int D, bool OVER_KEYS>
static cudaError_t gradient_launch(const struct gradient_params *p, cudaStream_t stream) {
    cudaError_t code = p->modify.each ? gradient_launch_height<T, D, OVER_KEYS, true>(p, stream)
                                      : gradient_launch_height<T, D, OVER_KEYS, false>(p, stream);
    if constexpr (!OVER_KEYS)
        code = code ? code : gradient_slopes_launch(p, stream);
    return code ? code : gradient_combine_launch<T, OVER_KEYS>(p, stream);
}

/* Bytes of shared memory of a thread block for tiles of `rows` rows. */
template <class T, int D, bool OVER_KEYS> static int64_t gradient_shared(int32_t rows) {
    constexpr int HIGH = gradient_warp_rows<T, D, false>(GRADIENT_ROWS_MAX);
    constexpr bool LOW = gradient_low<T, D, false>(1);
    using low = gradient_shape<T, D, 16, OVER_KEYS, GRADIENT_FIRST, false, LOW>;
    using high = gradient_shape<T, D, HIGH, OVER_KEYS, GRADIENT_FIRST, false, false>;
    return gradient_low<T, D, false>(rows) ? low::bytes(rows) : high::bytes(rows);
}

#endif
