/* Wall-clock time, from the monotonic clock. */
#define _POSIX_C_SOURCE 200809L
#include "lab/device/timer.h"

#include <time.h>

double lab_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
