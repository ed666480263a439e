/* Which kernels compute a plan, and in which query tiles: by what they refuse and what they cost. */
#include "plan/select.h"

#include "base/status.h"
#include "plan/reserve.h"

#include <math.h>
#include <string.h>

/* Tiles that are packed on trial for each tile height. */
#define SELECT_SAMPLES 64

/* ---- kernels ---- */

static const struct kernel *kernel_named(const struct backend *backend, const char *name) {
    for (int64_t k = 0; k < backend->n_kernels; k++)
        if (!strcmp(backend->kernels[k].name, name))
            return &backend->kernels[k];
    return NULL;
}

/* Bytes of shared memory that query tiles of a height take. */
static int64_t height_shared(const struct kernel *kernel, int32_t rows) {
    const struct tiling *tiling = kernel->tiling;
    int i = 0;
    while (tiling->rows[i] != rows)
        i++;
    return tiling->shared ? tiling->shared[i] : 0;
}

/* Whether the target's blocks have as much. */
static int height_fits(const tess_plan *plan, const struct kernel *kernel, int32_t rows) {
    return plan->target.shared_memory_per_block == 0 ||
           height_shared(kernel, rows) <= plan->target.shared_memory_per_block;
}

/* Whether query heads, `tile_heads` at a time, share their list, keys and values. */
static int heads_share(const tess_plan *plan, int32_t tile_heads) {
    const struct problem *p = &plan->problem;
    if (p->heads_q / p->heads_kv % tile_heads)
        return 0;
    for (int64_t bh = 0; bh < p->batch * p->heads_q; bh++)
        if (plan->list_of[bh] != plan->list_of[bh / tile_heads * tile_heads])
            return 0;
    return 1;
}

int32_t select_tile_heads(const tess_plan *plan, const struct pass *pass,
                          const struct kernel *kernel, int32_t rows) {
    const struct tiling *tiling = kernel->tiling;
    if (rows >= tiling->gqa_rows || pass->over_keys)
        return 1;
    int32_t tile_heads = tiling->gqa_rows / rows;
    if (tiling->gqa_exact)
        return plan->block_q % tiling->gqa_rows && heads_share(plan, tile_heads) ? tile_heads : 0;
    while (!heads_share(plan, tile_heads))
        tile_heads = tiling->gqa_any ? tile_heads - 1 : tile_heads / 2;
    return tile_heads;
}

/* NULL, or why a kernel does not walk blocks that a fill writes. */
static const char *blocks_refused(const struct fill_shape *s, const struct tiling *tiling) {
    const int64_t *least = tiling->filled_block;
    return min_i64(s->block_q, s->n_q) < least[0] || s->block_kv < least[1]
               ? "it walks filled lists of blocks of 8 queries and 16 keys or more"
               : NULL;
}

/* NULL, or why a kernel does not walk the plan's lists, those of a fill or of the host. */
static const char *lists_refused(const tess_plan *plan, const struct kernel *kernel) {
    const struct tiling *tiling = kernel->tiling;
    if (!tiling)
        return NULL;
    if (plan->reserved && !tiling->filled)
        return "it does not walk lists that tess_plan_fill writes";
    if (plan->reserved)
        return blocks_refused(&plan->reserved->shape, tiling);
    return tiling->filled_alone ? "it walks lists that tess_plan_fill writes alone" : NULL;
}

const char *select_refuses(const tess_plan *plan, const struct pass *pass,
                           const struct kernel *kernel) {
    int fits = !kernel->tiling;
    if (lists_refused(plan, kernel))
        return lists_refused(plan, kernel);
    for (const int32_t *rows = kernel->tiling ? kernel->tiling->rows : NULL; rows && *rows; rows++)
        fits |= height_fits(plan, kernel, *rows);
    return fits ? kernel->refuses(kernel, &pass->problem, &plan->target)
                : "its blocks take more shared memory than the target's have";
}

/* The type of K or V that is the easiest: q's, but f32 of filled lists alone goes with types of its own. */
static tess_type easiest_type(const struct kernel *kernel, tess_type stored, tess_type q) {
    if (!kernel->tiling || !kernel->tiling->filled_alone || q != TESS_F32)
        return q;
    return type_is_8bit(stored) ? TESS_F16 : stored;
}

