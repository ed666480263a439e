/* What CUDA's fused kernels walk: the packed lists of a plan as granules (granules.h). */
#ifndef TESSERA_CUDA_PREPARE_H
#define TESSERA_CUDA_PREPARE_H

#include "lists/granules.h"
#include "plan/kernels.h"

struct prepared {
    struct granules granules;
};

/* How lists are cut and ordered for a kernel. */
struct tiling {
    int32_t granule; /* keys of a granule at most */
    int halves;      /* it reads halves and score_bits of granules */
    /* Without halves: its steps for tiles of `rows` rows, which granules are ordered for. */
    struct granule_step (*step)(int32_t rows);
};

/* Rows of struct backend (kernels.h). */
tess_status prepare_lists(struct prepared **out, const struct work *work, tess_error *error);
void prepare_free(struct prepared *prepared);
size_t prepare_memory(const struct prepared *prepared);
double prepare_unevenness(const struct prepared *prepared);

#endif
