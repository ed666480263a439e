/*
 * Reserved plans: kernels and sizes for a capacity. Lists and schedule come with the image, which a
 * fill writes and a run reads (docs/design/device_lists.md).
 */
#ifndef TESSERA_RESERVE_H
#define TESSERA_RESERVE_H

#include "plan/plan.h"

/* Facts of lists that a fill writes into a part of an image, for the kernel of one pass. */
struct reserved {
    struct fill_shape shape;
    struct fill_splits splits;
    int direct;                     /* its kernel reads lists itself, where they are distinct */
    int64_t units;                  /* query tiles of all heads, heads packed in one once */
    int64_t items, combines, slots; /* at most */
    uint64_t layout;                /* a number of all of the above: images of other plans differ */
    double launch_seconds, item_seconds, key_seconds; /* predicted, of one thread */
    struct work work; /* lists and schedule of the capacity, with nothing in them */
};

/* Lists and schedule in a part that a fill has written, which a run's arguments point to. */
struct filled_work {
    struct filled_image image;
    struct lists lists;
    struct schedule schedule; /* on the host alone */
};

/* Checks a device pattern against a problem and turns it into a shape, but for its tiles. */
tess_status check_device_pattern(struct fill_shape *out, const tess_device_pattern *given,
                                 const struct problem *problem, const char *function,
                                 tess_error *error);

/* Checks that a pattern has the shape that was reserved, and the arrays of its form; *out is what the
 * caller gave. */
tess_status check_filling(tess_device_pattern *out, const tess_device_pattern *given,
                          const tess_plan *plan, const char *function, tess_error *error);

/* Makes a plan of what has been checked, but for its tiles. Errors name tess_plan_create. */
tess_status reserve_make(tess_plan **plan, const struct problem *problem, const char *kernel,
                         const struct fill_shape *shape, const tess_target *target,
                         const struct backend *backend, tess_error *error);

void reserved_free(struct reserved *reserved);

/* Bytes of what a plan knows about lists that come with the image. */
size_t reserve_memory(const tess_plan *plan);

/* The most keys that a tile lists. */
int64_t reserve_keys_most(const struct fill_shape *shape);

/* Keys of all query tiles of all lists of a part where each has as many as its capacity holds. */
int64_t reserve_keys(const tess_plan *plan, const struct reserved *reserved);

/* Bytes that a run moves at least, and seconds that it is predicted to take, where a fill lists so many keys
 * (tess_fill_report); -1: reserve_keys. Bytes are those of the first pass. */
double reserve_bytes(const tess_plan *plan, int64_t keys);
double reserve_seconds(const tess_plan *plan, int64_t keys);

/* Fills the parts of an image, in the order of the stream, from what check_filling answered. */
struct filling {
    const tess_device_pattern *pattern;
    void *report; /* TESS_REPORT_SIZE bytes for a copy of the report, or NULL */
};
tess_status reserve_fill(const tess_plan *plan, const struct filling *filling, const char *function,
                         const void *image, tess_stream stream, tess_error *error);

/* The job of a part that a backend is handed: image and pattern are placed, and not looked at. */
struct fill_job reserve_job(const tess_plan *plan, const struct part *part,
                            const tess_device_pattern *pattern, const void *image);

/* Whether all passes over lists read them themselves (tess_plan_info, fill_run_direct). */
int reserve_direct(const tess_plan *plan);

/* Has a pass's arguments walk its part of an image, or lists that are given; `work` is what they point to. */
void reserve_bind(struct kernel_args *args, struct filled_work *work, const tess_plan *plan,
                  const struct part *part, const void *image);

/* Reads the schedule of a filled image of the host: INVALID_ARGUMENT where this plan has not filled it. An
 * image of a device is left to the kernels. */
tess_status reserve_read(struct kernel_args *args, struct filled_work *work, const tess_plan *plan,
                         const struct part *part, const void *image, tess_error *error);

/* Counts of an image's fill, by its first part. Answers 0, or -1 where this plan has not filled it. */
int reserve_report(const tess_plan *plan, const void *image, tess_fill_report *report);

#endif
