/*
 * Lists from a boolean mask, in two kernels. The first reads the mask: a warp takes 256 keys of a query tile,
 * eight by a lane.
 *
 *     bytes     row r: 256 neighbouring bytes, of lane l  k = 8 l, + 1, ... + 7
 *     bits      the top bits of bytes that are not 0 go to bit r % 8 of a byte a key: eight rows, one word
 *     words     bytes of eight such words, turned: 64 rows of a key
 *     pairs     of each block: sums over its lanes; they say whether it is full, empty or has runs of bits
 *
 * Words of all blocks have places, so no tile waits for another. The second kernel makes runs of the blocks'
 * pairs: a warp takes a block row.
 */
#ifndef TESSERA_CUDA_FILL_MASK_CUH
#define TESSERA_CUDA_FILL_MASK_CUH

#include "fill/rows.cuh"

#define MASK_LANE_KEYS 8  /* keys of a lane, in two words of bytes */
#define MASK_WORDS_MOST 2 /* words of a query tile's rows */

/* A query tile, and the keys that a lane has. */
struct mask_place {
    int64_t T, key;
    const uint8_t *from; /* its bytes of the tile's first query */
    struct fill_cut cut;
    int32_t keys; /* today, 0 ... MASK_LANE_KEYS */
    int32_t length;
};

DEVICE struct mask_place mask_place_of(const struct fill_params *p, int64_t T, int64_t first) {
    const struct fill_shape *s = &p->shape;
    const int64_t list = T / s->tiles, t = T - list * s->tiles, batch = list / s->heads;
    const int64_t given = rows_shared(s) ? list - batch * s->heads : list;
    const int32_t most = (int32_t)s->n_kv;
    const int32_t length = p->lengths ? fill_length(p->lengths[batch], most) : most;
    struct mask_place m;
    m.T = T, m.length = length;
    m.key = first + MASK_LANE_KEYS * (int32_t)(threadIdx.x % 32);
    m.cut = tile_cut(s, t, length);
    m.from = p->mask +
             (given * s->n_q + fill_tile_query(t, s->row_tiles, s->block_q, s->tile_rows, s->n_q)) *
                 s->n_kv +
             m.key;
    m.keys = (int32_t)fill_least(MASK_LANE_KEYS, fill_most(0, length - m.key));
    return m;
}

/* Eight bytes of row `row`; those past the lane's keys are 0. whole: what multiples of bytes rows begin at, 8, 4 or 1. */
DEVICE void mask_bytes(const struct mask_place *m, int64_t stride, int32_t row, int whole,
                       uint32_t x[2]) {
    const uint8_t *const from = m->from + row * stride;
    const uint32_t *const words = (const uint32_t *)(const void *)from;
    x[0] = x[1] = 0;
    if (row >= m->cut.rows)
        return;
    if (whole == 8 && m->keys == MASK_LANE_KEYS) {
        const int2 both = *(const int2 *)(const void *)from;
        x[0] = (uint32_t)both.x, x[1] = (uint32_t)both.y;
    } else if (whole >= 4 && m->keys == MASK_LANE_KEYS) {
        x[0] = words[0], x[1] = words[1];
    } else {
        for (int32_t i = 0; i < m->keys; i++)
            x[i / 4] |= (uint32_t)from[i] << 8 * (i % 4);
    }
}

/* The top bit of each byte that is not 0. */
DEVICE uint32_t mask_tops(uint32_t x) {
    return (((x & 0x7f7f7f7fu) + 0x7f7f7f7fu) | x) & 0x80808080u;
}

