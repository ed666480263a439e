/*
 * A helper of tests/scripts/tool.sh: reads what the tool wrote.
 *   read_files bench JSON CSV        checks every measurement, that both files say the same, and
 *                                    prints a line for each: sizes, pattern, type, where, pairs
 *   read_files field JSON NAME       prints a line for each: the text of a field, "number" or "null"
 *   read_files numbers JSON NAME     prints a line for each: a field's number
 *   read_files png FILE ROWS COLUMNS prints the picture as `tessera pattern --ascii` would: '@' for
 *                                    the darkest colour, ' ' for white, '?' for any other
 *   read_files find FILE WITHIN      answers 0 when the one picture stands in the other
 *   read_files words FILE WORDS      answers 0 when the picture says so
 */
#include <jansson.h>
#include <math.h>
#include <png.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "picture/font.h"
#include "tessera.h"

static void stop(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
static void stop(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("read_files: ", stderr);
    vfprintf(stderr, format, arguments);
    fputs("\n", stderr);
    va_end(arguments);
    exit(1);
}

/* ---- bench ---- */

static double number(const json_t *o, const char *name) {
    return json_number_value(json_object_get(o, name));
}

static const char *text(const json_t *o, const char *name) {
    return json_string_value(json_object_get(o, name));
}

/* The fields that docs/semantics.md names ("CASE" and "Bench JSON"). */
static void check_fields(const json_t *o) {
    static const char *const texts[] = {"asked",   "case",    "dtype",    "block",
                                        "pattern", "backend", "pipeline", "kernel",
                                        "timing",  "device",  "version"};
    static const char *const integers[] = {"b",  "h",    "hkv",   "n",    "nkv",  "d",
                                           "dv", "seed", "alibi", "sink", "runs", "pairs"};
    static const char *const reals[] = {"ms", "ms_min", "ms_max", "tflops"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!text(o, texts[i]) || !*text(o, texts[i]))
            stop("no text %s", texts[i]);
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
        if (!json_is_integer(json_object_get(o, integers[i])))
            stop("no whole number %s", integers[i]);
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        if (!json_is_real(json_object_get(o, reals[i])) || !(number(o, reals[i]) > 0))
            stop("no positive number %s", reals[i]);
    if (strcmp(text(o, "version"), tess_version()) != 0)
        stop("version %s", text(o, "version"));
}

static void check_measurement(const json_t *o) {
    double ms = number(o, "ms");
    double flops = 2 * (number(o, "d") + number(o, "dv")) * number(o, "pairs");
    if (!(number(o, "ms_min") <= ms && ms <= number(o, "ms_max")))
        stop("ms %g is not between ms_min and ms_max", ms);
    if (number(o, "runs") < 5)
        stop("%g runs", number(o, "runs"));
    if (fabs(number(o, "tflops") - flops / (ms * 1e9)) > 0.01 * number(o, "tflops"))
        stop("tflops is %g instead of %g", number(o, "tflops"), flops / (ms * 1e9));
    if (json_is_real(json_object_get(o, "peak_tflops"))) {
        double share = number(o, "tflops") / number(o, "peak_tflops");
        if (!(share > 0 && share < 1.5)) /* 1 but for what disturbs clocks */
            stop("the CPU reaches %g of its peak", share);
        if (fabs(number(o, "peak_share") - share) > 0.01 * share)
            stop("peak_share is %g instead of %g", number(o, "peak_share"), share);
    }
    printf("%.0fx%.0f %s %s %s %s %.0f\n", number(o, "n"), number(o, "nkv"), text(o, "pattern"),
           text(o, "dtype"), text(o, "backend"), text(o, "pipeline"), number(o, "pairs"));
}

/* Cuts the next cell off *line, in place. */
static char *cell_take(char **line) {
    char *cell = *line, *to = cell, *from = cell;
    int quoted = *from == '"';
    from += quoted;
    while (*from && (quoted || *from != ',')) {
        if (quoted && *from == '"' && *++from != '"')
            break;
        *to++ = *from++;
    }
    *line = *from ? from + 1 : from;
    *to = '\0';
    return cell;
}

static char *line_read(FILE *file, char *line, int size) {
    if (!fgets(line, size, file))
        stop("the CSV has too few lines");
    line[strcspn(line, "\n")] = '\0';
    return line;
}

/* A line of the CSV: the names of o's fields, or their values. */
static void check_line(FILE *csv, json_t *o, int names) {
    char buffer[8192], *line = line_read(csv, buffer, sizeof buffer);
    const char *name;
    json_t *value;
    json_object_foreach(o, name, value) {
        const char *cell = cell_take(&line);
        int same = names                   ? strcmp(cell, name) == 0
                   : json_is_string(value) ? strcmp(cell, json_string_value(value)) == 0
                                           : fabs(strtod(cell, NULL) - json_number_value(value)) <=
                                                 1e-5 * fabs(json_number_value(value));
        if (!same)
            stop("%s is '%s' in the CSV", name, cell);
    }
    if (*line)
        stop("the CSV has more fields: %s", line);
}

static int read_bench(const char *json_path, const char *csv_path) {
    json_error_t error;
    json_t *array = json_load_file(json_path, JSON_REJECT_DUPLICATES, &error), *o;
    FILE *csv = fopen(csv_path, "r");
    size_t i;
    if (!json_is_array(array) || json_array_size(array) == 0 || !csv)
        stop("no JSON array, or no CSV: %s", error.text);
    check_line(csv, json_array_get(array, 0), 1);
    json_array_foreach(array, i, o) {
        check_fields(o);
        check_measurement(o);
        check_line(csv, o, 0);
    }
    if (getc(csv) != EOF)
        stop("the CSV has more lines than the JSON has objects");
    fclose(csv);
    json_decref(array);
    return 0;
}

static int print_field(const char *path, const char *name, int numbers) {
    json_error_t error;
    json_t *array = json_load_file(path, JSON_REJECT_DUPLICATES, &error), *o;
    size_t i;
    if (!json_is_array(array))
        stop("no JSON array: %s", error.text);
    json_array_foreach(array, i, o) {
        const json_t *value = json_object_get(o, name);
        if (!value)
            stop("no field %s", name);
        if (numbers)
            printf("%.17g\n", json_number_value(value));
        else
            puts(json_is_string(value)   ? json_string_value(value)
                 : json_is_number(value) ? "number"
                                         : "null");
    }
    json_decref(array);
    return 0;
}

/* ---- png ---- */

/* Letter of the cell of one query and key: all its pixels must agree. */
static char cell_shown(const png_byte *pixels, size_t stride, size_t side) {
    static const png_byte white[3] = {255, 255, 255}, dark[3] = {8, 29, 88};
    const png_byte *wanted = memcmp(pixels, white, 3) == 0 ? white : dark;
    for (size_t y = 0; y < side; y++)
        for (size_t x = 0; x < side; x++)
            if (memcmp(pixels + y * stride + 3 * x, wanted, 3) != 0)
                return '?';
    return wanted == white ? ' ' : '@';
}

static void edge_print(size_t columns) {
    putchar('+');
    for (size_t x = 0; x < 2 * columns; x++)
        putchar('-');
    puts("+");
}

static int read_png(const char *path, size_t rows, size_t columns) {
    png_image image = {.version = PNG_IMAGE_VERSION};
    if (!png_image_begin_read_from_file(&image, path))
        stop("%s: %s", path, image.message);
    image.format = PNG_FORMAT_RGB;
    png_byte *pixels = malloc(PNG_IMAGE_SIZE(image));
    if (!pixels || !png_image_finish_read(&image, NULL, pixels, 0, NULL))
        stop("%s: %s", path, image.message);
    size_t side = (image.width - 2) / columns, stride = 3 * (size_t)image.width;
    if (side == 0 || image.width != columns * side + 2 || image.height != rows * side + 2)
        stop("%s: %u x %u pixels", path, image.width, image.height);
    edge_print(columns);
    for (size_t y = 0; y < rows; y++) {
        putchar('|');
        for (size_t x = 0; x < columns; x++) {
            char c =
                cell_shown(pixels + (1 + y * side) * stride + 3 * (1 + x * side), stride, side);
            printf("%c%c", c, c);
        }
        puts("|");
    }
    edge_print(columns);
    free(pixels);
    return 0;
}

static png_byte *pixels_of(const char *path, png_image *image) {
    memset(image, 0, sizeof *image);
    image->version = PNG_IMAGE_VERSION;
    if (!png_image_begin_read_from_file(image, path))
        stop("%s: %s", path, image->message);
    image->format = PNG_FORMAT_RGB;
    png_byte *pixels = malloc(PNG_IMAGE_SIZE(*image));
    if (!pixels || !png_image_finish_read(image, NULL, pixels, 0, NULL))
        stop("%s: %s", path, image->message);
    return pixels;
}

/* Place of the one picture in the other, which must have words around it. */
static int find_png(const char *path, const char *within) {
    png_image small, large;
    png_byte *part = pixels_of(path, &small), *whole = pixels_of(within, &large);
    size_t stride = 3 * (size_t)large.width, row = 3 * (size_t)small.width;
    int found = 0;
    for (size_t y = 1; y + small.height < large.height && !found; y++)
        for (size_t x = 1; x + small.width < large.width && !found; x++) {
            size_t same = 0;
            while (same < small.height &&
                   !memcmp(whole + (y + same) * stride + 3 * x, part + same * row, row))
                same++;
            found = same == small.height;
        }
    free(part);
    free(whole);
    if (!found)
        stop("%s is not in %s", path, within);
    return 0;
}

/* Does the picture hold these words, in letters of 2 pixels a dot? */
static int find_words(const char *path, const char *words) {
    enum { DOT = 2, LETTER = (FONT_COLUMNS + 1) * DOT, ROWS = FONT_ROWS * DOT };
    png_image image;
    png_byte *pixels = pixels_of(path, &image);
    size_t width = strlen(words) * LETTER - DOT;
    int found = 0;
    for (size_t y = 0; y + ROWS <= image.height && !found; y++)
        for (size_t x = 0; x + width <= image.width && !found; x++) {
            size_t same = 0;
            for (; same < width * ROWS; same++) {
                size_t r = same / width, c = same % width, dot = c % LETTER / DOT;
                int inked =
                    dot < FONT_COLUMNS && font[words[c / LETTER] - FONT_FIRST][dot] >> r / DOT & 1;
                if ((pixels[3 * ((y + r) * image.width + x + c)] < 128) != inked)
                    break;
            }
            found = same == width * ROWS;
        }
    free(pixels);
    if (!found)
        stop("%s does not say '%s'", path, words);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "find") == 0)
        return find_png(argv[2], argv[3]);
    if (argc == 4 && strcmp(argv[1], "words") == 0)
        return find_words(argv[2], argv[3]);
    if (argc == 4 && strcmp(argv[1], "bench") == 0)
        return read_bench(argv[2], argv[3]);
    if (argc == 4 && (strcmp(argv[1], "field") == 0 || strcmp(argv[1], "numbers") == 0))
        return print_field(argv[2], argv[3], *argv[1] == 'n');
    if (argc == 5 && strcmp(argv[1], "png") == 0)
        return read_png(argv[2], strtoul(argv[3], NULL, 10), strtoul(argv[4], NULL, 10));
    stop("usage: read_files bench JSON CSV | field JSON NAME | numbers JSON NAME | "
         "png FILE ROWS COLUMNS | find FILE WITHIN | words FILE WORDS");
}
