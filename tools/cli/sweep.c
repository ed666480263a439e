/* The cases that `tessera verify` makes up. */
#include "cli/sweep.h"

#include <stdio.h>

#include "cli/sweep_draw.h"
#include "lab/lists/source.h"

/* Patterns; capitals are drawn: W width, C count of at least 1, E even width, P step, T few,
 * K probability, S seed, D length of one of three documents. */
static const char *const patterns[] = {
    "dense",
    "causal",
    "window(W,W)",
    "window(W,0)",
    "window(0,W)",
    "blockdiag(C)",
    "dilated(T,P)",
    "global(W)",
    "global_grid(C)",
    "strided(W,P)",
    "fixed(C,T)",
    "summary(W,P)",
    "segments(D,D,D)",
    "longformer(E,T)",
    "bigbird(E,T,T,S)",
    "random(K,S)",
    "random_row(K,S)",
    "shared_random(K,K,S)",
    "random(0,S)",
    "causal&random(K,S)",
    "window(W,W)+random_row(K,S)",
    "(global(T)+window(W,T))&causal",
    "longformer(E,T)&segments(D,D,D)",
    "blockdiag(C)+summary(T,P)",
    "random(K,S)&shared_random(K,K,S)",
    "dilated(T,P)&causal+global_grid(C)",
    "segments(D,D,D)&causal&random_row(K,S)",
    "each(D,D,D;longformer(E,T)&causal)",
    "each(D,D,D;bigbird(E,T,T,S))+window(T,0)",
};

static const int64_t blocks[][2] = {
    {1, 1},  {64, 64}, {2, 2},    {192, 1}, {4, 4},    {128, 128}, {8, 8},
    {5, 7},  {16, 16}, {64, 1},   {32, 32}, {48, 80},  {1, 1},     {128, 1},
    {1, 16}, {17, 64}, {256, 64}, {100, 3}, {64, 128}, {33, 5},    {1, 64},
};

static const int64_t heads[][2] = {{1, 1}, {2, 1}, {2, 2}, {4, 1}, {8, 1},
                                   {4, 2}, {3, 3}, {6, 2}, {8, 4}};
static const int64_t lengths[] = {1, 4, 8, 16, 32, 64, 96, 128, 192, 256};
static const int64_t dims[] = {1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 32, 33, 48, 64, 80, 96, 128};
static const int64_t wide_dims[] = {264, 512, 576, 768, 1000, 1024};
static const int64_t tiles[] = {8, 16, 32, 64};
static const int64_t thread_counts[] = {1, 3};

/* A length beside a round number. */
static int64_t length(struct draw *r) {
    int64_t n = draw_pick(r, lengths, COUNT(lengths)) + draw_below(r, 3) - 1;
    return n < 1 ? 1 : n;
}

static int64_t dim(struct draw *r, int64_t number) {
    if (number % 8 == 0)
        return 1 + number / 8 % 256;
    if (number % 50 == 1)
        return draw_pick(r, wide_dims, COUNT(wide_dims));
    return draw_pick(r, dims, COUNT(dims));
}

static void write_number(char *out, size_t size, char what, const struct lab_case *c,
                         struct draw *r) {
    int64_t n = c->n > c->nkv ? c->n : c->nkv;
    if (what == 'K')
        snprintf(out, size, "0.%02d", (int)(5 + draw_below(r, 95)));
    else
        snprintf(out, size, "%lld",
                 (long long)(what == 'W'   ? draw_below(r, n / 2 + 1)
                             : what == 'C' ? 1 + draw_below(r, c->nkv)
                             : what == 'E' ? 2 * draw_below(r, n / 4 + 1)
                             : what == 'P' ? 1 + draw_below(r, 9)
                             : what == 'T' ? draw_below(r, 5)
                             : what == 'D' ? 1 + draw_below(r, c->nkv / 3)
                                           : draw_below(r, 1000)));
}

