/* tessera: sparse attention from the command line. One table row per subcommand. */
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "commands.h"
#include "report.h"

static const struct {
    const char *name, *help;
    int (*main)(int argc, char **argv);
} commands[] = {
    {"info", "version, instruction-set level, devices, kernels", info_main},
    {"run", "attention on .npy and .safetensors files", run_main},
    {"pattern", "measure, draw and export a sparsity pattern", pattern_main},
    {"plan", "print the plan of a case: kernels, lists, schedule", plan_main},
    {"verify", "hold every kernel against the oracle", verify_main},
    {"bench", "time backends and pipelines", bench_main},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static int help(void) {
    printf("Usage: tessera COMMAND [OPTION...]\n\n"
           "Attention over a sparse set of tiles.\n\n");
    for (size_t i = 0; i < COMMANDS; i++)
        printf("  %-9s %s\n", commands[i].name, commands[i].help);
    printf("\n`tessera COMMAND --help` explains one. Exit status: 0 done, 1 a check failed,\n"
           "2 bad use or bad input.\n");
    return EXIT_DONE;
}

static int dispatch(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].main(argc - 1, argv + 1);
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return help();
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        printf("tessera %s\n", tess_version());
        return EXIT_DONE;
    }
    const char *which = "info, run, pattern, plan, verify or bench (see tessera --help)";
    if (argc < 2)
        return report(NULL, "a command is needed: %s", which);
    return report(NULL, "%s is no command: %s", name, which);
}

int main(int argc, char **argv) {
    int status = dispatch(argc, argv);
    if ((fflush(stdout) != 0 || ferror(stdout)) && status != EXIT_BAD)
        return report(NULL, "standard output cannot be written");
    return status;
}
