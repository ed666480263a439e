/* Clocks by NVML. Its numbers as NVIDIA documents them, declared here because the library may be
 * absent where this is built. */
#include "measure/throttle.h"

#include <stdio.h>
#include <string.h>

#include "lab/device/device.h"
#include "lab/device/timer.h"
#include "baselines/library.h"

enum { CLOCK_SM = 1 };
static const double INTERVAL_SECONDS = 0.1;

typedef struct nvmlDevice_st *device;

static struct {
    int tried;
    const char *why; /* reason why NVML cannot be used */
    char words[BENCH_LIBRARY_WHY];
    device device;
    int (*init)(void);
    int (*by_bus)(const char *, device *);
    int (*clock)(device, int, unsigned *);
    int (*reasons)(device, unsigned long long *);
} nvml;

static const char *load(void) {
    static const char *const names[] = {"libnvidia-ml.so.1", NULL};
    const struct bench_entry entries[] = {
        {"nvmlInit_v2", &nvml.init},
        {"nvmlDeviceGetHandleByPciBusId_v2", &nvml.by_bus},
        {"nvmlDeviceGetClockInfo", &nvml.clock},
        {"nvmlDeviceGetCurrentClocksThrottleReasons", &nvml.reasons},
    };
    char bus[LAB_BUS_TEXT];
    const char *why = lab_device_bus(TESS_CUDA, bus);
    if (!why)
        why = bench_library_load(names, entries, sizeof entries / sizeof *entries, nvml.words);
    if (!why && (nvml.init() != 0 || nvml.by_bus(bus, &nvml.device) != 0))
        why = "NVML does not answer";
    return why;
}

void bench_throttle_look(struct bench_throttle *seen) {
    unsigned mhz;
    unsigned long long reasons;
    const double now = lab_seconds();
    if (!nvml.tried)
        nvml.why = load();
    nvml.tried = 1;
    if (nvml.why || (seen->last_seconds > 0 && now - seen->last_seconds < INTERVAL_SECONDS))
        return;
    seen->last_seconds = now;
    if (nvml.clock(nvml.device, CLOCK_SM, &mhz) == 0 && mhz &&
        (!seen->sm_mhz || mhz < seen->sm_mhz))
        seen->sm_mhz = mhz;
    if (nvml.reasons(nvml.device, &reasons) == 0)
        seen->held_back |= (unsigned)reasons;
}

void bench_throttle_text(char text[BENCH_THROTTLE_TEXT], const struct bench_throttle *seen) {
    static const struct {
        unsigned bits;
        const char *word;
    } reasons[] = {
        {0x04 | 0x80, "power"}, /* the GPU's cap, an external brake */
        {0x20 | 0x40, "heat"},  /* by software, by hardware */
        {0x08, "hardware"},
    };
    text[0] = '\0';
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (seen->held_back & reasons[i].bits)
            snprintf(text + strlen(text), BENCH_THROTTLE_TEXT - strlen(text), "%s%s",
                     text[0] ? "+" : "", reasons[i].word);
}
