/* Keys and values as caches hold them: what a problem declares, and what a run is given. */
#ifndef TESSERA_CACHES_H
#define TESSERA_CACHES_H

#include "plan/attention.h"

#define CACHES_PAGE_MOST 4096 /* rows */

/* Whether queries and outputs have the type. */
static inline int type_is_of_queries(tess_type type) {
    return tess_type_size(type) && !type_is_8bit(type);
}

/* Bytes of the smallest element of q, k and v. */
size_t caches_element(const tess_problem *problem);

/* Checks what a problem says of keys and values, its sizes and options being right. */
tess_status caches_check(struct caches *out, const tess_problem *problem, const char *function,
                         tess_error *error);

/* Columns of a batch's page table; 0: not paged. */
int64_t caches_columns(const struct problem *problem);

/* Pages of a run's keys, by the tensor that is given; 0: not paged. */
tess_status caches_pages(int64_t *pages, const struct problem *problem, const tess_tensor *k,
                         const char *function, tess_error *error);

/* The scales that a run is given. The operands have their pages. */
tess_status caches_take(struct attention_operands *out, const struct problem *problem,
                        const tess_arguments *given, const char *function, tess_error *error);

#endif
