/* One of cuSPARSE's stages, checked and timed. */
#include "measure/trial.h"

#include <stdio.h>

#include "baselines/peer_check.h"

/* A stage, its operands and outputs, which all ways of running one share. */
struct trial {
    const struct bench_peer_kind *kind;
    struct bench_setting *s;
    struct bench_sparse m;
    struct bench_place place; /* with room for an o of f32 */
    struct bench_clock clock;
    void *host, *values; /* the matrix's values, on the device the latter */
    void *host_o, *o;
    size_t o_size;
    char wrong[LAB_WHY];
};

static const char *trial_make(struct trial *t, const struct bench_method *method) {
    const struct lab_case *c = &t->s->lab.c;
    const char *why =
        bench_clock_make(&t->clock, TESS_CUDA, method->timing, method->seconds, method->noise);
    const char *no_place = bench_place_make(&t->place, t->s, NULL, TESS_CUDA, 0);
    if (!why)
        why = no_place;
    if (!why && c->layout != LAB_BHND)
        why = "layout=bhnd only";
    if (!why && lab_case_modifies(c))
        why = "no score modifiers";
    if (!why && c->b * c->h != 1)
        why = "one head only";
    if (!why)
        why = bench_sparse_make(&t->m, t->s->lab.pattern, t->kind->format);
    if (why)
        return why;
    t->o_size = (size_t)(c->n * c->dv) * sizeof(float);
    t->host = lab_device_alloc(TESS_CPU, (size_t)t->m.n_values * sizeof(float));
    t->values = lab_device_alloc(TESS_CUDA, (size_t)t->m.n_values * sizeof(float));
    t->host_o = lab_device_alloc(TESS_CPU, t->o_size);
    t->o = t->place.o.data = lab_device_alloc(TESS_CUDA, t->o_size);
    return t->host && t->values && t->host_o && t->o ? NULL : "out of memory for its values";
}

static void trial_free(struct trial *t) {
    lab_device_free(TESS_CPU, t->host);
    lab_device_free(TESS_CUDA, t->values);
    lab_device_free(TESS_CPU, t->host_o);
    lab_device_free(TESS_CUDA, t->o);
    bench_sparse_free(&t->m);
    bench_place_free(&t->place);
    bench_clock_free(&t->clock);
}

/* Runs once, with what it writes of type_c. Answers NULL, or why not. */
static const char *run_once(struct trial *t, struct bench_peer **peer, tess_type type_c) {
    const struct lab_case *c = &t->s->lab.c;
    const tess_type type = t->kind->stage == TESS_STAGE_SDDMM ? type_c : c->type;
    const size_t size = (size_t)t->m.n_values * tess_type_size(type);
    bench_peer_weights(t->host, type, &t->m, c->seed);
    memset(t->host_o, 0xff, t->o_size); /* NaN: what an earlier peer left may lie there */
    const char *why = lab_device_to_device(TESS_CUDA, t->values, t->host, size);
    if (!why)
        why = lab_device_to_device(TESS_CUDA, t->o, t->host_o, t->o_size);
    if (!why)
        why = bench_peer_make(peer, t->kind, &t->m, c, &t->place.arguments, t->values, type_c);
    if (!why)
        why = bench_peer_run(*peer, t->clock.stream);
    if (!why)
        why = lab_device_to_host(TESS_CUDA, t->host, t->values, size);
    return why ? why : lab_device_to_host(TESS_CUDA, t->host_o, t->o, t->o_size);
}

/* With one type of output. Answers NULL, or why there are no times: it cannot, or its answer is
 * wrong. */
static const char *try_type(struct bench_result *r, struct trial *t, tess_type type_c) {
    struct bench_peer *peer = NULL;
    struct bench_times times;
    const char *why = run_once(t, &peer, type_c);
    if (!why && bench_peer_check(t->kind, &t->m, &t->s->lab, t->host, t->host_o, type_c, t->wrong))
        why = t->wrong;
    const struct bench_work work = {bench_peer_run, peer};
    if (!why)
        why = bench_time(&times, &t->clock, &work);
    if (!why)
        bench_result_take(r, &times);
    bench_peer_free(peer);
    return why;
}

void bench_peer_measure(struct bench_result *r, const struct bench_peer_kind *kind,
                        struct bench_setting *s, const struct bench_method *method) {
    struct trial t = {.kind = kind, .s = s};
    const int sddmm = kind->stage == TESS_STAGE_SDDMM;
    /* first as ours has them: scores in f32, o in the type of the inputs */
    const tess_type types[] = {sddmm ? TESS_F32 : s->lab.c.type, sddmm ? s->lab.c.type : TESS_F32};
    const char *why = trial_make(&t, method);
    if (!why) {
        why = try_type(r, &t, types[0]);
        if (why && types[0] != types[1])
            why = try_type(r, &t, types[1]);
    }
    if (why)
        snprintf(r->note, sizeof r->note, "%s", why);
    trial_free(&t);
}
