/* Cases with lists on the device as device patterns. */
#include "lab/case/choice.h"
#include "lab/lists/listed.h"

#include <stdlib.h>

/* Promises that hold; entries that are not to be break them. */
static int64_t promises_of(const struct lab_case *c) {
    const int64_t e = c->entries;
    if (!(e & LAB_ENTRIES_PROMISED) || e & LAB_ENTRIES_WRONG || c->form != TESS_INDICES)
        return 0;
    const int distinct = !(e & LAB_ENTRIES_DUPLICATES);
    const int ascending = distinct && !(e & LAB_ENTRIES_UNORDERED);
    const int last = !(e & (LAB_ENTRIES_FIRST | LAB_ENTRIES_MIXED));
    return (distinct ? TESS_DISTINCT : 0) | (ascending ? TESS_ASCENDING : 0) |
           (last ? TESS_PADDED_LAST : 0);
}

struct lab_listing lab_listing_of(const struct lab_case *c) {
    const struct {
        int64_t lo, hi;
    } cuts[] = {[LAB_CUT_NONE] = {0, 0},
                [LAB_CUT_CAUSAL] = {INT64_MIN, 0},
                [LAB_CUT_WINDOW] = {-c->nkv / 3 - 1, 4},
                [LAB_CUT_AHEAD] = {-9, INT64_MAX}};
    const tess_pattern_shape shape = lab_case_shape(c);
    tess_device_pattern p = tess_device_pattern_init();
    p.form = c->form, p.n_q = c->n, p.n_kv = c->nkv;
    p.block_q = c->block_q, p.block_kv = c->block_kv;
    p.batch = shape.batch, p.heads = shape.heads;
    p.cut_lo = cuts[c->cut].lo, p.cut_hi = cuts[c->cut].hi;
    p.promises = promises_of(c);
    struct lab_listing listing = {.pattern = p,
                                  .batch = c->b,
                                  .entries = c->entries,
                                  .most = c->topk,
                                  .valid = c->valid,
                                  .seed = c->seed};
    char why[LAB_WHY]; /* a case's words have been read before */
    if (c->select[0] && lab_choice_parse(&listing.selection, c->select, why) == 0) {
        tess_selection *s = &listing.selection;
        s->block_q = c->block_q, s->block_kv = c->block_kv;
        s->n_q = c->n, s->n_kv = c->nkv;
        listing.chosen = 1;
        listing.most =
            s->mode == TESS_SELECT_EXACT ? s->k : (c->nkv + c->block_kv - 1) / c->block_kv;
    }
    return listing;
}

/* Blocks of the fullest block row of any list. */
static int64_t row_most(const tess_lists *l) {
    const int64_t rows = (l->n_q + l->block_q - 1) / l->block_q;
    int64_t most = 1;
    for (int64_t row = 0; row < l->batch * l->heads * (rows + 1) - 1; row++)
        most = l->row_ptr[row + 1] - l->row_ptr[row] > most ? l->row_ptr[row + 1] - l->row_ptr[row]
                                                            : most;
    return most;
}

/* A mask of what a pattern lists, aligned as tensors are: masks of drawn lists begin anywhere. 0, or -1 without
 * memory. */
static int mask_write(struct lab_listed *l, const tess_pattern *spec) {
    const tess_device_pattern *p = &l->pattern;
    const size_t queries = (size_t)(p->batch * p->heads * p->n_q);
    tess_lists lists = tess_lists_init();
    int failed = tess_pattern_lists(spec, &lists, NULL) != TESS_OK ||
                 lab_buffer_make(&l->mask, queries * (size_t)p->n_kv, 64);
#pragma omp parallel for schedule(static)                                                          \
    reduction(|                                                                                    \
              : failed) if (queries * (size_t)p->n_kv > 100000)
    for (size_t x = 0; x < (failed ? 0 : queries); x++) {
        const int64_t i = (int64_t)x % p->n_q, list = (int64_t)x / p->n_q;
        uint8_t *row = l->mask.data + x * (size_t)p->n_kv;
        int64_t *keys = malloc((size_t)p->n_kv * sizeof *keys), count = 0;
        failed |= !keys || tess_pattern_row(spec, lists.batch == 1 ? 0 : list / p->heads,
                                            lists.heads == 1 ? 0 : list % p->heads, i, keys,
                                            p->n_kv, &count, NULL) != TESS_OK;
        memset(row, 0, (size_t)p->n_kv);
        for (int64_t k = 0; k < count && !failed; k++)
            row[keys[k]] = (uint8_t)(1 + k % 255); /* any byte but 0 lists */
        free(keys);
    }
    if (failed)
        return -1;
    l->pattern.mask = l->mask.data;
    l->pattern.capacity = row_most(&lists);
    return 0;
}

/* The case's pattern as a mask. */
static int mask_make(struct lab_listed *l, const struct lab_case *c) {
    const struct lab_listing listing = lab_listing_of(c);
    const tess_pattern_shape shape = lab_case_shape(c);
    tess_pattern *spec;
    *l = (struct lab_listed){.listing = listing, .pattern = listing.pattern};
    const int failed =
        tess_pattern_from_spec(&spec, c->pattern, &shape, NULL) != TESS_OK || mask_write(l, spec);
    tess_pattern_free(spec);
    return failed ? -1 : 0;
}

int lab_listed_make(struct lab_listed *l, const struct lab_case *c, uint64_t set) {
    if (!c->topk && !c->select[0])
        return mask_make(l, c);
    const struct lab_listing listing = lab_listing_of(c);
    return lab_listed_draw(l, &listing, set);
}
