/* The command line. */
#include "run/options.h"

#include <argp.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "run/baseline.h"

enum {
    KEY_UNTIL = 0x100,
    KEY_HOT,
    KEY_STAGES,
    KEY_LAYER,
    KEY_REPLAY,
    KEY_ROTATE,
    KEY_BASELINE,
    KEY_AGAINST,
    KEY_LIMIT
};

int bench_refuse(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "tessera: bench: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    return BENCH_BAD;
}

/* ---- how a case is measured ---- */

static const struct argp_option method_table[] = {
    {NULL, 0, NULL, 0, "How a case is measured; on a line of a sweep too, before the case:", 1},
    {"seconds", 't', "X", 0, "Time for each measurement (default 0.5), at least 5 runs", 0},
    {"repeat-until", KEY_UNTIL, "X", 0,
     "Longer, up to ten times, until the noise is X at most (0.01: medians of five stretches of "
     "the runs lie within 1 %)",
     0},
    {"hot", KEY_HOT, NULL, 0, "CUDA: leave the L2 cache as it is between runs", 0},
    {"replay", KEY_REPLAY, NULL, 0, "CUDA: replays of a graph of the runs, the cache warm", 0},
    {"rotate", KEY_ROTATE, NULL, 0,
     "topk=: eight draws of the lists take turns, so that keys come from memory; CUDA: in replays "
     "of a graph",
     0},
    {"stages", KEY_STAGES, NULL, 0, "Staged: each stage by itself too", 0},
    {"layer", KEY_LAYER, NULL, 0,
     "CUDA, f32, one head: also with the projections of tokens to Q, K and V before it", 0},
    {"baseline", KEY_BASELINE, "LIST", 0,
     "What it is compared with, of naive_cpu, openblas, naive_gpu, tiled, cublas, cusparse, "
     "openblas_blocks; implies --stages",
     0},
    {0}};

static error_t set_number(double *number, const char *text, const char *name, double max) {
    char *end;
    *number = strtod(text, &end);
    if (end == text || *end || !(*number >= 0 && *number <= max)) {
        bench_refuse("--%s %s: a number from 0 to %g is needed", name, text, max);
        return EINVAL;
    }
    return 0;
}

static error_t set_baselines(struct bench_method *method, const char *list) {
    for (const char *at = list, *end; at; at = *end ? end + 1 : NULL) {
        size_t length = strcspn(at, ",");
        end = at + length;
        const char *word = NULL;
        for (int i = 0; (word = bench_baseline_word(i)); i++)
            if (strlen(word) == length && strncmp(at, word, length) == 0) {
                method->baselines |= 1u << i;
                break;
            }
        if (!word) {
            bench_refuse("--baseline %s: '%.*s' is none", list, (int)length, at);
            return EINVAL;
        }
    }
    method->stages = true;
    return 0;
}

