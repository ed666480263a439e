/* Costs of passes, by the numbers of their kernels. */
#include "plan/cost.h"

#include <math.h>

double cost_dims(const struct trial *t) {
    const struct problem *p = t->problem;
    return t->kernel->family->dims ? t->kernel->family->dims(t) : (double)(p->d_qk + p->d_v);
}

/* One key of so many dims for `rows` rows. */
static double key_cost(const struct trial *t, double dims, double rows) {
    const struct kernel_cost *cost = &t->kernel->cost;
    const struct problem *p = t->problem;
    const int64_t n = t->over_keys ? p->n_q : p->n_kv;
    const double head = (double)(n * (p->d_qk + p->d_v)) * (double)tess_type_size(p->type);
    double fetch = cost->key_dim;
    if (p->caches.k_type != TESS_F32)
        fetch += cost->convert_dim;
    if (head > cost->near_size)
        fetch += cost->far_dim;
    return dims * (cost->key_row_dim * rows + fetch);
}

static double tile_rows(const struct trial *t) {
    return (double)t->rows * t->tile_heads;
}

/* Measured costs of the trial's height, packed heads counted. */
static const struct step_cost *step_cost(const struct trial *t) {
    const struct step_cost *s = t->kernel->steps;
    while (s[1].rows && s->rows < tile_rows(t))
        s++;
    return s;
}

/* Seconds of the whole device, of nanoseconds of a kernel of two products. */
static double device_seconds(const struct trial *t, double nanoseconds) {
    const int products = t->kernel->family->products ? t->kernel->family->products : 2;
    return 1e-9 * nanoseconds * products / 2 / fmax(1, t->target->multiprocessors);
}

/* Keys that stand together in a list, at most those of a step. */
static int64_t run_keys(const struct trial *t) {
    int64_t keys = KERNEL_TILE_KEYS;
    while (t->block_columns % keys)
        keys /= 2;
    return keys;
}

/* Nanoseconds of a step of keys that all rows list, or some: between those of its longest runs and of STEP_RUN. Copies
 * cost more by halvings of a run, masks by each run. Keys of shorter ones are gathered. */
static double step(const struct trial *t, const struct step_cost *s, int masked) {
    const double runs = (double)KERNEL_TILE_KEYS / (double)run_keys(t);
    const double most = (double)KERNEL_TILE_KEYS / STEP_RUN;
    if (runs > most)
        return masked ? s->gathered_masked : s->gathered;
    return masked ? s->masked + (s->masked_runs - s->masked) * (runs - 1) / (most - 1)
                  : s->plain + (s->runs - s->plain) * log2(runs) / log2(most);
}

/* Nanoseconds that a step takes more where scores are modified: of all rows that are computed. */
static double modifiers_more(const struct trial *t) {
    const struct family *family = t->kernel->family;
    const double rows = fmax(tile_rows(t), fmax(family->packed_rows, LISTS_GROUP));
    return family->modified ? KERNEL_TILE_KEYS * rows * family->modified(t->problem) : 0;
}

double cost_launch(const struct trial *t) {
    return t->kernel->steps ? 1e-9 * step_cost(t)->launch : t->kernel->cost.launch;
}

double cost_item(const struct trial *t) {
    return t->kernel->steps ? device_seconds(t, step_cost(t)->item) : t->kernel->cost.item;
}

double cost_key(const struct trial *t) {
    const struct step_cost *s = t->kernel->steps ? step_cost(t) : NULL;
    return s ? device_seconds(t, step(t, s, 0) + modifiers_more(t)) / KERNEL_TILE_KEYS
             : key_cost(t, cost_dims(t), tile_rows(t));
}

int64_t cost_part_keys(const struct trial *t) {
    const int64_t keys = t->kernel->family->part_keys;
    return keys && !t->problem->parts_asked ? keys : t->problem->part_keys;
}

double cost_part(const struct trial *t) {
    const double bytes = tile_rows(t) * (double)t->problem->d_v * (double)sizeof(float);
    const double rate = t->kernel->family->parts_rate;
    return rate > 0 ? 2 * bytes / rate : 0;
}

/* ---- over lists ---- */

/* A kernel computes all rows of a tile for each key; or whole groups, and for masked keys only those
 * that list it. Answers how many fewer row-key pairs that is. */
static double rows_skipped(const struct trial *t, double rows) {
    const struct lists_sums *sums = t->sums;
    if (!t->kernel->family->skips)
        return 0;
    return (sums->full_keys + sums->masked_keys) * rows -
           LISTS_GROUP * (sums->full_keys * ceil(rows / LISTS_GROUP) + sums->masked_groups);
}

