/* Limits of threads, by OpenMP's own words. */
#include "base/threads.h"

#ifdef _OPENMP
#include <omp.h>
#endif

/* A limit that every machine bears, for callers who ask for more threads than processors. */
#define THREADS_ALWAYS 16

/* Two threads save half of it at most, and waking one that sleeps takes up to 50 us. */
#define THREADS_PAY_SECONDS 100e-6

int threads_pay(double seconds) {
    return seconds >= THREADS_PAY_SECONDS;
}

#ifdef _OPENMP
int32_t threads_offered(void) {
    return omp_get_max_threads();
}

int32_t threads_limit(int64_t asked) {
    const int64_t processors = omp_get_num_procs();
    const int64_t most = processors > THREADS_ALWAYS ? processors : THREADS_ALWAYS;
    const int64_t limit = asked ? asked : threads_offered();
    return (int32_t)(limit < most ? limit : most);
}

int32_t threads_set(int32_t limit) {
    const int32_t before = threads_offered();
    omp_set_num_threads(limit);
    return before;
}
#else
int32_t threads_offered(void) {
    return 1;
}

int32_t threads_limit(int64_t asked) {
    (void)asked;
    return 1;
}

int32_t threads_set(int32_t limit) {
    return limit;
}
#endif

int32_t threads_team(int32_t limit, int64_t items) {
    const int32_t offered = threads_offered();
    const int64_t wanted = items > offered ? items : offered;
    return wanted < limit ? (int32_t)wanted : limit;
}
