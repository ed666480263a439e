/*
 * Lists of block rows, from indices (indices.cuh) or bits (bits.cuh): what a block row is, and the runs of
 * its query tiles. A team takes a block row.
 */
#ifndef TESSERA_CUDA_FILL_ROWS_CUH
#define TESSERA_CUDA_FILL_ROWS_CUH

#include "fill/items.cuh"

/* A block row under way. Columns are below 2^31, and so are block rows over all lists. */
struct row_under_way {
    int cut, tokens; /* known when the kernel is compiled */
    const int32_t *index;
    const uint64_t *bits;  /* 64-bit words */
    uint32_t list, row;    /* over all lists, and of the list */
    uint32_t tile, tiles;  /* the first in the list, and how many */
    uint32_t batch, given; /* the problem's; the row's number over the lists that are given */
    uint32_t n;            /* indices to look at */
    uint32_t blocks;       /* blocks today */
    int32_t length;
    int64_t claim, first;  /* places of a tile's runs; where those of the first tile begin */
    enum fill_wrong wrong; /* with the row, not with what it lists */
};

/* A query tile of it. */
struct tile_under_way {
    int64_t full, band; /* places of the next runs */
    struct fill_cut cut;
    struct fill_columns columns;
    uint32_t keys;   /* keys of runs that this thread wrote */
    uint64_t masked; /* pairs of these that no row lists, negative */
};

/* Whether the first batch's lists are all that is given. */
DEVICE int rows_shared(const struct fill_shape *s) {
    return s->batch == 1 && s->batches > 1;
}

/* Block row i over all lists, as far as the plan says: nothing is read. */
DEVICE struct row_under_way row_at(const struct fill_params *p, uint32_t i, int cut, int of_bits,
                                   int tokens) {
    const struct fill_shape *s = &p->shape;
    const uint32_t rows = (uint32_t)s->rows, heads = (uint32_t)s->heads;
    struct row_under_way r;
    r.cut = cut, r.tokens = tokens;
    r.list = fill_quotient(i, rows);
    r.row = i - r.list * rows;
    r.tile = r.row, r.tiles = 1;
    if (!tokens) {
        r.tile *= (uint32_t)s->row_tiles;
        r.tiles = (uint32_t)fill_least(s->row_tiles, s->tiles - r.tile);
    }
    r.batch = fill_quotient(r.list, heads);
    r.given = rows_shared(s) ? i - r.batch * heads * rows : i;
    r.index = p->indices, r.bits = 0;
    if (of_bits)
        r.bits = p->bits + r.given * bits_words(s);
    r.n = 0, r.claim = r.first = 0;
    if (!of_bits && s->form != TESS_BLOCK_ROWS) {
        r.n = (uint32_t)s->capacity, r.claim = r.n;
        r.index += (int64_t)r.given * r.n;
        r.first = (int64_t)i * r.n * (tokens ? 1 : (uint32_t)s->row_tiles);
    }
    r.wrong = FILL_RIGHT;
    return r;
}

/* The places of a padded row, of which the first batch's lists tell all. */
DEVICE void place_padded(const struct fill_params *p, uint32_t given, uint32_t batch) {
    const int64_t capacity = p->shape.capacity;
    if (rows_shared(&p->shape) && batch)
        return;
    if (given == 0)
        p->arrays.place[0] = 0;
    p->arrays.place[given + 1] = (given + INT64_C(1)) * capacity;
}

/* Reads what the row is today. The length is not looked at before row_check, so that loads of indices do not
 * wait for it; for a count they do. */
DEVICE void row_read(const struct fill_params *p, struct row_under_way *r, int of_bits) {
    const struct fill_shape *s = &p->shape;
    r->length = p->lengths ? p->lengths[r->batch] : (int32_t)s->n_kv;
    if (!of_bits && s->form != TESS_BLOCK_ROWS) {
        if (p->counts) {
            const int32_t count = p->counts[r->given];
            r->wrong = fill_count_wrong(count, (int32_t)r->n);
            r->n = (uint32_t)fill_count(count, (int32_t)r->n);
        }
        return;
    }
    const int64_t begin = p->arrays.place[r->given], end = p->arrays.place[r->given + 1];
    r->claim = end > s->capacity ? 0 : end - begin;
    if (r->claim)
        r->first = ((rows_shared(s) ? r->batch * s->capacity : 0) + begin) * s->row_tiles;
    r->n = (uint32_t)r->claim;
    if (!of_bits) {
        const int64_t *ends = row_ends(p, r->given);
        r->wrong = fill_claim_wrong(ends[0], ends[1], s->capacity);
        r->index += r->claim ? ends[0] : 0;
    }
    if (end > s->capacity && end > begin)
        r->wrong = FILL_OVERFLOW;
}

/* Faults of the row or an entry, as one number. */
DEVICE uint64_t row_order(const struct fill_params *p, const struct row_under_way *r,
                          enum fill_wrong wrong, int64_t where) {
    const uint64_t row = (uint64_t)r->list * (uint32_t)p->shape.rows + r->row;
    return fill_order(wrong, row, p->shape.capacity, where);
}

