/*
 * The CPU backend's tables: levels, kernels, and the one device.
 *
 * The best level that this machine has, and that pays on it, is used. The environment variable
 * TESSERA_ISA forces a level by name (amx, avx512bf16: with avx512 for all that they have no kernel
 * for). A name that is unknown, or that this machine lacks, leaves no kernel usable: plans are refused
 * with the reason, not made for another level.
 */
#define _DEFAULT_SOURCE /* syscall */
#include "cpu.h"
#include "base/status.h"
#include "base/threads.h"
#include "plan/cost.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#endif

/* ---- levels, best first ---- */

static int portable_present(void) {
    return 1;
}

#if defined(__x86_64__)
static int avx2_present(void) {
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static int avx512_present(void) {
    return avx2_present() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl");
}

static int avx512bf16_present(void) {
    return avx512_present() && __builtin_cpu_supports("avx512bf16");
}

enum { AMX_SUPPORTED = 0x1021, AMX_REQUEST = 0x1023, AMX_TILE_DATA = 18 }; /* arch_prctl's */

/* Linux has the registers of AMX, and gives them to a process that asks, which it may do again. A
 * test of the level (tests/kernels/bf16_pairs.c) has an emulated unit, which needs neither. */
static int amx_unit(void) {
#if defined(CPU_AMX_EMULATED)
    return 1;
#else
    enum { BITS = 1 << 22 | 1 << 24 }; /* bits of cpuid: AMX-BF16, AMX-TILE */
    unsigned a, b, c, d;
    uint64_t supported = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & BITS) == BITS &&
           syscall(SYS_arch_prctl, AMX_SUPPORTED, &supported) == 0 &&
           (supported >> AMX_TILE_DATA & 1);
#endif
}

static int amx_permitted(void) {
#if defined(CPU_AMX_EMULATED)
    return 1;
#else
    return syscall(SYS_arch_prctl, AMX_REQUEST, AMX_TILE_DATA) == 0;
#endif
}

static int amx_present(void) {
    return avx512bf16_present() && amx_unit();
}
#elif defined(__aarch64__)
static int neon_present(void) { /* every one of them has it */
    return 1;
}
#endif

#if defined(__x86_64__)
/* Levels that multiply bf16 in pairs compute no other problem. */
static const char *pairs_refuse(const struct problem *p) {
    const double factor = fabs(p->scale) * 1.4426950408889634;
    if (p->type != TESS_BF16)
        return "it multiplies bf16";
    if (p->operation == TESS_MLP)
        return NULL;
    if (p->caches.k_type != TESS_BF16 || p->caches.v_type != TESS_BF16)
        return "it multiplies keys and values of bf16";
    if (p->d_qk % 32 != 0 || p->d_v % 16 != 0)
        return "it needs d_qk in multiples of 32 and d_v of 16";
    if (p->rope_dims % 32 != 0)
        return "it needs rope_dims in multiples of 32";
    if (p->operation == TESS_ATTENTION_BACKWARD && p->d_v % 32 != 0)
        return "it needs d_qk and d_v in multiples of 32";
    if (factor < 0x1p-6 || factor > 0x1p30) /* scores in range with the scale may not be without */
        return "it needs |scale| * log2(e) between 2^-6 and 2^30";
    return NULL;
}
#endif

enum level_number {
#define LEVEL_NUMBER(level) LEVEL_##level,
    CPU_LEVELS(LEVEL_NUMBER)
};

static const struct level {
    const char *name;
    int (*present)(void); /* whether this machine has the instructions */
    const char *(*refuses)(const struct problem *problem); /* NULL: it computes every problem */
    int (*permitted)(void);                                /* NULL: by everyone */
} levels[] = {
#if defined(__x86_64__)
    [LEVEL_amx] = {"amx", amx_present, pairs_refuse, amx_permitted},
    [LEVEL_avx512bf16] = {"avx512bf16", avx512bf16_present, pairs_refuse, NULL},
    [LEVEL_avx512] = {"avx512", avx512_present, NULL, NULL},
    [LEVEL_avx2] = {"avx2", avx2_present, NULL, NULL},
#elif defined(__aarch64__)
    [LEVEL_neon] = {"neon", neon_present, NULL, NULL},
#endif
    [LEVEL_portable] = {"portable", portable_present, NULL, NULL},
};

