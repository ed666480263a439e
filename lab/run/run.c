/* One run of a plan. */
#include "lab/run/run.h"

#include "lab/device/device.h"

#include <stdio.h>

typedef tess_status call(const tess_plan *, const tess_arguments *, tess_error *, tess_stream);

static int say(char why[LAB_WHY], const char *what, const char *reason) {
    snprintf(why, LAB_WHY, "%.60s: %.250s", what, reason);
    return -1;
}

/* ---- plans and their images ---- */

static tess_status fill(const struct lab_planned *p, tess_error *error, tess_stream stream) {
    const tess_status status = lab_listed_choose(p->listed, &p->home, error, stream);
    return status ? status
                  : tess_plan_fill(p->plan, &p->lists, p->place, p->image.size, error, stream);
}

static tess_status fill_run(const struct lab_run *run, const tess_arguments *a, tess_error *error,
                            tess_stream stream) {
    const struct lab_planned *p = run->planned;
    const int direct = run->launch == LAB_DIRECT;
    tess_arguments given = *a;
    given.image = NULL;
    const tess_status status = lab_listed_choose(p->listed, &p->home, error, stream);
    return status ? status
                  : tess_plan_fill_run(p->plan, &p->lists, direct ? NULL : p->place,
                                       direct ? 0 : p->image.size, NULL, &given, error, stream);
}

static tess_status image_fill(struct lab_planned *p, tess_error *error) {
    char why[LAB_WHY];
    size_t size = tess_plan_image_size(p->plan);
    if (size == 0)
        return TESS_OK;
    if (lab_buffer_make(&p->image, size, p->listed ? 256 : 64))
        return TESS_OUT_OF_MEMORY;
    p->place = lab_mirror_add(&p->home, &p->image);
    if (!p->place) {
        snprintf(error->message, sizeof error->message, "the image: %s", p->home.why);
        return TESS_OUT_OF_MEMORY;
    }
    tess_status status =
        p->listed ? fill(p, error, NULL) : tess_plan_upload(p->plan, p->place, size, error, NULL);
    const char *broken = status ? NULL : lab_mirror_fetch(&p->home);
    if (!status && !broken && lab_buffer_check(&p->image, "the image", why))
        broken = why;
    p->hash = lab_buffer_hash(&p->image);
    if (!broken)
        return status;
    snprintf(error->message, sizeof error->message, "the %s: %.200s", p->listed ? "fill" : "upload",
             broken);
    return TESS_CUDA_ERROR;
}

tess_status lab_planned_make(struct lab_planned *p, const tess_problem *problem,
                             const tess_pattern *pattern, const tess_target *target,
                             tess_error *error) {
    memset(p, 0, sizeof *p);
    p->backend = target->backend;
    lab_mirror_make(&p->home, target->backend);
    tess_status status = tess_plan_create(&p->plan, problem, pattern, target, error);
    return status ? status : image_fill(p, error);
}

tess_status lab_planned_reserve(struct lab_planned *p, const tess_problem *problem,
                                const struct lab_listed *listed, const tess_target *target,
                                tess_error *error) {
    const tess_device_pattern declared = lab_listed_declared(listed);
    memset(p, 0, sizeof *p);
    p->backend = target->backend;
    p->listed = listed;
    lab_mirror_make(&p->home, target->backend);
    tess_status status = tess_plan_reserve(&p->plan, problem, &declared, target, error);
    if (!status && lab_listed_place(listed, &p->home, &p->lists)) {
        snprintf(error->message, sizeof error->message, "the lists: %s", p->home.why);
        return TESS_OUT_OF_MEMORY;
    }
    return status ? status : image_fill(p, error);
}

void lab_planned_free(struct lab_planned *p) {
    tess_plan_free(p->plan);
    lab_mirror_free(&p->home);
    lab_buffer_free(&p->image);
    memset(p, 0, sizeof *p);
}

/* ---- launching ---- */

