/* Runs on CUDA that start from a base, and what is left of a merge. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lab/device/device.h"
#include "support/basing.h"
#include "support/merging.h"
#include "support/on_device.h"

static void cases(void **state) {
    (void)state;
    cases_are_right("tests/cases/base.txt", TESS_CUDA);
    cases_are_right("tests/cases/cuda_base.txt", TESS_CUDA);
}

static void complements(void **state) {
    (void)state;
    lists_join_their_complements(TESS_CUDA);
}

static void deltas(void **state) {
    (void)state;
    deltas_are_dense_when_cached(TESS_CUDA);
}

static void rests(void **state) {
    (void)state;
    rests_are_right(TESS_CUDA);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cases),
        cmocka_unit_test(complements),
        cmocka_unit_test(deltas),
        cmocka_unit_test(rests),
    };
    const int absent = device_absent();
    return absent ? absent : cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
