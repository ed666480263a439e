#!/bin/sh
# A CPU level of aarch64, cross-compiled and run by qemu-user against the oracle. Exit 77 where the compiler
# or qemu is missing (Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user).
# Usage: tests/kernels/neon.sh LEVEL
level=$1
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
for program in aarch64-linux-gnu-gcc qemu-aarch64 cmake; do
    command -v $program >/dev/null || { echo "skipped: no $program"; exit 77; }
done
mkdir -p "aarch64_$level" && cd "aarch64_$level" || exit 2
cmake -S "$root" -B . -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux \
    -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DTESSERA_CUDA=OFF \
    -DTESSERA_CPU_LEVELS="$level" -DTESSERA_CPU_OPTIMISE=-O2 \
    -DTESSERA_WERROR=ON -DTESSERA_BUILD_TOOLS=OFF -DTESSERA_BUILD_TESTS=OFF >configure.log || exit 1
cmake --build . --target tessera_static -j2 >build.log || exit 1
lab=$(find "$root/lab" -name '*.c' ! -path "*/device/cuda.c")
# Word splitting of the file list is wanted: no name in this tree has a space.
# shellcheck disable=SC2086
aarch64-linux-gnu-gcc -O2 -std=c11 -fopenmp -static -I"$root/include" -I"$root" \
    "$root/tests/kernels/neon.c" $lab libtessera.a -lm -o neon || exit 1
exec qemu-aarch64 ./neon
