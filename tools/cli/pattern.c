/* tessera pattern: measures, draws and exports a sparsity pattern. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/attention_input.h"
#include "cli/commands.h"
#include "lab/files/output.h"
#include "io/lists_file.h"
#include "cli/pattern_options.h"
#include "picture/picture.h"
#include "cli/reference.h"

enum { N, NKV, HEADS, BATCH, D, HEAD, NUMBERS };
enum { PNG = NUMBERS, SVG, EXPORT, Q, K, CHOICES, ASCII = CHOICES, BARE };
enum { KEY_FIRST = 0x2000, ASCII_SIDE = 32, PNG_SIDE = 1022 /* 1024 with its frame */ };

static const struct argp_option choices[] = {
    {"n", KEY_FIRST + N, "N", 0, "queries; files tell their own", 2},
    {"nkv", KEY_FIRST + NKV, "N", 0, "keys, default as many", 2},
    {"heads", KEY_FIRST + HEADS, "H", 0, "heads, for which random terms draw anew, default 1", 2},
    {"batch", KEY_FIRST + BATCH, "B", 0, "batches, likewise", 2},
    {"d", KEY_FIRST + D, "D", 0, "dims of a head, for the predicted cost, default 64", 2},
    {"head", KEY_FIRST + HEAD, "I", 0, "which list is drawn, counted from 0 over all batches", 3},
    {"png", KEY_FIRST + PNG, "FILE", 0, "draw the densities", 3},
    {"svg", KEY_FIRST + SVG, "FILE", 0, "draw the tiles", 3},
    {"export", KEY_FIRST + EXPORT, "L.safetensors", 0, "write the block lists", 3},
    {"q", KEY_FIRST + Q, "FILE", 0, "queries whose blocks --select scores, as run takes them", 1},
    {"k", KEY_FIRST + K, "FILE", 0, "keys likewise", 1},
    {"ascii", KEY_FIRST + ASCII, NULL, 0, "draw on the terminal", 3},
    {"bare", KEY_FIRST + BARE, NULL, 0, "draw files without title, axes and legend", 3},
    {0},
};

struct options {
    struct pattern_options pattern;
    const char *text[CHOICES];
    int64_t number[NUMBERS]; /* 0 = not given */
    bool ascii, bare;
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    struct options *options = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->pattern;
        return 0;
    case ARGP_KEY_ARG:
        report("pattern", "%s: every argument needs its option", argument);
        return EINVAL;
    case KEY_FIRST + ASCII:
        options->ascii = true;
        return 0;
    case KEY_FIRST + BARE:
        options->bare = true;
        return 0;
    default:
        if (key < KEY_FIRST || key >= KEY_FIRST + CHOICES)
            return ARGP_ERR_UNKNOWN;
        int choice = key - KEY_FIRST;
        error_t error =
            argument_once(&options->text[choice], argument, "pattern", choices[choice].name);
        if (error || choice >= NUMBERS)
            return error;
        return argument_number(&options->number[choice], argument, choice == HEAD ? 0 : 1,
                               INT32_MAX, "pattern", choices[choice].name);
    }
}

/* ---- numbers -----------------------------------------------------------------------------------
 */

static bool describe_plan(const struct options *options, const tess_pattern *pattern,
                          const tess_pattern_info *p, tess_plan_info *info, struct reason *reason) {
    tess_error error = tess_error_init();
    tess_problem problem = tess_problem_init();
    tess_plan *plan;
    int64_t heads = options->number[HEADS] ? options->number[HEADS] : p->heads;
    problem.batch = options->number[BATCH] ? options->number[BATCH] : p->batch;
    problem.heads_q = problem.heads_kv = heads;
    problem.n_q = p->n_q;
    problem.n_kv = p->n_kv;
    problem.d_qk = problem.d_v = options->number[D] ? options->number[D] : 64;
    problem.alignment = (int64_t)sizeof(float); /* any d */
    if (tess_plan_create(&plan, &problem, pattern, NULL, &error) != TESS_OK)
        return reason_set_error(reason, &error);
    *info = tess_plan_info_init();
    bool known = tess_plan_describe(plan, info, &error) == TESS_OK;
    tess_plan_free(plan);
    return known || reason_set_error(reason, &error);
}

