/* Fills packed lists on the host: places of block rows, then each block row by itself. */
#include "lists/filler.h"

#include "base/threads.h"

#include <string.h>

/* Seconds of one thread, roughly: by hand, one of two cores of a Xeon. */
#define FILL_ROW_SECONDS 50e-9
#define FILL_ENTRY_SECONDS 1.5e-9
#define FILL_BYTE_SECONDS 0.3e-9

/* Entries over all lists of the pattern. */
static int64_t entries_all(const struct fill_shape *s) {
    return s->capacity * (fill_is_padded(s->form) ? s->batch * s->heads * s->rows : 1);
}

/* Masked runs that an entry can give. */
static int64_t entry_masked(const struct fill_shape *s) {
    return s->form == TESS_MASK ? 1 : !s->cut ? 0 : s->form == TESS_RANGES ? FILL_RANGE_BANDS : 1;
}

void fill_take(struct carve *c, const struct fill_shape *s, struct fill_arrays *a) {
    const size_t lists = (size_t)(s->batches * s->heads), row_tiles = (size_t)s->row_tiles;
    const size_t copies = (size_t)(s->batches / s->batch);
    size_t tiles, runs;
    if (__builtin_mul_overflow(lists, (size_t)s->tiles, &tiles) ||
        __builtin_mul_overflow((size_t)entries_all(s), copies * row_tiles, &runs)) {
        c->overflow = 1;
        return;
    }
    a->lengths = carve_take(c, (size_t)s->batches, sizeof *a->lengths);
    a->place = carve_take(c, (size_t)(s->batch * s->heads * s->rows) + 1, sizeof *a->place);
    a->keys = carve_take(c, tiles, sizeof *a->keys);
    a->full_ptr = carve_take(c, tiles, sizeof *a->full_ptr);
    a->full_end = carve_take(c, tiles, sizeof *a->full_end);
    a->masked_ptr = carve_take_panel(c, tiles, LIST_MASKED_KINDS, sizeof *a->masked_ptr);
    a->masked_end = carve_take_panel(c, tiles, LIST_MASKED_KINDS, sizeof *a->masked_end);
    a->full = carve_take(c, runs, sizeof *a->full);
    a->masked = carve_take_panel(c, runs, (size_t)entry_masked(s), sizeof *a->masked);
    const size_t masks = s->form == TESS_MASK ? tiles : 0;
    a->words = carve_take_panel(c, masks, (size_t)fill_word(s, 1, 0), sizeof *a->words);
    a->listed =
        carve_take_panel(c, masks ? runs : 0, (size_t)fill_listed_words(s), sizeof *a->listed);
}

struct lists fill_view(const struct fill_shape *s, const struct fill_arrays *a, int64_t *tile_row) {
    return (struct lists){.n_lists = s->batches * s->heads,
                          .tiles = s->tiles,
                          .tile_rows = s->tile_rows,
                          .words = s->form == TESS_MASK ? (int32_t)fill_words(s) : 1,
                          .tile_row = tile_row,
                          .keys = a->keys,
                          .full_ptr = a->full_ptr,
                          .full_end = a->full_end,
                          .full = a->full,
                          .masked_ptr = a->masked_ptr,
                          .masked_end = a->masked_end,
                          .masked = a->masked,
                          .words_of_rows = s->form == TESS_MASK ? a->words : NULL,
                          .filled = 1};
}

/* ---- what is wrong ---- */

void fill_tell(struct fill_counts *counts, const struct fill_shape *s, enum fill_wrong wrong,
               int64_t row, int64_t where) {
    if (wrong == FILL_RIGHT)
        return;
    counts->faults += wrong != FILL_OVERFLOW;
    counts->overflows += wrong == FILL_OVERFLOW;
    counts->first =
        fill_earlier(counts->first, fill_order(wrong, (uint64_t)row, s->capacity, where));
}

struct fill_place fill_place_of(const struct fill_shape *s, uint64_t number) {
    const uint64_t place = number & ((UINT64_C(1) << 62) - 1), rows = (uint64_t)(s->capacity + 2);
    const int64_t cell = (int64_t)(place / rows), where = (int64_t)(place % rows);
    const int64_t list = cell / s->rows, of_row = where >= FILL_AT_ROW;
    return (struct fill_place){.wrong = (enum fill_wrong)(number >> 62),
                               .batch = list / s->heads,
                               .head = of_row ? list % s->heads : -1,
                               .row = of_row ? cell % s->rows : -1,
                               .position = of_row ? where - FILL_AT_ENTRY(0) : -1};
}

