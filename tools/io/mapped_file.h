/* A whole file, read-only in memory. A file that another program shortens meanwhile is not guarded
 * against. */
#ifndef TOOLS_MAPPED_FILE_H
#define TOOLS_MAPPED_FILE_H

#include <stddef.h>

#include "io/report.h"

struct mapped_file {
    void *data; /* NULL for an empty file */
    size_t size;
};

bool mapped_file_open(struct mapped_file *file, const char *path, struct reason *reason);
void mapped_file_close(struct mapped_file *file);

#endif
