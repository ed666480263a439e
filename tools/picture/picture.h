/* Pictures of one list of a pattern, at any size: the work grows with the tiles and the pixels,
 * never with queries times keys. */
#ifndef TOOLS_PICTURE_H
#define TOOLS_PICTURE_H

#include <stdio.h>

#include "io/report.h"

/* Surroundings of a picture: two lines above it, and numbers along its sides. */
struct picture_words {
    char title[160], sizes[160];
    int64_t n_q, n_kv;
};

/* How many equal parts a side of n tokens and `length` pixels is marked in, where a mark takes `room`
 * pixels: mark i of 0 ... parts stands at token n * i / parts. */
int picture_marks(double length, double room, int64_t n);

/* A grid of cells over queries (down) and keys (across), each with the pairs listed in it. */
struct picture {
    int64_t height, width;
    int64_t *row_bound,
        *col_bound; /* cell y covers queries row_bound[y] ... row_bound[y + 1] - 1 */
    int64_t *pairs; /* [height][width] */
};

/* A grid whose longer side has at most `side` cells; no cell is smaller than an element. Free it
 * whichever way this ends. */
bool picture_make(struct picture *picture, const tess_lists *lists, int64_t list, int64_t side,
                  struct reason *reason);
void picture_free(struct picture *picture);

/* The share of a cell's pairs that are listed: exactly 0 and 1 where none and all are. */
double picture_density(const struct picture *picture, int64_t y, int64_t x);

/* Each answers false when writing failed. words NULL: the cells and a frame, nothing else. */
bool picture_ascii(const struct picture *picture, FILE *file);
bool picture_png(const struct picture *picture, const struct picture_words *words, FILE *file);

/* Tiles as rectangles coloured by kind, or cells where there would be too many. */
bool picture_svg(const tess_lists *lists, int64_t list, const struct picture_words *words,
                 FILE *file, struct reason *reason);

#endif
