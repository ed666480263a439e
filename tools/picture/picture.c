/* Patterns as grids of counted pairs, drawn as text or pixels. */
#include "picture/picture.h"

#include <png.h>
#include <stdlib.h>
#include <string.h>

#include "picture/font.h"

/* The cell that holds an element: bound[cell] <= at < bound[cell + 1]. */
static int64_t cell_of(const int64_t *bound, int64_t cells, int64_t at) {
    int64_t n = bound[cells];
    int64_t cell = (int64_t)((double)at / (double)n * (double)cells);
    cell = cell < cells ? cell : cells - 1;
    while (bound[cell] > at)
        cell--;
    while (bound[cell + 1] <= at)
        cell++;
    return cell;
}

static int64_t minimum(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Adds `rows` times the columns c0 ... c1 - 1 to the cells of row y. */
static void add_run(struct picture *p, int64_t y, int64_t rows, int64_t c0, int64_t c1) {
    if (c0 >= c1)
        return;
    for (int64_t x = cell_of(p->col_bound, p->width, c0); c0 < c1; x++) {
        int64_t end = minimum(c1, p->col_bound[x + 1]);
        p->pairs[y * p->width + x] += rows * (end - c0);
        c0 = end;
    }
}

static void add_full(struct picture *p, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
    for (int64_t y = cell_of(p->row_bound, p->height, r0); r0 < r1; y++) {
        int64_t end = minimum(r1, p->row_bound[y + 1]);
        add_run(p, y, end - r0, c0, c1);
        r0 = end;
    }
}

static int64_t count_bits(const uint64_t *bits, int64_t begin, int64_t end) {
    int64_t count = 0;
    while (begin < end) {
        int64_t n = minimum(64 - begin % 64, end - begin);
        uint64_t word = bits[begin / 64] >> (begin % 64);
        if (n < 64)
            word &= (UINT64_C(1) << n) - 1;
        count += __builtin_popcountll(word);
        begin += n;
    }
    return count;
}

/* One row of a bitmask tile; its columns begin at bit `at`. */
static void add_bits(struct picture *p, int64_t y, const uint64_t *bits, int64_t at, int64_t c0,
                     int64_t c1) {
    for (int64_t x = cell_of(p->col_bound, p->width, c0), c = c0; c < c1; x++) {
        int64_t end = minimum(c1, p->col_bound[x + 1]);
        p->pairs[y * p->width + x] += count_bits(bits, at + c - c0, at + end - c0);
        c = end;
    }
}

static int64_t clamp(int64_t value, int64_t low, int64_t high) {
    return value < low ? low : value > high ? high : value;
}

static void add_list(struct picture *p, const tess_lists *l, int64_t list) {
    int64_t rows = (l->n_q - 1) / l->block_q + 1, band = 0, mask = 0;
    const int64_t *row_ptr = l->row_ptr + list * (rows + 1);
    for (int64_t row = 0; row < rows; row++) {
        int64_t r0 = row * l->block_q, r1 = minimum(r0 + l->block_q, l->n_q);
        for (int64_t e = row_ptr[row]; e < row_ptr[row + 1]; e++) {
            int64_t c0 = l->col_idx[e] * l->block_kv, c1 = minimum(c0 + l->block_kv, l->n_kv);
            while (band < l->n_bands && l->band_entry[band] < e)
                band++;
            while (mask < l->n_bitmasks && l->bitmask_entry[mask] < e)
                mask++;
            if (band < l->n_bands && l->band_entry[band] == e) {
                const int32_t *lo_hi = l->band + 2 * band;
                for (int64_t r = r0; r < r1; r++)
                    add_run(p, cell_of(p->row_bound, p->height, r), 1,
                            clamp(c0 + (r - r0) + lo_hi[0], c0, c1),
                            clamp(c0 + (r - r0) + lo_hi[1] + 1, c0, c1));
            } else if (mask < l->n_bitmasks && l->bitmask_entry[mask] == e) {
                for (int64_t r = r0; r < r1; r++)
                    add_bits(p, cell_of(p->row_bound, p->height, r), l->bits,
                             (mask * l->block_q + (r - r0)) * l->block_kv, c0, c1);
            } else {
                add_full(p, r0, r1, c0, c1);
            }
        }
    }
}

static int64_t *make_bounds(int64_t n, int64_t cells) {
    int64_t *bound = malloc((size_t)(cells + 1) * sizeof *bound);
    for (int64_t i = 0; bound && i <= cells; i++)
        bound[i] = n / cells * i + n % cells * i / cells;
    return bound;
}

bool picture_make(struct picture *picture, const tess_lists *lists, int64_t list, int64_t side,
                  struct reason *reason) {
    int64_t longer = lists->n_q > lists->n_kv ? lists->n_q : lists->n_kv;
    side = minimum(side, longer);
    struct picture p = {.height = (lists->n_q * side + longer - 1) / longer,
                        .width = (lists->n_kv * side + longer - 1) / longer};
    p.row_bound = make_bounds(lists->n_q, p.height);
    p.col_bound = make_bounds(lists->n_kv, p.width);
    p.pairs = calloc((size_t)(p.height * p.width), sizeof *p.pairs);
    *picture = p;
    if (!p.row_bound || !p.col_bound || !p.pairs)
        return reason_set(reason, "out of memory for a picture");
    add_list(picture, lists, list);
    return true;
}

void picture_free(struct picture *picture) {
    free(picture->row_bound);
    free(picture->col_bound);
    free(picture->pairs);
    *picture = (struct picture){0};
}

double picture_density(const struct picture *p, int64_t y, int64_t x) {
    int64_t area =
        (p->row_bound[y + 1] - p->row_bound[y]) * (p->col_bound[x + 1] - p->col_bound[x]);
    return (double)p->pairs[y * p->width + x] / (double)area;
}

static void ascii_edge(const struct picture *p, FILE *file) {
    putc('+', file);
    for (int64_t x = 0; x < 2 * p->width; x++)
        putc('-', file);
    fputs("+\n", file);
}

bool picture_ascii(const struct picture *p, FILE *file) {
    static const char shades[] = ".:-=+*#%"; /* between none ' ' and all '@' */
    ascii_edge(p, file);
    for (int64_t y = 0; y < p->height; y++) {
        putc('|', file);
        for (int64_t x = 0; x < p->width; x++) {
            double density = picture_density(p, y, x);
            int shade = (int)(density * (double)(sizeof shades - 1));
            char c = density == 0.0 ? ' ' : density == 1.0 ? '@' : shades[shade];
            putc(c, file); /* twice: a character is about twice as high as wide */
            putc(c, file);
        }
        fputs("|\n", file);
    }
    ascii_edge(p, file);
    return !ferror(file);
}

/* From near white over blue to near black: one hue, ordered by lightness alone, so that it reads
 * without colour vision too. Whatever lists anything stands out from what lists nothing. */
static void colour(double density, png_byte rgb[3]) {
    static const double light[3] = {198, 219, 239}, dark[3] = {8, 29, 88};
    for (int i = 0; i < 3; i++)
        rgb[i] = density == 0.0 ? 255 : (png_byte)(light[i] + density * (dark[i] - light[i]) + 0.5);
}

int picture_marks(double length, double room, int64_t n) {
    int parts = 4;
    while (parts > 1 && (parts > n || length / parts < room))
        parts /= 2;
    return parts;
}

/* ---- png ------------------------------------------------------------------------------------- */

struct canvas {
    png_bytep pixels; /* [height][width][3] */
    int64_t height, width;
};

enum { SCALE = 2, LETTER = (FONT_COLUMNS + 1) * SCALE, LINE = (FONT_ROWS + 3) * SCALE };
enum { SMALL = 512, FRAME_GREY = 128, INK = 32, MARK = 6, GAP = 4 };

static void put_grey(struct canvas *c, int64_t x, int64_t y, png_byte grey) {
    if (x >= 0 && x < c->width && y >= 0 && y < c->height)
        for (int i = 0; i < 3; i++)
            c->pixels[3 * (y * c->width + x) + i] = grey;
}

/* Letters that do not fit are left out. What is not ASCII becomes '?'. */
static void put_text(struct canvas *c, int64_t x, int64_t y, const char *text) {
    for (; *text && x + LETTER <= c->width; text++, x += LETTER) {
        int letter = *text < FONT_FIRST || *text > '~' ? '?' : *text;
        for (int64_t i = 0; i < FONT_COLUMNS * SCALE; i++)
            for (int64_t j = 0; j < FONT_ROWS * SCALE; j++)
                if (font[letter - FONT_FIRST][i / SCALE] >> j / SCALE & 1)
                    put_grey(c, x + i, y + j, INK);
    }
}

/* The numbers along both sides of a plot of height x width pixels, whose frame begins at (x, y). */
static void put_marks(struct canvas *c, const struct picture_words *words, int64_t x, int64_t y,
                      int64_t height, int64_t width) {
    char text[24];
    int64_t digits = snprintf(text, sizeof text, "%lld", (long long)words->n_kv);
    int parts = picture_marks((double)width, (double)((digits + 1) * LETTER), words->n_kv);
    for (int i = 0; i <= parts; i++) {
        int64_t at = x + (width - 1) * i / parts;
        int64_t n = snprintf(text, sizeof text, "%lld", (long long)(words->n_kv * i / parts));
        for (int k = 0; k < MARK; k++)
            put_grey(c, at, y + height + k, INK);
        put_text(c, at - n * LETTER / 2, y + height + MARK + GAP, text);
    }
    parts = picture_marks((double)height, LINE, words->n_q);
    for (int i = 0; i <= parts; i++) {
        int64_t at = y + (height - 1) * i / parts;
        int64_t n = snprintf(text, sizeof text, "%lld", (long long)(words->n_q * i / parts));
        for (int k = 1; k <= MARK; k++)
            put_grey(c, x - k, at, INK);
        put_text(c, x - MARK - GAP - n * LETTER, at - FONT_ROWS * SCALE / 2, text);
    }
    put_text(c, x + width / 2 - 3 * LETTER / 2, y + height + MARK + GAP + LINE, "key");
    put_text(c, GAP, y - LINE - GAP, "query");
}

/* The cells in their frame of one pixel, which begins at (x0, y0). */
static void put_cells(struct canvas *c, const struct picture *p, int64_t zoom, int64_t x0,
                      int64_t y0) {
    int64_t height = p->height * zoom + 2, width = p->width * zoom + 2;
    for (int64_t y = 0; y < height; y++)
        for (int64_t x = 0; x < width; x++)
            if (y == 0 || x == 0 || y == height - 1 || x == width - 1)
                put_grey(c, x0 + x, y0 + y, FRAME_GREY);
            else
                colour(picture_density(p, (y - 1) / zoom, (x - 1) / zoom),
                       c->pixels + 3 * ((y0 + y) * c->width + x0 + x));
}

bool picture_png(const struct picture *p, const struct picture_words *words, FILE *file) {
    int64_t longer = p->height > p->width ? p->height : p->width;
    int64_t zoom = longer < SMALL ? SMALL / longer : 1;
    int64_t x = 0, y = 0, height = p->height * zoom + 2, width = p->width * zoom + 2;
    struct canvas c = {NULL, height, width};
    if (words) {
        char text[24];
        int64_t digits = snprintf(text, sizeof text, "%lld", (long long)words->n_q);
        int64_t right = snprintf(text, sizeof text, "%lld", (long long)words->n_kv) * LETTER;
        x = MARK + 2 * GAP + (digits > 5 ? digits : 5) * LETTER; /* 5: "query" */
        y = 3 * LINE + 4 * GAP;
        c.height = y + height + MARK + GAP + 2 * LINE;
        c.width = x + width + right;
        if (c.width < SMALL)
            c.width = SMALL;
    }
    c.pixels = malloc((size_t)(c.height * c.width * 3));
    if (!c.pixels)
        return false;
    memset(c.pixels, 255, (size_t)(c.height * c.width * 3));
    put_cells(&c, p, zoom, x, y);
    if (words) {
        put_text(&c, GAP, 2 * GAP, words->title);
        put_text(&c, GAP, 2 * GAP + LINE, words->sizes);
        put_marks(&c, words, x, y, height, width);
    }
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)c.width,
                       .height = (png_uint_32)c.height,
                       .format = PNG_FORMAT_RGB};
    int written = png_image_write_to_stdio(&image, file, 0, c.pixels, 0, NULL);
    free(c.pixels);
    return written != 0;
}
