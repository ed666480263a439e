/* Device patterns of cases on a backend. */
#include "lab/lists/listed.h"

#include <stdio.h>

tess_device_pattern lab_listed_declared(const struct lab_listed *l) {
    tess_device_pattern p = l->pattern;
    p.indices = p.counts = p.lengths = NULL;
    p.row_ptr = NULL, p.bits = NULL, p.mask = NULL;
    return p;
}

/* The arrays, and where each stands in the pattern. */
enum { ARRAYS = 6 };
struct array {
    const char *name;
    const struct lab_buffer *buffer;
    size_t slot;
};

#define SLOT(field) offsetof(tess_device_pattern, field)
static void arrays_of(const struct lab_listed *l, struct array all[ARRAYS]) {
    const int chosen = l->listing.chosen;
    const struct array arrays[ARRAYS] = {
        {"indices", chosen ? &l->chosen.indices : &l->indices, SLOT(indices)},
        {"counts", chosen ? &l->chosen.counts : &l->counts, SLOT(counts)},
        {"row_ptr", &l->row_ptr, SLOT(row_ptr)},
        {"bits", chosen ? &l->chosen.bits : &l->bits, SLOT(bits)},
        {"lengths", &l->lengths, SLOT(lengths)},
        {"mask", &l->mask, SLOT(mask)}};
    memcpy(all, arrays, sizeof arrays);
}

int lab_listed_place(const struct lab_listed *l, struct lab_mirror *mirror,
                     tess_device_pattern *placed) {
    struct array all[ARRAYS];
    arrays_of(l, all);
    *placed = l->pattern;
    for (int i = 0; i < ARRAYS; i++) {
        if (!all[i].buffer->base)
            continue;
        void *at = lab_mirror_add(mirror, all[i].buffer);
        if (!at)
            return -1;
        memcpy((char *)placed + all[i].slot, &at, sizeof at);
    }
    return l->listing.chosen && !lab_mirror_add(mirror, &l->chosen.scores) ? -1 : 0;
}

static int chosen_check(const struct lab_listed *l, char why[LAB_WHY]) {
    const struct {
        const char *name;
        const struct lab_buffer *is, *should;
    } all[] = {{"indices", &l->chosen.indices, &l->indices},
               {"counts", &l->chosen.counts, &l->counts},
               {"bits", &l->chosen.bits, &l->bits}};
    if (lab_buffer_check(&l->chosen.scores, "scores", why))
        return -1;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (size_t at = 0; at < all[i].is->size; at++)
            if (all[i].is->data[at] != all[i].should->data[at]) {
                snprintf(why, LAB_WHY,
                         "tess_select: byte %zu of its %s differs from the definition", at,
                         all[i].name);
                return -1;
            }
    return 0;
}

int lab_listed_check(const struct lab_listed *l, char why[LAB_WHY]) {
    struct array all[ARRAYS];
    arrays_of(l, all);
    for (int i = 0; i < ARRAYS; i++)
        if (all[i].buffer->base && lab_buffer_check(all[i].buffer, all[i].name, why))
            return -1;
    return l->listing.chosen ? chosen_check(l, why) : 0;
}

uint64_t lab_listed_hash(const struct lab_listed *l) {
    struct array all[ARRAYS];
    uint64_t hash = 0;
    arrays_of(l, all);
    for (int i = 0; i < ARRAYS; i++)
        hash = 31 * hash + (all[i].buffer->base ? lab_buffer_hash(all[i].buffer) : 0);
    return hash;
}
