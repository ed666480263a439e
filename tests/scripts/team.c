/* Every parallel region is opened, however small its work: tests of what threads might break are
 * linked with this file and -Wl,--wrap=threads_pay (src/base/threads.h). */
int __wrap_threads_pay(double seconds);

int __wrap_threads_pay(double seconds) {
    (void)seconds;
    return 1;
}
