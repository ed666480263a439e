/* Rejecting callers: caches of a problem, and what a run is given of them. */
#include "plan/caches.h"

#include "plan/problem.h"
#include "base/status.h"

#define SCALE_GROUP 128 /* dims, unless the problem says otherwise */

/* The type of keys or values that a problem names; 0: as q's. */
static tess_type type_of(const tess_problem *p, tess_type named) {
    return named ? named : p->type;
}

/* Values in keys have what the keys have. */
static tess_type type_of_values(const tess_problem *p) {
    return type_of(p, p->v_in_k ? p->k_type : p->v_type);
}

/* Keys of 8 bits have second views of q's type. */
static tess_type type_of_rope(const tess_problem *p) {
    const tess_type k = type_of(p, p->k_type);
    return p->k_rope_type ? p->k_rope_type : type_is_8bit(k) ? p->type : k;
}

size_t caches_element(const tess_problem *p) {
    const tess_type types[] = {p->type, type_of(p, p->k_type), type_of_values(p), type_of_rope(p)};
    size_t least = SIZE_MAX;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (tess_type_size(types[i]) < least)
            least = tess_type_size(types[i]);
    return least;
}

static const char *type_wrong(const tess_problem *p, tess_type type) {
    if (!tess_type_size(type))
        return "k_type or v_type is not 0, TESS_F16, TESS_BF16, TESS_E4M3 or TESS_E5M2";
    if (type != p->type && !type_is_8bit(type) && p->type != TESS_F32)
        return "k_type and v_type of 16 bits go with q of the same type, or of f32";
    return NULL;
}

static const char *scale_wrong(tess_scaling scale, tess_type type, int64_t group, int64_t d) {
    if ((unsigned)scale > TESS_SCALE_GROUP)
        return "k_scale or v_scale is not one of TESS_SCALE_...";
    if (scale && !type_is_8bit(type))
        return "k_scale and v_scale go with TESS_E4M3 and TESS_E5M2";
    if (scale == TESS_SCALE_GROUP && d % group)
        return "scale_group (0 stands for 128) does not divide d_qk - rope_dims, or d_v";
    return NULL;
}

static const char *values_in_keys_wrong(const tess_problem *p) {
    if (p->v_in_k < 0 || p->v_in_k > 1)
        return "v_in_k is not 0 or 1";
    if (p->v_in_k && p->d_v > p->d_qk - p->rope_dims)
        return "v_in_k: d_v is above d_qk - rope_dims";
    if (p->v_in_k && ((p->v_type && type_of(p, p->v_type) != type_of(p, p->k_type)) || p->v_scale))
        return "v_in_k: values have the keys' type and scales, leave v_type and v_scale 0";
    return NULL;
}

static const char *rope_wrong(const tess_problem *p, tess_type type) {
    if (p->k_rope_type && !p->rope_dims)
        return "k_rope_type is given, and rope_dims is 0";
    if (p->rope_dims && !type_is_of_queries(type))
        return "k_rope_type is not 0, TESS_F16 or TESS_BF16";
    if (p->rope_dims && type != p->type && p->type != TESS_F32)
        return "k_rope_type goes with q of the same type, or of f32";
    return NULL;
}

static const char *caches_wrong(const tess_problem *p, const struct caches *c, int64_t group) {
    const char *wrong;
    if ((wrong = type_wrong(p, c->k_type)) || (wrong = type_wrong(p, c->v_type)) ||
        (wrong = rope_wrong(p, c->k_rope_type)) || (wrong = values_in_keys_wrong(p)))
        return wrong;
    if (p->page_size < 0 || p->page_size > CACHES_PAGE_MOST || p->page_size & (p->page_size - 1))
        return "page_size is not 0 or a power of two up to 4096";
    if (p->scale_group < 0)
        return "scale_group is negative";
    if (p->scale_group && p->k_scale != TESS_SCALE_GROUP && p->v_scale != TESS_SCALE_GROUP)
        return "scale_group is given, and neither k_scale nor v_scale is TESS_SCALE_GROUP";
    if ((wrong = scale_wrong(p->k_scale, c->k_type, group, p->d_qk - p->rope_dims)))
        return wrong;
    return scale_wrong(c->v_scale, c->v_type, group, p->d_v);
}

/* NULL, or what a problem declares that fused attention alone computes. The backward has no use for
 * o_f32. */
