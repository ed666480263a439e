/* tessera info: what this build and this machine can do. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/arguments.h"
#include "cli/commands.h"

enum { KEY_KERNELS = 0x6000, REASONS = 8 };

static const struct argp_option options_table[] = {
    {"kernels", KEY_KERNELS, NULL, 0, "name every kernel that this machine cannot use, with why",
     0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    bool *every = state->input;
    if (key == KEY_KERNELS) {
        *every = true;
        return 0;
    }
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

static void print_kernel(const tess_kernel_info *kernel) {
    printf("kernel     %s (%s %s)%s%s\n", kernel->name, tess_backend_name(kernel->backend),
           tess_stage_name(kernel->stage), kernel->unusable ? ": unusable: " : "",
           kernel->unusable ? kernel->unusable : "");
}

/* The kernels of a backend that cannot be used for one reason. */
struct unusable {
    tess_backend backend;
    const char *reason;
    int64_t n;
};

/* Counts the kernel among those of its reason; false where there is no room for another. */
static bool unusable_add(struct unusable *all, const tess_kernel_info *kernel) {
    struct unusable *u = all;
    while (u < all + REASONS && u->n &&
           (u->backend != kernel->backend || strcmp(u->reason, kernel->unusable) != 0))
        u++;
    if (u == all + REASONS)
        return false;
    *u = (struct unusable){kernel->backend, kernel->unusable, u->n + 1};
    return true;
}

/* Kernels by name, unusable ones by number and reason unless `every` is to be named. */
static void print_kernels(bool every) {
    struct unusable all[REASONS] = {{0}};
    for (int64_t i = 0; i < tess_kernel_count(); i++) {
        tess_kernel_info kernel = tess_kernel_info_init();
        if (tess_kernel_describe(i, &kernel, NULL) == TESS_OK &&
            (every || !kernel.unusable || !unusable_add(all, &kernel)))
            print_kernel(&kernel);
    }
    for (const struct unusable *u = all; u < all + REASONS && u->n; u++)
        printf("kernel     %s: %" PRId64 " unusable (info --kernels names them): %s\n",
               tess_backend_name(u->backend), u->n, u->reason);
}

int info_main(int argc, char **argv) {
    static const struct argp argp = {
        options_table,
        parse,
        NULL,
        "Prints the version, the instruction-set level, the devices of each "
        "backend and the kernels compiled in.",
        NULL,
        NULL,
        NULL};
    bool every = false;
    int status = arguments_parse(&argp, "info", argc, argv, &every);
    if (status != EXIT_DONE)
        return status;
    printf("tessera    %s\nisa        %s\n", tess_version(), tess_cpu_isa());
    print_devices(TESS_CPU);
    print_devices(TESS_CUDA);
    print_kernels(every);
    return EXIT_DONE;
}
