/* Fused attention on Hopper: the epilogue. Consumers stage O in shared memory, rounded. On the TMA
 * path a producer warp for each consumer stores it from there, while consumers go on. On the
 * CP_ASYNC path each consumer warp stores its own rows. */
#ifndef TESSERA_CUDA_SM90_EPILOGUE_CUH
#define TESSERA_CUDA_SM90_EPILOGUE_CUH

#include "forward/sm90/config.cuh"
#include "device/sm90/wgmma.cuh"
#include "work/base.cuh"

#define SM90_O_PANEL (64 * 128) /* bytes: 64 columns of a warpgroup's rows */

/* Whether producer warps store O. All of O is staged then. */
template <class shape, int SOURCE> DEVICE constexpr bool sm90_hands_o(void) {
    return !sm90_gathers(SOURCE) && shape::CONSUMERS <= 2 && shape::O_PANELS == shape::V_PANELS;
}

/* log2 of what P and its sums are raised by. */
template <class T, class shape> DEVICE constexpr float sm90_raise(void) {
    return shape::BY_REFERENCES ? SM90_SUMS_RAISE : attention_raise(T());
}

/* Whether producer warps also store lse. Heads of 64 dims are 1 % slower so; heads of 32 dims were
 * not tried. */
template <class shape, int SOURCE> DEVICE constexpr bool sm90_hands_sums(void) {
    return sm90_hands_o<shape, SOURCE>() && !shape::TWO_SCORE_TILES;
}

/* A partial result: this thread's part of the warp's queries `of`, in the slots of their heads;
 * dims from `begin` on. Rows without a query are not stored. */
template <class T, class shape>
DEVICE void sm90_store_partial(const struct attention_params &p, const struct granule_item &item,
                               const struct sm90_queries (&queries)[2],
                               const float (&o)[shape::OUTPUTS], const float (&m)[2],
                               const float (&l)[2], int begin) {
    const float lower = attention_exp2(-sm90_raise<T, shape>());
    const int row = warp_lane_here() / 4, column = warp_lane_here() % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (row >= queries[h].rows)
            continue;
        const struct attention_slot slot =
            attention_slot_of(p, item.slot + (queries[h].head - item.head) *
                                                 (sm90_is_filled(shape::SOURCE) ? 1 : item.parts));
        const int at = queries[h].row - item.row + row;
        float *to = slot.o + (int64_t)at * p.slot_dims + begin + 2 * column;
        if (column == 0 && begin == 0) {
            slot.m[at] = m[h];
            slot.l[at] = l[h] * lower;
        }
#pragma unroll
        for (int j = 0; j < shape::OUTPUTS / 4; j++)
            if (begin + 8 * j < p.slot_dims)
                *reinterpret_cast<float2 *>(to + 8 * j) = {o[4 * j + 2 * h] * lower,
                                                           o[4 * j + 2 * h + 1] * lower};
    }
}

/* Copies `rows` rows of O from shared memory to `to`, 16 bytes a lane. A row has 64 PANELS columns,
 * of which `pieces` pieces of 16 bytes exist in memory. MOST: rows at most, copied without a loop; 0:
 * any number. */
template <class T, int PANELS, int MOST = 0>
DEVICE void sm90_store_pieces(char *to, int64_t step, uint32_t staged, int rows, int pieces) {
    constexpr int PIECES = 8 * PANELS, AT_ONCE = 32 / PIECES; /* rows */
    const int lane = warp_lane_here(), piece = lane % PIECES, first = lane / PIECES;
    to += first * step + 16 * piece;
    staged += (uint32_t)(piece / 8 * SM90_O_PANEL);
    if constexpr (MOST > 0) {
#pragma unroll
        for (int i = 0; i < MOST; i += AT_ONCE)
            if (first + i < rows && piece < pieces)
                *reinterpret_cast<uint4 *>(to + i * step) = shared_load_16(
                    staged + (uint32_t)((first + i) * 128 + (piece % 8 ^ (first + i) % 8) * 16));
    } else {
#pragma unroll 8
        for (int r = first; r < rows; r += AT_ONCE, to += AT_ONCE * step)
            if (piece < pieces)
                *reinterpret_cast<uint4 *>(to) =
                    shared_load_16(staged + (uint32_t)(r * 128 + (piece % 8 ^ r % 8) * 16));
    }
}

