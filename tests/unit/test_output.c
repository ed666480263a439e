/*
 * Output files: they appear whole or not at all, also when the program is ended.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/attention_output.h"
#include "lab/files/output.h"

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
    assert_int_equal(rmdir(folder), 0); /* the folder is empty */
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

/* A link stays a link, and what it leads to keeps its permissions. */
static void test_output_link(void **state) {
    (void)state;
    char folder[] = "/tmp/tessera-files-XXXXXX", file[64], link[64], nowhere[64], why[LAB_WHY];
    struct lab_output output;
    struct stat s;
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/file", folder);
    snprintf(link, sizeof link, "%s/link", folder);
    snprintf(nowhere, sizeof nowhere, "%s/nowhere", folder);
    fclose(fopen(file, "w"));
    assert_int_equal(chmod(file, 0600), 0);
    assert_int_equal(symlink("file", link), 0);
    assert_int_equal(symlink("none", nowhere), 0);
    assert_int_equal(lab_output_open(&output, link, why), 0);
    fputs("new", output.file);
    assert_int_equal(lab_output_commit(&output, why), 0);
    assert_true(lstat(link, &s) == 0 && S_ISLNK(s.st_mode));
    assert_true(stat(file, &s) == 0 && s.st_size == 3 && (s.st_mode & 0777) == 0600);
    assert_int_equal(lab_output_open(&output, nowhere, why), -1);
    assert_non_null(strstr(why, "leads nowhere"));
    assert_true(unlink(file) == 0 && unlink(link) == 0 && unlink(nowhere) == 0);
    assert_int_equal(rmdir(folder), 0);
}

/* The temporary name is no longer than a name may be. */
static void test_output_long_name(void **state) {
    (void)state;
    char folder[] = "/tmp/tessera-files-XXXXXX", path[320], why[LAB_WHY] = "";
    struct lab_output output;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/%0255d", folder, 1);
    assert_int_equal(lab_output_open(&output, path, why), 0);
    assert_int_equal(lab_output_commit(&output, why), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

static int renames_left = -1; /* until one is refused; negative: none is */

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to) {
    if (renames_left-- != 0)
        return __real_rename(from, to);
    errno = EIO;
    return -1;
}

static void attention_write(const char *o, const char *lse, const char *words) {
    float one[1] = {1};
    struct attention_output output = {.rank = 2, .name = {o, lse}};
    struct reason reason = {""};
    output.view[OUTPUT_O] = tess_tensor_bhnd(one, TESS_F32, 1, 1, 1, 1);
    output.view[OUTPUT_LSE] = output.view[OUTPUT_O];
    assert_int_equal(attention_output_write(&output, &reason), words == NULL);
    if (words)
        assert_non_null(strstr(reason.text, words));
}

/* When the second of two files does not appear, the first goes; but not where an older one stood. */
static void test_output_pair(void **state) {
    (void)state;
    char folder[] = "/tmp/tessera-files-XXXXXX", o[64], lse[64];
    assert_non_null(mkdtemp(folder));
    snprintf(o, sizeof o, "%s/o.npy", folder);
    snprintf(lse, sizeof lse, "%s/l.npy", folder);
    renames_left = 1;
    attention_write(o, lse, "l.npy");
    assert_true(access(o, F_OK) && access(lse, F_OK));
    renames_left = -1;
    attention_write(o, NULL, NULL);
    renames_left = 1;
    attention_write(o, lse, "--out is written");
    assert_true(access(o, F_OK) == 0 && access(lse, F_OK));
    renames_left = -1;
    attention_write(o, lse, NULL);
    assert_true(unlink(o) == 0 && unlink(lse) == 0);
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
        cmocka_unit_test(test_output_whole),     cmocka_unit_test(test_output_interrupted),
        cmocka_unit_test(test_output_too_large), cmocka_unit_test(test_output_link),
        cmocka_unit_test(test_output_long_name), cmocka_unit_test(test_output_pair),
        cmocka_unit_test(test_output_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
