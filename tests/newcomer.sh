#!/bin/bash
# The newcomer's path: builds and installs Tessera, then uses it in every way that README names, by
# the lines that README and the examples give: shared, static, C++, Python, vendored, packages.
# Usage: tests/newcomer.sh                    from a clean clone of what is committed, all of it
#        tests/newcomer.sh BUILD [CC [CXX]]  with that build, and without what `package` and
#                                             `debian_packages` test of it
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
build=${1-} cc=${2-cc} cxx=${3-c++}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
prefix=$folder/prefix
# Nothing of another installation answers in this one's place.
unset LD_LIBRARY_PATH PKG_CONFIG_PATH CMAKE_PREFIX_PATH

fail() {
    echo "newcomer: $*"
    exit 1
}
# quietly COMMAND...: its output is told only when it fails.
quietly() {
    "$@" >"$folder/log" 2>&1 || { cat "$folder/log"; fail "$*"; }
}
step() {
    printf '%3d s  %s\n' "$SECONDS" "$*"
}

# ---- clone, build, install ----
source=$here
if [ -z "$build" ]; then
    source=$folder/tessera
    quietly git clone --quiet "file://$here" "$source"
    step cloned
    (cd "$source" && quietly tools/demo.sh && cp "$folder/log" "$folder/demo")
    for name in tessera out/pattern.png out/top_blocks.svg out/o.safetensors; do
        [ -f "$source/build/demo/$name" ] || fail "the demo leaves no build/demo/$name"
    done
    grep -q '^  build/demo/tessera run ' "$folder/demo" || fail 'the demo does not name its program'
    [ ! -e "$source/build/release" ] || fail 'the demo builds in the folder of the preset release'
    step 'the demo'
    build=$source/build/release
    (cd "$source" && quietly cmake --preset release -DTESSERA_CUDA=OFF &&
        cp "$folder/log" "$folder/configured" && quietly cmake --build --preset release -j "$(nproc)")
    grep -q '^-- CUDA: no kernels (TESSERA_CUDA=OFF)' "$folder/configured" ||
        fail 'configuring does not say that there are no CUDA kernels'
    step built
    if command -v nvcc /usr/local/cuda/bin/nvcc >/dev/null; then
        quietly cmake -S "$source" -B "$folder/cuda" -DTESSERA_CUDA=ON -DTESSERA_BUILD_TESTS=OFF
        grep -q '^-- CUDA: [1-9][0-9]* files .* minutes of one core; -DTESSERA_CUDA=OFF' "$folder/log" ||
            fail 'configuring does not say how long the CUDA kernels take'
        step 'configured with CUDA'
    fi
    quietly "$source/tests/package/test.sh" "$build" "$cc" "$cxx"
    step 'find_package: C, C++, static'
    if command -v dpkg-deb >/dev/null && command -v dpkg-shlibdeps >/dev/null; then
        quietly "$source/tests/package/deb.sh" "$build" "$cc"
        step 'Debian packages'
    else
        step 'Debian packages: skipped, dpkg-dev is missing'
    fi
fi
quietly cmake --install "$build" --prefix "$prefix"
lib=$(dirname "$(find "$prefix" -name libtessera.so)")
export PKG_CONFIG_PATH=$lib/pkgconfig
step installed

# ---- the examples, each by the line in its own comment; then the same with tessera-static ----
# with_cc LINE FILE PROGRAM: runs LINE, which begins "cc FILE", in the examples' folder.
with_cc() {
    (cd "$source/examples" && eval "$cc ${1#cc } -o $3") || fail "$1"
}
needs() {
    readelf -d "$1" | grep -c 'NEEDED.*libtessera' || true
}
# runs PROGRAM: with $arguments, which are words, in the examples' folder.
runs() {
    # shellcheck disable=SC2086
    quietly env -C "$source/examples" "$1" $arguments
}
count=0
for file in "$source"/examples/*.c; do
    name=$(basename "$file" .c)
    line=$(sed -n "s/^ \* *\(cc $name\.c .*\)/\1/p" "$file")
    [ -n "$line" ] || fail "$name.c does not say how it is built"
    with_cc "$line" "$name.c" "$folder/$name"
    [ "$(needs "$folder/$name")" = 1 ] || fail "$name is not linked with the shared library"
    # What its comment has it run with, but for options.
    arguments=$(sed -n 's/^ \* *\.\/a\.out \([^[]*\).*/\1/p' "$file")
    LD_LIBRARY_PATH=$lib runs "$folder/$name"
    with_cc "${line/--libs tessera/--libs tessera-static}" "$name.c" "$folder/$name-static"
    [ "$(needs "$folder/$name-static")" = 0 ] || fail "tessera-static links the shared library"
    runs "$folder/$name-static"
    count=$((count + 1))
