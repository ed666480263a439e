/* Command lines. */
#include "cli/arguments.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/*
 * argp's own --help would name the program as getopt's errors do, "tessera: run", and its errors
 * take two lines. So the command's parser becomes the child of one that brings its own --help and
 * hushes the second line.
 */
enum { KEY_HELP = '?', KEY_USAGE = 0x100, KEY_VERSION = 'V' };

struct wrapper {
    char name[64]; /* "tessera run" */
    void *input;
};

static const struct argp_option wrapper_options[] = {
    {"help", KEY_HELP, NULL, 0, "Give this help list", -1},
    {"usage", KEY_USAGE, NULL, 0, "Give a short usage message", -1},
    {"version", KEY_VERSION, NULL, 0, "Print the version", -1},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    struct wrapper *wrapper = state->input;
    (void)argument;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = wrapper->input;
        state->err_stream = NULL;
        return 0;
    case KEY_HELP:
    case KEY_USAGE:
        state->name = wrapper->name;
        argp_state_help(state, state->out_stream,
                        key == KEY_HELP ? ARGP_HELP_STD_HELP : ARGP_HELP_USAGE | ARGP_HELP_EXIT_OK);
        return 0;
    case KEY_VERSION:
        printf("tessera %s\n", tess_version());
        exit(EXIT_DONE);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int arguments_parse(const struct argp *argp, const char *command, int argc, char **argv,
                    void *input) {
    struct wrapper wrapper = {.input = input};
    const struct argp_child children[] = {{argp, 0, NULL, 0}, {0}};
    const struct argp whole = {wrapper_options, parse, NULL, NULL, children, NULL, NULL};
    char name[64], *first = argv[0];
    snprintf(wrapper.name, sizeof wrapper.name, "tessera %s", command);
    snprintf(name, sizeof name, "tessera: %s", command);
    argv[0] = name; /* begins getopt's lines */
    error_t error = argp_parse(&whole, argc, argv, ARGP_NO_HELP, NULL, &wrapper);
    argv[0] = first;
    if (error == ENOMEM)
        return report(command, "out of memory");
    return error ? EXIT_BAD : EXIT_DONE;
}

error_t argument_once(const char **value, const char *text, const char *command,
                      const char *option) {
    if (*value) {
        report(command, "--%s is given twice", option);
        return EINVAL;
    }
    *value = text;
    return 0;
}

error_t argument_number(int64_t *value, const char *text, int64_t minimum, int64_t maximum,
                        const char *command, const char *option) {
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end == text || *end || errno || number < minimum || number > maximum) {
        report(command, "--%s %s: a whole number from %lld to %lld is needed", option, text,
               (long long)minimum, (long long)maximum);
        return EINVAL;
    }
    *value = number;
    return 0;
}

bool argument_real(double *value, const char *text, const char *option, struct reason *reason) {
    char *end;
    errno = 0;
    *value = strtod(text, &end);
    return (end != text && !*end && isfinite(*value) && errno != ERANGE) ||
           reason_set(reason, "--%s %s: a finite number is needed", option, text);
}
