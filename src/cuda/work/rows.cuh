/* Rows of keys, values and scales, where a cache has them: by strides, or by a page and the row within it. */
#ifndef TESSERA_CUDA_ROWS_CUH
#define TESSERA_CUDA_ROWS_CUH

#include "work/granules.h"
#include "work/item.cuh"

/* The page of a key; -1: there is no such page, and the key is not listed. */
DEVICE int32_t filled_page(const struct decode_params &p, int32_t batch, int32_t key) {
    return fill_page(p.table + batch * p.columns, key, p.shift, p.pages);
}

/* The first row of a K/V head, of page 0. */
DEVICE const char *filled_head_rows(const struct decode_layout &layout,
                                    const struct filled_tile &tile) {
    return layout.data + tile.batch * layout.batch + tile.head_kv * layout.head;
}

/* Address found again at each call: the compiler does not keep it in registers across a loop. */
DEVICE const char *filled_head_rows_here(const struct decode_layout &layout,
                                         const struct filled_tile &tile) {
    int32_t batch = tile.batch;
    asm volatile("" : "+r"(batch));
    return layout.data + batch * layout.batch + tile.head_kv * layout.head;
}

/* Row of a place, in a head whose rows begin at `first`; of none, the first one. Not paged, all are of page 0. */
DEVICE const char *filled_row_at(const char *first, const struct decode_layout &layout,
                                 int32_t shift, int32_t row) {
    row = row < 0 ? 0 : row;
    const int32_t slot = row & (int32_t)((1u << shift) - 1);
    return first + (row >> shift) * layout.page + slot * layout.row;
}

#endif
