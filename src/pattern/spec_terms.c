/*
 * The terms of a spec, as sources. Adding one is a function and a row of the table at the end. Two
 * random terms of one kind with the same seed draw the same blocks.
 */
#include "pattern/spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t add_join(struct parser *p, const struct source_kind *kind, int64_t a, int64_t b) {
    if (a < 0 || b < 0)
        return SPEC_FAILED;
    p->sources[a].next = b;
    return spec_add(p, (struct source){.kind = kind, .child = a, .next = -1});
}

static int64_t add_band(struct parser *p, int64_t lo, int64_t hi) {
    struct source s = {.kind = &source_band, .child = -1, .next = -1};
    s.u.band.lo = lo, s.u.band.hi = hi;
    return spec_add(p, s);
}

typedef int64_t range_piece(const struct source *s, int64_t n_kv, int64_t p, int64_t *a,
                            int64_t *b);

static int64_t add_ranges(struct parser *p, range_piece *piece, int64_t n) {
    struct source s = {.kind = &source_ranges, .child = -1, .next = -1};
    s.u.ranges.piece = piece, s.u.ranges.n = n;
    return spec_add(p, s);
}

typedef int64_t steps_next(const struct source *s, int64_t n_kv, int64_t p, int64_t x);

static int64_t add_steps(struct parser *p, steps_next *next, int64_t width, int64_t step) {
    struct source s = {.kind = &source_steps, .child = -1, .next = -1};
    s.u.steps.next = next, s.u.steps.width = width, s.u.steps.step = step;
    return spec_add(p, s);
}

typedef int columns_fill(struct build_row *b, const struct source *s, struct cursor *c);

static int64_t add_draw(struct parser *p, columns_fill *fill, struct draw_rule rule) {
    struct source s = {.kind = &source_columns, .child = -1, .next = -1};
    s.u.columns.fill = fill;
    s.u.columns.from.draw = rule;
    p->draws = 1;
    return spec_add(p, s);
}

/* Number i of a term as a count of tokens: nothing changes past BUILD_FAR. */
static int64_t tokens(const struct number *a) {
    return a->integer < (uint64_t)BUILD_FAR ? (int64_t)a->integer : BUILD_FAR;
}

static int64_t add_dense(struct parser *p, const struct number *a) {
    (void)a;
    return add_band(p, -BUILD_FAR, BUILD_FAR);
}

static int64_t add_causal(struct parser *p, const struct number *a) {
    (void)a;
    return add_band(p, -BUILD_FAR, 0);
}

static int64_t add_window(struct parser *p, const struct number *a) {
    return add_band(p, -tokens(&a[0]), tokens(&a[1]));
}

static int64_t block_piece(const struct source *s, int64_t n_kv, int64_t p, int64_t *a,
                           int64_t *b) {
    (void)n_kv;
    int64_t w = s->u.ranges.n, k = p / w;
    k -= k * w > p; /* towards minus infinity */
    *a = k * w;
    *b = *a + w;
    return *b;
}

static int64_t add_blockdiag(struct parser *p, const struct number *a) {
    return add_ranges(p, block_piece, tokens(&a[0]));
}

static int64_t dilated_next(const struct source *s, int64_t n_kv, int64_t p, int64_t x) {
    (void)n_kv;
    int64_t step = s->u.steps.step, reach = s->u.steps.width * step;
    if (x <= p - reach)
        return p - reach;
    /* the first p + t * step >= x, division rounding up */
    int64_t t = x >= p ? (x - p + step - 1) / step : -((p - x) / step);
    return t * step <= reach ? p + t * step : BUILD_FAR;
}

/* Beyond 2^32 tokens from a query there are no keys: shorter reaches keep products in 64 bits. */
static int64_t add_dilated(struct parser *p, const struct number *a) {
    const int64_t reach = INT64_C(1) << 32;
    int64_t step = min_i64(tokens(&a[1]), reach);
    int64_t width = min_i64(tokens(&a[0]), reach / step);
    return step == 1 ? add_band(p, -width, width) : add_steps(p, dilated_next, width, step);
}

static int64_t global_keys_piece(const struct source *s, int64_t n_kv, int64_t p, int64_t *a,
                                 int64_t *b) {
    (void)n_kv;
    (void)p;
    *a = 0;
    *b = s->u.ranges.n;
    return BUILD_FAR;
}

