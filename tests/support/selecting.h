/* tess_select on any backend, against a sort. */
#ifndef TESTS_SELECTING_H
#define TESTS_SELECTING_H

#include "lab/memory/mirror.h"

/* Scores of a row. */
enum scores {
    SCORES_NORMAL,
    SCORES_EQUAL,
    SCORES_TWO,   /* two numbers: larger plateaus than any buffer */
    SCORES_ZEROS, /* both signs */
    SCORES_RELU,  /* half of them 0 */
    SCORES_NAN,   /* mostly NaN and -Inf, some +Inf */
    SCORES_CLOSE, /* differ in their last digits */
    SCORES_RISING,
    SCORES_TINY, /* subnormal */
    SCORES_KINDS
};

struct choice {
    tess_type type;
    int64_t size[4];
    enum scores scores;
    tess_selection selection; /* row_k, lengths and keep: not NULL: drawn */
    int64_t capacity;
    int ragged; /* 1: rows lie apart, aligned to their elements */
};

/* A choice with its memory on a backend, between canaries. */
struct selecting {
    struct choice choice;
    struct lab_tensor scores;
    struct lab_buffer row_k, lengths, keep, indices, counts, bits, overflows;
    struct lab_mirror mirror;
    tess_tensor scores_there;
    tess_selection selection;
    tess_selected selected;
};

void selecting_make(struct selecting *s, tess_backend backend, const struct choice *choice);
void selecting_free(struct selecting *s);

/* Draws scores, row_k and lengths, and sends them to the backend with results that hold poison. */
void selecting_draw(struct selecting *s, uint64_t seed);

/* Chooses, in the order of the stream; ends the test when that fails. */
void selecting_run(const struct selecting *s, tess_stream stream);

/* Fetches what was chosen, and holds it against a sort: 0, or -1 and what differs. */
int selecting_check(struct selecting *s, char why[LAB_WHY]);
/* Without fetching. */
int selecting_compare(const struct selecting *s, char why[LAB_WHY]);

/* A number that changes with any bit of the results. */
uint64_t selecting_hash(const struct selecting *s);

/* Draws, chooses and checks; ends the test with what differs. */
void choice_is_right(tess_backend backend, const struct choice *choice, uint64_t seed);

/* All kinds of scores, of each type, by each mode, in rows of n. */
void choices_are_right(tess_backend backend, int64_t rows, int64_t n);

/* A row for each k around n and a row's own k; columns that are kept; lengths. */
void edges_are_right(tess_backend backend);

/* Columns that are chosen are filled as they are, by indices and by bits, without a fault. */
void choices_are_lists(tess_backend backend);

#endif