tess_list_fault fill_list_fault(enum fill_wrong wrong) {
    static const tess_list_fault faults[] = {[FILL_FALLS] = TESS_FAULT_NOT_MONOTONE,
                                             [FILL_NEGATIVE] = TESS_FAULT_NEGATIVE,
                                             [FILL_OUT_OF_RANGE] = TESS_FAULT_OUT_OF_RANGE,
                                             [FILL_OVERFLOW] = TESS_FAULT_OVERFLOW,
                                             [FILL_RIGHT] = TESS_FAULT_NONE};
    return faults[wrong];
}

/* ---- places ---- */

/* Word w of a row's bits, without those past the last column. */
static uint64_t bits_word(const struct filler *f, int64_t row, int64_t w, int64_t cols) {
    const int64_t words = (f->shape->cols + 63) / 64, left = cols - 64 * w;
    const uint64_t word = f->pattern->bits[row * words + w];
    return left >= 64 ? word : left <= 0 ? 0 : word & ((UINT64_C(1) << left) - 1);
}

static int64_t bits_count(const struct filler *f, int64_t row) {
    int64_t n = 0;
    for (int64_t w = 0; 64 * w < f->shape->cols; w++)
        n += __builtin_popcountll(bits_word(f, row, w, f->shape->cols));
    return n;
}

/* Begin and end of a row of BLOCK_ROWS, row counting over all lists. */
static const int64_t *row_ends(const struct filler *f, int64_t row) {
    return f->pattern->row_ptr + row + row / f->shape->rows;
}

/* Entries that a row of the pattern takes up. */
static int64_t row_claim(const struct filler *f, int64_t row) {
    const struct fill_shape *s = f->shape;
    if (s->form == TESS_BLOCK_BITS)
        return bits_count(f, row);
    if (s->form == TESS_BLOCK_ROWS) {
        const int64_t *ends = row_ends(f, row);
        return fill_claim(ends[0], ends[1], s->capacity);
    }
    return s->capacity;
}

static void places_make(const struct filler *f) {
    const struct fill_shape *s = f->shape;
    const int64_t rows = s->batch * s->heads * s->rows;
    const double seconds = (double)rows * (double)s->cols * 0.05e-9;
    int64_t *place = f->a->place;
    const int32_t threads = threads_team(s->threads, rows);
    place[0] = 0;
#pragma omp parallel for num_threads(threads)                                                      \
    schedule(static) if (s->form == TESS_BLOCK_BITS && threads_pay(seconds))
    for (int64_t row = 0; row < rows; row++)
        place[row + 1] = row_claim(f, row);
    for (int64_t row = 0; row < rows; row++)
        place[row + 1] += place[row];
}

/* ---- entries of a block row ---- */

/* Sorts n numbers below 2^bits from one array, by way of the other: digits of 8 bits, two or four. */
static void entries_sort(int32_t *in, int32_t *other, int32_t n, int32_t largest) {
    const int digits = largest >> 16 ? 4 : 2;
    for (int digit = 0; digit < digits; digit++) {
        int32_t place[257] = {0};
        for (int32_t i = 0; i < n; i++)
            place[(in[i] >> 8 * digit & 255) + 1]++;
        for (int b = 0; b < 256; b++)
            place[b + 1] += place[b];
        for (int32_t i = 0; i < n; i++)
            other[place[in[i] >> 8 * digit & 255]++] = in[i];
        int32_t *swap = in;
        in = other, other = swap;
    }
}

/* Indices under way: those that are listed, and whether any is not above the one before it. */
struct taking {
    int32_t *to, taken, last, falls, faults;
};

/* Takes CHUNK indices at once where all are listed: the common case, and no branch for each. Sign bits
 * of sums say so. Answers whether it did. */