/* How far a kernel is from a problem that it refuses. */
enum distance { OTHER_OPTIONS, OTHER_DIMS, OTHER_KERNEL };

/* Dims of heads that every kernel takes. */
#define EASIEST_DIMS 16

static enum distance kernel_distance(const tess_plan *plan, const struct pass *pass,
                                     const struct kernel *kernel) {
    struct problem easiest = pass->problem;
    if (lists_refused(plan, kernel))
        return OTHER_KERNEL;
    easiest.alignment = 4096, easiest.scale = 1, easiest.tile_rows = 0;
    easiest.block_rows = (struct block_rows){0};
    easiest.caches =
        (struct caches){.k_type = easiest_type(kernel, pass->problem.caches.k_type, easiest.type),
                        .v_type = easiest_type(kernel, pass->problem.caches.v_type, easiest.type),
                        .page_shift = CACHE_WHOLE};
    easiest.o_type = easiest.type, easiest.rope_dims = 0;
    if (!kernel->refuses(kernel, &easiest, &plan->target))
        return OTHER_OPTIONS;
    easiest.d_qk = easiest.d_v = EASIEST_DIMS;
    return kernel->refuses(kernel, &easiest, &plan->target) ? OTHER_KERNEL : OTHER_DIMS;
}

int select_foreign(const tess_plan *plan, const struct pass *pass, const struct kernel *kernel) {
    return kernel_distance(plan, pass, kernel) != OTHER_OPTIONS;
}

/* Why no kernel of a stage computes a problem: the refusal of the nearest; of equally near ones, of the last. */
struct refusal {
    enum distance distance;
    const char *why;
};

/* The first kernel of the stage that does not refuse problem and target. The target need not be this
 * machine. */
static const struct kernel *kernel_pick(const tess_plan *plan, const struct pass *pass,
                                        const struct kernel *forced, struct refusal *refusal) {
    *refusal = (struct refusal){OTHER_KERNEL, pass->problem.operation == TESS_ATTENTION
                                                  ? "this backend has no kernel for it"
                                                  : "this backend has no backward"};
    for (int64_t k = 0; k < plan->backend->n_kernels; k++) {
        const struct kernel *kernel = &plan->backend->kernels[k];
        if (kernel->stage != pass->stage ||
            (forced && forced->stage == pass->stage && kernel != forced) ||
            (!forced && !plan->reserved && lists_refused(plan, kernel)))
            continue;
        const char *why = select_refuses(plan, pass, kernel);
        if (!why)
            return kernel;
        const enum distance distance = kernel_distance(plan, pass, kernel);
        if (distance <= refusal->distance)
            *refusal = (struct refusal){distance, why};
    }
    return NULL;
}

/* What takes the head sizes that no kernel of a pass does, for the end of a message. */
static const char *way_out(const tess_plan *plan, enum distance distance) {
    const struct problem *p = &plan->problem;
    if (distance != OTHER_DIMS || !caches_plain(p) || p->rope_dims || p->o_type != p->type)
        return "";
    return plan->reserved              ? "; tess_plan_create takes any dims"
           : p->pipeline == TESS_FUSED ? "; TESS_STAGED takes any dims"
                                       : "";
}

static int kernel_has_height(const struct kernel *kernel, int32_t rows) {
    for (const int32_t *r = kernel->tiling->rows; *r; r++)
        if (*r == rows)
            return 1;
    return 0;
}

/* What the tiles of a pass are made of. */
static const char *tile_name(const struct pass *pass) {
    return pass->over_keys ? "key" : "query";
}

/* Whether the pass's kernel takes the height that the problem asks for. */
static tess_status height_check(const tess_plan *plan, const struct pass *pass, tess_error *error) {
    const struct kernel *kernel = pass->kernel;
    const int32_t rows = plan->problem.tile_rows;
    if (!rows)
        return TESS_OK;
    if (!kernel_has_height(kernel, rows))
        return error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "problem",
                         "kernel %s has no %s tiles of %d rows", kernel->name, tile_name(pass),
                         (int)rows);
    if (!height_fits(plan, kernel, rows))
        return error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "problem",
                         "%s tiles of %d rows of kernel %s take %lld bytes of shared memory, "
                         "the target's blocks have %lld",
                         tile_name(pass), (int)rows, kernel->name,
                         (long long)height_shared(kernel, rows),
                         (long long)plan->target.shared_memory_per_block);
    return TESS_OK;
}