static int64_t global_queries_piece(const struct source *s, int64_t n_kv, int64_t p, int64_t *a,
                                    int64_t *b) {
    *a = 0;
    *b = p >= 0 && p < s->u.ranges.n ? n_kv : 0;
    return p < 0 ? 0 : p < s->u.ranges.n ? s->u.ranges.n : BUILD_FAR;
}

static int64_t add_global(struct parser *p, const struct number *a) {
    int64_t n = tokens(&a[0]);
    int64_t keys = add_ranges(p, global_keys_piece, n);
    int64_t queries = add_ranges(p, global_queries_piece, n);
    return add_join(p, &source_union, keys, queries);
}

/* The smallest floor(k * n_kv / n) >= x, for 0 <= x; at least n_kv when there is none. */
static int64_t grid_token(int64_t n, int64_t n_kv, int64_t x) {
    if (x >= n_kv)
        return BUILD_FAR;
    int64_t k = (x * n + n_kv - 1) / n_kv; /* k * n_kv / n >= x */
    return k < n ? k * n_kv / n : BUILD_FAR;
}

static int64_t grid_next(const struct source *s, int64_t n_kv, int64_t p, int64_t x) {
    (void)p;
    return grid_token(s->u.steps.width, n_kv, x);
}

static int64_t grid_piece(const struct source *s, int64_t n_kv, int64_t p, int64_t *a, int64_t *b) {
    int64_t token = p < 0 ? 0 : grid_token(s->u.ranges.n, n_kv, p);
    *a = 0;
    *b = token == p ? n_kv : 0;
    return token == p ? p + 1 : token;
}

static int64_t add_global_grid(struct parser *p, const struct number *a) {
    int64_t n = tokens(&a[0]), n_kv = p->sizes->n_kv;
    if (n >= n_kv)
        return add_band(p, -BUILD_FAR, BUILD_FAR);
    int64_t keys = add_steps(p, grid_next, n, 0);
    if (keys >= 0)
        p->sources[keys].u.steps.same_for_all = 1;
    int64_t queries = add_ranges(p, grid_piece, n);
    return add_join(p, &source_union, keys, queries);
}

/* The last `local` keys, and keys further back that are apart. */
static int64_t add_local(struct parser *p, const struct number *a, steps_next *next) {
    int64_t stride = tokens(&a[1]);
    if (stride == 1)
        return add_band(p, -BUILD_FAR, 0);
    int64_t local = add_band(p, 1 - tokens(&a[0]), 0);
    int64_t far = add_steps(p, next, 0, stride);
    return add_join(p, &source_union, local, far);
}

static int64_t strided_next(const struct source *s, int64_t n_kv, int64_t p, int64_t x) {
    (void)n_kv;
    return x <= p ? x + (p - x) % s->u.steps.step : BUILD_FAR;
}

static int64_t add_strided(struct parser *p, const struct number *a) {
    return add_local(p, a, strided_next);
}

static int64_t summary_next(const struct source *s, int64_t n_kv, int64_t p, int64_t x) {
    (void)n_kv;
    int64_t step = s->u.steps.step, key = x + step - 1 - x % step;
    return key <= p ? key : BUILD_FAR;
}

static int64_t add_summary(struct parser *p, const struct number *a) {
    return add_local(p, a, summary_next);
}

/* The last `width` keys of each block of `step`. */
static int64_t fixed_next(const struct source *s, int64_t n_kv, int64_t p, int64_t x) {
    (void)n_kv, (void)p;
    const int64_t in_block = x % s->u.steps.step, first = s->u.steps.step - s->u.steps.width;
    return in_block < first ? x - in_block + first : x;
}

static int64_t add_fixed(struct parser *p, const struct number *a) {
    int64_t length = tokens(&a[0]), width = tokens(&a[1]);
    int64_t causal = add_band(p, -BUILD_FAR, 0);
    if (width >= length)
        return causal;
    int64_t keys = add_ranges(p, block_piece, length);
    if (width > 0 && keys >= 0) {
        int64_t last = add_steps(p, fixed_next, width, length);
        if (last >= 0)
            p->sources[last].u.steps.same_for_all = 1;
        keys = add_join(p, &source_union, keys, last);
    }
    return add_join(p, &source_intersection, causal, keys);
}

