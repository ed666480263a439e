/* How long work takes. */
#include "timing.h"

#include <stdlib.h>

#include "lab/timer.h"

enum { LEAST_RUNS = 5, MOST_RUNS = 1000, MOST_REPLAYS = 1000 };
static const double SLOW_SECONDS = 1, BURST_MS = 1;

const char *bench_timing_name(enum bench_timing timing) {
    static const char *const names[] = {"cold", "hot", "replay"};
    return names[timing];
}

const char *bench_clock_make(struct bench_clock *clock, tess_backend backend,
                             enum bench_timing timing, double seconds) {
    memset(clock, 0, sizeof *clock);
    clock->backend = backend;
    clock->timing = backend == TESS_CPU ? BENCH_HOT : timing;
    clock->seconds = seconds;
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

/* As many replays as take BURST_MS. */
static const char *choose_count(int64_t *count, struct bench_clock *clock, void *graph) {
    double ms = 0;
    const char *why = NULL;
    for (*count = 1; !why; *count *= 2) {
        why = time_burst(&ms, clock, NULL, graph, *count);
        if (ms >= BURST_MS || 2 * *count > MOST_REPLAYS)
            break;
    }
    return why;
}

static const char *time_runs(struct bench_times *times, struct bench_clock *clock,
                             const struct bench_work *work, void *graph) {
    double all[MOST_RUNS], ms, began = lab_seconds();
    int64_t runs = 0, count = 1, least = LEAST_RUNS;
    const char *why = time_burst(&ms, clock, work, graph, 1); /* warms up */
    if (!why && graph)
        why = choose_count(&count, clock, graph);
    if (lab_seconds() - began > SLOW_SECONDS)
        least = 1;
    began = lab_seconds();
    while (!why && runs < MOST_RUNS && (runs < least || lab_seconds() - began < clock->seconds)) {
        why = time_burst(&ms, clock, work, graph, count);
        all[runs++] = ms / (double)count;
    }
    if (why)
        return why;
    qsort(all, (size_t)runs, sizeof *all, ascending);
    times->runs = runs;
    times->min = all[0];
    times->max = all[runs - 1];
    times->ms = runs % 2 ? all[runs / 2] : 0.5 * (all[runs / 2 - 1] + all[runs / 2]);
    return NULL;
}

const char *bench_time(struct bench_times *times, struct bench_clock *clock,
                       const struct bench_work *work) {
    void *graph = NULL;
    const char *why = NULL;
    if (clock->timing == BENCH_REPLAY) {
        why = work->run(work->what, clock->stream); /* a library's first call may allocate */
        if (!why)
            why = lab_device_synchronize(clock->backend);
        if (!why)
            why = lab_device_graph_begin(clock->backend, clock->stream);
        if (why)
            return why;
        why = work->run(work->what, clock->stream);
        const char *broken = lab_device_graph_end(clock->backend, clock->stream, &graph);
        why = why ? why : broken;
    }
    if (!why)
        why = time_runs(times, clock, work, graph);
    lab_device_graph_free(clock->backend, graph);
    return why;
}
