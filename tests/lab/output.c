/* Output files that appear whole or not at all. */
#define _POSIX_C_SOURCE 200809L
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int refuse(char why[LAB_WHY], const char *path, const char *reason) {
    snprintf(why, LAB_WHY, "cannot write '%.200s': %s", path, reason);
    return -1;
}

static int folder_stands(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return 1;
    char *folder = malloc((size_t)(slash - path) + 1);
    if (!folder)
        return 0;
    memcpy(folder, path, (size_t)(slash - path));
    folder[slash - path] = '\0';
    struct stat s;
    int stands = stat(folder, &s) == 0 && S_ISDIR(s.st_mode);
    free(folder);
    return stands;
}

int lab_output_open(struct lab_output *output, const char *path, char why[LAB_WHY]) {
    memset(output, 0, sizeof *output);
    struct stat s;
    if (*path == '\0')
        return refuse(why, path, "the name is empty");
    if (!folder_stands(path))
        return refuse(why, path, "its folder does not exist");
    if (stat(path, &s) == 0 && !S_ISREG(s.st_mode))
        return refuse(why, path, S_ISDIR(s.st_mode) ? "it is a folder" : "it is no plain file");

    size_t length = strlen(path);
    output->path = malloc(length + 1);
    output->temporary = malloc(length + 48);
    if (!output->path || !output->temporary) {
        lab_output_abandon(output);
        return refuse(why, path, "out of memory");
    }
    memcpy(output->path, path, length + 1);
    int descriptor = -1;
    for (int attempt = 0; descriptor < 0 && attempt < 100; attempt++) {
        snprintf(output->temporary, length + 48, "%s.%ld-%d.part", path, (long)getpid(), attempt);
        descriptor = open(output->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor < 0 && errno != EEXIST)
            break;
    }
    if (descriptor < 0) {
        refuse(why, path, strerror(errno));
        free(output->temporary);
        output->temporary = NULL;
        lab_output_abandon(output);
        return -1;
    }
    output->file = fdopen(descriptor, "wb");
    if (!output->file) {
        close(descriptor);
        lab_output_abandon(output);
        return refuse(why, path, "out of memory");
    }
    return 0;
}

int lab_output_commit(struct lab_output *output, char why[LAB_WHY]) {
    int failed = ferror(output->file) || fflush(output->file);
    failed |= fclose(output->file) != 0;
    output->file = NULL;
    if (failed || rename(output->temporary, output->path)) {
        refuse(why, output->path, failed ? "the disk refused the data" : strerror(errno));
        lab_output_abandon(output);
        return -1;
    }
    free(output->temporary);
    output->temporary = NULL;
    lab_output_abandon(output);
    return 0;
}

void lab_output_abandon(struct lab_output *output) {
    if (output->file)
        fclose(output->file);
    if (output->temporary)
        unlink(output->temporary);
    free(output->temporary);
    free(output->path);
    memset(output, 0, sizeof *output);
}
