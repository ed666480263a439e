/* Granules that CUDA's fused kernels walk, from a plan's packed lists (granules.h). */
#ifndef TESSERA_CUDA_PREPARE_H
#define TESSERA_CUDA_PREPARE_H

#include "lists/granules.h"
#include "plan/kernels.h"

/* Paths of rows of K and V, or of the backward's streamed tensors, to shared memory. Alignment and granules
 * choose; a run whose strides rule a path out takes the next (docs/design/hopper.md). */
enum operand_path { OPERANDS_TMA, OPERANDS_CP_ASYNC, OPERANDS_ELEMENTS };

struct prepared {
    struct granules granules;
    enum operand_path path;
    int thin; /* most granules have a mask: few rows of a tile share a key */
};

/* Facts of a fused kernel beside its row of the table (host/table.c). */
struct forward_kernel {
    tess_type type,
        product; /* type of q, and of what is multiplied: of K and V unless they have 8 bits */
    int32_t d_qk, d_v;                 /* dims of a head at most */
    const char *too_wide, *v_too_wide; /* words about wider heads */
    int v_in_k;                        /* decode: it fetches V in K once */
};

/* Kernels that read tensor maps: tensors without them go to the decode kernel of 64 rows, or their run is
 * refused before any launch. */
enum tensor_maps { MAPS_UNUSED, MAPS_OR_DECODE, MAPS_ALONE };

/* A family of fused kernels: what the plan asks, and what CUDA has to know. */
struct cuda_family {
    struct family family;
    int32_t granule;       /* keys of a granule at most */
    int32_t granule_least; /* and at least, whatever the lists */
    int groups;            /* 1: reads mask groups (mask_groups.h), not masks */
    int tma;               /* 1: copies granules of GRANULE_TMA keys and more by TMA */
    int waves; /* a last wave of few CTAs takes less than others (docs/notes/planning.md, "Short waves") */
    int32_t cluster; /* CTAs that share an item, where several do */
    /* Without groups: steps of a kernel for tiles of `rows` rows, which granules are ordered for. NULL:
     * they need not be. */
    struct granule_step (*step)(const struct kernel *kernel, int32_t rows);
    /* CTAs of a multiprocessor, which stay for several items: as many as registers allow. NULL: 1. */
    int32_t (*resident)(const struct kernel *kernel, int32_t rows);
    /* NULL, or why it does not compute a problem, whatever its heads. */
    const char *(*refuses)(const struct problem *problem, const tess_target *target);
    /* Words about heights that it does not have; NULL: the plan says it. */
    const char *heights;
    enum tensor_maps maps; /* filled: of q, k and v */
};

static inline const struct cuda_family *cuda_family_of(const struct kernel *kernel) {
    return (const struct cuda_family *)(const void *)kernel->family;
}

extern const struct prepare_services prepare_lists;

#endif
