/* Options of score modifiers, and the arrays that a run is given for them. */
#ifndef TOOLS_MODIFIER_OPTIONS_H
#define TOOLS_MODIFIER_OPTIONS_H

#include "cli/arguments.h"
#include "lab/run/modifiers.h"

enum {
    MODIFIER_SOFTCAP,
    MODIFIER_ALIBI,
    MODIFIER_SINK,
    MODIFIER_DROPOUT,
    MODIFIER_SEED,
    MODIFIER_OPTIONS
};

struct modifier_options {
    const char *command;
    const char *text[MODIFIER_OPTIONS]; /* NULL: not given */
    double softcap, dropout;            /* 0: none; set by the check, as is the seed */
    uint64_t seed;
};

extern const struct argp modifier_argp; /* input: a struct modifier_options */

bool modifier_options_check(struct modifier_options *options, struct reason *reason);

/* The arrays, read or computed, for `heads` query heads; lab_modifiers_free whatever it answers. */
bool modifier_options_make(struct lab_modifiers *made, const struct modifier_options *options,
                           int64_t heads, struct reason *reason);

#endif
