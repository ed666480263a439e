/* The host's side of decode on CUDA: what kernels get. Nothing of an image is read here. */
#include "host/decode.h"

/* Programmatic dependent launch. */
#define EARLY_ARCHITECTURE 90

static struct decode_stored stored_of(tess_type type, const struct view *scale,
                                      tess_scaling scaling, int64_t groups) {
    return (struct decode_stored){
        .eight_bit = type_is_8bit(type) ? (int32_t)type : 0,
        .scales = scaling == TESS_SCALE_NONE ? 0 : (int32_t)groups,
        .scale = rows_view_of(scale),
    };
}

struct decode_params decode_params_of(const struct kernel_args *args) {
    const struct lists *lists = args->lists;
    const struct problem *p = args->problem;
    const struct caches *c = &p->caches;
    return (struct decode_params){
        .of = attention_params_shared(args),
        .image = *args->filled,
        .lengths = args->lengths,
        .keys = lists->keys,
        .full_ptr = lists->full_ptr,
        .full_end = lists->full_end,
        .masked_ptr = lists->masked_ptr,
        .masked_end = lists->masked_end,
        .full = lists->full,
        .masked = lists->masked,
        .tiles = lists->tiles,
        .early = args->target->architecture >= EARLY_ARCHITECTURE,
        .table = args->page_table,
        .columns = args->table_columns,
        .pages = (int32_t)args->pages,
        .shift = c->page_shift,
        .k = stored_of(c->k_type, &args->k_scale, c->k_scale, p->d_qk / c->k_group),
        .v = stored_of(c->v_type, &args->v_scale, c->v_scale,
                       c->v_scale == TESS_SCALE_GROUP ? p->d_v / c->v_group : 1),
        .v_late = c->v_scale == TESS_SCALE_TENSOR || c->v_scale == TESS_SCALE_HEAD,
        .stored = type_is_8bit(c->k_type) || type_is_8bit(c->v_type),
    };
}
