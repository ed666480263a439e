/*
 * Fused attention on Hopper over lists that a fill has written: the kernel of config.cuh, whose producer
 * walks the image's runs itself. No granules are made before the run.
 *
 *   warp 0   items, Q, K, windows        runs -> granules -> TMA tile copies, one for each; or cp.async,
 *                                        where keys of a granule are not listed, which are not read
 *   warp 1   V                           the same granules
 *   warp 2+  O, lse; items without keys
 *
 * CTAs stay, and take each gridDim.x-th item; counts stand in the image's header. Granules are those of
 * work/granules.h: 16 keys or more, in the order of full runs and then of bands. A part of a split tile
 * begins at a whole step. Masks need no memory: a granule's window says which row lists which key.
 * Windows of a step lie behind what config.cuh has in shared memory:
 *
 *   granules [RING][PLACES]   first key and window
 *
 * The lane that arrives at k_full writes them before. RING is twice as long as the ring of K. A step's windows
 * are written again after all warps have issued a later step's Q K^T, so have read them.
 */
#ifndef TESSERA_CUDA_SM90_FILLED_CONFIG_CUH
#define TESSERA_CUDA_SM90_FILLED_CONFIG_CUH

#include "forward/sm90/config.cuh"
#include "work/granules.h"
#include <type_traits>

template <int DIMS_QK, int DIMS_V, int N_CONSUMERS>
struct sm90_filled_shape : sm90_shape<DIMS_QK, DIMS_V, N_CONSUMERS> {
    using base = sm90_shape<DIMS_QK, DIMS_V, N_CONSUMERS>;
    static constexpr int PLACES = base::KEYS / FILL_GRANULE_LEAST; /* granules of a step, at most */
    static constexpr int RING = 2 * base::STAGES;
    static constexpr int STEPS = base::BYTES;
    static constexpr int BYTES = STEPS + RING * PLACES * (int)sizeof(struct fill_granule);
    static_assert(BYTES <= base::ROOM && STEPS % 8 == 0, "what a CTA of Hopper can have");
    static_assert(base::ROWS <= FILL_GRANULE_ROWS, "rows that windows tell apart");
};

/* Whether the producer walks runs of bits. Three CTAs leave it no registers for them, unless their consumers hand it
 * some, which those of bf16 that modify nothing can. */
template <class T, class shape, bool MODIFIED>
static __host__ __device__ constexpr bool sm90_filled_masks(void) {
    return shape::RESIDENT < 3 || (!MODIFIED && std::is_same<T, __nv_bfloat16>::value);
}
template <class T, class shape, bool MODIFIED>
static __host__ __device__ constexpr int sm90_filled_handed(void) {
    return shape::RESIDENT == 3 && sm90_filled_masks<T, shape, MODIFIED>() ? 8 : 0; /* registers */
}

/* Granule i of a step. */
template <class shape>
DEVICE struct fill_granule &sm90_filled_granule(char *memory, uint32_t step, int i) {
    struct fill_granule *const all = reinterpret_cast<struct fill_granule *>(memory + shape::STEPS);
    return all[ring_stage<shape::RING>(step) * shape::PLACES + i];
}

#endif
