/* Choices of columns in words. */
#include "lab/case/choice.h"

#include <stdio.h>
#include <stdlib.h>

enum kind { COUNT, REAL, NOTHING };

/* A term: what stands before it, 0 for the first, and the field that its number goes to. */
static const struct term {
    const char *name;
    char joint;
    enum kind kind;
    tess_select_mode mode; /* by the first term */
    size_t offset;
} terms[] = {
    {"topk", 0, COUNT, TESS_SELECT_EXACT, offsetof(tess_selection, k)},
    {"threshold", 0, REAL, TESS_SELECT_THRESHOLD, offsetof(tess_selection, threshold)},
    {"top_p", 0, REAL, TESS_SELECT_TOP_P, offsetof(tess_selection, p)},
    {"first", '+', COUNT, 0, offsetof(tess_selection, keep_first)},
    {"last", '+', COUNT, 0, offsetof(tess_selection, keep_last)},
    {"causal", '&', NOTHING, 0, offsetof(tess_selection, causal)},
};
enum { TERMS = sizeof terms / sizeof *terms };

static const struct term *term_find(const char *name, size_t length) {
    for (int i = 0; i < TERMS; i++)
        if (strlen(terms[i].name) == length && strncmp(name, terms[i].name, length) == 0)
            return &terms[i];
    return NULL;
}

/* A term's number in parentheses at *at, which it moves past. */
static int number_take(const struct term *term, const char **at, void *field) {
    char *end;
    if (term->kind == NOTHING) {
        memcpy(field, &(int64_t){1}, sizeof(int64_t));
        return 0;
    }
    if (**at != '(' || (*at)[1] == ' ')
        return -1;
    const double x = strtod(*at + 1, &end);
    if (end == *at + 1 || *end != ')')
        return -1;
    *at = end + 1;
    if (term->kind == REAL) {
        memcpy(field, &(float){(float)x}, sizeof(float));
        return x - x == 0 ? 0 : -1; /* finite */
    }
    memcpy(field, &(int64_t){x >= 1 && x <= INT32_MAX ? (int64_t)x : 0}, sizeof(int64_t));
    return x >= 1 && x <= INT32_MAX && x == (double)(int64_t)x ? 0 : -1;
}

int lab_choice_parse(tess_selection *selection, const char *text, char why[LAB_WHY]) {
    int seen[TERMS] = {0};
    const char *at = text;
    *selection = tess_selection_init();
    do {
        const char joint = at == text ? 0 : *at++;
        const size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyz_");
        const struct term *term = term_find(at, length);
        if (!term || term->joint != joint || seen[term - terms]++) {
            snprintf(
                why, LAB_WHY,
                "'%.60s' at %d: topk(K), threshold(X) or top_p(P) is expected, then +first(N), "
                "+last(N) and &causal, each once",
                text, (int)(at - text));
            return -1;
        }
        at += length;
        if (number_take(term, &at, (char *)selection + term->offset)) {
            snprintf(why, LAB_WHY, "'%.60s' at %d: %s is expected", text, (int)(at - text),
                     term->kind == REAL ? "a finite number in parentheses"
                                        : "a whole number from 1 in parentheses");
            return -1;
        }
        selection->mode = joint ? selection->mode : term->mode;
    } while (*at);
    return 0;
}
