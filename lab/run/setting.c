/* A case's pattern and tensors. */
#include "lab/run/setting.h"

#include "lab/fill/fill.h"
#include "lab/fill/half.h"
#include "lab/lists/source.h"

#include <stdio.h>

static int tensor_make(struct lab_tensor *tensor, const struct lab_case *c, tess_type type,
                       const int64_t size[4]) {
    const int64_t element = (int64_t)tess_type_size(type);
    return lab_tensor_make(tensor, type, size, c->layout, c->align < element ? element : c->align);
}

int lab_setting_again(const struct lab_setting *s, const struct lab_tensor *like,
                      struct lab_tensor *tensor) {
    return tensor_make(tensor, &s->c, like->view.type, like->view.size);
}

/* ---- strides of 0 ---- */

/* Gives rows that lie in one place the values of the first of them. Pages have `page` rows; 0: there are
 * none. */
static void rows_tie(const tess_tensor *t, int64_t shares, int64_t page) {
    const int64_t *n = t->size;
    const size_t element = tess_type_size(t->type);
    char *const data = t->data;
    for (int64_t row = 0; row < n[0] * n[1] * n[2]; row++) {
        const int64_t b = row / n[2] / n[1], h = row / n[2] % n[1], j = row % n[2];
        const int64_t at = page ? j % page : j; /* in the page */
        const int64_t of_page = shares & LAB_SHARES_B ? 0 : j - at;
        const int64_t from =
            lab_row(t, shares & LAB_SHARES_B ? 0 : b, shares & LAB_SHARES_H ? 0 : h,
                    of_page + (shares & LAB_SHARES_N ? 0 : at));
        memmove(data + (size_t)lab_row(t, b, h, j) * element, data + (size_t)from * element,
                (size_t)n[3] * element);
    }
}

/* Puts a tensor into memory without what it shares; nothing where it has none. 0, or -1 without memory. */
static int tensor_share(struct lab_tensor *tensor, const struct lab_case *c, int64_t shares) {
    const tess_tensor *t = &tensor->view;
    const int64_t *n = t->size, element = (int64_t)tess_type_size(t->type);
    struct lab_tensor one;
    if (!tensor->buffer.base || !shares)
        return 0;
    if (lab_tensor_make_shared(&one, t->type, n, shares, c->layout,
                               c->align < element ? element : c->align))
        return -1;
    for (int64_t row = n[0] * n[1] * n[2] - 1; row >= 0; row--) {
        const int64_t b = row / n[2] / n[1], h = row / n[2] % n[1], j = row % n[2];
        memcpy((char *)one.view.data + lab_row(&one.view, b, h, j) * element,
               (char *)t->data + lab_row(t, b, h, j) * element, (size_t)(n[3] * element));
    }
    lab_tensor_free(tensor);
    *tensor = one;
    return 0;
}

/* The views of a cache lie as the tensors do whose rows they have. */
static int setting_share(struct lab_setting *s) {
    const struct lab_case *c = &s->c;
    struct lab_cache *const cache = &s->cache;
    const struct {
        struct lab_tensor *tensor;
        int64_t shares;
    } all[] = {{&s->q, c->q0},
               {&cache->q, c->q0},
               {&cache->q_rope, c->q0},
               {&cache->k, c->k0},
               {&cache->k_rope, c->k0},
               {&cache->k_scale, c->k0},
               {&cache->v, c->v0},
               {&cache->v_scale, c->v0},
               {&s->k, c->page ? 0 : c->k0},
               {&s->v, c->page ? 0 : c->v0}};
    rows_tie(&s->q.view, c->q0, 0);
    rows_tie(&s->k.view, c->k0, c->page);
    rows_tie(&s->v.view, c->v0, c->page);
    for (size_t t = 0; t < sizeof all / sizeof *all; t++)
        if (tensor_share(all[t].tensor, c, all[t].shares))
            return -1;
    return 0;
}

/* The cache of activations of an MLP holds values of listed columns alone. */
static int setting_mlp(struct lab_setting *s) {
    tess_pattern *spec = NULL;
    if (!lab_case_mlp(&s->c))
        return 0;
    const int failed =
        lab_case_spec(&s->c, &spec, NULL) != TESS_OK || lab_mlp_make(&s->mlp, &s->c, spec);
    tess_pattern_free(spec);
    return failed;
}