static bool print_numbers(const struct options *options, const tess_pattern *pattern,
                          struct reason *reason) {
    tess_error error = tess_error_init();
    tess_pattern_info p = tess_pattern_info_init();
    tess_plan_info plan;
    if (tess_pattern_describe(pattern, &p, &error) != TESS_OK)
        return reason_set_error(reason, &error);
    if (!describe_plan(options, pattern, &p, &plan, reason))
        return false;
    double all = (double)p.n_q * (double)p.n_kv * (double)p.batch * (double)p.heads;
    printf("queries x keys  %" PRId64 " x %" PRId64 "\n", p.n_q, p.n_kv);
    printf("blocks          %" PRId64 "x%" PRId64 "\n", p.block_q, p.block_kv);
    printf("lists           %" PRId64 " (batch %" PRId64 ", heads %" PRId64 ")\n",
           p.batch * p.heads, p.batch, p.heads);
    printf("density         %.6g %% (%" PRId64 " pairs)\n", 100.0 * (double)p.pairs / all, p.pairs);
    printf("tiles           %" PRId64 " full, %" PRId64 " band, %" PRId64 " bitmask\n",
           p.full_tiles, p.band_tiles, p.bitmask_tiles);
    printf("empty rows      %" PRId64 "\n", p.empty_rows);
    printf("packed tiles    %" PRId64 " of %" PRId64 " rows, listing %" PRId64 " keys\n",
           plan.query_tiles, plan.tile_rows, plan.packed_keys);
    printf("predicted cost  %.3g s on one CPU thread\n", plan.predicted_seconds);
    printf("memory          pattern %" PRId64 " bytes, plan %" PRId64 " bytes\n", p.memory_size,
           plan.memory_size);
    return true;
}

/* ---- pictures ----------------------------------------------------------------------------------
 */

/* One list of a pattern on its way into a file. */
struct drawing {
    tess_lists lists;
    int64_t list;
    const struct picture_words *words; /* NULL: none */
};

/* Origin of the pattern, and its sizes. */
static bool name_picture(struct picture_words *words, const struct options *options,
                         const tess_pattern *pattern, struct reason *reason) {
    tess_error error = tess_error_init();
    tess_pattern_info p = tess_pattern_info_init();
    if (tess_pattern_describe(pattern, &p, &error) != TESS_OK)
        return reason_set_error(reason, &error);
    double all = (double)p.n_q * (double)p.n_kv * (double)(p.batch * p.heads);
    *words = (struct picture_words){.n_q = p.n_q, .n_kv = p.n_kv};
    snprintf(words->title, sizeof words->title, "%s", pattern_options_name(&options->pattern));
    int used = snprintf(words->sizes, sizeof words->sizes,
                        "%" PRId64 " x %" PRId64 ", blocks %" PRId64 "x%" PRId64 ", %.4g %% listed",
                        p.n_q, p.n_kv, p.block_q, p.block_kv, 100.0 * (double)p.pairs / all);
    if (p.batch * p.heads > 1)
        snprintf(words->sizes + used, sizeof words->sizes - (size_t)used,
                 ", list %" PRId64 " of %" PRId64, options->number[HEAD], p.batch * p.heads);
    return true;
}

static bool draw_ascii(const tess_lists *lists, int64_t list, FILE *file, struct reason *reason) {
    struct picture picture;
    bool drawn = picture_make(&picture, lists, list, ASCII_SIDE, reason) &&
                 (picture_ascii(&picture, file) || reason_set(reason, "cannot draw"));
    picture_free(&picture);
    return drawn;
}

static bool draw_png(const struct drawing *d, FILE *file, struct reason *reason) {
    struct picture picture;
    bool drawn =
        picture_make(&picture, &d->lists, d->list, PNG_SIDE, reason) &&
        (picture_png(&picture, d->words, file) || reason_set(reason, "the PNG cannot be written"));
    picture_free(&picture);
    return drawn;
}

static bool draw_svg(const struct drawing *d, FILE *file, struct reason *reason) {
    return picture_svg(&d->lists, d->list, d->words, file, reason);
}

/* All of them. */
static bool export_lists(const struct drawing *d, FILE *file, struct reason *reason) {
    return lists_file_write(file, &d->lists) || reason_set(reason, "the lists cannot be written");
}

/* Writes one file, whole or not at all. A probe only tries that the file can be made. */
static bool write_file(const char *path, const struct drawing *drawing,
                       bool (*write)(const struct drawing *, FILE *, struct reason *),
                       struct reason *reason) {
    struct lab_output output;
    char why[LAB_WHY];
    if (lab_output_open(&output, path, why) != 0)
        return reason_set(reason, "%s", why);
    if (!write || !write(drawing, output.file, reason)) {
        lab_output_abandon(&output);
        return !write;
    }
    return lab_output_commit(&output, why) == 0 || reason_set(reason, "%s", why);
}

