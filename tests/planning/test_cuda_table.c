/* Facts that the table tells planning of CUDA's kernels are those of the compiled kernels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "host/launch.h"
#include "host/table.h"

#define CUDA_STAGED(...)
#define UNIT(name) {"cuda_attention_" #name, cuda_attention_##name##_shared},
#define UNITS_f32(name) UNIT(f32_##name)
#define UNITS_16bit(name) UNIT(bf16_##name) UNIT(f16_##name)
#define CUDA_FORWARD(types, name, ...) UNITS_##types(name)
#define DECODE_UNIT(name) {"cuda_decode_" #name, cuda_decode_##name##_shared},
#define DECODE_UNITS_16bit(name) DECODE_UNIT(bf16_##name) DECODE_UNIT(f16_##name)
#define DECODE_UNITS_f32_f16(name) DECODE_UNIT(f32_f16_##name)
#define DECODE_UNITS_f32_bf16(name) DECODE_UNIT(f32_bf16_##name)
#define CUDA_DECODE(types, name, ...) DECODE_UNITS_##types(name)
#define CUDA_BACKWARD(type, name, pass, ...)                                                       \
    {"cuda_gradient_" #pass "_" #type "_" #name, cuda_gradient_##pass##_##type##_##name##_shared},
#define CUDA_DELTA(...)
#define CUDA_SUMS(...)
#define CUDA_MLP_UP(name, ...)                                                                     \
    {"cuda_mlp_up_bf16_" #name, cuda_mlp_up_bf16_##name##_shared},                                 \
        {"cuda_mlp_up_f16_" #name, cuda_mlp_up_f16_##name##_shared},
#define CUDA_MLP_DOWN(...)
static const struct {
    const char *name;
    int64_t (*shared)(int32_t rows);
} units[] = {
#include "instances.def"
};

static void shared_memory_is_as_compiled(void **state) {
    (void)state;
    const size_t n = sizeof units / sizeof *units;
    size_t compared = 0, staged = 0;
    while (!cuda_table[staged].rows)
        staged++;
    /* Delta, column sums and the MLP's second product name no shared memory. */
    assert_int_equal(n + 6, CUDA_ROWS - staged);
    for (size_t u = 0; u < n; u++) {
        const struct kernel *kernel = &cuda_table[staged + u];
        assert_string_equal(kernel->name, units[u].name);
        assert_true(kernel->rows[0] > 0);
        if (units[u].shared(kernel->rows[0]) < 0) /* a build of checks without it */
            continue;
        compared++;
        for (int i = 0; kernel->rows[i]; i++)
            if (kernel->shared[i] != units[u].shared(kernel->rows[i]))
                fail_msg("%s: %d rows take %lld bytes, the table says %lld", kernel->name,
                         (int)kernel->rows[i], (long long)units[u].shared(kernel->rows[i]),
                         (long long)kernel->shared[i]);
    }
    assert_true(compared > n / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(shared_memory_is_as_compiled)};
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
