/* Filling images on the host: lists, then items in the order of their units, so that places follow from
 * sums of parts alone. */
#include "cpu.h"

#include <string.h>

/* Keys of unit u. */
static int64_t unit_keys(const struct fill_job *job, int64_t u) {
    const int64_t tiles = job->shape->tiles;
    return job->arrays.keys[u / tiles / job->list_packs * tiles + u % tiles];
}

static void items_fill(const struct fill_job *job) {
    const int64_t tiles = job->shape->tiles;
    int64_t total = 0, items = 0, combines = 0, slots = 0;
    for (int64_t u = 0; u < job->units; u++)
        total += unit_keys(job, u);
    const int64_t share = fill_share(job->splits, total + job->units * job->splits->item);
    for (int64_t u = 0; u < job->units; u++) {
        const int32_t parts = fill_parts(job->splits, unit_keys(job, u), share);
        const int32_t packed = (int32_t)(u / tiles), tile = (int32_t)(u % tiles);
        for (int32_t part = 0; part < parts; part++)
            job->items[items++] =
                (struct work_item){packed, tile, part, parts, parts > 1 ? slots + part : -1};
        if (parts > 1) {
            job->combines[combines++] = (struct combine_item){packed, tile, parts, slots};
            slots += parts;
        }
    }
    job->header->items = items, job->header->combines = combines, job->header->slots = slots;
    job->header->unit_keys = total;
}

int64_t cpu_fill_workers(const tess_target *target) {
    (void)target;
    return PLAN_CPU_WORKERS;
}

tess_status cpu_fill(const struct fill_job *job, tess_error *error) {
    struct fill_counts counts;
    (void)error;
    fill_lists(job->shape, job->pattern, &job->arrays, &counts);
    memset(job->header, 0, TESS_REPORT_SIZE);
    *job->header = (struct fill_header){.magic = FILL_MAGIC,
                                        .layout = job->layout,
                                        .faults = counts.faults,
                                        .overflows = counts.overflows,
                                        .keys = counts.keys,
                                        .pairs = counts.pairs * job->list_heads};
    items_fill(job);
    return TESS_OK;
}
