/* tessera bench: reads cases, measures, prints a table and writes files. */
#define _POSIX_C_SOURCE 200809L
#include "bench.h"

#include <argp.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "lab/device.h"
#include "lab/timer.h"
#include "results.h"

enum { DONE = 0, BAD = 2 };

struct options {
    const char *sweep, *json, *csv;
    struct bench_manner manner;
    char **cases; /* argv's */
    int64_t n_cases;
};

struct bench {
    struct lab_case *cases;
    int64_t n_cases, cases_room;
    struct bench_result *results;
    int64_t n_results, results_room;
    struct lab_output json, csv;
};

/* One line on stderr. */
static int refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int refuse(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "tessera: bench: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    return BAD;
}

static const struct argp_option option_table[] = {
    {"sweep", 's', "FILE", 0, "Measure the cases of FILE too: one a line, # begins a comment", 0},
    {"json", 'j', "FILE", 0, "Write the measurements as a JSON array", 0},
    {"csv", 'c', "FILE", 0, "Write the measurements as CSV", 0},
    {"seconds", 't', "X", 0, "Time for each measurement (default 0.5), at least 5 runs", 0},
    {"hot", 'h', NULL, 0, "CUDA: leave the L2 cache as it is between runs", 0},
    {"help", '?', NULL, 0, "Give this help list", -1},
    {"version", 'V', NULL, 0, "Print the version", -1},
    {0}};