/* Rows 64 w ... 64 w + 63 of the lane's keys, the cut applied. */
DEVICE void mask_words(const struct mask_place *m, int64_t stride, int32_t w, int whole, int cut,
                       uint64_t word[MASK_LANE_KEYS]) {
    for (int32_t i = 0; i < MASK_LANE_KEYS; i++)
        word[i] = 0;
    FILL_ROLLED
    for (int32_t first = 0; first < 64 && 64 * w + first < m->cut.rows; first += 16) {
        uint32_t x[16][2], eight[2][2] = {{0, 0}, {0, 0}};
        for (int32_t r = 0; r < 16; r++) /* all on their way together */
            mask_bytes(m, stride, 64 * w + first + r, whole, x[r]);
        for (int32_t r = 0; r < 16; r++)
            for (int32_t i = 0; i < 2; i++)
                eight[r / 8][i] = eight[r / 8][i] >> 1 | mask_tops(x[r][i]);
        for (int32_t i = 0; i < MASK_LANE_KEYS; i++)
            word[i] |= (uint64_t)((eight[0][i / 4] >> 8 * (i % 4) & 255) |
                                  (eight[1][i / 4] >> 8 * (i % 4) & 255) << 8)
                       << first;
    }
    for (int32_t i = 0; i < MASK_LANE_KEYS; i++)
        word[i] &= i < m->keys ? fill_mask_rows(&m->cut, cut, m->key + i, w) : 0;
}

/* Writes words of the lane's keys that stand in blocks. */
DEVICE void mask_write(const struct fill_params *p, const struct mask_place *m, int64_t each,
                       uint64_t (*word)[MASK_LANE_KEYS]) {
    uint64_t *const to = p->arrays.words + fill_word(&p->shape, m->T, m->key);
    FILL_UNROLLED
    for (int32_t i = 0; i < MASK_LANE_KEYS; i++)
        FILL_UNROLLED
    for (int32_t w = 0; w < MASK_WORDS_MOST; w++)
        if (w < each && m->key + i < p->shape.cols * p->shape.block_kv)
            to[i * each + w] = word[w][i];
}

/* Marks which of the warp's keys some row lists: a lane has eight, and every fourth writes 32. */
DEVICE void mask_mark(const struct fill_params *p, const struct mask_place *m, uint32_t some) {
    const int32_t lane = (int32_t)threadIdx.x % 32;
    const int64_t words = mask_marks(&p->shape);
    some <<= MASK_LANE_KEYS * (lane % 4);
    for (int32_t step = 1; step < 4; step *= 2)
        some |= __shfl_xor_sync(TEAM_LANES, some, step);
    if (lane % 4 == 0 && m->key / 32 < words)
        p->mask_listed[m->T * words + m->key / 32] = some;
}

/* Writes the pairs of blocks that the lane's keys are of: of several, or its part of one. Answers whether some
 * block has words, which full and empty ones have not. */
DEVICE int mask_pairs(const struct fill_params *p, const struct mask_place *m,
                      const uint32_t pairs[MASK_LANE_KEYS]) {
    const int32_t width = (int32_t)p->shape.block_kv;
    uint32_t *const to = p->mask_pairs + m->T * p->shape.cols;
    uint32_t sum = 0, part = 0;
    FILL_UNROLLED
    for (int32_t i = 0; i < MASK_LANE_KEYS; i++) {
        sum += pairs[i], part += pairs[i];
        if (width >= MASK_LANE_KEYS || (i + 1) % width)
            continue;
        if (m->key + i < p->shape.cols * width)
            to[(m->key + i) / width] = part;
        part = 0;
    }
    if (width < MASK_LANE_KEYS)
        return sum != 0;
    for (int32_t step = 1; step < width / MASK_LANE_KEYS; step *= 2)
        sum += __shfl_xor_sync(TEAM_LANES, sum, step);
    const int64_t first = m->key & -(int64_t)width;
    if (m->key == first && first < p->shape.cols * width)
        to[m->key / width] = sum;
    return sum != 0 && sum != fill_least(width, m->length - first) * m->cut.rows;
}

