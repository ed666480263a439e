/* Bytes that a run moves at least, whatever its kernels: inputs that are listed and outputs, each once. */
#include "plan/plan.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

double bytes_moved(const struct problem *p, double keys, double queries) {
    const struct caches *c = &p->caches;
    const double k = (double)(problem_d_k(p) * (int64_t)tess_type_size(c->k_type) +
                              p->rope_dims * (int64_t)tess_type_size(c->k_rope_type));
    const double v = c->v_in_k ? 0 : (double)(p->d_v * (int64_t)tess_type_size(c->v_type));
    const double q = (double)(p->d_qk * (int64_t)tess_type_size(p->type));
    const double o = (double)(p->d_v * (int64_t)tess_type_size(p->o_type));
    return keys * (k + v) + queries * q + (double)(p->batch * p->heads_q * p->n_q) * o;
}

/* Keys that n lists from `first` on name, each once. seen: a byte for each block column. Causal lists name
 * most in their last row, which is looked at first; no row is once all keys have been seen. */
static int64_t keys_listed(const struct bcsr *m, int64_t first, int64_t n, char *seen) {
    int64_t keys = 0;
    memset(seen, 0, (size_t)m->cols);
    for (int64_t l = first; l < first + n; l++)
        for (int64_t i = m->rows; i-- > 0 && keys < m->n_kv;) {
            const int64_t end = bcsr_row_end(m, l, i);
            for (int64_t e = bcsr_row_begin(m, l, i); e < end; e++) {
                const int32_t col = m->col_idx[e];
                if (!seen[col])
                    keys += bcsr_col_width(m, col);
                seen[col] = 1;
            }
        }
    return keys;
}

static int64_t queries_listing(const struct bcsr *m, int64_t list) {
    int64_t queries = 0;
    for (int64_t i = 0; i < m->rows; i++)
        queries +=
            bcsr_row_end(m, list, i) > bcsr_row_begin(m, list, i) ? bcsr_row_height(m, i) : 0;
    return queries;
}

tess_status bytes_count(tess_plan *plan, const struct bcsr *m, tess_error *error) {
    const struct problem *p = &plan->problem;
    const int64_t lists = m->batch * m->heads;
    const int64_t shared =
        m->heads > p->heads_kv ? m->heads / p->heads_kv : 1; /* by one K/V head */
    int64_t keys = 0, queries = 0;
    char *seen = malloc((size_t)m->cols);
    if (!seen)
        return error_set(error, TESS_OUT_OF_MEMORY, "tess_plan_create", NULL,
                         "out of memory for the keys that are listed");
    for (int64_t l = 0; l < lists; l += shared)
        keys += keys_listed(m, l, shared, seen);
    for (int64_t l = 0; l < lists; l++)
        queries += queries_listing(m, l);
    free(seen);
    plan->bytes = bytes_moved(p, (double)keys * (double)(p->batch * p->heads_kv * shared / lists),
                              (double)queries * (double)(p->batch * p->heads_q / lists));
    return TESS_OK;
}
