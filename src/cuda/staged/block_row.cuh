/* A block row of the score matrix: its tiles side by side, as the BCSR scores store them
 * (tessera.h, section 4). Row r of it is `width` consecutive floats, block_kv for each tile. */
#ifndef TESSERA_CUDA_BLOCK_ROW_CUH
#define TESSERA_CUDA_BLOCK_ROW_CUH

#include "device/convert.cuh"
#include "device/warp.cuh"
#include "host/staged.h"

struct block_row {
    int32_t b, h;
    int64_t entry; /* its first tile */
    int64_t first; /* its first query */
    int64_t rows;
    int64_t width;
    float *scores;
};

/* n / number (struct cuda_divisor). */
DEVICE uint32_t divided(uint32_t n, const struct cuda_divisor &by) {
    const uint32_t high = __umulhi(by.factor, n);
    return (high + ((n - high) >> by.halve)) >> by.shift;
}

/* Loads a place as two pieces of 16 bytes, both in flight at once. */
DEVICE struct block_row_place block_row_place_at(const struct block_row_place *record) {
    static_assert(sizeof(struct block_row_place) == 2 * sizeof(uint4), "two pieces");
    const uint4 *from = reinterpret_cast<const uint4 *>(record);
    union {
        uint4 piece[2];
        struct block_row_place place;
    } at;
    at.piece[0] = from[0];
    at.piece[1] = from[1];
    return at.place;
}

DEVICE struct block_row block_row_at(const struct staged_params &p,
                                     const struct block_row_place &at) {
    struct block_row s;
    s.b = (int32_t)divided((uint32_t)at.batch_head, p.by_heads_q);
    s.h = at.batch_head - s.b * p.heads_q;
    s.entry = at.entry;
    s.first = at.row * p.block_q;
    s.rows = p.n_q - s.first < p.block_q ? p.n_q - s.first : p.block_q;
    s.width = at.tiles * p.block_kv;
    s.scores = p.scores + at.scores;
    return s;
}

DEVICE struct block_row block_row_of(const struct staged_params &p, int64_t number) {
    return block_row_at(p, block_row_place_at(p.image.block_rows + number));
}

/* Stores a warp's block row to shared memory, where registers are scarce. */
DEVICE void block_row_to_shared(struct block_row &shared, const struct block_row &s) {
    __syncwarp();
    if (warp_lane() == 0)
        shared = s;
    __syncwarp();
}

/* Whether all rows of a block row begin and end on multiples of 16 bytes. */
DEVICE bool block_row_aligned(const struct block_row &s) {
    return s.width % 4 == 0 && (uintptr_t)s.scores % 16 == 0;
}

/* A column of a block row. Row r lists the column when first <= r <= last and, with a bitmask, bit
 * number bit + r * block_kv is set. */
struct column {
    int32_t key; /* -1: past the last key, no row lists it */
    int32_t first, last;
    int64_t bit; /* -1: no bitmask */
};

DEVICE int32_t clamp_row(int64_t row) {
    return row < -1 ? -1 : row > INT32_MAX ? INT32_MAX : (int32_t)row;
}

/* Place of column x of the block row whose first tile is `first`: its tile, and its number c in the
 * tile. A block row is narrower than 2^32. */
struct column_place {
    int64_t entry;
    uint32_t c;
};

DEVICE struct column_place column_place_of(const struct staged_params &p, int64_t first,
                                           int64_t x) {
    const uint32_t n = (uint32_t)x, tile = divided(n, p.by_block_kv);
    return {first + tile, n - tile * (uint32_t)p.block_kv};
}

/* The column at a place, of block column `block`. */
DEVICE struct column column_at(const struct staged_params &p, const struct column_place &at,
                               int32_t block) {
    const uint32_t c = at.c;
    const int64_t key = block * p.block_kv + c;
    struct column out = {(int32_t)key, 0, INT32_MAX, -1};
    if (key >= p.n_kv) {
        out.key = out.last = -1;
    } else if (p.image.partial) {
        const int64_t kind = p.image.partial[at.entry];
        if (kind > 0) {
            out.first = clamp_row((int64_t)c - p.image.band[2 * (kind - 1) + 1]);
            out.last = clamp_row((int64_t)c - p.image.band[2 * (kind - 1)]);
        } else if (kind < 0) {
            out.bit = (-1 - kind) * p.block_q * p.block_kv + c;
        }
    }
    return out;
}

DEVICE struct column column_of(const struct staged_params &p, const struct block_row &s,
                               int64_t x) {
    const struct column_place at = column_place_of(p, s.entry, x);
    return column_at(p, at, p.image.col_idx[at.entry]);
}

DEVICE bool column_lists(const struct staged_params &p, int32_t first, int32_t last, int64_t bit,
                         int64_t row) {
    if (row < first || row > last)
        return false;
    if (bit < 0)
        return true;
    const int64_t at = bit + row * p.block_kv;
    return p.image.bits[at >> 6] >> (at & 63) & 1;
}

/* Whether any of rows row ... row + rows - 1 lists the column. */
DEVICE bool column_lists_any(const struct staged_params &p, const struct column &c, int64_t row,
                             int64_t rows) {
    if (c.bit < 0)
        return row <= c.last && row + rows > c.first;
    bool any = false;
    for (int64_t r = row; r < row + rows; r++)
        any |= column_lists(p, c.first, c.last, c.bit, r);
    return any;
}

/* Chunks of CUDA_CHUNK columns of all block rows, at most: the last chunk of each may be
 * partial. */
static inline int64_t chunks_at_most(const struct staged_params &p) {
    return p.n_items + p.columns / CUDA_CHUNK;
}

/* The key/value head of a block row's queries. */
DEVICE int32_t head_kv_of(const struct staged_params &p, const struct block_row &s) {
    return (int32_t)divided((uint32_t)s.h, p.by_heads_per_kv);
}

/* The rows of one head of a tensor. */
template <class T> struct head_view {
    T *data;
    int64_t stride;
    int32_t d;
    bool vector;
};

template <class T>
DEVICE head_view<T> head_of(const struct staged_params &p, const struct rows_view &view, int32_t b,
                            int32_t h, int32_t d) {
    return {static_cast<T *>(view.data) + b * view.stride[0] + h * view.stride[1], view.stride[2],
            d, p.alignment >= 4 * (int32_t)sizeof(T)};
}

template <class T> DEVICE row_view<T> row_of(const head_view<T> &head, int64_t row) {
    return {head.data + row * head.stride, head.d, head.vector};
}

#endif
