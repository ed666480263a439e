/* Status codes in words, and the one way in which the core fills a tess_error. */
#ifndef TESSERA_STATUS_H
#define TESSERA_STATUS_H

#include "tessera.h"

/*
 * Fills *error (NULL allowed) and returns status, so that a check reads
 *     if (bad) return error_set(error, TESS_INVALID_ARGUMENT, "tess_run", "q", "q is NULL");
 * function and argument are literals; argument may be NULL. The format is printf's. The places
 * (batch, head, row, position) become -1 and the fault TESS_FAULT_NONE.
 */
tess_status error_set(tess_error *error, tess_status status, const char *function,
                      const char *argument, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Error at a byte offset of a string. */
tess_status error_set_at(tess_error *error, tess_status status, const char *function,
                         const char *argument, int64_t position, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

/* Error of a fault in block lists, with its place (-1 where it does not apply). */
tess_status error_set_list(tess_error *error, tess_list_fault fault, const char *function,
                           const char *argument, int64_t batch, int64_t head, int64_t row,
                           int64_t position, const char *format, ...)
    __attribute__((format(printf, 9, 10)));

/* TESS_OUT_OF_MEMORY with the number of bytes asked for. */
tess_status error_set_memory(tess_error *error, const char *function, size_t bytes);

/* Hands on what a callee filled in, as an error of `function` and `argument`. */
tess_status error_pass(tess_error *error, const tess_error *from, const char *function,
                       const char *argument);

/* Room for words of a message. */
struct words {
    char text[96];
};

/* The numbers from ... to: "0 ... 7", or "0" where there is one. */
const char *words_range(struct words *words, int64_t from, int64_t to);

/* Ascending numbers, each once: "1, 2 or 8". */
const char *words_choice(struct words *words, const int64_t *number, int n);

/* Sizes in version 0.1 of the structs that have grown since. */
#define SHAPE_FIRST_SIZE offsetof(tess_pattern_shape, threads)
#define LISTS_FIRST_SIZE offsetof(tess_lists, threads)
#define PROBLEM_FIRST_SIZE offsetof(tess_problem, softcap)
#define ARGUMENTS_FIRST_SIZE offsetof(tess_arguments, alibi)
#define PLAN_INFO_FIRST_SIZE offsetof(tess_plan_info, tile_keys)
#define TARGET_FIRST_SIZE offsetof(tess_target, memory_rate)
#define DEVICE_PATTERN_FIRST_SIZE offsetof(tess_device_pattern, mask)
#define REPORT_FIRST_SIZE offsetof(tess_fill_report, first_fault)

/*
 * Copies a public struct of the caller into *known: `size` bytes in this version, `first` in version
 * 0.1. Nothing past the caller's struct_size is read; the rest becomes zeros. Answers
 * NULL, or what is wrong: struct_size missing or below `first`, which could cut a field in half; or
 * fields set that this version does not know.
 */
const char *struct_take(void *known, size_t size, size_t first, const void *given);

/* The other way: writes as much of *known as the caller's struct has room for, keeping its
 * struct_size. Answers NULL or what is wrong. */
const char *struct_give(void *given, const void *known, size_t size, size_t first);

#endif