/* Joins the base to O, which then is what is stored: `below`, by which it is divided, becomes the factor kept before.
 * m and l become those of both. Dims from `begin` on. */
template <class T, class shape>
DEVICE void sm90_join_base(const struct attention_params &p, int32_t batch,
                           const struct sm90_queries (&queries)[2], float (&o)[shape::OUTPUTS],
                           float (&m)[2], float (&l)[2], float (&below)[2], int begin) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int lane = warp_lane_here(), left = p.d_v - begin;
        asm volatile("" : "+r"(lane), "+r"(left)::"memory"); /* row by row: registers are short */
        const int row = lane / 4, dim = begin + lane % 4 * 2;
        const bool is = row < queries[h].rows;
        const int32_t query = queries[h].row + row;
        struct base_shares shares = {};
        if (is)
            shares = base_join(p, batch, queries[h].head, query, m[h], l[h]);
        const T *const from = base_row<T>(p, batch, queries[h].head, query) + dim;
        below[h] = p.modify.kept;
#pragma unroll
        for (int j = 0; j < shape::OUTPUTS / 4; j++) {
            float *const x = o + 4 * j + 2 * h;
            const float2 two = base_add_pair(shares, x[0], x[1], from + 8 * j, 8 * j < left);
            x[0] = two.x, x[1] = two.y;
        }
    }
}

/* Address of the first row of an item's O. */
template <class T>
DEVICE char *sm90_rows_o(const struct attention_params &p, int32_t batch, int32_t head,
                         int64_t row) {
    return attention_head<T>(p.o, batch, head) + row * p.o.stride[2] * (int64_t)sizeof(T);
}

/* Stages O kept / l of a warp's 16 rows, the consumer's rows first ... first + 15: queries `of`, dims
 * from `begin` on. Unless producer warps store O, the warp also stores it, O_PANELS panels at a
 * time. Overwrites o. */
template <class T, class shape, int SOURCE>
DEVICE void sm90_store_rows(const struct attention_params &p, uint32_t staged, int32_t batch,
                            const struct sm90_queries (&queries)[2], float (&o)[shape::OUTPUTS],
                            const float (&l)[2], int first, int begin) {
    constexpr int COLUMNS = shape::D_V < 64 ? shape::D_V : 64 * shape::O_PANELS;
    constexpr int EACH = shape::CONSUMERS > 1 ? 16 : 8; /* rows that are of one head */
    /* Panels of O that are staged one at a time would each begin a loop anew: none then. */
    constexpr int MOST = shape::O_PANELS < shape::V_PANELS ? EACH : 0;
    const uint32_t lane = (uint32_t)warp_lane_here();
    int d_v = p.d_v;
    asm volatile("" : "+r"(d_v)); /* pieces are counted anew, and not kept across the mainloop */
    const float factor[2] = {l[0] == 0 ? 0 : __fdividef(p.modify.kept, l[0]),
                             l[1] == 0 ? 0 : __fdividef(p.modify.kept, l[1])};
    /* A row that lists nothing has only terms of 0 x V, which may be NaN: 0 instead. */
    if (__any_sync(WARP_ALL, l[0] == 0 || l[1] == 0))
#pragma unroll
        for (int i = 0; i < shape::OUTPUTS; i++)
            o[i] = l[i / 2 % 2] == 0 ? 0 : o[i];
    staged += (uint32_t)(first * 128);
    const uint32_t into = staged + lane % 16 * 128 + (lane / 16 ^ lane % 8) * 16;
#pragma unroll
    for (int d = 0; d < 2 * shape::OUTPUTS; d += COLUMNS) {
#pragma unroll
        for (int j = 0; j < COLUMNS / 8;
             j += 2) { /* lanes 16 ... 31 address columns 8 (j + 1) ... */
            uint32_t x[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float *at = o + d / 2 + 4 * j + 2 * e;
                x[e] =
                    mma_pack(mean_in_range(at[0] * factor[e % 2], p.modify.mean_below, T()),
                             mean_in_range(at[1] * factor[e % 2], p.modify.mean_below, T()), T());
            }
            stmatrix((into ^ (uint32_t)(j % 8 * 16)) + (uint32_t)(j / 8 * SM90_O_PANEL), x);
        }
        if (sm90_hands_o<shape, SOURCE>())
            continue;
        __syncwarp();
#pragma unroll
        for (int r = 0; r < 16; r += EACH)
            sm90_store_pieces<T, shape::O_PANELS, MOST>(
                sm90_rows_o<T>(p, batch, queries[r / 8].head, queries[r / 8].row) + 2 * (begin + d),
                p.o.stride[2] * (int64_t)sizeof(T), staged + (uint32_t)(r * 128),
                min(queries[r / 8].rows, EACH), (d_v - begin - d) / 8);
        __syncwarp();
    }
}

