/* Packed lists: two parallel walks over the query tiles, one that counts and one that fills. */
#include "lists/lists.h"

#include "lists/pack.h"
#include "base/status.h"
#include "base/threads.h"

#include <math.h>
#include <stdlib.h>

/* Rows of a tile's members: those of a block row. Where tiles are not whole block rows but whole pieces
 * of 64 rows, those of a piece, which groups of warps compute by themselves. */
static int64_t member_rows(const struct bcsr *m, int32_t tile_rows) {
    return m->block_q < tile_rows && tile_rows % m->block_q && m->block_q % 64 == 0 &&
                   tile_rows % 64 == 0
               ? 64
               : m->block_q;
}

/* Without an array of the tiles: lists_estimate looks at few, where there may be 2^31. */
static struct packer packer_of(const struct bcsr *m, int32_t tile_rows) {
    struct packer p = {.m = m,
                       .tile_rows = tile_rows,
                       .words = (tile_rows + 63) / 64,
                       .member_rows = member_rows(m, tile_rows),
                       .members = 1,
                       .step = tile_rows,
                       .period = m->block_q};
    if (m->block_q < tile_rows) {
        p.members = (int32_t)(tile_rows / p.member_rows);
        p.step = p.members * p.member_rows;
        p.period = m->n_q;
    }
    const int64_t rest = m->n_q % p.period;
    p.tiles_of_period = (p.period + p.step - 1) / p.step;
    p.tiles = m->n_q / p.period * p.tiles_of_period + (rest + p.step - 1) / p.step;
    return p;
}

/* First rows of the query tiles, one past the last at the end; NULL when memory ran out. */
static int64_t *tile_rows_make(const struct packer *p) {
    int64_t *row = malloc(((size_t)p->tiles + 1) * sizeof *row);
    for (int64_t t = 0; row && t <= p->tiles; t++)
        row[t] = packer_row(p, t);
    return row;
}

/* Seconds of one thread that packing n query tiles takes, roughly. A tile of the pattern counts once for
 * each query tile that cuts its block row; a mask costs by its keys. */
static double walk_seconds(const struct packer *p, int64_t n) {
    const struct bcsr *m = p->m;
    const int64_t rows = bcsr_row_height(m, 0), keys = bcsr_col_width(m, 0);
    const int64_t cuts = p->members > 1 ? 1 : (rows + p->tile_rows - 1) / p->tile_rows;
    const double masks = (double)(m->n_bands + m->n_bitmasks) * (double)keys;
    return 100e-9 * (double)n + (20e-9 * (double)m->n_tiles + 4e-9 * masks) * (double)cuts;
}

/*
 * Packs every tile: the first walk only counts, into keys[T] and at [T + 1] of each pointer array
 * (kind k at [3 T + k + 1]); the second, when those hold places, fills.
 */
static int lists_walk(const struct packer *p, struct lists *out, int64_t *word_ptr, int fill) {
    int64_t n = out->n_lists * p->tiles, full = 0, masked = 0, groups = 0;
    int failed = 0;
#pragma omp parallel reduction(+ : full, masked, groups) reduction(| : failed) \
    if (n > 1 && threads_pay(walk_seconds(p, n)))
    {
        struct pack_scratch scratch;
        int ready = !pack_scratch_make(&scratch, p);
        failed |= !ready;
#pragma omp for schedule(dynamic, 16)
        for (int64_t T = 0; T < n; T++) {
            if (!ready)
                continue;
            int64_t *masked_ptr = out->masked_ptr + LIST_MASKED_KINDS * T;
            struct pack_sink sink;
            pack_sink_reset(&sink);
            if (fill) {
                sink.full = out->full + out->full_ptr[T];
                for (int k = 0; k < LIST_MASKED_KINDS; k++)
                    sink.masked[k] = out->masked + masked_ptr[k];
                sink.first_word = word_ptr[T];
                sink.words = out->words_of_rows + word_ptr[T];
            }
            pack_tile(p, T / p->tiles, T % p->tiles, &scratch, &sink);
            if (!fill) {
                out->keys[T] = sink.full_keys + sink.masked_keys;
                out->full_ptr[T + 1] = sink.n_full;
                for (int k = 0; k < LIST_MASKED_KINDS; k++)
                    masked_ptr[k + 1] = sink.n_masked[k];
                word_ptr[T + 1] = sink.n_words;
            }
            full += sink.full_keys;
            masked += sink.masked_keys;
            groups += sink.masked_groups;
        }
        pack_scratch_free(&scratch);
    }
    out->full_keys = full;
    out->masked_keys = masked;
    out->masked_groups = groups;
    return failed ? -1 : 0;
}

static int64_t prefix_sum(int64_t *ptr, int64_t n) {
    ptr[0] = 0;
    for (int64_t i = 0; i < n; i++)
        ptr[i + 1] += ptr[i];
    return ptr[n];
}

/* An array of at least one element, so that NULL always means that memory ran out. */
static void *array_make(int64_t count, size_t size) {
    return calloc((size_t)count + 1, size);
}

