/* Shared libraries by name. */
#include "baselines/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void *open_any(const char *const *names) {
    static const char *const folders[] = {"", "/usr/local/cuda/lib64/"};
    char path[256];
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++)
        for (const char *const *name = names; *name; name++) {
            snprintf(path, sizeof path, "%s%s", folders[f], *name);
            void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            if (library)
                return library;
        }
    return NULL;
}

const char *bench_library_load(const char *const *names, const struct bench_entry *entries,
                               size_t n_entries, char why[BENCH_LIBRARY_WHY]) {
    void *library = open_any(names);
    if (!library) {
        snprintf(why, BENCH_LIBRARY_WHY, "%s is not here", names[0]);
        return why;
    }
    for (size_t e = 0; e < n_entries; e++) {
        void *address = dlsym(library, entries[e].name);
        if (!address) {
            snprintf(why, BENCH_LIBRARY_WHY, "%s here lacks %s", names[0], entries[e].name);
            return why;
        }
        memcpy(entries[e].function, &address, sizeof address);
    }
    return NULL;
}
