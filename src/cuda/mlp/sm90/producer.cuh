/* The MLP on Hopper: the producer warpgroup. */
#ifndef TESSERA_CUDA_MLP_SM90_PRODUCER_CUH
#define TESSERA_CUDA_MLP_SM90_PRODUCER_CUH

#include "mlp/sm90/config.cuh"
#include "work/early.cuh"

/* ---- tiles: a CTA has each gridDim.x-th; by the first warp ---- */

/* The width of UP's tiles today: the cheapest. */
template <class shape> DEVICE int32_t mlp_sm90_width(const struct mlp_params &p, int32_t tiles) {
    int64_t least = INT64_MAX;
    int32_t best = shape::WIDTH;
    for (int i = MLP_WIDTHS - 1; i >= 0; i--) {
        const int32_t width = mlp_width(i);
        int32_t parts = 0;
        for (int32_t T = warp_lane(); T < tiles; T += 32)
            parts += (mlp_places(p, T) + width - 1) / width;
        const int64_t cost = mlp_width_cost((int32_t)__reduce_add_sync(WARP_ALL, (unsigned)parts),
                                            width, (int32_t)gridDim.x);
        if (width <= shape::WIDTH && cost < least)
            least = cost, best = width;
    }
    return best;
}

/* Parts of h by their first place, then by list: neighbouring CTAs read the same part of W1. `before` parts stand
 * before those of lists T ... at place `begin`, of which `some` list as much. */
struct mlp_cursor {
    int32_t tiles, width, T, begin, before;
    bool some;
};

/* Part number `part` of UP; T = -1: there are no more. */
DEVICE struct mlp_tile mlp_part_up(const struct mlp_params &p, struct mlp_cursor &at,
                                   int32_t part) {
    struct mlp_tile to = {};
    to.T = -1;
    while (at.tiles > 0) {
        const int32_t T = at.T + warp_lane();
        const bool has = T < at.tiles && mlp_places(p, T) > at.begin;
        const unsigned all = __ballot_sync(WARP_ALL, has), lower = (1u << warp_lane()) - 1;
        const unsigned found =
            __ballot_sync(WARP_ALL, has && at.before + __popc(all & lower) == part);
        if (found) {
            to = mlp_tile_of(p, at.T + __ffs(found) - 1);
            to.begin = at.begin, to.width = at.width;
            to.count = min(at.width, to.places - to.begin);
            break;
        }
        at.before += __popc(all);
        at.some |= all != 0;
        at.T += 32;
        if (at.T < at.tiles)
            continue;
        if (!at.some)
            break;
        at.T = 0, at.begin += at.width, at.some = false;
    }
    return to;
}