done
[ "$count" -gt 5 ] || fail "$count examples"
grep -qF "cc five_lines.c \$(pkg-config --cflags --libs tessera)" "$source/README.md" ||
    fail 'README does not have the line of five_lines.c'
step "$count examples, shared and static, by pkg-config"

# ---- C++ ----
cp "$source/tests/package/use.c" "$folder/use.cpp"
# shellcheck disable=SC2046
quietly "$cxx" -std=c++17 "$folder/use.cpp" $(pkg-config --cflags --libs tessera) -o "$folder/use"
LD_LIBRARY_PATH=$lib quietly "$folder/use"
step C++

# ---- Python, which must be able to hold every struct of the header against the library ----
if command -v python3 >/dev/null && ! readelf -d "$lib/libtessera.so" | grep -q 'NEEDED.*libasan'; then
    if python3 -c 'import numpy' 2>/dev/null; then
        PYTHONPATH=$source/python TESSERA_LIBRARY=$lib/libtessera.so \
            quietly python3 "$source/python/examples/attention.py"
    fi
    grep -oE '^TESS_DEFINE_INIT\(tess_[a-z_]+\)' "$prefix/include/tessera.h" | tr '()' '  ' |
        while read -r _ name; do
            python3 -c "import ctypes, sys
sys.exit(ctypes.CDLL('$lib/libtessera.so').tess_struct_size(b'$name') == 0)" ||
                fail "tess_struct_size does not know $name"
        done
    step Python
else
    step 'Python: skipped, there is none'
fi

# ---- the program ----
quietly "$prefix/bin/tessera" pattern --pattern 'each(300,724; bigbird(64,16,2,1))' --n 1024 --ascii
step 'the program'

# ---- vendored: the parent's build type and install rules are its own, unlinked libraries unbuilt ----
mkdir "$folder/parent"
cat >"$folder/parent/CMakeLists.txt" <<TEXT
cmake_minimum_required(VERSION 3.25)
project(parent LANGUAGES C)
add_subdirectory("$source" tessera)
add_executable(app "$source/tests/package/use.c")
target_link_libraries(app PRIVATE tessera::tessera_static)
install(TARGETS app)
TEXT
parent=$folder/parent/build
quietly cmake -S "$folder/parent" -B "$parent" -DCMAKE_C_COMPILER="$cc" -DTESSERA_CUDA=OFF \
    -DTESSERA_CPU_LEVELS=portable -DTESSERA_CPU_OPTIMISE=-O0
grep -q '^-- CUDA: no kernels (TESSERA_CUDA=OFF)' "$folder/log" ||
    fail 'configuring does not say that there are no CUDA kernels'
! grep -qE '^CMAKE_BUILD_TYPE:[A-Z]+=.+' "$parent/CMakeCache.txt" || fail 'the build type is forced'
quietly cmake --build "$parent" -j "$(nproc)"
quietly "$parent/app"
[ -z "$(find "$parent" -name 'libtessera.so*' -o -name tessera_tool -o -name 'test_*')" ] ||
    fail 'more is built than what is linked'
quietly cmake --install "$parent" --prefix "$folder/apart"
[ "$(cd "$folder/apart" && find . -type f)" = ./bin/app ] || fail 'a parent installs Tessera with it'
step vendored
quietly cmake -S "$folder/parent" -B "$parent" -DTESSERA_INSTALL=ON
quietly cmake --build "$parent" -j "$(nproc)"
quietly cmake --install "$parent" --prefix "$folder/both"
[ -f "$folder/both/include/tessera.h" ] || fail 'TESSERA_INSTALL=ON installs nothing'
step 'vendored and installed'
