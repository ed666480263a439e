/* The MLP on Hopper: the producer warpgroup. */
#ifndef TESSERA_CUDA_MLP_SM90_PRODUCER_CUH
#define TESSERA_CUDA_MLP_SM90_PRODUCER_CUH

#include "mlp/sm90/config.cuh"
#include "work/early.cuh"

/* ---- tiles: a CTA has each gridDim.x-th; by the first warp ---- */

/* Parts of h of up to `width` columns of lists T ... T + 31: this lane's, up to and including. */
DEVICE int32_t mlp_parts(const struct mlp_params &p, int32_t T, int32_t tiles, int32_t width) {
    const int32_t at = T + warp_lane();
    int32_t parts = at < tiles ? (mlp_places(p, at) + width - 1) / width : 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int32_t before = __shfl_up_sync(WARP_ALL, parts, step);
        parts += warp_lane() >= step ? before : 0;
    }
    return parts;
}

/* The width of UP's tiles today: the cheapest. */
template <class shape> DEVICE int32_t mlp_sm90_width(const struct mlp_params &p, int32_t tiles) {
    int64_t least = INT64_MAX;
    int32_t best = shape::WIDTH;
    for (int i = MLP_WIDTHS - 1; i >= 0; i--) {
        const int32_t width = mlp_width(i);
        int64_t parts = 0;
        if (width > shape::WIDTH)
            continue;
        for (int32_t T = 0; T < tiles; T += 32)
            parts += __shfl_sync(WARP_ALL, mlp_parts(p, T, tiles, width), 31);
        const int64_t cost = mlp_width_cost(parts, width, (int32_t)gridDim.x);
        if (cost < least)
            least = cost, best = width;
    }
    return best;
}

/* Place among all parts: `before` of them are of lists before T. */
struct mlp_cursor {
    int32_t tiles, width, T, before;
};

/* Part number `part` of UP; T = -1: there are no more. */
DEVICE struct mlp_tile mlp_part_up(const struct mlp_params &p, struct mlp_cursor &at,
                                   int32_t part) {
    struct mlp_tile to = {};
    to.T = -1;
    while (at.T < at.tiles) {
        const int32_t parts = mlp_parts(p, at.T, at.tiles, at.width);
        const unsigned beyond = __ballot_sync(WARP_ALL, at.before + parts > part);
        if (beyond) {
            const int lane = __ffs(beyond) - 1;
            const int32_t first = at.before + (lane ? __shfl_sync(WARP_ALL, parts, lane - 1) : 0);
            to = mlp_tile_of(p, at.T + lane);
            to.begin = (part - first) * at.width, to.width = at.width;
            to.count = min(at.width, to.places - to.begin);
            return to;
        }
        at.before += __shfl_sync(WARP_ALL, parts, 31);
        at.T += 32;
    }
    return to;
}

/* Part number `part` of DOWN. */
DEVICE struct mlp_tile mlp_part_down(const struct mlp_params &p, const struct mlp_cursor &at,
                                     int32_t part) {
    const int32_t parts = (p.lists.run.d_v + at.width - 1) / at.width, T = part / parts;
    struct mlp_tile to = {};
    to.T = -1;
    if (T < at.tiles) {
        to = mlp_tile_of(p, T);
        to.begin = (part - T * parts) * at.width, to.width = at.width;
    }
    return to;
}

template <class shape>
DEVICE void mlp_sm90_publish(char *memory, uint32_t shared, const struct mlp_params &p,
                             struct mlp_cursor &at, uint32_t job) {
    const int32_t part = (int32_t)(blockIdx.x + job * gridDim.x);
    const struct mlp_tile tile =
        shape::DOWN ? mlp_part_down(p, at, part) : mlp_part_up(p, at, part);
    const uint32_t slot = job % MLP_SLOTS;
    if (warp_lane() == 0) {
        barrier_wait(shared + shape::TILE_EMPTY + 8 * slot, (job / MLP_SLOTS & 1) ^ 1);
        reinterpret_cast<struct mlp_tile *>(memory + shape::TILES)[slot] = tile;
        barrier_arrive(shared + shape::TILE_FULL + 8 * slot);
    }
    __syncwarp();
}

/* ---- steps ---- */

/* Begins a step: waits for its stage, and loads A, and B where all columns are listed; answers the stage's address. */
template <class shape>
DEVICE uint32_t mlp_sm90_begin(uint32_t shared, const struct mlp_params &p,
                               const struct mlp_sm90_maps &maps, const struct mlp_tile &tile,
                               int32_t k, uint32_t step) {
    const uint32_t stage = ring_stage<shape::STAGES>(step), to = shared + stage * shape::STAGE;
    const uint32_t full = shared + shape::FULL + 8 * stage;
    barrier_wait(shared + shape::EMPTY + 8 * stage, ring_parity<shape::STAGES>(step) ^ 1);
    if (threadIdx.x == 0) {
        const int panels = p.dense ? (tile.width + 63) / 64 : 0;
        const int batch = maps.shared_weights ? 0 : tile.batch;
        barrier_arrive_expect_tx(full, (uint32_t)(shape::A + panels * MLP_PANEL));
#pragma unroll
        for (int i = 0; i < shape::CONSUMERS; i++)
            if (shape::DOWN)
                tma_load(to + i * MLP_PANEL, &maps.a, full, 64 * i,
                         (int)(tile.T * p.value_stride) + k, 0, 0, TMA_EVICT_LAST);
            else if (i == 0)
                tma_load(to, &maps.a, full, k, tile.row, 0, tile.batch, TMA_EVICT_LAST);
#pragma unroll 1
        for (int i = 0; i < panels; i++)
            tma_load(to + shape::A + i * MLP_PANEL, &maps.b, full,
                     shape::DOWN ? tile.begin + 64 * i : k, shape::DOWN ? k : tile.begin + 64 * i,
                     0, batch, TMA_EVICT_LAST);
    }
    __syncwarp();
    return to;
}

