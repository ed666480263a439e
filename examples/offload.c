/*
 * Caches of many layers, kept by the host: steps of sparse deltas (see denoise.c) keep a list and a cached output for
 * each layer, more than a GPU holds at long sequences. Here pinned memory of the host holds them, the GPU has two
 * slots, and copies run under attention: a full step stores what a layer found while the next one computes, a sparse
 * step loads the next layer's while this one computes.
 *
 *     load      | cache 0 | cache 1 |         | cache 2 |         | cache 3 |
 *     compute             | layer 0 in slot 0 | layer 1 in slot 1 | layer 2 in slot 0 | ...
 *
 * A slot is written only after its last reader: a load waits for the layer, and the store, of two layers before. A step
 * is one captured graph of three streams on CUDA, and plain calls on the CPU. A layer's output is the next one's
 * queries, so that the last output depends on every cache. To build it:
 *
 *     cc offload.c $(pkg-config --cflags --libs tessera) -lm
 *     cc -DEXAMPLE_CUDA offload.c $(pkg-config --cflags --libs tessera) -lm -lcudart
 *     ./a.out [TOKENS [HEADS [LAYERS [TRIALS]]]]
 *
 * Answers 0 if outputs have the bits of a model whose caches are all on the device, random delays or not.
 */
#define _POSIX_C_SOURCE 199309L /* nanosleep */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deltas.h"

enum { DIM = 128, GROUP = 192, FORCED = 4, SLOTS = 2 };
#define KEEP_SHARE 0.07

typedef uint16_t bf16;

/* Parts of a layer's cache, in its order of memory: what a full step reads, then what a sparse step reads. */
enum part { REFERENCE, BITS, BASE_LSE, BASE_O, PARTS };

static int64_t tokens, heads, groups, keep;
static int layers, trials;
static size_t part_begin[PARTS + 1]; /* bytes */

static tess_plan *dense_plan, *kept_plan;
static void *workspace, *dense_image, *kept_image;
static size_t workspace_size;
static bf16 *k, *v, *states[2], *kept_o; /* keys of layer l begin at token l of k */
static float *lse, *kept_lse, *sums;
static int32_t *indices, *counts;
static unsigned char *slots[SLOTS]; /* device memory */
static unsigned char **stored;      /* a cache for each layer, of the host */

/* ---- memory of one side, and streams beside a step's ---- */

enum stream { COMPUTE, LOAD, STORE, STREAMS };
enum { LOADED = 0, USED = SLOTS, SAVED = 2 * SLOTS, EVENTS = 3 * SLOTS }; /* one for each slot */

static tess_stream streams[STREAMS]; /* NULL on the CPU, whose calls come back when they are done */
static int delayed;                  /* whether streams wait for random times */

static void nap(void *unused) {
    (void)unused;
    const struct timespec time = {0, 1000L * (rand() % 500)};
    nanosleep(&time, NULL);
}

#ifdef EXAMPLE_CUDA
static cudaEvent_t events[EVENTS];

static void begin(void) {
    for (int s = LOAD; s < STREAMS; s++) {
        cudaStream_t stream;
        cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        streams[s] = stream;
    }
    for (int e = 0; e < EVENTS; e++)
        cuda(cudaEventCreateWithFlags(&events[e], cudaEventDisableTiming));
}

static void *allocate_device(size_t size) {
    void *memory;
    cuda(cudaMalloc(&memory, size + 1));
    cuda(cudaMemset(memory, 0, size + 1));
    return memory;
}

static void *allocate_pinned(size_t size) {
    void *memory;
    cuda(cudaMallocHost(&memory, size));
    memset(memory, 0, size);
    return memory;
}

static void release_pinned(void *memory) {
    cuda(cudaFreeHost(memory));
}

static void move(void *to, const void *from, size_t size) {
    cuda(cudaMemcpy(to, from, size, cudaMemcpyDefault));
}

static void copy(void *to, const void *from, size_t size, enum stream s) {
    cuda(cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, streams[s]));
}

static void record(int event, enum stream s) {
    if (delayed)
        cuda(cudaLaunchHostFunc(streams[s], nap, NULL));
    cuda(cudaEventRecord(events[event], streams[s]));
}

