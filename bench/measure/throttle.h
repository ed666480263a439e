/* How fast a GPU's clocks run while it is measured, and what holds them back. */
#ifndef BENCH_THROTTLE_H
#define BENCH_THROTTLE_H

/* Clocks and brakes seen since the struct was all zeros. */
struct bench_throttle {
    unsigned sm_mhz;     /* lowest; 0: not known */
    unsigned held_back;  /* bits of NVML's clocks event reasons */
    double last_seconds; /* when it was looked at */
};

/* Looks at the current CUDA device, at most ten times a second and by NVML, loaded when first
 * called; without it nothing is known. */
void bench_throttle_look(struct bench_throttle *seen);

enum { BENCH_THROTTLE_TEXT = 32 };

/* Brakes that held clocks back: "", "power", "heat", "hardware", or several joined by '+'. */
void bench_throttle_text(char text[BENCH_THROTTLE_TEXT], const struct bench_throttle *seen);

#endif
