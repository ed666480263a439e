/* A case's pattern and tensors. */
#include "lab/setting.h"

#include "lab/fill.h"

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
    if (lab_modifiers_make(&s->modifiers, c) || lab_given_make(&s->given, c) ||
        lab_wanted_make(&s->wanted, c) || lab_cache_make(&s->cache, &cache)) {
        snprintf(why, LAB_WHY, "out of memory for the modifiers, gradients and cache of this case");
        return -1;
    }
    lab_fill(c, &s->q.view, &s->k.view, &s->v.view);
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
    lab_cache_free(&s->cache);
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
                            .lse = &s->lse,
                            .modifiers = &s->modifiers,
                            .cache = &s->cache,
                            .given = backward ? &s->given : NULL,
                            .wanted = backward ? &s->wanted : NULL};
}

struct lab_scoring lab_setting_scoring(const struct lab_setting *s) {
    struct lab_scoring scoring = lab_modifiers_scoring(&s->modifiers, &s->c);
    scoring.lengths = s->listed.today;
    scoring.cache = &s->cache.of;
    return scoring;
}

int lab_setting_gradients(const struct lab_setting *s, const tess_pattern *pattern,
                          struct lab_gradients *gradients) {
    const struct lab_scoring scoring = lab_setting_scoring(s);
    const struct lab_gradients_of of = {&s->q.view,
                                        &s->k.view,
                                        &s->v.view,
                                        &s->given.d_o.view,
                                        s->c.d_lse ? &s->given.d_lse.view : NULL,
                                        pattern,
                                        &scoring,
                                        s->o.view.type};
    return lab_gradients_run(gradients, &of);
}
