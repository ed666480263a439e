/* The host's side of decode on CUDA: what kernels get. Nothing of an image is read here. */
#include "host/decode.h"

#include "lists/fill_granules.h"

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
        .rows = layout_of(rows, paged, type, d),
        .scale = layout_of(scale, paged, TESS_F32, scales),
    };
}

/* Scales of a row. */
static int64_t scales_of(tess_scaling scaling, int64_t d, int64_t group) {
    return scaling == TESS_SCALE_NONE ? 0 : scaling == TESS_SCALE_GROUP ? d / group : 1;
}

struct decode_params decode_params_of(const struct kernel_args *args) {
    const struct lists *lists = args->lists;
    const struct problem *p = args->problem;
    const struct caches *c = &p->caches;
    const int paged = args->page_table != NULL;
    struct decode_params to = {
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
        .table = args->page_table,
        .columns = args->table_columns,
        .pages = (int32_t)args->pages,
        .shift = c->page_shift,
        .rows = (int32_t)(paged ? INT64_C(1) << c->page_shift : p->n_kv),
        .block_kv = (int32_t)args->filled->block_kv,
        .k = stored_of(&args->k, &args->k_scale, paged, c->k_type, p->d_qk,
                       scales_of(c->k_scale, p->d_qk, c->k_group)),
        .v = stored_of(&args->v, &args->v_scale, paged, c->v_type, p->d_v,
                       scales_of(c->v_scale, p->d_v, c->v_group)),
        .v_late = c->v_scale == TESS_SCALE_TENSOR || c->v_scale == TESS_SCALE_HEAD,
        .stored = type_is_8bit(c->k_type) || type_is_8bit(c->v_type),
        .multiprocessors = args->target->multiprocessors,
        .packs = (int32_t)(args->filled->units / lists->tiles),
    };
    to.of.granule_bits = fill_granule_bits(to.block_kv, paged ? to.rows : FILL_GRANULE_MOST);
    return to;
}
