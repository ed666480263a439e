/* Maps files, so that inputs of gigabytes cost no copy. */
#define _POSIX_C_SOURCE 200809L
#include "io/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool map(struct mapped_file *file, int descriptor, const char *path, struct reason *reason) {
    struct stat status;
    if (fstat(descriptor, &status) != 0)
        return reason_set(reason, "%s: %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return reason_set(reason, "%s: not a regular file", path);
    if (status.st_size == 0)
        return true;
    file->size = (size_t)status.st_size;
    file->data = mmap(NULL, file->size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (file->data == MAP_FAILED) {
        *file = (struct mapped_file){0};
        return reason_set(reason, "%s: cannot be mapped: %s", path, strerror(errno));
    }
    return true;
}

bool mapped_file_open(struct mapped_file *file, const char *path, struct reason *reason) {
    *file = (struct mapped_file){0};
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* never wait for a FIFO */
    if (descriptor < 0)
        return reason_set(reason, "%s: %s", path, strerror(errno));
    bool mapped = map(file, descriptor, path, reason);
    close(descriptor);
    return mapped;
}

void mapped_file_close(struct mapped_file *file) {
    if (file->data)
        munmap(file->data, file->size);
    *file = (struct mapped_file){0};
}
