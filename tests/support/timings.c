#include "support/timings.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LINE = 8192, FIELDS = 80 };

/* Columns that a timing is read from. */
enum { CASE, KERNEL, DEVICE, MS, TILE, COLUMNS };
static const char *const names[COLUMNS] = {"case", "kernel", "device", "ms", "tile"};

/* Cuts a line of csv into its fields, in place; answers how many there are. */
static int cut(char *line, char *field[FIELDS]) {
    int n = 0;
    line[strcspn(line, "\r\n")] = '\0';
    for (char *at = line; at && n < FIELDS;) {
        const int quoted = *at == '"';
        char *end = quoted ? strchr(at + 1, '"') : at + strcspn(at, ",");
        if (!end)
            fail_msg("a quote is not closed: %s", at);
        char *comma = quoted ? end + 1 : end;
        field[n++] = at + quoted;
        at = *comma == ',' ? comma + 1 : NULL;
        *end = *comma = '\0';
    }
    return n;
}

static void columns_find(int column[COLUMNS], char *head, const char *path) {
    char *field[FIELDS];
    const int n = cut(head, field);
    for (int c = 0; c < COLUMNS; c++) {
        column[c] = -1;
        for (int i = 0; i < n; i++)
            if (!strcmp(field[i], names[c]))
                column[c] = i;
    }
    for (int c = 0; c < COLUMNS; c++)
        if (column[c] < 0)
            fail_msg("%s has no column '%s'", path, names[c]);
}

/* against.py's "lists=all" is the lab's "lists=q": lists of each head and batch. */
static int shape_parse(struct lab_case *shape, char *text) {
    char why[LAB_WHY];
    char *all = strstr(text, "lists=all");
    if (all) {
        char *rest = all + strlen("lists=all");
        all[strlen("lists=")] = 'q';
        memmove(all + strlen("lists=q"), rest, strlen(rest) + 1);
    }
    return lab_case_parse(shape, text, why);
}

/* Whether the fields are a timing, which is written to *t. */
static int timing_take(struct timing *t, char *const *field, int n, const int column[COLUMNS],
                       const char *device) {
    const char *value[COLUMNS];
    for (int c = 0; c < COLUMNS; c++)
        value[c] = column[c] < n ? field[column[c]] : "";
    memset(t, 0, sizeof *t);
    t->ms = strtod(value[MS], NULL);
    if (!(t->ms > 0) || strcmp(value[DEVICE], device) ||
        strncmp(value[KERNEL], "cuda_attention_", strlen("cuda_attention_")) ||
        shape_parse(&t->shape, field[column[CASE]]) || lab_case_listed(&t->shape))
        return 0;
    t->rows = (int64_t)strtod(value[TILE], NULL);
    t->shape.kernel[0] = '\0', t->shape.tile_rows = 0;
    t->shape.backend = TESS_CUDA, t->shape.pipeline = TESS_FUSED;
    lab_case_print(&t->shape, t->text);
    snprintf(t->kernel, sizeof t->kernel, "%s", value[KERNEL]);
    return 1;
}

void timings_read(struct timings *timings, const char *path, const char *device) {
    char line[LINE], *field[FIELDS];
    int column[COLUMNS];
    FILE *file = fopen(path, "r");
    if (!file || !fgets(line, sizeof line, file))
        fail_msg("%s cannot be read", path);
    columns_find(column, line, path);
    while (fgets(line, sizeof line, file)) {
        const size_t n = timings->n;
        if (!(n & (n - 1))) /* room for a power of two */
            timings->all = realloc(timings->all, (n ? 2 * n : 1) * sizeof *timings->all);
        if (!timings->all)
            fail_msg("out of memory");
        const int fields = cut(line, field);
        timings->n += (size_t)timing_take(&timings->all[n], field, fields, column, device);
    }
    fclose(file);
}

void timings_free(struct timings *timings) {
    free(timings->all);
    *timings = (struct timings){0};
}