static void write_pattern(struct lab_case *c, const char *form, struct draw *r) {
    size_t used = 0;
    for (const char *at = form; *at; at++) {
        char *out = c->pattern + used;
        if (strchr("WCEPTKSD", *at))
            write_number(out, sizeof c->pattern - used, *at, c, r);
        else
            snprintf(out, sizeof c->pattern - used, "%c", *at);
        used += strlen(out);
    }
}

/* Halves what costs most until the oracle needs at most `budget` multiplications. */
static void shrink(struct lab_case *c, double budget) {
    while ((double)(c->b * c->h * c->n) * (double)c->nkv * (double)(c->d + c->dv) > budget)
        if (c->b > 1)
            c->b = 1;
        else if (c->n >= c->nkv && c->n > 8)
            c->n = (c->n + 1) / 2;
        else if (c->nkv > 8)
            c->nkv = (c->nkv + 1) / 2;
        else
            break;
}

void draw_modifiers(struct lab_case *c, struct draw *r) {
    if (!draw_chance(r, 0.33))
        return;
    if (draw_chance(r, 0.4))
        c->softcap = draw_chance(r, 0.5) ? 30 : 0.5;
    c->alibi = draw_chance(r, 0.4);
    c->sink = draw_chance(r, 0.4);
    if (draw_chance(r, 0.4))
        c->dropout = draw_chance(r, 0.5) ? 0.1 : 0.75;
}

void draw_shares(struct lab_case *c, struct draw *r) {
    /* Kernels of high filled blocks copy by TMA alone, and refuse rows that share their place. */
    const int high = lab_case_listed(c) && c->block_q >= 128;
    int64_t *const all[] = {&c->q0, &c->k0, &c->v0};
    if ((c->fill != LAB_FILL_NORMAL && c->fill != LAB_FILL_POSITIVE) || !draw_chance(r, 0.2))
        return;
    for (size_t x = 0; x < COUNT(all); x++)
        *all[x] = draw_below(r, LAB_SHARES_ALL + 1) &
                  (high ? LAB_SHARES_B | LAB_SHARES_H : LAB_SHARES_ALL);
    if (high)
        c->q0 = 0;
    if (c->v_in_k)
        c->v0 = 0;
}

/* One case in four is a backward. */
static void draw_backward(struct lab_case *c, struct draw *r) {
    if (!draw_chance(r, 0.25))
        return;
    c->operation = TESS_ATTENTION_BACKWARD;
    if (c->fill == LAB_FILL_EXTREME)
        c->fill = LAB_FILL_NORMAL; /* gradients are not promised for such scores */
    if (draw_chance(r, 0.6))
        c->gradients = 1 + draw_below(r, 7);
    if (c->alibi && draw_chance(r, 0.7))
        c->gradients |= TESS_GRADIENT_ALIBI;
    if (c->sink && draw_chance(r, 0.7))
        c->gradients |= TESS_GRADIENT_SINK;
    c->d_lse = draw_chance(r, 0.4);
    c->given = (enum lab_source_of_delta)(draw_chance(r, 0.5) ? LAB_GIVEN_O : 1 + draw_below(r, 2));
    c->o_rest = c->given == LAB_GIVEN_O && draw_chance(r, 0.3);
    c->out32 = draw_chance(r, 0.3);
}

/* Column sums of one case in eight that may have them: of groups that both backends cut the block rows into. */
static void draw_sums(struct lab_case *c, struct draw *r) {
    static const int64_t groups[] = {8, 16, 32, 64, 128, 192, 256};
    const int64_t drawn = draw_pick(r, groups, COUNT(groups)), block = c->block_q;
    const int fits = block % drawn == 0 || (drawn % block == 0 && !lab_case_listed(c));
    if (!draw_chance(r, 0.125) || lab_case_backward(c) || lab_case_caches(c) || !fits)
        return;
    c->pipeline = TESS_FUSED, c->sum_rows = drawn;
    c->sum_type = draw_chance(r, 0.5) ? TESS_F32 : TESS_BF16;
}

void draw_base(struct lab_case *c, struct draw *r) {
    if (lab_case_backward(c) || !draw_chance(r, 0.15))
        return;
    c->base = draw_chance(r, 0.5) ? TESS_BASE_MERGE : TESS_BASE_ADD;
    c->pipeline = TESS_FUSED;
}

