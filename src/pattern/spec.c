/*
 * Patterns from words: a recursive descent over the spec
 *
 *     union        = intersection { '+' intersection }
 *     intersection = factor { '&' factor }
 *     factor       = '(' union ')' | term
 *     term         = name [ '(' [ number { ',' number } ] ')' ]
 *                  | 'each' '(' number { ',' number } ';' union ')'
 *
 * with white space anywhere between them, which leaves an array of sources, children first.
 */
#include "pattern/spec.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char from_spec[] = "tess_pattern_from_spec";

/* Parentheses within parentheses; the engine recurses a few times as deep at most. */
#define SPEC_DEPTH 64

int64_t spec_fail(struct parser *p, int64_t offset, const char *format, ...) {
    char what[240];
    va_list words;
    va_start(words, format);
    vsnprintf(what, sizeof what, format, words);
    va_end(words);
    p->status = error_set_at(p->error, TESS_INVALID_ARGUMENT, from_spec, "spec", offset,
                             "%s, at offset %lld", what, (long long)offset);
    return SPEC_FAILED;
}

int64_t spec_fail_memory(struct parser *p) {
    p->status = error_set(p->error, TESS_OUT_OF_MEMORY, from_spec, NULL,
                          "memory ran out while the spec was read");
    return SPEC_FAILED;
}

int64_t spec_add(struct parser *p, struct source source) {
    void *grown = build_grow(p->sources, &p->room, p->n + 1, sizeof *p->sources);
    if (!grown)
        return spec_fail_memory(p);
    p->sources = grown;
    p->sources[p->n] = source;
    return p->n++;
}

/* ---- characters and numbers ------------------------------------------------------------------ */

/* ctype.h follows the locale; specs do not. */
static int is_digit(char c) {
    return c >= '0' && c <= '9';
}

static int is_name(char c) {
    return (c >= 'a' && c <= 'z') || c == '_';
}

/* The next character that is not white space, not yet taken; NUL at the end. */
static char look(struct parser *p) {
    while (p->spec[p->at] == ' ' || (p->spec[p->at] >= '\t' && p->spec[p->at] <= '\r'))
        p->at++;
    return p->spec[p->at];
}

static int take(struct parser *p, char c) {
    if (look(p) != c)
        return 0;
    p->at++;
    return 1;
}

/* "expected ..., not 'what stands here'" */
static int64_t fail_expected(struct parser *p, const char *expected) {
    char text[16];
    int n = 0;
    if (!look(p))
        return spec_fail(p, p->at, "expected %s, not the end", expected);
    for (int64_t i = p->at; n < 12 && p->spec[i] > ' ' && p->spec[i] <= '~'; i++)
        text[n++] = p->spec[i];
    text[n] = 0;
    if (n == 0)
        return spec_fail(p, p->at, "expected %s, not a byte outside ASCII", expected);
    return spec_fail(p, p->at, "expected %s, not '%s'", expected, text);
}

/* mantissa * 10^exponent */
struct decimal {
    uint64_t mantissa;
    int exponent;
    int full; /* the mantissa takes no more digits */
};

#define EXPONENT_LIMIT 100000 /* past every double, far from overflow */

/* Takes digits; each digit of a fraction that the mantissa takes lowers the exponent, each other
 * that it does not take raises it. */
static int take_digits(struct parser *p, struct decimal *d, int fraction) {
    int64_t start = p->at;
    for (; is_digit(p->spec[p->at]); p->at++) {
        uint64_t digit = (uint64_t)(p->spec[p->at] - '0');
        d->full |= d->mantissa > (UINT64_MAX - digit) / 10;
        if (!d->full)
            d->mantissa = d->mantissa * 10 + digit;
        if (d->full != fraction && d->exponent > -EXPONENT_LIMIT && d->exponent < EXPONENT_LIMIT)
            d->exponent += fraction ? -1 : 1;
    }
    return p->at > start;
}

static double decimal_value(const struct decimal *d) {
    if (d->mantissa == 0 || d->exponent == 0)
        return (double)d->mantissa;
    if (d->exponent > 0)
        return (double)d->mantissa * pow(10, d->exponent);
    int half = -d->exponent / 2; /* 10^-exponent alone may leave the range of a double */
    if (d->exponent >= -22)      /* a power of ten that is exact: the quotient is rounded once */
        half = 0;
    return (double)d->mantissa / pow(10, half) / pow(10, -d->exponent - half);
}

