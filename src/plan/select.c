/* Kernels of a plan and its query tiles, by refusals and costs. */
#include "plan/operation.h"
#include "plan/select.h"

#include "base/status.h"

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
    return kernel->shared ? kernel->shared[kernel_height(kernel, rows)] : 0;
}

/* Whether the target's blocks have as much. */
static int height_fits(const struct premises *p, const struct kernel *kernel, int32_t rows) {
    return p->target->shared_memory_per_block == 0 ||
           height_shared(kernel, rows) <= p->target->shared_memory_per_block;
}

/* Whether query heads, `tile_heads` at a time, share their list, keys and values. */
static int heads_share(const struct premises *p, int32_t tile_heads) {
    const struct problem *problem = p->problem;
    if (problem->heads_q / problem->heads_kv % tile_heads)
        return 0;
    for (int64_t bh = 0; bh < problem->batch * problem->heads_q; bh++)
        if (p->list_of[bh] != p->list_of[bh / tile_heads * tile_heads])
            return 0;
    return 1;
}

/* Query heads of which a tile has `rows` rows; 0 where some would not share their list, or need not be
 * packed. Key tiles are of one K/V head: 1. */
static int32_t tile_heads_of(const struct premises *p, const struct pass *pass,
                             const struct kernel *kernel, int32_t rows) {
    const struct family *family = kernel->family;
    if (rows >= family->packed_rows || pass->over_keys)
        return 1;
    int32_t tile_heads = family->packed_rows / rows;
    if (family->packing == PACK_EXACT)
        return p->block_q % family->packed_rows && heads_share(p, tile_heads) ? tile_heads : 0;
    while (!heads_share(p, tile_heads))
        tile_heads = family->packing == PACK_ANY ? tile_heads - 1 : tile_heads / 2;
    return tile_heads;
}

/* NULL, or why a kernel does not walk the lists, those of a fill or of the host. */
static const char *lists_refused(const struct premises *p, const struct kernel *kernel) {
    const struct family *family = kernel->family;
    if (!kernel->rows)
        return NULL;
    if (!p->filled)
        return family->lists & LISTS_PACKED ? NULL
                                            : "it walks lists that tess_plan_fill writes alone";
    if (!(family->lists & LISTS_FILLED))
        return "it does not walk lists that tess_plan_fill writes";
    return family->refuses_filled ? family->refuses_filled(p->filled) : NULL;
}

const char *select_refuses(const struct premises *p, const struct pass *pass,
                           const struct kernel *kernel) {
    int fits = !kernel->rows;
    const char *why = lists_refused(p, kernel);
    if (why)
        return why;
    for (const int32_t *rows = kernel->rows; rows && *rows && !fits; rows++)
        fits = height_fits(p, kernel, *rows);
    return fits ? kernel->family->refuses(kernel, &pass->problem, p->target)
                : "its blocks take more shared memory than the target's have";
}

/* The type of K or V that is the easiest: q's, but f32 of filled lists alone goes with types of its own. */
static tess_type easiest_type(const struct kernel *kernel, tess_type stored, tess_type q) {
    if (!kernel->rows || kernel->family->lists & LISTS_PACKED || q != TESS_F32)
        return q;
    return type_is_8bit(stored) ? TESS_F16 : stored;
}

/* Distances of a kernel from a problem that it refuses. */
enum distance { OTHER_OPTIONS, OTHER_DIMS, OTHER_KERNEL };

/* Dims of heads that every kernel takes. */
#define EASIEST_DIMS 16

static enum distance kernel_distance(const struct premises *p, const struct pass *pass,
                                     const struct kernel *kernel) {
    struct problem easiest = pass->problem;
    if (lists_refused(p, kernel))
        return OTHER_KERNEL;
    easiest.alignment = 4096, easiest.scale = 1, easiest.tile_rows = 0;
    easiest.block_rows = (struct block_rows){0};
    easiest.caches =
        (struct caches){.k_type = easiest_type(kernel, pass->problem.caches.k_type, easiest.type),
                        .v_type = easiest_type(kernel, pass->problem.caches.v_type, easiest.type),
                        .page_shift = CACHE_WHOLE};
    easiest.o_type = easiest.type, easiest.rope_dims = 0;
    if (!kernel->family->refuses(kernel, &easiest, p->target))
        return OTHER_OPTIONS;
    easiest.d_qk = easiest.d_v = EASIEST_DIMS;
    return kernel->family->refuses(kernel, &easiest, p->target) ? OTHER_KERNEL : OTHER_DIMS;
}

