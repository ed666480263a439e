/*
 * Threads of the CPU: how many a call may use, and which work pays for a team. The one place of the
 * core that knows OpenMP beside its pragmas; built without OpenMP there is one thread.
 */
#ifndef TESSERA_THREADS_H
#define TESSERA_THREADS_H

#include <stdint.h>

/* The largest limit that a caller may give. */
#define THREADS_LEGAL 65536

/* Threads that OpenMP offers the calling thread: OMP_NUM_THREADS, or the processors. */
int32_t threads_offered(void);

/* Resolves a caller's limit, 0 meaning what is offered. More threads than processors gain nothing,
 * and starting thousands ends the process: no limit exceeds the processors, or 16 if those are
 * fewer. */
int32_t threads_limit(int64_t asked);

/* The team for `items` pieces of work. No smaller than what is offered while the limit allows it:
 * libgomp ends the threads that a smaller team leaves over, and starts them anew for the next. */
int32_t threads_team(int32_t limit, int64_t items);

/* Limits the regions that the calling thread opens; answers the limit before, to be set again. */
int32_t threads_set(int32_t limit);

/* Whether work of so many seconds on one thread pays for waking a team. */
int threads_pay(double seconds);

#endif
