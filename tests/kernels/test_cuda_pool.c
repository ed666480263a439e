/* Pooled blocks, their scores, and columns as bytes, bits and lists, on a CUDA device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lab/device/device.h"
#include "support/on_device.h"
#include "support/pooling.h"

static void blocks_are_pooled(void **state) {
    (void)state;
    pools_are_right(TESS_CUDA);
}
static void pooled_keys_grow(void **state) {
    (void)state;
    pools_follow_a_growing_cache(TESS_CUDA);
}
static void blocks_are_scored(void **state) {
    (void)state;
    scores_are_right(TESS_CUDA);
}
static void columns_keep_what_they_list(void **state) {
    (void)state;
    columns_are_right(TESS_CUDA);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_pooled),
        cmocka_unit_test(pooled_keys_grow),
        cmocka_unit_test(blocks_are_scored),
        cmocka_unit_test(columns_keep_what_they_list),
    };
    const int absent = device_absent();
    return absent ? absent : cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
