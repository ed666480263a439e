/* The engine of build.h: block rows in parallel chunks, then one pattern out of the chunks. */
#include "pattern/build.h"

#include "base/threads.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Chunks are the unit of parallel work: enough to balance, few enough to join cheaply. */
#define BUILD_CHUNKS 256

/* Seconds of one thread that building takes, roughly: a source in a block row, a tile, a word of a
 * mask, a byte of a caller's arrays. */
#define SECONDS_ROW 60e-9
#define SECONDS_TILE 30e-9
#define SECONDS_WORD 12e-9
#define SECONDS_BYTE 0.15e-9

/* See build_fits: block rows of a sample, 64-bit words of tiles of each, and how many words all
 * tiles there could be must take for a sample to be worth it. */
#define SAMPLE 16
#define SAMPLE_WORDS (INT64_C(1) << 20)
#define SAMPLE_FROM 0x1p24

struct chunk_band {
    int64_t entry;
    int32_t lo, hi;
};

/* Tiles that a range of block rows gave; entries count from the chunk's first tile. Masks begin on a word
 * each here, unlike in a pattern. */
struct chunk {
    int32_t *col;
    struct chunk_band *bands;
    int64_t *masks;
    uint64_t *bits;
    int64_t n_tiles, n_bands, n_masks;
    int64_t tile_room, band_room, mask_room, bits_room;
};

void *build_grow(void *array, int64_t *room, int64_t need, size_t size) {
    if (array && need <= *room)
        return array;
    int64_t count = max_i64(need, min_i64(*room, INT64_MAX / 2) * 2);
    size_t bytes;
    if (__builtin_mul_overflow((size_t)count, size, &bytes))
        return NULL;
    void *grown = realloc(array, bytes ? bytes : 1);
    if (grown)
        *room = count;
    return grown;
}

void *build_scratch(struct cursor *c, int64_t bytes) {
    void *grown = build_grow(c->scratch, &c->room, bytes, 1);
    if (grown)
        c->scratch = grown;
    return grown;
}

/* Blocks that reach past the ends of the sequences, cut to what exists of them: where masks are built,
 * which for blocks of 2^31 keys would take 256 MB a row otherwise. Block rows and columns stay. */
static struct bcsr sizes_cut(const struct bcsr *sizes) {
    struct bcsr cut = *sizes;
    cut.block_q = min_i64(cut.block_q, cut.n_q);
    cut.block_kv = min_i64(cut.block_kv, cut.n_kv);
    return cut;
}

/* 64-bit words of one mask that begins on a word. */
static int64_t mask_words(const struct bcsr *m) {
    return (m->block_q * m->block_kv + 63) / 64;
}

uint64_t *build_bits(const struct build_row *b, struct cursor *c) {
    size_t words = (size_t)mask_words(b->m);
    if (!c->bits)
        c->bits = malloc(words * sizeof *c->bits);
    if (c->bits)
        memset(c->bits, 0, words * sizeof *c->bits);
    return c->bits;
}

uint64_t *build_bitmap(const struct build_row *b, struct cursor *c) {
    if (!c->bitmap)
        c->bitmap = calloc((size_t)bcsr_col_words(b->m), sizeof *c->bitmap);
    return c->bitmap;
}

int build_seek(struct build_row *b, int64_t source, int64_t j) {
    if (j <= b->cursors[source].answer.tile.col)
        return 0;
    return b->sources[source].kind->seek(b, source, j);
}

