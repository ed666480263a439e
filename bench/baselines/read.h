/* Reading from the L2 cache (read.cu). */
#ifndef BENCH_READ_H
#define BENCH_READ_H

#include "tessera.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Gives the stream `passes` readings of `size` bytes, a multiple of 32 KiB, which are all zero.
 * Answers NULL, or why not. */
const char *bench_read_cached(void *zeros, size_t size, int passes, tess_stream stream);

#ifdef __cplusplus
}
#endif

#endif
