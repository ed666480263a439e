/* The cases with lists on the device that `tessera verify` makes up. */
#include "cli/sweep.h"

#include <math.h>
#include <stdio.h>

#include "cli/sweep_draw.h"

/* Heads over KV heads, from one each to a group that fills a tile of 128 rows. */
static const int64_t heads[][2] = {{1, 1}, {2, 1},  {4, 1},  {8, 2}, {16, 1}, {6, 2},
                                   {3, 1}, {17, 1}, {16, 2}, {4, 4}, {64, 1}, {128, 1}};
static const int64_t queries[] = {1, 1, 1, 2, 3, 5, 8, 33, 70};
static const int64_t blocks_q[] = {1, 1, 1, 2, 8, 16, 32, 64, 128};
static const int64_t blocks_kv[] = {1, 1, 1, 2, 8, 16, 32, 64, 128};
/* Sizes of block lists, whose tiles have as many queries as Hopper's forward takes. */
enum { BLOCK_QUERIES = 8, FORMS = TESS_MASK + 1 };
static const int64_t block_queries[] = {8, 33, 70, 130};
static const int64_t high[] = {8, 16, 64, 128}, wide[] = {16, 32, 64, 128};
/* Sizes of columns. */
static const int64_t column_queries[] = {64, 130, 192, 200};
static const int64_t higher[] = {64, 128, 192, 192}, narrow[] = {1, 1, 2, 4, 8};
/* Lists that are drawn: of all sizes, or for one of Hopper's kernels. */
enum kind { ANY, BLOCKS, COLUMNS };
static const int64_t keys[] = {1, 40, 130, 300, 700, 1500, 3000};
/* Dims of Q and K, and of V: 0 as many. 576 over 512 is MLA's. */
static const int64_t dims[][2] = {{64, 0},    {128, 0},   {576, 512}, {32, 0},   {72, 64}, {96, 0},
                                  {192, 128}, {256, 256}, {320, 256}, {512, 64}, {8, 0},   {5, 7}};
static const double shares[] = {1, 1, 0.5, 0.1, 0.02, 0};

/* Halves what costs most until the oracle needs at most `budget` multiplications. */
static void shrink(struct lab_case *c, double budget) {
    while ((double)(c->b * c->h * c->n) * (double)c->nkv * (double)(c->d + c->dv) > budget)
        if (c->n > 8)
            c->n = (c->n + 1) / 2;
        else if (c->nkv > 64)
            c->nkv = (c->nkv + 1) / 2;
        else if (c->b > 1)
            c->b = 1;
        else
            break;
}

/* Sizes of the lists: entries fewer than there are block columns, as many, and of rows and bits one more. */
static void draw_lists(struct lab_case *c, struct draw *r, int64_t number, int longer,
                       enum kind kind) {
    c->form = (tess_form)(number % FORMS);
    c->block_q = kind == BLOCKS    ? draw_pick(r, high, COUNT(high))
                 : kind == COLUMNS ? draw_pick(r, higher, COUNT(higher))
                                   : draw_pick(r, blocks_q, COUNT(blocks_q));
    c->block_kv = c->form == TESS_RANGES ? 1
                  : kind == BLOCKS       ? draw_pick(r, wide, COUNT(wide))
                  : kind == COLUMNS      ? draw_pick(r, narrow, COUNT(narrow))
                                         : draw_pick(r, blocks_kv, COUNT(blocks_kv));
    const int64_t cols = (c->nkv + c->block_kv - 1) / c->block_kv;
    const int more = c->form == TESS_BLOCK_ROWS || c->form == TESS_BLOCK_BITS;
    const int64_t most = c->form == TESS_RANGES ? 4 : cols + more;
    c->topk = c->form == TESS_RANGES               ? 1 + draw_below(r, 4)
              : draw_chance(r, longer ? 0.7 : 0.3) ? cols - 1 + draw_below(r, 3)
                                                   : 1 + draw_below(r, cols);
    c->topk = c->topk < 1 ? 1 : c->topk > most ? most : c->topk;
    c->valid = longer && draw_chance(r, 0.7) ? 1 : shares[draw_below(r, COUNT(shares))];
    for (int64_t letter = 1; letter <= LAB_ENTRIES_ALL; letter *= 2)
        if (draw_chance(r, letter == LAB_ENTRIES_LENGTHS ? 0.5 : 0.25))
            c->entries |= letter;
    if (draw_chance(r, 0.4))
        c->cut = (enum lab_cut)(1 + draw_below(r, LAB_CUT_AHEAD));
}

