/*
 * Lists of block rows, from indices or bits. A team takes a block row. Indices set bits of a bitmap in
 * shared memory, which puts them in order and leaves each once; bits are one as they are given. Then for
 * each query tile, 32 columns being a word:
 *
 *     count    a warp's words, of which each lane takes every 32nd: full runs and bands
 *     sums     over the warps before
 *     write    the same words again, at places that follow from the sums
 *
 * Where the columns are more than a bitmap holds, they are taken in windows, ascending.
 */
#ifndef TESSERA_CUDA_FILL_ROWS_CUH
#define TESSERA_CUDA_FILL_ROWS_CUH

#include "fill/places.cuh"

/* Bits of a word from which its warp writes it together. */
#define ROWS_DENSE 6

/* A block row under way. Columns are below 2^31, and words of a window below 2^26. */
struct row_under_way {
    int cut, of_bits; /* known when the kernel is compiled */
    const int32_t *index;
    const uint64_t *bits; /* 64-bit words */
    uint32_t n;           /* indices */
    uint32_t blocks;      /* that there are today */
    int32_t length;
    int64_t claim, first; /* places of a tile's runs; where those of the first tile begin */
};

/* A query tile of it. */
struct tile_under_way {
    int64_t full, band; /* where the next runs of the window stand */
    struct fill_cut cut;
    struct fill_columns columns;
    uint32_t keys; /* of runs that this thread wrote, as pairs are */
    int64_t pairs;
};

/* Today's length of a batch; faults are counted with the items. */
static __device__ __forceinline__ int32_t length_today(const struct fill_params *p, int64_t b) {
    int64_t told_later = 0;
    return p->lengths ? fill_length(p->lengths[b], (int32_t)p->shape.n_kv, &told_later)
                      : (int32_t)p->shape.n_kv;
}

/* The places of a padded row, of which the first batch's lists tell all. */
static __device__ __forceinline__ void place_padded(const struct fill_params *p, int64_t given,
                                                    int64_t b, int shared) {
    const int64_t capacity = p->shape.capacity;
    if (shared && b)
        return;
    if (given == 0)
        p->arrays.place[0] = 0;
    p->arrays.place[given + 1] = (given + 1) * capacity;
}

/* Reads row `row` of a list. `counts` gets what is wrong with it from one thread. */
static __device__ __forceinline__ struct row_under_way row_begin(const struct fill_params *p,
                                                                 int64_t list, int64_t row, int cut,
                                                                 int of_bits, int teller) {
    const struct fill_shape *s = &p->shape;
    const int64_t b = list / s->heads, lists = s->batch * s->heads;
    const int shared = s->batch == 1 && s->batches > 1;
    const int padded = !of_bits && s->form == TESS_INDICES;
    const int64_t given = (shared ? list % s->heads : list) * s->rows + row;
    const int64_t entries = s->capacity * (padded ? lists * s->rows : 1);
    int64_t faults = 0, overflows = 0;
    struct row_under_way r;
    r.cut = cut, r.of_bits = of_bits;
    r.length = length_today(p, b);
    r.blocks = (uint32_t)fill_blocks(r.length, (int32_t)s->block_kv);
    r.index = p->indices, r.bits = 0;
    int64_t begin = given * s->capacity, end = begin + s->capacity;
    if (!padded)
        begin = p->arrays.place[given], end = p->arrays.place[given + 1];
    else if (teller)
        place_padded(p, given, b, shared);
    r.claim = end > entries ? 0 : end - begin;
    r.first = r.claim ? ((shared ? b * entries : 0) + begin) * s->row_tiles : 0;
    r.n = (uint32_t)r.claim;
    if (of_bits) {
        r.bits = p->bits + given * bits_words(s);
        r.blocks = r.claim ? r.blocks : 0;
    } else if (!padded) {
        const int64_t *ends = row_ends(p, given);
        fill_claim(ends[0], ends[1], s->capacity, &faults, &overflows);
        r.index += r.claim ? ends[0] : 0;
    } else {
        r.index += begin;
        if (p->counts)
            r.n = (uint32_t)fill_count(p->counts[given], (int32_t)r.n, &faults, &overflows);
    }
    overflows += end > entries && end > begin;
    if (teller) {
        tally_add(TALLY_FAULTS, (uint64_t)faults);
        tally_add(TALLY_OVERFLOWS, (uint64_t)overflows);
    }
    return r;
}

