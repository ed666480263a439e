#!/bin/sh
# A library without OpenMP, from a configuration of its own: it needs no OpenMP and computes the same.
# Usage: tests/scripts/serial.sh CC
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p serial && cd serial
cmake -S "$root" -B . -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER="$1" -DTESSERA_CUDA=OFF \
    -DTESSERA_OPENMP=OFF -DTESSERA_WERROR=ON -DTESSERA_BUILD_TOOLS=OFF -DTESSERA_BUILD_TESTS=OFF \
    >configure.log
cmake --build . --target tessera tessera_static -j2 >build.log 2>&1 || { cat build.log; exit 1; }
for library in libtessera.so libtessera.a; do
    if nm "$library" | grep -E ' U (GOMP|omp|__kmpc)_'; then
        echo "$library needs OpenMP"
        exit 1
    fi
done
"$1" -std=c11 -I"$root/include" "$root/tests/package/use.c" libtessera.a -lm -o use
./use
