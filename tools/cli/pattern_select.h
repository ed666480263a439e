/* Patterns of the blocks that tess_select chooses, of scores in a file or of pooled queries and keys. */
#ifndef TOOLS_PATTERN_SELECT_H
#define TOOLS_PATTERN_SELECT_H

#include "cli/pattern_options.h"

/* Makes the pattern of --select in blocks of the shape, 64x64 where it has none; fills in its other sizes. Or says in
 * one line why not. */
bool pattern_select_make(tess_pattern **pattern, const struct pattern_options *options,
                         tess_pattern_shape *shape, const struct pattern_sizes *sizes,
                         struct reason *reason);

#endif
