/* The tensors of a backward case. */
#include "lab/run/backward.h"

#include "lab/fill/fill.h"
#include "lab/fill/half.h"

#include <stdio.h>

static int tensor_make(struct lab_tensor *tensor, int wanted, const struct lab_case *c,
                       tess_type type, int64_t heads, int64_t n, int64_t dim) {
    const int64_t element = (int64_t)tess_type_size(type), size[4] = {c->b, heads, n, dim};
    return wanted ? lab_tensor_make(tensor, type, size, c->layout,
                                    c->align < element ? element : c->align)
                  : 0;
}

int lab_given_make(struct lab_given *g, const struct lab_case *c) {
    const int is = lab_case_backward(c);
    memset(g, 0, sizeof *g);
    if (tensor_make(&g->d_o, is, c, c->type, c->h, c->n, c->dv) ||
        tensor_make(&g->d_lse, is && c->d_lse, c, TESS_F32, c->h, c->n, 1) ||
        tensor_make(&g->o_rest, is && c->o_rest, c, c->type, c->h, c->n, c->dv) ||
        tensor_make(&g->delta, is && c->given == LAB_GIVEN_DELTA, c, TESS_F32, c->h, c->n, 1))
        return -1;
    if (is)
        lab_fill_gradients(c, &g->d_o.view, c->d_lse ? &g->d_lse.view : NULL);
    return 0;
}

void lab_given_free(struct lab_given *g) {
    lab_tensor_free(&g->d_o);
    lab_tensor_free(&g->d_lse);
    lab_tensor_free(&g->o_rest);
    lab_tensor_free(&g->delta);
}

int lab_wanted_make(struct lab_wanted *w, const struct lab_case *c) {
    const tess_type type = c->out32 ? TESS_F32 : c->type;
    const size_t heads = (size_t)c->h * sizeof(float);
    memset(w, 0, sizeof *w);
    return tensor_make(&w->d_q, lab_case_wants(c, TESS_GRADIENT_Q), c, type, c->h, c->n, c->d) ||
                   tensor_make(&w->d_k, lab_case_wants(c, TESS_GRADIENT_K), c, type, c->hkv, c->nkv,
                               c->d) ||
                   tensor_make(&w->d_v, lab_case_wants(c, TESS_GRADIENT_V), c, type, c->hkv, c->nkv,
                               c->dv) ||
                   (lab_case_wants(c, TESS_GRADIENT_ALIBI) &&
                    lab_buffer_make(&w->d_alibi, heads, sizeof(float))) ||
                   (lab_case_wants(c, TESS_GRADIENT_SINK) &&
                    lab_buffer_make(&w->d_sink, heads, sizeof(float)))
               ? -1
               : 0;
}

void lab_wanted_free(struct lab_wanted *w) {
    lab_tensor_free(&w->d_q);
    lab_tensor_free(&w->d_k);
    lab_tensor_free(&w->d_v);
    lab_buffer_free(&w->d_alibi);
    lab_buffer_free(&w->d_sink);
}

/* Puts x into all elements of a row. */
static void spread(const struct lab_tensor *t, const struct lab_place *at, double x) {
    for (int64_t d = 0; t->buffer.base && d < t->view.size[3]; d++)
        lab_put(t->view.data, t->view.type, lab_row(&t->view, at->b, at->h, at->i) + d, x);
}

void lab_given_answer(struct lab_given *g, const struct lab_oracle *oracle,
                      const struct lab_tensor *o, const struct lab_tensor *lse) {
    for (int64_t x = 0; x < oracle->rows; x++) {
        const struct lab_place *at = &oracle->place[x];
        const int64_t row = lab_row(&o->view, at->b, at->h, at->i);
        lab_put(lse->view.data, TESS_F32, lab_row(&lse->view, at->b, at->h, at->i), oracle->lse[x]);
        for (int64_t d = 0; d < oracle->d_v; d++) {
            const double want = oracle->o[x * oracle->d_v + d];
            lab_put(o->view.data, o->view.type, row + d, want);
            if (g->o_rest.buffer.base)
                lab_put(g->o_rest.view.data, g->o_rest.view.type,
                        lab_row(&g->o_rest.view, at->b, at->h, at->i) + d,
                        want - lab_get(o->view.data, o->view.type, row + d));
        }
        if (oracle->keys[x])
            continue;
        const struct lab_tensor *const unread[] = {o, &g->o_rest, &g->d_o, &g->d_lse};
        for (size_t t = 0; t < sizeof unread / sizeof *unread; t++)
            spread(unread[t], at, (double)NAN);
    }
}

static int floats_same(const struct lab_buffer *a, const struct lab_buffer *b, const char *name,
                       char why[LAB_WHY]) {
    if (!a->base || !b->base || memcmp(a->data, b->data, a->size) == 0)
        return 0;
    snprintf(why, LAB_WHY, "%s differs in its bits", name);
    return -1;
}

int lab_wanted_same(const struct lab_wanted *a, const struct lab_wanted *b, char why[LAB_WHY]) {
    const struct {
        const struct lab_tensor *a, *b;
        const char *name;
    } all[] = {{&a->d_q, &b->d_q, "dQ"}, {&a->d_k, &b->d_k, "dK"}, {&a->d_v, &b->d_v, "dV"}};
    for (size_t t = 0; t < sizeof all / sizeof *all; t++)
        if (all[t].a->buffer.base && all[t].b->buffer.base &&
            lab_tensor_same(&all[t].a->view, &all[t].b->view, all[t].name, why))
            return -1;
    return floats_same(&a->d_alibi, &b->d_alibi, "d_alibi", why) ||
                   floats_same(&a->d_sink, &b->d_sink, "d_sink", why)
               ? -1
               : 0;
}
