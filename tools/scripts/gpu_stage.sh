#!/usr/bin/env bash
# Gathers what tests/scripts/gpu.sh runs on a machine that builds nothing: tools/scripts/gpu_stage.sh [BUILD [STAGE]]
#
# Copies the program, the library and the tests that meet a device from a build folder (default
# build/cuda-long, of that preset), and the shared libraries that they need beyond glibc, stripped, into a folder
# (default .stage), and writes beside them the commit that they are of.
set -eu
cd "$(dirname "$0")/../.."
build=${1:-build/cuda-long}
stage=${2:-.stage}

programs=("$build/tessera")
for program in test_cuda test_cuda_bits test_cuda_fill test_cuda_pool test_cuda_order test_cuda_threads test_decode test_api test_plan test_large outputs \
    test_cuda_select examples/generate_cuda examples/select_blocks_cuda; do
    [ -x "$build/$program" ] && programs+=("$build/$program")
done
[ -x "$build/tessera" ] || { echo "gpu_stage: there is no $build/tessera: build first" >&2; exit 2; }

rm -rf "$stage"
mkdir -p "$stage"
# glibc's own libraries and the driver are the other machine's.
libraries=$(ldd "${programs[@]}" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*|libcuda)\.so')
# shellcheck disable=SC2086 # no library's path has a space
cp -L "${programs[@]}" $libraries "$stage"
[ ! -e "$build/libtessera.so" ] || cp -L "$build/libtessera.so" "$stage"
strip --strip-unneeded "$stage"/*
sed 's/.*"\(.*\)"/\1/' "$build/commit/commit.h" >"$stage/commit"
du -sh "$stage" | sed 's/^/gpu_stage: /'
