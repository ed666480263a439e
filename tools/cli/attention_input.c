/* Loads and converts inputs. */
#include "cli/attention_input.h"

#include <stdlib.h>
#include <string.h>

#include "lab/fill/half.h"

/* lacks: axes that the tensor has less than Q. */
static bool check_tensor(const struct tensor *tensor, int lacks, struct reason *reason) {
    char shape[SHAPE_TEXT];
    if (element_storage(tensor->type) < 0 && tensor->type != ELEMENT_F64)
        return reason_set(reason, "elements are %s; f16, bf16, f32 or f64 are needed",
                          element_name(tensor->type));
    if (tensor->rank + lacks < 2 || tensor->rank + lacks > 4)
        return reason_set(reason, "shape %s; %s is needed", tensor_shape_text(tensor, shape),
                          lacks ? "[B,H,N], [H,N] or [N]" : "[B,H,N,D], [H,N,D] or [N,D]");
    if (tensor->size == 0)
        return reason_set(reason, "shape %s holds no elements", tensor_shape_text(tensor, shape));
    return true;
}

/* Element by element through double: exact in, rounded once out. */
static bool convert(struct attention_input *input, int i, tess_type type, struct reason *reason) {
    const struct tensor *tensor = &input->file[i].tensor;
    int64_t count = (int64_t)(tensor->size / element_size(tensor->type));
    void *to = malloc((size_t)count * tess_type_size(type));
    if (!to)
        return reason_set(reason, "out of memory for %lld elements", (long long)count);
    for (int64_t e = 0; e < count; e++)
        lab_put(to, type, e, tensor_get(tensor, e));
    input->converted[i] = to;
    return true;
}

static bool make_view(struct attention_input *input, int i, tess_type type, struct reason *reason) {
    const struct tensor *tensor = &input->file[i].tensor;
    if (element_storage(tensor->type) != (int)type && !convert(input, i, type, reason))
        return false;
    int64_t size[4] = {1, 1, 1, 1};
    memcpy(size + 4 - input->rank, tensor->shape, (size_t)tensor->rank * sizeof size[0]);
    const void *data = input->converted[i] ? input->converted[i] : tensor->data;
    input->view[i] = tess_tensor_bhnd(data, type, size[0], size[1], size[2], size[3]);
    return true;
}

/* Whether input i is K or V of 16 bits beside Q of f32. */
static bool is_stored(const struct attention_input *input, int i) {
    const int storage = element_storage(input->file[i].tensor.type);
    return (i == INPUT_K || i == INPUT_V) && input->file[INPUT_Q].tensor.type == ELEMENT_F32 &&
           (storage == TESS_F16 || storage == TESS_BF16);
}

/* Type that input i takes beside a computation of this type. stays: K and V of 16 bits may stay what they
 * are. */
static tess_type type_of(const struct attention_input *input, int i, tess_type type, bool stays) {
    if (i == INPUT_LSE)
        return TESS_F32;
    if (stays && is_stored(input, i))
        return (tess_type)element_storage(input->file[i].tensor.type);
    return i == INPUT_O && element_storage(input->file[i].tensor.type) != (int)type ? TESS_F32
                                                                                    : type;
}

static bool open_all(struct attention_input *input, const char *const names[INPUTS], int dtype,
                     struct reason *reason) {
    struct reason why;
    for (int i = 0; i < INPUTS; i++) {
        if (!names[i])
            continue;
        if (!tensor_file_open(&input->file[i], names[i], reason))
            return false;
        if (!check_tensor(&input->file[i].tensor, i == INPUT_LSE, &why))
            return reason_set(reason, "%.200s: %.270s", names[i], why.text);
    }
    const struct tensor *q = &input->file[INPUT_Q].tensor;
    const bool stays = dtype < 0 && !names[INPUT_DO]; /* forward, and nothing is converted */
    for (int i = INPUT_K; i < INPUTS; i++) {
        const struct tensor *t = &input->file[i].tensor;
        if (names[i] && t->rank != q->rank - (i == INPUT_LSE))
            return reason_set(reason, "%.200s has %d axes, %.200s has %d", names[INPUT_Q], q->rank,
                              names[i], t->rank);
        const int same = t->type == q->type || (i == INPUT_DO && q->type == ELEMENT_F64 &&
                                                t->type == ELEMENT_F32); /* which f64 becomes */
        if (names[i] && dtype < 0 && i <= INPUT_DO && !same && !(stays && is_stored(input, i)))
            return reason_set(reason, "%.180s is %s, %.180s is %s; --dtype converts them",
                              names[INPUT_Q], element_name(q->type), names[i],
                              element_name(t->type));
    }
    input->rank = q->rank;
    int own = element_storage(q->type);
    tess_type type = (tess_type)(dtype >= 0 ? dtype : own >= 0 ? own : TESS_F32);
    for (int i = 0; i < INPUTS; i++)
        if (names[i] && !make_view(input, i, type_of(input, i, type, stays), reason))
            return false;
    return true;
}

bool attention_input_open(struct attention_input *input, const char *const names[INPUTS], int dtype,
                          struct reason *reason) {
    *input = (struct attention_input){0};
    if (open_all(input, names, dtype, reason))
        return true;
    attention_input_close(input);
    return false;
}

void attention_input_close(struct attention_input *input) {
    for (int i = 0; i < INPUTS; i++) {
        tensor_file_close(&input->file[i]);
        free(input->converted[i]);
    }
    *input = (struct attention_input){0};
}
