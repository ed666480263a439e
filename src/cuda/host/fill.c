/* Sizes of the launches that fill an image. */
#include "host/fill.h"

#define RESIDENT_THREADS 2048 /* threads of a multiprocessor */
#define RESIDENT_BITS 1024    /* threads that walk bits, by registers */
#define WORDS_OF_THREAD 64    /* words of a bitmap, at most */
#define ENTRIES_OF_THREAD 4   /* entries of a block row, or words: fewer do not pay */
#define STAGE_OF_THREAD 32    /* columns in shared memory, at most */
#define MOST_CHUNKS 64        /* thread blocks that each sum what lies before them */
#define LEAST_CHUNK 2048
#define MASK_MOST_BLOCKS (1 << 20) /* thread blocks that read a mask */

/* Scratch: tallies and first faults of thread blocks; of a mask pairs of blocks, and keys that are listed. */
struct scratch {
    uint64_t *tallies, *firsts;
    uint32_t *pairs, *listed;
};
static size_t scratch_take(struct scratch *to, const struct fill_shape *s, void *memory) {
    const size_t tiles = s->form == TESS_MASK ? (size_t)(s->batches * s->heads * s->tiles) : 0;
    struct carve c = {.base = memory};
    to->tallies = carve_take_panel(&c, FILL_MOST_BLOCKS, TALLIES, sizeof *to->tallies);
    to->firsts = carve_take(&c, FILL_MOST_BLOCKS, sizeof *to->firsts);
    to->pairs = carve_take_panel(&c, tiles, (size_t)s->cols, sizeof *to->pairs);
    to->listed = carve_take_panel(&c, tiles, (size_t)mask_marks(s), sizeof *to->listed);
    return c.used;
}

size_t cuda_fill_scratch(const struct fill_shape *shape) {
    struct scratch sizes;
    return scratch_take(&sizes, shape, NULL);
}

int64_t cuda_workers(const tess_target *target) {
    return target->multiprocessors;
}

/* Pieces of so many, `chunk` each. */
static int64_t chunks(int64_t n, int64_t chunk) {
    return (n + chunk - 1) / chunk;
}

/* Threads for a block row: as many as there is work for, or as find room on the device together. */
static int32_t row_threads(int64_t work, int64_t room, int64_t words) {
    const int64_t wanted = max_i64(min_i64(work, room), words / WORDS_OF_THREAD);
    int32_t threads = 32;
    while (threads < FILL_ROW_THREADS && 2 * threads <= wanted)
        threads *= 2;
    return threads;
}

static int64_t chunk_of(int64_t n) {
    return max_i64(LEAST_CHUNK, chunks(n, MOST_CHUNKS));
}

static int64_t rounded(int64_t n, int64_t to) {
    return chunks(n, to) * to;
}

/* Shared memory of a team of indices, of `most` words of 32 bits. Columns are there where room is; the
 * bitmap has all columns, or as many as fit. */
static void team_divide(struct fill_params *p, int64_t most, int64_t words, int64_t columns) {
    const int64_t stage = rounded(columns, 4);
    const int64_t window = FILL_WINDOW + FILL_WINDOW / FILL_BUCKET / 4 + FILL_WINDOW / FILL_BUCKET;
    p->stage = stage <= STAGE_OF_THREAD * p->threads && 2 * stage <= most ? (int32_t)stage : 0;
    const int64_t windows = min_i64(chunks(words, FILL_WINDOW), (most - p->stage) / window);
    p->words = (int32_t)(windows * FILL_WINDOW);
    p->room = (int32_t)(windows * window) + p->stage;
}

/* Bytes of shared memory of a thread block over block rows: of its teams or, where it is alone, of items. */
static int64_t rows_shared(const struct fill_params *p) {
    const int64_t teams = (int64_t)sizeof(uint32_t) * (p->block / p->threads) * p->room;
    const int64_t items = p->blocks == 1 ? (int64_t)sizeof(uint64_t) * p->block : 0;
    return (int64_t)(FILL_SUMS * sizeof(uint64_t)) + max_i64(teams, items);
}

/* Teams for the block rows, and their shared memory. Where many rows have long bitmaps, few teams find room
 * at once, and are large. */
static void rows_divide(struct fill_params *p, const tess_target *target) {
    const struct fill_shape *s = &p->shape;
    const int64_t rows = s->batches * s->heads * s->rows, words = chunks(s->cols, 32);
    const int64_t entries = s->form == TESS_INDICES ? s->capacity : s->capacity / rows + 1;
    const int64_t block = target->shared_memory_per_block;
    const int64_t most = block ? min_i64(block, FILL_MOST_SHARED) : FILL_SURE_SHARED;
    const int64_t bitmaps = s->form == TESS_BLOCK_BITS ? 0 : words * (int64_t)sizeof(uint32_t);
    const int64_t room = max_i64(target->multiprocessors * RESIDENT_THREADS / rows,
                                 RESIDENT_THREADS * bitmaps / most);
    p->threads = row_threads(max_i64(words, entries) / ENTRIES_OF_THREAD, room, words);
    const int64_t stage = FILL_STAGED(s->cols) * (int64_t)sizeof(uint16_t); /* bytes of a warp */
    const int64_t warps = s->form == TESS_BLOCK_BITS
                              ? (most - FILL_SUMS * (int64_t)sizeof(uint64_t)) / stage
                              : FILL_ROW_THREADS / 32; /* warps that find room */
    while (p->threads / 32 > warps)
        p->threads /= 2;
    p->block = p->threads == 32 ? 32 * (int32_t)min_i64(FILL_WARPS, warps) : p->threads;
    if (s->form == TESS_BLOCK_BITS)
        p->room = (int32_t)(p->threads / 32 * stage / (int64_t)sizeof(uint32_t));
    p->thread_bits = __builtin_ctz((unsigned)p->threads);
    p->pairs = s->form == TESS_INDICES && s->capacity % 2 == 0 && (uintptr_t)p->indices % 8 == 0;
    const int64_t teams = p->block / p->threads;
    if (s->form != TESS_BLOCK_BITS)
        team_divide(p, (most - rows_shared(p)) / ((int64_t)sizeof(uint32_t) * teams), words,
                    min_i64(s->capacity, s->cols));
    const int64_t threads = s->form == TESS_BLOCK_BITS ? RESIDENT_BITS : RESIDENT_THREADS;
    const int64_t at_once = min_i64(threads / p->block, most / rows_shared(p));
    p->blocks = (int32_t)min_i64(min_i64(chunks(rows, teams), FILL_MOST_BLOCKS),
                                 target->multiprocessors * max_i64(1, at_once));
}

