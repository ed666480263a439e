/* Cases with topk= as device patterns. */
#include "lab/lists/listed.h"

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
    return (struct lab_listing){.pattern = p,
                                .batch = c->b,
                                .entries = c->entries,
                                .most = c->topk,
                                .valid = c->valid,
                                .seed = c->seed};
}

int lab_listed_make(struct lab_listed *l, const struct lab_case *c, uint64_t set) {
    const struct lab_listing listing = lab_listing_of(c);
    return lab_listed_draw(l, &listing, set);
}