int select_foreign(const struct premises *p, const struct pass *pass, const struct kernel *kernel) {
    return kernel_distance(p, pass, kernel) != OTHER_OPTIONS;
}

/* Why no kernel of a stage computes a problem: the refusal of the nearest; of equally near ones, of the last. */
struct refusal {
    enum distance distance;
    const char *why;
};

/* Whether a kernel has tiles of as many rows as the problem asks for. */
static int height_offered(const struct kernel *kernel, int32_t rows) {
    return !rows || !kernel->rows || kernel_height(kernel, rows) >= 0;
}

/* The first kernel of the stage that does not refuse problem and target, one with the height that the problem asks
 * for before others. The target need not be this machine. */
static const struct kernel *kernel_pick(const struct premises *p, const struct pass *pass,
                                        const struct kernel *forced, struct refusal *refusal) {
    const struct kernel *first = NULL;
    *refusal = (struct refusal){OTHER_KERNEL, operation_get(p->problem->operation)->absent};
    for (int64_t k = 0; k < p->backend->n_kernels; k++) {
        const struct kernel *kernel = &p->backend->kernels[k];
        if (kernel->stage != pass->stage ||
            (forced && forced->stage == pass->stage && kernel != forced) ||
            (forced && forced->stage == TESS_STAGE_COLUMN_SUMS && kernel->family->sums) ||
            (!forced && !p->filled && lists_refused(p, kernel)))
            continue;
        const char *why = select_refuses(p, pass, kernel);
        if (!why && height_offered(kernel, pass->problem.tile_rows))
            return kernel;
        if (!why) {
            first = first ? first : kernel;
            continue;
        }
        const enum distance distance = kernel_distance(p, pass, kernel);
        if (distance <= refusal->distance)
            *refusal = (struct refusal){distance, why};
    }
    return first;
}

/* The end of a message: the call or pipeline for head sizes that no kernel of a pass takes. */
static const char *way_out(const struct premises *p, enum distance distance) {
    const struct problem *problem = p->problem;
    if (distance != OTHER_DIMS || !caches_plain(problem) || problem->rope_dims ||
        problem->o_type != problem->type)
        return "";
    return p->filled                         ? "; tess_plan_create takes any dims"
           : problem->pipeline == TESS_FUSED ? "; TESS_STAGED takes any dims"
                                             : "";
}

/* Keys or queries, which the tiles of a pass are made of. */
static const char *tile_name(const struct pass *pass) {
    return pass->over_keys ? "key" : "query";
}

/* Whether the pass's kernel takes the height that the problem asks for. */
static tess_status height_check(const struct premises *p, const struct pass *pass,
                                tess_error *error) {
    const struct kernel *kernel = pass->kernel;
    const int32_t rows = pass->problem.tile_rows;
    if (!height_offered(kernel, rows))
        return error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "problem",
                         "kernel %s has no %s tiles of %d rows", kernel->name, tile_name(pass),
                         (int)rows);
    if (rows && kernel->rows && !height_fits(p, kernel, rows))
        return error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "problem",
                         "%s tiles of %d rows of kernel %s take %lld bytes of shared memory, "
                         "the target's blocks have %lld",
                         tile_name(pass), (int)rows, kernel->name,
                         (long long)height_shared(kernel, rows),
                         (long long)p->target->shared_memory_per_block);
    return TESS_OK;
}

/* Rows of tiles of which groups of column sums are made: the highest that divide one. */
static int32_t sums_height(const struct kernel *kernel, int32_t group) {
    int32_t height = 0;
    for (const int32_t *rows = kernel->rows; *rows; rows++)
        if (group % *rows == 0)
            height = *rows;
    return height;
}

/* Rows of tiles that are parts of one block row each: the highest, unless the problem asks for others. */
static tess_status mlp_height(struct pass *pass, const struct premises *p, tess_error *error) {
    const struct kernel *kernel = pass->kernel;
    const int64_t n_q = p->problem->n_q;
    int32_t height = 0;
    for (const int32_t *rows = kernel->rows; *rows; rows++)
        if (*rows <= p->block_q && (!height || height < n_q) && height_fits(p, kernel, *rows))
            height = *rows;
    if (!height || pass->problem.tile_rows > p->block_q)
        return error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "pattern",
                         "kernel %s has tiles of %d rows or more, and groups of rows have %lld: "
                         "give the pattern a larger block_q%s",
                         kernel->name, (int)(height ? pass->problem.tile_rows : kernel->rows[0]),
                         (long long)p->block_q, height ? ", or leave tile_rows 0" : "");
    pass->problem.tile_rows = pass->problem.tile_rows ? pass->problem.tile_rows : height;
    return TESS_OK;
}

