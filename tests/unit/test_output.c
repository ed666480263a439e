/*
 * Output files: they appear whole or not at all, also when the program is ended.
 */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "lab/output.h"

static void test_output_whole(void **state) {
    (void)state;
    char folder[] = "/tmp/tessera-lab-XXXXXX", path[64], why[LAB_WHY] = "", line[16] = "";
    struct lab_output out;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/x", folder);

    assert_int_equal(lab_output_open(&out, path, why), 0);
    fputs("partial", out.file);
    assert_int_equal(access(path, F_OK), -1);
    lab_output_abandon(&out);
    assert_int_equal(access(path, F_OK), -1);

    assert_int_equal(lab_output_open(&out, path, why), 0);
    fputs("whole", out.file);
    assert_int_equal(lab_output_commit(&out, why), 0);
    lab_output_abandon(&out);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    fclose(file);
    assert_string_equal(line, "whole");

    assert_int_equal(lab_output_open(&out, folder, why), -1);
    assert_non_null(strstr(why, "folder"));
    assert_int_equal(lab_output_open(&out, "/dev/null", why), -1);
    assert_int_equal(lab_output_open(&out, "", why), -1);
    strcat(path, "/y");
    assert_int_equal(lab_output_open(&out, path, why), -1);
    assert_non_null(strstr(why, "does not exist"));
    path[strlen(path) - 2] = '\0';
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0); /* nothing else was left */
}

/* A child that dies of a signal while two files are being written. */
static void die_writing(const char *folder, int number) {
    struct lab_output a, b;
    char path[128], why[LAB_WHY];
    snprintf(path, sizeof path, "%s/a", folder);
    int failed = lab_output_open(&a, path, why);
    snprintf(path, sizeof path, "%s/b", folder);
    failed |= lab_output_open(&b, path, why);
    if (!failed) {
        fputs("half", a.file);
        fflush(a.file);
        raise(number);
    }
    _exit(1);
}

static void test_output_interrupted(void **state) {
    (void)state;
    static const int numbers[] = {SIGHUP, SIGINT, SIGTERM, SIGPIPE, SIGXFSZ};
    char folder[] = "/tmp/tessera-files-XXXXXX";
    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        pid_t child = fork();
        int status = 0;
        assert_true(child >= 0);
        if (child == 0) {
            signal(numbers[i], SIG_DFL);
            die_writing(folder, numbers[i]);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), numbers[i]);
    }
    assert_int_equal(rmdir(folder), 0); /* it is empty */
}

/* A file that may not grow so large is refused in words where the signal is ignored. */
static void test_output_too_large(void **state) {
    (void)state;
    char folder[] = "/tmp/tessera-files-XXXXXX", path[64], why[LAB_WHY] = "";
    struct rlimit limit, old;
    struct lab_output output;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/a", folder);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old;
    limit.rlim_cur = 4096;
    assert_int_equal(lab_output_open(&output, path, why), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (int i = 0; i < 10000; i++)
        putc('x', output.file);
    int status = lab_output_commit(&output, why);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(status, -1);
    assert_non_null(strstr(why, "disk"));
    assert_int_equal(rmdir(folder), 0);
}

static void test_output_same(void **state) {
    (void)state;
    assert_true(lab_output_same("/tmp/x-none", "/tmp/../tmp/./x-none"));
    assert_true(lab_output_same("x-none", "./x-none"));
    assert_false(lab_output_same("/tmp/x-none", "/tmp/y-none"));
    assert_false(lab_output_same("/none/x", "/none/x")); /* no such folder: refused elsewhere */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_output_whole),
        cmocka_unit_test(test_output_interrupted),
        cmocka_unit_test(test_output_too_large),
        cmocka_unit_test(test_output_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