static int chunk_append(struct chunk *c, const struct bcsr *m, const struct build_tile *t) {
    int64_t words = mask_words(m);
    void *grown = build_grow(c->col, &c->tile_room, c->n_tiles + 1, sizeof *c->col);
    if (!grown)
        return -1;
    c->col = grown;
    if (t->tile.kind == TILE_BAND) {
        grown = build_grow(c->bands, &c->band_room, c->n_bands + 1, sizeof *c->bands);
        if (!grown)
            return -1;
        c->bands = grown;
        c->bands[c->n_bands++] = (struct chunk_band){c->n_tiles, t->tile.lo, t->tile.hi};
    } else if (t->tile.kind == TILE_BITMASK) {
        grown = build_grow(c->masks, &c->mask_room, c->n_masks + 1, sizeof *c->masks);
        if (!grown)
            return -1;
        c->masks = grown;
        /* all masks but this one are in memory, as is this one elsewhere: the product fits */
        int64_t at = c->n_masks * words;
        grown = build_grow(c->bits, &c->bits_room, at + words, sizeof *c->bits);
        if (!grown)
            return -1;
        c->bits = grown;
        memcpy(c->bits + at, t->bits, (size_t)words * sizeof *c->bits);
        c->masks[c->n_masks++] = c->n_tiles;
    }
    c->col[c->n_tiles++] = t->tile.col;
    return 0;
}

static void chunk_free(struct chunk *c) {
    free(c->col);
    free(c->bands);
    free(c->masks);
    free(c->bits);
    memset(c, 0, sizeof *c);
}

int build_begin(struct build_row *b, int64_t first, int64_t end) {
    for (int64_t s = end - 1; s >= first; s--) {
        const struct source_kind *kind = b->sources[s].kind;
        b->cursors[s].answer.tile.col = -1;
        if (kind->begin && kind->begin(b, s))
            return -1;
        if (kind == &source_documents)
            s = b->sources[s].u.documents.first;
    }
    return 0;
}

/* Block row number i over all lists, or its first `most` tiles; how many goes to *count. */
static int build_block_row(struct build_row *b, int64_t n_sources, int64_t i, struct chunk *chunk,
                           int64_t most, int64_t *count) {
    const struct bcsr *m = b->m;
    int64_t root = n_sources - 1, before = chunk->n_tiles;
    b->list = i / m->rows;
    b->row = i % m->rows;
    b->rows = bcsr_row_height(m, b->row);
    b->position = b->row * m->block_q + m->n_kv - m->n_q;
    b->document = (struct build_document){.begin = 0, .end = m->n_kv};
    if (build_begin(b, 0, n_sources))
        return -1;
    const struct build_tile *t = &b->cursors[root].answer;
    for (int64_t j = 0; j < m->cols && chunk->n_tiles - before < most;
         j = (int64_t)t->tile.col + 1) {
        if (build_seek(b, root, j))
            return -1;
        if (t->tile.col < m->cols && chunk_append(chunk, m, t))
            return -1;
    }
    *count = chunk->n_tiles - before;
    return 0;
}

static void cursors_free(struct cursor *cursors, int64_t n) {
    for (int64_t s = 0; cursors && s < n; s++) {
        free(cursors[s].bits);
        free(cursors[s].scratch);
        free(cursors[s].bitmap);
    }
    free(cursors);
}

/* The first block row of chunk k. total * k may not fit: the remainder of the division is spread
 * over the first chunks instead. */
static int64_t chunk_first(int64_t total, int64_t n_chunks, int64_t k) {
    return total / n_chunks * k + min_i64(k, total % n_chunks);
}

/* Seconds that the last block row took, which gave so many tiles and masks. */
static double row_seconds(const struct build_row *b, int64_t n_sources, int64_t tiles,
                          int64_t masks) {
    return SECONDS_ROW * (double)n_sources + SECONDS_TILE * (double)tiles +
           SECONDS_WORD * (double)(masks * mask_words(b->m)) +
           SECONDS_BYTE * b->sources[n_sources - 1].row_bytes;
}

/* Builds block rows in order on the caller's thread, until what they took would have paid for a
 * team: small patterns never wake one. Answers how many were built, -1: no memory. */
static int64_t build_first(struct bcsr *m, const struct source *sources, int64_t n_sources,
                           struct chunk *chunks, int64_t n_chunks) {
    struct build_row b = {.m = m, .sources = sources};
    int64_t total = m->batch * m->heads * m->rows, i = 0;
    double seconds = 0;
    b.cursors = calloc((size_t)n_sources, sizeof *b.cursors);
    int failed = !b.cursors;
    for (int64_t k = 0; k < n_chunks; k++) {
        int64_t end = chunk_first(total, n_chunks, k + 1);
        for (; i < end && !failed && !threads_pay(seconds); i++) {
            int64_t *count = m->row_ptr + i + i / m->rows + 1, masks = chunks[k].n_masks;
            failed = build_block_row(&b, n_sources, i, chunks + k, m->cols, count);
            seconds += row_seconds(&b, n_sources, *count, chunks[k].n_masks - masks);
        }
    }
    cursors_free(b.cursors, n_sources);
    return failed ? -1 : i;
}