/* A warp's keys of a tile. */
DEVICE void mask_read(const struct fill_params *p, int64_t T, int64_t first, int whole) {
    const struct fill_shape *s = &p->shape;
    const struct mask_place m = mask_place_of(p, T, first);
    const int64_t each = fill_words(s);
    uint64_t word[MASK_WORDS_MOST][MASK_LANE_KEYS];
    uint32_t pairs[MASK_LANE_KEYS] = {0}, some = 0;
    FILL_UNROLLED
    for (int32_t w = 0; w < MASK_WORDS_MOST; w++) {
        if (w >= each)
            continue;
        mask_words(&m, s->n_kv, w, whole, s->cut, word[w]);
        for (int32_t i = 0; i < MASK_LANE_KEYS; i++)
            pairs[i] += (uint32_t)__popcll(word[w][i]);
    }
    for (int32_t i = 0; i < MASK_LANE_KEYS; i++)
        some |= (uint32_t)(pairs[i] != 0) << i;
    mask_mark(p, &m, some);
    if (mask_pairs(p, &m, pairs))
        mask_write(p, &m, each, word);
}

static __global__ void __launch_bounds__(32 * FILL_MASK_WARPS)
    fill_mask_words(const __grid_constant__ struct fill_params p) {
    const int64_t chunks = (p.shape.n_kv + FILL_MASK_KEYS - 1) / FILL_MASK_KEYS;
    const int64_t n = p.shape.batches * p.shape.heads * p.shape.tiles * chunks;
    const int64_t step = (int64_t)gridDim.x * FILL_MASK_WARPS;
    const uint64_t begins = (uint64_t)p.shape.n_kv | (uintptr_t)p.mask;
    const int whole = begins % 8 == 0 ? 8 : begins % 4 == 0 ? 4 : 1;
    fill_wait();
    FILL_ROLLED
    for (int64_t i = (int64_t)blockIdx.x * FILL_MASK_WARPS + threadIdx.x / 32; i < n; i += step)
        mask_read(&p, i / chunks, i % chunks * FILL_MASK_KEYS, whole);
}

/* ---- runs ---- */

/* A tile's block of so many pairs. Answers 0: not listed, 1: a run of bits, 2: a full one. */
DEVICE int mask_kind(const struct fill_params *p, const struct row_under_way *r, uint32_t pairs,
                     uint32_t column, int64_t rows) {
    const int64_t width = p->shape.block_kv;
    const int64_t keys = fill_least(width, r->length - column * width);
    return !pairs ? 0 : pairs == keys * rows ? 2 : 1;
}

/* Blocks of a row that some tile lists. */
DEVICE uint32_t mask_count(const struct fill_params *p, const struct row_under_way *r) {
    const int32_t lane = (int32_t)threadIdx.x % 32;
    const uint32_t *const pairs =
        p->mask_pairs + ((int64_t)r->list * p->shape.tiles + r->tile) * p->shape.cols;
    uint32_t n = 0;
    FILL_ROLLED
    for (uint32_t first = 0; first < r->blocks; first += 32) {
        const uint32_t column = first + (uint32_t)lane;
        uint32_t any = 0;
        if (column < r->blocks)
            for (uint32_t t = 0; t < r->tiles; t++)
                any |= pairs[t * p->shape.cols + column];
        n += (uint32_t)__popc(__ballot_sync(TEAM_LANES, any != 0));
    }
    return n;
}

/* Columns 32 w ... of a tile's block that some row lists. */
DEVICE uint32_t mask_listed(const struct fill_params *p, int64_t T, int64_t key, int32_t w) {
    const int32_t width = (int32_t)p->shape.block_kv;
    const int64_t words = mask_marks(&p->shape), at = key / 32 + w;
    const uint32_t all = width >= 32 ? UINT32_MAX : (1u << width) - 1;
    return at < words && 32 * w < width ? p->mask_listed[T * words + at] >> key % 32 & all : 0;
}

/* Writes a run of bits at place `at`. */
DEVICE void mask_run(const struct fill_params *p, int64_t T, int64_t at, int64_t key,
                     int32_t count) {
    const int64_t words = fill_listed_words(&p->shape);
    bits_store(&p->arrays.masked[at], (int32_t)key, count, fill_word(&p->shape, T, key));
    for (int32_t w = 0; w < words; w++)
        p->arrays.listed[at * words + w] =
            mask_listed(p, T, key, 2 * w) | (uint64_t)mask_listed(p, T, key, 2 * w + 1) << 32;
}

