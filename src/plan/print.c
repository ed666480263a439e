/* A plan in words. */
#include "plan/operation.h"
#include "plan/reserve.h"
#include "plan/select.h"

#include <stdarg.h>
#include <stdio.h>

/* Text that may be longer than the room for it; `length` counts all of it. */
struct text {
    char *room;
    size_t size, length;
};

static void say(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct text *t, const char *format, ...) {
    size_t at = t->length < t->size ? t->length : t->size;
    va_list words;
    va_start(words, format);
    int n = vsnprintf(t->size ? t->room + at : NULL, t->size - at, format, words);
    va_end(words);
    t->length += n > 0 ? (size_t)n : 0;
}

static const char *plural(int64_t n) {
    return n == 1 ? "" : "s";
}

static void say_gradients(struct text *t, int64_t gradients) {
    static const struct {
        int64_t bit;
        const char *name;
    } names[] = {{TESS_GRADIENT_Q, "q"},
                 {TESS_GRADIENT_K, "k"},
                 {TESS_GRADIENT_V, "v"},
                 {TESS_GRADIENT_ALIBI, "alibi"},
                 {TESS_GRADIENT_SINK, "sink"}};
    if (!gradients)
        return;
    say(t, "  gradients");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (gradients & names[i].bit)
            say(t, " %s", names[i].name);
    say(t, "\n");
}

/* Layout of K and V, where they are not rows of q's type, and o, where it is not of q's type. */
static void say_caches(struct text *t, const struct problem *p) {
    const struct caches *c = &p->caches;
    if (caches_plain(p) && !c->v_in_k && !p->rope_dims && p->o_type == p->type)
        return;
    say(t, "  caches    k %s", tess_type_name(c->k_type));
    if (p->rope_dims)
        say(t, ", its last %lld dims %s in a view of their own", (long long)p->rope_dims,
            tess_type_name(c->k_rope_type));
    say(t, c->v_in_k ? ", V in K" : ", v %s", tess_type_name(c->v_type));
    if (caches_paged(c))
        say(t, ", pages of %lld rows", (long long)(INT64_C(1) << c->page_shift));
    say(t, ", o %s\n", tess_type_name(p->o_type));
}

static void say_problem(struct text *t, const tess_plan *plan) {
    const struct problem *p = &plan->problem;
    say(t, "%s %s on %s\n", p->pipeline == TESS_FUSED ? "fused" : "staged",
        operation_get(p->operation)->name, plan->backend->name);
    say(t, "  problem   b=%lld h=%lld hkv=%lld n=%lld nkv=%lld d=%lld dv=%lld %s scale=%.9g\n",
        (long long)p->batch, (long long)p->heads_q, (long long)p->heads_kv, (long long)p->n_q,
        (long long)p->n_kv, (long long)p->d_qk, (long long)p->d_v, tess_type_name(p->type),
        p->scale);
    say_caches(t, p);
    const struct modifiers *m = &p->modifiers;
    if (modifiers_any(m))
        say(t, "  modifiers");
    if (m->softcap != 0)
        say(t, " softcap=%.9g", m->softcap);
    if (m->alibi)
        say(t, " alibi");
    if (m->sink)
        say(t, " sink");
    if (m->dropped)
        say(t, " dropout=%.9g", m->dropped / 65536.0);
    if (modifiers_any(m) && (m->first_head || m->first_query || m->first_key))
        say(t, ", of the whole from head %lld, query %lld, key %lld on", (long long)m->first_head,
            (long long)m->first_query, (long long)m->first_key);
    if (modifiers_any(m))
        say(t, "\n");
    say_gradients(t, p->gradients);
    if (plan->filled)
        return;
    double all = (double)(p->batch * p->heads_q) * (double)p->n_q * (double)p->n_kv;
    say(t, "  pattern   %lld list%s of %lld x %lld tiles, %lld tiles, density %.6g\n",
        (long long)plan->n_lists, plural(plan->n_lists), (long long)plan->block_q,
        (long long)plan->block_kv, (long long)plan->n_tiles, (double)plan->pairs / all);
}

