/* How long work takes. */
#include "measure/timing.h"

#include <math.h>
#include <stdlib.h>

#include "lab/device/timer.h"

enum { LEAST_RUNS = 5, MOST_RUNS = 1000, MOST_REPLAYS = 1000, STRETCHES = 5, HOST_RUNS = 101 };
static const double SLOW_SECONDS = 1, BURST_MS = 1, PATIENCE = 10;

const char *bench_timing_name(enum bench_timing timing) {
    static const char *const names[] = {"cold", "hot", "replay", "rotate"};
    return names[timing];
}

const char *bench_clock_make(struct bench_clock *clock, tess_backend backend,
                             enum bench_timing timing, double seconds, double noise) {
    memset(clock, 0, sizeof *clock);
    clock->backend = backend;
    clock->timing = backend == TESS_CPU && timing != BENCH_ROTATE ? BENCH_HOT : timing;
    clock->seconds = seconds;
    clock->noise = noise;
    clock->turns = 1;
    const char *why = lab_device_timer_make(&clock->timer, backend);
    return why ? why : lab_device_stream_make(backend, &clock->stream);
}

void bench_clock_free(struct bench_clock *clock) {
    lab_device_stream_free(clock->backend, clock->stream);
    lab_device_timer_free(&clock->timer);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of x in any order, which is sorted. */
static double median(double *x, int64_t count) {
    qsort(x, (size_t)count, sizeof *x, ascending);
    return count % 2 ? x[count / 2] : 0.5 * (x[count / 2 - 1] + x[count / 2]);
}

/* bench_times.noise of runs in the order in which they were made. */
static double noise_of(const double *ms, int64_t runs) {
    double sorted[MOST_RUNS], low = INFINITY, high = 0;
    if (runs < STRETCHES)
        return NAN;
    memcpy(sorted, ms, (size_t)runs * sizeof *ms);
    for (int s = 0; s < STRETCHES; s++) {
        const int64_t begin = runs * s / STRETCHES, end = runs * (s + 1) / STRETCHES;
        const double x = median(sorted + begin, end - begin);
        low = fmin(low, x);
        high = fmax(high, x);
    }
    return (high - low) / median(sorted, runs);
}

/* `count` runs, or replays of the graph where there is one, in *ms together. */
static const char *time_burst(double *ms, struct bench_clock *clock, const struct bench_work *work,
                              void *graph, int64_t count) {
    const char *why =
        clock->timing == BENCH_COLD ? lab_device_timer_flush(&clock->timer, clock->stream) : NULL;
    if (!why)
        why = lab_device_timer_start(&clock->timer, clock->stream);
    for (int64_t i = 0; i < count && !why; i++)
        why = graph ? lab_device_graph_launch(clock->backend, graph, clock->stream)
                    : work->run(work->what, clock->stream);
    return why ? why : lab_device_timer_stop(&clock->timer, clock->stream, ms);
}

/* Count of replays that take BURST_MS. */
static const char *select_count(int64_t *count, struct bench_clock *clock, void *graph) {
    double ms = 0;
    const char *why = NULL;
    for (*count = 1; !why; *count *= 2) {
        why = time_burst(&ms, clock, NULL, graph, *count);
        if (ms >= BURST_MS || 2 * *count > MOST_REPLAYS)
            break;
    }
    return why;
}

static int wants_more(const struct bench_clock *clock, const double *ms, int64_t runs,
                      int64_t least, double seconds) {
    if (runs < least || seconds < clock->seconds)
        return 1;
    return least > 1 && clock->noise > 0 && seconds < PATIENCE * clock->seconds &&
           noise_of(ms, runs) > clock->noise;
}

static const char *time_runs(struct bench_times *times, struct bench_clock *clock,
                             const struct bench_work *work, void *graph) {
    double all[MOST_RUNS], ms, began = lab_seconds();
    int64_t runs = 0, count = 1, least = LEAST_RUNS;
    const char *why = time_burst(&ms, clock, work, graph, 1); /* warms up */
    if (!why && graph)
        why = select_count(&count, clock, graph);
    if (lab_seconds() - began > SLOW_SECONDS)
        least = 1;
    memset(&times->throttle, 0, sizeof times->throttle);
    began = lab_seconds();
    while (!why && runs < MOST_RUNS && wants_more(clock, all, runs, least, lab_seconds() - began)) {
        why = time_burst(&ms, clock, work, graph, count);
        all[runs++] = ms / (double)count;
        if (clock->backend == TESS_CUDA)
            bench_throttle_look(&times->throttle);
    }
    if (why)
        return why;
    times->runs = runs;
    times->noise = noise_of(all, runs);
    times->ms = median(all, runs);
    times->min = all[0];
    times->max = all[runs - 1];
    return NULL;
}

/* Graphs of the CPU there are none. */
static int is_replayed(const struct bench_clock *clock) {
    return clock->backend == TESS_CUDA &&
           (clock->timing == BENCH_REPLAY || clock->timing == BENCH_ROTATE);
}

const char *bench_time(struct bench_times *times, struct bench_clock *clock,
                       const struct bench_work *work) {
    void *graph = NULL;
    const char *why = NULL;
    if (is_replayed(clock)) {
        why = work->run(work->what, clock->stream); /* a library's first call may allocate */
        if (!why)
            why = lab_device_synchronize(clock->backend);
        if (!why)
            why = lab_device_graph_begin(clock->backend, clock->stream);
        if (why)
            return why;
        for (int64_t turn = 0; turn < clock->turns && !why; turn++)
            why = work->run(work->what, clock->stream);
        const char *broken = lab_device_graph_end(clock->backend, clock->stream, &graph);
        why = why ? why : broken;
    }
    if (!why)
        why = time_runs(times, clock, work, graph);
    if (!why && graph)
        times->ms /= (double)clock->turns, times->min /= (double)clock->turns,
            times->max /= (double)clock->turns;
    lab_device_graph_free(clock->backend, graph);
    return why;
}

const char *bench_time_host(double *us, const struct bench_clock *clock,
                            const struct bench_work *work) {
    double all[HOST_RUNS];
    for (int i = 0; i < HOST_RUNS; i++) {
        const char *why = lab_device_synchronize(clock->backend);
        const double began = lab_seconds();
        if (!why)
            why = work->run(work->what, clock->stream);
        all[i] = 1e6 * (lab_seconds() - began);
        if (why)
            return why;
    }
    *us = median(all, HOST_RUNS);
    return NULL;
}
