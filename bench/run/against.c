/* Published entries and ours. */
#define _POSIX_C_SOURCE 200809L
#include "run/against.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/options.h"

enum { ENTRY, CASE, KERNEL, FIELD, PUBLISHED, NEED, CELLS };

/* Cuts the next cell off *line, in place: a text in quotes may hold commas. */
static char *cell_take(char **line) {
    char *cell = *line, *end;
    if (*cell == '"') {
        end = strchr(++cell, '"');
        if (!end)
            return NULL;
        *end++ = '\0';
    } else
        end = cell + strcspn(cell, ",");
    *line = end + (*end == ',');
    *end = '\0';
    return cell;
}

/* Whether a row's field is what KEY=VALUE says. */
static int row_says(const json_t *row, const char *item, size_t length) {
    char text[LAB_CASE_TEXT], number[32];
    snprintf(text, sizeof text, "%.*s", (int)length, item);
    char *equals = strchr(text, '=');
    if (!equals)
        return 0;
    *equals = '\0';
    const json_t *value = json_object_get(row, text);
    if (json_is_integer(value)) {
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
        return strcmp(number, equals + 1) == 0;
    }
    return json_is_string(value) && strcmp(json_string_value(value), equals + 1) == 0;
}

/* Whether a row is one of those that an entry means. */
static int row_is_meant(const json_t *row, char *const cells[CELLS]) {
    const char *pipeline = json_string_value(json_object_get(row, "pipeline"));
    const char *kernel = json_string_value(json_object_get(row, "kernel"));
    if (!pipeline || !kernel)
        return 0;
    if (*cells[KERNEL] ? strcmp(kernel, cells[KERNEL]) != 0
                       : strcmp(pipeline, "fused") != 0 && strcmp(pipeline, "staged") != 0)
        return 0;
    for (const char *at = cells[CASE]; *at; at += *at == ',') {
        size_t length = 0;
        for (int depth = 0; at[length] && (at[length] != ',' || depth > 0); length++)
            depth += at[length] == '(' ? 1 : at[length] == ')' ? -1 : 0;
        if (!row_says(row, at, length))
            return 0;
        at += length;
    }
    return 1;
}

/* The best of a field over the rows that are meant; NAN when none has it. */
static double best(const struct bench_rows *rows, char *const cells[CELLS], int less) {
    double found = NAN;
    size_t i;
    json_t *row;
    json_array_foreach(rows->array, i, row) {
        const json_t *value = json_object_get(row, cells[FIELD]);
        if (!json_is_real(value) || !row_is_meant(row, cells))
            continue;
        double x = json_real_value(value);
        found = less ? fmin(found, x) : fmax(found, x);
    }
    return found;
}

static int ends_in(const char *text, const char *end) {
    const size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* Counts an entry as beaten or not; -1 when the line is no entry. */
static int hold(const struct bench_rows *rows, char *line, int64_t *entries, int64_t *beaten) {
    char *cells[CELLS], *end;
    for (int i = 0; i < CELLS; i++) {
        cells[i] = cell_take(&line);
        if (!cells[i])
            return -1;
    }
    double theirs = strtod(cells[PUBLISHED], &end);
    int needed = strcmp(cells[NEED], "beat") == 0;
    if (*line || end == cells[PUBLISHED] || *end || !(theirs > 0) ||
        (!needed && strcmp(cells[NEED], "show") != 0))
        return -1;
    int less = ends_in(cells[FIELD], "ms") || ends_in(cells[FIELD], "over_floor");
    double ours = best(rows, cells, less), ratio = less ? theirs / ours : ours / theirs;
    const char *verdict = isnan(ours) ? "not measured"
                          : ratio > 1 ? "beaten"
                          : needed    ? "NOT BEATEN"
                                      : "not reached";
    printf("%-44s %-12s %10.5g", cells[ENTRY], cells[FIELD], theirs);
    if (isnan(ours))
        printf(" %10s %8s  %s\n", "-", "-", verdict);
    else
        printf(" %10.5g %8.3g  %s\n", ours, ratio, verdict);
    *entries += needed;
    *beaten += needed && ratio > 1;
    return 0;
}

int bench_against(const struct bench_rows *rows, const char *path) {
    static const char head[] = "entry,case,kernel,field,published,need";
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;
    int64_t number = 0, entries = 0, beaten = 0;
    int status = BENCH_DONE, titled = 0;
    if (!file)
        return bench_refuse("cannot read '%s': %s", path, strerror(errno));
    while (status == BENCH_DONE && getline(&line, &room, file) >= 0) {
        number++;
        line[strcspn(line, "\r\n")] = '\0';
        if (!*line || *line == '#')
            continue;
        if (!titled && strcmp(line, head) != 0)
            status = bench_refuse("%.200s:%lld: the first line is not '%s'", path,
                                  (long long)number, head);
        else if (!titled)
            printf("%-44s %-12s %10s %10s %8s\n", "entry", "field", "published", "ours", "ratio");
        else if (hold(rows, line, &entries, &beaten))
            status = bench_refuse("%.200s:%lld: no entry", path, (long long)number);
        titled = 1;
    }
    if (status == BENCH_DONE && ferror(file))
        status = bench_refuse("cannot read '%s': %s", path, strerror(errno));
    else if (status == BENCH_DONE && !titled)
        status = bench_refuse("%.200s: no line is '%s'", path, head);
    free(line);
    fclose(file);
    if (status != BENCH_DONE)
        return status;
    printf("%lld of %lld entries beaten\n", (long long)beaten, (long long)entries);
    return beaten == entries ? BENCH_DONE : BENCH_FAILED;
}
