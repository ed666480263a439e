/* Lanes: a plan on the current device with tensors, workspace, image and stream of its own, to be run as a caller
 * would, from any thread. */
#ifndef TESTS_LANES_H
#define TESTS_LANES_H

#include "lab/run/setting.h"

struct lane {
    const char *text; /* the case */
    struct lab_setting s;
    struct lab_planned planned;
    struct lab_buffer workspace;
    struct lab_sight sight;
    tess_stream stream;
};

/* NULL where the device's architecture has no such kernel: the case names it. */
struct lane *lane_make(const char *text);
void lane_free(struct lane *lane);

/* A fill, where lists are on the device, and a run: on the lane's stream, without waiting. NULL, or why not. */
const char *lane_run(const struct lane *lane, tess_error *error);

/* Poison in all outputs, here and on the device. NULL, or why not. */
const char *lane_clear(struct lane *lane);

/* Waits for the device. What the outputs hold, as a number; 0 and *why where it cannot be had. */
uint64_t lane_bits(struct lane *lane, const char **why);

#endif
