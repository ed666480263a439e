/* Items of a filled image: whose rows they are, and which list. */
#ifndef TESSERA_CUDA_ITEM_CUH
#define TESSERA_CUDA_ITEM_CUH

#include "device/inline.cuh"
#include "host/decode.h"
#include "work/runs.h"

/* Head of a tile's row among the packed ones, and its query: tile_rows is a power of two where heads are packed, and
 * in decode. */
DEVICE int32_t filled_row_head(const struct decode_params &p, int row) {
    return row >> (__ffs(p.run.tile_rows) - 1);
}
DEVICE int32_t filled_row_query(const struct decode_params &p, int row) {
    return row & (p.run.tile_rows - 1);
}

/* First query of a tile of a list: fill_tile_query, in the numbers that kernels have. */
DEVICE int32_t filled_tile_query(const struct decode_params &p, int32_t tile) {
    const int32_t row_tiles = (int32_t)p.image.row_tiles,
                  row = (int32_t)fill_quotient((uint32_t)tile, (uint32_t)row_tiles);
    return (int32_t)fill_least(p.run.n_q, row * p.image.block_q +
                                              (tile - row * row_tiles) * (int64_t)p.run.tile_rows);
}

/* An item's tile. Row r of it is query row + r % tile_rows of head head + r / tile_rows. */
struct filled_tile {
    int64_t T; /* its number, over all lists */
    int32_t batch, head, head_kv;
    int32_t row, rows; /* queries */
    int32_t first;     /* key position of query 0 */
};

/* Tile `number` of a list, of packed heads `batch_head`; `first` is left to the caller. */
DEVICE struct filled_tile filled_tile_at(const struct decode_params &p, int32_t batch_head,
                                         int32_t number) {
    const struct attention_params &run = p.run;
    const int32_t first = batch_head * run.tile_heads;
    const int32_t heads = (int32_t)p.image.heads; /* heads of a batch, with lists of their own */
    struct filled_tile tile;
    tile.batch = (int32_t)fill_quotient((uint32_t)first, (uint32_t)run.heads_q);
    tile.head = first - tile.batch * run.heads_q;
    tile.head_kv = run.heads_kv == 1 ? 0 : tile.head / (run.heads_q / run.heads_kv);
    const int64_t list =
        (int64_t)tile.batch * heads + (heads == 1 ? 0 : tile.head / (run.heads_q / heads));
    tile.T = list * p.tiles + number;
    tile.row = filled_tile_query(p, number);
    tile.rows = filled_tile_query(p, number + 1) - tile.row;
    return tile;
}
DEVICE struct filled_tile filled_tile_of(const struct decode_params &p, const struct work_item &w) {
    struct filled_tile tile = filled_tile_at(p, w.batch_head, w.tile);
    tile.first = p.lengths[tile.batch] - p.run.n_q;
    return tile;
}

#endif
