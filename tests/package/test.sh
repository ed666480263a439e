#!/bin/sh
# Installs a build into a temporary folder and uses it as a stranger would: through CMake (C, C++,
# static), pkg-config (shared and static) and the installed program.
# Usage: tests/package/test.sh BUILD_DIR CC CXX [FLAGS]
set -eu
build=$1 cc=$2 cxx=$3 flags=${4:-}
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
prefix=$folder/prefix

cmake --install "$build" --prefix "$prefix" >"$folder/log" || { cat "$folder/log"; exit 1; }
cmp "$here/../../LICENSE" "$prefix/share/doc/tessera/LICENSE"
(cd "$build" && cpack -G TGZ -B "$folder/packages") >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
tar tf "$folder"/packages/*.tar.gz | grep -q '/share/doc/tessera/LICENSE$' || {
    echo 'the archive has no licence'
    exit 1
}
libdir=$(dirname "$(find "$prefix" -name 'libtessera.so' | head -n 1)")
export LD_LIBRARY_PATH="$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

# build SOURCE NAME: configures and builds a project against what was installed.
build() {
    if ! { cmake -S "$1" -B "$folder/$2" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
        -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" &&
        cmake --build "$folder/$2"; } >"$folder/log" 2>&1; then
        cat "$folder/log"
        exit 1
    fi
}

build "$here" stranger
for program in stranger_c stranger_cpp stranger_static; do
    printf '%s: ' "$program"
    "$folder/stranger/$program"
done
build "$here/../../examples" examples
printf 'examples: '
"$folder/examples/five_lines" | head -n 1

export PKG_CONFIG_PATH="$libdir/pkgconfig"
# shellcheck disable=SC2046,SC2086
{
    $cc -std=c11 $flags "$here/use.c" $(pkg-config --cflags --libs tessera) -o "$folder/shared"
    $cc -std=c11 $flags "$here/use.c" $(pkg-config --cflags tessera) "$libdir/libtessera.a" \
        $(pkg-config --static --libs tessera | sed 's/-ltessera//') -o "$folder/static"
}
for program in shared static; do
    printf 'pkg-config, %s: ' "$program"
    "$folder/$program"
done
[ ! -x "$prefix/bin/tessera" ] || "$prefix/bin/tessera" --version
