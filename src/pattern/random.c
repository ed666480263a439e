/*
 * Random block columns. A draw depends only on (seed, kind of term, list, document, block row) and a
 * counter. The n-th number of a stream is a hash of the stream's key and n, after the finalizer of
 * SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014). So rows
 * can be drawn in any order by any thread. Two terms of one kind with one seed draw the same blocks.
 */
#include "pattern/build.h"

#include <math.h>
#include <stdlib.h>

struct draw {
    uint64_t key, counter;
};

enum { DRAW_RANDOM = 1, DRAW_RANDOM_ROW, DRAW_SHARED, DRAW_COUNT };

#define DRAW_STEP UINT64_C(0x9e3779b97f4a7c15) /* 2^64 / golden ratio, odd */

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static struct draw draw_begin(const struct build_row *b, uint64_t seed, uint64_t kind,
                              int64_t row) {
    uint64_t key = mix(seed + DRAW_STEP);
    key = mix((key ^ kind) + DRAW_STEP);
    key = mix((key ^ (uint64_t)b->list) + DRAW_STEP);
    if (b->document.number)
        key = mix((key ^ b->document.number) + DRAW_STEP);
    return (struct draw){mix((key ^ (uint64_t)row) + DRAW_STEP), 0};
}

/* A number in [0, 1). */
static double draw_unit(struct draw *d) {
    return (double)(mix(d->key + DRAW_STEP * ++d->counter) >> 11) * 0x1p-53;
}

/* A number in 0 ... n - 1, for n up to 2^31. */
static int64_t draw_below(struct draw *d, int64_t n) {
    return (int64_t)(draw_unit(d) * (double)n);
}

static int compare_columns(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* By comparing where columns are few, through a bitmap otherwise. */
int columns_sort(const struct build_row *b, struct cursor *c) {
    int32_t *columns = c->scratch;
    int64_t words = bcsr_col_words(b->m), n = c->n;
    if (n < words) {
        if (n)
            qsort(columns, (size_t)n, sizeof *columns, compare_columns);
        return 0;
    }
    uint64_t *bitmap = build_bitmap(b, c);
    if (!bitmap)
        return -1;
    for (int64_t i = 0; i < n; i++)
        bitmap[columns[i] / 64] |= UINT64_C(1) << columns[i] % 64;
    c->n = 0;
    for (int64_t w = 0; w < words; w++) {
        for (uint64_t v = bitmap[w]; v; v &= v - 1)
            columns[c->n++] = (int32_t)(64 * w + __builtin_ctzll(v));
        bitmap[w] = 0;
    }
    return 0;
}

/* `count` different columns, every such set equally likely (Floyd's algorithm: Bentley, Floyd,
 * "A sample of brilliance", 1987). */
static int draw_distinct(struct build_row *b, struct cursor *c, struct draw *d, int64_t count) {
    uint64_t *bitmap = build_bitmap(b, c);
    if (!bitmap || !build_scratch(c, count * (int64_t)sizeof(int32_t)))
        return -1;
    for (int64_t last = build_cols(b) - count; last < build_cols(b); last++) {
        int64_t j = draw_below(d, last + 1);
        if (bitmap[j / 64] >> j % 64 & 1)
            j = last;
        bitmap[j / 64] |= UINT64_C(1) << j % 64;
        ((int32_t *)c->scratch)[c->n++] = (int32_t)j;
    }
    for (int64_t i = 0; i < c->n; i++)
        bitmap[((int32_t *)c->scratch)[i] / 64] = 0;
    return columns_sort(b, c);
}

int draw_random(struct build_row *b, const struct source *s, struct cursor *c) {
    const struct draw_rule *rule = &s->u.columns.from.draw;
    struct draw d = draw_begin(b, rule->seed, DRAW_RANDOM, b->row);
    int64_t cols = build_cols(b);
    double scale =
        log1p(-rule->keep); /* scale of the geometric gaps between kept blocks; -Inf keeps all */
    if (rule->keep <= 0)
        return 0;
    for (int64_t j = 0; j < cols; j++) {
        double gap = floor(log1p(-draw_unit(&d)) / scale);
        if (!(gap < (double)(cols - j)))
            break;
        j += (int64_t)gap;
        if (!build_scratch(c, (c->n + 1) * (int64_t)sizeof(int32_t)))
            return -1;
        ((int32_t *)c->scratch)[c->n++] = (int32_t)j;
    }
    return 0;
}

int draw_random_row(struct build_row *b, const struct source *s, struct cursor *c) {
    const struct draw_rule *rule = &s->u.columns.from.draw;
    struct draw d = draw_begin(b, rule->seed, DRAW_RANDOM_ROW, b->row);
    return draw_distinct(b, c, &d, llround(rule->keep * (double)build_cols(b)));
}

int draw_count(struct build_row *b, const struct source *s, struct cursor *c) {
    const struct draw_rule *rule = &s->u.columns.from.draw;
    struct draw d = draw_begin(b, rule->seed, DRAW_COUNT, b->row);
    return draw_distinct(b, c, &d, min_i64(rule->count, build_cols(b)));
}

/*
 * A pair of block rows takes m columns each, s of them common. It draws all 2 m - s of them at
 * once, the same for both rows, and deals out the roles at random in ascending order.
 */
int draw_shared_random(struct build_row *b, const struct source *s, struct cursor *c) {
    const struct draw_rule *rule = &s->u.columns.from.draw;
    struct draw d = draw_begin(b, rule->seed, DRAW_SHARED, b->row / 2);
    int64_t each = llround(rule->keep * (double)build_cols(b));
    int64_t common = max_i64(llround(rule->share * (double)each), 2 * each - build_cols(b));
    int64_t own[2] = {each - common, each - common}, kept = 0;
    if (draw_distinct(b, c, &d, 2 * each - common))
        return -1;
    int32_t *columns = c->scratch;
    for (int64_t i = 0; i < c->n; i++) {
        int64_t role = draw_below(&d, c->n - i); /* equally many roles are left as columns */
        int mine = role < common || (role < common + own[0]) == (b->row % 2 == 0);
        if (role < common)
            common--;
        else if (role < common + own[0])
            own[0]--;
        else
            own[1]--;
        if (mine)
            columns[kept++] = columns[i];
    }
    c->n = kept;
    return 0;
}
