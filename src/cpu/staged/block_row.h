/*
 * A block row of the score matrix: tiles side by side, as the BCSR scores hold them, taken by chunks of
 * at most CPU_TILE_ROWS queries. tessera.h, section 4, draws the scores: row r of a block row is `width`
 * consecutive floats, block_kv for each tile.
 */
#ifndef TESSERA_CPU_BLOCK_ROW_H
#define TESSERA_CPU_BLOCK_ROW_H

#include "tile/tile.h"

/* One block row of one (batch, head). */
struct cpu_block_row {
    const struct bcsr *m;
    int64_t b, h, list;
    int64_t number;
    int64_t first, rows; /* its queries */
    int64_t width;       /* floats of a row of scores */
    float *scores;
};

/* One chunk of its rows, and how far its columns have been walked. */
struct cpu_chunk {
    const struct cpu_block_row *block;
    int64_t row, rows; /* within the block row */
    struct tile_walk walk;
    struct tile tile;
    int64_t column;  /* column of the block row, next to be walked */
    int64_t in_tile; /* column within the tile; block_kv when the tile is done */
};

/* A superblock of the chunk's keys; key j stands in column at[j] of the block row. Columns
 * from ... to - 1 were walked: those without a key are listed by no row of the chunk. */
struct cpu_block_row_keys {
    struct cpu_keys keys;
    int64_t at[CPU_KEYS_SHORT];
    int64_t from, to;
};

static inline struct cpu_block_row cpu_block_row(const struct kernel_args *args,
                                                 const struct work_item *item) {
    const struct bcsr *m = args->work.bcsr;
    const int64_t heads = args->problem->heads_q, bh = item->batch_head,
                  list = args->work.list_of[bh];
    const int64_t r0 = bcsr_row_begin(m, list, item->tile), r1 = bcsr_row_end(m, list, item->tile);
    struct cpu_block_row s = {.m = m,
                              .b = bh / heads,
                              .h = bh % heads,
                              .list = list,
                              .number = item->tile,
                              .first = item->tile * m->block_q,
                              .width = (r1 - r0) * m->block_kv};
    s.rows = bcsr_row_height(m, s.number);
    s.scores = stage_of(args)->scores + args->work.scores_offset[bh] +
               (r0 - bcsr_row_begin(m, list, 0)) * m->block_q * m->block_kv;
    return s;
}

/* Rows of the largest chunk. */
static inline int64_t cpu_chunk_rows(const struct bcsr *m) {
    return m->block_q < CPU_TILE_ROWS ? m->block_q : CPU_TILE_ROWS;
}

static inline struct cpu_chunk cpu_chunk(const struct cpu_block_row *s, int64_t row) {
    struct cpu_chunk c = {.block = s, .row = row, .in_tile = s->m->block_kv};
    c.rows = s->rows - row < CPU_TILE_ROWS ? s->rows - row : CPU_TILE_ROWS;
    tile_walk_begin(&c.walk, s->m, s->list, s->number);
    return c;
}

/* mask[i] = the chunk's rows that list column c0 + i of the tile, for n <= 64 columns. */
static inline void cpu_chunk_masks(const struct cpu_chunk *c, int64_t c0, int n, uint64_t *mask) {
    const uint64_t all = UINT64_MAX >> (64 - c->rows);
    for (int i = 0; i < n; i++)
        mask[i] = c->tile.kind == TILE_FULL ? all : 0;
    for (int64_t r = 0; c->tile.kind != TILE_FULL && r < c->rows; r++) {
        uint64_t bits = tile_row_bits(c->block->m, &c->tile, c->row + r, c0, n);
        for (; bits; bits &= bits - 1)
            mask[__builtin_ctzll(bits)] |= UINT64_C(1) << r;
    }
}