/* Looks at the length, of which the items tell; the teller counts what else is wrong, and says where the row stands. */
DEVICE void row_check(const struct fill_params *p, struct row_under_way *r, int teller) {
    r->length = fill_length(r->length, (int32_t)p->shape.n_kv);
    r->blocks = (uint32_t)r->length;
    if (!r->tokens)
        r->blocks = (uint32_t)fill_blocks(r->length, (int32_t)p->shape.block_kv);
    if (teller) {
        if (!r->bits && p->shape.form != TESS_BLOCK_ROWS)
            place_padded(p, r->given, r->batch);
        if (r->wrong != FILL_RIGHT) {
            tally_add(r->wrong == FILL_OVERFLOW ? TALLY_OVERFLOWS : TALLY_FAULTS, 1);
            first_keep(row_order(p, r, r->wrong, FILL_AT_ROW));
        }
    }
}

/* Writes the run of a column. */
DEVICE void column_write(const struct fill_params *p, const struct row_under_way *r,
                         struct tile_under_way *t, uint32_t column, int full, int64_t at) {
    const int32_t width = (int32_t)p->shape.block_kv;
    struct fill_run run;
    run.begin = (int32_t)(column * (uint32_t)width);
    run.end = run.begin + (width < r->length - run.begin ? width : r->length - run.begin);
    if (r->cut)
        run = fill_run_cut(&t->cut, run.begin, run.end);
    const int32_t count = run.end - run.begin;
    t->keys += (uint32_t)count;
    if (!r->cut || full) {
        run_store(&p->arrays.full[at], run.begin, count);
        return;
    }
    band_store(&p->arrays.masked[at], run.begin, count, fill_band_limit(t->cut.low, run.begin),
               fill_band_limit(t->cut.high, run.begin));
    t->masked += (uint64_t)(fill_pairs(&t->cut, run.begin, run.end) - (int64_t)count * t->cut.rows);
}

/* A tile in the arrays. */
DEVICE void tile_write(const struct fill_arrays *a, int64_t T, int64_t full, int64_t full_end,
                       int64_t band, int64_t band_end, int64_t keys) {
    a->keys[T] = keys;
    if (T < FILL_FEW)
        fill_shared[FILL_SUMS - FILL_FEW + T] = (uint64_t)keys;
    a->full_ptr[T] = full;
    a->full_end[T] = full_end;
    for (int32_t kind = 0; kind < LIST_MASKED_KINDS; kind++) {
        a->masked_ptr[LIST_MASKED_KINDS * T + kind] = band;
        a->masked_end[LIST_MASKED_KINDS * T + kind] = kind == LIST_BAND ? band_end : band;
    }
}

/* Tiles of a row that all list n columns: no cut. A thread takes a tile. */
DEVICE void tiles_end(const struct fill_params *p, const struct team *team,
                      const struct row_under_way *r, uint32_t n, int64_t keys) {
    const struct fill_shape *s = &p->shape;
    const int64_t T = (int64_t)r->list * (uint32_t)s->tiles + r->tile;
    FILL_ROLLED
    for (uint32_t t = (uint32_t)team->thread; t < r->tiles; t += (uint32_t)team->threads) {
        const int64_t full = r->first + t * r->claim;
        tile_write(&p->arrays, T + t, full, full + n, 0, 0, keys);
    }
    if (team->thread < 2) { /* at once */
        const int64_t queries = fill_least(s->block_q, s->n_q - r->row * s->block_q);
        tally_add(team->thread ? TALLY_PAIRS : TALLY_KEYS,
                  (uint64_t)(team->thread ? queries : r->tiles) * (uint64_t)keys);
    }
}

/* The cut of query tile t of a list. */
DEVICE struct fill_cut tile_cut(const struct fill_shape *s, int64_t t, int32_t length) {
    const int64_t query = fill_tile_query(t, s->row_tiles, s->block_q, s->tile_rows, s->n_q);
    const int64_t next = fill_tile_query(t + 1, s->row_tiles, s->block_q, s->tile_rows, s->n_q);
    return fill_cut_at(s->cut_lo, s->cut_hi, query + length - s->n_q, (int32_t)(next - query));
}

/* Query tile `tile` of a list, one of those of row r. */
DEVICE struct tile_under_way tile_begin(const struct fill_params *p, const struct row_under_way *r,
                                        int64_t tile, int64_t of_row) {
    struct tile_under_way t;
    t.full = r->first + of_row * r->claim, t.band = r->cut ? t.full : 0;
    t.keys = 0, t.masked = 0;
    t.cut = tile_cut(&p->shape, tile, r->length);
    t.columns.live = t.columns.full = 0;
    t.columns.live_end = t.columns.full_end = r->blocks;
    if (r->cut)
        t.columns = fill_columns_cut(&t.cut, p->shape.block_kv, r->length);
    return t;
}

/* Sums what the threads wrote of a tile; answers its keys. */
DEVICE int64_t tile_sums(const struct team *team, const struct tile_under_way *t,
                         unsigned long long *place) {
    tally_warp(TALLY_PAIRS, t->masked);
    return (int64_t)team_sums_of(team, warp_sum(t->keys), place).all;
}

/* A tile's entry in arrays and tally: its runs end at t. */
DEVICE void tile_end(const struct fill_arrays *a, int64_t T, int64_t full, int64_t band,
                     const struct tile_under_way *t, int64_t keys) {
    tally_add(TALLY_KEYS, (uint64_t)keys);
    tally_add(TALLY_PAIRS, (uint64_t)(keys * t->cut.rows));
    tile_write(a, T, full, t->full, band, t->band, keys);
}

#endif