tess_status select_kernels(struct candidate *c, const struct premises *p, int joint,
                           tess_error *error) {
    const char *name = p->kernel;
    const struct kernel *forced = name ? kernel_named(p->backend, name) : NULL;
    if (name && !forced)
        return error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "problem",
                         "the %s backend has no kernel named %.64s: see tess_kernel_describe",
                         p->backend->name, name);
    int used = !forced;
    passes_begin(c, p->problem, joint);
    for (struct pass *pass = c->passes; pass < c->passes + c->n_passes; pass++) {
        struct refusal refusal;
        used |= forced && forced->stage == pass->stage;
        pass->kernel = kernel_pick(p, pass, forced, &refusal);
        if (!pass->kernel)
            return error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "problem",
                             "no %s kernel of the %s backend computes this: %s%s",
                             tess_stage_name(pass->stage), p->backend->name, refusal.why,
                             forced ? "" : way_out(p, refusal.distance));
        if (pass->kernel->family->sums) /* the pass behind it is theirs */
            c->n_passes--;
        if (pass->stage == TESS_STAGE_COLUMN_SUMS)
            pass->problem.tile_rows = sums_height(pass->kernel, p->problem->sum_rows);
        if (pass->stage == TESS_STAGE_MLP_UP && mlp_height(pass, p, error))
            return TESS_UNSUPPORTED;
    }
    if (!used)
        return error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "problem",
                         "kernel %.64s computes %s, which the chosen pipeline does not contain",
                         name, tess_stage_name(forced->stage));
    for (const struct pass *pass = c->passes; pass < c->passes + c->n_passes; pass++)
        if (height_check(p, pass, error))
            return TESS_UNSUPPORTED;
    return TESS_OK;
}