/* The kernel of each pass, and the other kernels of its stage that could have been taken, with why
 * they were not. */
static void say_kernels(struct text *t, const tess_plan *plan) {
    const struct kernel_args of_plan = plan_args(plan);
    const struct premises premises = plan_premises(plan);
    for (const struct pass *pass = plan->passes; pass < plan->passes + plan->n_passes; pass++) {
        int64_t foreign = 0;
        say(t, "  kernel    %s: %s", tess_stage_name(pass->stage), pass->kernel->name);
        say(t, pass->what ? ", %s\n" : "\n", pass->what);
        const struct kernel_args args = pass_args(&of_plan, pass);
        char detail[128];
        if (plan->backend->detail && plan->backend->detail(&args, detail, sizeof detail) > 0)
            say(t, "            %s\n", detail);
        for (int64_t k = 0; k < plan->backend->n_kernels; k++) {
            const struct kernel *other = &plan->backend->kernels[k];
            if (other == pass->kernel || other->stage != pass->stage)
                continue;
            if (select_foreign(&premises, pass, other)) {
                foreign++;
                continue;
            }
            const char *why = select_refuses(&premises, pass, other);
            if (!why)
                why = other < pass->kernel ? "predicted to take longer, or not the one asked for"
                                           : "comes after it";
            say(t, "            not %s: %s\n", other->name, why);
        }
        if (foreign)
            say(t, "            nor %lld of other types, head sizes or machines\n",
                (long long)foreign);
    }
}

/* Words for the two sides of a work's tiles. */
struct sides {
    const char *tile, *rows, *tiles, *keys;
};

static void say_lists(struct text *t, const tess_plan *plan, const struct work *work,
                      const struct sides *sides) {
    const int turned = work == &plan->key_work;
    const struct lists *l = &work->lists;
    struct lists_sums sums;
    say(t, "  %-9s %d %s", sides->tile, (int)l->tile_rows, sides->rows);
    if (work->tile_heads > 1)
        say(t, " of each of %d heads", (int)work->tile_heads);
    for (const struct plan_height *h = work->heights; h->rows; h++)
        say(t, "%s%d: %.3g ms", h > work->heights ? ", " : ", weighed as ", (int)h->rows,
            h->seconds * 1e3);
    lists_sum(&sums, l);
    double keys = sums.full_keys + sums.masked_keys;
    say(t,
        "\n  lists     %.0f %s tiles, %.0f packed %s: %.0f in %lld full runs, %.0f masked "
        "in %lld runs\n",
        sums.tiles, sides->tiles, keys, sides->keys, sums.full_keys, (long long)l->n_full,
        sums.masked_keys, (long long)l->n_masked);
    double rows = (double)l->n_lists * (double)(turned ? plan->problem.n_kv : plan->problem.n_q);
    double pairs = (double)plan->pairs * (double)plan->n_lists /
                   (double)(plan->problem.batch * plan->problem.heads_q);
    if (keys > 0)
        say(t, "  use       %.1f %% of the computed pairs are listed ones\n",
            100 * pairs / (keys * rows / sums.tiles));
}

/* Bytes that a run moves at least, and how fast the target's memory could do so; then what is predicted.
 * `when` ends the line. */
static void say_seconds(struct text *t, const tess_plan *plan, double bytes, double seconds,
                        const char *when) {
    const double rate = (double)plan->target.memory_rate;
    say(t, "  bytes     %.0f of q, k, v and %s, each once\n", bytes,
        plan->problem.operation == TESS_ATTENTION_BACKWARD ? "d_o" : "o");
    if (rate > 0)
        say(t, "  floor     %.4g ms for these, as memory moves %.3g TB/s\n", 1e3 * bytes / rate,
            1e-12 * rate);
    say(t, "  predicted %.4g ms%s%s\n", seconds * 1e3,
        plan->backend->on_host ? " on one thread" : "", when);
}

