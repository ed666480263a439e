/* Libraries of others, found when they are first needed: the program starts, and the library builds,
 * without them. */
#ifndef BENCH_LIBRARY_H
#define BENCH_LIBRARY_H

#include <stddef.h>

/* An entry point: its name, and where its address goes. */
struct bench_entry {
    const char *name;
    void *function; /* address of a pointer to a function */
};

enum { BENCH_LIBRARY_WHY = 80 };

/* Loads the first of `names` (ended by NULL) that is found, where the loader looks and in
 * /usr/local/cuda/lib64, and its entry points. Answers NULL, or why not, in `why`. */
const char *bench_library_load(const char *const *names, const struct bench_entry *entries,
                               size_t n_entries, char why[BENCH_LIBRARY_WHY]);

#endif
