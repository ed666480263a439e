/* Measurements beside published ones. */
#ifndef BENCH_AGAINST_H
#define BENCH_AGAINST_H

#include "run/results.h"

/*
 * Reads a CSV whose first line names entry,case,kernel,field,published,need (lines that begin with
 * # are skipped) and prints each entry beside the best of the rows that it means: those whose
 * fields are what `case` says (a case string; keys that it leaves out may be anything), of that
 * kernel, or where none is named of ours. Times, and times over a floor, are better when
 * less, other fields when more.
 * need is "beat", or "show" where the entry is printed and no more.
 * Answers BENCH_DONE; BENCH_FAILED when an entry to beat is not beaten or not measured; BENCH_BAD
 * after one line on stderr.
 */
int bench_against(const struct bench_rows *rows, const char *path);

#endif