static const char *replay(call *function, const struct lab_run *run, const tess_arguments *a,
                          tess_error *error, tess_stream stream) {
    tess_backend backend = run->planned->backend;
    void *graph;
    const char *why = lab_device_graph_begin(backend, stream);
    if (why)
        return why;
    const tess_status status = run->planned->listed
                                   ? fill_run(run, a, error, stream)
                                   : function(run->planned->plan, a, error, stream);
    why = lab_device_graph_end(backend, stream, &graph);
    if (status)
        why = error->message;
    for (int i = 0; i < 2 && !why; i++)
        why = lab_device_graph_launch(backend, graph, stream);
    if (!why)
        why = lab_device_synchronize(backend);
    lab_device_graph_free(backend, graph);
    return why;
}

static const char *launch(call *function, const struct lab_run *run, const tess_arguments *a,
                          tess_error *error) {
    tess_backend backend = run->planned->backend;
    tess_stream stream = NULL;
    const char *why = run->launch == LAB_PLAIN ? NULL : lab_device_stream_make(backend, &stream);
    if (why)
        return why;
    if (run->launch == LAB_GRAPH || run->launch == LAB_DIRECT)
        why = replay(function, run, a, error, stream);
    else if (function(run->planned->plan, a, error, stream) != TESS_OK)
        why = error->message;
    if (!why)
        why = lab_device_synchronize(backend);
    lab_device_stream_free(backend, stream);
    return why;
}

/* ---- what a call is handed ---- */

/* A tensor or array of a call: where its view or address stands in tess_arguments. */
struct part {
    const char *name;
    const struct lab_tensor *tensor; /* NULL: an array */
    const struct lab_buffer *buffer;
    size_t slot;
    int written;
};

struct parts {
    struct part part[LAB_RUN_PARTS];
    int count;
};

/* Nothing where there is no such tensor, or it has no memory. */
static void tensor_add(struct parts *all, const char *name, const struct lab_tensor *tensor,
                       size_t slot, int written) {
    if (tensor && tensor->buffer.base)
        all->part[all->count++] = (struct part){name, tensor, &tensor->buffer, slot, written};
}

static void array_add(struct parts *all, const char *name, const struct lab_buffer *buffer,
                      size_t slot, int written) {
    if (buffer->base)
        all->part[all->count++] = (struct part){name, NULL, buffer, slot, written};
}

#define SLOT(field) offsetof(tess_arguments, field)
static struct parts parts_of(const struct lab_run *run) {
    struct parts all = {.count = 0};
    const struct lab_given *given = run->given;
    const struct lab_wanted *wanted = run->wanted;
    const struct lab_cache *cache = run->cache;
    tensor_add(&all, "q", cache ? lab_cache_q(cache, run->q) : run->q, SLOT(q), 0);
    tensor_add(&all, "k", cache ? lab_cache_k(cache, run->k) : run->k, SLOT(k), 0);
    if (!cache || !cache->v_in_k)
        tensor_add(&all, "v", cache ? lab_cache_v(cache, run->v) : run->v, SLOT(v), 0);
    if (cache) {
        array_add(&all, "page_table", &cache->table, SLOT(page_table), 0);
        tensor_add(&all, "k_scale", &cache->k_scale, SLOT(k_scale), 0);
        tensor_add(&all, "v_scale", &cache->v_scale, SLOT(v_scale), 0);
        tensor_add(&all, "q_rope", &cache->q_rope, SLOT(q_rope), 0);
        tensor_add(&all, "k_rope", &cache->k_rope, SLOT(k_rope), 0);
    }
    if (run->base) {
        tensor_add(&all, "base_o", &run->base->o, SLOT(base_o), 0);
        tensor_add(&all, "base_lse", &run->base->lse, SLOT(base_lse), 0);
    }
    if (run->mlp) {
        tensor_add(&all, "bias", &run->mlp->bias, SLOT(bias), 0);
        tensor_add(&all, "bias_out", &run->mlp->bias_out, SLOT(bias_out), 0);
        tensor_add(&all, "activations", &run->mlp->cache, SLOT(activations), 1);
    }
    tensor_add(&all, "o", run->o, SLOT(o), !given);
    tensor_add(&all, "lse", run->lse, SLOT(lse), !given);
    if (run->sums) {
        tensor_add(&all, "lse_reference", &run->sums->reference, SLOT(lse_reference), 0);
        tensor_add(&all, "column_sums", &run->sums->sums, SLOT(column_sums), 1);
    }
    if (given) {
        tensor_add(&all, "d_o", &given->d_o, SLOT(d_o), 0);
        tensor_add(&all, "d_lse", &given->d_lse, SLOT(d_lse), 0);
        tensor_add(&all, "o_rest", &given->o_rest, SLOT(o_rest), 0);
        tensor_add(&all, "delta", &given->delta, SLOT(delta), !wanted);
    }
    if (wanted) {
        tensor_add(&all, "d_q", &wanted->d_q, SLOT(d_q), 1);
        tensor_add(&all, "d_k", &wanted->d_k, SLOT(d_k), 1);
        tensor_add(&all, "d_v", &wanted->d_v, SLOT(d_v), 1);
        array_add(&all, "d_alibi", &wanted->d_alibi, SLOT(d_alibi), 1);
        array_add(&all, "d_sink", &wanted->d_sink, SLOT(d_sink), 1);
    }
    return all;
}

