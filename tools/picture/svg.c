/* Patterns as SVG: runs of tiles of one kind, or a grid of densities where runs are too many. */
#include "picture/picture.h"

#include <inttypes.h>

enum { RUN_LIMIT = 20000, GRID_SIDE = 128, LEVELS = 16, DRAWING = 512, MARGIN = 36 };

enum kind { FULL, BAND, BITMASK, KINDS };

/* Whole tiles dark, partial ones light; hues of Okabe and Ito's palette, told apart with any colour
 * vision. */
static const struct {
    const char *colour, *name;
} kinds[KINDS] = {
    {"#0072b2", "full tile"}, {"#a6d5f3", "partial: a band"}, {"#f5cf80", "partial: a bitmask"}};

struct run {
    int64_t row;
    int64_t col, end; /* block columns col ... end - 1 */
    enum kind kind;
};

/* Walks the runs of a list. */
struct run_walk {
    const tess_lists *l;
    const int64_t *row_ptr;
    int64_t rows, row, entry, band, mask;
};

static struct run_walk walk_begin(const tess_lists *l, int64_t list) {
    int64_t rows = (l->n_q - 1) / l->block_q + 1;
    struct run_walk w = {.l = l, .row_ptr = l->row_ptr + list * (rows + 1), .rows = rows};
    w.entry = w.row_ptr[0];
    return w;
}

static enum kind kind_of(struct run_walk *w, int64_t entry) {
    const tess_lists *l = w->l;
    while (w->band < l->n_bands && l->band_entry[w->band] < entry)
        w->band++;
    while (w->mask < l->n_bitmasks && l->bitmask_entry[w->mask] < entry)
        w->mask++;
    if (w->band < l->n_bands && l->band_entry[w->band] == entry)
        return BAND;
    return w->mask < l->n_bitmasks && l->bitmask_entry[w->mask] == entry ? BITMASK : FULL;
}

static bool walk_next(struct run_walk *w, struct run *run) {
    while (w->row < w->rows && w->entry == w->row_ptr[w->row + 1])
        w->row++;
    if (w->row == w->rows)
        return false;
    const int32_t *col = w->l->col_idx;
    run->row = w->row;
    run->col = col[w->entry];
    run->kind = kind_of(w, w->entry);
    do
        w->entry++;
    while (w->entry < w->row_ptr[w->row + 1] && col[w->entry] == col[w->entry - 1] + 1 &&
           kind_of(w, w->entry) == run->kind);
    run->end = col[w->entry - 1] + 1;
    return true;
}

static bool few_runs(const tess_lists *l, int64_t list) {
    struct run_walk w = walk_begin(l, list);
    struct run run;
    int64_t count = 0;
    while (count <= RUN_LIMIT && walk_next(&w, &run))
        count++;
    return count <= RUN_LIMIT;
}

static int64_t minimum(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static void draw_runs(const tess_lists *l, int64_t list, FILE *file) {
    for (int kind = 0; kind < KINDS; kind++) {
        struct run_walk w = walk_begin(l, list);
        struct run run;
        fprintf(file, "<g fill=\"%s\">\n", kinds[kind].colour);
        while (walk_next(&w, &run)) {
            int64_t x = run.col * l->block_kv, y = run.row * l->block_q;
            if ((int)run.kind == kind)
                fprintf(file,
                        "<rect x=\"%" PRId64 "\" y=\"%" PRId64 "\" width=\"%" PRId64
                        "\" height=\"%" PRId64 "\"/>\n",
                        x, y, minimum(run.end * l->block_kv, l->n_kv) - x,
                        minimum(y + l->block_q, l->n_q) - y);
        }
        fputs("</g>\n", file);
    }
}

/* 0 where nothing is listed, else 1 ... LEVELS. */
static int level(const struct picture *p, int64_t y, int64_t x) {
    double density = picture_density(p, y, x);
    return density == 0.0 ? 0 : 1 + (int)(density * (LEVELS - 1));
}

static void draw_grid(const struct picture *p, FILE *file) {
    fprintf(file, "<g fill=\"%s\">\n", kinds[FULL].colour);
    for (int64_t y = 0; y < p->height; y++)
        for (int64_t x = 0, end; x < p->width; x = end) {
            int shade = level(p, y, x);
            for (end = x + 1; end < p->width && level(p, y, end) == shade;)
                end++;
            if (shade > 0)
                fprintf(file,
                        "<rect x=\"%" PRId64 "\" y=\"%" PRId64 "\" width=\"%" PRId64
                        "\" height=\"%" PRId64 "\" fill-opacity=\"%.3f\"/>\n",
                        p->col_bound[x], p->row_bound[y], p->col_bound[end] - p->col_bound[x],
                        p->row_bound[y + 1] - p->row_bound[y], (double)shade / LEVELS);
        }
    fputs("</g>\n", file);
}

static void draw_legend(double width, double height, bool by_kind, FILE *file) {
    fprintf(file,
            "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">key</text>\n"
            "<text x=\"%d\" y=\"%.1f\" text-anchor=\"middle\" "
            "transform=\"rotate(-90 %d %.1f)\">query</text>\n",
            MARGIN + width / 2, MARGIN - 12, MARGIN - 12, MARGIN + height / 2, MARGIN - 12,
            MARGIN + height / 2);
    double y = MARGIN + height + 22;
    if (!by_kind) {
        fprintf(file, "<text x=\"%d\" y=\"%.1f\">darker: more of the pairs are listed</text>\n",
                MARGIN, y);
        return;
    }
    for (int kind = 0; kind < KINDS; kind++)
        fprintf(file,
                "<rect x=\"%d\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>"
                "<text x=\"%d\" y=\"%.1f\">%s</text>\n",
                MARGIN + 140 * kind, y - 11, kinds[kind].colour, MARGIN + 140 * kind + 18, y,
                kinds[kind].name);
}

bool picture_svg(const tess_lists *l, int64_t list, FILE *file, struct reason *reason) {
    bool by_kind = few_runs(l, list);
    struct picture grid = {0};
    if (!by_kind && !picture_make(&grid, l, list, GRID_SIDE, reason)) {
        picture_free(&grid);
        return false;
    }
    double longer = (double)(l->n_q > l->n_kv ? l->n_q : l->n_kv), scale = DRAWING / longer;
    double width = (double)l->n_kv * scale, height = (double)l->n_q * scale;
    double outer = width > 420 ? width : 420; /* the legend's */
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.1f %.1f\" "
            "font-family=\"sans-serif\" font-size=\"14\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
            "<g transform=\"translate(%d %d) scale(%.9g)\" shape-rendering=\"crispEdges\">\n",
            outer + 2 * MARGIN, height + 2 * MARGIN, MARGIN, MARGIN, scale);
    if (by_kind)
        draw_runs(l, list, file);
    else
        draw_grid(&grid, file);
    fprintf(file,
            "</g>\n<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" "
            "stroke=\"#808080\"/>\n",
            MARGIN, MARGIN, width, height);
    draw_legend(width, height, by_kind, file);
    fputs("</svg>\n", file);
    picture_free(&grid);
    return !ferror(file) || reason_set(reason, "the picture cannot be written");
}