/* A number without sign, hexadecimal digits, infinities or locale. 0, or -1 when there is none. */
static int take_number(struct parser *p, struct number *number) {
    struct decimal d = {0}, power = {0};
    look(p);
    number->offset = p->at;
    int digits = take_digits(p, &d, 0);
    if (p->spec[p->at] == '.') {
        p->at++;
        digits |= take_digits(p, &d, 1);
    }
    if (!digits)
        return -1;
    if (p->spec[p->at] == 'e' || p->spec[p->at] == 'E') {
        p->at++;
        int minus = p->spec[p->at] == '-';
        p->at += minus || p->spec[p->at] == '+';
        if (!take_digits(p, &power, 0))
            return -1;
        int shift =
            power.full || power.mantissa > EXPONENT_LIMIT ? EXPONENT_LIMIT : (int)power.mantissa;
        d.exponent += minus ? -shift : shift;
    }
    number->value = decimal_value(&d);
    number->whole = d.exponent == 0 || floor(number->value) == number->value;
    number->too_large = d.exponent != 0 && number->value >= 0x1p64;
    number->integer = d.exponent == 0     ? d.mantissa
                      : number->too_large ? UINT64_MAX
                                          : (uint64_t)number->value;
    return 0;
}

/* ---- terms ----------------------------------------------------------------------------------- */

static int obeys_tokens(const struct number *a) {
    return a->whole;
}
static int obeys_positive(const struct number *a) {
    return a->whole && a->integer >= 1;
}
static int obeys_fraction(const struct number *a) {
    return a->value <= 1;
}
static int obeys_seed(const struct number *a) {
    return a->whole && !a->too_large;
}

static const struct {
    char letter;
    int (*obeys)(const struct number *a);
    const char *expected;
} number_rules[] = {
    {'t', obeys_tokens, "a whole number"},
    {'p', obeys_positive, "a whole number, at least 1"},
    {'f', obeys_fraction, "a fraction from 0 to 1"},
    {'s', obeys_seed, "a whole number below 2^64"},
};

/* Are the numbers of the term at hand, which stands at offset, what it takes? */
static int64_t check_numbers(struct parser *p, const struct term *term, int64_t offset) {
    int any = strchr(term->numbers, '*') != NULL;
    int64_t want = any ? 1 : (int64_t)strlen(term->numbers), got = p->n_numbers;
    if (any ? got < want : got != want)
        return spec_fail(p, offset, "%s takes %lld number%s%s, got %lld", term->signature,
                         (long long)want, want == 1 ? "" : "s", any ? " or more" : "",
                         (long long)got);
    for (int64_t i = 0; i < got; i++) {
        const struct number *a = &p->numbers[i];
        if (!isfinite(a->value))
            return spec_fail(p, a->offset, "number %lld of %s is too large", (long long)i + 1,
                             term->name);
        for (size_t k = 0; k < sizeof number_rules / sizeof *number_rules; k++)
            if (number_rules[k].letter == term->numbers[any ? 0 : i] && !number_rules[k].obeys(a))
                return spec_fail(p, a->offset, "number %lld of %s must be %s", (long long)i + 1,
                                 term->name, number_rules[k].expected);
    }
    return 0;
}

/* No number stands at the place; elsewhere -1 is a window's side without limit. */
static int64_t fail_number(struct parser *p) {
    if (strncmp(p->spec + p->at, "-1", 2) == 0 && !is_digit(p->spec[p->at + 2]))
        return spec_fail(
            p, p->at,
            "expected a number that is not negative, not -1: no limit is written %lld, "
            "all keys there are, and window(-1,0) causal",
            (long long)p->sizes->n_kv);
    return fail_expected(p, "a number that is not negative");
}

/* numbers, and what closes them: ')', or ';' where a spec follows */
static int64_t parse_numbers(struct parser *p, char close) {
    do {
        void *grown =
            build_grow(p->numbers, &p->numbers_room, p->n_numbers + 1, sizeof *p->numbers);
        if (!grown)
            return spec_fail_memory(p);
        p->numbers = grown;
        look(p);
        int64_t start = p->at;
        if (take_number(p, &p->numbers[p->n_numbers])) {
            p->at = start;
            return fail_number(p);
        }
        p->n_numbers++;
    } while (take(p, ','));
    if (take(p, close))
        return 0;
    return fail_expected(p, close == ')' ? "',' or ')'" : "',' or ';'");
}

/* No term has the name that stands at `start`. */
static int64_t fail_name(struct parser *p, int64_t start) {
    char names[160];
    int n = 0;
    const char *name = p->spec + start;
    while (is_name(name[n]) || is_digit(name[n]) || (name[n] >= 'A' && name[n] <= 'Z'))
        n++;
    p->at = start;
    if (!n)
        return fail_expected(p, "a term such as causal or window(256,256)");
    const char *near = term_near(name, n);
    if (near)
        return spec_fail(p, start, "no term is named '%.*s': is %s meant?", n, name, near);
    term_names(names, sizeof names);
    return spec_fail(p, start, "no term is named '%.*s%s'; there are %s", n < 24 ? n : 24, name,
                     n > 24 ? "..." : "", names);
}

