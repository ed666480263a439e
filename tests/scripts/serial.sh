#!/bin/sh
# A library without OpenMP and of one CPU level, from a configuration of its own: it needs no OpenMP,
# computes the same, and refuses a level that was left out by the names of those that were not. One level
# will do, and no optimisation: src/cpu/tile/parallel.h has all of OpenMP that kernels have. Usage:
# tests/scripts/serial.sh CC
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
if grep -rlE 'omp_|pragma omp' "$root/src/cpu" | grep -v '/tile/parallel.h$'; then
    echo 'kernels have OpenMP elsewhere: compile every level here'
    exit 1
fi
mkdir -p serial && cd serial
cmake -S "$root" -B . -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER="$1" -DTESSERA_CUDA=OFF \
    -DCMAKE_C_FLAGS_RELEASE=-O0 -DTESSERA_CPU_LEVELS=portable -DTESSERA_CPU_OPTIMISE=-O0 -DTESSERA_OPENMP=OFF \
    -DTESSERA_WERROR=ON -DTESSERA_BUILD_TOOLS=OFF -DTESSERA_BUILD_TESTS=OFF >configure.log
cmake --build . --target tessera tessera_static -j2 >build.log 2>&1 || { cat build.log; exit 1; }
for library in libtessera.so libtessera.a; do
    if nm "$library" | grep -E ' U (GOMP|omp|__kmpc)_'; then
        echo "$library needs OpenMP"
        exit 1
    fi
done
"$1" -std=c11 -I"$root/include" "$root/tests/package/use.c" libtessera.a -lm -o use
./use
if TESSERA_ISA=avx2 ./use >refused; then
    echo 'a level that was left out is obeyed'
    exit 1
fi
grep -F "none of this build's levels: portable" refused