tess_status select_kernels(tess_plan *plan, const char *name, tess_error *error) {
    const struct kernel *forced = name ? kernel_named(plan->backend, name) : NULL;
    if (name && !forced)
        return error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "problem",
                         "the %s backend has no kernel named %.64s: see tess_kernel_describe",
                         plan->backend->name, name);
    int used = !forced;
    for (struct pass *pass = plan->passes; pass < plan->passes + plan->n_passes; pass++) {
        struct refusal refusal;
        used |= forced && forced->stage == pass->stage;
        pass->kernel = kernel_pick(plan, pass, forced, &refusal);
        if (!pass->kernel)
            return error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "problem",
                             "no %s kernel of the %s backend computes this: %s%s",
                             tess_stage_name(pass->stage), plan->backend->name, refusal.why,
                             forced ? "" : way_out(plan, refusal.distance));
    }
    if (!used)
        return error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "problem",
                         "kernel %.64s computes %s, which the chosen pipeline does not contain",
                         name, tess_stage_name(forced->stage));
    for (const struct pass *pass = plan->passes; pass < plan->passes + plan->n_passes; pass++)
        if (pass->kernel->tiling && height_check(plan, pass, error))
            return TESS_UNSUPPORTED;
    return TESS_OK;
}

tess_status select_filled_rows(const tess_plan *plan, const struct pass *pass, int64_t height,
                               int32_t *rows, tess_error *error) {
    const struct kernel *kernel = pass->kernel;
    const int32_t asked = plan->problem.tile_rows;
    *rows = 0;
    for (const int32_t *r = kernel->tiling->rows; *r && *rows < height && (!asked || *rows < asked);
         r++)
        if (height_fits(plan, kernel, *r) && select_tile_heads(plan, pass, kernel, *r))
            *rows = *r;
    return *rows ? TESS_OK
                 : error_set(error, TESS_UNSUPPORTED, "tess_plan_reserve", "problem",
                             "kernel %s has query tiles of these rows for heads that share a list "
                             "alone",
                             kernel->name);
}

/* ---- cost ---- */

/* Queries of the blocks of a pass; over keys, keys. */
static int64_t block_rows(const tess_plan *plan, const struct pass *pass) {
    return pass->over_keys ? plan->block_kv : plan->block_q;
}
static int64_t block_columns(const tess_plan *plan, const struct pass *pass) {
    return pass->over_keys ? plan->block_q : plan->block_kv;
}

double select_key_cost(const tess_plan *plan, const struct pass *pass, const struct kernel *kernel,
                       double dims, double rows) {
    const struct problem *p = &plan->problem;
    const int64_t n = pass->over_keys ? p->n_q : p->n_kv;
    const double head = (double)(n * (p->d_qk + p->d_v)) * (double)tess_type_size(p->type);
    double fetch = kernel->cost.key_dim;
    if (p->caches.k_type != TESS_F32)
        fetch += kernel->cost.convert_dim;
    if (head > kernel->cost.near_size)
        fetch += kernel->cost.far_dim;
    if (block_columns(plan, pass) % (KERNEL_TILE_KEYS / 8))
        fetch += kernel->cost.copied_dim;
    return dims * (kernel->cost.key_row_dim * rows + fetch);
}

/* A kernel computes all rows of a tile for each key; or whole groups, and for masked keys only those
 * that list it. Answers how many fewer row-key pairs that is. */
static double rows_skipped(const struct kernel *kernel, const struct lists_sums *sums,
                           double rows) {
    if (!kernel->cost.skips)
        return 0;
    return (sums->full_keys + sums->masked_keys) * rows -
           LISTS_GROUP * (sums->full_keys * ceil(rows / LISTS_GROUP) + sums->masked_groups);
}

