/* Measurements beside published ones. */
#ifndef BENCH_AGAINST_H
#define BENCH_AGAINST_H

#include "run/results.h"

/*
 * Reads a CSV of published figures and prints each entry beside the best result that it means. The first
 * line names entry,case,kernel,field,published,need; lines that begin with # are skipped. `case` is a case
 * string: results match whose fields are as the string says, and keys left out may be anything. `kernel`
 * names whose results count; empty: the library's. Times, and times over a floor, are better when less,
 * other fields when more.
 * need is "beat", or "show" where the entry is printed and no more.
 * Answers BENCH_DONE; BENCH_FAILED when an entry to beat is not beaten or not measured; BENCH_BAD
 * after one line on stderr.
 */
int bench_against(const struct bench_rows *rows, const char *path);

#endif