static void wait(enum stream s, int event) {
    cuda(cudaStreamWaitEvent(streams[s], events[event], 0));
}
#else
static void begin(void) {
}

static void *allocate_pinned(size_t size) {
    return memset(allocate(size), 0, size);
}

static void *allocate_device(size_t size) {
    return allocate_pinned(size);
}

static void release_pinned(void *memory) {
    release(memory);
}

static void move(void *to, const void *from, size_t size) {
    memcpy(to, from, size);
}

static void copy(void *to, const void *from, size_t size, enum stream s) {
    (void)s;
    move(to, from, size);
}

static void record(int event, enum stream s) {
    (void)event, (void)s;
    if (delayed)
        nap(NULL);
}

static void wait(enum stream s, int event) {
    (void)s, (void)event;
}
#endif

/* ---- layers ---- */

static tess_tensor view(bf16 *x) {
    return tess_tensor_bhnd(x, TESS_BF16, 1, heads, tokens, DIM);
}

static tess_tensor view_rows(float *x) {
    return tess_tensor_bhnd(x, TESS_F32, 1, heads, tokens, 1);
}

static float *reference(unsigned char *cache) {
    return (float *)(void *)(cache + part_begin[REFERENCE]);
}

static uint64_t *bits(unsigned char *cache) {
    return (uint64_t *)(void *)(cache + part_begin[BITS]);
}

static float *base_lse(unsigned char *cache) {
    return (float *)(void *)(cache + part_begin[BASE_LSE]);
}

static bf16 *base_o(unsigned char *cache) {
    return (bf16 *)(void *)(cache + part_begin[BASE_O]);
}

/* Operands of a layer. */
struct run {
    tess_tensor q, k, v, o, lse, base_o, base_lse, reference, sums;
    tess_arguments arguments;
};

static void run_begin(struct run *r, int layer, bf16 *o, float *o_lse) {
    r->q = view(states[layer % 2]), r->k = view(k + layer * DIM), r->v = view(v + layer * DIM);
    r->k.stride[1] = r->v.stride[1] = (tokens + layers) * DIM;
    r->o = view(o), r->lse = view_rows(o_lse);
    r->arguments = tess_arguments_init();
    r->arguments.q = &r->q, r->arguments.k = &r->k, r->arguments.v = &r->v;
    r->arguments.o = &r->o, r->arguments.lse = &r->lse;
    r->arguments.workspace = workspace, r->arguments.workspace_size = workspace_size;
}

static tess_device_pattern kept_pattern(const uint64_t *kept) {
    tess_device_pattern p = tess_device_pattern_init();
    p.form = TESS_BLOCK_BITS, p.n_q = p.n_kv = tokens, p.block_q = GROUP, p.block_kv = 1;
    p.batch = 1, p.heads = heads, p.capacity = heads * groups * keep;
    p.bits = kept;
    return p;
}

static void kept_run(struct run *r, const uint64_t *kept) {
    tess_error error = tess_error_init();
    const tess_device_pattern pattern = kept_pattern(kept);
    require(tess_plan_fill_run(kept_plan, &pattern, kept_image, tess_plan_image_size(kept_plan),
                               NULL, &r->arguments, &error, streams[COMPUTE]),
            &error);
}

/* A dense run; the columns with the largest sums, as bits; the output of all others, as base. */
static void layer_full(int layer, unsigned char *cache) {
    const tess_stream stream = streams[COMPUTE];
    tess_error error = tess_error_init();
    struct run whole, kept;
    run_begin(&whole, layer, states[(layer + 1) % 2], lse);
    whole.reference = view_rows(reference(cache));
    whole.sums = tess_tensor_bhnd(sums, TESS_F32, 1, heads, groups, tokens);
    whole.arguments.lse_reference = &whole.reference, whole.arguments.column_sums = &whole.sums;
    whole.arguments.image = dense_image;
    whole.arguments.image_size = tess_plan_image_size(dense_plan);
    require(tess_run(dense_plan, &whole.arguments, &error, stream), &error);

    columns_choose(&whole.sums, keep, FORCED, indices, counts, bits(cache), stream);

    run_begin(&kept, layer, kept_o, kept_lse);
    kept_run(&kept, bits(cache));
    const tess_tensor rest = view(base_o(cache)), rest_lse = view_rows(base_lse(cache));
    require(tess_unmerge(backend, &whole.o, &whole.lse, &kept.o, &kept.lse, &rest, &rest_lse,
                         &error, stream),
            &error);
    copy(reference(cache), lse, (size_t)(heads * tokens) * sizeof *lse, COMPUTE);
}