static int lists_build(const struct packer *p, struct lists *out, int64_t *word_ptr) {
    int64_t n = out->n_lists * p->tiles;
    out->keys = array_make(n, sizeof *out->keys);
    out->full_ptr = array_make(n, sizeof *out->full_ptr);
    out->masked_ptr = array_make(LIST_MASKED_KINDS * n, sizeof *out->masked_ptr);
    if (!out->keys || !out->full_ptr || !out->masked_ptr || lists_walk(p, out, word_ptr, 0))
        return -1;
    out->full_end = out->full_ptr + 1;
    out->masked_end = out->masked_ptr + 1;
    out->n_full = prefix_sum(out->full_ptr, n);
    out->n_masked = prefix_sum(out->masked_ptr, LIST_MASKED_KINDS * n);
    out->n_words = prefix_sum(word_ptr, n);
    out->full = array_make(out->n_full, sizeof *out->full);
    out->masked = array_make(out->n_masked, sizeof *out->masked);
    out->words_of_rows = array_make(out->n_words, sizeof *out->words_of_rows);
    if (!out->full || !out->masked || !out->words_of_rows)
        return -1;
    return lists_walk(p, out, word_ptr, 1);
}

tess_status lists_pack(struct lists *out, const struct bcsr *m, int32_t tile_rows,
                       tess_error *error) {
    const struct packer packer = packer_of(m, tile_rows);
    *out = (struct lists){.n_lists = m->batch * m->heads,
                          .tiles = packer.tiles,
                          .tile_rows = tile_rows,
                          .words = packer.words,
                          .tile_row = tile_rows_make(&packer)};
    int failed = !out->tile_row;
    if (!failed) {
        int64_t *word_ptr = array_make(out->n_lists * packer.tiles, sizeof *word_ptr);
        failed = !word_ptr || lists_build(&packer, out, word_ptr);
        free(word_ptr);
    }
    if (failed)
        return error_set(error, TESS_OUT_OF_MEMORY, "tess_plan_create", NULL,
                         "out of memory while packing %lld tiles for query tiles of %d rows",
                         (long long)m->n_tiles, (int)tile_rows);
    return TESS_OK;
}

void lists_free(struct lists *lists) {
    free(lists->tile_row);
    free(lists->keys);
    free(lists->full_ptr);
    free(lists->full);
    free(lists->masked_ptr);
    free(lists->masked);
    free(lists->words_of_rows);
    *lists = (struct lists){0};
}

size_t lists_memory(const struct lists *l) {
    size_t tiles = (size_t)(l->n_lists * l->tiles);
    if (l->filled)
        return ((size_t)l->tiles + 1) * sizeof *l->tile_row;
    return ((size_t)l->tiles + 1) * sizeof *l->tile_row +
           (tiles + 1) * (sizeof *l->keys + sizeof *l->full_ptr) +
           (LIST_MASKED_KINDS * tiles + 1) * sizeof *l->masked_ptr +
           (size_t)l->n_full * sizeof *l->full + (size_t)l->n_masked * sizeof *l->masked +
           (size_t)l->n_words * sizeof *l->words_of_rows;
}

void lists_sum(struct lists_sums *out, const struct lists *lists) {
    out->tiles = out->most_keys = 0;
    for (int64_t T = 0; T < lists->n_lists * lists->tiles; T++) {
        out->tiles += lists->keys[T] > 0;
        out->most_keys = fmax(out->most_keys, (double)lists->keys[T]);
    }
    out->full_keys = (double)lists->full_keys;
    out->masked_keys = (double)lists->masked_keys;
    out->masked_groups = (double)lists->masked_groups;
}

tess_status lists_estimate(struct lists_sums *out, const struct bcsr *m, int32_t tile_rows,
                           int64_t samples, tess_error *error) {
    const struct packer packer = packer_of(m, tile_rows);
    struct pack_scratch scratch;
    *out = (struct lists_sums){0};
    if (pack_scratch_make(&scratch, &packer)) {
        pack_scratch_free(&scratch);
        return error_set(error, TESS_OUT_OF_MEMORY, "tess_plan_create", NULL,
                         "out of memory while weighing query tiles of %d rows", (int)tile_rows);
    }
    int64_t n = m->batch * m->heads * packer.tiles;
    int64_t taken = n < samples ? n : samples;
    for (int64_t s = 0; s < taken; s++) {
        /* One of each of `taken` equal stretches. Multiples of the golden ratio say which, so that no period
         * of the pattern, as lists of equal length are, is met at one place alone. */
        const double place = (double)s + fmod((double)s * 0.6180339887498949, 1);
        int64_t T = (int64_t)(place * (double)n / (double)taken);
        struct pack_sink sink;
        pack_sink_reset(&sink);
        pack_tile(&packer, T / packer.tiles, T % packer.tiles, &scratch, &sink);
        out->tiles += sink.full_keys + sink.masked_keys > 0;
        out->full_keys += (double)sink.full_keys;
        out->masked_keys += (double)sink.masked_keys;
        out->masked_groups += (double)sink.masked_groups;
        out->most_keys = fmax(out->most_keys, (double)(sink.full_keys + sink.masked_keys));
    }
    double scale = (double)n / (double)taken;
    out->tiles *= scale;
    out->full_keys *= scale;
    out->masked_keys *= scale;
    out->masked_groups *= scale;
    pack_scratch_free(&scratch);
    return TESS_OK;
}
