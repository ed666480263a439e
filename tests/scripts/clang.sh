#!/bin/sh
# clang finds nothing to warn of in the project's C, each CPU level's kernels included. Answers 77
# without clang.
cd "$(dirname "$0")/../.." || exit 2
command -v clang >/dev/null || { echo 'skipped: no clang'; exit 77; }
failed=0
check() {
    clang -std=c11 -fsyntax-only -fopenmp -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror \
        -Iinclude "$@" || failed=1
}
files=$(find src/*.c src/base src/pattern src/lists src/plan src/cuda/lists src/cpu/table.c src/cpu/forward/merge.c src/cpu/select \
    -name '*.c')
lab=$(find lab -name '*.c' ! -path "*/device/cuda.c")
[ -n "$files" ] && [ -n "$lab" ] || { echo 'no files'; exit 1; }
for file in $files; do
    check -Isrc -Isrc/cpu -Isrc/cuda "$file"
done
for stem in forward/attention staged/sddmm staged/softmax staged/spmm; do
    check -Isrc -Isrc/cpu -DCPU_LEVEL=portable src/cpu/$stem.c
    [ "$(uname -m)" != x86_64 ] || check -Isrc -Isrc/cpu -DCPU_LEVEL=avx512 -mavx512f -mavx512dq \
        -mavx512bw -mavx512vl -mfma -mf16c src/cpu/$stem.c
done
for file in $lab; do
    check -I. "$file"
done
exit $failed