static int part_place(struct lab_sight *s, const struct part *part, tess_tensor *view) {
    void *at;
    if (part->tensor && lab_mirror_tensor(&s->mirror, part->tensor, view))
        return -1;
    at = part->tensor ? view : lab_mirror_add(&s->mirror, part->buffer);
    memcpy((char *)&s->arguments + part->slot, &at, sizeof at);
    return at ? 0 : -1;
}

/* scores NULL: none. */
static int sight_make(struct lab_sight *s, const struct lab_run *run, const struct parts *parts,
                      const struct lab_buffer *workspace, const struct lab_buffer *scores) {
    tess_arguments *a = &s->arguments;
    *a = tess_arguments_init();
    lab_mirror_make(&s->mirror, run->planned->backend);
    for (int i = 0; i < parts->count; i++)
        if (part_place(s, &parts->part[i], &s->view[i]))
            return -1;
    a->page_table_stride = run->cache ? run->cache->table_stride : 0;
    if (run->base)
        a->base = run->base->basing.how, a->beta = run->base->basing.beta;
    a->workspace = lab_mirror_add(&s->mirror, workspace), a->workspace_size = workspace->size;
    if (scores)
        a->scores = lab_mirror_add(&s->mirror, scores);
    if (run->modifiers && lab_modifiers_place(run->modifiers, &s->mirror, a))
        return -1;
    a->image = run->planned->place, a->image_size = run->planned->image.size;
    return a->workspace && (a->scores || !scores) ? 0 : -1;
}

int lab_run_place(struct lab_sight *sight, const struct lab_run *run,
                  const struct lab_buffer *workspace) {
    const struct parts parts = parts_of(run);
    return sight_make(sight, run, &parts, workspace, NULL);
}

/* image: the hash of what it held before. A fill may write its unused places otherwise. */
static int guards(const struct lab_run *run, const struct parts *parts,
                  const struct lab_buffer *workspace, const struct lab_buffer *scores,
                  uint64_t image, char why[LAB_WHY]) {
    const struct lab_planned *p = run->planned;
    for (int i = 0; i < parts->count; i++) {
        const struct part *part = &parts->part[i];
        if (part->tensor ? lab_tensor_check(part->tensor, part->name, why)
                         : lab_buffer_check(part->buffer, part->name, why))
            return -1;
    }
    if (lab_buffer_check(workspace, "the workspace", why) ||
        (scores && lab_buffer_check(scores, "scores", why)) ||
        (run->modifiers && lab_modifiers_check(run->modifiers, why)) ||
        (p->listed && lab_listed_check(p->listed, why)) ||
        (p->place && lab_buffer_check(&p->image, "the image", why)))
        return -1;
    const int filled = p->listed && run->launch == LAB_GRAPH;
    if (p->place && !filled && lab_buffer_hash(&p->image) != image)
        return say(why, "the image", "it was written to");
    return 0;
}

/* ---- one call ---- */