/* Loads up to 32 of a CTA's items, one for each lane. Count -1: no item. */
DEVICE struct granule_item sm90_load_items(const struct attention_params &p, int64_t first,
                                           int64_t end) {
    struct granule_item item;
    item.count = -1;
    if (first + warp_lane() < end)
        item = p.image.items[first + warp_lane()];
    return item;
}

DEVICE int64_t sm90_of_lane(int64_t x, int lane) {
    return __shfl_sync(WARP_ALL, x, lane);
}
DEVICE int32_t sm90_of_lane(int32_t x, int lane) {
    return __shfl_sync(WARP_ALL, x, lane);
}

/* Stores O and lse of items of [begin, end) without keys: 0 and -Inf or, BASED, those of the base. Consumers do that in
 * the end, as producers have few registers. `load` answers 32 from one on, as sm90_load_items. `warp` of `warps` warps. */
template <class T, class shape, bool BASED, class loads>
DEVICE void sm90_store_empty(const struct attention_params &p, const loads &load, int64_t begin,
                             int64_t end, int warp, int warps) {
    /* Lanes of a row, and rows that a warp stores at once. */
    constexpr int ACROSS = shape::V_PANELS > 2 ? 32 : 8 * shape::V_PANELS, AT_ONCE = 32 / ACROSS;
    if ((p.base.o.data != NULL) != BASED)
        return;
    const int at = BASED ? warp_lane_here() : warp_lane();
    const int pieces = p.d_v / 8, piece = at % ACROSS, from = warp * AT_ONCE + at / ACROSS;
    const int64_t step = p.o.stride[2] * (int64_t)sizeof(T) * (warps * AT_ONCE);
#pragma unroll 1
    for (int64_t first = begin; first < end; first += 32) {
        const struct granule_item items = load(first);
        uint32_t empty = __ballot_sync(WARP_ALL, items.count == 0);
#pragma unroll 1
        for (; empty; empty &= empty - 1) {
            const int lane = __ffs((int)empty) - 1;
            const int32_t batch = sm90_of_lane(items.batch, lane);
            const int32_t row = sm90_of_lane(items.row, lane);
            const int32_t rows = sm90_of_lane(items.rows, lane);
            const int32_t head = sm90_of_lane(items.head, lane);
            for (int32_t h = head; h < head + p.tile_heads; h++) {
                if (BASED) {
                    base_store_empty<T>(p, batch, h, row, row + rows, warp, warps);
                    continue;
                }
                char *o = sm90_rows_o<T>(p, batch, h, row + from);
#pragma unroll 1
                for (int i = from; i < rows; i += warps * AT_ONCE, o += step)
#pragma unroll 1
                    for (int c = piece; c < pieces; c += ACROSS)
                        *reinterpret_cast<uint4 *>(o + 16 * c) = uint4{0, 0, 0, 0};
#pragma unroll 1
                for (int i = warp * 32 + at; i < rows; i += warps * 32)
                    attention_store_lse(p, batch, h, row + i, -INFINITY, 0);
            }
        }
    }
}