/* Part number `part` of DOWN: by columns, then by tile. */
DEVICE struct mlp_tile mlp_part_down(const struct mlp_params &p, const struct mlp_cursor &at,
                                     int32_t part) {
    struct mlp_tile to = {};
    const int32_t begin = at.tiles ? part / at.tiles * at.width : p.lists.run.d_v;
    to.T = -1;
    if (begin < p.lists.run.d_v) {
        to = mlp_tile_of(p, part % at.tiles);
        to.begin = begin, to.width = at.width;
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

/* Begins a step: waits for its stage, and loads A, and B where all columns are listed. TMA tiles of 64 rows are
 * shared among warps, each of which issues one after the other. Answers the stage's address. */
template <class shape>
DEVICE uint32_t mlp_sm90_begin(uint32_t shared, const struct mlp_params &p,
                               const struct mlp_sm90_maps &maps, const struct mlp_tile &tile,
                               int32_t k, uint32_t step) {
    const uint32_t stage = ring_stage<shape::STAGES>(step), to = shared + stage * shape::STAGE;
    const uint32_t full = shared + shape::FULL + 8 * stage;
    const int warp = sm90_uniform((int)threadIdx.x / 32);
    barrier_wait(shared + shape::EMPTY + 8 * stage, ring_parity<shape::STAGES>(step) ^ 1);
    if (warp_lane() == 0) {
        const int panels = p.dense ? (tile.width + 63) / 64 : 0;
        if (warp == 0)
            barrier_arrive_expect_tx(full, (uint32_t)(shape::A + panels * MLP_PANEL));
        if (shape::DOWN && warp < shape::CONSUMERS)
            tma_load(to + warp * MLP_PANEL, &maps.a, full, 64 * warp,
                     (int)(tile.T * p.value_stride) + k, 0, 0, TMA_EVICT_LAST);
        else if (!shape::DOWN && warp == 0)
            tma_load(to, &maps.a, full, k, tile.row, 0, tile.batch, TMA_EVICT_LAST);
        if (warp < panels) {
            const int at = tile.begin + 64 * warp, batch = maps.shared_weights ? 0 : tile.batch;
            tma_load(to + shape::A + warp * MLP_PANEL, &maps.b, full, shape::DOWN ? at : k,
                     shape::DOWN ? k : at, 0, batch, TMA_EVICT_LAST);
        }
    }
    __syncwarp();
    return to;
}

/* ---- rows of B, by eight threads each, sixteen rows at a time ---- */

/* UP: a thread's rows of W1, which stay for all steps, in units of 16 bytes; ~0: none. DOWN: columns that its rows of
 * W2 belong to, -1: none; of this step, and behind them of the next, as a look-up takes as long as a step. */
template <class shape> struct mlp_sm90_rows {
    static constexpr int N = shape::DOWN ? 4 : shape::WIDTH / 16, ALL = shape::DOWN ? 8 : N;
    const char *weights; /* begin of this thread's piece of a row */
    uint32_t to;         /* its place in a stage */
    int32_t left;        /* DOWN: columns of o from this piece on */
    uint32_t at[ALL];
};

/* Finds rows `from` ... of a thread: UP's of the tile, or DOWN's of the step at depth k. */
template <class shape>
DEVICE void mlp_sm90_find_rows(struct mlp_sm90_rows<shape> &rows, const struct mlp_params &p,
                               const struct mlp_tile &tile, int from, int32_t k) {
    const int32_t first = (shape::DOWN ? k : tile.begin) + (int)threadIdx.x / 8;
    const int32_t end = shape::DOWN ? tile.places : tile.begin + tile.count;
#pragma unroll
    for (int i = 0; i < rows.N; i++) {
        const int32_t f = mlp_column(p, tile.first, first + 16 * i, end);
        rows.at[from + i] = shape::DOWN || f < 0
                                ? (uint32_t)f
                                : (uint32_t)f * (uint32_t)(p.lists.run.k.stride[2] / 8);
    }
}

template <class shape, class T>
DEVICE struct mlp_sm90_rows<shape> mlp_sm90_rows_of(const struct mlp_params &p,
                                                    const struct mlp_tile &tile) {
    const struct attention_params &run = p.lists.run;
    const int row = (int)threadIdx.x / 8, piece = (int)threadIdx.x % 8;
    struct mlp_sm90_rows<shape> rows;
    rows.weights = attention_head<T>(shape::DOWN ? run.v : run.k, tile.batch, 0) +
                   (shape::DOWN ? 2 * tile.begin : 0) + 16 * piece;
    rows.to = shape::A + row * 128 + swizzle_piece(row, piece);
    rows.left = min(tile.width, run.d_v - tile.begin) - 8 * piece;
    if (!p.dense)
        mlp_sm90_find_rows(rows, p, tile, 0, 0);
    if (!p.dense && shape::DOWN)
        mlp_sm90_find_rows(rows, p, tile, rows.ALL - rows.N, MLP_STEP);
    return rows;
}

/* Copies the rows of the step at depth k. */
template <class shape>
DEVICE void mlp_sm90_copy_rows(struct mlp_sm90_rows<shape> &rows, const struct mlp_params &p,
                               const struct mlp_tile &tile, uint32_t stage, int32_t k) {
    const uint32_t to = stage + rows.to;
    if (shape::DOWN) {
#pragma unroll
        for (int i = 0; i < rows.N; i++) {
            const int32_t f = (int32_t)rows.at[i];
            const char *const from = rows.weights + max(f, 0) * (2 * p.lists.run.v.stride[2]);
#pragma unroll
            for (int panel = 0; panel < shape::WIDTH / 64; panel++)
                if (64 * panel < tile.width)
                    cp_async_16_l2_128(to + i * 2048 + panel * MLP_PANEL, from + 128 * panel,
                                       f >= 0 && 64 * panel < rows.left);
        }
#pragma unroll
        for (int i = 0; i < rows.N; i++)
            rows.at[i] = rows.at[rows.ALL - rows.N + i];
        mlp_sm90_find_rows(rows, p, tile, rows.ALL - rows.N, k + 2 * MLP_STEP);
        return;
    }
    const char *const from = rows.weights + 2 * k;
    const bool inside = k + 8 * ((int)threadIdx.x % 8) < p.lists.run.d_qk;
#pragma unroll
    for (int i = 0; i < rows.N; i++)
        if (16 * i < tile.width)
            cp_async_16_l2_128(to + i * 2048, from + 16 * (uint64_t)rows.at[i],
                               inside && rows.at[i] != ~0u);
}

/* ---- the producer loop ---- */

template <class shape, class T>
DEVICE void mlp_sm90_produce(char *memory, uint32_t shared, const struct mlp_params &p,
                             const struct mlp_sm90_maps &maps, int32_t width) {
    struct mlp_cursor at = {mlp_tiles(p), width, 0, 0, 0, false};
    const bool first_warp = threadIdx.x < 32;
    uint32_t step = 0;
    if (!shape::DOWN && first_warp)
        at.width = mlp_sm90_width<shape>(p, at.tiles);
#pragma unroll 1
    for (uint32_t job = 0;; job++) {
        if (first_warp) /* consumers are at the last steps before, and at their epilogue */
            mlp_sm90_publish<shape>(memory, shared, p, at, job);
        const struct mlp_tile tile = mlp_sm90_take<shape>(memory, shared, job);
        if (tile.T < 0)
            break;
        const int32_t depth = shape::DOWN ? tile.places : p.lists.run.d_qk;
        struct mlp_sm90_rows<shape> rows = mlp_sm90_rows_of<shape, T>(p, tile);
#pragma unroll 1
        for (int32_t k = 0; k < depth; k += MLP_STEP, step++) {
            const uint32_t stage = mlp_sm90_begin<shape>(shared, p, maps, tile, k, step);
            if (!p.dense)
                mlp_sm90_copy_rows(rows, p, tile, stage, k);
            barrier_arrive_cp_async(shared + shape::FULL + 8 * ring_stage<shape::STAGES>(step));
        }
    }
    cp_async_wait_all();
}

#endif