/* Fills the chunks; row_ptr[row + 1] of every block row becomes its number of tiles. */
static int build_chunks(struct bcsr *m, const struct source *sources, int64_t n_sources,
                        struct chunk *chunks, int64_t n_chunks) {
    int64_t total = m->batch * m->heads * m->rows;
    const int64_t done = build_first(m, sources, n_sources, chunks, n_chunks);
    int failed = done < 0;
    if (failed || done == total)
        return failed ? -1 : 0;
#pragma omp parallel
    {
        struct build_row b = {.m = m, .sources = sources};
        b.cursors = calloc((size_t)n_sources, sizeof *b.cursors);
        int broken = !b.cursors;
#pragma omp for schedule(dynamic, 1)
        for (int64_t k = 0; k < n_chunks; k++) {
            int64_t end = chunk_first(total, n_chunks, k + 1);
            for (int64_t i = max_i64(chunk_first(total, n_chunks, k), done); i < end && !broken;
                 i++)
                broken = build_block_row(&b, n_sources, i, chunks + k, m->cols,
                                         m->row_ptr + i + i / m->rows + 1) != 0;
        }
        if (broken) {
#pragma omp atomic write
            failed = 1;
        }
        cursors_free(b.cursors, n_sources);
    }
    return failed ? -1 : 0;
}

/* n elements, at least one, so that no array of a pattern is NULL. */
static void *array_new(int64_t n, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow((size_t)max_i64(n, 1), size, &bytes))
        return NULL;
    return malloc(bytes);
}

int build_arrays(struct bcsr *m) {
    int64_t mask = m->block_q * m->block_kv, bits;
    if (__builtin_mul_overflow(m->n_bitmasks, mask, &bits) || bits > INT64_MAX - 64)
        return -1;
    m->col_idx = array_new(m->n_tiles, sizeof *m->col_idx);
    m->band_entry = array_new(m->n_bands, sizeof *m->band_entry);
    m->band = array_new(m->n_bands, 2 * sizeof *m->band);
    m->bitmask_entry = array_new(m->n_bitmasks, sizeof *m->bitmask_entry);
    m->bits = calloc((size_t)((bits + 63) / 64 + 1), sizeof *m->bits);
    return m->col_idx && m->band_entry && m->band && m->bitmask_entry && m->bits ? 0 : -1;
}

/* The memory that the tiles of SAMPLE block rows take, or the first tiles where there are many; masks
 * of `words` words each. */
static int sample_rows(const struct bcsr *m, int64_t words, const struct source *sources,
                       int64_t n_sources, double bytes[SAMPLE]) {
    struct build_row b = {.m = m, .sources = sources};
    struct chunk chunk = {.col = NULL};
    int64_t total = m->batch * m->heads * m->rows, most = SAMPLE_WORDS / mask_words(m) + 1, count;
    b.cursors = calloc((size_t)n_sources, sizeof *b.cursors);
    int failed = !b.cursors;
    for (int64_t k = 0; k < SAMPLE && !failed; k++) {
        /* spread by the golden ratio: never in step with a pattern's period */
        double place = fmod((double)(k + 1) * 0.6180339887498949, 1) * (double)total;
        int64_t i = min_i64((int64_t)place, total - 1);
        chunk.n_tiles = chunk.n_bands = chunk.n_masks = 0;
        failed = build_block_row(&b, n_sources, i, &chunk, most, &count);
        bytes[k] = (double)chunk.n_tiles * sizeof *chunk.col +
                   (double)chunk.n_bands * sizeof *chunk.bands +
                   (double)chunk.n_masks * (double)words * sizeof *chunk.bits;
    }
    chunk_free(&chunk);
    cursors_free(b.cursors, n_sources);
    return failed ? -1 : 0;
}