/* Some lists of indices and bits are chosen, and some masks those of a pattern, in place of drawn ones. */
static void draw_origin(struct lab_case *c, struct draw *r) {
    static const char *const specs[] = {"window(16,16)", "causal", "random(0.3,1)",
                                        "global(5)+window(9,0)"};
    const int64_t cols = (c->nkv + c->block_kv - 1) / c->block_kv;
    if ((c->form != TESS_INDICES && c->form != TESS_BLOCK_BITS && c->form != TESS_MASK) ||
        !draw_chance(r, 0.15))
        return;
    c->topk = 0, c->valid = 1, c->entries = 0, c->cut = LAB_CUT_NONE;
    if (c->form == TESS_MASK) {
        snprintf(c->pattern, sizeof c->pattern, "%s", specs[draw_below(r, COUNT(specs))]);
        return;
    }
    const int causal = draw_chance(r, 0.5);
    const int64_t k = 1 + draw_below(r, cols), kept = 1 + draw_below(r, 3);
    snprintf(c->select, sizeof c->select,
             draw_chance(r, 0.7) ? "topk(%lld)+last(%lld)%s" : "threshold(0.%lld)+first(%lld)%s",
             (long long)k, (long long)(kept < cols ? kept : cols), causal ? "&causal" : "");
    c->cut = causal ? LAB_CUT_CAUSAL : LAB_CUT_NONE;
}

/* Pages, and K and V of other types than q's. */
static void draw_cache(struct lab_case *c, struct draw *r) {
    static const tess_type types[] = {TESS_E4M3, TESS_E5M2, TESS_BF16, TESS_F16};
    const int groups = c->d % 128 == 0 && c->dv % 128 == 0;
    if (draw_chance(r, 0.25))
        c->page = INT64_C(1) << draw_below(r, 8);
    if (draw_chance(r, c->type == TESS_F32 ? 0.7 : 0.25)) /* f32 has all that CUDA takes */
        c->kv_type = types[draw_below(r, c->type == TESS_F32 ? COUNT(types) : 2)];
    if (c->kv_type == TESS_E4M3 || c->kv_type == TESS_E5M2)
        c->kv_scale = (tess_scaling)draw_below(r, groups ? TESS_SCALE_GROUP + 1 : TESS_SCALE_GROUP);
    if (c->page || c->kv_type)
        c->fill = draw_chance(r, 0.7) ? LAB_FILL_NORMAL : LAB_FILL_POSITIVE;
}

/* Second views of q and K, and o in f32. */
static void draw_views(struct lab_case *c, struct draw *r) {
    static const int64_t ropes[] = {8, 32, 64, 3};
    const int64_t rope = c->d == 576 ? 64 : draw_pick(r, ropes, COUNT(ropes));
    const int of_groups = c->kv_scale == TESS_SCALE_GROUP && (c->d - rope) % 128;
    c->out32 = draw_chance(r, 0.1);
    if ((c->fill != LAB_FILL_NORMAL && c->fill != LAB_FILL_POSITIVE) || rope >= c->d || of_groups ||
        (c->v_in_k && c->dv > c->d - rope) || !draw_chance(r, 0.3))
        return;
    c->rope = rope;
    if (c->d == 576 && c->kv_scale && draw_chance(r, 0.5)) /* DeepSeek's token of 656 bytes */
        c->kv_scale = TESS_SCALE_GROUP;
}

