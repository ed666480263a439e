/*
 * The one engine that builds patterns.
 *
 * What to build is a tree of sources. A source answers one question: "in this block row, which is
 * your first tile at or after column j?". Unions and intersections ask their children, and an
 * intersection jumps from one child's tile to the next, so that causal & window(4096,0) costs the
 * window's tiles only: nothing in between is ever built.
 *
 * pattern_build asks the root for the tiles of every block row, many block rows at once. Answers
 * depend on the list and the block row alone, hence not on the number of threads.
 */
#ifndef TESSERA_BUILD_H
#define TESSERA_BUILD_H

#include "pattern/pattern.h"
#include "base/status.h"

/* A position or key that is never reached; sums of a few of them still fit 64 bits. */
#define BUILD_FAR (INT64_C(1) << 40)

/* A tile on its way into a pattern. */
struct build_tile {
    struct tile tile; /* entry and bitmask are 0 */
    uint64_t *bits;   /* TILE_BITMASK: as in tess_lists, from bit 0; elements that do not exist are
                         clear; the memory is some cursor's */
};

/* Cursor of one source in the block row at hand. Each thread has one for every source. */
struct cursor {
    struct build_tile
        answer;     /* the tile last answered; col -1 before the first, cols past the last */
    uint64_t *bits; /* room for one mask, see build_bits */
    void *scratch;  /* prepared by begin(): n things of `room` bytes, `at` is next */
    int64_t room, n, at;
    uint64_t *bitmap; /* a bit for each block column, all clear, see build_bitmap */
    struct tile_walk walk;
};

struct source;

/*
 * The tokens that a pattern lays itself out in: keys begin ... end - 1, which are positions too.
 * That is the whole sequence, or one document of it. Sources count positions, keys and columns
 * from its begin; keys past its end do not exist.
 */
struct build_document {
    int64_t begin, end;
    uint64_t number; /* keeps the draws of documents apart; 0 for the whole sequence */
};

/* The block row at hand. */
struct build_row {
    /* Sizes only, blocks cut to what exists: rows of masks are as far apart. */
    const struct bcsr *m;
    const struct source *sources;
    struct cursor *cursors;
    int64_t list, row;
    int64_t rows;     /* queries that exist in it */
    int64_t position; /* the first one's: query + n_kv - n_q */
    struct build_document document;
};

/* Functions of a kind of source; both answer 0, or -1 when memory ran out. */
struct source_kind {
    int (*begin)(struct build_row *b, int64_t source); /* a new block row; NULL: nothing to do */
    int (*seek)(struct build_row *b, int64_t source, int64_t j); /* fills cursors[source].answer */
};

struct draw_rule {
    uint64_t seed;
    double keep, share;
    int64_t count;
};

/* Block columns of every block row, padded: those of tess_pattern_from_counts. */
struct padded_lists {
    const int32_t *indices; /* [lists][rows][capacity] */
    const int32_t *counts;  /* [lists][rows], each up to capacity; NULL: all of capacity */
    int64_t capacity;
};

/* Sources stand in an array, children before their parents; the last is the root. */
struct source {
    const struct source_kind *kind;
    int64_t child, next; /* first child, next sibling; -1 = none */
    double row_bytes;    /* bytes of a caller's arrays that a block row reads, on average */
    union {
        struct { /* source_band: keys p + lo ... p + hi */
            int64_t lo, hi;
        } band;
        struct { /* source_ranges: one range of keys for each position */
            /* Sets [*a, *b) for position p; answers the next position that may differ. Neither
             * end falls from one range that is not empty to the next. */
            int64_t (*piece)(const struct source *s, int64_t n_kv, int64_t p, int64_t *a,
                             int64_t *b);
            int64_t n;
            int64_t *ends; /* owned; NULL where not used */
        } ranges;
        struct { /* source_steps: keys apart from one another */
            /* The smallest key >= x (x >= 0) that position p sees; BUILD_FAR or any key >= n_kv
             * when there is none. */
            int64_t (*next)(const struct source *s, int64_t n_kv, int64_t p, int64_t x);
            int64_t width, step;
            int same_for_all; /* next does not depend on p */
        } steps;
        struct { /* source_columns: whole blocks */
            /* Fills the cursor's scratch with int32 columns that never fall. 0, or -1: no
             * memory. */
            int (*fill)(struct build_row *b, const struct source *s, struct cursor *c);
            union {
                struct draw_rule draw;
                struct padded_lists padded;
            } from;
        } columns;
        const struct bcsr *pattern; /* source_pattern: one batch or head serves all */
        const uint8_t *mask;        /* source_mask: bytes [lists][n_q][n_kv] */
        const uint8_t *blocks;      /* source_blocks: bytes [lists][rows][cols] */
        const uint64_t *bits;       /* source_bits: words [lists][rows][bcsr_col_words] */
        struct { /* source_placed: what m lists for (i, j), at (i + query, j + key) */
            const struct bcsr *m;
            int64_t query, key;
        } placed;
        struct { /* source_documents: what each document lists, in its own queries and keys */
            int64_t n;
            int64_t *q_end, *kv_end; /* [n] where documents end: positions and keys, ascending */
            int64_t q_begin;         /* position where the first begins; its keys begin at 0 */
            int64_t first;           /* sources first ... this - 1 are those below this one */
            int apart; /* document i is source first + i; else all are the one child, laid out in
                          each anew */
        } documents;
    } u;
};

