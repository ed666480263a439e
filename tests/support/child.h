/* Checks in a child of little memory. */
#ifndef TESTS_CHILD_H
#define TESTS_CHILD_H

#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CHILD_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CHILD_SANITIZED 1
#endif

/* Whether check(), on one thread, answers 0 in a child that may take so many bytes; sanitizers need
 * all. */
static inline int limited_holds(int (*check)(void), rlim_t bytes) {
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
#ifndef CHILD_SANITIZED
        const struct rlimit limit = {bytes, bytes};
        if (setrlimit(RLIMIT_DATA, &limit))
            _exit(2);
#endif
        (void)bytes;
        _exit(check());
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

#endif