static void draw_tensors(struct lab_case *c, struct draw *r) {
    static const enum lab_fill fills[] = {LAB_FILL_POSITIVE, LAB_FILL_LARGE, LAB_FILL_SUBNORMAL,
                                          LAB_FILL_OFFSET,   LAB_FILL_TOP,   LAB_FILL_NANK,
                                          LAB_FILL_NANV};
    c->layout = draw_chance(r, 0.7) ? LAB_BHND : (enum lab_layout)draw_below(r, LAB_PADDED + 1);
    c->v_in_k = c->dv <= c->d && draw_chance(r, c->d == 576 ? 0.7 : 0.2);
    if (draw_chance(r, 0.4))
        c->fill = fills[draw_below(r, c->v_in_k ? 5 : COUNT(fills))];
    draw_cache(c, r);
    if (draw_chance(r, 0.1))
        c->scale = draw_chance(r, 0.5) ? 0.125 : -0.5;
    if (draw_chance(r, 0.4))
        c->part_keys = 128 * (1 + draw_below(r, 3));
    c->threads = draw_chance(r, 0.5) ? 1 : 3;
    draw_modifiers(c, r);
    draw_views(c, r);
    draw_shares(c, r);
    draw_base(c, r);
}

/* Takes from a case what kernels of Hopper over columns refuse. */
static void keep_plain(struct lab_case *c) {
    c->softcap = c->dropout = 0, c->alibi = 0;
    c->page = c->rope = c->out32 = 0;
    c->kv_type = TESS_F32, c->kv_scale = TESS_SCALE_NONE; /* types as of q */
    c->scale = fabs(c->scale);
}

struct lab_case sweep_lists_case(uint64_t seed, int64_t number) {
    struct draw r = {seed, (UINT64_C(1) << 40) + (uint64_t)number, 0};
    struct draw of_blocks = {seed, (UINT64_C(1) << 41) + (uint64_t)number, 0};
    const enum kind kind = number % FORMS == TESS_RANGES   ? ANY
                           : draw_chance(&of_blocks, 0.15) ? BLOCKS
                           : draw_chance(&of_blocks, 0.09) ? COLUMNS
                                                           : ANY;
    struct lab_case c = lab_case_default();
    const int64_t turn = number / FORMS;
    const int64_t ratio = draw_below(&r, COUNT(heads)) % (kind == COLUMNS ? 4 : COUNT(heads));
    c.type = turn % 8 == 7 ? TESS_F32 : turn % 2 ? TESS_F16 : TESS_BF16;
    c.h = heads[ratio][0], c.hkv = heads[ratio][1];
    c.b = draw_chance(&r, 0.6) ? 1 : 2 + draw_below(&r, 2);
    c.lists = (enum lab_lists)draw_below(&r, LAB_LISTS_1 + 1);
    c.n = draw_pick(&r, queries, COUNT(queries));
    c.nkv = draw_pick(&r, keys, COUNT(keys)) + draw_below(&r, 3);
    /* f32 has the sizes that no CUDA kernel takes: rows that are not of whole 16-byte pieces. */
    const int64_t *d =
        dims[c.type == TESS_F32 ? draw_below(&r, COUNT(dims)) : turn % (COUNT(dims) - 1)];
    if (kind == COLUMNS && d[0] > 128)
        d = dims[turn % 2];
    c.d = d[0], c.dv = d[1] ? d[1] : d[0];
    c.seed = (uint64_t)draw_below(&r, 1000000);
    const int longer = draw_chance(&r, 0.12); /* tiles that are split, which take long */
    if (longer)
        c.n = 1 + draw_below(&r, 2), c.nkv = 600 + draw_below(&r, 2400);
    if (kind == BLOCKS)
        c.n = draw_pick(&of_blocks, block_queries, COUNT(block_queries));
    shrink(&c, longer ? 2e7 : 2e6);
    if (kind == BLOCKS && c.n < BLOCK_QUERIES)
        c.n = BLOCK_QUERIES;
    if (kind == COLUMNS)
        c.n = draw_pick(&of_blocks, column_queries, COUNT(column_queries));
    draw_lists(&c, &r, number, longer, kind);
    draw_tensors(&c, &r);
    draw_origin(&c, &of_blocks);
    if (kind == COLUMNS && draw_chance(&of_blocks, 0.7))
        keep_plain(&c);
    return c;
}
