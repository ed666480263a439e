/* Seconds of a pass over lists by the end of its last CTA: waves of items, or of parts of long tiles. */
#include "host/drained.h"

#include "host/table.h"

#include <math.h>

/* Waves of `tiles` tiles over `workers` CTAs, in the time of a tile where all CTAs have one. Time of a short
 * last wave: docs/notes/planning.md, "Short waves". */
static double waves(double tiles, double workers, double multiprocessors) {
    const double rest = fmod(tiles, workers), share = cbrt(fmin(1, multiprocessors / workers));
    return tiles / workers + (rest > 0 ? (1 - rest / workers) * share * share : 0);
}

/* Time of the only wave over that of tiles of the mean length: it ends with the longest. Waves before another
 * do not, whose long tiles come first. */
static double longest(const struct lists_sums *sums, double tiles, double workers) {
    const double keys = sums->full_keys + sums->masked_keys;
    return tiles <= workers && keys > 0 ? cbrt(sums->most_keys * sums->tiles / keys) : 1;
}

/* Parts of an average tile, at most. */
static double parts_most(const struct trial *t) {
    const double least = t->sums->tiles * (double)cost_part_keys(t);
    return floor((t->sums->full_keys + t->sums->masked_keys) / least);
}

/* Items of `tiles` tiles, split for their length alone where combining has no known cost (schedule.h). */
static double items_of(const struct trial *t, double tiles) {
    const double wanted = floor(2 * t->target->multiprocessors / tiles) + 1;
    const int whole = t->kernel->family->combine > 0 || !cuda_family_of(t->kernel)->waves;
    return whole ? tiles : tiles * fmax(1, fmin(parts_most(t), wanted));
}

/* Parts of split tiles: one for each CTA, where lists have keys for so many. */
static double split_items(const struct trial *t, double tiles, double workers) {
    const double keys = (t->sums->full_keys + t->sums->masked_keys) * t->heads / t->tile_heads;
    return fmin(workers, fmax(tiles, floor(keys / (double)cost_part_keys(t))));
}

double drained_seconds(const struct trial *t) {
    const struct cuda_family *family = cuda_family_of(t->kernel);
    const struct lists_sums *sums = t->sums;
    const double workers = t->kernel->family->workers(t->kernel, t->target, t->rows);
    const double seconds = cost_lists(t), tiles = sums->tiles * t->heads / t->tile_heads;
    if (workers <= 1 || tiles <= 0 || (!family->waves && tiles < workers))
        return seconds;
    const double items = items_of(t, tiles);
    const double n =
        family->waves ? waves(items, workers, t->target->multiprocessors) : ceil(items / workers);
    const double whole = seconds / items * workers * n * longest(sums, tiles, workers);
    if (t->kernel->family->combine == 0 || sums->most_keys < 2 * (double)cost_part_keys(t))
        return whole;
    const double parts = split_items(t, tiles, workers);
    return fmin(whole,
                seconds / parts * workers * waves(parts, workers, t->target->multiprocessors) +
                    t->kernel->family->combine + parts * cost_part(t));
}