struct fill_params fill_params_of(const struct fill_job *job) {
    const tess_device_pattern *given = job->pattern;
    const struct fill_shape *s = job->shape;
    struct scratch scratch;
    scratch_take(&scratch, s, job->scratch);
    struct fill_params p = {.shape = *s,
                            .splits = *job->splits,
                            .arrays = job->arrays,
                            .indices = given->indices,
                            .counts = given->counts,
                            .row_ptr = given->row_ptr,
                            .bits = given->bits,
                            .mask = given->mask,
                            .lengths = given->lengths,
                            .header = job->header,
                            .report = job->report,
                            .items = job->items,
                            .combines = job->combines,
                            .tallies = scratch.tallies,
                            .firsts = scratch.firsts,
                            .mask_pairs = scratch.pairs,
                            .mask_listed = scratch.listed,
                            .layout = job->layout,
                            .units = job->units,
                            .list_heads = job->list_heads,
                            .list_packs = job->list_packs,
                            .threads = 32,
                            .thread_bits = 5,
                            .block = FILL_TILE_THREADS,
                            .place_chunk = chunk_of(s->batch * s->heads * s->rows),
                            .items_chunk = chunk_of(job->units)};
    if (s->form == TESS_RANGES)
        p.blocks = (int32_t)min_i64(chunks(s->batches * s->heads * s->tiles, FILL_TILE_THREADS),
                                    FILL_MOST_BLOCKS);
    else if (s->form == TESS_MASK)
        p.block = 32 * FILL_WARPS,
        p.blocks =
            (int32_t)min_i64(chunks(s->batches * s->heads * s->rows, FILL_WARPS), FILL_MOST_BLOCKS);
    else
        rows_divide(&p, job->target);
    return p;
}

#define ITEMS_LEAST 256 /* threads: one unit may have as many parts */

/* Threads over items: a unit each, or a thread block's tally. */
static int32_t items_threads(const struct fill_params *p) {
    int32_t threads = ITEMS_LEAST;
    while (threads < FILL_THREADS && threads < max_i64(p->units, p->blocks))
        threads *= 2;
    return threads;
}

/* Thread blocks that read a mask: a warp takes keys of a query tile, and of more where tiles are many. */
static int32_t mask_blocks(const struct fill_shape *s) {
    const int64_t warps = s->batches * s->heads * s->tiles * chunks(s->n_kv, FILL_MASK_KEYS);
    return (int32_t)min_i64(chunks(warps, FILL_MASK_WARPS), MASK_MOST_BLOCKS);
}

int32_t fill_launches(const struct fill_params *p, struct fill_launch out[FILL_MOST_LAUNCHES]) {
    const struct fill_shape *s = &p->shape;
    const int64_t given = s->batch * s->heads * s->rows;
    const int bits = s->form == TESS_BLOCK_BITS, cut = s->cut != 0;
    const size_t sums = FILL_SUMS * sizeof(uint64_t);
    const int tokens = !bits && !cut && s->block_kv == 1 && s->row_tiles == 1;
    const enum fill_kernel rows = s->form == TESS_RANGES ? FILL_RANGE_TILES
                                  : s->form == TESS_MASK ? FILL_MASK_ROWS
                                  : tokens
                                      ? FILL_TOKENS
                                      : (enum fill_kernel)((bits ? FILL_BITS : FILL_INDICES) + cut);
    int32_t n = 0;
    if (bits)
        out[n++] = (struct fill_launch){
            FILL_CLAIMS, (int32_t)min_i64(chunks(given, FILL_WARPS), FILL_MOST_BLOCKS),
            32 * FILL_WARPS, sums};
    if (bits || s->form == TESS_BLOCK_ROWS)
        out[n++] = (struct fill_launch){FILL_PLACES, (int32_t)chunks(given, p->place_chunk),
                                        FILL_THREADS, sums};
    if (s->form == TESS_MASK)
        out[n++] = (struct fill_launch){FILL_MASK_WORDS, mask_blocks(s), 32 * FILL_MASK_WARPS, 0};
    out[n++] = (struct fill_launch){rows, p->blocks, p->block, (size_t)rows_shared(p)};
    if (p->blocks > 1)
        out[n++] = (struct fill_launch){FILL_ITEMS, (int32_t)chunks(p->units, p->items_chunk),
                                        items_threads(p), sums + FILL_THREADS * sizeof(uint64_t)};
    return n;
}
