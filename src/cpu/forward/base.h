/* Factors of a row's outputs, and a base that joins them before they are rounded (tess_base). */
#ifndef TESSERA_CPU_BASE_H
#define TESSERA_CPU_BASE_H

#include "forward/item.h"

/* o = own O + base base_o, with O not yet divided by its sum. own +Inf: the row is empty, and O counts for
 * nothing; base 0: base_o does. */
struct base_shares {
    float own, base;
};

/* Row r of an item, or of a base's that lies alike. */
static inline const void *base_row(const struct view *view, const struct forward_item *item,
                                   int64_t r) {
    const struct cpu_head rows = cpu_heads(view, view->type, item->b, item->h, item->heads);
    return cpu_row(&rows, item->first, r);
}

/* Shares of row r, whose maximum and sum in base 2, *m and *l, become those of both parts where parts are
 * merged. The sink joins after. */
static inline struct base_shares base_join(const struct forward_item *item, int64_t r, float *m,
                                           double *l) {
    const struct kernel_args *args = item->args;
    const struct attention_operands *given = attention_of(args);
    const int64_t h = item->h + r % item->heads;
    const double sum = *l;
    const float lse =
        given->base_lse.data ? *(const float *)base_row(&given->base_lse, item, r) : -INFINITY;
    if (lse == -INFINITY) {
        const float own = modify_factor(args, h, (double)*m, sum);
        const int adds = given->base_o.data && !given->base_lse.data;
        return (struct base_shares){sum == 0 ? INFINITY
                                    : adds   ? own * (float)given->beta
                                             : own,
                                    (float)adds};
    }
    const double base = (double)lse * LOG2_E;
    const float top = fmaxf(*m, (float)base);
    const double own = exp2((double)*m - (double)top), weight = exp2(base - (double)top);
    *l = (sum == 0 ? 0 : sum * own) + weight;
    *m = top;
    const double below = modify_denominator(args, h, (double)top, *l);
    return (struct base_shares){sum == 0 ? INFINITY : (float)(own * modify_kept(args) / below),
                                (float)(weight / below)};
}

/* Adds the share of base_o to row r of o, elements `step` apart. row: scratch of d floats. */
static inline void base_add(float *o, int64_t step, const struct forward_item *item, int64_t r,
                            float share, float *row) {
    const struct view *base = &attention_of(item->args)->base_o;
    const int64_t d = item->args->problem->d_v;
    if (share == 0)
        return;
    cpu_row_to_f32(row, base_row(base, item, r), base->type, d);
    for (int64_t i = 0; i < d; i++)
        o[i * step] += share * row[i];
}

#endif