/* Indices e, e + team ... of the row; padding past its end. All are under way before one is looked
 * at. */
#define ROWS_AT_ONCE 4
static __device__ __forceinline__ void indices_load(const struct team *team,
                                                    const struct row_under_way *r, uint32_t e,
                                                    int32_t index[ROWS_AT_ONCE]) {
    for (int32_t i = 0; i < ROWS_AT_ONCE; i++) {
        const uint32_t at = e + (uint32_t)(i * team->threads);
        index[i] = at < r->n ? r->index[at] : -1;
    }
}

/* Sets the bits of the columns of a window. Answers how many faults this thread has met. */
static __device__ __forceinline__ uint32_t window_set(const struct team *team,
                                                      const struct row_under_way *r, uint32_t first,
                                                      int32_t words) {
    int32_t index[ROWS_AT_ONCE];
    uint32_t faults = 0;
    indices_load(team, r, (uint32_t)team->thread, index);
    team_wait(team); /* the window before has been read */
    FILL_ROLLED
    for (int32_t w = team->thread; w < words; w += team->threads)
        team->bitmap[w] = 0;
    team_wait(team);
    FILL_ROLLED
    for (uint32_t e = (uint32_t)team->thread; e < r->n;
         e += (uint32_t)(ROWS_AT_ONCE * team->threads)) {
        for (int32_t i = 0; i < ROWS_AT_ONCE; i++) {
            const int listed = fill_listed(index[i], (int32_t)r->blocks);
            const uint32_t at = (uint32_t)index[i] - first;
            faults += !listed && fill_fault(index[i]);
            if (listed && (uint32_t)index[i] >= first && at / 32 < (uint32_t)words)
                atomicOr(&team->bitmap[at / 32], 1u << (at % 32));
        }
        indices_load(team, r, e + (uint32_t)(ROWS_AT_ONCE * team->threads), index);
    }
    team_wait(team);
    return faults;
}

/* Columns first + 32 w ... of the row that are listed. */
static __device__ __forceinline__ uint32_t window_word(const struct team *team,
                                                       const struct row_under_way *r,
                                                       uint32_t first, int32_t w) {
    const uint32_t column = first + 32 * (uint32_t)w;
    if (!r->of_bits)
        return team->bitmap[w];
    return (uint32_t)(r->bits[column / 64] >> (column & 32)) &
           fill_bits_between(0, r->blocks, column);
}

/* Writes the run of a column. */
static __device__ __forceinline__ void column_write(const struct fill_params *p,
                                                    const struct row_under_way *r,
                                                    struct tile_under_way *t, uint32_t column,
                                                    int full, int64_t at) {
    const int64_t width = p->shape.block_kv, begin = column * width;
    struct fill_run run;
    run.begin = (int32_t)begin;
    run.end = (int32_t)fill_least(begin + width, r->length);
    if (r->cut)
        run = fill_run_cut(&t->cut, run.begin, run.end);
    const int32_t count = run.end - run.begin;
    t->keys += (uint32_t)count;
    if (!r->cut || full) {
        run_store(&p->arrays.full[at], run.begin, count);
        t->pairs += (int64_t)count * t->cut.rows;
        return;
    }
    band_store(&p->arrays.masked[at], run.begin, count, fill_band_limit(t->cut.low, run.begin),
               fill_band_limit(t->cut.high, run.begin));
    t->pairs += fill_pairs(&t->cut, run.begin, run.end);
}

/* Writes the columns of a word, full ones from place `at_full` on, others from at_band on. */
static __device__ __forceinline__ void
word_write(const struct fill_params *p, const struct row_under_way *r, struct tile_under_way *t,
           uint32_t first, uint32_t full, uint32_t band, int64_t at_full, int64_t at_band) {
    for (uint32_t word = full | band; word; word &= word - 1) {
        const int32_t c = __ffs((int)word) - 1;
        const int of_full = full >> c & 1;
        column_write(p, r, t, first + (uint32_t)c, of_full, of_full ? at_full++ : at_band++);
    }
}