#define LEVELS ((int)(sizeof levels / sizeof levels[0]))

/* Levels whose kernels this build has: all, unless the build names some (cmake/cpu.cmake). */
#ifndef CPU_BUILT
#define CPU_BUILT(X) CPU_LEVELS(X)
#endif
#define LEVEL_BUILT(level) [LEVEL_##level] = 1,
static const unsigned char level_built[LEVELS] = {CPU_BUILT(LEVEL_BUILT)};

/* Whether this build has a level, and the machine its instructions: found out once, as CPUID takes some 5 us each time
 * in a virtual machine, and planning for one query would do little else. */
static int level_present(int level) {
    enum { UNKNOWN, ABSENT, PRESENT };
    static _Atomic signed char known[LEVELS];
    if (known[level] == UNKNOWN)
        known[level] = level_built[level] && levels[level].present() ? PRESENT : ABSENT;
    return known[level] == PRESENT;
}

/* The level that TESSERA_ISA names: -1 = not set, LEVELS = none of this build. */
static int level_forced(void) {
    const char *name = getenv("TESSERA_ISA");
    if (!name || !*name)
        return -1;
    int level = 0;
    while (level < LEVELS && (!level_built[level] || strcmp(name, levels[level].name)))
        level++;
    return level;
}

/* The level that computes what this one has no kernel for. */
static int level_rest(int level) {
#if defined(__x86_64__)
    if (level == LEVEL_amx || level == LEVEL_avx512bf16)
        return LEVEL_avx512;
#endif
    return level;
}

/* Whether a level that is present is faster here than the next. */
static int level_pays(int level) {
#if defined(__x86_64__)
    /* vdpbf16ps makes twice the products of a multiply-add of f32. AMD's processors take the same
     * time for both, Intel's four times as long (docs/notes/cpu.md). */
    if (level == LEVEL_avx512bf16)
        return __builtin_cpu_is("amd");
#endif
    (void)level;
    return 1;
}

#define LEVEL_WORD(level) " " #level
static const char *level_unusable(int level) {
    int forced = level_forced();
    if (forced == LEVELS)
        return "TESSERA_ISA names none of this build's levels:" CPU_BUILT(LEVEL_WORD);
    if (forced >= 0 && forced != level && level_rest(forced) != level)
        return "TESSERA_ISA names another level";
    if (!level_present(level))
        return "this machine lacks the instructions";
    return forced >= 0 || level_pays(level) ? NULL : "slower here than the next level";
}

const char *cpu_isa(void) {
    for (int level = 0; level < LEVELS; level++)
        if (!level_unusable(level))
            return levels[level].name;
    return "none";
}

/* ---- kernels ---- */

/* A CPU to plan for is always this machine's. */
static const char *level_refuses(const struct kernel *kernel, const struct problem *problem,
                                 const tess_target *target) {
    const struct level *level = kernel->own;
    const char *why = level->refuses ? level->refuses(problem) : NULL;
    (void)target;
    if (!why)
        why = kernel->unusable();
    if (!why && level->permitted && !level->permitted()) /* a plan is about to be made */
        return "Linux refuses this process the registers of AMX";
    return why;
}

static double score_dims(const struct trial *trial) {
    return (double)trial->problem->d_qk;
}

static double gradient_rows_dims(const struct trial *trial) {
    return (double)(2 * trial->problem->d_qk + trial->problem->d_v);
}

/* Scores are computed once for all gradients that need them, and so is dP. */
static double gradient_keys_dims(const struct trial *trial) {
    const struct problem *p = trial->problem;
    const int k = (p->gradients & TESS_GRADIENT_K) != 0, v = (p->gradients & TESS_GRADIENT_V) != 0;
    const int64_t scores = p->d_qk, dp = k || trial->joint ? p->d_v : 0;
    return (double)(scores + dp + (k ? p->d_qk : 0) + (v ? p->d_v : 0) +
                    (trial->joint ? p->d_qk : 0));
}

