/* One measurement: a case on one backend and pipeline, checked and timed. */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include "lab/run/setting.h"
#include "measure/floor.h"
#include "measure/method.h"

/* A case's setting, which all its measurements share. */
struct bench_setting {
    struct lab_setting lab;
    struct lab_tensor tokens, weights; /* layer: [n, d], and [3, d, d] for Q, K and V */
    const char *asked;                 /* the line of a sweep that asks for it; the caller's */
};

/* Answers 0, or -1 with the reason; bench_setting_free in either case. */
int bench_setting_make(struct bench_setting *s, const struct lab_case *c,
                       const struct bench_method *method, const char *asked, char why[LAB_WHY]);
void bench_setting_free(struct bench_setting *s);

/* Before a run that is checked: outputs become NaN, so that an earlier run's cannot pass for an answer.
 * Where a layer is run, Q, K and V become the tokens. */
void bench_setting_spoil(struct bench_setting *s, int layer);

enum { BENCH_STAGES = 3 }; /* sddmm, softmax, spmm, in this order in arrays */

/* A row of the results. Numbers that were not measured are NAN. */
struct bench_result {
    struct lab_case c; /* ours: backend and pipeline filled in */
    const char *asked; /* the setting's */
    const char *pipeline;
    const char *timing;
    char kernel[240]; /* names of several passes or stages are joined by '+' */
    char device[128];
    char note[LAB_WHY];        /* why there are no times; "" when there are */
    double ms, ms_min, ms_max; /* median, fastest, slowest of the runs */
    double plan_ms, upload_ms; /* CUDA: upload_ms fills the image */
    double predicted_ms;       /* by the plan; on the CPU of one thread, so known for that alone */
    int64_t runs, pairs;
    double tflops; /* useful FLOPs over the median: bench_flops */
    /* Lists on the device: tess_select, of those that are chosen; fills alone; all of it and the run. */
    double select_ms, fill_ms, step_ms;
    const char *step; /* a step's way: direct, from the lists, or filled; NULL: there is none */
    double stage_ms[BENCH_STAGES];
    double projection_ms, layer_ms; /* projections alone; with the attention after them */
    double over_floor, stage_over_floor[BENCH_STAGES];
    double speedup, layer_speedup; /* a baseline's times over ours */
    double copy_gbs, cache_gbs, matmul_tflops;
    double peak_tflops; /* CPU: bench_peak_tflops of the kernel's level */
    double host_us;     /* CUDA: bench_time_host */
    double noise;       /* bench_times */
    struct bench_throttle throttle;
};
/* Useful FLOPs of a case with so many attended pairs: 2 (d_qk + d_v) a pair, and of a backward
 * 2 (3 d_qk + 2 d_v), which is five products. */
double bench_flops(const struct lab_case *c, int64_t pairs);

void bench_result_make(struct bench_result *r, const struct bench_setting *s);
void bench_result_take(struct bench_result *r, const struct bench_times *times);

enum { BENCH_MLP_TENSORS = 3 };

/* A setting's tensors in the memory of a backend, and what a plan's runs are handed. */
struct bench_place {
    struct lab_mirror tensors;
    tess_tensor q, k, v, o, lse, tokens, weights;
    tess_tensor reference, sums;                          /* column sums */
    tess_tensor d_o, d_lse, o_rest, delta, d_q, d_k, d_v; /* backward */
    tess_tensor views[LAB_CACHE_VIEWS];                   /* second views and scales of caches */
    tess_tensor base[2];                                  /* o, lse */
    tess_tensor mlp[BENCH_MLP_TENSORS];                   /* biases, cached activations */
    void *workspace, *image;
    float *scores;
    tess_arguments arguments;
};

/* plan NULL: the tensors alone; scores: room for the BCSR scores too. Answers NULL, or why not;
 * bench_place_free in either case. */
const char *bench_place_make(struct bench_place *p, const struct bench_setting *s,
                             const tess_plan *plan, tess_backend backend, int scores);
void bench_place_free(struct bench_place *p);

/* Measures what the method asks for; limits are the CUDA device's. Answers BENCH_DONE; BENCH_BAD
 * with the reason; BENCH_FAILED with the reason when the answer is wrong; or BENCH_REFUSED with the
 * reason when the kernel that the case names does not do this. */
enum { BENCH_REFUSED = -1 };
int bench_measure(struct bench_result *result, struct bench_setting *s, tess_backend backend,
                  tess_pipeline pipeline, const struct bench_method *method,
                  const struct bench_limits *limits, char why[LAB_WHY]);

#endif