/* Seconds that computing listed pairs alone saves a kernel that can, for `pairs` of these lists. */
static double listed_saves(const struct trial *t, double pairs, double dims, double rows) {
    const struct kernel_cost *cost = &t->kernel->cost;
    const struct family *family = t->kernel->family;
    const double all = (t->sums->full_keys + t->sums->masked_keys) * rows;
    const double set = t->block_rows % 4 == 0 ? 4 : t->block_rows % 2 == 0 ? 2 : 1;
    if (!family->listed || !family->listed(t->problem) || 2 * pairs > all || t->joint)
        return 0;
    return dims *
           (all * cost->key_row_dim - pairs * (cost->listed_row_dim + cost->listed_key_dim / set));
}

/* Applying all row masks; kernels that compute whole groups of rows apply masks of those. */
static double masked_cost(const struct trial *t, double rows) {
    const struct kernel_cost *cost = &t->kernel->cost;
    if (t->kernel->family->skips)
        rows = LISTS_GROUP * ceil(rows / LISTS_GROUP);
    return t->sums->masked_keys * rows * cost->masked_key;
}

/* Nanoseconds by which masked steps differ from measured ones, of which half of the groups were listed. */
static double groups_more(const struct trial *t, const struct step_cost *s) {
    const double groups = tile_rows(t) / LISTS_GROUP;
    if (!t->kernel->family->skips || groups < 2 || s == t->kernel->steps)
        return 0;
    const double group = (s->plain - s[-1].plain) / (s->rows - s[-1].rows) * LISTS_GROUP;
    return group * (t->sums->masked_groups - t->sums->masked_keys * groups / 2) / KERNEL_TILE_KEYS;
}

/* Seconds of tiles by measured costs. A list of runs ends in the middle of a step, on average. */
static double cost_steps(const struct trial *t) {
    const struct step_cost *s = step_cost(t);
    const double tiles = t->sums->tiles, keys = t->sums->full_keys + t->sums->masked_keys;
    const double all = t->sums->full_keys * step(t, s, 0) + t->sums->masked_keys * step(t, s, 1);
    const double steps = (all + keys * modifiers_more(t)) / KERNEL_TILE_KEYS + groups_more(t, s);
    const double ends = tiles * (double)(KERNEL_TILE_KEYS - run_keys(t)) / 2;
    return device_seconds(t, tiles * s->item + (keys > 0 ? steps * (1 + ends / keys) : 0));
}

double cost_lists(const struct trial *t) {
    const struct kernel_cost *cost = &t->kernel->cost;
    const struct lists_sums *sums = t->sums;
    if (t->kernel->steps)
        return t->heads / t->tile_heads * cost_steps(t);
    const double dims = cost_dims(t), rows = tile_rows(t);
    const double packed = t->heads / t->tile_heads;
    return packed * (sums->tiles * cost->item +
                     (sums->full_keys + sums->masked_keys) * key_cost(t, dims, rows) +
                     masked_cost(t, rows) - listed_saves(t, t->pairs / packed, dims, rows) -
                     dims * cost->key_row_dim * rows_skipped(t, rows));
}

/* ---- the stages ---- */

double cost_rows(const struct trial *t) {
    const struct problem *p = t->problem;
    const struct kernel_cost *cost = &t->kernel->cost;
    return (double)(p->batch * p->heads_q) * (double)p->n_q *
           (cost->item + (double)p->d_v * cost->key_dim);
}

double cost_tiles(const struct trial *t) {
    const struct bcsr *m = t->tiles;
    const struct kernel_cost *cost = &t->kernel->cost;
    const double dims[] = {[TESS_STAGE_SDDMM] = (double)t->problem->d_qk,
                           [TESS_STAGE_SOFTMAX] = 1,
                           [TESS_STAGE_SPMM] = (double)t->problem->d_v,
                           [TESS_STAGE_SOFTMAX_BACKWARD] = 1,
                           [TESS_STAGE_SPMM_TRANSPOSED] = (double)t->problem->d_v};
    const double rows = (double)(m->batch * m->heads) * (double)(t->over_keys ? m->cols : m->rows);
    const double keys = (double)m->n_tiles * (double)t->block_columns;
    /* A single row of a block may be all there is. */
    const double height = (double)(t->over_keys ? bcsr_col_width(m, 0) : bcsr_row_height(m, 0));
    const double masked = (double)(m->n_bands + m->n_bitmasks) * height * (double)t->block_columns;
    return t->heads * (rows * cost->item + keys * key_cost(t, dims[t->kernel->stage], height) +
                       keys * height * cost->score + masked * cost->masked_key);
}