double select_dims(const struct pass *pass, const struct kernel *kernel) {
    const struct problem *p = &pass->problem;
    const int32_t padded = kernel->tiling->padded_head;
    const int64_t d_qk = padded ? padded : p->d_qk, d_v = padded ? padded : p->d_v;
    const int64_t products = d_qk + d_v; /* scores and outputs, or dP */
    const int64_t cuts = kernel->tiling->cuts > 1 ? kernel->tiling->cuts : 1;
    const int64_t k = p->gradients & TESS_GRADIENT_K ? cuts * products + d_qk : 0;
    const int64_t v = p->gradients & TESS_GRADIENT_V ? cuts * d_qk + d_v : 0;
    const int64_t of_scores = k ? 0 : v ? d_v : products; /* that dQ alone needs */
    const int64_t q = pass->joint ? of_scores + d_qk : 0;
    switch (kernel->stage) {
    case TESS_STAGE_GRADIENT_ROWS:
        return (double)(cuts * products + d_qk);
    case TESS_STAGE_GRADIENT_KEYS: /* of both, scores are computed once unless they are apart */
        return (double)(k + v + q - (k && v && !kernel->tiling->apart ? d_qk : 0));
    default:
        return (double)products;
    }
}

/* What a kernel that can compute listed pairs alone saves by it, for `pairs` of these lists. */
static double listed_saves(const tess_plan *plan, const struct pass *pass,
                           const struct kernel *kernel, const struct lists_sums *sums, double pairs,
                           double dims, double rows) {
    const int64_t thin = block_rows(plan, pass);
    const struct kernel_cost *cost = &kernel->cost;
    const double all = (sums->full_keys + sums->masked_keys) * rows;
    const double set = thin % 4 == 0 ? 4 : thin % 2 == 0 ? 2 : 1;
    if (!kernel->tiling->listed || !kernel->tiling->listed(&plan->problem) || 2 * pairs > all ||
        pass->joint)
        return 0;
    return dims *
           (all * cost->key_row_dim - pairs * (cost->listed_row_dim + cost->listed_key_dim / set));
}

/* Of all row masks; of kernels that compute whole groups of rows, masks of those. */
static double masked_cost(const tess_plan *plan, const struct pass *pass,
                          const struct kernel_cost *cost, const struct lists_sums *sums,
                          double rows) {
    if (cost->skips)
        rows = LISTS_GROUP * ceil(rows / LISTS_GROUP);
    const int wide = cost->masked_wide > 0 && block_columns(plan, pass) % KERNEL_TILE_KEYS == 0;
    return sums->masked_keys * rows * (wide ? cost->masked_wide : cost->masked_key);
}

double select_fused_cost(const tess_plan *plan, const struct pass *pass,
                         const struct kernel *kernel, const struct lists_sums *sums, double heads,
                         int32_t height, int32_t tile_heads) {
    const struct kernel_cost *cost = &kernel->cost;
    const double dims = select_dims(pass, kernel), rows = (double)height * tile_heads;
    const double packed = heads / tile_heads;
    return packed *
           (sums->tiles * cost->item +
            (sums->full_keys + sums->masked_keys) *
                select_key_cost(plan, pass, kernel, dims, rows) +
            masked_cost(plan, pass, cost, sums, rows) -
            listed_saves(plan, pass, kernel, sums, (double)plan->pairs / packed, dims, rows) -
            dims * cost->key_row_dim * rows_skipped(kernel, sums, rows));
}

/* A pass that reads the rows of tensors, and no tiles. */
static double rows_cost(const struct pass *pass) {
    const struct problem *p = &pass->problem;
    const struct kernel_cost *cost = &pass->kernel->cost;
    return cost->launch + (double)(p->batch * p->heads_q) * (double)p->n_q *
                              (cost->item + (double)p->d_v * cost->key_dim);
}

double select_stage_cost(const tess_plan *plan, const struct pass *pass, const struct bcsr *m,
                         double heads) {
    const struct kernel_cost *cost = &pass->kernel->cost;
    const double dims[] = {[TESS_STAGE_SDDMM] = (double)pass->problem.d_qk,
                           [TESS_STAGE_SOFTMAX] = 1,
                           [TESS_STAGE_SPMM] = (double)pass->problem.d_v,
                           [TESS_STAGE_SOFTMAX_BACKWARD] = 1,
                           [TESS_STAGE_SPMM_TRANSPOSED] = (double)pass->problem.d_v};
    if (pass->stage == TESS_STAGE_DELTA)
        return rows_cost(pass);
    const double rows =
        (double)(m->batch * m->heads) * (double)(pass->over_keys ? m->cols : m->rows);
    const double keys = (double)m->n_tiles * (double)block_columns(plan, pass);
    /* A single row of a block may be all there is. */
    const double height = (double)(pass->over_keys ? bcsr_col_width(m, 0) : bcsr_row_height(m, 0));
    const double masked =
        (double)(m->n_bands + m->n_bitmasks) * height * (double)block_columns(plan, pass);
    return cost->launch +
           heads * (rows * cost->item +
                    keys * select_key_cost(plan, pass, pass->kernel, dims[pass->stage], height) +
                    keys * height * cost->score + masked * cost->masked_key);
}