int lab_setting_make(struct lab_setting *s, const struct lab_case *c, char why[LAB_WHY]) {
    tess_error error = tess_error_init();
    memset(s, 0, sizeof *s);
    s->c = *c;
    const struct lab_cache_shape cache = lab_case_cache(c);
    tess_status status = lab_case_pattern(c, &s->pattern, &error);
    if (!status && lab_case_listed(c) && lab_listed_make(&s->listed, c, 0))
        status = TESS_OUT_OF_MEMORY;
    if (status) {
        snprintf(why, LAB_WHY, "%s", error.message[0] ? error.message : tess_status_text(status));
        return -1;
    }
    const struct {
        struct lab_tensor *tensor;
        tess_type type;
        int64_t size[4];
    } all[] = {
        {&s->q, c->type, {c->b, c->h, c->n, c->d}},
        {&s->k, lab_cache_k_type(&cache), {c->b, c->hkv, c->nkv, c->d}},
        {&s->v, cache.v_type, {c->b, c->hkv, c->nkv, c->dv}},
        {&s->o, lab_case_o_type(c), {c->b, c->h, c->n, c->dv}},
        {&s->lse, TESS_F32, {c->b, c->h, c->n, 1}},
    };
    for (size_t t = 0; t < sizeof all / sizeof *all; t++)
        if (tensor_make(all[t].tensor, c, all[t].type, all[t].size)) {
            snprintf(why, LAB_WHY, "out of memory for the tensors of this case");
            return -1;
        }
    if (lab_modifiers_make(&s->modifiers, c) || lab_sums_make(&s->sums, c) ||
        lab_given_make(&s->given, c) || lab_wanted_make(&s->wanted, c) ||
        lab_cache_make(&s->cache, &cache) || lab_base_make(&s->base, c, &s->o.view, &s->lse.view) ||
        setting_mlp(s)) {
        snprintf(why, LAB_WHY,
                 "out of memory for the modifiers, gradients, cache and base of this case");
        return -1;
    }
    lab_fill(c, &s->q.view, &s->k.view, &s->v.view);
    if (setting_share(s)) {
        snprintf(why, LAB_WHY, "out of memory for the tensors of this case");
        return -1;
    }
    lab_cache_values(&s->cache, &s->k.view, &s->v.view);
    lab_cache_store(&s->cache, &s->q.view, &s->k.view, &s->v.view);
    return 0;
}

void lab_setting_free(struct lab_setting *s) {
    struct lab_tensor *const all[] = {&s->q, &s->k, &s->v, &s->o, &s->lse};
    for (size_t t = 0; t < sizeof all / sizeof *all; t++)
        lab_tensor_free(all[t]);
    lab_listed_free(&s->listed);
    lab_modifiers_free(&s->modifiers);
    lab_sums_free(&s->sums);
    lab_cache_free(&s->cache);
    lab_base_free(&s->base);
    lab_mlp_free(&s->mlp);
    lab_given_free(&s->given);
    lab_wanted_free(&s->wanted);
    tess_pattern_free(s->pattern);
    memset(s, 0, sizeof *s);
}

struct lab_run lab_setting_run(struct lab_setting *s, const struct lab_planned *planned) {
    const int backward = lab_case_backward(&s->c);
    return (struct lab_run){.planned = planned,
                            .q = &s->q,
                            .k = &s->k,
                            .v = &s->v,
                            .o = backward && s->c.given == LAB_GIVEN_DELTA ? NULL : &s->o,
                            .lse = lab_case_mlp(&s->c) ? NULL : &s->lse,
                            .mlp = lab_case_mlp(&s->c) ? &s->mlp : NULL,
                            .modifiers = &s->modifiers,
                            .cache = &s->cache,
                            .sums = &s->sums,
                            .base = &s->base,
                            .given = backward ? &s->given : NULL,
                            .wanted = backward ? &s->wanted : NULL};
}

struct lab_scoring lab_setting_scoring(const struct lab_setting *s) {
    struct lab_scoring scoring = lab_modifiers_scoring(&s->modifiers, &s->c);
    scoring.lengths = s->listed.today;
    scoring.cache = &s->cache.caching;
    scoring.base = &s->base.basing;
    return scoring;
}

int lab_setting_gradients(const struct lab_setting *s, const tess_pattern *pattern,
                          struct lab_gradients *gradients) {
    const struct lab_scoring scoring = lab_setting_scoring(s);
    const struct lab_gradients_of inputs = {&s->q.view,
                                            &s->k.view,
                                            &s->v.view,
                                            &s->given.d_o.view,
                                            s->c.d_lse ? &s->given.d_lse.view : NULL,
                                            pattern,
                                            &scoring,
                                            s->o.view.type};
    return lab_gradients_run(gradients, &inputs);
}

int lab_setting_mlp(const struct lab_setting *s, const tess_pattern *pattern, const int64_t *places,
                    int64_t n_places, struct lab_mlp_answer *answer) {
    const struct lab_mlp *m = &s->mlp;
    const struct lab_mlp_of inputs = {
        .x = &s->q.view,
        .w1 = &s->k.view,
        .w2 = &s->v.view,
        .bias = m->bias.buffer.base ? &m->bias.view : NULL,
        .bias_out = m->bias_out.buffer.base ? &m->bias_out.view : NULL,
        .cache = m->before.buffer.base ? &m->before.view : NULL,
        .base = s->c.base ? &s->base.o.view : NULL,
        .beta = s->base.basing.beta,
        .activation = s->c.activation,
        .pattern = pattern,
        .places = places,
        .n_places = n_places,
    };
    return lab_mlp_run(answer, &inputs);
}
