/* Lists on the device in the benchmark: sets that take turns, each with an image of its
 * own, so that where they do keys come from memory. */
#ifndef BENCH_LISTS_H
#define BENCH_LISTS_H

#include "lab/run/setting.h"
#include "measure/method.h"

enum { BENCH_SETS = 8 };

/* Zeros are no lists. */
struct bench_lists {
    const tess_plan *plan;
    tess_backend backend;
    int64_t sets, turn; /* how many there are; whose turn it is */
    struct lab_listed drawn[BENCH_SETS];
    const struct lab_listed *lists[BENCH_SETS]; /* the first is the setting's */
    struct lab_mirror arrays[BENCH_SETS];
    tess_device_pattern at[BENCH_SETS];
    void *image[BENCH_SETS]; /* the first is the place's */
    size_t image_size;
    int direct; /* 1: a step reads the lists itself, as the plan does and they promise; no image */
};

/* Why a case and its method cannot be measured, or NULL. */
const char *bench_lists_refuses(const struct lab_case *c, const struct bench_method *method);

/* A plan reserved for the lists of a setting. */
tess_status bench_lists_reserve(tess_plan **plan, const struct lab_setting *s,
                                const tess_problem *problem, const tess_target *target,
                                tess_error *error);

/* Draws the sets, which the first image is not, and fills the images. NULL, or why not; bench_lists_free in
 * either case. */
const char *bench_lists_make(struct bench_lists *l, const struct lab_setting *s,
                             const tess_plan *plan, tess_backend backend, int64_t sets, void *image,
                             tess_error *error);
void bench_lists_free(struct bench_lists *l);

/* Gives the stream what chooses the lists of the set whose turn it is: nothing, of most. */
const char *bench_lists_choose(const struct bench_lists *l, tess_error *error, tess_stream stream);

/* Gives the stream the fill of the set whose turn it is. */
const char *bench_lists_fill(const struct bench_lists *l, tess_error *error, tess_stream stream);

/* Gives the stream choice, and fill and run of that set in one call. */
const char *bench_lists_step(const struct bench_lists *l, const tess_arguments *arguments,
                             tess_error *error, tess_stream stream);

/* The next set's turn. */
static inline void bench_lists_next(struct bench_lists *l) {
    l->turn = (l->turn + 1) % l->sets;
}

/* Report of the fill of the first set. NULL, or why it is not known. */
const char *bench_lists_report(const struct bench_lists *l, tess_fill_report *report,
                               tess_error *error);

#endif