/* ---- heights ---- */

/* NULL when memory ran out. */
static const struct lists_sums *estimate(struct estimates *e, int32_t rows, tess_error *error) {
    int i = 0;
    while (i < PLAN_HEIGHTS - 1 && e->rows[i] && e->rows[i] != rows)
        i++;
    if (e->rows[i] != rows && lists_estimate(&e->sums[i], e->m, rows, SELECT_SAMPLES, error))
        return NULL;
    e->rows[i] = rows;
    return &e->sums[i];
}

int64_t select_part_keys(const tess_plan *plan, const struct kernel *kernel) {
    return kernel->tiling->part_keys && !plan->problem.parts_asked ? kernel->tiling->part_keys
                                                                   : plan->problem.part_keys;
}

/* Bytes of partial results that a device writes, or reads, in a second. */
#define PARTS_RATE 2e12

double select_part_cost(const struct pass *pass, const struct kernel *kernel, double rows) {
    const double bytes = rows * (double)pass->problem.d_v * (double)sizeof(float);
    return kernel->cost.combine > 0 ? 2 * bytes / PARTS_RATE : 0;
}

/* Waves of `tiles` tiles over `workers` CTAs, in the time of a tile where all CTAs have one; `even` is a tile's
 * mean of keys over its most. What a short last wave takes: docs/notes/planning.md, "Short waves". */
static double waves(double tiles, double workers, double multiprocessors, double even) {
    const double rest = fmod(tiles, workers), alone = sqrt(fmin(1, multiprocessors / workers));
    const double lost = rest > 0 ? (1 - rest / workers) * alone : 0;
    return tiles / workers + (tiles > workers ? even : 1) * lost;
}

/* Parts of an average tile, at most. */
static double parts_most(const tess_plan *plan, const struct kernel *kernel,
                         const struct lists_sums *sums) {
    const double least = sums->tiles * (double)select_part_keys(plan, kernel);
    return floor((sums->full_keys + sums->masked_keys) / least);
}

/* Items of `tiles` tiles, split for their length alone where combining has no known cost (schedule.h). */
static double items_of(const tess_plan *plan, const struct kernel *kernel,
                       const struct lists_sums *sums, double tiles) {
    const double wanted = floor(2 * plan->target.multiprocessors / tiles) + 1;
    const int whole = kernel->cost.combine > 0 || !kernel->tiling->waves;
    return whole ? tiles : tiles * fmax(1, fmin(parts_most(plan, kernel, sums), wanted));
}

/* Seconds until the last CTA ends, of tiles that take `seconds` on a device that is never idle. Each CTA
 * takes whole items; or long tiles are split, a part for each CTA, and combined. */
static double drained(const tess_plan *plan, const struct pass *pass, const struct kernel *kernel,
                      const struct lists_sums *sums, double tiles, int32_t height,
                      int32_t tile_heads, double seconds) {
    const struct tiling *tiling = kernel->tiling;
    const double workers = tiling->workers ? tiling->workers(kernel, &plan->target, height) : 0;
    if (workers <= 1 || tiles <= 0 || (!tiling->waves && tiles < workers))
        return seconds;
    const double items = items_of(plan, kernel, sums, tiles);
    const double even = (sums->full_keys + sums->masked_keys) / (sums->tiles * sums->most_keys);
    const double n = tiling->waves ? waves(items, workers, plan->target.multiprocessors, even)
                                   : ceil(items / workers);
    const double whole = seconds / items * workers * n;
    const double part = select_part_cost(pass, kernel, (double)height * (double)tile_heads);
    if (kernel->cost.combine == 0 || parts_most(plan, kernel, sums) < 2)
        return whole;
    return fmin(whole, seconds + kernel->cost.combine + workers * part);
}

/* Whether a CTA's tiles of a height list the keys of their block row, and leave rows of its MMAs empty. */
static int height_idle(const tess_plan *plan, const struct pass *pass, const struct kernel *kernel,
                       int32_t height, int32_t tile_heads) {
    return kernel->tiling->workers && !plan->problem.tile_rows && height < block_rows(plan, pass) &&
           height * tile_heads < kernel->tiling->gqa_rows;
}