static int64_t segment_piece(const struct source *s, int64_t n_kv, int64_t p, int64_t *a,
                             int64_t *b) {
    const int64_t *ends = s->u.ranges.ends;
    int64_t n = s->u.ranges.n, first = 0, last = n;
    (void)n_kv;
    *a = *b = 0;
    if (p < 0)
        return 0;
    while (first < last) { /* the first document that ends after p */
        int64_t middle = first + (last - first) / 2;
        if (ends[middle] <= p)
            first = middle + 1;
        else
            last = middle;
    }
    if (first == n)
        return BUILD_FAR;
    *a = first ? ends[first - 1] : 0;
    *b = ends[first];
    return *b;
}

int64_t *term_ends(struct parser *p, const char *what) {
    int64_t *ends = malloc((size_t)p->n_numbers * sizeof *ends), end = 0;
    if (!ends)
        spec_fail_memory(p);
    for (int64_t i = 0; ends && i < p->n_numbers; i++) {
        end += tokens(&p->numbers[i]);
        ends[i] = end;
        if (end <= p->n_kv)
            continue;
        spec_fail(p, p->numbers[i].offset, "%s take %lld tokens or more, but %s %lld", what,
                  (long long)end,
                  p->n_kv == p->sizes->n_kv ? "n_kv is" : "the shortest document has",
                  (long long)p->n_kv);
        free(ends);
        return NULL;
    }
    return ends;
}

static int64_t add_segments(struct parser *p, const struct number *a) {
    (void)a;
    int64_t *ends = term_ends(p, "segments");
    int64_t source = ends ? add_ranges(p, segment_piece, p->n_numbers) : SPEC_FAILED;
    if (source < 0)
        free(ends);
    else
        p->sources[source].u.ranges.ends = ends;
    return source;
}

static int64_t add_longformer(struct parser *p, const struct number *a) {
    int64_t half = tokens(&a[0]) / 2;
    int64_t window = add_band(p, -half, half);
    int64_t global = window < 0 ? window : add_global(p, a + 1);
    return add_join(p, &source_union, window, global);
}

static int64_t add_bigbird(struct parser *p, const struct number *a) {
    struct draw_rule rule = {.count = tokens(&a[2]), .seed = a[3].integer};
    int64_t fixed = add_longformer(p, a);
    int64_t random = fixed < 0 ? fixed : add_draw(p, draw_count, rule);
    return add_join(p, &source_union, fixed, random);
}

static int64_t add_random(struct parser *p, const struct number *a) {
    return add_draw(p, draw_random, (struct draw_rule){.keep = a[0].value, .seed = a[1].integer});
}

static int64_t add_random_row(struct parser *p, const struct number *a) {
    return add_draw(p, draw_random_row,
                    (struct draw_rule){.keep = a[0].value, .seed = a[1].integer});
}

static int64_t add_shared_random(struct parser *p, const struct number *a) {
    return add_draw(
        p, draw_shared_random,
        (struct draw_rule){.keep = a[0].value, .share = a[1].value, .seed = a[2].integer});
}

static const struct term terms[] = {
    {"dense", "", "dense", add_dense},
    {"causal", "", "causal", add_causal},
    {"window", "tt", "window(left,right)", add_window},
    {"blockdiag", "p", "blockdiag(w)", add_blockdiag},
    {"dilated", "tp", "dilated(w,step)", add_dilated},
    {"global", "t", "global(n)", add_global},
    {"global_grid", "p", "global_grid(n)", add_global_grid},
    {"strided", "tp", "strided(local,stride)", add_strided},
    {"fixed", "pt", "fixed(l,c)", add_fixed},
    {"summary", "tp", "summary(local,stride)", add_summary},
    {"segments", "t*", "segments(n1,n2,...)", add_segments},
    {"each", "t*", "each(n1,n2,...; SPEC)", NULL},
    {"longformer", "tt", "longformer(w,g)", add_longformer},
    {"bigbird", "ttts", "bigbird(w,g,r,seed)", add_bigbird},
    {"random", "fs", "random(keep,seed)", add_random},
    {"random_row", "fs", "random_row(keep,seed)", add_random_row},
    {"shared_random", "ffs", "shared_random(keep,share,seed)", add_shared_random},
};
enum { TERMS = sizeof terms / sizeof *terms };

const struct term *term_find(const char *name, int64_t length) {
    for (size_t i = 0; i < TERMS; i++)
        if ((int64_t)strlen(terms[i].name) == length &&
            memcmp(terms[i].name, name, (size_t)length) == 0)
            return &terms[i];
    return NULL;
}

/* Names that other libraries and papers have for patterns, as letters alone, and how these are written in
 * terms. */