#define CHUNK 32
static int chunk_take(struct taking *t, const int32_t *index, int32_t blocks) {
    int32_t *to = t->to + t->taken;
    uint32_t outside = 0, falls = (uint32_t)index[0] - (uint32_t)t->last - 1;
    for (int i = 0; i < CHUNK; i++)
        outside |= (uint32_t)index[i] | ((uint32_t)blocks - 1 - (uint32_t)index[i]);
    if (outside >> 31)
        return 0;
    for (int i = 1; i < CHUNK; i++)
        falls |= (uint32_t)index[i] - (uint32_t)index[i - 1] - 1;
    memcpy(to, index, CHUNK * sizeof *to);
    t->falls |= (int32_t)(falls >> 31);
    t->last = index[CHUNK - 1];
    t->taken += CHUNK;
    return 1;
}

/* Takes one. */
static void index_take(struct taking *t, int32_t index, int32_t blocks) {
    const int listed = fill_listed(index, blocks);
    t->to[t->taken] = index;
    t->falls |= listed & (index <= t->last);
    t->faults += fill_fault(index) & (listed ^ 1);
    t->last = listed ? index : t->last;
    t->taken += listed;
}

/* Sorts what was taken unless it ascends, and keeps each once; answers how many. */
static int32_t taken_sort(const struct taking *t, int32_t *other, int32_t blocks) {
    int32_t *to = t->to, once = 1;
    if (!t->falls)
        return t->taken;
    entries_sort(to, other, t->taken, blocks);
    for (int32_t i = 1; i < t->taken; i++)
        if (to[i] != to[once - 1])
            to[once++] = to[i];
    return once;
}

/* Takes the listed ones of n indices, in their order; answers how many were looked at. */
static int32_t indices_take(const struct filler *f, const int32_t *index, int32_t n, int32_t blocks,
                            struct taking *t) {
    const int64_t padded_last = f->pattern->promises & TESS_PADDED_LAST;
    for (int32_t i = 0; i < n;) {
        if (n - i >= CHUNK && chunk_take(t, index + i, blocks)) {
            i += CHUNK;
            continue;
        }
        const int32_t end = (int32_t)min_i64(n, (int64_t)i + CHUNK);
        for (; i < end; i++) {
            if (index[i] == -1 && padded_last)
                return i;
            index_take(t, index[i], blocks);
        }
    }
    return n;
}

/* Tells of each that is wrong, of n of a row: seldom, so that taking them has no branch for it. */
static void indices_tell(const struct fill_shape *s, int64_t row, const int32_t *index, int32_t n,
                         int32_t blocks, struct fill_counts *counts) {
    for (int32_t i = 0; i < n; i++)
        fill_tell(counts, s, fill_index_wrong(index[i], blocks), row, FILL_AT_ENTRY(i));
}

static int32_t bits_take(const struct filler *f, int64_t row, int32_t blocks, int32_t *to) {
    int32_t taken = 0;
    for (int64_t w = 0; 64 * w < blocks; w++)
        for (uint64_t word = bits_word(f, row, w, blocks); word; word &= word - 1)
            to[taken++] = (int32_t)(64 * w + __builtin_ctzll(word));
    return taken;
}

/* ---- runs of a query tile ---- */

/* A tile under way. */
struct tile_sink {
    struct list_run *full;
    struct list_masked *band;
    int64_t n_full, n_bands, keys, pairs;
    struct fill_cut cut;
};

static void sink_put(struct tile_sink *sink, const struct fill_run *run) {
    const int32_t count = run->end - run->begin;
    if (count <= 0)
        return;
    sink->keys += count;
    if (run->full) {
        sink->full[sink->n_full++] = (struct list_run){run->begin, count};
        sink->pairs += (int64_t)count * sink->cut.rows;
        return;
    }
    sink->band[sink->n_bands++] =
        (struct list_masked){.key = run->begin,
                             .count = count,
                             .u.band = {fill_band_limit(sink->cut.low, run->begin),
                                        fill_band_limit(sink->cut.high, run->begin)}};
    sink->pairs += fill_pairs(&sink->cut, run->begin, run->end);
}

