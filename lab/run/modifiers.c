/* Score modifiers of a case. */
#include "lab/run/modifiers.h"

#include "lab/fill/rng.h"

enum { STREAM_ALIBI = 200, STREAM_SINK, STREAM_DROPOUT };

static int array_make(struct lab_buffer *buffer, int wanted, size_t size, size_t alignment) {
    return wanted ? lab_buffer_make(buffer, size, alignment) : 0;
}

int lab_modifiers_make(struct lab_modifiers *m, const struct lab_case *c) {
    const size_t heads = (size_t)c->h * sizeof(float);
    memset(m, 0, sizeof *m);
    if (array_make(&m->alibi, c->alibi != 0, heads, sizeof(float)) ||
        array_make(&m->sink, c->sink != 0, heads, sizeof(float)) ||
        array_make(&m->seed, c->dropout > 0, sizeof(uint64_t), sizeof(uint64_t)))
        return -1;
    float *slope = (float *)(void *)m->alibi.data, *sink = (float *)(void *)m->sink.data;
    for (int64_t h = 0; h < c->h; h++) {
        const uint64_t x = (uint64_t)h;
        if (slope)
            slope[h] = (float)copysign(exp2(-8.0 * (double)(h + 1) / (double)c->h),
                                       lab_uniform(c->seed, STREAM_ALIBI, x) - 0.5);
        if (sink)
            sink[h] = (float)(2 * lab_normal(c->seed, STREAM_SINK, x));
        if (sink && h % 8 == 5)
            sink[h] = -INFINITY;
        if (sink && h % 8 == 3 && c->fill == LAB_FILL_EXTREME)
            sink[h] = INFINITY;
    }
    if (m->seed.data)
        memcpy(m->seed.data, &(uint64_t){lab_random(c->seed, STREAM_DROPOUT, 0)}, sizeof(uint64_t));
    return 0;
}

void lab_modifiers_free(struct lab_modifiers *m) {
    lab_buffer_free(&m->alibi);
    lab_buffer_free(&m->sink);
    lab_buffer_free(&m->seed);
    memset(m, 0, sizeof *m);
}

int lab_modifiers_place(const struct lab_modifiers *m, struct lab_mirror *mirror,
                        tess_arguments *arguments) {
    if (m->alibi.data && !(arguments->alibi = lab_mirror_add(mirror, &m->alibi)))
        return -1;
    if (m->sink.data && !(arguments->sink = lab_mirror_add(mirror, &m->sink)))
        return -1;
    if (m->seed.data && !(arguments->seed = lab_mirror_add(mirror, &m->seed)))
        return -1;
    return 0;
}

int lab_modifiers_check(const struct lab_modifiers *m, char why[LAB_WHY]) {
    return (m->alibi.data && lab_buffer_check(&m->alibi, "alibi", why)) ||
                   (m->sink.data && lab_buffer_check(&m->sink, "sink", why)) ||
                   (m->seed.data && lab_buffer_check(&m->seed, "seed", why))
               ? -1
               : 0;
}

uint64_t lab_modifiers_hash(const struct lab_modifiers *m) {
    const struct lab_buffer *const all[] = {&m->alibi, &m->sink, &m->seed};
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        hash = 31 * hash + (all[i]->data ? lab_buffer_hash(all[i]) : 0);
    return hash;
}

struct lab_scoring lab_modifiers_scoring(const struct lab_modifiers *m, const struct lab_case *c) {
    struct lab_scoring s = {.scale = c->scale,
                            .softcap = c->softcap,
                            .alibi = (const float *)(const void *)m->alibi.data,
                            .sink = (const float *)(const void *)m->sink.data,
                            .dropped = lround(c->dropout * 65536)};
    if (m->seed.data)
        memcpy(&s.seed, m->seed.data, sizeof s.seed);
    return s;
}
