/* The host's side of decode on CUDA: what kernels refuse, and what they get. Nothing of an image is read here. */
#include "host/decode.h"

#include "work/granules.h"
#include <stdio.h>

/* ---- refusals ---- */

const char *decode_types_refused(tess_type product, const struct problem *problem) {
    static const char *const only[] = {[TESS_F16] = "it reads keys and values of f16 or 8 bits",
                                       [TESS_BF16] = "it reads keys and values of bf16 or 8 bits"};
    const struct caches *c = &problem->caches;
    const int by_token = c->v_scale == TESS_SCALE_TOKEN || c->v_scale == TESS_SCALE_GROUP;
    if ((c->k_type != product && !type_is_8bit(c->k_type)) ||
        (c->v_type != product && !type_is_8bit(c->v_type)) ||
        (problem->rope_dims && c->k_rope_type != product))
        return only[product];
    if (by_token && product == TESS_F16)
        return "it scales values by token in bf16 alone, whose weights have the range";
    return NULL;
}

static int pieces_whole(tess_type type, int64_t d) {
    return d * (int64_t)tess_type_size(type) % 16 == 0;
}

const char *decode_refuses(const struct problem *problem, const tess_target *target) {
    const struct caches *c = &problem->caches;
    (void)target;
    if (problem->alignment < 16)
        return "it copies 16 bytes at a time: rows have to be aligned to that";
    if (problem->d_qk % 8 || problem->d_v % 8 || !pieces_whole(c->k_type, problem_d_k(problem)) ||
        !pieces_whole(c->v_type, problem->d_v))
        return "it copies 16 bytes at a time: d_qk, d_v and rope_dims have to be multiples of 8, "
               "d_v and d_qk - rope_dims of 16 where keys or values have 8 bits";
    if (problem->rope_dims && c->k_scale && problem_d_k(problem) % DECODE_SCALE_DIMS)
        return "its scales are of 128 dims, which have to divide d_qk - rope_dims";
    if ((c->k_scale == TESS_SCALE_GROUP && c->k_group != DECODE_SCALE_DIMS) ||
        (c->v_scale == TESS_SCALE_GROUP && c->v_group != DECODE_SCALE_DIMS))
        return "its scales are of 128 dims, which have to divide d_qk and d_v; or take "
               "TESS_SCALE_TOKEN";
    return NULL;
}

/* A warp's dims of tiles of 64 rows may be of several groups. */
const char *decode_64_refuses(const struct problem *problem, const tess_target *target) {
    const char *why = decode_refuses(problem, target);
    if (!why && problem->caches.v_scale == TESS_SCALE_GROUP)
        why = "it does not scale values by groups of dims";
    return why;
}

const char *decode_sm90_refuses(const struct problem *problem, const tess_target *target) {
    const struct caches *c = &problem->caches;
    const struct modifiers *m = &problem->modifiers;
    if (target->architecture != 90)
        return "the target's architecture is not 90 (compute capability 9.0)";
    if ((type_is_8bit(c->k_type) || type_is_8bit(c->v_type)) &&
        (!c->v_in_k || problem_d_k(problem) != 512 || problem->rope_dims > 64 || m->softcap != 0 ||
         m->alibi || m->dropped))
        return "it reads 8 bits of 512 dims, and up to 64 rope_dims, with V in K and without score "
               "modifiers";
    return decode_refuses(problem, target);
}

/* Rows of 16 bits, of one view each, by Hopper's own instructions. */
static const char *rows_refused(const struct problem *problem, const tess_target *target) {
    const struct caches *c = &problem->caches;
    const char *why = attention_sm90_refuses(problem, target);
    if (!why && (c->k_type != problem->type || c->v_type != problem->type))
        why = "it reads keys and values of q's type";
    if (!why && problem->o_type != problem->type)
        why = "it writes o of q's type";
    if (!why && problem->rope_dims)
        why = "it reads q and k of one view";
    return why;
}

/* Granules are whole TMA tile copies of a page. */
const char *decode_blocks_refuses(const struct problem *problem, const tess_target *target) {
    const char *why = rows_refused(problem, target);
    if (!why && INT64_C(1) << problem->caches.page_shift < FILL_GRANULE_LEAST)
        why = "its pages have 16 keys or more";
    return why;
}

const char *decode_columns_refuses(const struct problem *problem, const tess_target *target) {
    const struct modifiers *m = &problem->modifiers;
    const char *why = rows_refused(problem, target);
    if (!why && caches_paged(&problem->caches))
        why = "it reads keys and values row behind row: page_size must be 0";
    if (!why && (m->softcap != 0 || m->alibi || m->dropped))
        why = "it computes no softcap, ALiBi or dropout";
    return why;
}

/* ---- printing ---- */

int decode_detail(const struct kernel_args *args, char *room, size_t size) {
    const struct forward_kernel *own = args->kernel->own;
    const int v_in_k = args->problem->caches.v_in_k;
    const char *fetched =
        own->v_in_k ? "V in K: a row is fetched once" : "V in K: a row is fetched twice";
    if (cuda_family_of(args->kernel)->maps == MAPS_OR_DECODE)
        return snprintf(room, size, "%s%sby TMA, or cuda_decode_%s_d%d_r64 where strides need it",
                        v_in_k ? fetched : "", v_in_k ? "; " : "copied ", tess_type_name(own->type),
                        (int)own->d_qk);
    return v_in_k ? snprintf(room, size, "%s", fetched) : 0;
}

