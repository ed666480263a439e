/* tessera: sparse attention from the command line. One table row per subcommand. */
#define _XOPEN_SOURCE 700
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "run/bench.h"
#include "cli/commands.h"
#include "lab/case/case.h"
#include "cli/memory_limit.h"
#include "cli/reference.h"
#include "io/report.h"

static const struct {
    const char *name, *help;
    int (*main)(int argc, char **argv);
    bool host_only; /* never asks for a device */
} commands[] = {
    {"info", "version, instruction-set level, devices, kernels", info_main, false},
    {"run", "attention on .npy and .safetensors files", run_main, false},
    {"pattern", "measure, draw and export a sparsity pattern", pattern_main, true},
    {"plan", "print the plan of a case: kernels, lists, schedule", plan_main, false},
    {"verify", "hold every kernel against the oracle", verify_main, false},
    {"gradcheck", "hold gradients against differences", gradcheck_main, false},
    {"bench", "time backends and pipelines", bench_main, false},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

/* The names of all commands: "info, run ... or bench". */
static const char *command_names(void) {
    static char names[120];
    size_t used = 0;
    for (size_t i = 0; i < COMMANDS; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
                                 !i                 ? ""
                                 : i + 1 < COMMANDS ? ", "
                                                    : " or ",
                                 commands[i].name);
    return names;
}

/* `tessera --help TOPIC`: spec and case, which commands share, or what `tessera COMMAND --help` says. */
static int help_topic(char *topic) {
    char cases[LAB_CASE_HELP], option[] = "--help", *argv[] = {topic, option, NULL};
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(topic, commands[i].name) == 0)
            return commands[i].main(2, argv);
    lab_case_help(cases);
    if (strcmp(topic, "spec") == 0)
        fputs(reference_spec, stdout);
    else if (strcmp(topic, "case") == 0)
        fputs(cases, stdout);
    else
        return report(NULL, "--help %s: spec, case or a command is needed (%s), or nothing", topic,
                      command_names());
    return EXIT_DONE;
}

static int help(void) {
    printf("Usage: tessera COMMAND [OPTION...]\n\n"
           "Attention over a sparse set of tiles.\n\n");
    for (size_t i = 0; i < COMMANDS; i++)
        printf("  %-9s %s\n", commands[i].name, commands[i].help);
    printf(
        "\n`tessera --help COMMAND` explains one, `tessera --help spec` how patterns are written,\n"
        "`tessera --help case` how cases are. Exit status: 0 done, 1 a check failed,\n"
        "2 bad use or bad input.\n");
    return EXIT_DONE;
}

static int dispatch(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0) {
            /* CUDA's driver maps far more than it uses */
            if (commands[i].host_only || tess_device_count(TESS_CUDA) == 0)
                memory_limit_set();
            return commands[i].main(argc - 1, argv + 1);
        }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0)
        return argc > 2 ? help_topic(argv[2]) : help();
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        printf("tessera %s\n", tess_version());
        return EXIT_DONE;
    }
    if (argc < 2)
        return report(NULL, "a command is needed: %s (see tessera --help)", command_names());
    return report(NULL, "%s is no command: %s (see tessera --help)", name, command_names());
}

int main(int argc, char **argv) {
    signal(SIGXFSZ, SIG_IGN); /* a file that grows too large is then an error of writing */
    int status = dispatch(argc, argv);
    if ((fflush(stdout) != 0 || ferror(stdout)) && status != EXIT_BAD)
        return report(NULL, "standard output cannot be written");
    return status;
}