static void layer_sparse(int layer, unsigned char *cache) {
    struct run r;
    run_begin(&r, layer, states[(layer + 1) % 2], lse);
    r.base_o = view(base_o(cache)), r.base_lse = view_rows(base_lse(cache));
    r.arguments.base = TESS_BASE_MERGE;
    r.arguments.base_o = &r.base_o, r.arguments.base_lse = &r.base_lse;
    kept_run(&r, bits(cache));
}

/* ---- steps ---- */

enum { FULL, SPARSE, KINDS };
enum { LAYERS = 1, COPIES = 2 }; /* halves of a step, to time each by itself */

static const struct kind {
    const char *name;
    void (*layer)(int layer, unsigned char *cache);
    int load_begin, load_end; /* parts */
    int stores;
} kinds[KINDS] = {
    {"full", layer_full, REFERENCE, BITS, 1},
    {"sparse", layer_sparse, BITS, PARTS, 0},
};

/* Slots answer `USED` when the layer that read them is over, `SAVED` when what it found is with the host. */
static void load(const struct kind *kind, int layer) {
    const int slot = layer % SLOTS;
    const size_t begins = part_begin[kind->load_begin], ends = part_begin[kind->load_end];
    if (layer >= SLOTS)
        wait(LOAD, kind->stores ? SAVED + slot : USED + slot);
    copy(slots[slot] + begins, stored[layer] + begins, ends - begins, LOAD);
    record(LOADED + slot, LOAD);
}

static void store(int layer) {
    const int slot = layer % SLOTS;
    wait(STORE, USED + slot);
    copy(stored[layer], slots[slot], part_begin[PARTS], STORE);
    record(SAVED + slot, STORE);
}

struct work {
    const struct kind *kind;
    int what;
};

static void offloaded(const void *context, tess_stream stream) {
    const struct work *w = context;
    streams[COMPUTE] = stream;
    record(USED, COMPUTE); /* the copies' streams begin behind this one's */
    wait(LOAD, USED), wait(STORE, USED);
    if (w->what & COPIES)
        load(w->kind, 0);
    for (int l = 0; l < layers; l++) {
        const int slot = l % SLOTS;
        if (w->what & COPIES) {
            if (l + 1 < layers)
                load(w->kind, l + 1);
            wait(COMPUTE, LOADED + slot);
        }
        if (w->what & LAYERS)
            w->kind->layer(l, slots[slot]);
        record(USED + slot, COMPUTE);
        if (w->what & COPIES && w->kind->stores)
            store(l);
    }
    record(LOADED, LOAD), record(SAVED, STORE);
    wait(COMPUTE, LOADED), wait(COMPUTE, SAVED);
}

static unsigned char *
    *all; /* caches on the device of every layer: offloaded ones are held to these */

static void resident(const void *context, tess_stream stream) {
    const struct work *w = context;
    streams[COMPUTE] = stream;
    for (int l = 0; l < layers; l++)
        w->kind->layer(l, all[l]);
}

/* ---- the model, and what is told ---- */

static void model_make(void) {
    tess_error error = tess_error_init();
    tess_problem problem = tess_problem_init();
    tess_target target = tess_target_init();
    const tess_device_pattern kept = kept_pattern(NULL);
    problem.batch = 1, problem.heads_q = problem.heads_kv = heads;
    problem.n_q = problem.n_kv = tokens, problem.d_qk = problem.d_v = DIM;
    problem.type = TESS_BF16;
    require(tess_target_query(&target, backend, -1, &error), &error);
    plans_of_layer(&dense_plan, &kept_plan, problem, &kept, 64, GROUP, &target);
    const size_t one = tess_plan_workspace_size(dense_plan);
    const size_t other = tess_plan_workspace_size(kept_plan);
    workspace_size = one > other ? one : other;
    workspace = allocate_device(workspace_size);
    kept_image = allocate_device(tess_plan_image_size(kept_plan));
    if (tess_plan_image_size(dense_plan)) {
        dense_image = allocate_device(tess_plan_image_size(dense_plan));
        require(tess_plan_upload(dense_plan, dense_image, tess_plan_image_size(dense_plan), &error,
                                 NULL),
                &error);
    }
}