static int compare_bytes(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/*
 * A pattern that cannot fit the memory is refused at once, not after minutes of filling it. Were
 * all block rows like those of the lowest quarter of a sample, the tiles would take so many bytes
 * in the chunks and as many in the arrays: where a single allocation of them once is refused, the
 * build would end without memory, too.
 */
static int build_fits(const struct bcsr *m, const struct source *sources, int64_t n_sources) {
    const struct bcsr cut = sizes_cut(m);
    double bytes[SAMPLE], rows = (double)(m->batch * m->heads * m->rows);
    if (rows * (double)m->cols * (double)mask_words(m) < SAMPLE_FROM)
        return 1;
    if (sample_rows(&cut, mask_words(m), sources, n_sources, bytes))
        return 0;
    qsort(bytes, SAMPLE, sizeof *bytes, compare_bytes);
    double need = bytes[SAMPLE / 4] * rows;
    /* volatile: compilers drop an allocation that nothing uses */
    void *volatile probe = need < 0x1p62 ? array_new((int64_t)need, 1) : NULL;
    int fits = probe != NULL;
    free(probe);
    return fits;
}

/* Copies a mask of a cut block to the bits from `at` on, where rows are block_kv apart. */
static void mask_place(struct bcsr *m, const struct bcsr *cut, const uint64_t *mask, int64_t at) {
    const int apart = cut->block_kv < m->block_kv;
    const int64_t rows = apart ? cut->block_q : 1;
    const int64_t size = apart ? cut->block_kv : cut->block_q * cut->block_kv;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < size; i += 64) {
            const int n = (int)min_i64(64, size - i);
            bits_put(m->bits, at + r * m->block_kv + i, bits_get(mask, r * size + i, n), n);
        }
}

/* Copies a chunk to its place; tile, band, mask are the numbers of its first. */
static void chunk_place(struct bcsr *m, const struct bcsr *cut, const struct chunk *c, int64_t tile,
                        int64_t band, int64_t mask) {
    if (c->n_tiles)
        memcpy(m->col_idx + tile, c->col, (size_t)c->n_tiles * sizeof *c->col);
    for (int64_t i = 0; i < c->n_bands; i++) {
        m->band_entry[band + i] = tile + c->bands[i].entry;
        m->band[2 * (band + i)] = c->bands[i].lo;
        m->band[2 * (band + i) + 1] = c->bands[i].hi;
    }
    for (int64_t i = 0; i < c->n_masks; i++) {
        m->bitmask_entry[mask + i] = tile + c->masks[i];
        mask_place(m, cut, c->bits + i * mask_words(cut), (mask + i) * m->block_q * m->block_kv);
    }
}

/* Joins the chunks, which it empties. */
static int join_chunks(struct bcsr *m, const struct bcsr *cut, struct chunk *chunks,
                       int64_t n_chunks) {
    int64_t lists = m->batch * m->heads, tiles = 0;
    for (int64_t l = 0; l < lists; l++) {
        int64_t *ptr = m->row_ptr + l * (m->rows + 1);
        ptr[0] = tiles;
        for (int64_t i = 1; i <= m->rows; i++)
            tiles = ptr[i] += tiles;
    }
    struct {
        int64_t tile, band, mask;
    } first[BUILD_CHUNKS];
    for (int64_t k = 0; k < n_chunks; k++) {
        first[k].tile = m->n_tiles;
        first[k].band = m->n_bands;
        first[k].mask = m->n_bitmasks;
        m->n_tiles += chunks[k].n_tiles;
        m->n_bands += chunks[k].n_bands;
        m->n_bitmasks += chunks[k].n_masks;
    }
    if (build_arrays(m))
        return -1;
    /* Masks that do not end on a word share one with their neighbour: then one thread alone. */
    int apart = m->n_bitmasks == 0 || m->block_q * m->block_kv % 64 == 0;
    double seconds = 1e-9 * (double)(m->n_tiles + 4 * m->n_bands) +
                     4e-9 * (double)m->n_bitmasks * (double)mask_words(cut);
#pragma omp parallel for schedule(dynamic, 1) if (apart && threads_pay(seconds))
    for (int64_t k = 0; k < n_chunks; k++) {
        chunk_place(m, cut, chunks + k, first[k].tile, first[k].band, first[k].mask);
        chunk_free(chunks + k);
    }
    return 0;
}

