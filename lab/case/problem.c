/* Cases as tess_ structs. */
#include "lab/case/case.h"

tess_pattern_shape lab_case_shape(const struct lab_case *c) {
    tess_pattern_shape shape = tess_pattern_shape_init();
    shape.n_q = c->n, shape.n_kv = c->nkv;
    shape.block_q = c->block_q, shape.block_kv = c->block_kv;
    shape.batch = c->lists == LAB_LISTS_1 ? 1 : c->b;
    shape.heads = c->lists == LAB_LISTS_1 ? 1 : c->lists == LAB_LISTS_KV ? c->hkv : c->h;
    return shape;
}

void lab_layout_strides(enum lab_layout layout, const int64_t size[4], int64_t stride[4]) {
    int64_t dim = size[3], heads = size[1], n = size[2];
    stride[3] = 1;
    if (layout == LAB_BHND) {
        stride[2] = dim;
        stride[1] = n * dim;
        stride[0] = heads * n * dim;
        return;
    }
    if (layout == LAB_PADDED) /* 8 to 15 elements after each row, a head after each token ... */
        dim = (dim + 7) / 8 * 8 + 8, heads += 1, n += 1;
    stride[1] = dim;
    stride[2] = heads * dim;
    stride[0] = n * heads * dim;
}

tess_problem lab_case_problem(const struct lab_case *c, tess_pipeline pipeline) {
    tess_problem p = tess_problem_init();
    p.pipeline = pipeline;
    p.type = c->type;
    p.batch = c->b, p.heads_q = c->h, p.heads_kv = c->hkv;
    p.n_q = c->n, p.n_kv = c->nkv;
    p.d_qk = c->d, p.d_v = c->dv;
    p.scale = c->scale;
    p.threads = c->threads;
    p.kernel = c->kernel[0] ? c->kernel : NULL;
    p.softcap = c->softcap, p.dropout = c->dropout;
    p.alibi = c->alibi, p.sink = c->sink;
    p.k_type = c->kv_type, p.v_type = c->v_in_k ? TESS_F32 : c->kv_type;
    p.k_scale = c->kv_scale, p.v_scale = c->v_in_k ? TESS_SCALE_NONE : c->kv_scale;
    p.sum_rows = c->sum_rows, p.sum_type = c->sum_type;
    p.page_size = c->page, p.v_in_k = c->v_in_k, p.rope_dims = c->rope;
    p.o_f32 = lab_case_o_f32(c);
    p.activation = c->activation;
    p.operation = c->operation, p.gradients = c->gradients, p.o_rest = c->o_rest;
    if (pipeline == TESS_FUSED)
        p.tile_rows = c->tile_rows, p.part_keys = c->part_keys;

    const int64_t rows = c->page ? c->page : c->nkv;
    const size_t of_q = tess_type_size(c->type), of_o = tess_type_size(lab_case_o_type(c));
    const size_t of_kv = c->kv_type ? tess_type_size(c->kv_type) : of_q;
    const struct {
        size_t element;
        int64_t size[4];
    } all[] = {{of_q, {c->b, c->h, c->n, lab_case_q_whole(c) ? c->d : c->d - c->rope}},
               {of_kv, {c->b, c->hkv, rows, c->d - c->rope}},
               {of_kv, {c->b, c->hkv, rows, c->dv}},
               {of_o, {c->b, c->h, c->n, c->dv}},
               {of_q, {c->b, c->h, c->n, c->rope}},
               {of_q, {c->b, 1, c->nkv, c->cache ? c->n : 0}},
               {of_kv > 1 ? of_kv : of_q, {c->b, c->hkv, rows, c->rope}}};
    uint64_t strides = (uint64_t)c->align;
    for (size_t t = 0; t < sizeof all / sizeof *all; t++) {
        int64_t stride[4];
        lab_layout_strides(c->layout, all[t].size, stride);
        if (all[t].size[3])
            strides |= (uint64_t)(stride[0] | stride[1] | stride[2]) * all[t].element;
    }
    p.alignment = (int64_t)(strides & (~strides + 1));
    return p;
}
