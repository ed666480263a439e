/* Keeps the program from taking more memory than there is. */
#ifndef TOOLS_MEMORY_LIMIT_H
#define TOOLS_MEMORY_LIMIT_H

/* From now on memory beyond what the machine (or the container) has free is refused, so that it is
 * reported, instead of the kernel ending the program. Files that are mapped do not count. Does
 * nothing where that is unknown, and nothing under sanitizers, whose own memory would count. */
void memory_limit_set(void);

#endif