/* Compares the heights that the kernel offers and that fit the target, or only the height that the problem
 * asks for. A height of lower cost than *least makes the kernel the pass's, and sets *least and *rows. */
static tess_status kernel_weigh(const tess_plan *plan, struct pass *pass,
                                const struct kernel *kernel, struct estimates *e, double heads,
                                double *least, int32_t *rows, tess_error *error) {
    struct plan_height weighed[PLAN_HEIGHTS] = {{0}};
    int n = 0, best = 0;
    for (const int32_t *r = kernel->tiling->rows; *r && n < PLAN_HEIGHTS - 1; r++) {
        const int32_t tile_heads = select_tile_heads(plan, pass, kernel, *r);
        if (!tile_heads || !height_fits(plan, kernel, *r) ||
            height_idle(plan, pass, kernel, *r, tile_heads) ||
            (pass->joint && *r < kernel->tiling->joint) ||
            (plan->problem.tile_rows && plan->problem.tile_rows != *r))
            continue;
        const struct lists_sums *sums = estimate(e, *r, error);
        if (!sums)
            return TESS_OUT_OF_MEMORY;
        weighed[n] = (struct plan_height){
            *r, drained(plan, pass, kernel, sums, sums->tiles * heads / tile_heads, *r, tile_heads,
                        select_fused_cost(plan, pass, kernel, sums, heads, *r, tile_heads))};
        if (weighed[n].seconds <= weighed[best].seconds)
            best = n;
        n++;
    }
    const double seconds = kernel->cost.launch + weighed[best].seconds;
    if (n && seconds < *least) {
        *least = seconds, *rows = weighed[best].rows;
        pass->kernel = kernel;
        memcpy(pass->work->heights, weighed, sizeof weighed);
    }
    return TESS_OK;
}

tess_status select_height(const tess_plan *plan, struct pass *pass, struct estimates *e,
                          double heads, int forced, int32_t *rows, double *seconds,
                          tess_error *error) {
    const struct backend *backend = plan->backend;
    const struct kernel *first = pass->kernel;
    *seconds = INFINITY;
    for (const struct kernel *k = first; k < backend->kernels + backend->n_kernels; k++) {
        if (k->stage != pass->stage || select_refuses(plan, pass, k))
            continue;
        tess_status status = kernel_weigh(plan, pass, k, e, heads, seconds, rows, error);
        if (status)
            return status;
        if (forced || !k->tiling->weighed)
            break;
    }
    if (*rows)
        return TESS_OK;
    return error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "problem",
                     "kernel %s has query tiles of %lld rows for heads that share a list alone",
                     first->name, (long long)plan->problem.tile_rows);
}

/* ---- reserved plans ---- */

/* Predicted seconds where the tiles of a pattern of n_q queries list `keys` keys each. */
static double filled_cost(const tess_plan *plan, struct pass *pass, const struct kernel *kernel,
                          int64_t height, double keys) {
    const struct problem *p = &plan->problem;
    int32_t rows;
    pass->kernel = kernel;
    if (select_filled_rows(plan, pass, height, &rows, NULL))
        return INFINITY;
    const int32_t tile_heads = select_tile_heads(plan, pass, kernel, rows);
    const double tiles = (double)p->n_q * (double)((height + rows - 1) / rows) / (double)height;
    return (double)(p->batch * p->heads_q) / tile_heads * tiles *
           (kernel->cost.item + keys * select_key_cost(plan, pass, kernel,
                                                       select_dims(pass, kernel),
                                                       (double)rows * tile_heads));
}

void select_filled_kernel(const tess_plan *plan, struct pass *pass, int64_t height, double keys) {
    const struct backend *backend = plan->backend;
    const struct kernel *best = pass->kernel;
    double least = INFINITY;
    for (const struct kernel *k = best; k < backend->kernels + backend->n_kernels; k++) {
        if (k->stage != pass->stage || select_refuses(plan, pass, k))
            continue;
        const double seconds = filled_cost(plan, pass, k, height, keys);
        if (seconds < least)
            least = seconds, best = k;
        if (!k->tiling->weighed)
            break;
    }
    pass->kernel = best;
}
