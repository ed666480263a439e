/* Files of cases. */
#include "lab/files/cases.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { LINE_TEXT = 2048 };
/* Limits past which a file, /dev/zero say, is none of cases. */
enum { FILE_LINE = 8192, FILE_LINES = 100000 };
#define BLANKS " \t"

/* ---- lines ---- */

struct reader {
    lab_line *take;
    void *context;
    char where[LAB_WHY];
    char *why;
};

static int refuse(const struct reader *r, const char *what) {
    snprintf(r->why, LAB_WHY, "%.250s%s", r->where, what);
    return -1;
}

/* The brace that closes the one at `open`; braces may hold braces. NULL: none does. */
static char *closing(char *open) {
    int depth = 0;
    for (char *at = open; *at; at++) {
        depth += *at == '{' ? 1 : *at == '}' ? -1 : 0;
        if (depth == 0)
            return at;
    }
    return NULL;
}

/* Length of the alternative at `at`: up to a comma or the end, outside braces and parentheses. */
static size_t alternative(const char *at, const char *end) {
    int depth = 0;
    const char *from = at;
    for (; at < end && (*at != ',' || depth > 0); at++)
        depth += *at == '{' || *at == '(' ? 1 : *at == '}' || *at == ')' ? -1 : 0;
    return (size_t)(at - from);
}

/* A line for each alternative of its first braces, and so on for the braces after. */
static int expand(const struct reader *r, const char *text) {
    char line[LINE_TEXT], next[2 * LINE_TEXT];
    size_t length = strlen(text);
    if (length >= sizeof line)
        return refuse(r, "a line of more than 2047 characters");
    memcpy(line, text, length + 1);
    char *open = strchr(line, '{');
    if (!open)
        return r->take(r->context, line, r->where);
    char *end = closing(open);
    if (!end)
        return refuse(r, "a '{' without its '}'");
    int status = 0;
    for (char *at = open + 1; at <= end && status == 0;) {
        size_t taken = alternative(at, end);
        snprintf(next, sizeof next, "%.*s%.*s%s", (int)(open - line), line, (int)taken, at,
                 end + 1);
        status = expand(r, next);
        at += taken + 1;
    }
    return status;
}

/* A line without its end. 1; 0: there is no more; -1: it is too long. */
static int read_line(FILE *file, char line[FILE_LINE]) {
    int n = 0, c = getc(file);
    if (c == EOF)
        return 0;
    for (; c != EOF && c != '\n' && n < FILE_LINE - 1; c = getc(file))
        line[n++] = (char)c;
    line[n] = '\0';
    return c == EOF || c == '\n' ? 1 : -1;
}

int lab_lines_read(const char *path, lab_line *take, void *context, char why[LAB_WHY]) {
    struct reader r = {.take = take, .context = context, .why = why};
    FILE *file = fopen(path, "r");
    char line[FILE_LINE];
    int status = 0, read = 1;
    if (!file) {
        snprintf(why, LAB_WHY, "cannot read '%.200s': %s", path, strerror(errno));
        return -1;
    }
    for (int64_t number = 1; status == 0 && (read = read_line(file, line)); number++) {
        if (read < 0 || number > FILE_LINES) {
            snprintf(why, LAB_WHY, "'%.150s' is no sweep: more than %d %s", path,
                     read < 0 ? FILE_LINE - 1 : FILE_LINES,
                     read < 0 ? "characters in a line" : "lines");
            status = -1;
            break;
        }
        line[strcspn(line, "#\r\n")] = '\0';
        char *begin = line + strspn(line, BLANKS);
        size_t length = strlen(begin);
        while (length && strchr(BLANKS, begin[length - 1]))
            begin[--length] = '\0';
        snprintf(r.where, sizeof r.where, "%.200s:%lld: ", path, (long long)number);
        if (*begin)
            status = expand(&r, begin);
    }
    if (status == 0 && ferror(file)) {
        snprintf(why, LAB_WHY, "cannot read '%.200s': %s", path, strerror(errno));
        status = -1;
    }
    fclose(file);
    return status;
}

/* ---- cases ---- */

int lab_cases_add(struct lab_cases *all, const struct lab_case *c) {
    if (all->count == all->room) {
        int64_t room = all->room ? 2 * all->room : 16;
        struct lab_case *more = realloc(all->at, (size_t)room * sizeof *more);
        if (!more)
            return -1;
        all->at = more;
        all->room = room;
    }
    all->at[all->count++] = *c;
    return 0;
}

struct taker {
    struct lab_cases *cases;
    char *why;
};

static int take_case(void *context, char *line, const char *where) {
    const struct taker *t = context;
    struct lab_case c;
    char why[LAB_WHY] = "out of memory";
    if (lab_case_parse(&c, line, why) == 0 && lab_cases_add(t->cases, &c) == 0)
        return 0;
    snprintf(t->why, LAB_WHY, "%.160s%.150s", where, why);
    return -1;
}

int lab_cases_read(struct lab_cases *cases, const char *path, char why[LAB_WHY]) {
    struct taker taker = {cases, why};
    const int64_t before = cases->count;
    if (lab_lines_read(path, take_case, &taker, why))
        return -1;
    if (cases->count > before)
        return 0;
    snprintf(why, LAB_WHY, "%.200s: no cases", path);
    return -1;
}

void lab_cases_free(struct lab_cases *cases) {
    free(cases->at);
    memset(cases, 0, sizeof *cases);
}
