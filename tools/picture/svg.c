/* Patterns as SVG: runs of tiles of one kind, or a grid of densities where runs are too many. */
#include "picture/picture.h"

#include <inttypes.h>

enum { RUN_LIMIT = 20000, GRID_SIDE = 128, LEVELS = 16, DRAWING = 512 };
enum { LEFT = 84, TOP = 76, BELOW = 72, RIGHT = 44 }; /* margins, for words */

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

/* Text of a file: a spec may hold '&'. */
static void put_escaped(const char *text, FILE *file) {
    for (; *text; text++)
        if (*text == '&')
            fputs("&amp;", file);
        else if (*text == '<')
            fputs("&lt;", file);
        else
            fputc((unsigned char)*text < ' ' ? '?' : *text, file);
}

static void draw_title(const struct picture_words *words, FILE *file) {
    fputs("<title>", file);
    put_escaped(words->title, file);
    fputs("</title>\n<text x=\"12\" y=\"22\" font-weight=\"bold\">", file);
    put_escaped(words->title, file);
    fputs("</text>\n<text x=\"12\" y=\"42\">", file);
    put_escaped(words->sizes, file);
    fputs("</text>\n", file);
}

/* Tokens along both sides, and what they are. */
static void draw_axes(const struct picture_words *words, double width, double height, FILE *file) {
    int parts = picture_marks(width, 90, words->n_kv);
    for (int i = 0; i <= parts; i++)
        fprintf(file,
                "<path d=\"M%.1f %.1fv6\" stroke=\"#404040\"/>"
                "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%" PRId64 "</text>\n",
                LEFT + width * i / parts, TOP + height, LEFT + width * i / parts, TOP + height + 20,
                words->n_kv * i / parts);
    parts = picture_marks(height, 20, words->n_q);
    for (int i = 0; i <= parts; i++)
        fprintf(file,
                "<path d=\"M%d %.1fh-6\" stroke=\"#404040\"/>"
                "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%" PRId64 "</text>\n",
                LEFT, TOP + height * i / parts, LEFT - 10, TOP + height * i / parts + 5,
                words->n_q * i / parts);
    fprintf(file,
            "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">key</text>\n"
            "<text x=\"16\" y=\"%.1f\" text-anchor=\"middle\" "
            "transform=\"rotate(-90 16 %.1f)\">query</text>\n",
            LEFT + width / 2, TOP - 10, TOP + height / 2, TOP + height / 2);
}

static void draw_legend(double height, bool by_kind, FILE *file) {
    double y = TOP + height + 48;
    if (!by_kind) {
        fprintf(file, "<text x=\"%d\" y=\"%.1f\">darker: more of the pairs are listed</text>\n",
                LEFT, y);
        return;
    }
    for (int kind = 0; kind < KINDS; kind++)
        fprintf(file,
                "<rect x=\"%d\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>"
                "<text x=\"%d\" y=\"%.1f\">%s</text>\n",
                LEFT + 140 * kind, y - 11, kinds[kind].colour, LEFT + 140 * kind + 18, y,
                kinds[kind].name);
}

bool picture_svg(const tess_lists *l, int64_t list, const struct picture_words *words, FILE *file,
                 struct reason *reason) {
    bool by_kind = few_runs(l, list);
    struct picture grid = {0};
    if (!by_kind && !picture_make(&grid, l, list, GRID_SIDE, reason)) {
        picture_free(&grid);
        return false;
    }
    double longer = (double)(l->n_q > l->n_kv ? l->n_q : l->n_kv), scale = DRAWING / longer;
    double width = (double)l->n_kv * scale, height = (double)l->n_q * scale;
    double left = words ? LEFT : 1, top = words ? TOP : 1; /* 1: the frame's */
    double outer =
        !words ? width + 2 : LEFT + (width > 420 ? width : 420) + RIGHT; /* the legend's */
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.1f %.1f\" "
            "font-family=\"sans-serif\" font-size=\"14\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
            outer, height + (words ? TOP + BELOW : 2));
    if (words)
        draw_title(words, file);
    fprintf(file, "<g transform=\"translate(%g %g) scale(%.9g)\" shape-rendering=\"crispEdges\">\n",
            left, top, scale);
    if (by_kind)
        draw_runs(l, list, file);
    else
        draw_grid(&grid, file);
    fprintf(file,
            "</g>\n<rect x=\"%g\" y=\"%g\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" "
            "stroke=\"#808080\"/>\n",
            left, top, width, height);
    if (words) {
        draw_axes(words, width, height, file);
        draw_legend(height, by_kind, file);
    }
    fputs("</svg>\n", file);
    picture_free(&grid);
    return !ferror(file) || reason_set(reason, "the picture cannot be written");
}