/* ---- runs ---- */

/* n elements of a row. */
static struct decode_layout layout_of(const struct view *view, int paged, tess_type type,
                                      int64_t n) {
    const int64_t size = (int64_t)tess_type_size(type);
    return (struct decode_layout){
        .data = view->data,
        .batch = paged ? 0 : view->stride[0] * size,
        .head = view->stride[1] * size,
        .page = paged ? view->stride[0] * size : 0,
        .row = view->stride[2] * size,
        .size = (int32_t)(n * size),
    };
}

static struct decode_stored stored_of(const struct view *rows, const struct view *scale, int paged,
                                      tess_type type, int64_t d, int64_t scales) {
    return (struct decode_stored){
        .eight_bit = type_is_8bit(type) ? (int32_t)type : 0,
        .scales = (int32_t)scales,
        .scaled = (int32_t)((d + DECODE_SCALE_DIMS - 1) / DECODE_SCALE_DIMS),
        .rows = layout_of(rows, paged, type, d),
        .scale = layout_of(scale, paged, TESS_F32, scales),
    };
}

/* Scales of a row. */
static int64_t scales_of(tess_scaling scaling, int64_t d, int64_t group) {
    return scaling == TESS_SCALE_NONE ? 0 : scaling == TESS_SCALE_GROUP ? d / group : 1;
}

/* No position is beyond 2^62, nor is a cut's end. */
static struct decode_given given_of(const struct kernel_args *args) {
    const tess_device_pattern *from = args->work.given;
    const int64_t n_kv = args->problem->n_kv;
    if (!from)
        return (struct decode_given){.n_kv = (int32_t)n_kv};
    const int cut = from->cut_lo || from->cut_hi;
    const bool ranges = from->form == TESS_RANGES;
    const int64_t most = ranges ? FILL_RANGES : (n_kv + from->block_kv - 1) / from->block_kv;
    int32_t bits = 0;
    while (INT64_C(1) << bits < from->block_kv)
        bits++;
    return (struct decode_given){
        .indices = from->indices,
        .counts = from->counts,
        .lengths = from->lengths,
        .capacity = from->capacity ? from->capacity : most,
        .lo = cut ? max_i64(from->cut_lo, -(INT64_C(1) << 62)) : -(INT64_C(1) << 62),
        .hi = cut ? min_i64(from->cut_hi, INT64_C(1) << 62) : INT64_C(1) << 62,
        .bits = bits,
        .n_kv = (int32_t)n_kv,
        .parts = (int32_t)(args->work.filled->most_items / max_i64(1, args->work.filled->units)),
        .ranges = ranges,
        .shared = from->batch == 1,
    };
}

struct decode_params decode_params_of(const struct kernel_args *args) {
    const struct lists *lists = args->work.lists;
    const struct problem *p = args->problem;
    const struct caches *c = &p->caches;
    const struct attention_operands *given = attention_of(args);
    const int paged = given->page_table != NULL;
    const int64_t d_first = problem_d_k(p);
    struct decode_params to = {
        .run = attention_params_shared(args),
        .image = *args->work.filled,
        .lengths = args->work.lengths,
        .keys = lists->keys,
        .full_ptr = lists->full_ptr,
        .full_end = lists->full_end,
        .masked_ptr = lists->masked_ptr,
        .masked_end = lists->masked_end,
        .full = lists->full,
        .masked = lists->masked,
        .words = lists->words_of_rows,
        .masked_kind = args->work.filled->mask ? LIST_BITS : LIST_BAND,
        .tiles = lists->tiles,
        .table = given->page_table,
        .columns = given->table_stride,
        .pages = (int32_t)given->pages,
        .shift = c->page_shift,
        .rows = (int32_t)(paged ? INT64_C(1) << c->page_shift : p->n_kv),
        .block_kv = (int32_t)args->work.filled->block_kv,
        .k = stored_of(&given->k, &given->k_scale, paged, c->k_type, d_first,
                       scales_of(c->k_scale, d_first, c->k_group)),
        .v = stored_of(&given->v, &given->v_scale, paged, c->v_type, p->d_v,
                       scales_of(c->v_scale, p->d_v, c->v_group)),
        .v_late = c->v_scale == TESS_SCALE_TENSOR || c->v_scale == TESS_SCALE_HEAD,
        .q_rest = rows_view_of(&given->q_rope),
        .d_first = (int32_t)d_first,
        .o_f32 = p->o_type == TESS_F32,
        .v_in_k = c->v_in_k,
        .stored = type_is_8bit(c->k_type) || type_is_8bit(c->v_type),
        .multiprocessors = args->target->multiprocessors,
        .packs = (int32_t)(args->work.filled->units / lists->tiles),
        .given = given_of(args),
    };
    to.run.image.words = lists->words_of_rows;
    to.k.rest = layout_of(&given->k_rope, paged, c->k_rope_type, p->rope_dims);
    to.run.granule_bits = fill_granule_bits(to.block_kv, paged ? to.rows : FILL_GRANULE_MOST);
    return to;
}
