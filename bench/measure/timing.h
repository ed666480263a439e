/* How long work on a backend takes. */
#ifndef BENCH_TIMING_H
#define BENCH_TIMING_H

#include "lab/device/device.h"
#include "measure/throttle.h"

/* COLD: nothing is left in the L2 cache before each run. HOT: it is as the run before left it.
 * REPLAY: a CUDA graph of the work, replayed many times between two events, so that neither the
 * host nor an event is in the time of a small kernel. ROTATE: the same of work whose turns differ in what
 * they read, so that it comes from memory. Work on the CPU is timed HOT, in turns where they are asked
 * for. */
enum bench_timing { BENCH_COLD, BENCH_HOT, BENCH_REPLAY, BENCH_ROTATE };
const char *bench_timing_name(enum bench_timing timing); /* "cold", "hot", "replay", "rotate" */

struct bench_clock {
    tess_backend backend;
    enum bench_timing timing;
    double seconds; /* to spend on each bench_time */
    int64_t turns;  /* runs that a graph holds; 1 unless it is set */
    double noise;   /* longer, up to 10 times, until that is this at most; 0: whatever it is */
    struct lab_device_timer timer;
    tess_stream stream;
};

/* Answers NULL, or why not; needs its free in either case. */
const char *bench_clock_make(struct bench_clock *clock, tess_backend backend,
                             enum bench_timing timing, double seconds, double noise);
void bench_clock_free(struct bench_clock *clock);

/* Work that is timed: gives the stream its work and answers NULL, or why not. */
struct bench_work {
    const char *(*run)(void *what, tess_stream stream);
    void *what;
};

struct bench_times {
    double ms, min, max; /* one run's: median, fastest, slowest */
    int64_t runs;        /* runs; of graphs bursts of replays, each giving one mean */
    /* How far the medians of five equal stretches of the runs lie apart, over ms: noise that comes
     * in stretches too. NAN for fewer than five runs. */
    double noise;
    struct bench_throttle throttle; /* CUDA */
};

/* After a run that warms up, at least 5 runs and about the clock's seconds of them, at most 1000; a
 * single one where the warm-up took over a second. Answers NULL, or why not. */
const char *bench_time(struct bench_times *times, struct bench_clock *clock,
                       const struct bench_work *work);

/* Host time of giving work to an idle device: the median of 101, in microseconds. Answers
 * NULL, or why not. */
const char *bench_time_host(double *us, const struct bench_clock *clock,
                            const struct bench_work *work);

#endif
