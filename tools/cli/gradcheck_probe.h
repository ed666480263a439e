/* Probes of tessera gradcheck: an input is moved a little, and the loss of a forward with it. */
#ifndef TESSERA_CLI_GRADCHECK_PROBE_H
#define TESSERA_CLI_GRADCHECK_PROBE_H

#include "lab/check/check.h"
#include "lab/run/run.h"

/* An input in f32, by rows, and where its gradients are. */
struct gradcheck_input {
    const char *name;
    int64_t wanted; /* TESS_GRADIENT_... */
    float *data;
    tess_tensor view;                    /* shape of data; an array is [1, 1, heads, 1] */
    tess_tensor got;                     /* the library's gradient, in the same shape */
    const struct lab_gradient *gradient; /* the oracle's */
    double reach; /* how far a score moves with a step of 1 of a row, or less than 1 */
};
enum { GRADCHECK_INPUTS = 5 };

struct gradcheck {
    int64_t elements, directions; /* counts for each input */
    struct lab_setting s;
    struct lab_planned forward, backward;
    struct lab_gradients gradients;
    struct gradcheck_input inputs[GRADCHECK_INPUTS];
    double noise; /* noise of L, from errors that the forward may have */
    int failed;   /* some probe was past its bound */
};

/* Inputs that have a gradient: of the case, whose setting and gradients are made. */
void gradcheck_inputs(struct gradcheck *c);

/* Error that the forward may have in L, its rows being independent: the bounds of docs/semantics.md. -1:
 * out of memory. */
int gradcheck_noise(struct gradcheck *c);

/* L of the forward that the library has for the plan of c. NAN, and a line: it does not run. */
double gradcheck_loss(struct gradcheck *c);

/* Moves an input, prints the worst probe of the oracle and of the library, whose name is who. -1: out of memory. */
int gradcheck_probe(struct gradcheck *c, const struct gradcheck_input *in, const char *who);

#endif
