/* The limit of private memory, RLIMIT_DATA, from what Linux says is free. */
#define _XOPEN_SOURCE 700
#include "cli/memory_limit.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#ifdef __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

#ifdef SANITIZED
void memory_limit_set(void) {
}
#else

/* The number that some line of a file has after a text; -1 where there is none. */
static long long number_in(const char *path, const char *format) {
    char line[256];
    long long number = -1;
    FILE *file = fopen(path, "r");
    while (file && number < 0 && fgets(line, sizeof line, file))
        if (sscanf(line, format, &number) != 1)
            number = -1;
    if (file)
        fclose(file);
    return number;
}

void memory_limit_set(void) {
    static const char *const groups[] = {"/sys/fs/cgroup/memory.max",
                                         "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
    long long free_kib = number_in("/proc/meminfo", "MemAvailable: %lld kB");
    long long own_pages = number_in("/proc/self/statm", "%*d %*d %*d %*d %*d %lld");
    struct rlimit limit;
    if (free_kib < 0 || own_pages < 0 || getrlimit(RLIMIT_DATA, &limit) != 0)
        return;
    long long most = free_kib * 1024;
    for (int i = 0; i < 2; i++) {
        long long group = number_in(groups[i], "%lld");
        most = group >= 0 && group < most ? group : most;
    }
    rlim_t bytes = (rlim_t)(most + own_pages * sysconf(_SC_PAGESIZE));
    if (limit.rlim_cur == RLIM_INFINITY || bytes < limit.rlim_cur) {
        limit.rlim_cur = bytes;
        setrlimit(RLIMIT_DATA, &limit); /* best effort */
    }
}
#endif
