/* The MLPs that `tessera verify` makes up. */
#include "cli/sweep.h"

#include <stdio.h>

#include "cli/sweep_draw.h"

enum { TYPES = TESS_BF16 + 1, CACHES = LAB_CACHE_DELTA + 1, ACTIVATIONS = TESS_IDENTITY + 1 };
static const int64_t groups[] = {1, 8, 16, 33, 64, 64, 128, 128, 192, 192, 256};
static const int64_t rows[] = {1, 8, 40, 64, 72, 128, 136, 200, 264, 392};
static const int64_t hidden[] = {8, 40, 72, 120, 128, 264, 520, 1032};
static const int64_t dims[] = {8, 24, 40, 64, 72, 136, 264};
static const int64_t odd[] = {1, 3, 17, 33, 65};
static const int64_t widths[] = {1, 1, 1, 2, 8, 64};
static const int64_t thread_counts[] = {1, 3};
static const tess_form forms[] = {TESS_INDICES, TESS_BLOCK_ROWS, TESS_BLOCK_BITS, TESS_RANGES};

/* Sizes that are multiples of 8, which all backends take; one in eight is not. */
static int64_t size(struct draw *r, const int64_t *table, int64_t count) {
    return draw_chance(r, 0.125) ? draw_pick(r, odd, COUNT(odd)) : draw_pick(r, table, count);
}

static void draw_lists(struct lab_case *c, struct draw *r) {
    c->form = forms[draw_below(r, COUNT(forms))];
    if (c->form == TESS_RANGES)
        c->block_kv = 1;
    const int64_t cols = (c->nkv + c->block_kv - 1) / c->block_kv;
    c->topk = c->form == TESS_RANGES ? 1 + draw_below(r, 4) : 1 + draw_below(r, cols);
    c->valid = draw_chance(r, 0.5) ? 1 : 0.5;
    if (draw_chance(r, 0.5))
        c->entries =
            draw_below(r, LAB_ENTRIES_ALL + 1) &
            (LAB_ENTRIES_COUNTS | LAB_ENTRIES_DUPLICATES | LAB_ENTRIES_EMPTY | LAB_ENTRIES_LENGTHS |
             LAB_ENTRIES_MIXED | LAB_ENTRIES_UNORDERED | LAB_ENTRIES_WRONG);
    if (c->form != TESS_INDICES)
        c->entries &= LAB_ENTRIES_EMPTY | LAB_ENTRIES_LENGTHS;
}

struct lab_case sweep_mlp_case(uint64_t seed, int64_t number) {
    struct draw r = {seed + 46, (uint64_t)number, 0};
    struct lab_case c = lab_case_default();
    c.operation = TESS_MLP, c.pipeline = TESS_FUSED;
    c.h = c.hkv = 1;
    c.type = (tess_type)(number % TYPES);
    c.cache = (enum lab_cached)(number / TYPES % CACHES);
    c.activation = (tess_activation)(number / (TYPES * CACHES) % ACTIVATIONS);
    c.b = draw_chance(&r, 0.8) ? 1 : 2;
    c.n = size(&r, rows, COUNT(rows)), c.nkv = size(&r, hidden, COUNT(hidden));
    c.d = size(&r, dims, COUNT(dims)), c.dv = size(&r, dims, COUNT(dims));
    c.block_q = draw_pick(&r, groups, COUNT(groups));
    c.block_kv = draw_pick(&r, widths, COUNT(widths));
    c.lists = draw_chance(&r, 0.5) ? LAB_LISTS_1 : LAB_LISTS_Q;
    c.seed = (uint64_t)draw_below(&r, 1000000);
    c.biases = draw_below(&r, LAB_BIAS_ALL + 1);
    c.layout = (enum lab_layout)draw_below(&r, LAB_PADDED + 1);
    c.fill = c.type == TESS_F16 || draw_chance(&r, 0.8) ? LAB_FILL_NORMAL : LAB_FILL_POSITIVE;
    c.out32 = draw_chance(&r, 0.1);
    c.threads = draw_pick(&r, thread_counts, COUNT(thread_counts));
    if (c.cache == LAB_CACHE_DELTA || (c.cache == LAB_CACHE_NONE && draw_chance(&r, 0.3)))
        c.base = TESS_BASE_ADD;
    if (draw_chance(&r, 0.3)) /* weights that batches share */
        c.k0 = c.v0 = LAB_SHARES_B;
    if (draw_chance(&r, 0.4)) {
        draw_lists(&c, &r);
        while (c.block_q % 64 && (c.block_q > 64 || c.block_q & (c.block_q - 1)))
            c.block_q--;
    } else {
        snprintf(c.pattern, sizeof c.pattern, "random_row(0.%02d,%d)", (int)draw_below(&r, 100),
                 (int)draw_below(&r, 1000));
        if (draw_chance(&r, 0.2))
            snprintf(c.pattern, sizeof c.pattern, "dense");
    }
    return c;
}
