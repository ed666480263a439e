/* The references of SPEC and CASE. argp breaks lines of 78 characters and more. */
#include "cli/reference.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/case/case.h"

const char reference_spec[] =
    "SPEC is terms joined by + (union) and & (intersection, which binds tighter),\n"
    "with parentheses. Widths and counts are in tokens; p is a query's position.\n"
    "  dense                  every key\n"
    "  causal                 keys up to p\n"
    "  window(left,right)     keys p-left to p+right (no limit: as many as keys)\n"
    "  blockdiag(w)           the keys of p's own block of w tokens\n"
    "  dilated(w,step)        keys p + t*step for |t| up to w\n"
    "  global(n)              the first n tokens see and are seen by all\n"
    "  global_grid(n)         the same for n tokens, evenly spread\n"
    "  strided(local,stride)  causal: the last `local` keys, and keys p - t*stride\n"
    "  fixed(l,c)             causal: p's block of l, and each block's last c\n"
    "  summary(local,stride)  causal: the last `local` keys, and each stride-th\n"
    "  segments(n1,n2,...)    documents of n1, n2, ... tokens, each by itself\n"
    "  each(n1,n2,...; SPEC)  SPEC laid out anew within each such document\n"
    "  longformer(w,g)        window(w/2,w/2)+global(g)\n"
    "  bigbird(w,g,r,seed)    the same and r random blocks in each block row\n"
    "  random(keep,seed)      each block with probability keep\n"
    "  random_row(keep,seed)  the same number of blocks in each block row\n"
    "  shared_random(keep,share,seed)\n"
    "                         as random_row; two neighbouring block rows have\n"
    "                         `share` of their blocks in common\n";

/* argp frees what is not the text it gave. */
static char *behind(int key, const char *text, const char *reference) {
    if (key != ARGP_KEY_HELP_POST_DOC)
        return (char *)(uintptr_t)text;
    size_t size = (text ? strlen(text) : 0) + strlen(reference) + 3;
    char *both = malloc(size);
    if (both)
        snprintf(both, size, "%s%s%s", text ? text : "", text ? "\n\n" : "", reference);
    return both;
}

char *reference_spec_filter(int key, const char *text, void *input) {
    (void)input;
    return behind(key, text, reference_spec);
}

char *reference_case_filter(int key, const char *text, void *input) {
    char reference[LAB_CASE_HELP];
    (void)input;
    lab_case_help(reference);
    return behind(key, text, reference);
}
