/* tessera info: what this build and this machine can do. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/arguments.h"
#include "cli/commands.h"

static error_t parse(int key, char *argument, struct argp_state *state) {
    (void)state;
    if (key == ARGP_KEY_ARG) {
        report("info", "%s: no argument is taken", argument);
        return EINVAL;
    }
    return ARGP_ERR_UNKNOWN;
}

static void print_device(tess_backend backend, int32_t number) {
    tess_error error = tess_error_init();
    tess_device_info device = tess_device_info_init();
    const char *name = tess_backend_name(backend);
    if (tess_device_describe(backend, number, &device, &error) != TESS_OK) {
        printf("%-10s %d: %s\n", name, number, error.message);
        return;
    }
    printf("%-10s %d: %s, ", name, number, device.name);
    if (backend == TESS_CPU)
        printf("%d threads", device.multiprocessors);
    else
        printf("sm_%d, %d multiprocessors", device.architecture, device.multiprocessors);
    printf(", %.1f GiB of memory", (double)device.memory_size / (1 << 30));
    if (device.cache_size > 0)
        printf(", %.1f MiB of cache", (double)device.cache_size / (1 << 20));
    printf("\n");
}

static void print_devices(tess_backend backend) {
    int32_t count = tess_device_count(backend);
    for (int32_t i = 0; i < count; i++)
        print_device(backend, i);
    if (count == 0) {
        tess_error error = tess_error_init();
        tess_target target = tess_target_init();
        tess_target_query(&target, backend, 0, &error);
        printf("%-10s none: %s\n", tess_backend_name(backend), error.message);
    }
}

int info_main(int argc, char **argv) {
    static const struct argp argp = {
        NULL,
        parse,
        NULL,
        "Prints the version, the instruction-set level, the devices of each "
        "backend and the kernels compiled in.",
        NULL,
        NULL,
        NULL};
    int status = arguments_parse(&argp, "info", argc, argv, NULL);
    if (status != EXIT_DONE)
        return status;
    printf("tessera    %s\nisa        %s\n", tess_version(), tess_cpu_isa());
    print_devices(TESS_CPU);
    print_devices(TESS_CUDA);
    for (int64_t i = 0; i < tess_kernel_count(); i++) {
        tess_kernel_info kernel = tess_kernel_info_init();
        if (tess_kernel_describe(i, &kernel, NULL) == TESS_OK)
            printf("kernel     %s (%s %s)%s%s\n", kernel.name, tess_backend_name(kernel.backend),
                   tess_stage_name(kernel.stage), kernel.unusable ? ": unusable: " : "",
                   kernel.unusable ? kernel.unusable : "");
    }
    return EXIT_DONE;
}
