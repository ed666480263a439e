/*
 * Types and functions that the reader of specs (spec.c) and its terms (spec_terms.c) share.
 */
#ifndef TESSERA_SPEC_H
#define TESSERA_SPEC_H

#include "pattern/build.h"

struct number {
    double value;
    uint64_t integer; /* the value where it is whole; UINT64_MAX where it is too large */
    int whole, too_large;
    int64_t offset; /* in the spec */
};

struct parser {
    const char *spec;
    int64_t at;
    int depth;
    int draws; /* a random term was seen */
    const struct bcsr *sizes;
    int64_t n_kv; /* keys of what is laid out: of the sequence, or of the shortest document */
    struct source *sources; /* children first, see build.h */
    int64_t n, room;
    struct number *numbers; /* numbers of the term at hand */
    int64_t n_numbers, numbers_room;
    tess_status status;
    tess_error *error;
};

/* Functions that make a source answer its number, or SPEC_FAILED with status and error set. */
#define SPEC_FAILED INT64_C(-1)

/* One letter for each number: t tokens, p tokens but not 0, f a fraction 0 ... 1, s a seed;
 * "t*" is one t or more. `signature` is how the term is written. */
struct term {
    const char *name, *numbers, *signature;
    /* NULL: the term holds a spec of its own, behind its numbers (spec.c) */
    int64_t (*add)(struct parser *p, const struct number *a);
};

/* NULL when there is no such term. */
const struct term *term_find(const char *name, int64_t length);
/* How what was meant by a name that is no term's is written; NULL when no name is near. */
const char *term_near(const char *name, int64_t length);
/* The names of all terms, joined by commas, as far as there is room. */
void term_names(char *text, size_t size);

/* The ends of documents (`what`, in messages) whose lengths are the numbers of the term at hand, all
 * within p->n_kv; NULL with status and error set. The caller's to free. */
int64_t *term_ends(struct parser *p, const char *what);

/* Fault at an offset; the message goes on with ", at offset N". */
int64_t spec_fail(struct parser *p, int64_t offset, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int64_t spec_fail_memory(struct parser *p);

int64_t spec_add(struct parser *p, struct source source);

#endif