static const struct {
    int choice;
    const char *ending; /* ending that the name must have, or NULL */
    bool (*write)(const struct drawing *, FILE *, struct reason *);
} files[] = {{PNG, ".png", draw_png}, {SVG, ".svg", draw_svg}, {EXPORT, NULL, export_lists}};
enum { FILES = sizeof files / sizeof files[0] };

static bool ends_with(const char *path, const char *ending) {
    size_t length = strlen(path), tail = strlen(ending);
    return length > tail && strcmp(path + length - tail, ending) == 0;
}

/* Before anything is computed: the files can be made, and are different ones. */
static bool check_files(const struct options *options, struct reason *reason) {
    for (int i = 0; i < FILES; i++) {
        const char *path = options->text[files[i].choice];
        if (path && files[i].ending && !ends_with(path, files[i].ending))
            return reason_set(reason, "--%s %s: a name that ends with %s is needed",
                              choices[files[i].choice].name, path, files[i].ending);
        if (path && !write_file(path, NULL, NULL, reason))
            return false;
        for (int j = 0; j < i; j++) {
            const char *other = options->text[files[j].choice];
            if (path && other && lab_output_same(path, other))
                return reason_set(reason, "--%s and --%s name the same file",
                                  choices[files[j].choice].name, choices[files[i].choice].name);
        }
    }
    return true;
}

static bool write_files(const struct options *options, const tess_pattern *pattern,
                        struct reason *reason) {
    tess_error error = tess_error_init();
    struct picture_words words;
    struct drawing d = {tess_lists_init(), options->number[HEAD], options->bare ? NULL : &words};
    if (tess_pattern_lists(pattern, &d.lists, &error) != TESS_OK)
        return reason_set_error(reason, &error);
    int64_t count = d.lists.batch * d.lists.heads;
    if (d.list >= count)
        return reason_set(reason,
                          "--head %" PRId64 ": lists are numbered from 0, and there are %" PRId64,
                          d.list, count);
    if (!name_picture(&words, options, pattern, reason))
        return false;
    for (int i = 0; i < FILES; i++)
        if (options->text[files[i].choice] &&
            !write_file(options->text[files[i].choice], &d, files[i].write, reason))
            return false;
    return !options->ascii || draw_ascii(&d.lists, d.list, stdout, reason);
}

/* The pattern; of --q and --k where they are given, which then tell the sizes. */
static bool make_pattern(tess_pattern **pattern, struct options *options, struct reason *reason) {
    const struct pattern_sizes sizes = {options->number[BATCH], options->number[HEADS],
                                        options->number[HEADS], options->number[N],
                                        options->number[NKV]};
    const char *const names[INPUTS] = {options->text[Q], options->text[K]};
    struct attention_input input;
    if (!names[0] && !names[1])
        return pattern_options_make(pattern, &options->pattern, &sizes, reason);
    if (!options->pattern.text[FROM_SELECT] || options->pattern.scores || !names[0] || !names[1])
        return reason_set(reason, "--q and --k go with each other and --select, without --scores");
    if (!attention_input_open(&input, names, -1, reason))
        return false;
    options->pattern.q = &input.view[INPUT_Q], options->pattern.k = &input.view[INPUT_K];
    const bool made = pattern_options_make(pattern, &options->pattern, &sizes, reason);
    attention_input_close(&input);
    return made;
}

static bool measure_and_draw(struct options *options, struct reason *reason) {
    tess_pattern *pattern;
    if (!pattern_options_check(&options->pattern, reason) || !check_files(options, reason) ||
        !make_pattern(&pattern, options, reason))
        return false;
    bool done = print_numbers(options, pattern, reason) && write_files(options, pattern, reason);
    tess_pattern_free(pattern);
    return done;
}

int pattern_main(int argc, char **argv) {
    static const struct argp_child children[] = {{&pattern_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        choices,
        parse,
        NULL,
        "Prints a pattern's density, tiles, packed tiles and predicted cost; draws and exports it.",
        children,
        reference_spec_filter,
        NULL};
    struct options options = {.pattern = {.command = "pattern"}};
    struct reason reason;
    int status = arguments_parse(&argp, "pattern", argc, argv, &options);
    if (status != EXIT_DONE)
        return status;
    if (!measure_and_draw(&options, &reason))
        return report("pattern", "%s", reason.text);
    return EXIT_DONE;
}