static const struct {
    const char *name, *written;
} elsewhere[] = {
    {"all", "dense"},
    {"full", "dense"},
    {"bidirectional", "dense"},
    {"tril", "causal"},
    {"lower", "causal"},
    {"anticausal", "window(0,n)"},
    {"future", "window(0,n)"},
    {"triu", "window(0,n)"},
    {"upper", "window(0,n)"},
    {"local", "window(left,right)"},
    {"band", "window(left,right)"},
    {"banded", "window(left,right)"},
    {"sliding", "window(left,right)"},
    {"slidingwindow", "window(left,right)"},
    {"localwindow", "window(left,right)"},
    {"swa", "window(left,0)"},
    {"causalwindow", "window(left,0)"},
    {"localcausal", "window(left,0)"},
    {"dilatedwindow", "dilated(w,step)"},
    {"block", "blockdiag(w)"},
    {"chunk", "blockdiag(w)"},
    {"chunked", "blockdiag(w)"},
    {"blocklocal", "blockdiag(w)"},
    {"blockdiagonal", "blockdiag(w)"},
    {"blockcausal", "blockdiag(w)&causal"},
    {"chunkcausal", "blockdiag(w)&causal"},
    {"chunkedcausal", "blockdiag(w)&causal"},
    {"causalchunked", "blockdiag(w)&causal"},
    {"document", "segments(n1,n2,...)"},
    {"documents", "segments(n1,n2,...)"},
    {"documentmask", "segments(n1,n2,...)"},
    {"docs", "segments(n1,n2,...)"},
    {"packed", "segments(n1,n2,...)"},
    {"varlen", "segments(n1,n2,...)"},
    {"prefix", "causal+segments(n)"},
    {"prefixlm", "causal+segments(n)"},
    {"sink", "window(left,0)+global(n)&causal"},
    {"sinks", "window(left,0)+global(n)&causal"},
    {"attentionsink", "window(left,0)+global(n)&causal"},
    {"streaming", "window(left,0)+global(n)&causal"},
    {"streamingllm", "window(left,0)+global(n)&causal"},
};

enum { NEAR_LENGTH = 24 }; /* letters of the longest name that is compared */

/* The letters of a name, small ones, and their number; 0 for too many. */
static int64_t letters(char text[NEAR_LENGTH], const char *name, int64_t length) {
    int64_t n = 0;
    for (int64_t i = 0; i < length; i++) {
        if (name[i] == '_')
            continue;
        if (n == NEAR_LENGTH)
            return 0;
        text[n++] = name[i] >= 'A' && name[i] <= 'Z' ? (char)(name[i] - 'A' + 'a') : name[i];
    }
    return n;
}

/* How many letters must be put in, taken out, changed or swapped with the next to make b of a. */
static int64_t distance(const char *a, int64_t n_a, const char *b, int64_t n_b) {
    int64_t row[3][NEAR_LENGTH + 1]; /* distances to the last letters of a */
    for (int64_t k = 0; k <= n_b; k++)
        row[0][k] = k;
    for (int64_t i = 1; i <= n_a; i++) {
        int64_t *now = row[i % 3], *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];
        now[0] = i;
        for (int64_t k = 1; k <= n_b; k++) {
            now[k] =
                min_i64(last[k - 1] + (a[i - 1] != b[k - 1]), min_i64(last[k], now[k - 1]) + 1);
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
                now[k] = min_i64(now[k], before[k - 2] + 1);
        }
    }
    return row[n_a % 3][n_b];
}

/* A letter in five may be wrong, two at most. */
static int64_t distance_most(int64_t length) {
    return min_i64(length / 5, 2);
}

const char *term_near(const char *name, int64_t length) {
    enum { WORDS = sizeof elsewhere / sizeof *elsewhere };
    char asked[NEAR_LENGTH], known[NEAR_LENGTH];
    const int64_t n = letters(asked, name, length);
    const char *nearest = NULL;
    int64_t least = NEAR_LENGTH;
    for (size_t i = 0; n && i < TERMS + WORDS; i++) {
        const char *other = i < TERMS ? terms[i].name : elsewhere[i - TERMS].name;
        const int64_t m = letters(known, other, (int64_t)strlen(other));
        const int64_t far = distance(asked, n, known, m);
        if (far < least && far <= distance_most(m)) {
            least = far;
            nearest = i < TERMS ? terms[i].signature : elsewhere[i - TERMS].written;
        }
    }
    return nearest;
}

void term_names(char *text, size_t size) {
    size_t used = 0;
    for (size_t i = 0; i < TERMS && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "", terms[i].name);
}
