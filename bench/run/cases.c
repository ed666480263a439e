/* Cases from the command line and from sweep files. */
#define _POSIX_C_SOURCE 200809L
#include "run/cases.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "lab/guard.h"

enum { LINE_TEXT = 2048, LINE_WORDS = 16 };
enum { SWEEP_LINE = 8192, SWEEP_LINES = 100000 }; /* what has more is no sweep, as /dev/zero */
#define BLANKS " \t"

static const char no_memory[] = "out of memory";

/* Names the case a kernel that this machine cannot run? */
static int kernel_lacks(const struct lab_case *c, char why[LAB_WHY]) {
    for (int64_t k = 0; c->kernel[0] && k < tess_kernel_count(); k++) {
        tess_kernel_info info = tess_kernel_info_init();
        if (tess_kernel_describe(k, &info, NULL) != TESS_OK || strcmp(info.name, c->kernel) != 0 ||
            !info.unusable)
            continue;
        snprintf(why, LAB_WHY, "%s: %s", info.name, info.unusable);
        return -1;
    }
    return 0;
}

/* `where` begins the message: "" or, of a sweep, "FILE:LINE: ". A case of a sweep that the machine
 * lacks something for is skipped: sweeps are written for many machines. */
static int add_case(struct bench_cases *all, const char *text, const struct bench_manner *manner,
                    const char *where) {
    char why[LAB_WHY];
    if (all->count == all->room) {
        int64_t room = all->room ? 2 * all->room : 16;
        struct bench_case *more = realloc(all->at, (size_t)room * sizeof *more);
        if (!more)
            return bench_refuse("%s", no_memory);
        all->at = more;
        all->room = room;
    }
    struct bench_case *one = &all->at[all->count];
    one->manner = *manner;
    if (lab_case_parse(&one->c, text, why))
        return bench_refuse("%s%s", where, why);
    if (!lab_memory_fits(&one->c, why) && !lab_device_case(&one->c, why) &&
        !kernel_lacks(&one->c, why)) {
        all->count++;
        return BENCH_DONE;
    }
    if (!*where)
        return bench_refuse("%s", why);
    if (all->skipped++ == 0)
        memcpy(all->why, why, sizeof all->why);
    return BENCH_DONE;
}

/* One line without braces: options, then the case. */
static int add_line(struct bench_cases *all, char *line, const struct bench_manner *given,
                    const char *where) {
    char *words[LINE_WORDS + 2]; /* [0] is the parser's, the last ends them */
    char name[LAB_WHY + 20];
    struct bench_manner manner = *given;
    int count = 0;
    while (strncmp(line, "--", 2) == 0) {
        if (count == LINE_WORDS)
            return bench_refuse("%smore than %d options", where, LINE_WORDS);
        words[++count] = line;
        line += strcspn(line, BLANKS);
        if (*line)
            *line++ = '\0';
        line += strspn(line, BLANKS);
    }
    words[count + 1] = NULL;
    snprintf(name, sizeof name, "tessera: bench: %.*s", (int)strlen(where) - 2, where);
    if (count && bench_manner_parse(&manner, words + 1, count, name))
        return BENCH_BAD;
    return add_case(all, line, &manner, where);
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
static int add_expanded(struct bench_cases *all, const char *text,
                        const struct bench_manner *manner, const char *where) {
    char line[LINE_TEXT], next[2 * LINE_TEXT];
    size_t length = strlen(text);
    if (length >= sizeof line)
        return bench_refuse("%sa line of more than %d characters", where, LINE_TEXT - 1);
    memcpy(line, text, length + 1);
    char *open = strchr(line, '{');
    if (!open)
        return add_line(all, line, manner, where);
    char *end = closing(open);
    if (!end)
        return bench_refuse("%sa '{' without its '}'", where);
    int status = BENCH_DONE;
    for (char *at = open + 1; at <= end && status == BENCH_DONE;) {
        size_t taken = alternative(at, end);
        snprintf(next, sizeof next, "%.*s%.*s%s", (int)(open - line), line, (int)taken, at,
                 end + 1);
        status = add_expanded(all, next, manner, where);
        at += taken + 1;
    }
    return status;
}

/* A line without its end. 1; 0: there is no more; -1: it is too long. */
static int read_line(FILE *file, char line[SWEEP_LINE]) {
    int n = 0, c = getc(file);
    if (c == EOF)
        return 0;
    for (; c != EOF && c != '\n' && n < SWEEP_LINE - 1; c = getc(file))
        line[n++] = (char)c;
    line[n] = '\0';
    return c == EOF || c == '\n' ? 1 : -1;
}

static int read_sweep(struct bench_cases *all, const char *path,
                      const struct bench_manner *manner) {
    FILE *file = fopen(path, "r");
    char line[SWEEP_LINE];
    int status = BENCH_DONE, read;
    if (!file)
        return bench_refuse("cannot read '%s': %s", path, strerror(errno));
    for (int64_t number = 1; status == BENCH_DONE && (read = read_line(file, line)); number++) {
        char where[LAB_WHY];
        if (read < 0 || number > SWEEP_LINES) {
            status = bench_refuse("'%s' is no sweep: more than %d %s", path,
                                  read < 0 ? SWEEP_LINE - 1 : SWEEP_LINES,
                                  read < 0 ? "characters in a line" : "lines");
            break;
        }
        line[strcspn(line, "#\r\n")] = '\0';
        char *begin = line + strspn(line, BLANKS);
        size_t length = strlen(begin);
        while (length && strchr(BLANKS, begin[length - 1]))
            begin[--length] = '\0';
        snprintf(where, sizeof where, "%.200s:%lld: ", path, (long long)number);
        if (*begin)
            status = add_expanded(all, begin, manner, where);
    }
    if (status == BENCH_DONE && ferror(file))
        status = bench_refuse("cannot read '%s': %s", path, strerror(errno));
    fclose(file);
    return status;
}

int bench_cases_read(struct bench_cases *cases, const struct bench_options *options) {
    int status = BENCH_DONE;
    memset(cases, 0, sizeof *cases);
    for (int64_t i = 0; i < options->n_cases && status == BENCH_DONE; i++)
        status = add_case(cases, options->cases[i], &options->manner, "");
    if (status == BENCH_DONE && options->sweep)
        status = read_sweep(cases, options->sweep, &options->manner);
    if (status == BENCH_DONE && cases->count == 0 && cases->skipped && !options->resume)
        return bench_refuse("all %lld cases are skipped: %s", (long long)cases->skipped,
                            cases->why);
    if (status == BENCH_DONE && cases->count == 0 && !options->resume)
        status = bench_refuse("no cases: give some, or --sweep FILE");
    return status;
}

void bench_cases_free(struct bench_cases *cases) {
    free(cases->at);
    memset(cases, 0, sizeof *cases);
}