struct trial select_trial(const struct premises *p, const struct pass *pass,
                          const struct kernel *kernel) {
    const struct problem *problem = p->problem;
    return (struct trial){.kernel = kernel,
                          .problem = &pass->problem,
                          .target = p->target,
                          .over_keys = pass->over_keys,
                          .joint = pass->joint,
                          .block_rows = pass->over_keys ? p->block_kv : p->block_q,
                          .block_columns = pass->over_keys ? p->block_q : p->block_kv,
                          .heads = (double)(problem->batch * problem->heads_q) / (double)p->n_lists,
                          .pairs = (double)p->pairs,
                          .rows = pass->tiles.rows,
                          .tile_heads = pass->tiles.tile_heads,
                          .tiles = p->m};
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

/* Whether tiles are pieces of block rows, of several heads, that a tile of half the heads would have in one: its
 * list is not longer, and not cut between pieces. */
static int is_pieces(const struct premises *p, const struct trial *t) {
    return t->tile_heads > 1 && 2 * t->rows <= p->problem->n_q &&
           t->block_rows % (2 * t->rows) == 0;
}

/* Whether the trial's height is left out: tiles do not fit, or kernel or problem asks for others, packed
 * heads counted. */
static int height_out(const struct premises *p, const struct pass *pass, const struct trial *t) {
    const struct family *family = t->kernel->family;
    const int32_t asked = pass->problem.tile_rows;
    const int is_short = t->rows < t->block_rows && t->rows * t->tile_heads < family->packed_rows;
    return !t->tile_heads || !height_fits(p, t->kernel, t->rows) ||
           (family->packing == PACK_FULL && !asked && is_short) ||
           (family->packing != PACK_POWERS && !asked && is_pieces(p, t)) ||
           (pass->joint && t->rows < family->joint_rows) || (asked && asked != t->rows);
}

/* How many times as long `tiles` tiles take for workers that have no part of them. Measured where a CTA is a worker
 * (docs/notes/decode.md, "One query of 128 heads"). */
static double idle_share(const struct premises *p, const struct trial *t, double tiles) {
    const struct family *family = t->kernel->family;
    if (!family->whole_shares || !family->whole_shares(t->kernel))
        return 1;
    const double parts = fmax(1, floor(p->keys / (double)cost_part_keys(t)));
    return fmax(1, (double)p->backend->workers(p->target) / (tiles * parts));
}

/* Tiles for lists that are not known: the lowest that hold a block row, or those that the problem asks for; or
 * the highest. Answers seconds where each lists `keys` keys; infinite: there are none. */
static double filled_weigh(struct tile_shape *tiles, const struct premises *p,
                           const struct pass *pass, const struct kernel *kernel) {
    const struct problem *problem = p->problem;
    const int64_t height = min_i64(p->filled->block_q, p->filled->n_q);
    const int32_t asked = pass->problem.tile_rows;
    struct trial t = select_trial(p, pass, kernel);
    t.rows = 0;
    for (const int32_t *r = kernel->rows; *r && t.rows < height && (!asked || t.rows < asked);
         r++) {
        const int32_t heads = height_fits(p, kernel, *r) ? tile_heads_of(p, pass, kernel, *r) : 0;
        if (heads)
            t.rows = *r, t.tile_heads = heads;
    }
    *tiles = (struct tile_shape){.rows = t.rows, .tile_heads = t.tile_heads};
    if (!t.rows)
        return INFINITY;
    const double n =
        (double)problem->n_q * (double)((height + t.rows - 1) / t.rows) / (double)height;
    const double packs = (double)(problem->batch * problem->heads_q) / t.tile_heads;
    return packs * n * idle_share(p, &t, packs * n) * (cost_item(&t) + p->keys * cost_key(&t));
}

/* Tiles of lowest predicted cost, of the heights that the kernel offers, and their seconds; infinite where
 * there are none. */
static tess_status kernel_weigh(struct tile_shape *tiles, double *seconds, const struct premises *p,
                                const struct pass *pass, const struct kernel *kernel,
                                struct estimates *e, tess_error *error) {
    struct trial t = select_trial(p, pass, kernel);
    double least = INFINITY;
    int n = 0;
    *tiles = (struct tile_shape){0};
    for (const int32_t *r = kernel->rows; *r && n < PLAN_HEIGHTS - 1; r++) {
        t.rows = *r, t.tile_heads = tile_heads_of(p, pass, kernel, *r);
        if (height_out(p, pass, &t))
            continue;
        t.sums = estimate(e, *r, error);
        if (!t.sums)
            return TESS_OUT_OF_MEMORY;
        tiles->heights[n] = (struct plan_height){*r, cost_launch(&t) + kernel->family->seconds(&t)};
        if (tiles->heights[n].seconds <= least) {
            least = tiles->heights[n].seconds;
            tiles->rows = *r, tiles->tile_heads = t.tile_heads;
        }
        n++;
    }
    *seconds = least;
    return TESS_OK;
}

static tess_status pass_weigh(struct pass *pass, const struct premises *p, struct estimates *e,
                              tess_error *error) {
    const struct kernel *first = pass->kernel, *end = p->backend->kernels + p->backend->n_kernels;
    const int forced = p->kernel && !strcmp(p->kernel, first->name);
    pass->seconds = INFINITY;
    for (const struct kernel *k = first; k < end; k++) {
        struct tile_shape tiles;
        double seconds;
        if (k->stage != pass->stage || select_refuses(p, pass, k) ||
            (pass->joint && !k->family->joint_rows))
            continue;
        if (p->filled)
            seconds = filled_weigh(&tiles, p, pass, k);
        else if (kernel_weigh(&tiles, &seconds, p, pass, k, e, error))
            return TESS_OUT_OF_MEMORY;
        if (seconds < pass->seconds)
            pass->kernel = k, pass->tiles = tiles, pass->seconds = seconds;
        if (forced || !k->family->weighed)
            break;
    }
    if (pass->tiles.rows)
        return TESS_OK;
    return p->filled
               ? error_set(error, TESS_UNSUPPORTED, "tess_plan_reserve", "problem",
                           "kernel %s has query tiles of these rows for heads that share a list "
                           "alone",
                           first->name)
               : error_set(error, TESS_UNSUPPORTED, "tess_plan_create", "problem",
                           "kernel %s has query tiles of %lld rows for heads that share a list "
                           "alone",
                           first->name, (long long)pass->problem.tile_rows);
}

tess_status select_tiles(struct candidate *c, const struct premises *p, struct estimates *m,
                         struct estimates *transposed, tess_error *error) {
    tess_status status = TESS_OK;
    c->seconds = 0;
    for (struct pass *pass = c->passes; pass < c->passes + c->n_passes && !status; pass++) {
        const struct kernel *kernel = pass->kernel;
        const struct trial t = select_trial(p, pass, kernel);
        if (kernel_follows(kernel))
            pass->tiles = pass[-1].tiles, pass->seconds = cost_launch(&t);
        else if (!kernel->rows)
            pass->seconds = cost_launch(&t) + kernel->family->seconds(&t);
        else if (!pass->tiles.rows)
            status = pass_weigh(pass, p, pass->over_keys ? transposed : m, error);
        c->seconds += pass->seconds;
    }
    return status;
}
