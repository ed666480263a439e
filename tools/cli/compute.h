/* Attention or its backward on tensors in memory, as the options of `tessera run` say. */
#ifndef TOOLS_COMPUTE_H
#define TOOLS_COMPUTE_H

#include "cli/attention_input.h"
#include "cli/attention_output.h"
#include "cli/modifier_options.h"

enum { BACKEND_AUTO = -1, PIPELINE_ORACLE = 2 };

struct compute_options {
    int backend, pipeline; /* a tess_backend or BACKEND_AUTO, a tess_pipeline or PIPELINE_ORACLE */
    double scale;
    int64_t threads;
    tess_operation operation;
    bool verbose; /* one line on stderr, of what ran and how long it took */
    const struct modifier_options *modifiers;
    const tess_device_pattern *topk; /* the fused pipeline reserves and fills; NULL: it plans */
};

/* Fills those views of *output that have data. */
bool compute_run(const struct compute_options *options, const struct attention_input *input,
                 const tess_pattern *pattern, const struct lab_modifiers *modifiers,
                 struct attention_output *output, struct reason *reason);

#endif