static const char *fused_alone(const tess_problem *p, const struct caches *c) {
    return caches_paged(c)                                ? "page_size"
           : p->v_in_k                                    ? "v_in_k"
           : p->rope_dims                                 ? "rope_dims"
           : c->k_type != p->type || c->v_type != p->type ? "k_type or v_type"
           : p->o_f32 && p->operation == TESS_ATTENTION   ? "o_f32"
                                                          : NULL;
}

tess_status caches_check(struct caches *out, const tess_problem *p, const char *function,
                         tess_error *error) {
    const int64_t group = p->scale_group ? p->scale_group : SCALE_GROUP;
    const int64_t d_k = p->d_qk - p->rope_dims;
    *out = (struct caches){
        .k_type = type_of(p, p->k_type),
        .v_type = type_of_values(p),
        .k_rope_type = type_of_rope(p),
        .v_in_k = (int32_t)p->v_in_k,
        .page_shift = p->page_size > 0 ? __builtin_ctzll((uint64_t)p->page_size) : CACHE_WHOLE,
        .k_scale = p->k_scale,
        .v_scale = p->v_in_k ? p->k_scale : p->v_scale,
        .k_group = p->k_scale == TESS_SCALE_GROUP ? group : d_k,
        .v_group = (p->v_in_k ? p->k_scale : p->v_scale) == TESS_SCALE_GROUP ? group
                   : p->v_in_k                                               ? d_k
                                                                             : p->d_v,
    };
    const char *wrong = caches_wrong(p, out, group);
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, function, "problem", "problem: %s", wrong);
    const char *alone = fused_alone(p, out);
    if (alone && p->operation != TESS_ATTENTION)
        return error_set(error, TESS_UNSUPPORTED, function, "problem",
                         "problem: %s does not compute %s: leave it 0",
                         p->operation == TESS_MLP ? "an MLP" : "the backward", alone);
    if (alone && p->pipeline != TESS_FUSED)
        return error_set(error, TESS_UNSUPPORTED, function, "problem",
                         "problem: the staged pipeline does not compute %s: use TESS_FUSED", alone);
    return TESS_OK;
}

int64_t caches_columns(const struct problem *p) {
    return caches_paged(&p->caches) ? ((p->n_kv - 1) >> p->caches.page_shift) + 1 : 0;
}

tess_status caches_pages(int64_t *pages, const struct problem *p, const tess_tensor *k,
                         const char *function, tess_error *error) {
    tess_tensor t;
    *pages = 0;
    if (!caches_paged(&p->caches) || check_stored(&t, k)) /* told by its name, later */
        return TESS_OK;
    *pages = t.size[0];
    return check_size("k", 0, t.size[0], INT32_MAX >> p->caches.page_shift, function, error);
}

/* A tensor of scales beside that of keys or values. */
static tess_status scale_take(struct view *out, int64_t pages, const struct problem *p,
                              const char *name, tess_scaling scale, int64_t groups,
                              const tess_tensor *given, const char *function, tess_error *error) {
    const int paged = caches_paged(&p->caches), rows = scale >= TESS_SCALE_TOKEN;
    const int64_t page = INT64_C(1) << p->caches.page_shift;
    const struct tensor_rule rule = {
        .name = name,
        .type = TESS_F32,
        .size = {!rows   ? 1
                 : paged ? pages
                         : p->batch,
                 scale == TESS_SCALE_TENSOR ? 1 : p->heads_kv,
                 !rows   ? 1
                 : paged ? page
                         : p->n_kv,
                 groups},
        .alignment = (int64_t)sizeof(float),
    };
    if (given && !scale)
        return error_set(error, TESS_INVALID_ARGUMENT, function, name,
                         "%s is given, and the plan's problem does not declare it", name);
    return scale ? check_tensor(out, given, &rule, function, error) : TESS_OK;
}

tess_status caches_take(struct attention_operands *out, const struct problem *p,
                        const tess_arguments *a, const char *function, tess_error *error) {
    const struct caches *c = &p->caches;
    tess_status status = scale_take(&out->k_scale, out->pages, p, "k_scale", c->k_scale,
                                    problem_d_k(p) / c->k_group, a->k_scale, function, error);
    if (!status)
        status = scale_take(&out->v_scale, out->pages, p, "v_scale",
                            c->v_in_k ? TESS_SCALE_NONE : c->v_scale, p->d_v / c->v_group,
                            a->v_scale, function, error);
    if (!status && c->v_in_k)
        out->v_scale = out->k_scale;
    return status;
}