extern const struct source_kind source_band, source_ranges, source_steps, source_columns;
extern const struct source_kind source_pattern, source_placed;
extern const struct source_kind source_mask, source_blocks, source_bits;
extern const struct source_kind source_union, source_intersection, source_documents;

/*
 * Checks sizes and fills in defaults (zero: see tess_pattern_shape); the arrays of *m are set to
 * NULL and its counts to 0.
 */
tess_status build_sizes(struct bcsr *m, const tess_pattern_shape *shape, const char *function,
                        const char *argument, tess_error *error);

/* Allocates the arrays of *m but row_ptr, for its counts; bits are clear. 0, or -1 when memory ran out:
 * bcsr_free in either case. */
int build_arrays(struct bcsr *m);

/* Builds what the root of sources[n_sources] yields over *sizes. */
tess_status pattern_build(tess_pattern **out, const struct bcsr *sizes,
                          const struct source *sources, int64_t n_sources, const char *function,
                          tess_error *error);

/* Begins the block row at hand for sources first ... end - 1. Documents begin those below them. */
int build_begin(struct build_row *b, int64_t first, int64_t end);

/* The first block column that the document at hand has keys in, and how many columns it has. */
static inline int64_t build_first_col(const struct build_row *b) {
    return b->document.begin / b->m->block_kv;
}
static inline int64_t build_cols(const struct build_row *b) {
    return (b->document.end - 1) / b->m->block_kv - build_first_col(b) + 1;
}

/* Moves cursors[source].answer to the first tile at or after column j (never less than before). */
int build_seek(struct build_row *b, int64_t source, int64_t j);

/* Answers of a seek(): a full tile of column col, ... */
struct build_tile *build_answer(struct build_row *b, int64_t source, int64_t col);
/* ... a tile with a cleared mask to fill in (NULL: no memory), or no more tiles (0). */
struct build_tile *build_answer_bits(struct build_row *b, int64_t source, int64_t col);
int build_answer_none(struct build_row *b, int64_t source);
/* Is the tile a single element? Then it is full when it is listed. */
int build_single_element(const struct build_row *b, int64_t col);

/* array with room for at least `need` elements, or NULL (array is then still whole). */
void *build_grow(void *array, int64_t *room, int64_t need, size_t size);
/* The cursor's scratch with at least `bytes` of room; NULL: no memory. */
void *build_scratch(struct cursor *c, int64_t bytes);
/* The cursor's mask, cleared; NULL: no memory. */
uint64_t *build_bits(const struct build_row *b, struct cursor *c);
/* A clear bit for each block column, to be left clear; NULL: no memory. */
uint64_t *build_bitmap(const struct build_row *b, struct cursor *c);

/* Draws (random.c): fill functions of source_columns, which count columns from the document's. */
int draw_random(struct build_row *b, const struct source *s, struct cursor *c);
int draw_random_row(struct build_row *b, const struct source *s, struct cursor *c);
int draw_shared_random(struct build_row *b, const struct source *s, struct cursor *c);
int draw_count(struct build_row *b, const struct source *s, struct cursor *c);
/* Sorts the columns in the cursor's scratch, and may drop repeats. 0, or -1: no memory. */
int columns_sort(const struct build_row *b, struct cursor *c);

/* Arithmetic on tiles (tiles.c). Kinds are always the simplest that is exact. */

/* Makes *t the band lo ... hi (of its column). 0 when no element that exists is in it. */
int tile_set_band(const struct build_row *b, struct build_tile *t, int64_t lo, int64_t hi);
/* Makes *t the mask t->bits, or the full tile or band that it equals. 0 when it is empty. */
int tile_set_bits(const struct build_row *b, struct build_tile *t);
/* *t united with (or, with `both`, intersected with) *u, of the same column. 1, 0 when nothing is
 * left, -1 when memory for the cursor's mask ran out. */
int tile_join(const struct build_row *b, struct cursor *c, struct build_tile *t,
              const struct build_tile *u, int both);
/* Elements (r, c) of rows x cols with lo <= c - r <= hi. */
int64_t tile_band_count(int64_t rows, int64_t cols, int64_t lo, int64_t hi);

/* Fills in pairs and empty_rows of a pattern whose lists are complete. Answers TESS_OK,
 * TESS_OUT_OF_MEMORY, or TESS_UNSUPPORTED when the pairs do not fit 64 bits. */
tess_status pattern_count(tess_pattern *pattern);

/* Makes n (1 ... 64) bits from bit `at` on equal to the low bits of v. */
static inline void bits_put(uint64_t *bits, int64_t at, uint64_t v, int n) {
    uint64_t all = n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;
    int shift = (int)(at & 63);
    uint64_t *word = bits + (at >> 6);
    word[0] = (word[0] & ~(all << shift)) | v << shift;
    if (shift + n > 64)
        word[1] = (word[1] & ~(all >> (64 - shift))) | v >> (64 - shift);
}

#endif
