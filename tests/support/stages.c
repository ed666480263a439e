/* The stages of the staged backward by themselves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/stages.h"

#include "lab/lists/source.h"
#include "plan/problem.h"

static void *array(int64_t n, size_t size) {
    void *memory = calloc((size_t)n + 1, size);
    assert_non_null(memory);
    return memory;
}

/* The tile of pattern's list l in a block row and column; -1: none. */
static int64_t tile_find(const struct bcsr *m, int64_t l, int64_t row, int64_t column) {
    for (int64_t e = bcsr_row_begin(m, l, row); e < bcsr_row_end(m, l, row); e++)
        if (m->col_idx[e] == column)
            return e;
    return -1;
}

static void entries_find(struct stages *s) {
    const struct bcsr *m = &s->pattern->lists, *t = &s->transposed->lists;
    s->entries = array(t->n_tiles, sizeof *s->entries);
    for (int64_t l = 0; l < t->batch * t->heads; l++)
        for (int64_t j = 0; j < t->rows; j++)
            for (int64_t e = bcsr_row_begin(t, l, j); e < bcsr_row_end(t, l, j); e++) {
                s->entries[e] = tile_find(m, l, t->col_idx[e], j);
                assert_true(s->entries[e] >= 0);
            }
}

static void schedule_of(struct schedule *out, const struct stages *s, int64_t tiles,
                        int64_t batch_heads) {
    const struct bcsr *m = &s->pattern->lists;
    int64_t *keys = array(m->batch * m->heads * tiles, sizeof *keys);
    int64_t *list_of = array(batch_heads, sizeof *list_of);
    struct schedule_rules rules = {.item_cost = 1,
                                   .key_cost = 1,
                                   .workers = 1,
                                   .min_part_keys = INT64_MAX,
                                   .heads_per_group = batch_heads};
    assert_int_equal(TESS_OK, schedule_make(out, keys, tiles, list_of, batch_heads, &rules, NULL));
    free(keys);
    free(list_of);
}

void stages_make(struct stages *s, const char *text) {
    char why[LAB_WHY];
    const char *kernel;
    tess_error error = tess_error_init();
    memset(s, 0, sizeof *s);
    if (lab_case_parse(&s->c, text, why))
        fail_msg("%s: %s", text, why);
    const tess_problem problem = lab_case_problem(&s->c, TESS_STAGED);
    if (lab_case_pattern(&s->c, &s->pattern, &error) ||
        tess_pattern_transpose(&s->transposed, s->pattern, &error) ||
        check_problem(&s->problem, &kernel, &problem, __func__, &error))
        fail_msg("%s: %s", text, error.message);
    const struct bcsr *m = &s->pattern->lists;
    const int64_t heads = s->c.b * s->c.h;
    s->list_of = array(heads, sizeof *s->list_of);
    s->scores_offset = array(heads, sizeof *s->scores_offset);
    for (int64_t bh = 0; bh < heads; bh++) {
        const int64_t list = bcsr_list(m, bh / s->c.h, bh % s->c.h, s->c.h);
        s->list_of[bh] = list;
        s->scores_offset[bh] = s->count;
        s->count += (bcsr_row_begin(m, list, m->rows) - bcsr_row_begin(m, list, 0)) * m->block_q *
                    m->block_kv;
    }
    entries_find(s);
    schedule_of(&s->rows, s, m->rows, heads);
    schedule_of(&s->columns, s, m->cols, s->c.b * s->c.hkv);
}

void stages_free(struct stages *s) {
    tess_pattern_free(s->pattern);
    tess_pattern_free(s->transposed);
    schedule_free(&s->rows);
    schedule_free(&s->columns);
    free(s->list_of);
    free(s->scores_offset);
    free(s->entries);
}

void stages_each(const struct stages *s, stages_visit *visit, void *context) {
    const struct bcsr *m = &s->pattern->lists;
    struct stages_element e;
    for (int64_t bh = 0; bh < s->c.b * s->c.h; bh++)
        for (e.i = 0; e.i < m->n_q; e.i++) {
            const int64_t list = s->list_of[bh], row = e.i / m->block_q, r = e.i % m->block_q;
            const int64_t r0 = bcsr_row_begin(m, list, row), r1 = bcsr_row_end(m, list, row);
            struct tile_walk walk;
            struct tile tile;
            e.b = bh / s->c.h;
            e.h = bh % s->c.h;
            e.place =
                s->scores_offset[bh] +
                m->block_kv * ((r0 - bcsr_row_begin(m, list, 0)) * m->block_q + r * (r1 - r0));
            tile_walk_begin(&walk, m, list, row);
            while (tile_walk_next(&walk, &tile))
                for (int64_t c = 0; c < m->block_kv; c++, e.place++) {
                    e.key = tile.col * m->block_kv + c;
                    e.listed = e.key < m->n_kv && tile_row_bits(m, &tile, r, c, 1);
                    visit(context, &e);
                }
        }
}

int stages_lists(const struct stages *s, int64_t b, int64_t h, int64_t i, int64_t j0, int64_t j1) {
    const struct bcsr *m = &s->pattern->lists;
    struct tile_walk walk;
    struct tile tile;
    tile_walk_begin(&walk, m, s->list_of[b * s->c.h + h], i / m->block_q);
    while (tile_walk_next(&walk, &tile))
        for (int64_t c = 0; c < m->block_kv; c++) {
            const int64_t key = tile.col * m->block_kv + c;
            if (key >= j0 && key < j1 && tile_row_bits(m, &tile, i % m->block_q, c, 1))
                return 1;
        }
    return 0;
}

struct kernel_args stages_args(const struct stages *s) {
    return (struct kernel_args){.function = "tess_run",
                                .problem = &s->problem,
                                .work = {.bcsr = &s->pattern->lists,
                                         .transposed = &s->transposed->lists,
                                         .entries = s->entries,
                                         .list_of = s->list_of,
                                         .scores_offset = s->scores_offset,
                                         .seconds = 1}};
}

void stages_run(const struct kernel *kernel, struct kernel_args *args, int32_t threads) {
    char why[LAB_WHY];
    struct lab_buffer workspace;
    struct problem problem = *args->problem;
    tess_error error = tess_error_init();
    problem.threads = threads;
    args->kernel = kernel;
    args->problem = &problem;
    assert_int_equal(0, lab_buffer_make(&workspace, kernel->workspace(args), 64));
    args->workspace = workspace.data;
    if (kernel->run(args, &error))
        fail_msg("%s: %s", kernel->name, error.message);
    if (lab_buffer_check(&workspace, "workspace", why))
        fail_msg("%s: %s", kernel->name, why);
    lab_buffer_free(&workspace);
    args->workspace = NULL;
    args->problem = NULL;
}

const struct kernel *stages_kernel(tess_stage stage, const struct kernel *kernel) {
    const struct backend *cpu = backend_get(TESS_CPU);
    for (kernel = kernel ? kernel + 1 : cpu->kernels; kernel < cpu->kernels + cpu->n_kernels;
         kernel++)
        if (kernel->stage == stage && !kernel->unusable())
            return kernel;
    return NULL;
}

struct view stages_view(const struct lab_tensor *t) {
    return (struct view){.data = t->view.data,
                         .stride = {t->view.stride[0], t->view.stride[1], t->view.stride[2]},
                         .type = t->view.type};
}
