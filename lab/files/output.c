/* Output files that appear whole or not at all. */
#define _XOPEN_SOURCE 700
#include "lab/files/output.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPEN_MOST = 8, NAME_MOST = 255 }; /* bytes of a file's name */

/* The temporary files that a signal must remove. It is taken by the thread that writes: the main
 * one, which POSIX systems prefer. */
static char *volatile open_names[OPEN_MOST];

static void remove_and_end(int number) {
    for (int i = 0; i < OPEN_MOST; i++)
        if (open_names[i])
            unlink(open_names[i]);
    raise(number); /* the default action, which SA_RESETHAND restored, follows the return */
}

/* Signals that are ignored stay ignored. */
static void watch_signals(void) {
    static const int numbers[] = {SIGHUP, SIGINT, SIGTERM, SIGPIPE, SIGXFSZ, SIGXCPU};
    struct sigaction action, old;
    memset(&action, 0, sizeof action);
    action.sa_handler = remove_and_end;
    action.sa_flags = (int)SA_RESETHAND;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL)
            sigaction(numbers[i], &action, NULL);
}

/* Puts `with` in the place of `name`; -1 when there is no such place. */
static int replace_name(char *name, char *with) {
    for (int i = 0; i < OPEN_MOST; i++)
        if (open_names[i] == name) {
            open_names[i] = with;
            return 0;
        }
    return -1;
}

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

/* The file that a path names, through links where it stands; the caller frees it. */
static char *target_of(const char *path, int stands) {
    if (stands)
        return realpath(path, NULL);
    char *copy = malloc(strlen(path) + 1);
    return copy ? strcpy(copy, path) : NULL;
}

int lab_output_open(struct lab_output *output, const char *path, char why[LAB_WHY]) {
    memset(output, 0, sizeof *output);
    struct stat s;
    if (*path == '\0')
        return refuse(why, path, "the name is empty");
    if (!folder_stands(path))
        return refuse(why, path, "its folder does not exist");
    const int stands = stat(path, &s) == 0;
    if (stands && !S_ISREG(s.st_mode))
        return refuse(why, path, S_ISDIR(s.st_mode) ? "it is a folder" : "it is no plain file");
    if (!stands && lstat(path, &s) == 0)
        return refuse(why, path, "it is a link that leads nowhere");

    output->path = target_of(path, stands);
    const char *name = output->path ? strrchr(output->path, '/') : NULL;
    const int folder = name ? (int)(name - output->path) + 1 : 0;
    const size_t length = (size_t)folder + NAME_MOST + 1;
    output->temporary = calloc(length, 1);
    if (!output->path || !output->temporary) {
        lab_output_abandon(output);
        return refuse(why, path, "out of memory");
    }
    watch_signals();
    if (replace_name(NULL, output->temporary)) {
        lab_output_abandon(output);
        return refuse(why, path, "too many files are open");
    }
    int descriptor = -1;
    for (int attempt = 0; descriptor < 0 && attempt < 100; attempt++) {
        snprintf(output->temporary, length, "%.*s%.*s.%ld-%d.part", folder, output->path,
                 NAME_MOST - 32, output->path + folder, (long)getpid(), attempt);
        descriptor = open(output->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor < 0 && errno != EEXIST)
            break;
    }
    if (descriptor < 0) {
        refuse(why, path, strerror(errno));
        output->temporary[0] = '\0';
        lab_output_abandon(output);
        return -1;
    }
    if (stands)
        fchmod(descriptor, s.st_mode & 07777); /* best effort: not every file system has modes */
    output->file = fdopen(descriptor, "wb");
    if (!output->file) {
        close(descriptor);
        lab_output_abandon(output);
        return refuse(why, path, "out of memory");
    }
    return 0;
}

/* The path of a file that need not exist, with its folder resolved; the caller frees it. */
static char *resolve(const char *path) {
    char *whole = realpath(path, NULL);
    if (whole)
        return whole;
    const char *slash = strrchr(path, '/');
    char folder[4096] = ".";
    if (slash)
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - path + 1), path);
    char *resolved = realpath(folder, NULL);
    if (!resolved)
        return NULL;
    const char *base = slash ? slash + 1 : path;
    size_t size = strlen(resolved) + strlen(base) + 2;
    whole = malloc(size);
    if (whole)
        snprintf(whole, size, "%s/%s", resolved, base);
    free(resolved);
    return whole;
}

int lab_output_same(const char *a, const char *b) {
    char *x = resolve(a), *y = resolve(b);
    int same = x && y && strcmp(x, y) == 0;
    free(x);
    free(y);
    return same;
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
    output->temporary[0] = '\0';
    lab_output_abandon(output);
    return 0;
}

void lab_output_abandon(struct lab_output *output) {
    if (output->file)
        fclose(output->file);
    if (output->temporary) {
        if (output->temporary[0])
            unlink(output->temporary);
        replace_name(output->temporary, NULL);
    }
    free(output->temporary);
    free(output->path);
    memset(output, 0, sizeof *output);
}
