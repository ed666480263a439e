/* Rules between the keys of a case, and defaults that follow other keys. */
#include "lab/case/rules.h"

#include "lab/case/choice.h"

#include <stdarg.h>
#include <stdio.h>

int lab_case_refuse(char why[LAB_WHY], const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, LAB_WHY, format, arguments);
    va_end(arguments);
    return -1;
}

int lab_case_was_given(const char *const *given, const char *name) {
    while (*given && strcmp(*given, name) != 0)
        given++;
    return *given != NULL;
}

/* Rules of the backward. */
static int complete_backward(const struct lab_case *c, const char *const *given,
                             char why[LAB_WHY]) {
    static const char *const alone[] = {"grads", "dlse", "orest", "given"};
    for (size_t k = 0; k < sizeof alone / sizeof *alone && !lab_case_backward(c); k++)
        if (lab_case_was_given(given, alone[k]))
            return lab_case_refuse(why, "%s goes with op=backward", alone[k]);
    if (c->gradients & TESS_GRADIENT_ALIBI && !c->alibi)
        return lab_case_refuse(why, "grads: a goes with alibi=1");
    if (c->gradients & TESS_GRADIENT_SINK && !c->sink)
        return lab_case_refuse(why, "grads: s goes with sink=1");
    if (c->o_rest && c->given != LAB_GIVEN_O)
        return lab_case_refuse(why, "orest=1 goes with given=o");
    return 0;
}

/* Rules of o in f32 and of caches, which fused attention alone has. */
static int complete_caches(struct lab_case *c, char why[LAB_WHY]) {
    if (lab_case_o_f32(c) && c->pipeline == TESS_STAGED)
        return lab_case_refuse(why, "out32 goes with pipeline=fused, or op=backward");
    if (lab_case_o_f32(c))
        c->pipeline = TESS_FUSED;
    if (c->kv_scale && c->kv_type != TESS_E4M3 && c->kv_type != TESS_E5M2)
        return lab_case_refuse(why, "kvscale goes with kvtype=e4m3 and kvtype=e5m2");
    if (!lab_case_caches(c))
        return 0;
    if (c->pipeline == TESS_STAGED || lab_case_backward(c))
        return lab_case_refuse(why,
                               "page, kvtype, vink and rope go with pipeline=fused,op=attention");
    if ((c->page || c->kv_type || c->rope) && c->fill != LAB_FILL_NORMAL &&
        c->fill != LAB_FILL_POSITIVE)
        return lab_case_refuse(why, "page, kvtype and rope go with fill=normal and fill=positive");
    if (c->v_in_k && (c->fill == LAB_FILL_NANK || c->fill == LAB_FILL_NANV))
        return lab_case_refuse(why, "vink=1 does not go with fill=nank and fill=nanv");
    if (c->rope >= c->d)
        return lab_case_refuse(why, "rope=%lld is not below d=%lld", (long long)c->rope,
                               (long long)c->d);
    if (c->v_in_k && c->dv > c->d - c->rope)
        return lab_case_refuse(why, "vink=1 needs dv of at most d - rope");
    c->pipeline = TESS_FUSED;
    return 0;
}

/* Rules of column sums. */
static int complete_sums(struct lab_case *c, char why[LAB_WHY]) {
    if (c->sum_type == TESS_F16 || (c->sum_type && !c->sum_rows))
        return lab_case_refuse(why, "sumtype is f32 or bf16, and goes with sums=");
    if (c->sum_near && !c->sum_rows)
        return lab_case_refuse(why, "sumref goes with sums=");
    if (!c->sum_rows)
        return 0;
    if (c->pipeline == TESS_STAGED || lab_case_backward(c))
        return lab_case_refuse(why, "sums goes with pipeline=fused,op=attention");
    c->pipeline = TESS_FUSED;
    return 0;
}

