/* Problems that CUDA's decode takes, drawn: heads, lists, modifiers, types, pages, second views. */
#ifndef SUPPORT_DECODE_PROBLEM_H
#define SUPPORT_DECODE_PROBLEM_H

#include "support/device_lists.h"

struct decode_problem {
    tess_problem problem;
    struct device_sizes sizes;
    int v_in_k; /* V may be declared to lie in K: nothing stands against it, and it is not yet */
    char blocks[64]; /* a kernel of Hopper's forward that takes it; empty: none */
};

struct decode_problem decode_problem_draw(uint64_t seed);

#endif