/* Blocks, ascending. May write over the blocks as far as they are behind. */
static void blocks_put(const struct fill_shape *s, struct tile_sink *sink, const int32_t *block,
                       int32_t n, int32_t length) {
    const int32_t width = (int32_t)s->block_kv;
    if (!s->cut && width == 1) {
        for (int32_t i = 0; i < n; i++)
            sink->full[i] = (struct list_run){block[i], 1};
        sink->n_full = sink->keys = n;
        sink->pairs = (int64_t)n * sink->cut.rows;
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        const int32_t begin = block[i] * width;
        struct fill_run run = {begin, (int32_t)min_i64((int64_t)begin + width, length), 1};
        if (s->cut)
            run = fill_run_cut(&sink->cut, run.begin, run.end);
        sink_put(sink, &run);
    }
}

/* Ranges, ascending and apart. */
static void ranges_put(const struct fill_shape *s, struct tile_sink *sink,
                       const int32_t (*range)[2], int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        struct fill_run runs[3] = {{range[i][0], range[i][1], 1}};
        const int32_t pieces =
            s->cut ? fill_range_cut(&sink->cut, range[i][0], range[i][1], runs) : 1;
        for (int32_t piece = 0; piece < pieces; piece++)
            sink_put(sink, &runs[piece]);
    }
}

/* ---- block rows ---- */

/* Contents of a block row: blocks, which stand in the first tile's places for runs, or ranges. */
struct row_entries {
    int32_t *block, n;
    int32_t range[FILL_RANGES][2];
};

/* Reads row `given` of the pattern for block row `row` over all batches, with `room` for entries and as many
 * again. */
static void entries_take(const struct filler *f, int64_t given, int64_t row, int64_t claim,
                         int32_t length, int32_t *room, struct row_entries *e,
                         struct fill_counts *counts) {
    const struct fill_shape *s = f->shape;
    const int64_t *place = f->a->place + given;
    const int32_t blocks = fill_blocks(length, (int32_t)s->block_kv);
    const int32_t *index = f->pattern->indices;
    int32_t n = (int32_t)claim;
    e->n = 0;
    e->block = room + claim; /* runs are written behind what is read */
    if (s->form == TESS_BLOCK_ROWS) {
        const int64_t *ends = row_ends(f, given);
        fill_tell(counts, s, fill_claim_wrong(ends[0], ends[1], s->capacity), row, FILL_AT_ROW);
        index += claim ? ends[0] : 0;
    } else if (s->form != TESS_BLOCK_BITS) {
        index += given * s->capacity * (s->form == TESS_RANGES ? 2 : 1);
        if (f->pattern->counts) {
            const int32_t count = f->pattern->counts[given];
            fill_tell(counts, s, fill_count_wrong(count, n), row, FILL_AT_ROW);
            n = fill_count(count, n);
        }
    }
    if (place[1] > entries_all(s)) {
        if (place[1] > place[0])
            fill_tell(counts, s, FILL_OVERFLOW, row, FILL_AT_ROW);
        return;
    }
    if (s->form == TESS_RANGES) {
        e->n = fill_ranges(index, n, length, e->range);
    } else if (s->form == TESS_BLOCK_BITS) {
        e->n = bits_take(f, given, blocks, e->block);
    } else {
        struct taking t = {.to = e->block, .last = -1};
        const int32_t seen = indices_take(f, index, n, blocks, &t);
        if (t.faults)
            indices_tell(s, row, index, seen, blocks, counts);
        e->n = taken_sort(&t, room, blocks);
    }
}

/* Tile `number` of a block row, at `first` of the places for runs. */
static void tile_put(const struct filler *f, int64_t list, int64_t t, int64_t first, int32_t length,
                     const struct row_entries *e, struct fill_counts *counts) {
    const struct fill_shape *s = f->shape;
    const struct fill_arrays *a = f->a;
    const int64_t T = list * s->tiles + t, bands = first * entry_masked(s);
    const int64_t query = fill_tile_row(s, t);
    const int32_t rows = (int32_t)(fill_tile_row(s, t + 1) - query);
    struct tile_sink sink = {.full = a->full + first,
                             .band = a->masked + bands,
                             .cut =
                                 fill_cut_at(s->cut_lo, s->cut_hi, query + length - s->n_q, rows)};
    if (s->form == TESS_RANGES)
        ranges_put(s, &sink, e->range, e->n);
    else
        blocks_put(s, &sink, e->block, e->n, length);
    a->keys[T] = sink.keys;
    a->full_ptr[T] = first;
    a->full_end[T] = first + sink.n_full;
    for (int kind = 0; kind < LIST_MASKED_KINDS; kind++) {
        a->masked_ptr[LIST_MASKED_KINDS * T + kind] = bands;
        a->masked_end[LIST_MASKED_KINDS * T + kind] =
            bands + (kind == LIST_BAND ? sink.n_bands : 0);
    }
    counts->keys += sink.keys;
    counts->pairs += sink.pairs;
}