static const int32_t tile_rows[] = {1, 2, 4, 8, 16, 32, CPU_TILE_ROWS, 0};
#define OVER_LISTS .refuses = level_refuses, .seconds = cost_lists
static const int32_t mlp_rows[] = {1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 0};
enum { TILES, DELTA, FORWARD, FORWARD_PAIRS, SUMS, KEYS, KEYS_PAIRS, ROWS, MLP };
static const struct family families[] = {
    [TILES] = {.refuses = level_refuses, .seconds = cost_tiles},
    [DELTA] = {.refuses = level_refuses, .seconds = cost_rows},
    [FORWARD] = {OVER_LISTS, .lists = LISTS_PACKED | LISTS_FILLED, .packed_rows = CPU_TILE_ROWS,
                 .listed = cpu_listed_fits},
    [FORWARD_PAIRS] = {OVER_LISTS, .lists = LISTS_PACKED | LISTS_FILLED,
                       .packed_rows = CPU_TILE_ROWS},
    [SUMS] = {OVER_LISTS, .lists = LISTS_PACKED | LISTS_FILLED, .dims = score_dims},
    [KEYS] = {OVER_LISTS, .lists = LISTS_PACKED, .dims = gradient_keys_dims,
              .listed = cpu_gradients_listed_fit, .joint_rows = 16},
    [KEYS_PAIRS] = {OVER_LISTS, .lists = LISTS_PACKED, .dims = gradient_keys_dims,
                    .listed = cpu_gradients_listed_fit},
    [ROWS] = {OVER_LISTS, .lists = LISTS_PACKED, .dims = gradient_rows_dims,
              .packed_rows = CPU_TILE_ROWS, .listed = cpu_gradients_listed_fit},
    [MLP] = {OVER_LISTS, .lists = LISTS_PACKED | LISTS_FILLED},
};

#define LEVEL_UNUSABLE(level)                                                                      \
    static const char *level##_unusable(void) {                                                    \
        return level_unusable(LEVEL_##level);                                                      \
    }
CPU_BUILT(LEVEL_UNUSABLE)

