/* Lists of query tiles from ranges: a thread takes a tile, whose runs are twelve at most. */
#ifndef TESSERA_CUDA_FILL_RANGES_CUH
#define TESSERA_CUDA_FILL_RANGES_CUH

#include "fill/rows.cuh"

/* Writes the runs of a range, cut or whole. */
DEVICE void range_write(const struct fill_params *p, struct tile_under_way *t, int32_t begin,
                        int32_t end) {
    struct fill_run runs[3];
    int32_t pieces = 1;
    runs[0].begin = begin, runs[0].end = end, runs[0].full = 1;
    if (p->shape.cut)
        pieces = fill_range_cut(&t->cut, begin, end, runs);
    for (int32_t i = 0; i < pieces; i++) {
        const int32_t key = runs[i].begin, count = runs[i].end - key;
        if (count <= 0)
            continue;
        t->keys += (uint32_t)count;
        if (runs[i].full) {
            run_store(&p->arrays.full[t->full++], key, count);
        } else {
            band_store(&p->arrays.masked[t->band++], key, count, fill_band_limit(t->cut.low, key),
                       fill_band_limit(t->cut.high, key));
            t->masked +=
                (uint64_t)(fill_pairs(&t->cut, key, key + count) - (int64_t)count * t->cut.rows);
        }
    }
}

/* Query tile T over all lists. Its block row's first tile tells what is wrong with it. */
DEVICE void range_tile(const struct fill_params *p, int64_t T, struct fill_counts *counts) {
    const struct fill_shape *s = &p->shape;
    const int64_t list = T / s->tiles, tile = T % s->tiles, row = tile / s->row_tiles;
    const int64_t of_row = tile % s->row_tiles, b = list / s->heads;
    const int shared = s->batch == 1 && s->batches > 1;
    const int64_t given = (shared ? list % s->heads : list) * s->rows + row;
    const int64_t entry = given * s->capacity + (shared ? b * s->heads * s->rows * s->capacity : 0);
    const int64_t full = entry * s->row_tiles + of_row * s->capacity;
    const int64_t band = s->cut ? full * FILL_RANGE_BANDS : 0;
    const int32_t length =
        p->lengths ? fill_length(p->lengths[b], (int32_t)s->n_kv) : (int32_t)s->n_kv;
    enum fill_wrong wrong = FILL_RIGHT;
    int32_t range[FILL_RANGES][2], n = (int32_t)s->capacity;
    struct tile_under_way t;
    if (of_row == 0)
        place_padded(p, (uint32_t)given, (uint32_t)b);
    if (p->counts) {
        const int32_t count = p->counts[given];
        wrong = fill_count_wrong(count, n);
        n = fill_count(count, n);
    }
    n = fill_ranges(p->indices + 2 * given * s->capacity, n, length, range);
    t.full = full, t.band = band, t.keys = 0, t.masked = 0;
    t.cut = tile_cut(s, tile, length);
    for (int32_t i = 0; i < n; i++)
        range_write(p, &t, range[i][0], range[i][1]);
    tile_write(&p->arrays, T, full, t.full, band, t.band, t.keys);
    if (wrong != FILL_RIGHT && of_row == 0) {
        counts->faults += wrong != FILL_OVERFLOW;
        counts->overflows += wrong == FILL_OVERFLOW;
        counts->first =
            fill_earlier(counts->first, fill_order(wrong, (uint64_t)(list * s->rows + row),
                                                   s->capacity, FILL_AT_ROW));
    }
    counts->keys += t.keys;
    counts->pairs += (int64_t)(t.masked + (uint64_t)t.keys * (uint64_t)t.cut.rows);
}

static __global__ void __launch_bounds__(FILL_TILE_THREADS, 4)
    fill_range_tiles(const __grid_constant__ struct fill_params p) {
    const int64_t tiles = p.shape.batches * p.shape.heads * p.shape.tiles;
    struct fill_counts counts = {0, 0, 0, 0, FILL_NOWHERE};
    tally_begin();
    fill_wait();
    for (int64_t T = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; T < tiles;
         T += (int64_t)gridDim.x * blockDim.x)
        range_tile(&p, T, &counts);
    tally_warp(TALLY_FAULTS, (uint64_t)counts.faults);
    tally_warp(TALLY_OVERFLOWS, (uint64_t)counts.overflows);
    tally_warp(TALLY_KEYS, (uint64_t)counts.keys);
    tally_warp(TALLY_PAIRS, (uint64_t)counts.pairs);
    if (__any_sync(TEAM_LANES, counts.first != FILL_NOWHERE))
        first_warp(counts.first);
    rows_end(&p);
}

#endif