/* Rules of a base. */
static int complete_base(struct lab_case *c, char why[LAB_WHY]) {
    if (c->base == TESS_BASE_NONE)
        return 0;
    if (c->pipeline == TESS_STAGED || lab_case_backward(c))
        return lab_case_refuse(why, "base goes with pipeline=fused,op=attention");
    c->pipeline = TESS_FUSED;
    return 0;
}

/* Rules of an MLP. */
static int complete_mlp(struct lab_case *c, const char *const *given, char why[LAB_WHY]) {
    static const char *const alone[] = {"activation", "bias", "cache"};
    static const char *const others[] = {"scale",   "split", "softcap", "alibi",  "sink",
                                         "dropout", "sums",  "page",    "kvtype", "vink",
                                         "rope",    "cut",   "q0"};
    if (lab_case_mlp(c) && !lab_case_was_given(given, "h") && !lab_case_was_given(given, "hkv"))
        c->h = c->hkv = 1;
    for (size_t k = 0; k < sizeof alone / sizeof *alone && !lab_case_mlp(c); k++)
        if (lab_case_was_given(given, alone[k]))
            return lab_case_refuse(why, "%s goes with op=mlp", alone[k]);
    if (!lab_case_mlp(c))
        return 0;
    for (size_t k = 0; k < sizeof others / sizeof *others; k++)
        if (lab_case_was_given(given, others[k]))
            return lab_case_refuse(why, "%s does not go with op=mlp", others[k]);
    if (c->h != 1 || c->pipeline == TESS_STAGED || c->form == TESS_MASK)
        return lab_case_refuse(why, "op=mlp goes with h=1, pipeline=fused and another form");
    if (c->fill != LAB_FILL_NORMAL && c->fill != LAB_FILL_POSITIVE)
        return lab_case_refuse(why, "op=mlp goes with fill=normal and fill=positive");
    if (c->base == TESS_BASE_MERGE || (c->base && c->cache == LAB_CACHE_STORE))
        return lab_case_refuse(why, "op=mlp goes with base=add, without cache=store");
    if (c->cache == LAB_CACHE_DELTA)
        c->base = TESS_BASE_ADD;
    c->pipeline = TESS_FUSED;
    return 0;
}

/* Rules of strides of 0. */
static int complete_shares(const struct lab_case *c, char why[LAB_WHY]) {
    if ((c->q0 || c->k0 || c->v0) && c->fill != LAB_FILL_NORMAL && c->fill != LAB_FILL_POSITIVE)
        return lab_case_refuse(why, "q0, k0 and v0 go with fill=normal and fill=positive");
    return c->v0 && c->v_in_k ? lab_case_refuse(why, "v0 does not go with vink=1") : 0;
}

/* Why a case can have no lists on the device; NULL: it can. */
static const char *lists_refused(const struct lab_case *c) {
    const tess_pattern_shape shape = lab_case_shape(c);
    const int64_t rows = (c->n + c->block_q - 1) / c->block_q;
    const int64_t cols = (c->nkv + c->block_kv - 1) / c->block_kv;
    int64_t all;
    if (lab_case_backward(c))
        return "the backward has no lists on the device";
    if (c->pipeline == TESS_STAGED)
        return "the staged pipeline has no lists on the device";
    if (c->form == TESS_RANGES && (c->topk > 4 || c->block_kv != 1))
        return "form=ranges has at most 4 of them, and blocks of QUERIESx1";
    if ((c->form == TESS_INDICES || c->form == TESS_MASK) && c->topk > cols)
        return "form=indices and form=mask have at most as many entries as block columns";
    if (!(c->valid >= 0 && c->valid <= 1))
        return "valid is a share within 0 ... 1";
    if (__builtin_mul_overflow(shape.batch * shape.heads * rows, c->topk + cols, &all) ||
        all > INT64_MAX / 16)
        return "the lists of this case do not fit 64 bits";
    return NULL;
}