/* Numbers of [-1, 1), as bf16: the upper half of a float. */
static void draw(bf16 *to, int64_t count) {
    static uint32_t state;
    bf16 *numbers = allocate_pinned((size_t)count * sizeof *numbers);
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525 + 1013904223; /* Numerical Recipes, 7.1 */
        const float x = (float)(int32_t)state * 0x1p-31f;
        uint32_t word;
        memcpy(&word, &x, sizeof word);
        numbers[i] = (bf16)(word >> 16);
    }
    move(to, numbers, (size_t)count * sizeof *numbers);
    release_pinned(numbers);
}

/* Output of full steps, each with a sparse one behind it, from the same queries; caches begin as zeros. */
static void answer(void (*give)(const void *, tess_stream), const bf16 *queries, bf16 *output) {
    struct work works[KINDS];
    struct step steps[KINDS];
    for (int kind = 0; kind < KINDS; kind++) {
        works[kind] = (struct work){&kinds[kind], LAYERS | COPIES};
        steps[kind] = (struct step){give, &works[kind], NULL};
    }
    const size_t size = (size_t)(heads * tokens * DIM) * sizeof *queries;
    for (int turn = 0; turn < 2 * KINDS; turn++) {
        move(states[0], queries, size);
        launch(&steps[turn % KINDS]);
    }
    move(output, states[layers % 2], size);
    for (int kind = 0; kind < KINDS; kind++)
        forget(&steps[kind]);
}

static int same_as_resident(const bf16 *queries, size_t cache_size) {
    const size_t size = (size_t)(heads * tokens * DIM) * sizeof *queries;
    bf16 *wanted = allocate_pinned(size), *got = allocate_pinned(size);
    int same = 0;
    all = allocate_pinned((size_t)layers * sizeof *all);
    for (int l = 0; l < layers; l++)
        all[l] = allocate_device(cache_size);
    answer(resident, queries, wanted);
    for (int trial = 0; trial < trials; trial++) {
        delayed = trial > 0;
        for (int l = 0; l < layers; l++)
            memset(stored[l], 0, cache_size);
        answer(offloaded, queries, got);
        same += memcmp(wanted, got, size) == 0;
    }
    delayed = 0;
    for (int l = 0; l < layers; l++)
        release(all[l]);
    release_pinned(all), release_pinned(wanted), release_pinned(got);
    printf("%d of %d trials, all but one with random delays, have the bits of resident caches\n",
           same, trials);
    return same == trials;
}

/* The least of three launches, or the first where it takes half a second. */
static double least_ms(const struct kind *kind, int what) {
    const struct work work = {kind, what};
    struct step step = {offloaded, &work, NULL};
    launch(&step);
    double least = launch_ms(&step);
    for (int i = 1; i < 3 && least < 500; i++)
        least = fmin(least, launch_ms(&step));
    forget(&step);
    return least;
}

