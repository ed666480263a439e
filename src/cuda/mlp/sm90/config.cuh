/*
 * The MLP's products on Hopper, a persistent kernel each:
 *
 *   UP     h [rows, width]  = act(x [rows, K] W1[listed]^T + bias)     A = x, by TMA; B = listed rows of W1
 *   DOWN   o [rows, width] += h [rows, listed] W2[listed]              A = h, by TMA; B = listed rows of W2
 *
 * A tile of a CTA is rows of one group and up to WIDTH columns. Steps are 64 deep and pass through a ring:
 *
 *   producer warpgroup   all threads copy rows of B by cp.async, 16 bytes each; its first thread takes tiles,
 *                        and loads A. Where all columns are listed, that thread loads B as well, by TMA.
 *   consumer warpgroups  64 rows each, m64nNk16 from shared memory, then the epilogue
 *
 * W1's rows lie along K, so B is K-major, as x is. Rows of W2 lie across the reduction and h is stored by columns,
 * so DOWN's operands are MN-major: h goes to memory as the cache of activations does.
 *
 *   stage   | A: panels of 64 rows (UP) or 64 places (DOWN) of 128 bytes | B: WIDTH rows, or WIDTH / 64 panels |
 */
#ifndef TESSERA_CUDA_MLP_SM90_CONFIG_CUH
#define TESSERA_CUDA_MLP_SM90_CONFIG_CUH

#include "device/copy.cuh"
#include "device/mma.cuh"
#include "device/sm90/tma.cuh"
#include "device/sm90/wgmma_wide.cuh"
#include "device/swizzle.cuh"
#include "mlp/tile.cuh"

#define MLP_STEP 64     /* depth of a step */
#define MLP_PANEL 8192  /* bytes of 64 rows of 128 bytes */
#define MLP_WIDTHS 11   /* widths of tiles that there are instructions for */
#define MLP_SLOTS 2     /* tiles that the producer publishes ahead */
#define MLP_OVERHEAD 64 /* columns that a tile's fixed costs stand for: A, start and epilogue */

template <bool IS_DOWN, int N_CONSUMERS> struct mlp_sm90_shape {
    static constexpr bool DOWN = IS_DOWN;
    static constexpr int CONSUMERS = N_CONSUMERS, ROWS = 64 * CONSUMERS;
    static constexpr int WIDTH = CONSUMERS == 3 ? 128 : 256; /* three share the registers */
    static constexpr int A = ROWS * 128, B = WIDTH * 128, STAGE = A + B;
    static constexpr int STAGES = CONSUMERS == 1 ? 5 : 4;
    static constexpr int THREADS = 128 + 128 * CONSUMERS;
    /* All that a launch gives, whose registers a thread are a multiple of 8. */
    static constexpr int CONSUMER_REGISTERS = CONSUMERS == 3 ? 144 : CONSUMERS == 2 ? 216 : 224;
    static constexpr int PRODUCER_REGISTERS = CONSUMERS == 3 ? 80 : CONSUMERS == 2 ? 72 : 96;
    static_assert(PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS <=
                      65536 / THREADS / 8 * 8 * (1 + CONSUMERS),
                  "setmaxnreg would wait for ever");
    /* Shared memory: a panel and facts of columns for each consumer, tiles, barriers. */
    static constexpr int STAGING = STAGES * STAGE;
    static constexpr int FACTS = STAGING + CONSUMERS * MLP_PANEL, EACH = WIDTH * 8;
    static constexpr int TILES = FACTS + CONSUMERS * EACH;
    static constexpr int FULL = TILES + MLP_SLOTS * (int)sizeof(struct mlp_tile);
    static constexpr int EMPTY = FULL + 8 * STAGES, TILE_FULL = EMPTY + 8 * STAGES;
    static constexpr int TILE_EMPTY = TILE_FULL + 8 * MLP_SLOTS;
    static constexpr int BYTES = TILE_EMPTY + 8 * MLP_SLOTS;
    static_assert(BYTES <= 227 * 1024 && FULL % 8 == 0, "what a CTA of Hopper can have");
};

struct mlp_sm90_maps {
    CUtensorMap a;
    CUtensorMap b;          /* all rows of weights, where all columns are listed */
    int32_t shared_weights; /* 1: batches share them */
};

/* ---- widths of tiles ---- */

/* Width number i: multiples of 16 from 128 on, of 32 below. */
static __host__ __device__ __forceinline__ int32_t mlp_width(int i) {
    return i < 2 ? 64 + 32 * i : i < 9 ? 128 + 16 * (i - 2) : 240 + 16 * (i - 9);
}

/* Cost of a width in columns: rounds of a device of `ctas` CTAs. */
static __host__ __device__ __forceinline__ int64_t mlp_width_cost(int64_t tiles, int32_t width,
                                                                  int32_t ctas) {
    return (tiles + ctas - 1) / ctas * (width + MLP_OVERHEAD);
}

/* The tile that the producer has published as its job-th; all of a warp take part. */
template <class shape>
DEVICE struct mlp_tile mlp_sm90_take(char *memory, uint32_t shared, uint32_t job) {
    const uint32_t slot = job % MLP_SLOTS;
    barrier_wait(shared + shape::TILE_FULL + 8 * slot, job / MLP_SLOTS & 1);
    const struct mlp_tile tile =
        reinterpret_cast<const struct mlp_tile *>(memory + shape::TILES)[slot];
    __syncwarp();
    if (warp_lane() == 0)
        barrier_arrive(shared + shape::TILE_EMPTY + 8 * slot);
    return tile;
}

#endif