/* A block row of a list of the problem: the first tile last, as what the row lists stands there. */
static void row_fill(const struct filler *f, int64_t list, int64_t row,
                     struct fill_counts *counts) {
    const struct fill_shape *s = f->shape;
    const int64_t b = list / s->heads, shared = s->batch == 1 && s->batches > 1;
    const int64_t given = (shared ? list % s->heads : list) * s->rows + row;
    const int64_t *place = f->a->place + given;
    const int32_t length = f->a->lengths[b];
    const int64_t claim = place[1] > entries_all(s) ? 0 : place[1] - place[0];
    const int64_t behind = claim ? (shared ? b * entries_all(s) : 0) + place[0] : 0;
    const int64_t first = behind * s->row_tiles;
    const int64_t begin = row * s->row_tiles, end = min_i64(begin + s->row_tiles, s->tiles);
    struct row_entries e;
    if (s->form == TESS_MASK) {
        const struct mask_row mask = {list * s->tiles,
                                      first,
                                      begin,
                                      end,
                                      f->pattern->mask + given / s->rows * s->n_q * s->n_kv,
                                      length};
        fill_mask_row(f, &mask, list * s->rows + row, counts);
        return;
    }
    entries_take(f, given, list * s->rows + row, claim, length,
                 (int32_t *)(void *)(f->a->full + first), &e, counts);
    for (int64_t t = end - 1; t >= begin; t--)
        tile_put(f, list, t, first + (t - begin) * claim, length, &e, counts);
}

static void lengths_take(const struct filler *f, struct fill_counts *counts) {
    const struct fill_shape *s = f->shape;
    const int32_t most = (int32_t)s->n_kv;
    for (int64_t b = 0; b < s->batches; b++) {
        const int32_t given = f->pattern->lengths ? f->pattern->lengths[b] : most;
        fill_tell(counts, s, fill_length_wrong(given, most), b * s->heads * s->rows,
                  FILL_AT_LENGTH);
        f->a->lengths[b] = fill_length(given, most);
    }
}

void fill_lists(const struct fill_shape *shape, const tess_device_pattern *pattern,
                const struct fill_arrays *a, struct fill_counts *counts) {
    const struct filler f = {shape, pattern, a};
    const int64_t lists = shape->batches * shape->heads, n = lists * shape->rows;
    int64_t faults = 0, overflows = 0, keys = 0, pairs = 0;
    uint64_t first = FILL_NOWHERE;
    *counts = (struct fill_counts){.first = FILL_NOWHERE};
    lengths_take(&f, counts);
    places_make(&f);
    const double entries = (double)a->place[shape->batch * shape->heads * shape->rows] *
                           (double)(shape->batches / shape->batch * shape->row_tiles);
    const double seconds = FILL_ROW_SECONDS * (double)n + FILL_ENTRY_SECONDS * entries +
                           (shape->form == TESS_MASK ? FILL_BYTE_SECONDS : 0) *
                               (double)(lists * shape->n_q) * (double)shape->n_kv;
    const int32_t threads = threads_team(shape->threads, n);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)                                \
    reduction(+ : faults, overflows, keys, pairs) reduction(min : first)                           \
    if (n > 1 && threads_pay(seconds))
    for (int64_t i = 0; i < n; i++) {
        struct fill_counts row = {.first = FILL_NOWHERE};
        row_fill(&f, i / shape->rows, i % shape->rows, &row);
        faults += row.faults, overflows += row.overflows;
        keys += row.keys, pairs += row.pairs;
        first = fill_earlier(first, row.first);
    }
    counts->faults += faults, counts->overflows += overflows;
    counts->keys += keys, counts->pairs += pairs;
    counts->first = fill_earlier(counts->first, first);
}