/* How the tensors lie and what they hold; how the pattern is handed over; how the plan cuts. */
static void draw_tensors(struct lab_case *c, struct draw *r) {
    c->layout = (enum lab_layout)draw_below(r, LAB_PADDED + 1);
    if (draw_chance(r, 0.5))
        c->fill = (enum lab_fill)(1 + draw_below(r, LAB_FILL_TOP));
    if (draw_chance(r, 0.15))
        c->align = draw_chance(r, 0.5) ? (int64_t)tess_type_size(c->type) : 64;
    if (draw_chance(r, 0.1))
        c->scale = draw_chance(r, 0.5) ? 0.125 : -0.5;
    if (draw_chance(r, 0.3))
        c->source = draw_chance(r, 0.6) ? LAB_SOURCE_MASK : LAB_SOURCE_LISTS;
    if (c->block_q == 1 && c->block_kv == 1 && draw_chance(r, 0.5))
        c->source = LAB_SOURCE_TOPK;
    if (draw_chance(r, 0.2))
        c->tile_rows = draw_pick(r, tiles, COUNT(tiles));
    if (c->tile_rows && (c->d > c->dv ? c->d : c->dv) > (c->type == TESS_F32 ? 128 : 256))
        c->tile_rows = 8; /* CUDA has kernels of 8 rows for all wide heads, of others for some */
    if (draw_chance(r, c->nkv >= 500 ? 0.8 : 0.2))
        c->part_keys = 1 + draw_below(r, 256);
    c->threads = draw_pick(r, thread_counts, COUNT(thread_counts));
    if (draw_chance(r, 0.4) && lab_case_whole_blocks(c))
        c->source = (enum lab_source)(LAB_SOURCE_COUNTS + draw_below(r, 3));
    draw_modifiers(c, r);
    draw_backward(c, r);
    draw_shares(c, r);
    draw_sums(c, r);
    draw_base(c, r);
}

static struct lab_case sweep_pattern_case(uint64_t seed, int64_t number) {
    struct draw r = {seed, (uint64_t)number, 0};
    struct lab_case c = lab_case_default();
    const char *form = patterns[number % COUNT(patterns)];
    c.type = (tess_type)(number / COUNT(patterns) % 3);
    c.block_q = blocks[number % COUNT(blocks)][0];
    c.block_kv = blocks[number % COUNT(blocks)][1];
    int64_t ratio = draw_below(&r, COUNT(heads));
    c.h = heads[ratio][0], c.hkv = heads[ratio][1];
    c.b = draw_chance(&r, 0.7) ? 1 : 2 + draw_below(&r, 2);
    c.lists = (enum lab_lists)draw_below(&r, LAB_LISTS_1 + 1);
    c.n = length(&r);
    c.nkv = draw_chance(&r, 0.5) ? c.n : length(&r);
    if (draw_chance(&r, 0.1)) /* long rows, which are split */
        c.n = 1 + draw_below(&r, 20), c.nkv = 500 + draw_below(&r, 2000);
    c.d = dim(&r, number);
    c.dv = draw_chance(&r, 0.5) ? c.d : dim(&r, number + 1);
    if (c.type == TESS_BF16 &&
        draw_chance(&r, 0.5)) /* AMX multiplies whole tiles, and takes no others */
        c.d = (c.d + 31) / 32 * 32, c.dv = (c.dv + 15) / 16 * 16;
    c.seed = (uint64_t)draw_below(&r, 1000000);
    shrink(&c, 4e6);
    if (strchr(form, 'D') && c.nkv < 3)
        c.nkv = 3;
    write_pattern(&c, form, &r);
    draw_tensors(&c, &r);
    return c;
}

/* Every fifth case has lists on the device, but that every twentieth is an MLP. */
struct lab_case sweep_case(uint64_t seed, int64_t number) {
    if (number % 20 == 19)
        return sweep_mlp_case(seed, number / 20);
    return number % 5 == 4 ? sweep_lists_case(seed, number / 5)
                           : sweep_pattern_case(seed, number - number / 5);
}