/* The same by the warp: each lane writes its column of each lane's word. */
static __device__ __forceinline__ void
words_write(const struct fill_params *p, const struct row_under_way *r, struct tile_under_way *t,
            uint32_t first, uint32_t full, uint32_t band, int64_t at_full, int64_t at_band) {
    const int32_t lane = (int32_t)threadIdx.x % 32;
    const uint32_t below = (1u << lane) - 1;
    for (uint32_t busy = __ballot_sync(TEAM_LANES, (full | band) != 0); busy; busy &= busy - 1) {
        const int32_t from = __ffs((int)busy) - 1;
        const uint32_t its_full = __shfl_sync(TEAM_LANES, full, from);
        const uint32_t its_band = __shfl_sync(TEAM_LANES, band, from);
        const int64_t its_at_full = __shfl_sync(TEAM_LANES, at_full, from);
        const int64_t its_at_band = __shfl_sync(TEAM_LANES, at_band, from);
        const uint32_t column = first + (uint32_t)(32 * (from - lane) + lane);
        const int of_full = its_full >> lane & 1;
        if (of_full || its_band >> lane & 1)
            column_write(p, r, t, column, of_full,
                         of_full ? its_at_full + __popc(its_full & below)
                                 : its_at_band + __popc(its_band & below));
    }
}

/* Of a word those that give a full run, and those that give a band. */
static __device__ __forceinline__ uint32_t word_full(const struct row_under_way *r,
                                                     const struct tile_under_way *t, uint32_t word,
                                                     uint32_t column) {
    if (!r->cut)
        return word;
    return word & fill_bits_between(t->columns.full, t->columns.full_end, column);
}
static __device__ __forceinline__ uint32_t word_band(const struct row_under_way *r,
                                                     const struct tile_under_way *t, uint32_t word,
                                                     uint32_t column) {
    if (!r->cut)
        return 0;
    return word & fill_bits_between(t->columns.live, t->columns.live_end, column) &
           ~fill_bits_between(t->columns.full, t->columns.full_end, column);
}

/* Writes the runs of a window of `words` words from column `first` on. */
static __device__ __forceinline__ void
window_write(const struct fill_params *p, const struct team *team, const struct row_under_way *r,
             struct tile_under_way *t, uint32_t first, int32_t words) {
    const int32_t lane = team_lane(team), warps = team_warps(team);
    const int32_t each = (words + 32 * warps - 1) / (32 * warps) * 32;
    const int32_t begin = team_warp(team) * each; /* may be past the last */
    const int32_t end = begin + each < words ? begin + each : words;
    uint64_t runs = 0;
    FILL_ROLLED
    for (int32_t w = begin + lane; w < end; w += 32) {
        const uint32_t word = window_word(team, r, first, w), column = first + 32 * (uint32_t)w;
        runs += (uint64_t)__popc(word_full(r, t, word, column)) << 32 |
                (uint64_t)__popc(word_band(r, t, word, column));
    }
    const struct team_sums sums = team_sums_of(team, warp_sum(runs), team->runs);
    int64_t full = t->full + (int64_t)(sums.before >> 32);
    int64_t band = t->band + (int64_t)(sums.before & UINT32_MAX);
    FILL_ROLLED
    for (int32_t of_warp = begin; of_warp < end; of_warp += 32) {
        const int32_t w = of_warp + lane;
        const uint32_t word = w < end ? window_word(team, r, first, w) : 0;
        const uint32_t column = first + 32 * (uint32_t)w;
        const uint32_t its_full = word_full(r, t, word, column);
        const uint32_t its_band = word_band(r, t, word, column);
        if (!__any_sync(TEAM_LANES, (its_full | its_band) != 0))
            continue;
        const uint64_t own = (uint64_t)__popc(its_full) << 32 | (uint64_t)__popc(its_band);
        const uint64_t through = warp_sums(own), before = through - own;
        const int64_t at_full = full + (int64_t)(before >> 32);
        const int64_t at_band = band + (int64_t)(before & UINT32_MAX);
        if (__any_sync(TEAM_LANES, __popc(its_full | its_band) > ROWS_DENSE))
            words_write(p, r, t, column, its_full, its_band, at_full, at_band);
        else
            word_write(p, r, t, column, its_full, its_band, at_full, at_band);
        const uint64_t all = __shfl_sync(TEAM_LANES, through, 31);
        full += (int64_t)(all >> 32), band += (int64_t)(all & UINT32_MAX);
    }
    t->full += (int64_t)(sums.all >> 32), t->band += (int64_t)(sums.all & UINT32_MAX);
}