static error_t parse_method(int key, char *text, struct argp_state *state) {
    struct bench_method *method = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->err_stream = NULL; /* one line, getopt's own, is enough */
        return 0;
    case 't':
        return set_number(&method->seconds, text, "seconds", 3600);
    case KEY_UNTIL:
        return set_number(&method->noise, text, "repeat-until", 1);
    case KEY_HOT:
        method->timing = BENCH_HOT;
        return 0;
    case KEY_REPLAY:
        method->timing = BENCH_REPLAY;
        return 0;
    case KEY_ROTATE:
        method->timing = BENCH_ROTATE;
        return 0;
    case KEY_STAGES:
        method->stages = true;
        return 0;
    case KEY_LAYER:
        method->layer = method->stages = true;
        return 0;
    case KEY_BASELINE:
        return set_baselines(method, text);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp method_argp = {method_table, parse_method, NULL, NULL, NULL, NULL, NULL};

int bench_method_parse(struct bench_method *method, char **words, int count, char *where) {
    words[-1] = where; /* begins getopt's lines */
    return argp_parse(&method_argp, count + 1, words - 1, ARGP_NO_HELP | ARGP_NO_EXIT, NULL, method)
               ? BENCH_BAD
               : BENCH_DONE;
}

void bench_asked(char text[BENCH_ASKED_TEXT], const struct bench_method *method,
                 const struct lab_case *c) {
    static const char *const timings[] = {"", "--hot ", "--replay ", "--rotate "};
    const char *separator = "--baseline=";
    int used = snprintf(text, BENCH_ASKED_TEXT, "%s%s%s", timings[method->timing],
                        method->stages ? "--stages " : "", method->layer ? "--layer " : "");
    for (int i = 0; bench_baseline_word(i); i++)
        if (method->baselines >> i & 1) {
            used += snprintf(text + used, (size_t)(BENCH_ASKED_TEXT - used), "%s%s", separator,
                             bench_baseline_word(i));
            separator = ",";
        }
    if (method->baselines)
        text[used++] = ' ';
    lab_case_print(c, text + used);
}

/* ---- the command line ---- */

/* Puts what a case is behind what the command says of itself; argp frees the text. */
static char *help_with_cases(int key, const char *text, void *input) {
    char cases[LAB_CASE_HELP], *both;
    (void)input;
    if (key != ARGP_KEY_HELP_POST_DOC)
        return (char *)(uintptr_t)text;
    lab_case_help(cases);
    both = malloc(strlen(text) + sizeof cases + 3);
    if (both)
        sprintf(both, "%s\n\n%s", text, cases);
    return both;
}

static const struct argp_option option_table[] = {
    {"sweep", 's', "FILE", 0,
     "Measure the cases of FILE too: one a line, # begins a comment. Cases for a device, a kernel "
     "or "
     "memory that this machine lacks are skipped, and counted",
     0},
    {"json", 'j', "FILE", 0, "Write the measurements as a JSON array", 0},
    {"csv", 'c', "FILE", 0, "Write the measurements as CSV", 0},
    {"resume", 'r', NULL, 0,
     "Keep what the JSON file holds, measure only the cases that it lacks, and write the files "
     "after each",
     0},
    {"time-limit", KEY_LIMIT, "SECONDS", 0, "Begin no case after SECONDS", 0},
    {"against", KEY_AGAINST, "FILE", 0,
     "Hold the measurements against the published ones in FILE (CSV); exit status 1 when one is "
     "not beaten",
     0},
    {"help", '?', NULL, 0, "Give this help list", -1},
    {"version", 'V', NULL, 0, "Print the version", -1},
    {0}};

static error_t set_once(const char **value, char *text, const char *name) {
    if (*value) {
        bench_refuse("--%s is given twice", name);
        return EINVAL;
    }
    *value = text;
    return 0;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    struct bench_options *o = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->method;
        return 0;
    case '?':
        state->name = (char *)(uintptr_t) "tessera bench";
        argp_state_help(state, state->out_stream, ARGP_HELP_STD_HELP);
        return 0;
    case 'V':
        printf("tessera %s\n", tess_version());
        exit(BENCH_DONE);
    case 's':
        return set_once(&o->sweep, text, "sweep");
    case 'j':
        return set_once(&o->json, text, "json");
    case 'c':
        return set_once(&o->csv, text, "csv");
    case 'r':
        o->resume = true;
        return 0;
    case KEY_LIMIT:
        return set_number(&o->time_limit, text, "time-limit", 1e6);
    case KEY_AGAINST:
        return set_once(&o->against, text, "against");
    case ARGP_KEY_ARGS:
        o->cases = state->argv + state->next;
        o->n_cases = state->argc - state->next;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int bench_options_parse(struct bench_options *options, int argc, char **argv) {
    static const struct argp_child children[] = {{&method_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        option_table,
        parse,
        "[CASE...]",
        "Times every backend and pipeline that a case does not name. The answers are checked, on "
        "sampled rows, against the definition in double precision before they are timed."
        "\vA case is one line of key=value pairs, for example\n"
        "  h=16,n=16384,d=128,dtype=bf16,block=128x128,pattern=random(0.1,1)\n"
        "A line of a sweep may begin with options, and {A,B} in it stands for a line with A and "
        "one with B. Exit status: 0 done, 1 a wrong answer or an entry that is not beaten, 2 bad "
        "use or bad input.",
        children,
        help_with_cases,
        NULL};
    char name[] = "tessera: bench";
    char *first = argv[0];
    argv[0] = name; /* begins getopt's lines */
    error_t error = argp_parse(&argp, argc, argv, ARGP_NO_HELP, NULL, options);
    argv[0] = first;
    if (error)
        return BENCH_BAD;
    if (options->resume && !options->json)
        return bench_refuse("--resume needs --json FILE, whose measurements it keeps");
    return BENCH_DONE;
}
