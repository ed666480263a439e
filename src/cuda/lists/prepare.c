/* From packed lists and a schedule to granules, as the kernel's family asks. */
#include "lists/prepare.h"

#include "base/status.h"
#include "lists/spill.h"
#include "plan/cost.h"

#include <stdlib.h>

static enum operand_path path_of(const struct kernel_args *args, int32_t granule) {
    const struct problem *p = args->problem;
    const int64_t piece = 16 / (int64_t)tess_type_size(p->type);
    if (p->alignment < 16 || p->d_qk % piece || p->d_v % piece)
        return OPERANDS_ELEMENTS;
    const int tma = cuda_family_of(args->kernel)->tma && granule >= GRANULE_TMA;
    return tma ? OPERANDS_TMA : OPERANDS_CP_ASYNC;
}

/* Granules, and of joint passes the lists of dQ. */
struct prepared_joint {
    struct prepared prepared;
    struct spill spill;
};

static struct spill *spill_of(const struct prepared *prepared) {
    return &((struct prepared_joint *)(uintptr_t)prepared)->spill;
}

const struct spill *prepared_spill(const struct kernel_args *args) {
    return args->work.strips ? spill_of(args->work.prepared) : NULL;
}

static void prepared_free(struct prepared *prepared) {
    granules_free(&prepared->granules);
    spill_free(spill_of(prepared));
    free(prepared);
}

static tess_status prepared_make(struct prepared **out, const struct kernel_args *args,
                                 tess_error *error) {
    const struct kernel *kernel = args->kernel;
    const int32_t rows = args->work.lists->tile_rows;
    const struct cuda_family *family = cuda_family_of(kernel);
    const struct granule_step none = {0, 0};
    const struct granule_rules rules = {.list_of = args->work.list_of,
                                        .heads_q = args->problem->heads_q,
                                        .heads_kv = args->problem->heads_kv,
                                        .tile_heads = args->work.tile_heads,
                                        .over_keys = kernel->stage == TESS_STAGE_GRADIENT_KEYS,
                                        .workers =
                                            family->family.workers(kernel, args->target, rows),
                                        .size = family->granule,
                                        .least = family->granule_least,
                                        .groups = family->groups,
                                        .step = family->step ? family->step(kernel, rows) : none};
    struct prepared *prepared = calloc(1, sizeof(struct prepared_joint));
    if (!prepared)
        return error_set(error, TESS_OUT_OF_MEMORY, "tess_plan_create", NULL,
                         "out of memory for the lists of the device");
    tess_status status =
        granules_make(&prepared->granules, args->work.lists, args->work.schedule, &rules, error);
    if (!status && args->work.strips)
        status = spill_make(spill_of(prepared), &prepared->granules, args,
                            spill_room(args->problem), error);
    if (status) {
        prepared_free(prepared);
        return status;
    }
    prepared->path = path_of(args, prepared->granules.size);
    prepared->thin = 2 * prepared->granules.n_masks > prepared->granules.n;
    *out = prepared;
    return TESS_OK;
}

static size_t prepared_memory(const struct prepared *prepared) {
    return sizeof(struct prepared_joint) + granules_memory(&prepared->granules) +
           spill_memory(spill_of(prepared));
}

static double prepared_unevenness(const struct prepared *prepared) {
    return granules_unevenness(&prepared->granules);
}

const struct prepare_services prepare_lists = {prepared_make, prepared_free, prepared_memory,
                                               prepared_unevenness};