/* Walks the next columns of the tile, at most 64 and no more than there is room for. */
static inline void cpu_chunk_piece(struct cpu_chunk *c, struct cpu_block_row_keys *out) {
    const struct bcsr *m = c->block->m;
    int64_t key = c->tile.col * m->block_kv + c->in_tile;
    int64_t n = m->block_kv - c->in_tile;
    uint64_t mask[64];
    if (key >= m->n_kv) { /* the last block's columns past the keys */
        c->in_tile += n;
        c->column += n;
        return;
    }
    n = m->n_kv - key < n ? m->n_kv - key : n;
    n = CPU_KEYS_SHORT - out->keys.n < n ? CPU_KEYS_SHORT - out->keys.n : n;
    n = n > 64 ? 64 : n;
    cpu_chunk_masks(c, c->in_tile, (int)n, mask);
    for (int64_t i = 0; i < n; i++) {
        int32_t j = out->keys.n;
        out->keys.key[j] = (int32_t)(key + i);
        out->keys.mask[j] = mask[i];
        out->keys.masked |= c->tile.kind != TILE_FULL;
        out->at[j] = c->column + i;
        out->keys.n += mask[i] != 0;
    }
    c->in_tile += n;
    c->column += n;
}

/* The next superblock; 0 at the block row's end. It may have no key at all. */
static inline int cpu_chunk_next(struct cpu_chunk *c, struct cpu_block_row_keys *out) {
    out->keys.n = 0;
    out->keys.masked = 0;
    out->from = c->column;
    while (out->keys.n < CPU_KEYS_SHORT) {
        if (c->in_tile == c->block->m->block_kv) {
            if (!tile_walk_next(&c->walk, &c->tile))
                break;
            c->in_tile = 0;
        }
        cpu_chunk_piece(c, out);
    }
    out->to = c->column;
    return out->to > out->from;
}

/* ---- what the stages on tensors have as workspace: one scratch for each thread ---- */

struct cpu_stage {
    const struct kernel_args *args;
    const struct bcsr *m; /* whose block rows are cut into chunks */
    int64_t d;            /* d_qk or d_v */
    int64_t side;         /* floats that a lane has beside its panel */
    char *scratch;
    size_t scratch_size;
};

struct cpu_stage_scratch {
    float *panel; /* qt, or ot of the last superblocks, of a chunk */
    float *side;  /* sddmm: factor (1 a lane); outputs.h: the total, and its low part (2 d) */
    float *st;    /* scores or weights of one group */
    float *rows;  /* key or value rows converted to f32 */
    float *row;   /* CPU_LANES * d floats */
};

static inline struct cpu_stage_scratch cpu_stage_scratch(struct carve *c,
                                                         const struct cpu_stage *stage) {
    struct cpu_stage_scratch s;
    const int64_t d = stage->d;
    size_t lanes = (size_t)cpu_lanes(cpu_chunk_rows(stage->m));
    s.panel = carve_take_panel(c, lanes, (size_t)d, sizeof(float));
    s.side = carve_take_panel(c, lanes, (size_t)stage->side, sizeof(float));
    s.st = carve_take(c, CPU_ST_KEYS * CPU_GROUP, sizeof(float));
    s.rows = carve_take(c, cpu_gather_size(stage->args->problem->type, CPU_KEYS_SHORT, d),
                        sizeof(float));
    s.row = carve_take_panel(c, CPU_LANES, (size_t)d, sizeof(float));
    return s;
}

static inline struct cpu_stage cpu_stage(struct carve *c, const struct kernel_args *args,
                                         const struct bcsr *m, int64_t d, int64_t side) {
    struct cpu_stage stage = {.args = args, .m = m, .d = d, .side = side};
    struct carve one = {0};
    cpu_stage_scratch(&one, &stage);
    c->overflow |= one.overflow;
    stage.scratch = carve_take(c, (size_t)args->problem->threads, one.used);
    stage.scratch_size = one.used;
    return stage;
}

static inline struct cpu_stage_scratch cpu_stage_thread(const struct cpu_stage *stage,
                                                        int32_t thread) {
    struct carve c = {.base = stage->scratch + (size_t)thread * stage->scratch_size};
    return cpu_stage_scratch(&c, stage);
}

static inline size_t cpu_stage_workspace(const struct kernel_args *args, const struct bcsr *m,
                                         int64_t d, int64_t side) {
    struct carve c = {0};
    cpu_stage(&c, args, m, d, side);
    return c.overflow ? SIZE_MAX : c.used;
}

#endif
