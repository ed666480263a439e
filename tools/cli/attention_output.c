/* Writes O and LSE, whole or not at all. */
#define _POSIX_C_SOURCE 200809L
#include "cli/attention_output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lab/half.h"
#include "lab/output.h"
#include "io/npy.h"

bool attention_output_check(const char *const names[OUTPUTS], struct reason *reason) {
    struct file_name files[OUTPUTS];
    for (int i = 0; i < OUTPUTS && names[i]; i++) {
        struct lab_output probe; /* the folder is tried, nothing is left */
        char why[LAB_WHY];
        if (!file_name_parse(&files[i], names[i], reason))
            return false;
        if (lab_output_open(&probe, files[i].path, why) != 0)
            return reason_set(reason, "%s", why);
        lab_output_abandon(&probe);
    }
    if (names[OUTPUT_LSE] && lab_output_same(files[OUTPUT_O].path, files[OUTPUT_LSE].path))
        return reason_set(reason, "--out and --lse name the same file");
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
    static const char *const default_names[OUTPUTS] = {"o", "lse"};
    struct tensor tensor = {.type = types[view->type],
                            .rank = which == OUTPUT_LSE ? rank - 1 : rank,
                            .data = view->data};
    memcpy(tensor.shape, view->size + 4 - rank, (size_t)tensor.rank * sizeof tensor.shape[0]);
    tensor_measure(&tensor);
    if (name->format == FORMAT_SAFETENSORS) {
        struct named_tensor named = {name->tensor ? name->tensor : default_names[which], tensor};
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

static bool write_all(const struct attention_output *output, struct lab_output files[OUTPUTS],
                      struct reason *reason) {
    char why[LAB_WHY];
    struct file_name names[OUTPUTS];
    for (int i = 0; i < OUTPUTS && output->name[i]; i++) {
        if (!file_name_parse(&names[i], output->name[i], reason))
            return false;
        if (lab_output_open(&files[i], names[i].path, why) != 0)
            return reason_set(reason, "%s", why);
        errno = 0;
        if (!write_tensor(files[i].file, &names[i], &output->view[i], output->rank, i))
            return reason_set(reason, "%s: %s", output->name[i],
                              errno ? strerror(errno) : "cannot be written");
    }
    /* Two files cannot appear at once. O goes again where none stood; else an older one is gone, and
     * the new one, which is whole, stays. */
    const bool stood = access(names[OUTPUT_O].path, F_OK) == 0;
    for (int i = 0; i < OUTPUTS && output->name[i]; i++)
        if (lab_output_commit(&files[i], why) != 0) {
            if (i == OUTPUT_LSE && !stood)
                remove(names[OUTPUT_O].path);
            return reason_set(reason, "%s%s", why,
                              i == OUTPUT_LSE && stood ? "; --out is written" : "");
        }
    return true;
}

bool attention_output_write(const struct attention_output *output, struct reason *reason) {
    struct lab_output files[OUTPUTS] = {{0}};
    bool written = write_all(output, files, reason);
    for (int i = 0; i < OUTPUTS; i++)
        lab_output_abandon(&files[i]);
    return written;
}