/* Why a case can have no lists that are chosen; NULL: it can. */
static const char *choice_refused(struct lab_case *c, char why[LAB_WHY]) {
    tess_selection selection;
    if (c->form != TESS_INDICES && c->form != TESS_BLOCK_BITS)
        return "form=indices and form=bits can be chosen";
    if (lab_choice_parse(&selection, c->select, why))
        return why;
    if (selection.mode == TESS_SELECT_TOP_P)
        return "top_p is right within a bound alone, and a case's lists are exact";
    if (selection.k > (c->nkv + c->block_kv - 1) / c->block_kv)
        return "k is above the block columns";
    if (selection.causal && c->cut == LAB_CUT_NONE)
        c->cut = LAB_CUT_CAUSAL;
    return NULL;
}

/* Keys that go with lists on the device of some kinds alone. */
static int complete_kinds(const struct lab_case *c, const char *const *given, char why[LAB_WHY]) {
    const int drawn = c->topk > 0, chosen = c->select[0] != '\0';
    const struct {
        const char *key;
        int goes;
        const char *with;
    } keys[] = {{"valid", drawn, "goes with topk="},
                {"entries", drawn, "goes with topk="},
                {"cut", drawn || chosen, "goes with topk= and select="},
                {"form", drawn || chosen || c->form == TESS_MASK,
                 "goes with topk= and select=; form=mask with pattern=, too"},
                {"select", !drawn, "does not go with topk="},
                {"pattern", !drawn && !chosen, "does not go with topk= and select="},
                {"source", !lab_case_listed(c), "does not go with lists on the device"}};
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        if (!keys[k].goes && lab_case_was_given(given, keys[k].key))
            return lab_case_refuse(why, "%s %s", keys[k].key, keys[k].with);
    return 0;
}

/* Rules of lists on the device. */
static int complete_listed(struct lab_case *c, const char *const *given, char why[LAB_WHY]) {
    char words[LAB_WHY];
    if (complete_kinds(c, given, why))
        return -1;
    if (c->topk && !lab_case_was_given(given, "block"))
        c->block_q = c->block_kv = 1;
    if (!lab_case_listed(c))
        return 0;
    const char *wrong = lists_refused(c);
    if (!wrong && c->select[0])
        wrong = choice_refused(c, words);
    return wrong ? lab_case_refuse(why, "%s: %.280s",
                                   c->select[0] ? "select"
                                   : c->topk    ? "topk"
                                                : "form",
                                   wrong)
                 : 0;
}

int lab_case_complete(struct lab_case *c, const char *const *given, char why[LAB_WHY]) {
    if (complete_mlp(c, given, why))
        return -1;
    if (!lab_case_was_given(given, "hkv"))
        c->hkv = c->h;
    if (!lab_case_was_given(given, "nkv"))
        c->nkv = c->n;
    if (!lab_case_was_given(given, "dv"))
        c->dv = c->d;
    if (c->h % c->hkv != 0)
        return lab_case_refuse(why, "hkv=%lld does not divide h=%lld", (long long)c->hkv,
                               (long long)c->h);
    if (c->source == LAB_SOURCE_TOPK && (c->block_q != 1 || c->block_kv != 1))
        return lab_case_refuse(why, "source=topk needs block=1x1");
    if ((c->align & (c->align - 1)) != 0 || c->align < (int64_t)tess_type_size(c->type))
        return lab_case_refuse(why, "align=%lld: a power of two, at least the size of an element",
                               (long long)c->align);
    if (c->softcap < 0 || c->dropout < 0 || c->dropout >= 1)
        return lab_case_refuse(why, "softcap is negative, or dropout not within 0 ... 1");
    if (complete_backward(c, given, why) || complete_caches(c, why) || complete_sums(c, why) ||
        complete_base(c, why) || complete_shares(c, why))
        return -1;
    int64_t n = c->n > c->nkv ? c->n : c->nkv, d = c->d > c->dv ? c->d : c->dv, all;
    if (__builtin_mul_overflow(c->b * (c->h + 1), n + 1, &all) ||
        __builtin_mul_overflow(all, d + 16, &all) || all > INT64_MAX / 8)
        return lab_case_refuse(why, "the tensors of this case do not fit 64 bits");
    return complete_listed(c, given, why);
}
