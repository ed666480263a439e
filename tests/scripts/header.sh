#!/bin/sh
# The public header alone, as C11 and as C++17, without a warning. Usage: tests/scripts/header.sh INCLUDE_DIR
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/use.c" <<'TEXT'
#include <tessera.h>
#include <tessera.h>
int main(void) {
    tess_problem problem = tess_problem_init();
    tess_tensor q = tess_tensor_bhnd(NULL, TESS_F32, 1, 1, 1, 1);
    return problem.struct_size == sizeof problem && q.stride[3] == 1 ? 0 : 1;
}
TEXT
cp "$folder/use.c" "$folder/use.cpp"
warnings='-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror'
# shellcheck disable=SC2086
for compiler in ${CC:-cc} gcc clang; do
    command -v "$compiler" >/dev/null || continue
    "$compiler" -std=c11 $warnings -I"$1" -c "$folder/use.c" -o "$folder/use.o"
    echo "$compiler, C11: no warning"
done
# shellcheck disable=SC2086
for compiler in ${CXX:-c++} g++ clang++; do
    command -v "$compiler" >/dev/null || continue
    "$compiler" -std=c++17 $warnings -Wold-style-cast -I"$1" -c "$folder/use.cpp" -o "$folder/use.o"
    echo "$compiler, C++17: no warning"
done
