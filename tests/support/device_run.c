/* Running plans over device patterns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lab/fill/half.h"
#include "lab/fill/rng.h"
#include "support/device_run.h"

static void tensor_make(struct lab_tensor *t, tess_type type, int64_t batch, int64_t heads,
                        int64_t n, int64_t d) {
    const int64_t size[4] = {batch, heads, n, d};
    if (lab_tensor_make(t, type, size, LAB_BHND, 16) != 0)
        fail_msg("no memory");
}

static void tensor_draw(struct lab_tensor *t, uint64_t seed) {
    const int64_t *n = t->view.size;
    for (int64_t b = 0; b < n[0]; b++)
        for (int64_t h = 0; h < n[1]; h++)
            for (int64_t i = 0; i < n[2] * n[3]; i++)
                lab_put(t->view.data, t->view.type, lab_row(&t->view, b, h, i / n[3]) + i % n[3],
                        lab_normal(seed, (uint64_t)(b * n[1] + h), (uint64_t)i));
}

void tensors_store(struct tensors *t) {
    lab_cache_values(&t->cache, &t->k.view, &t->v.view);
    lab_cache_store(&t->cache, &t->q.view, &t->k.view, &t->v.view);
}

void tensors_make(struct tensors *t, const tess_problem *p, uint64_t seed) {
    const struct lab_cache_shape cache = cache_shape(p, seed);
    tensor_make(&t->q, p->type, p->batch, p->heads_q, p->n_q, p->d_qk);
    tensor_make(&t->k, lab_cache_k_type(&cache), p->batch, p->heads_kv, p->n_kv, p->d_qk);
    tensor_make(&t->v, cache.v_type, p->batch, p->heads_kv, p->n_kv, p->d_v);
    tensor_make(&t->o, p->o_f32 ? TESS_F32 : p->type, p->batch, p->heads_q, p->n_q, p->d_v);
    tensor_make(&t->lse, TESS_F32, p->batch, p->heads_q, p->n_q, 1);
    tensor_draw(&t->q, seed);
    tensor_draw(&t->k, seed + 1);
    tensor_draw(&t->v, seed + 2);
    if (lab_cache_make(&t->cache, &cache))
        fail_msg("no memory");
    tensors_store(t);
    t->workspace = (struct lab_buffer){0};
}

void tensors_free(struct tensors *t) {
    lab_tensor_free(&t->q);
    lab_tensor_free(&t->k);
    lab_tensor_free(&t->v);
    lab_tensor_free(&t->o);
    lab_tensor_free(&t->lse);
    lab_buffer_free(&t->workspace);
    lab_cache_free(&t->cache);
}

tess_arguments arguments_of(struct tensors *t, const tess_plan *plan, const void *image) {
    tess_arguments a = tess_arguments_init();
    lab_buffer_free(&t->workspace);
    t->workspace = setting_workspace(plan);
    lab_tensor_poison(&t->o);
    lab_tensor_poison(&t->lse);
    const struct lab_cache *c = &t->cache;
    a.q = &lab_cache_q(c, &t->q)->view, a.k = &lab_cache_k(c, &t->k)->view;
    a.q_rope = c->q_rope.buffer.base ? &c->q_rope.view : NULL, a.k_rope = c->caching.k_rope;
    a.o = &t->o.view, a.lse = &t->lse.view;
    a.v = c->v_in_k ? NULL : &lab_cache_v(c, &t->v)->view;
    a.page_table = c->caching.table, a.page_table_stride = c->table_stride;
    a.k_scale = c->caching.k_scale, a.v_scale = c->v_in_k ? NULL : c->caching.v_scale;
    a.workspace = t->workspace.data, a.workspace_size = tess_plan_workspace_size(plan);
    a.image = image, a.image_size = image ? tess_plan_image_size(plan) : 0;
    return a;
}

void run(struct tensors *t, const tess_plan *plan, const tess_arguments *a) {
    tess_error error = tess_error_init();
    char why[LAB_WHY];
    if (tess_run(plan, a, &error, NULL))
        fail_msg("%s", error.message);
    if (lab_buffer_check(&t->workspace, "workspace", why) || lab_tensor_check(&t->o, "o", why) ||
        lab_tensor_check(&t->lse, "lse", why))
        fail_msg("%s", why);
}

uint64_t bits_of(const struct tensors *t) {
    return lab_buffer_hash(&t->o.buffer) ^ 3 * lab_buffer_hash(&t->lse.buffer);
}

void hold(const struct tensors *t, const tess_pattern *pattern, const struct lab_scoring *scoring,
          uint64_t seed) {
    struct lab_oracle oracle;
    struct lab_report report;
    struct lab_scoring over = scoring ? *scoring : (struct lab_scoring){0};
    over.cache = &t->cache.caching;
    if (lab_oracle_run(&oracle, &t->q.view, &lab_cache_k(&t->cache, &t->k)->view,
                       &lab_cache_v(&t->cache, &t->v)->view, pattern, &over, NULL, 0))
        fail_msg("no memory");
    lab_compare(&report, &oracle, &t->o.view, &t->lse.view, 256);
    if (!report.ok)
        fail_msg("seed %llu: %s", (unsigned long long)seed, report.message);
    lab_oracle_free(&oracle);
}
