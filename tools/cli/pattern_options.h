/* PATTERN on the command line: exactly one of --pattern, --mask, --lists, --topk and --select; shared by run and
 * pattern. */
#ifndef TOOLS_PATTERN_OPTIONS_H
#define TOOLS_PATTERN_OPTIONS_H

#include "cli/arguments.h"
#include "io/lists_file.h"

enum pattern_source { FROM_SPEC, FROM_MASK, FROM_LISTS, FROM_TOPK, FROM_SELECT, PATTERN_SOURCES };

struct pattern_options {
    const char *command;               /* set by the parent before parsing */
    const char *text[PATTERN_SOURCES]; /* argument of each option, or NULL */
    const char *block;
    const char *scores;       /* --select: a file, else q and k are pooled */
    const tess_tensor *q, *k; /* set by the parent before the pattern is made; NULL: none */
};

/* The parent's child parser; its input is a struct pattern_options. */
extern const struct argp pattern_argp;

/* Makes the pattern, or says in one line why not. */
bool pattern_options_make(tess_pattern **pattern, const struct pattern_options *options,
                          const struct pattern_sizes *sizes, struct reason *reason);

/* The indices of --topk as lists on the device are given, once a pattern could be made of them. The caller
 * frees pattern->indices; they are NULL where --topk is not given. */
bool pattern_options_topk(tess_device_pattern *pattern, const struct pattern_options *options,
                          const struct pattern_sizes *sizes, struct reason *reason);

/* Whether a pattern's sizes are among those allowed. */
bool pattern_options_fit(const tess_pattern_shape *shape, const struct pattern_sizes *sizes,
                         struct reason *reason);

/* Name that the pattern was given by: the spec, or the file's name. */
const char *pattern_options_name(const struct pattern_options *options);

/* Whether exactly one pattern is named: checked before any file is opened. */
bool pattern_options_check(const struct pattern_options *options, struct reason *reason);

#endif