/* The union that ends with ')', in parentheses that are open. */
static int64_t parse_union(struct parser *p);
static int64_t parse_inner(struct parser *p) {
    if (p->depth == SPEC_DEPTH)
        return spec_fail(p, p->at - 1, "more than %d parentheses within one another", SPEC_DEPTH);
    p->depth++;
    int64_t source = parse_union(p);
    p->depth--;
    if (source >= 0 && !take(p, ')'))
        return fail_expected(p, "'+', '&' or ')'");
    return source;
}

/* Rest of an `each` after its lengths, whose documents end at `ends`, which become its own. */
static int64_t parse_each(struct parser *p, int64_t *ends, int64_t n) {
    struct source each = {.kind = &source_documents, .next = -1};
    int64_t outer = p->n_kv, shortest = INT64_MAX;
    each.u.documents.n = n;
    each.u.documents.q_end = each.u.documents.kv_end = ends;
    each.u.documents.first = p->n;
    for (int64_t i = 0; i < n; i++)
        if (ends[i] > (i ? ends[i - 1] : 0))
            shortest = min_i64(shortest, ends[i] - (i ? ends[i - 1] : 0));
    p->n_kv = min_i64(outer, shortest); /* without any tokens nothing is laid out */
    each.child = parse_inner(p);
    p->n_kv = outer;
    int64_t source = each.child < 0 ? each.child : spec_add(p, each);
    if (source < 0)
        free(ends);
    return source;
}

static int64_t parse_term(struct parser *p) {
    look(p);
    int64_t start = p->at;
    while (is_name(p->spec[p->at]))
        p->at++;
    const struct term *term = term_find(p->spec + start, p->at - start);
    if (!term)
        return fail_name(p, start);
    p->n_numbers = 0;
    if (take(p, '(') && !take(p, ')') && parse_numbers(p, term->add ? ')' : ';') < 0)
        return SPEC_FAILED;
    if (check_numbers(p, term, start) < 0)
        return SPEC_FAILED;
    if (term->add)
        return term->add(p, p->numbers);
    int64_t *ends = term_ends(p, "documents");
    return ends ? parse_each(p, ends, p->n_numbers) : SPEC_FAILED;
}

/* ---- unions and intersections ---------------------------------------------------------------- */

static int64_t parse_factor(struct parser *p) {
    return take(p, '(') ? parse_inner(p) : parse_term(p);
}

/* Operands with one operator between them become one source with many children. */
static int64_t parse_chain(struct parser *p, char joint, const struct source_kind *kind,
                           int64_t (*operand)(struct parser *p)) {
    int64_t first = operand(p);
    if (first < 0 || look(p) != joint)
        return first;
    for (int64_t last = first; take(p, joint);) {
        int64_t next = operand(p);
        if (next < 0)
            return next;
        p->sources[last].next = next;
        last = next;
    }
    return spec_add(p, (struct source){.kind = kind, .child = first, .next = -1});
}

static int64_t parse_intersection(struct parser *p) {
    return parse_chain(p, '&', &source_intersection, parse_factor);
}

static int64_t parse_union(struct parser *p) {
    return parse_chain(p, '+', &source_union, parse_intersection);
}

tess_status tess_pattern_from_spec(tess_pattern **pattern, const char *spec,
                                   const tess_pattern_shape *shape, tess_error *error) {
    if (!pattern)
        return error_set(error, TESS_INVALID_ARGUMENT, from_spec, "pattern", "pattern is NULL");
    *pattern = NULL;
    if (!spec)
        return error_set(error, TESS_INVALID_ARGUMENT, from_spec, "spec", "spec is NULL");
    struct bcsr sizes;
    tess_pattern_shape known;
    const char *wrong =
        shape ? struct_take(&known, sizeof known, SHAPE_FIRST_SIZE, shape) : "is NULL";
    if (wrong)
        return error_set(error, TESS_INVALID_ARGUMENT, from_spec, "shape", "shape %s", wrong);
    tess_status status = build_sizes(&sizes, &known, from_spec, "shape", error);
    if (status != TESS_OK)
        return status;
    struct parser p = {.spec = spec, .sizes = &sizes, .n_kv = sizes.n_kv, .error = error};
    if (parse_union(&p) >= 0 && look(&p))
        fail_expected(&p, "'+' or '&'");
    status = p.status;
    if (status == TESS_OK) {
        if (!p.draws)
            sizes.batch = sizes.heads = 1;
        status = pattern_build(pattern, &sizes, p.sources, p.n, from_spec, error);
    }
    for (int64_t i = 0; i < p.n; i++)
        if (p.sources[i].kind == &source_ranges)
            free(p.sources[i].u.ranges.ends);
        else if (p.sources[i].kind == &source_documents)
            free(p.sources[i].u.documents.kv_end);
    free(p.sources);
    free(p.numbers);
    return status;
}