static error_t set_once(const char **value, char *text, const char *name) {
    if (*value) {
        refuse("--%s is given twice", name);
        return EINVAL;
    }
    *value = text;
    return 0;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    struct options *o = state->input;
    char *end;
    switch (key) {
    case ARGP_KEY_INIT:
        state->err_stream = NULL; /* one line, getopt's own, is enough */
        return 0;
    case '?':
        state->name = (char *)(uintptr_t) "tessera bench";
        argp_state_help(state, state->out_stream, ARGP_HELP_STD_HELP);
        return 0;
    case 'V':
        printf("tessera %s\n", tess_version());
        exit(DONE);
    case 's':
        return set_once(&o->sweep, text, "sweep");
    case 'j':
        return set_once(&o->json, text, "json");
    case 'c':
        return set_once(&o->csv, text, "csv");
    case 't':
        o->manner.seconds = strtod(text, &end);
        if (end == text || *end || !(o->manner.seconds >= 0 && o->manner.seconds <= 3600)) {
            refuse("--seconds %s: a number from 0 to 3600 is needed", text);
            return EINVAL;
        }
        return 0;
    case 'h':
        o->manner.hot = 1;
        return 0;
    case ARGP_KEY_ARGS:
        o->cases = state->argv + state->next;
        o->n_cases = state->argc - state->next;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* The array with room for one more element; NULL without memory, and then it stands as it was. */
static void *grow(void *array, int64_t count, int64_t *room, size_t size) {
    if (count < *room)
        return array;
    int64_t more = *room ? 2 * *room : 16;
    void *bigger = realloc(array, (size_t)more * size);
    if (bigger)
        *room = more;
    return bigger;
}

/* `where` begins the message: "" or "FILE:LINE: ". */
static int add_case(struct bench *b, const char *text, const char *where) {
    char why[LAB_WHY];
    struct lab_case *cases = grow(b->cases, b->n_cases, &b->cases_room, sizeof *b->cases);
    if (!cases)
        return refuse("out of memory");
    b->cases = cases;
    struct lab_case *c = &b->cases[b->n_cases];
    if (lab_case_parse(c, text, why) || lab_memory_fits(c, why))
        return refuse("%s%s", where, why);
    if (lab_device_case(c, why))
        return refuse("%s%s", where, why);
    b->n_cases++;
    return DONE;
}

static int read_sweep(struct bench *b, const char *path) {
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;
    int status = DONE;
    if (!file)
        return refuse("cannot read '%s': %s", path, strerror(errno));
    for (int64_t number = 1; status == DONE && getline(&line, &room, file) >= 0; number++) {
        char where[LAB_WHY];
        line[strcspn(line, "#\r\n")] = '\0';
        char *begin = line + strspn(line, " \t");
        size_t length = strlen(begin);
        while (length && (begin[length - 1] == ' ' || begin[length - 1] == '\t'))
            begin[--length] = '\0';
        snprintf(where, sizeof where, "%.200s:%lld: ", path, (long long)number);
        if (*begin)
            status = add_case(b, begin, where);
    }
    if (status == DONE && ferror(file))
        status = refuse("cannot read '%s': %s", path, strerror(errno));
    free(line);
    fclose(file);
    return status;
}

static int read_cases(struct bench *b, const struct options *o) {
    int status = DONE;
    for (int64_t i = 0; i < o->n_cases && status == DONE; i++)
        status = add_case(b, o->cases[i], "");
    if (status == DONE && o->sweep)
        status = read_sweep(b, o->sweep);
    if (status == DONE && b->n_cases == 0)
        status = refuse("no cases: give some, or --sweep FILE");
    return status;
}

/* Before hours of measuring: can the files be made? Nothing is left of the trial. */
static int try_outputs(const struct options *o) {
    char why[LAB_WHY];
    const char *const paths[] = {o->json, o->csv};
    if (o->json && o->csv && lab_output_same(o->json, o->csv))
        return refuse("--json and --csv name the same file");
    for (int i = 0; i < 2; i++) {
        struct lab_output trial;
        if (paths[i] && lab_output_open(&trial, paths[i], why))
            return refuse("%s", why);
        if (paths[i])
            lab_output_abandon(&trial);
    }
    return DONE;
}

static int open_outputs(struct bench *b, const struct options *o) {
    char why[LAB_WHY];
    if ((o->json && lab_output_open(&b->json, o->json, why)) ||
        (o->csv && lab_output_open(&b->csv, o->csv, why)))
        return refuse("%s", why);
    return DONE;
}

static int write_outputs(struct bench *b) {
    char why[LAB_WHY];
    if ((b->json.file && bench_write_json(b->json.file, b->results, b->n_results)) ||
        (b->csv.file && bench_write_csv(b->csv.file, b->results, b->n_results)))
        return refuse("out of memory for the output files");
    if ((b->json.file && lab_output_commit(&b->json, why)) ||
        (b->csv.file && lab_output_commit(&b->csv, why)))
        return refuse("%s", why);
    return DONE;
}

/* One measurement more. A kernel that the case names belongs to one backend and pipeline only: the
 * others tell why in refusal. */
static int measure(struct bench *b, const struct bench_setting *s, tess_backend backend,
                   tess_pipeline pipeline, const struct bench_manner *manner,
                   char refusal[LAB_WHY]) {
    char why[LAB_WHY];
    struct bench_result *results =
        grow(b->results, b->n_results, &b->results_room, sizeof *b->results);
    if (!results)
        return refuse("out of memory");
    b->results = results;
    int failed = bench_measure(&results[b->n_results], s, backend, pipeline, manner, why);
    if (failed > 0) {
        memcpy(refusal, why, LAB_WHY);
        return DONE;
    }
    if (failed)
        return refuse("%s", why);
    if (b->n_results == 0)
        bench_print_head(stdout);
    bench_print(stdout, &results[b->n_results++]);
    fflush(stdout);
    return DONE;
}

static int measure_case(struct bench *b, const struct lab_case *c,
                        const struct bench_manner *manner) {
    char why[LAB_WHY], refusal[LAB_WHY] = "";
    struct bench_setting s;
    int status = DONE;
    int64_t before = b->n_results;
    if (bench_setting_make(&s, c, why))
        status = refuse("%s", why);
    for (int backend = TESS_CPU; backend <= TESS_CUDA; backend++)
        for (int pipeline = TESS_FUSED; pipeline <= TESS_STAGED && status == DONE; pipeline++)
            if (lab_case_asks(c, backend, pipeline) &&
                !lab_device_lacks((tess_backend)backend, (tess_pipeline)pipeline))
                status =
                    measure(b, &s, (tess_backend)backend, (tess_pipeline)pipeline, manner, refusal);
    if (status == DONE && b->n_results == before)
        status = refuse("%s", refusal);
    bench_setting_free(&s);
    return status;
}

static int measure_all(struct bench *b, const struct bench_manner *manner) {
    bool terminal = isatty(STDERR_FILENO);
    double start = lab_seconds();
    int status = DONE;
    for (int64_t i = 0; i < b->n_cases && status == DONE; i++) {
        if (terminal && i > 0)
            fprintf(stderr, "\rbench: %lld of %lld cases, about %.0f s left", (long long)i,
                    (long long)b->n_cases,
                    (lab_seconds() - start) / (double)i * (double)(b->n_cases - i));
        else if (terminal)
            fprintf(stderr, "\rbench: 0 of %lld cases", (long long)b->n_cases);
        status = measure_case(b, &b->cases[i], manner);
    }
    if (terminal)
        fprintf(stderr, "\r\033[K");
    return status;
}

static int parse_options(struct options *o, int argc, char **argv) {
    static const struct argp argp = {
        option_table,
        parse,
        "[CASE...]",
        "Times every backend and pipeline that a case does not name."
        "\vA case is one line of key=value pairs, for example\n"
        "  h=16,n=16384,d=128,dtype=bf16,block=128x128,pattern=random(0.1,1)",
        NULL,
        NULL,
        NULL};
    char name[] = "tessera: bench";
    char *first = argv[0];
    argv[0] = name; /* begins getopt's lines */
    error_t error = argp_parse(&argp, argc, argv, ARGP_NO_HELP, NULL, o);
    argv[0] = first;
    return error ? BAD : DONE;
}

int bench_main(int argc, char **argv) {
    struct options options = {.manner = {.seconds = 0.5}};
    struct bench b;
    memset(&b, 0, sizeof b);
    int status = parse_options(&options, argc, argv);
    if (status == DONE)
        status = read_cases(&b, &options);
    if (status == DONE)
        status = try_outputs(&options);
    if (status == DONE)
        status = measure_all(&b, &options.manner);
    if (status == DONE)
        status = open_outputs(&b, &options);
    if (status == DONE)
        status = write_outputs(&b);
    lab_output_abandon(&b.json);
    lab_output_abandon(&b.csv);
    free(b.cases);
    free(b.results);
    return status;
}