tess_status pattern_build(tess_pattern **out, const struct bcsr *sizes,
                          const struct source *sources, int64_t n_sources, const char *function,
                          tess_error *error) {
    int64_t total = sizes->batch * sizes->heads * sizes->rows;
    int64_t n_chunks = min_i64(total, BUILD_CHUNKS);
    int32_t threads = threads_set(threads_limit(sizes->threads));
    tess_status status = TESS_OUT_OF_MEMORY;
    struct chunk *chunks = calloc((size_t)n_chunks, sizeof *chunks);
    tess_pattern *p = calloc(1, sizeof *p);
    if (chunks && p) {
        p->lists = *sizes;
        p->lists.row_ptr = array_new(total + sizes->batch * sizes->heads, sizeof(int64_t));
        struct bcsr cut = sizes_cut(&p->lists);
        if (p->lists.row_ptr && build_fits(&p->lists, sources, n_sources) &&
            !build_chunks(&cut, sources, n_sources, chunks, n_chunks) &&
            !join_chunks(&p->lists, &cut, chunks, n_chunks))
            status = pattern_count(p);
        for (int64_t k = 0; k < n_chunks; k++)
            chunk_free(chunks + k);
    }
    free(chunks);
    threads_set(threads);
    if (status != TESS_OK) {
        tess_pattern_free(p);
        *out = NULL;
        if (status == TESS_OUT_OF_MEMORY)
            return error_set(error, status, function, NULL,
                             "memory ran out while %lld block rows were built", (long long)total);
        return error_set(error, TESS_INVALID_ARGUMENT, function, "pattern",
                         "the listed query-key pairs of all lists together do not fit 64 bits");
    }
    *out = p;
    return TESS_OK;
}

tess_status build_sizes(struct bcsr *m, const tess_pattern_shape *shape, const char *function,
                        const char *argument, tess_error *error) {
    memset(m, 0, sizeof *m);
    m->n_q = shape->n_q;
    m->n_kv = shape->n_kv ? shape->n_kv : shape->n_q;
    m->block_q = shape->block_q ? shape->block_q : 64;
    m->block_kv = shape->block_kv ? shape->block_kv : 64;
    m->batch = shape->batch ? shape->batch : 1;
    m->heads = shape->heads ? shape->heads : 1;
    m->threads = shape->threads;
    if (m->threads < 0 || m->threads > THREADS_LEGAL)
        return error_set(error, TESS_INVALID_ARGUMENT, function, argument,
                         "threads is %lld, not in 0 ... %d", (long long)m->threads, THREADS_LEGAL);
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"n_q", m->n_q},           {"n_kv", m->n_kv},   {"block_q", m->block_q},
                 {"block_kv", m->block_kv}, {"batch", m->batch}, {"heads", m->heads}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < 1 || sizes[i].value > INT32_MAX)
            return error_set(error, TESS_INVALID_ARGUMENT, function, argument,
                             "%s is %lld, but must be 1 ... 2147483647%s", sizes[i].name,
                             (long long)sizes[i].value,
                             sizes[i].value ? "" : ": set it, or leave out what has no queries");
    m->rows = (m->n_q + m->block_q - 1) / m->block_q;
    m->cols = (m->n_kv + m->block_kv - 1) / m->block_kv;
    int64_t rows;
    if (__builtin_mul_overflow(m->batch * m->heads, m->rows + 1, &rows) ||
        rows > INT64_MAX / (int64_t)sizeof *m->row_ptr)
        return error_set(error, TESS_INVALID_ARGUMENT, function, argument,
                         "%lld lists of %lld block rows do not fit 64 bits",
                         (long long)(m->batch * m->heads), (long long)m->rows);
    return TESS_OK;
}
