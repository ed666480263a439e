/* Filling images on the host: lists, then items in the order of their units, so that places follow from
 * sums of parts alone. */
#include "cpu.h"

#include "base/status.h"

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
        const int32_t parts = fill_unit_parts(job->splits, u, unit_keys(job, u), share);
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

int64_t cpu_workers(const tess_target *target) {
    (void)target;
    return PLAN_CPU_WORKERS;
}

/* The first fault as an error: with a row, and with an entry of one. */
static tess_status first_tell(const struct fill_job *job, uint64_t first, tess_error *error) {
    static const char *const rows[] = {
        [FILL_FALLS] = "row_ptr falls",
        [FILL_NEGATIVE] = "a count or row_ptr is below 0",
        [FILL_OVERFLOW] = "its entries are past the capacity",
    };
    static const char *const entries[] = {
        [FILL_NEGATIVE] = "an index is below -1",
        [FILL_OUT_OF_RANGE] = "an index is at or past the last block or today's length",
    };
    const struct fill_place at = fill_place_of(job->shape, first);
    return error_set_list(error, fill_list_fault(at.wrong), job->function, "pattern", at.batch,
                          at.head, at.row, at.position, "pattern: %s",
                          at.row < 0 ? "a length is not in 0 ... n_kv"
                                     : (at.position < 0 ? rows : entries)[at.wrong]);
}

/* Headers of lists with a fault stay 0 where the plan is strict: no run takes the image. */
tess_status cpu_fill(const struct fill_job *job, tess_error *error) {
    struct fill_counts counts;
    fill_lists(job->shape, job->pattern, &job->arrays, &counts);
    memset(job->header, 0, TESS_REPORT_SIZE);
    if (job->report)
        memset(job->report, 0, TESS_REPORT_SIZE);
    if (job->strict && counts.first != FILL_NOWHERE)
        return first_tell(job, counts.first, error);
    *job->header = (struct fill_header){.magic = FILL_MAGIC,
                                        .layout = job->layout,
                                        .faults = counts.faults,
                                        .overflows = counts.overflows,
                                        .keys = counts.keys,
                                        .pairs = counts.pairs * job->list_heads,
                                        .first = counts.first};
    items_fill(job);
    if (job->report)
        *job->report = *job->header;
    return TESS_OK;
}