#define KERNEL(level, stem, its_stage, its_family, heights, ...)                                   \
    {                                                                                              \
        .name = "cpu_" #stem "_" #level, .stage = its_stage, .family = &families[its_family],      \
        .cost = {__VA_ARGS__}, .rows = heights, .own = &levels[LEVEL_##level],                     \
        .unusable = level##_unusable, .workspace = cpu_##stem##_workspace_##level,                 \
        .run = cpu_##stem##_##level                                                                \
    }

/* Costs: docs/notes/planning.md says what they were fitted to. First those that all levels share: seconds of an
 * item; of a dim of a key that is fetched, of 16 bits, not in a cache; of a row of a masked key; of a dim of a key
 * that some rows list; of a score's softmax, forward or backward; of a dim of o for delta. */
#define ITEM 1e-6
#define FETCH 0.06e-9
#define CONVERT 0.10e-9
#define FAR 0.03e-9
#define NEAR_SIZE (2 << 20)
#define MASKED 0.25e-9
#define KEY_LISTED 0.03e-9
#define SOFTMAX 1e-9
#define DELTA_DIM 0.4e-9
/* Times the forward's: a product of a stage; of the backward, masks, and a query for a key tile, k and v for dQ. */
#define STAGE_TIMES 1.6
#define BACKWARD_MASKED (2 * MASKED)
#define BACKWARD_FETCH (3 * FETCH)

#define STAGE(level, stem, stage, row_dim)                                                         \
    KERNEL(level, stem, stage, TILES, NULL, .item = ITEM, .key_row_dim = STAGE_TIMES * (row_dim),  \
           .key_dim = FETCH, .convert_dim = CONVERT)
#define SOFTMAX_STAGE(level, stem, stage)                                                          \
    KERNEL(level, stem, stage, TILES, NULL, .item = ITEM, .key_row_dim = SOFTMAX)
#define GRADIENT(level, stem, stage, family, row_dim, convert, row_listed)                         \
    KERNEL(level, stem, stage, family, tile_rows, .item = ITEM, .key_row_dim = row_dim,            \
           .key_dim = BACKWARD_FETCH, .convert_dim = convert, .masked_key = BACKWARD_MASKED,       \
           .listed_row_dim = row_listed, .listed_key_dim = KEY_LISTED)
/* Rows, columns and dims of an MLP cost what those of attention do. Its first product tells of both. */
#define MLP_KERNELS(level, row_dim)                                                                \
    KERNEL(level, mlp_up, TESS_STAGE_MLP_UP, MLP, mlp_rows, .item = ITEM, .key_row_dim = row_dim,  \
           .key_dim = FETCH, .convert_dim = CONVERT),                                              \
        KERNEL(level, mlp_down, TESS_STAGE_MLP_DOWN, MLP, NULL, .item = 0)
#define KERNELS(level, row_dim, row_listed)                                                        \
    KERNEL(level, attention, TESS_STAGE_ATTENTION, FORWARD, tile_rows, .item = ITEM,               \
           .key_row_dim = row_dim, .key_dim = FETCH, .convert_dim = CONVERT, .far_dim = FAR,       \
           .near_size = NEAR_SIZE, .masked_key = MASKED, .listed_row_dim = row_listed,             \
           .listed_key_dim = KEY_LISTED),                                                          \
        KERNEL(level, column_sums, TESS_STAGE_COLUMN_SUMS, SUMS, tile_rows, .item = ITEM,          \
               .key_row_dim = row_dim, .key_dim = FETCH, .convert_dim = CONVERT,                   \
               .masked_key = MASKED),                                                              \
        STAGE(level, sddmm, TESS_STAGE_SDDMM, row_dim),                                            \
        SOFTMAX_STAGE(level, softmax, TESS_STAGE_SOFTMAX),                                         \
        STAGE(level, spmm, TESS_STAGE_SPMM, row_dim),                                              \
        SOFTMAX_STAGE(level, softmax_backward, TESS_STAGE_SOFTMAX_BACKWARD),                       \
        STAGE(level, spmm_transposed, TESS_STAGE_SPMM_TRANSPOSED, row_dim),                        \
        KERNEL(level, delta, TESS_STAGE_DELTA, DELTA, NULL, .key_dim = DELTA_DIM),                 \
        GRADIENT(level, gradient_keys, TESS_STAGE_GRADIENT_KEYS, KEYS, row_dim, CONVERT,           \
                 row_listed),                                                                      \
        GRADIENT(level, gradient_rows, TESS_STAGE_GRADIENT_ROWS, ROWS, row_dim, CONVERT,           \
                 row_listed),                                                                      \
        MLP_KERNELS(level, row_dim)
/* Listed pairs of the backward cost what AVX-512's do, which they are computed by. */
#define KERNELS_PAIRS(level, row_dim)                                                              \
    KERNEL(level, attention, TESS_STAGE_ATTENTION, FORWARD_PAIRS, tile_rows, .item = ITEM,         \
           .key_row_dim = row_dim, .key_dim = 2 * FETCH, .masked_key = MASKED),                    \
        GRADIENT(level, gradient_keys, TESS_STAGE_GRADIENT_KEYS, KEYS_PAIRS, row_dim, 0,           \
                 ROW_LISTED_avx512),                                                               \
        GRADIENT(level, gradient_rows, TESS_STAGE_GRADIENT_ROWS, ROWS, row_dim, 0,                 \
                 ROW_LISTED_avx512)

/* Costs by level: a dim of a key for a row, and of a listed pair. amx and avx512bf16 were measured on a machine each, 6 %
 * above theirs and 17 % below. neon, never measured, costs what portable does. */
#define ROW_LISTED_avx512 0.0175e-9
#define PAIRS_ROW_DIM 0.0036e-9
#define KERNELS_amx KERNELS_PAIRS(amx, PAIRS_ROW_DIM), MLP_KERNELS(amx, PAIRS_ROW_DIM)
#define KERNELS_avx512bf16 KERNELS_PAIRS(avx512bf16, PAIRS_ROW_DIM)
#define KERNELS_avx512 KERNELS(avx512, 0.0117e-9, ROW_LISTED_avx512)
#define KERNELS_avx2 KERNELS(avx2, 0.0244e-9, 0.020e-9)
#define KERNELS_neon KERNELS(neon, PORTABLE_ROW_DIM, PORTABLE_ROW_LISTED)
#define KERNELS_portable KERNELS(portable, PORTABLE_ROW_DIM, PORTABLE_ROW_LISTED)
#define PORTABLE_ROW_DIM 0.088e-9
#define PORTABLE_ROW_LISTED 0.12e-9
#define LEVEL_KERNELS(level) KERNELS_##level,
static const struct kernel kernels[] = {CPU_BUILT(LEVEL_KERNELS)};

/* ---- the device ---- */

static int32_t device_count(void) {
    return 1;
}

/* Device 0, or -1 for the one in use. */
static tess_status device_check(int32_t device, const char *function, tess_error *error) {
    if (device == 0 || device == -1)
        return TESS_OK;
    return error_set(error, TESS_INVALID_ARGUMENT, function, "device",
                     "the CPU is device 0; there is no device %d", (int)device);
}

static int64_t cache_size(void) {
#ifdef _SC_LEVEL3_CACHE_SIZE
    long size = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (size <= 0)
        size = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return size > 0 ? size : 0;
#else
    return 0;
#endif
}

/* The processor's name as Linux tells it, else "CPU". */
static void name_read(char *name, size_t size) {
    snprintf(name, size, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file)
        return;
    char line[256];
    while (fgets(line, (int)sizeof line, file)) {
        const char *value = strstr(line, ": ");
        if (strncmp(line, "model name", 10) || !value)
            continue;
        snprintf(name, size, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
        break;
    }
    fclose(file);
}

static tess_status device_describe(int32_t device, tess_device_info *info, tess_error *error) {
    tess_status status = device_check(device, "tess_device_describe", error);
    if (status)
        return status;
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    name_read(info->name, sizeof info->name);
    info->multiprocessors = threads_limit(0);
    info->memory_size = pages > 0 && page > 0 ? (int64_t)pages * page : 0;
    info->cache_size = cache_size();
    return TESS_OK;
}

static tess_status target_query(int32_t device, tess_target *target, tess_error *error) {
    tess_status status = device_check(device, "tess_target_query", error);
    if (status)
        return status;
    target->backend = TESS_CPU;
    target->device = 0;
    target->cache_size = cache_size();
    return TESS_OK;
}

/* ---- memory and streams ---- */

static void *allocate(size_t size) {
    if (size > SIZE_MAX - CARVE_ALIGNMENT)
        return NULL;
    return aligned_alloc(CARVE_ALIGNMENT,
                         (size + CARVE_ALIGNMENT - 1) / CARVE_ALIGNMENT * CARVE_ALIGNMENT);
}

static tess_status synchronize(tess_stream stream, tess_error *error) {
    (void)stream;
    (void)error;
    return TESS_OK;
}

static const struct backend backend = {
    .name = "cpu",
    .kernels = kernels,
    .n_kernels = sizeof kernels / sizeof kernels[0],
    .on_host = 1,
    .workers = cpu_workers,
    .device = {.count = device_count,
               .describe = device_describe,
               .target = target_query,
               .allocate = allocate,
               .release = free,
               .synchronize = synchronize},
    .fill = {.run = cpu_fill},
    .call = {.merge = cpu_merge,
             .unmerge = cpu_unmerge,
             .select = cpu_select,
             .pool = cpu_pool,
             .score = cpu_score,
             .columns = cpu_columns},
};

const struct backend *cpu_kernels(void) {
    return &backend;
}
