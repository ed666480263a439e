/* Fused attention on Hopper over filled columns: the producer's warps. */
#ifndef TESSERA_CUDA_SM90_COLUMNS_PRODUCER_CUH
#define TESSERA_CUDA_SM90_COLUMNS_PRODUCER_CUH

#include "forward/sm90/filled/columns/config.cuh"
#include "forward/sm90/filled/items.cuh"
#include "forward/sm90/producer.cuh"

/* Place `place` of an item, of a tile of ROWS rows. */
template <int ROWS>
DEVICE struct fill_column sm90_columns_find(const struct decode_params &p,
                                            const struct sm90_filled_item &item, uint32_t place) {
    const int width = 1 << p.run.granule_bits, c = (int)place & (width - 1);
    const int32_t g = (int32_t)(place >> p.run.granule_bits), n = item.begin + g;
    if (g >= item.count)
        return {-1, 0, 0};
    if (n < item.full) {
        const int2 run = *reinterpret_cast<const int2 *>(p.full + item.first + n);
        return fill_column_of(run.x, run.y, -FILL_NO_LIMIT, FILL_NO_LIMIT, width, c, ROWS);
    }
    const int4 band = *reinterpret_cast<const int4 *>(p.masked + item.first + (n - item.full));
    return fill_column_of(band.x, band.y, band.z, band.w, width, c, ROWS);
}

/* Rows that list place `place`, as consumers read them. */
template <int ROWS>
DEVICE uint16_t sm90_columns_rows(const struct decode_params &p,
                                  const struct sm90_filled_item &item, uint32_t place) {
    const struct fill_column column = sm90_columns_find<ROWS>(p, item, place);
    return (uint16_t)(column.first | column.count << 8);
}

/* Finds keys of a step's half that begins at place `at`: lane l has those of places l, l + 32 ... */
template <int ROWS, int N>
DEVICE void sm90_columns_keys(int32_t (&key)[N], const struct decode_params &p,
                              const struct sm90_filled_item &item, uint32_t at) {
#pragma unroll
    for (int i = 0; i < N; i++)
        key[i] = sm90_columns_find<ROWS>(p, item, at + 32 * i + warp_lane()).key;
}

/* Prefetches to L2 the runs of an item's first step, where it is a whole tile. */
template <int KEYS>
DEVICE void sm90_columns_prefetch(const struct decode_params &p, const struct work_item &w) {
    const struct list_run *const first = p.full + p.full_ptr[filled_tile_of(p, w).T];
    if (warp_lane() < KEYS / 16)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(first + 16 * warp_lane()));
}

/* Publishes an item, and loads its Q; `half` of two warps. */
template <class T, class shape>
DEVICE void sm90_columns_publish(char *memory, uint32_t shared, const struct attention_params &p,
                                 const struct sm90_maps &maps, int half, uint32_t job,
                                 const struct sm90_filled_item &item) {
    const uint32_t slot = ring_stage<shape::Q_STAGES>(job);
    const uint32_t tile = shared + shape::Q + slot * shape::Q_TILE;
    const uint32_t full = shared + shape::Q_FULL + 8 * slot;
    barrier_wait(shared + shape::Q_EMPTY + 8 * slot, ring_parity<shape::Q_STAGES>(job) ^ 1);
    if (half == 0 && warp_lane() == 0) /* the lane that arrives last of its warp */
        sm90_item<shape>(memory, job) = item;
    if (!maps.tma_q)
        sm90_cp_async_q<T, shape>(p, tile, item.batch, item.head, item.row, item.rows, half);
    if (half > 0 || warp_lane() > 0 || !maps.tma_q)
        barrier_arrive(full);
    if (half == 0 && maps.tma_q)
        sm90_tma_q<shape>(p, tile, &maps.q, full, item.row, item.head, item.batch, 0);
    __syncwarp();
}

/* The producer loop: items, Q and K (IS_K), or V; `half` of two warps. Runs of the next step are loaded during a
 * step's copies. A copy in flight is told of before an item is looked up, which takes loads in a row. */
template <class T, class shape, bool IS_K>
DEVICE void sm90_columns_produce(char *memory, uint32_t shared, const struct decode_params &p,
                                 const struct sm90_maps &maps, int half) {
    constexpr int PANELS = IS_K ? shape::QK_PANELS : shape::V_PANELS;
    constexpr int TILES = IS_K ? shape::K : shape::V, TILE = PANELS * shape::PANEL;
    constexpr int MINE = shape::KEYS / 2, N = MINE / 32; /* rows of K or V; a lane's */
    constexpr int FULL = IS_K ? shape::K_FULL : shape::V_FULL;
    constexpr int EMPTY = IS_K ? shape::K_EMPTY : shape::V_EMPTY;
    const struct rows_view &view = IS_K ? p.run.k : p.run.v;
    struct work_item w = sm90_filled_work(p, 0); /* not today's, maybe: it comes with the header */
    const int32_t end = sm90_filled_items(p);
    struct sm90_pending_copy pending = {0, false};
    uint32_t step = 0, job = 0;
#pragma unroll 1
    for (int32_t i = 0; i < end; i++) {
        const struct sm90_filled_item item = sm90_filled_item_of(p, w);
        w = sm90_filled_work(p, min(i + 1, end - 1));
        if (item.count == 0)
            continue;
        const struct sm90_rows rows =
            sm90_rows_of<T, shape>(view, item.batch, item.head_kv, IS_K ? p.run.d_qk : p.run.d_v,
                                   IS_K ? shape::D_QK : shape::D_V);
        const uint32_t places = (uint32_t)item.count << p.run.granule_bits;
        const uint32_t whole = (uint32_t)item.whole << p.run.granule_bits;
        int32_t key[N], next[N];
        sm90_columns_keys<shape::ROWS>(key, p, item, MINE * half);
        if (IS_K)
            sm90_columns_publish<T, shape>(memory, shared, p.run, maps, half, job++, item);
#pragma unroll 1
        for (uint32_t at = 0; at < places; at += shape::KEYS, step++) {
            const uint32_t stage = ring_stage<shape::STAGES>(step);
            const uint32_t full = shared + FULL + 8 * stage;
            sm90_columns_keys<shape::ROWS>(next, p, item, at + shape::KEYS + MINE * half);
            sm90_wait_signalling(shared + EMPTY + 8 * stage, ring_parity<shape::STAGES>(step) ^ 1,
                                 pending);
            if (IS_K && at + shape::KEYS > whole)
#pragma unroll 1
                for (uint32_t j = MINE * half + warp_lane(); j < MINE * (half + 1); j += 32)
                    sm90_columns_listed<shape>(memory, step)[j] =
                        sm90_columns_rows<shape::ROWS>(p, item, at + j);
            sm90_cp_async_tile<PANELS, shape::PANEL>(
                shared + TILES + stage * TILE + (uint32_t)(half * MINE * 128), rows, key);
            cp_async_commit();
            sm90_signal_copy<1>(pending);
            pending = {full, true};
            if (IS_K && half == 0 && at == shape::STAGES * shape::KEYS) /* the ring is full */
                sm90_columns_prefetch<shape::KEYS>(p, w);
#pragma unroll
            for (int j = 0; j < N; j++)
                key[j] = next[j];
        }
        sm90_signal_copy<0>(pending);
    }
    if (IS_K) {
        sm90_publish_end<shape>(memory, shared, job, half == 0 && warp_lane() == 0);
        barrier_arrive(ring_barrier<shape::Q_STAGES>(shared + shape::Q_FULL, job));
    }
}

#endif