/* Tiles and bounds of the lists that a fill writes into a part. */
static void say_part(struct text *t, const tess_plan *plan, const struct reserved *r) {
    const struct fill_shape *s = &r->shape;
    const int64_t keys = reserve_keys(plan, r);
    const double each = (double)keys / (double)(plan->n_lists * s->tiles);
    say(t, "  tile      %d rows", (int)s->tile_rows);
    if (r->work.tile_heads > 1)
        say(t, " of each of %d heads", (int)r->work.tile_heads);
    say(t, "\n  keys      %.0f of a query tile, %lld of all, %.0f pairs, at capacity\n", each,
        (long long)keys,
        (double)(plan->problem.batch * plan->problem.heads_q) * (double)s->n_q * each);
    say(t, "  schedule  %lld work item%s and %lld split tile%s at most\n", (long long)r->items,
        plural(r->items), (long long)r->combines, plural(r->combines));
}

static void say_reserved(struct text *t, const tess_plan *plan) {
    static const char *const forms[] = {"indices", "block rows", "block bits", "ranges", "mask"};
    const struct fill_shape *s = plan->filled;
    say(t, "  reserved  %s of %lld x %lld blocks for %lld list%s, capacity %lld\n", forms[s->form],
        (long long)s->block_q, (long long)s->block_kv, (long long)plan->n_lists,
        plural(plan->n_lists), (long long)s->capacity);
    if (s->cut)
        say(t, "  cut       %lld ... %lld\n", (long long)s->cut_lo, (long long)s->cut_hi);
    for (const struct part *part = plan->parts; part < plan->parts + plan->n_parts; part++)
        say_part(t, plan, part->reserved);
    say(t, "  fill_run  the bits of fill and run%s\n",
        reserve_direct(plan) ? "; without an image the kernel reads distinct indices itself" : "");
    say(t, "  memory    workspace %zu bytes, image %zu bytes, %d thread%s\n", plan->workspace,
        plan->image, (int)plan->problem.threads, plural(plan->problem.threads));
    say_seconds(t, plan, reserve_bytes(plan, -1), reserve_seconds(plan, -1), " at capacity");
}

/* Tiles of a work and the schedule over them; nothing where no pass walks it. */
static void say_work(struct text *t, const tess_plan *plan, const struct work *work) {
    static const struct sides sides[] = {{"tile", "rows", "query", "keys"},
                                         {"key tile", "keys", "key", "queries"}};
    const struct schedule *schedule = &work->schedule;
    const int over_keys = work == &plan->key_work;
    if (work_packed(work))
        say_lists(t, plan, work, &sides[over_keys]);
    if (work->strips.n)
        say(t, "  strips    %lld of key tiles, %lld rows of sums for d_q\n",
            (long long)work->strips.n, (long long)work->strips.rows);
    else if (work_packed(work) || work_copied(work))
        say(t, "  schedule  %lld work item%s, %lld split tile%s%s\n", (long long)schedule->n_items,
            plural(schedule->n_items), (long long)schedule->n_combines,
            plural(schedule->n_combines), over_keys ? ", over keys" : "");
}

size_t tess_plan_print(const tess_plan *plan, char *room, size_t size) {
    struct text t = {room, room ? size : 0, 0};
    if (t.size)
        t.room[0] = 0;
    if (!plan)
        return 0;
    say_problem(&t, plan);
    say_kernels(&t, plan);
    if (plan->filled) {
        say_reserved(&t, plan);
        return t.length;
    }
    if (plan->problem.pipeline == TESS_STAGED)
        say(&t, "  scores    %lld floats between the stages\n", (long long)plan->scores_count);
    say_work(&t, plan, &plan->work);
    say_work(&t, plan, &plan->key_work);
    say_work(&t, plan, &plan->sum_work);
    say(&t, "  memory    workspace %zu bytes", plan->workspace);
    if (plan->backend->on_host)
        say(&t, ", %d thread%s\n", (int)plan->problem.threads, plural(plan->problem.threads));
    else
        say(&t, ", image %zu bytes\n", plan->image);
    say(&t, "  pairs     %lld listed\n", (long long)plan->pairs);
    say_seconds(&t, plan, plan->bytes, plan_seconds(plan, plan->predicted_seconds, plan->bytes),
                "");
    return t.length;
}
