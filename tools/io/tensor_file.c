/* Opens tensors by name. */
#include "io/tensor_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/npy.h"

static bool ends_with(const char *text, size_t length, const char *end) {
    size_t tail = strlen(end);
    return length > tail && memcmp(text + length - tail, end, tail) == 0;
}

bool file_name_parse(struct file_name *name, const char *text, struct reason *reason) {
    size_t length = strlen(text);
    const char *colon = strrchr(text, ':');
    name->tensor = NULL;
    if (colon && ends_with(text, (size_t)(colon - text), ".safetensors")) {
        name->format = FORMAT_SAFETENSORS;
        name->tensor = colon + 1;
        length = (size_t)(colon - text);
        if (!*name->tensor)
            return reason_set(reason, "%s: no tensor is named after the ':'", text);
    } else if (ends_with(text, length, ".safetensors")) {
        name->format = FORMAT_SAFETENSORS;
    } else if (ends_with(text, length, ".npy")) {
        name->format = FORMAT_NPY;
    } else {
        return reason_set(reason, "%s: the name ends neither in .npy nor in .safetensors[:NAME]",
                          text);
    }
    if (length >= sizeof name->path)
        return reason_set(reason, "a file name is longer than %zu bytes", sizeof name->path - 1);
    memcpy(name->path, text, length);
    name->path[length] = '\0';
    return true;
}

/* No tensor has the name: which there are. */
static bool refuse_name(const struct safetensors *all, const char *name, struct reason *reason) {
    char names[200] = "";
    for (size_t i = 0, used = 0; i < all->count && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "",
                                 all->tensors[i].name);
    return reason_set(reason, "no tensor is named %.60s; there are %s", name, names);
}

static bool find_tensor(struct tensor_file *file, const char *name, struct reason *reason) {
    const struct safetensors *all = &file->safetensors;
    if (!name && all->count != 1)
        return reason_set(reason, "the file holds %zu tensors; name one as FILE:NAME", all->count);
    const struct tensor *tensor = name ? safetensors_find(all, name) : &all->tensors[0].tensor;
    if (!tensor)
        return refuse_name(all, name, reason);
    file->tensor = *tensor;
    return true;
}

bool tensor_file_open(struct tensor_file *file, const char *text, struct reason *reason) {
    struct file_name name;
    struct reason why;
    *file = (struct tensor_file){0};
    if (!file_name_parse(&name, text, reason) || !mapped_file_open(&file->map, name.path, reason))
        return false;
    bool open = name.format == FORMAT_NPY
                    ? npy_parse(&file->tensor, file->map.data, file->map.size, &why)
                    : safetensors_parse(&file->safetensors, file->map.data, file->map.size, &why) &&
                          find_tensor(file, name.tensor, &why);
    if (!open || !tensor_align(&file->tensor, &file->copy, &why)) {
        tensor_file_close(file);
        return reason_set(reason, "%.200s: %.270s", text, why.text);
    }
    return true;
}

void tensor_file_close(struct tensor_file *file) {
    safetensors_free(&file->safetensors);
    mapped_file_close(&file->map);
    free(file->copy);
    *file = (struct tensor_file){0};
}
