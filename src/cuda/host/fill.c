/* Sizes of the launches that fill an image. */
#include "host/fill.h"

#define RESIDENT_THREADS 2048 /* of a multiprocessor */
#define WORDS_OF_THREAD 64    /* of a bitmap, at most */
#define ENTRIES_OF_THREAD 4   /* of a block row, or words: fewer do not pay */
#define MOST_CHUNKS 64        /* thread blocks that each sum what lies before them */
#define LEAST_CHUNK 2048

size_t cuda_fill_scratch(const struct fill_shape *shape) {
    (void)shape;
    return FILL_MOST_BLOCKS * sizeof(struct fill_counts);
}

int64_t cuda_fill_workers(const tess_target *target) {
    return target->multiprocessors;
}

/* Pieces of so many, `chunk` each. */
static int64_t chunks(int64_t n, int64_t chunk) {
    return (n + chunk - 1) / chunk;
}

/* Threads for a block row: as many as there is work for, or as find room on the device together. */
static int32_t row_threads(const struct fill_params *p, int64_t rows, int64_t words,
                           int64_t multiprocessors) {
    const struct fill_shape *s = &p->shape;
    const int64_t entries = s->form == TESS_INDICES ? s->capacity : s->capacity / rows + 1;
    const int64_t work = max_i64(words, entries) / ENTRIES_OF_THREAD;
    const int64_t room = multiprocessors * RESIDENT_THREADS / rows;
    const int64_t wanted = max_i64(min_i64(work, room), words / WORDS_OF_THREAD);
    int32_t threads = 32;
    while (threads < FILL_ROW_THREADS && 2 * threads <= wanted)
        threads *= 2;
    return threads;
}

static int64_t chunk_of(int64_t n) {
    return max_i64(LEAST_CHUNK, chunks(n, MOST_CHUNKS));
}

/* Who takes the block rows, and bitmaps: of all columns where they find room, else of as many as do. */
static void rows_divide(struct fill_params *p, const tess_target *target) {
    const struct fill_shape *s = &p->shape;
    const int64_t rows = s->batches * s->heads * s->rows, words = chunks(s->cols, 32);
    const int64_t block = target->shared_memory_per_block;
    const int64_t most = block ? min_i64(block, FILL_MOST_SHARED) : FILL_SURE_SHARED;
    p->threads = row_threads(p, rows, words, target->multiprocessors);
    p->block = p->threads == 32 ? 32 * FILL_WARPS : p->threads;
    const int64_t teams = p->block / p->threads;
    const int64_t room =
        (most - (int64_t)(FILL_SUMS * sizeof(uint64_t))) / ((int64_t)sizeof(uint32_t) * teams);
    p->words = s->form == TESS_BLOCK_BITS ? 0 : (int32_t)min_i64(words, room);
    p->blocks = (int32_t)min_i64(chunks(rows, teams), FILL_MOST_BLOCKS);
}

struct fill_params fill_params_of(const struct fill_job *job) {
    const tess_device_pattern *given = job->pattern;
    const struct fill_shape *s = job->shape;
    struct fill_params p = {.shape = *s,
                            .splits = *job->splits,
                            .arrays = job->arrays,
                            .indices = given->indices,
                            .counts = given->counts,
                            .row_ptr = given->row_ptr,
                            .bits = given->bits,
                            .lengths = given->lengths,
                            .header = job->header,
                            .items = job->items,
                            .combines = job->combines,
                            .tallies = (struct fill_counts *)job->scratch,
                            .layout = job->layout,
                            .units = job->units,
                            .list_heads = job->list_heads,
                            .list_packs = job->list_packs,
                            .threads = 32,
                            .block = FILL_TILE_THREADS,
                            .place_chunk = chunk_of(s->batch * s->heads * s->rows),
                            .items_chunk = chunk_of(job->units)};
    if (s->form == TESS_RANGES)
        p.blocks = (int32_t)min_i64(chunks(s->batches * s->heads * s->tiles, FILL_TILE_THREADS),
                                    FILL_MOST_BLOCKS);
    else
        rows_divide(&p, job->target);
    return p;
}

int32_t fill_launches(const struct fill_params *p, struct fill_launch out[FILL_MOST_LAUNCHES]) {
    const struct fill_shape *s = &p->shape;
    const int64_t given = s->batch * s->heads * s->rows;
    const int bits = s->form == TESS_BLOCK_BITS, cut = s->cut != 0;
    const size_t sums = FILL_SUMS * sizeof(uint64_t);
    const size_t bitmaps = (size_t)(p->block / p->threads) * (size_t)p->words * sizeof(uint32_t);
    const enum fill_kernel rows = s->form == TESS_RANGES
                                      ? FILL_RANGE_TILES
                                      : (enum fill_kernel)((bits ? FILL_BITS : FILL_INDICES) + cut);
    int32_t n = 0;
    if (bits)
        out[n++] = (struct fill_launch){
            FILL_CLAIMS, (int32_t)min_i64(chunks(given, FILL_WARPS), FILL_MOST_BLOCKS),
            32 * FILL_WARPS, sums};
    if (bits || s->form == TESS_BLOCK_ROWS)
        out[n++] = (struct fill_launch){FILL_PLACES, (int32_t)chunks(given, p->place_chunk),
                                        FILL_THREADS, sums};
    out[n++] = (struct fill_launch){rows, p->blocks, p->block, sums + bitmaps};
    out[n++] = (struct fill_launch){FILL_ITEMS, (int32_t)chunks(p->units, p->items_chunk),
                                    FILL_THREADS, sums};
    return n;
}
