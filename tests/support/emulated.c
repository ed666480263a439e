/* Kernels on the host. */
#define _DEFAULT_SOURCE
#include "support/emulated.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <cmocka.h>

#include "lab/fill/rng.h"

enum { MOST_THREADS = 1024, STACK = 64 * 1024 };

enum state { RUNS, WAITS_FOR_WARP, WAITS_FOR_BLOCK, ENDED };

static struct context {
    ucontext_t beginning;
    jmp_buf at;
    int begun;
    enum state state;
    uint64_t given, result;
    int argument, operation, line;
} contexts[MOST_THREADS];

struct emulated_place threadIdx, blockIdx, blockDim, gridDim;
extern _Alignas(16) unsigned long long fill_shared[];
_Alignas(16) unsigned long long fill_shared[EMULATED_SHARED / 8];

static jmp_buf scheduler;
static char *stacks;
static void (*the_kernel)(const void *);
static const void *the_argument;

static struct context *own(void) {
    return &contexts[threadIdx.x];
}

static void context_begin(void) {
    the_kernel(the_argument);
    own()->state = ENDED;
    _longjmp(scheduler, 1);
}

/* Runs a context until it waits or ends. Jumps change contexts without asking the system. */
static __attribute__((noinline)) void context_run(struct context *c) {
    if (_setjmp(scheduler))
        return;
    if (c->begun)
        _longjmp(c->at, 1);
    c->begun = 1;
    setcontext(&c->beginning);
}

/* Gives up its turn until others have changed its state. */
static void context_wait(enum state state, int operation, int line) {
    struct context *c = own();
    c->state = state, c->operation = operation, c->line = line;
    if (!_setjmp(c->at))
        _longjmp(scheduler, 1);
}

int emulated_block_wait(int x, int line) {
    own()->given = (uint64_t)x;
    context_wait(WAITS_FOR_BLOCK, 0, line);
    return (int)own()->result;
}

uint64_t emulated_warp(enum emulated_operation operation, uint64_t x, int argument, int line) {
    own()->given = x, own()->argument = argument;
    context_wait(WAITS_FOR_WARP, (int)operation, line);
    return own()->result;
}

/* Lets a group whose threads all wait for each other go on; answers whether it did. */
static int group_release(struct context *c, int n, enum state state) {
    for (int i = 0; i < n; i++)
        if (c[i].state != state)
            return 0;
    for (int i = 0; i < n; i++)
        if (c[i].line != c[0].line || c[i].operation != c[0].operation)
            fail_msg("threads wait at lines %d and %d", c[0].line, c[i].line);
    uint64_t ballot = 0; /* votes of a warp; of a thread block, whether any is set */
    for (int i = 0; i < n; i++)
        ballot |= c[i].given << (state == WAITS_FOR_WARP ? i : 0);
    for (int i = 0; i < n; i++) {
        const int from = c[i].operation == EMULATED_UP    ? i - c[i].argument
                         : c[i].operation == EMULATED_XOR ? i ^ c[i].argument
                                                          : c[i].argument;
        c[i].result = state == WAITS_FOR_BLOCK || c[i].operation == EMULATED_ANY
                          ? ballot
                          : c[from < 0 ? i : from % 32].given;
        c[i].state = RUNS;
    }
    return 1;
}

static __attribute__((noinline)) void context_make(struct context *c, char *stack) {
    getcontext(&c->beginning);
    c->state = RUNS, c->begun = 0;
    c->beginning.uc_stack.ss_sp = stack;
    c->beginning.uc_stack.ss_size = STACK;
    c->beginning.uc_link = NULL;
    makecontext(&c->beginning, context_begin, 0);
}

/* Warps get ahead of others, by as much as barriers let them: half of them sleep for some turns. */
static int asleep(uint64_t seed, uint64_t turn, int warp) {
    return (int)lab_below(seed, 4 + turn / 12, (uint64_t)warp, 2);
}

static void block_run(int threads, uint64_t seed) {
    int left = threads;
    for (int t = 0; t < threads; t++)
        context_make(&contexts[t], stacks + (size_t)t * STACK);
    for (uint64_t turn = 0; left; turn++) {
        int moved = 0;
        const int first = (int)lab_below(seed, 1, turn, threads);
        const int down = (int)lab_below(seed, 2, turn, 2);
        for (int i = 0; i < threads; i++) {
            const int t = down ? (first + threads - i) % threads : (first + i) % threads;
            if (contexts[t].state != RUNS)
                continue;
            moved = 1;
            if (asleep(seed, turn, t / 32))
                continue;
            threadIdx.x = (uint32_t)t;
            context_run(&contexts[t]);
            left -= contexts[t].state == ENDED;
        }
        for (int w = 0; w < threads; w += 32)
            moved |= group_release(contexts + w, 32, WAITS_FOR_WARP);
        moved |= group_release(contexts, threads, WAITS_FOR_BLOCK);
        if (!moved)
            fail_msg("threads wait for others that do not come, one at line %d", contexts[0].line);
    }
}

void emulated_run(void (*kernel)(const void *argument), const void *argument, int blocks,
                  int threads, size_t shared, uint64_t seed) {
    assert_true(threads % 32 == 0 && threads <= MOST_THREADS && shared <= EMULATED_SHARED);
    stacks = malloc((size_t)threads * STACK);
    assert_non_null(stacks);
    the_kernel = kernel, the_argument = argument;
    gridDim.x = (uint32_t)blocks, blockDim.x = (uint32_t)threads;
    const int first = (int)lab_below(seed, 3, 0, blocks);
    for (int i = 0; i < blocks; i++) {
        blockIdx.x = (uint32_t)((first + blocks - i) % blocks);
        memset(fill_shared, 0xa5, sizeof fill_shared);
        block_run(threads, seed + (uint64_t)i);
        for (size_t word = (shared + 7) / 8; word < sizeof fill_shared / 8; word++)
            assert_int_equal(fill_shared[word], UINT64_C(0xa5a5a5a5a5a5a5a5));
    }
    free(stacks);
}