/* Writes the runs of tile t of a row. */
DEVICE void mask_tile(const struct fill_params *p, const struct row_under_way *r, uint32_t t,
                      uint32_t blocks) {
    const struct fill_shape *s = &p->shape;
    const int64_t T = (int64_t)r->list * s->tiles + r->tile + t, width = s->block_kv;
    const int64_t place = r->first + t * r->claim;
    const int32_t lane = (int32_t)threadIdx.x % 32;
    const uint32_t below = (1u << lane) - 1;
    const int64_t of_row = (int64_t)t * s->tile_rows, query = r->row * s->block_q + of_row;
    const int64_t rows =
        fill_least(s->tile_rows, fill_least(s->block_q - of_row, s->n_q - query)); /* no division */
    int64_t full = place, bits = place;
    uint64_t keys = 0, sum = 0;
    FILL_ROLLED
    for (uint32_t first = 0; first < blocks; first += 32) {
        const uint32_t column = first + (uint32_t)lane;
        const uint32_t pairs = column < blocks ? p->mask_pairs[T * s->cols + column] : 0;
        const int kind = mask_kind(p, r, pairs, column, rows);
        const uint32_t of_full = __ballot_sync(TEAM_LANES, kind == 2);
        const uint32_t of_bits = __ballot_sync(TEAM_LANES, kind == 1);
        const int64_t key = column * width;
        const int32_t count = (int32_t)fill_least(width, r->length - key);
        if (kind == 2)
            run_store(&p->arrays.full[full + __popc(of_full & below)], (int32_t)key, count);
        if (kind == 1)
            mask_run(p, T, bits + __popc(of_bits & below), key, count);
        full += __popc(of_full), bits += __popc(of_bits);
        keys += kind ? (uint64_t)count : 0;
        sum += pairs;
    }
    keys = warp_sum(keys), sum = warp_sum(sum);
    if (lane)
        return;
    tally_add(TALLY_KEYS, keys);
    tally_add(TALLY_PAIRS, sum);
    tile_write(&p->arrays, T, place, full, place, place, (int64_t)keys);
    p->arrays.masked_end[LIST_MASKED_KINDS * T + LIST_BITS] = bits;
}

/* Today's blocks of a row, and whether there is room for those that are listed; of that a lane tells. */
DEVICE void mask_row_read(const struct fill_params *p, struct row_under_way *r) {
    const uint32_t width = (uint32_t)p->shape.block_kv;
    const int32_t most = (int32_t)p->shape.n_kv;
    r->length = p->lengths ? fill_length(p->lengths[r->batch], most) : most;
    r->blocks = ((uint32_t)r->length + width - 1) / width;
    if (mask_count(p, r) > p->shape.capacity)
        r->wrong = FILL_OVERFLOW;
    if (threadIdx.x % 32)
        return;
    place_padded(p, r->given, r->batch);
    if (r->wrong != FILL_RIGHT) {
        tally_add(TALLY_OVERFLOWS, 1);
        first_keep(row_order(p, r, r->wrong, FILL_AT_ROW));
    }
}

static __global__ void __launch_bounds__(32 * FILL_WARPS, 4)
    fill_mask_lists(const __grid_constant__ struct fill_params p) {
    const uint32_t n = (uint32_t)(p.shape.batches * p.shape.heads * p.shape.rows);
    tally_begin();
    fill_wait();
    FILL_ROLLED
    for (uint32_t i = blockIdx.x * FILL_WARPS + threadIdx.x / 32; i < n;
         i += gridDim.x * FILL_WARPS) {
        struct row_under_way r = row_at(&p, i, 0, 0, 0);
        mask_row_read(&p, &r);
        FILL_ROLLED
        for (uint32_t t = 0; t < r.tiles; t++)
            mask_tile(&p, &r, t, r.wrong == FILL_RIGHT ? r.blocks : 0);
    }
    rows_end(&p);
}

#endif