/* Rows of W1: eight threads a row of 128 bytes, sixteen rows at a time, whose places stay for all steps. */
template <class shape, class T>
DEVICE void mlp_sm90_produce_up(uint32_t shared, const struct mlp_params &p,
                                const struct mlp_sm90_maps &maps, const struct mlp_tile &tile,
                                uint32_t &step) {
    constexpr int N = shape::WIDTH / 16;
    const int row = (int)threadIdx.x / 8, piece = (int)threadIdx.x % 8;
    const uint32_t to = shape::A + row * 128 + swizzle_piece(row, piece);
    const char *const weights = attention_head<T>(p.lists.run.k, tile.batch, 0) + 16 * piece;
    const int32_t K = p.lists.run.d_qk;
    uint32_t at[N]; /* of row i, in units of 16 bytes; ~0: none */
    if (!p.dense)
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int32_t f =
                mlp_column(p, tile.first, tile.begin + row + 16 * i, tile.begin + tile.count);
            at[i] = f < 0 ? ~0u : (uint32_t)f * (uint32_t)(p.lists.run.k.stride[2] / 8);
        }
#pragma unroll 1
    for (int32_t k = 0; k < K; k += MLP_STEP, step++) {
        const uint32_t stage = mlp_sm90_begin<shape>(shared, p, maps, tile, k, step);
        if (!p.dense) {
            const char *const from = weights + 2 * k;
            const bool exists = k + 8 * piece < K;
#pragma unroll
            for (int i = 0; i < N; i++)
                if (16 * i < tile.width)
                    cp_async_16_l2_128(stage + to + i * 2048, from + 16 * (uint64_t)at[i],
                                       exists && at[i] != ~0u);
        }
        barrier_arrive_cp_async(shared + shape::FULL + 8 * ring_stage<shape::STAGES>(step));
    }
}

/* Rows of W2: eight threads a panel's row of 128 bytes, sixteen rows at a time. Places of the next step are found
 * during the copies. */
template <class shape, class T>
DEVICE void mlp_sm90_produce_down(uint32_t shared, const struct mlp_params &p,
                                  const struct mlp_sm90_maps &maps, const struct mlp_tile &tile,
                                  uint32_t &step) {
    const int row = (int)threadIdx.x / 8, piece = (int)threadIdx.x % 8;
    const uint32_t to = shape::A + row * 128 + swizzle_piece(row, piece);
    const char *const weights =
        attention_head<T>(p.lists.run.v, tile.batch, 0) + 2 * tile.begin + 16 * piece;
    const int32_t left = min(tile.width, p.lists.run.d_v - tile.begin) - 8 * piece;
    int32_t f[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        f[i] = p.dense ? 0 : mlp_column(p, tile.first, row + 16 * i, tile.places);
#pragma unroll 1
    for (int32_t k = 0; k < tile.places; k += MLP_STEP, step++) {
        const uint32_t stage = mlp_sm90_begin<shape>(shared, p, maps, tile, k, step);
        if (!p.dense)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const char *const from = weights + max(f[i], 0) * (2 * p.lists.run.v.stride[2]);
#pragma unroll
                for (int panel = 0; panel < shape::WIDTH / 64; panel++)
                    if (64 * panel < tile.width)
                        cp_async_16_l2_128(stage + to + i * 2048 + panel * MLP_PANEL,
                                           from + 128 * panel, f[i] >= 0 && 64 * panel < left);
                f[i] = mlp_column(p, tile.first, k + MLP_STEP + row + 16 * i, tile.places);
            }
        barrier_arrive_cp_async(shared + shape::FULL + 8 * ring_stage<shape::STAGES>(step));
    }
}

template <class shape, class T>
DEVICE void mlp_sm90_produce(char *memory, uint32_t shared, const struct mlp_params &p,
                             const struct mlp_sm90_maps &maps, int32_t width) {
    struct mlp_cursor at = {mlp_tiles(p), width, 0, 0};
    const bool first_warp = threadIdx.x < 32;
    uint32_t step = 0;
    if (!shape::DOWN && first_warp)
        at.width = mlp_sm90_width<shape>(p, at.tiles);
#pragma unroll 1
    for (uint32_t job = 0;; job++) {
        if (first_warp)
            mlp_sm90_publish<shape>(memory, shared, p, at, job);
        const struct mlp_tile tile = mlp_sm90_take<shape>(memory, shared, job);
        if (tile.T < 0)
            break;
        if (shape::DOWN)
            mlp_sm90_produce_down<shape, T>(shared, p, maps, tile, step);
        else
            mlp_sm90_produce_up<shape, T>(shared, p, maps, tile, step);
    }
    cp_async_wait_all();
}

#endif