static int call_once(call *function, const struct lab_run *run, size_t workspace_size,
                     const struct lab_buffer *scores, const char *what, char why[LAB_WHY]) {
    tess_error error = tess_error_init();
    const struct parts parts = parts_of(run);
    struct lab_sight sight;
    struct lab_buffer workspace;
    const char *broken = NULL;
    const uint64_t image =
        run->planned->listed ? lab_buffer_hash(&run->planned->image) : run->planned->hash;
    if (lab_buffer_make(&workspace, workspace_size, 64))
        return say(why, what, "out of memory for the workspace");
    if (sight_make(&sight, run, &parts, &workspace, scores))
        broken = sight.mirror.why;
    if (!broken)
        broken = launch(function, run, &sight.arguments, &error);
    if (!broken)
        broken = lab_mirror_fetch(&sight.mirror);
    if (!broken)
        broken = lab_mirror_fetch(&run->planned->home);
    int failed =
        broken ? say(why, what, broken) : guards(run, &parts, &workspace, scores, image, why);
    lab_mirror_free(&sight.mirror);
    lab_buffer_free(&workspace);
    return failed;
}

/* ---- runs ---- */

static uint64_t inputs_hash(const struct lab_run *run) {
    const struct parts parts = parts_of(run);
    uint64_t hash = run->modifiers ? lab_modifiers_hash(run->modifiers) : 0;
    if (run->planned->listed)
        hash ^= lab_listed_hash(run->planned->listed);
    for (int i = 0; i < parts.count; i++)
        if (!parts.part[i].written)
            hash = 31 * hash + lab_buffer_hash(parts.part[i].buffer);
    return hash;
}

static void poison_outputs(const struct lab_run *run) {
    const struct parts parts = parts_of(run);
    for (int i = 0; i < parts.count; i++)
        if (parts.part[i].written &&
            parts.part[i].slot !=
                SLOT(activations)) { /* the parts are views of what the caller lent to be written */
            struct lab_buffer buffer = *parts.part[i].buffer;
            lab_buffer_poison(&buffer);
        }
    if (run->mlp && !run->keeps_cache)
        lab_mlp_reset(run->mlp);
}

static int whole(call *function, const struct lab_run *run, size_t workspace, const char *name,
                 char why[LAB_WHY]) {
    uint64_t before = inputs_hash(run);
    poison_outputs(run);
    if (call_once(function, run, workspace, NULL, name, why))
        return -1;
    return inputs_hash(run) == before ? 0 : say(why, name, "an input was written to");
}

int lab_run_whole(const struct lab_run *run, char why[LAB_WHY]) {
    return whole(tess_run, run, tess_plan_workspace_size(run->planned->plan), "tess_run", why);
}

int lab_run_delta(const struct lab_run *run, char why[LAB_WHY]) {
    return whole(tess_delta, run,
                 tess_plan_stage_workspace_size(run->planned->plan, TESS_STAGE_DELTA), "tess_delta",
                 why);
}

int lab_run_stages(const struct lab_run *run, char why[LAB_WHY]) {
    static const struct {
        tess_stage stage;
        call *function;
    } stages[] = {{TESS_STAGE_SDDMM, tess_sddmm},
                  {TESS_STAGE_SOFTMAX, tess_softmax},
                  {TESS_STAGE_SPMM, tess_spmm}};
    const tess_plan *plan = run->planned->plan;
    uint64_t before = inputs_hash(run);
    struct lab_buffer scores;
    if (lab_buffer_make(&scores, (size_t)tess_plan_scores_count(plan) * sizeof(float), 64))
        return say(why, "scores", "out of memory");
    poison_outputs(run);
    int failed = 0;
    for (int s = 0; s < 3 && !failed; s++)
        failed = call_once(stages[s].function, run,
                           tess_plan_stage_workspace_size(plan, stages[s].stage), &scores,
                           tess_stage_name(stages[s].stage), why);
    if (!failed && inputs_hash(run) != before)
        failed = say(why, "the stages", "an input was written to");
    lab_buffer_free(&scores);
    return failed;
}
