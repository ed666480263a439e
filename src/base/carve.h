/* One walk over a workspace that both sizes and places it. */
#ifndef TESSERA_CARVE_H
#define TESSERA_CARVE_H

#include <stddef.h>
#include <stdint.h>

#define CARVE_ALIGNMENT 64
#define IMAGE_ALIGNMENT 256 /* bytes: a plan's image in device memory */

/*
 * Walk once with base NULL to learn `used`, once with the memory to learn the places; the walks
 * cannot differ because they are the same code. Sizes that do not fit set `overflow`.
 */
struct carve {
    char *base;
    size_t used;
    int overflow;
};

/* Room for count elements of size bytes, 64-byte aligned; NULL while sizing. */
static inline void *carve_take(struct carve *c, size_t count, size_t size) {
    size_t bytes, end;
    if (__builtin_mul_overflow(count, size, &bytes) ||
        __builtin_add_overflow(bytes, (size_t)(CARVE_ALIGNMENT - 1), &bytes) ||
        __builtin_add_overflow(c->used, bytes / CARVE_ALIGNMENT * CARVE_ALIGNMENT, &end)) {
        c->overflow = 1;
        return NULL;
    }
    void *place = c->base ? c->base + c->used : NULL;
    c->used = end;
    return place;
}

/* Room for rows * columns elements. */
static inline void *carve_take_panel(struct carve *c, size_t rows, size_t columns, size_t size) {
    size_t count;
    if (__builtin_mul_overflow(rows, columns, &count)) {
        c->overflow = 1;
        return NULL;
    }
    return carve_take(c, count, size);
}

#endif
