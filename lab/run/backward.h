/* The tensors of a backward case besides q, k, v, o and lse. */
#ifndef LAB_BACKWARD_H
#define LAB_BACKWARD_H

#include "lab/oracle/gradients.h"
#include "lab/memory/guard.h"

/* Tensors that a run reads; without memory where the case has none. */
struct lab_given {
    struct lab_tensor d_o, d_lse, o_rest;
    struct lab_tensor delta; /* tess_delta writes it */
};

/* Tensors and arrays that a run writes; without memory where it is not wanted. */
struct lab_wanted {
    struct lab_tensor d_q, d_k, d_v;
    struct lab_buffer d_alibi, d_sink; /* [heads_q] f32 */
};

/* d_o and d_lse are filled, the others hold canaries. Answers 0, or -1 without memory;
 * lab_given_free whichever it was. Nothing has memory where the case is no backward. */
int lab_given_make(struct lab_given *given, const struct lab_case *c);
void lab_given_free(struct lab_given *given);

int lab_wanted_make(struct lab_wanted *wanted, const struct lab_case *c);
void lab_wanted_free(struct lab_wanted *wanted);

/* o and lse as attention's forward leaves them, from the oracle: rounded to their types, and to o_rest
 * what o lost. Rows that list no key get NaN in o, d_o and d_lse, as nothing may be read there. */
void lab_given_answer(struct lab_given *given, const struct lab_oracle *oracle,
                      const struct lab_tensor *o, const struct lab_tensor *lse);

/* 0 when both hold the same bits, of which both have memory; else -1 and where they differ. */
int lab_wanted_same(const struct lab_wanted *a, const struct lab_wanted *b, char why[LAB_WHY]);

#endif
