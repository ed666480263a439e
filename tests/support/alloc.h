/*
 * Allocation under the test's eye: link with -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,
 * --wrap=aligned_alloc,--wrap=free, and every call that the library's objects make comes here.
 */
#ifndef TESTS_ALLOC_H
#define TESTS_ALLOC_H

#include <stdint.h>

/* From now on the n-th call (1 = the next) answers NULL, and with `onward` all after it too; n 0
 * refuses none. Resets both counts below. */
void alloc_refuse(int64_t n, int onward);

int64_t alloc_calls(void);   /* allocations requested so far */
int64_t alloc_refused(void); /* how many of them were refused */
int64_t alloc_live(void);    /* blocks allocated and not freed, ever */

#endif