/* Copies that a step's time does not show, of the copies' own time; on the CPU none runs beside a layer. */
static void timings_print(const struct kind *kind) {
    const double layers_ms = least_ms(kind, LAYERS), copies_ms = least_ms(kind, COPIES);
    const double ms = least_ms(kind, LAYERS | COPIES);
    const double hidden =
        backend == TESS_CPU ? 0 : fmin(1, fmax(0, 1 - (ms - layers_ms) / copies_ms));
    printf("%6s %10.3f %10.3f %10.3f %7.2f\n", kind->name, ms, layers_ms, copies_ms, hidden);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (tess_device_count(backend) < 1) {
        printf("no device\n");
        return 77;
    }
    tokens = argc > 1 ? atoll(argv[1]) : 768;
    heads = argc > 2 ? atoll(argv[2]) : 2;
    layers = argc > 3 ? atoi(argv[3]) : 5;
    trials = argc > 4 ? atoi(argv[4]) : 5;
    if (tokens < GROUP || heads < 1 || layers < 1 || trials < 1) {
        fprintf(stderr, "usage: %s [TOKENS, at least 192 [HEADS [LAYERS [TRIALS]]]]\n", *argv);
        return EXIT_FAILURE;
    }
    groups = (tokens + GROUP - 1) / GROUP, keep = (int64_t)ceil(KEEP_SHARE * (double)tokens);
    const size_t rows = (size_t)(heads * tokens), lists = (size_t)(heads * groups);
    const size_t sizes[PARTS] = {
        [REFERENCE] = rows * sizeof(float),
        [BITS] = lists * (size_t)((tokens + 63) / 64) * sizeof(uint64_t),
        [BASE_LSE] = rows * sizeof(float),
        [BASE_O] = rows * DIM * sizeof(bf16),
    };
    for (int p = 0; p < PARTS; p++) /* parts of 256 bytes, as tensors' alignment */
        part_begin[p + 1] = part_begin[p] + (sizes[p] + 255) / 256 * 256;
    const size_t cache_size = part_begin[PARTS];

    begin();
    model_make();
    stored = allocate_pinned((size_t)layers * sizeof *stored);
    for (int l = 0; l < layers; l++)
        stored[l] = allocate_pinned(cache_size);
    for (int s = 0; s < SLOTS; s++)
        slots[s] = allocate_device(cache_size),
        states[s] = allocate_device(rows * DIM * sizeof(bf16));
    const int64_t numbers = heads * (tokens + layers) * DIM;
    k = allocate_device((size_t)numbers * sizeof *k),
    v = allocate_device((size_t)numbers * sizeof *v);
    kept_o = allocate_device(rows * DIM * sizeof *kept_o),
    kept_lse = allocate_device(rows * sizeof *kept_lse);
    lse = allocate_device(rows * sizeof *lse),
    sums = allocate_device(lists * (size_t)tokens * sizeof *sums);
    indices = allocate_device(lists * (size_t)keep * sizeof *indices);
    counts = allocate_device(lists * sizeof *counts);
    bf16 *queries = allocate_device(rows * DIM * sizeof *queries);
    draw(k, numbers), draw(v, numbers), draw(queries, heads * tokens * DIM);

    printf("%d layers of %lld tokens, %lld heads, %lld lists: masks take %.3f MB of the device for "
           "%.3f, as bytes %.3f; outputs %.3f for %.3f; lse %.3f, images %.3f\n",
           layers, (long long)tokens, (long long)heads, (long long)lists,
           1e-6 * SLOTS * (double)sizes[BITS], 1e-6 * layers * (double)sizes[BITS],
           1e-6 * layers * (double)lists * (double)tokens, 1e-6 * SLOTS * (double)sizes[BASE_O],
           1e-6 * layers * (double)sizes[BASE_O],
           1e-6 * SLOTS * (double)(sizes[REFERENCE] + sizes[BASE_LSE]),
           1e-6 * (double)(tess_plan_image_size(dense_plan) + tess_plan_image_size(kept_plan)));
    const int same = same_as_resident(queries, cache_size);
    printf("%6s %10s %10s %10s %7s\n", "step", "ms", "layers", "copies", "hidden");
    timings_print(&kinds[SPARSE]); /* from what the full steps above left with the host */
    timings_print(&kinds[FULL]);

    tess_plan_free(dense_plan);
    tess_plan_free(kept_plan);
    for (int l = 0; l < layers; l++)
        release_pinned(stored[l]);
    release_pinned(stored);
    void *const memory[] = {workspace, dense_image, kept_image, slots[0], slots[1], states[0],
                            states[1], k,           v,          kept_o,   kept_lse, lse,
                            sums,      indices,     counts,     queries};
    for (size_t m = 0; m < sizeof memory / sizeof *memory; m++)
        release(memory[m]);
    return same ? EXIT_SUCCESS : EXIT_FAILURE;
}