/* What a tile is, in the arrays. */
static __device__ __forceinline__ void tile_end(const struct fill_arrays *a, int64_t T,
                                                int64_t full, int64_t full_end, int64_t band,
                                                int64_t band_end, int64_t keys) {
    a->keys[T] = keys;
    a->full_ptr[T] = full;
    a->full_end[T] = full_end;
    for (int32_t kind = 0; kind < LIST_MASKED_KINDS; kind++) {
        a->masked_ptr[LIST_MASKED_KINDS * T + kind] = band;
        a->masked_end[LIST_MASKED_KINDS * T + kind] = kind == LIST_BAND ? band_end : band;
    }
}

/* The cut of query tile t of a list. */
static __device__ __forceinline__ struct fill_cut tile_cut(const struct fill_shape *s, int64_t t,
                                                           int32_t length) {
    const int64_t query = fill_tile_query(t, s->row_tiles, s->block_q, s->tile_rows, s->n_q);
    const int64_t next = fill_tile_query(t + 1, s->row_tiles, s->block_q, s->tile_rows, s->n_q);
    return fill_cut_at(s->cut_lo, s->cut_hi, query + length - s->n_q, (int32_t)(next - query));
}

/* Every tile passes window_write once at least, whose barrier stands between two sums of keys; sums of
 * runs have that of the keys between them, or those of window_set. */
static __device__ __forceinline__ void row_fill(const struct fill_params *p,
                                                const struct team *team, int64_t list, int64_t row,
                                                int cut, int of_bits) {
    const struct fill_shape *s = &p->shape;
    const struct row_under_way r = row_begin(p, list, row, cut, of_bits, team->thread == 0);
    const int32_t words = (int32_t)((r.blocks + 31) / 32), window = of_bits ? words : p->words;
    const int64_t begin = row * s->row_tiles, end = fill_least(begin + s->row_tiles, s->tiles);
    for (int64_t tile = begin; tile < end; tile++) {
        const int64_t full = r.first + (tile - begin) * r.claim, band = cut ? full : 0;
        struct tile_under_way t;
        int32_t w = 0;
        t.full = full, t.band = band, t.keys = 0, t.pairs = 0;
        t.cut = tile_cut(s, tile, r.length);
        if (cut)
            t.columns = fill_columns_cut(&t.cut, s->block_kv, r.length);
        do {
            const int32_t n = window < words - w ? window : words - w;
            if (!of_bits && (tile == begin || words > window)) {
                const uint32_t faults = window_set(team, &r, 32 * (uint32_t)w, n);
                tally_warp(TALLY_FAULTS, tile == begin && w == 0 ? faults : 0);
            }
            window_write(p, team, &r, &t, 32 * (uint32_t)w, n);
            w += window;
        } while (w < words);
        const uint64_t keys = team_sums_of(team, warp_sum(t.keys), team->keys).all;
        tally_warp(TALLY_PAIRS, (uint64_t)t.pairs);
        if (team->thread)
            continue;
        tally_add(TALLY_KEYS, keys);
        tile_end(&p->arrays, list * s->tiles + tile, full, t.full, band, t.band, (int64_t)keys);
    }
}

static __device__ __forceinline__ void rows_fill(const struct fill_params *p, int cut,
                                                 int of_bits) {
    const struct team team = team_of(p);
    const int64_t teams = (int64_t)blockDim.x / p->threads, rows = p->shape.rows;
    const int64_t n = p->shape.batches * p->shape.heads * rows;
    tally_begin();
    fill_wait();
    FILL_ROLLED
    for (int64_t i = (int64_t)blockIdx.x * teams + threadIdx.x / (uint32_t)p->threads; i < n;
         i += (int64_t)gridDim.x * teams)
        row_fill(p, &team, i / rows, i % rows, cut, of_bits);
    tally_end(p);
}

/* Kernels of what is known when they are compiled. */
#define FILL_ROWS_KERNEL(name, cut, of_bits)                                                       \
    static __global__ void __launch_bounds__(FILL_ROW_THREADS, 1)                                  \
        name(const __grid_constant__ struct fill_params p) {                                       \
        rows_fill(&p, cut, of_bits);                                                               \
    }
FILL_ROWS_KERNEL(fill_rows_indices, 0, 0)
FILL_ROWS_KERNEL(fill_rows_indices_cut, 1, 0)
FILL_ROWS_KERNEL(fill_rows_bits, 0, 1)
FILL_ROWS_KERNEL(fill_rows_bits_cut, 1, 1)

#endif
