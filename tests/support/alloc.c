/* See alloc.h. The library allocates from several threads at once, hence the atomics. */
#include "support/alloc.h"

#include <stdatomic.h>
#include <stddef.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void __real_free(void *block);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void __wrap_free(void *block);

static atomic_llong calls, refused, live, refuse_at;
static atomic_int refuse_onward;

void alloc_refuse(int64_t n, int onward) {
    atomic_store(&calls, 0);
    atomic_store(&refused, 0);
    atomic_store(&refuse_at, n);
    atomic_store(&refuse_onward, onward);
}

int64_t alloc_calls(void) {
    return atomic_load(&calls);
}

int64_t alloc_refused(void) {
    return atomic_load(&refused);
}

int64_t alloc_live(void) {
    return atomic_load(&live);
}

static int refuse(void) {
    long long call = atomic_fetch_add(&calls, 1) + 1, at = atomic_load(&refuse_at);
    if (at == 0 || call < at || (call > at && !atomic_load(&refuse_onward)))
        return 0;
    atomic_fetch_add(&refused, 1);
    return 1;
}

static void *counted(void *block) {
    if (block)
        atomic_fetch_add(&live, 1);
    return block;
}

void *__wrap_malloc(size_t size) {
    return refuse() ? NULL : counted(__real_malloc(size));
}

void *__wrap_calloc(size_t count, size_t size) {
    return refuse() ? NULL : counted(__real_calloc(count, size));
}

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    return refuse() ? NULL : counted(__real_aligned_alloc(alignment, size));
}

void *__wrap_realloc(void *old, size_t size) {
    if (refuse())
        return NULL;
    void *block = __real_realloc(old, size);
    return old ? block : counted(block);
}

void __wrap_free(void *block) {
    if (block)
        atomic_fetch_sub(&live, 1);
    __real_free(block);
}
