/* Writes what a run leaves, whole or not at all. */
#define _POSIX_C_SOURCE 200809L
#include "cli/attention_output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lab/fill/half.h"
#include "lab/files/output.h"
#include "io/npy.h"

/* The options that name the files, and the names of tensors within them. */
static const char *const option_names[OUTPUTS] = {"out", "lse", "dq", "dk", "dv"};
static const char *const tensor_names[OUTPUTS] = {"o", "lse", "dq", "dk", "dv"};

bool attention_output_check(const char *const names[OUTPUTS], struct reason *reason) {
    struct file_name files[OUTPUTS];
    for (int i = 0; i < OUTPUTS; i++) {
        struct lab_output probe; /* the folder is tried, nothing is left */
        char why[LAB_WHY];
        if (!names[i])
            continue;
        if (!file_name_parse(&files[i], names[i], reason))
            return false;
        if (lab_output_open(&probe, files[i].path, why) != 0)
            return reason_set(reason, "%s", why);
        lab_output_abandon(&probe);
        for (int j = 0; j < i; j++)
            if (names[j] && lab_output_same(files[j].path, files[i].path))
                return reason_set(reason, "--%s and --%s name the same file", option_names[j],
                                  option_names[i]);
    }
    return true;
}

/* bf16 as f32, for a format that lacks it; the caller frees it. */
static float *widen(const tess_tensor *view, int64_t count) {
    float *wide = malloc((size_t)count * sizeof *wide);
    for (int64_t i = 0; wide && i < count; i++)
        wide[i] = (float)lab_get(view->data, view->type, i);
    return wide;
}

/* Writes one tensor to an open file. errno says what went wrong. */
static bool write_tensor(FILE *file, const struct file_name *name, const tess_tensor *view,
                         int rank, int which) {
    static const enum element_type types[] = {
        [TESS_F32] = ELEMENT_F32, [TESS_F16] = ELEMENT_F16, [TESS_BF16] = ELEMENT_BF16};
    struct tensor tensor = {.type = types[view->type],
                            .rank = which == OUTPUT_LSE ? rank - 1 : rank,
                            .data = view->data};
    memcpy(tensor.shape, view->size + 4 - rank, (size_t)tensor.rank * sizeof tensor.shape[0]);
    tensor_measure(&tensor);
    if (name->format == FORMAT_SAFETENSORS) {
        struct named_tensor named = {name->tensor ? name->tensor : tensor_names[which], tensor};
        return safetensors_write(file, &named, 1, NULL);
    }
    if (tensor.type != ELEMENT_BF16)
        return npy_write(file, &tensor);
    float *wide = widen(view, (int64_t)(tensor.size / element_size(ELEMENT_BF16)));
    tensor.type = ELEMENT_F32;
    tensor.data = wide;
    tensor_measure(&tensor);
    bool written = wide && npy_write(file, &tensor);
    free(wide);
    return written;
}

/* Files cannot appear at once. Of those before file `failed`, what stood nowhere goes again; where an
 * older one stood it is gone, and the new one, which is whole, stays. */
static bool take_back(const struct attention_output *output, const struct file_name *names,
                      const bool *stood, int failed, const char *why, struct reason *reason) {
    char kept[96] = "";
    size_t used = 0;
    for (int i = 0; i < failed; i++) {
        if (!output->name[i])
            continue;
        if (!stood[i])
            remove(names[i].path);
        else
            used += (size_t)snprintf(kept + used, sizeof kept - used, "; --%s is written",
                                     option_names[i]);
    }
    return reason_set(reason, "%s%s", why, kept);
}

static bool write_all(const struct attention_output *output, struct lab_output files[OUTPUTS],
                      struct reason *reason) {
    char why[LAB_WHY];
    struct file_name names[OUTPUTS];
    bool stood[OUTPUTS] = {false};
    for (int i = 0; i < OUTPUTS; i++) {
        if (!output->name[i])
            continue;
        if (!file_name_parse(&names[i], output->name[i], reason))
            return false;
        if (lab_output_open(&files[i], names[i].path, why) != 0)
            return reason_set(reason, "%s", why);
        errno = 0;
        if (!write_tensor(files[i].file, &names[i], &output->view[i], output->rank, i))
            return reason_set(reason, "%s: %s", output->name[i],
                              errno ? strerror(errno) : "cannot be written");
        stood[i] = access(names[i].path, F_OK) == 0;
    }
    for (int i = 0; i < OUTPUTS; i++)
        if (output->name[i] && lab_output_commit(&files[i], why) != 0)
            return take_back(output, names, stood, i, why, reason);
    return true;
}

bool attention_output_write(const struct attention_output *output, struct reason *reason) {
    struct lab_output files[OUTPUTS] = {{0}};
    bool written = write_all(output, files, reason);
    for (int i = 0; i < OUTPUTS; i++)
        lab_output_abandon(&files[i]);
    return written;
}