/* Stores the staged O of a consumer's rows of an item, and lse where it is left to this warp. TMA
 * stores take whole heads; heads of which only some rows exist go 16 bytes a lane. */
template <class T, class shape, int SOURCE>
DEVICE void sm90_store_item(char *memory, const struct attention_params &p,
                            const struct sm90_maps &maps, uint32_t staged, int consumer,
                            int32_t batch, int32_t head, int32_t row, int32_t rows) {
    const int each = min(64, p.tile_rows), end = min(64, p.tile_heads * each);
#pragma unroll 1
    for (int at = 0; at < end; at += each, staged += (uint32_t)each * 128) {
        const struct sm90_queries queries = sm90_queries_of(p, head, row, rows, 64 * consumer + at);
        if (!maps.tma_o || queries.rows < each) {
            sm90_store_pieces<T, shape::V_PANELS>(
                sm90_rows_o<T>(p, batch, queries.head, queries.row),
                p.o.stride[2] * (int64_t)sizeof(T), staged, min(queries.rows, each), p.d_v / 8);
        } else if (warp_lane() == 0) {
#pragma unroll
            for (int i = 0; i < shape::V_PANELS; i++)
                tma_store(&maps.o, staged + i * SM90_O_PANEL, 64 * i, queries.row, queries.head,
                          batch);
        }
        const int listed = sm90_hands_sums<shape, SOURCE>() ? min(queries.rows, each) : 0;
#pragma unroll 1
        for (int r = warp_lane(); r < listed; r += 32) {
            const float2 sums = sm90_sums<shape>(memory, 64 * consumer + at + r);
            attention_store_lse(p, batch, queries.head, queries.row + r, sums.x, sums.y);
        }
    }
    if (warp_lane() == 0) {
        bulk_store_commit();
        bulk_store_wait<0>();
    }
    __syncwarp();
}

/* Stores O of all items that have keys and are not split, as consumer `consumer` stages its
 * rows. load: as in sm90_store_empty. */
template <class T, class shape, int SOURCE, class loads>
DEVICE void sm90_store_items(char *memory, const struct attention_params &p,
                             const struct sm90_maps &maps, const loads &load, uint32_t shared,
                             int consumer, int64_t begin, int64_t end) {
    uint32_t job = 0;
#pragma unroll 1
    for (int64_t first = begin; first < end; first += 32) {
        const struct granule_item items = load(first);
        uint32_t left = __ballot_sync(WARP_ALL, items.count > 0);
#pragma unroll 1
        for (; left; left &= left - 1, job++) {
            const int lane = __ffs((int)left) - 1;
            const int32_t batch = sm90_of_lane(items.batch, lane);
            const int32_t head = sm90_of_lane(items.head, lane);
            const int32_t row = sm90_of_lane(items.row, lane);
            const int32_t rows = sm90_of_lane(items.rows, lane);
            const int32_t parts = sm90_of_lane(items.parts, lane);
            barrier_wait(shared + shape::O_FULL + 8 * consumer, job & 1);
            if (parts == 1)
                sm90_store_item<T, shape, SOURCE>(
                    memory, p, maps, shared + shape::O + (uint32_t)(consumer * shape::O_CONSUMER),
                    consumer, batch, head, row, rows);
            barrier_arrive(shared + shape::O_EMPTY + 8 * consumer);
        }
    }
}

#endif
